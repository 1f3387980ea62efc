// One NIC's end of the link: hands its beats to the C++ packet store and offers what arrives there (tb/cpp/link.cpp).
module link_port (
  /// clock
  input  logic         clk_i,
  /// asynchronous reset, active low
  input  logic         rst_ni,
  /// whose port this is
  input  int           pe_i,
  /// a packet may be due (tie to 1 where nobody computes it)
  input  logic         work_i,
  /// AXI4-Stream from the NIC
  input  logic [511:0] tx_tdata_i,
  input  logic [63:0]  tx_tkeep_i,
  input  logic         tx_tlast_i,
  input  logic         tx_tvalid_i,
  output logic         tx_tready_o,
  /// AXI4-Stream to the NIC
  output logic [511:0] rx_tdata_o,
  output logic [63:0]  rx_tkeep_o,
  output logic         rx_tlast_o,
  output logic         rx_tvalid_o,
  input  logic         rx_tready_i
);

  import "DPI-C" function int link_tx(input int pe, input bit [511:0] data, input longint unsigned keep,
                                      input int last);
  import "DPI-C" function int link_rx(input int pe, output bit [511:0] data, output longint unsigned keep,
                                      output int last);
  import "DPI-C" function void link_reset(input int pe);

  int pause_q;

  assign tx_tready_o = pause_q == 0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pause_q     <= 0;
      rx_tvalid_o <= 1'b0;
    end else begin
      if (pause_q != 0) pause_q <= pause_q - 1;
      if (tx_tvalid_i && tx_tready_o) begin
        pause_q <= link_tx(pe_i, tx_tdata_i, tx_tkeep_i, int'(tx_tlast_i));
      end
      if (rx_tvalid_o && rx_tready_i) rx_tvalid_o <= 1'b0;
      if (work_i && (!rx_tvalid_o || rx_tready_i)) begin
        automatic bit [511:0] data;
        automatic longint unsigned keep;
        automatic int last;
        if (link_rx(pe_i, data, keep, last) != 0) begin
          rx_tdata_o  <= data;
          rx_tkeep_o  <= keep;
          rx_tlast_o  <= last != 0;
          rx_tvalid_o <= 1'b1;
        end
      end
    end
  end

  // what the C++ side has of before the reset is gone with it
  always_ff @(negedge rst_ni) link_reset(pe_i);

endmodule
