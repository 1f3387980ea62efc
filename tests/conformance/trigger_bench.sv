// A few registers, wires and a ripple of both, to watch with every kind of trigger.
module trigger_bench (
  /// clock
  input  logic       clk_i,
  /// asynchronous reset, active low
  input  logic       rst_ni,
  /// input of a register and of an adder
  input  logic [7:0] d_i,
  /// the registered input
  output logic [7:0] q_o,
  /// register of the register
  output logic [7:0] q2_o,
  /// d_i + q_o without a register
  output logic [7:0] sum_o,
  /// d_i at the last falling edge
  output logic [7:0] neg_o,
  /// cycles since reset
  output logic [7:0] count_o
);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      q_o     <= '0;
      q2_o    <= '0;
      count_o <= '0;
    end else begin
      q_o     <= d_i;
      q2_o    <= q_o;
      count_o <= count_o + 8'd1;
    end
  end

  always_ff @(negedge clk_i or negedge rst_ni) begin
    if (!rst_ni) neg_o <= '0;
    else neg_o <= d_i;
  end

  assign sum_o = d_i + q_o;

endmodule
