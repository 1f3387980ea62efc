// WQE fetch: bursts of announced WQEs into the lanes' queues, far enough ahead to hide the memory's latency
// (nic.md section 4). A burst is as long as what is announced, the ring's end, the 4 KiB boundary and MaxFetch allow;
// room in the lane's queue is reserved before the request, so read data is always accepted.
module fetch_eng
  import rnic_pkg::*;
  import req_pkg::*;
#(
  /// WQEs that a lane can hold
  parameter int unsigned LaneDepth = 16,
  /// bursts in flight
  parameter int unsigned NumBurst = 64,
  /// operands of the unmasked atomics (opcodes 26 and 27) are little-endian
  parameter bit AmoPlainLittle = 1'b0,
  /// masked atomics carry their remote length shifted left by one
  parameter bit AmoShiftedLen = 1'b0,
  /// derived: width of a place in a lane's queue
  localparam int unsigned PtrW = $clog2(LaneDepth)
) (
  /// clock
  input  logic                    clk_i,
  /// asynchronous reset, active low
  input  logic                    rst_ni,
  /// weight of each service level, 8 bits each
  input  logic [63:0]             sl_weight_i,
  /// a lane is given to a QP
  input  lane_load_t              load_i,
  /// producer index of a lane's QP moved
  input  lane_idx_t               lane_db_i,
  /// lanes that fetch
  input  logic [NumLane-1:0]      on_i,
  /// a QP waits for a lane: fetch no more than a quantum
  input  logic                    waiters_i,
  /// read request
  output logic                    req_valid_o,
  /// read request accepted
  input  logic                    req_ready_i,
  /// read request
  output rd_req_t                 req_o,
  /// read data, in the order of the requests
  input  logic                    beat_valid_i,
  /// read data
  input  rd_beat_t                beat_i,
  /// lanes with a decoded WQE at the head of their queue
  output logic [NumLane-1:0]      have_o,
  /// lanes with all that was announced fetched and taken
  output logic [NumLane-1:0]      idle_o,
  /// lanes with read data to come
  output logic [NumLane-1:0]      busy_o,
  /// read the head of a lane's queue
  input  logic                    head_en_i,
  /// lane to read
  input  lane_t                   head_lane_i,
  /// head, one cycle after head_en_i
  output wqe_t                    head_o,
  /// remove the head of a lane's queue
  input  logic                    pop_i,
  /// lane of the removal
  input  lane_t                   pop_lane_i,
  /// a WQE came with a bus error
  output logic                    cnt_bus_o
);
  localparam int unsigned SlotLog = $clog2(WqeBytes);
  localparam int unsigned PageSlots = 4096 / WqeBytes;
  localparam logic [PtrW:0] RoomLimit = (PtrW + 1)'(LaneDepth - MaxFetch);

  /// a burst in flight
  typedef struct packed {
    lane_t      lane;
    logic       version2;
    logic [3:0] num;
    idx_t       idx;
  } burst_t;

  // per lane
  logic                    v2_q    [NumLane];
  logic [4:0]              log_q   [NumLane];
  logic [63:0]             base_q  [NumLane];
  idx_t                    fi_q    [NumLane];
  idx_t                    pi_q    [NumLane];
  logic [PtrW-1:0]         wr_q    [NumLane];
  logic [PtrW-1:0]         rd_q    [NumLane];
  logic [PtrW:0]           resv_q  [NumLane];  // in the queue or in flight
  logic [PtrW:0]           fly_q   [NumLane];  // in flight
  logic [4:0]              quant_q [NumLane];  // fetched since the lane was given, saturating
  logic [NumLane-1:0][2:0] sl_q;
  logic [NumLane-1:0]      more, want;

  // request pipeline: pick a lane, compute the burst, offer it
  logic                    arb_valid, arb_take;
  lane_t                   arb_lane, lane_q;
  logic                    calc_q, req_valid_q, calc;
  rd_req_t                 req_q;
  burst_t                  burst_new, burst;
  logic [$clog2(NumBurst+1)-1:0] unused_count;
  logic                    burst_ready, burst_valid, burst_pop;
  idx_t                    slot, avail, to_end;
  logic [5:0]              to_page;
  logic [63:0]             addr;
  logic [3:0]              num;

  // response pipeline
  logic                    odd_q, err_q, lane_wr, wqe_done;
  logic [2:0]              done_q;
  data_t                   first_q;
  wqe_t                    wqe;

  always_comb begin
    for (int unsigned l = 0; l < NumLane; l++) begin
      more[l]   = (fi_q[l] != pi_q[l]);
      want[l]   = on_i[l] && more[l] && (resv_q[l] <= RoomLimit) && !(waiters_i && quant_q[l] >= LaneQuantum);
      have_o[l] = (resv_q[l] != fly_q[l]);
      busy_o[l] = (fly_q[l] != '0);
      idle_o[l] = !more[l] && (resv_q[l] == '0);
    end
  end

  assign arb_take = arb_valid && burst_ready && !calc_q && (!req_valid_q || req_ready_i);
  wrr_arb #(.Num(NumLane)) i_arb (
    .clk_i, .rst_ni, .req_i(want), .sl_i(sl_q), .weight_i(sl_weight_i), .take_i(arb_take),
    .valid_o(arb_valid), .idx_o(arb_lane)
  );

  // burst of the picked lane; nothing happens if the lane was taken away since
  assign calc = calc_q && on_i[lane_q];
  always_comb begin
    slot    = '0;
    avail   = '0;
    to_end  = '0;
    to_page = '0;
    addr    = '0;
    num     = '0;
    if (calc_q) begin
      slot    = fi_q[lane_q] & ((idx_t'(1) << log_q[lane_q]) - idx_t'(1));
      to_end  = (idx_t'(1) << log_q[lane_q]) - slot;
      avail   = idx_sub(pi_q[lane_q], fi_q[lane_q], v2_q[lane_q]);
      addr    = base_q[lane_q] + (64'(slot) << SlotLog);
      to_page = 6'(PageSlots) - 6'(addr[11:SlotLog]);
      num     = 4'(MaxFetch);
      if (avail < idx_t'(num)) num = avail[3:0];
      if (to_end < idx_t'(num)) num = to_end[3:0];
      if (to_page < 6'(num)) num = to_page[3:0];
    end
  end

  assign burst_new = '{lane: lane_q, version2: v2_q[lane_q], num: num, idx: fi_q[lane_q]};
  fifo #(.T(burst_t), .Depth(NumBurst)) i_bursts (
    .clk_i, .rst_ni, .in_valid_i(calc), .in_ready_o(burst_ready), .in_data_i(burst_new),
    .out_valid_o(burst_valid), .out_ready_i(burst_pop), .out_data_o(burst), .count_o(unused_count)
  );

  assign req_valid_o = req_valid_q;
  assign req_o       = req_q;

  // ---------------------------------------------------------------- read data: two beats a WQE, decoded at the second
  wqe_decode #(.AmoPlainLittle(AmoPlainLittle), .AmoShiftedLen(AmoShiftedLen)) i_decode (
    .data_i(first_q), .ext_i(beat_i.data[127:0]), .version2_i(burst.version2),
    .idx_i(idx_add(burst.idx, idx_t'(done_q), burst.version2)),
    .bus_err_i(err_q || beat_i.err), .wqe_o(wqe)
  );
  assign wqe_done  = beat_valid_i && odd_q;
  assign lane_wr   = wqe_done && on_i[burst.lane];
  assign burst_pop = wqe_done && ({1'b0, done_q} == burst.num - 4'd1);
  assign cnt_bus_o = lane_wr && (err_q || beat_i.err);

  ctx_ram #(.T(wqe_t), .Depth(NumLane * LaneDepth)) i_queue (
    .clk_i, .wr_en_i(lane_wr), .wr_addr_i({burst.lane, wr_q[burst.lane]}), .wr_data_i(wqe),
    .rd_en_i(head_en_i), .rd_addr_i({head_lane_i, rd_q[head_lane_i]}), .rd_data_o(head_o)
  );

  always_ff @(posedge clk_i) begin
    if (beat_valid_i && !odd_q) first_q <= beat_i.data;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      calc_q      <= 1'b0;
      lane_q      <= '0;
      req_valid_q <= 1'b0;
      req_q       <= '0;
      odd_q       <= 1'b0;
      err_q       <= 1'b0;
      done_q      <= '0;
    end else begin
      calc_q <= arb_take;
      if (arb_take) lane_q <= arb_lane;
      if (calc) begin
        req_valid_q <= 1'b1;
        req_q       <= '{addr: addr, len: {3'b0, num, 1'b0} - 8'd1, size: SizeBeat};
      end else if (req_ready_i) begin
        req_valid_q <= 1'b0;
      end
      if (beat_valid_i) begin
        odd_q <= !odd_q;
        err_q <= beat_i.err;
        if (odd_q) done_q <= burst_pop ? 3'd0 : done_q + 3'd1;
      end
    end
  end

  // per-lane state is reset for the sake of the lanes that were never given
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      sl_q <= '0;
      for (int unsigned l = 0; l < NumLane; l++) begin
        {v2_q[l], log_q[l], base_q[l], fi_q[l], pi_q[l]} <= '0;
        {wr_q[l], rd_q[l], resv_q[l], fly_q[l], quant_q[l]} <= '0;
      end
    end else begin
      for (int unsigned l = 0; l < NumLane; l++) begin
        if (load_i.valid && load_i.lane == lane_t'(l)) begin
          v2_q[l]    <= load_i.version2;
          sl_q[l]    <= load_i.sl;
          log_q[l]   <= load_i.sq_log;
          base_q[l]  <= load_i.sq_base;
          fi_q[l]    <= load_i.idx;
          pi_q[l]    <= load_i.pi;
          {wr_q[l], rd_q[l], resv_q[l], fly_q[l], quant_q[l]} <= '0;
        end else begin
          if (lane_db_i.valid && lane_db_i.lane == lane_t'(l)) pi_q[l] <= lane_db_i.idx;
          if (lane_wr && burst.lane == lane_t'(l)) wr_q[l] <= wr_q[l] + PtrW'(1);
          if (pop_i && pop_lane_i == lane_t'(l)) rd_q[l] <= rd_q[l] + PtrW'(1);
          if (calc && lane_q == lane_t'(l)) begin
            fi_q[l] <= idx_add(fi_q[l], idx_t'(num), v2_q[l]);
            if (quant_q[l] < LaneQuantum) quant_q[l] <= quant_q[l] + {1'b0, num};
          end
          if ((calc && lane_q == lane_t'(l)) || (pop_i && pop_lane_i == lane_t'(l))) begin
            resv_q[l] <= resv_q[l] + ((calc && lane_q == lane_t'(l)) ? (PtrW + 1)'(num) : '0)
              - (PtrW + 1)'(pop_i && pop_lane_i == lane_t'(l));
          end
          if ((calc && lane_q == lane_t'(l)) || (wqe_done && burst.lane == lane_t'(l))) begin
            fly_q[l] <= fly_q[l] + ((calc && lane_q == lane_t'(l)) ? (PtrW + 1)'(num) : '0)
              - (PtrW + 1)'(wqe_done && burst.lane == lane_t'(l));
          end
        end
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, load_i, beat_i.last};

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      // data never comes unasked
      assert (!beat_valid_i || burst_valid)
      else $error("fetch_eng: read data without a request");
    end
  end
  `endif  // SYNTHESIS
endmodule
