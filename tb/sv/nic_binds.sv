// Observers of each NIC: bound, so that the bench is the same with and without them (TB_NO_MONITOR: the yardstick of the
// benchmarks). Assertions are switched by Verilator's --assert.
`ifndef TB_NO_MONITOR
bind tb_nic nic_monitor u_monitor (
  .clk_i,
  .rst_ni,
  .pe_i,
  .s_axil_awaddr,
  .s_axil_awvalid,
  .s_axil_awready,
  .s_axil_wdata,
  .s_axil_wstrb,
  .s_axil_wvalid,
  .s_axil_wready,
  .s_axil_araddr,
  .s_axil_arvalid,
  .s_axil_arready,
  .s_axil_rdata,
  .s_axil_rresp,
  .s_axil_rvalid,
  .s_axil_rready,
  .m_axi_awid,
  .m_axi_awaddr,
  .m_axi_awvalid,
  .m_axi_awready,
  .m_axi_wdata,
  .m_axi_wstrb,
  .m_axi_wlast,
  .m_axi_wvalid,
  .m_axi_wready,
  .m_axi_bid,
  .m_axi_bresp,
  .m_axi_bvalid,
  .m_axi_bready,
  .m_axi_arid,
  .m_axi_araddr,
  .m_axi_arsize,
  .m_axi_arvalid,
  .m_axi_arready,
  .m_axi_rid,
  .m_axi_rresp,
  .m_axi_rlast,
  .m_axi_rvalid,
  .m_axi_rready,
  .m_axis_tdata,
  .m_axis_tkeep,
  .m_axis_tlast,
  .m_axis_tvalid,
  .m_axis_tready,
  .s_axis_tdata,
  .s_axis_tkeep,
  .s_axis_tlast,
  .s_axis_tvalid,
  .s_axis_tready,
  .event_o
);
`endif  // TB_NO_MONITOR

`ifndef TB_NO_CHECKER
bind tb_nic axi4_checker u_axi4_checker (
  .clk_i,
  .rst_ni,
  .awid_i   (m_axi_awid),
  .awaddr_i (m_axi_awaddr),
  .awlen_i  (m_axi_awlen),
  .awsize_i (m_axi_awsize),
  .awburst_i(m_axi_awburst),
  .awvalid_i(m_axi_awvalid),
  .awready_i(m_axi_awready),
  .wdata_i  (m_axi_wdata),
  .wstrb_i  (m_axi_wstrb),
  .wlast_i  (m_axi_wlast),
  .wvalid_i (m_axi_wvalid),
  .wready_i (m_axi_wready),
  .bid_i    (m_axi_bid),
  .bresp_i  (m_axi_bresp),
  .bvalid_i (m_axi_bvalid),
  .bready_i (m_axi_bready),
  .arid_i   (m_axi_arid),
  .araddr_i (m_axi_araddr),
  .arlen_i  (m_axi_arlen),
  .arsize_i (m_axi_arsize),
  .arburst_i(m_axi_arburst),
  .arvalid_i(m_axi_arvalid),
  .arready_i(m_axi_arready),
  .rid_i    (m_axi_rid),
  .rdata_i  (m_axi_rdata),
  .rresp_i  (m_axi_rresp),
  .rlast_i  (m_axi_rlast),
  .rvalid_i (m_axi_rvalid),
  .rready_i (m_axi_rready)
);

bind tb_nic axil_checker u_axil_checker (
  .clk_i,
  .rst_ni,
  .awaddr_i (s_axil_awaddr),
  .awprot_i (s_axil_awprot),
  .awvalid_i(s_axil_awvalid),
  .awready_i(s_axil_awready),
  .wdata_i  (s_axil_wdata),
  .wstrb_i  (s_axil_wstrb),
  .wvalid_i (s_axil_wvalid),
  .wready_i (s_axil_wready),
  .bresp_i  (s_axil_bresp),
  .bvalid_i (s_axil_bvalid),
  .bready_i (s_axil_bready),
  .araddr_i (s_axil_araddr),
  .arprot_i (s_axil_arprot),
  .arvalid_i(s_axil_arvalid),
  .arready_i(s_axil_arready),
  .rdata_i  (s_axil_rdata),
  .rresp_i  (s_axil_rresp),
  .rvalid_i (s_axil_rvalid),
  .rready_i (s_axil_rready)
);

bind tb_nic axis_checker #(
  .Name("link transmit")
) u_tx_checker (
  .clk_i,
  .rst_ni,
  .tdata_i (m_axis_tdata),
  .tkeep_i (m_axis_tkeep),
  .tlast_i (m_axis_tlast),
  .tvalid_i(m_axis_tvalid),
  .tready_i(m_axis_tready)
);

bind tb_nic axis_checker #(
  .Name("link receive")
) u_rx_checker (
  .clk_i,
  .rst_ni,
  .tdata_i (s_axis_tdata),
  .tkeep_i (s_axis_tkeep),
  .tlast_i (s_axis_tlast),
  .tvalid_i(s_axis_tvalid),
  .tready_i(s_axis_tready)
);
`endif  // TB_NO_CHECKER
