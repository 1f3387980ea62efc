// Failure records of WQEs in flight, one per QP and source (transmit scheduler, gather, responder's NAK, response with
// data, too many retries). Sources may name different WQEs; completion meets the oldest first and flushes what is behind
// it (nic.md section 6). Any record stops the issue on its QP; a failure on this side leaves WQEs before it that may have
// to be sent again.
module req_fail
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic             clk_i,
  /// asynchronous reset, active low
  input  logic             rst_ni,
  /// executed context commands
  input  ctx_wr_t          ctx_i,
  /// a WQE failed at the requester before its packet was sent
  input  qp_fail_t         tx_i,
  /// a WQE failed while its payload was gathered
  input  qp_fail_t         gather_i,
  /// a WQE failed at the responder
  input  qp_fail_t         nak_i,
  /// a READ or atomic failed by its response
  input  qp_fail_t         data_i,
  /// a WQE was sent too often
  input  qp_fail_t         retry_i,
  /// QPs with a WQE that failed by an answer, or was sent too often: nothing before it is left to be sent again
  output logic [NumQp-1:0] stop_o,
  /// QPs with a WQE that failed on this side: those before it go on, retries included
  output logic [NumQp-1:0] local_o,
  /// read the records of a QP
  input  logic             rd_en_i,
  /// QP to read
  input  qp_t              rd_qpi_i,
  /// WQE in question, in the cycle after rd_en_i
  input  slot_t            slot_i,
  /// that WQE failed
  output logic             failed_o,
  /// its error code
  output logic [7:0]       code_o
);
  localparam int unsigned NumSrc = 5;

  /// record of one source
  typedef struct packed {
    slot_t      slot;
    logic [7:0] code;
  } rec_t;

  qp_fail_t [NumSrc-1:0]            fail;
  logic     [NumSrc-1:0][NumQp-1:0] have_q;
  logic     [NumSrc-1:0]            wr, rd_valid, hit;
  rec_t                             rec_new [NumSrc];
  rec_t                             rec     [NumSrc];

  assign fail = {tx_i, gather_i, data_i, nak_i, retry_i};

  for (genvar s = 0; s < NumSrc; s++) begin : gen_src
    // the first record of a source stands: it is the oldest WQE that the source will ever name
    assign wr[s]      = fail[s].valid && !have_q[s][fail[s].qpi];
    assign rec_new[s] = '{slot: fail[s].slot, code: fail[s].code};
    dyn_ram #(.T(rec_t), .Depth(NumQp)) i_rec (
      .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
      .wr_en_i(wr[s]), .wr_addr_i(fail[s].qpi), .wr_data_i(rec_new[s]),
      .rd_en_i, .rd_addr_i(rd_qpi_i), .rd_valid_o(rd_valid[s]), .rd_data_o(rec[s])
    );
    assign hit[s] = rd_valid[s] && (rec[s].slot == slot_i);

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        have_q[s] <= '0;
      end else begin
        if (wr[s]) have_q[s][fail[s].qpi] <= 1'b1;
        if (ctx_i.qp_set || ctx_i.qp_reset) have_q[s][ctx_i.qpi] <= 1'b0;
      end
    end
  end

  assign stop_o   = have_q[0] | have_q[1] | have_q[2];
  assign local_o  = have_q[3] | have_q[4];
  assign failed_o = (hit != '0);
  // a NAK speaks of an earlier packet of the message than a local error
  assign code_o   = hit[0] ? rec[0].code : hit[1] ? rec[1].code : hit[2] ? rec[2].code : hit[3] ? rec[3].code :
                    rec[4].code;

  logic unused;
  assign unused = &{1'b0, ctx_i.qp, ctx_i.cq, ctx_i.mr, ctx_i.cqn, ctx_i.mrn, ctx_i.qp_modify, ctx_i.cq_set,
                    ctx_i.mr_set};
endmodule
