// Types of the responder: what it keeps of a QP and what a packet leads to.
package resp_pkg;
  import rnic_pkg::*;

  /// what the responder needs of a QP's context
  typedef struct packed {
    logic [2:0]  mtu;
    logic        rem_write;
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
    ActResponse,                 // goes to the requester
    ActDuplicate,
    ActAhead,
    ActInvalid,                  // NAK 1
    ActExecute                   // WRITE, if its region allows it (else NAK 2)
  } act_e;

  typedef struct packed {
    act_e        kind;
    logic        ack;            // an answer is due
    logic        whole;          // right and range are judged too, not only the key
    logic [63:0] addr;
    logic [31:0] rkey;
    logic [31:0] mr_len;
  } resp_act_t;

  /// WRITE and SEND opcodes: their duplicates are acknowledged
  function automatic logic is_write_or_send(input logic [7:0] op);
    return op <= 8'(BthWriteOnlyImm);
  endfunction

endpackage
