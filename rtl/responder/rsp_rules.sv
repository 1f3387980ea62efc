// What a response means (wire.md 3, 5): ACK, NAK and RNR NAK go to the requester; READ responses and ATOMIC acknowledges
// are held against the oldest READ or atomic of their QP. Combinational.
module rsp_rules
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*;
(
    /// a packet is judged
    input  logic       valid_i,
    /// its headers
    input  rx_hdr_t    hdr_i,
    /// MTU code of its QP
    input  logic [2:0] mtu_i,
    /// its QP waits for data
    input  logic       found_i,
    /// the READ or atomic that it waits for
    input  expect_t    expect_i,
    /// PSN that it waits for
    input  psn_t       psn_i,
    /// verdict
    output resp_act_t  act_o
);
  logic [2:0]  class_bits;
  psn_t        index;            // place of the response in its READ
  logic        first, last;
  psn_t        ahead;            // signed distance from the expected PSN
  logic [7:0]  opcode, other;    // opcode that fits; from the first request of a READ that was resumed
  logic [12:0] mtu, size;
  logic [35:0] offset;
  logic [31:0] left;

  assign class_bits = hdr_i.syndrome[7:5];

  always_comb begin
    act_o  = '0;
    ahead  = '0;
    index  = '0;
    first  = 1'b0;
    last   = 1'b0;
    opcode = BthAtomicAck;
    other  = BthAtomicAck;
    mtu    = '0;
    size   = '0;
    offset = '0;
    left   = '0;
    if (valid_i) begin
      ahead  = hdr_i.psn - psn_i;
      index  = hdr_i.psn - expect_i.first;
      first  = index == '0;
      last   = hdr_i.psn == expect_i.last;
      mtu    = 13'd128 << mtu_i;
      offset = 36'(index) << (4'd7 + 4'(mtu_i));
      left   = expect_i.len - offset[31:0];
      if (expect_i.kind == ExpRead) begin
        opcode = first ? (last ? BthReadOnly : BthReadFirst) : (last ? BthReadLast : BthReadMiddle);
        other  = !expect_i.resumed ? opcode : last ? BthReadLast : BthReadMiddle;
        size   = last ? left[12:0] : mtu;
      end else begin
        size = (expect_i.kind == ExpAmo8) ? 13'd8 : 13'd4;
      end

      act_o.remote = 1'b0;
      act_o.right  = RightLocWrite;
      act_o.whole  = 1'b1;
      act_o.addr   = expect_i.laddr + 64'(offset);
      act_o.key    = expect_i.lkey;
      act_o.mr_len = 32'(size);
      act_o.slot   = expect_i.slot;
      act_o.last   = last;
      act_o.len    = size;
      act_o.off    = (expect_i.kind == ExpRead) ? hdr_i.pay_off :
                     (expect_i.kind == ExpAmo8) ? AckValueLe : AckValueBe;
      if (hdr_i.bth == BthAck) begin
        // ACK, RNR NAK, NAK codes 0 to 3
        act_o.kind = (class_bits == 3'b000 || class_bits == 3'b001 ||
                      (class_bits == 3'b011 && hdr_i.syndrome[4:0] <= 5'd3)) ? ActResponse : ActDropSyndrome;
      end else if (hdr_i.bth != BthReadMiddle && class_bits != 3'b000) begin
        act_o.kind = ActDropSyndrome;
      end else if (!found_i || ahead[23]) begin
        act_o.kind = ActDropResponse;
      end else if (ahead != '0) begin
        act_o.kind = ActRspAhead;
      end else begin
        act_o.kind = ActData;
        if (hdr_i.bth != opcode && hdr_i.bth != other) act_o.fail = CqeRdRspOp;
        else if (expect_i.kind == ExpRead && hdr_i.pay_len != size) act_o.fail = CqeRdRspLen;
        else act_o.fail = CqeOk;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = (^hdr_i) ^ (^expect_i) ^ (^left);
endmodule
