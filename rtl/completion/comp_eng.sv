// Completion engine (nic.md section 6): completes WQEs in posting order per QP and queue, judges CQ doorbells and lets completions
// that wait for CQ room time out. An operation takes three cycles (pick, read the QP, decide with the CQ) and the next
// one is picked while one is decided, so that two cycles are its cost. A completion without room waits aside
// (comp_pick) and blocks nobody.
module comp_eng
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs in RTS
  input  logic [NumQp-1:0] qp_rts_i,
  /// QPs in ERR
  input  logic [NumQp-1:0] qp_err_i,
  /// QP of a reset that waits
  input  qp_err_evt_t      drain_i,
  /// cycles that a completion waits for CQ room, 0 for ever
  input  logic [31:0]      cq_wait_i,
  /// cycles since reset
  input  logic [47:0]      time_i,
  /// SQ doorbell accepted
  input  qp_idx_t          db_i,
  /// acknowledged position moved
  input  qp_pos_t          una_i,
  /// QPs with a failed WQE in flight
  input  logic [NumQp-1:0] stop_i,
  /// a WQE of the QP failed
  input  qp_err_evt_t [4:0] fail_i,
  /// RQ doorbell accepted
  input  rq_move_t         rq_db_i,
  /// outcomes of receive WQEs
  input  recv_evt_t        recv_i,
  /// CQ doorbell
  input  logic             db_cq_valid_i,
  /// its CQ
  input  cq_t              db_cq_cqn_i,
  /// its consumer index
  input  logic [22:0]      db_cq_ci_i,
  /// its cq_sta
  input  logic [1:0]       db_cq_arm_i,
  /// doorbell taken
  output logic             db_cq_ready_o,
  /// verdict on the doorbell taken last
  output logic             db_cq_rsp_valid_o,
  /// verdict: 0 accepted, 1 backward, 2 beyond
  output logic [1:0]       db_cq_rsp_o,
  /// an accepted doorbell arms its CQ
  output logic             arm_valid_o,
  /// CQ to arm
  output cq_t              arm_cqn_o,
  /// only for solicited or error CQEs
  output logic             arm_solicit_o,
  /// CQs that take no CQE until programmed again
  input  logic [NumCq-1:0] overrun_i,
  /// a completion waited too long
  output logic             timeout_valid_o,
  /// its CQ
  output cq_t              timeout_cqn_o,
  /// read the table entry and the failure records
  output logic             rec_en_o,
  /// QP to read
  output qp_t              rec_qpi_o,
  /// read the outstanding entry
  output logic             entry_en_o,
  /// QP of the entry
  output qp_t              entry_qpi_o,
  /// place of the entry
  output slot_t            entry_slot_o,
  /// entry, one cycle after entry_en_o
  input  req_entry_t       entry_i,
  /// place whose failure is asked for, two cycles after rec_en_o
  output slot_t            rec_slot_o,
  /// it failed
  input  logic             failed_i,
  /// its error code
  input  logic [7:0]       code_i,
  /// room for a CQE in the writer
  input  logic             cqe_room_i,
  /// CQE to write
  output logic             cqe_valid_o,
  /// CQE to write
  output cqe_job_t         cqe_o,
  /// WQE retired
  output qp_idx_t          retire_o,
  /// receive WQE retired
  output rq_move_t         rq_retire_o,
  /// a WQE failed and its QP has to go to ERR
  output qp_err_evt_t      err_o,
  /// QPs whose failed WQE completed: nothing starts on them any more
  output logic [NumQp-1:0] dead_o,
  /// something of the QP of drain_i is in the pipeline
  output logic             drain_busy_o,
  /// counted events
  output cnt_inc_t         cnt_o
);
  typedef enum logic [1:0] {StPick, StQp, StCq} state_e;
  typedef enum logic [1:0] {WhatNone, WhatGood, WhatFail, WhatFlush} what_e;

  // per QP: completed a failed WQE; flush has begun
  logic [NumQp-1:0] dead_q, flush_q;
  // per CQ: some completion waits for room
  logic [NumCq-1:0] full;

  state_e           state_q;
  comp_op_e         op_q, op;
  qp_t              qpi_q;
  cq_t              cqn_q;
  logic [22:0]      ci_q;
  logic [1:0]       arm_q;
  logic             send_take, recv_take, start;
  qp_t              pick_qpi;
  cq_t              scan_cqn;

  logic             is_recv, recv_has, recv_more, recv_flush, recv_version2, send_version2;
  rq_idx_t          recv_idx;
  recv_done_t       got;
  logic             version2, more, acked, next_acked;
  logic             more_q, acked_q, next_acked_q;
  cq_t              send_cq, recv_cq, cq;
  logic [16:0]      logical;
  // a pick in the cycle of a decision changes these one cycle later
  idx_t             ri, ri_next;
  qp_idx_t          moved;
  logic [47:0]      since;

  logic             decide, cq_room, cq_stride32, cq_owner, need, overrun, go, block, push, db_take;
  logic             discard, kill, again, ci_moves;
  logic [63:0]      cq_addr;
  logic [1:0]       verdict;
  what_e            what;
  logic [7:0]       code, opcode;
  logic             with_imm, se;
  logic [255:0]     cqe;

  // ---------------------------------------------------------------- pick
  comp_pick i_pick (
    .clk_i, .rst_ni, .ctx_i, .qp_rts_i, .qp_err_i, .dead_i(dead_q), .drain_i, .db_i, .una_i, .fail_i, .rq_db_i, .recv_i,
    .db_cq_valid_i, .cqe_room_i, .limited_i(cq_wait_i != 32'd0), .busy_i(state_q == StQp),
    .start_o(start), .op_o(op), .qpi_o(pick_qpi), .scan_cqn_o(scan_cqn),
    .is_recv_i(is_recv), .again_i(go && again), .block_i(block), .qpi_i(qpi_q), .cqn_i(cq),
    .room_i(db_take && ci_moves), .room_cqn_i(cqn_q), .overrun_i, .full_o(full)
  );
  assign send_take     = start && (op == OpComplete);
  assign recv_take     = start && (op == OpReceive);
  assign db_cq_ready_o = start && (op == OpDoorbell);

  // ---------------------------------------------------------------- read the QP
  assign moved = '{valid: go && !is_recv, qpi: qpi_q, idx: ri_next};
  comp_qp i_qp (
    .clk_i, .rst_ni, .ctx_i, .db_i, .una_i, .retire_i(moved), .take_i(send_take), .qpi_i(pick_qpi),
    .version2_o(send_version2), .send_cq_o(send_cq), .ri_o(ri), .ri_next_o(ri_next), .more_o(more), .acked_o(acked),
    .next_acked_o(next_acked)
  );
  assign rec_en_o  = send_take;
  assign rec_qpi_o = pick_qpi;

  assign entry_en_o   = (state_q == StQp) && (op_q == OpComplete);
  assign entry_qpi_o  = qpi_q;
  assign entry_slot_o = ri[SlotW-1:0];
  assign rec_slot_o   = ri[SlotW-1:0];

  recv_pend i_received (
    .clk_i, .rst_ni, .ctx_i, .qp_err_i, .db_i(rq_db_i), .evt_i(recv_i), .take_i(recv_take), .take_qpi_i(pick_qpi),
    .version2_o(recv_version2), .recv_cq_o(recv_cq), .idx_o(recv_idx),
    .entry_en_i((state_q == StQp) && is_recv), .qpi_i(qpi_q), .entry_o(got), .has_o(recv_has), .more_o(recv_more),
    .flush_o(recv_flush), .retire_i(go && is_recv)
  );

  assign is_recv  = (op_q == OpReceive);
  assign version2 = is_recv ? recv_version2 : send_version2;
  assign cq       = is_recv ? recv_cq : send_cq;
  assign logical  = is_recv ? recv_idx : idx_logical(ri, version2);
  cq_state i_cq (
    .clk_i, .rst_ni, .ctx_i,
    .rd_en_i(state_q == StQp), .rd_cqn_i((op_q inside {OpComplete, OpReceive}) ? cq : cqn_q),
    .logical_i(logical),
    .room_o(cq_room), .addr_o(cq_addr), .owner_o(cq_owner), .stride32_o(cq_stride32), .push_i(push),
    .db_ci_i(ci_q), .db_verdict_o(verdict), .db_moves_o(ci_moves), .db_take_i(db_take)
  );

  // when the CQ first refused a completion since its consumer index moved last
  ctx_ram #(.T(logic [47:0]), .Depth(NumCq)) i_since (
    .clk_i, .wr_en_i(block && !full[cq]), .wr_addr_i(cq), .wr_data_i(time_i),
    .rd_en_i(state_q == StQp), .rd_addr_i(cqn_q), .rd_data_o(since)
  );

  // ---------------------------------------------------------------- decide
  assign decide = (state_q == StCq);

  always_comb begin
    what = WhatNone;
    code = CqeOk;
    if (decide && op_q == OpComplete && more_q) begin
      // acknowledged WQEs were executed; they complete as such even if the QP went to ERR since
      // (but one that failed here when it was to be sent again)
      if (acked_q && !flush_q[qpi_q] && !failed_i) what = WhatGood;
      else if (qp_err_i[qpi_q] || dead_q[qpi_q]) what = WhatFlush;
      else if (failed_i) what = WhatFail;
    end
    if (decide && is_recv) begin
      if (recv_has) what = (got.code == CqeOk) ? WhatGood : WhatFail;
      else if (recv_flush) what = WhatFlush;
    end
    unique case (what)
      WhatFail:  code = is_recv ? got.code : code_i;
      WhatFlush: code = CqeFlush;
      default:   code = CqeOk;
    endcase
  end

  assign overrun = overrun_i[cq];
  assign need    = (what == WhatFail) || (what == WhatFlush) || (what == WhatGood && (is_recv || entry_i.wqe.ce));
  assign block   = need && !overrun && !cq_room;
  assign go      = (what != WhatNone) && !block;
  assign push    = go && need && !overrun;
  assign discard = go && need && overrun;
  // a QP that was programmed onto a CQ in overrun learns of it by the first completion that it loses
  assign kill    = go && (what == WhatFail || (discard && what == WhatGood));
  assign db_take = decide && (op_q == OpDoorbell) && (verdict == 2'd0);
  // look at the QP once more only if its next WQE can have an outcome already
  assign again   = (is_recv ? recv_more : (next_acked_q || stop_i[qpi_q])) || kill || what == WhatFlush ||
                   qp_err_i[qpi_q];

  // a receive WQE that failed has nothing of its message in its CQE
  always_comb begin
    opcode   = entry_i.wqe.opcode;
    with_imm = entry_i.wqe.with_imm;
    if (is_recv) {opcode, with_imm} = {7'd0, got.write, got.with_imm};
    if (what == WhatFlush || (is_recv && code != CqeOk)) {opcode, with_imm} = '0;
  end
  assign se = is_recv && code == CqeOk && got.se;
  cqe_format i_format (
    .version2_i(version2), .qpi_i(qpi_q), .recv_i(is_recv), .code_i(code), .opcode_i(opcode), .with_imm_i(with_imm),
    .imm_i((is_recv && with_imm) ? got.imm : '0), .se_i(se),
    .len_i(is_recv ? got.len : entry_i.wqe.len), .idx_i(logical), .time_i, .owner_i(cq_owner), .cqe_o(cqe)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      dead_q  <= '0;
      flush_q <= '0;
    end else begin
      if (kill) dead_q[qpi_q] <= 1'b1;
      if (go && (kill || what == WhatFlush) && !is_recv) flush_q[qpi_q] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        dead_q[ctx_i.qpi]  <= 1'b0;
        flush_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  // ---------------------------------------------------------------- pipeline and outputs
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q           <= StPick;
      op_q              <= OpComplete;
      qpi_q             <= '0;
      cqn_q             <= '0;
      ci_q              <= '0;
      arm_q             <= '0;
      more_q            <= 1'b0;
      acked_q           <= 1'b0;
      next_acked_q      <= 1'b0;
      db_cq_rsp_valid_o <= 1'b0;
      db_cq_rsp_o       <= '0;
      timeout_valid_o   <= 1'b0;
      timeout_cqn_o     <= '0;
      cqe_valid_o       <= 1'b0;
      retire_o          <= '0;
      rq_retire_o       <= '0;
      err_o             <= '0;
      cnt_o             <= '0;
    end else begin
      unique case (state_q)
        StQp: begin
          state_q <= StCq;
          more_q       <= more;
          acked_q      <= acked;
          next_acked_q <= next_acked;
        end
        default: state_q <= start ? StQp : StPick;
      endcase
      if (start) begin
        op_q  <= op;
        qpi_q <= pick_qpi;
        cqn_q <= (op == OpTimer) ? scan_cqn : db_cq_cqn_i;
        ci_q  <= db_cq_ci_i;
        arm_q <= db_cq_arm_i;
      end

      db_cq_rsp_valid_o <= decide && (op_q == OpDoorbell);
      db_cq_rsp_o       <= verdict;
      timeout_valid_o   <= decide && (op_q == OpTimer) && full[cqn_q] && (time_i - since > {16'd0, cq_wait_i});
      timeout_cqn_o     <= cqn_q;
      cqe_valid_o       <= push;
      retire_o          <= moved;
      rq_retire_o       <= '{valid: go && is_recv, qpi: qpi_q, idx: recv_idx + 17'd1};
      err_o             <= '{valid: kill, qpi: qpi_q};
      cnt_o             <= '0;
      if (go) begin
        cnt_o[CntWqe]        <= 1'b1;
        cnt_o[CntCqe]        <= push;
        cnt_o[CntFlush]      <= (what == WhatFlush);
        cnt_o[CntCqeDiscard] <= discard;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (push) begin
      cqe_o <= '{
        addr: cq_addr, stride32: cq_stride32, payload: cqe, cqn: cq, qpi: qpi_q, solicit: se || code != CqeOk
      };
    end
  end

  assign arm_valid_o   = db_take && arm_q[1];
  assign arm_cqn_o     = cqn_q;
  assign arm_solicit_o = arm_q[0];
  assign dead_o        = dead_q;
  assign drain_busy_o  = (state_q != StPick) && (op_q inside {OpComplete, OpReceive}) && (qpi_q == drain_i.qpi);

  // a CQE needs a part of the entry only
  logic unused;
  assign unused = &{1'b0, entry_i, una_i};
endmodule
