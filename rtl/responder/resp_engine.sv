// Everything that the responder still has to answer: table of READs and atomics, pending ACKs and NAKs, the turns of the QPs,
// and the way of answers without payload to the framer.
module resp_engine
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*, atomic_pkg::*;
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
    /// packet whose place or saved result is asked for; amo_look_qpi_i was its QP in the cycle before
    input  resp_ask_t        ask_i,
    /// what is known of it
    output resp_seen_t       seen_o,
    /// its saved result, one cycle later
    output logic [63:0]      saved_o,
    /// QP whose atomics are asked for
    input  qp_t              amo_look_qpi_i,
    /// it has an atomic that is not executed yet
    output logic             amo_look_o,
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
    /// it answers a duplicate
    input  logic             read_out_dup_i,
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
  typedef struct packed {
    logic     dup;
    ack_job_t job;
  } out_t;

  resp_entry_t  entry;
  resp_answer_t ack, nak;
  resp_due_t    rerr, exec_due, turn_due, in;
  logic         in_valid, exec_due_valid, exec_due_ready, turn_due_valid, turn_due_ready;
  logic         read, has, flush, mid, ack_some, nak_some, step, step_last, drop, clear_ack, clear_nak;
  qp_t          read_qpi, turn_qpi;
  place_t       start_place, place;
  logic [4:0]   left_amo, done_left;
  logic [63:0]  addr;
  logic [31:0]  left;
  psn_t         psn;
  logic [12:0]  step_len;
  logic         in_gather, in_out, executed, answer_valid, answer_room, ack_taken;
  logic         accept_amo, answer_dup;
  out_t         out, out_in;
  logic         exec_read, exec_done;
  qp_t          exec_qpi, exec_done_qpi;
  index_t       read_index;
  resp_entry_t  exec_entry;
  logic [63:0]  value, done_value;
  logic [NumQp-1:0] gone;
  ack_job_t     answer;
  logic         job_valid, job_room;
  tx_job_t      job;
  logic         busy_table, busy_pend, busy_turn, busy_gather, busy_exec, busy_out;
  logic [1:0]   unused_job_cnt, unused_out_cnt;

  // ------------------------------------------------------------------ what is held
  resp_table i_table (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_table), .look_qpi_i(ask_i.qpi), .used_o(seen_o.used),
      .held_o(seen_o.held), .entry_valid_i, .entry_qpi_i, .entry_i,
      .start_valid_i(in_valid && in.start), .start_qpi_i(in.qpi),
      .start_place_o(start_place), .read_i(read), .read_qpi_i(read_qpi), .read_index_o(read_index),
      .turn_qpi_i(turn_qpi), .has_o(has), .flush_o(flush), .place_o(place), .mid_o(mid), .entry_o(entry), .addr_o(addr),
      .left_o(left), .psn_o(psn),
      .step_i(step), .step_last_i(step_last), .step_len_i(step_len), .drop_i(drop),
      .flush_valid_i(in_valid && in.flush), .flush_qpi_i(in.qpi),
      .stop_valid_i(in_valid && in.stop), .stop_place_i(in.place), .gone_o(gone),
      .exec_read_i(exec_read), .exec_qpi_i(exec_qpi), .exec_entry_o(exec_entry),
      .read_out_i(read_out_valid_i), .read_out_qpi_i, .read_out_dup_i,
      .amo_out_i(ack_taken && ack_o.atomic), .amo_out_qpi_i(ack_o.qpi), .amo_out_dup_i(out.dup)
  );
  resp_pend i_pend (
      .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .drain_i, .drain_busy_o(busy_pend),
      .rerr_valid_i, .rerr_i(rerr), .amo_valid_i(exec_due_valid), .amo_ready_o(exec_due_ready),
      .amo_i(exec_due), .turn_valid_i(turn_due_valid), .turn_ready_o(turn_due_ready), .turn_i(turn_due),
      .due_valid_i, .due_ready_o, .due_i, .in_valid_o(in_valid), .in_o(in), .place_i(start_place),
      .read_i(read), .read_qpi_i(read_qpi), .turn_qpi_i(turn_qpi), .ack_o(ack_some), .ack_data_o(ack),
      .nak_o(nak_some), .nak_data_o(nak), .clear_ack_i(clear_ack), .clear_nak_i(clear_nak),
      .dead_o, .err_o, .async_o
  );
  assign rerr = '{
      qpi: rerr_qpi_i, start: 1'b0, atomic: 1'b0, ack: 1'b1, fatal: 1'b1, flush: 1'b1, stop: 1'b0, place: '0,
      psn: rerr_psn_i, syndrome: SynNakOp, msn: rerr_msn_i
  };

  // ------------------------------------------------------------------ execution of atomics, results for their duplicates
  assign accept_amo = entry_valid_i && is_atomic(entry_i.bth) && !entry_i.dup;
  resp_exec i_exec (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_exec), .accept_i(accept_amo),
      .accept_qpi_i(entry_qpi_i), .look_qpi_i(amo_look_qpi_i), .look_o(amo_look_o),
      .start_valid_i(in_valid && in.start && in.atomic), .start_qpi_i(in.qpi), .start_place_i(start_place),
      .gone_i(gone), .read_o(exec_read), .read_qpi_o(exec_qpi), .entry_i(exec_entry),
      .op_valid_o, .op_room_i(op_ready_i), .op_o, .amo_valid_i, .amo_ready_o, .amo_i,
      .due_valid_o(exec_due_valid), .due_ready_i(exec_due_ready), .due_o(exec_due),
      .done_valid_o(exec_done), .done_qpi_o(exec_done_qpi), .done_value_o(done_value),
      .done_left_o(done_left), .left_qpi_i(ask_i.qpi), .left_o(left_amo),
      .turn_qpi_i(turn_qpi), .executed_o(executed), .answered_i(answer_valid && answer.atomic && !answer_dup),
      .value_read_i(read), .value_qpi_i(read_qpi), .value_index_i(read_index), .value_o(value)
  );
  resp_saved i_saved (
      .clk_i, .rst_ni, .ctx_i, .accept_i(accept_amo), .accept_qpi_i(entry_qpi_i), .accept_psn_i(entry_i.psn),
      .save_i(exec_done), .save_qpi_i(exec_done_qpi), .save_left_i(done_left), .save_value_i(done_value),
      .read_qpi_i(amo_look_qpi_i), .ask_i, .left_i(left_amo), .found_o(seen_o.found), .ready_o(seen_o.ready),
      .value_o(saved_o)
  );

  // ------------------------------------------------------------------ turns
  resp_turn i_turn (
      .clk_i, .rst_ni, .ctx_i, .drain_i, .drain_busy_o(busy_turn), .drain_has_i(busy_table),
      .in_valid_i(in_valid), .in_qpi_i(in.qpi),
      .gather_out_i(rsp_out_valid_i), .gather_out_qpi_i(rsp_out_qpi_i), .exec_out_i(exec_done),
      .exec_out_qpi_i(exec_done_qpi), .answer_out_i(ack_taken), .answer_out_qpi_i(ack_o.qpi),
      .read_o(read), .read_qpi_o(read_qpi), .turn_qpi_o(turn_qpi), .has_i(has), .flush_i(flush), .place_i(place),
      .mid_i(mid), .entry_i(entry), .addr_i(addr), .left_i(left), .psn_i(psn), .ack_i(ack_some), .ack_data_i(ack),
      .nak_i(nak_some), .nak_data_i(nak), .in_gather_i(in_gather), .in_answer_i(in_out), .executed_i(executed),
      .value_i(value),
      .step_o(step), .step_last_o(step_last), .step_len_o(step_len), .drop_o(drop), .clear_ack_o(clear_ack),
      .clear_nak_o(clear_nak), .answer_room_i(answer_room), .answer_valid_o(answer_valid), .answer_o(answer),
      .answer_dup_o(answer_dup),
      .due_valid_o(turn_due_valid), .due_ready_i(turn_due_ready), .due_o(turn_due),
      .job_valid_o(job_valid), .job_room_i(job_room), .job_o(job)
  );

  // one turn at a time, so a packet that was allowed finds the room that was seen
  fifo #(.T(tx_job_t), .Depth(2), .Fits(1'b1)) i_jobs (
      .clk_i, .rst_ni, .in_valid_i(job_valid), .in_ready_o(job_room), .in_data_i(job),
      .out_valid_o(job_valid_o), .out_ready_i(job_ready_i), .out_data_o(job_o), .count_o(unused_job_cnt)
  );

  // ------------------------------------------------------------------ answers without payload from memory
  assign out_in = '{dup: answer_dup, job: answer};
  fifo #(.T(out_t), .Depth(2), .Fits(1'b1)) i_out (
      .clk_i, .rst_ni, .in_valid_i(answer_valid), .in_ready_o(answer_room), .in_data_i(out_in),
      .out_valid_o(ack_valid_o), .out_ready_i(ack_ready_i), .out_data_o(out), .count_o(unused_out_cnt)
  );
  assign ack_o     = out.job;
  assign ack_taken = ack_valid_o && ack_ready_i;

  // ------------------------------------------------------------------ what is on its way
  qp_count #(.Max(255)) i_in_gather (
      .clk_i, .rst_ni, .inc_i(job_valid), .inc_qpi_i(turn_qpi), .dec_i(rsp_out_valid_i), .dec_qpi_i(rsp_out_qpi_i),
      .look_qpi_i(turn_qpi), .some_o(in_gather), .drain_i, .busy_o(busy_gather)
  );
  qp_count #(.Max(3)) i_in_out (
      .clk_i, .rst_ni, .inc_i(answer_valid), .inc_qpi_i(turn_qpi), .dec_i(ack_taken), .dec_qpi_i(ack_o.qpi),
      .look_qpi_i(turn_qpi), .some_o(in_out), .drain_i, .busy_o(busy_out)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) drain_busy_o <= 1'b0;
    else drain_busy_o <= busy_table || busy_pend || busy_turn || busy_gather || busy_exec || busy_out;
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
      cnt_o[CntRnrTx]    = ack_o.syndrome == SynRnr;
    end
  end
endmodule
