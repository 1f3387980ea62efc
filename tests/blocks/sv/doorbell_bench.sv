// db_decode with flat ports. The context is programmed through set_*; everything else is the block's own.
module doorbell_bench
  import rnic_pkg::*;
(
    input  logic             clk_i,
    input  logic             rst_ni,
    input  logic             set_valid_i,
    input  logic [      5:0] set_qpi_i,
    input  logic             set_version2_i,
    input  logic [      4:0] set_log_i,
    input  logic [     17:0] set_start_i,
    input  logic [      4:0] set_rq_log_i,
    input  logic [     16:0] set_rq_start_i,
    input  logic [      5:0] set_send_cq_i,
    input  logic [      5:0] set_recv_cq_i,
    input  logic [     63:0] qp_rts_i,
    input  logic [     63:0] qp_err_i,
    input  logic             req_valid_i,
    input  logic [     15:0] req_page_i,
    input  logic [      1:0] req_reg_i,
    input  logic             req_partial_i,
    input  logic [     63:0] req_data_i,
    output logic             done_o,
    output logic             sq_valid_o,
    output logic [      5:0] sq_qpi_o,
    output logic [     17:0] sq_pi_o,
    output logic             rq_valid_o,
    output logic [      5:0] rq_qpi_o,
    output logic [     16:0] rq_pi_o,
    input  logic             rq_retire_valid_i,
    input  logic [      5:0] rq_retire_qpi_i,
    input  logic [     16:0] rq_retire_idx_i,
    input  logic             retire_valid_i,
    input  logic [      5:0] retire_qpi_i,
    input  logic [     17:0] retire_idx_i,
    output logic             cq_valid_o,
    output logic [      5:0] cq_cqn_o,
    output logic [     22:0] cq_ci_o,
    output logic [      1:0] cq_arm_o,
    input  logic             cq_ready_i,
    input  logic             cq_rsp_valid_i,
    input  logic [      1:0] cq_rsp_i,
    output logic             err_valid_o,
    output logic [      5:0] err_qpi_o,
    output logic             async_valid_o,
    output logic [      7:0] async_kind_o,
    output logic [     23:0] async_number_o,
    output logic [     63:0] cnt_o,
    input  logic             qry_valid_i,
    input  logic [      5:0] qry_qpi_i,
    output logic             qry_ready_o,
    output logic [     17:0] qry_prod_o,
    output logic [     17:0] qry_retired_o
);

  ctx_wr_t ctx;
  qp_err_evt_t err;
  async_evt_t async_evt;

  always_comb begin
    ctx = '0;
    ctx.qp_set = set_valid_i;
    ctx.qpi = set_qpi_i;
    ctx.qp.version2 = set_version2_i;
    ctx.qp.sq_log = set_log_i;
    ctx.qp.sq_start = set_start_i;
    ctx.qp.rq_log = set_rq_log_i;
    ctx.qp.rq_start = 18'(set_rq_start_i);
    ctx.qp.send_cq = set_send_cq_i;
    ctx.qp.recv_cq = set_recv_cq_i;
  end

  db_decode u_dut (
      .clk_i,
      .rst_ni,
      .ctx_i            (ctx),
      .qp_rts_i,
      .qp_err_i,
      .req_valid_i,
      .req_page_i,
      .req_reg_i,
      .req_partial_i,
      .req_data_i,
      .done_o,
      .db_sq_valid_o    (sq_valid_o),
      .db_sq_qpi_o      (sq_qpi_o),
      .db_sq_pi_o       (sq_pi_o),
      .db_rq_valid_o    (rq_valid_o),
      .db_rq_qpi_o      (rq_qpi_o),
      .db_rq_pi_o       (rq_pi_o),
      .rq_retire_valid_i,
      .rq_retire_qpi_i,
      .rq_retire_idx_i,
      .retire_valid_i,
      .retire_qpi_i,
      .retire_idx_i,
      .db_cq_valid_o    (cq_valid_o),
      .db_cq_cqn_o      (cq_cqn_o),
      .db_cq_ci_o       (cq_ci_o),
      .db_cq_arm_o      (cq_arm_o),
      .db_cq_ready_i    (cq_ready_i),
      .db_cq_rsp_valid_i(cq_rsp_valid_i),
      .db_cq_rsp_i      (cq_rsp_i),
      .err_o            (err),
      .async_o          (async_evt),
      .cnt_o,
      .qry_valid_i,
      .qry_qpi_i,
      .qry_ready_o,
      .qry_prod_o,
      .qry_retired_o
  );

  assign err_valid_o = err.valid;
  assign err_qpi_o = err.qpi;
  assign async_valid_o = async_evt.valid;
  assign async_kind_o = async_evt.kind;
  assign async_number_o = async_evt.number;

endmodule
