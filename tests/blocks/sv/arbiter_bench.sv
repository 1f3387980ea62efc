// Both arbiters of the requester side by side, with flat ports: weighted round robin over lanes, pick among QPs.
module arbiter_bench (
    input  logic        clk_i,
    input  logic        rst_ni,
    input  logic [ 7:0] wrr_req_i,
    input  logic [23:0] wrr_sl_i,
    input  logic [63:0] wrr_weight_i,
    input  logic        wrr_take_i,
    output logic        wrr_valid_o,
    output logic [ 2:0] wrr_idx_o,
    input  logic [63:0] pick_req_i,
    input  logic        pick_take_i,
    output logic        pick_valid_o,
    output logic [ 5:0] pick_idx_o
);
  wrr_arb #(
      .Num(8)
  ) i_wrr (
      .clk_i,
      .rst_ni,
      .req_i   (wrr_req_i),
      .sl_i    (wrr_sl_i),
      .weight_i(wrr_weight_i),
      .take_i  (wrr_take_i),
      .valid_o (wrr_valid_o),
      .idx_o   (wrr_idx_o)
  );

  rr_pick #(
      .Num(64)
  ) i_pick (
      .clk_i,
      .rst_ni,
      .req_i  (pick_req_i),
      .take_i (pick_take_i),
      .valid_o(pick_valid_o),
      .idx_o  (pick_idx_o)
  );
endmodule
