// AXI4 rules for manager and subordinate, and those of the NIC's memory port (nic.md 1, 5): INCR only, ID classes, whole
// aligned beats but for atomics (ID 2), which are one beat of exactly 8 or 4 bytes, all of them strobed on a write.
module axi4_checker #(
  /// check the NIC's own rules as well
  parameter bit NicRules = 1'b1
) (
  /// clock
  input logic         clk_i,
  /// asynchronous reset, active low
  input logic         rst_ni,
  /// AXI4
  input logic [3:0]   awid_i,
  input logic [63:0]  awaddr_i,
  input logic [7:0]   awlen_i,
  input logic [2:0]   awsize_i,
  input logic [1:0]   awburst_i,
  input logic         awvalid_i,
  input logic         awready_i,
  input logic [511:0] wdata_i,
  input logic [63:0]  wstrb_i,
  input logic         wlast_i,
  input logic         wvalid_i,
  input logic         wready_i,
  input logic [3:0]   bid_i,
  input logic [1:0]   bresp_i,
  input logic         bvalid_i,
  input logic         bready_i,
  input logic [3:0]   arid_i,
  input logic [63:0]  araddr_i,
  input logic [7:0]   arlen_i,
  input logic [2:0]   arsize_i,
  input logic [1:0]   arburst_i,
  input logic         arvalid_i,
  input logic         arready_i,
  input logic [3:0]   rid_i,
  input logic [511:0] rdata_i,
  input logic [1:0]   rresp_i,
  input logic         rlast_i,
  input logic         rvalid_i,
  input logic         rready_i
);

  /// bursts per ID and direction that the checker can follow
  localparam int unsigned MaxOpen = 256;
  localparam logic [1:0] Incr = 2'b01;
  localparam logic [3:0] IdAtomic = 4'd2;
  localparam logic [3:0] IdLast = 4'd5;

  stable_checker #(
    .Width(81),
    .Name ("AXI AW")
  ) u_aw (
    .clk_i,
    .rst_ni,
    .valid_i  (awvalid_i),
    .ready_i  (awready_i),
    .payload_i({awid_i, awaddr_i, awlen_i, awsize_i, awburst_i})
  );
  stable_checker #(
    .Width(577),
    .Name ("AXI W")
  ) u_w (
    .clk_i,
    .rst_ni,
    .valid_i  (wvalid_i),
    .ready_i  (wready_i),
    .payload_i({wdata_i, wstrb_i, wlast_i})
  );
  stable_checker #(
    .Width(6),
    .Name ("AXI B")
  ) u_b (
    .clk_i,
    .rst_ni,
    .valid_i  (bvalid_i),
    .ready_i  (bready_i),
    .payload_i({bid_i, bresp_i})
  );
  stable_checker #(
    .Width(81),
    .Name ("AXI AR")
  ) u_ar (
    .clk_i,
    .rst_ni,
    .valid_i  (arvalid_i),
    .ready_i  (arready_i),
    .payload_i({arid_i, araddr_i, arlen_i, arsize_i, arburst_i})
  );
  stable_checker #(
    .Width(519),
    .Name ("AXI R")
  ) u_r (
    .clk_i,
    .rst_ni,
    .valid_i  (rvalid_i),
    .ready_i  (rready_i),
    .payload_i({rid_i, rdata_i, rresp_i, rlast_i})
  );

  /// address of the last byte of a burst, within 4 KiB of the first one's page
  function automatic logic crosses_4k(input logic [11:0] addr, input logic [7:0] len, input logic [2:0] size);
    logic [19:0] first, last;
    first = 20'(addr) >> size << size;
    last = first + ((20'(len) + 20'd1) << size) - 20'd1;
    return last > 20'd4095;
  endfunction

  /// one beat of exactly 4 or 8 aligned bytes
  function automatic logic is_word(input logic [2:0] addr, input logic [7:0] len, input logic [2:0] size);
    return len == 8'd0 && (size == 3'd2 || size == 3'd3) && (addr & ((3'd1 << size) - 3'd1)) == 3'd0;
  endfunction

  /// lanes of a 64-byte bus that a beat may use
  function automatic logic [63:0] lanes(input logic [5:0] addr, input logic [2:0] size, input logic first);
    logic [5:0] container;
    logic [63:0] mask;
    container = addr >> size << size;
    mask = size == 3'd6 ? '1 : ((64'd1 << (7'd1 << size)) - 64'd1) << container;
    return first ? mask & ('1 << addr) : mask;
  endfunction

  // ------------------------------------------------------------------ requests
  always_ff @(posedge clk_i) begin
    if (rst_ni && awvalid_i) begin
      aw_burst : assert (awburst_i == Incr && awsize_i <= 3'd6)
      else $error("AW burst type %0d, size %0d: INCR of at most 64 bytes a beat expected", awburst_i, awsize_i);
      aw_4k : assert (!crosses_4k(awaddr_i[11:0], awlen_i, awsize_i))
      else $error("write burst at %h, %0d beats crosses 4 KiB (AXI A3.4.1)", awaddr_i, 9'(awlen_i) + 9'd1);
      if (NicRules) begin
        aw_id : assert (awid_i <= IdLast && awid_i != 4'd0 && awid_i != 4'd1)
        else $error("write with ID %0d: that class does not write (nic.md 1)", awid_i);
        aw_whole : assert (awid_i == IdAtomic || (awsize_i == 3'd6 && awaddr_i[5:0] == 6'd0))
        else $error("write at %h, size %0d, ID %0d is not of whole aligned beats", awaddr_i, awsize_i, awid_i);
        aw_atomic : assert (awid_i != IdAtomic || is_word(awaddr_i[2:0], awlen_i, awsize_i))
        else $error("atomic write at %h, size %0d is not exactly 4 or 8 aligned bytes (nic.md 5)", awaddr_i, awsize_i);
      end
    end
    if (rst_ni && arvalid_i) begin
      ar_burst : assert (arburst_i == Incr && arsize_i <= 3'd6)
      else $error("AR burst type %0d, size %0d: INCR of at most 64 bytes a beat expected", arburst_i, arsize_i);
      ar_4k : assert (!crosses_4k(araddr_i[11:0], arlen_i, arsize_i))
      else $error("read burst at %h, %0d beats crosses 4 KiB (AXI A3.4.1)", araddr_i, 9'(arlen_i) + 9'd1);
      if (NicRules) begin
        ar_id : assert (arid_i <= IdAtomic)
        else $error("read with ID %0d: that class does not read (nic.md 1)", arid_i);
        ar_whole : assert (arid_i == IdAtomic || (arsize_i == 3'd6 && araddr_i[5:0] == 6'd0))
        else $error("read at %h, size %0d is not of whole aligned beats (nic.md 1)", araddr_i, arsize_i);
        ar_atomic : assert (arid_i != IdAtomic || is_word(araddr_i[2:0], arlen_i, arsize_i))
        else $error("atomic read at %h, size %0d is not exactly 4 or 8 aligned bytes (nic.md 5)", araddr_i, arsize_i);
      end
    end
  end

  // ------------------------------------------------------------------ write data against its address
  typedef struct packed {
    logic [3:0]  id;
    logic [63:0] addr;
    logic [7:0]  len;
    logic [2:0]  size;
  } aw_t;
  aw_t  aw_fifo [MaxOpen];
  int unsigned aw_wr_q, aw_rd_q;
  logic [7:0] w_beat_q;
  int unsigned b_done_q [16], b_taken_q [16];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      aw_wr_q  <= 0;
      aw_rd_q  <= 0;
      w_beat_q <= '0;
      for (int i = 0; i < 16; i++) begin
        b_done_q[i]  <= 0;
        b_taken_q[i] <= 0;
      end
    end else begin
      if (bvalid_i) begin
        b_known : assert (b_done_q[bid_i] != b_taken_q[bid_i])
        else $error("write response for ID %0d, which has no complete write open (AXI A3.3.1)", bid_i);
        if (bready_i) b_taken_q[bid_i] <= b_taken_q[bid_i] + 1;
      end
      if (awvalid_i && awready_i) begin
        aw_fifo[aw_wr_q % MaxOpen] <= '{id: awid_i, addr: awaddr_i, len: awlen_i, size: awsize_i};
        aw_wr_q <= aw_wr_q + 1;
      end
      if (wvalid_i && wready_i) begin
        automatic aw_t aw = aw_fifo[aw_rd_q % MaxOpen];
        automatic logic [63:0] addr = (aw.addr >> aw.size << aw.size) + (64'(w_beat_q) << aw.size);
        automatic logic [63:0] allowed = lanes(w_beat_q == 8'd0 ? aw.addr[5:0] : addr[5:0], aw.size, w_beat_q == 8'd0);
        w_has_address : assert (aw_rd_q != aw_wr_q)
        else $error("write data without an address");
        w_last : assert (wlast_i == (w_beat_q == aw.len))
        else $error("WLAST %0d at beat %0d of %0d (AXI A3.4.1)", wlast_i, w_beat_q, 9'(aw.len) + 9'd1);
        w_lanes : assert ((wstrb_i & ~allowed) == 64'd0)
        else $error("WSTRB %h outside the lanes of beat %0d of the burst at %h", wstrb_i, w_beat_q, aw.addr);
        if (NicRules) begin
          w_word : assert (aw.id != IdAtomic || wstrb_i == allowed)
          else $error("atomic write at %h with WSTRB %h: not all bytes of its word", aw.addr, wstrb_i);
        end
        w_beat_q <= wlast_i ? 8'd0 : w_beat_q + 8'd1;
        if (wlast_i) begin
          aw_rd_q <= aw_rd_q + 1;
          b_done_q[aw.id] <= b_done_q[aw.id] + 1;
        end
      end
    end
  end

  // ------------------------------------------------------------------ read data against its address
  logic [7:0] r_len [16][MaxOpen];
  int unsigned ar_wr_q [16], ar_rd_q [16];
  logic [7:0] r_beat_q [16];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      for (int i = 0; i < 16; i++) begin
        ar_wr_q[i]  <= 0;
        ar_rd_q[i]  <= 0;
        r_beat_q[i] <= '0;
      end
    end else begin
      if (rvalid_i && rready_i) begin
        r_known : assert (ar_rd_q[rid_i] != ar_wr_q[rid_i])
        else $error("read data for ID %0d, which has no read open (AXI A3.3.1)", rid_i);
        r_last : assert (rlast_i == (r_beat_q[rid_i] == r_len[rid_i][ar_rd_q[rid_i] % MaxOpen]))
        else $error("RLAST %0d at beat %0d of ID %0d", rlast_i, r_beat_q[rid_i], rid_i);
        r_beat_q[rid_i] <= rlast_i ? 8'd0 : r_beat_q[rid_i] + 8'd1;
        if (rlast_i) ar_rd_q[rid_i] <= ar_rd_q[rid_i] + 1;
      end
      if (arvalid_i && arready_i) begin
        r_len[arid_i][ar_wr_q[arid_i] % MaxOpen] <= arlen_i;
        ar_wr_q[arid_i] <= ar_wr_q[arid_i] + 1;
      end
    end
  end

endmodule
