// Two clients behind one AXI ID: bursts of the first pass straight, those of the second where the first offers none. Data
// comes back in the order of the bursts (nic.md 1).
module rd_share
  import rnic_pkg::*;
#(
    /// bursts of both clients that can be in flight
    parameter int unsigned Depth = 80
) (
    /// clock
    input  logic     clk_i,
    /// asynchronous reset, active low
    input  logic     rst_ni,
    /// burst of the first client
    input  logic     a_req_valid_i,
    /// the burst is taken
    output logic     a_req_ready_o,
    /// burst of the first client
    input  rd_req_t  a_req_i,
    /// data for the first client
    output logic     a_beat_valid_o,
    /// burst of the second client
    input  logic     b_req_valid_i,
    /// the burst is taken
    output logic     b_req_ready_o,
    /// burst of the second client
    input  rd_req_t  b_req_i,
    /// data for the second client
    output logic     b_beat_valid_o,
    /// burst for the port
    output logic     req_valid_o,
    /// the burst is taken
    input  logic     req_ready_i,
    /// burst for the port
    output rd_req_t  req_o,
    /// data from the port, always taken
    input  logic     beat_valid_i,
    /// its burst ends
    input  logic     beat_last_i
);
  logic hold_q, second, whose, some, unused_ready;
  logic [$clog2(Depth+1)-1:0] unused_count;

  // a burst that was offered stays on offer until it is taken
  assign second        = hold_q || !a_req_valid_i;
  assign req_valid_o   = second ? b_req_valid_i : a_req_valid_i;
  assign req_o         = second ? b_req_i : a_req_i;
  assign a_req_ready_o = req_ready_i && !second;
  assign b_req_ready_o = req_ready_i && second;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) hold_q <= 1'b0;
    else hold_q <= second && b_req_valid_i && !req_ready_i;
  end

  // the clients limit what they have in flight, so it never fills
  fifo #(.T(logic), .Depth(Depth), .Fits(1'b1)) i_order (
      .clk_i, .rst_ni, .in_valid_i(req_valid_o && req_ready_i), .in_ready_o(unused_ready), .in_data_i(second),
      .out_valid_o(some), .out_ready_i(beat_valid_i && beat_last_i), .out_data_o(whose), .count_o(unused_count)
  );
  assign a_beat_valid_o = beat_valid_i && !whose;
  assign b_beat_valid_o = beat_valid_i && whose;

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      assert (!beat_valid_i || some)
      else $error("rd_share: read data without a request");
    end
  end
  `endif  // SYNTHESIS

  logic unused_some;
  assign unused_some = some;
endmodule
