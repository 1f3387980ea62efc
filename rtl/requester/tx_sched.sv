// Transmit scheduler: one packet per grant, weighted round robin over the lanes (nic.md section 4), so that a long message
// blocks nobody. Starting a WQE takes a place in the outstanding table and assigns its PSNs; the local key is judged for
// the whole message before its first packet and again before each packet. Four cycles a packet:
// grant, WQE out of its queue, (MR check), decide; another lane's grant may fall into the decision.
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
  /// lane in the pipeline
  output logic [NumLane-1:0] busy_o,
  /// oldest unacknowledged PSN moved
  input  qp_pos_t            una_i,
  /// next WQE and PSN to issue moved
  output qp_pos_t            iss_o,
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
  output tx_job_t            job_o
);
  typedef enum logic [1:0] {StGrant, StHead, StCheck, StDecide} state_e;

  // per lane
  qp_t                     qpi_q  [NumLane];
  logic [2:0]              mtu_q  [NumLane];
  logic                    v2_q   [NumLane];
  idx_t                    ii_q   [NumLane];   // next WQE to start
  psn_t                    psn_q  [NumLane];   // next PSN to send
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
  logic                    first, last;
  logic [12:0]             pay;
  logic [63:0]             laddr, src_next;
  logic [LenW-1:0]         rem_next;
  psn_t                    num;                // packets of the message
  psn_t                    una;
  logic                    una_valid;
  psn_t                    una_start;

  logic                    chk_ok, chk_valid, unused_key_ok, unused_ready;
  logic [2:0]              job_count;
  logic [63:0]             chk_va;
  logic [31:0]             chk_len;
  logic                    decide, alive, window_ok, fail_now, send;
  logic [7:0]              fail_code;

  // ---------------------------------------------------------------- grant
  // A fence waits here once READs and atomics exist; WRITEs alone have nothing to wait for.
  always_comb begin
    for (int unsigned l = 0; l < NumLane; l++) begin
      full_o[l]     = (5'(ii_q[l][4:0] - ri_q[l]) >= 5'(MaxInflight));
      quantum_o[l]  = (sent_q[l] >= LaneQuantum);
      busy_o[l]     = (state_q != StGrant) && (lane_q == lane_t'(l));
      want[l]       = on_i[l] && have_i[l] && (mid_q[l] || !full_o[l]) && !busy_o[l];
    end
  end

  assign boundary_o = ~mid_q & ~busy_o & ~(grant ? NumLane'(1) << arb_lane : '0);

  wrr_arb #(.Num(NumLane)) i_arb (
    .clk_i, .rst_ni, .req_i(want), .sl_i(sl_q), .weight_i(sl_weight_i), .take_i(grant),
    .valid_o(arb_valid), .idx_o(arb_lane)
  );

  logic job_room;
  assign job_room    = (job_count <= 3'd2);
  assign grant       = (state_q == StGrant || decide) && arb_valid && job_room;
  assign head_en_o   = grant;
  assign head_lane_o = arb_lane;

  dyn_ram #(.T(psn_t), .Depth(NumQp)) i_una (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(una_i.valid), .wr_addr_i(una_i.qpi), .wr_data_i(una_i.psn),
    .rd_en_i(grant), .rd_addr_i(qpi_q[arb_lane]), .rd_valid_o(una_valid), .rd_data_o(una)
  );
  ctx_ram #(.T(psn_t), .Depth(NumQp)) i_una_start (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(ctx_i.qp.sq_psn),
    .rd_en_i(grant), .rd_addr_i(qpi_q[arb_lane]), .rd_data_o(una_start)
  );

  // ---------------------------------------------------------------- head: cut the packet, ask for the key
  tx_cut i_cut (
    .clk_i, .en_i(state_q == StHead), .mid_i(mid_q[lane_q]), .mtu_i(mtu_q[lane_q]), .len_i(head_i.len),
    .laddr_i(head_i.laddr), .rem_i(rem_q[lane_q]), .src_i(src_q[lane_q]), .chk_va_o(chk_va), .chk_len_o(chk_len),
    .first_o(first), .last_o(last), .pay_o(pay), .laddr_o(laddr), .rem_o(rem_next), .src_o(src_next), .num_o(num)
  );
  mr_check i_mr_check (
    .clk_i, .rst_ni, .ctx_i,
    .req_valid_i(state_q == StHead), .key_i(head_i.lkey), .is_remote_i(1'b0), .right_i(RightNone),
    .va_i(chk_va), .len_i(chk_len), .rsp_valid_o(chk_valid), .key_ok_o(unused_key_ok), .ok_o(chk_ok)
  );

  // ---------------------------------------------------------------- decide
  assign decide    = (state_q == StDecide);
  // the lane, its QP or the PSN window may have gone since the grant: then nothing happens
  assign alive     = decide && on_i[lane_q] && qp_ok_i[qpi_q[lane_q]];
  assign window_ok = (psn_q[lane_q] - (una_valid ? una : una_start)) < PsnWindow - psn_t'(1);
  assign fail_now  = alive && ((first && head_i.err != CqeOk) || !chk_ok);
  assign fail_code = (first && head_i.err != CqeOk) ? head_i.err : CqeLocalMr;
  assign send      = alive && !fail_now && window_ok;

  assign pop_o      = send && last;
  assign pop_lane_o = lane_q;

  // a failing WQE takes a place too: it completes there in its turn
  assign entry_en_o   = first && (send || fail_now);
  assign entry_slot_o = ii_q[lane_q][SlotW-1:0];
  // its PSN is never sent, so no ACK can cover it, whatever its length says
  assign entry_o      = '{
    wqe: head_i, first: psn_q[lane_q], last: fail_now ? psn_q[lane_q] : psn_q[lane_q] + num - psn_t'(1)
  };
  assign fail_o       = '{
    valid: fail_now, qpi: qpi_q[lane_q], code: fail_code,
    slot: first ? ii_q[lane_q][SlotW-1:0] : ii_q[lane_q][SlotW-1:0] - slot_t'(1)
  };
  assign iss_o = '{
    valid: send || fail_now, qpi: qpi_q[lane_q],
    idx: first ? idx_add(ii_q[lane_q], idx_t'(1), v2_q[lane_q]) : ii_q[lane_q],
    psn: send ? psn_q[lane_q] + psn_t'(1) : psn_q[lane_q]
  };

  tx_job_t job;
  always_comb begin
    job = '0;
    if (send) begin
      job.qpi      = qpi_q[lane_q];
      job.slot     = first ? ii_q[lane_q][SlotW-1:0] : ii_q[lane_q][SlotW-1:0] - slot_t'(1);
      job.psn      = psn_q[lane_q];
      job.ack_req  = last || (pkt_q[lane_q] == 4'(AckInterval - 1));
      job.has_reth = first;
      job.raddr    = head_i.raddr;
      job.rkey     = head_i.rkey;
      job.dma_len  = head_i.len;
      job.has_imm  = last && head_i.with_imm;
      job.imm      = head_i.imm;
      job.se       = last && head_i.with_imm && head_i.se;
      job.laddr    = laddr;
      job.pay_len  = pay;
      unique case ({first, last})
        2'b11:   job.bth = BthWriteOnly;
        2'b10:   job.bth = BthWriteFirst;
        2'b01:   job.bth = BthWriteLast;
        default: job.bth = BthWriteMiddle;
      endcase
    end
  end

  // the grant waits for room, so a packet that was decided always fits
  fifo #(.T(tx_job_t), .Depth(4)) i_jobs (
    .clk_i, .rst_ni, .in_valid_i(send), .in_ready_o(unused_ready), .in_data_i(job),
    .out_valid_o(job_valid_o), .out_ready_i(job_ready_i), .out_data_o(job_o), .count_o(job_count)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StGrant;
      lane_q  <= '0;
      mid_q   <= '0;
      sl_q    <= '0;
      for (int unsigned l = 0; l < NumLane; l++) begin
        {qpi_q[l], mtu_q[l], v2_q[l], ii_q[l], psn_q[l], ri_q[l], sent_q[l]} <= '0;
        {rem_q[l], src_q[l], pkt_q[l]} <= '0;
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
        ri_q[load_i.lane]   <= load_i.ri;
        mid_q[load_i.lane]  <= 1'b0;
        sl_q[load_i.lane]   <= load_i.sl;
        pkt_q[load_i.lane]  <= 4'd0;
        sent_q[load_i.lane] <= 5'd0;
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, load_i.sq_log, load_i.sq_base, load_i.pi, una_i.idx, head_i.ce,
                    head_i.fence, lane_retire_i.idx[IdxW-1:5]};

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
