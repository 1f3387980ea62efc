// Tells whether items of the QP under reset are still in an ordered queue that other QPs keep busy: marks the place of the
// QP's newest item and waits until the queue has moved past it. The QP starts nothing new while its reset waits.
module drain_mark
  import rnic_pkg::*;
#(
  /// width of the item counters: more than twice the items that can be queued
  parameter int unsigned CntW = 8
) (
  /// clock
  input  logic        clk_i,
  /// asynchronous reset, active low
  input  logic        rst_ni,
  /// QP of a reset that waits
  input  qp_err_evt_t drain_i,
  /// an item enters the queue
  input  logic        push_i,
  /// its QP
  input  qp_t         push_qpi_i,
  /// the oldest item leaves the queue
  input  logic        pop_i,
  /// an item of the QP may still be queued
  output logic        busy_o
);
  logic [CntW-1:0] in_q, out_q, mark_q, ahead;
  logic            seen_q;
  qp_t             qpi_q;
  logic            known;

  assign known  = seen_q && (qpi_q == drain_i.qpi);
  assign ahead  = mark_q - out_q;
  assign busy_o = drain_i.valid && (!known || (ahead != '0 && !ahead[CntW-1]));

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      in_q   <= '0;
      out_q  <= '0;
      mark_q <= '0;
      seen_q <= 1'b0;
      qpi_q  <= '0;
    end else begin
      if (push_i) in_q <= in_q + CntW'(1);
      if (pop_i) out_q <= out_q + CntW'(1);
      seen_q <= drain_i.valid;
      qpi_q  <= drain_i.qpi;
      if (drain_i.valid && (!known || (push_i && push_qpi_i == drain_i.qpi))) mark_q <= in_q + CntW'(push_i);
    end
  end
endmodule
