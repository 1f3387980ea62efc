// Doorbell judge (nic.md section 3). A doorbell reads the context, producer and retired index of its page's QP in its
// first cycle and is judged in the second; a CQ doorbell then waits for the answer of completion. done_o says that
// everything it does is done or on its way, so that what is read after the bus answer is current.
module db_decode
  import rnic_pkg::*;
  import db_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// broadcast of contexts
    input  ctx_wr_t          ctx_i,
    /// QPs in RTS
    input  logic [NumQp-1:0] qp_rts_i,
    /// QPs in ERR
    input  logic [NumQp-1:0] qp_err_i,
    /// a doorbell; only while none is under way
    input  logic             req_valid_i,
    /// page of the doorbell area
    input  logic [     15:0] req_page_i,
    /// register of the page: 0 SQ, 1 RQ, 2 CQ
    input  logic [      1:0] req_reg_i,
    /// partial strobe or misaligned address
    input  logic             req_partial_i,
    /// data
    input  logic [     63:0] req_data_i,
    /// the doorbell under way is judged
    output logic             done_o,
    /// accepted SQ doorbell with new work, one cycle, cannot be refused
    output logic             db_sq_valid_o,
    /// its QP
    output qp_t              db_sq_qpi_o,
    /// its new producer index
    output idx_t             db_sq_pi_o,
    /// accepted RQ doorbell with new work, one cycle, cannot be refused
    output logic             db_rq_valid_o,
    /// its QP
    output qp_t              db_rq_qpi_o,
    /// its new producer index
    output rq_idx_t          db_rq_pi_o,
    /// the first index of an RQ that is not retired moves
    input  logic             rq_retire_valid_i,
    /// its QP
    input  qp_t              rq_retire_qpi_i,
    /// the new first index
    input  rq_idx_t          rq_retire_idx_i,
    /// the first index of a QP that is not retired moves
    input  logic             retire_valid_i,
    /// that QP
    input  qp_t              retire_qpi_i,
    /// the new first index; V1 in the low 14 bits
    input  idx_t             retire_idx_i,
    /// CQ doorbell for completion
    output logic             db_cq_valid_o,
    /// its CQ
    output cq_t              db_cq_cqn_o,
    /// new consumer index modulo 2^23
    output logic [     22:0] db_cq_ci_o,
    /// cq_sta
    output logic [      1:0] db_cq_arm_o,
    /// taken
    input  logic             db_cq_ready_i,
    /// answer to it
    input  logic             db_cq_rsp_valid_i,
    /// 0 accepted, 1 backward, 2 beyond the producer
    input  logic [      1:0] db_cq_rsp_i,
    /// a doorbell beyond its ring sends its QP to ERR
    output qp_err_evt_t      err_o,
    /// asynchronous event of the same
    output async_evt_t       async_o,
    /// events to count
    output cnt_inc_t         cnt_o,
    /// query of the indices of a QP
    input  logic             qry_valid_i,
    /// that QP
    input  qp_t              qry_qpi_i,
    /// taken; the answer is there in the next cycle
    output logic             qry_ready_o,
    /// producer index
    output idx_t             qry_prod_o,
    /// first index not retired
    output idx_t             qry_retired_o
);

  typedef enum logic [1:0] {
    StIdle,
    StJudge,
    StCqReq,
    StCqRsp
  } state_e;

  state_e st_d, st_q;
  logic [15:0] page_q;
  logic [1:0] reg_q;
  logic partial_q;
  logic [63:0] data_q;
  qp_t qpi_d, qpi_q;  // QP whose context is at the outputs of the memories

  // ---------------------------------------------------------------- memories
  logic read;
  db_ctx_t ctx_rd;
  idx_t current, retired;
  rq_idx_t rq_current, rq_retired;
  logic move;
  db_verdict_t verdict;

  assign qry_ready_o = st_q == StIdle && !req_valid_i;
  assign read = req_valid_i || (qry_valid_i && qry_ready_o);
  assign qpi_d = req_valid_i ? qp_t'(req_page_i - 16'(FirstQpn)) : qry_qpi_i;

  ctx_ram #(
      .T    (db_ctx_t),
      .Depth(NumQp)
  ) u_ctx (
      .clk_i,
      .wr_en_i(ctx_i.qp_set),
      .wr_addr_i(ctx_i.qpi),
      .wr_data_i('{
          version2: ctx_i.qp.version2,
          sq_log: ctx_i.qp.sq_log,
          start: ctx_i.qp.sq_start,
          rq_log: ctx_i.qp.rq_log,
          rq_start: ctx_i.qp.rq_start[16:0],
          send_cq: ctx_i.qp.send_cq,
          recv_cq: ctx_i.qp.recv_cq
      }),
      .rd_en_i(read),
      .rd_addr_i(qpi_d),
      .rd_data_o(ctx_rd)
  );

  assign move = st_q == StJudge && verdict.act.move;

  db_index u_sq (
      .clk_i,
      .rst_ni,
      .set_i(ctx_i.qp_set),
      .set_qpi_i(ctx_i.qpi),
      .read_i(read),
      .read_qpi_i(qpi_d),
      .qpi_i(qpi_q),
      .start_i(ctx_rd.start),
      .move_i(move && reg_q == DbSq),
      .move_idx_i(verdict.index),
      .retire_valid_i,
      .retire_qpi_i,
      .retire_idx_i,
      .current_o(current),
      .retired_o(retired)
  );

  db_index #(
      .T(rq_idx_t)
  ) u_rq (
      .clk_i,
      .rst_ni,
      .set_i(ctx_i.qp_set),
      .set_qpi_i(ctx_i.qpi),
      .read_i(read),
      .read_qpi_i(qpi_d),
      .qpi_i(qpi_q),
      .start_i(ctx_rd.rq_start),
      .move_i(move && reg_q == DbRq),
      .move_idx_i(verdict.index[16:0]),
      .retire_valid_i(rq_retire_valid_i),
      .retire_qpi_i(rq_retire_qpi_i),
      .retire_idx_i(rq_retire_idx_i),
      .current_o(rq_current),
      .retired_o(rq_retired)
  );

  assign qry_prod_o = current;
  assign qry_retired_o = retired & idx_mask(ctx_rd.version2);

  // ---------------------------------------------------------------- judgement
  always_comb begin
    verdict = '{act: '0, cnt: CntDbStale, index: '0};
    if (st_q == StJudge) begin
      verdict = judge(
          partial_q, page_q, reg_q, data_q, qp_rts_i[qpi_q] || qp_err_i[qpi_q], ctx_rd, current, retired,
          rq_current, rq_retired
      );
    end
  end

  logic cq_done;
  assign db_cq_valid_o = verdict.act.cq || st_q == StCqReq;
  assign db_cq_cqn_o = data_q[23+:CqW];
  assign db_cq_ci_o = data_q[22:0];
  assign db_cq_arm_o = data_q[40:39];
  assign cq_done = db_cq_rsp_valid_i && (st_q == StCqRsp || (db_cq_valid_o && db_cq_ready_i));

  always_comb begin
    st_d = st_q;
    unique case (st_q)
      StIdle:  if (req_valid_i) st_d = StJudge;
      StJudge: begin
        if (!verdict.act.cq || cq_done) st_d = StIdle;
        else st_d = db_cq_ready_i ? StCqRsp : StCqReq;
      end
      StCqReq: if (db_cq_ready_i) st_d = cq_done ? StIdle : StCqRsp;
      StCqRsp: if (cq_done) st_d = StIdle;
      default: st_d = StIdle;
    endcase
  end
  assign done_o = st_q != StIdle && st_d == StIdle;

  // ---------------------------------------------------------------- effects
  logic sq_valid_q, rq_valid_q, rq_reg_q, overrun_q;
  qp_t  eff_qpi_q;
  idx_t pi_q;
  cnt_inc_t cnt_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      st_q       <= StIdle;
      page_q     <= '0;
      reg_q      <= '0;
      partial_q  <= 1'b0;
      data_q     <= '0;
      qpi_q      <= '0;
      sq_valid_q <= 1'b0;
      rq_valid_q <= 1'b0;
      rq_reg_q   <= 1'b0;
      pi_q       <= '0;
      eff_qpi_q  <= '0;
      overrun_q  <= 1'b0;
      cnt_q      <= '0;
    end else begin
      st_q       <= st_d;
      sq_valid_q <= verdict.act.move && reg_q == DbSq;
      rq_valid_q <= verdict.act.move && reg_q == DbRq;
      rq_reg_q   <= reg_q == DbRq;
      overrun_q  <= verdict.act.overrun;
      cnt_q      <= '0;
      if (read) qpi_q <= qpi_d;
      if (req_valid_i) begin
        page_q    <= req_page_i;
        reg_q     <= req_reg_i;
        partial_q <= req_partial_i;
        data_q    <= req_data_i;
      end
      if (st_q == StJudge) begin
        pi_q      <= verdict.index;
        eff_qpi_q <= qpi_q;
        if (verdict.act.overrun || verdict.act.ignored) cnt_q[verdict.cnt] <= 1'b1;
      end
      if (cq_done && db_cq_rsp_i == 2'd1) cnt_q[CntDbCqBackward] <= 1'b1;
      if (cq_done && db_cq_rsp_i == 2'd2) cnt_q[CntDbCqBeyond] <= 1'b1;
    end
  end

  assign db_sq_valid_o = sq_valid_q;
  assign db_sq_qpi_o = eff_qpi_q;
  assign db_sq_pi_o = pi_q;
  assign db_rq_valid_o = rq_valid_q;
  assign db_rq_qpi_o = eff_qpi_q;
  assign db_rq_pi_o = pi_q[16:0];
  assign err_o = '{valid: overrun_q, qpi: eff_qpi_q};
  assign async_o = '{
          valid: overrun_q,
          kind: rq_reg_q ? AsyncRqOverrun : AsyncSqOverrun,
          number: 24'(eff_qpi_q) + 24'(FirstQpn)
      };
  assign cnt_o = cnt_q;

  logic unused;
  assign unused = ^{ctx_i, data_q[63:41]};

endmodule
