// Tells when everything that was in an in-order stage at the start of a wait has left it, so that the invalidation of a
// region completes when no access under its old entry is left (nic.md 2). New work may enter meanwhile: it was checked
// against the new entry. The snapshot comes a few cycles after the start, when what had read the old entry has entered.
module mr_fence #(
    /// things that the stage can hold at most
    parameter int unsigned Max = 255,
    /// cycles from a region check to the entry into the stage, at most
    parameter int unsigned Delay = 8
) (
    /// clock
    input  logic clk_i,
    /// asynchronous reset, active low
    input  logic rst_ni,
    /// an invalidation waits
    input  logic wait_i,
    /// one thing enters
    input  logic enter_i,
    /// the oldest thing leaves
    input  logic leave_i,
    /// something of before is still in the stage
    output logic busy_o
);
  localparam int unsigned CntW = $clog2(Max + 1);
  localparam int unsigned DelayW = $clog2(Delay + 1);

  logic [CntW-1:0]   held_q, left_q;
  logic [DelayW-1:0] delay_q;
  logic              taken_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      held_q  <= '0;
      left_q  <= '0;
      delay_q <= '0;
      taken_q <= 1'b0;
    end else begin
      held_q <= held_q + CntW'(enter_i) - CntW'(leave_i);
      if (!wait_i) begin
        delay_q <= '0;
        taken_q <= 1'b0;
      end else if (delay_q != DelayW'(Delay)) begin
        delay_q <= delay_q + DelayW'(1);
      end else if (!taken_q) begin
        taken_q <= 1'b1;
        left_q  <= held_q + CntW'(enter_i) - CntW'(leave_i);
      end else if (leave_i && left_q != '0) begin
        left_q <= left_q - CntW'(1);
      end
    end
  end

  assign busy_o = wait_i && !(taken_q && left_q == '0);
endmodule
