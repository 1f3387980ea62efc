// AXI4 subordinate whose memory, latency, order and errors live in C++ (tb/cpp/memory.cpp): one DPI call a beat, none
// while nothing is outstanding.
module axi_mem #(
  /// width of an ID
  parameter int unsigned IdW = 4
) (
  /// clock
  input  logic           clk_i,
  /// asynchronous reset, active low
  input  logic           rst_ni,
  /// whose memory this is
  input  int             pe_i,
  /// AXI4 write address
  input  logic [IdW-1:0] awid_i,
  input  logic [63:0]    awaddr_i,
  input  logic [7:0]     awlen_i,
  input  logic [2:0]     awsize_i,
  input  logic           awvalid_i,
  output logic           awready_o,
  /// AXI4 write data
  input  logic [511:0]   wdata_i,
  input  logic [63:0]    wstrb_i,
  input  logic           wlast_i,
  input  logic           wvalid_i,
  output logic           wready_o,
  /// AXI4 write response
  output logic [IdW-1:0] bid_o,
  output logic [1:0]     bresp_o,
  output logic           bvalid_o,
  input  logic           bready_i,
  /// AXI4 read address
  input  logic [IdW-1:0] arid_i,
  input  logic [63:0]    araddr_i,
  input  logic [7:0]     arlen_i,
  input  logic [2:0]     arsize_i,
  input  logic           arvalid_i,
  output logic           arready_o,
  /// AXI4 read data
  output logic [IdW-1:0] rid_o,
  output logic [511:0]   rdata_o,
  output logic [1:0]     rresp_o,
  output logic           rlast_o,
  output logic           rvalid_o,
  input  logic           rready_i
);

  import "DPI-C" function int mem_ar(input int pe, input int id, input longint unsigned addr, input int len,
                                     input int size);
  import "DPI-C" function int mem_r(input int pe, output int id, output bit [511:0] data, output int resp,
                                    output int last);
  import "DPI-C" function int mem_aw(input int pe, input int id, input longint unsigned addr, input int len,
                                     input int size);
  import "DPI-C" function int mem_w(input int pe, input bit [511:0] data, input longint unsigned strb);
  import "DPI-C" function int mem_b(input int pe, input int take, output int id, output int resp);
  import "DPI-C" function void mem_reset(input int pe);

  /// bursts of each direction that may be open
  localparam int MaxOpen = 64;

  int ar_pause_q, aw_pause_q, w_pause_q;
  int reads_q;     // read bursts accepted, last beat not offered yet
  int addrs_q;     // write addresses accepted, WLAST not yet
  int responses_q; // write bursts whose response was not offered yet

  assign arready_o = ar_pause_q == 0 && reads_q < MaxOpen;
  assign awready_o = aw_pause_q == 0 && responses_q < MaxOpen;
  assign wready_o  = w_pause_q == 0 && addrs_q != 0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      ar_pause_q <= 0;
      reads_q    <= 0;
      rvalid_o   <= 1'b0;
    end else begin
      automatic int change = 0;
      if (ar_pause_q != 0) ar_pause_q <= ar_pause_q - 1;
      // the beat first, so that a burst is never answered in the cycle of its address
      if (rvalid_o && rready_i) rvalid_o <= 1'b0;
      if (reads_q != 0 && (!rvalid_o || rready_i)) begin
        automatic int id, resp, last;  // the C side speaks int
        automatic bit [511:0] data;
        if (mem_r(pe_i, id, data, resp, last) != 0) begin
          rid_o    <= IdW'(id);
          rdata_o  <= data;
          rresp_o  <= 2'(resp);
          rlast_o  <= last != 0;
          rvalid_o <= 1'b1;
          if (last != 0) change -= 1;
        end
      end
      if (arvalid_i && arready_o) begin
        ar_pause_q <= mem_ar(pe_i, int'(arid_i), araddr_i, int'(arlen_i), int'(arsize_i));
        change += 1;
      end
      reads_q <= reads_q + change;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      aw_pause_q  <= 0;
      w_pause_q   <= 0;
      addrs_q     <= 0;
      responses_q <= 0;
      bvalid_o    <= 1'b0;
    end else begin
      automatic int addrs = 0;
      automatic int responses = 0;
      if (aw_pause_q != 0) aw_pause_q <= aw_pause_q - 1;
      if (w_pause_q != 0) w_pause_q <= w_pause_q - 1;
      if (bvalid_o && bready_i) bvalid_o <= 1'b0;
      if (responses_q != 0) begin
        automatic int id, resp;
        if (mem_b(pe_i, int'(!bvalid_o || bready_i), id, resp) != 0) begin
          bid_o    <= IdW'(id);
          bresp_o  <= 2'(resp);
          bvalid_o <= 1'b1;
          responses -= 1;
        end
      end
      if (awvalid_i && awready_o) begin
        aw_pause_q <= mem_aw(pe_i, int'(awid_i), awaddr_i, int'(awlen_i), int'(awsize_i));
        addrs += 1;
        responses += 1;
      end
      if (wvalid_i && wready_o) begin
        w_pause_q <= mem_w(pe_i, wdata_i, wstrb_i);
        if (wlast_i) addrs -= 1;
      end
      addrs_q     <= addrs_q + addrs;
      responses_q <= responses_q + responses;
    end
  end

  // what the C++ side has of before the reset is gone with it
  always_ff @(negedge rst_ni) mem_reset(pe_i);

endmodule
