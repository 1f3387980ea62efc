// Generated register block behind flat ports, so that nothing else depends on the generator's names (rnic_csr.rdl).
module csr_regs
  import rnic_pkg::*;
(
    /// clock
    input  logic             clk_i,
    /// asynchronous reset, active low
    input  logic             rst_ni,
    /// request, one cycle; the payload stays until the acknowledge
    input  logic             req_i,
    /// 1: write
    input  logic             wr_i,
    /// byte address, 64-bit aligned
    input  logic [     16:0] addr_i,
    /// write data
    input  logic [     63:0] wdata_i,
    /// write strobes by bit
    input  logic [     63:0] biten_i,
    /// write done
    output logic             wr_ack_o,
    /// read done
    output logic             rd_ack_o,
    /// read data
    output logic [     63:0] rdata_o,
    /// MAC
    output logic [     47:0] mac_o,
    /// IP
    output logic [     31:0] ip_o,
    /// SL_WEIGHT as written
    output logic [     63:0] sl_weight_o,
    /// CQ_WAIT
    output logic [     31:0] cq_wait_o,
    /// EVENT_MASK
    output logic [      2:0] event_mask_o,
    /// sticky overflow of the queue of asynchronous events
    output logic             overflow_o,
    /// sets it
    input  logic             overflow_set_i,
    /// some CQ event is pending
    input  logic             cq_any_i,
    /// CQ_EVENT
    input  logic [NumCq-1:0] cq_pending_i,
    /// bits of CQ_EVENT to clear
    output logic [NumCq-1:0] cq_clear_o,
    /// ASYNC_POP
    input  async_evt_t       async_head_i,
    /// ASYNC_POP is read
    output logic             async_pop_o,
    /// TIME
    input  logic [     47:0] time_i,
    /// QP_STATE_RTS
    input  logic [NumQp-1:0] qp_rts_i,
    /// QP_STATE_ERR
    input  logic [NumQp-1:0] qp_err_i,
    /// read of a counter, one cycle
    output logic             cnt_req_o,
    /// counter
    output logic [      5:0] cnt_addr_o,
    /// its value is there
    input  logic             cnt_ack_i,
    /// value
    input  logic [     63:0] cnt_data_i,
    /// CMD is written
    output logic             cmd_valid_o,
    /// value
    output logic [     63:0] cmd_data_o,
    /// all eight bytes are written
    output logic             cmd_whole_o,
    /// STATUS busy
    input  logic             busy_i,
    /// STATUS code
    input  logic [      7:0] code_i,
    /// access to a staging word, one cycle; the payload stays until the acknowledge
    output logic             stage_req_o,
    /// 1: write
    output logic             stage_wr_o,
    /// word
    output logic [      3:0] stage_addr_o,
    /// write data
    output logic [     63:0] stage_wdata_o,
    /// write strobes by bit
    output logic [     63:0] stage_biten_o,
    /// write done
    input  logic             stage_wr_ack_i,
    /// read done
    input  logic             stage_rd_ack_i,
    /// read data
    input  logic [     63:0] stage_rdata_i
);

  rnic_csr_pkg::rnic_csr__in_t hw_in;
  rnic_csr_pkg::rnic_csr__out_t hw_out;

  // one request at a time and no error answers: the block neither stalls nor refuses
  logic stall_wr, stall_rd, rd_err, wr_err;

  rnic_csr u_rnic_csr (
      .clk                 (clk_i),
      .arst_n              (rst_ni),
      .s_cpuif_req         (req_i),
      .s_cpuif_req_is_wr   (wr_i),
      .s_cpuif_addr        (addr_i),
      .s_cpuif_wr_data     (wdata_i),
      .s_cpuif_wr_biten    (biten_i),
      .s_cpuif_req_stall_wr(stall_wr),
      .s_cpuif_req_stall_rd(stall_rd),
      .s_cpuif_rd_ack      (rd_ack_o),
      .s_cpuif_rd_err      (rd_err),
      .s_cpuif_rd_data     (rdata_o),
      .s_cpuif_wr_ack      (wr_ack_o),
      .s_cpuif_wr_err      (wr_err),
      .hwif_in             (hw_in),
      .hwif_out            (hw_out)
  );

  assign mac_o = hw_out.mac.addr.value;
  assign ip_o = hw_out.ip.addr.value;
  assign sl_weight_o = hw_out.sl_weight.weight.value;
  assign cq_wait_o = hw_out.cq_wait.cycles.value;
  assign event_mask_o = hw_out.event_mask.enable.value;
  assign overflow_o = hw_out.event_cause.overflow.value;
  assign async_pop_o = hw_out.async_pop.origin.swacc;

  assign hw_in.cfg_sizes.num_qp.next = 16'(NumQp);
  assign hw_in.cfg_sizes.num_cq.next = 16'(NumCq);
  assign hw_in.cfg_sizes.num_mr.next = 16'(NumMr);
  assign hw_in.time_now.cycles.next = time_i;
  assign hw_in.event_cause.cq.next = cq_any_i;
  assign hw_in.event_cause.async_event.next = async_head_i.valid;
  assign hw_in.event_cause.overflow.hwset = overflow_set_i;
  assign hw_in.async_pop.valid.next = async_head_i.valid;
  assign hw_in.async_pop.kind.next = async_head_i.kind;
  assign hw_in.async_pop.origin.next = async_head_i.number;
  assign hw_in.qp_state_rts.bits.next = 64'(qp_rts_i);
  assign hw_in.qp_state_err.bits.next = 64'(qp_err_i);
  assign hw_in.status.busy.next = busy_i;
  assign hw_in.status.code.next = code_i;

  // CQ_EVENT: answered in the cycle of the request
  logic cq_req, cq_req_wr;
  assign cq_req = hw_out.cq_event.req;
  assign cq_req_wr = hw_out.cq_event.req_is_wr;
  assign cq_clear_o = cq_req && cq_req_wr ? hw_out.cq_event.wr_data.pending & hw_out.cq_event.wr_biten.pending : '0;
  assign hw_in.cq_event.rd_ack = cq_req && !cq_req_wr;
  assign hw_in.cq_event.rd_data.pending = 64'(cq_pending_i);
  assign hw_in.cq_event.wr_ack = cq_req && cq_req_wr;

  // counters are read-only: the block answers writes itself and sends no request
  assign cnt_req_o = hw_out.counters.req;
  assign cnt_addr_o = hw_out.counters.addr[8:3];
  assign hw_in.counters.rd_ack = cnt_ack_i;
  assign hw_in.counters.rd_data = cnt_data_i;
  assign hw_in.counters.wr_ack = 1'b0;

  // CMD: taken at once, whatever becomes of it is in STATUS or counted
  assign cmd_valid_o = hw_out.cmd.req && hw_out.cmd.req_is_wr;
  assign cmd_data_o = {hw_out.cmd.wr_data.reserved, hw_out.cmd.wr_data.index, hw_out.cmd.wr_data.obj,
                       hw_out.cmd.wr_data.op};
  assign cmd_whole_o = biten_i == '1;
  assign hw_in.cmd.wr_ack = cmd_valid_o;

  assign stage_req_o = hw_out.stage.req;
  assign stage_wr_o = hw_out.stage.req_is_wr;
  assign stage_addr_o = hw_out.stage.addr[6:3];
  assign stage_wdata_o = hw_out.stage.wr_data;
  assign stage_biten_o = hw_out.stage.wr_biten;
  assign hw_in.stage.wr_ack = stage_wr_ack_i;
  assign hw_in.stage.rd_ack = stage_rd_ack_i;
  assign hw_in.stage.rd_data = stage_rdata_i;

  logic unused;
  assign unused = ^{stall_wr, stall_rd, rd_err, wr_err, hw_out.counters.addr[2:0],
                    hw_out.counters.req_is_wr, hw_out.counters.wr_data,
                    hw_out.counters.wr_biten, hw_out.cmd.wr_biten, hw_out.stage.addr[2:0]};

endmodule
