// Judgement of one doorbell write (nic.md section 3; formats in device.md 3.1).
package db_pkg;
  import rnic_pkg::*;

  /// register of a doorbell page
  localparam logic [1:0] DbSq = 2'd0;
  localparam logic [1:0] DbRq = 2'd1;

  /// what the doorbell block keeps of a QP context
  typedef struct packed {
    logic       version2;
    logic [4:0] sq_log;
    idx_t       start;
    logic [4:0] rq_log;   // 0: no receive queue, a depth of 1 is none
    rq_idx_t    rq_start;
    cq_t        send_cq;
    cq_t        recv_cq;
  } db_ctx_t;

  /// what a doorbell does; at most one bit is set, none: it is accepted and brings no work
  typedef struct packed {
    logic move;      // SQ, RQ: the producer index becomes the new one
    logic overrun;   // SQ, RQ: beyond the ring, the QP goes to ERR
    logic cq;        // CQ: completion decides
    logic ignored;   // only counted, see cnt
  } db_act_t;

  typedef struct packed {
    db_act_t act;
    cnt_e    cnt;    // event to count where act.overrun or act.ignored
    idx_t    index;  // SQ, RQ: new producer index
  } db_verdict_t;

  /// index mask of a format version: V2 18 bits, V1 14 bits
  function automatic idx_t idx_mask(logic version2);
    return version2 ? '1 : 18'h03fff;
  endfunction

  /// index rules for a doorbell that belongs to its page; mask: width of the index
  function automatic db_verdict_t judge_index(idx_t index, idx_t current, idx_t retired, idx_t mask, logic [4:0] log);
    db_verdict_t verdict;
    idx_t ahead, outstanding, half;
    half = (mask >> 1) + 18'd1;
    ahead = (index - current) & mask;
    outstanding = (current - retired) & mask;
    verdict = '{act: '0, cnt: CntDbStale, index: index};
    if (ahead == '0) begin
      verdict.act = '0;
    end else if ((IdxW + 1)'(ahead) + (IdxW + 1)'(outstanding) <= ((IdxW + 1)'(1) << log)) begin
      verdict.act.move = 1'b1;
    end else if (ahead <= half) begin
      verdict.act.overrun = 1'b1;
      verdict.cnt = CntDbOverrun;
    end else begin
      verdict.act.ignored = 1'b1;
    end
    return verdict;
  endfunction

  // the upper bits of a doorbell mean nothing, the start index has become the current one
  // verilator lint_off UNUSEDSIGNAL
  /// whole judgement, in this order: partial, no such QP, QP in RESET, not the page's, low bits, index
  function automatic db_verdict_t judge(logic partial, logic [15:0] page, logic [1:0] register, logic [63:0] data,
                                        logic live, db_ctx_t ctx, idx_t current, idx_t retired,
                                        rq_idx_t rq_current, rq_idx_t rq_retired);
    db_verdict_t verdict;
    logic own;
    unique case (register)
      DbSq: own = (ctx.version2 ? data[36:21] : data[32:17]) == page;
      DbRq: own = data[32:17] == page;
      default: own = data[38:23] == 16'(ctx.send_cq) || data[38:23] == 16'(ctx.recv_cq);
    endcase
    verdict = '{act: '{ignored: 1'b1, default: '0}, cnt: CntDbPartial, index: '0};
    if (partial) begin
      verdict.cnt = CntDbPartial;
    end else if (page < 16'(FirstQpn) || page >= 16'(FirstQpn + NumQp)) begin
      verdict.cnt = CntDbPage;
    end else if (!live) begin
      verdict.cnt = CntDbReset;
    end else if (!own) begin
      verdict.cnt = CntDbPage;
    end else if (register == DbSq) begin
      if (data[2:0] != '0) verdict.cnt = CntDbPid;
      else
        verdict = judge_index(
            data[20:3] & idx_mask(ctx.version2), current, retired, idx_mask(ctx.version2), ctx.sq_log
        );
    end else if (register == DbRq) begin
      if (ctx.rq_log == '0) verdict.cnt = CntDbRq;
      else
        verdict = judge_index(
            18'(data[16:0]), 18'(rq_current), 18'(rq_retired), 18'h1ffff, ctx.rq_log
        );
    end else begin
      verdict.act = '{cq: 1'b1, default: '0};
    end
    return verdict;
  endfunction
  // verilator lint_on UNUSEDSIGNAL

endpackage
