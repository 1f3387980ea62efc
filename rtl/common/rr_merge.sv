// Two streams into one, in turn where both have something. The ready of a stream does not depend on its own valid.
module rr_merge #(
    /// payload type
    parameter type T = logic
) (
    /// clock
    input  logic clk_i,
    /// asynchronous reset, active low
    input  logic rst_ni,
    /// first stream: payload offered
    input  logic a_valid_i,
    /// it is taken
    output logic a_ready_o,
    /// payload
    input  T     a_i,
    /// second stream: payload offered
    input  logic b_valid_i,
    /// it is taken
    output logic b_ready_o,
    /// payload
    input  T     b_i,
    /// payload offered
    output logic out_valid_o,
    /// it is taken
    input  logic out_ready_i,
    /// payload
    output T     out_o
);
  logic b_turn_q, take_b;

  assign take_b      = b_valid_i && (b_turn_q || !a_valid_i);
  assign a_ready_o   = out_ready_i && !(b_valid_i && b_turn_q);
  assign b_ready_o   = out_ready_i && !(a_valid_i && !b_turn_q);
  assign out_valid_o = a_valid_i || b_valid_i;
  assign out_o       = take_b ? b_i : a_i;

  // the turn goes to the stream that was not served last
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) b_turn_q <= 1'b0;
    else if (out_valid_o && out_ready_i) b_turn_q <= !take_b;
  end
endmodule
