// Receives frames: strips the Ethernet header, measures the packet, computes the ICRC over exactly the IP length, stores
// what may go to memory (payload of WRITEs and READ responses, the original value of an atomic), and passes on what every
// check without context accepts (wire.md 1). A frame of any length passes; nothing behind the IP length is looked at.
// Payload of a dropped packet is overwritten by the next one.
module rx_parse
  import rnic_pkg::*, dp_pkg::*, icrc_pkg::*;
#(
    /// beats in the payload buffer, a power of two
    parameter int unsigned Depth = 512,
    /// derived: width of a beat number
    localparam int unsigned AddrW = $clog2(Depth)
) (
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// own MAC address
    input  logic [47:0]      mac_i,
    /// own IP address
    input  logic [31:0]      ip_i,
    /// link data
    input  data_t            s_axis_tdata,
    /// link byte lanes
    input  strb_t            s_axis_tkeep,
    /// last beat of the frame
    input  logic             s_axis_tlast,
    /// link valid
    input  logic             s_axis_tvalid,
    /// link ready
    output logic             s_axis_tready,
    /// packet that passed; its beats are in the buffer, in order
    output logic             hdr_valid_o,
    /// the packet is taken
    input  logic             hdr_ready_i,
    /// headers of the packet
    output rx_hdr_t          hdr_o,
    /// buffer read strobe
    input  logic             rd_en_i,
    /// buffer read address
    input  logic [AddrW-1:0] rd_addr_i,
    /// buffer data, one cycle later
    output data_t            rd_data_o,
    /// beats of the buffer that are free again this cycle
    input  beats_t           release_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// a packet of that QP may still wait here
    output logic             drain_busy_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  localparam int unsigned HdrDepth = 8;
  /// beats that a packet of 4096 bytes can have; more are not stored, and its length is refused
  localparam beats_t MaxBeats = 7'd66;

  rx_beat_t beat;
  logic     beat_valid, beat_ready, take;

  rx_strip i_strip (
      .clk_i, .rst_ni, .mac_i, .s_axis_tdata, .s_axis_tkeep, .s_axis_tlast, .s_axis_tvalid, .s_axis_tready,
      .out_valid_o(beat_valid), .out_ready_i(beat_ready), .out_o(beat)
  );

  // ------------------------------------------------------------------ measure
  logic [MaxHdrW-1:0] head_q;
  logic         mac_ok_q, type_ok_q, icrc_seen_q, end_q, icrc_here;
  logic [15:0]  bytes_q, left_q, left, ip_len;
  logic [16:0]  bytes_sum;
  logic [6:0]   covered;
  logic [31:0]  crc_q, icrc_q;
  beats_t       index_q, index;

  assign ip_len    = be16(beat.data[8*2+:16]);
  assign left      = beat.first ? ((ip_len < 16'd4) ? '0 : ip_len - 16'd4) : left_q;
  assign index     = beat.first ? '0 : index_q;
  assign covered   = (left >= 16'd64) ? 7'd64 : left[6:0];
  assign icrc_here = left < 16'd64 && (beat.first || !icrc_seen_q);
  assign bytes_sum = (beat.first ? 17'd0 : 17'(bytes_q)) + 17'(beat.bytes);
  assign take      = beat_valid && beat_ready;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) end_q <= 1'b0;
    else end_q <= take && beat.last;
  end

  always_ff @(posedge clk_i) begin
    if (take) begin
      if (beat.first) begin
        head_q[DataW-1:0] <= beat.data;
        mac_ok_q          <= beat.mac_ok;
        type_ok_q         <= beat.type_ok;
      end else if (index == beats_t'(1)) begin
        head_q[MaxHdrW-1:DataW] <= beat.data[MaxHdrW-DataW-1:0];
      end
      bytes_q     <= bytes_sum[16] ? '1 : bytes_sum[15:0];
      left_q      <= left - 16'(covered);
      index_q     <= (index == '1) ? index : index + beats_t'(1);
      icrc_seen_q <= icrc_here || (!beat.first && icrc_seen_q);
      if (icrc_here) icrc_q <= beat.data[{left[5:2], 5'b0}+:32];
      // a covered length that is no multiple of 4 is refused, so the low bits do not matter
      if (covered[6:2] != '0) crc_q <= icrc_step(crc_q, beat.data, beat.first, {covered[6:2], 2'b0});
    end
  end

  // ------------------------------------------------------------------ judge, one cycle after the last beat
  logic    ok, hdr_ready, keep;
  rx_hdr_t hdr;
  logic [$clog2(HdrDepth+1)-1:0] hdr_cnt;

  rx_verdict i_verdict (
      .ip_i, .valid_i(end_q), .head_i(head_q), .mac_ok_i(mac_ok_q), .type_ok_i(type_ok_q), .bytes_i(bytes_q),
      .icrc_calc_i(~crc_q), .icrc_recv_i(icrc_q), .ok_o(ok), .hdr_o(hdr), .cnt_o(cnt_o)
  );
  assign keep = ok && hdr.beats != '0;

  fifo #(.T(rx_hdr_t), .Depth(HdrDepth)) i_hdrs (
      .clk_i, .rst_ni, .in_valid_i(ok), .in_ready_o(hdr_ready), .in_data_i(hdr),
      .out_valid_o(hdr_valid_o), .out_ready_i(hdr_ready_i), .out_data_o(hdr_o), .count_o(hdr_cnt)
  );

  // ------------------------------------------------------------------ reset of a QP
  // what came in before the reset must be judged, and what is queued of the QP taken: it would meet the next context
  logic drain_port, drain_hdr;
  drain_mark i_drain_port (
      .clk_i, .rst_ni, .drain_i, .push_i(s_axis_tvalid && s_axis_tready && s_axis_tlast), .push_qpi_i(~drain_i.qpi),
      .pop_i(end_q), .busy_o(drain_port)
  );
  drain_mark i_drain_hdr (
      .clk_i, .rst_ni, .drain_i, .push_i(ok), .push_qpi_i(qp_t'(hdr.dest_qpn - 24'(FirstQpn))),
      .pop_i(hdr_valid_o && hdr_ready_i), .busy_o(drain_hdr)
  );
  assign drain_busy_o = drain_port || drain_hdr;

  // ------------------------------------------------------------------ store; a dropped packet's beats are taken back
  logic [AddrW-1:0] wr_q, start_q, base;
  logic [AddrW:0]   used_q;
  beats_t           stored_q;
  logic             store;
  data_t            store_data;

  // the original value of an atomic is kept in both byte orders in which it can land in memory (nic.md 5): the beat of its
  // packet has room behind the packet's end
  always_comb begin
    store_data = beat.data;
    if (store && beat.first && beat.data[8*28+:8] == BthAtomicAck) begin
      store_data[8*AckValueLe+:64] = be64(beat.data[8*44+:64]);
      store_data[8*AckValueBe+:32] = beat.data[8*48+:32];
    end
  end

  assign base       = (end_q && !keep) ? start_q : wr_q;
  assign store      = take && left != '0 && index < MaxBeats;
  // room for the packet's end, whose entry may come two cycles later, and for its beat
  assign beat_ready = used_q < (AddrW + 1)'(Depth - int'(MaxBeats) - 1) && hdr_cnt < 4'(HdrDepth - 1);

  ram_sdp #(.T(data_t), .Depth(Depth)) i_buffer (
      .clk_i, .wr_en_i(store), .wr_addr_i(base), .wr_data_i(store_data), .rd_en_i, .rd_addr_i, .rd_data_o
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q     <= '0;
      start_q  <= '0;
      stored_q <= '0;
      used_q   <= '0;
    end else begin
      wr_q <= base + AddrW'(store);
      if (end_q && keep) start_q <= wr_q;
      // beats of the packet under way
      if (take) stored_q <= (beat.first ? '0 : stored_q) + beats_t'(store);
      // beats of packets that passed
      used_q <= used_q + ((end_q && keep) ? (AddrW + 1)'(stored_q) : '0) - (AddrW + 1)'(release_i);
    end
  end

  logic unused_ready;
  assign unused_ready = hdr_ready;  // room was checked with the last beat
endmodule
