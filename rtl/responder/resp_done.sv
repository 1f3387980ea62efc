// Answers wait here, in the order of the packets, for the write responses of their packet and of all before it: all
// inbound WRITEs use one AXI ID, so responses come in order (nic.md 5). A failed write turns the answer into NAK 3. A
// fatal NAK takes the QP to ERR; nothing of that QP is answered after it.
module resp_done
  import rnic_pkg::*, dp_pkg::*;
#(
    /// packets that wait for write responses
    parameter int unsigned Depth = 128
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
    /// answers of that QP still wait
    output logic             drain_busy_o,
    /// the invalidation of a region waits
    input  logic             mr_drain_i,
    /// writes that the old entry allowed are not yet answered
    output logic             mr_drain_busy_o,
    /// packet with bursts to wait for or an answer to give
    input  logic             done_valid_i,
    /// room for four of them
    output logic             done_room_o,
    /// packet
    input  rx_done_t         done_i,
    /// write response of one burst, in order
    input  logic             b_valid_i,
    /// it reports an error
    input  logic             b_err_i,
    /// answer
    output logic             ack_valid_o,
    /// answer
    output ack_job_t         ack_o,
    /// QPs that gave a fatal NAK since they were programmed
    output logic [NumQp-1:0] dead_o,
    /// the QP has to go to ERR
    output qp_err_evt_t      err_o,
    /// asynchronous event for it
    output async_evt_t       async_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  rx_done_t         head;
  logic             head_valid, b_valid, b_err, pop, pop_b, waits, failed, bad_q, fatal, unused_ready, unused_b_ready;
  logic [1:0]       seen_q;
  logic [$clog2(Depth+1)-1:0] count;
  logic [NumQp-1:0] dead_q;
  logic [$clog2(2*Depth+1)-1:0] unused_b_count;

  ram_fifo #(.T(rx_done_t), .Depth(Depth)) i_heads (
      .clk_i, .rst_ni, .in_valid_i(done_valid_i), .in_ready_o(unused_ready), .in_data_i(done_i),
      .out_valid_o(head_valid), .out_ready_i(pop), .out_data_o(head), .count_o(count)
  );
  // two bursts a packet at the most, so it never fills (entries on their way out of the queue above: room in `Depth`)
  fifo #(.T(logic), .Depth(2 * Depth + 16)) i_responses (
      .clk_i, .rst_ni, .in_valid_i(b_valid_i), .in_ready_o(unused_b_ready), .in_data_i(b_err_i),
      .out_valid_o(b_valid), .out_ready_i(pop_b), .out_data_o(b_err), .count_o(unused_b_count)
  );

  assign done_room_o = count < ($clog2(Depth + 1))'(Depth - 4);

  assign waits  = seen_q != head.bursts;
  assign pop_b  = head_valid && waits;
  assign pop    = head_valid && (!waits || (b_valid && seen_q + 2'd1 == head.bursts));
  assign failed = bad_q || (waits && b_err);
  assign fatal  = pop && !dead_q[head.qpi] && (failed || head.fatal);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      seen_q      <= '0;
      bad_q       <= 1'b0;
      dead_q      <= '0;
      ack_valid_o <= 1'b0;
      err_o       <= '0;
      async_o     <= '0;
      cnt_o       <= '0;
    end else begin
      if (pop) begin
        seen_q <= '0;
        bad_q  <= 1'b0;
      end else if (pop_b && b_valid) begin
        seen_q <= seen_q + 2'd1;
        bad_q  <= failed;
      end
      if (fatal) dead_q[head.qpi] <= 1'b1;
      if (ctx_i.qp_set || ctx_i.qp_reset) dead_q[ctx_i.qpi] <= 1'b0;

      ack_valid_o <= pop && !dead_q[head.qpi] && (head.ack || failed);
      // a QP that something else took to ERR or RESET stays there, and that cause has its own event
      err_o   <= '{valid: fatal && qp_rts_i[head.qpi], qpi: head.qpi};
      async_o <= '{valid: fatal && qp_rts_i[head.qpi], kind: AsyncQpErr, number: 24'(head.qpi) + 24'(FirstQpn)};
      cnt_o   <= '0;
      cnt_o[CntBusInbound] <= b_valid_i && b_err_i;
    end
  end

  always_ff @(posedge clk_i) begin
    if (pop) begin
      ack_o <= '{
          qpi: head.qpi, psn: failed ? head.pkt_psn : head.psn, syndrome: failed ? SynNakOp : head.syndrome,
          msn: head.msn - 24'(failed && head.msn_step), atomic: 1'b0, value: '0
      };
    end
  end
  assign dead_o = dead_q;

  qp_inflight #(.Max(Depth + 8)) i_inflight (
      .clk_i, .rst_ni, .inc_i(done_valid_i), .inc_qpi_i(done_i.qpi), .dec_i(pop), .dec_qpi_i(head.qpi), .drain_i,
      .busy_o(drain_busy_o)
  );

  mr_fence #(.Max(Depth + 8)) i_fence (
      .clk_i, .rst_ni, .wait_i(mr_drain_i), .enter_i(done_valid_i), .leave_i(pop), .busy_o(mr_drain_busy_o)
  );

  logic unused_bits;
  assign unused_bits = ^ctx_i;
endmodule
