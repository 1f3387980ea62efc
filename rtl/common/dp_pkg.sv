// Types that the stages of the data path hand to each other, and byte order of the wire. Wide data stands last in its
// struct, on a word border, which a simulator copies faster.
package dp_pkg;
  import rnic_pkg::*;

  /// headers from IPv4 to the longest extended header
  localparam int unsigned MaxHdrBytes = 84;
  localparam int unsigned MaxHdrW = 8 * MaxHdrBytes;

  /// beats of one packet
  typedef logic [6:0] beats_t;

  /// realign: move `len` bytes that start at lane src_off of `src_beats` buffered beats to lane dst_off
  typedef struct packed {
    logic        skip;           // only release the buffered beats
    logic        result;         // scatter: bytes of a READ or atomic result (ID 5), else an inbound WRITE (ID 3)
    beats_t      src_beats;
    logic [5:0]  src_off;
    logic [5:0]  dst_off;
    logic [5:0]  dst_beat;       // beat index of the first byte within its 4 KiB page
    logic [12:0] len;
  } realign_cmd_t;

  typedef struct packed {
    logic  page_end;             // last beat of the packet or of its 4 KiB page
    logic  last;
    strb_t strb;
    data_t data;                 // lanes without strobe are zero
  } realign_beat_t;

  /// payload of a packet on its way to the framer; lanes behind the last byte are zero
  typedef struct packed {
    logic  last;
    data_t data;
  } pay_beat_t;

  /// IP header to last extended header, ready to send
  typedef struct packed {
    qp_t          qpi;
    logic         is_rsp;        // response packet, for the counters
    logic [47:0]  dst_mac;
    logic [6:0]   hlen;          // bytes of data in use, 40..60; 68 or 84 where an AtomicETH needs it, without payload
    logic [12:0]  pay_len;
    logic [MaxHdrW-1:0] data;    // byte 0 in lane 0, zero behind hlen
  } tx_hdr_t;

  /// frame beat between the transmit stages; all lengths are multiples of 4 before the Ethernet header is put on
  typedef struct packed {
    qp_t         qpi;
    logic        is_rsp;
    logic [47:0] dst_mac;
    logic        first;
    logic        last;
    logic [6:0]  bytes;          // bytes in use, 64 but for the last beat
    data_t       data;           // zero behind the last byte
  } tx_beat_t;

  /// received beat without the Ethernet header: the IP header starts in lane 0 of the first beat
  typedef struct packed {
    logic       mac_ok;          // valid on the first beat
    logic       type_ok;
    logic       first;
    logic       last;
    logic [6:0] bytes;           // 64 but for the last beat; 0: the frame ended within its Ethernet header
    data_t      data;
  } rx_beat_t;

  /// packet that passed the checks which need no context (wire.md 1, up to the P_Key)
  typedef struct packed {
    logic [7:0]  bth;
    logic        se;             // solicited event
    logic        ack_req;
    logic [31:0] imm;            // ImmDt, where the opcode has one
    logic [23:0] dest_qpn;
    psn_t        psn;
    logic [31:0] src_ip;
    logic [63:0] raddr;          // RETH or AtomicETH, where the opcode has one
    logic [31:0] rkey;
    logic [31:0] dma_len;
    logic [7:0]  syndrome;       // AETH, where the opcode has one
    logic [23:0] msn;
    logic [12:0] pay_len;
    logic [5:0]  pay_off;        // lane of the first payload byte in the first beat
    beats_t      beats;          // beats in the receive buffer, 0: nothing kept; of an ATOMIC acknowledge 1
    amo_t        amo;            // AtomicETH operands as integers, for the atomic opcodes
  } rx_hdr_t;

  /// lanes of an ATOMIC acknowledge's buffered beat: original value, 8 bytes with the least significant first
  localparam logic [5:0] AckValueLe = 6'd44;
  /// and its low 4 bytes with the most significant first
  localparam logic [5:0] AckValueBe = 6'd56;

  /// what follows a request once the write responses of all before it are there
  typedef struct packed {
    qp_t         qpi;
    logic [1:0]  bursts;         // write bursts of the packet
    logic        start;          // a READ or atomic that was put into the table may be executed
    logic        ack;            // an ACK or NAK is due
    logic        fatal;          // NAK that takes the QP to ERR
    logic [7:0]  syndrome;
    psn_t        psn;            // PSN of the answer
    psn_t        pkt_psn;        // PSN of the packet, for a write error
    logic [23:0] msn;            // MSN of the answer
    logic        msn_step;       // this packet counted: a write error takes it back
    logic        atomic;         // a table entry that starts is an atomic
    logic        way;            // belongs to a receive WQE: its bytes, or its outcome
    logic        recv;           // a receive WQE gets its outcome
    recv_done_t  got;            // outcome
  } rx_done_t;

  /// IPv4 + UDP + BTH
  localparam int unsigned BaseHdrBytes = 40;
  /// an opcode of wire.md 2 or 3
  function automatic logic opcode_known(input logic [7:0] op);
    return op <= 8'(BthFetchAdd) || (op >= 8'(BthMCas64) && op <= 8'(BthMFa32));
  endfunction

  /// bytes of the extended headers (wire.md 2, 3); 0 where the opcode is undefined
  function automatic logic [5:0] ext_bytes(input logic [7:0] op);
    unique case (op)
      BthWriteFirst, BthWriteOnly, BthReadReq:           return 6'd16;
      BthWriteOnlyImm, BthMFa32:                         return 6'd20;
      BthWriteLastImm, BthSendLastImm, BthSendOnlyImm:   return 6'd4;
      BthReadFirst, BthReadLast, BthReadOnly, BthAck:    return 6'd4;
      BthAtomicAck:                                      return 6'd12;
      BthCmpSwap, BthFetchAdd, BthMFa64, BthMCas32:      return 6'd28;
      BthMCas64:                                         return 6'd44;
      default:                                           return 6'd0;
    endcase
  endfunction

  /// an opcode that never carries payload
  function automatic logic no_payload(input logic [7:0] op);
    unique case (op)
      BthReadReq, BthAck, BthAtomicAck, BthCmpSwap, BthFetchAdd, BthMCas64, BthMFa64, BthMCas32, BthMFa32: return 1'b1;
      default: return 1'b0;
    endcase
  endfunction

  /// responses: 0D..12
  function automatic logic is_response(input logic [7:0] op);
    return op >= 8'(BthReadFirst) && op <= 8'(BthAtomicAck);
  endfunction

  /// atomic requests (wire.md 2)
  function automatic logic is_atomic(input logic [7:0] op);
    return op == BthCmpSwap || op == BthFetchAdd || (op >= 8'(BthMCas64) && op <= 8'(BthMFa32));
  endfunction

  /// requests that carry payload: SEND and WRITE, with and without immediate
  function automatic logic is_write(input logic [7:0] op);
    return op <= 8'(BthWriteOnlyImm);
  endfunction

  /// SEND
  function automatic logic is_send(input logic [7:0] op);
    return op <= 8'(BthSendOnlyImm);
  endfunction

  /// requests with immediate data
  function automatic logic has_imm(input logic [7:0] op);
    return op == BthSendLastImm || op == BthSendOnlyImm || op == BthWriteLastImm || op == BthWriteOnlyImm;
  endfunction

  /// the first packet of a SEND
  function automatic logic opens_send(input logic [7:0] op);
    return op == BthSendFirst || op == BthSendOnly || op == BthSendOnlyImm;
  endfunction

  /// packets that need a receive WQE (nic.md 5): a SEND when it begins, a WRITE with immediate when it ends
  function automatic logic takes_recv(input logic [7:0] op);
    return opens_send(op) || op == BthWriteLastImm || op == BthWriteOnlyImm;
  endfunction

  /// READ responses with an AETH; a Middle has none
  function automatic logic read_has_aeth(input logic [7:0] op);
    return op == BthReadFirst || op == BthReadLast || op == BthReadOnly;
  endfunction

  /// opcodes whose payload goes to memory
  function automatic logic keeps_payload(input logic [7:0] op);
    return is_write(op) || op == BthReadMiddle || read_has_aeth(op);
  endfunction

  // wire order (most significant byte first) to lane order (first byte in the low bits) and back
  function automatic logic [15:0] be16(input logic [15:0] v);
    return {v[7:0], v[15:8]};
  endfunction
  function automatic logic [23:0] be24(input logic [23:0] v);
    return {v[7:0], v[15:8], v[23:16]};
  endfunction
  function automatic logic [31:0] be32(input logic [31:0] v);
    return {be16(v[15:0]), be16(v[31:16])};
  endfunction
  function automatic logic [47:0] be48(input logic [47:0] v);
    return {be24(v[23:0]), be24(v[47:24])};
  endfunction
  function automatic logic [63:0] be64(input logic [63:0] v);
    return {be32(v[31:0]), be32(v[63:32])};
  endfunction

endpackage
