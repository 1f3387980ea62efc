// The completion side of the requester with flat ports: engine, CQE writer, events and overrun, with the outstanding
// table and the failure records that it reads.
module completion_bench
  import rnic_pkg::*;
  import req_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // context commands
    input  logic         qp_set_i,
    input  logic         qp_reset_i,
    input  logic         cq_set_i,
    input  logic [  5:0] ctx_qpi_i,
    input  logic [  5:0] ctx_cqn_i,
    input  logic         qp_version2_i,
    input  logic [ 17:0] qp_start_i,
    input  logic [  5:0] qp_send_cq_i,
    input  logic [  5:0] qp_recv_cq_i,
    input  logic [ 16:0] qp_rq_start_i,
    input  logic [ 63:0] cq_base_i,
    input  logic [  4:0] cq_log_i,
    input  logic         cq_stride32_i,
    input  logic         cq_ignore_i,
    input  logic [ 31:0] cq_start_i,
    input  logic [ 63:0] qp_rts_i,
    input  logic [ 63:0] qp_err_i,
    input  logic         drain_valid_i,
    input  logic [  5:0] drain_qpi_i,
    output logic         drain_busy_o,
    input  logic [ 31:0] cq_wait_i,
    input  logic [ 47:0] time_i,
    // what happens to WQEs
    input  logic         db_valid_i,
    input  logic [  5:0] db_qpi_i,
    input  logic [ 17:0] db_idx_i,
    input  logic         una_valid_i,
    input  logic [  5:0] una_qpi_i,
    input  logic [ 17:0] una_idx_i,
    input  logic         fail_valid_i,
    input  logic [  5:0] fail_qpi_i,
    input  logic [  3:0] fail_slot_i,
    input  logic [  7:0] fail_code_i,
    input  logic         nak_valid_i,
    input  logic         rsp_valid_i,
    input  logic         entry_valid_i,
    input  logic [  5:0] entry_qpi_i,
    input  logic [  3:0] entry_slot_i,
    input  logic [  7:0] entry_opcode_i,
    input  logic         entry_ce_i,
    input  logic         entry_imm_i,
    input  logic [ 31:0] entry_len_i,
    // what happens to receive WQEs
    input  logic         rqdb_valid_i,
    input  logic [  5:0] rqdb_qpi_i,
    input  logic [ 16:0] rqdb_idx_i,
    input  logic         begins_valid_i,
    input  logic [  5:0] begins_qpi_i,
    input  logic         ends_valid_i,
    input  logic [  5:0] ends_qpi_i,
    input  logic         ends_good_i,
    input  logic [  7:0] got_code_i,
    input  logic         got_write_i,
    input  logic         got_with_imm_i,
    input  logic         got_se_i,
    input  logic [ 31:0] got_imm_i,
    input  logic [ 31:0] got_len_i,
    // CQ doorbell
    input  logic         dbcq_valid_i,
    input  logic [  5:0] dbcq_cqn_i,
    input  logic [ 22:0] dbcq_ci_i,
    input  logic [  1:0] dbcq_arm_i,
    output logic         dbcq_ready_o,
    output logic         dbcq_rsp_valid_o,
    output logic [  1:0] dbcq_rsp_o,
    // memory port
    output logic         req_valid_o,
    input  logic         req_ready_i,
    output logic [ 63:0] req_addr_o,
    output logic         beat_valid_o,
    input  logic         beat_ready_i,
    output logic [511:0] beat_data_o,
    output logic [ 63:0] beat_strb_o,
    input  logic         b_valid_i,
    input  logic         b_err_i,
    // results: one word of flags, so that an idle cycle costs the test one read
    output logic         any_o,
    output logic         retire_valid_o,
    output logic [  5:0] retire_qpi_o,
    output logic [ 17:0] retire_idx_o,
    output logic         rq_retire_valid_o,
    output logic [  5:0] rq_retire_qpi_o,
    output logic [ 16:0] rq_retire_idx_o,
    output logic         err_valid_o,
    output logic [  5:0] err_qpi_o,
    output logic         async_valid_o,
    output logic [  7:0] async_kind_o,
    output logic [ 23:0] async_number_o,
    output logic         event_valid_o,
    output logic [  5:0] event_cqn_o,
    output logic [ 63:0] cnt_o
);
  ctx_wr_t           ctx;
  qp_err_evt_t       drain, comp_err, event_err;
  qp_err_evt_t [4:0] fails;
  qp_idx_t           db, retire;
  rq_move_t          rq_db, rq_retire;
  recv_evt_t         recv;
  qp_pos_t           una;
  qp_fail_t          tx_fail, nak_fail, data_fail;
  req_entry_t        entry_new, entry;
  logic              rec_en, entry_en, failed, cqe_room, cqe_valid, arm_valid, arm_solicit, timeout_valid;
  logic              done_valid, done_solicit, done_err, drain_comp, drain_cqe, cnt_overrun, cnt_bus;
  qp_t               rec_qpi, entry_qpi;
  slot_t             rec_slot, entry_slot;
  logic [7:0]        fail_code;
  cqe_job_t          cqe;
  cq_t               arm_cqn, timeout_cqn, done_cqn;
  logic [NumCq-1:0]  overrun;
  logic [NumQp-1:0]  stop, fail_local, unused_dead;
  psn_t              unused_first;
  req_mark_t         unused_mark;
  async_evt_t        async_evt;
  wr_req_t           req;
  wr_beat_t          beat;
  cnt_inc_t          cnt;

  always_comb begin
    ctx                   = '0;
    ctx.qp_set            = qp_set_i;
    ctx.qp_reset          = qp_reset_i;
    ctx.cq_set            = cq_set_i;
    ctx.qpi               = ctx_qpi_i;
    ctx.cqn               = ctx_cqn_i;
    ctx.qp.version2       = qp_version2_i;
    ctx.qp.sq_start       = qp_start_i;
    ctx.qp.send_cq        = qp_send_cq_i;
    ctx.qp.recv_cq        = qp_recv_cq_i;
    ctx.qp.rq_start       = {1'b0, qp_rq_start_i};
    ctx.cq.base           = cq_base_i;
    ctx.cq.log            = cq_log_i;
    ctx.cq.stride32       = cq_stride32_i;
    ctx.cq.ignore_overrun = cq_ignore_i;
    ctx.cq.start          = cq_start_i;
    entry_new              = '0;
    entry_new.wqe.opcode   = entry_opcode_i;
    entry_new.wqe.ce       = entry_ce_i;
    entry_new.wqe.with_imm = entry_imm_i;
    entry_new.wqe.len      = entry_len_i;
  end
  assign drain    = '{valid: drain_valid_i, qpi: drain_qpi_i};
  assign db       = '{valid: db_valid_i, qpi: db_qpi_i, idx: db_idx_i};
  assign rq_db    = '{valid: rqdb_valid_i, qpi: rqdb_qpi_i, idx: rqdb_idx_i};
  assign recv     = '{
      begins: begins_valid_i, begins_qpi: begins_qpi_i, ends: ends_valid_i, good: ends_good_i, qpi: ends_qpi_i,
      done: '{
          code: got_code_i, write: got_write_i, with_imm: got_with_imm_i, se: got_se_i, imm: got_imm_i, len: got_len_i
      }
  };
  assign una      = '{valid: una_valid_i, qpi: una_qpi_i, idx: una_idx_i, psn: '0, rd: '0, moved: 1'b0, all: 1'b0};
  assign data_fail = '{valid: rsp_valid_i, qpi: fail_qpi_i, slot: fail_slot_i, code: fail_code_i};
  assign tx_fail  = '{valid: fail_valid_i, qpi: fail_qpi_i, slot: fail_slot_i, code: fail_code_i};
  assign nak_fail = '{valid: nak_valid_i, qpi: fail_qpi_i, slot: fail_slot_i, code: fail_code_i};
  assign fails[0] = '{valid: tx_fail.valid, qpi: tx_fail.qpi};
  assign fails[1] = '{valid: nak_fail.valid, qpi: nak_fail.qpi};
  assign fails[2] = '{valid: data_fail.valid, qpi: data_fail.qpi};
  assign fails[3] = '0;
  assign fails[4] = '0;

  req_table i_table (
      .clk_i,
      .wr_en_i(entry_valid_i), .wr_qpi_i(entry_qpi_i), .wr_slot_i(entry_slot_i), .wr_entry_i(entry_new),
      .rd_en_i(entry_en), .rd_qpi_i(entry_qpi), .rd_slot_i(entry_slot), .rd_entry_o(entry),
      .mark_en_i(1'b0), .mark_qpi_i('0), .mark_slot_i('0), .mark_o(unused_mark),
      .first_en_i(1'b0), .first_qpi_i('0), .first_slot_i('0), .first_o(unused_first)
  );
  req_fail i_fail (
      .clk_i, .rst_ni, .ctx_i(ctx), .tx_i(tx_fail), .gather_i('0), .nak_i(nak_fail), .retry_i('0), .data_i(data_fail),
      .stop_o(stop), .local_o(fail_local),
      .rd_en_i(rec_en), .rd_qpi_i(rec_qpi), .slot_i(rec_slot), .failed_o(failed), .code_o(fail_code)
  );
  comp_eng i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .qp_rts_i, .qp_err_i, .drain_i(drain), .cq_wait_i, .time_i, .db_i(db), .una_i(una),
      .stop_i(stop | fail_local), .fail_i(fails), .rq_db_i(rq_db), .recv_i(recv), .rq_retire_o(rq_retire),
      .db_cq_valid_i(dbcq_valid_i), .db_cq_cqn_i(dbcq_cqn_i), .db_cq_ci_i(dbcq_ci_i), .db_cq_arm_i(dbcq_arm_i),
      .db_cq_ready_o(dbcq_ready_o), .db_cq_rsp_valid_o(dbcq_rsp_valid_o), .db_cq_rsp_o(dbcq_rsp_o),
      .arm_valid_o(arm_valid), .arm_cqn_o(arm_cqn), .arm_solicit_o(arm_solicit), .overrun_i(overrun),
      .timeout_valid_o(timeout_valid), .timeout_cqn_o(timeout_cqn),
      .rec_en_o(rec_en), .rec_qpi_o(rec_qpi), .entry_en_o(entry_en), .entry_qpi_o(entry_qpi),
      .entry_slot_o(entry_slot), .entry_i(entry), .rec_slot_o(rec_slot), .failed_i(failed), .code_i(fail_code),
      .cqe_room_i(cqe_room), .cqe_valid_o(cqe_valid), .cqe_o(cqe), .retire_o(retire), .err_o(comp_err),
      .dead_o(unused_dead), .drain_busy_o(drain_comp), .cnt_o(cnt)
  );
  cqe_writer i_writer (
      .clk_i, .rst_ni, .room_o(cqe_room), .cqe_valid_i(cqe_valid), .cqe_i(cqe),
      .req_valid_o, .req_ready_i, .req_o(req), .beat_valid_o, .beat_ready_i, .beat_o(beat), .b_valid_i, .b_err_i,
      .done_valid_o(done_valid), .done_cqn_o(done_cqn), .done_solicit_o(done_solicit), .done_err_o(done_err),
      .drain_i(drain), .drain_busy_o(drain_cqe)
  );
  cq_event i_event (
      .clk_i, .rst_ni, .ctx_i(ctx), .qp_rts_i, .arm_valid_i(arm_valid), .arm_cqn_i(arm_cqn),
      .arm_solicit_i(arm_solicit), .done_valid_i(done_valid), .done_cqn_i(done_cqn), .done_solicit_i(done_solicit),
      .done_err_i(done_err), .timeout_valid_i(timeout_valid), .timeout_cqn_i(timeout_cqn),
      .set_valid_o(event_valid_o), .set_cqn_o(event_cqn_o), .overrun_o(overrun), .async_o(async_evt),
      .hold_i(comp_err.valid), .err_o(event_err), .cnt_overrun_o(cnt_overrun), .cnt_bus_o(cnt_bus)
  );

  assign drain_busy_o   = drain_valid_i && (drain_comp || drain_cqe);
  assign req_addr_o     = req.addr;
  assign beat_data_o    = beat.data;
  assign beat_strb_o    = beat.strb;
  assign retire_valid_o = retire.valid;
  assign retire_qpi_o   = retire.qpi;
  assign retire_idx_o   = retire.idx;
  assign rq_retire_valid_o = rq_retire.valid;
  assign rq_retire_qpi_o   = rq_retire.qpi;
  assign rq_retire_idx_o   = rq_retire.idx;
  assign err_valid_o    = comp_err.valid || event_err.valid;
  assign err_qpi_o      = comp_err.valid ? comp_err.qpi : event_err.qpi;
  assign async_valid_o  = async_evt.valid;
  assign async_kind_o   = async_evt.kind;
  assign async_number_o = async_evt.number;
  assign any_o          = retire.valid || rq_retire.valid || err_valid_o || async_evt.valid || event_valid_o ||
                          cnt_o != '0;
  always_comb begin
    cnt_o               = cnt;
    cnt_o[CntCqOverrun] = cnt_overrun;
    cnt_o[CntBusCqe]    = cnt_bus;
  end
endmodule
