// The whole data path with a memory. The link is looped back to it or driven and watched by the test; the structs that a
// test changes are plain ports. Counts the counter pulses and judges the form of the frames that leave.
module datapath_bench
  import rnic_pkg::*, dp_pkg::*;
(
    input  logic          clk_i,
    input  logic          rst_ni,
    // contexts
    input  logic          qp_set_i,
    input  logic          qp_reset_i,
    input  logic [5:0]    qpi_i,
    input  logic [2:0]    mtu_i,
    input  logic          rem_write_i,
    input  logic          rem_read_i,
    input  logic          rem_atomic_i,
    input  logic [4:0]    max_dest_rd_i,
    input  logic [7:0]    tc_i,
    input  logic [7:0]    ttl_i,
    input  logic [15:0]   udp_sport_i,
    input  logic [23:0]   peer_qpn_i,
    input  logic [31:0]   peer_ip_i,
    input  logic [47:0]   peer_mac_i,
    input  logic [23:0]   rq_psn_i,
    input  logic          mr_set_i,
    input  logic [7:0]    mrn_i,
    input  logic          mr_valid_i,
    input  logic [63:0]   mr_base_i,
    input  logic [64:0]   mr_length_i,
    input  logic [3:0]    mr_rights_i,
    input  logic [7:0]    mr_rtag_i,
    input  logic [63:0]   qp_rts_i,
    input  logic          drain_valid_i,
    input  logic [5:0]    drain_qpi_i,
    output logic          drain_busy_o,
    input  logic          mr_drain_i,
    output logic          mr_drain_busy_o,
    input  logic [47:0]   mac_i,
    input  logic [31:0]   ip_i,
    // jobs
    input  logic          job_valid_i,
    output logic          job_ready_o,
    input  logic [5:0]    job_qpi_i,
    input  logic [7:0]    job_bth_i,
    input  logic [23:0]   job_psn_i,
    input  logic          job_ack_req_i,
    input  logic          job_reth_i,
    input  logic          job_imm_i,
    input  logic          job_se_i,
    input  logic [31:0]   job_imm_data_i,
    input  logic [63:0]   job_raddr_i,
    input  logic [31:0]   job_rkey_i,
    input  logic [31:0]   job_dma_len_i,
    input  logic [63:0]   job_laddr_i,
    input  logic [12:0]   job_len_i,
    // what the requester expects
    input  logic          expect_valid_i,
    input  logic          expect_resumed_i,
    input  logic          rewind_valid_i,
    input  logic [  5:0]  rewind_qpi_i,
    output logic          rewound_o,
    input  logic [5:0]    expect_qpi_i,
    input  logic [3:0]    expect_slot_i,
    input  logic [1:0]    expect_kind_i,
    input  logic [23:0]   expect_first_i,
    input  logic [23:0]   expect_last_i,
    input  logic [63:0]   expect_laddr_i,
    input  logic [31:0]   expect_lkey_i,
    input  logic [31:0]   expect_len_i,
    // responses
    output logic          rsp_valid_o,
    input  logic          rsp_ready_i,
    output logic [5:0]    rsp_qpi_o,
    output logic [2:0]    rsp_kind_o,
    output logic [23:0]   rsp_psn_o,
    output logic [7:0]    rsp_syndrome_o,
    output logic [23:0]   rsp_msn_o,
    output logic [3:0]    rsp_slot_o,
    output logic          rsp_last_o,
    output logic [7:0]    rsp_fail_o,
    // link: looped back, or these
    input  logic          loop_i,
    input  logic [7:0]    link_stall_i,
    output logic [511:0]  tx_data_o,
    output logic [63:0]   tx_keep_o,
    output logic          tx_last_o,
    output logic          tx_valid_o,
    input  logic          tx_ready_i,
    input  logic [511:0]  rx_data_i,
    input  logic [63:0]   rx_keep_i,
    input  logic          rx_last_i,
    input  logic          rx_valid_i,
    output logic          rx_ready_o,
    // events
    output logic [31:0]   errs_o,
    output logic [31:0]   asyncs_o,
    output logic [5:0]    err_qpi_o,
    output logic [23:0]   async_number_o,
    output logic [1023:0] counts_o,
    output logic [31:0]   tx_beats_o,
    output logic [31:0]   tx_frames_o,
    output logic [31:0]   tx_gaps_o,
    // memory
    input  logic [15:0]   latency_i,
    input  logic [7:0]    stall_i,
    input  logic [31:0]   seed_i,
    input  logic          poke_i,
    input  logic [13:0]   poke_beat_i,
    input  logic [511:0]  poke_data_i,
    input  logic [13:0]   peek_beat_i,
    output logic [511:0]  peek_data_o,
    input  logic          fault_i,
    input  logic [13:0]   fault_beat_i,
    input  logic          fault_writes_i,
    output logic [31:0]   writes_o,
    // what happens on the bus, counted by AXI ID: 1 reads, 2 reads, 3 writes, 5 writes
    output logic [31:0]   gathers_o,
    output logic [31:0]   atomics_o,
    output logic [31:0]   inbounds_o,
    output logic [31:0]   results_o
);
  ctx_wr_t     ctx;
  qp_err_evt_t drain, err;
  async_evt_t  async_evt;
  cnt_inc_t    cnt;
  tx_job_t     job;
  rsp_evt_t    rsp;
  expect_t     expected;
  logic [3:0]  awid, bid, arid, rid;
  logic [63:0] awaddr, araddr;
  logic [7:0]  awlen, arlen;
  logic [2:0]  awsize, arsize;
  logic [1:0]  awburst, arburst, bresp, rresp;
  logic        awvalid, awready, wvalid, wready, wlast, bvalid, bready, arvalid, arready, rvalid, rready, rlast;
  data_t       wdata, rdata, rx_data;
  strb_t       wstrb, rx_keep;
  logic        rx_valid, rx_last, pass, tx_ready;
  logic [31:0] lfsr_q;

  always_comb begin
    ctx               = '0;
    ctx.qp_set        = qp_set_i;
    ctx.qp_reset      = qp_reset_i;
    ctx.qpi           = qpi_i;
    ctx.qp.mtu        = mtu_i;
    ctx.qp.rem_write  = rem_write_i;
    ctx.qp.rem_read   = rem_read_i;
    ctx.qp.rem_atomic = rem_atomic_i;
    ctx.qp.max_dest_rd = max_dest_rd_i;
    ctx.qp.tc         = tc_i;
    ctx.qp.ttl        = ttl_i;
    ctx.qp.udp_sport  = udp_sport_i;
    ctx.qp.peer_qpn   = peer_qpn_i;
    ctx.qp.peer_ip    = peer_ip_i;
    ctx.qp.peer_mac   = peer_mac_i;
    ctx.qp.rq_psn     = rq_psn_i;
    ctx.mr_set        = mr_set_i;
    ctx.mrn           = mrn_i;
    ctx.mr.valid      = mr_valid_i;
    ctx.mr.base       = mr_base_i;
    ctx.mr.length     = mr_length_i;
    ctx.mr.loc_write  = mr_rights_i[0];
    ctx.mr.rem_write  = mr_rights_i[1];
    ctx.mr.rem_read   = mr_rights_i[2];
    ctx.mr.rem_atomic = mr_rights_i[3];
    ctx.mr.rtag       = mr_rtag_i;
    ctx.mr.ltag       = ~mr_rtag_i;
    drain             = '{valid: drain_valid_i, qpi: drain_qpi_i};
    job = '{
        qpi: job_qpi_i, slot: '0, bth: job_bth_i, psn: job_psn_i, ack_req: job_ack_req_i, se: job_se_i,
        has_reth: job_reth_i, raddr: job_raddr_i, rkey: job_rkey_i, dma_len: job_dma_len_i, has_imm: job_imm_i,
        imm: job_imm_data_i, laddr: job_laddr_i, pay_len: job_len_i, is_rsp: 1'b0, msn: '0, amo: '0
    };
  end
  assign expected = '{
      qpi: expect_qpi_i, slot: expect_slot_i, kind: expect_e'(expect_kind_i), first: expect_first_i,
      last: expect_last_i, laddr: expect_laddr_i, lkey: expect_lkey_i, len: expect_len_i,
      resumed: expect_resumed_i
  };
  assign rsp_slot_o     = rsp.slot;
  assign rsp_last_o     = rsp.last;
  assign rsp_fail_o     = rsp.fail;
  assign rsp_qpi_o      = rsp.qpi;
  assign rsp_kind_o     = rsp.kind;
  assign rsp_psn_o      = rsp.psn;
  assign rsp_syndrome_o = rsp.syndrome;
  assign rsp_msn_o      = rsp.msn;

  // link
  assign pass       = lfsr_q[7:0] >= link_stall_i;
  assign tx_ready   = loop_i ? pass && rx_ready_o : tx_ready_i;
  assign rx_data    = loop_i ? tx_data_o : rx_data_i;
  assign rx_keep    = loop_i ? tx_keep_o : rx_keep_i;
  assign rx_last    = loop_i ? tx_last_o : rx_last_i;
  assign rx_valid   = loop_i ? tx_valid_o && pass : rx_valid_i;

  datapath i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .qp_rts_i, .qp_err_i('0), .drain_i(drain), .drain_busy_o,
      .mr_drain_i, .mr_drain_busy_o, .mac_i, .ip_i,
      .job_valid_i, .job_ready_o, .job_i(job), .gerr_valid_o(), .gerr_qpi_o(), .gerr_slot_o(),
      .expect_valid_i, .expect_i(expected), .rewind_i('{valid: rewind_valid_i, qpi: rewind_qpi_i}), .rewound_o,
      .rsp_valid_o, .rsp_ready_i, .rsp_o(rsp),
      .fetch_req_valid_i(1'b0), .fetch_req_ready_o(), .fetch_req_i('0), .fetch_beat_valid_o(), .fetch_beat_o(),
      .rq_db_i('0), .rq_retire_i('0), .recv_o(),
      .cqe_req_valid_i(1'b0), .cqe_req_ready_o(), .cqe_req_i('0), .cqe_beat_valid_i(1'b0), .cqe_beat_ready_o(),
      .cqe_beat_i('0), .cqe_b_valid_o(), .cqe_b_err_o(),
      .m_axis_tdata(tx_data_o), .m_axis_tkeep(tx_keep_o), .m_axis_tlast(tx_last_o), .m_axis_tvalid(tx_valid_o),
      .m_axis_tready(tx_ready),
      .s_axis_tdata(rx_data), .s_axis_tkeep(rx_keep), .s_axis_tlast(rx_last), .s_axis_tvalid(rx_valid),
      .s_axis_tready(rx_ready_o),
      .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
      .m_axi_awvalid(awvalid), .m_axi_awready(awready), .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast),
      .m_axi_wvalid(wvalid), .m_axi_wready(wready), .m_axi_bid(bid), .m_axi_bresp(bresp), .m_axi_bvalid(bvalid),
      .m_axi_bready(bready), .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize),
      .m_axi_arburst(arburst), .m_axi_arvalid(arvalid), .m_axi_arready(arready), .m_axi_rid(rid), .m_axi_rdata(rdata),
      .m_axi_rresp(rresp), .m_axi_rlast(rlast), .m_axi_rvalid(rvalid), .m_axi_rready(rready),
      .err_o(err), .async_o(async_evt), .cnt_o(cnt)
  );
  axi_ram_model i_mem (
      .clk_i, .rst_ni, .latency_i, .stall_i, .seed_i, .poke_i, .poke_beat_i, .poke_data_i, .peek_beat_i, .peek_data_o,
      .fault_i, .fault_beat_i, .fault_writes_i, .reads_o(), .most_reads_o(), .writes_o,
      .awid, .awaddr, .awlen, .awsize, .awburst, .awvalid, .awready, .wdata, .wstrb, .wlast, .wvalid, .wready,
      .bid, .bresp, .bvalid, .bready,
      .arid, .araddr, .arlen, .arsize, .arburst, .arvalid, .arready, .rid, .rdata, .rresp, .rlast, .rvalid, .rready
  );

  // form of the frames: lanes contiguous, full before the last beat, stable while they wait (nic.md 1)
  logic        wait_q, inside_q;
  logic [575:0] held_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      lfsr_q      <= seed_i | 32'd1;
      wait_q      <= 1'b0;
      inside_q    <= 1'b0;
      errs_o      <= '0;
      asyncs_o    <= '0;
      counts_o    <= '0;
      tx_beats_o  <= '0;
      tx_frames_o <= '0;
      tx_gaps_o   <= '0;
      gathers_o   <= '0;
      atomics_o   <= '0;
      inbounds_o  <= '0;
      results_o   <= '0;
    end else begin
      lfsr_q <= {lfsr_q[30:0], lfsr_q[31] ^ lfsr_q[21] ^ lfsr_q[1] ^ lfsr_q[0]} + 32'h9e37_79b9;
      wait_q <= tx_valid_o && !tx_ready;
      held_q <= {tx_keep_o, tx_data_o};
      if (wait_q) begin
        assert (tx_valid_o && held_q == {tx_keep_o, tx_data_o}) else $error("link beat changes while it waits");
      end
      if (tx_valid_o) begin
        assert (tx_keep_o[0] && (tx_keep_o & (tx_keep_o + 64'd1)) == '0) else $error("tkeep %x", tx_keep_o);
        assert (tx_last_o || tx_keep_o == '1) else $error("tkeep %x before tlast", tx_keep_o);
        for (int i = 0; i < 64; i++) begin
          assert (tx_keep_o[i] || tx_data_o[8*i+:8] == '0) else $error("data in an unused lane");
        end
      end
      if (inside_q && !tx_valid_o) tx_gaps_o <= tx_gaps_o + 1;
      if (tx_valid_o && tx_ready) begin
        inside_q   <= !tx_last_o;
        tx_beats_o <= tx_beats_o + 1;
        if (tx_last_o) tx_frames_o <= tx_frames_o + 1;
      end
      gathers_o  <= gathers_o + 32'(arvalid && arready && arid == IdGather);
      atomics_o  <= atomics_o + 32'(arvalid && arready && arid == IdAtomic);
      inbounds_o <= inbounds_o + 32'(awvalid && awready && awid == IdInbound);
      results_o  <= results_o + 32'(awvalid && awready && awid == IdResult);
      for (int i = 0; i < 64; i++) if (cnt[i]) counts_o[16*i+:16] <= counts_o[16*i+:16] + 1;
      if (err.valid) errs_o <= errs_o + 1;
      if (err.valid) err_qpi_o <= err.qpi;
      if (async_evt.valid) begin
        asyncs_o       <= asyncs_o + 1;
        async_number_o <= async_evt.number;
        assert (async_evt.kind == AsyncQpErr) else $error("event of kind %0d", async_evt.kind);
      end
    end
  end
endmodule
