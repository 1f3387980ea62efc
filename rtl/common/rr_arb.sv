// Round-robin arbiter: grants one of the requests; the input after the last one that was taken has priority.
// The grant follows the requests combinationally and stays while nothing is taken unless an earlier input rises;
// users that need a stable grant put a queue behind it.
module rr_arb #(
  /// number of requests, at least 2
  parameter int unsigned Num = 2,
  /// width of the index
  localparam int unsigned IdxW = $clog2(Num)
) (
  /// clock
  input  logic            clk_i,
  /// asynchronous reset, active low
  input  logic            rst_ni,
  /// requests
  input  logic [Num-1:0]  req_i,
  /// the granted request is taken: priority moves behind it
  input  logic            take_i,
  /// some request is granted
  output logic            valid_o,
  /// one-hot grant
  output logic [Num-1:0]  gnt_o,
  /// index of the grant
  output logic [IdxW-1:0] idx_o
);
  logic [IdxW-1:0] last_q;
  logic [Num-1:0]  above, cand;

  // requests behind the last winner go first, then all others
  always_comb begin
    above = '0;
    cand  = '0;
    gnt_o = '0;
    idx_o = '0;
    if (req_i != '0) begin
      for (int unsigned i = 0; i < Num; i++) above[i] = req_i[i] && (IdxW'(i) > last_q);
      cand = (above != '0) ? above : req_i;
      for (int unsigned i = Num; i > 0; i--) begin
        if (cand[i-1]) begin
          gnt_o      = '0;
          gnt_o[i-1] = 1'b1;
          idx_o      = IdxW'(i - 1);
        end
      end
    end
  end

  assign valid_o = (req_i != '0);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) last_q <= '0;
    else if (valid_o && take_i) last_q <= idx_o;
  end
endmodule
