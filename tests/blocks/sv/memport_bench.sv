// Both sides of the memory port alone, with three clients each: their structs and the AXI4 port as plain ports.
module memport_bench
  import rnic_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // read clients: fetch, gather, atomic
    input  logic [2:0]   rd_valid_i,
    output logic [2:0]   rd_ready_o,
    input  logic [63:0]  rd_addr_i [3],
    input  logic [7:0]   rd_len_i [3],
    input  logic [2:0]   rd_size_i [3],
    output logic [2:0]   rd_beat_valid_o,
    output logic [511:0] rd_beat_data_o,
    output logic         rd_beat_err_o,
    output logic         rd_beat_last_o,
    // write clients
    input  logic [2:0]   wr_valid_i,
    output logic [2:0]   wr_ready_o,
    input  logic [63:0]  wr_addr_i [3],
    input  logic [7:0]   wr_len_i [3],
    input  logic [2:0]   wr_size_i [3],
    input  logic [3:0]   wr_id_i [3],
    input  logic [2:0]   wd_valid_i,
    output logic [2:0]   wd_ready_o,
    input  logic [511:0] wd_data_i [3],
    input  logic [63:0]  wd_strb_i [3],
    input  logic [2:0]   wd_last_i,
    output logic         b_valid_o,
    output logic [3:0]   b_id_o,
    output logic         b_err_o,
    // AXI4
    output logic [3:0]   arid_o,
    output logic [63:0]  araddr_o,
    output logic [7:0]   arlen_o,
    output logic [2:0]   arsize_o,
    output logic [1:0]   arburst_o,
    output logic         arvalid_o,
    input  logic         arready_i,
    input  logic [3:0]   rid_i,
    input  logic [511:0] rdata_i,
    input  logic [1:0]   rresp_i,
    input  logic         rlast_i,
    input  logic         rvalid_i,
    output logic         rready_o,
    output logic [3:0]   awid_o,
    output logic [63:0]  awaddr_o,
    output logic [7:0]   awlen_o,
    output logic [2:0]   awsize_o,
    output logic [1:0]   awburst_o,
    output logic         awvalid_o,
    input  logic         awready_i,
    output logic [511:0] wdata_o,
    output logic [63:0]  wstrb_o,
    output logic         wlast_o,
    output logic         wvalid_o,
    input  logic         wready_i,
    input  logic [3:0]   bid_i,
    input  logic [1:0]   bresp_i,
    input  logic         bvalid_i,
    output logic         bready_o
);
  rd_req_t  rd_req[3];
  wr_req_t  wr_req[3];
  wr_beat_t wd[3];
  rd_beat_t rd_beat;
  axi_id_e  b_id;

  for (genvar i = 0; i < 3; i++) begin : gen_clients
    assign rd_req[i] = '{addr: rd_addr_i[i], len: rd_len_i[i], size: rd_size_i[i]};
    assign wr_req[i] = '{addr: wr_addr_i[i], len: wr_len_i[i], size: wr_size_i[i], id: axi_id_e'(wr_id_i[i])};
    assign wd[i]     = '{data: wd_data_i[i], strb: wd_strb_i[i], last: wd_last_i[i]};
  end
  assign rd_beat_data_o = rd_beat.data;
  assign rd_beat_err_o  = rd_beat.err;
  assign rd_beat_last_o = rd_beat.last;
  assign b_id_o         = b_id;

  axi_rd_mux #(.Num(3), .Ids({IdAtomic, IdGather, IdFetch})) i_rd (
      .clk_i, .rst_ni, .req_valid_i(rd_valid_i), .req_ready_o(rd_ready_o), .req_i(rd_req),
      .beat_valid_o(rd_beat_valid_o), .beat_o(rd_beat),
      .m_axi_arid(arid_o), .m_axi_araddr(araddr_o), .m_axi_arlen(arlen_o), .m_axi_arsize(arsize_o),
      .m_axi_arburst(arburst_o), .m_axi_arvalid(arvalid_o), .m_axi_arready(arready_i), .m_axi_rid(rid_i),
      .m_axi_rdata(rdata_i), .m_axi_rresp(rresp_i), .m_axi_rlast(rlast_i), .m_axi_rvalid(rvalid_i),
      .m_axi_rready(rready_o)
  );
  axi_wr_mux #(.Num(3)) i_wr (
      .clk_i, .rst_ni, .req_valid_i(wr_valid_i), .req_ready_o(wr_ready_o), .req_i(wr_req),
      .beat_valid_i(wd_valid_i), .beat_ready_o(wd_ready_o), .beat_i(wd), .b_valid_o, .b_id_o(b_id), .b_err_o,
      .m_axi_awid(awid_o), .m_axi_awaddr(awaddr_o), .m_axi_awlen(awlen_o), .m_axi_awsize(awsize_o),
      .m_axi_awburst(awburst_o), .m_axi_awvalid(awvalid_o), .m_axi_awready(awready_i), .m_axi_wdata(wdata_o),
      .m_axi_wstrb(wstrb_o), .m_axi_wlast(wlast_o), .m_axi_wvalid(wvalid_o), .m_axi_wready(wready_i),
      .m_axi_bid(bid_i), .m_axi_bresp(bresp_i), .m_axi_bvalid(bvalid_i), .m_axi_bready(bready_o)
  );
endmodule
