// wqe_decode with flat ports.
module wqe_decode_bench
  import rnic_pkg::*;
#(
    parameter bit AmoPlainLittle = 1'b0,
    parameter bit AmoShiftedLen = 1'b0
) (
    input  logic [511:0] data_i,
    input  logic [127:0] ext_i,
    input  logic         version2_i,
    input  logic [ 17:0] idx_i,
    input  logic         bus_err_i,
    output logic [ 17:0] idx_o,
    output logic [  7:0] opcode_o,
    output logic         ce_o,
    output logic         se_o,
    output logic         with_imm_o,
    output logic         fence_o,
    output logic [ 31:0] imm_o,
    output logic [ 31:0] len_o,
    output logic [ 63:0] raddr_o,
    output logic [ 31:0] rkey_o,
    output logic [ 63:0] laddr_o,
    output logic [ 31:0] lkey_o,
    output logic [  7:0] err_o,
    output logic [ 63:0] swap_add_o,
    output logic [ 63:0] compare_o,
    output logic [ 63:0] swap_mask_o,
    output logic [ 63:0] compare_mask_o,
    output logic         plain_little_o,
    output logic         shifted_len_o
);
  wqe_t wqe;

  wqe_decode #(
      .AmoPlainLittle(AmoPlainLittle),
      .AmoShiftedLen(AmoShiftedLen)
  ) i_dut (
      .data_i,
      .ext_i,
      .version2_i,
      .idx_i,
      .bus_err_i,
      .wqe_o(wqe)
  );

  assign idx_o      = wqe.idx;
  assign opcode_o   = wqe.opcode;
  assign ce_o       = wqe.ce;
  assign se_o       = wqe.se;
  assign with_imm_o = wqe.with_imm;
  assign fence_o    = wqe.fence;
  assign imm_o      = wqe.imm;
  assign len_o      = wqe.len;
  assign raddr_o    = wqe.raddr;
  assign rkey_o     = wqe.rkey;
  assign laddr_o    = wqe.laddr;
  assign lkey_o     = wqe.lkey;
  assign err_o      = wqe.err;

  // what the bench was built with, for its test
  assign plain_little_o = AmoPlainLittle;
  assign shifted_len_o  = AmoShiftedLen;
  assign swap_add_o     = wqe.amo.swap_add;
  assign compare_o      = wqe.amo.compare;
  assign swap_mask_o    = wqe.amo.swap_mask;
  assign compare_mask_o = wqe.amo.compare_mask;
endmodule
