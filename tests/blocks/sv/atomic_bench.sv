// The atomic unit behind the real memory port and a memory; beside it the ALU alone. Structs are plain ports. The test plays
// the inbound WRITEs: bursts that start, responses that come.
module atomic_bench
  import rnic_pkg::*, atomic_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // ALU alone
    input  logic         alu_valid_i,
    input  logic [63:0]  alu_old_i,
    output logic         alu_write_o,
    output logic [63:0]  alu_new_o,
    // operation, for both
    input  logic         op_valid_i,
    output logic         op_ready_o,
    input  logic [5:0]   qpi_i,
    input  logic [23:0]  psn_i,
    input  logic [23:0]  msn_i,
    input  logic [7:0]   bth_i,
    input  logic [63:0]  addr_i,
    input  logic [63:0]  swap_add_i,
    input  logic [63:0]  compare_i,
    input  logic [63:0]  swap_mask_i,
    input  logic [63:0]  compare_mask_i,
    // result
    output logic         done_valid_o,
    input  logic         done_ready_i,
    output logic [5:0]   done_qpi_o,
    output logic [23:0]  done_psn_o,
    output logic [23:0]  done_msn_o,
    output logic         done_err_o,
    output logic         done_skipped_o,
    output logic [63:0]  done_value_o,
    // lock
    output logic         lock_valid_o,
    output logic [60:0]  lock_addr_o,
    input  logic [1:0]   start_i,
    input  logic         inbound_b_i,
    // contexts
    input  logic         qp_set_i,
    input  logic [5:0]   set_qpi_i,
    input  logic         drain_valid_i,
    input  logic [5:0]   drain_qpi_i,
    output logic         drain_busy_o,
    input  logic         mr_drain_i,
    output logic         mr_drain_busy_o,
    output logic [31:0]  atomics_o,
    output logic [31:0]  bus_o,
    // memory
    output logic         read_o,
    output logic [63:0]  araddr_o,
    output logic [2:0]   arsize_o,
    output logic [3:0]   arid_o,
    output logic         write_o,
    output logic [63:0]  awaddr_o,
    output logic [2:0]   awsize_o,
    output logic [3:0]   awid_o,
    output logic [63:0]  wstrb_o,
    output logic         b_o,
    input  logic [15:0]  latency_i,
    input  logic [7:0]   stall_i,
    input  logic [31:0]  seed_i,
    input  logic         poke_i,
    input  logic [13:0]  poke_beat_i,
    input  logic [511:0] poke_data_i,
    input  logic [13:0]  peek_beat_i,
    output logic [511:0] peek_data_o,
    input  logic         fault_i,
    input  logic [13:0]  fault_beat_i,
    input  logic         fault_writes_i
);
  amo_t        amo;
  amo_op_t     op;
  amo_done_t   done;
  ctx_wr_t     ctx;
  qp_err_evt_t drain;
  cnt_inc_t    cnt;
  logic [1:0]  rd_valid, rd_ready, rd_beat_valid, wr_valid, wr_ready, wb_valid, wb_ready;
  rd_req_t     rd_req[2];
  wr_req_t     wr_req[2];
  wr_beat_t    wr_beat[2];
  rd_beat_t    rd_beat;
  logic        b_valid, b_err;
  axi_id_e     b_id;
  logic [3:0]  awid, bid, arid, rid;
  logic [63:0] awaddr, araddr;
  logic [7:0]  awlen, arlen;
  logic [2:0]  awsize, arsize;
  logic [1:0]  awburst, arburst, bresp, rresp;
  logic        awvalid, awready, wvalid, wready, wlast, bvalid, bready, arvalid, arready, rvalid, rready, rlast;
  data_t       wdata, rdata;
  strb_t       wstrb;

  always_comb begin
    amo = '{
        compare_mask: compare_mask_i, swap_mask: swap_mask_i, compare: compare_i, swap_add: swap_add_i
    };
    op         = '{qpi: qpi_i, place: '0, psn: psn_i, msn: msn_i, bth: bth_i, addr: addr_i, amo: amo};
    ctx        = '0;
    ctx.qp_set = qp_set_i;
    ctx.qpi    = set_qpi_i;
    drain      = '{valid: drain_valid_i, qpi: drain_qpi_i};
    rd_valid[0] = 1'b0;
    rd_req[0]   = '0;
    wr_valid[0] = 1'b0;
    wr_req[0]   = '0;
    wb_valid[0] = 1'b0;
    wr_beat[0]  = '0;
  end
  assign done_qpi_o     = done.qpi;
  assign done_psn_o     = done.psn;
  assign done_msn_o     = done.msn;
  assign done_err_o     = done.err;
  assign done_skipped_o = done.skipped;
  assign done_value_o   = done.value;
  assign read_o         = arvalid && arready;
  assign araddr_o       = araddr;
  assign arsize_o       = arsize;
  assign arid_o         = arid;
  assign write_o        = awvalid && awready;
  assign awaddr_o       = awaddr;
  assign awsize_o       = awsize;
  assign awid_o         = awid;
  assign wstrb_o        = wvalid && wready ? wstrb : '0;
  assign b_o            = bvalid && bready;

  atomic_alu i_alu (
      .valid_i(alu_valid_i), .bth_i, .amo_i(amo), .old_i(alu_old_i), .write_o(alu_write_o), .new_o(alu_new_o)
  );
  atomic_unit i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .drain_i(drain), .drain_busy_o, .mr_drain_i, .mr_drain_busy_o,
      .op_valid_i, .op_ready_o, .op_i(op), .done_valid_o, .done_ready_i, .done_o(done),
      .lock_valid_o, .lock_addr_o, .start_i, .inbound_b_valid_i(inbound_b_i),
      .rd_req_valid_o(rd_valid[1]), .rd_req_ready_i(rd_ready[1]), .rd_req_o(rd_req[1]),
      .rd_beat_valid_i(rd_beat_valid[1]), .rd_beat_i(rd_beat),
      .wr_req_valid_o(wr_valid[1]), .wr_req_ready_i(wr_ready[1]), .wr_req_o(wr_req[1]),
      .wr_beat_valid_o(wb_valid[1]), .wr_beat_ready_i(wb_ready[1]), .wr_beat_o(wr_beat[1]),
      .b_valid_i(b_valid && b_id == IdAtomic), .b_err_i(b_err), .cnt_o(cnt)
  );
  axi_rd_mux #(.Num(2), .Ids({IdAtomic, IdGather})) i_rd_mux (
      .clk_i, .rst_ni, .req_valid_i(rd_valid), .req_ready_o(rd_ready), .req_i(rd_req),
      .beat_valid_o(rd_beat_valid), .beat_o(rd_beat),
      .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
      .m_axi_arvalid(arvalid), .m_axi_arready(arready), .m_axi_rid(rid), .m_axi_rdata(rdata), .m_axi_rresp(rresp),
      .m_axi_rlast(rlast), .m_axi_rvalid(rvalid), .m_axi_rready(rready)
  );
  axi_wr_mux #(.Num(2)) i_wr_mux (
      .clk_i, .rst_ni, .req_valid_i(wr_valid), .req_ready_o(wr_ready), .req_i(wr_req),
      .beat_valid_i(wb_valid), .beat_ready_o(wb_ready), .beat_i(wr_beat),
      .b_valid_o(b_valid), .b_id_o(b_id), .b_err_o(b_err),
      .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
      .m_axi_awvalid(awvalid), .m_axi_awready(awready), .m_axi_wdata(wdata), .m_axi_wstrb(wstrb),
      .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(wready), .m_axi_bid(bid), .m_axi_bresp(bresp),
      .m_axi_bvalid(bvalid), .m_axi_bready(bready)
  );
  axi_ram_model i_mem (
      .clk_i, .rst_ni, .latency_i, .stall_i, .seed_i, .poke_i, .poke_beat_i, .poke_data_i, .peek_beat_i, .peek_data_o,
      .fault_i, .fault_beat_i, .fault_writes_i, .reads_o(), .most_reads_o(), .writes_o(),
      .awid, .awaddr, .awlen, .awsize, .awburst, .awvalid, .awready, .wdata, .wstrb, .wlast, .wvalid, .wready,
      .bid, .bresp, .bvalid, .bready,
      .arid, .araddr, .arlen, .arsize, .arburst, .arvalid, .arready, .rid, .rdata, .rresp, .rlast, .rvalid, .rready
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      atomics_o <= '0;
      bus_o     <= '0;
    end else begin
      atomics_o <= atomics_o + 32'(cnt[CntAtomic]);
      bus_o     <= bus_o + 32'(cnt[CntBusAtomic]);
    end
  end
endmodule
