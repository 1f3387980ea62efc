// Data path of the NIC: gather and framer towards the link, receive checks, responder, scatter and the atomic unit from it,
// and the memory port that they share with fetch and completion. The receive side never waits for the transmit side: an
// answer and a table of READs and atomics are kept per QP, responses leave to a requester that always takes them.
module datapath
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*, atomic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// context broadcast
    input  ctx_wr_t          ctx_i,
    /// QPs in RTS
    input  logic [NumQp-1:0] qp_rts_i,
    /// QPs in ERR
    input  logic [NumQp-1:0] qp_err_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// something of that QP is still held
    output logic             drain_busy_o,
    /// the invalidation of a region waits
    input  logic             mr_drain_i,
    /// accesses that the old entry allowed are still on their way
    output logic             mr_drain_busy_o,
    /// own MAC address
    input  logic [47:0]      mac_i,
    /// own IP address
    input  logic [31:0]      ip_i,

    // requester
    /// request packet
    input  logic             job_valid_i,
    /// the packet is taken
    output logic             job_ready_o,
    /// request packet
    input  tx_job_t          job_i,
    /// the source of a packet met a bus error
    output logic             gerr_valid_o,
    /// its QP
    output qp_t              gerr_qpi_o,
    /// its place in the outstanding-request table
    output slot_t            gerr_slot_o,
    /// a READ or atomic was started, always taken
    input  logic             expect_valid_i,
    /// what it expects back
    input  expect_t          expect_i,
    /// the requester will send READs and atomics of a QP again, until rewound_o
    input  rewind_t          rewind_i,
    /// what they expect is forgotten, and no response with data of that QP is under way to the requester
    output logic             rewound_o,
    /// response that arrived
    output logic             rsp_valid_o,
    /// the response is taken
    input  logic             rsp_ready_i,
    /// response that arrived
    output rsp_evt_t         rsp_o,
    /// WQE fetch burst (ID 0)
    input  logic             fetch_req_valid_i,
    /// the burst is taken
    output logic             fetch_req_ready_o,
    /// WQE fetch burst
    input  rd_req_t          fetch_req_i,
    /// fetched beat, always taken
    output logic             fetch_beat_valid_o,
    /// fetched beat
    output rd_beat_t         fetch_beat_o,
    /// RQ doorbell accepted
    input  rq_move_t         rq_db_i,
    /// receive WQE retired
    input  rq_move_t         rq_retire_i,
    /// outcomes of receive WQEs
    output recv_evt_t        recv_o,
    /// CQE write burst (ID 4)
    input  logic             cqe_req_valid_i,
    /// the burst is taken
    output logic             cqe_req_ready_o,
    /// CQE write burst
    input  wr_req_t          cqe_req_i,
    /// CQE data
    input  logic             cqe_beat_valid_i,
    /// the data is taken
    output logic             cqe_beat_ready_o,
    /// CQE data
    input  wr_beat_t         cqe_beat_i,
    /// CQE write response, in order
    output logic             cqe_b_valid_o,
    /// it reports an error
    output logic             cqe_b_err_o,

    // link
    /// transmit data
    output data_t            m_axis_tdata,
    /// transmit byte lanes
    output strb_t            m_axis_tkeep,
    /// last beat of the frame
    output logic             m_axis_tlast,
    /// transmit valid
    output logic             m_axis_tvalid,
    /// transmit ready
    input  logic             m_axis_tready,
    /// receive data
    input  data_t            s_axis_tdata,
    /// receive byte lanes
    input  strb_t            s_axis_tkeep,
    /// last beat of the frame
    input  logic             s_axis_tlast,
    /// receive valid
    input  logic             s_axis_tvalid,
    /// receive ready
    output logic             s_axis_tready,

    // memory
    /// write ID
    output logic [3:0]       m_axi_awid,
    /// write address
    output logic [63:0]      m_axi_awaddr,
    /// write beats - 1
    output logic [7:0]       m_axi_awlen,
    /// bytes per beat, log2
    output logic [2:0]       m_axi_awsize,
    /// write burst type
    output logic [1:0]       m_axi_awburst,
    /// write address valid
    output logic             m_axi_awvalid,
    /// write address ready
    input  logic             m_axi_awready,
    /// write data
    output data_t            m_axi_wdata,
    /// write strobes
    output strb_t            m_axi_wstrb,
    /// last write beat
    output logic             m_axi_wlast,
    /// write data valid
    output logic             m_axi_wvalid,
    /// write data ready
    input  logic             m_axi_wready,
    /// write response ID
    input  logic [3:0]       m_axi_bid,
    /// write response
    input  logic [1:0]       m_axi_bresp,
    /// write response valid
    input  logic             m_axi_bvalid,
    /// write response ready
    output logic             m_axi_bready,
    /// read ID
    output logic [3:0]       m_axi_arid,
    /// read address
    output logic [63:0]      m_axi_araddr,
    /// read beats - 1
    output logic [7:0]       m_axi_arlen,
    /// bytes per beat, log2
    output logic [2:0]       m_axi_arsize,
    /// read burst type
    output logic [1:0]       m_axi_arburst,
    /// read address valid
    output logic             m_axi_arvalid,
    /// read address ready
    input  logic             m_axi_arready,
    /// read data ID
    input  logic [3:0]       m_axi_rid,
    /// read data
    input  data_t            m_axi_rdata,
    /// read response
    input  logic [1:0]       m_axi_rresp,
    /// last read beat
    input  logic             m_axi_rlast,
    /// read data valid
    input  logic             m_axi_rvalid,
    /// read data ready
    output logic             m_axi_rready,

    /// QP that has to go to ERR
    output qp_err_evt_t      err_o,
    /// asynchronous event
    output async_evt_t       async_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  /// beats of the receive buffer: seven packets of 4 KiB
  localparam int unsigned RxDepth = 512;
  localparam int unsigned MoveDepth = 8;
  /// packets in the responder's pipeline when the next one is let in
  localparam int unsigned Pipeline = 4;

  // ------------------------------------------------------------------ memory port
  logic [2:0] rd_req_valid, rd_req_ready, rd_beat_valid;
  logic [2:0] wr_req_valid, wr_req_ready, wr_beat_valid, wr_beat_ready;
  rd_req_t    rd_req[3];
  wr_req_t    wr_req[3];
  wr_beat_t   wr_beat[3];
  rd_beat_t   rd_beat;
  logic       b_valid, b_err;
  axi_id_e    b_id;

  logic    slot_req_valid, slot_req_ready, slot_beat_valid;
  rd_req_t slot_req;
  rd_share i_fetch (
      .clk_i, .rst_ni, .a_req_valid_i(fetch_req_valid_i), .a_req_ready_o(fetch_req_ready_o), .a_req_i(fetch_req_i),
      .a_beat_valid_o(fetch_beat_valid_o), .b_req_valid_i(slot_req_valid), .b_req_ready_o(slot_req_ready),
      .b_req_i(slot_req), .b_beat_valid_o(slot_beat_valid), .req_valid_o(rd_req_valid[0]),
      .req_ready_i(rd_req_ready[0]), .req_o(rd_req[0]), .beat_valid_i(rd_beat_valid[0]), .beat_last_i(rd_beat.last)
  );
  assign fetch_beat_o = rd_beat;

  assign wr_req_valid[1]  = cqe_req_valid_i;
  assign wr_req[1]        = cqe_req_i;
  assign cqe_req_ready_o  = wr_req_ready[1];
  assign wr_beat_valid[1] = cqe_beat_valid_i;
  assign wr_beat[1]       = cqe_beat_i;
  assign cqe_beat_ready_o = wr_beat_ready[1];
  assign cqe_b_valid_o    = b_valid && b_id == IdCqe;
  assign cqe_b_err_o      = b_err;

  axi_rd_mux #(.Num(3), .Ids({IdAtomic, IdGather, IdFetch})) i_rd_mux (
      .clk_i, .rst_ni, .req_valid_i(rd_req_valid), .req_ready_o(rd_req_ready), .req_i(rd_req),
      .beat_valid_o(rd_beat_valid), .beat_o(rd_beat),
      .m_axi_arid, .m_axi_araddr, .m_axi_arlen, .m_axi_arsize, .m_axi_arburst, .m_axi_arvalid, .m_axi_arready,
      .m_axi_rid, .m_axi_rdata, .m_axi_rresp, .m_axi_rlast, .m_axi_rvalid, .m_axi_rready
  );
  axi_wr_mux #(.Num(3)) i_wr_mux (
      .clk_i, .rst_ni, .req_valid_i(wr_req_valid), .req_ready_o(wr_req_ready), .req_i(wr_req),
      .beat_valid_i(wr_beat_valid), .beat_ready_o(wr_beat_ready), .beat_i(wr_beat),
      .b_valid_o(b_valid), .b_id_o(b_id), .b_err_o(b_err),
      .m_axi_awid, .m_axi_awaddr, .m_axi_awlen, .m_axi_awsize, .m_axi_awburst, .m_axi_awvalid, .m_axi_awready,
      .m_axi_wdata, .m_axi_wstrb, .m_axi_wlast, .m_axi_wvalid, .m_axi_wready,
      .m_axi_bid, .m_axi_bresp, .m_axi_bvalid, .m_axi_bready
  );

  // ------------------------------------------------------------------ towards the link
  logic        pkt_valid, pkt_ready, pay_valid, pay_ready, ack_valid, ack_ready;
  tx_job_t     pkt;
  pay_beat_t   pay;
  ack_job_t    ack;
  logic        mr_busy_gather, mr_busy_done, mr_busy_rsp, mr_busy_amo, gather_err;
  logic        busy_gather, busy_frame, busy_parse, busy_resp, busy_done, busy_rsp, busy_engine, busy_amo;
  cnt_inc_t    cnt_frame, cnt_parse, cnt_resp, cnt_done, cnt_rsp, cnt_engine, cnt_amo;
  logic        rsp_job_valid, rsp_job_ready, job_valid, job_ready;
  tx_job_t     rsp_job, job;
  logic        rerr_valid, rsp_out_valid, read_out;
  qp_t         rerr_qpi, rsp_out_qpi;
  psn_t        rerr_psn;
  logic [23:0] rerr_msn;

  // requests and READ responses in turn
  rr_merge #(.T(tx_job_t)) i_jobs (
      .clk_i, .rst_ni, .a_valid_i(job_valid_i), .a_ready_o(job_ready_o), .a_i(job_i),
      .b_valid_i(rsp_job_valid), .b_ready_o(rsp_job_ready), .b_i(rsp_job),
      .out_valid_o(job_valid), .out_ready_i(job_ready), .out_o(job)
  );
  gather i_gather (
      .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .drain_i, .drain_busy_o(busy_gather),
      .mr_drain_i, .mr_drain_busy_o(mr_busy_gather), .job_valid_i(job_valid), .job_ready_o(job_ready),
      .job_i(job),
      .req_valid_o(rd_req_valid[1]), .req_ready_i(rd_req_ready[1]), .req_o(rd_req[1]),
      .beat_valid_i(rd_beat_valid[1]), .beat_i(rd_beat),
      .pkt_valid_o(pkt_valid), .pkt_ready_i(pkt_ready), .pkt_o(pkt),
      .pay_valid_o(pay_valid), .pay_ready_i(pay_ready), .pay_o(pay),
      .gerr_valid_o, .gerr_qpi_o, .gerr_slot_o, .rerr_valid_o(rerr_valid), .rerr_qpi_o(rerr_qpi),
      .rerr_psn_o(rerr_psn), .rerr_msn_o(rerr_msn), .rsp_out_valid_o(rsp_out_valid), .rsp_out_qpi_o(rsp_out_qpi),
      .bus_err_o(gather_err)
  );
  assign read_out = pkt_valid && pkt_ready && pkt.is_rsp && (pkt.bth == BthReadLast || pkt.bth == BthReadOnly);

  tx_frame i_frame (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_frame), .mac_i, .ip_i,
      .pkt_valid_i(pkt_valid), .pkt_ready_o(pkt_ready), .pkt_i(pkt),
      .pay_valid_i(pay_valid), .pay_ready_o(pay_ready), .pay_i(pay),
      .ack_valid_i(ack_valid), .ack_ready_o(ack_ready), .ack_i(ack),
      .m_axis_tdata, .m_axis_tkeep, .m_axis_tlast, .m_axis_tvalid, .m_axis_tready, .cnt_o(cnt_frame)
  );

  // ------------------------------------------------------------------ from the link
  logic                           hdr_valid, hdr_ready, buf_rd_en, room, rsp_valid, rsp_room, rsp_fail_valid;
  rx_hdr_t                        hdr;
  logic [$clog2(RxDepth)-1:0]     buf_rd_addr;
  data_t                          buf_rd_data;
  beats_t                         buf_release;
  rsp_evt_t                       rsp;
  logic [1:0]                     rsp_bursts, inbound_start;
  logic                           move_valid, done_valid, done_room, entry_valid, due_valid, due_ready;
  logic [63:0]                    move_addr;
  realign_cmd_t                   move;
  rx_done_t                       done;
  resp_entry_t                    entry;
  resp_due_t                      due;
  qp_t                            rsp_fail_qpi, amo_look_qpi;
  resp_ask_t                      ask;
  resp_seen_t                     seen;
  logic [63:0]                    saved;
  logic                           amo_look;
  logic [NumQp-1:0]               dead;
  logic [$clog2(MoveDepth+1)-1:0] move_cnt;
  logic                           rewound, rsp_some;

  rx_parse #(.Depth(RxDepth)) i_parse (
      .clk_i, .rst_ni, .mac_i, .ip_i, .s_axis_tdata, .s_axis_tkeep, .s_axis_tlast, .s_axis_tvalid, .s_axis_tready,
      .hdr_valid_o(hdr_valid), .hdr_ready_i(hdr_ready), .hdr_o(hdr),
      .rd_en_i(buf_rd_en), .rd_addr_i(buf_rd_addr), .rd_data_o(buf_rd_data), .release_i(buf_release),
      .drain_i, .drain_busy_o(busy_parse), .cnt_o(cnt_parse)
  );

  logic [NumQp-1:0] rq_marked, rq_ready, rq_loaded;
  logic             rq_look, busy_slots;
  qp_t              rq_look_qpi;
  rq_wqe_t          rq_next;
  rq_move_t         rq_take;
  cnt_inc_t         cnt_slots;
  rq_slots i_slots (
      .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .drain_i, .drain_busy_o(busy_slots), .db_i(rq_db_i), .retire_i(rq_retire_i),
      .take_i(rq_take), .marked_o(rq_marked), .ready_o(rq_ready), .loaded_o(rq_loaded),
      .look_i(rq_look), .look_qpi_i(rq_look_qpi), .next_o(rq_next),
      .req_valid_o(slot_req_valid), .req_ready_i(slot_req_ready), .req_o(slot_req),
      .beat_valid_i(slot_beat_valid), .beat_i(rd_beat), .cnt_o(cnt_slots)
  );

  assign rewound_o = rewound && !rsp_some;
  assign room = done_room && rsp_room && move_cnt <= 4'(MoveDepth - Pipeline);
  responder i_responder (
      .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .drain_i, .drain_busy_o(busy_resp), .dead_i(dead),
      .hdr_valid_i(hdr_valid), .hdr_ready_o(hdr_ready), .hdr_i(hdr), .room_i(room),
      .expect_valid_i, .expect_i, .rewind_i, .rewound_o(rewound),
      .rsp_fail_valid_i(rsp_fail_valid), .rsp_fail_qpi_i(rsp_fail_qpi),
      .rq_marked_i(rq_marked), .rq_ready_i(rq_ready), .rq_loaded_i(rq_loaded), .rq_look_o(rq_look),
      .rq_look_qpi_o(rq_look_qpi), .rq_next_i(rq_next), .rq_take_o(rq_take),
      .ask_o(ask), .seen_i(seen), .saved_i(saved), .amo_look_qpi_o(amo_look_qpi), .amo_look_i(amo_look),
      .entry_valid_o(entry_valid), .entry_o(entry),
      .rsp_valid_o(rsp_valid), .rsp_o(rsp), .rsp_bursts_o(rsp_bursts),
      .move_valid_o(move_valid), .move_addr_o(move_addr), .move_o(move),
      .done_valid_o(done_valid), .done_o(done), .cnt_o(cnt_resp)
  );
  rsp_order i_rsp (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_rsp), .mr_drain_i, .mr_drain_busy_o(mr_busy_rsp),
      .in_valid_i(rsp_valid), .room_o(rsp_room), .in_i(rsp), .look_qpi_i(rewind_i.qpi), .some_o(rsp_some),
      .in_bursts_i(rsp_bursts), .b_valid_i(b_valid && b_id == IdResult), .b_err_i(b_err),
      .rsp_valid_o, .rsp_ready_i, .rsp_o, .fail_valid_o(rsp_fail_valid), .fail_qpi_o(rsp_fail_qpi), .cnt_o(cnt_rsp)
  );
  resp_done i_done (
      .clk_i, .rst_ni, .drain_i, .drain_busy_o(busy_done), .mr_drain_i, .mr_drain_busy_o(mr_busy_done),
      .dead_i(dead), .done_valid_i(done_valid), .done_room_o(done_room), .done_i(done),
      .b_valid_i(b_valid && b_id == IdInbound), .b_err_i(b_err), .recv_o,
      .due_valid_o(due_valid), .due_ready_i(due_ready), .due_o(due), .cnt_o(cnt_done)
  );

  // ------------------------------------------------------------------ execution and answers
  logic        lock_valid, op_valid, op_ready, amo_valid, amo_ready;
  logic [63:3] lock_addr;
  amo_op_t     op;
  amo_done_t   amo;

  scatter #(.Depth(RxDepth), .Commands(MoveDepth)) i_scatter (
      .clk_i, .rst_ni, .move_valid_i(move_valid), .move_addr_i(move_addr), .move_i(move), .count_o(move_cnt),
      .lock_valid_i(lock_valid), .lock_addr_i(lock_addr), .start_o(inbound_start),
      .rd_en_o(buf_rd_en), .rd_addr_o(buf_rd_addr), .rd_data_i(buf_rd_data), .release_o(buf_release),
      .req_valid_o(wr_req_valid[0]), .req_ready_i(wr_req_ready[0]), .req_o(wr_req[0]),
      .beat_valid_o(wr_beat_valid[0]), .beat_ready_i(wr_beat_ready[0]), .beat_o(wr_beat[0])
  );
  atomic_unit i_atomic (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_amo), .mr_drain_i, .mr_drain_busy_o(mr_busy_amo),
      .op_valid_i(op_valid), .op_ready_o(op_ready), .op_i(op),
      .done_valid_o(amo_valid), .done_ready_i(amo_ready), .done_o(amo),
      .lock_valid_o(lock_valid), .lock_addr_o(lock_addr), .start_i(inbound_start),
      .inbound_b_valid_i(b_valid && b_id == IdInbound),
      .rd_req_valid_o(rd_req_valid[2]), .rd_req_ready_i(rd_req_ready[2]), .rd_req_o(rd_req[2]),
      .rd_beat_valid_i(rd_beat_valid[2]), .rd_beat_i(rd_beat),
      .wr_req_valid_o(wr_req_valid[2]), .wr_req_ready_i(wr_req_ready[2]), .wr_req_o(wr_req[2]),
      .wr_beat_valid_o(wr_beat_valid[2]), .wr_beat_ready_i(wr_beat_ready[2]), .wr_beat_o(wr_beat[2]),
      .b_valid_i(b_valid && b_id == IdAtomic), .b_err_i(b_err), .cnt_o(cnt_amo)
  );
  resp_engine i_engine (
      .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .drain_i, .drain_busy_o(busy_engine), .ask_i(ask), .seen_o(seen),
      .saved_o(saved), .amo_look_qpi_i(amo_look_qpi), .amo_look_o(amo_look),
      .entry_valid_i(entry_valid), .entry_qpi_i(done.qpi), .entry_i(entry),
      .due_valid_i(due_valid), .due_ready_o(due_ready), .due_i(due), .dead_o(dead),
      .job_valid_o(rsp_job_valid), .job_ready_i(rsp_job_ready), .job_o(rsp_job),
      .rerr_valid_i(rerr_valid), .rerr_qpi_i(rerr_qpi), .rerr_psn_i(rerr_psn), .rerr_msn_i(rerr_msn),
      .rsp_out_valid_i(rsp_out_valid), .rsp_out_qpi_i(rsp_out_qpi),
      .read_out_valid_i(read_out), .read_out_qpi_i(pkt.qpi), .read_out_dup_i(pkt.slot[0]),
      .op_valid_o(op_valid), .op_ready_i(op_ready), .op_o(op),
      .amo_valid_i(amo_valid), .amo_ready_o(amo_ready), .amo_i(amo),
      .ack_valid_o(ack_valid), .ack_ready_i(ack_ready), .ack_o(ack), .err_o, .async_o, .cnt_o(cnt_engine)
  );

  // ------------------------------------------------------------------ together
  cnt_inc_t cnt_gather;
  always_comb begin
    cnt_gather               = '0;
    cnt_gather[CntBusGather] = gather_err;
  end
  assign cnt_o = cnt_frame | cnt_parse | cnt_resp | cnt_done | cnt_rsp | cnt_engine | cnt_amo | cnt_gather | cnt_slots;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) drain_busy_o <= 1'b0;
    else begin
      drain_busy_o <= busy_gather || busy_frame || busy_parse || busy_resp || busy_done || busy_rsp || busy_engine ||
                      busy_amo || busy_slots;
    end
  end

  assign mr_drain_busy_o = mr_busy_gather || mr_busy_done || mr_busy_rsp || mr_busy_amo;

  logic unused_state;
  assign unused_state = ^qp_err_i;  // what the data path does depends on RTS alone
endmodule
