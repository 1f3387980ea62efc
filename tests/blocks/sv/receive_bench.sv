// Slots of receive queues with flat ports, beside another client of the same AXI ID.
module receive_bench
  import rnic_pkg::*;
  import resp_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // context
    input  logic         set_valid_i,
    input  logic         reset_valid_i,
    input  logic [  5:0] ctx_qpi_i,
    input  logic [ 63:0] rq_base_i,
    input  logic [  4:0] rq_log_i,
    input  logic [ 16:0] rq_start_i,
    input  logic [ 63:0] qp_rts_i,
    input  logic         drain_valid_i,
    input  logic [  5:0] drain_qpi_i,
    output logic         drain_busy_o,
    // indices
    input  logic         db_valid_i,
    input  logic [  5:0] db_qpi_i,
    input  logic [ 16:0] db_idx_i,
    input  logic         retire_valid_i,
    input  logic [  5:0] retire_qpi_i,
    input  logic [ 16:0] retire_idx_i,
    input  logic         take_valid_i,
    input  logic [  5:0] take_qpi_i,
    input  logic [ 16:0] take_idx_i,
    // what the responder sees
    output logic [ 63:0] marked_o,
    output logic [ 63:0] ready_o,
    output logic [ 63:0] loaded_o,
    input  logic         look_i,
    input  logic [  5:0] look_qpi_i,
    output logic [ 16:0] next_idx_o,
    output logic         next_err_o,
    output logic [ 31:0] next_len_o,
    output logic [ 31:0] next_lkey_o,
    output logic [ 63:0] next_addr_o,
    // the other client
    input  logic         other_valid_i,
    output logic         other_ready_o,
    input  logic [ 63:0] other_addr_i,
    input  logic [  7:0] other_len_i,
    output logic         other_beat_o,
    output logic         own_beat_o,
    // memory port
    output logic         req_valid_o,
    input  logic         req_ready_i,
    output logic [ 63:0] req_addr_o,
    output logic [  7:0] req_len_o,
    input  logic         beat_valid_i,
    input  logic [511:0] beat_data_i,
    input  logic         beat_err_i,
    input  logic         beat_last_i,
    output logic         cnt_bus_o
);
  ctx_wr_t     ctx;
  qp_err_evt_t drain;
  rq_move_t    db, retire, take;
  rq_wqe_t     next;
  rd_req_t     other, own, req;
  rd_beat_t    beat;
  logic        own_valid, own_ready;
  cnt_inc_t    cnt;

  always_comb begin
    ctx             = '0;
    ctx.qp_set      = set_valid_i;
    ctx.qp_reset    = reset_valid_i;
    ctx.qpi         = ctx_qpi_i;
    ctx.qp.rq_base  = rq_base_i;
    ctx.qp.rq_log   = rq_log_i;
    ctx.qp.rq_start = {1'b0, rq_start_i};
  end
  assign drain  = '{valid: drain_valid_i, qpi: drain_qpi_i};
  assign db     = '{valid: db_valid_i, qpi: db_qpi_i, idx: db_idx_i};
  assign retire = '{valid: retire_valid_i, qpi: retire_qpi_i, idx: retire_idx_i};
  assign take   = '{valid: take_valid_i, qpi: take_qpi_i, idx: take_idx_i};
  assign other  = '{addr: other_addr_i, len: other_len_i, size: SizeBeat};
  assign beat   = '{data: beat_data_i, err: beat_err_i, last: beat_last_i};

  rq_slots i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .qp_rts_i, .drain_i(drain), .drain_busy_o, .db_i(db), .retire_i(retire),
      .take_i(take), .marked_o, .ready_o, .loaded_o, .look_i, .look_qpi_i, .next_o(next),
      .req_valid_o(own_valid), .req_ready_i(own_ready), .req_o(own), .beat_valid_i(own_beat_o), .beat_i(beat),
      .cnt_o(cnt)
  );
  rd_share i_share (
      .clk_i, .rst_ni, .a_req_valid_i(other_valid_i), .a_req_ready_o(other_ready_o), .a_req_i(other),
      .a_beat_valid_o(other_beat_o), .b_req_valid_i(own_valid), .b_req_ready_o(own_ready), .b_req_i(own),
      .b_beat_valid_o(own_beat_o), .req_valid_o, .req_ready_i, .req_o(req), .beat_valid_i, .beat_last_i
  );
  assign req_addr_o  = req.addr;
  assign req_len_o   = req.len;
  assign next_idx_o  = next.idx;
  assign next_err_o  = next.err;
  assign next_len_o  = next.len;
  assign next_lkey_o = next.lkey;
  assign next_addr_o = next.addr;
  assign cnt_bus_o   = cnt[CntBusFetch];
endmodule
