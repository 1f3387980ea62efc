// Command engine of the contexts (nic.md section 2): takes the staged words, checks them, keeps them for query and
// modify, and broadcasts the decoded context. A refused command changes nothing but STATUS.
module ctx_cmd
  import rnic_pkg::*;
  import ctx_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// CMD is written
    input  logic             cmd_valid_i,
    /// value written
    input  logic [     63:0] cmd_data_i,
    /// all eight bytes of it are written
    input  logic             cmd_whole_i,
    /// STATUS: a command is running
    output logic             busy_o,
    /// STATUS: result of the last command
    output logic [      7:0] code_o,
    /// CMD was written while busy
    output logic             cnt_busy_o,
    /// the engine uses the staging words in this cycle
    output logic             stage_busy_o,
    /// it writes one
    output logic             stage_wr_o,
    /// word
    output logic [      3:0] stage_addr_o,
    /// write data
    output logic [     63:0] stage_wdata_o,
    /// word read in the cycle before
    input  logic [     63:0] stage_rdata_i,
    /// QPs in RTS
    input  logic [NumQp-1:0] qp_rts_i,
    /// QPs in ERR
    input  logic [NumQp-1:0] qp_err_i,
    /// broadcast
    output ctx_wr_t          ctx_o,
    /// modify moves this QP to ERR
    output qp_err_evt_t      err_cmd_o,
    /// reset was accepted: the QP is in RESET from the next cycle
    output qp_err_evt_t      reset_o,
    /// QP that is being drained, held until qp_reset is broadcast
    output qp_err_evt_t      drain_o,
    /// some block still holds something of it
    input  logic             drain_busy_i,
    /// an MR was changed or invalidated: accesses that were granted before are waited for
    output logic             mr_drain_valid_o,
    /// such an access is left
    input  logic             mr_drain_busy_i,
    /// asks for the indices of a QP, answered in the cycle after valid and ready
    output logic             qry_valid_o,
    /// that QP
    output qp_t              qry_qpi_o,
    /// the question is taken
    input  logic             qry_ready_i,
    /// producer index
    input  idx_t             qry_prod_i,
    /// first index not retired
    input  idx_t             qry_retired_i
);

  localparam int unsigned DrainQuiet = 8;  // cycles without drain_busy_i before a drain counts as finished
  localparam int unsigned StoreDepth = 16 * NumQp + 4 * NumCq + 4 * NumMr;
  localparam int unsigned StoreW = $clog2(StoreDepth);

  typedef enum logic [3:0] {
    StIdle,
    StLoad,     // words of staging and store pass the checks into ctx_q
    StSendCq,   // CQ information of the send CQ is read, then that of the receive CQ
    StRecvCq,
    StJudge,
    StCommit,   // staged words go to the store
    StDrainQp,
    StSendUse,  // users of the CQs are counted
    StRecvUse,
    StLastUse,
    StFire,
    StDrainMr,
    StAskIdx,   // query: indices from the doorbell block
    StGetIdx,
    StFill      // query: store words go to staging
  } state_e;

  typedef struct packed {
    logic [4:0] log;
    logic       ignore_overrun;
    logic [7:0] users;           // QPs in RTS or ERR, twice where both their queues complete here
  } cq_info_t;

  state_e st_d, st_q;
  op_e op_q;
  obj_e obj_q;
  logic [7:0] num_q;  // context number inside its kind
  code_e code_q;
  code_mask_t bad_d, bad_q;
  logic [3:0] word_d, word_q, last_word;
  logic got_q;  // a word arrives in this cycle
  logic [3:0] got_word_q;
  logic live_q;  // the object was programmed when the command started
  logic err_target_q;  // modify: to ERR
  logic rq_misaligned_q;
  logic [3:0] quiet_q;
  idx_t prod_q, retired_q;
  ctx_wr_t ctx_q;
  logic [NumQp-1:0] qp_known_q;  // was programmed since reset: query shows it in RESET too
  logic [NumCq-1:0] cq_live_q;
  logic [NumMr-1:0] mr_live_q;

  // ---------------------------------------------------------------- command word
  logic take;
  op_e cmd_op;
  obj_e cmd_obj;
  logic [23:0] cmd_index, cmd_num;
  code_mask_t cmd_bad;
  logic cmd_live, cmd_late;

  assign take = cmd_valid_i && st_q == StIdle;
  assign cmd_op = op_e'(cmd_data_i[3:0]);
  assign cmd_obj = obj_e'(cmd_data_i[7:4]);
  assign cmd_index = cmd_data_i[31:8];
  assign cmd_num = cmd_obj == ObjQp ? cmd_index - 24'(FirstQpn) : cmd_index;

  always_comb begin
    cmd_bad  = '0;
    cmd_live = 1'b0;
    cmd_late = 1'b0;
    if (take) begin
      unique case (cmd_obj)
        ObjQp: begin
          cmd_bad[CodeBadIndex] = cmd_num >= 24'(NumQp);
          cmd_live = qp_rts_i[cmd_num[QpW-1:0]] || qp_err_i[cmd_num[QpW-1:0]];
        end
        ObjCq: begin
          cmd_bad[CodeBadIndex] = cmd_num >= 24'(NumCq);
          cmd_live = cq_live_q[cmd_num[CqW-1:0]];
        end
        ObjMr: begin
          cmd_bad[CodeBadIndex] = cmd_num >= 24'(NumMr);
          cmd_live = mr_live_q[cmd_num[MrW-1:0]];
        end
        default: cmd_bad[CodeBadObject] = 1'b1;
      endcase
      unique case (cmd_op)
        OpSet: cmd_bad[CodeBadState] = cmd_obj == ObjQp && cmd_live;
        OpModify, OpReset: if (cmd_obj != ObjQp) cmd_bad[CodeBadObject] = 1'b1;
        OpQuery: ;
        default: cmd_bad[CodeBadOp] = 1'b1;
      endcase
      if (!cmd_whole_i) cmd_bad[CodeBadOp] = 1'b1;
      cmd_bad[CodeReserved] = cmd_data_i[63:32] != '0;
      // the staged words may give a lower code
      cmd_late = cmd_bad == code_mask_t'(1 << CodeReserved) && (cmd_op == OpSet || cmd_op == OpModify);
    end
  end
  assign cnt_busy_o = cmd_valid_i && st_q != StIdle;

  // ---------------------------------------------------------------- memories
  function automatic logic [StoreW-1:0] store_addr(obj_e obj, logic [7:0] num, logic [3:0] word);
    unique case (obj)
      ObjQp:   return StoreW'({num[QpW-1:0], word});
      ObjCq:   return StoreW'(16 * NumQp) + StoreW'({num[CqW-1:0], word[1:0]});
      default: return StoreW'(16 * NumQp + 4 * NumCq) + StoreW'({num[MrW-1:0], word[1:0]});
    endcase
  endfunction

  logic store_wr;
  logic [63:0] store_wdata, store_rdata, merged;

  ctx_ram #(
      .T    (logic [63:0]),
      .Depth(StoreDepth)
  ) u_store (
      .clk_i,
      .wr_en_i  (store_wr),
      .wr_addr_i(store_addr(obj_q, num_q, got_word_q)),
      .wr_data_i(store_wdata),
      .rd_en_i  (st_q != StIdle),
      .rd_addr_i(store_addr(obj_q, num_q, word_q)),
      .rd_data_o(store_rdata)
  );

  logic cq_wr, cq_rd;
  cq_t cq_waddr, cq_raddr;
  cq_info_t cq_wdata, cq_rdata;

  ctx_ram #(
      .T    (cq_info_t),
      .Depth(NumCq)
  ) u_cq_info (
      .clk_i,
      .wr_en_i  (cq_wr),
      .wr_addr_i(cq_waddr),
      .wr_data_i(cq_wdata),
      .rd_en_i  (cq_rd),
      .rd_addr_i(cq_raddr),
      .rd_data_o(cq_rdata)
  );

  // ---------------------------------------------------------------- sequence
  assign merged = (store_rdata & ~QpModifyMask) | (stage_rdata_i & QpModifyMask);

  always_comb begin
    unique case (obj_q)
      ObjQp:   last_word = st_q == StCommit && op_q == OpModify ? 4'd0 : 4'(QpWords - 1);
      ObjCq:   last_word = 4'(CqWords - 1);
      default: last_word = 4'(MrWords - 1);
    endcase
    if (st_q == StFill) last_word = 4'(NumWord - 1);
  end

  logic pass, pass_done;  // states that walk over words
  assign pass = st_q == StLoad || st_q == StCommit || st_q == StFill;
  assign pass_done = got_q && got_word_q == last_word;
  assign word_d = pass && !pass_done ? word_q + 4'd1 : '0;

  code_e verdict;

  always_comb begin
    st_d = st_q;
    unique case (st_q)
      StIdle: begin
        if (take && (cmd_bad == '0 || cmd_late)) begin
          if (cmd_op != OpQuery) st_d = StLoad;
          else st_d = cmd_obj == ObjQp ? StAskIdx : StFill;
        end
      end
      StLoad: if (pass_done) st_d = op_q == OpSet && obj_q != ObjMr ? StSendCq : StJudge;
      StSendCq: st_d = StRecvCq;
      StRecvCq: st_d = StJudge;
      StJudge: begin
        if (op_q == OpReset) st_d = StDrainQp;
        else st_d = verdict == CodeOk ? StCommit : StIdle;
      end
      StCommit: if (pass_done) st_d = op_q == OpSet && obj_q == ObjQp ? StSendUse : StFire;
      StDrainQp: if (quiet_q == 4'(DrainQuiet)) st_d = live_q ? StSendUse : StFire;
      StSendUse: st_d = StRecvUse;
      StRecvUse: st_d = StLastUse;
      StLastUse: st_d = StFire;
      StFire: st_d = obj_q == ObjMr && live_q ? StDrainMr : StIdle;
      StDrainMr: if (quiet_q == 4'(DrainQuiet)) st_d = StIdle;
      StAskIdx: if (qry_ready_i) st_d = StGetIdx;
      StGetIdx: st_d = StFill;
      StFill: if (pass_done) st_d = StIdle;
      default: st_d = StIdle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      st_q       <= StIdle;
      word_q     <= '0;
      got_q      <= 1'b0;
      got_word_q <= '0;
      quiet_q    <= '0;
      op_q       <= OpSet;
      obj_q      <= ObjQp;
      num_q      <= '0;
      code_q     <= CodeOk;
      live_q     <= 1'b0;
      prod_q     <= '0;
      retired_q  <= '0;
    end else begin
      st_q       <= st_d;
      word_q     <= word_d;
      got_q      <= pass && !pass_done;
      got_word_q <= word_q;
      if (st_q == StDrainQp) quiet_q <= drain_busy_i ? '0 : quiet_q + 4'd1;
      else if (st_q == StDrainMr) quiet_q <= mr_drain_busy_i ? '0 : quiet_q + 4'd1;
      else quiet_q <= '0;
      if (take) begin
        op_q   <= cmd_op;
        obj_q  <= cmd_obj;
        num_q  <= cmd_num[7:0];
        live_q <= cmd_live;
        code_q <= lowest_code(cmd_bad);
      end else if (st_q == StJudge) begin
        code_q <= verdict;
      end
      if (st_q == StGetIdx) begin
        prod_q    <= qry_prod_i;
        retired_q <= qry_retired_i;
      end
    end
  end

  // ---------------------------------------------------------------- checks
  always_comb begin
    bad_d = bad_q;
    if (take) begin
      bad_d = cmd_bad;
    end else if (st_q == StLoad && got_q) begin
      if (op_q == OpModify) begin
        if (got_word_q == 4'd0) bad_d[CodeReserved] = bad_q[CodeReserved] || qp_reserved(4'd0, stage_rdata_i);
        if (got_word_q == 4'd8) begin
          bad_d[CodeReserved] = bad_q[CodeReserved] || stage_rdata_i[63:2] != '0;
          bad_d[CodeBadState] = !((stage_rdata_i[1:0] == QpRts && qp_rts_i[num_q[QpW-1:0]])
              || (stage_rdata_i[1:0] == QpErr && live_q));
        end
      end else if (op_q == OpSet) begin
        unique case (obj_q)
          ObjQp: bad_d = bad_q | qp_word_bad(got_word_q, stage_rdata_i, ctx_q.qp.version2, rq_misaligned_q);
          ObjCq: bad_d = bad_q | cq_word_bad(got_word_q, stage_rdata_i, ctx_q.cq.base[5:0]);
          default: bad_d = bad_q | mr_word_bad(got_word_q, stage_rdata_i, ctx_q.mr.base, ctx_q.mr.length[63:0]);
        endcase
      end
    end else if (op_q == OpSet && obj_q == ObjCq && st_q == StRecvCq) begin
      bad_d[CodeCqInUse] = live_q && cq_rdata.users != '0;
    end else if (op_q == OpSet && obj_q == ObjQp && st_q == StRecvCq) begin
      if (!cq_live_q[ctx_q.qp.send_cq] || !cq_live_q[ctx_q.qp.recv_cq]) bad_d[CodeBadCq] = 1'b1;
      if (cq_rdata.log < ctx_q.qp.sq_log) bad_d[CodeCqTooSmall] = 1'b1;
      if (cq_rdata.ignore_overrun && cq_rdata.users != '0) bad_d[CodeCqInUse] = 1'b1;
    end else if (op_q == OpSet && obj_q == ObjQp && st_q == StJudge) begin
      if (cq_rdata.ignore_overrun && cq_rdata.users != '0) bad_d[CodeCqInUse] = 1'b1;
    end
  end
  assign verdict = st_q == StJudge ? lowest_code(bad_d) : CodeOk;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) bad_q <= '0;
    else bad_q <= bad_d;
  end

  // ---------------------------------------------------------------- decoded context, broadcast
  logic [63:0] src_word;

  always_comb begin
    if (op_q == OpSet) src_word = stage_rdata_i;
    else if (op_q == OpModify && got_word_q == 4'd0) src_word = merged;
    else src_word = store_rdata;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      ctx_q           <= '0;
      err_target_q    <= 1'b0;
      rq_misaligned_q <= 1'b0;
    end else begin
      ctx_q.qp_set    <= st_q == StFire && obj_q == ObjQp && op_q == OpSet;
      ctx_q.qp_modify <= st_q == StFire && obj_q == ObjQp && op_q == OpModify;
      ctx_q.qp_reset  <= st_q == StFire && obj_q == ObjQp && op_q == OpReset;
      ctx_q.cq_set    <= st_q == StFire && obj_q == ObjCq;
      ctx_q.mr_set    <= st_q == StFire && obj_q == ObjMr;
      if (st_q == StLoad) begin
        ctx_q.qpi <= num_q[QpW-1:0];
        ctx_q.cqn <= num_q[CqW-1:0];
        ctx_q.mrn <= num_q[MrW-1:0];
      end
      if (st_q == StLoad && got_q && obj_q == ObjQp) begin
        unique case (got_word_q)
          4'd0: begin
            ctx_q.qp.version2   <= src_word[0];
            ctx_q.qp.mtu        <= src_word[3:1];
            ctx_q.qp.sl         <= src_word[6:4];
            ctx_q.qp.rem_write  <= src_word[7];
            ctx_q.qp.rem_read   <= src_word[8];
            ctx_q.qp.rem_atomic <= src_word[9];
            ctx_q.qp.tc         <= src_word[23:16];
            ctx_q.qp.ttl        <= src_word[31:24];
            // default port: 0xC000 | QPN[13:0]
            ctx_q.qp.udp_sport  <= src_word[47:32] != '0 ? src_word[47:32] : 16'hC000 | (16'(num_q) + 16'(FirstQpn));
            ctx_q.qp.retry_cnt  <= src_word[50:48];
            ctx_q.qp.rnr_retry  <= src_word[53:51];
            ctx_q.qp.timer      <= src_word[58:54];
          end
          4'd1: {ctx_q.qp.peer_ip, ctx_q.qp.peer_qpn} <= {src_word[63:32], src_word[23:0]};
          4'd2: ctx_q.qp.peer_mac <= src_word[47:0];
          4'd3: {ctx_q.qp.rq_psn, ctx_q.qp.sq_psn} <= {src_word[55:32], src_word[23:0]};
          4'd4: ctx_q.qp.sq_base <= src_word;
          4'd5: begin
            ctx_q.qp.rq_base <= src_word;
            rq_misaligned_q  <= src_word[3:0] != '0;
          end
          4'd6: begin
            ctx_q.qp.sq_start <= ctx_q.qp.version2 ? src_word[17:0] : {4'd0, src_word[13:0]};
            ctx_q.qp.rq_start <= {1'b0, src_word[48:32]};
          end
          4'd7: begin
            ctx_q.qp.send_cq     <= src_word[CqW-1:0];
            ctx_q.qp.recv_cq     <= src_word[16+:CqW];
            ctx_q.qp.max_rd      <= src_word[36:32];
            ctx_q.qp.max_dest_rd <= src_word[44:40];
          end
          4'd8: err_target_q <= op_q == OpModify && stage_rdata_i[1:0] == QpErr;
          4'd9: begin
            ctx_q.qp.sq_log <= log2_of(src_word[23:0]);
            ctx_q.qp.rq_log <= log2_of(src_word[55:32]);
          end
          default: ;
        endcase
      end
      if (st_q == StLoad && got_q && obj_q == ObjCq) begin
        unique case (got_word_q)
          4'd0: ctx_q.cq.base <= src_word;
          4'd1: begin
            ctx_q.cq.log            <= log2_of(src_word[23:0]);
            ctx_q.cq.stride32       <= src_word[37];
            ctx_q.cq.ignore_overrun <= src_word[40];
          end
          4'd2: ctx_q.cq.start <= src_word[31:0];
          default: ;
        endcase
      end
      if (st_q == StLoad && got_q && obj_q == ObjMr) begin
        unique case (got_word_q)
          4'd0: ctx_q.mr.base <= src_word;
          4'd1: ctx_q.mr.length[63:0] <= src_word;
          4'd2: begin
            ctx_q.mr.length[64]  <= src_word[0];
            ctx_q.mr.loc_write   <= src_word[1];
            ctx_q.mr.rem_write   <= src_word[2];
            ctx_q.mr.rem_read    <= src_word[3];
            ctx_q.mr.rem_atomic  <= src_word[4];
            ctx_q.mr.ltag        <= src_word[15:8];
            ctx_q.mr.rtag        <= src_word[23:16];
            ctx_q.mr.valid       <= src_word[24];
          end
          default: ;
        endcase
      end
    end
  end

  // ---------------------------------------------------------------- what is programmed
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      qp_known_q <= '0;
      cq_live_q <= '0;
      mr_live_q <= '0;
    end else if (st_q == StFire) begin
      if (obj_q == ObjQp && op_q == OpSet) qp_known_q[num_q[QpW-1:0]] <= 1'b1;
      if (obj_q == ObjCq) cq_live_q[num_q[CqW-1:0]] <= 1'b1;
      if (obj_q == ObjMr) mr_live_q[num_q[MrW-1:0]] <= ctx_q.mr.valid;
    end
  end

  always_comb begin
    cq_rd = 1'b0;
    cq_wr = 1'b0;
    cq_raddr = obj_q == ObjCq ? num_q[CqW-1:0] : ctx_q.qp.send_cq;
    cq_waddr = ctx_q.qp.send_cq;
    cq_wdata = cq_rdata;
    cq_wdata.users = op_q == OpReset ? cq_rdata.users - 8'd1 : cq_rdata.users + 8'd1;
    unique case (st_q)
      StSendCq, StSendUse: cq_rd = 1'b1;
      StRecvCq: begin
        cq_rd = 1'b1;
        cq_raddr = ctx_q.qp.recv_cq;
      end
      StRecvUse: begin  // the same CQ for both: the read sees the write
        cq_wr = 1'b1;
        cq_rd = 1'b1;
        cq_raddr = ctx_q.qp.recv_cq;
      end
      StLastUse: begin
        cq_wr = 1'b1;
        cq_waddr = ctx_q.qp.recv_cq;
      end
      StFire: begin
        cq_wr = obj_q == ObjCq;
        cq_waddr = num_q[CqW-1:0];
        cq_wdata = '{log: ctx_q.cq.log, ignore_overrun: ctx_q.cq.ignore_overrun, users: '0};
      end
      default: ;
    endcase
  end

  assign store_wr = st_q == StCommit && got_q;
  assign store_wdata = op_q == OpModify ? merged : stage_rdata_i;

  // ---------------------------------------------------------------- query
  logic [1:0] state_now;
  assign state_now = qp_rts_i[num_q[QpW-1:0]] ? QpRts : qp_err_i[num_q[QpW-1:0]] ? QpErr : QpReset;

  always_comb begin
    stage_wdata_o = '0;
    if (st_q == StFill) begin
      unique case (obj_q)
        ObjQp: begin
          if (got_word_q == 4'd8) stage_wdata_o = 64'(state_now);
          else if (got_word_q == 4'd10 && live_q) stage_wdata_o = {14'd0, retired_q, 14'd0, prod_q};
          else if (got_word_q < 4'(QpWords) && qp_known_q[num_q[QpW-1:0]]) stage_wdata_o = store_rdata;
        end
        default: if (got_word_q < 4'(MrWords) && live_q) stage_wdata_o = store_rdata;
      endcase
    end
  end

  assign stage_wr_o = st_q == StFill && got_q;
  assign stage_addr_o = st_q == StFill ? got_word_q : word_q;
  assign stage_busy_o = pass || st_q == StSendCq || st_q == StRecvCq || st_q == StJudge || st_q == StAskIdx
      || st_q == StGetIdx;
  assign qry_valid_o = st_q == StAskIdx;
  assign qry_qpi_o = num_q[QpW-1:0];

  // ---------------------------------------------------------------- outputs
  qp_err_evt_t drain_q;

  // one cycle behind the sequence, so that it is still there when qp_reset is broadcast
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      drain_q <= '0;
    end else begin
      drain_q.valid <= op_q == OpReset && st_q != StIdle;
      drain_q.qpi   <= num_q[QpW-1:0];
    end
  end

  assign busy_o = st_q != StIdle;
  assign code_o = 8'(code_q);
  assign ctx_o = ctx_q;
  assign drain_o = drain_q;
  // with the write of CMD: a doorbell behind it on the bus finds the QP in RESET
  assign reset_o = '{valid: cmd_op == OpReset && cmd_live && cmd_bad == '0, qpi: cmd_num[QpW-1:0]};
  assign err_cmd_o = '{valid: st_q == StFire && op_q == OpModify && err_target_q, qpi: num_q[QpW-1:0]};
  assign mr_drain_valid_o = st_q == StDrainMr;

endmodule
