// AXI4-Stream rules of the link (nic.md 1): stable while waiting; tkeep contiguous from lane 0, full before tlast.
module axis_checker #(
  /// port in the message
  parameter string Name = "axis"
) (
  /// clock
  input logic         clk_i,
  /// asynchronous reset, active low
  input logic         rst_ni,
  /// AXI4-Stream
  input logic [511:0] tdata_i,
  input logic [63:0]  tkeep_i,
  input logic         tlast_i,
  input logic         tvalid_i,
  input logic         tready_i
);

  stable_checker #(
    .Width(577),
    .Name (Name)
  ) u_stable (
    .clk_i,
    .rst_ni,
    .valid_i  (tvalid_i),
    .ready_i  (tready_i),
    .payload_i({tdata_i, tkeep_i, tlast_i})
  );

  always_ff @(posedge clk_i) begin
    if (rst_ni && tvalid_i) begin
      keep_contiguous : assert ((tkeep_i & (tkeep_i + 64'd1)) == 64'd0 && tkeep_i != 64'd0)
      else $error("%s: tkeep %h is not contiguous from lane 0", Name, tkeep_i);
      keep_full : assert (tlast_i || &tkeep_i)
      else $error("%s: tkeep %h is not full before tlast", Name, tkeep_i);
    end
  end

endmodule
