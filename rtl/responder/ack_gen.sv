// Holds the answers that still have to leave: per QP one ACK (the newest wins, it covers the older ones) and one NAK, which
// no later ACK overwrites and which covers the ACKs before it. Taking an answer never waits, so the receive path never
// waits for the transmit path (nic.md 5).
module ack_gen
  import rnic_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// an answer of that QP is still held
    output logic        drain_busy_o,
    /// answer, always taken
    input  logic        in_valid_i,
    /// answer
    input  ack_job_t    in_i,
    /// answer for the framer
    output logic        out_valid_o,
    /// the answer is taken
    input  logic        out_ready_i,
    /// answer for the framer
    output ack_job_t    out_o,
    /// counters
    output cnt_inc_t    cnt_o
);
  typedef struct packed {
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
  } answer_t;

  logic [NumQp-1:0] ack_q, nak_q, queued_q;
  logic             in_nak, turn_valid, pop, read, busy_q, unused_ready;
  logic             read_q, read_nak_q, out_busy;
  qp_t              turn, read_qpi_q;
  answer_t          in, ack, nak, answer;
  ack_job_t         out;
  logic [1:0]       out_cnt;
  logic             unused_out_ready;
  logic [$clog2(NumQp+1)-1:0] unused_turns;

  logic unused_value;
  assign unused_value = in_i.atomic ^ (^in_i.value);  // ATOMIC acknowledgements do not come this way yet

  assign in_nak = in_i.syndrome[6:5] != 2'b00;
  assign in     = '{psn: in_i.psn, syndrome: in_i.syndrome, msn: in_i.msn};

  // QPs with something to send, each at most once
  fifo #(.T(qp_t), .Depth(NumQp)) i_turns (
      .clk_i, .rst_ni, .in_valid_i(in_valid_i && !queued_q[in_i.qpi]), .in_ready_o(unused_ready), .in_data_i(in_i.qpi),
      .out_valid_o(turn_valid), .out_ready_i(pop), .out_data_o(turn), .count_o(unused_turns)
  );

  ctx_ram #(.T(answer_t), .Depth(NumQp)) i_acks (
      .clk_i, .wr_en_i(in_valid_i && !in_nak), .wr_addr_i(in_i.qpi), .wr_data_i(in),
      .rd_en_i(read), .rd_addr_i(turn), .rd_data_o(ack)
  );
  ctx_ram #(.T(answer_t), .Depth(NumQp)) i_naks (
      .clk_i, .wr_en_i(in_valid_i && in_nak), .wr_addr_i(in_i.qpi), .wr_data_i(in),
      .rd_en_i(read), .rd_addr_i(turn), .rd_data_o(nak)
  );

  // the NAK of a turn goes first, a newer ACK in the same turn behind it; the turn ends when nothing is left and nothing
  // comes in at this moment
  assign read = turn_valid && (nak_q[turn] || ack_q[turn]) && out_cnt + 2'(read_q) < 2'd2;
  assign pop  = turn_valid && !nak_q[turn] && !ack_q[turn] && !(in_valid_i && in_i.qpi == turn);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      ack_q    <= '0;
      nak_q    <= '0;
      queued_q <= '0;
      read_q   <= 1'b0;
      busy_q   <= 1'b0;
    end else begin
      read_q <= read;
      busy_q <= drain_i.valid && queued_q[drain_i.qpi];
      if (pop) queued_q[turn] <= 1'b0;
      if (in_valid_i) begin
        queued_q[in_i.qpi] <= 1'b1;
        if (in_nak) begin
          nak_q[in_i.qpi] <= 1'b1;
          ack_q[in_i.qpi] <= 1'b0;
        end else begin
          ack_q[in_i.qpi] <= 1'b1;
        end
      end
      // last: an answer that comes in while its kind is read is what the memory gives
      if (read && nak_q[turn]) nak_q[turn] <= 1'b0;
      if (read && !nak_q[turn]) ack_q[turn] <= 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin
    if (read) begin
      read_qpi_q <= turn;
      read_nak_q <= nak_q[turn];
    end
  end

  assign answer = read_nak_q ? nak : ack;
  assign out    = '{qpi: read_qpi_q, psn: answer.psn, syndrome: answer.syndrome, msn: answer.msn, atomic: 1'b0, value: '0};

  fifo #(.T(ack_job_t), .Depth(2)) i_out (
      .clk_i, .rst_ni, .in_valid_i(read_q), .in_ready_o(unused_out_ready), .in_data_i(out),
      .out_valid_o, .out_ready_i, .out_data_o(out_o), .count_o(out_cnt)
  );

  qp_inflight #(.Max(3)) i_inflight (
      .clk_i, .rst_ni, .inc_i(read), .inc_qpi_i(turn), .dec_i(out_valid_o && out_ready_i), .dec_qpi_i(out_o.qpi),
      .drain_i, .busy_o(out_busy)
  );
  assign drain_busy_o = busy_q || out_busy;

  always_comb begin
    cnt_o = '0;
    if (out_valid_o && out_ready_i) begin
      cnt_o[CntNakSeqTx] = out_o.syndrome == SynNakSeq;
      cnt_o[CntNakInvTx] = out_o.syndrome == SynNakInv;
      cnt_o[CntNakAccTx] = out_o.syndrome == SynNakAcc;
      cnt_o[CntNakOpTx]  = out_o.syndrome == SynNakOp;
    end
  end
endmodule
