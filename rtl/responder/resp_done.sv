// What requests lead to once the write responses of their packet and of all before it are there (nic.md 5): ACKs and NAKs
// are due, READs and atomics of the table may start. A failed write turns the answer into NAK 3. Nothing of a QP that
// answered with a fatal NAK comes out any more.
module resp_done
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*;
#(
    /// packets that wait for write responses
    parameter int unsigned Depth = 128
) (
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// something of that QP still waits
    output logic             drain_busy_o,
    /// the invalidation of a region waits
    input  logic             mr_drain_i,
    /// writes that the old entry allowed are not yet answered
    output logic             mr_drain_busy_o,
    /// QPs that answered with a fatal NAK
    input  logic [NumQp-1:0] dead_i,
    /// packet with bursts to wait for, or with something that becomes due
    input  logic             done_valid_i,
    /// room for four of them
    output logic             done_room_o,
    /// packet
    input  rx_done_t         done_i,
    /// write response of one burst, in order
    input  logic             b_valid_i,
    /// it reports an error
    input  logic             b_err_i,
    /// receive WQEs get their outcome
    output recv_evt_t        recv_o,
    /// something is due
    output logic             due_valid_o,
    /// it is taken
    input  logic             due_ready_i,
    /// what is due
    output resp_due_t        due_o,
    /// counters
    output cnt_inc_t         cnt_o
);
  rx_done_t head;
  logic     head_valid, failed, due;
  qp_t      unused_qpi;

  wr_order #(.T(rx_done_t), .Depth(Depth)) i_order (
      .clk_i, .rst_ni, .drain_i, .drain_busy_o, .mr_drain_i, .mr_drain_busy_o,
      .in_valid_i(done_valid_i), .room_o(done_room_o), .in_i(done_i), .in_qpi_i(done_i.qpi),
      .in_bursts_i(done_i.bursts), .b_valid_i, .b_err_i,
      .out_valid_o(head_valid), .out_ready_i(!due || due_ready_i), .out_o(head), .out_qpi_o(unused_qpi),
      .out_failed_o(failed)
  );

  // a receive WQE whose message could not be written has no outcome of its own: it is flushed
  assign recv_o = '{
      begins: done_valid_i && done_i.way, begins_qpi: done_i.qpi,
      ends: head_valid && head.way && (!due || due_ready_i), good: head.recv && !failed && !dead_i[head.qpi],
      qpi: head.qpi,
      done: head.got
  };

  assign due         = !dead_i[head.qpi] && (head.ack || head.start || failed);
  assign due_valid_o = head_valid && due;
  assign due_o       = '{
      qpi: head.qpi, start: head.start, atomic: head.atomic, ack: head.ack || failed, fatal: head.fatal || failed,
      flush: 1'b0, stop: 1'b0, place: '0,
      psn: failed ? head.pkt_psn : head.psn, syndrome: failed ? SynNakOp : head.syndrome,
      msn: head.msn - 24'(failed && head.msn_step)
  };

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) cnt_o <= '0;
    else begin
      cnt_o                <= '0;
      cnt_o[CntBusInbound] <= b_valid_i && b_err_i;
    end
  end

  logic unused_bits;
  assign unused_bits = ^head.bursts;
endmodule
