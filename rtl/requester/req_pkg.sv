// Types and small functions that the blocks of the requester share: WQE index arithmetic at the width of the format
// version, lane events, and the positions that one block keeps and others read.
package req_pkg;
  import rnic_pkg::*;

  /// width of a message's remaining length in bytes (up to 2^31)
  localparam int unsigned LenW = 32;
  /// unacknowledged PSNs per QP stay below 2^22 (wire.md 5)
  localparam logic [23:0] PsnWindow = 24'h40_0000;
  /// packets or WQEs after which a lane gives way to a waiting QP at the next WQE boundary
  localparam logic [4:0] LaneQuantum = 5'd16;

  /// index at the width of the format version: 18 bits V2, 14 bits V1 (nic.md 3)
  function automatic idx_t idx_wrap(input idx_t idx, input logic version2);
    return version2 ? idx : {4'b0, idx[13:0]};
  endfunction

  /// index + n at the width of the format version
  function automatic idx_t idx_add(input idx_t idx, input idx_t n, input logic version2);
    return idx_wrap(idx + n, version2);
  endfunction

  /// forward distance from b to a at the width of the format version
  function automatic idx_t idx_sub(input idx_t a, input idx_t b, input logic version2);
    return idx_wrap(a - b, version2);
  endfunction

  /// wqe_id >> 3: the index that WQE and CQE can hold, 17 bits V2, 13 bits V1 (device.md 2.2)
  function automatic logic [16:0] idx_logical(input idx_t idx, input logic version2);
    return 17'(idx & (version2 ? 18'h1_ffff : 18'h0_1fff));
  endfunction

  /// log2 of the path MTU in bytes
  function automatic logic [3:0] mtu_log(input logic [2:0] mtu);
    return 4'd7 + {1'b0, mtu};
  endfunction

  /// a READ or atomic: one request packet, whose result comes back
  function automatic logic op_fetches(input logic [7:0] opcode);
    return opcode == WqeRead || op_atomic(opcode);
  endfunction

  /// one of the six atomics (device.md 1.4)
  function automatic logic op_atomic(input logic [7:0] opcode);
    return opcode inside {WqeCas64, WqeFa64, WqeMCas64, WqeMFa64, WqeMCas32, WqeMFa32};
  endfunction

  /// an atomic of 4 bytes
  function automatic logic op_atomic4(input logic [7:0] opcode);
    return opcode inside {WqeMCas32, WqeMFa32};
  endfunction

  /// READs and atomics counted modulo 32, of which at most MaxInflight are outstanding
  typedef logic [4:0] rd_num_t;

  /// a QP is given a lane; idx and psn are the first WQE to fetch and the PSN it will start with
  typedef struct packed {
    logic        valid;
    lane_t       lane;
    qp_t         qpi;
    logic        version2;
    logic [2:0]  mtu;
    logic [2:0]  sl;
    logic [4:0]  sq_log;
    logic [63:0] sq_base;
    idx_t        idx;
    psn_t        psn;
    rd_num_t     rd;             // READs and atomics started before idx
    psn_t        skip;           // packets of the first WQE that are not sent again
    psn_t        high;           // PSN behind the last one that was ever sent
    idx_t        pi;             // producer index
    logic [4:0]  ri;             // low bits of the first index not retired
  } lane_load_t;

  /// an index of a lane's QP moved: producer (doorbell) or first not retired (completion)
  typedef struct packed {
    logic  valid;
    lane_t lane;
    idx_t  idx;
  } lane_idx_t;

  /// the oldest unacknowledged position of a QP was judged anew (acknowledge tracker)
  typedef struct packed {
    logic    valid;
    qp_t     qpi;
    idx_t    idx;
    psn_t    psn;
    rd_num_t rd;                 // READs and atomics answered in full
    logic    moved;              // the PSN is another one than before
    logic    all;                // nothing that was sent is unacknowledged
  } qp_pos_t;

  /// where a QP goes on: next to issue, or back to where it has to send again
  typedef struct packed {
    logic    valid;
    qp_t     qpi;
    idx_t    idx;
    psn_t    psn;
    rd_num_t rd;                 // READs and atomics started before psn
    psn_t    skip;               // packets of WQE idx before psn
    psn_t    high;               // PSN behind the last one that was ever sent
    logic    fresh;              // sent for the first time
  } qp_go_t;

  typedef enum logic [1:0] {
    RetrySeq  = 2'd0,            // NAK 0, data beyond the expected, an answer that was passed, timer
    RetryRnr  = 2'd1,            // the responder asks for time
    RetryOver = 2'd2             // an answer came for what was about to be sent again: no loss
  } retry_e;

  /// a QP has to send again from its oldest unacknowledged PSN
  typedef struct packed {
    logic       valid;
    qp_t        qpi;
    retry_e     why;
    logic       implied;         // RetrySeq: only an answer was passed
    logic [4:0] code;            // RetryRnr: time code
  } qp_retry_t;

  /// an index of a QP moved: producer or first not retired
  typedef struct packed {
    logic valid;
    qp_t  qpi;
    idx_t idx;
  } qp_idx_t;

  /// a WQE in flight failed
  typedef struct packed {
    logic       valid;
    qp_t        qpi;
    slot_t      slot;
    logic [7:0] code;            // cqe_err_e
  } qp_fail_t;

  /// outstanding-request entry, written when a WQE starts
  typedef struct packed {
    wqe_t wqe;
    psn_t first;                 // first PSN of the message
    psn_t last;                  // last PSN of the message
  } req_entry_t;

  /// what the acknowledge tracker has to know of an outstanding WQE
  typedef struct packed {
    logic fetches;               // READ or atomic: only its own response completes it
    logic odd;                   // atomic whose remote address is not a multiple of its size
    psn_t last;                  // last PSN of the message
  } req_mark_t;

  /// what the completion engine does: a WQE of a send or receive queue, a CQ doorbell, a look at a CQ that lets others wait
  typedef enum logic [1:0] {
    OpComplete,
    OpReceive,
    OpDoorbell,
    OpTimer
  } comp_op_e;

  /// a CQE to write
  typedef struct packed {
    logic [63:0]  addr;          // of the slot
    logic         stride32;      // exactly 32 bytes, else 64 with zeros above
    logic [255:0] payload;
    cq_t          cqn;
    qp_t          qpi;
    logic         solicit;       // error CQE: also fires an arm of kind 3
  } cqe_job_t;

endpackage
