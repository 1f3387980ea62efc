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
    logic        send;           // it is a SEND
    logic [63:0] addr;           // where its next byte goes
    logic [31:0] left;           // its bytes still to come; SEND: bytes left in the receive buffer
    logic [31:0] key;            // rkey; SEND: lkey of the receive buffer
    logic [31:0] len;            // its bytes; SEND: those that came
  } resp_state_t;

  /// places in a QP's table: MaxInflight READs and atomics that come for the first time, and as many duplicates
  localparam int unsigned Places = 2 * MaxInflight;
  typedef logic [SlotW:0] index_t;
  /// number of an entry, modulo twice the places
  typedef logic [SlotW+1:0] place_t;

  typedef enum logic [4:0] {
    ActNone,
    ActDropQp,
    ActDropIpSrc,
    ActDropSyndrome,
    ActDropResponse,             // data that nobody waits for
    ActRspAhead,                 // data beyond the expected one: something was lost
    ActResponse,                 // ACK, NAK, RNR NAK for the requester
    ActData,                     // the expected READ response or ATOMIC acknowledge
    ActDuplicate,                // WRITE or SEND: an ACK; READ or atomic: dropped
    ActAhead,
    ActInvalid,                  // NAK 1
    ActRemOp,                    // NAK 3
    ActNotReady,                 // RNR NAK
    ActWrite,                    // SEND, WRITE, READ or atomic, if its region allows it (else NAK 2, SEND: NAK 3)
    ActRead,                     // dup: once more
    ActAtomic,
    ActSaved                     // duplicate of an atomic, answered from its saved result
  } act_e;

  typedef struct packed {
    act_e        kind;
    logic        ack;            // an answer is due
    logic        too_many;       // no place in the table: ActInvalid, or a duplicate that is dropped
    logic        dup;            // behind the expected PSN: the state of the QP stays
    logic        no_save;        // duplicate of an atomic whose result is not saved
    // receive queue
    logic        send;           // ActWrite into the receive buffer
    logic        take;           // takes the next receive WQE, if it is executed
    logic        recv;           // ends a message that has a receive CQE
    logic [7:0]  code;           // ActInvalid, ActRemOp: what is wrong with the receive WQE, if that is
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

  /// next receive WQE of a QP
  typedef struct packed {
    rq_idx_t     idx;
    logic        err;            // it could not be read
    logic [31:0] len;
    logic [31:0] lkey;
    logic [63:0] addr;
  } rq_wqe_t;

  /// a READ or atomic that was accepted
  typedef struct packed {
    logic        dup;            // a READ once more, or an atomic that is answered from its saved result
    logic [7:0]  bth;
    logic [2:0]  mtu;
    psn_t        psn;
    logic [23:0] msn;            // of its answers
    logic [31:0] rkey;
    logic [31:0] len;            // READ: bytes
    logic [63:0] addr;           // duplicate of an atomic: the saved result
    amo_t        amo;
  } resp_entry_t;

  /// an ACK or NAK that waits for its turn
  typedef struct packed {
    place_t      place;          // entries of its QP's table that are answered before it
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
  } resp_answer_t;

  /// what becomes due, in the order of the packets of a QP
  typedef struct packed {
    qp_t         qpi;
    logic        start;          // the next entry of the table may be executed
    logic        atomic;         // it is an atomic that was not executed before
    logic        ack;            // an ACK or NAK is due
    logic        fatal;          // a NAK that takes the QP to ERR
    logic        flush;          // nothing that waits is answered any more
    logic        stop;           // nothing from `place` on is answered any more, this NAK stands there
    place_t      place;
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
  } resp_due_t;

  /// what the rules ask the engine about a packet
  typedef struct packed {
    qp_t         qpi;
    psn_t        psn;
    logic [4:0]  depth;          // saved results that its QP keeps: max_dest_rd_atomic
  } resp_ask_t;

  /// and what it says in the same cycle
  typedef struct packed {
    logic [4:0]  used;           // READs and atomics in the QP's table
    place_t      held;           // the same, and the duplicates
    logic        found;          // an atomic with this PSN is one of the `depth` newest
    logic        ready;          // and it was executed: its result is saved
  } resp_seen_t;

  /// packets of `len` bytes at an MTU code: at least one
  function automatic psn_t packets_of(input logic [31:0] len, input logic [2:0] mtu);
    logic [32:0] sum;
    sum = 33'(len) + (33'd128 << mtu) - 33'd1;
    return (len == '0) ? 24'd1 : psn_t'(sum >> (4'd7 + 4'(mtu)));
  endfunction

endpackage
