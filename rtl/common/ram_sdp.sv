// Data buffer memory: one write port, one registered read port, no reset. Reading an entry in the cycle in which it is
// written is not defined; the users' pointers never do that.
module ram_sdp #(
    /// payload of one entry
    parameter type T = logic,
    /// number of entries
    parameter int unsigned Depth = 64,
    /// derived: width of an entry number
    localparam int unsigned AddrW = (Depth > 1) ? $clog2(Depth) : 1
) (
    /// clock
    input  logic             clk_i,
    /// write strobe
    input  logic             wr_en_i,
    /// entry to write
    input  logic [AddrW-1:0] wr_addr_i,
    /// value to write
    input  T                 wr_data_i,
    /// read strobe
    input  logic             rd_en_i,
    /// entry to read
    input  logic [AddrW-1:0] rd_addr_i,
    /// value, one cycle after rd_en_i
    output T                 rd_data_o
);
  T mem[Depth];
  T rd_data_q;

  always_ff @(posedge clk_i) begin
    if (wr_en_i) mem[wr_addr_i] <= wr_data_i;
    if (rd_en_i) rd_data_q <= mem[rd_addr_i];
  end

  assign rd_data_o = rd_data_q;
endmodule
