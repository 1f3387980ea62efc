// Queue of asynchronous events (nic.md section 6). Its sources pulse without backpressure: each has one place to wait
// in until the FIFO takes it, so a source that leaves two cycles between its events loses none while the FIFO has room.
// An event that finds its place taken, or the FIFO full, is lost and reported on overflow_o.
module async_queue
  import rnic_pkg::*;
#(
    /// entries of the FIFO, a power of two
    parameter int unsigned Depth = 64
) (
    /// clock
    input  logic       clk_i,
    /// asynchronous reset, active low
    input  logic       rst_ni,
    /// SQ doorbells beyond their ring
    input  async_evt_t src_db_i,
    /// completion
    input  async_evt_t src_comp_i,
    /// responder
    input  async_evt_t src_resp_i,
    /// oldest event; valid bit 0 and zeros: none
    output async_evt_t head_o,
    /// takes head_o out
    input  logic       pop_i,
    /// an event was lost in this cycle
    output logic       overflow_o
);

  localparam int unsigned AddrW = $clog2(Depth);
  localparam int unsigned NumSrc = 3;

  async_evt_t [NumSrc-1:0] src, wait_q;
  async_evt_t head_q;
  logic [NumSrc-1:0] grant, lost;
  logic [31:0] mem[Depth];
  logic [AddrW-1:0] rd_q, wr_q;
  logic [AddrW:0] count_q;  // events held, the head included
  logic push, full, refill, direct, leave;
  logic [31:0] push_evt;

  assign src = {src_resp_i, src_comp_i, src_db_i};
  assign full = count_q == (AddrW + 1)'(Depth);

  // fixed order: no source can take two cycles in a row, so the last one waits two cycles at the most
  always_comb begin
    grant = '0;
    push_evt = '0;
    for (int unsigned s = 0; s < NumSrc; s++) begin
      if (grant == '0 && wait_q[s].valid) begin
        grant[s] = 1'b1;
        push_evt = {wait_q[s].kind, wait_q[s].number};
      end
    end
  end
  assign push = grant != '0 && !full;
  for (genvar s = 0; s < int'(NumSrc); s++) begin : gen_lost
    assign lost[s] = (src[s].valid && wait_q[s].valid && !grant[s]) || (grant[s] && full);
  end
  assign overflow_o = lost != '0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wait_q <= '0;
    end else begin
      for (int unsigned s = 0; s < NumSrc; s++) begin
        if (grant[s]) wait_q[s].valid <= 1'b0;
        if (src[s].valid && (!wait_q[s].valid || grant[s])) wait_q[s] <= src[s];
      end
    end
  end

  // the head waits in a register so that it reads in the cycle of the pop; an event that finds nothing before it goes
  // there at once
  assign refill = rd_q != wr_q && (!head_q.valid || pop_i);
  assign direct = push && rd_q == wr_q && (!head_q.valid || pop_i);
  assign leave = pop_i && head_q.valid;

  always_ff @(posedge clk_i) begin
    if (push && !direct) mem[wr_q] <= push_evt;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q  <= '0;
      rd_q    <= '0;
      wr_q    <= '0;
      count_q <= '0;
    end else begin
      if (push && !direct) wr_q <= wr_q + 1'b1;
      if (push != leave) count_q <= push ? count_q + 1'b1 : count_q - 1'b1;
      if (refill) begin
        head_q.valid <= 1'b1;
        {head_q.kind, head_q.number} <= mem[rd_q];
        rd_q <= rd_q + 1'b1;
      end else if (direct) begin
        head_q.valid <= 1'b1;
        {head_q.kind, head_q.number} <= push_evt;
      end else if (pop_i) begin
        head_q <= '0;
      end
    end
  end

  assign head_o = head_q;

endmodule
