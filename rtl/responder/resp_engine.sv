// Everything that the responder still has to answer: table of READs and atomics, pending ACKs and NAKs, the turns of the QPs,
// and the way of answers without payload to the framer.
module resp_engine
  import rnic_pkg::*, resp_pkg::*, atomic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// context broadcast
    input  ctx_wr_t          ctx_i,
    /// state of the QPs
    input  logic [NumQp-1:0] qp_rts_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// something of that QP is still held
    output logic             drain_busy_o,
    /// QP whose table entries are counted
    input  qp_t              look_qpi_i,
    /// its entries
    output logic [4:0]       used_o,
    /// READ or atomic for the table
    input  logic             entry_valid_i,
    /// its QP
    input  qp_t              entry_qpi_i,
    /// READ or atomic
    input  resp_entry_t      entry_i,
    /// something is due: an answer, or the next table entry may be executed
    input  logic             due_valid_i,
    /// taken
    output logic             due_ready_o,
    /// what is due
    input  resp_due_t        due_i,
    /// QPs that gave a fatal NAK since they were programmed
    output logic [NumQp-1:0] dead_o,
    /// READ response packet for gather
    output logic             job_valid_o,
    /// the packet is taken
    input  logic             job_ready_i,
    /// READ response packet
    output tx_job_t          job_o,
    /// the source of a READ response failed
    input  logic             rerr_valid_i,
    /// its QP
    input  qp_t              rerr_qpi_i,
    /// its PSN
    input  psn_t             rerr_psn_i,
    /// its MSN
    input  logic [23:0]      rerr_msn_i,
    /// a READ response left gather: to the framer, or dropped
    input  logic             rsp_out_valid_i,
    /// its QP
    input  qp_t              rsp_out_qpi_i,
    /// the last response of a READ is with the framer
    input  logic             read_out_valid_i,
    /// its QP
    input  qp_t              read_out_qpi_i,
    /// atomic for its unit
    output logic             op_valid_o,
    /// room for it
    input  logic             op_ready_i,
    /// atomic
    output amo_op_t          op_o,
    /// what became of an atomic
    input  logic             amo_valid_i,
    /// taken
    output logic             amo_ready_o,
    /// what became of it
    input  amo_done_t        amo_i,
    /// answer for the framer
    output logic             ack_valid_o,
    /// the answer is taken
    input  logic             ack_ready_i,
    /// answer for the framer
    output ack_job_t         ack_o,
    /// the QP has to go to ERR
    output qp_err_evt_t      err_o,
    /// asynchronous event for it
    output async_evt_t       async_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  resp_entry_t  entry;
  resp_answer_t ack, nak;
  resp_due_t    rerr, amo_due, turn_due, in;
  logic         in_valid, amo_due_ready, turn_due_valid, turn_due_ready;
  logic         read, has, flush, mid, ack_some, nak_some, step, step_last, drop, clear_ack, clear_nak;
  qp_t          read_qpi, turn_qpi;
  logic [4:0]   start_place, place;
  logic [63:0]  addr;
  logic [31:0]  left;
  psn_t         psn;
  logic [12:0]  step_len;
  logic         in_gather, in_unit, in_out, answer_valid, answer_room, amo_ack, out_valid_in, ack_taken;
  ack_job_t     answer, amo_answer;
  logic         job_valid, job_room, op_valid, amo_taken;
  tx_job_t      job;
  logic         busy_table, busy_pend, busy_turn, busy_gather, busy_unit, busy_out;
  logic         out_ready;
  logic [1:0]   unused_job_cnt, unused_out_cnt;

  // ------------------------------------------------------------------ what is held
  resp_table i_table (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_table), .look_qpi_i, .used_o,
      .entry_valid_i, .entry_qpi_i, .entry_i, .start_valid_i(in_valid && in.start), .start_qpi_i(in.qpi),
      .start_place_o(start_place), .read_i(read), .read_qpi_i(read_qpi), .turn_qpi_i(turn_qpi), .has_o(has),
      .flush_o(flush), .place_o(place), .mid_o(mid), .entry_o(entry), .addr_o(addr), .left_o(left), .psn_o(psn),
      .step_i(step), .step_last_i(step_last), .step_len_i(step_len), .drop_i(drop),
      .flush_valid_i(in_valid && in.flush), .flush_qpi_i(in.qpi),
      .read_out_i(read_out_valid_i), .read_out_qpi_i, .amo_out_i(ack_taken && ack_o.atomic), .amo_out_qpi_i(ack_o.qpi)
  );
  resp_pend i_pend (
      .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .drain_i, .drain_busy_o(busy_pend),
      .rerr_valid_i, .rerr_i(rerr), .amo_valid_i(amo_valid_i && amo_i.err), .amo_ready_o(amo_due_ready),
      .amo_i(amo_due), .turn_valid_i(turn_due_valid), .turn_ready_o(turn_due_ready), .turn_i(turn_due),
      .due_valid_i, .due_ready_o, .due_i, .in_valid_o(in_valid), .in_o(in), .place_i(start_place),
      .read_i(read), .read_qpi_i(read_qpi), .turn_qpi_i(turn_qpi), .ack_o(ack_some), .ack_data_o(ack),
      .nak_o(nak_some), .nak_data_o(nak), .clear_ack_i(clear_ack), .clear_nak_i(clear_nak),
      .dead_o, .err_o, .async_o
  );
  assign rerr = '{
      qpi: rerr_qpi_i, start: 1'b0, ack: 1'b1, fatal: 1'b1, flush: 1'b1, psn: rerr_psn_i, syndrome: SynNakOp,
      msn: rerr_msn_i
  };
  // an atomic that failed was not executed
  assign amo_due = '{
      qpi: amo_i.qpi, start: 1'b0, ack: 1'b1, fatal: 1'b1, flush: 1'b1, psn: amo_i.psn, syndrome: SynNakOp,
      msn: amo_i.msn - 24'd1
  };

  // ------------------------------------------------------------------ turns
  resp_turn i_turn (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_turn), .drain_has_i(busy_table),
      .in_valid_i(in_valid), .in_qpi_i(in.qpi),
      .gather_out_i(rsp_out_valid_i), .gather_out_qpi_i(rsp_out_qpi_i), .unit_out_i(amo_taken),
      .unit_out_qpi_i(amo_i.qpi), .answer_out_i(ack_taken), .answer_out_qpi_i(ack_o.qpi),
      .read_o(read), .read_qpi_o(read_qpi), .turn_qpi_o(turn_qpi), .has_i(has), .flush_i(flush), .place_i(place),
      .mid_i(mid), .entry_i(entry), .addr_i(addr), .left_i(left), .psn_i(psn), .ack_i(ack_some), .ack_data_i(ack),
      .nak_i(nak_some), .nak_data_i(nak), .in_gather_i(in_gather), .in_answer_i(in_unit || in_out),
      .step_o(step), .step_last_o(step_last), .step_len_o(step_len), .drop_o(drop), .clear_ack_o(clear_ack),
      .clear_nak_o(clear_nak), .answer_room_i(answer_room), .answer_valid_o(answer_valid), .answer_o(answer),
      .due_valid_o(turn_due_valid), .due_ready_i(turn_due_ready), .due_o(turn_due),
      .job_valid_o(job_valid), .job_room_i(job_room), .job_o(job), .op_valid_o(op_valid), .op_room_i(op_ready_i), .op_o
  );
  assign op_valid_o = op_valid;

  // one turn at a time, so a packet that was allowed finds the room that was seen
  fifo #(.T(tx_job_t), .Depth(2)) i_jobs (
      .clk_i, .rst_ni, .in_valid_i(job_valid), .in_ready_o(job_room), .in_data_i(job),
      .out_valid_o(job_valid_o), .out_ready_i(job_ready_i), .out_data_o(job_o), .count_o(unused_job_cnt)
  );

  // ------------------------------------------------------------------ answers without payload; results of atomics first
  assign amo_ack     = amo_valid_i && !amo_i.err && !amo_i.skipped;
  assign amo_ready_o = amo_i.err ? amo_due_ready : (amo_i.skipped || out_ready);
  assign amo_taken   = amo_valid_i && amo_ready_o;
  assign amo_answer  = '{
      qpi: amo_i.qpi, psn: amo_i.psn, syndrome: SynAck, msn: amo_i.msn, atomic: 1'b1, value: amo_i.value
  };
  assign answer_room  = out_ready && !amo_ack;
  assign out_valid_in = amo_ack || answer_valid;
  fifo #(.T(ack_job_t), .Depth(2)) i_out (
      .clk_i, .rst_ni, .in_valid_i(out_valid_in), .in_ready_o(out_ready), .in_data_i(amo_ack ? amo_answer : answer),
      .out_valid_o(ack_valid_o), .out_ready_i(ack_ready_i), .out_data_o(ack_o), .count_o(unused_out_cnt)
  );
  assign ack_taken = ack_valid_o && ack_ready_i;

  // ------------------------------------------------------------------ what is on its way
  qp_count #(.Max(255)) i_in_gather (
      .clk_i, .rst_ni, .inc_i(job_valid), .inc_qpi_i(turn_qpi), .dec_i(rsp_out_valid_i), .dec_qpi_i(rsp_out_qpi_i),
      .look_qpi_i(turn_qpi), .some_o(in_gather), .drain_i, .busy_o(busy_gather)
  );
  qp_count #(.Max(7)) i_in_unit (
      .clk_i, .rst_ni, .inc_i(op_valid), .inc_qpi_i(turn_qpi), .dec_i(amo_taken), .dec_qpi_i(amo_i.qpi),
      .look_qpi_i(turn_qpi), .some_o(in_unit), .drain_i, .busy_o(busy_unit)
  );
  qp_count #(.Max(3)) i_in_out (
      .clk_i, .rst_ni, .inc_i(out_valid_in && out_ready), .inc_qpi_i(amo_ack ? amo_i.qpi : turn_qpi),
      .dec_i(ack_taken), .dec_qpi_i(ack_o.qpi), .look_qpi_i(turn_qpi), .some_o(in_out), .drain_i, .busy_o(busy_out)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) drain_busy_o <= 1'b0;
    else drain_busy_o <= busy_table || busy_pend || busy_turn || busy_gather || busy_unit || busy_out;
  end

  logic unused_bits;
  assign unused_bits = ^in;

  always_comb begin
    cnt_o = '0;
    if (ack_taken) begin
      cnt_o[CntNakSeqTx] = ack_o.syndrome == SynNakSeq;
      cnt_o[CntNakInvTx] = ack_o.syndrome == SynNakInv;
      cnt_o[CntNakAccTx] = ack_o.syndrome == SynNakAcc;
      cnt_o[CntNakOpTx]  = ack_o.syndrome == SynNakOp;
    end
  end
endmodule
