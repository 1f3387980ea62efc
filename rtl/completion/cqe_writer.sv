// Writes CQEs (nic.md section 6): one beat each, 64 bytes with the upper half zero or exactly 32 bytes, so a CQE is visible
// whole. Several writes are in flight; each response names the CQ whose CQE is now visible or was lost.
module cqe_writer
  import rnic_pkg::*;
  import req_pkg::*;
#(
  /// writes in flight
  parameter int unsigned NumFlight = 64
) (
  /// clock
  input  logic        clk_i,
  /// asynchronous reset, active low
  input  logic        rst_ni,
  /// three more CQEs can be taken: as many as the completion engine has under way
  output logic        room_o,
  /// CQE to write, only while there is room
  input  logic        cqe_valid_i,
  /// CQE to write
  input  cqe_job_t    cqe_i,
  /// write request
  output logic        req_valid_o,
  /// write request accepted
  input  logic        req_ready_i,
  /// write request
  output wr_req_t     req_o,
  /// write data
  output logic        beat_valid_o,
  /// write data accepted
  input  logic        beat_ready_i,
  /// write data
  output wr_beat_t    beat_o,
  /// write response, in the order of the requests
  input  logic        b_valid_i,
  /// the write failed
  input  logic        b_err_i,
  /// a CQE was answered
  output logic        done_valid_o,
  /// its CQ
  output cq_t         done_cqn_o,
  /// it is an error CQE
  output logic        done_solicit_o,
  /// its write failed
  output logic        done_err_o,
  /// QP of a reset that waits
  input  qp_err_evt_t drain_i,
  /// CQEs of that QP are on their way
  output logic        drain_busy_o
);
  localparam int unsigned Depth = 8;

  /// what the response has to name
  typedef struct packed {
    cq_t  cqn;
    logic solicit;
  } flight_t;

  cqe_job_t                   head;
  logic                       head_valid, head_pop;
  logic [$clog2(Depth+1)-1:0] count;
  logic                       req_sent_q, beat_sent_q, req_go, beat_go;
  flight_t                    flight, flight_new;
  logic                       flight_room, flight_some, unused_ready;
  logic [$clog2(NumFlight+1)-1:0] unused_count;

  fifo #(.T(cqe_job_t), .Depth(Depth), .Fits(1'b1)) i_queue (
    .clk_i, .rst_ni, .in_valid_i(cqe_valid_i), .in_ready_o(unused_ready), .in_data_i(cqe_i),
    .out_valid_o(head_valid), .out_ready_i(head_pop), .out_data_o(head), .count_o(count)
  );
  assign room_o = (count <= ($clog2(Depth+1))'(Depth - 3));

  // address and data leave independently; the next CQE follows when both are gone
  assign req_valid_o  = head_valid && !req_sent_q && flight_room;
  assign beat_valid_o = head_valid && !beat_sent_q && flight_room;
  assign req_go       = req_valid_o && req_ready_i;
  assign beat_go      = beat_valid_o && beat_ready_i;
  assign head_pop     = (req_sent_q || req_go) && (beat_sent_q || beat_go);

  assign req_o = '{addr: {head.addr[63:6], 6'd0}, len: 8'd0, size: SizeBeat, id: IdCqe};
  always_comb begin
    beat_o      = '0;
    beat_o.last = 1'b1;
    if (head_valid) begin
      if (!head.stride32) begin
        beat_o.data[255:0] = head.payload;
        beat_o.strb        = '1;
      end else if (head.addr[5]) begin
        beat_o.data[511:256] = head.payload;
        beat_o.strb[63:32]   = '1;
      end else begin
        beat_o.data[255:0] = head.payload;
        beat_o.strb[31:0]  = '1;
      end
    end
  end

  assign flight_new = '{cqn: head.cqn, solicit: head.solicit};
  fifo #(.T(flight_t), .Depth(NumFlight)) i_flight (
    .clk_i, .rst_ni, .in_valid_i(head_pop), .in_ready_o(flight_room), .in_data_i(flight_new),
    .out_valid_o(flight_some), .out_ready_i(b_valid_i), .out_data_o(flight), .count_o(unused_count)
  );
  assign done_valid_o   = b_valid_i;
  assign done_cqn_o     = flight.cqn;
  assign done_solicit_o = flight.solicit;
  assign done_err_o     = b_err_i;

  drain_mark i_drain (
    .clk_i, .rst_ni, .drain_i, .push_i(cqe_valid_i), .push_qpi_i(cqe_i.qpi), .pop_i(b_valid_i), .busy_o(drain_busy_o)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      req_sent_q  <= 1'b0;
      beat_sent_q <= 1'b0;
    end else begin
      req_sent_q  <= !head_pop && (req_sent_q || req_go);
      beat_sent_q <= !head_pop && (beat_sent_q || beat_go);
    end
  end

  logic unused;
  assign unused = &{1'b0, head, flight_some};

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      // the memory answers only what was asked, and the engine offers only where there is room
      assert (!b_valid_i || flight_some)
      else $error("cqe_writer: response without a request");
    end
  end
  `endif  // SYNTHESIS
endmodule
