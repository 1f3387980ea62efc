// Responses (wire.md sections 3 and 5): an ACK covers every WQE whose last PSN is not beyond its PSN; a NAK covers all
// before its PSN and, with codes 1 to 3, fails the WQE that holds the PSN. Neither passes a READ or atomic: only its own
// data ends it, which covers what is before it too. Nothing here waits for a CQ: the result is a position per QP, so a
// response is taken after at most MaxInflight + 3 cycles.
module ack_track
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs in RTS without a reset waiting
  input  logic [NumQp-1:0] qp_rts_i,
  /// response
  input  logic             rsp_valid_i,
  /// response accepted
  output logic             rsp_ready_o,
  /// response
  input  rsp_evt_t         rsp_i,
  /// next WQE and PSN to issue moved
  input  qp_go_t           iss_i,
  /// read the mark of an outstanding entry
  output logic             mark_en_o,
  /// QP of the entry
  output qp_t              mark_qpi_o,
  /// place of the entry
  output slot_t            mark_slot_o,
  /// mark, one cycle after mark_en_o
  input  req_mark_t        mark_i,
  /// first WQE not acknowledged and oldest unacknowledged PSN moved
  output qp_pos_t          una_o,
  /// that move ended a READ or atomic
  output logic             una_rd_o,
  /// a WQE failed at the responder
  output qp_fail_t         fail_o,
  /// a READ or atomic failed by its response
  output qp_fail_t         data_fail_o,
  /// what was sent and not acknowledged has to be sent again
  output qp_retry_t        retry_o,
  /// response in the pipeline
  output logic             busy_o,
  /// its QP
  output qp_t              busy_qpi_o,
  /// counted events
  output cnt_inc_t         cnt_o
);
  typedef enum logic [1:0] {StIdle, StJudge, StWalk} state_e;

  /// where a QP's positions begin
  typedef struct packed {
    logic version2;
    idx_t sq_start;
    psn_t sq_psn;
  } start_t;
  /// next to issue, or behind the highest that was ever sent
  typedef struct packed {
    idx_t idx;
    psn_t psn;
  } iss_t;
  /// acknowledged
  typedef struct packed {
    idx_t    idx;
    psn_t    psn;
    rd_num_t rd;
  } una_t;

  state_e     state_q;
  rsp_evt_t   rsp_q;

  start_t     start, start_new;
  iss_t       iss_ram, iss, iss_new;
  una_t       una_ram, una, una_new;
  logic       iss_valid, una_valid, take;
  psn_t       in_window;
  logic       live, known, is_nak, is_rnr, is_ahead, is_data, data_ok, ends;

  // walk over the entries
  idx_t       cur_q, end_q, cur_next;
  psn_t       una_q;      // oldest unacknowledged PSN before this response
  psn_t       upto_q;     // first PSN that the response does not cover
  psn_t       pos_q;      // first PSN of the entry, or una_q in the middle of the first one
  rd_num_t    rd_q;
  logic       rd_step_q;  // a READ or atomic was passed
  logic       v2_q, more, passed, covered, done, held, implied;
  psn_t       high_q;     // behind the highest PSN that was sent when the response was judged
  logic       grown_q;    // more was sent since
  psn_t       una_psn;

  assign rsp_ready_o = (state_q == StIdle) || done;
  assign take        = rsp_valid_i && rsp_ready_o;
  assign start_new   = '{version2: ctx_i.qp.version2, sq_start: ctx_i.qp.sq_start, sq_psn: ctx_i.qp.sq_psn};
  assign iss_new     = '{idx: iss_i.idx, psn: iss_i.psn};
  assign una_new     = '{idx: una_o.idx, psn: una_o.psn, rd: una_o.rd};

  ctx_ram #(.T(start_t), .Depth(NumQp)) i_start (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(start_new),
    .rd_en_i(take), .rd_addr_i(rsp_i.qpi), .rd_data_o(start)
  );
  dyn_ram #(.T(iss_t), .Depth(NumQp)) i_iss (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(iss_i.valid && iss_i.fresh), .wr_addr_i(iss_i.qpi), .wr_data_i(iss_new),
    .rd_en_i(take), .rd_addr_i(rsp_i.qpi), .rd_valid_o(iss_valid), .rd_data_o(iss_ram)
  );
  dyn_ram #(.T(una_t), .Depth(NumQp)) i_una (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(una_o.valid), .wr_addr_i(una_o.qpi), .wr_data_i(una_new),
    .rd_en_i(take), .rd_addr_i(rsp_i.qpi), .rd_valid_o(una_valid), .rd_data_o(una_ram)
  );

  assign iss = iss_valid ? iss_ram : '{idx: start.sq_start, psn: start.sq_psn};
  assign una = una_valid ? una_ram : '{idx: start.sq_start, psn: start.sq_psn, rd: '0};

  assign is_nak   = (rsp_q.kind == RspNak);
  assign is_rnr   = (rsp_q.kind == RspRnr);
  assign is_ahead = (rsp_q.kind == RspAhead);
  assign is_data = (rsp_q.kind == RspData);
  assign data_ok = (rsp_q.fail == CqeOk);
  assign live    = qp_rts_i[rsp_q.qpi];
  // a response counts if its PSN was sent and not acknowledged yet
  assign in_window = rsp_q.psn - una.psn;
  assign known     = (in_window < (iss.psn - una.psn)) && live;

  assign cur_next = idx_add(cur_q, idx_t'(1), v2_q);
  assign more     = (cur_q != end_q);
  // all PSNs of the entry are covered; a READ or atomic ends with its own last data only
  assign passed   = (mark_i.last - una_q) < (upto_q - una_q);
  assign ends     = is_data && rsp_q.last && data_ok && (rsp_q.slot == cur_q[SlotW-1:0]);
  assign covered  = more && (mark_i.fetches ? ends : passed);
  assign done     = (state_q == StWalk) && !covered;
  // the walk stands at a READ or atomic whose data has not come
  assign held     = more && mark_i.fetches && !is_data;

  always_comb begin
    mark_en_o   = 1'b0;
    mark_qpi_o  = rsp_q.qpi;
    mark_slot_o = '0;
    if (state_q == StJudge) begin
      mark_en_o   = known;
      mark_slot_o = una.idx[SlotW-1:0];
    end else if (state_q == StWalk) begin
      mark_en_o   = covered;
      mark_slot_o = cur_next[SlotW-1:0];
    end
  end

  // a QP that left RTS in between keeps its positions: its WQEs are flushed
  assign una_o    = '{
    valid: done && live, qpi: rsp_q.qpi, idx: cur_q, psn: una_psn, rd: rd_q + rd_num_t'(rd_step_q),
    moved: una_psn != una_q, all: !more && una_psn == high_q && !grown_q && !(iss_i.valid && iss_i.qpi == rsp_q.qpi)
  };
  assign una_psn  = held ? pos_q : upto_q;
  assign una_rd_o = una_o.valid && rd_step_q;
  // A NAK that passed an unanswered READ or atomic fails nothing: its WQE will be refused again behind the retry.
  assign fail_o   = '{
    valid: una_o.valid && is_nak && rsp_q.syndrome[1:0] != 2'd0 && !(held && passed), qpi: rsp_q.qpi,
    slot: cur_q[SlotW-1:0],
    code: (rsp_q.syndrome[1:0] == 2'd1) ? (mark_i.odd ? CqeAtomicVa : CqeNakInvReq) :
          (rsp_q.syndrome[1:0] == 2'd2) ? CqeNakAccess : CqeNakRemOp
  };
  // Sent again is after code 0, after an RNR NAK, after data beyond the expected, and after any response that passed an
  // unanswered READ or atomic (wire.md 5).
  assign implied = held && passed;
  always_comb begin
    retry_o     = '{
      valid: 1'b0, qpi: rsp_q.qpi, why: (is_rnr && !implied) ? RetryRnr : RetrySeq, implied: 1'b0,
      code: rsp_q.syndrome[4:0]
    };
    if (state_q == StJudge) begin
      retry_o.valid = known && is_ahead;
    end else if (state_q == StWalk && done && live) begin
      retry_o.valid   = implied || is_rnr || (is_nak && rsp_q.syndrome[1:0] == 2'd0);
      retry_o.implied = implied && !is_rnr && !(is_nak && rsp_q.syndrome[1:0] == 2'd0);
    end
  end

  // what is before a failing response was executed, whether it has an answer of its own or not
  assign data_fail_o = '{
    valid: state_q == StJudge && known && is_data && !data_ok, qpi: rsp_q.qpi, slot: rsp_q.slot, code: rsp_q.fail
  };

  assign busy_o     = (state_q != StIdle);
  assign busy_qpi_o = rsp_q.qpi;

  // a response with data was judged and counted where its data is
  always_comb begin
    cnt_o = '0;
    if (state_q == StJudge) begin
      cnt_o[CntDropResponse] = !known && !is_data && !is_ahead;
      cnt_o[CntRnrRx]        = known && is_rnr;
      cnt_o[CntNakSeqRx]     = known && is_nak && rsp_q.syndrome[1:0] == 2'd0;
      cnt_o[CntNakInvRx]     = known && is_nak && rsp_q.syndrome[1:0] == 2'd1;
      cnt_o[CntNakAccRx]     = known && is_nak && rsp_q.syndrome[1:0] == 2'd2;
      cnt_o[CntNakOpRx]      = known && is_nak && rsp_q.syndrome[1:0] == 2'd3;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q   <= StIdle;
      rsp_q     <= '0;
      cur_q     <= '0;
      end_q     <= '0;
      una_q     <= '0;
      upto_q    <= '0;
      pos_q     <= '0;
      rd_q      <= '0;
      rd_step_q <= 1'b0;
      v2_q      <= 1'b0;
      high_q    <= '0;
      grown_q   <= 1'b0;
    end else begin
      if (iss_i.valid && iss_i.qpi == rsp_q.qpi) grown_q <= 1'b1;
      unique case (state_q)
        StIdle: ;
        StJudge: begin
          state_q   <= (known && !is_ahead) ? StWalk : StIdle;
          high_q    <= iss.psn;
          cur_q     <= una.idx;
          end_q     <= iss.idx;
          una_q     <= una.psn;
          pos_q     <= una.psn;
          rd_q      <= una.rd;
          rd_step_q <= 1'b0;
          upto_q    <= (rsp_q.kind == RspAck || (is_data && data_ok)) ? rsp_q.psn + psn_t'(1) : rsp_q.psn;
          v2_q      <= start.version2;
        end
        default: begin
          if (done) begin
            state_q <= StIdle;
          end else begin
            cur_q <= cur_next;
            pos_q <= mark_i.last + psn_t'(1);
            if (mark_i.fetches) rd_step_q <= 1'b1;
          end
        end
      endcase
      // the next response enters while one is finished
      if (take) begin
        state_q <= StJudge;
        rsp_q   <= rsp_i;
        grown_q <= 1'b0;
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i, iss_i, rsp_q.msn, rsp_q.syndrome[7:5]};

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      // data comes for the oldest READ or atomic only
      assert (!(una_o.valid && is_data && !rd_step_q) || (more && mark_i.fetches && cur_q[SlotW-1:0] == rsp_q.slot))
      else $error("ack_track: data of a WQE that is not the oldest READ or atomic");
    end
  end
  `endif  // SYNTHESIS
endmodule
