// What a packet does to its QP: the rules of wire.md 5 as far as no memory region is needed. Combinational, over the
// packet, the QP's context and its responder state.
module resp_rules
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*;
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
    /// verdict
    output resp_act_t   act_o,
    /// state after the packet, if it is executed
    output resp_state_t next_o
);
  /// longest message (nic.md 4)
  localparam logic [31:0] MaxMessage = 32'h8000_0000;

  psn_t        ahead;
  logic [12:0] mtu;
  logic        first, middle, last, only, begins, sequence_ok, length_ok;
  logic [31:0] rest;

  // signed distance from the expected PSN
  assign ahead = hdr_i.psn - state_i.psn;

  // opcode sequence and length rules. Only WRITEs have a class here: SEND, READ and atomics join with theirs.
  always_comb begin
    mtu         = 13'd128 << ctx_i.mtu;
    first       = hdr_i.bth == BthWriteFirst;
    middle      = hdr_i.bth == BthWriteMiddle;
    last        = hdr_i.bth == BthWriteLast;
    only        = hdr_i.bth == BthWriteOnly;
    begins      = first || only;
    sequence_ok = begins != state_i.in_message;
    rest        = (begins ? hdr_i.dma_len : state_i.left) - 32'(hdr_i.pay_len);
    length_ok   = 1'b0;
    unique case (1'b1)
      first:   length_ok = hdr_i.pay_len == mtu && hdr_i.dma_len > 32'(mtu) && hdr_i.dma_len <= MaxMessage;
      middle:  length_ok = hdr_i.pay_len == mtu && state_i.left > 32'(mtu);
      last:    length_ok = hdr_i.pay_len != '0 && hdr_i.pay_len <= mtu && rest == '0;
      only:    length_ok = hdr_i.pay_len <= mtu && rest == '0;
      default: length_ok = 1'b0;
    endcase
  end

  always_comb begin
    act_o  = '0;
    next_o = state_i;
    if (valid_i) begin
      act_o.addr   = begins ? hdr_i.raddr : state_i.addr;
      act_o.rkey   = begins ? hdr_i.rkey : state_i.rkey;
      // the whole message is judged when it begins, later only the key (wire.md 5)
      act_o.mr_len = begins ? hdr_i.dma_len : 32'(hdr_i.pay_len);
      act_o.whole  = begins;
      if (!live_i) begin
        act_o.kind = ActDropQp;
      end else if (hdr_i.src_ip != ctx_i.peer_ip) begin
        act_o.kind = ActDropIpSrc;
      end else if (is_response(hdr_i.bth)) begin
        // ACK, RNR NAK, NAK codes 0 to 3; 0E carries no AETH
        if (hdr_i.bth == BthReadMiddle || hdr_i.syndrome[7:5] == 3'b000 || hdr_i.syndrome[7:5] == 3'b001 ||
            (hdr_i.syndrome[7:5] == 3'b011 && hdr_i.syndrome[4:0] <= 5'd3)) begin
          act_o.kind = ActResponse;
        end else begin
          act_o.kind = ActDropSyndrome;
        end
      end else if (ahead[23]) begin
        act_o.kind = ActDuplicate;
        act_o.ack  = is_write_or_send(hdr_i.bth);
      end else if (ahead != '0) begin
        act_o.kind = ActAhead;
        act_o.ack  = !state_i.nak_sent;
      end else if (!is_write(hdr_i.bth) || !sequence_ok || !length_ok || !ctx_i.rem_write) begin
        // NOT BUILT YET: SEND, WRITE with immediate, READ and atomics are refused here, by !is_write
        act_o.kind = ActInvalid;
      end else begin
        act_o.kind        = ActExecute;
        act_o.ack         = hdr_i.ack_req;
        next_o.psn        = state_i.psn + 24'd1;
        next_o.nak_sent   = 1'b0;
        next_o.in_message = first || middle;
        next_o.addr       = act_o.addr + 64'(hdr_i.pay_len);
        next_o.left       = rest;
        next_o.rkey       = act_o.rkey;
        if (last || only) next_o.msn = state_i.msn + 24'd1;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = (^hdr_i) ^ (^ctx_i.rq_psn);
endmodule
