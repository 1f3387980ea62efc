// scatter with its receive buffer behind the write side of the memory port, with a memory; its structs as plain ports.
module scatter_bench
  import rnic_pkg::*, dp_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // buffer
    input  logic         fill_i,
    input  logic [8:0]   fill_beat_i,
    input  logic [511:0] fill_data_i,
    output logic [31:0]  released_o,
    // packet
    input  logic         move_valid_i,
    input  logic         move_skip_i,
    input  logic         move_result_i,
    input  logic [63:0]  move_addr_i,
    input  logic [12:0]  move_len_i,
    input  logic [5:0]   move_off_i,
    input  logic [6:0]   move_beats_i,
    output logic [3:0]   move_count_o,
    input  logic         lock_valid_i,
    input  logic [63:0]  lock_addr_i,
    output logic [31:0]  starts_o,
    output logic [31:0]  answers_o,
    output logic [31:0]  result_answers_o,
    output logic [31:0]  bad_answers_o,
    // memory
    input  logic [15:0]  latency_i,
    input  logic [7:0]   stall_i,
    input  logic [31:0]  seed_i,
    input  logic         poke_i,
    input  logic [13:0]  poke_beat_i,
    input  logic [511:0] poke_data_i,
    input  logic [13:0]  peek_beat_i,
    output logic [511:0] peek_data_o,
    input  logic         fault_i,
    input  logic [13:0]  fault_beat_i,
    output logic [31:0]  writes_o,
    output logic [31:0]  most_open_o,
    // another writer of the port: one byte to the last beat of the memory whenever it may
    input  logic         rival_i,
    output logic [31:0]  rival_answers_o
);
  realign_cmd_t move;
  logic         rd_en, b_err;
  logic [8:0]   rd_addr;
  data_t        rd_data;
  beats_t       freed;
  logic [1:0]   req_valid, req_ready, beat_valid, beat_ready, b_valid;
  logic         any_b;
  logic         result_b;
  logic [1:0]   start;
  axi_id_e      b_id;
  wr_req_t      req[2];
  wr_beat_t     beat[2];
  logic [3:0]   awid, bid;
  logic [63:0]  awaddr;
  logic [7:0]   awlen;
  logic [2:0]   awsize;
  logic [1:0]   awburst, bresp;
  logic         awvalid, awready, wvalid, wready, wlast, bvalid, bready;
  data_t        wdata;
  strb_t        wstrb;
  logic         rival_data_q;

  assign move = '{
      skip: move_skip_i, result: move_result_i, src_beats: move_beats_i, src_off: move_off_i, dst_off: move_addr_i[5:0],
      dst_beat: move_addr_i[11:6], len: move_len_i
  };
  ram_sdp #(.T(data_t), .Depth(512)) i_buffer (
      .clk_i, .wr_en_i(fill_i), .wr_addr_i(fill_beat_i), .wr_data_i(fill_data_i), .rd_en_i(rd_en), .rd_addr_i(rd_addr),
      .rd_data_o(rd_data)
  );
  scatter #(.Depth(512), .Commands(8)) i_dut (
      .clk_i, .rst_ni, .move_valid_i, .move_addr_i, .move_i(move), .count_o(move_count_o),
      .lock_valid_i, .lock_addr_i(lock_addr_i[63:3]), .start_o(start),
      .rd_en_o(rd_en), .rd_addr_o(rd_addr), .rd_data_i(rd_data), .release_o(freed),
      .req_valid_o(req_valid[0]), .req_ready_i(req_ready[0]), .req_o(req[0]),
      .beat_valid_o(beat_valid[0]), .beat_ready_i(beat_ready[0]), .beat_o(beat[0])
  );

  // the rival asks, then offers its beat
  assign req_valid[1]  = rival_i && !rival_data_q;
  assign req[1]        = '{addr: 64'hf_ffc0, len: 8'd0, size: SizeBeat, id: IdCqe};
  assign beat_valid[1] = rival_data_q;
  assign beat[1]       = '{data: '0, strb: 64'd1, last: 1'b1};

  axi_wr_mux #(.Num(2)) i_mux (
      .clk_i, .rst_ni, .req_valid_i(req_valid), .req_ready_o(req_ready), .req_i(req), .beat_valid_i(beat_valid),
      .beat_ready_o(beat_ready), .beat_i(beat), .b_valid_o(any_b), .b_id_o(b_id), .b_err_o(b_err),
      .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
      .m_axi_awvalid(awvalid), .m_axi_awready(awready), .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast),
      .m_axi_wvalid(wvalid), .m_axi_wready(wready), .m_axi_bid(bid), .m_axi_bresp(bresp), .m_axi_bvalid(bvalid),
      .m_axi_bready(bready)
  );
  assign b_valid  = {any_b && b_id == IdCqe, any_b && b_id == IdInbound};
  assign result_b = any_b && b_id == IdResult;
  axi_ram_model i_mem (
      .clk_i, .rst_ni, .latency_i, .stall_i, .seed_i, .poke_i, .poke_beat_i, .poke_data_i, .peek_beat_i, .peek_data_o,
      .fault_i, .fault_beat_i, .reads_o(), .most_reads_o(), .writes_o,
      .awid, .awaddr, .awlen, .awsize, .awburst, .awvalid, .awready, .wdata, .wstrb, .wlast, .wvalid, .wready,
      .bid, .bresp, .bvalid, .bready, .arid('0), .araddr('0), .arlen('0), .arsize('0), .arburst('0), .arvalid(1'b0),
      .arready(), .rid(), .rdata(), .rresp(), .rlast(), .rvalid(), .rready(1'b1)
  );

  logic [31:0] open_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      released_o       <= '0;
      starts_o         <= '0;
      answers_o        <= '0;
      result_answers_o <= '0;
      bad_answers_o    <= '0;
      rival_answers_o  <= '0;
      rival_data_q     <= 1'b0;
      open_q           <= '0;
      most_open_o      <= '0;
    end else begin
      released_o <= released_o + 32'(freed);
      starts_o   <= starts_o + 32'(start);
      if (b_valid[0]) answers_o <= answers_o + 1;
      if (result_b) result_answers_o <= result_answers_o + 1;
      if ((b_valid[0] || result_b) && b_err) bad_answers_o <= bad_answers_o + 1;
      assert (!any_b || b_valid != '0 || result_b) else $error("write response with ID %0d", b_id);
      if (b_valid[1]) rival_answers_o <= rival_answers_o + 1;
      if (req_valid[1] && req_ready[1]) rival_data_q <= 1'b1;
      else if (beat_ready[1]) rival_data_q <= 1'b0;
      open_q <= open_q + 32'(req_valid[0] && req_ready[0]) - 32'(b_valid[0] || result_b);
      if (open_q > most_open_o) most_open_o <= open_q;
    end
  end
endmodule
