// What waits for write responses, in the order of the packets: all bursts of one AXI ID, so responses come in order
// (nic.md 1). An entry without bursts waits for those of all entries before it. Taking an entry never waits: the user looks
// at the room before.
module wr_order
  import rnic_pkg::*;
#(
    /// what waits
    parameter type T = logic,
    /// entries that can wait
    parameter int unsigned Depth = 128
) (
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// entries of that QP wait
    output logic        drain_busy_o,
    /// the invalidation of a region waits
    input  logic        mr_drain_i,
    /// writes that the old entry allowed are not yet answered
    output logic        mr_drain_busy_o,
    /// entry
    input  logic        in_valid_i,
    /// room for four entries
    output logic        room_o,
    /// entry
    input  T            in_i,
    /// its QP
    input  qp_t         in_qpi_i,
    /// its write bursts, 0 to 2
    input  logic [1:0]  in_bursts_i,
    /// write response of one burst, in order
    input  logic        b_valid_i,
    /// it reports an error
    input  logic        b_err_i,
    /// the oldest entry has its responses
    output logic        out_valid_o,
    /// it is taken
    input  logic        out_ready_i,
    /// oldest entry
    output T            out_o,
    /// its QP
    output qp_t         out_qpi_o,
    /// one of its bursts failed
    output logic        out_failed_o
);
  typedef struct packed {
    logic [1:0] bursts;
    qp_t        qpi;
    T           value;
  } entry_t;

  entry_t     in, head;
  logic       head_valid, b_valid, b_err, pop, pop_b, waits, bad_q, unused_ready, unused_b_ready;
  logic [1:0] seen_q;
  logic [$clog2(Depth+1)-1:0]      count;
  logic [$clog2(2*Depth+16+1)-1:0] unused_b_count;

  assign in = '{bursts: in_bursts_i, qpi: in_qpi_i, value: in_i};
  ram_fifo #(.T(entry_t), .Depth(Depth), .Fits(1'b1)) i_heads (
      .clk_i, .rst_ni, .in_valid_i, .in_ready_o(unused_ready), .in_data_i(in),
      .out_valid_o(head_valid), .out_ready_i(pop), .out_data_o(head), .count_o(count)
  );
  // two bursts an entry at the most, so it never fills (entries on their way out of the queue above: room in `Depth`)
  fifo #(.T(logic), .Depth(2 * Depth + 16), .Fits(1'b1)) i_responses (
      .clk_i, .rst_ni, .in_valid_i(b_valid_i), .in_ready_o(unused_b_ready), .in_data_i(b_err_i),
      .out_valid_o(b_valid), .out_ready_i(pop_b), .out_data_o(b_err), .count_o(unused_b_count)
  );
  assign room_o = count < ($clog2(Depth + 1))'(Depth - 4);

  // the last response of an entry is taken together with it
  assign waits        = seen_q != head.bursts;
  assign out_valid_o  = head_valid && (!waits || (b_valid && seen_q + 2'd1 == head.bursts));
  assign out_o        = head.value;
  assign out_qpi_o    = head.qpi;
  assign out_failed_o = bad_q || (waits && b_err);
  assign pop          = out_valid_o && out_ready_i;
  assign pop_b        = head_valid && waits && (!out_valid_o || out_ready_i);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      seen_q <= '0;
      bad_q  <= 1'b0;
    end else if (pop) begin
      seen_q <= '0;
      bad_q  <= 1'b0;
    end else if (pop_b && b_valid) begin
      seen_q <= seen_q + 2'd1;
      bad_q  <= bad_q || b_err;
    end
  end

  qp_inflight #(.Max(Depth + 8)) i_inflight (
      .clk_i, .rst_ni, .inc_i(in_valid_i), .inc_qpi_i(in_qpi_i), .dec_i(pop), .dec_qpi_i(head.qpi), .drain_i,
      .busy_o(drain_busy_o)
  );
  mr_fence #(.Max(Depth + 8)) i_fence (
      .clk_i, .rst_ni, .wait_i(mr_drain_i), .enter_i(in_valid_i), .leave_i(pop), .busy_o(mr_drain_busy_o)
  );
endmodule
