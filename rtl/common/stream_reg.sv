// Skid buffer: two entries, registered ready and valid, full throughput. Cuts every combinational path of a
// ready/valid edge.
module stream_reg #(
  /// payload type
  parameter type T = logic
) (
  /// clock
  input  logic clk_i,
  /// asynchronous reset, active low
  input  logic rst_ni,
  /// payload offered
  input  logic in_valid_i,
  /// room for a payload (state only)
  output logic in_ready_o,
  /// payload
  input  T     in_data_i,
  /// payload available (state only)
  output logic out_valid_o,
  /// payload is taken
  input  logic out_ready_i,
  /// payload, stable while it waits
  output T     out_data_o
);
  T     out_q, skid_q;
  logic out_valid_q, skid_valid_q;

  assign in_ready_o  = !skid_valid_q;
  assign out_valid_o = out_valid_q;
  assign out_data_o  = out_q;

  // payload registers need no reset, the valid bits guard them
  always_ff @(posedge clk_i) begin
    if (!out_valid_q || out_ready_i) begin
      if (skid_valid_q) out_q <= skid_q;
      else if (in_valid_i) out_q <= in_data_i;
    end else if (in_valid_i && !skid_valid_q) begin
      skid_q <= in_data_i;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      out_valid_q  <= 1'b0;
      skid_valid_q <= 1'b0;
    end else if (!out_valid_q || out_ready_i) begin
      out_valid_q  <= skid_valid_q || in_valid_i;
      skid_valid_q <= 1'b0;
    end else if (in_valid_i) begin
      skid_valid_q <= 1'b1;
    end
  end
endmodule
