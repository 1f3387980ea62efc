// Formats, parameters and codes that the blocks of the NIC share. Sources: spec/nic.md (contexts, rules),
// spec/wire.md (packets), spec/device.md (WQE, CQE, doorbells); each item names its section.
package rnic_pkg;

  // ------------------------------------------------------------------ sizes (nic.md 1, 2, 4, 5)
  /// QP contexts; QPNs run from FirstQpn, 0 and 1 belong to management (nic.md 2)
  localparam int unsigned NumQp = 64;
  localparam int unsigned FirstQpn = 2;
  /// CQ contexts, numbered from 0 (nic.md 2)
  localparam int unsigned NumCq = 64;
  /// MR contexts; key[31:8] is the index (nic.md 2)
  localparam int unsigned NumMr = 256;
  /// WQEs in flight per QP (nic.md 5)
  localparam int unsigned MaxInflight = 16;
  /// QPs that fetch and transmit at one time (nic.md 4)
  localparam int unsigned NumLane = 8;
  /// WQEs per fetch burst at the most (nic.md 4)
  localparam int unsigned MaxFetch = 8;
  /// AckReq on every packet whose index in its message + 1 is a multiple of this (wire.md 2)
  localparam int unsigned AckInterval = 16;
  /// data bytes per beat of memory port and link (nic.md 1)
  localparam int unsigned DataBytes = 64;
  localparam int unsigned DataW = 8 * DataBytes;
  /// bytes per WQE slot (device.md 1.1)
  localparam int unsigned WqeBytes = 128;
  /// received messages of a QP that may wait for their CQE (nic.md 5)
  localparam int unsigned MaxReceived = 16;

  localparam int unsigned QpW = $clog2(NumQp);
  localparam int unsigned CqW = $clog2(NumCq);
  localparam int unsigned MrW = $clog2(NumMr);
  localparam int unsigned SlotW = $clog2(MaxInflight);
  localparam int unsigned LaneW = $clog2(NumLane);
  /// producer index width: V2 uses all 18 bits, V1 the low 14 (device.md 3.1, nic.md 3)
  localparam int unsigned IdxW = 18;

  typedef logic [QpW-1:0] qp_t;
  typedef logic [CqW-1:0] cq_t;
  typedef logic [MrW-1:0] mr_t;
  typedef logic [SlotW-1:0] slot_t;
  typedef logic [LaneW-1:0] lane_t;
  typedef logic [IdxW-1:0] idx_t;
  typedef logic [16:0] rq_idx_t;     // index of a receive WQE, in both format versions
  typedef logic [23:0] psn_t;
  /// log2 of the bytes of a whole beat
  localparam logic [2:0] SizeBeat = 3'($clog2(DataBytes));
  typedef logic [DataW-1:0] data_t;
  typedef logic [DataBytes-1:0] strb_t;

  // ------------------------------------------------------------------ AXI ID classes (nic.md 1)
  typedef enum logic [3:0] {
    IdFetch   = 4'd0,
    IdGather  = 4'd1,
    IdAtomic  = 4'd2,
    IdInbound = 4'd3,
    IdCqe     = 4'd4,
    IdResult  = 4'd5
  } axi_id_e;

  // ------------------------------------------------------------------ contexts (nic.md 2)
  typedef enum logic [1:0] {
    QpReset = 2'd0,
    QpRts   = 2'd1,
    QpErr   = 2'd2
  } qp_state_e;

  typedef struct packed {
    logic        version2;       // 0: V1 formats, 1: V2 formats
    logic [2:0]  mtu;            // 1..5: 256, 512, 1024, 2048, 4096 bytes
    logic [2:0]  sl;             // service level
    logic        rem_write;      // access rights of the QP as responder
    logic        rem_read;
    logic        rem_atomic;
    logic [7:0]  tc;             // IPv4 TOS
    logic [7:0]  ttl;            // IPv4 TTL
    logic [15:0] udp_sport;      // UDP source port (already resolved to its default)
    logic [2:0]  retry_cnt;
    logic [2:0]  rnr_retry;
    logic [4:0]  timer;
    logic [23:0] peer_qpn;
    logic [31:0] peer_ip;
    logic [47:0] peer_mac;       // [47:40] is the first byte on the wire
    logic [4:0]  sq_log;         // log2 of the SQ depth
    logic [4:0]  rq_log;
    psn_t        sq_psn;         // first PSN to send
    psn_t        rq_psn;         // first PSN to expect
    logic [63:0] sq_base;
    logic [63:0] rq_base;
    idx_t        sq_start;       // first WQE index (sq_start_index)
    idx_t        rq_start;
    cq_t         send_cq;
    cq_t         recv_cq;
    logic [4:0]  max_rd;         // max_rd_atomic
    logic [4:0]  max_dest_rd;    // max_dest_rd_atomic
  } qp_ctx_t;

  typedef struct packed {
    logic [63:0] base;
    logic [4:0]  log;            // log2 of the depth, 1..22
    logic        stride32;       // 1: 32-byte slots, 0: 64-byte slots
    logic        ignore_overrun; // G3's mode
    logic [31:0] start;          // cq_start_index: producer = consumer at programming
  } cq_ctx_t;

  typedef struct packed {
    logic        valid;
    logic [63:0] base;
    logic [64:0] length;         // 65 bits: up to exactly 2^64 - base
    logic        loc_write;
    logic        rem_write;
    logic        rem_read;
    logic        rem_atomic;
    logic [7:0]  ltag;           // lkey[7:0]
    logic [7:0]  rtag;           // rkey[7:0]
  } mr_ctx_t;

  /// broadcast of an executed context command; each block stores what it needs of it
  typedef struct packed {
    logic    qp_set;             // QP idx was programmed (RESET -> RTS) with qp
    logic    qp_modify;          // QP idx changes fields of qp that may change in RTS; indices and PSNs stay
    logic    qp_reset;           // QP idx is back in RESET and drained
    logic    cq_set;             // CQ cqn was programmed with cq
    logic    mr_set;             // MR mrn takes mr (valid or invalidated)
    qp_t     qpi;
    cq_t     cqn;
    mr_t     mrn;
    qp_ctx_t qp;
    cq_ctx_t cq;
    mr_ctx_t mr;
  } ctx_wr_t;

  /// right that an access needs (nic.md 2, 4; wire.md 5)
  typedef enum logic [2:0] {
    RightNone     = 3'd0,        // local source: a valid lkey is enough
    RightLocWrite = 3'd1,
    RightRemWrite = 3'd2,
    RightRemRead  = 3'd3,
    RightRemAtom  = 3'd4
  } right_e;

  // ------------------------------------------------------------------ WQE opcodes (device.md 1.4), CQE codes (device.md 2.5)
  typedef enum logic [7:0] {
    WqeSend     = 8'd0,
    WqeWrite    = 8'd1,
    WqeRead     = 8'd2,
    WqeCas64    = 8'd26,
    WqeFa64     = 8'd27,
    WqeMCas64   = 8'd31,
    WqeMFa64    = 8'd32,
    WqeMCas32   = 8'd33,
    WqeMFa32    = 8'd34
  } wqe_op_e;

  typedef enum logic [7:0] {
    CqeOk          = 8'h00,
    CqeAtomicVa    = 8'h89,
    CqeWqeLen      = 8'h9f,
    CqeRetry       = 8'ha2,
    CqeRnr         = 8'ha3,
    CqeNakInvReq   = 8'ha4,
    CqeNakAccess   = 8'ha5,
    CqeNakRemOp    = 8'ha6,
    CqeLocalMr     = 8'ha7,
    CqeRdRspLen    = 8'ha8,
    CqeRdRspOp     = 8'haa,
    CqeWqeFormat   = 8'hab,
    CqeWqeDma      = 8'hac,
    CqeRecvDma     = 8'haf,
    CqeGatherDma   = 8'hb2,
    CqeScatterDma  = 8'hb3,
    CqeRecvLen     = 8'hc0,
    CqeRecvMr      = 8'hd6,
    CqeFlush       = 8'hff
  } cqe_err_e;

  /// operands of an atomic as integers (device.md 1.5); 4-byte operations use the low halves, the rest is zero
  typedef struct packed {
    logic [63:0] compare_mask;   // masked compare-and-swap
    logic [63:0] swap_mask;
    logic [63:0] compare;        // fetch-and-add: field boundary, 0 for an ordinary add
    logic [63:0] swap_add;
  } amo_t;

  /// decoded WQE (nic.md 4)
  typedef struct packed {
    idx_t        idx;            // index from the slot, full width
    logic [7:0]  opcode;         // msg_opcode as posted
    logic        ce;
    logic        se;
    logic        with_imm;
    logic        fence;
    logic [31:0] imm;
    logic [31:0] len;            // message length in bytes
    logic [63:0] raddr;
    logic [31:0] rkey;
    logic [63:0] laddr;
    logic [31:0] lkey;
    logic [7:0]  err;            // CqeOk or the first check that failed at decode
    amo_t        amo;
  } wqe_t;

  // ------------------------------------------------------------------ wire (wire.md 1..3)
  typedef enum logic [7:0] {
    BthSendFirst    = 8'h00,
    BthSendMiddle   = 8'h01,
    BthSendLast     = 8'h02,
    BthSendLastImm  = 8'h03,
    BthSendOnly     = 8'h04,
    BthSendOnlyImm  = 8'h05,
    BthWriteFirst   = 8'h06,
    BthWriteMiddle  = 8'h07,
    BthWriteLast    = 8'h08,
    BthWriteLastImm = 8'h09,
    BthWriteOnly    = 8'h0a,
    BthWriteOnlyImm = 8'h0b,
    BthReadReq      = 8'h0c,
    BthReadFirst    = 8'h0d,
    BthReadMiddle   = 8'h0e,
    BthReadLast     = 8'h0f,
    BthReadOnly     = 8'h10,
    BthAck          = 8'h11,
    BthAtomicAck    = 8'h12,
    BthCmpSwap      = 8'h13,
    BthFetchAdd     = 8'h14,
    BthMCas64       = 8'hc0,
    BthMFa64        = 8'hc1,
    BthMCas32       = 8'hc2,
    BthMFa32        = 8'hc3
  } bth_op_e;

  localparam logic [15:0] RoceUdpPort = 16'd4791;
  localparam logic [15:0] DefaultPkey = 16'hffff;
  /// AETH syndromes (wire.md 3)
  localparam logic [7:0] SynAck = 8'h1f;
  localparam logic [7:0] SynNakSeq = 8'h60;
  localparam logic [7:0] SynNakInv = 8'h61;
  localparam logic [7:0] SynNakAcc = 8'h62;
  localparam logic [7:0] SynNakOp = 8'h63;
  /// RNR NAK with the code of the time to wait: 10 us (wire.md 5)
  localparam logic [7:0] SynRnr = 8'h21;

  /// one packet of a request for gather and framing: headers complete but for what the QP context gives
  typedef struct packed {
    qp_t         qpi;
    slot_t       slot;           // place in the outstanding-request table, for a gather error
    logic [7:0]  bth;            // BTH opcode
    psn_t        psn;
    logic        ack_req;
    logic        se;
    logic        has_reth;
    logic [63:0] raddr;          // RETH VA
    logic [31:0] rkey;           // RETH R_Key
    logic [31:0] dma_len;        // RETH DMA length
    logic        has_imm;
    logic [31:0] imm;
    logic [63:0] laddr;          // payload source; unused where pay_len is 0
    logic [12:0] pay_len;        // payload bytes, 0..4096
    logic        is_rsp;         // READ response: AETH where its opcode has one, slot 1 for a duplicate, RETH unused
    logic [23:0] msn;            // its AETH's MSN
    amo_t        amo;            // AtomicETH operands, for the atomic opcodes
  } tx_job_t;

  /// a packet without payload from memory to send (responder -> framer): ACK, NAK, or ATOMIC acknowledge
  typedef struct packed {
    qp_t         qpi;
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
    logic        atomic;         // opcode 12 with value, else 11
    logic [63:0] value;          // original value
  } ack_job_t;

  /// what a response means to the requester
  typedef enum logic [2:0] {
    RspAck   = 3'd0,             // opcode 11 with an ACK syndrome
    RspNak   = 3'd1,             // opcode 11 with a NAK, code in syndrome[1:0]
    RspRnr   = 3'd2,             // opcode 11 with an RNR NAK, time code in syndrome[4:0]
    RspData  = 3'd3,             // the expected READ response or ATOMIC acknowledge, its bytes written (or fail)
    RspAhead = 3'd4              // data beyond what is expected: something before it was lost
  } rsp_kind_e;

  /// a response that passed the receive checks, in order behind the write responses of READ and atomic results
  /// (receive -> requester). A READ response or ATOMIC acknowledge that nobody waits for never gets here.
  typedef struct packed {
    qp_t         qpi;
    rsp_kind_e   kind;
    psn_t        psn;
    logic [7:0]  syndrome;
    logic [23:0] msn;
    slot_t       slot;           // RspData: WQE that it belongs to
    logic        last;           // RspData: that WQE has all its bytes
    logic [7:0]  fail;           // RspData: CqeOk, or the error that this response gives its WQE (nic.md 4, 5)
  } rsp_evt_t;

  /// what a READ or atomic expects back
  typedef enum logic [1:0] {
    ExpRead = 2'd0,
    ExpAmo8 = 2'd1,              // ATOMIC acknowledge, 8 bytes land little-endian
    ExpAmo4 = 2'd2               // ATOMIC acknowledge, 4 bytes land big-endian
  } expect_e;

  /// a READ or atomic was started by the requester: responses from `first` to `last` are expected in this order
  typedef struct packed {
    qp_t         qpi;
    slot_t       slot;
    expect_e     kind;
    psn_t        first;
    psn_t        last;
    logic [63:0] laddr;
    logic [31:0] lkey;
    logic [31:0] len;            // bytes to come
    logic        resumed;        // the rest of a READ: an answer to the first request may still come for it
  } expect_t;

  /// what a READ or atomic expects is forgotten, because its requests will be sent again (requester -> receive)
  typedef struct packed {
    logic valid;                 // until it is done
    qp_t  qpi;
  } rewind_t;

  /// a QP's state has to become ERR
  typedef struct packed {
    logic valid;
    qp_t  qpi;
  } qp_err_evt_t;

  /// an index of a receive queue moved
  typedef struct packed {
    logic    valid;
    qp_t     qpi;
    rq_idx_t idx;
  } rq_move_t;

  /// a receive WQE has its outcome (responder -> completion): a message in memory, or what is wrong with the WQE
  typedef struct packed {
    logic [7:0]  code;           // cqe_err_e
    logic        write;          // WRITE with immediate, else SEND
    logic        with_imm;
    logic        se;
    logic [31:0] imm;
    logic [31:0] len;            // bytes of the message
  } recv_done_t;
  /// packets of receive WQEs on their way through memory
  typedef struct packed {
    logic       begins;          // one is on its way from here on
    qp_t        begins_qpi;
    logic       ends;            // it is written, or failed
    logic       good;            // and with it the receive WQE has its outcome
    qp_t        qpi;
    recv_done_t done;
  } recv_evt_t;

  /// asynchronous events (nic.md 6)
  typedef enum logic [7:0] {
    AsyncSqOverrun = 8'd1,       // doorbell beyond the ring; number = QPN
    AsyncCqOverrun = 8'd2,       // CQ lost a completion; number = CQN
    AsyncCqeBusErr = 8'd3,       // CQE write failed; number = CQN
    AsyncQpErr     = 8'd4,       // QP went to ERR without a WQE of its own (NAK sent as responder); number = QPN
    AsyncRqOverrun = 8'd5        // RQ doorbell beyond the ring; number = QPN
  } async_e;

  typedef struct packed {
    logic        valid;
    logic [7:0]  kind;           // async_e
    logic [23:0] number;
  } async_evt_t;

  /// AXI read request of one client; data returns in order per client
  typedef struct packed {
    logic [63:0] addr;           // beat-aligned, but for one narrow beat of the atomic unit
    logic [7:0]  len;            // beats - 1; never crosses 4 KiB
    logic [2:0]  size;           // log2 of the bytes per beat: SizeBeat, or 2 or 3 for an atomic
  } rd_req_t;
  typedef struct packed {
    data_t      data;
    logic       err;             // SLVERR or DECERR
    logic       last;
  } rd_beat_t;
  /// AXI write request of one client, followed by len + 1 beats
  typedef struct packed {
    logic [63:0] addr;           // beat-aligned, but for one narrow beat of the atomic unit
    logic [7:0]  len;            // beats - 1
    logic [2:0]  size;           // log2 of the bytes per beat: SizeBeat, or 2 or 3 for an atomic
    axi_id_e     id;             // ID class; a client may use several
  } wr_req_t;
  typedef struct packed {
    data_t      data;
    strb_t      strb;
    logic       last;
  } wr_beat_t;

  // ------------------------------------------------------------------ counters (nic.md 7): one bit per event
  localparam int unsigned NumCnt = 64;
  typedef enum logic [5:0] {
    CntTxRequest      = 6'd0,    // request packets sent
    CntTxResponse     = 6'd1,    // response packets sent
    CntRxPacket       = 6'd2,    // packets that passed every receive check
    CntDropShort      = 6'd3,    // wire.md 1, in the order of the checks
    CntDropMac        = 6'd4,
    CntDropEthertype  = 6'd5,
    CntDropIpv4       = 6'd6,
    CntDropIpDst      = 6'd7,
    CntDropUdpPort    = 6'd8,
    CntDropLength     = 6'd9,
    CntDropIcrc       = 6'd10,
    CntDropTver       = 6'd11,
    CntDropOpcode     = 6'd12,
    CntDropPkey       = 6'd13,
    CntDropQp         = 6'd14,
    CntDropIpSrc      = 6'd15,
    CntDropSyndrome   = 6'd16,   // reserved AETH syndromes
    CntDropResponse   = 6'd17,   // response behind or never requested
    CntDuplicate      = 6'd18,   // duplicate requests
    CntPsnAhead       = 6'd19,   // requests ahead of the expected PSN
    CntDbStale        = 6'd20,   // SQ doorbell beyond half the index width
    CntDbOverrun      = 6'd21,   // SQ doorbell beyond the ring
    CntDbPid          = 6'd22,   // SQ doorbell with low bits of next_pid set
    CntDbPage         = 6'd23,   // doorbell on a page that is not its QP's
    CntDbPartial      = 6'd24,   // partial strobe or misaligned doorbell
    CntDbReset        = 6'd25,   // doorbell to a QP in RESET
    CntDbCqBackward   = 6'd26,
    CntDbCqBeyond     = 6'd27,
    CntDbRq           = 6'd28,   // RQ doorbell ignored (no receive queue)
    CntNakSeqTx       = 6'd29,
    CntNakInvTx       = 6'd30,
    CntNakAccTx       = 6'd31,
    CntNakOpTx        = 6'd32,
    CntNakSeqRx       = 6'd33,
    CntNakInvRx       = 6'd34,
    CntNakAccRx       = 6'd35,
    CntNakOpRx        = 6'd36,
    CntRnrRx          = 6'd37,
    CntFlush          = 6'd38,   // flush CQEs and silent flushes
    CntCqOverrun      = 6'd39,
    CntCqeDiscard     = 6'd40,   // completions of an overrun CQ
    CntBusFetch       = 6'd41,
    CntBusGather      = 6'd42,
    CntBusInbound     = 6'd43,
    CntBusCqe         = 6'd44,
    CntCmdBusy        = 6'd45,   // command written while another one ran
    CntRetry          = 6'd46,   // go-back-N passes
    CntRdTooMany      = 6'd47,   // READs and atomics beyond max_dest_rd_atomic
    CntAtomicNoSave   = 6'd48,   // duplicate atomic without a saved result
    CntWqe            = 6'd49,   // WQEs completed, silent ones and errors included
    CntCqe            = 6'd50,   // CQEs written
    CntBusAtomic      = 6'd51,   // reads and writes of the atomic unit that failed
    CntBusResult      = 6'd52,   // writes of READ and atomic results that failed
    CntAtomic         = 6'd53,   // atomics executed as responder
    CntRead           = 6'd54,   // READ requests executed as responder
    CntRnrTx          = 6'd55    // RNR NAKs sent
  } cnt_e;
  typedef logic [NumCnt-1:0] cnt_inc_t;

endpackage
