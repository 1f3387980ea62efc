// Events of the requester and of the data path for one bank of counters. Both may drop a response in the same cycle: one
// of the two is then counted later, so that none is lost (nic.md section 7).
module counter_merge
  import rnic_pkg::*;
(
    /// clock
    input  logic     clk_i,
    /// asynchronous reset, active low
    input  logic     rst_ni,
    /// events of the requester
    input  cnt_inc_t req_i,
    /// events of the data path
    input  cnt_inc_t dp_i,
    /// events to count
    output cnt_inc_t cnt_o
);
  // responses reach the two at one a cycle together, so what is owed never exceeds the queue between them
  logic [7:0] owed_q;
  logic       both, none;

  assign both = req_i[CntDropResponse] && dp_i[CntDropResponse];
  assign none = !req_i[CntDropResponse] && !dp_i[CntDropResponse];

  always_comb begin
    cnt_o = req_i | dp_i;
    if (owed_q != '0) cnt_o[CntDropResponse] = 1'b1;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) owed_q <= '0;
    else if (both) owed_q <= owed_q + 8'd1;
    else if (none && owed_q != '0) owed_q <= owed_q - 8'd1;
  end

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      assert ((req_i & dp_i & ~(cnt_inc_t'(1) << CntDropResponse)) == '0)
      else $error("counter_merge: an event that only one of the two may have");
      assert (!both || owed_q != '1)
      else $error("counter_merge: events are lost");
    end
  end
  `endif  // SYNTHESIS
endmodule
