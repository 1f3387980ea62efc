// mr_check alone, its context as plain ports.
module mr_check_bench
  import rnic_pkg::*;
(
    input  logic        clk_i,
    input  logic        rst_ni,
    input  logic        set_i,
    input  logic [7:0]  set_mrn_i,
    input  logic        set_valid_i,
    input  logic [63:0] set_base_i,
    input  logic [64:0] set_length_i,
    input  logic [3:0]  set_rights_i,  // local write, remote write, remote read, remote atomic from bit 0
    input  logic [7:0]  set_ltag_i,
    input  logic [7:0]  set_rtag_i,
    input  logic        req_valid_i,
    input  logic [31:0] key_i,
    input  logic        is_remote_i,
    input  logic [2:0]  right_i,
    input  logic [63:0] va_i,
    input  logic [31:0] len_i,
    output logic        rsp_valid_o,
    output logic        key_ok_o,
    output logic        ok_o
);
  ctx_wr_t ctx;
  always_comb begin
    ctx               = '0;
    ctx.mr_set        = set_i;
    ctx.mrn           = set_mrn_i;
    ctx.mr.valid      = set_valid_i;
    ctx.mr.base       = set_base_i;
    ctx.mr.length     = set_length_i;
    ctx.mr.loc_write  = set_rights_i[0];
    ctx.mr.rem_write  = set_rights_i[1];
    ctx.mr.rem_read   = set_rights_i[2];
    ctx.mr.rem_atomic = set_rights_i[3];
    ctx.mr.ltag       = set_ltag_i;
    ctx.mr.rtag       = set_rtag_i;
  end
  mr_check i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .req_valid_i, .key_i, .is_remote_i, .right_i(right_e'(right_i)), .va_i, .len_i,
      .rsp_valid_o, .key_ok_o, .ok_o
  );
endmodule
