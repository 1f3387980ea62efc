// Positions of a QP that completion compares: first WQE not retired, first not acknowledged, producer. Read with take_i;
// the outputs belong to that QP from the next cycle on.
module comp_qp
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic    clk_i,
  /// asynchronous reset, active low
  input  logic    rst_ni,
  /// executed context commands
  input  ctx_wr_t ctx_i,
  /// SQ doorbell accepted
  input  qp_idx_t db_i,
  /// acknowledged position moved
  input  qp_pos_t una_i,
  /// first WQE not retired moves
  input  qp_idx_t retire_i,
  /// read a QP
  input  logic    take_i,
  /// QP to read
  input  qp_t     qpi_i,
  /// format version
  output logic    version2_o,
  /// send CQ
  output cq_t     send_cq_o,
  /// first WQE not retired
  output idx_t    ri_o,
  /// the one behind it
  output idx_t    ri_next_o,
  /// that WQE is announced
  output logic    more_o,
  /// it is acknowledged, unless a flush has begun
  output logic    acked_o,
  /// so is the one behind it
  output logic    next_acked_o
);
  /// what completion needs of a QP's context
  typedef struct packed {
    logic version2;
    idx_t sq_start;
    cq_t  send_cq;
  } keep_t;

  keep_t keep_new, keep;
  logic  ri_valid, ua_valid, pi_valid;
  idx_t  ri, ua_ram, pi, ua;

  assign keep_new = '{version2: ctx_i.qp.version2, sq_start: ctx_i.qp.sq_start, send_cq: ctx_i.qp.send_cq};
  ctx_ram #(.T(keep_t), .Depth(NumQp)) i_keep (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(keep_new),
    .rd_en_i(take_i), .rd_addr_i(qpi_i), .rd_data_o(keep)
  );
  dyn_ram #(.T(idx_t), .Depth(NumQp)) i_retired (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(retire_i.valid), .wr_addr_i(retire_i.qpi), .wr_data_i(retire_i.idx),
    .rd_en_i(take_i), .rd_addr_i(qpi_i), .rd_valid_o(ri_valid), .rd_data_o(ri)
  );
  dyn_ram #(.T(idx_t), .Depth(NumQp)) i_acked (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(una_i.valid), .wr_addr_i(una_i.qpi), .wr_data_i(una_i.idx),
    .rd_en_i(take_i), .rd_addr_i(qpi_i), .rd_valid_o(ua_valid), .rd_data_o(ua_ram)
  );
  dyn_ram #(.T(idx_t), .Depth(NumQp)) i_producer (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(db_i.valid), .wr_addr_i(db_i.qpi), .wr_data_i(db_i.idx),
    .rd_en_i(take_i), .rd_addr_i(qpi_i), .rd_valid_o(pi_valid), .rd_data_o(pi)
  );

  assign version2_o   = keep.version2;
  assign send_cq_o    = keep.send_cq;
  assign ri_o         = ri_valid ? ri : keep.sq_start;
  assign ri_next_o    = idx_add(ri_o, idx_t'(1), keep.version2);
  assign ua           = ua_valid ? ua_ram : keep.sq_start;
  assign more_o       = pi_valid && (pi != ri_o);
  assign acked_o      = (ua != ri_o);
  assign next_acked_o = (ua != ri_next_o);

  logic unused;
  assign unused = &{1'b0, ctx_i, una_i};
endmodule
