// Transmit scheduler: one packet per grant, weighted round robin over the lanes (nic.md section 4), so that a long message
// blocks nobody. Starting a WQE takes a place in the outstanding table and assigns its PSNs; the local key is judged for
// the whole message before its first packet and again before each packet. Four cycles a packet:
// grant, WQE out of its queue, (MR check), decide; another lane's grant may fall into the decision. A packet whose time has
// not come (tx_gate) is decided again later. A QP that has to send again comes back on a lane that starts at the oldest
// unacknowledged PSN: its WQEs are fetched again, start again in the places that they have, and up to the highest PSN sent
// nothing is new to anybody else.
module tx_sched
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic               clk_i,
  /// asynchronous reset, active low
  input  logic               rst_ni,
  /// executed context commands
  input  ctx_wr_t            ctx_i,
  /// weight of each service level, 8 bits each
  input  logic [63:0]        sl_weight_i,
  /// QPs that may start new work
  input  logic [NumQp-1:0]   qp_ok_i,
  /// a lane is given to a QP
  input  lane_load_t         load_i,
  /// first index not retired of a lane's QP moved
  input  lane_idx_t          lane_retire_i,
  /// lanes that transmit
  input  logic [NumLane-1:0] on_i,
  /// lanes with a WQE at the head of their queue
  input  logic [NumLane-1:0] have_i,
  /// read the head of a lane's queue
  output logic               head_en_o,
  /// lane to read
  output lane_t              head_lane_o,
  /// head, one cycle after head_en_o
  input  wqe_t               head_i,
  /// the head of the lane in the pipeline is done with
  output logic               pop_o,
  /// lane of the removal
  output lane_t              pop_lane_o,
  /// lanes that could be left now
  output logic [NumLane-1:0] boundary_o,
  /// lanes whose QP has all its places in flight taken
  output logic [NumLane-1:0] full_o,
  /// lanes that sent their quantum of packets
  output logic [NumLane-1:0] quantum_o,
  /// lanes that wait for the end of a READ or atomic
  output logic [NumLane-1:0] hold_rd_o,
  /// lanes that wait for acknowledged PSNs
  output logic [NumLane-1:0] hold_psn_o,
  /// lane in the pipeline
  output logic [NumLane-1:0] busy_o,
  /// oldest unacknowledged PSN moved
  input  qp_pos_t            una_i,
  /// that move ended a READ or atomic
  input  logic               una_rd_i,
  /// next WQE and PSN to issue moved
  output qp_go_t             iss_o,
  /// what was to be sent again was acknowledged meanwhile
  output qp_retry_t          over_o,
  /// a WQE starts: entry of the outstanding table at iss_o's QP
  output logic               entry_en_o,
  /// place in the outstanding table
  output slot_t              entry_slot_o,
  /// entry
  output req_entry_t         entry_o,
  /// a WQE failed here: format, length, bus error or local key
  output qp_fail_t           fail_o,
  /// packet job
  output logic               job_valid_o,
  /// packet job accepted
  input  logic               job_ready_i,
  /// packet job
  output tx_job_t            job_o,
  /// a READ or atomic has started
  output logic               expect_valid_o,
  /// what it expects back
  output expect_t            expect_o
);
  typedef enum logic [1:0] {StGrant, StHead, StCheck, StDecide} state_e;

  // per lane
  qp_t [NumLane-1:0]       qpi_q;
  logic [2:0]              mtu_q  [NumLane];
  logic                    v2_q   [NumLane];
  idx_t                    ii_q   [NumLane];   // next WQE to start
  psn_t                    psn_q  [NumLane];   // next PSN to send
  psn_t                    high_q [NumLane];   // PSN behind the last one that was ever sent
  psn_t                    skip_q [NumLane];   // packets of the next WQE that are not sent again
  rd_num_t                 rd_q   [NumLane];   // READs and atomics started
  logic [4:0]              ri_q   [NumLane];   // low bits of the first index not retired
  logic [LenW-1:0]         rem_q  [NumLane];   // bytes left of the message in progress
  logic [63:0]             src_q  [NumLane];   // where they are
  logic [3:0]              pkt_q  [NumLane];   // packet index in the message modulo AckInterval
  logic [4:0]              sent_q [NumLane];   // packets since the lane was given, saturating
  logic [NumLane-1:0]      mid_q;              // message in progress
  logic [NumLane-1:0][2:0] sl_q;

  state_e                  state_q;
  lane_t                   lane_q;
  logic [NumLane-1:0]      want;
  logic                    arb_valid, grant;
  lane_t                   arb_lane;

  // the packet in the pipeline, cut in StHead
  logic                    first, last;        // first that is sent of the message now
  logic                    resumed, again, over;
  logic [31:0]             off;
  logic [12:0]             pay;
  logic [63:0]             laddr, src_next;
  logic [LenW-1:0]         rem_next;
  psn_t                    num;                // packets of the message
  psn_t                    step;               // PSNs that the packet takes
  logic                    fetches;            // READ or atomic

  logic                    chk_ok, chk_valid, unused_key_ok;
  logic [63:0]             chk_va;
  logic [31:0]             chk_len;
  logic                    job_room, decide, alive, go, none, bad, fail_now, send;
  logic [7:0]              fail_code;
  slot_t                   slot;
  psn_t                    last_psn, psn_next;

  // ---------------------------------------------------------------- grant
  always_comb begin
    for (int unsigned l = 0; l < NumLane; l++) begin
      // what is sent again has its place; if it has retired meanwhile, it lies behind ri_q
      full_o[l]     = (5'(ii_q[l][4:0] - ri_q[l]) >= 5'(MaxInflight)) && (psn_q[l] == high_q[l]);
      quantum_o[l]  = (sent_q[l] >= LaneQuantum);
      busy_o[l]     = (state_q != StGrant) && (lane_q == lane_t'(l));
      want[l]       = on_i[l] && have_i[l] && (mid_q[l] || !full_o[l]) && !busy_o[l] && !hold_rd_o[l] &&
                      !hold_psn_o[l];
    end
  end

  assign boundary_o = ~mid_q & ~busy_o & ~(grant ? NumLane'(1) << arb_lane : '0);

  wrr_arb #(.Num(NumLane)) i_arb (
    .clk_i, .rst_ni, .req_i(want), .sl_i(sl_q), .weight_i(sl_weight_i), .take_i(grant),
    .valid_o(arb_valid), .idx_o(arb_lane)
  );

  assign grant       = (state_q == StGrant || decide) && arb_valid && job_room;
  assign head_en_o   = grant;
  assign head_lane_o = arb_lane;

  // ---------------------------------------------------------------- head: cut the packet, ask for the key
  assign fetches = op_fetches(head_i.opcode);
  tx_cut i_cut (
    .clk_i, .en_i(state_q == StHead), .mid_i(mid_q[lane_q]), .skip_i(skip_q[lane_q]), .fetches_i(fetches),
    .mtu_i(mtu_q[lane_q]),
    .len_i(head_i.len), .laddr_i(head_i.laddr), .rem_i(rem_q[lane_q]), .src_i(src_q[lane_q]), .chk_va_o(chk_va),
    .chk_len_o(chk_len), .first_o(first), .last_o(last), .pay_o(pay), .laddr_o(laddr), .off_o(off),
    .rem_o(rem_next),
    .src_o(src_next), .num_o(num), .step_o(step)
  );
  mr_check i_mr_check (
    .clk_i, .rst_ni, .ctx_i,
    .req_valid_i(state_q == StHead), .key_i(head_i.lkey), .is_remote_i(1'b0),
    .right_i(fetches ? RightLocWrite : RightNone), .va_i(chk_va), .len_i(chk_len),
    .rsp_valid_o(chk_valid), .key_ok_o(unused_key_ok), .ok_o(chk_ok)
  );

  // ---------------------------------------------------------------- decide
  assign decide    = (state_q == StDecide);
  // the lane or its QP may have gone since the grant: then nothing happens
  assign alive     = decide && on_i[lane_q] && qp_ok_i[qpi_q[lane_q]];
  // what was acknowledged meanwhile is not judged: its slot may hold another WQE by now
  assign bad       = first && !over && (head_i.err != CqeOk || none);
  assign fail_now  = alive && (bad || (go && !chk_ok));
  assign fail_code = !bad ? CqeLocalMr : (head_i.err != CqeOk) ? head_i.err : CqeWqeFormat;
  assign send      = alive && !bad && go && chk_ok;
  assign resumed   = first && skip_q[lane_q] != '0;
  assign again     = psn_q[lane_q] != high_q[lane_q];
  assign slot      = first ? ii_q[lane_q][SlotW-1:0] : ii_q[lane_q][SlotW-1:0] - slot_t'(1);
  assign last_psn  = psn_q[lane_q] + num - psn_t'(1);

  tx_gate i_gate (
    .clk_i, .rst_ni, .ctx_i, .load_i, .qpi_i(qpi_q), .una_i, .una_rd_i, .grant_i(grant), .grant_lane_i(arb_lane),
    .lane_i(lane_q), .ask_i(alive && !bad), .fetches_i(fetches), .fence_i(head_i.fence), .psn_i(psn_q[lane_q]),
    .again_i(again), .step_i(step), .rd_i(rd_q[lane_q]), .go_o(go), .none_o(none), .over_o(over),
    .hold_rd_o, .hold_psn_o
  );
  assign over_o = '{valid: alive && over, qpi: qpi_q[lane_q], why: RetryOver, implied: 1'b0, code: '0};

  assign pop_o      = send && last;
  assign pop_lane_o = lane_q;

  // a failing WQE takes a place too: it completes there in its turn
  assign entry_en_o   = first && !resumed && (send || fail_now);
  assign entry_slot_o = slot;
  // its PSN is never sent, so no ACK can cover it, whatever its length says
  assign entry_o      = '{wqe: head_i, first: psn_q[lane_q], last: fail_now ? psn_q[lane_q] : last_psn};
  assign fail_o       = '{valid: fail_now, qpi: qpi_q[lane_q], code: fail_code, slot: slot};
  assign psn_next     = send ? psn_q[lane_q] + step : psn_q[lane_q];
  assign iss_o        = '{
    valid: send || fail_now, qpi: qpi_q[lane_q],
    idx: first ? idx_add(ii_q[lane_q], idx_t'(1), v2_q[lane_q]) : ii_q[lane_q],
    psn: psn_next,
    rd: rd_q[lane_q] + rd_num_t'(send && fetches),
    skip: '0, high: again ? high_q[lane_q] : psn_next, fresh: !again
  };

  tx_form i_form (
    .clk_i, .rst_ni, .send_i(send), .wqe_i(head_i), .qpi_i(qpi_q[lane_q]), .slot_i(slot), .psn_i(psn_q[lane_q]),
    .last_psn_i(last_psn), .first_i(first && !resumed), .last_i(last), .num_i(pkt_q[lane_q]), .off_i(off),
    .resumed_i(resumed), .laddr_i(laddr), .pay_i(pay),
    .room_o(job_room), .job_valid_o, .job_ready_i, .job_o, .expect_valid_o, .expect_o
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StGrant;
      lane_q  <= '0;
      mid_q   <= '0;
      sl_q    <= '0;
      for (int unsigned l = 0; l < NumLane; l++) begin
        {qpi_q[l], mtu_q[l], v2_q[l], ii_q[l], psn_q[l], rd_q[l], ri_q[l], sent_q[l]} <= '0;
        {rem_q[l], src_q[l], pkt_q[l], high_q[l], skip_q[l]} <= '0;
      end
    end else begin
      unique case (state_q)
        StHead:  state_q <= StCheck;
        StCheck: state_q <= StDecide;
        default: state_q <= StGrant;
      endcase
      if (grant) begin
        state_q <= StHead;
        lane_q  <= arb_lane;
      end

      if (iss_o.valid) ii_q[lane_q] <= iss_o.idx;
      if (send) begin
        psn_q[lane_q] <= iss_o.psn;
        high_q[lane_q] <= iss_o.high;
        skip_q[lane_q] <= '0;
        rd_q[lane_q]  <= iss_o.rd;
        mid_q[lane_q] <= !last;
        rem_q[lane_q] <= rem_next;
        src_q[lane_q] <= src_next;
        pkt_q[lane_q] <= last ? 4'd0 : pkt_q[lane_q] + 4'd1;
        if (!quantum_o[lane_q]) sent_q[lane_q] <= sent_q[lane_q] + 5'd1;
      end
      if (lane_retire_i.valid) ri_q[lane_retire_i.lane] <= lane_retire_i.idx[4:0];
      if (load_i.valid) begin
        qpi_q[load_i.lane]  <= load_i.qpi;
        mtu_q[load_i.lane]  <= load_i.mtu;
        v2_q[load_i.lane]   <= load_i.version2;
        ii_q[load_i.lane]   <= load_i.idx;
        psn_q[load_i.lane]  <= load_i.psn;
        rd_q[load_i.lane]   <= load_i.rd;
        ri_q[load_i.lane]   <= load_i.ri;
        mid_q[load_i.lane]  <= 1'b0;
        sl_q[load_i.lane]   <= load_i.sl;
        high_q[load_i.lane] <= load_i.high;
        skip_q[load_i.lane] <= load_i.skip;
        pkt_q[load_i.lane]  <= load_i.skip[3:0];
        sent_q[load_i.lane] <= 5'd0;
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, load_i.sq_log, load_i.sq_base, load_i.pi, lane_retire_i.idx[IdxW-1:5]};

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      // the check answers exactly when the packet is decided
      assert (!decide || chk_valid)
      else $error("tx_sched: no answer of the MR check");
    end
  end
  `endif  // SYNTHESIS
endmodule
