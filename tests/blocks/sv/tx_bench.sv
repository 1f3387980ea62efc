// The framer alone: requests, READ responses, their payload and acknowledgements in, frames out; its structs as plain ports.
module tx_bench
  import rnic_pkg::*, dp_pkg::*;
(
    input  logic         clk_i,
    input  logic         rst_ni,
    // contexts
    input  logic         qp_set_i,
    input  logic [5:0]   qpi_i,
    input  logic [7:0]   tc_i,
    input  logic [7:0]   ttl_i,
    input  logic [15:0]  udp_sport_i,
    input  logic [23:0]  peer_qpn_i,
    input  logic [31:0]  peer_ip_i,
    input  logic [47:0]  peer_mac_i,
    input  logic         drain_valid_i,
    input  logic [5:0]   drain_qpi_i,
    output logic         drain_busy_o,
    input  logic [47:0]  mac_i,
    input  logic [31:0]  ip_i,
    // packets
    input  logic         pkt_valid_i,
    output logic         pkt_ready_o,
    input  logic [5:0]   pkt_qpi_i,
    input  logic [7:0]   pkt_bth_i,
    input  logic [23:0]  pkt_psn_i,
    input  logic         pkt_ack_req_i,
    input  logic         pkt_se_i,
    input  logic         pkt_reth_i,
    input  logic [63:0]  pkt_raddr_i,
    input  logic [31:0]  pkt_rkey_i,
    input  logic [31:0]  pkt_dma_len_i,
    input  logic         pkt_imm_i,
    input  logic [31:0]  pkt_imm_data_i,
    input  logic [12:0]  pkt_len_i,
    input  logic         pkt_rsp_i,
    input  logic [23:0]  pkt_msn_i,
    input  logic [63:0]  pkt_swap_add_i,
    input  logic [63:0]  pkt_compare_i,
    input  logic [63:0]  pkt_swap_mask_i,
    input  logic [63:0]  pkt_compare_mask_i,
    input  logic         pay_valid_i,
    output logic         pay_ready_o,
    input  logic         pay_last_i,
    input  logic [511:0] pay_data_i,
    // acknowledgements
    input  logic         ack_valid_i,
    output logic         ack_ready_o,
    input  logic [5:0]   ack_qpi_i,
    input  logic [23:0]  ack_psn_i,
    input  logic [7:0]   ack_syndrome_i,
    input  logic [23:0]  ack_msn_i,
    input  logic         ack_atomic_i,
    input  logic [63:0]  ack_value_i,
    // link
    output logic [511:0] tx_data_o,
    output logic [63:0]  tx_keep_o,
    output logic         tx_last_o,
    output logic         tx_valid_o,
    input  logic         tx_ready_i,
    output logic [31:0]  requests_o,
    output logic [31:0]  responses_o
);
  ctx_wr_t     ctx;
  qp_err_evt_t drain;
  tx_job_t     pkt;
  pay_beat_t   pay;
  ack_job_t    ack;
  cnt_inc_t    cnt;

  always_comb begin
    ctx              = '0;
    ctx.qp_set       = qp_set_i;
    ctx.qpi          = qpi_i;
    ctx.qp.tc        = tc_i;
    ctx.qp.ttl       = ttl_i;
    ctx.qp.udp_sport = udp_sport_i;
    ctx.qp.peer_qpn  = peer_qpn_i;
    ctx.qp.peer_ip   = peer_ip_i;
    ctx.qp.peer_mac  = peer_mac_i;
    drain            = '{valid: drain_valid_i, qpi: drain_qpi_i};
    pkt = '{
        qpi: pkt_qpi_i, slot: '0, bth: pkt_bth_i, psn: pkt_psn_i, ack_req: pkt_ack_req_i, se: pkt_se_i,
        has_reth: pkt_reth_i, raddr: pkt_raddr_i, rkey: pkt_rkey_i, dma_len: pkt_dma_len_i, has_imm: pkt_imm_i,
        imm: pkt_imm_data_i, laddr: '0, pay_len: pkt_len_i, is_rsp: pkt_rsp_i, msn: pkt_msn_i,
        amo: '{
            swap_add: pkt_swap_add_i, compare: pkt_compare_i, swap_mask: pkt_swap_mask_i,
            compare_mask: pkt_compare_mask_i
        }
    };
    pay = '{data: pay_data_i, last: pay_last_i};
    ack = '{
        qpi: ack_qpi_i, psn: ack_psn_i, syndrome: ack_syndrome_i, msn: ack_msn_i, atomic: ack_atomic_i,
        value: ack_value_i
    };
  end

  tx_frame i_dut (
      .clk_i, .rst_ni, .ctx_i(ctx), .drain_i(drain), .drain_busy_o, .mac_i, .ip_i,
      .pkt_valid_i, .pkt_ready_o, .pkt_i(pkt), .pay_valid_i, .pay_ready_o, .pay_i(pay),
      .ack_valid_i, .ack_ready_o, .ack_i(ack),
      .m_axis_tdata(tx_data_o), .m_axis_tkeep(tx_keep_o), .m_axis_tlast(tx_last_o), .m_axis_tvalid(tx_valid_o),
      .m_axis_tready(tx_ready_i), .cnt_o(cnt)
  );

  // form of the frames: lanes contiguous, full before the last beat, zero behind, stable while they wait (nic.md 1)
  logic         wait_q;
  logic [576:0] held_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wait_q      <= 1'b0;
      requests_o  <= '0;
      responses_o <= '0;
    end else begin
      wait_q <= tx_valid_o && !tx_ready_i;
      held_q <= {tx_last_o, tx_keep_o, tx_data_o};
      if (wait_q) begin
        assert (tx_valid_o && held_q == {tx_last_o, tx_keep_o, tx_data_o}) else $error("beat changes while it waits");
      end
      if (tx_valid_o) begin
        assert (tx_keep_o[0] && (tx_keep_o & (tx_keep_o + 64'd1)) == '0) else $error("tkeep %x", tx_keep_o);
        assert (tx_last_o || tx_keep_o == '1) else $error("tkeep %x before tlast", tx_keep_o);
        for (int i = 0; i < 64; i++) begin
          assert (tx_keep_o[i] || tx_data_o[8*i+:8] == '0) else $error("data in an unused lane");
        end
      end
      if (cnt[CntTxRequest]) requests_o <= requests_o + 1;
      if (cnt[CntTxResponse]) responses_o <= responses_o + 1;
    end
  end
endmodule
