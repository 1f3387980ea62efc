// Chooses the next packet - an acknowledgement, or a request or READ response, in turn where both wait - and builds its
// headers from the IP header to the last extended header (wire.md 1 to 3). One packet a cycle.
module tx_header
  import rnic_pkg::*, dp_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast
    input  ctx_wr_t     ctx_i,
    /// own IP address
    input  logic [31:0] ip_i,
    /// request packet or READ response
    input  logic        pkt_valid_i,
    /// the packet is taken
    output logic        pkt_ready_o,
    /// request packet or READ response
    input  tx_job_t     pkt_i,
    /// acknowledgement, of an atomic too
    input  logic        ack_valid_i,
    /// the acknowledgement is taken
    output logic        ack_ready_o,
    /// acknowledgement, of an atomic too
    input  ack_job_t    ack_i,
    /// headers of the next packet
    output logic        hdr_valid_o,
    /// the headers are taken
    input  logic        hdr_ready_i,
    /// headers of the next packet
    output tx_hdr_t     hdr_o,
    /// a packet of QP start_qpi_o entered the framer
    output logic        start_o,
    /// its QP
    output qp_t         start_qpi_o
);
  // what the frames of a QP need of its context
  typedef struct packed {
    logic [7:0]  tc;
    logic [7:0]  ttl;
    logic [15:0] udp_sport;
    logic [23:0] peer_qpn;
    logic [31:0] peer_ip;
    logic [47:0] peer_mac;
  } peer_t;

  // what is known of a packet before its context
  typedef struct packed {
    qp_t          qpi;
    logic         is_rsp;
    logic [7:0]   bth;
    logic         se;
    logic         ack_req;
    psn_t         psn;
    logic [5:0]   ext_len;
    logic [12:0]  pay_len;
    logic [351:0] ext;
  } draft_t;

  peer_t      set_peer, peer;
  draft_t     draft, draft_q;
  logic       some, load, draft_valid_q, hdr_ready;
  logic [1:0] grant;
  logic       unused_idx;
  tx_hdr_t    hdr;
  logic [1:0] unused_count;

  // ------------------------------------------------------------------ choice
  rr_arb #(.Num(2)) i_arb (
      .clk_i, .rst_ni, .req_i({pkt_valid_i, ack_valid_i}), .take_i(load), .valid_o(some), .gnt_o(grant),
      .idx_o(unused_idx)
  );

  assign load        = some && (!draft_valid_q || hdr_ready);
  assign ack_ready_o = load && grant[0];
  assign pkt_ready_o = load && grant[1];
  assign start_o     = load;
  assign start_qpi_o = draft.qpi;

  // operands behind VA and R_Key of an AtomicETH (wire.md 2, 3), first byte in lane 0
  function automatic logic [255:0] operands(input logic [7:0] op, input amo_t amo);
    unique case (op)
      BthCmpSwap, BthMFa64: return 256'({be64(amo.compare), be64(amo.swap_add)});
      BthFetchAdd:          return 256'(be64(amo.swap_add));
      BthMCas64: return {be64(amo.compare_mask), be64(amo.swap_mask), be64(amo.compare), be64(amo.swap_add)};
      BthMCas32: return 256'({be32(amo.compare_mask[31:0]), be32(amo.swap_mask[31:0]), be32(amo.compare[31:0]),
                              be32(amo.swap_add[31:0])});
      BthMFa32:  return 256'({be32(amo.compare[31:0]), be32(amo.swap_add[31:0])});
      default:   return '0;
    endcase
  endfunction

  always_comb begin
    draft = '0;
    if (grant[0]) begin
      draft.qpi     = ack_i.qpi;
      draft.is_rsp  = 1'b1;
      draft.bth     = ack_i.atomic ? BthAtomicAck : BthAck;
      draft.psn     = ack_i.psn;
      draft.ext_len = ack_i.atomic ? 6'd12 : 6'd4;
      draft.ext     = 352'({ack_i.atomic ? be64(ack_i.value) : 64'b0, be24(ack_i.msn), ack_i.syndrome});
    end else if (grant[1]) begin
      draft.qpi     = pkt_i.qpi;
      draft.is_rsp  = pkt_i.is_rsp;
      draft.bth     = pkt_i.bth;
      draft.se      = pkt_i.se && !pkt_i.is_rsp;
      draft.ack_req = pkt_i.ack_req && !pkt_i.is_rsp;
      draft.psn     = pkt_i.psn;
      draft.pay_len = pkt_i.pay_len;
      if (pkt_i.is_rsp) begin
        draft.ext_len = read_has_aeth(pkt_i.bth) ? 6'd4 : 6'd0;
        if (read_has_aeth(pkt_i.bth)) draft.ext = 352'({be24(pkt_i.msn), SynAck});
      end else if (is_atomic(pkt_i.bth)) begin
        draft.ext_len = ext_bytes(pkt_i.bth);
        draft.ext     = {operands(pkt_i.bth, pkt_i.amo), be32(pkt_i.rkey), be64(pkt_i.raddr)};
      end else if (pkt_i.has_reth) begin
        draft.ext_len = pkt_i.has_imm ? 6'd20 : 6'd16;
        draft.ext     = 352'({pkt_i.has_imm ? be32(pkt_i.imm) : 32'b0, be32(pkt_i.dma_len), be32(pkt_i.rkey),
                              be64(pkt_i.raddr)});
      end else if (pkt_i.has_imm) begin
        draft.ext_len = 6'd4;
        draft.ext     = 352'(be32(pkt_i.imm));
      end
    end
  end

  // ------------------------------------------------------------------ context
  assign set_peer = '{
      tc: ctx_i.qp.tc, ttl: ctx_i.qp.ttl, udp_sport: ctx_i.qp.udp_sport, peer_qpn: ctx_i.qp.peer_qpn,
      peer_ip: ctx_i.qp.peer_ip, peer_mac: ctx_i.qp.peer_mac
  };

  ctx_ram #(.T(peer_t), .Depth(NumQp)) i_peers (
      .clk_i, .wr_en_i(ctx_i.qp_set || ctx_i.qp_modify), .wr_addr_i(ctx_i.qpi), .wr_data_i(set_peer),
      .rd_en_i(load), .rd_addr_i(draft.qpi), .rd_data_o(peer)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) draft_valid_q <= 1'b0;
    else if (load) draft_valid_q <= 1'b1;
    else if (hdr_ready) draft_valid_q <= 1'b0;
  end
  always_ff @(posedge clk_i) begin
    if (load) draft_q <= draft;
  end

  // ------------------------------------------------------------------ headers
  // one's complement of the one's complement sum over the header with a zero checksum
  function automatic logic [15:0] ip_checksum(input logic [7:0] tos, input logic [7:0] ttl, input logic [15:0] len,
                                              input logic [31:0] src, input logic [31:0] dst);
    logic [19:0] sum;
    sum = 20'({8'h45, tos}) + 20'(len) + 20'h4000 + 20'({ttl, 8'd17}) + 20'(src[31:16]) + 20'(src[15:0]) +
          20'(dst[31:16]) + 20'(dst[15:0]);
    sum = 20'(sum[15:0]) + 20'(sum[19:16]);
    sum = 20'(sum[15:0]) + 20'(sum[19:16]);
    return ~sum[15:0];
  endfunction

  logic [1:0]  pad;
  logic [15:0] ip_len;
  assign pad    = 2'(-draft_q.pay_len[1:0]);
  assign ip_len = 16'(BaseHdrBytes) + 16'(draft_q.ext_len) + 16'(draft_q.pay_len) + 16'(pad) + 16'd4;

  always_comb begin
    hdr = '0;
    if (draft_valid_q) begin
      hdr.qpi     = draft_q.qpi;
      hdr.is_rsp  = draft_q.is_rsp;
      hdr.dst_mac = peer.peer_mac;
      hdr.hlen    = 7'(BaseHdrBytes) + 7'(draft_q.ext_len);
      hdr.pay_len = draft_q.pay_len;
      hdr.data    = {
        draft_q.ext,
        // BTH, from its last field to its first
        be24(draft_q.psn), draft_q.ack_req, 7'b0, be24(peer.peer_qpn), 8'h00, be16(DefaultPkey),
        draft_q.se, 1'b1, pad, 4'h0, draft_q.bth,
        // UDP
        16'h0000, be16(ip_len - 16'd20), be16(RoceUdpPort), be16(peer.udp_sport),
        // IPv4: don't fragment, identification 0
        be32(peer.peer_ip), be32(ip_i), be16(ip_checksum(peer.tc, peer.ttl, ip_len, ip_i, peer.peer_ip)),
        8'd17, peer.ttl, be16(16'h4000), 16'h0000, be16(ip_len), peer.tc, 8'h45
      };
    end
  end

  fifo #(.T(tx_hdr_t), .Depth(2)) i_hdr (
      .clk_i, .rst_ni, .in_valid_i(draft_valid_q), .in_ready_o(hdr_ready), .in_data_i(hdr),
      .out_valid_o(hdr_valid_o), .out_ready_i(hdr_ready_i), .out_data_o(hdr_o), .count_o(unused_count)
  );

  logic unused_bits;
  assign unused_bits = (^ctx_i) ^ (^pkt_i) ^ (^ack_i);  // slot, source address: gather's
endmodule
