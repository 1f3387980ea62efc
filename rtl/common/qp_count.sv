// Counts per QP what is on its way somewhere, and tells at once whether a QP has any of it.
module qp_count
  import rnic_pkg::*;
#(
    /// things of one QP that can be on their way at most
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
    /// QP that is asked for
    input  qp_t         look_qpi_i,
    /// it has some
    output logic        some_o,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// it has some
    output logic        busy_o
);
  localparam int unsigned CntW = $clog2(Max + 1);

  logic [CntW-1:0]  cnt_q[NumQp];
  logic [NumQp-1:0] some_q;

  assign some_o = some_q[look_qpi_i];
  assign busy_o = drain_i.valid && some_q[drain_i.qpi];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      cnt_q  <= '{default: '0};
      some_q <= '0;
    end else if (!(inc_i && dec_i && inc_qpi_i == dec_qpi_i)) begin
      if (inc_i) begin
        cnt_q[inc_qpi_i]  <= cnt_q[inc_qpi_i] + CntW'(1);
        some_q[inc_qpi_i] <= 1'b1;
      end
      if (dec_i) begin
        cnt_q[dec_qpi_i]  <= cnt_q[dec_qpi_i] - CntW'(1);
        some_q[dec_qpi_i] <= cnt_q[dec_qpi_i] != CntW'(1);
      end
    end
  end
endmodule
