// First-in first-out queue with registered flags: `in_ready_o` and `out_valid_o` depend on state only, so a chain
// of queues has no combinational path from end to end. Data shows at the output the cycle after it was accepted.
module fifo #(
  /// payload type
  parameter type T = logic,
  /// entries, at least 2 for full throughput; need not be a power of two
  parameter int unsigned Depth = 2,
  /// the writer does not look at in_ready_o, because it knows that there is room: what does not fit is a fault
  parameter bit Fits = 1'b0,
  /// width of the fill count
  localparam int unsigned CntW = $clog2(Depth + 1)
) (
  /// clock
  input  logic            clk_i,
  /// asynchronous reset, active low
  input  logic            rst_ni,
  /// entry offered
  input  logic            in_valid_i,
  /// an entry is free (state only)
  output logic            in_ready_o,
  /// entry to store
  input  T                in_data_i,
  /// an entry is stored (state only)
  output logic            out_valid_o,
  /// oldest entry is taken
  input  logic            out_ready_i,
  /// oldest entry
  output T                out_data_o,
  /// stored entries
  output logic [CntW-1:0] count_o
);
  localparam int unsigned PtrW = (Depth > 1) ? $clog2(Depth) : 1;

  T                mem_q [Depth];
  logic [PtrW-1:0] wr_q, rd_q;
  logic [CntW-1:0] cnt_q;
  logic            full_q, some_q;
  logic            push, pop;

  assign push        = in_valid_i && in_ready_o;
  assign pop         = out_valid_o && out_ready_i;
  assign in_ready_o  = !full_q;
  assign out_valid_o = some_q;
  assign out_data_o  = mem_q[rd_q];
  assign count_o     = cnt_q;

  function automatic logic [PtrW-1:0] step(input logic [PtrW-1:0] ptr);
    return (ptr == PtrW'(Depth - 1)) ? '0 : ptr + PtrW'(1);
  endfunction

  // storage needs no reset: an entry is read only after it was written
  always_ff @(posedge clk_i) begin
    if (push) mem_q[wr_q] <= in_data_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q   <= '0;
      rd_q   <= '0;
      cnt_q  <= '0;
      full_q <= 1'b0;
      some_q <= 1'b0;
    end else begin
      if (push) wr_q <= step(wr_q);
      if (pop) rd_q <= step(rd_q);
      if (push && !pop) begin
        cnt_q  <= cnt_q + CntW'(1);
        full_q <= (cnt_q == CntW'(Depth - 1));
        some_q <= 1'b1;
      end else if (pop && !push) begin
        cnt_q  <= cnt_q - CntW'(1);
        full_q <= 1'b0;
        some_q <= (cnt_q != CntW'(1));
      end
    end
  end

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni && Fits) begin
      assert (!in_valid_i || in_ready_o)
      else $error("%m: an entry does not fit and is lost");
    end
  end
  `endif  // SYNTHESIS
endmodule
