// Transport timer and RNR wait of every QP (wire.md 5): one counter a QP in a memory, which is visited once in TimerUnit
// cycles. A timer runs while something is unacknowledged, and starts anew when the oldest unacknowledged PSN advances and
// when the QP goes back. Timer 0 never expires.
module retry_timer
  import rnic_pkg::*;
  import req_pkg::*;
#(
  /// cycles of a unit of both times, at least the number of QPs
  parameter int unsigned TimerUnit = 64
) (
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs whose timer may run
  input  logic [NumQp-1:0] live_i,
  /// QPs with something unacknowledged
  input  logic [NumQp-1:0] armed_i,
  /// oldest unacknowledged position judged anew
  input  qp_pos_t          una_i,
  /// next to issue moved
  input  qp_go_t           iss_i,
  /// a QP goes back
  input  logic             back_valid_i,
  /// that QP
  input  qp_t              back_qpi_i,
  /// it waits before it goes on
  input  logic             wait_valid_i,
  /// RNR time code
  input  logic [4:0]       wait_code_i,
  /// QPs that wait
  output logic [NumQp-1:0] wait_o,
  /// another one asks to send again: a timer that expires now does so in its next round
  input  logic             ask_i,
  /// a timer expired
  output qp_retry_t        timeout_o
);
  localparam int unsigned TickW = $clog2(TimerUnit + 1);
  typedef logic [31:0] count_t;

  /// RNR time codes in units of 10 us (InfiniBand volume 1, table of RNR NAK timer values)
  function automatic logic [16:0] rnr_units(input logic [4:0] code);
    if (code == 5'd0) return 17'd65536;
    if (code == 5'd1) return 17'd1;
    return (code[0] ? 17'd3 : 17'd2) << (code[4:1] - 4'd1);
  endfunction

  logic [TickW-1:0] tick_q;
  qp_t              look, at_q;
  logic             visit, at_valid_q;
  logic [4:0]       timer;
  count_t           count, next;
  logic             running, waiting, restart, expired;
  logic [NumQp-1:0] restart_q, wait_q, fresh_wait_q;
  logic [4:0]       code_q[NumQp];

  assign visit = tick_q < TickW'(NumQp);
  assign look  = tick_q[$bits(qp_t)-1:0];

  ctx_ram #(.T(logic [4:0]), .Depth(NumQp)) i_timers (
    .clk_i, .wr_en_i(ctx_i.qp_set || ctx_i.qp_modify), .wr_addr_i(ctx_i.qpi), .wr_data_i(ctx_i.qp.timer),
    .rd_en_i(visit), .rd_addr_i(look), .rd_data_o(timer)
  );
  ctx_ram #(.T(count_t), .Depth(NumQp)) i_counts (
    .clk_i, .wr_en_i(at_valid_q), .wr_addr_i(at_q), .wr_data_i(next),
    .rd_en_i(visit), .rd_addr_i(look), .rd_data_o(count)
  );

  assign waiting = at_valid_q && wait_q[at_q];
  assign running = at_valid_q && !wait_q[at_q] && armed_i[at_q] && live_i[at_q] && timer != 5'd0;
  assign restart = waiting ? fresh_wait_q[at_q] : restart_q[at_q];
  assign expired = (waiting || running) && !restart && count <= count_t'(1);

  always_comb begin
    next = count;
    if (waiting) next = restart ? count_t'(rnr_units(code_q[at_q])) : count - count_t'(1);
    else if (running && (restart || (expired && !ask_i))) next = count_t'(1) << timer;
    else if (running && !expired) next = count - count_t'(1);
  end

  assign timeout_o = '{valid: running && expired, qpi: at_q, why: RetrySeq, implied: 1'b0, code: '0};
  assign wait_o    = wait_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      tick_q       <= '0;
      at_q         <= '0;
      at_valid_q   <= 1'b0;
      restart_q    <= '0;
      wait_q       <= '0;
      fresh_wait_q <= '0;
      code_q       <= '{default: '0};
    end else begin
      tick_q     <= (tick_q == TickW'(TimerUnit - 1)) ? '0 : tick_q + TickW'(1);
      at_valid_q <= visit;
      at_q       <= look;
      if (running && restart) restart_q[at_q] <= 1'b0;
      if (waiting) begin
        fresh_wait_q[at_q] <= 1'b0;
        if (expired) wait_q[at_q] <= 1'b0;
      end
      if (iss_i.valid && !armed_i[iss_i.qpi]) restart_q[iss_i.qpi] <= 1'b1;
      if (una_i.valid && una_i.moved) restart_q[una_i.qpi] <= 1'b1;
      if (back_valid_i) restart_q[back_qpi_i] <= 1'b1;
      if (wait_valid_i) begin
        wait_q[back_qpi_i]       <= 1'b1;
        fresh_wait_q[back_qpi_i] <= 1'b1;
        code_q[back_qpi_i]       <= wait_code_i;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        wait_q[ctx_i.qpi]    <= 1'b0;
        restart_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i, una_i, iss_i};
endmodule
