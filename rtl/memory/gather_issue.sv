// First half of gather: takes packets in order and asks for their source bytes. A packet starts when the buffer has room
// for all of its beats, so read data is always taken. A packet's 4096 bytes touch at most two 4 KiB pages: one or two
// bursts of whole beats, none of which crosses a page (nic.md 1).
module gather_issue
  import rnic_pkg::*, dp_pkg::*;
#(
    /// beats in the buffer
    parameter int unsigned Depth = 512,
    /// derived: width of a beat count
    localparam int unsigned FreeW = $clog2(Depth + 1)
) (
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// state of the QPs
    input  logic [NumQp-1:0] qp_rts_i,
    /// QP that a reset waits for
    input  qp_err_evt_t      drain_i,
    /// packet from the requester
    input  logic             job_valid_i,
    /// the packet is taken
    output logic             job_ready_o,
    /// packet
    input  tx_job_t          job_i,
    /// read burst
    output logic             req_valid_o,
    /// the burst is taken
    input  logic             req_ready_i,
    /// read burst
    output rd_req_t          req_o,
    /// one entry a burst: it is the last of its packet
    output logic             burst_valid_o,
    /// last burst of its packet
    output logic             burst_last_o,
    /// packet whose bursts are on their way (accepted in the cycle of valid and ready)
    output logic             pkt_valid_o,
    /// room for a packet
    input  logic             pkt_ready_i,
    /// packet
    output tx_job_t          pkt_o,
    /// beats of the packet's bursts
    output beats_t           pkt_beats_o,
    /// a response whose QP is under reset: it keeps its place in the order, reads nothing and does not leave the NIC
    output logic             pkt_dead_o,
    /// a packet leaves this stage: started or dropped
    output logic             taken_o,
    /// no packet waits here or before it
    output logic             idle_o,
    /// beats of the buffer that are free again this cycle
    input  beats_t           release_i
);
  tx_job_t          job;
  logic             job_valid, job_ready;
  logic [FreeW-1:0] free_q;
  logic             second_q;
  beats_t           beats, to_page_end, first_beats;
  logic             two, live, drop, dead, room, start, req_ready;
  logic [63:0]      base;
  rd_req_t          req;
  logic             req_valid;

  stream_reg #(.T(tx_job_t)) i_job (
      .clk_i, .rst_ni, .in_valid_i(job_valid_i), .in_ready_o(job_ready_o), .in_data_i(job_i),
      .out_valid_o(job_valid), .out_ready_i(job_ready), .out_data_o(job)
  );

  assign beats       = (job.pay_len == '0 || dead) ? '0
                       : beats_t'((14'(job.laddr[5:0]) + 14'(job.pay_len) + 14'd63) >> 6);
  assign to_page_end = 7'd64 - {1'b0, job.laddr[11:6]};
  assign two         = beats > to_page_end;
  assign first_beats = two ? to_page_end : beats;
  assign base        = {job.laddr[63:6], 6'b0};

  // requests of a QP that does not send any more are dropped; its WQEs are flushed or forgotten. Responses leave in ERR too
  // (nic.md 6).
  assign live  = (qp_rts_i[job.qpi] || job.is_rsp) && !(drain_i.valid && drain_i.qpi == job.qpi);
  assign dead  = job.is_rsp && !live && !second_q;
  assign room  = free_q >= FreeW'(beats);
  // the first burst (or none) goes together with the packet's entry, the second one alone
  assign start = job_valid && !second_q && !drop && room && pkt_ready_i && (beats == '0 || req_ready);

  assign pkt_valid_o = start;
  assign pkt_o       = job;
  assign pkt_beats_o = beats;
  assign pkt_dead_o  = dead;
  assign drop        = job_valid && !second_q && !live && !job.is_rsp;
  assign taken_o     = job_valid && job_ready;
  assign idle_o      = !job_valid && !job_valid_i;
  assign job_ready   = drop || (second_q ? req_ready : start && !two);

  assign req_valid = second_q ? job_valid : start && beats != '0;
  assign req = '{
      addr: second_q ? {job.laddr[63:12] + 52'd1, 12'b0} : base,
      len: 8'(second_q ? beats - to_page_end : first_beats) - 8'd1,
      size: SizeBeat
  };
  assign burst_valid_o = req_valid && req_ready;
  assign burst_last_o  = second_q || !two;

  stream_reg #(.T(rd_req_t)) i_req (
      .clk_i, .rst_ni, .in_valid_i(req_valid), .in_ready_o(req_ready), .in_data_i(req),
      .out_valid_o(req_valid_o), .out_ready_i(req_ready_i), .out_data_o(req_o)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      free_q   <= FreeW'(Depth);
      second_q <= 1'b0;
    end else begin
      free_q <= free_q + FreeW'(release_i) - (start ? FreeW'(beats) : '0);
      if (start && two) second_q <= 1'b1;
      else if (req_ready) second_q <= 1'b0;
    end
  end
endmodule
