// Puts the ICRC behind a packet (wire.md 4). The remainder is taken beat by beat; fields that may change on the way count
// as ones. A last beat that is full gets one more beat for the ICRC alone.
module tx_icrc
  import rnic_pkg::*, dp_pkg::*, icrc_pkg::*;
(
    /// clock
    input  logic     clk_i,
    /// asynchronous reset, active low
    input  logic     rst_ni,
    /// beat without ICRC, the IP header in lane 0 of the first
    input  logic     in_valid_i,
    /// the beat is taken
    output logic     in_ready_o,
    /// beat; the length of the last is a multiple of 4
    input  tx_beat_t in_i,
    /// beat with ICRC
    output logic     out_valid_o,
    /// the beat is taken
    input  logic     out_ready_i,
    /// beat
    output tx_beat_t out_o
);
  logic        valid_q, extra_q, splits, take;
  logic [31:0] crc_q;
  tx_beat_t    beat_q;

  assign splits      = beat_q.last && beat_q.bytes == 7'd64 && !extra_q;
  assign in_ready_o  = !valid_q || (out_ready_i && !splits);
  assign take        = in_valid_i && in_ready_o;
  assign out_valid_o = valid_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q <= 1'b0;
      extra_q <= 1'b0;
    end else begin
      if (take) valid_q <= 1'b1;
      else if (out_ready_i && !splits) valid_q <= 1'b0;
      if (valid_q && out_ready_i) extra_q <= splits;
    end
  end

  always_ff @(posedge clk_i) begin
    if (take) begin
      beat_q <= in_i;
      crc_q  <= icrc_step(crc_q, in_i.data, in_i.first, in_i.bytes);
    end
  end

  always_comb begin
    out_o = beat_q;
    if (extra_q) begin
      out_o.first = 1'b0;
      out_o.bytes = 7'd4;
      out_o.data  = {480'b0, ~crc_q};
    end else if (splits) begin
      out_o.last = 1'b0;
    end else if (beat_q.last) begin
      out_o.bytes                             = beat_q.bytes + 7'd4;
      out_o.data[{beat_q.bytes[5:2], 5'b0}+:32] = ~crc_q;
    end
  end
endmodule
