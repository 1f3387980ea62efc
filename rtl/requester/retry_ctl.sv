// Loss recovery of the requester (wire.md 5): takes a QP off its lane, lets the receive side forget what its READs and
// atomics expect, and sends it back to its oldest unacknowledged PSN. Counts the passes against retry_cnt (NAK 0, data
// beyond the expected, an answer that was passed, the timer) or rnr_retry, and fails the oldest WQE when there were too
// many. One QP at a time; the others go on.
module retry_ctl
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs that may send again: RTS, no WQE failed by an answer, no reset waiting
  input  logic [NumQp-1:0] live_i,
  /// a WQE failed before its packet was sent
  input  qp_fail_t         tx_fail_i,
  /// a WQE failed while its payload was gathered
  input  qp_fail_t         gather_fail_i,
  /// QP of a reset that waits
  input  qp_err_evt_t      drain_i,
  /// that QP is being handled
  output logic             drain_busy_o,
  /// a response asks to send again
  input  qp_retry_t        rsp_i,
  /// what is to be sent again was acknowledged meanwhile
  input  qp_retry_t        over_i,
  /// oldest unacknowledged position judged anew
  input  qp_pos_t          una_i,
  /// the acknowledge tracker handles a response
  input  logic             ack_busy_i,
  /// of this QP
  input  qp_t              ack_qpi_i,
  /// next to issue moved
  input  qp_go_t           iss_i,
  /// QPs that hold a lane
  input  logic [NumQp-1:0] held_i,
  /// QPs that must not send now
  output logic [NumQp-1:0] hold_o,
  /// QPs that went back and have not sent all of it again
  output logic [NumQp-1:0] redo_o,
  /// forget what a QP expects
  output rewind_t          rewind_o,
  /// forgotten, and no data on its way to the acknowledge tracker
  input  logic             rewound_i,
  /// read the first PSN of an outstanding entry
  output logic             first_en_o,
  /// QP of the entry
  output qp_t              first_qpi_o,
  /// place of the entry
  output slot_t            first_slot_o,
  /// first PSN, one cycle after first_en_o
  input  psn_t             first_i,
  /// where a QP goes on, never in a cycle of iss_i
  output qp_go_t           back_o,
  /// a WQE was sent too often
  output qp_fail_t         fail_o,
  /// a go-back-N pass
  output logic             cnt_retry_o
);
  typedef enum logic [2:0] {StIdle, StForget, StRead, StEntry, StGo} state_e;
  /// fixed by the context, but for the limits
  typedef struct packed {
    idx_t sq_start;
    psn_t sq_psn;
  } start_t;
  typedef struct packed {
    logic [2:0] retry;
    logic [2:0] rnr;
    logic [4:0] timer;
  } limit_t;
  typedef struct packed {
    idx_t    idx;
    psn_t    psn;
    rd_num_t rd;
  } una_t;
  // next to issue, once everything is sent again
  typedef struct packed {
    idx_t idx;
    psn_t psn;
  } high_t;

  state_e                state_q;
  qp_t                   qpi_q, pick_qpi;
  logic                  pick_valid, pick_take;
  // per QP: has to send again; waits for the responder's time; went back since the last advance; has something
  // unacknowledged; and why
  logic [NumQp-1:0]      again_q, rnr_wait, implied_q, armed_q;
  retry_e                why_q[NumQp];
  logic [4:0]            code_q[NumQp];
  logic [NumQp-1:0][2:0] passes_q, rnrs_q;
  // what went back is not all sent again; WQEs that failed on this side
  logic [NumQp-1:0]      redo_q, tx_failed_q, gather_failed_q;
  slot_t                 tx_slot_q[NumQp], gather_slot_q[NumQp];
  slot_t                 una_slot;
  // timer
  qp_retry_t             timeout, ask;
  logic                  wait_valid;

  start_t                start, start_new;
  limit_t                limit, limit_new;
  una_t                  una_ram, una, una_new;
  high_t                 high_ram, high, high_new;
  logic                  una_valid, high_valid, read, started, failed, empty, spent, go, live, is_rnr, is_seq;

  // ---------------------------------------------------------------- who has to send again
  // a response goes first: the timer and the transmit scheduler ask again
  assign ask = rsp_i.valid ? rsp_i : over_i.valid ? over_i : timeout;

  rr_pick #(.Num(NumQp)) i_pick (
    .clk_i, .rst_ni, .req_i(again_q & ~held_i & ~rnr_wait), .take_i(pick_take), .valid_o(pick_valid), .idx_o(pick_qpi)
  );
  assign pick_take = (state_q == StIdle) && pick_valid;
  assign hold_o    = again_q | rnr_wait;

  // ---------------------------------------------------------------- what the QP stands at
  assign start_new = '{sq_start: ctx_i.qp.sq_start, sq_psn: ctx_i.qp.sq_psn};
  assign limit_new = '{retry: ctx_i.qp.retry_cnt, rnr: ctx_i.qp.rnr_retry, timer: ctx_i.qp.timer};
  assign high_new  = '{idx: iss_i.idx, psn: iss_i.psn};
  assign una_new   = '{idx: una_i.idx, psn: una_i.psn, rd: una_i.rd};
  assign read      = (state_q == StRead);

  ctx_ram #(.T(start_t), .Depth(NumQp)) i_start (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(start_new),
    .rd_en_i(read), .rd_addr_i(qpi_q), .rd_data_o(start)
  );
  ctx_ram #(.T(limit_t), .Depth(NumQp)) i_limit (
    .clk_i, .wr_en_i(ctx_i.qp_set || ctx_i.qp_modify), .wr_addr_i(ctx_i.qpi), .wr_data_i(limit_new),
    .rd_en_i(read), .rd_addr_i(qpi_q), .rd_data_o(limit)
  );
  dyn_ram #(.T(una_t), .Depth(NumQp)) i_una (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(una_i.valid), .wr_addr_i(una_i.qpi), .wr_data_i(una_new),
    .rd_en_i(read), .rd_addr_i(qpi_q), .rd_valid_o(una_valid), .rd_data_o(una_ram)
  );
  dyn_ram #(.T(high_t), .Depth(NumQp)) i_high (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(iss_i.valid && iss_i.fresh), .wr_addr_i(iss_i.qpi), .wr_data_i(high_new),
    .rd_en_i(read), .rd_addr_i(qpi_q), .rd_valid_o(high_valid), .rd_data_o(high_ram)
  );
  assign una  = una_valid ? una_ram : '{idx: start.sq_start, psn: start.sq_psn, rd: '0};
  assign high = high_valid ? high_ram : '{idx: start.sq_start, psn: start.sq_psn};

  assign rewind_o     = '{valid: state_q == StForget, qpi: qpi_q};
  assign first_en_o   = (state_q == StEntry);
  assign first_qpi_o  = qpi_q;
  assign first_slot_o = una_slot;
  assign redo_o       = redo_q;

  // ---------------------------------------------------------------- go back, or give up
  assign live   = live_i[qpi_q];
  assign is_rnr = (why_q[qpi_q] == RetryRnr);
  assign is_seq = (why_q[qpi_q] == RetrySeq);
  // nothing is left to be sent again from a WQE on that failed on this side
  assign failed = (tx_failed_q[qpi_q] && tx_slot_q[qpi_q] == una_slot) ||
                  (gather_failed_q[qpi_q] && gather_slot_q[qpi_q] == una_slot);
  assign empty  = (una.psn == high.psn) || failed;
  // the oldest WQE was begun; it may go on in the middle though nothing is left to be sent again, where the QP went back
  // before the WQE was sent to its end and all that was sent of it is acknowledged since
  assign started = (una.idx != high.idx);
  assign una_slot = una.idx[SlotW-1:0];
  // 7 RNR retries are for ever
  assign spent  = !empty && ((is_seq && passes_q[qpi_q] == limit.retry) ||
                             (is_rnr && limit.rnr != 3'd7 && rnrs_q[qpi_q] == limit.rnr));
  assign go     = (state_q == StGo) && live && !spent && !iss_i.valid;
  assign fail_o = '{
    valid: (state_q == StGo) && live && spent, qpi: qpi_q, slot: una_slot, code: is_rnr ? CqeRnr : CqeRetry
  };
  assign back_o = '{
    valid: go, qpi: qpi_q, idx: una.idx, psn: una.psn, rd: una.rd, skip: (started && !failed) ? una.psn - first_i : '0,
    high: high.psn, fresh: 1'b0
  };
  assign cnt_retry_o  = go && !empty && why_q[qpi_q] != RetryOver;
  assign wait_valid   = go && !empty && is_rnr;
  assign drain_busy_o = drain_i.valid && (state_q != StIdle) && (qpi_q == drain_i.qpi);

  retry_timer i_timer (
    .clk_i, .rst_ni, .ctx_i, .live_i(live_i & ~again_q), .armed_i(armed_q), .una_i, .iss_i,
    .back_valid_i(go), .back_qpi_i(qpi_q), .wait_valid_i(wait_valid), .wait_code_i(code_q[qpi_q]), .wait_o(rnr_wait),
    .ask_i(ask.valid), .timeout_o(timeout)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q   <= StIdle;
      qpi_q     <= '0;
      again_q   <= '0;
      implied_q <= '0;
      armed_q   <= '0;
      why_q     <= '{default: RetrySeq};
      code_q    <= '{default: '0};
      redo_q          <= '0;
      tx_failed_q     <= '0;
      gather_failed_q <= '0;
      passes_q  <= '0;
      rnrs_q    <= '0;
    end else begin
      unique case (state_q)
        StIdle:   if (pick_valid) state_q <= StForget;
        StForget: if (rewound_i && !(ack_busy_i && ack_qpi_i == qpi_q)) state_q <= StRead;
        StRead:   state_q <= StEntry;
        StEntry:  state_q <= StGo;
        default:  if (!live || spent || go) state_q <= StIdle;
      endcase
      if (pick_take) qpi_q <= pick_qpi;

      if (go) begin
        if (!empty && is_seq) passes_q[qpi_q] <= passes_q[qpi_q] + 3'd1;
        if (!empty && is_rnr && rnrs_q[qpi_q] != 3'd7) rnrs_q[qpi_q] <= rnrs_q[qpi_q] + 3'd1;
      end
      if (state_q == StGo && (!live || spent || go)) again_q[qpi_q] <= 1'b0;

      // any advance of the oldest unacknowledged PSN
      if (una_i.valid && una_i.moved) begin
        passes_q[una_i.qpi]  <= '0;
        rnrs_q[una_i.qpi]    <= '0;
        implied_q[una_i.qpi] <= 1'b0;
      end
      if (una_i.valid && una_i.all) armed_q[una_i.qpi] <= 1'b0;
      if (iss_i.valid && iss_i.fresh) armed_q[iss_i.qpi] <= 1'b1;

      // answers that were on their way when the QP went back pass the same READ again: they tell nothing new
      if (ask.valid && live_i[ask.qpi] && !hold_o[ask.qpi] &&
          !(ask.implied && implied_q[ask.qpi])) begin
        again_q[ask.qpi] <= 1'b1;
        why_q[ask.qpi]   <= ask.why;
        code_q[ask.qpi]  <= ask.code;
        implied_q[ask.qpi] <= 1'b1;
      end
      if (iss_i.valid && (iss_i.psn == iss_i.high || tx_fail_i.valid)) redo_q[iss_i.qpi] <= 1'b0;
      if (go) redo_q[qpi_q] <= !empty;
      // the first one stands: it is the oldest WQE that its source will ever name
      if (tx_fail_i.valid) tx_failed_q[tx_fail_i.qpi] <= 1'b1;
      if (gather_fail_i.valid) gather_failed_q[gather_fail_i.qpi] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        redo_q[ctx_i.qpi]          <= 1'b0;
        tx_failed_q[ctx_i.qpi]     <= 1'b0;
        gather_failed_q[ctx_i.qpi] <= 1'b0;
        again_q[ctx_i.qpi]   <= 1'b0;
        implied_q[ctx_i.qpi] <= 1'b0;
        armed_q[ctx_i.qpi]   <= 1'b0;
        passes_q[ctx_i.qpi]  <= '0;
        rnrs_q[ctx_i.qpi]    <= '0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (tx_fail_i.valid && !tx_failed_q[tx_fail_i.qpi]) tx_slot_q[tx_fail_i.qpi] <= tx_fail_i.slot;
    if (gather_fail_i.valid && !gather_failed_q[gather_fail_i.qpi]) begin
      gather_slot_q[gather_fail_i.qpi] <= gather_fail_i.slot;
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i, iss_i, limit, tx_fail_i, gather_fail_i};
endmodule
