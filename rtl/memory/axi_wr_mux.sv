// Write side of the memory port: clients' bursts in turn onto AW, each under the ID that it names; their data follows on W
// in the order of the bursts; responses go to all clients with their ID. A client has its data ready when it asks, so a
// burst never holds up W for long.
module axi_wr_mux
  import rnic_pkg::*;
#(
    /// number of clients, at least 2
    parameter int unsigned Num = 2,
    /// bursts whose address is ahead of their data
    parameter int unsigned Ahead = 4
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
    input  wr_req_t        req_i [Num],
    /// data of the bursts, in their order
    input  logic [Num-1:0] beat_valid_i,
    /// the data is taken
    output logic [Num-1:0] beat_ready_o,
    /// data
    input  wr_beat_t       beat_i [Num],
    /// write response, for the client that uses the ID
    output logic           b_valid_o,
    /// ID of its burst
    output axi_id_e        b_id_o,
    /// it reports an error
    output logic           b_err_o,
    /// write ID
    output logic [3:0]     m_axi_awid,
    /// write address
    output logic [63:0]    m_axi_awaddr,
    /// write beats - 1
    output logic [7:0]     m_axi_awlen,
    /// bytes per beat, log2
    output logic [2:0]     m_axi_awsize,
    /// burst type
    output logic [1:0]     m_axi_awburst,
    /// write address valid
    output logic           m_axi_awvalid,
    /// write address ready
    input  logic           m_axi_awready,
    /// write data
    output data_t          m_axi_wdata,
    /// write strobes
    output strb_t          m_axi_wstrb,
    /// last write beat of the burst
    output logic           m_axi_wlast,
    /// write data valid
    output logic           m_axi_wvalid,
    /// write data ready
    input  logic           m_axi_wready,
    /// write response ID
    input  logic [3:0]     m_axi_bid,
    /// write response
    input  logic [1:0]     m_axi_bresp,
    /// write response valid
    input  logic           m_axi_bvalid,
    /// write response ready
    output logic           m_axi_bready
);
  localparam int unsigned SelW = $clog2(Num);
  logic            some, take, aw_ready, order_ready, owner_valid, owner_done, w_ready, w_valid;
  logic [Num-1:0]  grant;
  logic [SelW-1:0] index, owner;
  wr_req_t         aw;
  wr_beat_t        w_in, w;
  logic [$clog2(Ahead+1)-1:0] unused_count;

  rr_arb #(.Num(Num)) i_arb (
      .clk_i, .rst_ni, .req_i(req_valid_i), .take_i(take), .valid_o(some), .gnt_o(grant), .idx_o(index)
  );
  assign take        = some && aw_ready && order_ready;
  assign req_ready_o = grant & {Num{take}};

  stream_reg #(.T(wr_req_t)) i_aw (
      .clk_i, .rst_ni, .in_valid_i(take), .in_ready_o(aw_ready), .in_data_i(req_i[index]),
      .out_valid_o(m_axi_awvalid), .out_ready_i(m_axi_awready), .out_data_o(aw)
  );
  assign m_axi_awid    = aw.id;
  assign m_axi_awaddr  = aw.addr;
  assign m_axi_awlen   = aw.len;
  assign m_axi_awsize  = aw.size;
  assign m_axi_awburst = 2'b01;

  // whose data comes next on W
  fifo #(.T(logic [SelW-1:0]), .Depth(Ahead)) i_order (
      .clk_i, .rst_ni, .in_valid_i(take), .in_ready_o(order_ready), .in_data_i(index),
      .out_valid_o(owner_valid), .out_ready_i(owner_done), .out_data_o(owner), .count_o(unused_count)
  );
  assign w_valid    = owner_valid && beat_valid_i[owner];
  assign w_in       = beat_i[owner];
  assign owner_done = w_valid && w_ready && w_in.last;
  always_comb begin
    beat_ready_o        = '0;
    beat_ready_o[owner] = owner_valid && w_ready;
  end

  stream_reg #(.T(wr_beat_t)) i_w (
      .clk_i, .rst_ni, .in_valid_i(w_valid), .in_ready_o(w_ready), .in_data_i(w_in),
      .out_valid_o(m_axi_wvalid), .out_ready_i(m_axi_wready), .out_data_o(w)
  );
  assign m_axi_wdata  = w.data;
  assign m_axi_wstrb  = w.strb;
  assign m_axi_wlast  = w.last;
  assign m_axi_bready = 1'b1;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) b_valid_o <= 1'b0;
    else b_valid_o <= m_axi_bvalid;
  end
  always_ff @(posedge clk_i) begin
    if (m_axi_bvalid) begin
      b_id_o  <= axi_id_e'(m_axi_bid);
      b_err_o <= m_axi_bresp[1];
    end
  end

  logic unused_resp;
  assign unused_resp = m_axi_bresp[0];  // EXOKAY is not asked for; SLVERR and DECERR have bit 1
endmodule
