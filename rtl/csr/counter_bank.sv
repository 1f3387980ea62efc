// Event counters (nic.md section 7): each bit of cnt_i adds one to its counter, which stops at its greatest value.
module counter_bank
  import rnic_pkg::*;
#(
    /// bits of a counter; tests of the saturation use a small one
    parameter int unsigned Width = 32
) (
    /// clock
    input  logic                      clk_i,
    /// asynchronous reset, active low
    input  logic                      rst_ni,
    /// events of this cycle, one bit per counter
    input  cnt_inc_t                  cnt_i,
    /// read request, one cycle
    input  logic                      rd_req_i,
    /// counter to read
    input  logic     [$clog2(NumCnt)-1:0] rd_addr_i,
    /// read data valid, one cycle after the request
    output logic                      rd_ack_o,
    /// value, zero-extended
    output logic     [          63:0] rd_data_o
);

  localparam int unsigned Group = 8;

  logic [Width-1:0] cnt_q[NumCnt];
  logic [Width-1:0] rd_q;
  logic rd_ack_q;

  // groups: in most cycles nothing is set and nothing is evaluated
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      for (int unsigned i = 0; i < NumCnt; i++) cnt_q[i] <= '0;
    end else if (cnt_i != '0) begin
      for (int unsigned g = 0; g < NumCnt / Group; g++) begin
        if (cnt_i[g*Group+:Group] != '0) begin
          for (int unsigned i = g * Group; i < (g + 1) * Group; i++) begin
            if (cnt_i[i] && cnt_q[i] != '1) cnt_q[i] <= cnt_q[i] + 1'b1;
          end
        end
      end
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      rd_ack_q <= 1'b0;
      rd_q     <= '0;
    end else begin
      rd_ack_q <= rd_req_i;
      if (rd_req_i) rd_q <= cnt_q[rd_addr_i];
    end
  end

  assign rd_ack_o  = rd_ack_q;
  assign rd_data_o = 64'(rd_q);

endmodule
