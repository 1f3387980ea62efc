// New value of an atomic (device.md 1.5). Combinational. Compare-and-swap: where old and compare agree under the compare
// mask, the bits of the swap mask come from swap. Fetch-and-add: each set bit of the boundary is the most significant bit of
// a field of its own, out of which no carry goes. The plain forms have all mask bits set and no boundary.
module atomic_alu
  import rnic_pkg::*, atomic_pkg::*;
(
    /// a result is wanted
    input  logic        valid_i,
    /// request opcode
    input  logic [7:0]  bth_i,
    /// operands; 4-byte operations use the low halves
    input  amo_t        amo_i,
    /// value in memory; 4-byte operations use the low half
    input  logic [63:0] old_i,
    /// the value is written: always, but for a compare that failed
    output logic        write_o,
    /// value to write
    output logic [63:0] new_o
);
  logic [63:0] width, compare_mask, swap_mask, boundary, sum;

  always_comb begin
    write_o      = 1'b0;
    new_o        = '0;
    width        = '1;
    compare_mask = '1;
    swap_mask    = '1;
    boundary     = '0;
    sum          = '0;
    if (valid_i) begin
      if (!amo_wide(bth_i)) width = 64'hffff_ffff;
      if (amo_masked(bth_i)) begin
        compare_mask = amo_i.compare_mask;
        swap_mask    = amo_i.swap_mask;
        boundary     = amo_i.compare;
      end
      // the most significant bit of each field takes a carry in and gives none: it is added without carry
      sum = ((old_i & ~boundary) + (amo_i.swap_add & ~boundary)) ^ ((old_i ^ amo_i.swap_add) & boundary);
      if (amo_cas(bth_i)) begin
        write_o = ((old_i ^ amo_i.compare) & compare_mask & width) == '0;
        new_o   = ((old_i & ~swap_mask) | (amo_i.swap_add & swap_mask)) & width;
      end else begin
        write_o = 1'b1;
        new_o   = sum & width;
      end
    end
  end
endmodule
