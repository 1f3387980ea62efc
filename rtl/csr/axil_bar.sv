// AXI4-Lite front of the BAR (nic.md section 1): one transaction of each direction at a time, every answer is OKAY.
// Doorbell writes go to the judge and are answered once judged; the CSR space goes through the register block; every
// other address is taken and ignored, and reads as 0.
module axil_bar (
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// AXI4-Lite subordinate
    input  logic [31:0] s_axil_awaddr,
    /// not used: no access is privileged
    input  logic [ 2:0] s_axil_awprot,
    input  logic        s_axil_awvalid,
    output logic        s_axil_awready,
    input  logic [63:0] s_axil_wdata,
    input  logic [ 7:0] s_axil_wstrb,
    input  logic        s_axil_wvalid,
    output logic        s_axil_wready,
    output logic [ 1:0] s_axil_bresp,
    output logic        s_axil_bvalid,
    input  logic        s_axil_bready,
    input  logic [31:0] s_axil_araddr,
    /// not used: no access is privileged
    input  logic [ 2:0] s_axil_arprot,
    input  logic        s_axil_arvalid,
    output logic        s_axil_arready,
    output logic [63:0] s_axil_rdata,
    output logic [ 1:0] s_axil_rresp,
    output logic        s_axil_rvalid,
    input  logic        s_axil_rready,
    /// doorbell write; the judge is always ready here because one is under way at a time
    output logic        db_valid_o,
    /// page of the doorbell area
    output logic [15:0] db_page_o,
    /// register of the page: 0 SQ, 1 RQ, 2 CQ
    output logic [ 1:0] db_reg_o,
    /// partial strobe or misaligned address
    output logic        db_partial_o,
    /// data of the doorbell
    output logic [63:0] db_data_o,
    /// the doorbell under way is judged and its effects are counted
    input  logic        db_done_i,
    /// request to the register block, one cycle; the payload stays until the acknowledge
    output logic        csr_req_o,
    /// 1: write
    output logic        csr_wr_o,
    /// byte address, 64-bit aligned
    output logic [16:0] csr_addr_o,
    /// write data
    output logic [63:0] csr_wdata_o,
    /// write strobes by bit
    output logic [63:0] csr_biten_o,
    /// write done
    input  logic        csr_wr_ack_i,
    /// read done
    input  logic        csr_rd_ack_i,
    /// read data, valid with csr_rd_ack_i
    input  logic [63:0] csr_rdata_i
);

  localparam logic [19:0] DbFirstPage = 20'h08000;  // 0x0800_0000 / 4096
  localparam logic [19:0] DbPages = 20'h10000;  // a QPN in a doorbell has 16 bits

  typedef enum logic [1:0] {
    WrIdle,
    WrDoorbell,
    WrCsr,
    WrResp
  } wr_state_e;
  typedef enum logic [1:0] {
    RdIdle,
    RdCsr,
    RdResp
  } rd_state_e;

  // ---------------------------------------------------------------- write channel registers
  logic aw_full_q, w_full_q, aw_pop;
  logic [31:0] aw_addr_q;
  logic [63:0] w_data_q;
  logic [7:0] w_strb_q;

  assign s_axil_awready = !aw_full_q;
  assign s_axil_wready  = !w_full_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      aw_full_q <= 1'b0;
      w_full_q  <= 1'b0;
      aw_addr_q <= '0;
      w_data_q  <= '0;
      w_strb_q  <= '0;
    end else begin
      if (aw_pop) begin
        aw_full_q <= 1'b0;
        w_full_q  <= 1'b0;
      end
      if (s_axil_awvalid && !aw_full_q) begin
        aw_full_q <= 1'b1;
        aw_addr_q <= s_axil_awaddr;
      end
      if (s_axil_wvalid && !w_full_q) begin
        w_full_q <= 1'b1;
        w_data_q <= s_axil_wdata;
        w_strb_q <= s_axil_wstrb;
      end
    end
  end

  // ---------------------------------------------------------------- decode
  logic [19:0] page;
  logic is_doorbell, is_csr, rd_is_csr;

  assign page = aw_addr_q[31:12] - DbFirstPage;
  assign is_doorbell = page < DbPages && aw_addr_q[11:5] == '0 && aw_addr_q[4:3] != 2'd3;
  assign is_csr = aw_addr_q[31:17] == '0;

  assign db_page_o = page[15:0];
  assign db_reg_o = aw_addr_q[4:3];
  assign db_partial_o = w_strb_q != '1 || aw_addr_q[2:0] != '0;
  assign db_data_o = w_data_q;

  // ---------------------------------------------------------------- write sequence
  wr_state_e wr_st_d, wr_st_q;
  logic csr_wr_start, csr_rd_busy, csr_wr_grant;

  always_comb begin
    wr_st_d = wr_st_q;
    aw_pop = 1'b0;
    db_valid_o = 1'b0;
    csr_wr_start = 1'b0;
    unique case (wr_st_q)
      WrIdle, WrResp: begin
        if (wr_st_q == WrResp && s_axil_bready) wr_st_d = WrIdle;
        if (aw_full_q && w_full_q && (wr_st_q == WrIdle || s_axil_bready)) begin
          if (is_doorbell) begin
            db_valid_o = 1'b1;
            aw_pop = 1'b1;
            wr_st_d = WrDoorbell;
          end else if (is_csr) begin
            if (csr_wr_grant) begin
              csr_wr_start = 1'b1;
              wr_st_d = WrCsr;
              if (csr_wr_ack_i) begin
                aw_pop  = 1'b1;
                wr_st_d = WrResp;
              end
            end
          end else begin
            aw_pop  = 1'b1;
            wr_st_d = WrResp;
          end
        end
      end
      WrDoorbell: if (db_done_i) wr_st_d = WrResp;
      WrCsr: begin
        if (csr_wr_ack_i) begin
          aw_pop  = 1'b1;
          wr_st_d = WrResp;
        end
      end
      default: wr_st_d = WrIdle;
    endcase
  end

  assign s_axil_bvalid = wr_st_q == WrResp;
  assign s_axil_bresp  = 2'b00;

  // ---------------------------------------------------------------- read sequence
  rd_state_e rd_st_d, rd_st_q;
  logic ar_full_q, ar_pop, csr_rd_start, csr_rd_grant;
  logic [31:0] ar_addr_q;
  logic [63:0] r_data_d, r_data_q;

  assign s_axil_arready = !ar_full_q;
  assign rd_is_csr = ar_addr_q[31:17] == '0;
  // one request at a time in the register block; a write goes first, a read behind it is next
  assign csr_rd_busy = rd_st_q == RdCsr;
  assign csr_wr_grant = !csr_rd_busy;
  assign csr_rd_grant = wr_st_q != WrCsr && !csr_wr_start;

  always_comb begin
    rd_st_d = rd_st_q;
    r_data_d = r_data_q;
    ar_pop = 1'b0;
    csr_rd_start = 1'b0;
    unique case (rd_st_q)
      RdIdle: begin
        if (ar_full_q && !rd_is_csr) begin
          r_data_d = '0;
          ar_pop   = 1'b1;
          rd_st_d  = RdResp;
        end else if (ar_full_q && csr_rd_grant) begin
          csr_rd_start = 1'b1;
          rd_st_d = RdCsr;
          if (csr_rd_ack_i) begin
            r_data_d = csr_rdata_i;
            ar_pop   = 1'b1;
            rd_st_d  = RdResp;
          end
        end
      end
      RdCsr: begin
        if (csr_rd_ack_i) begin
          r_data_d = csr_rdata_i;
          ar_pop   = 1'b1;
          rd_st_d  = RdResp;
        end
      end
      RdResp: if (s_axil_rready) rd_st_d = RdIdle;
      default: rd_st_d = RdIdle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_st_q   <= WrIdle;
      rd_st_q   <= RdIdle;
      ar_full_q <= 1'b0;
      ar_addr_q <= '0;
      r_data_q  <= '0;
    end else begin
      wr_st_q  <= wr_st_d;
      rd_st_q  <= rd_st_d;
      r_data_q <= r_data_d;
      if (ar_pop) ar_full_q <= 1'b0;
      if (s_axil_arvalid && !ar_full_q) begin
        ar_full_q <= 1'b1;
        ar_addr_q <= s_axil_araddr;
      end
    end
  end

  assign s_axil_rvalid = rd_st_q == RdResp;
  assign s_axil_rdata  = r_data_q;
  assign s_axil_rresp  = 2'b00;

  // ---------------------------------------------------------------- register block
  assign csr_req_o = csr_wr_start || csr_rd_start;
  assign csr_wr_o = csr_wr_start || wr_st_q == WrCsr;
  assign csr_addr_o = csr_wr_o ? {aw_addr_q[16:3], 3'b000} : {ar_addr_q[16:3], 3'b000};
  assign csr_wdata_o = w_data_q;
  for (genvar b = 0; b < 8; b++) begin : gen_biten
    assign csr_biten_o[8*b+:8] = {8{w_strb_q[b]}};
  end

  logic unused;
  assign unused = ^{s_axil_awprot, s_axil_arprot, ar_addr_q[2:0], page[19:16]};

endmodule
