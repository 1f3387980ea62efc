// Puts the Ethernet header before a packet and drives the link: byte 0 in lane 0, tkeep contiguous and full before tlast.
module tx_eth
  import rnic_pkg::*, dp_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// own MAC address
    input  logic [47:0] mac_i,
    /// beat, the IP header in lane 0 of the first
    input  logic        in_valid_i,
    /// the beat is taken
    output logic        in_ready_o,
    /// beat
    input  tx_beat_t    in_i,
    /// link data
    output data_t       m_axis_tdata,
    /// link byte lanes
    output strb_t       m_axis_tkeep,
    /// last beat of the frame
    output logic        m_axis_tlast,
    /// link valid
    output logic        m_axis_tvalid,
    /// link ready
    input  logic        m_axis_tready,
    /// a frame left with this beat
    output logic        sent_o,
    /// its QP
    output qp_t         sent_qpi_o,
    /// it is a response
    output logic        sent_rsp_o
);
  localparam int unsigned EthW = 8 * 14;
  localparam logic [6:0] Fit = 7'd50;  // bytes of a beat that fit beside the 14 bytes before them
  typedef struct packed {
    qp_t   qpi;
    logic  is_rsp;
    logic  last;
    strb_t keep;
    data_t data;
  } link_t;

  logic              tail_q, out_ready, spills;
  logic [EthW-1:0]   carry_q, eth;
  logic [6:0]        tail_bytes_q;
  qp_t               tail_qpi_q;
  logic              tail_rsp_q, push;
  link_t             beat, link;

  assign eth        = {16'h0008, be48(mac_i), be48(in_i.dst_mac)};
  assign spills     = in_i.last && in_i.bytes > Fit;
  assign in_ready_o = out_ready && !tail_q;
  assign push       = tail_q || in_valid_i;

  function automatic strb_t keep_of(input logic [6:0] bytes);
    return {DataBytes{1'b1}} >> (7'd64 - bytes);
  endfunction

  always_comb begin
    beat = '0;
    if (tail_q) begin
      beat = '{qpi: tail_qpi_q, is_rsp: tail_rsp_q, data: data_t'(carry_q), keep: keep_of(tail_bytes_q), last: 1'b1};
    end else if (in_valid_i) begin
      beat.qpi    = in_i.qpi;
      beat.is_rsp = in_i.is_rsp;
      beat.data   = {in_i.data[DataW-EthW-1:0], in_i.first ? eth : carry_q};
      beat.last   = in_i.last && !spills;
      beat.keep   = beat.last ? keep_of(in_i.bytes + 7'd14) : '1;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) tail_q <= 1'b0;
    else if (out_ready) tail_q <= !tail_q && in_valid_i && spills;
  end
  always_ff @(posedge clk_i) begin
    if (in_valid_i && in_ready_o) begin
      carry_q      <= in_i.data[DataW-1-:EthW];
      tail_bytes_q <= in_i.bytes - Fit;
      tail_qpi_q   <= in_i.qpi;
      tail_rsp_q   <= in_i.is_rsp;
    end
  end

  stream_reg #(.T(link_t)) i_link (
      .clk_i, .rst_ni, .in_valid_i(push), .in_ready_o(out_ready), .in_data_i(beat),
      .out_valid_o(m_axis_tvalid), .out_ready_i(m_axis_tready), .out_data_o(link)
  );
  assign m_axis_tdata = link.data;
  assign m_axis_tkeep = link.keep;
  assign m_axis_tlast = link.last;

  // one cycle late, so that nothing inside depends on the link's ready combinationally
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) sent_o <= 1'b0;
    else sent_o <= m_axis_tvalid && m_axis_tready && link.last;
  end
  always_ff @(posedge clk_i) begin
    if (m_axis_tvalid && m_axis_tready) begin
      sent_qpi_o <= link.qpi;
      sent_rsp_o <= link.is_rsp;
    end
  end
endmodule
