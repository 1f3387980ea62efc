// The 16 staging words of the command window: one access a cycle, the command engine before the host. A host access
// that finds the engine at work waits; the engine lets go within some tens of cycles.
module stage_ram (
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// host request, one cycle; its payload stays until the acknowledge
    input  logic        host_req_i,
    /// 1: write
    input  logic        host_wr_i,
    /// word
    input  logic [ 3:0] host_addr_i,
    /// write data
    input  logic [63:0] host_wdata_i,
    /// write strobes by bit, equal within a byte
    input  logic [63:0] host_biten_i,
    /// write done
    output logic        host_wr_ack_o,
    /// read data valid
    output logic        host_rd_ack_o,
    /// the engine uses the words in this cycle
    input  logic        eng_busy_i,
    /// engine writes a word
    input  logic        eng_wr_i,
    /// word
    input  logic [ 3:0] eng_addr_i,
    /// write data
    input  logic [63:0] eng_wdata_i,
    /// word read in the cycle before, by whoever read
    output logic [63:0] rdata_o
);

  logic [63:0] mem[16];
  logic [63:0] rdata_q;
  logic pend_q, rd_ack_q, host_go, wr;
  logic [3:0] addr;
  logic [63:0] wdata;
  logic [7:0] be;

  assign host_go = (host_req_i || pend_q) && !eng_busy_i;
  assign wr = eng_busy_i ? eng_wr_i : host_go && host_wr_i;
  assign addr = eng_busy_i ? eng_addr_i : host_addr_i;
  assign wdata = eng_busy_i ? eng_wdata_i : host_wdata_i;
  for (genvar b = 0; b < 8; b++) begin : gen_be
    assign be[b] = eng_busy_i || host_biten_i[8*b];
  end

  always_ff @(posedge clk_i) begin
    if (wr) begin
      for (int unsigned b = 0; b < 8; b++) if (be[b]) mem[addr][8*b+:8] <= wdata[8*b+:8];
    end else if (eng_busy_i || host_go) begin
      rdata_q <= mem[addr];
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pend_q   <= 1'b0;
      rd_ack_q <= 1'b0;
    end else begin
      pend_q   <= (host_req_i || pend_q) && !host_go;
      rd_ack_q <= host_go && !host_wr_i;
    end
  end

  assign host_wr_ack_o = host_go && host_wr_i;
  assign host_rd_ack_o = rd_ack_q;
  assign rdata_o = rdata_q;

  logic unused;
  assign unused = ^host_biten_i;

endmodule
