// NumNic NICs on one link. All inputs come from tb/cpp/main.cpp; NICs that a test does not use stay in reset.
module tb_top #(
  /// NICs in the model
  parameter int unsigned NumNic = 1
) (
  /// clock
  input logic              clk_i,
  /// asynchronous reset of all NICs, active low
  input logic              rst_ni,
  /// toggles when Python has to look: nothing in the bench reads it
  input logic              evt_i,
  /// NICs that take part
  input logic [NumNic-1:0] active_i,
  /// NICs for which the C++ side may have an MMIO request or a packet
  input logic [NumNic-1:0] work_i
);

  // variables, not constants: the instances have to stay alike for Verilator to share their code
  int pe [NumNic];
  initial for (int i = 0; i < int'(NumNic); i++) pe[i] = i;

  for (genvar g = 0; g < int'(NumNic); g++) begin : gen_nic
    tb_nic u_nic (
      .clk_i,
      .rst_ni(rst_ni && active_i[g]),
      .pe_i  (pe[g]),
      .work_i(work_i[g])
    );
  end

  logic unused_evt;
  assign unused_evt = evt_i;

endmodule
