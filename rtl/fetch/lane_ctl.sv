// Lanes: gives the QPs that have announced work one of NumLane places at fetch and transmit (nic.md section 4), and takes
// it back at a WQE boundary when another QP waits and the lane is idle, cannot start a WQE, or had its quantum. WQEs that
// a lane prefetched but did not start are then dropped and fetched again later. A QP that could not start its next WQE
// asks for a lane again after an event that may let it, and one that has to send again as soon as it has given its lane back.
module lane_ctl
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic               clk_i,
  /// asynchronous reset, active low
  input  logic               rst_ni,
  /// executed context commands
  input  ctx_wr_t            ctx_i,
  /// QPs that may start new work: RTS, no error found, no reset waiting
  input  logic [NumQp-1:0]   qp_ok_i,
  /// SQ doorbell accepted
  input  qp_idx_t            db_i,
  /// WQE retired
  input  qp_idx_t            retire_i,
  /// oldest unacknowledged PSN moved
  input  qp_pos_t            una_i,
  /// that move ended a READ or atomic
  input  logic               una_rd_i,
  /// next WQE and PSN to issue, from the transmit scheduler
  input  qp_go_t             iss_i,
  /// a QP without a lane has to send again from here; never in a cycle of iss_i
  input  qp_go_t             back_i,
  /// QPs that hold a lane
  output logic [NumQp-1:0]   held_o,
  /// a lane is given to a QP
  output lane_load_t         load_o,
  /// producer index of a lane's QP moved
  output lane_idx_t          lane_db_o,
  /// first index not retired of a lane's QP moved
  output lane_idx_t          lane_retire_o,
  /// lanes that fetch and transmit
  output logic [NumLane-1:0] on_o,
  /// a QP waits for a lane
  output logic               waiters_o,
  /// lanes with nothing announced, fetched or begun
  input  logic [NumLane-1:0] idle_i,
  /// lanes that could be left now: between two WQEs and not in the transmit pipeline
  input  logic [NumLane-1:0] boundary_i,
  /// lanes whose QP has all its places in flight taken
  input  logic [NumLane-1:0] full_i,
  /// lanes whose next WQE waits for the end of a READ or atomic
  input  logic [NumLane-1:0] hold_rd_i,
  /// lanes whose next packet waits for acknowledged PSNs
  input  logic [NumLane-1:0] hold_psn_i,
  /// lanes that sent their quantum of packets
  input  logic [NumLane-1:0] quantum_i,
  /// lanes that the fetch engine or the transmit pipeline still handles
  input  logic [NumLane-1:0] busy_i,
  /// QP of a reset that waits
  input  qp_t                drain_qpi_i,
  /// that QP holds a lane
  output logic               drain_busy_o
);
  /// what a lane needs of a QP's context
  typedef struct packed {
    logic        version2;
    logic [2:0]  mtu;
    logic [4:0]  sq_log;
    logic [63:0] sq_base;
    idx_t        sq_start;
    psn_t        sq_psn;
  } lane_ctx_t;

  /// position kept while a QP has no lane
  typedef struct packed {
    idx_t    idx;
    psn_t    psn;
    rd_num_t rd;
    psn_t    skip;
    psn_t    high;
  } pos_t;

  // per QP: has announced work; holds a lane; before it wants one, waits for a retirement or the end of a READ or atomic, or
  // for acknowledged PSNs
  logic [NumQp-1:0]   work_q, held_q, park_q, park_psn_q;
  logic [NumQp-1:0]   wants;
  // per lane
  logic [NumLane-1:0] on_q, off_q, used;
  qp_t                qpi_q [NumLane];
  // the lane that is being loaded
  logic               load_q;
  lane_t              load_lane_q;
  qp_t                load_qpi_q;

  logic               pick_valid, pick_take, free_valid, need;
  qp_t                pick_qpi;
  lane_t              free_lane, evict_lane;
  logic               evict_valid;
  logic [NumLane-1:0] evictable;

  lane_ctx_t          ctx, ctx_new;
  logic [2:0]         sl;
  logic               iss_valid, ri_valid, pi_valid;
  pos_t               iss, iss_new;
  qp_go_t             go;
  idx_t               ri, pi;

  assign wants     = work_q & ~held_q & ~park_q & ~park_psn_q & qp_ok_i;
  assign used      = on_q | off_q;
  assign waiters_o = pick_valid;
  assign on_o      = on_q;
  assign pick_take = pick_valid && free_valid && !load_q;
  assign need      = pick_valid && !free_valid && !load_q && (off_q == '0);

  rr_pick #(.Num(NumQp)) i_pick (
    .clk_i, .rst_ni, .req_i(wants), .take_i(pick_take), .valid_o(pick_valid), .idx_o(pick_qpi)
  );

  always_comb begin
    free_valid = 1'b0;
    free_lane  = '0;
    for (int unsigned l = NumLane; l > 0; l--) begin
      if (!used[l-1]) begin
        free_valid = 1'b1;
        free_lane  = lane_t'(l - 1);
      end
    end
  end

  assign evictable = need ? on_q & boundary_i & (idle_i | full_i | hold_rd_i | hold_psn_i | quantum_i) : '0;
  rr_pick #(.Num(NumLane)) i_evict (
    .clk_i, .rst_ni, .req_i(evictable), .take_i(1'b1), .valid_o(evict_valid), .idx_o(evict_lane)
  );

  // ---------------------------------------------------------------- state that is read when a lane is given
  assign ctx_new = '{
    version2: ctx_i.qp.version2, mtu: ctx_i.qp.mtu, sq_log: ctx_i.qp.sq_log, sq_base: ctx_i.qp.sq_base,
    sq_start: ctx_i.qp.sq_start, sq_psn: ctx_i.qp.sq_psn
  };
  assign go      = back_i.valid ? back_i : iss_i;
  assign iss_new = '{idx: go.idx, psn: go.psn, rd: go.rd, skip: go.skip, high: go.high};
  assign held_o  = held_q;

  ctx_ram #(.T(lane_ctx_t), .Depth(NumQp)) i_ctx (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(ctx_new),
    .rd_en_i(pick_take), .rd_addr_i(pick_qpi), .rd_data_o(ctx)
  );
  // the service level may change in RTS
  ctx_ram #(.T(logic [2:0]), .Depth(NumQp)) i_sl (
    .clk_i, .wr_en_i(ctx_i.qp_set || ctx_i.qp_modify), .wr_addr_i(ctx_i.qpi), .wr_data_i(ctx_i.qp.sl),
    .rd_en_i(pick_take), .rd_addr_i(pick_qpi), .rd_data_o(sl)
  );
  dyn_ram #(.T(pos_t), .Depth(NumQp)) i_iss (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(go.valid), .wr_addr_i(go.qpi), .wr_data_i(iss_new),
    .rd_en_i(pick_take), .rd_addr_i(pick_qpi), .rd_valid_o(iss_valid), .rd_data_o(iss)
  );
  dyn_ram #(.T(idx_t), .Depth(NumQp)) i_retired (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(retire_i.valid), .wr_addr_i(retire_i.qpi), .wr_data_i(retire_i.idx),
    .rd_en_i(pick_take), .rd_addr_i(pick_qpi), .rd_valid_o(ri_valid), .rd_data_o(ri)
  );
  dyn_ram #(.T(idx_t), .Depth(NumQp)) i_producer (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(db_i.valid), .wr_addr_i(db_i.qpi), .wr_data_i(db_i.idx),
    .rd_en_i(pick_take), .rd_addr_i(pick_qpi), .rd_valid_o(pi_valid), .rd_data_o(pi)
  );

  always_comb begin
    load_o          = '0;
    load_o.valid    = load_q;
    load_o.lane     = load_lane_q;
    load_o.qpi      = load_qpi_q;
    load_o.version2 = ctx.version2;
    load_o.mtu      = ctx.mtu;
    load_o.sl       = sl;
    load_o.sq_log   = ctx.sq_log;
    load_o.sq_base  = ctx.sq_base;
    load_o.idx      = iss_valid ? iss.idx : ctx.sq_start;
    load_o.psn      = iss_valid ? iss.psn : ctx.sq_psn;
    load_o.rd       = iss_valid ? iss.rd : '0;
    load_o.skip     = iss_valid ? iss.skip : '0;
    load_o.high     = iss_valid ? iss.high : ctx.sq_psn;
    load_o.pi       = pi_valid ? pi : load_o.idx;
    load_o.ri       = ri_valid ? ri[4:0] : ctx.sq_start[4:0];
    // what moves in this very cycle is not in the memories' outputs yet
    if (db_i.valid && db_i.qpi == load_qpi_q) load_o.pi = db_i.idx;
    if (retire_i.valid && retire_i.qpi == load_qpi_q) load_o.ri = retire_i.idx[4:0];
  end

  // ---------------------------------------------------------------- events of QPs that hold a lane
  always_comb begin
    lane_db_o     = '0;
    lane_db_o.idx = db_i.idx;
    if (db_i.valid && held_q[db_i.qpi]) begin
      for (int unsigned l = 0; l < NumLane; l++) begin
        if (on_q[l] && qpi_q[l] == db_i.qpi) begin
          lane_db_o.valid = 1'b1;
          lane_db_o.lane  = lane_t'(l);
        end
      end
    end
    lane_retire_o     = '0;
    lane_retire_o.idx = retire_i.idx;
    if (retire_i.valid && held_q[retire_i.qpi]) begin
      for (int unsigned l = 0; l < NumLane; l++) begin
        if (on_q[l] && qpi_q[l] == retire_i.qpi) begin
          lane_retire_o.valid = 1'b1;
          lane_retire_o.lane  = lane_t'(l);
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (pick_take) qpi_q[free_lane] <= pick_qpi;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      work_q      <= '0;
      held_q      <= '0;
      park_q      <= '0;
      park_psn_q  <= '0;
      on_q        <= '0;
      off_q       <= '0;
      load_q      <= 1'b0;
      load_lane_q <= '0;
      load_qpi_q  <= '0;
    end else begin
      load_q <= pick_take;
      if (pick_take) begin
        load_lane_q      <= free_lane;
        load_qpi_q       <= pick_qpi;
        held_q[pick_qpi] <= 1'b1;
      end
      if (load_q) on_q[load_lane_q] <= 1'b1;

      for (int unsigned l = 0; l < NumLane; l++) begin
        if (on_q[l] && !qp_ok_i[qpi_q[l]]) begin
          on_q[l]  <= 1'b0;
          off_q[l] <= 1'b1;
        end
        if (off_q[l] && !busy_i[l]) begin
          off_q[l]         <= 1'b0;
          held_q[qpi_q[l]] <= 1'b0;
        end
      end

      if (evict_valid) begin
        on_q[evict_lane]  <= 1'b0;
        off_q[evict_lane] <= 1'b1;
        if (idle_i[evict_lane]) work_q[qpi_q[evict_lane]] <= 1'b0;
        else if (full_i[evict_lane] || hold_rd_i[evict_lane]) park_q[qpi_q[evict_lane]] <= 1'b1;
        else if (hold_psn_i[evict_lane]) park_psn_q[qpi_q[evict_lane]] <= 1'b1;
      end
      if (retire_i.valid) park_q[retire_i.qpi] <= 1'b0;
      if (una_i.valid) park_psn_q[una_i.qpi] <= 1'b0;
      if (una_i.valid && una_rd_i) park_q[una_i.qpi] <= 1'b0;
      if (db_i.valid) work_q[db_i.qpi] <= 1'b1;
      if (back_i.valid) begin
        work_q[back_i.qpi]     <= 1'b1;
        park_q[back_i.qpi]     <= 1'b0;
        park_psn_q[back_i.qpi] <= 1'b0;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        work_q[ctx_i.qpi]     <= 1'b0;
        park_q[ctx_i.qpi]     <= 1'b0;
        park_psn_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i, ri, una_i, go};

  assign drain_busy_o = held_q[drain_qpi_i];
endmodule
