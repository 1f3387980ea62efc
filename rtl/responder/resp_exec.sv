// Executes accepted atomics in the order in which they become due, whatever still has to be answered before them: so a WRITE
// that waits for an atomic of its QP waits for memory alone, never for the transmit side (nic.md 5). The key is checked again
// here. Original values are kept until the turn of their answer.
module resp_exec
  import rnic_pkg::*, resp_pkg::*, atomic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// context broadcast
    input  ctx_wr_t          ctx_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// an atomic of that QP is still to be executed
    output logic             drain_busy_o,
    /// an atomic was accepted that was not executed before
    input  logic             accept_i,
    /// its QP
    input  qp_t              accept_qpi_i,
    /// QP that is asked for
    input  qp_t              look_qpi_i,
    /// it has an atomic that is accepted and not executed
    output logic             look_o,
    /// an accepted atomic may be executed
    input  logic             start_valid_i,
    /// its QP
    input  qp_t              start_qpi_i,
    /// its place in the QP's table
    input  place_t           start_place_i,
    /// QPs of which nothing is executed any more
    input  logic [NumQp-1:0] gone_i,
    /// read the next atomic of a QP from its table
    output logic             read_o,
    /// the QP
    output qp_t              read_qpi_o,
    /// entry, one cycle after read_o
    input  resp_entry_t      entry_i,
    /// atomic for the unit
    output logic             op_valid_o,
    /// room for it
    input  logic             op_room_i,
    /// atomic for the unit
    output amo_op_t          op_o,
    /// what became of an atomic
    input  logic             amo_valid_i,
    /// taken
    output logic             amo_ready_o,
    /// what became of it
    input  amo_done_t        amo_i,
    /// an atomic failed or is refused
    output logic             due_valid_o,
    /// taken
    input  logic             due_ready_i,
    /// its NAK
    output resp_due_t        due_o,
    /// an atomic was executed, its answer may go
    output logic             done_valid_o,
    /// its QP
    output qp_t              done_qpi_o,
    /// the original value that it found
    output logic [63:0]      done_value_o,
    /// atomics of that QP that are accepted and not executed, this one among them
    output logic [4:0]       done_left_o,
    /// QP whose atomics are counted
    input  qp_t              left_qpi_i,
    /// its atomics that are accepted and not executed
    output logic [4:0]       left_o,
    /// QP whose turn it is
    input  qp_t              turn_qpi_i,
    /// it has an atomic that is executed and not answered
    output logic             executed_o,
    /// that atomic is answered
    input  logic             answered_i,
    /// read the original value of an entry
    input  logic             value_read_i,
    /// its QP
    input  qp_t              value_qpi_i,
    /// its place
    input  index_t           value_index_i,
    /// original value, one cycle later
    output logic [63:0]      value_o
);
  typedef enum logic [2:0] {
    StIdle,
    StEntry,
    StCheck,
    StVerdict,
    StAct
  } state_e;
  typedef struct packed {
    qp_t    qpi;
    place_t place;
  } turn_t;

  state_e           state_q;
  turn_t            turn_in, turn;
  resp_entry_t      entry_q;
  logic             turn_valid, pop, act, gone, mr_ok, mr_ok_q, refused, amo_bad, end_amo, over;
  logic             unused_ready, unused_mr_valid, unused_key_ok;
  qp_t              over_qpi;
  logic [4:0]       left_q[NumQp];  // accepted and not executed
  logic [4:0]       done_q[NumQp];  // executed and not answered
  logic [NumQp-1:0] some_q, some_done_q;
  logic [$clog2(NumQp*MaxInflight+1)-1:0] unused_count;

  // every QP's table fits, so there is always room
  assign turn_in = '{qpi: start_qpi_i, place: start_place_i};
  ram_fifo #(.T(turn_t), .Depth(NumQp * MaxInflight), .Fits(1'b1)) i_turns (
      .clk_i, .rst_ni, .in_valid_i(start_valid_i), .in_ready_o(unused_ready), .in_data_i(turn_in),
      .out_valid_o(turn_valid), .out_ready_i(pop), .out_data_o(turn), .count_o(unused_count)
  );

  // ------------------------------------------------------------------ one at a time to the unit, when it has room
  assign read_o       = state_q == StIdle && turn_valid && op_room_i;
  assign read_qpi_o   = turn.qpi;
  mr_check i_mr_check (
      .clk_i, .rst_ni, .ctx_i, .req_valid_i(state_q == StEntry), .key_i(entry_i.rkey), .is_remote_i(1'b1),
      .right_i(RightRemAtom), .va_i(entry_i.addr), .len_i(amo_wide(entry_i.bth) ? 32'd8 : 32'd4),
      .rsp_valid_o(unused_mr_valid), .key_ok_o(unused_key_ok), .ok_o(mr_ok)
  );

  assign act        = state_q == StAct;
  assign gone       = gone_i[turn.qpi] || (drain_i.valid && drain_i.qpi == turn.qpi);
  assign refused    = act && !gone && !mr_ok_q;
  assign op_valid_o = act && !gone && mr_ok_q;
  assign op_o = '{
      qpi: turn.qpi, place: turn.place, psn: entry_q.psn, msn: entry_q.msn, bth: entry_q.bth, addr: entry_q.addr,
      amo: entry_q.amo
  };
  // one that does not go to the unit waits while another one ends there
  assign pop        = act && (op_valid_o || (!end_amo && (!refused || due_ready_i)));

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) state_q <= StIdle;
    else begin
      unique case (state_q)
        StIdle:    if (read_o) state_q <= StEntry;
        StEntry:   state_q <= StCheck;
        StCheck:   state_q <= StVerdict;
        StVerdict: state_q <= StAct;
        default:   if (pop) state_q <= StIdle;
      endcase
    end
  end
  always_ff @(posedge clk_i) begin
    if (state_q == StEntry) entry_q <= entry_i;
    if (state_q == StVerdict) mr_ok_q <= mr_ok;
  end

  // ------------------------------------------------------------------ what becomes of them
  assign amo_bad      = amo_valid_i && amo_i.err;
  assign amo_ready_o  = !amo_i.err || due_ready_i;
  assign done_valid_o = amo_valid_i && !amo_i.err && !amo_i.skipped;
  assign done_qpi_o   = amo_i.qpi;
  assign done_value_o = amo_i.value;
  assign done_left_o  = left_q[amo_i.qpi];
  assign left_o       = left_q[left_qpi_i];
  // an atomic that failed or was refused was not executed; what stands before it is still answered
  assign due_valid_o = amo_bad || refused;
  assign due_o = '{
      qpi: amo_bad ? amo_i.qpi : turn.qpi, start: 1'b0, atomic: 1'b0, ack: 1'b1, fatal: 1'b1, flush: 1'b0, stop: 1'b1,
      place: amo_bad ? amo_i.place : turn.place, psn: amo_bad ? amo_i.psn : entry_q.psn,
      syndrome: amo_bad ? SynNakOp : SynNakAcc, msn: (amo_bad ? amo_i.msn : entry_q.msn) - 24'd1
  };

  ctx_ram #(.T(logic [63:0]), .Depth(NumQp * Places)) i_values (
      .clk_i, .wr_en_i(done_valid_o), .wr_addr_i({amo_i.qpi, amo_i.place[SlotW:0]}), .wr_data_i(amo_i.value),
      .rd_en_i(value_read_i), .rd_addr_i({value_qpi_i, value_index_i}), .rd_data_o(value_o)
  );

  // ------------------------------------------------------------------ what a WRITE of the QP waits for
  assign end_amo  = amo_valid_i && amo_ready_o;
  assign over     = end_amo || (pop && !op_valid_o);
  assign over_qpi = end_amo ? amo_i.qpi : turn.qpi;
  assign look_o   = some_q[look_qpi_i];
  assign executed_o = some_done_q[turn_qpi_i];

  // of a QP that gave a fatal NAK, atomics that were accepted never become due: a reset does not wait for these
  logic unused_some;
  qp_count #(.Max(MaxInflight)) i_started (
      .clk_i, .rst_ni, .inc_i(start_valid_i), .inc_qpi_i(start_qpi_i), .dec_i(over), .dec_qpi_i(over_qpi),
      .look_qpi_i, .some_o(unused_some), .drain_i, .busy_o(drain_busy_o)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      left_q      <= '{default: '0};
      some_q      <= '0;
      done_q      <= '{default: '0};
      some_done_q <= '0;
    end else begin
      if (!(accept_i && over && accept_qpi_i == over_qpi)) begin
        if (accept_i) begin
          left_q[accept_qpi_i] <= left_q[accept_qpi_i] + 5'd1;
          some_q[accept_qpi_i] <= 1'b1;
        end
        if (over) begin
          left_q[over_qpi] <= left_q[over_qpi] - 5'd1;
          some_q[over_qpi] <= left_q[over_qpi] != 5'd1;
        end
      end
      if (!(done_valid_o && answered_i && amo_i.qpi == turn_qpi_i)) begin
        if (done_valid_o) begin
          done_q[amo_i.qpi]      <= done_q[amo_i.qpi] + 5'd1;
          some_done_q[amo_i.qpi] <= 1'b1;
        end
        if (answered_i) begin
          done_q[turn_qpi_i]      <= done_q[turn_qpi_i] - 5'd1;
          some_done_q[turn_qpi_i] <= done_q[turn_qpi_i] != 5'd1;
        end
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        left_q[ctx_i.qpi]      <= '0;
        some_q[ctx_i.qpi]      <= 1'b0;
        done_q[ctx_i.qpi]      <= '0;
        some_done_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = (^ctx_i) ^ (^entry_q);

  `ifndef SYNTHESIS
  // no PSN of the newest atomics of a QP is executed twice (wire.md 5); no simulation gets round all PSNs within so few
  psn_t             ran_q[NumQp][MaxInflight];
  logic [SlotW:0]   ran_cnt_q[NumQp];
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) ran_cnt_q <= '{default: '0};
    else begin
      if (op_valid_o && op_room_i) begin
        assert (!entry_q.dup)
        else $error("resp_exec: duplicate executed");
        for (int i = 0; i < MaxInflight; i++) begin
          assert (!(i < int'(ran_cnt_q[turn.qpi]) && ran_q[turn.qpi][i] == entry_q.psn))
          else $error("resp_exec: PSN %x executed twice", entry_q.psn);
          if (i != 0) ran_q[turn.qpi][i] <= ran_q[turn.qpi][i-1];
        end
        ran_q[turn.qpi][0] <= entry_q.psn;
        if (ran_cnt_q[turn.qpi] != 5'(MaxInflight)) ran_cnt_q[turn.qpi] <= ran_cnt_q[turn.qpi] + 5'd1;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) ran_cnt_q[ctx_i.qpi] <= '0;
    end
  end
  `endif  // SYNTHESIS
endmodule
