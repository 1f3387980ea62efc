// Responses on their way to the requester, in order behind the write responses of READ and atomic results (nic.md 5, 6): the
// data is in memory before its WQE can complete. A failed write becomes the error of its WQE; later data of that QP is
// nobody's any more.
module rsp_order
  import rnic_pkg::*;
#(
    /// responses that wait for write responses
    parameter int unsigned Depth = 128
) (
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast
    input  ctx_wr_t     ctx_i,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// a response of that QP still waits
    output logic        drain_busy_o,
    /// the invalidation of a region waits
    input  logic        mr_drain_i,
    /// writes that the old entry allowed are not yet answered
    output logic        mr_drain_busy_o,
    /// response
    input  logic        in_valid_i,
    /// room for four of them
    output logic        room_o,
    /// response
    input  rsp_evt_t    in_i,
    /// QP that is asked for
    input  qp_t         look_qpi_i,
    /// responses with data of that QP wait
    output logic        some_o,
    /// write bursts of its bytes, 0 to 2
    input  logic [1:0]  in_bursts_i,
    /// write response of one burst, in order
    input  logic        b_valid_i,
    /// it reports an error
    input  logic        b_err_i,
    /// response for the requester
    output logic        rsp_valid_o,
    /// it is taken
    input  logic        rsp_ready_i,
    /// response for the requester
    output rsp_evt_t    rsp_o,
    /// the bytes of a response could not be written
    output logic        fail_valid_o,
    /// its QP
    output qp_t         fail_qpi_o,
    /// counters
    output cnt_inc_t    cnt_o
);
  rsp_evt_t         head;
  logic             head_valid, failed, drop;
  qp_t              unused_qpi;
  logic             unused_busy;
  logic [NumQp-1:0] bad_q;

  wr_order #(.T(rsp_evt_t), .Depth(Depth)) i_order (
      .clk_i, .rst_ni, .drain_i, .drain_busy_o, .mr_drain_i, .mr_drain_busy_o,
      .in_valid_i, .room_o, .in_i, .in_qpi_i(in_i.qpi), .in_bursts_i, .b_valid_i, .b_err_i,
      .out_valid_o(head_valid), .out_ready_i(drop || rsp_ready_i), .out_o(head), .out_qpi_o(unused_qpi),
      .out_failed_o(failed)
  );

  qp_count #(.Max(Depth)) i_data (
      .clk_i, .rst_ni, .inc_i(in_valid_i && in_i.kind == RspData), .inc_qpi_i(in_i.qpi),
      .dec_i(head_valid && head.kind == RspData && (drop || rsp_ready_i)), .dec_qpi_i(head.qpi),
      .look_qpi_i, .some_o, .drain_i('0), .busy_o(unused_busy)
  );

  assign drop         = head.kind == RspData && bad_q[head.qpi];
  assign rsp_valid_o  = head_valid && !drop;
  assign fail_valid_o = rsp_valid_o && rsp_ready_i && failed;
  assign fail_qpi_o   = head.qpi;
  always_comb begin
    rsp_o = head;
    if (failed) rsp_o.fail = CqeScatterDma;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      bad_q <= '0;
      cnt_o <= '0;
    end else begin
      if (fail_valid_o) bad_q[head.qpi] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) bad_q[ctx_i.qpi] <= 1'b0;
      cnt_o               <= '0;
      cnt_o[CntBusResult] <= b_valid_i && b_err_i;
    end
  end

  logic unused_bits;
  assign unused_bits = ^ctx_i;
endmodule
