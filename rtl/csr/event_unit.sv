// Events (nic.md section 6): one pending bit per CQ, the queue of asynchronous events, and the event output.
module event_unit
  import rnic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// a CQ raises its event
    input  logic             cq_set_valid_i,
    /// that CQ
    input  cq_t              cq_set_cqn_i,
    /// pending bits to clear, 0 in cycles without a write to CQ_EVENT
    input  logic [NumCq-1:0] cq_clear_i,
    /// pending bits
    output logic [NumCq-1:0] cq_pending_o,
    /// SQ doorbells beyond their ring
    input  async_evt_t       async_db_i,
    /// asynchronous events of completion
    input  async_evt_t       async_comp_i,
    /// asynchronous events of the responder
    input  async_evt_t       async_resp_i,
    /// oldest asynchronous event
    output async_evt_t       async_head_o,
    /// software reads the oldest asynchronous event
    input  logic             async_pop_i,
    /// an asynchronous event was lost (the sticky bit is in the register block)
    output logic             async_lost_o,
    /// sticky overflow bit
    input  logic             overflow_i,
    /// EVENT_MASK
    input  logic [      2:0] mask_i,
    /// some CQ event is pending
    output logic             cq_any_o,
    /// event output of the NIC
    output logic             event_o
);

  logic [NumCq-1:0] pending_q;
  logic cq_any_q, event_q;

  // a set wins over a clear of the same bit, and neither holds up the other
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pending_q <= '0;
    end else begin
      pending_q <= pending_q & ~cq_clear_i;
      if (cq_set_valid_i) pending_q[cq_set_cqn_i] <= 1'b1;
    end
  end

  async_queue u_async_queue (
      .clk_i,
      .rst_ni,
      .src_db_i  (async_db_i),
      .src_comp_i(async_comp_i),
      .src_resp_i(async_resp_i),
      .head_o    (async_head_o),
      .pop_i     (async_pop_i),
      .overflow_o(async_lost_o)
  );

  assign cq_any_q = pending_q != '0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) event_q <= 1'b0;
    else event_q <= (mask_i & {overflow_i, async_head_o.valid, cq_any_q}) != '0;
  end

  assign cq_pending_o = pending_q;
  assign cq_any_o = cq_any_q;
  assign event_o = event_q;

endmodule
