// Completion queues: contexts, producer and consumer indices, doorbell judgement, room, slot and owner bit
// (nic.md sections 3 and 6, device.md sections 2.3 and 3.1). One user at a time: the completion engine reads a CQ with
// rd_en_i and decides in the cycle after.
module cq_state
  import rnic_pkg::*;
(
  /// clock
  input  logic        clk_i,
  /// asynchronous reset, active low
  input  logic        rst_ni,
  /// executed context commands
  input  ctx_wr_t     ctx_i,
  /// read a CQ; the outputs below then belong to it
  input  logic        rd_en_i,
  /// CQ to read
  input  cq_t         rd_cqn_i,
  /// logical index of the WQE that completes, for ignore_overrun
  input  logic [16:0] logical_i,
  /// there is room for a CQE
  output logic        room_o,
  /// address of its slot
  output logic [63:0] addr_o,
  /// its owner bit
  output logic        owner_o,
  /// slots are 32 bytes
  output logic        stride32_o,
  /// take the slot: the producer moves
  input  logic        push_i,
  /// consumer index of the doorbell in judgement
  input  logic [22:0] db_ci_i,
  /// verdict: 0 accepted, 1 backward, 2 beyond
  output logic [1:0]  db_verdict_o,
  /// the doorbell names another consumer index than the current one
  output logic        db_moves_o,
  /// take the doorbell
  input  logic        db_take_i
);
  /// what a CQ's context keeps
  typedef struct packed {
    logic [63:0] base;
    logic [4:0]  log;
    logic        stride32;
    logic        ignore_overrun;
    logic [22:0] start;
  } keep_t;
  /// free-running indices; 23 bits hold the phase of the deepest ring
  typedef struct packed {
    logic [22:0] pi;
    logic [22:0] ci;
  } pos_t;

  keep_t       keep_new, keep;
  pos_t        pos_new, pos_ram, pos;
  logic        pos_valid;
  cq_t         cqn_q;
  logic [22:0] depth, used, slot, ahead;
  logic [31:0] phase;

  assign keep_new = '{
    base: ctx_i.cq.base, log: ctx_i.cq.log, stride32: ctx_i.cq.stride32,
    ignore_overrun: ctx_i.cq.ignore_overrun, start: ctx_i.cq.start[22:0]
  };

  ctx_ram #(.T(keep_t), .Depth(NumCq)) i_keep (
    .clk_i, .wr_en_i(ctx_i.cq_set), .wr_addr_i(ctx_i.cqn), .wr_data_i(keep_new),
    .rd_en_i, .rd_addr_i(rd_cqn_i), .rd_data_o(keep)
  );
  dyn_ram #(.T(pos_t), .Depth(NumCq)) i_pos (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.cq_set), .clr_addr_i(ctx_i.cqn),
    .wr_en_i(push_i || db_take_i), .wr_addr_i(cqn_q), .wr_data_i(pos_new),
    .rd_en_i, .rd_addr_i(rd_cqn_i), .rd_valid_o(pos_valid), .rd_data_o(pos_ram)
  );

  assign pos   = pos_valid ? pos_ram : '{pi: keep.start, ci: keep.start};
  assign depth = 23'd1 << keep.log;
  assign used  = pos.pi - pos.ci;
  assign slot  = pos.pi & (depth - 23'd1);
  assign phase = keep.ignore_overrun ? {15'd0, logical_i} : {9'd0, pos.pi};

  assign room_o     = keep.ignore_overrun || (used < depth);
  assign owner_o    = phase[keep.log];
  assign stride32_o = keep.stride32;
  assign addr_o     = keep.ignore_overrun ? keep.base
                    : keep.base + (keep.stride32 ? {36'd0, slot, 5'd0} : {35'd0, slot, 6'd0});

  assign ahead        = db_ci_i - pos.ci;
  assign db_verdict_o = (ahead <= used) ? 2'd0
                      : ({1'b0, ahead} <= {1'b0, used} + 24'h40_0000) ? 2'd2 : 2'd1;

  assign db_moves_o   = (ahead != '0);

  assign pos_new = '{pi: pos.pi + 23'(push_i), ci: db_take_i ? db_ci_i : pos.ci};

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) cqn_q <= '0;
    else if (rd_en_i) cqn_q <= rd_cqn_i;
  end

  logic unused;
  assign unused = &{1'b0, ctx_i};
endmodule
