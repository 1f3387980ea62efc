// The receive checks that need no context, in the order of wire.md 1: the first that fails drops the frame and counts.
// Combinational, over all headers of the packet (IP header first) and what was measured while it passed.
module rx_verdict
  import rnic_pkg::*, dp_pkg::*;
(
    /// own IP address
    input  logic [31:0]  ip_i,
    /// a packet is complete
    input  logic         valid_i,
    /// IP header to the longest extended header, byte 0 in lane 0
    input  logic [MaxHdrW-1:0] head_i,
    /// the frame is for this MAC address
    input  logic         mac_ok_i,
    /// EtherType is IPv4
    input  logic         type_ok_i,
    /// bytes behind the Ethernet header, saturating
    input  logic [15:0]  bytes_i,
    /// ICRC computed over the packet
    input  logic [31:0]  icrc_calc_i,
    /// ICRC received
    input  logic [31:0]  icrc_recv_i,
    /// the packet passed
    output logic         ok_o,
    /// its headers
    output rx_hdr_t      hdr_o,
    /// counters of the checks
    output cnt_inc_t     cnt_o
);
  logic [19:0] sum;
  logic [15:0] ip_len, udp_len;
  logic [5:0]  ext;
  logic [16:0] body_len, pay_len;
  logic [1:0]  pad;
  logic [7:0]  op;
  logic        sum_ok, len_ok;
  cnt_e        reason;

  assign ip_len  = be16(head_i[8*2+:16]);
  assign udp_len = be16(head_i[8*24+:16]);
  assign op      = head_i[8*28+:8];
  assign pad     = head_i[8*29+4+:2];
  assign ext     = ext_bytes(op);

  // what is left between the headers and the ICRC, and what of it is payload; bit 16: negative
  assign body_len = {1'b0, ip_len} - 17'(BaseHdrBytes) - 17'd4 - 17'(ext);
  assign pay_len  = body_len - 17'(pad);
  assign len_ok   = ip_len <= bytes_i && udp_len == ip_len - 16'd20 && ip_len[1:0] == 2'b0 && !body_len[16] &&
                    !pay_len[16] && pay_len <= 17'd4096 && (body_len != '0 || pad == 2'b0) &&
                    (body_len == '0 || !no_payload(op));

  // the sum over a good header, its checksum included, is all ones
  always_comb begin
    sum = '0;
    if (valid_i) begin
      for (int unsigned i = 0; i < 10; i++) sum = sum + 20'(be16(head_i[16*i+:16]));
      sum = 20'(sum[15:0]) + 20'(sum[19:16]);
      sum = 20'(sum[15:0]) + 20'(sum[19:16]);
    end
  end
  assign sum_ok = sum[15:0] == 16'hffff;

  always_comb begin
    reason = CntRxPacket;  // stands for: no check failed
    ok_o   = 1'b0;
    cnt_o  = '0;
    if (valid_i) begin
      if (bytes_i < 16'(BaseHdrBytes + 4)) reason = CntDropShort;
      else if (!mac_ok_i) reason = CntDropMac;
      else if (!type_ok_i) reason = CntDropEthertype;
      else if (head_i[7:0] != 8'h45 || !sum_ok || (be16(head_i[8*6+:16]) & 16'h3fff) != '0 || head_i[8*9+:8] != 8'd17)
        reason = CntDropIpv4;
      else if (be32(head_i[8*16+:32]) != ip_i) reason = CntDropIpDst;
      else if (be16(head_i[8*22+:16]) != RoceUdpPort) reason = CntDropUdpPort;
      else if (!len_ok) reason = CntDropLength;
      else if (icrc_recv_i != icrc_calc_i) reason = CntDropIcrc;
      else if (head_i[8*29+:4] != 4'd0) reason = CntDropTver;
      else if (!opcode_known(op)) reason = CntDropOpcode;
      else if (head_i[8*30+:16] != DefaultPkey) reason = CntDropPkey;
      ok_o = reason == CntRxPacket;
      if (!ok_o) cnt_o[reason] = 1'b1;
    end
  end

  // operands of an AtomicETH as integers; the compare value of an ordinary FetchAdd means nothing (wire.md 2)
  function automatic amo_t operands(input logic [7:0] bth, input logic [255:0] d);
    amo_t amo;
    amo = '0;
    unique case (bth)
      BthCmpSwap, BthMFa64: begin
        amo.swap_add = be64(d[8*0+:64]);
        amo.compare  = be64(d[8*8+:64]);
      end
      BthFetchAdd: amo.swap_add = be64(d[8*0+:64]);
      BthMCas64: begin
        amo.swap_add     = be64(d[8*0+:64]);
        amo.compare      = be64(d[8*8+:64]);
        amo.swap_mask    = be64(d[8*16+:64]);
        amo.compare_mask = be64(d[8*24+:64]);
      end
      BthMCas32: begin
        amo.swap_add     = 64'(be32(d[8*0+:32]));
        amo.compare      = 64'(be32(d[8*4+:32]));
        amo.swap_mask    = 64'(be32(d[8*8+:32]));
        amo.compare_mask = 64'(be32(d[8*12+:32]));
      end
      BthMFa32: begin
        amo.swap_add = 64'(be32(d[8*0+:32]));
        amo.compare  = 64'(be32(d[8*4+:32]));
      end
      default: ;
    endcase
    return amo;
  endfunction

  // payload of requests and READ responses is kept, and of an ATOMIC acknowledge its only beat
  always_comb begin
    hdr_o = '0;
    if (valid_i) begin
      hdr_o.bth      = op;
      hdr_o.se       = head_i[8*29+7];
      hdr_o.ack_req  = head_i[8*36+7];
      hdr_o.imm      = be32((op == BthWriteOnlyImm) ? head_i[8*56+:32] : head_i[8*40+:32]);
      hdr_o.dest_qpn = be24(head_i[8*33+:24]);
      hdr_o.psn      = be24(head_i[8*37+:24]);
      hdr_o.src_ip   = be32(head_i[8*12+:32]);
      hdr_o.raddr    = be64(head_i[8*40+:64]);
      hdr_o.rkey     = be32(head_i[8*48+:32]);
      hdr_o.dma_len  = be32(head_i[8*52+:32]);
      hdr_o.syndrome = head_i[8*40+:8];
      hdr_o.msn      = be24(head_i[8*41+:24]);
      hdr_o.pay_len  = pay_len[12:0];
      hdr_o.pay_off  = 6'(BaseHdrBytes) + ext;
      hdr_o.beats    = ((keeps_payload(op) && pay_len[12:0] != '0) || op == BthAtomicAck) ?
                       beats_t'((ip_len - 16'd4 + 16'd63) >> 6) : '0;
      hdr_o.amo      = operands(op, head_i[8*52+:256]);
    end
  end

  logic unused_bits;
  assign unused_bits = ^head_i;  // fields that are accepted as they are
endmodule
