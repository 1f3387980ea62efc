// The whole requester with flat ports. Memory, responder and host front are the test's.
module requester_bench
  import rnic_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // context commands
    input  logic         qp_set_i,
    input  logic         qp_reset_i,
    input  logic         cq_set_i,
    input  logic         mr_set_i,
    input  logic [  5:0] ctx_qpi_i,
    input  logic [  5:0] ctx_cqn_i,
    input  logic [  7:0] ctx_mrn_i,
    input  logic         qp_version2_i,
    input  logic [  2:0] qp_mtu_i,
    input  logic [  4:0] qp_log_i,
    input  logic [ 63:0] qp_base_i,
    input  logic [ 17:0] qp_start_i,
    input  logic [ 23:0] qp_psn_i,
    input  logic [  4:0] qp_max_rd_i,
    input  logic [  2:0] qp_retry_i,
    input  logic [  2:0] qp_rnr_i,
    input  logic [  4:0] qp_timer_i,
    input  logic [  5:0] qp_cqn_i,
    input  logic [ 63:0] cq_base_i,
    input  logic [  4:0] cq_log_i,
    input  logic [ 63:0] mr_base_i,
    input  logic [ 64:0] mr_length_i,
    input  logic         mr_write_i,
    input  logic [  7:0] mr_tag_i,
    input  logic [ 63:0] qp_rts_i,
    input  logic [ 63:0] qp_err_i,
    input  logic         drain_valid_i,
    input  logic [  5:0] drain_qpi_i,
    output logic         drain_busy_o,
    input  logic [ 47:0] time_i,
    // doorbells
    input  logic         db_valid_i,
    input  logic [  5:0] db_qpi_i,
    input  logic [ 17:0] db_idx_i,
    // WQE fetch
    output logic         fetch_valid_o,
    input  logic         fetch_ready_i,
    output logic [ 63:0] fetch_addr_o,
    output logic [  7:0] fetch_len_o,
    input  logic         fbeat_valid_i,
    input  logic [511:0] fbeat_data_i,
    input  logic         fbeat_err_i,
    // packets
    output logic         job_valid_o,
    input  logic         job_ready_i,
    output logic [  5:0] job_qpi_o,
    output logic [  3:0] job_slot_o,
    output logic [  7:0] job_bth_o,
    output logic [ 23:0] job_psn_o,
    output logic         job_ack_o,
    output logic         job_se_o,
    output logic         job_reth_o,
    output logic         job_imm_o,
    output logic         job_rsp_o,
    output logic [ 63:0] job_raddr_o,
    output logic [ 31:0] job_rkey_o,
    output logic [ 31:0] job_len_o,
    output logic [ 63:0] job_laddr_o,
    output logic [ 12:0] job_pay_o,
    output logic [255:0] job_amo_o,
    output logic         expect_valid_o,
    output logic [  5:0] expect_qpi_o,
    output logic [  3:0] expect_slot_o,
    output logic [  1:0] expect_kind_o,
    output logic [ 23:0] expect_first_o,
    output logic [ 23:0] expect_last_o,
    output logic [ 63:0] expect_laddr_o,
    output logic [ 31:0] expect_lkey_o,
    output logic [ 31:0] expect_len_o,
    output logic         expect_resumed_o,
    output logic         rewind_valid_o,
    output logic [  5:0] rewind_qpi_o,
    input  logic         rewound_i,
    input  logic         gerr_valid_i,
    input  logic [  5:0] gerr_qpi_i,
    input  logic [  3:0] gerr_slot_i,
    // responses
    input  logic         rsp_valid_i,
    output logic         rsp_ready_o,
    input  logic [  5:0] rsp_qpi_i,
    input  logic [  2:0] rsp_kind_i,
    input  logic [ 23:0] rsp_psn_i,
    input  logic [  7:0] rsp_syndrome_i,
    input  logic [  3:0] rsp_slot_i,
    input  logic         rsp_last_i,
    input  logic [  7:0] rsp_fail_i,
    // CQE writes
    output logic         cqe_valid_o,
    output logic [511:0] cqe_data_o,
    input  logic         cqe_b_valid_i,
    // results: one word of flags, so that an idle cycle costs the test one read
    output logic         any_o,
    output logic         err_valid_o,
    output logic [  5:0] err_qpi_o,
    output logic [ 63:0] cnt_o
);
  ctx_wr_t    ctx;
  qp_err_evt_t drain, err;
  rd_req_t    fetch_req;
  rd_beat_t   fbeat;
  tx_job_t    job;
  expect_t    expects;
  rsp_evt_t   rsp;
  rewind_t    rewind;
  wr_req_t    unused_cqe_req;
  wr_beat_t   cqe_beat;
  async_evt_t unused_async;
  logic       unused_retire_valid, unused_dbcq_ready, unused_dbcq_rsp_valid, unused_cqe_req_valid, unused_event_valid;
  qp_t        unused_retire_qpi;
  idx_t       unused_retire_idx;
  logic [1:0] unused_dbcq_rsp;
  cq_t        unused_event_cqn;

  always_comb begin
    ctx              = '0;
    ctx.qp_set       = qp_set_i;
    ctx.qp_reset     = qp_reset_i;
    ctx.cq_set       = cq_set_i;
    ctx.mr_set       = mr_set_i;
    ctx.qpi          = ctx_qpi_i;
    ctx.cqn          = ctx_cqn_i;
    ctx.mrn          = ctx_mrn_i;
    ctx.qp.version2  = qp_version2_i;
    ctx.qp.mtu       = qp_mtu_i;
    ctx.qp.sq_log    = qp_log_i;
    ctx.qp.sq_base   = qp_base_i;
    ctx.qp.sq_start  = qp_start_i;
    ctx.qp.sq_psn    = qp_psn_i;
    ctx.qp.max_rd    = qp_max_rd_i;
    ctx.qp.retry_cnt = qp_retry_i;
    ctx.qp.rnr_retry = qp_rnr_i;
    ctx.qp.timer     = qp_timer_i;
    ctx.qp.send_cq   = qp_cqn_i;
    ctx.qp.recv_cq   = qp_cqn_i;
    ctx.cq.base      = cq_base_i;
    ctx.cq.log       = cq_log_i;
    ctx.mr.valid     = 1'b1;
    ctx.mr.base      = mr_base_i;
    ctx.mr.length    = mr_length_i;
    ctx.mr.loc_write = mr_write_i;
    ctx.mr.ltag      = mr_tag_i;
  end
  assign drain = '{valid: drain_valid_i, qpi: drain_qpi_i};
  assign fbeat = '{data: fbeat_data_i, err: fbeat_err_i, last: 1'b0};
  assign rsp   = '{
      qpi: rsp_qpi_i, kind: rsp_kind_e'(rsp_kind_i), psn: rsp_psn_i, syndrome: rsp_syndrome_i, msn: '0,
      slot: rsp_slot_i, last: rsp_last_i, fail: rsp_fail_i
  };

  requester i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .qp_rts_i, .qp_err_i, .drain_i(drain), .drain_busy_o,
      .db_sq_valid_i(db_valid_i), .db_sq_qpi_i(db_qpi_i), .db_sq_pi_i(db_idx_i),
      .retire_valid_o(unused_retire_valid), .retire_qpi_o(unused_retire_qpi), .retire_idx_o(unused_retire_idx),
      .db_cq_valid_i(1'b0), .db_cq_cqn_i('0), .db_cq_ci_i('0), .db_cq_arm_i(2'd0),
      .db_cq_ready_o(unused_dbcq_ready), .db_cq_rsp_valid_o(unused_dbcq_rsp_valid), .db_cq_rsp_o(unused_dbcq_rsp),
      .sl_weight_i(64'h0101_0101_0101_0101), .cq_wait_i(32'd0), .time_i,
      .fetch_req_valid_o(fetch_valid_o), .fetch_req_ready_i(fetch_ready_i), .fetch_req_o(fetch_req),
      .fetch_beat_valid_i(fbeat_valid_i), .fetch_beat_i(fbeat),
      .job_valid_o, .job_ready_i, .job_o(job), .expect_valid_o, .expect_o(expects), .rewind_o(rewind), .rewound_i,
      .gerr_valid_i, .gerr_qpi_i, .gerr_slot_i, .rsp_valid_i, .rsp_ready_o, .rsp_i(rsp),
      .rq_db_i('0), .recv_i('0), .rq_retire_o(),
      .cqe_req_valid_o(unused_cqe_req_valid), .cqe_req_ready_i(1'b1), .cqe_req_o(unused_cqe_req),
      .cqe_beat_valid_o(cqe_valid_o), .cqe_beat_ready_i(1'b1), .cqe_beat_o(cqe_beat),
      .cqe_b_valid_i, .cqe_b_err_i(1'b0), .err_o(err), .async_o(unused_async),
      .cq_event_set_valid_o(unused_event_valid), .cq_event_set_cqn_o(unused_event_cqn), .cnt_o
  );

  assign fetch_addr_o   = fetch_req.addr;
  assign fetch_len_o    = fetch_req.len;
  assign job_qpi_o      = job.qpi;
  assign job_slot_o     = job.slot;
  assign job_bth_o      = job.bth;
  assign job_psn_o      = job.psn;
  assign job_ack_o      = job.ack_req;
  assign job_se_o       = job.se;
  assign job_reth_o     = job.has_reth;
  assign job_imm_o      = job.has_imm;
  assign job_rsp_o      = job.is_rsp;
  assign job_raddr_o    = job.raddr;
  assign job_rkey_o     = job.rkey;
  assign job_len_o      = job.dma_len;
  assign job_laddr_o    = job.laddr;
  assign job_pay_o      = job.pay_len;
  assign job_amo_o      = job.amo;
  assign expect_qpi_o   = expects.qpi;
  assign expect_slot_o  = expects.slot;
  assign expect_kind_o  = expects.kind;
  assign expect_first_o = expects.first;
  assign expect_last_o  = expects.last;
  assign expect_laddr_o = expects.laddr;
  assign expect_lkey_o  = expects.lkey;
  assign expect_len_o   = expects.len;
  assign expect_resumed_o = expects.resumed;
  assign rewind_valid_o = rewind.valid;
  assign rewind_qpi_o   = rewind.qpi;
  assign cqe_data_o     = cqe_beat.data;
  assign err_valid_o    = err.valid;
  assign err_qpi_o      = err.qpi;
  assign any_o          = fetch_valid_o || job_valid_o || expect_valid_o || cqe_valid_o || err_valid_o || cnt_o != '0;
endmodule
