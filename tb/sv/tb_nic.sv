// One NIC with everything that stands at its ports: mailbox, memory, link. The NIC sees standard interfaces only, so any
// design with the ports of rnic can stand here. Observers are bound to this module (nic_binds.sv).
module tb_nic (
  /// clock
  input logic clk_i,
  /// asynchronous reset, active low
  input logic rst_ni,
  /// number of the NIC; an input, not a parameter, so that all instances share their code
  input int   pe_i,
  /// the C++ side may have an MMIO request or a packet for this NIC
  input logic work_i
);

  logic [31:0]  s_axil_awaddr;
  logic [2:0]   s_axil_awprot;
  logic         s_axil_awvalid;
  logic         s_axil_awready;
  logic [63:0]  s_axil_wdata;
  logic [7:0]   s_axil_wstrb;
  logic         s_axil_wvalid;
  logic         s_axil_wready;
  logic [1:0]   s_axil_bresp;
  logic         s_axil_bvalid;
  logic         s_axil_bready;
  logic [31:0]  s_axil_araddr;
  logic [2:0]   s_axil_arprot;
  logic         s_axil_arvalid;
  logic         s_axil_arready;
  logic [63:0]  s_axil_rdata;
  logic [1:0]   s_axil_rresp;
  logic         s_axil_rvalid;
  logic         s_axil_rready;
  logic [3:0]   m_axi_awid;
  logic [63:0]  m_axi_awaddr;
  logic [7:0]   m_axi_awlen;
  logic [2:0]   m_axi_awsize;
  logic [1:0]   m_axi_awburst;
  logic         m_axi_awvalid;
  logic         m_axi_awready;
  logic [511:0] m_axi_wdata;
  logic [63:0]  m_axi_wstrb;
  logic         m_axi_wlast;
  logic         m_axi_wvalid;
  logic         m_axi_wready;
  logic [3:0]   m_axi_bid;
  logic [1:0]   m_axi_bresp;
  logic         m_axi_bvalid;
  logic         m_axi_bready;
  logic [3:0]   m_axi_arid;
  logic [63:0]  m_axi_araddr;
  logic [7:0]   m_axi_arlen;
  logic [2:0]   m_axi_arsize;
  logic [1:0]   m_axi_arburst;
  logic         m_axi_arvalid;
  logic         m_axi_arready;
  logic [3:0]   m_axi_rid;
  logic [511:0] m_axi_rdata;
  logic [1:0]   m_axi_rresp;
  logic         m_axi_rlast;
  logic         m_axi_rvalid;
  logic         m_axi_rready;
  logic [511:0] m_axis_tdata;
  logic [63:0]  m_axis_tkeep;
  logic         m_axis_tlast;
  logic         m_axis_tvalid;
  logic         m_axis_tready;
  logic [511:0] s_axis_tdata;
  logic [63:0]  s_axis_tkeep;
  logic         s_axis_tlast;
  logic         s_axis_tvalid;
  logic         s_axis_tready;
  logic         event_o;

  rnic u_rnic (
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
    .m_axi_awid,
    .m_axi_awaddr,
    .m_axi_awlen,
    .m_axi_awsize,
    .m_axi_awburst,
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
    .m_axi_arlen,
    .m_axi_arsize,
    .m_axi_arburst,
    .m_axi_arvalid,
    .m_axi_arready,
    .m_axi_rid,
    .m_axi_rdata,
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

  axil_mgr u_axil_mgr (
    .clk_i,
    .rst_ni,
    .pe_i,
    .work_i,
    .awaddr_o (s_axil_awaddr),
    .awprot_o (s_axil_awprot),
    .awvalid_o(s_axil_awvalid),
    .awready_i(s_axil_awready),
    .wdata_o  (s_axil_wdata),
    .wstrb_o  (s_axil_wstrb),
    .wvalid_o (s_axil_wvalid),
    .wready_i (s_axil_wready),
    .bresp_i  (s_axil_bresp),
    .bvalid_i (s_axil_bvalid),
    .bready_o (s_axil_bready),
    .araddr_o (s_axil_araddr),
    .arprot_o (s_axil_arprot),
    .arvalid_o(s_axil_arvalid),
    .arready_i(s_axil_arready),
    .rdata_i  (s_axil_rdata),
    .rresp_i  (s_axil_rresp),
    .rvalid_i (s_axil_rvalid),
    .rready_o (s_axil_rready)
  );

  axi_mem u_axi_mem (
    .clk_i,
    .rst_ni,
    .pe_i,
    .awid_i   (m_axi_awid),
    .awaddr_i (m_axi_awaddr),
    .awlen_i  (m_axi_awlen),
    .awsize_i (m_axi_awsize),
    .awvalid_i(m_axi_awvalid),
    .awready_o(m_axi_awready),
    .wdata_i  (m_axi_wdata),
    .wstrb_i  (m_axi_wstrb),
    .wlast_i  (m_axi_wlast),
    .wvalid_i (m_axi_wvalid),
    .wready_o (m_axi_wready),
    .bid_o    (m_axi_bid),
    .bresp_o  (m_axi_bresp),
    .bvalid_o (m_axi_bvalid),
    .bready_i (m_axi_bready),
    .arid_i   (m_axi_arid),
    .araddr_i (m_axi_araddr),
    .arlen_i  (m_axi_arlen),
    .arsize_i (m_axi_arsize),
    .arvalid_i(m_axi_arvalid),
    .arready_o(m_axi_arready),
    .rid_o    (m_axi_rid),
    .rdata_o  (m_axi_rdata),
    .rresp_o  (m_axi_rresp),
    .rlast_o  (m_axi_rlast),
    .rvalid_o (m_axi_rvalid),
    .rready_i (m_axi_rready)
  );

  link_port u_link_port (
    .clk_i,
    .rst_ni,
    .pe_i,
    .work_i,
    .tx_tdata_i (m_axis_tdata),
    .tx_tkeep_i (m_axis_tkeep),
    .tx_tlast_i (m_axis_tlast),
    .tx_tvalid_i(m_axis_tvalid),
    .tx_tready_o(m_axis_tready),
    .rx_tdata_o (s_axis_tdata),
    .rx_tkeep_o (s_axis_tkeep),
    .rx_tlast_o (s_axis_tlast),
    .rx_tvalid_o(s_axis_tvalid),
    .rx_tready_i(s_axis_tready)
  );

endmodule
