// Round-robin pick among many requests by word arithmetic (isolate the lowest set bit, encode it), which costs a few
// word operations in simulation where a loop over all requests would dominate the cycle.
module rr_pick #(
  /// number of requests, a power of two
  parameter int unsigned Num = 64,
  /// derived: width of an index
  localparam int unsigned IdxW = $clog2(Num)
) (
  /// clock
  input  logic            clk_i,
  /// asynchronous reset, active low
  input  logic            rst_ni,
  /// requests
  input  logic [Num-1:0]  req_i,
  /// the picked request is taken: priority moves behind it
  input  logic            take_i,
  /// some request is picked
  output logic            valid_o,
  /// index of the pick
  output logic [IdxW-1:0] idx_o
);
  // requests that still have their turn in this round: those above the last winner
  logic [Num-1:0] mask_q;
  logic [Num-1:0] cand, low;

  function automatic logic [IdxW-1:0] encode(input logic [Num-1:0] onehot);
    logic [IdxW-1:0] idx;
    logic [Num-1:0]  pat;
    for (int unsigned b = 0; b < IdxW; b++) begin
      for (int unsigned i = 0; i < Num; i++) pat[i] = i[b];
      idx[b] = |(onehot & pat);
    end
    return idx;
  endfunction

  always_comb begin
    cand  = req_i;
    low   = '0;
    idx_o = '0;
    if (req_i != '0) begin
      if ((req_i & mask_q) != '0) cand = req_i & mask_q;
      low   = cand & (~cand + Num'(1));
      idx_o = encode(low);
    end
  end

  assign valid_o = (req_i != '0);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) mask_q <= '0;
    else if (valid_o && take_i) mask_q <= ~(low | (low - Num'(1)));
  end
endmodule
