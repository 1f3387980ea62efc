// Puts payload behind the headers: beats that start with the IP header, without ICRC. In front of payload every header
// length is one of four, so the shift is a choice of four constants. Headers that do not fit one beat (an AtomicETH) have no
// payload behind them: what is left of them takes its place in the second beat.
module tx_merge
  import rnic_pkg::*, dp_pkg::*;
(
    /// clock
    input  logic      clk_i,
    /// asynchronous reset, active low
    input  logic      rst_ni,
    /// headers of the next packet
    input  logic      hdr_valid_i,
    /// the packet is complete
    output logic      hdr_ready_o,
    /// headers of the next packet
    input  tx_hdr_t   hdr_i,
    /// payload, lane 0 first, zero behind the last byte
    input  logic      pay_valid_i,
    /// the payload beat is taken
    output logic      pay_ready_o,
    /// payload beat
    input  pay_beat_t pay_i,
    /// beat
    output logic      out_valid_o,
    /// the beat is taken
    input  logic      out_ready_i,
    /// beat
    output tx_beat_t  out_o
);
  logic        mid_q, pay_done_q, out_valid_q, needs_pay, go, last;
  logic [12:0] left_q, total, left;
  logic [1:0]  pad;
  data_t       carry_q, head;
  tx_beat_t    out_q;

  // lanes that the payload moves up behind a header of `hlen` bytes: the part that fits this beat
  function automatic data_t up(input data_t d, input logic [6:0] hlen);
    unique case (hlen)
      7'd44:   return d << (8 * 44);
      7'd56:   return d << (8 * 56);
      7'd60:   return d << (8 * 60);
      default: return d << (8 * 40);
    endcase
  endfunction
  // and the part that goes into the next beat
  function automatic data_t over(input data_t d, input logic [6:0] hlen);
    unique case (hlen)
      7'd44:   return d >> (8 * 20);
      7'd56:   return d >> (8 * 8);
      7'd60:   return d >> (8 * 4);
      default: return d >> (8 * 24);
    endcase
  endfunction

  assign pad       = 2'(-hdr_i.pay_len[1:0]);
  assign total     = 13'(hdr_i.hlen) + hdr_i.pay_len + 13'(pad);
  assign left      = mid_q ? left_q : total;
  assign last      = left <= 13'd64;
  assign needs_pay = mid_q ? !pay_done_q : hdr_i.pay_len != '0;
  assign go        = hdr_valid_i && (!needs_pay || pay_valid_i) && (!out_valid_q || out_ready_i);
  assign head      = mid_q ? carry_q : hdr_i.data[DataW-1:0];

  assign pay_ready_o = go && needs_pay;
  assign hdr_ready_o = go && last;
  assign out_valid_o = out_valid_q;
  assign out_o       = out_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      mid_q       <= 1'b0;
      out_valid_q <= 1'b0;
    end else begin
      if (go) mid_q <= !last;
      if (go) out_valid_q <= 1'b1;
      else if (out_ready_i) out_valid_q <= 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin
    if (go) begin
      left_q     <= left - 13'd64;
      pay_done_q <= !needs_pay || pay_i.last;
      out_q      <= '{
          qpi: hdr_i.qpi, is_rsp: hdr_i.is_rsp, dst_mac: hdr_i.dst_mac, first: !mid_q, last: last,
          bytes: last ? left[6:0] : 7'd64, data: needs_pay ? head | up(pay_i.data, hdr_i.hlen) : head
      };
      if (needs_pay) carry_q <= over(pay_i.data, hdr_i.hlen);
      else carry_q <= data_t'(hdr_i.data[MaxHdrW-1:DataW]);
    end
  end
endmodule
