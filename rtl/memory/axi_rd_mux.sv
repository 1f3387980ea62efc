// Read side of the memory port: clients' bursts in turn onto AR, each under its own ID; data back to the client by its ID.
// Clients reserve room before they ask, so R is always taken.
module axi_rd_mux
  import rnic_pkg::*;
#(
    /// number of clients, at least 2
    parameter int unsigned Num = 2,
    /// AXI ID of each client
    parameter logic [Num-1:0][3:0] Ids = {IdGather, IdFetch}
) (
    /// clock
    input  logic           clk_i,
    /// asynchronous reset, active low
    input  logic           rst_ni,
    /// bursts
    input  logic [Num-1:0] req_valid_i,
    /// the burst is taken
    output logic [Num-1:0] req_ready_o,
    /// bursts
    input  rd_req_t        req_i [Num],
    /// data for the client
    output logic [Num-1:0] beat_valid_o,
    /// data, the same for all clients
    output rd_beat_t       beat_o,
    /// read ID
    output logic [3:0]     m_axi_arid,
    /// read address
    output logic [63:0]    m_axi_araddr,
    /// read beats - 1
    output logic [7:0]     m_axi_arlen,
    /// bytes per beat, log2
    output logic [2:0]     m_axi_arsize,
    /// burst type
    output logic [1:0]     m_axi_arburst,
    /// read address valid
    output logic           m_axi_arvalid,
    /// read address ready
    input  logic           m_axi_arready,
    /// read data ID
    input  logic [3:0]     m_axi_rid,
    /// read data
    input  data_t          m_axi_rdata,
    /// read response
    input  logic [1:0]     m_axi_rresp,
    /// last read beat
    input  logic           m_axi_rlast,
    /// read data valid
    input  logic           m_axi_rvalid,
    /// read data ready
    output logic           m_axi_rready
);
  typedef struct packed {
    logic [3:0] id;
    rd_req_t    req;
  } ar_t;
  localparam int unsigned SelW = $clog2(Num);

  logic            some, ar_ready;
  logic [Num-1:0]  grant;
  logic [SelW-1:0] index;
  ar_t             ar_in, ar;

  rr_arb #(.Num(Num)) i_arb (
      .clk_i, .rst_ni, .req_i(req_valid_i), .take_i(ar_ready), .valid_o(some), .gnt_o(grant), .idx_o(index)
  );
  assign ar_in       = '{id: Ids[index], req: req_i[index]};
  assign req_ready_o = grant & {Num{ar_ready}};

  stream_reg #(.T(ar_t)) i_ar (
      .clk_i, .rst_ni, .in_valid_i(some), .in_ready_o(ar_ready), .in_data_i(ar_in),
      .out_valid_o(m_axi_arvalid), .out_ready_i(m_axi_arready), .out_data_o(ar)
  );
  assign m_axi_arid    = ar.id;
  assign m_axi_araddr  = ar.req.addr;
  assign m_axi_arlen   = ar.req.len;
  assign m_axi_arsize  = ar.req.size;
  assign m_axi_arburst = 2'b01;
  assign m_axi_rready  = 1'b1;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      beat_valid_o <= '0;
    end else begin
      for (int unsigned i = 0; i < Num; i++) beat_valid_o[i] <= m_axi_rvalid && m_axi_rid == Ids[i];
    end
  end
  always_ff @(posedge clk_i) begin
    if (m_axi_rvalid) beat_o <= '{data: m_axi_rdata, err: m_axi_rresp[1], last: m_axi_rlast};
  end

  logic unused_resp;
  assign unused_resp = m_axi_rresp[0];  // EXOKAY is not asked for; SLVERR and DECERR have bit 1
endmodule
