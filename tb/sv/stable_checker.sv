// Ready/valid rule of all AXI channels: valid stays and the payload holds until the transfer.
module stable_checker #(
  /// bits of the payload
  parameter int unsigned Width = 1,
  /// channel in the message
  parameter string       Name = "channel"
) (
  /// clock
  input logic             clk_i,
  /// asynchronous reset, active low
  input logic             rst_ni,
  /// handshake and payload of the channel
  input logic             valid_i,
  input logic             ready_i,
  input logic [Width-1:0] payload_i
);

  logic             stalled_q;
  logic [Width-1:0] payload_q;
  logic             in_reset_q;
  initial in_reset_q = 1'b0;  // registers may hold anything at the first edge

  always_ff @(posedge clk_i) begin
    stalled_q  <= rst_ni && valid_i && !ready_i;
    in_reset_q <= !rst_ni;
    if (rst_ni && valid_i && !ready_i) payload_q <= payload_i;
    if (rst_ni && stalled_q) begin
      valid_held : assert (valid_i)
      else $error("%s: valid fell before ready (AXI A3.2.1)", Name);
      payload_held : assert (payload_i == payload_q)
      else $error("%s: payload changed while it waited for ready (AXI A3.2.1)", Name);
    end
    // second edge in reset: registers have their reset values by then
    if (!rst_ni && in_reset_q) begin
      reset_low : assert (!valid_i)
      else $error("%s: valid is high in reset (AXI A3.1.2)", Name);
    end
  end

endmodule
