// Acknowledgements (wire.md sections 3 and 5): an ACK covers every WQE whose last PSN is not beyond its PSN; a NAK covers
// all before its PSN and, with codes 1 to 3, fails the WQE that holds the PSN. Nothing here waits for a CQ: the result is a
// position per QP, so a response is taken after at most MaxInflight + 3 cycles.
module ack_track
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs in RTS without a reset waiting
  input  logic [NumQp-1:0] qp_rts_i,
  /// response
  input  logic             rsp_valid_i,
  /// response accepted
  output logic             rsp_ready_o,
  /// response
  input  rsp_evt_t         rsp_i,
  /// next WQE and PSN to issue moved
  input  qp_pos_t          iss_i,
  /// read the last PSN of an outstanding entry
  output logic             last_en_o,
  /// QP of the entry
  output qp_t              last_qpi_o,
  /// place of the entry
  output slot_t            last_slot_o,
  /// last PSN, one cycle after last_en_o
  input  psn_t             last_i,
  /// first WQE not acknowledged and oldest unacknowledged PSN moved
  output qp_pos_t          una_o,
  /// a WQE failed at the responder
  output qp_fail_t         fail_o,
  /// response in the pipeline
  output logic             busy_o,
  /// its QP
  output qp_t              busy_qpi_o,
  /// counted events
  output cnt_inc_t         cnt_o
);
  typedef enum logic [1:0] {StIdle, StJudge, StWalk} state_e;
  typedef enum logic [1:0] {KindAck, KindRnr, KindNak, KindOther} kind_e;

  /// where a QP's positions begin
  typedef struct packed {
    logic version2;
    idx_t sq_start;
    psn_t sq_psn;
  } start_t;
  /// positions that move
  typedef struct packed {
    idx_t idx;
    psn_t psn;
  } pos_t;

  state_e     state_q;
  qp_t        qpi_q;
  kind_e      kind_q;
  logic [1:0] code_q;
  psn_t       psn_q;

  start_t     start, start_new;
  pos_t       iss_ram, una_ram, iss, una, iss_new, una_new;
  logic       iss_valid, una_valid, take;
  psn_t       in_window;
  logic       known;

  // walk over the entries
  idx_t       cur_q, end_q, cur_next;
  psn_t       una_q;      // oldest unacknowledged PSN before this response
  psn_t       upto_q;     // first PSN that the response does not cover
  logic       v2_q, covered, done;

  assign rsp_ready_o = (state_q == StIdle) || done;
  assign take        = rsp_valid_i && rsp_ready_o;
  assign start_new   = '{version2: ctx_i.qp.version2, sq_start: ctx_i.qp.sq_start, sq_psn: ctx_i.qp.sq_psn};
  assign iss_new     = '{idx: iss_i.idx, psn: iss_i.psn};
  assign una_new     = '{idx: una_o.idx, psn: una_o.psn};

  ctx_ram #(.T(start_t), .Depth(NumQp)) i_start (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(start_new),
    .rd_en_i(take), .rd_addr_i(rsp_i.qpi), .rd_data_o(start)
  );
  dyn_ram #(.T(pos_t), .Depth(NumQp)) i_iss (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(iss_i.valid), .wr_addr_i(iss_i.qpi), .wr_data_i(iss_new),
    .rd_en_i(take), .rd_addr_i(rsp_i.qpi), .rd_valid_o(iss_valid), .rd_data_o(iss_ram)
  );
  dyn_ram #(.T(pos_t), .Depth(NumQp)) i_una (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(una_o.valid), .wr_addr_i(una_o.qpi), .wr_data_i(una_new),
    .rd_en_i(take), .rd_addr_i(rsp_i.qpi), .rd_valid_o(una_valid), .rd_data_o(una_ram)
  );

  assign iss = iss_valid ? iss_ram : '{idx: start.sq_start, psn: start.sq_psn};
  assign una = una_valid ? una_ram : '{idx: start.sq_start, psn: start.sq_psn};

  // a response counts if its PSN was sent and not acknowledged yet
  assign in_window = psn_q - una.psn;
  assign known     = (in_window < (iss.psn - una.psn)) && qp_rts_i[qpi_q] && (kind_q != KindOther);

  assign cur_next = idx_add(cur_q, idx_t'(1), v2_q);
  assign covered  = (cur_q != end_q) && ((last_i - una_q) < (upto_q - una_q));
  assign done     = (state_q == StWalk) && !covered;

  always_comb begin
    last_en_o   = 1'b0;
    last_qpi_o  = qpi_q;
    last_slot_o = '0;
    if (state_q == StJudge) begin
      last_en_o   = known;
      last_slot_o = una.idx[SlotW-1:0];
    end else if (state_q == StWalk) begin
      last_en_o   = covered;
      last_slot_o = cur_next[SlotW-1:0];
    end
  end

  // a QP that left RTS in between keeps its positions: its WQEs are flushed
  assign una_o  = '{valid: done && qp_rts_i[qpi_q], qpi: qpi_q, idx: cur_q, psn: upto_q};
  // Retransmission starts here on code 0, the RNR wait on KindRnr; until then both only count.
  assign fail_o = '{
    valid: una_o.valid && kind_q == KindNak && code_q != 2'd0, qpi: qpi_q, slot: cur_q[SlotW-1:0],
    code: (code_q == 2'd1) ? CqeNakInvReq : (code_q == 2'd2) ? CqeNakAccess : CqeNakRemOp
  };

  assign busy_o     = (state_q != StIdle);
  assign busy_qpi_o = qpi_q;

  always_comb begin
    cnt_o = '0;
    if (state_q == StJudge) begin
      cnt_o[CntDropResponse] = !known;
      cnt_o[CntRnrRx]        = known && kind_q == KindRnr;
      cnt_o[CntNakSeqRx]     = known && kind_q == KindNak && code_q == 2'd0;
      cnt_o[CntNakInvRx]     = known && kind_q == KindNak && code_q == 2'd1;
      cnt_o[CntNakAccRx]     = known && kind_q == KindNak && code_q == 2'd2;
      cnt_o[CntNakOpRx]      = known && kind_q == KindNak && code_q == 2'd3;
    end
  end

  function automatic kind_e classify(input rsp_kind_e kind);
    unique case (kind)
      RspAck:  return KindAck;
      RspRnr:  return KindRnr;
      RspNak:  return KindNak;
      default: return KindOther;
    endcase
  endfunction

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StIdle;
      qpi_q   <= '0;
      kind_q  <= KindOther;
      code_q  <= '0;
      psn_q   <= '0;
      cur_q   <= '0;
      end_q   <= '0;
      una_q   <= '0;
      upto_q  <= '0;
      v2_q    <= 1'b0;
    end else begin
      unique case (state_q)
        StIdle: ;
        StJudge: begin
          state_q <= known ? StWalk : StIdle;
          cur_q   <= una.idx;
          end_q   <= iss.idx;
          una_q   <= una.psn;
          upto_q  <= (kind_q == KindAck) ? psn_q + psn_t'(1) : psn_q;
          v2_q    <= start.version2;
        end
        default: begin
          if (done) state_q <= StIdle;
          else cur_q <= cur_next;
        end
      endcase
      // the next response enters while one is finished
      if (take) begin
        state_q <= StJudge;
        qpi_q   <= rsp_i.qpi;
        kind_q  <= classify(rsp_i.kind);
        code_q  <= rsp_i.syndrome[1:0];
        psn_q   <= rsp_i.psn;
      end
    end
  end

  // READ responses will need the length and the MSN
  logic unused;
  assign unused = &{1'b0, ctx_i, rsp_i};
endmodule
