// Memory of per-context state that changes while the context lives. An entry is invalid after its context was set or
// reset (nic.md section 2: only valid bits are flip-flops); the reader then takes the start value from the context.
module dyn_ram #(
  /// payload of one entry
  parameter type T = logic,
  /// number of entries
  parameter int unsigned Depth = 64,
  /// derived: width of an entry number
  localparam int unsigned AddrW = $clog2(Depth)
) (
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// invalidate an entry; never in the cycle of a write to the same entry
  input  logic             clr_en_i,
  /// entry to invalidate
  input  logic [AddrW-1:0] clr_addr_i,
  /// write strobe, makes the entry valid
  input  logic             wr_en_i,
  /// entry to write
  input  logic [AddrW-1:0] wr_addr_i,
  /// value to write
  input  T                 wr_data_i,
  /// read strobe; without it the outputs hold
  input  logic             rd_en_i,
  /// entry to read
  input  logic [AddrW-1:0] rd_addr_i,
  /// the entry was valid at the read strobe, a write in the same cycle included
  output logic             rd_valid_o,
  /// value, one cycle after the read strobe
  output T                 rd_data_o
);
  logic [Depth-1:0] valid_q;
  logic             rd_valid_q;

  assign rd_valid_o = rd_valid_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q    <= '0;
      rd_valid_q <= 1'b0;
    end else begin
      if (clr_en_i) valid_q[clr_addr_i] <= 1'b0;
      if (wr_en_i) valid_q[wr_addr_i] <= 1'b1;
      if (rd_en_i) rd_valid_q <= valid_q[rd_addr_i] || (wr_en_i && wr_addr_i == rd_addr_i);
    end
  end

  ctx_ram #(.T(T), .Depth(Depth)) i_ram (
    .clk_i, .wr_en_i, .wr_addr_i, .wr_data_i, .rd_en_i, .rd_addr_i, .rd_data_o
  );
endmodule
