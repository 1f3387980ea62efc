// Holds the ACKs and NAKs that still have to leave: per QP one ACK (the newest wins, it covers the older ones) and one NAK,
// which no later ACK overwrites and which covers the ACKs before it (nic.md 5). Each has its place behind the READs and
// atomics before it. A NAK of a response that failed goes at once: nothing behind it is answered. Fatal NAKs take the QP to
// ERR, with one event.
module resp_pend
  import rnic_pkg::*, resp_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// context broadcast
    input  ctx_wr_t          ctx_i,
    /// state of the QPs
    input  logic [NumQp-1:0] qp_rts_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// an answer of that QP is held
    output logic             drain_busy_o,
    /// the source of a READ response failed: taken at once
    input  logic             rerr_valid_i,
    /// its NAK
    input  resp_due_t        rerr_i,
    /// an atomic failed
    input  logic             amo_valid_i,
    /// taken
    output logic             amo_ready_o,
    /// its NAK
    input  resp_due_t        amo_i,
    /// a region refuses what is executed
    input  logic             turn_valid_i,
    /// taken
    output logic             turn_ready_o,
    /// its NAK
    input  resp_due_t        turn_i,
    /// due after write responses
    input  logic             due_valid_i,
    /// taken
    output logic             due_ready_o,
    /// due after write responses
    input  resp_due_t        due_i,
    /// what is taken in this cycle
    output logic             in_valid_o,
    /// what is taken in this cycle
    output resp_due_t        in_o,
    /// place behind the entries that may be executed, of QP in_o.qpi
    input  place_t           place_i,
    /// read the answers
    input  logic             read_i,
    /// of this QP
    input  qp_t              read_qpi_i,
    /// QP that was read last
    input  qp_t              turn_qpi_i,
    /// it has an ACK
    output logic             ack_o,
    /// ACK, one cycle after read_i
    output resp_answer_t     ack_data_o,
    /// it has a NAK
    output logic             nak_o,
    /// NAK, one cycle after read_i
    output resp_answer_t     nak_data_o,
    /// the ACK of turn_qpi_i is done with
    input  logic             clear_ack_i,
    /// the NAK of turn_qpi_i is done with
    input  logic             clear_nak_i,
    /// QPs that gave a fatal NAK since they were programmed
    output logic [NumQp-1:0] dead_o,
    /// the QP has to go to ERR
    output qp_err_evt_t      err_o,
    /// asynchronous event for it
    output async_evt_t       async_o
);
  logic [NumQp-1:0] ack_q, nak_q, dead_q;
  logic             is_nak, first_fatal;
  resp_answer_t     answer;

  assign amo_ready_o  = !rerr_valid_i;
  assign turn_ready_o = !rerr_valid_i && !amo_valid_i;
  assign due_ready_o  = !rerr_valid_i && !amo_valid_i && !turn_valid_i;
  assign in_valid_o   = rerr_valid_i || amo_valid_i || turn_valid_i || due_valid_i;
  assign in_o         = rerr_valid_i ? rerr_i : amo_valid_i ? amo_i : turn_valid_i ? turn_i : due_i;
  assign is_nak       = in_o.syndrome[6:5] != 2'b00;
  assign answer       = '{
      place: in_o.stop ? in_o.place : place_i, psn: in_o.psn, syndrome: in_o.syndrome, msn: in_o.msn
  };

  // an answer that comes in while its QP is read is what the memory gives
  ctx_ram #(.T(resp_answer_t), .Depth(NumQp)) i_acks (
      .clk_i, .wr_en_i(in_valid_o && in_o.ack && !is_nak), .wr_addr_i(in_o.qpi), .wr_data_i(answer),
      .rd_en_i(read_i), .rd_addr_i(read_qpi_i), .rd_data_o(ack_data_o)
  );
  ctx_ram #(.T(resp_answer_t), .Depth(NumQp)) i_naks (
      .clk_i, .wr_en_i(in_valid_o && in_o.ack && is_nak), .wr_addr_i(in_o.qpi), .wr_data_i(answer),
      .rd_en_i(read_i), .rd_addr_i(read_qpi_i), .rd_data_o(nak_data_o)
  );
  assign ack_o        = ack_q[turn_qpi_i];
  assign nak_o        = nak_q[turn_qpi_i];
  assign dead_o       = dead_q;
  assign drain_busy_o = drain_i.valid && (ack_q[drain_i.qpi] || nak_q[drain_i.qpi]);
  assign first_fatal  = in_valid_o && in_o.fatal && !dead_q[in_o.qpi];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      ack_q   <= '0;
      nak_q   <= '0;
      dead_q  <= '0;
      err_o   <= '0;
      async_o <= '0;
    end else begin
      if (clear_ack_i) ack_q[turn_qpi_i] <= 1'b0;
      if (clear_nak_i) nak_q[turn_qpi_i] <= 1'b0;
      // last: what comes in now was not read
      if (in_valid_o && in_o.ack) begin
        if (is_nak) begin
          nak_q[in_o.qpi] <= 1'b1;
          ack_q[in_o.qpi] <= 1'b0;
        end else begin
          ack_q[in_o.qpi] <= 1'b1;
        end
      end
      if (first_fatal) dead_q[in_o.qpi] <= 1'b1;
      // a QP that something else took to ERR or RESET stays there, and that cause has its own event
      err_o   <= '{valid: first_fatal && qp_rts_i[in_o.qpi], qpi: in_o.qpi};
      async_o <= '{
          valid: first_fatal && qp_rts_i[in_o.qpi], kind: AsyncQpErr, number: 24'(in_o.qpi) + 24'(FirstQpn)
      };
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        ack_q[ctx_i.qpi]  <= 1'b0;
        nak_q[ctx_i.qpi]  <= 1'b0;
        dead_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = ^ctx_i;
endmodule
