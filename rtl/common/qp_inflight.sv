// Counts per QP what a stage holds, so that a reset can wait until the stage holds nothing of its QP (nic.md 6).
module qp_inflight
  import rnic_pkg::*;
#(
    /// things of one QP that the stage can hold at most
    parameter int unsigned Max = 255
) (
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// one more of inc_qpi_i
    input  logic        inc_i,
    /// QP that gains
    input  qp_t         inc_qpi_i,
    /// one less of dec_qpi_i
    input  logic        dec_i,
    /// QP that loses
    input  qp_t         dec_qpi_i,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// the stage still holds something of it (one cycle late)
    output logic        busy_o
);
  localparam int unsigned CntW = $clog2(Max + 1);

  logic [NumQp-1:0][CntW-1:0] cnt_q;
  logic                       busy_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      cnt_q  <= '0;
      busy_q <= 1'b0;
    end else begin
      busy_q <= drain_i.valid && cnt_q[drain_i.qpi] != '0;
      if (!(inc_i && dec_i && inc_qpi_i == dec_qpi_i)) begin
        if (inc_i) cnt_q[inc_qpi_i] <= cnt_q[inc_qpi_i] + CntW'(1);
        if (dec_i) cnt_q[dec_qpi_i] <= cnt_q[dec_qpi_i] - CntW'(1);
      end
    end
  end

  assign busy_o = busy_q;
endmodule
