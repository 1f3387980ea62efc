// Receive WQEs that have their outcome and wait for their CQE (nic.md 5, 6): of each QP up to MaxReceived, in the order of
// its receive queue. In ERR what is posted and has no outcome is flushed, once no byte of a message of the QP is on its way to
// memory any more: then the buffer is software's.
module recv_pend
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// QPs in ERR
  input  logic [NumQp-1:0] qp_err_i,
  /// RQ doorbell accepted
  input  rq_move_t         db_i,
  /// outcomes
  input  recv_evt_t        evt_i,
  /// read a QP
  input  logic             take_i,
  /// QP to read
  input  qp_t              take_qpi_i,
  /// one cycle later: format version
  output logic             version2_o,
  /// receive CQ
  output cq_t              recv_cq_o,
  /// first receive WQE without CQE
  output rq_idx_t          idx_o,
  /// read its outcome, in the cycle after take_i
  input  logic             entry_en_i,
  /// that QP, also for what follows
  input  qp_t              qpi_i,
  /// outcome, one cycle after entry_en_i
  output recv_done_t       entry_o,
  /// the QP has an outcome
  output logic             has_o,
  /// and another one behind it
  output logic             more_o,
  /// the QP has a receive WQE to flush
  output logic             flush_o,
  /// the receive WQE has its CQE
  input  logic             retire_i
);
  localparam int unsigned PtrW = $clog2(MaxReceived);

  /// what a QP's context keeps
  typedef struct packed {
    logic    version2;
    cq_t     recv_cq;
    rq_idx_t start;
  } keep_t;

  keep_t           keep_new, keep;
  logic            done_valid, prod_valid, put, on_way, unused_busy, posted_q;
  rq_idx_t         done_ram, prod_ram, prod;
  logic [PtrW-1:0] wr_q[NumQp];
  logic [PtrW:0]   cnt_q[NumQp];

  assign keep_new = '{version2: ctx_i.qp.version2, recv_cq: ctx_i.qp.recv_cq, start: ctx_i.qp.rq_start[16:0]};
  ctx_ram #(.T(keep_t), .Depth(NumQp)) i_keep (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(keep_new),
    .rd_en_i(take_i), .rd_addr_i(take_qpi_i), .rd_data_o(keep)
  );
  dyn_ram #(.T(rq_idx_t), .Depth(NumQp)) i_done (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(retire_i), .wr_addr_i(qpi_i), .wr_data_i(idx_o + 17'd1),
    .rd_en_i(take_i), .rd_addr_i(take_qpi_i), .rd_valid_o(done_valid), .rd_data_o(done_ram)
  );
  dyn_ram #(.T(rq_idx_t), .Depth(NumQp)) i_prod (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(db_i.valid), .wr_addr_i(db_i.qpi), .wr_data_i(db_i.idx),
    .rd_en_i(take_i), .rd_addr_i(take_qpi_i), .rd_valid_o(prod_valid), .rd_data_o(prod_ram)
  );
  assign version2_o = keep.version2;
  assign recv_cq_o  = keep.recv_cq;
  assign idx_o      = done_valid ? done_ram : keep.start;
  assign prod       = prod_valid ? prod_ram : keep.start;

  // ---------------------------------------------------------------- outcomes
  assign put = evt_i.ends && evt_i.good;
  ctx_ram #(.T(recv_done_t), .Depth(NumQp * MaxReceived)) i_entries (
    .clk_i, .wr_en_i(put), .wr_addr_i({evt_i.qpi, wr_q[evt_i.qpi]}), .wr_data_i(evt_i.done),
    .rd_en_i(entry_en_i), .rd_addr_i({qpi_i, PtrW'(wr_q[qpi_i] - cnt_q[qpi_i][PtrW-1:0])}), .rd_data_o(entry_o)
  );
  qp_count #(.Max(255)) i_on_way (
    .clk_i, .rst_ni, .inc_i(evt_i.begins), .inc_qpi_i(evt_i.begins_qpi), .dec_i(evt_i.ends), .dec_qpi_i(evt_i.qpi),
    .look_qpi_i(qpi_i), .some_o(on_way), .drain_i('0), .busy_o(unused_busy)
  );
  assign more_o  = cnt_q[qpi_i] > (PtrW + 1)'(1);
  assign flush_o = qp_err_i[qpi_i] && posted_q && !on_way && cnt_q[qpi_i] == '0;

  // whether there was an outcome is asked when it is read: it is that one
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q     <= '{default: '0};
      cnt_q    <= '{default: '0};
      has_o    <= 1'b0;
      posted_q <= 1'b0;
    end else begin
      if (entry_en_i) begin
        has_o    <= cnt_q[qpi_i] != '0;
        posted_q <= prod != idx_o;
      end
      if (put) wr_q[evt_i.qpi] <= wr_q[evt_i.qpi] + PtrW'(1);
      if (!(put && retire_i && has_o && evt_i.qpi == qpi_i)) begin
        if (put) cnt_q[evt_i.qpi] <= cnt_q[evt_i.qpi] + (PtrW + 1)'(1);
        if (retire_i && has_o) cnt_q[qpi_i] <= cnt_q[qpi_i] - (PtrW + 1)'(1);
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) cnt_q[ctx_i.qpi] <= '0;
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i};

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      assert (!put || cnt_q[evt_i.qpi] < (PtrW + 1)'(MaxReceived))
      else $error("recv_pend: more messages wait than may");
    end
  end
  `endif  // SYNTHESIS
endmodule
