// Takes frames from the link and strips the Ethernet header: the IP header starts in lane 0. One beat a cycle; the rest
// of a frame leaves while the first beat of the next one comes in.
module rx_strip
  import rnic_pkg::*, dp_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// own MAC address
    input  logic [47:0] mac_i,
    /// link data
    input  data_t       s_axis_tdata,
    /// link byte lanes
    input  strb_t       s_axis_tkeep,
    /// last beat of the frame
    input  logic        s_axis_tlast,
    /// link valid
    input  logic        s_axis_tvalid,
    /// link ready
    output logic        s_axis_tready,
    /// beat without Ethernet header
    output logic        out_valid_o,
    /// the beat is taken
    input  logic        out_ready_i,
    /// beat without Ethernet header
    output rx_beat_t    out_o
);
  localparam int unsigned EthW = 8 * 14;
  typedef struct packed {
    logic  last;
    strb_t keep;
    data_t data;
  } link_t;

  link_t                 link, link_in;
  logic                  link_valid, link_ready;
  // bytes of the frame behind those that left; `tail`: no more are coming
  logic                  held_q, tail_q, first_q, mac_ok_q, type_ok_q;
  logic [DataW-EthW-1:0] carry_q;
  logic [6:0]            carry_bytes_q, in_bytes;
  logic                  out_valid_q, room, emit, take, ends;
  rx_beat_t              out_q;

  assign link_in = '{data: s_axis_tdata, keep: s_axis_tkeep, last: s_axis_tlast};
  stream_reg #(.T(link_t)) i_link (
      .clk_i, .rst_ni, .in_valid_i(s_axis_tvalid), .in_ready_o(s_axis_tready), .in_data_i(link_in),
      .out_valid_o(link_valid), .out_ready_i(link_ready), .out_data_o(link)
  );

  assign room       = !out_valid_q || out_ready_i;
  assign emit       = held_q && room && (tail_q || link_valid);
  assign link_ready = held_q ? room : 1'b1;
  assign take       = link_valid && link_ready;
  // lanes in use; tkeep is contiguous (nic.md 1)
  assign in_bytes   = link.last ? 7'($countones(link.keep)) : 7'd64;
  // this beat's bytes all fit into the beat that leaves
  assign ends       = held_q && !tail_q && link.last && in_bytes <= 7'd14;

  assign out_valid_o = out_valid_q;
  assign out_o       = out_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      held_q      <= 1'b0;
      tail_q      <= 1'b0;
      out_valid_q <= 1'b0;
    end else begin
      if (emit) out_valid_q <= 1'b1;
      else if (out_ready_i) out_valid_q <= 1'b0;
      if (take) begin
        held_q <= !ends;
        tail_q <= link.last;
      end else if (emit) begin
        held_q <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (emit) begin
      out_q <= '{
          mac_ok: mac_ok_q, type_ok: type_ok_q, first: first_q, last: tail_q || ends,
          bytes: tail_q ? carry_bytes_q : (ends ? 7'd50 + in_bytes : 7'd64),
          data: {tail_q ? EthW'(0) : link.data[EthW-1:0], carry_q}
      };
    end
    if (take) begin
      carry_q       <= link.data[DataW-1:EthW];
      carry_bytes_q <= (in_bytes > 7'd14) ? in_bytes - 7'd14 : '0;
      first_q       <= !held_q || tail_q;
      if (!held_q || tail_q) begin
        mac_ok_q  <= link.data[47:0] == be48(mac_i);
        type_ok_q <= link.data[96+:16] == 16'h0008;
      end
    end
  end
endmodule
