// resp_saved alone, structs as plain ports.
module resp_saved_bench
  import rnic_pkg::*, resp_pkg::*;
(
    input  logic        clk_i,
    input  logic        rst_ni,
    input  logic        set_i,
    input  logic        reset_i,
    input  logic [5:0]  ctx_qpi_i,
    input  logic        accept_i,
    input  logic [5:0]  accept_qpi_i,
    input  logic [23:0] accept_psn_i,
    input  logic        save_i,
    input  logic [5:0]  save_qpi_i,
    input  logic [4:0]  save_left_i,
    input  logic [63:0] save_value_i,
    input  logic [5:0]  read_qpi_i,
    input  logic [5:0]  ask_qpi_i,
    input  logic [23:0] ask_psn_i,
    input  logic [4:0]  ask_depth_i,
    input  logic [4:0]  left_i,
    output logic        found_o,
    output logic        ready_o,
    output logic [63:0] value_o
);
  ctx_wr_t   ctx;
  resp_ask_t ask;
  always_comb begin
    ctx          = '0;
    ctx.qp_set   = set_i;
    ctx.qp_reset = reset_i;
    ctx.qpi      = ctx_qpi_i;
    ask          = '{qpi: ask_qpi_i, psn: ask_psn_i, depth: ask_depth_i};
  end
  resp_saved i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .accept_i, .accept_qpi_i, .accept_psn_i, .save_i, .save_qpi_i, .save_left_i,
      .save_value_i, .read_qpi_i, .ask_i(ask), .left_i, .found_o, .ready_o, .value_o
  );
endmodule
