// Which QPs may have something to complete: of their send or of their receive queues. Every event that can change the fate
// of a QP's oldest WQE sets the QP's bit; the pick takes the bit away, so that an event in any later cycle brings the QP back. A QP whose CQ is full waits aside
// until some CQ makes room or is lost.
module comp_pend
  import rnic_pkg::*;
#(
  /// kinds of events
  parameter int unsigned NumEvt = 1
) (

  /// clock
  input  logic              clk_i,
  /// asynchronous reset, active low
  input  logic              rst_ni,
  /// executed context commands
  input  ctx_wr_t           ctx_i,
  /// QPs in RTS
  input  logic [NumQp-1:0]  qp_rts_i,
  /// QPs in ERR
  input  logic [NumQp-1:0]  qp_err_i,
  /// QPs whose failed WQE completed
  input  logic [NumQp-1:0]  dead_i,
  /// QP of a reset that waits
  input  qp_err_evt_t       drain_i,
  /// doorbell accepted
  input  qp_err_evt_t       db_i,
  /// WQEs of a QP have their outcome
  input  qp_err_evt_t [NumEvt-1:0] evt_i,
  /// QPs to look at
  output logic [NumQp-1:0]  ready_o,
  /// a QP is picked
  input  logic              take_i,
  /// picked QP
  input  qp_t               take_qpi_i,
  /// the QP decided on has to be looked at once more
  input  logic              again_i,
  /// the QP decided on found its CQ full
  input  logic              block_i,
  /// QP decided on
  input  qp_t               qpi_i,
  /// its CQ
  input  cq_t               cqn_i,
  /// the consumer index of a CQ moved
  input  logic              room_i,
  /// its CQ
  input  cq_t               room_cqn_i,
  /// CQs that take no CQE until programmed again
  input  logic [NumCq-1:0]  overrun_i,
  /// CQs for whose room some completion waits
  output logic [NumCq-1:0]  full_o,
  /// a QP that waits is reset
  output logic              waiter_reset_o,
  /// all waiting starts anew
  input  logic              anew_i
);
  // per QP: may have something to complete; waits for room
  logic [NumQp-1:0] pend_q, wait_q, err_q, set;
  // per CQ: some completion waits for room
  logic [NumCq-1:0] full_q, lost;
  logic             made_room, wake_all;

  assign full_o       = full_q;
  assign made_room    = room_i && full_q[room_cqn_i];
  assign lost         = overrun_i & full_q;
  assign wake_all     = made_room || (lost != '0) || anew_i;
  assign waiter_reset_o = ctx_i.qp_reset && wait_q[ctx_i.qpi];

  always_comb begin
    ready_o = pend_q & (qp_rts_i | qp_err_i);
    if (drain_i.valid) ready_o[drain_i.qpi] = 1'b0;
  end

  always_comb begin
    set = (qp_err_i & ~err_q) | (wake_all ? wait_q : '0);
    for (int unsigned i = 0; i < NumEvt; i++) if (evt_i[i].valid) set[evt_i[i].qpi] = 1'b1;
    if (db_i.valid && (qp_err_i[db_i.qpi] || dead_i[db_i.qpi])) set[db_i.qpi] = 1'b1;
    if (again_i) set[qpi_i] = 1'b1;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pend_q <= '0;
      wait_q <= '0;
      err_q  <= '0;
      full_q <= '0;
    end else begin
      err_q  <= qp_err_i;
      pend_q <= pend_q | set;
      if (take_i && !set[take_qpi_i]) pend_q[take_qpi_i] <= 1'b0;
      if (wake_all) wait_q <= '0;
      if (lost != '0) full_q <= full_q & ~lost;
      if (made_room) full_q[room_cqn_i] <= 1'b0;
      if (block_i) begin
        wait_q[qpi_i] <= 1'b1;
        full_q[cqn_i] <= 1'b1;
      end
      if (ctx_i.cq_set) full_q[ctx_i.cqn] <= 1'b0;
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        pend_q[ctx_i.qpi] <= 1'b0;
        wait_q[ctx_i.qpi] <= 1'b0;
      end
      // a QP that is reset may have been the one that a CQ's waiting time counts for
      if (anew_i) full_q <= '0;
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i};
endmodule
