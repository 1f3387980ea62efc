// Receive queues (nic.md 3, 5): reads announced receive WQEs ahead, one beat of up to four slots a QP, and has the next one
// of each QP ready for the responder. Every event of a QP (doorbell, read data, a WQE taken, a CQE given) marks it; one
// marked QP at a time is looked at, and until then a message that needs a receive WQE waits.
module rq_slots
  import rnic_pkg::*, resp_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// context broadcast
    input  ctx_wr_t          ctx_i,
    /// state of the QPs
    input  logic [NumQp-1:0] qp_rts_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// a slot of that QP is being read
    output logic             drain_busy_o,
    /// RQ doorbell accepted: new producer index
    input  rq_move_t         db_i,
    /// receive WQE done with: first index without CQE
    input  rq_move_t         retire_i,
    /// the responder takes a receive WQE: index behind it
    input  rq_move_t         take_i,
    /// QPs of which something changed
    output logic [NumQp-1:0] marked_o,
    /// QPs whose next message has a receive WQE (nic.md 5: not more than MaxReceived wait for their CQE)
    output logic [NumQp-1:0] ready_o,
    /// QPs whose next receive WQE was read
    output logic [NumQp-1:0] loaded_o,
    /// read the next receive WQE of a QP
    input  logic             look_i,
    /// that QP
    input  qp_t              look_qpi_i,
    /// next receive WQE, one cycle later
    output rq_wqe_t          next_o,
    /// read burst
    output logic             req_valid_o,
    /// the burst is taken
    input  logic             req_ready_i,
    /// read burst
    output rd_req_t          req_o,
    /// read data, in the order of the bursts
    input  logic             beat_valid_i,
    /// read data
    input  rd_beat_t         beat_i,
    /// counters
    output cnt_inc_t         cnt_o
);
  /// reads in flight
  localparam int unsigned NumRead = 8;

  /// what a QP's context keeps
  typedef struct packed {
    logic [63:0] base;
    logic [4:0]  log;
    rq_idx_t     start;
  } keep_t;
  /// slots of a beat that were announced before it was read
  typedef struct packed {
    rq_idx_t    first;
    logic [2:0] num;
  } range_t;
  typedef struct packed {
    qp_t    qpi;
    range_t range;
  } flight_t;
  typedef struct packed {
    range_t range;
    logic   err;
    data_t  data;
  } beat_t;

  typedef enum logic [1:0] {
    StPick,
    StCalc,
    StReq
  } state_e;

  state_e           state_q;
  qp_t              qpi_q, pick;
  logic [NumQp-1:0] marked_q, marked, ready_q, loaded_q, have_q, fly_q, set;
  logic             some, read, calc, posted, room, loaded, ask;
  logic             prod_valid, taken_valid, done_valid;
  keep_t            keep_new, keep;
  rq_idx_t          prod_ram, taken_ram, done_ram, prod, taken, done, slot, depth;
  rq_idx_t          avail, to_end, ahead;
  logic [2:0]       to_beat, num;
  logic [63:0]      addr;
  beat_t            beat_new, beat;
  rq_wqe_t          next;
  logic [127:0]     lane;
  rd_req_t          req_q;
  flight_t          flight_q, flight;
  logic             flight_ready, flight_valid;
  logic [$clog2(NumRead+1)-1:0] unused_count;

  // ------------------------------------------------------------------ pick a marked QP and read what is known of it
  rr_pick #(.Num(NumQp)) i_pick (
      .clk_i, .rst_ni, .req_i(marked_q), .take_i(read), .valid_o(some), .idx_o(pick)
  );
  assign read = some && state_q == StPick;
  assign calc = state_q == StCalc;

  assign keep_new = '{base: ctx_i.qp.rq_base, log: ctx_i.qp.rq_log, start: ctx_i.qp.rq_start[16:0]};
  ctx_ram #(.T(keep_t), .Depth(NumQp)) i_keep (
      .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(keep_new),
      .rd_en_i(read), .rd_addr_i(pick), .rd_data_o(keep)
  );
  dyn_ram #(.T(rq_idx_t), .Depth(NumQp)) i_prod (
      .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
      .wr_en_i(db_i.valid), .wr_addr_i(db_i.qpi), .wr_data_i(db_i.idx),
      .rd_en_i(read), .rd_addr_i(pick), .rd_valid_o(prod_valid), .rd_data_o(prod_ram)
  );
  dyn_ram #(.T(rq_idx_t), .Depth(NumQp)) i_taken (
      .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
      .wr_en_i(take_i.valid), .wr_addr_i(take_i.qpi), .wr_data_i(take_i.idx),
      .rd_en_i(read), .rd_addr_i(pick), .rd_valid_o(taken_valid), .rd_data_o(taken_ram)
  );
  dyn_ram #(.T(rq_idx_t), .Depth(NumQp)) i_done (
      .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
      .wr_en_i(retire_i.valid), .wr_addr_i(retire_i.qpi), .wr_data_i(retire_i.idx),
      .rd_en_i(read), .rd_addr_i(pick), .rd_valid_o(done_valid), .rd_data_o(done_ram)
  );
  assign beat_new = '{range: flight.range, err: beat_i.err, data: beat_i.data};
  ctx_ram #(.T(beat_t), .Depth(NumQp)) i_beats (
      .clk_i, .wr_en_i(beat_valid_i), .wr_addr_i(flight.qpi), .wr_data_i(beat_new),
      .rd_en_i(read), .rd_addr_i(pick), .rd_data_o(beat)
  );

  // ------------------------------------------------------------------ judge it
  assign prod   = prod_valid ? prod_ram : keep.start;
  assign taken  = taken_valid ? taken_ram : keep.start;
  assign done   = done_valid ? done_ram : keep.start;
  assign avail  = prod - taken;
  assign posted = avail != '0;
  assign room   = rq_idx_t'(taken - done) < rq_idx_t'(MaxReceived);
  assign ahead  = taken - beat.range.first;
  assign loaded = have_q[qpi_q] && ahead < rq_idx_t'(beat.range.num);

  assign depth   = rq_idx_t'(17'd1 << keep.log);
  assign slot    = taken & (depth - 17'd1);
  assign to_end  = depth - slot;
  assign addr    = keep.base + {43'd0, slot, 4'd0};
  assign to_beat = 3'd4 - {1'b0, addr[5:4]};
  always_comb begin
    num = to_beat;
    if (avail < rq_idx_t'(num)) num = avail[2:0];
    if (to_end < rq_idx_t'(num)) num = to_end[2:0];
  end
  // no slot is read for a QP that left RTS
  assign ask = posted && !loaded && !fly_q[qpi_q] && qp_rts_i[qpi_q] && !(drain_i.valid && drain_i.qpi == qpi_q);

  // a receive WQE is one data segment (device.md 1): length, lkey, address
  assign lane = beat.data[{addr[5:4], 7'd0}+:128];
  assign next = '{idx: taken, err: beat.err, len: lane[31:0], lkey: lane[63:32], addr: lane[127:64]};
  ctx_ram #(.T(rq_wqe_t), .Depth(NumQp)) i_next (
      .clk_i, .wr_en_i(calc), .wr_addr_i(qpi_q), .wr_data_i(next),
      .rd_en_i(look_i), .rd_addr_i(look_qpi_i), .rd_data_o(next_o)
  );

  // ------------------------------------------------------------------ read
  assign req_valid_o = state_q == StReq && flight_ready;
  assign req_o       = req_q;
  fifo #(.T(flight_t), .Depth(NumRead)) i_flight (
      .clk_i, .rst_ni, .in_valid_i(req_valid_o && req_ready_i), .in_ready_o(flight_ready), .in_data_i(flight_q),
      .out_valid_o(flight_valid), .out_ready_i(beat_valid_i), .out_data_o(flight), .count_o(unused_count)
  );
  always_comb begin
    cnt_o              = '0;
    cnt_o[CntBusFetch] = beat_valid_i && beat_i.err;
  end

  always_comb begin
    set = '0;
    if (db_i.valid) set[db_i.qpi] = 1'b1;
    if (retire_i.valid) set[retire_i.qpi] = 1'b1;
    if (take_i.valid) set[take_i.qpi] = 1'b1;
    if (beat_valid_i) set[flight.qpi] = 1'b1;
    // what happens while a QP is looked at marks it anew
    marked = marked_q;
    if (calc) marked[qpi_q] = 1'b0;
    marked = marked | set;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q  <= StPick;
      qpi_q    <= '0;
      marked_q <= '0;
      ready_q  <= '0;
      loaded_q <= '0;
      have_q   <= '0;
      fly_q    <= '0;
    end else begin
      unique case (state_q)
        StPick:  if (some) state_q <= StCalc;
        StCalc:  state_q <= ask ? StReq : StPick;
        default: if (req_valid_o && req_ready_i) state_q <= StPick;
      endcase
      if (read) qpi_q <= pick;
      marked_q <= marked;
      if (calc) begin
        ready_q[qpi_q]  <= posted && room;
        loaded_q[qpi_q] <= loaded;
        if (ask) fly_q[qpi_q] <= 1'b1;
      end
      if (beat_valid_i) begin
        have_q[flight.qpi] <= 1'b1;
        fly_q[flight.qpi]  <= 1'b0;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        marked_q[ctx_i.qpi] <= 1'b0;
        ready_q[ctx_i.qpi]  <= 1'b0;
        loaded_q[ctx_i.qpi] <= 1'b0;
        have_q[ctx_i.qpi]   <= 1'b0;
      end
    end
  end
  always_ff @(posedge clk_i) begin
    if (calc) begin
      req_q    <= '{addr: {addr[63:6], 6'd0}, len: 8'd0, size: SizeBeat};
      flight_q <= '{qpi: qpi_q, range: '{first: taken, num: num}};
    end
  end

  assign marked_o     = marked_q;
  assign ready_o      = ready_q;
  assign loaded_o     = loaded_q;
  assign drain_busy_o = drain_i.valid && (fly_q[drain_i.qpi] || (state_q != StPick && qpi_q == drain_i.qpi));

  logic unused_bits;
  assign unused_bits = (^ctx_i) ^ beat_i.last ^ (^addr[3:0]);

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      assert (!beat_valid_i || flight_valid)
      else $error("rq_slots: read data without a request");
    end
  end
  `endif  // SYNTHESIS
endmodule
