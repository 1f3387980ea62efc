// host_front with flat ports: the broadcast context field by field.
module csr_bench
  import rnic_pkg::*;
(
    input  logic        clk_i,
    input  logic        rst_ni,
    input  logic [31:0] s_axil_awaddr,
    input  logic [ 2:0] s_axil_awprot,
    input  logic        s_axil_awvalid,
    output logic        s_axil_awready,
    input  logic [63:0] s_axil_wdata,
    input  logic [ 7:0] s_axil_wstrb,
    input  logic        s_axil_wvalid,
    output logic        s_axil_wready,
    output logic [ 1:0] s_axil_bresp,
    output logic        s_axil_bvalid,
    input  logic        s_axil_bready,
    input  logic [31:0] s_axil_araddr,
    input  logic [ 2:0] s_axil_arprot,
    input  logic        s_axil_arvalid,
    output logic        s_axil_arready,
    output logic [63:0] s_axil_rdata,
    output logic [ 1:0] s_axil_rresp,
    output logic        s_axil_rvalid,
    input  logic        s_axil_rready,
    output logic        ctx_qp_set_o,
    output logic        ctx_qp_modify_o,
    output logic        ctx_qp_reset_o,
    output logic        ctx_cq_set_o,
    output logic        ctx_mr_set_o,
    output logic [ 5:0] ctx_qpi_o,
    output logic [ 5:0] ctx_cqn_o,
    output logic [ 7:0] ctx_mrn_o,
    output logic        ctx_qp_version2_o,
    output logic [ 2:0] ctx_qp_mtu_o,
    output logic [ 2:0] ctx_qp_sl_o,
    output logic        ctx_qp_rem_write_o,
    output logic        ctx_qp_rem_read_o,
    output logic        ctx_qp_rem_atomic_o,
    output logic [ 7:0] ctx_qp_tc_o,
    output logic [ 7:0] ctx_qp_ttl_o,
    output logic [15:0] ctx_qp_udp_sport_o,
    output logic [ 2:0] ctx_qp_retry_cnt_o,
    output logic [ 2:0] ctx_qp_rnr_retry_o,
    output logic [ 4:0] ctx_qp_timer_o,
    output logic [23:0] ctx_qp_peer_qpn_o,
    output logic [31:0] ctx_qp_peer_ip_o,
    output logic [47:0] ctx_qp_peer_mac_o,
    output logic [ 4:0] ctx_qp_sq_log_o,
    output logic [ 4:0] ctx_qp_rq_log_o,
    output logic [23:0] ctx_qp_sq_psn_o,
    output logic [23:0] ctx_qp_rq_psn_o,
    output logic [63:0] ctx_qp_sq_base_o,
    output logic [63:0] ctx_qp_rq_base_o,
    output logic [17:0] ctx_qp_sq_start_o,
    output logic [17:0] ctx_qp_rq_start_o,
    output logic [ 5:0] ctx_qp_send_cq_o,
    output logic [ 5:0] ctx_qp_recv_cq_o,
    output logic [ 4:0] ctx_qp_max_rd_o,
    output logic [ 4:0] ctx_qp_max_dest_rd_o,
    output logic [63:0] ctx_cq_base_o,
    output logic [ 4:0] ctx_cq_log_o,
    output logic        ctx_cq_stride32_o,
    output logic        ctx_cq_ignore_overrun_o,
    output logic [31:0] ctx_cq_start_o,
    output logic        ctx_mr_valid_o,
    output logic [63:0] ctx_mr_base_o,
    output logic [64:0] ctx_mr_length_o,
    output logic        ctx_mr_loc_write_o,
    output logic        ctx_mr_rem_write_o,
    output logic        ctx_mr_rem_read_o,
    output logic        ctx_mr_rem_atomic_o,
    output logic [ 7:0] ctx_mr_ltag_o,
    output logic [ 7:0] ctx_mr_rtag_o,
    output logic [63:0] qp_rts_o,
    output logic [63:0] qp_err_o,
    output logic        drain_valid_o,
    output logic [ 5:0] drain_qpi_o,
    input  logic        drain_busy_i,
    output logic        mr_drain_valid_o,
    input  logic        mr_drain_busy_i,
    output logic        db_sq_valid_o,
    output logic [ 5:0] db_sq_qpi_o,
    output logic [17:0] db_sq_pi_o,
    input  logic        retire_valid_i,
    input  logic [ 5:0] retire_qpi_i,
    input  logic [17:0] retire_idx_i,
    output logic        db_cq_valid_o,
    output logic [ 5:0] db_cq_cqn_o,
    output logic [22:0] db_cq_ci_o,
    output logic [ 1:0] db_cq_arm_o,
    input  logic        db_cq_ready_i,
    input  logic        db_cq_rsp_valid_i,
    input  logic [ 1:0] db_cq_rsp_i,
    input  logic        err_comp_valid_i,
    input  logic [ 5:0] err_comp_qpi_i,
    input  logic        err_resp_valid_i,
    input  logic [ 5:0] err_resp_qpi_i,
    input  logic        async_comp_valid_i,
    input  logic [ 7:0] async_comp_kind_i,
    input  logic [23:0] async_comp_number_i,
    input  logic        async_resp_valid_i,
    input  logic [ 7:0] async_resp_kind_i,
    input  logic [23:0] async_resp_number_i,
    input  logic [63:0] cnt_i,
    input  logic        cq_event_set_valid_i,
    input  logic [ 5:0] cq_event_set_cqn_i,
    output logic [47:0] mac_o,
    output logic [31:0] ip_o,
    output logic [63:0] sl_weight_o,
    output logic [31:0] cq_wait_o,
    output logic [47:0] time_o,
    output logic        event_o
);

  ctx_wr_t ctx;
  qp_err_evt_t drain;

  host_front u_dut (
      .*,
      .ctx_o(ctx),
      .drain_o(drain),
      .rq_db_o(),
      .rq_retire_i('0),
      .err_comp_i({err_comp_valid_i, err_comp_qpi_i}),
      .err_resp_i({err_resp_valid_i, err_resp_qpi_i}),
      .async_comp_i({async_comp_valid_i, async_comp_kind_i, async_comp_number_i}),
      .async_resp_i({async_resp_valid_i, async_resp_kind_i, async_resp_number_i})
  );

  assign ctx_qp_set_o = ctx.qp_set;
  assign ctx_qp_modify_o = ctx.qp_modify;
  assign ctx_qp_reset_o = ctx.qp_reset;
  assign ctx_cq_set_o = ctx.cq_set;
  assign ctx_mr_set_o = ctx.mr_set;
  assign ctx_qpi_o = ctx.qpi;
  assign ctx_cqn_o = ctx.cqn;
  assign ctx_mrn_o = ctx.mrn;
  assign drain_valid_o = drain.valid;
  assign drain_qpi_o = drain.qpi;
  assign ctx_qp_version2_o = ctx.qp.version2;
  assign ctx_qp_mtu_o = ctx.qp.mtu;
  assign ctx_qp_sl_o = ctx.qp.sl;
  assign ctx_qp_rem_write_o = ctx.qp.rem_write;
  assign ctx_qp_rem_read_o = ctx.qp.rem_read;
  assign ctx_qp_rem_atomic_o = ctx.qp.rem_atomic;
  assign ctx_qp_tc_o = ctx.qp.tc;
  assign ctx_qp_ttl_o = ctx.qp.ttl;
  assign ctx_qp_udp_sport_o = ctx.qp.udp_sport;
  assign ctx_qp_retry_cnt_o = ctx.qp.retry_cnt;
  assign ctx_qp_rnr_retry_o = ctx.qp.rnr_retry;
  assign ctx_qp_timer_o = ctx.qp.timer;
  assign ctx_qp_peer_qpn_o = ctx.qp.peer_qpn;
  assign ctx_qp_peer_ip_o = ctx.qp.peer_ip;
  assign ctx_qp_peer_mac_o = ctx.qp.peer_mac;
  assign ctx_qp_sq_log_o = ctx.qp.sq_log;
  assign ctx_qp_rq_log_o = ctx.qp.rq_log;
  assign ctx_qp_sq_psn_o = ctx.qp.sq_psn;
  assign ctx_qp_rq_psn_o = ctx.qp.rq_psn;
  assign ctx_qp_sq_base_o = ctx.qp.sq_base;
  assign ctx_qp_rq_base_o = ctx.qp.rq_base;
  assign ctx_qp_sq_start_o = ctx.qp.sq_start;
  assign ctx_qp_rq_start_o = ctx.qp.rq_start;
  assign ctx_qp_send_cq_o = ctx.qp.send_cq;
  assign ctx_qp_recv_cq_o = ctx.qp.recv_cq;
  assign ctx_qp_max_rd_o = ctx.qp.max_rd;
  assign ctx_qp_max_dest_rd_o = ctx.qp.max_dest_rd;
  assign ctx_cq_base_o = ctx.cq.base;
  assign ctx_cq_log_o = ctx.cq.log;
  assign ctx_cq_stride32_o = ctx.cq.stride32;
  assign ctx_cq_ignore_overrun_o = ctx.cq.ignore_overrun;
  assign ctx_cq_start_o = ctx.cq.start;
  assign ctx_mr_valid_o = ctx.mr.valid;
  assign ctx_mr_base_o = ctx.mr.base;
  assign ctx_mr_length_o = ctx.mr.length;
  assign ctx_mr_loc_write_o = ctx.mr.loc_write;
  assign ctx_mr_rem_write_o = ctx.mr.rem_write;
  assign ctx_mr_rem_read_o = ctx.mr.rem_read;
  assign ctx_mr_rem_atomic_o = ctx.mr.rem_atomic;
  assign ctx_mr_ltag_o = ctx.mr.ltag;
  assign ctx_mr_rtag_o = ctx.mr.rtag;

endmodule
