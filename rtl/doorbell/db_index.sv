// Producer index and first index not retired of one kind of queue (SQ or RQ) of every QP, for the doorbell judge. Until an
// index has moved the start index of the QP's context holds.
module db_index
  import rnic_pkg::*;
#(
    /// index type
    parameter type T = idx_t
) (
    /// clock
    input  logic clk_i,
    /// asynchronous reset, active low
    input  logic rst_ni,
    /// a QP is set: both indices start anew
    input  logic set_i,
    /// that QP
    input  qp_t  set_qpi_i,
    /// read the indices of a QP
    input  logic read_i,
    /// that QP
    input  qp_t  read_qpi_i,
    /// QP whose indices are at the outputs
    input  qp_t  qpi_i,
    /// its start index
    input  T     start_i,
    /// its producer index moves
    input  logic move_i,
    /// new producer index
    input  T     move_idx_i,
    /// the first index of a QP that is not retired moves
    input  logic retire_valid_i,
    /// that QP
    input  qp_t  retire_qpi_i,
    /// the new first index
    input  T     retire_idx_i,
    /// producer index
    output T     current_o,
    /// first index not retired; a WQE that retires in this very cycle is not outstanding any more
    output T     retired_o
);
  T prod_rd, retired_rd;
  logic [NumQp-1:0] prod_live_q, retired_live_q;  // 0: not moved since the QP was set, the start index holds

  ctx_ram #(
      .T    (T),
      .Depth(NumQp)
  ) u_prod (
      .clk_i,
      .wr_en_i(move_i),
      .wr_addr_i(qpi_i),
      .wr_data_i(move_idx_i),
      .rd_en_i(read_i),
      .rd_addr_i(read_qpi_i),
      .rd_data_o(prod_rd)
  );

  ctx_ram #(
      .T    (T),
      .Depth(NumQp)
  ) u_retired (
      .clk_i,
      .wr_en_i(retire_valid_i),
      .wr_addr_i(retire_qpi_i),
      .wr_data_i(retire_idx_i),
      .rd_en_i(read_i),
      .rd_addr_i(read_qpi_i),
      .rd_data_o(retired_rd)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      prod_live_q    <= '0;
      retired_live_q <= '0;
    end else begin
      if (move_i) prod_live_q[qpi_i] <= 1'b1;
      if (retire_valid_i) retired_live_q[retire_qpi_i] <= 1'b1;
      if (set_i) begin
        prod_live_q[set_qpi_i]    <= 1'b0;
        retired_live_q[set_qpi_i] <= 1'b0;
      end
    end
  end

  assign current_o = prod_live_q[qpi_i] ? prod_rd : start_i;
  always_comb begin
    if (retire_valid_i && retire_qpi_i == qpi_i) retired_o = retire_idx_i;
    else retired_o = retired_live_q[qpi_i] ? retired_rd : start_i;
  end

endmodule
