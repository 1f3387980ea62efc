// Outstanding-request table: MaxInflight entries per QP, written when a WQE starts. The place of a WQE is its index modulo
// MaxInflight. Completion reads whole entries, the acknowledge tracker the last PSNs. Which entries are acknowledged or
// failed is kept as positions and failure records beside it, each with one writer.
module req_table
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic       clk_i,
  /// a WQE starts
  input  logic       wr_en_i,
  /// its QP
  input  qp_t        wr_qpi_i,
  /// its place
  input  slot_t      wr_slot_i,
  /// its entry
  input  req_entry_t wr_entry_i,
  /// read an entry
  input  logic       rd_en_i,
  /// QP of the entry
  input  qp_t        rd_qpi_i,
  /// place of the entry
  input  slot_t      rd_slot_i,
  /// entry, one cycle after rd_en_i
  output req_entry_t rd_entry_o,
  /// read a last PSN
  input  logic       last_en_i,
  /// QP of the entry
  input  qp_t        last_qpi_i,
  /// place of the entry
  input  slot_t      last_slot_i,
  /// last PSN, one cycle after last_en_i
  output psn_t       last_o
);
  localparam int unsigned Depth = NumQp * MaxInflight;

  ctx_ram #(.T(req_entry_t), .Depth(Depth)) i_entries (
    .clk_i, .wr_en_i, .wr_addr_i({wr_qpi_i, wr_slot_i}), .wr_data_i(wr_entry_i),
    .rd_en_i, .rd_addr_i({rd_qpi_i, rd_slot_i}), .rd_data_o(rd_entry_o)
  );
  ctx_ram #(.T(psn_t), .Depth(Depth)) i_last (
    .clk_i, .wr_en_i, .wr_addr_i({wr_qpi_i, wr_slot_i}), .wr_data_i(wr_entry_i.last),
    .rd_en_i(last_en_i), .rd_addr_i({last_qpi_i, last_slot_i}), .rd_data_o(last_o)
  );
endmodule
