// The receive side up to the responder alone: frames in, headers and buffered beats out; its structs as plain ports.
module rx_bench
  import rnic_pkg::*, dp_pkg::*;
(
    input  logic          clk_i,
    input  logic          rst_ni,
    input  logic [47:0]   mac_i,
    input  logic [31:0]   ip_i,
    // link
    input  logic [511:0]  rx_data_i,
    input  logic [63:0]   rx_keep_i,
    input  logic          rx_last_i,
    input  logic          rx_valid_i,
    output logic          rx_ready_o,
    // headers
    output logic          hdr_valid_o,
    input  logic          hdr_ready_i,
    output logic [7:0]    bth_o,
    output logic          ack_req_o,
    output logic [23:0]   dest_qpn_o,
    output logic [23:0]   psn_o,
    output logic [31:0]   src_ip_o,
    output logic [63:0]   raddr_o,
    output logic [31:0]   rkey_o,
    output logic [31:0]   dma_len_o,
    output logic [7:0]    syndrome_o,
    output logic [23:0]   msn_o,
    output logic [12:0]   pay_len_o,
    output logic [5:0]    pay_off_o,
    output logic [6:0]    beats_o,
    output logic          se_o,
    output logic [31:0]   imm_o,
    output logic [63:0]   swap_add_o,
    output logic [63:0]   compare_o,
    output logic [63:0]   swap_mask_o,
    output logic [63:0]   compare_mask_o,
    // buffer
    input  logic          rd_en_i,
    input  logic [8:0]    rd_addr_i,
    output logic [511:0]  rd_data_o,
    input  logic [6:0]    release_i,
    output logic [1023:0] counts_o
);
  rx_hdr_t  hdr;
  cnt_inc_t cnt;

  rx_parse #(.Depth(512)) i_dut (
      .clk_i, .rst_ni, .mac_i, .ip_i, .s_axis_tdata(rx_data_i), .s_axis_tkeep(rx_keep_i), .s_axis_tlast(rx_last_i),
      .s_axis_tvalid(rx_valid_i), .s_axis_tready(rx_ready_o), .hdr_valid_o, .hdr_ready_i, .hdr_o(hdr),
      .rd_en_i, .rd_addr_i, .rd_data_o, .release_i, .drain_i('0), .drain_busy_o(), .cnt_o(cnt)
  );

  assign bth_o          = hdr.bth;
  assign ack_req_o      = hdr.ack_req;
  assign dest_qpn_o     = hdr.dest_qpn;
  assign psn_o          = hdr.psn;
  assign src_ip_o       = hdr.src_ip;
  assign raddr_o        = hdr.raddr;
  assign rkey_o         = hdr.rkey;
  assign dma_len_o      = hdr.dma_len;
  assign syndrome_o     = hdr.syndrome;
  assign msn_o          = hdr.msn;
  assign pay_len_o      = hdr.pay_len;
  assign pay_off_o      = hdr.pay_off;
  assign beats_o        = hdr.beats;
  assign se_o           = hdr.se;
  assign imm_o          = hdr.imm;
  assign swap_add_o     = hdr.amo.swap_add;
  assign compare_o      = hdr.amo.compare;
  assign swap_mask_o    = hdr.amo.swap_mask;
  assign compare_mask_o = hdr.amo.compare_mask;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) counts_o <= '0;
    else for (int i = 0; i < 64; i++) if (cnt[i]) counts_o[16*i+:16] <= counts_o[16*i+:16] + 1;
  end
endmodule
