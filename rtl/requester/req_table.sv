// Outstanding-request table: MaxInflight entries per QP, written when a WQE starts. The place of a WQE is its index modulo
// MaxInflight. Completion reads whole entries, the acknowledge tracker their marks. Which entries are acknowledged or
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
  /// read a mark
  input  logic       mark_en_i,
  /// QP of the entry
  input  qp_t        mark_qpi_i,
  /// place of the entry
  input  slot_t      mark_slot_i,
  /// mark, one cycle after mark_en_i
  output req_mark_t  mark_o,
  /// read the first PSN of an entry
  input  logic       first_en_i,
  /// QP of the entry
  input  qp_t        first_qpi_i,
  /// place of the entry
  input  slot_t      first_slot_i,
  /// first PSN, one cycle after first_en_i
  output psn_t       first_o
);
  localparam int unsigned Depth = NumQp * MaxInflight;

  req_mark_t mark_new;

  always_comb begin
    mark_new = '0;
    if (wr_en_i) begin
      mark_new.last    = wr_entry_i.last;
      mark_new.fetches = op_fetches(wr_entry_i.wqe.opcode);
      mark_new.odd     = op_atomic(wr_entry_i.wqe.opcode) &&
                         (wr_entry_i.wqe.raddr[1:0] != 2'd0 ||
                          (wr_entry_i.wqe.raddr[2] && !op_atomic4(wr_entry_i.wqe.opcode)));
    end
  end

  ctx_ram #(.T(req_entry_t), .Depth(Depth)) i_entries (
    .clk_i, .wr_en_i, .wr_addr_i({wr_qpi_i, wr_slot_i}), .wr_data_i(wr_entry_i),
    .rd_en_i, .rd_addr_i({rd_qpi_i, rd_slot_i}), .rd_data_o(rd_entry_o)
  );
  ctx_ram #(.T(req_mark_t), .Depth(Depth)) i_marks (
    .clk_i, .wr_en_i, .wr_addr_i({wr_qpi_i, wr_slot_i}), .wr_data_i(mark_new),
    .rd_en_i(mark_en_i), .rd_addr_i({mark_qpi_i, mark_slot_i}), .rd_data_o(mark_o)
  );
  ctx_ram #(.T(psn_t), .Depth(Depth)) i_firsts (
    .clk_i, .wr_en_i, .wr_addr_i({wr_qpi_i, wr_slot_i}), .wr_data_i(wr_entry_i.first),
    .rd_en_i(first_en_i), .rd_addr_i({first_qpi_i, first_slot_i}), .rd_data_o(first_o)
  );
endmodule
