// Passive observer of all ports of one NIC: each beat or handshake becomes one DPI call, the C++ side
// (tb/cpp/monitor.cpp) makes records of them. Bound in nic_binds.sv.
module nic_monitor (
  /// clock
  input logic         clk_i,
  /// asynchronous reset, active low
  input logic         rst_ni,
  /// number of the NIC in the records
  input int           pe_i,
  /// AXI4-Lite, seen at the NIC
  input logic [31:0]  s_axil_awaddr,
  input logic         s_axil_awvalid,
  input logic         s_axil_awready,
  input logic [63:0]  s_axil_wdata,
  input logic [7:0]   s_axil_wstrb,
  input logic         s_axil_wvalid,
  input logic         s_axil_wready,
  input logic [31:0]  s_axil_araddr,
  input logic         s_axil_arvalid,
  input logic         s_axil_arready,
  input logic [63:0]  s_axil_rdata,
  input logic [1:0]   s_axil_rresp,
  input logic         s_axil_rvalid,
  input logic         s_axil_rready,
  /// AXI4
  input logic [3:0]   m_axi_awid,
  input logic [63:0]  m_axi_awaddr,
  input logic         m_axi_awvalid,
  input logic         m_axi_awready,
  input logic [511:0] m_axi_wdata,
  input logic [63:0]  m_axi_wstrb,
  input logic         m_axi_wlast,
  input logic         m_axi_wvalid,
  input logic         m_axi_wready,
  input logic [3:0]   m_axi_bid,
  input logic [1:0]   m_axi_bresp,
  input logic         m_axi_bvalid,
  input logic         m_axi_bready,
  input logic [3:0]   m_axi_arid,
  input logic [63:0]  m_axi_araddr,
  input logic [2:0]   m_axi_arsize,
  input logic         m_axi_arvalid,
  input logic         m_axi_arready,
  input logic [3:0]   m_axi_rid,
  input logic [1:0]   m_axi_rresp,
  input logic         m_axi_rlast,
  input logic         m_axi_rvalid,
  input logic         m_axi_rready,
  /// link, NIC to wire
  input logic [511:0] m_axis_tdata,
  input logic [63:0]  m_axis_tkeep,
  input logic         m_axis_tlast,
  input logic         m_axis_tvalid,
  input logic         m_axis_tready,
  /// link, wire to NIC
  input logic [511:0] s_axis_tdata,
  input logic [63:0]  s_axis_tkeep,
  input logic         s_axis_tlast,
  input logic         s_axis_tvalid,
  input logic         s_axis_tready,
  /// event output
  input logic         event_o
);

  import "DPI-C" function void mon_tx(input int pe, input bit [511:0] data, input longint unsigned keep,
                                      input int last);
  import "DPI-C" function void mon_rx(input int pe, input bit [511:0] data, input longint unsigned keep,
                                      input int last);
  import "DPI-C" function void mon_mmio_aw(input int pe, input int addr);
  import "DPI-C" function void mon_mmio_w(input int pe, input longint unsigned data, input int strb);
  import "DPI-C" function void mon_mmio_ar(input int pe, input int addr);
  import "DPI-C" function void mon_mmio_r(input int pe, input longint unsigned data, input int resp);
  import "DPI-C" function void mon_ar(input int pe, input int id, input longint unsigned addr, input int size);
  import "DPI-C" function void mon_r(input int pe, input int id, input int resp, input int last);
  import "DPI-C" function void mon_aw(input int pe, input int id, input longint unsigned addr);
  import "DPI-C" function void mon_w(input int pe, input bit [511:0] data, input longint unsigned strb,
                                     input int last);
  import "DPI-C" function void mon_b(input int pe, input int id, input int resp);
  import "DPI-C" function void mon_event(input int pe, input int level);
  import "DPI-C" function void mon_reset(input int pe);

  logic event_q;

  // One process: the order of records of one cycle is the order below. Responses come before requests, and what arrives
  // before what is sent, so that a record never stands before its cause.
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      if (m_axi_bvalid && m_axi_bready) mon_b(pe_i, int'(m_axi_bid), int'(m_axi_bresp));
      if (m_axi_rvalid && m_axi_rready) mon_r(pe_i, int'(m_axi_rid), int'(m_axi_rresp), int'(m_axi_rlast));
      if (s_axil_rvalid && s_axil_rready) mon_mmio_r(pe_i, s_axil_rdata, int'(s_axil_rresp));
      if (s_axil_arvalid && s_axil_arready) mon_mmio_ar(pe_i, int'(s_axil_araddr));
      if (s_axil_awvalid && s_axil_awready) mon_mmio_aw(pe_i, int'(s_axil_awaddr));
      if (s_axil_wvalid && s_axil_wready) mon_mmio_w(pe_i, s_axil_wdata, int'(s_axil_wstrb));
      if (s_axis_tvalid && s_axis_tready) mon_rx(pe_i, s_axis_tdata, s_axis_tkeep, int'(s_axis_tlast));
      if (m_axi_arvalid && m_axi_arready) mon_ar(pe_i, int'(m_axi_arid), m_axi_araddr, int'(m_axi_arsize));
      if (m_axi_awvalid && m_axi_awready) mon_aw(pe_i, int'(m_axi_awid), m_axi_awaddr);
      if (m_axi_wvalid && m_axi_wready) mon_w(pe_i, m_axi_wdata, m_axi_wstrb, int'(m_axi_wlast));
      if (m_axis_tvalid && m_axis_tready) mon_tx(pe_i, m_axis_tdata, m_axis_tkeep, int'(m_axis_tlast));
      if (event_o != event_q) mon_event(pe_i, int'(event_o));
      event_q <= event_o;
    end else begin
      event_q <= 1'b0;
    end
  end

  always_ff @(negedge rst_ni) mon_reset(pe_i);

endmodule
