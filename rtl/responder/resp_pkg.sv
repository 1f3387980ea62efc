// Types of the responder: what it keeps of a QP and what a packet leads to.
package resp_pkg;
  import rnic_pkg::*;

  /// what the receive side needs of a QP's context
  typedef struct packed {
    logic [2:0]  mtu;
    logic        rem_write;
    logic        rem_read;
    logic        rem_atomic;
    logic [4:0]  max_dest_rd;
    logic [31:0] peer_ip;
    psn_t        rq_psn;
  } resp_ctx_t;

  /// responder state of a QP
  typedef struct packed {
    psn_t        psn;            // expected
    logic [23:0] msn;
    logic        nak_sent;       // NAK 0 sent for the expected PSN
    logic        in_message;     // a message of several packets is under way
    logic [63:0] addr;           // where its next byte goes
    logic [31:0] left;           // its bytes still to come
    logic [31:0] rkey;
  } resp_state_t;

  typedef enum logic [3:0] {
    ActNone,
    ActDropQp,
    ActDropIpSrc,
    ActDropSyndrome,
    ActDropResponse,             // data that nobody waits for
    ActRspAhead,                 // data beyond the expected one: something was lost
    ActResponse,                 // ACK, NAK, RNR NAK for the requester
    ActData,                     // the expected READ response or ATOMIC acknowledge
    ActDuplicate,
    ActAhead,
    ActInvalid,                  // NAK 1
    ActWrite,                    // WRITE, READ or atomic, if its region allows it (else NAK 2)
    ActRead,
    ActAtomic
  } act_e;

  typedef struct packed {
    act_e        kind;
    logic        ack;            // an answer is due
    logic        too_many;       // ActInvalid for want of a place in the table
    // region check: key, right and range, or (not whole) only the key
    logic        remote;
    right_e      right;
    logic        whole;
    logic [63:0] addr;
    logic [31:0] key;
    logic [31:0] mr_len;
    // ActData
    slot_t       slot;
    logic        last;           // the WQE has all its bytes
    logic [7:0]  fail;           // CqeOk, or what is wrong with the response
    logic [12:0] len;            // bytes to write
    logic [5:0]  off;            // lane of the first one in the buffered beats
  } resp_act_t;

  /// a READ or atomic that was accepted
  typedef struct packed {
    logic [7:0]  bth;
    logic [2:0]  mtu;
    psn_t        psn;
    logic [23:0] msn;            // of its answers
    logic [31:0] rkey;
    logic [31:0] len;            // READ: bytes
    logic [63:0] addr;
    amo_t        amo;
  } resp_entry_t;

  /// an ACK or NAK that waits for its turn
  typedef struct packed {
    logic [4:0]  place;          // entries of its QP's table that are answered before it (modulo 32)
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
  } resp_answer_t;

  /// what becomes due, in the order of the packets of a QP
  typedef struct packed {
    qp_t         qpi;
    logic        start;          // the next accepted READ or atomic may be executed
    logic        atomic;         // it is an atomic
    logic        ack;            // an ACK or NAK is due
    logic        fatal;          // a NAK that takes the QP to ERR
    logic        flush;          // nothing that waits is answered any more
    logic        stop;           // nothing from `place` on is answered any more, this NAK stands there
    logic [4:0]  place;
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
  } resp_due_t;

  /// WRITE and SEND opcodes: their duplicates are acknowledged
  function automatic logic is_write_or_send(input logic [7:0] op);
    return op <= 8'(BthWriteOnlyImm);
  endfunction

  /// packets of `len` bytes at an MTU code: at least one
  function automatic psn_t packets_of(input logic [31:0] len, input logic [2:0] mtu);
    logic [32:0] sum;
    sum = 33'(len) + (33'd128 << mtu) - 33'd1;
    return (len == '0) ? 24'd1 : psn_t'(sum >> (4'd7 + 4'(mtu)));
  endfunction

endpackage
