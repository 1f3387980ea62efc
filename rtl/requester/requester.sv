// Requester side of the NIC: from an accepted SQ doorbell over WQE fetch, transmit scheduling and acknowledgements to the CQE
// (nic.md sections 3 to 6). Three stages meet here: fetch (lane_ctl, fetch_eng), issue (tx_sched, req_table,
// ack_track, req_fail, retry_ctl) and completion (comp_eng, cqe_writer, cq_event).
module requester
  import rnic_pkg::*;
  import req_pkg::*;
#(
  /// operands of the unmasked atomics (opcodes 26 and 27) are little-endian
  parameter bit AmoPlainLittle = 1'b0,
  /// masked atomics carry their remote length shifted left by one
  parameter bit AmoShiftedLen = 1'b0
) (
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
  /// QP of a reset that waits
  input  qp_err_evt_t      drain_i,
  /// something of that QP is still under way here
  output logic             drain_busy_o,

  /// SQ doorbell accepted
  input  logic             db_sq_valid_i,
  /// its QP
  input  qp_t              db_sq_qpi_i,
  /// its producer index
  input  idx_t             db_sq_pi_i,
  /// WQE retired
  output logic             retire_valid_o,
  /// its QP
  output qp_t              retire_qpi_o,
  /// first index not retired
  output idx_t             retire_idx_o,
  /// CQ doorbell
  input  logic             db_cq_valid_i,
  /// its CQ
  input  cq_t              db_cq_cqn_i,
  /// its consumer index
  input  logic [22:0]      db_cq_ci_i,
  /// its cq_sta
  input  logic [1:0]       db_cq_arm_i,
  /// doorbell taken
  output logic             db_cq_ready_o,
  /// verdict on the doorbell taken last
  output logic             db_cq_rsp_valid_o,
  /// verdict: 0 accepted, 1 backward, 2 beyond
  output logic [1:0]       db_cq_rsp_o,

  /// weight of each service level, 8 bits each
  input  logic [63:0]      sl_weight_i,
  /// cycles that a completion waits for CQ room, 0 for ever
  input  logic [31:0]      cq_wait_i,
  /// cycles since reset
  input  logic [47:0]      time_i,

  /// WQE read request
  output logic             fetch_req_valid_o,
  /// WQE read request accepted
  input  logic             fetch_req_ready_i,
  /// WQE read request
  output rd_req_t          fetch_req_o,
  /// WQE read data, always accepted
  input  logic             fetch_beat_valid_i,
  /// WQE read data
  input  rd_beat_t         fetch_beat_i,

  /// packet job
  output logic             job_valid_o,
  /// packet job accepted
  input  logic             job_ready_i,
  /// packet job
  output tx_job_t          job_o,
  /// a READ or atomic has started, always accepted
  output logic             expect_valid_o,
  /// what it expects back
  output expect_t          expect_o,
  /// forget what a QP expects, until rewound_i
  output rewind_t          rewind_o,
  /// forgotten, and no response with data under way from the receive side
  input  logic             rewound_i,
  /// the payload of a packet could not be gathered
  input  logic             gerr_valid_i,
  /// its QP
  input  qp_t              gerr_qpi_i,
  /// its place in the outstanding table
  input  slot_t            gerr_slot_i,
  /// response that passed the receive checks
  input  logic             rsp_valid_i,
  /// response accepted
  output logic             rsp_ready_o,
  /// response
  input  rsp_evt_t         rsp_i,

  /// RQ doorbell accepted
  input  rq_move_t         rq_db_i,
  /// outcomes of receive WQEs
  input  recv_evt_t        recv_i,
  /// receive WQE retired
  output rq_move_t         rq_retire_o,

  /// CQE write request
  output logic             cqe_req_valid_o,
  /// CQE write request accepted
  input  logic             cqe_req_ready_i,
  /// CQE write request
  output wr_req_t          cqe_req_o,
  /// CQE write data
  output logic             cqe_beat_valid_o,
  /// CQE write data accepted
  input  logic             cqe_beat_ready_i,
  /// CQE write data
  output wr_beat_t         cqe_beat_o,
  /// CQE write response
  input  logic             cqe_b_valid_i,
  /// CQE write failed
  input  logic             cqe_b_err_i,

  /// a QP has to go to ERR
  output qp_err_evt_t      err_o,
  /// asynchronous event
  output async_evt_t       async_o,
  /// a CQ event fires
  output logic             cq_event_set_valid_o,
  /// its CQ
  output cq_t              cq_event_set_cqn_o,
  /// counted events
  output cnt_inc_t         cnt_o
);
  logic [NumQp-1:0]   stop, fail_local, redo, dead, live, qp_ok;
  qp_idx_t            db, retire;
  qp_go_t             iss, back;
  qp_pos_t            una;
  qp_retry_t          over, ack_retry;
  logic [NumQp-1:0]   held, retry_hold;
  logic               first_en, drain_retry, cnt_retry;
  qp_t                first_qpi;
  slot_t              first_slot;
  psn_t               first_psn;
  lane_load_t         load;
  lane_idx_t          lane_db, lane_retire;
  logic [NumLane-1:0] on, have, idle, boundary, full, quantum, hold_rd, hold_psn, fetch_busy, tx_busy;
  logic               waiters;
  logic               head_en, pop;
  lane_t              head_lane, pop_lane;
  wqe_t               head;
  logic               una_rd;
  logic               entry_en, mark_en, rec_en, comp_entry_en;
  slot_t              entry_slot, mark_slot, rec_slot, comp_entry_slot;
  qp_t                mark_qpi, rec_qpi, comp_entry_qpi;
  req_entry_t         entry, comp_entry;
  req_mark_t          mark;
  qp_fail_t           tx_fail, gather_fail, nak_fail, data_fail, retry_fail;
  logic               failed;
  logic [7:0]         fail_code;
  logic               cqe_room, cqe_valid, done_valid, done_solicit, done_err;
  cqe_job_t           cqe;
  cq_t                done_cqn, arm_cqn, timeout_cqn;
  logic               arm_valid, arm_solicit, timeout_valid;
  logic [NumCq-1:0]   overrun;
  qp_err_evt_t        comp_err, event_err;
  logic               drain_lane, drain_job, drain_ack, drain_comp, drain_cqe;
  qp_t                ack_qpi;
  logic               ack_busy;
  logic               cnt_fetch_bus, cnt_overrun, cnt_cqe_bus;
  cnt_inc_t           cnt_ack, cnt_comp;

  // nothing new starts on a QP that left RTS, has a failed WQE or waits for its reset; what stands before a WQE that failed
  // on this side is sent again where it has to be
  always_comb begin
    live = qp_rts_i & ~dead;
    if (drain_i.valid) live[drain_i.qpi] = 1'b0;
  end
  assign qp_ok       = live & ~stop & ~(fail_local & ~redo) & ~retry_hold;
  assign db          = '{valid: db_sq_valid_i, qpi: db_sq_qpi_i, idx: db_sq_pi_i};
  assign gather_fail = '{valid: gerr_valid_i, qpi: gerr_qpi_i, slot: gerr_slot_i, code: CqeGatherDma};

  // ---------------------------------------------------------------- fetch
  lane_ctl i_lane_ctl (
    .clk_i, .rst_ni, .ctx_i, .qp_ok_i(qp_ok), .db_i(db), .retire_i(retire), .una_i(una), .una_rd_i(una_rd),
    .iss_i(iss), .back_i(back), .held_o(held), .load_o(load), .lane_db_o(lane_db),
    .lane_retire_o(lane_retire), .on_o(on), .waiters_o(waiters),
    .idle_i(idle), .boundary_i(boundary), .full_i(full), .hold_rd_i(hold_rd), .hold_psn_i(hold_psn),
    .quantum_i(quantum), .busy_i(fetch_busy | tx_busy),
    .drain_qpi_i(drain_i.qpi), .drain_busy_o(drain_lane)
  );

  fetch_eng #(.AmoPlainLittle(AmoPlainLittle), .AmoShiftedLen(AmoShiftedLen)) i_fetch_eng (
    .clk_i, .rst_ni, .sl_weight_i, .load_i(load), .lane_db_i(lane_db), .on_i(on), .waiters_i(waiters),
    .req_valid_o(fetch_req_valid_o), .req_ready_i(fetch_req_ready_i), .req_o(fetch_req_o),
    .beat_valid_i(fetch_beat_valid_i), .beat_i(fetch_beat_i),
    .have_o(have), .idle_o(idle), .busy_o(fetch_busy),
    .head_en_i(head_en), .head_lane_i(head_lane), .head_o(head), .pop_i(pop), .pop_lane_i(pop_lane),
    .cnt_bus_o(cnt_fetch_bus)
  );

  // ---------------------------------------------------------------- issue and acknowledgement
  tx_sched i_tx_sched (
    .clk_i, .rst_ni, .ctx_i, .sl_weight_i, .qp_ok_i(qp_ok), .load_i(load), .lane_retire_i(lane_retire),
    .on_i(on), .have_i(have), .head_en_o(head_en), .head_lane_o(head_lane), .head_i(head),
    .pop_o(pop), .pop_lane_o(pop_lane), .boundary_o(boundary), .full_o(full), .quantum_o(quantum),
    .hold_rd_o(hold_rd), .hold_psn_o(hold_psn), .busy_o(tx_busy), .una_i(una), .una_rd_i(una_rd), .iss_o(iss),
    .over_o(over),
    .entry_en_o(entry_en), .entry_slot_o(entry_slot), .entry_o(entry), .fail_o(tx_fail),
    .job_valid_o, .job_ready_i, .job_o, .expect_valid_o, .expect_o
  );
  drain_mark i_drain_job (
    .clk_i, .rst_ni, .drain_i, .push_i(iss.valid && !tx_fail.valid), .push_qpi_i(iss.qpi),
    .pop_i(job_valid_o && job_ready_i), .busy_o(drain_job)
  );

  req_table i_req_table (
    .clk_i, .wr_en_i(entry_en), .wr_qpi_i(iss.qpi), .wr_slot_i(entry_slot), .wr_entry_i(entry),
    .rd_en_i(comp_entry_en), .rd_qpi_i(comp_entry_qpi), .rd_slot_i(comp_entry_slot), .rd_entry_o(comp_entry),
    .mark_en_i(mark_en), .mark_qpi_i(mark_qpi), .mark_slot_i(mark_slot), .mark_o(mark),
    .first_en_i(first_en), .first_qpi_i(first_qpi), .first_slot_i(first_slot), .first_o(first_psn)
  );

  ack_track i_ack_track (
    .clk_i, .rst_ni, .ctx_i, .qp_rts_i(live), .rsp_valid_i, .rsp_ready_o, .rsp_i, .iss_i(iss),
    .mark_en_o(mark_en), .mark_qpi_o(mark_qpi), .mark_slot_o(mark_slot), .mark_i(mark),
    .una_o(una), .una_rd_o(una_rd), .fail_o(nak_fail), .data_fail_o(data_fail), .retry_o(ack_retry),
    .busy_o(ack_busy), .busy_qpi_o(ack_qpi), .cnt_o(cnt_ack)
  );
  retry_ctl i_retry (
    .clk_i, .rst_ni, .ctx_i, .live_i(live & ~stop), .tx_fail_i(tx_fail), .gather_fail_i(gather_fail), .drain_i,
    .drain_busy_o(drain_retry), .rsp_i(ack_retry),
    .over_i(over), .una_i(una), .ack_busy_i(ack_busy), .ack_qpi_i(ack_qpi), .iss_i(iss), .held_i(held),
    .hold_o(retry_hold), .redo_o(redo), .rewind_o, .rewound_i, .first_en_o(first_en), .first_qpi_o(first_qpi),
    .first_slot_o(first_slot),
    .first_i(first_psn), .back_o(back), .fail_o(retry_fail), .cnt_retry_o(cnt_retry)
  );
  assign drain_ack = ack_busy && (ack_qpi == drain_i.qpi);

  req_fail i_req_fail (
    .clk_i, .rst_ni, .ctx_i, .tx_i(tx_fail), .gather_i(gather_fail), .nak_i(nak_fail), .data_i(data_fail),
    .retry_i(retry_fail), .stop_o(stop), .local_o(fail_local),
    .rd_en_i(rec_en), .rd_qpi_i(rec_qpi), .slot_i(rec_slot), .failed_o(failed), .code_o(fail_code)
  );

  // ---------------------------------------------------------------- completion
  qp_err_evt_t [4:0] fails;
  assign fails[0] = '{valid: tx_fail.valid, qpi: tx_fail.qpi};
  assign fails[1] = '{valid: gather_fail.valid, qpi: gather_fail.qpi};
  assign fails[2] = '{valid: nak_fail.valid, qpi: nak_fail.qpi};
  assign fails[3] = '{valid: data_fail.valid, qpi: data_fail.qpi};
  assign fails[4] = '{valid: retry_fail.valid, qpi: retry_fail.qpi};

  comp_eng i_comp_eng (
    .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .qp_err_i, .drain_i, .cq_wait_i, .time_i, .db_i(db), .una_i(una),
    .stop_i(stop | fail_local), .fail_i(fails), .rq_db_i, .recv_i, .rq_retire_o,
    .db_cq_valid_i, .db_cq_cqn_i, .db_cq_ci_i, .db_cq_arm_i, .db_cq_ready_o, .db_cq_rsp_valid_o, .db_cq_rsp_o,
    .arm_valid_o(arm_valid), .arm_cqn_o(arm_cqn), .arm_solicit_o(arm_solicit), .overrun_i(overrun),
    .timeout_valid_o(timeout_valid), .timeout_cqn_o(timeout_cqn),
    .rec_en_o(rec_en), .rec_qpi_o(rec_qpi), .entry_en_o(comp_entry_en), .entry_qpi_o(comp_entry_qpi),
    .entry_slot_o(comp_entry_slot), .entry_i(comp_entry), .rec_slot_o(rec_slot), .failed_i(failed), .code_i(fail_code),
    .cqe_room_i(cqe_room), .cqe_valid_o(cqe_valid), .cqe_o(cqe), .retire_o(retire), .err_o(comp_err), .dead_o(dead),
    .drain_busy_o(drain_comp), .cnt_o(cnt_comp)
  );

  cqe_writer i_cqe_writer (
    .clk_i, .rst_ni, .room_o(cqe_room), .cqe_valid_i(cqe_valid), .cqe_i(cqe),
    .req_valid_o(cqe_req_valid_o), .req_ready_i(cqe_req_ready_i), .req_o(cqe_req_o),
    .beat_valid_o(cqe_beat_valid_o), .beat_ready_i(cqe_beat_ready_i), .beat_o(cqe_beat_o),
    .b_valid_i(cqe_b_valid_i), .b_err_i(cqe_b_err_i),
    .done_valid_o(done_valid), .done_cqn_o(done_cqn), .done_solicit_o(done_solicit), .done_err_o(done_err),
    .drain_i, .drain_busy_o(drain_cqe)
  );

  cq_event i_cq_event (
    .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .arm_valid_i(arm_valid), .arm_cqn_i(arm_cqn), .arm_solicit_i(arm_solicit),
    .done_valid_i(done_valid), .done_cqn_i(done_cqn), .done_solicit_i(done_solicit), .done_err_i(done_err),
    .timeout_valid_i(timeout_valid), .timeout_cqn_i(timeout_cqn),
    .set_valid_o(cq_event_set_valid_o), .set_cqn_o(cq_event_set_cqn_o), .overrun_o(overrun), .async_o,
    .hold_i(comp_err.valid), .err_o(event_err), .cnt_overrun_o(cnt_overrun), .cnt_bus_o(cnt_cqe_bus)
  );

  // ---------------------------------------------------------------- to the host front
  assign retire_valid_o = retire.valid;
  assign retire_qpi_o   = retire.qpi;
  assign retire_idx_o   = retire.idx;
  assign err_o          = comp_err.valid ? comp_err : event_err;
  assign drain_busy_o   = drain_i.valid && (drain_lane || drain_job || drain_retry || drain_ack || drain_comp ||
                                            drain_cqe);

  always_comb begin
    cnt_o               = cnt_ack | cnt_comp;
    cnt_o[CntBusFetch]  = cnt_fetch_bus;
    cnt_o[CntCqOverrun] = cnt_overrun;
    cnt_o[CntBusCqe]    = cnt_cqe_bus;
    cnt_o[CntRetry]     = cnt_retry;
  end
endmodule
