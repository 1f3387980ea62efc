// A stand-in behind the ports of rnic for tests of the link: it sends bytes of memory as packets and takes whatever comes.
//
// MMIO write to 0x0800_0000 {bytes[63:48], address[47:0]}: reads so many bytes (ID 1, address a multiple of 4096, at most
// 4096) and sends them as one packet. Packets received are taken at once and forgotten. MMIO reads answer 0.
module rnic (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [31:0]  s_axil_awaddr,
  input  logic [2:0]   s_axil_awprot,
  input  logic         s_axil_awvalid,
  output logic         s_axil_awready,
  input  logic [63:0]  s_axil_wdata,
  input  logic [7:0]   s_axil_wstrb,
  input  logic         s_axil_wvalid,
  output logic         s_axil_wready,
  output logic [1:0]   s_axil_bresp,
  output logic         s_axil_bvalid,
  input  logic         s_axil_bready,
  input  logic [31:0]  s_axil_araddr,
  input  logic [2:0]   s_axil_arprot,
  input  logic         s_axil_arvalid,
  output logic         s_axil_arready,
  output logic [63:0]  s_axil_rdata,
  output logic [1:0]   s_axil_rresp,
  output logic         s_axil_rvalid,
  input  logic         s_axil_rready,
  output logic [3:0]   m_axi_awid,
  output logic [63:0]  m_axi_awaddr,
  output logic [7:0]   m_axi_awlen,
  output logic [2:0]   m_axi_awsize,
  output logic [1:0]   m_axi_awburst,
  output logic         m_axi_awvalid,
  input  logic         m_axi_awready,
  output logic [511:0] m_axi_wdata,
  output logic [63:0]  m_axi_wstrb,
  output logic         m_axi_wlast,
  output logic         m_axi_wvalid,
  input  logic         m_axi_wready,
  input  logic [3:0]   m_axi_bid,
  input  logic [1:0]   m_axi_bresp,
  input  logic         m_axi_bvalid,
  output logic         m_axi_bready,
  output logic [3:0]   m_axi_arid,
  output logic [63:0]  m_axi_araddr,
  output logic [7:0]   m_axi_arlen,
  output logic [2:0]   m_axi_arsize,
  output logic [1:0]   m_axi_arburst,
  output logic         m_axi_arvalid,
  input  logic         m_axi_arready,
  input  logic [3:0]   m_axi_rid,
  input  logic [511:0] m_axi_rdata,
  input  logic [1:0]   m_axi_rresp,
  input  logic         m_axi_rlast,
  input  logic         m_axi_rvalid,
  output logic         m_axi_rready,
  output logic [511:0] m_axis_tdata,
  output logic [63:0]  m_axis_tkeep,
  output logic         m_axis_tlast,
  output logic         m_axis_tvalid,
  input  logic         m_axis_tready,
  input  logic [511:0] s_axis_tdata,
  input  logic [63:0]  s_axis_tkeep,
  input  logic         s_axis_tlast,
  input  logic         s_axis_tvalid,
  output logic         s_axis_tready,
  output logic         event_o
);


  logic [63:0] job_q [256];
  logic [7:0] job_wr_q, job_rd_q, sent_q;
  logic aw_have_q, w_have_q;
  logic [63:0] w_q;
  logic [15:0] bytes, sending;

  assign s_axil_awready = !aw_have_q;
  assign s_axil_wready  = !w_have_q;
  assign s_axil_bresp   = 2'd0;
  assign s_axil_arready = !s_axil_rvalid;
  assign s_axil_rresp   = 2'd0;
  assign s_axil_rdata   = '0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      aw_have_q     <= 1'b0;
      w_have_q      <= 1'b0;
      job_wr_q      <= '0;
      s_axil_bvalid <= 1'b0;
      s_axil_rvalid <= 1'b0;
    end else begin
      if (s_axil_awvalid && s_axil_awready) aw_have_q <= 1'b1;
      if (s_axil_wvalid && s_axil_wready) begin
        w_have_q <= 1'b1;
        w_q      <= s_axil_wdata;
      end
      if (s_axil_bvalid && s_axil_bready) s_axil_bvalid <= 1'b0;
      if (aw_have_q && w_have_q && !s_axil_bvalid) begin
        s_axil_bvalid   <= 1'b1;
        aw_have_q       <= 1'b0;
        w_have_q        <= 1'b0;
        job_q[job_wr_q] <= w_q;
        job_wr_q        <= job_wr_q + 8'd1;
      end
      if (s_axil_rvalid && s_axil_rready) s_axil_rvalid <= 1'b0;
      if (s_axil_arvalid && s_axil_arready) s_axil_rvalid <= 1'b1;
    end
  end

  // ------------------------------------------------------------------ send: read beats go straight to the link
  assign bytes         = job_q[job_rd_q][63:48];
  assign m_axi_arid    = 4'd1;
  assign m_axi_arsize  = 3'd6;
  assign m_axi_arburst = 2'b01;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      job_rd_q      <= '0;
      sent_q        <= '0;
      m_axi_arvalid <= 1'b0;
    end else begin
      if (m_axi_arvalid && m_axi_arready) m_axi_arvalid <= 1'b0;
      if (job_rd_q != job_wr_q && (!m_axi_arvalid || m_axi_arready)) begin
        m_axi_arvalid <= 1'b1;
        m_axi_araddr  <= {16'd0, job_q[job_rd_q][47:0]};
        m_axi_arlen   <= 8'((bytes + 16'd63) >> 6) - 8'd1;
        job_rd_q      <= job_rd_q + 8'd1;
      end
      if (m_axis_tvalid && m_axis_tready && m_axis_tlast) sent_q <= sent_q + 8'd1;
    end
  end
  assign sending       = job_q[sent_q][63:48];
  assign m_axis_tdata  = m_axi_rdata;
  assign m_axis_tkeep  = m_axi_rlast && sending[5:0] != 6'd0 ? (64'd1 << sending[5:0]) - 64'd1 : '1;
  assign m_axis_tlast  = m_axi_rlast;
  assign m_axis_tvalid = m_axi_rvalid;
  assign m_axi_rready  = m_axis_tready;

  // ------------------------------------------------------------------ receive: nothing is written
  assign s_axis_tready = 1'b1;
  assign m_axi_awid    = 4'd3;
  assign m_axi_awaddr  = '0;
  assign m_axi_awlen   = '0;
  assign m_axi_awsize  = 3'd6;
  assign m_axi_awburst = 2'b01;
  assign m_axi_awvalid = 1'b0;
  assign m_axi_wdata   = '0;
  assign m_axi_wstrb   = '0;
  assign m_axi_wlast   = 1'b0;
  assign m_axi_wvalid  = 1'b0;
  assign m_axi_bready  = 1'b1;
  assign event_o       = 1'b0;

endmodule
