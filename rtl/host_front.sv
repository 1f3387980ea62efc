// Everything the host sees of a NIC through its BAR: registers, contexts, doorbells, counters and events.
module host_front
  import rnic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// BAR, AXI4-Lite subordinate
    input  logic [     31:0] s_axil_awaddr,
    input  logic [      2:0] s_axil_awprot,
    input  logic             s_axil_awvalid,
    output logic             s_axil_awready,
    input  logic [     63:0] s_axil_wdata,
    input  logic [      7:0] s_axil_wstrb,
    input  logic             s_axil_wvalid,
    output logic             s_axil_wready,
    output logic [      1:0] s_axil_bresp,
    output logic             s_axil_bvalid,
    input  logic             s_axil_bready,
    input  logic [     31:0] s_axil_araddr,
    input  logic [      2:0] s_axil_arprot,
    input  logic             s_axil_arvalid,
    output logic             s_axil_arready,
    output logic [     63:0] s_axil_rdata,
    output logic [      1:0] s_axil_rresp,
    output logic             s_axil_rvalid,
    input  logic             s_axil_rready,
    /// broadcast of executed context commands
    output ctx_wr_t          ctx_o,
    /// bit n: QP index n is in RTS
    output logic [NumQp-1:0] qp_rts_o,
    /// bit n: QP index n is in ERR
    output logic [NumQp-1:0] qp_err_o,
    /// QP that a reset drains, held until qp_reset is broadcast
    output qp_err_evt_t      drain_o,
    /// some block still holds something of that QP
    input  logic             drain_busy_i,
    /// a valid MR was changed or invalidated; held while accesses granted before may be left
    output logic             mr_drain_valid_o,
    /// such an access is left
    input  logic             mr_drain_busy_i,
    /// accepted SQ doorbell with new work, one cycle, cannot be refused
    output logic             db_sq_valid_o,
    /// its QP
    output qp_t              db_sq_qpi_o,
    /// its new producer index; V1 in the low 14 bits
    output idx_t             db_sq_pi_o,
    /// accepted RQ doorbell with new work, cannot be refused
    output rq_move_t         rq_db_o,
    /// the first index of a receive queue without CQE moves
    input  rq_move_t         rq_retire_i,
    /// the first index of a QP that is not retired moves
    input  logic             retire_valid_i,
    /// that QP
    input  qp_t              retire_qpi_i,
    /// the new first index; V1 in the low 14 bits
    input  idx_t             retire_idx_i,
    /// CQ doorbell for completion
    output logic             db_cq_valid_o,
    /// its CQ
    output cq_t              db_cq_cqn_o,
    /// new consumer index modulo 2^23
    output logic [     22:0] db_cq_ci_o,
    /// cq_sta
    output logic [      1:0] db_cq_arm_o,
    /// taken
    input  logic             db_cq_ready_i,
    /// answer to the CQ doorbell taken last
    input  logic             db_cq_rsp_valid_i,
    /// 0 accepted, 1 backward, 2 beyond; counted here
    input  logic [      1:0] db_cq_rsp_i,
    /// completion sends a QP to ERR
    input  qp_err_evt_t      err_comp_i,
    /// responder sends a QP to ERR
    input  qp_err_evt_t      err_resp_i,
    /// asynchronous events of completion, two cycles between them at least
    input  async_evt_t       async_comp_i,
    /// asynchronous events of the responder, two cycles between them at least
    input  async_evt_t       async_resp_i,
    /// events of the other blocks to count
    input  cnt_inc_t         cnt_i,
    /// a CQ raises its event
    input  logic             cq_event_set_valid_i,
    /// that CQ
    input  cq_t              cq_event_set_cqn_i,
    /// own MAC, [47:40] first on the wire
    output logic [     47:0] mac_o,
    /// own IPv4 address
    output logic [     31:0] ip_o,
    /// weights of the service levels, 8 bits each, none 0
    output logic [     63:0] sl_weight_o,
    /// cycles a completion waits for CQ room, 0 for ever
    output logic [     31:0] cq_wait_o,
    /// cycles since reset
    output logic [     47:0] time_o,
    /// event output of the NIC
    output logic             event_o
);

  // ---------------------------------------------------------------- time
  logic [47:0] time_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) time_q <= '0;
    else time_q <= time_q + 48'd1;
  end
  assign time_o = time_q;

  // ---------------------------------------------------------------- BAR
  logic db_valid, db_partial, db_done;
  logic [15:0] db_page;
  logic [1:0] db_reg;
  logic [63:0] db_data;
  logic csr_req, csr_wr, csr_wr_ack, csr_rd_ack;
  logic [16:0] csr_addr;
  logic [63:0] csr_wdata, csr_biten, csr_rdata;

  axil_bar u_axil_bar (
      .clk_i,
      .rst_ni,
      .s_axil_awaddr,
      .s_axil_awprot,
      .s_axil_awvalid,
      .s_axil_awready,
      .s_axil_wdata,
      .s_axil_wstrb,
      .s_axil_wvalid,
      .s_axil_wready,
      .s_axil_bresp,
      .s_axil_bvalid,
      .s_axil_bready,
      .s_axil_araddr,
      .s_axil_arprot,
      .s_axil_arvalid,
      .s_axil_arready,
      .s_axil_rdata,
      .s_axil_rresp,
      .s_axil_rvalid,
      .s_axil_rready,
      .db_valid_o  (db_valid),
      .db_page_o   (db_page),
      .db_reg_o    (db_reg),
      .db_partial_o(db_partial),
      .db_data_o   (db_data),
      .db_done_i   (db_done),
      .csr_req_o   (csr_req),
      .csr_wr_o    (csr_wr),
      .csr_addr_o  (csr_addr),
      .csr_wdata_o (csr_wdata),
      .csr_biten_o (csr_biten),
      .csr_wr_ack_i(csr_wr_ack),
      .csr_rd_ack_i(csr_rd_ack),
      .csr_rdata_i (csr_rdata)
  );

  // ---------------------------------------------------------------- registers
  logic [63:0] sl_weight;
  logic [2:0] event_mask;
  logic overflow, async_lost, async_pop, cq_any;
  logic [NumCq-1:0] cq_pending, cq_clear;
  async_evt_t async_head;
  logic cnt_req, cnt_ack;
  logic [5:0] cnt_addr;
  logic [63:0] cnt_data;
  logic cmd_valid, cmd_whole, cmd_busy;
  logic [63:0] cmd_data;
  logic [7:0] cmd_code;
  logic st_req, st_wr, st_wr_ack, st_rd_ack;
  logic [3:0] st_addr;
  logic [63:0] st_wdata, st_biten, st_rdata;

  csr_regs u_csr_regs (
      .clk_i,
      .rst_ni,
      .req_i         (csr_req),
      .wr_i          (csr_wr),
      .addr_i        (csr_addr),
      .wdata_i       (csr_wdata),
      .biten_i       (csr_biten),
      .wr_ack_o      (csr_wr_ack),
      .rd_ack_o      (csr_rd_ack),
      .rdata_o       (csr_rdata),
      .mac_o,
      .ip_o,
      .sl_weight_o   (sl_weight),
      .cq_wait_o,
      .event_mask_o  (event_mask),
      .overflow_o    (overflow),
      .overflow_set_i(async_lost),
      .cq_any_i      (cq_any),
      .cq_pending_i  (cq_pending),
      .cq_clear_o    (cq_clear),
      .async_head_i  (async_head),
      .async_pop_o   (async_pop),
      .time_i        (time_q),
      .qp_rts_i      (qp_rts_o),
      .qp_err_i      (qp_err_o),
      .cnt_req_o     (cnt_req),
      .cnt_addr_o    (cnt_addr),
      .cnt_ack_i     (cnt_ack),
      .cnt_data_i    (cnt_data),
      .cmd_valid_o   (cmd_valid),
      .cmd_data_o    (cmd_data),
      .cmd_whole_o   (cmd_whole),
      .busy_i        (cmd_busy),
      .code_i        (cmd_code),
      .stage_req_o   (st_req),
      .stage_wr_o    (st_wr),
      .stage_addr_o  (st_addr),
      .stage_wdata_o (st_wdata),
      .stage_biten_o (st_biten),
      .stage_wr_ack_i(st_wr_ack),
      .stage_rd_ack_i(st_rd_ack),
      .stage_rdata_i (st_rdata)
  );

  for (genvar s = 0; s < 8; s++) begin : gen_weight
    assign sl_weight_o[8*s+:8] = sl_weight[8*s+:8] == '0 ? 8'd1 : sl_weight[8*s+:8];
  end

  // ---------------------------------------------------------------- counters and events
  cnt_inc_t cnt_db, cnt_all;
  logic cnt_cmd_busy;
  async_evt_t async_db;

  assign cnt_all = cnt_i | cnt_db | (cnt_inc_t'(cnt_cmd_busy) << CntCmdBusy);

  counter_bank u_counter_bank (
      .clk_i,
      .rst_ni,
      .cnt_i    (cnt_all),
      .rd_req_i (cnt_req),
      .rd_addr_i(cnt_addr),
      .rd_ack_o (cnt_ack),
      .rd_data_o(cnt_data)
  );

  event_unit u_event_unit (
      .clk_i,
      .rst_ni,
      .cq_set_valid_i(cq_event_set_valid_i),
      .cq_set_cqn_i  (cq_event_set_cqn_i),
      .cq_clear_i    (cq_clear),
      .cq_pending_o  (cq_pending),
      .async_db_i    (async_db),
      .async_comp_i,
      .async_resp_i,
      .async_head_o  (async_head),
      .async_pop_i   (async_pop),
      .async_lost_o  (async_lost),
      .overflow_i    (overflow),
      .mask_i        (event_mask),
      .cq_any_o      (cq_any),
      .event_o
  );

  // ---------------------------------------------------------------- contexts
  logic eng_busy, eng_wr;
  logic [3:0] eng_addr;
  logic [63:0] eng_wdata;
  qp_err_evt_t err_cmd, err_db, qp_to_reset;
  logic qry_valid, qry_ready;
  qp_t qry_qpi;
  idx_t qry_prod, qry_retired;

  stage_ram u_stage_ram (
      .clk_i,
      .rst_ni,
      .host_req_i   (st_req),
      .host_wr_i    (st_wr),
      .host_addr_i  (st_addr),
      .host_wdata_i (st_wdata),
      .host_biten_i (st_biten),
      .host_wr_ack_o(st_wr_ack),
      .host_rd_ack_o(st_rd_ack),
      .eng_busy_i   (eng_busy),
      .eng_wr_i     (eng_wr),
      .eng_addr_i   (eng_addr),
      .eng_wdata_i  (eng_wdata),
      .rdata_o      (st_rdata)
  );

  ctx_cmd u_ctx_cmd (
      .clk_i,
      .rst_ni,
      .cmd_valid_i  (cmd_valid),
      .cmd_data_i   (cmd_data),
      .cmd_whole_i  (cmd_whole),
      .busy_o       (cmd_busy),
      .code_o       (cmd_code),
      .cnt_busy_o   (cnt_cmd_busy),
      .stage_busy_o (eng_busy),
      .stage_wr_o   (eng_wr),
      .stage_addr_o (eng_addr),
      .stage_wdata_o(eng_wdata),
      .stage_rdata_i(st_rdata),
      .qp_rts_i     (qp_rts_o),
      .qp_err_i     (qp_err_o),
      .ctx_o,
      .err_cmd_o    (err_cmd),
      .reset_o      (qp_to_reset),
      .drain_o,
      .drain_busy_i,
      .mr_drain_valid_o,
      .mr_drain_busy_i,
      .qry_valid_o  (qry_valid),
      .qry_qpi_o    (qry_qpi),
      .qry_ready_i  (qry_ready),
      .qry_prod_i   (qry_prod),
      .qry_retired_i(qry_retired)
  );

  qp_state u_qp_state (
      .clk_i,
      .rst_ni,
      .ctx_i     (ctx_o),
      .err_cmd_i (err_cmd),
      .reset_i   (qp_to_reset),
      .err_db_i  (err_db),
      .err_comp_i,
      .err_resp_i,
      .qp_rts_o,
      .qp_err_o
  );

  // ---------------------------------------------------------------- doorbells
  db_decode u_db_decode (
      .clk_i,
      .rst_ni,
      .ctx_i        (ctx_o),
      .qp_rts_i     (qp_rts_o),
      .qp_err_i     (qp_err_o),
      .req_valid_i  (db_valid),
      .req_page_i   (db_page),
      .req_reg_i    (db_reg),
      .req_partial_i(db_partial),
      .req_data_i   (db_data),
      .done_o       (db_done),
      .db_sq_valid_o,
      .db_sq_qpi_o,
      .db_sq_pi_o,
      .db_rq_valid_o(rq_db_o.valid),
      .db_rq_qpi_o  (rq_db_o.qpi),
      .db_rq_pi_o   (rq_db_o.idx),
      .rq_retire_valid_i(rq_retire_i.valid),
      .rq_retire_qpi_i(rq_retire_i.qpi),
      .rq_retire_idx_i(rq_retire_i.idx),
      .retire_valid_i,
      .retire_qpi_i,
      .retire_idx_i,
      .db_cq_valid_o,
      .db_cq_cqn_o,
      .db_cq_ci_o,
      .db_cq_arm_o,
      .db_cq_ready_i,
      .db_cq_rsp_valid_i,
      .db_cq_rsp_i,
      .err_o        (err_db),
      .async_o      (async_db),
      .cnt_o        (cnt_db),
      .qry_valid_i  (qry_valid),
      .qry_qpi_i    (qry_qpi),
      .qry_ready_o  (qry_ready),
      .qry_prod_o   (qry_prod),
      .qry_retired_o(qry_retired)
  );

endmodule
