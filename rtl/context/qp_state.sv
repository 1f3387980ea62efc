// State of every QP as two bit vectors (nic.md sections 2 and 6): RTS and ERR; neither is RESET.
module qp_state
  import rnic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// broadcast of contexts: a QP that is set goes to RTS
    input  ctx_wr_t          ctx_i,
    /// modify: this QP goes to ERR if it is in RTS
    input  qp_err_evt_t      err_cmd_i,
    /// reset was accepted: this QP is in RESET from now on, whatever still drains
    input  qp_err_evt_t      reset_i,
    /// SQ doorbell beyond the ring
    input  qp_err_evt_t      err_db_i,
    /// completion
    input  qp_err_evt_t      err_comp_i,
    /// responder
    input  qp_err_evt_t      err_resp_i,
    /// bit n: QP index n is in RTS
    output logic [NumQp-1:0] qp_rts_o,
    /// bit n: QP index n is in ERR
    output logic [NumQp-1:0] qp_err_o
);

  logic [NumQp-1:0] rts_d, rts_q, err_d, err_q, fault;

  always_comb begin
    fault = '0;
    if (err_cmd_i.valid) fault[err_cmd_i.qpi] = 1'b1;
    if (err_db_i.valid) fault[err_db_i.qpi] = 1'b1;
    if (err_comp_i.valid) fault[err_comp_i.qpi] = 1'b1;
    if (err_resp_i.valid) fault[err_resp_i.qpi] = 1'b1;
    // a late error of a QP in RESET means nothing any more
    err_d = err_q | (fault & rts_q);
    rts_d = rts_q & ~fault;
    if (ctx_i.qp_set) rts_d[ctx_i.qpi] = 1'b1;
    if (reset_i.valid) begin
      rts_d[reset_i.qpi] = 1'b0;
      err_d[reset_i.qpi] = 1'b0;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      rts_q <= '0;
      err_q <= '0;
    end else begin
      rts_q <= rts_d;
      err_q <= err_d;
    end
  end

  assign qp_rts_o = rts_q;
  assign qp_err_o = err_q;

  logic unused;
  assign unused = ^ctx_i;

endmodule
