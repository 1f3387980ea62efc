// Weighted round robin between service levels, round robin inside one (nic.md section 4). A level keeps the grant for
// its weight's number of takes as long as it has requests; a level without requests gives way and saves nothing.
module wrr_arb #(
  /// number of requests
  parameter int unsigned Num = 8,
  /// derived: width of an index
  localparam int unsigned IdxW = $clog2(Num)
) (
  /// clock
  input  logic                 clk_i,
  /// asynchronous reset, active low
  input  logic                 rst_ni,
  /// requests
  input  logic [Num-1:0]       req_i,
  /// service level of each request
  input  logic [Num-1:0][2:0]  sl_i,
  /// weight of each service level, 8 bits each, 0 counts as 1
  input  logic [63:0]          weight_i,
  /// the granted request is taken
  input  logic                 take_i,
  /// some request is granted
  output logic                 valid_o,
  /// index of the grant
  output logic [IdxW-1:0]      idx_o
);
  logic [2:0]           sl_q, sl;
  logic [7:0]           left_q;
  logic [7:0][IdxW-1:0] last_q;
  logic [7:0]           present;
  logic [7:0]           weight;
  logic                 stay;

  always_comb begin
    present = '0;
    sl      = sl_q;
    stay    = 1'b0;
    idx_o   = '0;
    if (req_i != '0) begin
      for (int unsigned i = 0; i < Num; i++) begin
        if (req_i[i]) present[sl_i[i]] = 1'b1;
      end
      stay = present[sl_q] && (left_q != 8'd0);
      // the next level with requests behind the current one, at last the current one itself
      if (!stay) begin
        for (int unsigned d = 8; d > 0; d--) begin
          if (present[3'(sl_q + 3'(d))]) sl = 3'(sl_q + 3'(d));
        end
      end
      for (int unsigned d = Num; d > 0; d--) begin
        if (req_i[IdxW'(last_q[sl] + IdxW'(d))] && sl_i[IdxW'(last_q[sl] + IdxW'(d))] == sl) begin
          idx_o = IdxW'(last_q[sl] + IdxW'(d));
        end
      end
    end
  end

  assign valid_o = (req_i != '0);
  assign weight  = weight_i[{sl, 3'b000}+:8];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      sl_q   <= '0;
      left_q <= '0;
      last_q <= '0;
    end else if (valid_o && take_i) begin
      last_q[sl] <= idx_o;
      sl_q       <= sl;
      if (stay) left_q <= left_q - 8'd1;
      else left_q <= (weight == 8'd0) ? 8'd0 : weight - 8'd1;
    end
  end
endmodule
