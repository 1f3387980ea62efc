// Judges received packets in order and starts what they ask for: responses go to the requester, WRITEs to scatter, answers
// to the queue that waits for the write responses (wire.md 5). A pipeline of three stages behind the read of the QP's
// state; a packet waits only while one of the same QP is in the pipeline, or while a queue behind it is nearly full.
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
    /// QPs whose inbound WRITE failed
    input  logic [NumQp-1:0] dead_i,
    /// packet that passed the checks without context
    input  logic             hdr_valid_i,
    /// the packet is taken
    output logic             hdr_ready_o,
    /// packet
    input  rx_hdr_t          hdr_i,
    /// the queues behind have room for what is in the pipeline and one more
    input  logic             room_i,
    /// response for the requester
    output logic             rsp_valid_o,
    /// response for the requester
    output rsp_evt_t         rsp_o,
    /// buffered payload to write or to skip
    output logic             move_valid_o,
    /// its target
    output logic [63:0]      move_addr_o,
    /// payload bytes to lanes, but for the target's lanes and page
    output realign_cmd_t     move_o,
    /// answer that waits for write responses
    output logic             done_valid_o,
    /// answer that waits for write responses
    output rx_done_t         done_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  // ------------------------------------------------------------------ P0: read context and state
  logic        known, hazard, start;
  logic [23:0] qpn_off;
  qp_t         qpi;
  resp_ctx_t   set_ctx, ctx;
  resp_state_t state_mem, state, next, next_q, next_qq, state_q, state_qq, write_state;

  logic        p1_q, p2_q, p3_q, known_q, fresh_q1;
  qp_t         p1_qpi_q, p2_qpi_q, p3_qpi_q;
  rx_hdr_t     p1_hdr_q, p2_hdr_q, p3_hdr_q;
  resp_act_t   act, act_q, act_qq;
  logic        execute, refused, fatal;
  logic        live, mr_req, mr_valid, mr_key_ok, mr_ok, write_en;
  logic [NumQp-1:0] fresh_q, nak_q;  // state not yet written since set; fatal NAK given

  assign qpn_off = hdr_i.dest_qpn - 24'(FirstQpn);
  assign known   = qpn_off < 24'(NumQp);
  assign qpi     = qp_t'(qpn_off);
  assign hazard  = (p1_q && p1_qpi_q == qpi) || (p2_q && p2_qpi_q == qpi) || (p3_q && p3_qpi_q == qpi);
  assign start   = hdr_valid_i && room_i && !hazard;
  assign hdr_ready_o = start;

  assign set_ctx = '{
      mtu: ctx_i.qp.mtu, rem_write: ctx_i.qp.rem_write, peer_ip: ctx_i.qp.peer_ip, rq_psn: ctx_i.qp.rq_psn
  };
  ctx_ram #(.T(resp_ctx_t), .Depth(NumQp)) i_ctx (
      .clk_i, .wr_en_i(ctx_i.qp_set || ctx_i.qp_modify), .wr_addr_i(ctx_i.qpi), .wr_data_i(set_ctx),
      .rd_en_i(start), .rd_addr_i(qpi), .rd_data_o(ctx)
  );
  ctx_ram #(.T(resp_state_t), .Depth(NumQp)) i_state (
      .clk_i, .wr_en_i(write_en), .wr_addr_i(p3_qpi_q), .wr_data_i(write_state),
      .rd_en_i(start), .rd_addr_i(qpi), .rd_data_o(state_mem)
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

  resp_rules i_rules (
      .valid_i(p1_q), .hdr_i(p1_hdr_q), .live_i(live), .ctx_i(ctx), .state_i(state), .act_o(act), .next_o(next)
  );

  assign mr_req = p1_q && act.kind == ActExecute;
  mr_check i_mr_check (
      .clk_i, .rst_ni, .ctx_i, .req_valid_i(mr_req), .key_i(act.rkey), .is_remote_i(1'b1), .right_i(RightRemWrite),
      .va_i(act.addr), .len_i(act.mr_len), .rsp_valid_o(mr_valid), .key_ok_o(mr_key_ok), .ok_o(mr_ok)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      p1_q    <= 1'b0;
      p2_q    <= 1'b0;
      p3_q    <= 1'b0;
      fresh_q <= '1;
      nak_q   <= '0;
    end else begin
      p1_q <= start;
      p2_q <= p1_q;
      p3_q <= p2_q;
      if (write_en) fresh_q[p3_qpi_q] <= 1'b0;
      if (fatal) nak_q[p3_qpi_q] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        fresh_q[ctx_i.qpi] <= 1'b1;
        nak_q[ctx_i.qpi]   <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (start) begin
      p1_hdr_q <= hdr_i;
      p1_qpi_q <= qpi;
      known_q  <= known;
      fresh_q1 <= fresh_q[qpi];
    end
    if (p1_q) begin
      p2_hdr_q <= p1_hdr_q;
      p2_qpi_q <= p1_qpi_q;
      act_q    <= act;
      next_q   <= next;
      state_q  <= state;
    end
    if (p2_q) begin
      p3_hdr_q <= p2_hdr_q;
      p3_qpi_q <= p2_qpi_q;
      act_qq   <= act_q;
      next_qq  <= next_q;
      state_qq <= state_q;
    end
  end

  // ------------------------------------------------------------------ P3: the region's verdict is here; act
  assign execute = p3_q && act_qq.kind == ActExecute && mr_valid && (act_qq.whole ? mr_ok : mr_key_ok);
  assign refused = p3_q && act_qq.kind == ActExecute && !execute;
  assign fatal   = refused || (p3_q && act_qq.kind == ActInvalid);

  always_comb begin
    write_en    = execute || (p3_q && act_qq.kind == ActAhead);
    write_state = next_qq;
    if (!execute) write_state.nak_sent = 1'b1;
  end

  rsp_kind_e rsp_kind;
  always_comb begin
    unique case (p3_hdr_q.syndrome[7:5])
      3'b000:  rsp_kind = RspAck;
      3'b001:  rsp_kind = RspRnr;
      default: rsp_kind = RspNak;
    endcase
    // nobody waits for READ responses and atomic acknowledgements yet
    if (p3_hdr_q.bth != BthAck) rsp_kind = RspData;
  end
  assign rsp_valid_o = p3_q && act_qq.kind == ActResponse;
  assign rsp_o = '{
      qpi: p3_qpi_q, kind: rsp_kind, psn: p3_hdr_q.psn, syndrome: p3_hdr_q.syndrome, msn: p3_hdr_q.msn,
      slot: '0, last: 1'b0, fail: CqeOk
  };

  assign move_valid_o = p3_q && p3_hdr_q.beats != '0;
  assign move_addr_o  = act_qq.addr;
  assign move_o = '{
      skip: !execute, result: 1'b0, src_beats: p3_hdr_q.beats, src_off: p3_hdr_q.pay_off, dst_off: act_qq.addr[5:0],
      dst_beat: act_qq.addr[11:6], len: p3_hdr_q.pay_len
  };

  // answers: ACK of this packet, ACK of what is before the expected one (duplicate), NAK 0 for the expected one, fatal NAKs
  logic [12:0] page_end;
  assign page_end = 13'(act_qq.addr[11:0]) + p3_hdr_q.pay_len;
  always_comb begin
    done_o = '0;
    if (p3_q) begin
      done_o.qpi      = p3_qpi_q;
      done_o.ack      = act_qq.ack || fatal;
      done_o.fatal    = fatal;
      done_o.syndrome = SynAck;
      done_o.psn      = p3_hdr_q.psn;
      done_o.pkt_psn  = p3_hdr_q.psn;
      done_o.msn      = execute ? next_qq.msn : state_qq.msn;
      done_o.msn_step = execute && next_qq.msn != state_qq.msn;
      // 4096 bytes cross at most one page end
      if (execute && p3_hdr_q.pay_len != '0) done_o.bursts = (page_end > 13'd4096) ? 2'd2 : 2'd1;
      unique case (act_qq.kind)
        ActDuplicate: done_o.psn = state_qq.psn - 24'd1;
        ActAhead: begin
          done_o.syndrome = SynNakSeq;
          done_o.psn      = state_qq.psn;
        end
        ActInvalid: done_o.syndrome = SynNakInv;
        ActExecute: if (refused) done_o.syndrome = SynNakAcc;
        default: ;
      endcase
    end
  end
  assign done_valid_o = p3_q && (done_o.ack || done_o.bursts != '0);

  always_comb begin
    cnt_o = '0;
    if (p3_q) begin
      cnt_o[CntDropQp]       = act_qq.kind == ActDropQp;
      cnt_o[CntDropIpSrc]    = act_qq.kind == ActDropIpSrc;
      cnt_o[CntDropSyndrome] = act_qq.kind == ActDropSyndrome;
      cnt_o[CntDuplicate]    = act_qq.kind == ActDuplicate;
      cnt_o[CntPsnAhead]     = act_qq.kind == ActAhead;
      // so that exactly one counter shows each frame (nic.md 7)
      cnt_o[CntRxPacket]     = act_qq.kind inside {ActResponse, ActInvalid, ActExecute};
    end
  end

  assign drain_busy_o = drain_i.valid && ((p1_q && p1_qpi_q == drain_i.qpi) || (p2_q && p2_qpi_q == drain_i.qpi) ||
                                          (p3_q && p3_qpi_q == drain_i.qpi));

  logic unused_bits;
  assign unused_bits = (^ctx_i) ^ (^p3_hdr_q) ^ (^act_qq) ^ (^state_qq);
endmodule
