// Judges received packets in order and starts what they ask for: responses go to the requester, payload of WRITEs and of
// expected responses to scatter, READs and atomics to the table, answers to the queue that waits for the write responses
// (wire.md 5). A pipeline of three stages behind the read of the QP's state; a packet waits only while one of the same QP is
// in the pipeline, or while a queue behind it is nearly full.
module responder
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*;
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
    /// a packet of that QP is in the pipeline
    output logic             drain_busy_o,
    /// QPs that answered with a fatal NAK
    input  logic [NumQp-1:0] dead_i,
    /// packet that passed the checks without context
    input  logic             hdr_valid_i,
    /// the packet is taken
    output logic             hdr_ready_o,
    /// packet
    input  rx_hdr_t          hdr_i,
    /// the queues behind have room for what is in the pipeline and one more
    input  logic             room_i,
    /// the requester started a READ or atomic, always taken
    input  logic             expect_valid_i,
    /// what it expects back
    input  expect_t          expect_i,
    /// the requester will send READs and atomics again: what they expect is forgotten
    input  rewind_t          rewind_i,
    /// forgotten
    output logic             rewound_o,
    /// the bytes of a response could not be written
    input  logic             rsp_fail_valid_i,
    /// its QP
    input  qp_t              rsp_fail_qpi_i,
    /// QPs of whose receive queue something changed
    input  logic [NumQp-1:0] rq_marked_i,
    /// QPs whose next message has a receive WQE
    input  logic [NumQp-1:0] rq_ready_i,
    /// QPs whose next receive WQE was read
    input  logic [NumQp-1:0] rq_loaded_i,
    /// read the next receive WQE of a QP
    output logic             rq_look_o,
    /// that QP
    output qp_t              rq_look_qpi_o,
    /// next receive WQE, one cycle later
    input  rq_wqe_t          rq_next_i,
    /// a message takes a receive WQE
    output rq_move_t         rq_take_o,
    /// packet whose place in the table or saved result is asked for
    output resp_ask_t        ask_o,
    /// what is known of it
    input  resp_seen_t       seen_i,
    /// its saved result, one cycle later
    input  logic [63:0]      saved_i,
    /// QP of the packet that waits
    output qp_t              amo_look_qpi_o,
    /// it has an atomic that is not executed yet
    input  logic             amo_look_i,
    /// READ or atomic for the table of QP done_o.qpi
    output logic             entry_valid_o,
    /// READ or atomic for the table
    output resp_entry_t      entry_o,
    /// response for the requester
    output logic             rsp_valid_o,
    /// response for the requester
    output rsp_evt_t         rsp_o,
    /// write bursts of its bytes
    output logic [1:0]       rsp_bursts_o,
    /// buffered payload to write or to skip
    output logic             move_valid_o,
    /// its target
    output logic [63:0]      move_addr_o,
    /// payload bytes to lanes, but for the target's lanes and page
    output realign_cmd_t     move_o,
    /// what waits for write responses of inbound WRITEs
    output logic             done_valid_o,
    /// what waits for write responses of inbound WRITEs
    output rx_done_t         done_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  // ------------------------------------------------------------------ P0: read context, state, expected response
  logic        known, hazard, behind, start;
  logic [23:0] qpn_off;
  qp_t         qpi;
  resp_ctx_t   set_ctx, ctx;
  resp_state_t state_mem, state, next, next_q, next_qq, state_q, state_qq, write_state;
  logic        expected;
  expect_t     expect_entry;
  psn_t        expect_psn;

  logic        p1_q, p2_q, p3_q, known_q, fresh_q1, rq_ready_q, in_rts, rq_wait, recv_take;
  rq_idx_t     p2_rq_q, p3_rq_q;
  qp_t         p1_qpi_q, p2_qpi_q, p3_qpi_q;
  rx_hdr_t     p1_hdr_q, p2_hdr_q, p3_hdr_q;
  logic [2:0]  p2_mtu_q, p3_mtu_q;
  logic [63:0] saved_q;
  resp_act_t   rsp_act, act, act_q, act_qq;
  logic        execute, fatal, take, fail;
  logic        live, mr_req, mr_valid, mr_key_ok, mr_ok, write_en;
  logic [NumQp-1:0] fresh_q, nak_q;  // state not yet written since set; fatal NAK given
  logic [NumQp-1:0] ahead_q;         // told of a response beyond the expected one
  logic        rewind, rewound_q, tell_ahead;

  assign qpn_off = hdr_i.dest_qpn - 24'(FirstQpn);
  assign known   = qpn_off < 24'(NumQp);
  assign qpi     = qp_t'(qpn_off);
  assign hazard  = (p1_q && p1_qpi_q == qpi) || (p2_q && p2_qpi_q == qpi) || (p3_q && p3_qpi_q == qpi);
  // inbound data of a QP becomes visible in PSN order: a WRITE waits for the atomics before it
  assign amo_look_qpi_o = qpi;
  assign in_rts  = known && qp_rts_i[qpi] && !nak_q[qpi] && !dead_i[qpi] && !(drain_i.valid && drain_i.qpi == qpi);
  assign behind  = in_rts && amo_look_i && is_write(hdr_i.bth);
  // a message that needs a receive WQE waits while it is not known whether there is one, a SEND until it was read
  assign rq_wait = in_rts && takes_recv(hdr_i.bth) &&
                   (rq_marked_i[qpi] || (rq_ready_i[qpi] && !rq_loaded_i[qpi] && is_send(hdr_i.bth)));
  assign start   = hdr_valid_i && room_i && !hazard && !behind && !rq_wait;
  assign rq_look_o     = start;
  assign rq_look_qpi_o = qpi;
  assign hdr_ready_o = start;

  assign set_ctx = '{
      mtu: ctx_i.qp.mtu, rem_write: ctx_i.qp.rem_write, rem_read: ctx_i.qp.rem_read, rem_atomic: ctx_i.qp.rem_atomic,
      max_dest_rd: ctx_i.qp.max_dest_rd, peer_ip: ctx_i.qp.peer_ip, rq_psn: ctx_i.qp.rq_psn
  };
  ctx_ram #(.T(resp_ctx_t), .Depth(NumQp)) i_ctx (
      .clk_i, .wr_en_i(ctx_i.qp_set || ctx_i.qp_modify), .wr_addr_i(ctx_i.qpi), .wr_data_i(set_ctx),
      .rd_en_i(start), .rd_addr_i(qpi), .rd_data_o(ctx)
  );
  ctx_ram #(.T(resp_state_t), .Depth(NumQp)) i_state (
      .clk_i, .wr_en_i(write_en), .wr_addr_i(p3_qpi_q), .wr_data_i(write_state),
      .rd_en_i(start), .rd_addr_i(qpi), .rd_data_o(state_mem)
  );
  // responses are taken at the end of the pipeline: none of that QP may be in it
  assign rewind = rewind_i.valid && !rewound_q && !(start && qpi == rewind_i.qpi) &&
                  !((p1_q && p1_qpi_q == rewind_i.qpi) || (p2_q && p2_qpi_q == rewind_i.qpi) ||
                    (p3_q && p3_qpi_q == rewind_i.qpi));
  assign rewound_o = rewound_q;
  // the first response beyond the expected one tells of a loss, the others only of the same one
  assign tell_ahead = p3_q && act_qq.kind == ActRspAhead && !ahead_q[p3_qpi_q];

  rd_expect i_expect (
      .clk_i, .rst_ni, .ctx_i, .expect_valid_i, .expect_i, .look_valid_i(start), .look_qpi_i(qpi),
      .found_o(expected), .entry_o(expect_entry), .psn_o(expect_psn),
      .take_valid_i(take), .take_qpi_i(p3_qpi_q), .take_psn_i(p3_hdr_q.psn + 24'd1), .take_last_i(act_qq.last),
      .fail_valid_i(fail), .fail_qpi_i(p3_qpi_q), .rewind_valid_i(rewind), .rewind_qpi_i(rewind_i.qpi),
      .bus_valid_i(rsp_fail_valid_i), .bus_qpi_i(rsp_fail_qpi_i)
  );

  // ------------------------------------------------------------------ P1: rules, request to the region check
  // a QP that was programmed starts from its context; its entry in the state memory is old
  always_comb begin
    state = state_mem;
    if (fresh_q1) begin
      state     = '0;
      state.psn = ctx.rq_psn;
    end
  end
  assign live = known_q && qp_rts_i[p1_qpi_q] && !nak_q[p1_qpi_q] && !dead_i[p1_qpi_q] &&
                !(drain_i.valid && drain_i.qpi == p1_qpi_q);
  assign ask_o = '{qpi: p1_qpi_q, psn: p1_hdr_q.psn, depth: ctx.max_dest_rd};

  rsp_rules i_rsp_rules (
      .valid_i(p1_q && is_response(p1_hdr_q.bth)), .hdr_i(p1_hdr_q), .mtu_i(ctx.mtu), .found_i(expected),
      .expect_i(expect_entry), .psn_i(expect_psn), .act_o(rsp_act)
  );
  resp_rules i_rules (
      .valid_i(p1_q), .hdr_i(p1_hdr_q), .live_i(live), .ctx_i(ctx), .state_i(state), .seen_i,
      .rq_ready_i(rq_ready_q), .rq_i(rq_next_i), .rsp_i(rsp_act),
      .act_o(act), .next_o(next)
  );

  assign mr_req = p1_q && act.kind inside {ActWrite, ActRead, ActAtomic, ActData};
  mr_check i_mr_check (
      .clk_i, .rst_ni, .ctx_i, .req_valid_i(mr_req), .key_i(act.key), .is_remote_i(act.remote), .right_i(act.right),
      .va_i(act.addr), .len_i(act.mr_len), .rsp_valid_o(mr_valid), .key_ok_o(mr_key_ok), .ok_o(mr_ok)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      p1_q    <= 1'b0;
      p2_q    <= 1'b0;
      p3_q    <= 1'b0;
      fresh_q <= '1;
      nak_q   <= '0;
      ahead_q <= '0;
      rewound_q <= 1'b0;
    end else begin
      rewound_q <= rewind_i.valid && (rewind || rewound_q);
      if (tell_ahead) ahead_q[p3_qpi_q] <= 1'b1;
      if (take) ahead_q[p3_qpi_q] <= 1'b0;
      p1_q <= start;
      p2_q <= p1_q;
      p3_q <= p2_q;
      if (write_en) fresh_q[p3_qpi_q] <= 1'b0;
      if (fatal) nak_q[p3_qpi_q] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        fresh_q[ctx_i.qpi] <= 1'b1;
        nak_q[ctx_i.qpi]   <= 1'b0;
        ahead_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (start) begin
      p1_hdr_q <= hdr_i;
      p1_qpi_q <= qpi;
      known_q  <= known;
      fresh_q1 <= fresh_q[qpi];
      rq_ready_q <= rq_ready_i[qpi];
    end
    if (p1_q) begin
      p2_hdr_q <= p1_hdr_q;
      p2_qpi_q <= p1_qpi_q;
      p2_mtu_q <= ctx.mtu;
      act_q    <= act;
      next_q   <= next;
      state_q  <= state;
      p2_rq_q  <= rq_next_i.idx + 17'd1;
    end
    if (p2_q) begin
      p3_hdr_q <= p2_hdr_q;
      p3_qpi_q <= p2_qpi_q;
      p3_mtu_q <= p2_mtu_q;
      saved_q  <= saved_i;
      act_qq   <= act_q;
      next_qq  <= next_q;
      state_qq <= state_q;
      p3_rq_q  <= p2_rq_q;
    end
  end

  // ------------------------------------------------------------------ P3: the region's verdict is here; act
  resp_emit i_emit (
      .valid_i(p3_q), .qpi_i(p3_qpi_q), .hdr_i(p3_hdr_q), .act_i(act_qq),
      .mr_ok_i(mr_valid && (act_qq.whole ? mr_ok : mr_key_ok)), .mtu_i(p3_mtu_q), .state_i(state_qq), .next_i(next_qq),
      .tell_ahead_i(tell_ahead), .value_i(saved_q),
      .execute_o(execute), .fatal_o(fatal), .recv_take_o(recv_take), .take_o(take), .fail_o(fail),
      .move_valid_o, .move_o, .done_valid_o, .done_o, .entry_valid_o, .entry_o, .rsp_valid_o, .rsp_o, .rsp_bursts_o,
      .cnt_o
  );
  assign move_addr_o = act_qq.addr;
  assign rq_take_o   = '{valid: recv_take, qpi: p3_qpi_q, idx: p3_rq_q};

  always_comb begin
    write_en    = execute || (p3_q && act_qq.kind inside {ActAhead, ActNotReady});
    write_state = next_qq;
    if (!execute) write_state.nak_sent = 1'b1;
  end

  assign drain_busy_o = drain_i.valid && ((p1_q && p1_qpi_q == drain_i.qpi) || (p2_q && p2_qpi_q == drain_i.qpi) ||
                                          (p3_q && p3_qpi_q == drain_i.qpi));

  logic unused_bits;
  assign unused_bits = ^ctx_i;

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni && p3_q && act_qq.dup) begin
      assert (!write_en && next_qq == state_qq)
      else $error("responder: a duplicate moves the state of its QP");
    end
  end
  `endif  // SYNTHESIS
endmodule
