// A small stand-in behind the ports of rnic, to test the testbench: it moves bytes by the shortest way.
//
// MMIO write to 0x0800_0000 {beats[63:56], address[55:0]}: reads that many beats (ID 1) and sends them as one packet.
// A packet received is written (ID 3) to the address in its bytes 8 to 15, {0} beats in byte 16; after the response, a
// 64-byte completion (ID 4: the packet's number in all lanes) goes to the address in bytes 24 to 31, if that is not 0,
// and event_o goes up until any MMIO read.
//
// MMIO write to 0x0800_0008 {log2 of the bytes[63:60], address[55:0]}: reads that word (ID 2), adds 1 to each of its bytes and
// writes it back (ID 2). One at a time.
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

  typedef enum logic [3:0] {
    Idle,
    Addr,
    Data,
    Resp,
    CqeAddr,
    CqeData,
    CqeResp,
    WordAddr,
    WordData,
    WordResp
  } state_e;
  state_e state_q;

  // ------------------------------------------------------------------ MMIO: a queue of jobs
  logic [63:0] job_q [256];
  logic [7:0] job_wr_q, job_rd_q;
  logic aw_have_q, w_have_q;
  logic [31:0] aw_q;
  logic [63:0] w_q;
  logic word_ask_q, word_read_q, word_here_q;  // asked for, being read, to be written
  logic [63:0] word_q;
  logic [2:0] word_size;
  logic [511:0] word_data_q;

  assign word_size = {1'b0, word_q[61:60]};

  assign s_axil_awready = !aw_have_q;
  assign s_axil_wready  = !w_have_q;
  assign s_axil_bresp   = 2'd0;
  assign s_axil_arready = !s_axil_rvalid;
  assign s_axil_rresp   = 2'd0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      aw_have_q     <= 1'b0;
      w_have_q      <= 1'b0;
      job_wr_q      <= '0;
      word_ask_q    <= 1'b0;
      s_axil_bvalid <= 1'b0;
      s_axil_rvalid <= 1'b0;
    end else begin
      if (s_axil_awvalid && s_axil_awready) begin
        aw_have_q <= 1'b1;
        aw_q      <= s_axil_awaddr;
      end
      if (s_axil_wvalid && s_axil_wready) begin
        w_have_q <= 1'b1;
        w_q      <= s_axil_wdata;
      end
      if (s_axil_bvalid && s_axil_bready) s_axil_bvalid <= 1'b0;
      if (aw_have_q && w_have_q && !s_axil_bvalid) begin
        s_axil_bvalid <= 1'b1;
        aw_have_q     <= 1'b0;
        w_have_q      <= 1'b0;
        if (aw_q == 32'h0800_0000) begin
          job_q[job_wr_q] <= w_q;
          job_wr_q        <= job_wr_q + 8'd1;
        end else if (aw_q == 32'h0800_0008) begin
          word_ask_q <= 1'b1;
          word_q     <= w_q;
        end
      end
      if (word_read_q) word_ask_q <= 1'b0;
      if (s_axil_rvalid && s_axil_rready) s_axil_rvalid <= 1'b0;
      if (s_axil_arvalid && s_axil_arready) begin
        s_axil_rvalid <= 1'b1;
        s_axil_rdata  <= {~s_axil_araddr, s_axil_araddr};
      end
    end
  end

  // ------------------------------------------------------------------ send: read beats go straight to the link
  assign m_axi_arburst = 2'b01;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      job_rd_q      <= '0;
      m_axi_arvalid <= 1'b0;
      word_read_q   <= 1'b0;
      word_here_q   <= 1'b0;
    end else begin
      if (m_axi_arvalid && m_axi_arready) m_axi_arvalid <= 1'b0;
      if (word_ask_q && !word_read_q && (!m_axi_arvalid || m_axi_arready)) begin
        m_axi_arvalid <= 1'b1;
        m_axi_arid    <= 4'd2;
        m_axi_arsize  <= word_size;
        m_axi_araddr  <= {8'd0, word_q[55:0]};
        m_axi_arlen   <= 8'd0;
        word_read_q   <= 1'b1;
      end else if (job_rd_q != job_wr_q && (!m_axi_arvalid || m_axi_arready)) begin
        m_axi_arvalid <= 1'b1;
        m_axi_arid    <= 4'd1;
        m_axi_arsize  <= 3'd6;
        m_axi_araddr  <= {8'd0, job_q[job_rd_q][55:0]};
        m_axi_arlen   <= job_q[job_rd_q][63:56] - 8'd1;
        job_rd_q      <= job_rd_q + 8'd1;
      end
      if (m_axi_rvalid && m_axi_rready && m_axi_rid == 4'd2) begin
        word_here_q <= 1'b1;
        for (int i = 0; i < 64; i++) word_data_q[8*i+:8] <= m_axi_rdata[8*i+:8] + 8'd1;
      end
      if (state_q == WordResp && m_axi_bvalid) begin
        word_here_q <= 1'b0;
        word_read_q <= 1'b0;
      end
    end
  end
  assign m_axis_tdata  = m_axi_rdata;
  assign m_axis_tkeep  = '1;
  assign m_axis_tlast  = m_axi_rlast;
  assign m_axis_tvalid = m_axi_rvalid && m_axi_rid == 4'd1;
  assign m_axi_rready  = m_axis_tready || m_axi_rid == 4'd2;

  // ------------------------------------------------------------------ receive: address, data, response, completion
  logic [63:0] cqe_q, word_strb;
  logic [31:0] count_q;

  assign word_strb     = ((64'd1 << (7'd1 << word_size)) - 64'd1) << word_q[5:0];
  assign m_axi_awburst = 2'b01;
  assign m_axi_awvalid = state_q inside {Addr, CqeAddr, WordAddr};
  assign m_axi_wdata   = state_q == CqeData ? {16{count_q}} : state_q == WordData ? word_data_q : s_axis_tdata;
  assign m_axi_wstrb   = state_q == CqeData ? '1 : state_q == WordData ? word_strb : s_axis_tkeep;
  assign m_axi_wlast   = state_q inside {CqeData, WordData} || s_axis_tlast;
  assign m_axi_wvalid  = state_q inside {CqeData, WordData} || (state_q == Data && s_axis_tvalid);
  assign s_axis_tready = state_q == Data && m_axi_wready;
  assign m_axi_bready  = 1'b1;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= Idle;
      count_q <= '0;
      event_o <= 1'b0;
    end else begin
      if (s_axil_arvalid) event_o <= 1'b0;
      unique case (state_q)
        Idle:
        if (word_here_q) begin
          m_axi_awid   <= 4'd2;
          m_axi_awsize <= word_size;
          m_axi_awaddr <= {8'd0, word_q[55:0]};
          m_axi_awlen  <= 8'd0;
          state_q      <= WordAddr;
        end else if (s_axis_tvalid) begin
          m_axi_awsize <= 3'd6;
          m_axi_awid   <= 4'd3;
          m_axi_awaddr <= s_axis_tdata[64+:64];
          m_axi_awlen  <= s_axis_tdata[128+:8] - 8'd1;
          cqe_q        <= s_axis_tdata[192+:64];
          state_q      <= Addr;
        end
        Addr: if (m_axi_awready) state_q <= Data;
        Data: if (s_axis_tvalid && m_axi_wready && s_axis_tlast) state_q <= Resp;
        Resp:
        if (m_axi_bvalid) begin
          m_axi_awid   <= 4'd4;
          m_axi_awaddr <= cqe_q;
          m_axi_awlen  <= 8'd0;
          count_q      <= count_q + 32'd1;
          state_q      <= cqe_q == 64'd0 ? Idle : CqeAddr;
        end
        CqeAddr: if (m_axi_awready) state_q <= CqeData;
        CqeData: if (m_axi_wready) state_q <= CqeResp;
        CqeResp:
        if (m_axi_bvalid) begin
          event_o <= 1'b1;
          state_q <= Idle;
        end
        WordAddr: if (m_axi_awready) state_q <= WordData;
        WordData: if (m_axi_wready) state_q <= WordResp;
        WordResp: if (m_axi_bvalid) state_q <= Idle;
        default: state_q <= Idle;
      endcase
    end
  end

endmodule
