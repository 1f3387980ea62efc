// gather behind the read side of the memory port, with a memory; its structs as plain ports.
module gather_bench
  import rnic_pkg::*, dp_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // QP 0..63: all RTS but for these
    input  logic [63:0]  qp_stopped_i,
    input  logic         qp_set_i,
    input  logic         qp_reset_i,
    input  logic [5:0]   qp_set_qpi_i,
    input  logic         drain_valid_i,
    input  logic [5:0]   drain_qpi_i,
    output logic         drain_busy_o,
    input  logic         mr_drain_i,
    output logic         mr_drain_busy_o,
    // job
    input  logic         job_valid_i,
    output logic         job_ready_o,
    input  logic [5:0]   job_qpi_i,
    input  logic [3:0]   job_slot_i,
    input  logic [23:0]  job_psn_i,
    input  logic [63:0]  job_laddr_i,
    input  logic [12:0]  job_len_i,
    input  logic         job_rsp_i,
    input  logic [23:0]  job_msn_i,
    // packets
    output logic         pkt_valid_o,
    input  logic         pkt_ready_i,
    output logic [5:0]   pkt_qpi_o,
    output logic [23:0]  pkt_psn_o,
    output logic [12:0]  pkt_len_o,
    output logic         pkt_rsp_o,
    output logic [23:0]  pkt_msn_o,
    output logic         pay_valid_o,
    input  logic         pay_ready_i,
    output logic [511:0] pay_data_o,
    output logic         pay_last_o,
    output logic         gerr_valid_o,
    output logic [5:0]   gerr_qpi_o,
    output logic [3:0]   gerr_slot_o,
    output logic         rerr_valid_o,
    output logic [5:0]   rerr_qpi_o,
    output logic [23:0]  rerr_psn_o,
    output logic [23:0]  rerr_msn_o,
    output logic         rsp_out_valid_o,
    output logic [5:0]   rsp_out_qpi_o,
    output logic [31:0]  bus_errs_o,
    // memory
    input  logic [15:0]  latency_i,
    input  logic [7:0]   stall_i,
    input  logic [31:0]  seed_i,
    input  logic         poke_i,
    input  logic [13:0]  poke_beat_i,
    input  logic [511:0] poke_data_i,
    input  logic         fault_i,
    input  logic [13:0]  fault_beat_i,
    output logic [31:0]  reads_o,
    output logic [31:0]  most_reads_o,
    // another reader of the port: asks for one beat whenever it may
    input  logic         rival_i,
    output logic [31:0]  rival_beats_o
);
  ctx_wr_t     ctx;
  qp_err_evt_t drain;
  tx_job_t     job, pkt;
  pay_beat_t   pay;
  logic [1:0]  req_valid, req_ready, beat_valid;
  rd_req_t     req[2];
  rd_beat_t    beat;
  logic [3:0]  arid, rid;
  logic [63:0] araddr;
  logic [7:0]  arlen;
  logic [2:0]  arsize;
  logic [1:0]  arburst, rresp;
  logic        arvalid, arready, rvalid, rready, rlast, bus_err;
  data_t       rdata;

  always_comb begin
    ctx          = '0;
    ctx.qp_set   = qp_set_i;
    ctx.qp_reset = qp_reset_i;
    ctx.qpi      = qp_set_qpi_i;
    drain        = '{valid: drain_valid_i, qpi: drain_qpi_i};
    job          = '0;
    job.qpi      = job_qpi_i;
    job.slot     = job_slot_i;
    job.psn      = job_psn_i;
    job.laddr    = job_laddr_i;
    job.pay_len  = job_len_i;
    job.is_rsp   = job_rsp_i;
    job.msn      = job_msn_i;
  end
  assign pkt_qpi_o  = pkt.qpi;
  assign pkt_psn_o  = pkt.psn;
  assign pkt_len_o  = pkt.pay_len;
  assign pkt_rsp_o  = pkt.is_rsp;
  assign pkt_msn_o  = pkt.msn;
  assign pay_data_o = pay.data;
  assign pay_last_o = pay.last;

  gather i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .qp_rts_i(~qp_stopped_i), .drain_i(drain), .drain_busy_o,
      .mr_drain_i, .mr_drain_busy_o, .job_valid_i, .job_ready_o,
      .job_i(job), .req_valid_o(req_valid[1]), .req_ready_i(req_ready[1]), .req_o(req[1]),
      .beat_valid_i(beat_valid[1]), .beat_i(beat), .pkt_valid_o, .pkt_ready_i, .pkt_o(pkt),
      .pay_valid_o, .pay_ready_i, .pay_o(pay), .gerr_valid_o, .gerr_qpi_o, .gerr_slot_o,
      .rerr_valid_o, .rerr_qpi_o, .rerr_psn_o, .rerr_msn_o, .rsp_out_valid_o, .rsp_out_qpi_o, .bus_err_o(bus_err)
  );
  assign req_valid[0] = rival_i;
  assign req[0]       = '{addr: 64'h40, len: 8'd0, size: SizeBeat};
  axi_rd_mux #(.Num(2)) i_mux (
      .clk_i, .rst_ni, .req_valid_i(req_valid), .req_ready_o(req_ready), .req_i(req), .beat_valid_o(beat_valid),
      .beat_o(beat), .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize),
      .m_axi_arburst(arburst), .m_axi_arvalid(arvalid), .m_axi_arready(arready), .m_axi_rid(rid), .m_axi_rdata(rdata),
      .m_axi_rresp(rresp), .m_axi_rlast(rlast), .m_axi_rvalid(rvalid), .m_axi_rready(rready)
  );
  axi_ram_model i_mem (
      .clk_i, .rst_ni, .latency_i, .stall_i, .seed_i, .poke_i, .poke_beat_i, .poke_data_i, .peek_beat_i('0),
      .peek_data_o(), .fault_i, .fault_beat_i, .reads_o, .most_reads_o, .writes_o(),
      .awid('0), .awaddr('0), .awlen('0), .awsize('0), .awburst('0), .awvalid(1'b0), .awready(), .wdata('0), .wstrb('0),
      .wlast(1'b0), .wvalid(1'b0), .wready(), .bid(), .bresp(), .bvalid(), .bready(1'b1),
      .arid, .araddr, .arlen, .arsize, .arburst, .arvalid, .arready, .rid, .rdata, .rresp, .rlast, .rvalid, .rready
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      rival_beats_o <= '0;
      bus_errs_o    <= '0;
    end else begin
      if (beat_valid[0]) rival_beats_o <= rival_beats_o + 1;
      if (bus_err) bus_errs_o <= bus_errs_o + 1;
    end
  end
endmodule
