// Gathers the payload of requests and READ responses from memory (ID 1) and hands whole packets to the framer, in order. A
// packet is stored whole before it leaves, so a read error never leaves a truncated packet: the packet is dropped and
// reported, and so are the requests of its QP from that PSN on, or all later READ responses of its QP, until the QP is
// programmed or reset (nic.md 5). An error on one side of a QP leaves the other one alone.
module gather
  import rnic_pkg::*, dp_pkg::*;
#(
    /// beats in the buffer: 512 are 32 KiB in flight, enough for 200 cycles of memory latency (nic.md 8)
    parameter int unsigned Depth = 512,
    /// packets in flight
    parameter int unsigned Packets = 128
) (
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
    /// packets of that QP are still held
    output logic             drain_busy_o,
    /// the invalidation of a region waits
    input  logic             mr_drain_i,
    /// reads that the old entry allowed are still to come
    output logic             mr_drain_busy_o,
    /// packet from the requester, or READ response
    input  logic             job_valid_i,
    /// the packet is taken
    output logic             job_ready_o,
    /// packet
    input  tx_job_t          job_i,
    /// read burst
    output logic             req_valid_o,
    /// the burst is taken
    input  logic             req_ready_i,
    /// read burst
    output rd_req_t          req_o,
    /// read data, always taken
    input  logic             beat_valid_i,
    /// read data
    input  rd_beat_t         beat_i,
    /// packet for the framer; its payload follows on the payload port
    output logic             pkt_valid_o,
    /// the packet is taken
    input  logic             pkt_ready_i,
    /// packet
    output tx_job_t          pkt_o,
    /// payload from lane 0, zero behind the last byte
    output logic             pay_valid_o,
    /// the payload beat is taken
    input  logic             pay_ready_i,
    /// payload beat
    output pay_beat_t        pay_o,
    /// a request packet met a bus error
    output logic             gerr_valid_o,
    /// its QP
    output qp_t              gerr_qpi_o,
    /// its place in the outstanding-request table
    output slot_t            gerr_slot_o,
    /// a READ response met a bus error
    output logic             rerr_valid_o,
    /// its QP
    output qp_t              rerr_qpi_o,
    /// its PSN
    output psn_t             rerr_psn_o,
    /// its MSN
    output logic [23:0]      rerr_msn_o,
    /// a READ response left: the framer has it, or it was dropped
    output logic             rsp_out_valid_o,
    /// its QP
    output qp_t              rsp_out_qpi_o,
    /// a read burst ended with an error, whatever becomes of its packet (nic.md 7)
    output logic             bus_err_o
);
  localparam int unsigned AddrW = $clog2(Depth);
  typedef struct packed {
    logic    dead;               // dropped at its turn
    beats_t  beats;
    tx_job_t job;
  } entry_t;

  // ------------------------------------------------------------------ bursts out
  logic    burst_valid, burst_last, start, start_ready;
  entry_t  start_entry;
  beats_t  freed;
  logic    taken, issue_idle;

  gather_issue #(.Depth(Depth)) i_issue (
      .clk_i, .rst_ni, .qp_rts_i, .drain_i, .job_valid_i, .job_ready_o, .job_i, .req_valid_o, .req_ready_i, .req_o,
      .burst_valid_o(burst_valid), .burst_last_o(burst_last),
      .pkt_valid_o(start), .pkt_ready_i(start_ready), .pkt_o(start_entry.job), .pkt_beats_o(start_entry.beats),
      .pkt_dead_o(start_entry.dead), .taken_o(taken), .idle_o(issue_idle),
      .release_i(freed)
  );

  // ------------------------------------------------------------------ data in
  logic              is_final, err_q, unused_burst_ready, unused_burst_valid, unused_done_ready;
  logic              done, done_err, head_done, head_err, pop_done;
  logic [AddrW-1:0]  wr_q, rd_addr;
  logic              rd_en;
  data_t             rd_data;

  // packets that are held: those of the queue of entries, those on their way out of it, and the one at its end
  localparam int unsigned Held = Packets + 8;
  logic [$clog2(2*Held+1)-1:0]  unused_burst_count;
  logic [$clog2(Held+1)-1:0]    unused_done_count;
  logic [$clog2(Packets+1)-1:0] unused_entries;

  // at most two bursts a packet are on their way, so the queue never fills
  fifo #(.T(logic), .Depth(2 * Held), .Fits(1'b1)) i_bursts (
      .clk_i, .rst_ni, .in_valid_i(burst_valid), .in_ready_o(unused_burst_ready), .in_data_i(burst_last),
      .out_valid_o(unused_burst_valid), .out_ready_i(beat_valid_i && beat_i.last), .out_data_o(is_final),
      .count_o(unused_burst_count)
  );

  ram_sdp #(.T(data_t), .Depth(Depth)) i_buffer (
      .clk_i, .wr_en_i(beat_valid_i), .wr_addr_i(wr_q), .wr_data_i(beat_i.data),
      .rd_en_i(rd_en), .rd_addr_i(rd_addr), .rd_data_o(rd_data)
  );

  logic burst_err_q;

  assign done     = beat_valid_i && beat_i.last && is_final;
  assign done_err = err_q || beat_i.err;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q        <= '0;
      err_q       <= 1'b0;
      burst_err_q <= 1'b0;
      bus_err_o   <= 1'b0;
    end else begin
      bus_err_o <= beat_valid_i && beat_i.last && (burst_err_q || beat_i.err);
      if (beat_valid_i) begin
        wr_q        <= wr_q + AddrW'(1);
        err_q       <= !done && (err_q || beat_i.err);
        burst_err_q <= !beat_i.last && (burst_err_q || beat_i.err);
      end
    end
  end

  fifo #(.T(logic), .Depth(Held), .Fits(1'b1)) i_done (
      .clk_i, .rst_ni, .in_valid_i(done), .in_ready_o(unused_done_ready), .in_data_i(done_err),
      .out_valid_o(head_done), .out_ready_i(pop_done), .out_data_o(head_err), .count_o(unused_done_count)
  );

  // ------------------------------------------------------------------ whole packets out
  entry_t            head, pkt_q;
  logic              head_valid, advance, pkt_valid_q, whole, can, leave, drop, fail, move_ready;
  logic              is_rsp, req_blocked, blocked;
  logic [NumQp-1:0]  blocked_q, rsp_blocked_q;
  psn_t              blocked_psn;
  realign_cmd_t      move;
  realign_beat_t     moved;

  ram_fifo #(.T(entry_t), .Depth(Packets)) i_entries (
      .clk_i, .rst_ni, .in_valid_i(start), .in_ready_o(start_ready), .in_data_i(start_entry),
      .out_valid_o(head_valid), .out_ready_i(advance), .out_data_o(head), .count_o(unused_entries)
  );

  // PSN of the request that failed: earlier PSNs may still be sent (again)
  ctx_ram #(.T(psn_t), .Depth(NumQp)) i_blocked_psn (
      .clk_i, .wr_en_i(fail && !is_rsp), .wr_addr_i(pkt_q.job.qpi), .wr_data_i(pkt_q.job.psn),
      .rd_en_i(advance), .rd_addr_i(head.job.qpi), .rd_data_o(blocked_psn)
  );

  assign is_rsp      = pkt_q.job.is_rsp;
  assign req_blocked = blocked_q[pkt_q.job.qpi] && psn_t'(pkt_q.job.psn - blocked_psn) < 24'h80_0000;
  assign blocked     = is_rsp ? rsp_blocked_q[pkt_q.job.qpi] : req_blocked;

  assign whole   = pkt_q.beats == '0 || head_done;
  assign drop    = blocked || pkt_q.dead || (pkt_q.beats != '0 && head_err);
  assign can     = pkt_valid_q && whole && (pkt_q.beats == '0 || move_ready);
  assign leave   = can && (drop || pkt_ready_i);
  assign fail    = leave && !blocked && pkt_q.beats != '0 && head_err;
  assign advance = head_valid && (!pkt_valid_q || leave);

  assign pop_done    = leave && pkt_q.beats != '0;
  assign pkt_valid_o = can && !drop;
  assign pkt_o       = pkt_q.job;
  assign move        = '{
      skip: drop, result: 1'b0, src_beats: pkt_q.beats, src_off: pkt_q.job.laddr[5:0], dst_off: '0, dst_beat: '0,
      len: pkt_q.job.pay_len
  };

  realign #(.Depth(Depth)) i_realign (
      .clk_i, .rst_ni, .cmd_valid_i(pop_done), .cmd_ready_o(move_ready), .cmd_i(move),
      .rd_en_o(rd_en), .rd_addr_o(rd_addr), .rd_data_i(rd_data), .release_o(freed),
      .out_valid_o(pay_valid_o), .out_ready_i(pay_ready_i), .out_o(moved)
  );
  assign pay_o = '{data: moved.data, last: moved.last};

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pkt_valid_q     <= 1'b0;
      blocked_q       <= '0;
      rsp_blocked_q   <= '0;
      gerr_valid_o    <= 1'b0;
      rerr_valid_o    <= 1'b0;
      rsp_out_valid_o <= 1'b0;
    end else begin
      gerr_valid_o    <= fail && !is_rsp;
      rerr_valid_o    <= fail && is_rsp;
      rsp_out_valid_o <= leave && is_rsp;
      if (advance) pkt_valid_q <= 1'b1;
      else if (leave) pkt_valid_q <= 1'b0;
      if (fail && !is_rsp) blocked_q[pkt_q.job.qpi] <= 1'b1;
      if (fail && is_rsp) rsp_blocked_q[pkt_q.job.qpi] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        blocked_q[ctx_i.qpi]     <= 1'b0;
        rsp_blocked_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (advance) pkt_q <= head;
    if (fail) begin
      gerr_qpi_o  <= pkt_q.job.qpi;
      gerr_slot_o <= pkt_q.job.slot;
      rerr_qpi_o  <= pkt_q.job.qpi;
      rerr_psn_o  <= pkt_q.job.psn;
      rerr_msn_o  <= pkt_q.job.msn;
    end
    if (leave) rsp_out_qpi_o <= pkt_q.job.qpi;
  end

  // ------------------------------------------------------------------ what a reset waits for
  qp_inflight #(.Max(Held)) i_inflight (
      .clk_i, .rst_ni, .inc_i(start && start_ready), .inc_qpi_i(start_entry.job.qpi),
      .dec_i(leave), .dec_qpi_i(pkt_q.job.qpi), .drain_i, .busy_o(drain_busy_o)
  );

  // ------------------------------------------------------------------ what an invalidation waits for
  // First what requester and responder had decided and what waits to be issued, at most eight packets each, which come in
  // turn, and some in registers here and before: after that many packets, or none, it is gone. Then what is issued.
  localparam int unsigned Ahead = 20;
  logic       fence_busy, ahead_q;
  logic [4:0] ahead_left_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      ahead_q      <= 1'b0;
      ahead_left_q <= '0;
    end else begin
      // pipelines of requester and responder: the first cycles of a wait do not count
      if (!mr_drain_i) ahead_left_q <= 5'(Ahead + 8);
      else if (ahead_left_q != '0 && (taken || issue_idle || ahead_left_q > 5'(Ahead))) begin
        ahead_left_q <= ahead_left_q - 5'd1;
      end
      ahead_q <= mr_drain_i && ahead_left_q != '0;
    end
  end

  mr_fence #(.Max(Held)) i_fence (
      .clk_i, .rst_ni, .wait_i(mr_drain_i && ahead_left_q == '0), .enter_i(start && start_ready), .leave_i(leave),
      .busy_o(fence_busy)
  );
  assign mr_drain_busy_o = ahead_q || fence_busy;

  logic unused_bits;
  assign unused_bits = (^ctx_i) ^ (^moved.strb) ^ moved.page_end;
endmodule
