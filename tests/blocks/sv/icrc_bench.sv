// tx_icrc alone, its structs as plain ports.
module icrc_bench
  import rnic_pkg::*, dp_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    input  logic         in_valid_i,
    output logic         in_ready_o,
    input  logic         in_first_i,
    input  logic         in_last_i,
    input  logic [6:0]   in_bytes_i,
    input  logic [511:0] in_data_i,
    output logic         out_valid_o,
    input  logic         out_ready_i,
    output logic         out_first_o,
    output logic         out_last_o,
    output logic [6:0]   out_bytes_o,
    output logic [511:0] out_data_o
);
  tx_beat_t in, out;
  always_comb begin
    in       = '0;
    in.first = in_first_i;
    in.last  = in_last_i;
    in.bytes = in_bytes_i;
    in.data  = in_data_i;
  end
  tx_icrc i_dut (
      .clk_i, .rst_ni, .in_valid_i, .in_ready_o, .in_i(in), .out_valid_o, .out_ready_i, .out_o(out)
  );
  assign out_first_o = out.first;
  assign out_last_o  = out.last;
  assign out_bytes_o = out.bytes;
  assign out_data_o  = out.data;
endmodule
