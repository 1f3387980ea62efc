// Gives QPs their turns to answer: one READ response packet, ATOMIC acknowledge, ACK or NAK a turn, round robin over the
// QPs that have something to do. The key, right and range of a packet's bytes are checked in its turn. Responses of one QP
// leave in PSN order: what goes another way than the response before it waits until that one is with the framer. A QP that
// cannot go on sleeps until what it waits for moves.
module resp_turn
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*, atomic_pkg::*;
(
    /// clock
    input  logic         clk_i,
    /// asynchronous reset, active low
    input  logic         rst_ni,
    /// context broadcast
    input  ctx_wr_t      ctx_i,
    /// QP that a reset waits for
    input  qp_err_evt_t  drain_i,
    /// a turn of that QP is under way
    output logic         drain_busy_o,
    /// that QP has entries to drop
    input  logic         drain_has_i,
    /// something came in for a QP
    input  logic         in_valid_i,
    /// the QP
    input  qp_t          in_qpi_i,
    /// a READ response left gather
    input  logic         gather_out_i,
    /// its QP
    input  qp_t          gather_out_qpi_i,
    /// an atomic was executed
    input  logic         exec_out_i,
    /// its QP
    input  qp_t          exec_out_qpi_i,
    /// an answer is with the framer
    input  logic         answer_out_i,
    /// its QP
    input  qp_t          answer_out_qpi_i,
    /// read what is known of a QP
    output logic         read_o,
    /// the QP
    output qp_t          read_qpi_o,
    /// QP whose turn it is
    output qp_t          turn_qpi_o,
    /// it has an entry to execute
    input  logic         has_i,
    /// nothing of it is executed any more
    input  logic         flush_i,
    /// entries issued so far
    input  place_t       place_i,
    /// READ responses of the entry were issued
    input  logic         mid_i,
    /// oldest entry
    input  resp_entry_t  entry_i,
    /// first byte left of it
    input  logic [63:0]  addr_i,
    /// bytes left
    input  logic [31:0]  left_i,
    /// PSN of the next response
    input  psn_t         psn_i,
    /// it has an ACK
    input  logic         ack_i,
    /// ACK
    input  resp_answer_t ack_data_i,
    /// it has a NAK
    input  logic         nak_i,
    /// NAK
    input  resp_answer_t nak_data_i,
    /// READ responses of it are in gather
    input  logic         in_gather_i,
    /// its oldest entry, an atomic, is executed
    input  logic         executed_i,
    /// original value that it found
    input  logic [63:0]  value_i,
    /// answers of it are on their way to the framer
    input  logic         in_answer_i,
    /// a response is issued
    output logic         step_o,
    /// it is the last one of its entry
    output logic         step_last_o,
    /// bytes of it
    output logic [12:0]  step_len_o,
    /// the QP is under reset: nothing of it is executed any more
    output logic         drop_o,
    /// the ACK is done with
    output logic         clear_ack_o,
    /// the NAK is done with
    output logic         clear_nak_o,
    /// room for an answer
    input  logic         answer_room_i,
    /// answer for the framer
    output logic         answer_valid_o,
    /// answer for the framer
    output ack_job_t     answer_o,
    /// it answers a duplicate of an atomic
    output logic         answer_dup_o,
    /// a region refuses what is executed
    output logic         due_valid_o,
    /// taken
    input  logic         due_ready_i,
    /// its NAK
    output resp_due_t    due_o,
    /// READ response packet
    output logic         job_valid_o,
    /// room for it
    input  logic         job_room_i,
    /// READ response packet
    output tx_job_t      job_o
);
  typedef enum logic [1:0] {
    StPick,
    StJudge,
    StCheck,
    StAct
  } state_e;

  state_e           state_q;
  qp_t              qpi_q, pick;
  logic [NumQp-1:0] awake_q, wait_job_q, wait_answer_q;
  logic             some, drain_q, draining;
  logic             judge, act, atomic, nak_here, ack_here, idle, answers, amo, tries, go, refused, last;
  logic             mr_ok, unused_mr_valid, unused_key_ok;
  logic [12:0]      mtu, len;

  // ------------------------------------------------------------------ pick
  rr_pick #(.Num(NumQp)) i_pick (
      .clk_i, .rst_ni, .req_i((state_q == StPick) ? awake_q : '0), .take_i(1'b1), .valid_o(some), .idx_o(pick)
  );
  assign read_o       = some;
  assign read_qpi_o   = pick;
  assign turn_qpi_o   = qpi_q;
  assign drain_busy_o = drain_i.valid && state_q != StPick && qpi_q == drain_i.qpi;

  // ------------------------------------------------------------------ judge
  assign judge    = state_q == StJudge;
  assign draining = judge && drain_i.valid && drain_i.qpi == qpi_q;
  assign atomic   = is_atomic(entry_i.bth);
  assign nak_here = nak_i && (flush_i || nak_data_i.place == place_i);
  assign ack_here = ack_i && ack_data_i.place == place_i;
  assign idle     = !in_gather_i && !in_answer_i;
  // an ACK that would have to wait gives way to the response behind it, which covers it, but not if that answers a
  // duplicate
  assign drop_o   = draining && has_i;
  assign answers  = judge && !draining && idle && (nak_here || ack_here);
  assign tries    = judge && !drop_o && has_i && !nak_here && !(ack_here && (idle || entry_i.dup));
  assign amo      = tries && atomic && (executed_i || entry_i.dup) && !in_gather_i;
  assign go       = tries && !atomic && !in_answer_i && job_room_i;

  assign answer_valid_o = (answers || amo) && answer_room_i;
  assign answer_o = '{
      qpi: qpi_q, psn: amo ? entry_i.psn : nak_here ? nak_data_i.psn : ack_data_i.psn,
      syndrome: amo ? SynAck : nak_here ? nak_data_i.syndrome : ack_data_i.syndrome,
      msn: amo ? entry_i.msn : nak_here ? nak_data_i.msn : ack_data_i.msn, atomic: amo,
      value: !amo ? '0 : entry_i.dup ? entry_i.addr : value_i
  };
  assign answer_dup_o = amo && entry_i.dup;
  // what a reset drops, here or in gather, takes the answers behind it along, those that come later too
  assign clear_nak_o = (answer_valid_o && nak_here) || draining;
  assign clear_ack_o = (answer_valid_o && ack_here && !nak_here) || (go && ack_here) || draining ||
                       (judge && ack_i && !ack_here && flush_i);

  assign mtu  = 13'd128 << entry_i.mtu;
  assign last = left_i <= 32'(mtu);
  assign len  = last ? left_i[12:0] : mtu;
  mr_check i_mr_check (
      .clk_i, .rst_ni, .ctx_i, .req_valid_i(go), .key_i(entry_i.rkey), .is_remote_i(1'b1),
      .right_i(RightRemRead), .va_i(addr_i), .len_i(32'(len)),
      .rsp_valid_o(unused_mr_valid), .key_ok_o(unused_key_ok), .ok_o(mr_ok)
  );

  // ------------------------------------------------------------------ act; a QP whose earlier response failed meanwhile stops
  assign act         = state_q == StAct && !flush_i;
  assign refused     = act && !mr_ok;
  assign step_o      = (act && mr_ok) || (amo && answer_room_i);
  assign step_last_o = atomic || last;
  assign step_len_o  = len;

  assign due_valid_o = refused;
  assign due_o = '{
      qpi: qpi_q, start: 1'b0, atomic: 1'b0, ack: 1'b1, fatal: 1'b1, flush: 1'b1, stop: 1'b0, place: '0, psn: psn_i,
      syndrome: SynNakAcc, msn: entry_i.msn
  };

  assign job_valid_o = step_o && !atomic;
  always_comb begin
    job_o = '0;
    if (job_valid_o) begin
      job_o.qpi     = qpi_q;
      job_o.bth     = mid_i ? (last ? BthReadLast : BthReadMiddle) : (last ? BthReadOnly : BthReadFirst);
      job_o.psn     = psn_i;
      job_o.laddr   = addr_i;
      job_o.pay_len = len;
      job_o.is_rsp  = 1'b1;
      job_o.slot    = slot_t'(entry_i.dup);
      job_o.msn     = entry_i.msn;
    end
  end

  logic unused_bits;
  assign unused_bits = ^entry_i;  // what is left of it comes beside it, operands are the execution's

  // ------------------------------------------------------------------ turns and sleepers
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q       <= StPick;
      qpi_q         <= '0;
      awake_q       <= '0;
      wait_job_q    <= '0;
      wait_answer_q <= '0;
      drain_q       <= 1'b0;
    end else begin
      drain_q <= drain_i.valid;
      unique case (state_q)
        StPick:  if (some) state_q <= StJudge;
        StJudge: state_q <= go ? StCheck : StPick;
        StCheck: state_q <= StAct;
        default: if (!refused || due_ready_i) state_q <= StPick;
      endcase
      if (some) begin
        qpi_q         <= pick;
        awake_q[pick] <= 1'b0;
      end
      if (job_room_i && wait_job_q != '0) wait_job_q <= '0;
      if (answer_room_i && wait_answer_q != '0) wait_answer_q <= '0;
      if ((wait_job_q | wait_answer_q) != '0) begin
        awake_q <= awake_q | (job_room_i ? wait_job_q : '0) | (answer_room_i ? wait_answer_q : '0);
        if (some) awake_q[pick] <= 1'b0;
      end
      if ((answers || amo) && !answer_room_i) wait_answer_q[qpi_q] <= 1'b1;
      if (tries && !atomic && !in_answer_i && !job_room_i) wait_job_q[qpi_q] <= 1'b1;
      // there may be more to do
      if (drop_o || answer_valid_o || state_q == StAct) awake_q[qpi_q] <= 1'b1;
      if (in_valid_i) awake_q[in_qpi_i] <= 1'b1;
      if (gather_out_i) awake_q[gather_out_qpi_i] <= 1'b1;
      if (exec_out_i) awake_q[exec_out_qpi_i] <= 1'b1;
      if (answer_out_i) awake_q[answer_out_qpi_i] <= 1'b1;
      if (drain_i.valid && !drain_q && drain_has_i) awake_q[drain_i.qpi] <= 1'b1;
    end
  end
endmodule
