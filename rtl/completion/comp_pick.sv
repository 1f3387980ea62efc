// What the completion engine does next: one WQE of a send or a receive queue, one CQ doorbell, or a look at a CQ that makes
// completions wait. Nothing of these holds up another for long: completions and doorbells take turns, and so do both kinds
// of queues.
module comp_pick
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs in RTS
  input  logic [NumQp-1:0] qp_rts_i,
  /// QPs in ERR
  input  logic [NumQp-1:0] qp_err_i,
  /// QPs whose failed WQE completed
  input  logic [NumQp-1:0] dead_i,
  /// QP of a reset that waits
  input  qp_err_evt_t      drain_i,
  /// SQ doorbell accepted
  input  qp_idx_t          db_i,
  /// acknowledged position moved
  input  qp_pos_t          una_i,
  /// a WQE of the QP failed
  input  qp_err_evt_t [4:0] fail_i,
  /// RQ doorbell accepted
  input  rq_move_t         rq_db_i,
  /// outcomes of receive WQEs
  input  recv_evt_t        recv_i,
  /// CQ doorbell waits
  input  logic             db_cq_valid_i,
  /// room for a CQE in the writer
  input  logic             cqe_room_i,
  /// completions wait for CQ room for a limited time
  input  logic             limited_i,
  /// nothing can be picked in this cycle
  input  logic             busy_i,
  /// something is picked
  output logic             start_o,
  /// what
  output comp_op_e         op_o,
  /// its QP
  output qp_t              qpi_o,
  /// its CQ (OpTimer)
  output cq_t              scan_cqn_o,
  /// decided on: a receive queue, else a send queue
  input  logic             is_recv_i,
  /// its QP has to be looked at once more
  input  logic             again_i,
  /// its CQ is full
  input  logic             block_i,
  /// its QP
  input  qp_t              qpi_i,
  /// its CQ
  input  cq_t              cqn_i,
  /// the consumer index of a CQ moved
  input  logic             room_i,
  /// that CQ
  input  cq_t              room_cqn_i,
  /// CQs that take no CQE until programmed again
  input  logic [NumCq-1:0] overrun_i,
  /// CQs for whose room some completion waits
  output logic [NumCq-1:0] full_o
);
  logic [NumQp-1:0]  send_ready, recv_ready;
  logic [NumCq-1:0]  send_full, recv_full;
  logic [1:0]        waiter_reset;
  qp_err_evt_t [5:0] send_evt;
  qp_err_evt_t       sq_db, rq_db, recv_evt;
  logic              send_valid, recv_valid, send_take, recv_take, scan_valid, scan_take, timer_due;
  qp_t               send_qpi, recv_qpi;
  logic              db_turn_q;    // a completion went last
  logic              recv_turn_q;  // a WQE of a send queue went last
  logic [3:0]        timer_q;      // every 16 cycles one waiting CQ is looked at

  assign send_evt[0]   = '{valid: una_i.valid, qpi: una_i.qpi};
  assign send_evt[5:1] = fail_i;
  assign recv_evt      = '{valid: recv_i.ends && (recv_i.good || qp_err_i[recv_i.qpi]), qpi: recv_i.qpi};
  assign sq_db         = '{valid: db_i.valid, qpi: db_i.qpi};
  assign rq_db         = '{valid: rq_db_i.valid, qpi: rq_db_i.qpi};
  comp_pend #(.NumEvt(6)) i_send (
    .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .qp_err_i, .dead_i, .drain_i, .db_i(sq_db), .evt_i(send_evt),
    .ready_o(send_ready), .take_i(send_take), .take_qpi_i(send_qpi), .again_i(again_i && !is_recv_i),
    .block_i(block_i && !is_recv_i), .qpi_i, .cqn_i, .room_i, .room_cqn_i, .overrun_i, .full_o(send_full),
    .waiter_reset_o(waiter_reset[0]), .anew_i(waiter_reset != '0)
  );
  comp_pend #(.NumEvt(1)) i_recv (
    .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .qp_err_i, .dead_i, .drain_i, .db_i(rq_db), .evt_i(recv_evt),
    .ready_o(recv_ready), .take_i(recv_take), .take_qpi_i(recv_qpi), .again_i(again_i && is_recv_i),
    .block_i(block_i && is_recv_i), .qpi_i, .cqn_i, .room_i, .room_cqn_i, .overrun_i, .full_o(recv_full),
    .waiter_reset_o(waiter_reset[1]), .anew_i(waiter_reset != '0)
  );
  assign full_o = send_full | recv_full;

  rr_pick #(.Num(NumQp)) i_send_pick (
    .clk_i, .rst_ni, .req_i(send_ready), .take_i(send_take), .valid_o(send_valid), .idx_o(send_qpi)
  );
  rr_pick #(.Num(NumQp)) i_recv_pick (
    .clk_i, .rst_ni, .req_i(recv_ready), .take_i(recv_take), .valid_o(recv_valid), .idx_o(recv_qpi)
  );
  rr_pick #(.Num(NumCq)) i_scan (
    .clk_i, .rst_ni, .req_i(timer_due ? full_o : '0), .take_i(scan_take), .valid_o(scan_valid), .idx_o(scan_cqn_o)
  );
  assign timer_due = (timer_q == 4'd15) && limited_i;

  always_comb begin
    op_o    = OpComplete;
    start_o = 1'b0;
    if (!busy_i) begin
      start_o = 1'b1;
      if (scan_valid) op_o = OpTimer;
      else if (db_cq_valid_i && (db_turn_q || !(send_valid || recv_valid) || !cqe_room_i)) op_o = OpDoorbell;
      else if (recv_valid && cqe_room_i && (recv_turn_q || !send_valid)) op_o = OpReceive;
      else start_o = send_valid && cqe_room_i;
    end
  end
  assign send_take = start_o && (op_o == OpComplete);
  assign recv_take = start_o && (op_o == OpReceive);
  assign scan_take = start_o && (op_o == OpTimer);
  assign qpi_o     = (op_o == OpReceive) ? recv_qpi : send_qpi;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      db_turn_q   <= 1'b0;
      recv_turn_q <= 1'b0;
      timer_q     <= '0;
    end else begin
      if (timer_q != 4'd15) timer_q <= timer_q + 4'd1;
      if (start_o) begin
        if (op_o == OpTimer) timer_q <= '0;
        else db_turn_q <= send_take || recv_take;
        if (send_take || recv_take) recv_turn_q <= send_take;
      end
    end
  end

  // only which QP is meant
  logic unused;
  assign unused = &{1'b0, db_i.idx, una_i, rq_db_i.idx, recv_i};
endmodule
