// Framer: turns request packets and acknowledgements into RoCEv2 frames on the link (wire.md 1 to 4). Headers, merge with
// the payload, ICRC, Ethernet header: four stages, one beat a cycle each.
module tx_frame
  import rnic_pkg::*, dp_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast
    input  ctx_wr_t     ctx_i,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// packets of that QP are still held
    output logic        drain_busy_o,
    /// own MAC address
    input  logic [47:0] mac_i,
    /// own IP address
    input  logic [31:0] ip_i,
    /// request packet, its payload follows on the payload port
    input  logic        pkt_valid_i,
    /// the request packet is taken
    output logic        pkt_ready_o,
    /// request packet
    input  tx_job_t     pkt_i,
    /// payload of request packets, in their order
    input  logic        pay_valid_i,
    /// the payload beat is taken
    output logic        pay_ready_o,
    /// payload beat
    input  pay_beat_t   pay_i,
    /// acknowledgement
    input  logic        ack_valid_i,
    /// the acknowledgement is taken
    output logic        ack_ready_o,
    /// acknowledgement
    input  ack_job_t    ack_i,
    /// link data
    output data_t       m_axis_tdata,
    /// link byte lanes
    output strb_t       m_axis_tkeep,
    /// last beat of the frame
    output logic        m_axis_tlast,
    /// link valid
    output logic        m_axis_tvalid,
    /// link ready
    input  logic        m_axis_tready,
    /// counters
    output cnt_inc_t    cnt_o
);
  logic     hdr_valid, hdr_ready, merged_valid, merged_ready, crc_valid, crc_ready;
  tx_hdr_t  hdr;
  tx_beat_t merged, crc;
  logic     start, sent, sent_rsp;
  qp_t      start_qpi, sent_qpi;

  tx_header i_header (
      .clk_i, .rst_ni, .ctx_i, .ip_i, .pkt_valid_i, .pkt_ready_o, .pkt_i, .ack_valid_i, .ack_ready_o, .ack_i,
      .hdr_valid_o(hdr_valid), .hdr_ready_i(hdr_ready), .hdr_o(hdr), .start_o(start), .start_qpi_o(start_qpi)
  );

  tx_merge i_merge (
      .clk_i, .rst_ni, .hdr_valid_i(hdr_valid), .hdr_ready_o(hdr_ready), .hdr_i(hdr),
      .pay_valid_i, .pay_ready_o, .pay_i,
      .out_valid_o(merged_valid), .out_ready_i(merged_ready), .out_o(merged)
  );

  tx_icrc i_icrc (
      .clk_i, .rst_ni, .in_valid_i(merged_valid), .in_ready_o(merged_ready), .in_i(merged),
      .out_valid_o(crc_valid), .out_ready_i(crc_ready), .out_o(crc)
  );

  tx_eth i_eth (
      .clk_i, .rst_ni, .mac_i, .in_valid_i(crc_valid), .in_ready_o(crc_ready), .in_i(crc),
      .m_axis_tdata, .m_axis_tkeep, .m_axis_tlast, .m_axis_tvalid, .m_axis_tready,
      .sent_o(sent), .sent_qpi_o(sent_qpi), .sent_rsp_o(sent_rsp)
  );

  qp_inflight #(.Max(15)) i_inflight (
      .clk_i, .rst_ni, .inc_i(start), .inc_qpi_i(start_qpi), .dec_i(sent), .dec_qpi_i(sent_qpi), .drain_i,
      .busy_o(drain_busy_o)
  );

  always_comb begin
    cnt_o                = '0;
    cnt_o[CntTxRequest]  = sent && !sent_rsp;
    cnt_o[CntTxResponse] = sent && sent_rsp;
  end
endmodule
