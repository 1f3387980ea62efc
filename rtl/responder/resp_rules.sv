// What a packet does to its QP: the rules of wire.md 5 and nic.md 5 as far as no memory region is needed. Combinational,
// over the packet, the QP's context, responder state and next receive WQE; responses are judged by rsp_rules.
module resp_rules
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*, atomic_pkg::*;
(
    /// a packet is judged
    input  logic        valid_i,
    /// its headers
    input  rx_hdr_t     hdr_i,
    /// its QP exists, is RTS and has not answered with a fatal NAK
    input  logic        live_i,
    /// context of the QP
    input  resp_ctx_t   ctx_i,
    /// responder state of the QP
    input  resp_state_t state_i,
    /// what the QP's table and its saved results say about it
    input  resp_seen_t  seen_i,
    /// the QP has a receive WQE for a message
    input  logic        rq_ready_i,
    /// that WQE
    input  rq_wqe_t     rq_i,
    /// verdict on it as a response
    input  resp_act_t   rsp_i,
    /// verdict
    output resp_act_t   act_o,
    /// state after the packet, if it is executed
    output resp_state_t next_o
);
  /// longest message (nic.md 4)
  localparam logic [31:0] MaxMessage = 32'h8000_0000;

  psn_t        ahead, packets;
  logic [12:0] mtu;
  logic        first, middle, last, only, read, atomic, wide, begins, sequence_ok, length_ok, right_ok, aligned, full;
  logic        crowded, send, takes, too_long;
  logic [31:0] rest, buffer;

  // signed distance from the expected PSN
  assign ahead = hdr_i.psn - state_i.psn;
  // of a READ: the PSNs that its responses take
  assign packets = packets_of(hdr_i.dma_len, ctx_i.mtu);

  // opcode sequence, lengths, QP rights
  always_comb begin
    mtu         = 13'd128 << ctx_i.mtu;
    send        = is_send(hdr_i.bth);
    takes       = takes_recv(hdr_i.bth);
    first       = hdr_i.bth inside {BthSendFirst, BthWriteFirst};
    middle      = hdr_i.bth inside {BthSendMiddle, BthWriteMiddle};
    last        = hdr_i.bth inside {BthSendLast, BthSendLastImm, BthWriteLast, BthWriteLastImm};
    only        = hdr_i.bth inside {BthSendOnly, BthSendOnlyImm, BthWriteOnly, BthWriteOnlyImm};
    read        = hdr_i.bth == BthReadReq;
    atomic      = is_atomic(hdr_i.bth);
    wide        = amo_wide(hdr_i.bth);
    begins      = first || only || read || atomic;
    sequence_ok = begins != state_i.in_message && (begins || send == state_i.send);
    rest        = (begins ? hdr_i.dma_len : state_i.left) - 32'(hdr_i.pay_len);
    aligned     = hdr_i.raddr[1:0] == '0 && (!wide || !hdr_i.raddr[2]);
    full        = seen_i.used >= ctx_i.max_dest_rd || seen_i.used >= 5'(MaxInflight);
    // a duplicate takes a place that is left, and takes none away from those that come for the first time
    crowded     = seen_i.held >= place_t'(ctx_i.max_dest_rd) || seen_i.held >= place_t'(MaxInflight);
    right_ok    = read ? ctx_i.rem_read : (atomic ? ctx_i.rem_atomic : (send || ctx_i.rem_write));
    // a SEND fills the buffer of its receive WQE, whose length it learns by filling it
    buffer      = begins ? rq_i.len : state_i.left;
    too_long    = 32'(hdr_i.pay_len) > buffer;
    length_ok   = 1'b0;
    unique case (1'b1)
      first:   length_ok = hdr_i.pay_len == mtu && (send || (hdr_i.dma_len > 32'(mtu) && hdr_i.dma_len <= MaxMessage));
      middle:  length_ok = hdr_i.pay_len == mtu && (send ? state_i.len < MaxMessage : state_i.left > 32'(mtu));
      last:    length_ok = hdr_i.pay_len != '0 && hdr_i.pay_len <= mtu &&
                           (send ? state_i.len <= MaxMessage - 32'(hdr_i.pay_len) : rest == '0);
      only:    length_ok = hdr_i.pay_len <= mtu && (send || rest == '0);
      read:    length_ok = hdr_i.dma_len <= MaxMessage;
      atomic:  length_ok = 1'b1;
      default: length_ok = 1'b0;
    endcase
  end

  always_comb begin
    act_o  = '0;
    next_o = state_i;
    if (valid_i) begin
      act_o.remote = 1'b1;
      act_o.addr   = !begins ? state_i.addr : send ? rq_i.addr : hdr_i.raddr;
      act_o.key    = !begins ? state_i.key : send ? rq_i.lkey : hdr_i.rkey;
      // the whole message is judged when it begins, later only the key (wire.md 5)
      act_o.mr_len = atomic ? (wide ? 32'd8 : 32'd4) : (begins ? hdr_i.dma_len : 32'(hdr_i.pay_len));
      act_o.right  = read ? RightRemRead : (atomic ? RightRemAtom : RightRemWrite);
      act_o.whole  = begins;
      if (send) begin
        // of a SEND each packet's bytes are judged when it comes
        act_o.send   = 1'b1;
        act_o.remote = 1'b0;
        act_o.mr_len = 32'(hdr_i.pay_len);
        act_o.right  = RightLocWrite;
        act_o.whole  = 1'b1;
      end
      act_o.take   = takes;
      act_o.recv   = (last || only) && (send || takes);
      act_o.off    = hdr_i.pay_off;
      act_o.len    = hdr_i.pay_len;
      if (!live_i) begin
        act_o.kind = ActDropQp;
      end else if (hdr_i.src_ip != ctx_i.peer_ip) begin
        act_o.kind = ActDropIpSrc;
      end else if (is_response(hdr_i.bth)) begin
        act_o = rsp_i;
      end else if (ahead[23]) begin
        // a READ is executed again, whole or resumed; an atomic never is, and one whose answer is still to come is dropped
        act_o.kind = ActDuplicate;
        act_o.dup  = 1'b1;
        act_o.ack  = is_write(hdr_i.bth);
        if (read) begin
          // responses up to the expected PSN belong to no READ that was executed
          if (!length_ok || !right_ok || packets > -ahead) act_o.kind = ActInvalid;
          else if (crowded) act_o.too_many = 1'b1;
          else act_o.kind = ActRead;
        end else if (atomic) begin
          if (!seen_i.found) act_o.no_save = 1'b1;
          else if (seen_i.ready && crowded) act_o.too_many = 1'b1;
          else if (seen_i.ready) act_o.kind = ActSaved;
        end
      end else if (ahead != '0) begin
        act_o.kind = ActAhead;
        act_o.ack  = !state_i.nak_sent;
      end else if (!sequence_ok || !length_ok || !right_ok || (atomic && !aligned)) begin
        act_o.kind = ActInvalid;
      end else if ((read || atomic) && full) begin
        act_o.kind     = ActInvalid;
        act_o.too_many = 1'b1;
      end else if (takes && !rq_ready_i) begin
        act_o.kind = ActNotReady;
        act_o.ack  = 1'b1;
      end else if (send && begins && rq_i.err) begin
        act_o.kind = ActRemOp;
        act_o.code = CqeRecvDma;
      end else if (send && too_long) begin
        act_o.kind = ActInvalid;
        act_o.code = CqeRecvLen;
      end else begin
        act_o.kind      = read ? ActRead : (atomic ? ActAtomic : ActWrite);
        act_o.ack       = hdr_i.ack_req && !read && !atomic;
        next_o.psn      = state_i.psn + (read ? packets : 24'd1);
        next_o.nak_sent = 1'b0;
        if (!read && !atomic) begin
          next_o.in_message = first || middle;
          next_o.send       = send;
          next_o.addr       = act_o.addr + 64'(hdr_i.pay_len);
          next_o.left       = send ? buffer - 32'(hdr_i.pay_len) : rest;
          next_o.key        = act_o.key;
          if (send) next_o.len = (begins ? '0 : state_i.len) + 32'(hdr_i.pay_len);
          else if (begins) next_o.len = hdr_i.dma_len;
        end
        if (last || only || read || atomic) next_o.msn = state_i.msn + 24'd1;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = (^hdr_i) ^ (^ctx_i.rq_psn) ^ (^rq_i.idx);
endmodule
