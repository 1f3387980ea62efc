// Writes buffered payload of received packets to memory (inbound WRITEs with ID 3, READ and atomic results with ID 5): any
// alignment, exact strobes, one burst for each 4 KiB page that the packet touches, in the order of the packets. Bursts
// follow each other without waiting for responses. An inbound WRITE that touches the 8-byte word that an atomic holds
// waits (nic.md 5), and so does what is behind it.
module scatter
  import rnic_pkg::*, dp_pkg::*;
#(
    /// beats in the receive buffer
    parameter int unsigned Depth = 512,
    /// packets that wait
    parameter int unsigned Commands = 8,
    /// derived: width of a beat number
    localparam int unsigned AddrW = $clog2(Depth),
    /// derived: width of the fill count
    localparam int unsigned CntW = $clog2(Commands + 1)
) (
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// packet to write or to skip; the user looks at count_o before
    input  logic             move_valid_i,
    /// its target
    input  logic [63:0]      move_addr_i,
    /// its lanes
    input  realign_cmd_t     move_i,
    /// packets that wait
    output logic [CntW-1:0]  count_o,
    /// an atomic holds a word: from this cycle on no inbound packet that touches it starts
    input  logic             lock_valid_i,
    /// its word
    input  logic [63:3]      lock_addr_i,
    /// bursts of the inbound packet (ID 3) that starts in this cycle, 0: none does
    output logic [1:0]       start_o,
    /// buffer read strobe
    output logic             rd_en_o,
    /// buffer read address
    output logic [AddrW-1:0] rd_addr_o,
    /// buffer data, one cycle later
    input  data_t            rd_data_i,
    /// beats of the buffer that are free again this cycle
    output beats_t           release_o,
    /// write burst
    output logic             req_valid_o,
    /// the burst is taken
    input  logic             req_ready_i,
    /// write burst
    output wr_req_t          req_o,
    /// write data
    output logic             beat_valid_o,
    /// the data is taken
    input  logic             beat_ready_i,
    /// write data
    output wr_beat_t         beat_o
);
  typedef struct packed {
    logic [63:0]  addr;
    realign_cmd_t move;
  } cmd_t;

  cmd_t          cmd_in, cmd;
  logic          cmd_valid, pop, move_ready, move_go, req_ready, req_valid, second_q, two, unused_ready;
  logic          locked;
  logic [60:0]   lock_off;
  logic [9:0]    words;
  axi_id_e       second_id_q, id;
  wr_req_t       req;
  realign_beat_t moved;
  beats_t        beats, to_page_end;
  logic [51:0]   next_page_q;
  logic [7:0]    second_len_q;

  assign cmd_in = '{addr: move_addr_i, move: move_i};
  fifo #(.T(cmd_t), .Depth(Commands), .Fits(1'b1)) i_cmds (
      .clk_i, .rst_ni, .in_valid_i(move_valid_i), .in_ready_o(unused_ready), .in_data_i(cmd_in),
      .out_valid_o(cmd_valid), .out_ready_i(pop), .out_data_o(cmd), .count_o
  );

  assign beats       = beats_t'((14'(cmd.move.dst_off) + 14'(cmd.move.len) + 14'd63) >> 6);
  assign to_page_end = 7'd64 - {1'b0, cmd.move.dst_beat};
  assign two         = !cmd.move.skip && beats > to_page_end;

  // 8-byte words that the packet touches, and how far behind the first of them the locked one is
  assign words    = 10'((14'(cmd.addr[2:0]) + 14'(cmd.move.len) + 14'd7) >> 3);
  assign lock_off = lock_addr_i - cmd.addr[63:3];
  assign locked   = lock_valid_i && !cmd.move.result && lock_off < 61'(words);

  // the first burst and the data start together; a second burst follows in the next cycle that has room
  assign move_go   = cmd_valid && !second_q && (cmd.move.skip || (req_ready && !locked));
  assign pop       = move_go && move_ready;
  assign id        = cmd.move.result ? IdResult : IdInbound;
  assign start_o   = (pop && !cmd.move.skip && !cmd.move.result) ? {two, !two} : 2'd0;
  assign req_valid = second_q || (pop && !cmd.move.skip);
  assign req       = '{
      addr: second_q ? {next_page_q, 12'b0} : {cmd.addr[63:6], 6'b0},
      len: second_q ? second_len_q : 8'(two ? to_page_end : beats) - 8'd1,
      size: SizeBeat,
      id: second_q ? second_id_q : id
  };

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) second_q <= 1'b0;
    else if (second_q) second_q <= !req_ready;
    else second_q <= pop && two;
  end
  always_ff @(posedge clk_i) begin
    if (pop) begin
      next_page_q  <= cmd.addr[63:12] + 52'd1;
      second_len_q <= 8'(beats - to_page_end) - 8'd1;
      second_id_q  <= id;
    end
  end

  stream_reg #(.T(wr_req_t)) i_req (
      .clk_i, .rst_ni, .in_valid_i(req_valid), .in_ready_o(req_ready), .in_data_i(req),
      .out_valid_o(req_valid_o), .out_ready_i(req_ready_i), .out_data_o(req_o)
  );

  realign #(.Depth(Depth)) i_realign (
      .clk_i, .rst_ni, .cmd_valid_i(move_go), .cmd_ready_o(move_ready), .cmd_i(cmd.move),
      .rd_en_o, .rd_addr_o, .rd_data_i, .release_o,
      .out_valid_o(beat_valid_o), .out_ready_i(beat_ready_i), .out_o(moved)
  );
  assign beat_o = '{data: moved.data, strb: moved.strb, last: moved.page_end};

  logic unused_bits;
  assign unused_bits = moved.last ^ (^cmd.addr[5:0]);
endmodule
