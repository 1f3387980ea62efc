// One RDMA NIC: host front (BAR, contexts, doorbells), requester (fetch, transmit scheduling, completion) and data path
// (gather, framing, link, receive, scatter, memory port). Ports: spec/nic.md 1. Nothing above this module is hardware.
module rnic
  import rnic_pkg::*;
#(
    /// operands of the unmasked atomics (opcodes 26 and 27) are little-endian
    parameter bit AmoPlainLittle = 1'b0,
    /// masked atomics carry their remote length shifted left by one
    parameter bit AmoShiftedLen = 1'b0
) (
    /// clock, 2 ns by default
    input  logic              clk_i,
    /// reset, active low, asynchronous assert, synchronous release
    input  logic              rst_ni,

    // BAR: AXI4-Lite subordinate (CSRs, command window, doorbell pages)
    /// write address
    input  logic [31:0]       s_axil_awaddr,
    /// write protection bits, ignored
    input  logic [2:0]        s_axil_awprot,
    /// write address valid
    input  logic              s_axil_awvalid,
    /// write address ready
    output logic              s_axil_awready,
    /// write data
    input  logic [63:0]       s_axil_wdata,
    /// write strobes
    input  logic [7:0]        s_axil_wstrb,
    /// write data valid
    input  logic              s_axil_wvalid,
    /// write data ready
    output logic              s_axil_wready,
    /// write response, always OKAY
    output logic [1:0]        s_axil_bresp,
    /// write response valid
    output logic              s_axil_bvalid,
    /// write response ready
    input  logic              s_axil_bready,
    /// read address
    input  logic [31:0]       s_axil_araddr,
    /// read protection bits, ignored
    input  logic [2:0]        s_axil_arprot,
    /// read address valid
    input  logic              s_axil_arvalid,
    /// read address ready
    output logic              s_axil_arready,
    /// read data
    output logic [63:0]       s_axil_rdata,
    /// read response, always OKAY
    output logic [1:0]        s_axil_rresp,
    /// read data valid
    output logic              s_axil_rvalid,
    /// read data ready
    input  logic              s_axil_rready,

    // memory: AXI4 manager
    /// write ID, one of axi_id_e
    output logic [3:0]        m_axi_awid,
    /// write address, beat-aligned
    output logic [63:0]       m_axi_awaddr,
    /// write beats - 1
    output logic [7:0]        m_axi_awlen,
    /// bytes per beat, log2
    output logic [2:0]        m_axi_awsize,
    /// write burst type, INCR
    output logic [1:0]        m_axi_awburst,
    /// write address valid
    output logic              m_axi_awvalid,
    /// write address ready
    input  logic              m_axi_awready,
    /// write data
    output logic [DataW-1:0]  m_axi_wdata,
    /// write strobes, exact
    output logic [DataBytes-1:0] m_axi_wstrb,
    /// last write beat of the burst
    output logic              m_axi_wlast,
    /// write data valid
    output logic              m_axi_wvalid,
    /// write data ready
    input  logic              m_axi_wready,
    /// write response ID
    input  logic [3:0]        m_axi_bid,
    /// write response
    input  logic [1:0]        m_axi_bresp,
    /// write response valid
    input  logic              m_axi_bvalid,
    /// write response ready
    output logic              m_axi_bready,
    /// read ID, one of axi_id_e
    output logic [3:0]        m_axi_arid,
    /// read address, beat-aligned
    output logic [63:0]       m_axi_araddr,
    /// read beats - 1
    output logic [7:0]        m_axi_arlen,
    /// bytes per beat, log2
    output logic [2:0]        m_axi_arsize,
    /// read burst type, INCR
    output logic [1:0]        m_axi_arburst,
    /// read address valid
    output logic              m_axi_arvalid,
    /// read address ready
    input  logic              m_axi_arready,
    /// read data ID
    input  logic [3:0]        m_axi_rid,
    /// read data
    input  logic [DataW-1:0]  m_axi_rdata,
    /// read response
    input  logic [1:0]        m_axi_rresp,
    /// last read beat of the burst
    input  logic              m_axi_rlast,
    /// read data valid
    input  logic              m_axi_rvalid,
    /// read data ready
    output logic              m_axi_rready,

    // link: AXI4-Stream out and in, RoCEv2 frames, byte 0 in lane 0
    /// transmit data
    output logic [DataW-1:0]  m_axis_tdata,
    /// transmit byte lanes, contiguous, full before the last beat
    output logic [DataBytes-1:0] m_axis_tkeep,
    /// last beat of the frame
    output logic              m_axis_tlast,
    /// transmit valid
    output logic              m_axis_tvalid,
    /// transmit ready
    input  logic              m_axis_tready,
    /// receive data
    input  logic [DataW-1:0]  s_axis_tdata,
    /// receive byte lanes
    input  logic [DataBytes-1:0] s_axis_tkeep,
    /// last beat of the frame
    input  logic              s_axis_tlast,
    /// receive valid
    input  logic              s_axis_tvalid,
    /// receive ready
    output logic              s_axis_tready,

    /// level: a CQ event, an asynchronous event or an event overflow is pending under the mask
    output logic              event_o
);

  ctx_wr_t            ctx;
  logic [NumQp-1:0]   qp_rts, qp_err;
  qp_err_evt_t        drain;
  logic               drain_busy_req, drain_busy_dp, mr_drain, mr_drain_busy;

  logic               db_sq_valid, retire_valid;
  qp_t                db_sq_qpi, retire_qpi;
  idx_t               db_sq_pi, retire_idx;
  logic               db_cq_valid, db_cq_ready, db_cq_rsp_valid;
  cq_t                db_cq_cqn;
  logic [22:0]        db_cq_ci;
  logic [1:0]         db_cq_arm, db_cq_rsp;

  rq_move_t           rq_db, rq_retire;
  recv_evt_t          recv;
  qp_err_evt_t        err_comp, err_resp;
  async_evt_t         async_comp, async_resp;
  cnt_inc_t           cnt_req, cnt_dp, cnt;
  logic               cq_event_set_valid;
  cq_t                cq_event_set_cqn;

  logic [47:0]        mac, now;
  logic [31:0]        ip, cq_wait;
  logic [63:0]        sl_weight;

  rd_req_t            fetch_req;
  rd_beat_t           fetch_beat;
  logic               fetch_req_valid, fetch_req_ready, fetch_beat_valid;
  wr_req_t            cqe_req;
  wr_beat_t           cqe_beat;
  logic               cqe_req_valid, cqe_req_ready, cqe_beat_valid, cqe_beat_ready, cqe_b_valid, cqe_b_err;

  tx_job_t            job;
  logic               expect_valid;
  expect_t            expect_evt;
  rewind_t            rewind;
  logic               rewound;
  logic               job_valid, job_ready;
  logic               gerr_valid;
  qp_t                gerr_qpi;
  slot_t              gerr_slot;
  rsp_evt_t           rsp;
  logic               rsp_valid, rsp_ready;

  counter_merge i_counter_merge (.clk_i, .rst_ni, .req_i(cnt_req), .dp_i(cnt_dp), .cnt_o(cnt));

  host_front i_host_front (
      .clk_i, .rst_ni,
      .s_axil_awaddr, .s_axil_awprot, .s_axil_awvalid, .s_axil_awready,
      .s_axil_wdata, .s_axil_wstrb, .s_axil_wvalid, .s_axil_wready,
      .s_axil_bresp, .s_axil_bvalid, .s_axil_bready,
      .s_axil_araddr, .s_axil_arprot, .s_axil_arvalid, .s_axil_arready,
      .s_axil_rdata, .s_axil_rresp, .s_axil_rvalid, .s_axil_rready,
      .ctx_o(ctx), .qp_rts_o(qp_rts), .qp_err_o(qp_err),
      .drain_o(drain), .drain_busy_i(drain_busy_req | drain_busy_dp),
      .mr_drain_valid_o(mr_drain), .mr_drain_busy_i(mr_drain_busy),
      .db_sq_valid_o(db_sq_valid), .db_sq_qpi_o(db_sq_qpi), .db_sq_pi_o(db_sq_pi),
      .rq_db_o(rq_db), .rq_retire_i(rq_retire),
      .retire_valid_i(retire_valid), .retire_qpi_i(retire_qpi), .retire_idx_i(retire_idx),
      .db_cq_valid_o(db_cq_valid), .db_cq_cqn_o(db_cq_cqn), .db_cq_ci_o(db_cq_ci), .db_cq_arm_o(db_cq_arm),
      .db_cq_ready_i(db_cq_ready), .db_cq_rsp_valid_i(db_cq_rsp_valid), .db_cq_rsp_i(db_cq_rsp),
      .err_comp_i(err_comp), .err_resp_i(err_resp),
      .async_comp_i(async_comp), .async_resp_i(async_resp),
      .cnt_i(cnt),
      .cq_event_set_valid_i(cq_event_set_valid), .cq_event_set_cqn_i(cq_event_set_cqn),
      .mac_o(mac), .ip_o(ip), .sl_weight_o(sl_weight), .cq_wait_o(cq_wait), .time_o(now),
      .event_o
  );

  requester #(.AmoPlainLittle(AmoPlainLittle), .AmoShiftedLen(AmoShiftedLen)) i_requester (
      .clk_i, .rst_ni,
      .ctx_i(ctx), .qp_rts_i(qp_rts), .qp_err_i(qp_err),
      .drain_i(drain), .drain_busy_o(drain_busy_req),
      .db_sq_valid_i(db_sq_valid), .db_sq_qpi_i(db_sq_qpi), .db_sq_pi_i(db_sq_pi),
      .retire_valid_o(retire_valid), .retire_qpi_o(retire_qpi), .retire_idx_o(retire_idx),
      .db_cq_valid_i(db_cq_valid), .db_cq_cqn_i(db_cq_cqn), .db_cq_ci_i(db_cq_ci), .db_cq_arm_i(db_cq_arm),
      .db_cq_ready_o(db_cq_ready), .db_cq_rsp_valid_o(db_cq_rsp_valid), .db_cq_rsp_o(db_cq_rsp),
      .sl_weight_i(sl_weight), .cq_wait_i(cq_wait), .time_i(now),
      .fetch_req_valid_o(fetch_req_valid), .fetch_req_ready_i(fetch_req_ready), .fetch_req_o(fetch_req),
      .fetch_beat_valid_i(fetch_beat_valid), .fetch_beat_i(fetch_beat),
      .job_valid_o(job_valid), .job_ready_i(job_ready), .job_o(job),
      .expect_valid_o(expect_valid), .expect_o(expect_evt), .rewind_o(rewind), .rewound_i(rewound),
      .gerr_valid_i(gerr_valid), .gerr_qpi_i(gerr_qpi), .gerr_slot_i(gerr_slot),
      .rsp_valid_i(rsp_valid), .rsp_ready_o(rsp_ready), .rsp_i(rsp),
      .rq_db_i(rq_db), .recv_i(recv), .rq_retire_o(rq_retire),
      .cqe_req_valid_o(cqe_req_valid), .cqe_req_ready_i(cqe_req_ready), .cqe_req_o(cqe_req),
      .cqe_beat_valid_o(cqe_beat_valid), .cqe_beat_ready_i(cqe_beat_ready), .cqe_beat_o(cqe_beat),
      .cqe_b_valid_i(cqe_b_valid), .cqe_b_err_i(cqe_b_err),
      .err_o(err_comp), .async_o(async_comp),
      .cq_event_set_valid_o(cq_event_set_valid), .cq_event_set_cqn_o(cq_event_set_cqn),
      .cnt_o(cnt_req)
  );

  datapath i_datapath (
      .clk_i, .rst_ni,
      .ctx_i(ctx), .qp_rts_i(qp_rts), .qp_err_i(qp_err),
      .drain_i(drain), .drain_busy_o(drain_busy_dp),
      .mr_drain_i(mr_drain), .mr_drain_busy_o(mr_drain_busy),
      .mac_i(mac), .ip_i(ip),
      .job_valid_i(job_valid), .job_ready_o(job_ready), .job_i(job),
      .gerr_valid_o(gerr_valid), .gerr_qpi_o(gerr_qpi), .gerr_slot_o(gerr_slot),
      .expect_valid_i(expect_valid), .expect_i(expect_evt), .rewind_i(rewind), .rewound_o(rewound),
      .rsp_valid_o(rsp_valid), .rsp_ready_i(rsp_ready), .rsp_o(rsp),
      .fetch_req_valid_i(fetch_req_valid), .fetch_req_ready_o(fetch_req_ready), .fetch_req_i(fetch_req),
      .fetch_beat_valid_o(fetch_beat_valid), .fetch_beat_o(fetch_beat),
      .rq_db_i(rq_db), .rq_retire_i(rq_retire), .recv_o(recv),
      .cqe_req_valid_i(cqe_req_valid), .cqe_req_ready_o(cqe_req_ready), .cqe_req_i(cqe_req),
      .cqe_beat_valid_i(cqe_beat_valid), .cqe_beat_ready_o(cqe_beat_ready), .cqe_beat_i(cqe_beat),
      .cqe_b_valid_o(cqe_b_valid), .cqe_b_err_o(cqe_b_err),
      .m_axis_tdata, .m_axis_tkeep, .m_axis_tlast, .m_axis_tvalid, .m_axis_tready,
      .s_axis_tdata, .s_axis_tkeep, .s_axis_tlast, .s_axis_tvalid, .s_axis_tready,
      .m_axi_awid, .m_axi_awaddr, .m_axi_awlen, .m_axi_awsize, .m_axi_awburst, .m_axi_awvalid, .m_axi_awready,
      .m_axi_wdata, .m_axi_wstrb, .m_axi_wlast, .m_axi_wvalid, .m_axi_wready,
      .m_axi_bid, .m_axi_bresp, .m_axi_bvalid, .m_axi_bready,
      .m_axi_arid, .m_axi_araddr, .m_axi_arlen, .m_axi_arsize, .m_axi_arburst, .m_axi_arvalid, .m_axi_arready,
      .m_axi_rid, .m_axi_rdata, .m_axi_rresp, .m_axi_rlast, .m_axi_rvalid, .m_axi_rready,
      .err_o(err_resp), .async_o(async_resp), .cnt_o(cnt_dp)
  );

endmodule
