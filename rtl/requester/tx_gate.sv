// May the packet in the transmit pipeline leave now? The limits of outstanding READs and atomics and of unacknowledged PSNs
// (wire.md section 5), and the fence (nic.md section 5). A lane that has to wait is held, so that it takes no grants, until
// an event that can release it: the end of a READ or atomic, or any acknowledgement.
module tx_gate
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic               clk_i,
  /// asynchronous reset, active low
  input  logic               rst_ni,
  /// executed context commands
  input  ctx_wr_t            ctx_i,
  /// a lane is given to a QP
  input  lane_load_t         load_i,
  /// QP of each lane
  input  qp_t [NumLane-1:0]  qpi_i,
  /// oldest unacknowledged PSN moved
  input  qp_pos_t            una_i,
  /// that move ended a READ or atomic
  input  logic               una_rd_i,
  /// a lane enters the pipeline
  input  logic               grant_i,
  /// that lane
  input  lane_t              grant_lane_i,
  /// lane in the pipeline
  input  lane_t              lane_i,
  /// its packet asks to leave
  input  logic               ask_i,
  /// the packet is of a READ or atomic
  input  logic               fetches_i,
  /// of a WQE with a fence; true for all its packets, since no READ or atomic starts between them
  input  logic               fence_i,
  /// PSN of the packet
  input  psn_t               psn_i,
  /// it was sent before
  input  logic               again_i,
  /// PSNs that it takes
  input  psn_t               step_i,
  /// READs and atomics that its QP has started
  input  rd_num_t            rd_i,
  /// it may leave
  output logic               go_o,
  /// its QP may have no READ or atomic at all
  output logic               none_o,
  /// it was acknowledged meanwhile
  output logic               over_o,
  /// lanes that wait for the end of a READ or atomic
  output logic [NumLane-1:0] hold_rd_o,
  /// lanes that wait for acknowledged PSNs
  output logic [NumLane-1:0] hold_psn_o
);
  /// fixed by the context
  typedef struct packed {
    psn_t       sq_psn;
    logic [4:0] max_rd;
  } keep_t;
  /// oldest unacknowledged PSN and READs and atomics that ended
  typedef struct packed {
    psn_t    psn;
    rd_num_t rd;
  } pos_t;

  keep_t              keep, keep_new;
  pos_t               una, una_ram, una_new;
  logic               una_valid;
  psn_t               unacked;
  rd_num_t            outstanding;
  logic               rd_ok, window_ok;
  // the positions moved since the lane entered, so what was read then cannot hold it
  logic               moved, moved_q, moved_rd_q;
  logic [NumLane-1:0] hold_rd_q, hold_psn_q;

  assign keep_new = '{sq_psn: ctx_i.qp.sq_psn, max_rd: ctx_i.qp.max_rd};
  assign una_new  = '{psn: una_i.psn, rd: una_i.rd};

  ctx_ram #(.T(keep_t), .Depth(NumQp)) i_keep (
    .clk_i, .wr_en_i(ctx_i.qp_set), .wr_addr_i(ctx_i.qpi), .wr_data_i(keep_new),
    .rd_en_i(grant_i), .rd_addr_i(qpi_i[grant_lane_i]), .rd_data_o(keep)
  );
  dyn_ram #(.T(pos_t), .Depth(NumQp)) i_una (
    .clk_i, .rst_ni, .clr_en_i(ctx_i.qp_set || ctx_i.qp_reset), .clr_addr_i(ctx_i.qpi),
    .wr_en_i(una_i.valid), .wr_addr_i(una_i.qpi), .wr_data_i(una_new),
    .rd_en_i(grant_i), .rd_addr_i(qpi_i[grant_lane_i]), .rd_valid_o(una_valid), .rd_data_o(una_ram)
  );

  assign una         = una_valid ? una_ram : '{psn: keep.sq_psn, rd: '0};
  assign unacked     = psn_i - una.psn;
  assign outstanding = rd_i - una.rd;
  assign rd_ok       = (!fence_i || outstanding == '0) && (!fetches_i || outstanding < keep.max_rd);
  // a READ of more PSNs than the window goes alone
  assign window_ok   = (unacked == '0) || ({1'b0, unacked} + {1'b0, step_i} < {1'b0, PsnWindow});
  assign over_o      = again_i && unacked[23];
  assign go_o        = rd_ok && window_ok && !over_o;
  assign none_o      = fetches_i && (keep.max_rd == '0);

  assign moved       = una_i.valid && (una_i.qpi == qpi_i[lane_i]);
  assign hold_rd_o   = hold_rd_q;
  assign hold_psn_o  = hold_psn_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      moved_q    <= 1'b0;
      moved_rd_q <= 1'b0;
      hold_rd_q  <= '0;
      hold_psn_q <= '0;
    end else begin
      if (grant_i) begin
        moved_q    <= 1'b0;
        moved_rd_q <= 1'b0;
      end else if (moved) begin
        moved_q <= 1'b1;
        if (una_rd_i) moved_rd_q <= 1'b1;
      end
      if (una_i.valid) begin
        for (int unsigned l = 0; l < NumLane; l++) begin
          if (qpi_i[l] == una_i.qpi) begin
            hold_psn_q[l] <= 1'b0;
            if (una_rd_i) hold_rd_q[l] <= 1'b0;
          end
        end
      end
      if (ask_i) begin
        if (!rd_ok) hold_rd_q[lane_i] <= !moved_rd_q && !(moved && una_rd_i);
        else if (!window_ok) hold_psn_q[lane_i] <= !moved_q && !moved;
      end
      if (load_i.valid) begin
        hold_rd_q[load_i.lane]  <= 1'b0;
        hold_psn_q[load_i.lane] <= 1'b0;
      end
    end
  end

  logic unused;
  assign unused = &{1'b0, ctx_i, load_i, una_i};
endmodule
