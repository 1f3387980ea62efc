// Events of completion queues (nic.md section 6): arms and the CQ events that they fire, and the overrun of a CQ, by a
// completion that waited too long or a CQE that the memory refused: asynchronous event, then every QP that completes to
// the CQ goes to ERR, one QP a cycle.
module cq_event
  import rnic_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs in RTS
  input  logic [NumQp-1:0] qp_rts_i,
  /// an accepted doorbell arms a CQ
  input  logic             arm_valid_i,
  /// CQ to arm
  input  cq_t              arm_cqn_i,
  /// only for solicited or error CQEs
  input  logic             arm_solicit_i,
  /// a CQE was answered
  input  logic             done_valid_i,
  /// its CQ
  input  cq_t              done_cqn_i,
  /// it is an error CQE
  input  logic             done_solicit_i,
  /// its write failed
  input  logic             done_err_i,
  /// a completion waited too long
  input  logic             timeout_valid_i,
  /// its CQ
  input  cq_t              timeout_cqn_i,
  /// a CQ event fires
  output logic             set_valid_o,
  /// its CQ
  output cq_t              set_cqn_o,
  /// CQs that take no CQE until programmed again
  output logic [NumCq-1:0] overrun_o,
  /// asynchronous event
  output async_evt_t       async_o,
  /// hold the QPs' changes to ERR for a cycle
  input  logic             hold_i,
  /// a QP has to go to ERR
  output qp_err_evt_t      err_o,
  /// a CQ went into overrun by time
  output logic             cnt_overrun_o,
  /// a CQE write failed
  output logic             cnt_bus_o
);
  /// the CQs of a QP
  typedef struct packed {
    cq_t send;
    cq_t recv;
  } cqs_t;

  logic [NumCq-1:0] arm_q, arm_sol_q, overrun_q;
  // overruns whose consequences are still to come, and whether a bus error caused them
  logic [NumCq-1:0] todo_q, bus_q;
  logic             todo_valid, todo_take;
  cq_t              todo_cqn, walk_cqn_q;

  logic             walk_q, look_q, step;
  qp_t              qpi_q, look_qpi_q;
  cqs_t             cqs, cqs_new;
  logic             match, bus_lost, late;

  assign overrun_o = overrun_q;

  // ---------------------------------------------------------------- arms
  assign set_valid_o = done_valid_i && !done_err_i && arm_q[done_cqn_i] && (!arm_sol_q[done_cqn_i] || done_solicit_i);
  assign set_cqn_o   = done_cqn_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      arm_q     <= '0;
      arm_sol_q <= '0;
    end else begin
      if (set_valid_o) arm_q[done_cqn_i] <= 1'b0;
      // an arm in the cycle of a response is younger than that CQE
      if (arm_valid_i) begin
        arm_q[arm_cqn_i]     <= 1'b1;
        arm_sol_q[arm_cqn_i] <= arm_solicit_i;
      end
      if (ctx_i.cq_set) arm_q[ctx_i.cqn] <= 1'b0;
    end
  end

  // ---------------------------------------------------------------- overruns
  assign bus_lost = done_valid_i && done_err_i && !overrun_q[done_cqn_i];
  assign late     = timeout_valid_i && !overrun_q[timeout_cqn_i] && !(bus_lost && done_cqn_i == timeout_cqn_i);
  assign cnt_bus_o     = done_valid_i && done_err_i;
  assign cnt_overrun_o = late;

  rr_pick #(.Num(NumCq)) i_todo (
    .clk_i, .rst_ni, .req_i(todo_q), .take_i(todo_take), .valid_o(todo_valid), .idx_o(todo_cqn)
  );
  assign todo_take = todo_valid && !walk_q && !look_q;

  always_comb begin
    async_o = '0;
    if (todo_take) begin
      async_o.valid  = 1'b1;
      async_o.kind   = bus_q[todo_cqn] ? AsyncCqeBusErr : AsyncCqOverrun;
      async_o.number = 24'(todo_cqn);
    end
  end

  // walk over all QPs: read one, then judge it; a cycle in which err_o is taken otherwise is repeated
  assign cqs_new = '{send: ctx_i.qp.send_cq, recv: ctx_i.qp.recv_cq};
  assign step    = !(look_q && match && hold_i);
  ctx_ram #(.T(cqs_t), .Depth(NumQp)) i_cqs (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(cqs_new),
    .rd_en_i(walk_q && step), .rd_addr_i(qpi_q), .rd_data_o(cqs)
  );
  assign match = qp_rts_i[look_qpi_q] && (cqs.send == walk_cqn_q || cqs.recv == walk_cqn_q);
  assign err_o = '{valid: look_q && match && !hold_i, qpi: look_qpi_q};

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      overrun_q  <= '0;
      todo_q     <= '0;
      bus_q      <= '0;
      walk_q     <= 1'b0;
      look_q     <= 1'b0;
      qpi_q      <= '0;
      look_qpi_q <= '0;
      walk_cqn_q <= '0;
    end else begin
      if (todo_take) begin
        todo_q[todo_cqn] <= 1'b0;
        walk_q           <= 1'b1;
        qpi_q            <= '0;
        walk_cqn_q       <= todo_cqn;
      end else if (step) begin
        look_q     <= walk_q;
        look_qpi_q <= qpi_q;
        if (walk_q) begin
          qpi_q  <= qpi_q + qp_t'(1);
          walk_q <= (qpi_q != qp_t'(NumQp - 1));
        end
      end
      if (bus_lost) begin
        overrun_q[done_cqn_i] <= 1'b1;
        todo_q[done_cqn_i]    <= 1'b1;
        bus_q[done_cqn_i]     <= 1'b1;
      end
      if (late) begin
        overrun_q[timeout_cqn_i] <= 1'b1;
        todo_q[timeout_cqn_i]    <= 1'b1;
        bus_q[timeout_cqn_i]     <= 1'b0;
      end
      if (ctx_i.cq_set) overrun_q[ctx_i.cqn] <= 1'b0;
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i};
endmodule
