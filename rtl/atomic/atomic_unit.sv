// Executes atomics one at a time (nic.md 5): locks the 8-byte word, so that no inbound WRITE enters it, waits for the write
// responses of the WRITE bursts that started before, reads, computes, writes, waits for the response. Reads and writes are
// single beats of exactly 8 or 4 bytes under AXI ID 2. Operations follow each other without a pause.
module atomic_unit
  import rnic_pkg::*, atomic_pkg::*;
#(
    /// bursts of inbound WRITEs that can wait for their response
    parameter int unsigned MaxBursts = 511
) (
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// context broadcast
    input  ctx_wr_t          ctx_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// an atomic of that QP is still here
    output logic             drain_busy_o,
    /// the invalidation of a region waits
    input  logic             mr_drain_i,
    /// an atomic that the old entry allowed is still here
    output logic             mr_drain_busy_o,

    /// atomic
    input  logic             op_valid_i,
    /// room for it
    output logic             op_ready_o,
    /// atomic
    input  amo_op_t          op_i,
    /// what became of the oldest atomic
    output logic             done_valid_o,
    /// taken
    input  logic             done_ready_i,
    /// what became of it
    output amo_done_t        done_o,

    /// a word is locked: an inbound WRITE that touches it waits
    output logic             lock_valid_o,
    /// the word
    output logic [63:3]      lock_addr_o,
    /// bursts of inbound WRITEs that started in this cycle
    input  logic [1:0]       start_i,
    /// write response of one of them
    input  logic             inbound_b_valid_i,

    /// read of one beat
    output logic             rd_req_valid_o,
    /// the read is taken
    input  logic             rd_req_ready_i,
    /// read of one beat
    output rd_req_t          rd_req_o,
    /// read data, always taken
    input  logic             rd_beat_valid_i,
    /// read data
    input  rd_beat_t         rd_beat_i,
    /// write of one beat
    output logic             wr_req_valid_o,
    /// the write is taken
    input  logic             wr_req_ready_i,
    /// write of one beat
    output wr_req_t          wr_req_o,
    /// write data
    output logic             wr_beat_valid_o,
    /// the data is taken
    input  logic             wr_beat_ready_i,
    /// write data
    output wr_beat_t         wr_beat_o,
    /// write response
    input  logic             b_valid_i,
    /// it reports an error
    input  logic             b_err_i,
    /// counters
    output cnt_inc_t         cnt_o
);
  localparam int unsigned CntW = $clog2(MaxBursts + 1);
  typedef enum logic [2:0] {
    StIdle,
    StDrain,                     // waits for the WRITE bursts that started before the lock, then asks for the word
    StRead,
    StWrite,
    StResponse
  } state_e;

  state_e           state_q;
  amo_op_t          next, op_q;
  logic             next_valid, take, skip, accept, finish, failed, locked_q, first_q;
  logic             req_sent_q, data_sent_q;
  logic [NumQp-1:0] bad_q;       // QPs of which an atomic failed
  logic [CntW-1:0]  bursts_q, ahead_q, ahead;
  logic [63:0]      word, old, value, value_q, old_q, lanes;
  logic             write, wide;
  amo_done_t        done;
  logic             done_ready;
  logic [1:0]       unused_op_cnt, done_cnt;

  fifo #(.T(amo_op_t), .Depth(2)) i_ops (
      .clk_i, .rst_ni, .in_valid_i(op_valid_i), .in_ready_o(op_ready_o), .in_data_i(op_i),
      .out_valid_o(next_valid), .out_ready_i(take || skip), .out_data_o(next), .count_o(unused_op_cnt)
  );
  assign accept = op_valid_i && op_ready_o;

  // ------------------------------------------------------------------ sequence
  // An operation starts when its result has a place, so the lock never waits for the transmit side. In the last cycle of an
  // operation the lock is open, and a WRITE that waits for it starts.
  assign skip = state_q == StIdle && next_valid && done_ready && bad_q[next.qpi];
  assign take = next_valid && !bad_q[next.qpi] &&
                (finish ? !failed && done_cnt == '0 : state_q == StIdle && done_ready);
  assign wide = amo_wide(op_q.bth);

  // WRITE bursts that started before the lock: all those without a response in its first cycle
  assign ahead = first_q ? bursts_q : ahead_q;

  always_comb begin
    finish = 1'b0;
    failed = 1'b0;
    unique case (state_q)
      StRead:     if (rd_beat_valid_i) begin
        failed = rd_beat_i.err;
        finish = rd_beat_i.err || !write;
      end
      StResponse: if (b_valid_i) begin
        failed = b_err_i;
        finish = 1'b1;
      end
      default: ;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q     <= StIdle;
      locked_q    <= 1'b0;
      first_q     <= 1'b0;
      bursts_q    <= '0;
      req_sent_q  <= 1'b0;
      data_sent_q <= 1'b0;
      bad_q       <= '0;
      cnt_o       <= '0;
    end else begin
      first_q  <= take;
      bursts_q <= bursts_q + CntW'(start_i) - CntW'(inbound_b_valid_i);
      unique case (state_q)
        StDrain: if (rd_req_valid_o && rd_req_ready_i) state_q <= StRead;
        StRead:  if (rd_beat_valid_i) begin
          state_q    <= StWrite;
          req_sent_q <= wr_req_valid_o && wr_req_ready_i;
        end
        StWrite: begin
          req_sent_q  <= req_sent_q || wr_req_ready_i;
          data_sent_q <= data_sent_q || wr_beat_ready_i;
          if ((req_sent_q || wr_req_ready_i) && (data_sent_q || wr_beat_ready_i)) begin
            state_q     <= StResponse;
            data_sent_q <= 1'b0;
          end
        end
        default: ;
      endcase
      if (finish) begin
        state_q  <= StIdle;
        locked_q <= 1'b0;
        if (failed) bad_q[op_q.qpi] <= 1'b1;
      end
      if (take) begin
        state_q  <= StDrain;
        locked_q <= 1'b1;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) bad_q[ctx_i.qpi] <= 1'b0;
      cnt_o               <= '0;
      cnt_o[CntAtomic]    <= finish && !failed;
      cnt_o[CntBusAtomic] <= failed;
    end
  end

  always_ff @(posedge clk_i) begin
    if (take) op_q <= next;
    if (state_q == StDrain) ahead_q <= ahead - CntW'(inbound_b_valid_i && ahead != '0);
    if (state_q == StRead && rd_beat_valid_i) begin
      old_q   <= old;
      value_q <= value;
    end
  end

  assign lock_valid_o = locked_q && !finish;
  assign lock_addr_o  = op_q.addr[63:3];

  // ------------------------------------------------------------------ read, compute, write
  assign rd_req_valid_o = state_q == StDrain && ahead == '0;
  assign rd_req_o       = '{addr: op_q.addr, len: '0, size: wide ? 3'd3 : 3'd2};

  assign word = rd_beat_i.data[{op_q.addr[5:3], 6'b0}+:64];
  assign old  = wide ? word : 64'(op_q.addr[2] ? word[63:32] : word[31:0]);
  atomic_alu i_alu (
      .valid_i(state_q == StRead && rd_beat_valid_i), .bth_i(op_q.bth), .amo_i(op_q.amo), .old_i(old),
      .write_o(write), .new_o(value)
  );

  // the address goes while the value is computed
  assign wr_req_valid_o  = (state_q == StRead && rd_beat_valid_i && !finish) || (state_q == StWrite && !req_sent_q);
  assign wr_req_o        = '{addr: op_q.addr, len: '0, size: wide ? 3'd3 : 3'd2, id: IdAtomic};
  assign wr_beat_valid_o = state_q == StWrite && !data_sent_q;
  assign lanes           = (!wide && op_q.addr[2]) ? value_q << 32 : value_q;
  always_comb begin
    wr_beat_o = '0;
    if (wr_beat_valid_o) begin
      wr_beat_o.last                             = 1'b1;
      wr_beat_o.strb                             = (wide ? strb_t'('hff) : strb_t'('h0f)) << op_q.addr[5:0];
      wr_beat_o.data[{op_q.addr[5:3], 6'b0}+:64] = lanes;
    end
  end

  // ------------------------------------------------------------------ result
  assign done = '{
      qpi: skip ? next.qpi : op_q.qpi, place: skip ? next.place : op_q.place,
      psn: skip ? next.psn : op_q.psn, msn: skip ? next.msn : op_q.msn, err: failed,
      skipped: skip, value: (state_q == StRead) ? old : old_q
  };
  fifo #(.T(amo_done_t), .Depth(2)) i_done (
      .clk_i, .rst_ni, .in_valid_i(finish || skip), .in_ready_o(done_ready), .in_data_i(done),
      .out_valid_o(done_valid_o), .out_ready_i(done_ready_i), .out_data_o(done_o), .count_o(done_cnt)
  );

  qp_inflight #(.Max(7)) i_inflight (
      .clk_i, .rst_ni, .inc_i(accept), .inc_qpi_i(op_i.qpi), .dec_i(done_valid_o && done_ready_i),
      .dec_qpi_i(done_o.qpi), .drain_i, .busy_o(drain_busy_o)
  );
  mr_fence #(.Max(7)) i_fence (
      .clk_i, .rst_ni, .wait_i(mr_drain_i), .enter_i(accept), .leave_i(finish || skip), .busy_o(mr_drain_busy_o)
  );

  logic unused_bits;
  assign unused_bits = (^ctx_i) ^ rd_beat_i.last;
endmodule
