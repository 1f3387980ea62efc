// Moves a packet's bytes from the lanes that they have in a buffer to the lanes that they need, one beat a cycle.
// gather: memory offset -> lane 0; scatter: place in the packet -> offset of the target. A command is a number of slots:
// each slot reads a buffered beat (but for a flush slot) and gives an output beat (but for a load slot).
module realign
  import rnic_pkg::*, dp_pkg::*;
#(
    /// beats in the buffer, a power of two
    parameter int unsigned Depth = 512,
    /// derived: width of a beat number
    localparam int unsigned AddrW = $clog2(Depth)
) (
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// command
    input  logic             cmd_valid_i,
    /// the command is taken (its beats are in the buffer, in order)
    output logic             cmd_ready_o,
    /// what to move
    input  realign_cmd_t     cmd_i,
    /// buffer read strobe
    output logic             rd_en_o,
    /// buffer read address
    output logic [AddrW-1:0] rd_addr_o,
    /// buffer data, one cycle later
    input  data_t            rd_data_i,
    /// beats of the buffer that are free again this cycle
    output beats_t           release_o,
    /// output beat
    output logic             out_valid_o,
    /// output beat is taken
    input  logic             out_ready_i,
    /// output beat
    output realign_beat_t    out_o
);
  localparam int unsigned OutDepth = 4;

  typedef struct packed {
    logic       out;             // gives an output beat
    logic       alone;           // one beat in, one beat out: it is its own beat before
    logic       page_end;
    logic       first;
    logic       last;
    logic [5:0] rot;             // lanes to move up, modulo 64
    logic [5:0] lo;              // first lane of the packet
    logic [6:0] hi;              // lanes up to the last byte of the packet
  } slot_tag_t;

  // command being worked on
  logic             busy_q, load_q, first_q, alone_q;
  beats_t           src_left_q, dst_left_q;
  logic [5:0]       rot_q, lo_q, beat_q;
  logic [6:0]       hi_q;
  logic [AddrW-1:0] rd_q;

  logic             take, go, last_slot;
  logic [13:0]      cmd_end;
  beats_t           cmd_dst;
  logic             cmd_wraps;

  slot_tag_t        s0, s1_q;
  logic             s1_valid_q;
  data_t            prev_q, older;
  logic             out_ready;
  logic [2:0]       out_cnt;
  realign_beat_t    beat;

  // ------------------------------------------------------------------ slots
  assign cmd_end   = 14'(cmd_i.dst_off) + 14'(cmd_i.len);
  assign cmd_dst   = beats_t'((cmd_end + 14'd63) >> 6);
  assign cmd_wraps = cmd_i.dst_off < cmd_i.src_off;

  assign go          = busy_q && out_cnt + 3'(s1_valid_q) < 3'(OutDepth);
  assign last_slot   = !load_q && dst_left_q == beats_t'(1);
  assign cmd_ready_o = !busy_q || (go && last_slot);
  assign take        = cmd_valid_i && cmd_ready_o;

  assign s0 = '{
      out: !load_q, alone: alone_q, page_end: last_slot || beat_q == 6'd63, first: first_q, last: last_slot,
      rot: rot_q, lo: lo_q, hi: hi_q
  };
  assign rd_en_o   = go && src_left_q != '0;
  assign rd_addr_o = rd_q;
  assign release_o = beats_t'(rd_en_o) + ((take && cmd_i.skip) ? cmd_i.src_beats : '0);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      busy_q     <= 1'b0;
      rd_q       <= '0;
      s1_valid_q <= 1'b0;
    end else begin
      s1_valid_q <= go;
      rd_q       <= rd_q + AddrW'(release_o);
      if (take) busy_q <= !cmd_i.skip;
      else if (go && last_slot) busy_q <= 1'b0;
    end
  end

  always_ff @(posedge clk_i) begin
    if (take) begin
      // a packet of one beat on either side needs no load slot
      load_q     <= cmd_wraps && !(cmd_i.src_beats == beats_t'(1));
      alone_q    <= cmd_wraps && cmd_i.src_beats == beats_t'(1);
      first_q    <= 1'b1;
      src_left_q <= cmd_i.src_beats;
      dst_left_q <= cmd_dst;
      rot_q      <= cmd_i.dst_off - cmd_i.src_off;
      lo_q       <= cmd_i.dst_off;
      hi_q       <= (cmd_end[5:0] == '0) ? 7'd64 : {1'b0, cmd_end[5:0]};
      beat_q     <= cmd_i.dst_beat;
    end else if (go) begin
      if (src_left_q != '0) src_left_q <= src_left_q - beats_t'(1);
      load_q <= 1'b0;
      if (!load_q) begin
        first_q    <= 1'b0;
        dst_left_q <= dst_left_q - beats_t'(1);
        beat_q     <= beat_q + 6'd1;
      end
    end
  end

  // ------------------------------------------------------------------ lanes
  function automatic data_t lanes_of(input strb_t strb);
    data_t mask;
    for (int unsigned i = 0; i < DataBytes; i++) mask[8*i+:8] = {8{strb[i]}};
    return mask;
  endfunction

  // this beat moves up by rot lanes; what falls off the top of the beat before fills the lanes below
  always_comb begin
    older = s1_q.alone ? rd_data_i : prev_q;
    beat  = '0;
    if (s1_valid_q) begin
      if (s1_q.rot == '0) beat.data = rd_data_i;
      else beat.data = (rd_data_i << {s1_q.rot, 3'b0}) | (older >> {7'd64 - 7'(s1_q.rot), 3'b0});
      beat.strb     = '1;
      beat.page_end = s1_q.page_end;
      beat.last     = s1_q.last;
      if (s1_q.first) beat.strb &= {DataBytes{1'b1}} << s1_q.lo;
      if (s1_q.last) beat.strb &= {DataBytes{1'b1}} >> (7'd64 - s1_q.hi);
      if (beat.strb != '1) beat.data &= lanes_of(beat.strb);
    end
  end

  always_ff @(posedge clk_i) begin
    if (go) s1_q <= s0;
    if (s1_valid_q) prev_q <= rd_data_i;
  end

  fifo #(.T(realign_beat_t), .Depth(OutDepth), .Fits(1'b1)) i_out (
      .clk_i, .rst_ni, .in_valid_i(s1_valid_q && s1_q.out), .in_ready_o(out_ready), .in_data_i(beat),
      .out_valid_o, .out_ready_i, .out_data_o(out_o), .count_o(out_cnt)
  );

  logic unused_bits;
  assign unused_bits = out_ready ^ cmd_i.result;  // space was checked when the slot started; result: scatter's
endmodule
