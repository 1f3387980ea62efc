// What leaves the receive pipeline for a judged packet: bytes to write or to skip, what waits for write responses, a table
// entry, a response for the requester, counters. Combinational.
module resp_emit
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*;
(
    /// a packet is in the last stage
    input  logic         valid_i,
    /// its QP
    input  qp_t          qpi_i,
    /// its headers
    input  rx_hdr_t      hdr_i,
    /// its verdict
    input  resp_act_t    act_i,
    /// its region allows it
    input  logic         mr_ok_i,
    /// MTU code of its QP
    input  logic [2:0]   mtu_i,
    /// MSN and expected PSN before it
    input  resp_state_t  state_i,
    /// MSN and expected PSN if it is executed
    input  resp_state_t  next_i,
    /// it is a response beyond the expected one, and the first that tells of its loss
    input  logic         tell_ahead_i,
    /// original value that a duplicate of an atomic is answered with
    input  logic [63:0]  value_i,
    /// a request is executed for the first time
    output logic         execute_o,
    /// a request takes the QP to ERR
    output logic         fatal_o,
    /// it takes a receive WQE
    output logic         recv_take_o,
    /// expected data is taken
    output logic         take_o,
    /// expected data fails its WQE
    output logic         fail_o,
    /// buffered payload to write or to skip
    output logic         move_valid_o,
    /// payload bytes to lanes
    output realign_cmd_t move_o,
    /// what waits for write responses of inbound WRITEs
    output logic         done_valid_o,
    /// what waits for write responses of inbound WRITEs
    output rx_done_t     done_o,
    /// READ or atomic for the table
    output logic         entry_valid_o,
    /// READ or atomic for the table
    output resp_entry_t  entry_o,
    /// response for the requester
    output logic         rsp_valid_o,
    /// response for the requester
    output rsp_evt_t     rsp_o,
    /// write bursts of its bytes
    output logic [1:0]   rsp_bursts_o,
    /// counters
    output cnt_inc_t     cnt_o
);
  logic        request, refused, write, again;
  logic [12:0] page_end;
  logic [1:0]  bursts;
  logic [7:0]  fail, code;

  assign request   = valid_i && act_i.kind inside {ActWrite, ActRead, ActAtomic};
  assign execute_o = request && mr_ok_i && !act_i.dup;
  assign again     = (request && mr_ok_i && act_i.dup) || (valid_i && act_i.kind == ActSaved);
  assign refused   = request && !mr_ok_i;
  assign fatal_o   = refused || (valid_i && act_i.kind inside {ActInvalid, ActRemOp});
  assign code      = (refused && act_i.send) ? CqeRecvMr : act_i.code;
  assign recv_take_o = execute_o && act_i.take;
  assign fail      = (act_i.fail != CqeOk || mr_ok_i) ? act_i.fail : CqeLocalMr;
  assign take_o    = valid_i && act_i.kind == ActData && fail == CqeOk;
  assign fail_o    = valid_i && act_i.kind == ActData && fail != CqeOk;

  // 4096 bytes cross at most one page end
  assign write    = (take_o || (execute_o && act_i.kind == ActWrite)) && act_i.len != '0;
  assign page_end = 13'(act_i.addr[11:0]) + act_i.len;
  assign bursts   = !write ? 2'd0 : (page_end > 13'd4096 ? 2'd2 : 2'd1);

  assign move_valid_o = valid_i && hdr_i.beats != '0;
  assign move_o = '{
      skip: !write, result: act_i.kind == ActData, src_beats: hdr_i.beats, src_off: act_i.off,
      dst_off: act_i.addr[5:0], dst_beat: act_i.addr[11:6], len: act_i.len
  };

  // answers: ACK of this packet, ACK of what is before the expected one (duplicate), NAK 0 for the expected one, fatal NAKs
  always_comb begin
    done_o = '0;
    if (valid_i && act_i.kind != ActData) begin
      done_o.qpi      = qpi_i;
      done_o.ack      = act_i.ack || fatal_o;
      done_o.start    = (execute_o && act_i.kind != ActWrite) || again;
      done_o.atomic   = act_i.kind == ActAtomic;
      done_o.fatal    = fatal_o;
      done_o.syndrome = SynAck;
      done_o.psn      = hdr_i.psn;
      done_o.pkt_psn  = hdr_i.psn;
      done_o.msn      = execute_o ? next_i.msn : state_i.msn;
      done_o.msn_step = execute_o && next_i.msn != state_i.msn;
      done_o.bursts   = bursts;
      done_o.recv     = (execute_o && act_i.recv) || (fatal_o && code != CqeOk);
      done_o.way      = done_o.recv || (execute_o && act_i.send);
      if (done_o.recv) begin
        done_o.got = '{
            code: execute_o ? CqeOk : code, write: !act_i.send, with_imm: has_imm(hdr_i.bth), se: hdr_i.se,
            imm: hdr_i.imm, len: next_i.len
        };
      end
      unique case (act_i.kind)
        ActDuplicate: done_o.psn = state_i.psn - 24'd1;
        ActAhead: begin
          done_o.syndrome = SynNakSeq;
          done_o.psn      = state_i.psn;
        end
        ActInvalid:  done_o.syndrome = SynNakInv;
        ActRemOp:    done_o.syndrome = SynNakOp;
        ActNotReady: done_o.syndrome = SynRnr;
        default:     if (refused) done_o.syndrome = act_i.send ? SynNakOp : SynNakAcc;
      endcase
    end
  end
  assign done_valid_o = done_o.ack || done_o.start || done_o.way || done_o.bursts != '0;

  assign entry_valid_o = done_o.start;
  always_comb begin
    entry_o = '0;
    if (entry_valid_o) begin
      entry_o = '{
          dup: again, bth: hdr_i.bth, mtu: mtu_i, psn: hdr_i.psn, msn: next_i.msn, rkey: hdr_i.rkey, len: hdr_i.dma_len,
          addr: (act_i.kind == ActSaved) ? value_i : hdr_i.raddr, amo: hdr_i.amo
      };
    end
  end

  rsp_kind_e kind;
  always_comb begin
    unique case (hdr_i.syndrome[7:5])
      3'b000:  kind = RspAck;
      3'b001:  kind = RspRnr;
      default: kind = RspNak;
    endcase
    if (act_i.kind == ActData) kind = RspData;
    if (act_i.kind == ActRspAhead) kind = RspAhead;
  end
  assign rsp_valid_o  = (valid_i && act_i.kind inside {ActResponse, ActData}) || tell_ahead_i;
  assign rsp_bursts_o = (act_i.kind == ActData) ? bursts : 2'd0;
  assign rsp_o = '{
      qpi: qpi_i, kind: kind, psn: hdr_i.psn, syndrome: hdr_i.syndrome, msn: hdr_i.msn, slot: act_i.slot,
      last: act_i.last, fail: (act_i.kind == ActData) ? fail : CqeOk
  };

  always_comb begin
    cnt_o = '0;
    if (valid_i) begin
      cnt_o[CntDropQp]       = act_i.kind == ActDropQp;
      cnt_o[CntDropIpSrc]    = act_i.kind == ActDropIpSrc;
      cnt_o[CntDropSyndrome] = act_i.kind == ActDropSyndrome;
      cnt_o[CntDropResponse] = act_i.kind inside {ActDropResponse, ActRspAhead};
      cnt_o[CntDuplicate]    = act_i.dup;
      cnt_o[CntPsnAhead]     = act_i.kind == ActAhead;
      // so that exactly one counter shows each frame (nic.md 7)
      cnt_o[CntRxPacket]     = !act_i.dup && (request || act_i.kind inside {ActResponse, ActData, ActInvalid, ActRemOp,
                                                                            ActNotReady});
      cnt_o[CntRdTooMany]    = act_i.too_many;
      cnt_o[CntAtomicNoSave] = act_i.no_save;
      cnt_o[CntRead]         = done_o.start && act_i.kind == ActRead;
    end
  end

  logic unused_bits;
  assign unused_bits = (^hdr_i) ^ (^act_i) ^ (^state_i) ^ (^next_i);
endmodule
