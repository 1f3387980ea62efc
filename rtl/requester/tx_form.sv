// Forms the job of a packet (wire.md sections 2 and 3) from its WQE and its cut, and queues it towards gather. For a READ or
// atomic it says what comes back, one cycle later.
module tx_form
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic        clk_i,
  /// asynchronous reset, active low
  input  logic        rst_ni,
  /// the packet leaves; only after room_o in the cycle of its grant
  input  logic        send_i,
  /// its WQE
  input  wqe_t        wqe_i,
  /// its QP
  input  qp_t         qpi_i,
  /// place of the WQE in the outstanding table
  input  slot_t       slot_i,
  /// its PSN
  input  psn_t        psn_i,
  /// last PSN of the message, if this packet is the first
  input  psn_t        last_psn_i,
  /// first packet of the message
  input  logic        first_i,
  /// last packet of the message
  input  logic        last_i,
  /// packet index in the message modulo AckInterval
  input  logic [3:0]  num_i,
  /// a READ asks for bytes from here on
  input  logic [31:0] off_i,
  /// this is not the first time, and packets before it were left out
  input  logic        resumed_i,
  /// payload source; where a READ's bytes go
  input  logic [63:0] laddr_i,
  /// payload bytes
  input  logic [12:0] pay_i,
  /// room for the packets that can be in the pipeline
  output logic        room_o,
  /// packet job
  output logic        job_valid_o,
  /// packet job accepted
  input  logic        job_ready_i,
  /// packet job
  output tx_job_t     job_o,
  /// a READ or atomic has started
  output logic        expect_valid_o,
  /// what it expects back
  output expect_t     expect_o
);
  tx_job_t    job;
  logic [2:0] count;
  logic       fetches, send, imm, unused_ready;

  assign fetches = op_fetches(wqe_i.opcode);
  assign send    = (wqe_i.opcode == WqeSend);
  assign imm     = last_i && wqe_i.with_imm;
  assign room_o  = (count <= 3'd2);

  always_comb begin
    job = '0;
    if (send_i) begin
      job.qpi      = qpi_i;
      job.slot     = slot_i;
      job.psn      = psn_i;
      job.ack_req  = last_i || (num_i == 4'(AckInterval - 1));
      job.has_reth = (first_i || fetches) && !op_atomic(wqe_i.opcode) && !send;
      job.raddr    = wqe_i.raddr + 64'(off_i);
      job.rkey     = wqe_i.rkey;
      job.dma_len  = wqe_i.len - off_i;
      job.has_imm  = imm;
      job.imm      = wqe_i.imm;
      job.se       = last_i && (send || wqe_i.with_imm) && wqe_i.se;
      job.laddr    = laddr_i;
      job.pay_len  = pay_i;
      job.amo      = wqe_i.amo;
      unique case (wqe_i.opcode)
        WqeRead:   job.bth = BthReadReq;
        WqeCas64:  job.bth = BthCmpSwap;
        WqeFa64:   job.bth = BthFetchAdd;
        WqeMCas64: job.bth = BthMCas64;
        WqeMFa64:  job.bth = BthMFa64;
        WqeMCas32: job.bth = BthMCas32;
        WqeMFa32:  job.bth = BthMFa32;
        WqeSend: begin
          unique case ({first_i, last_i})
            2'b11:   job.bth = imm ? BthSendOnlyImm : BthSendOnly;
            2'b10:   job.bth = BthSendFirst;
            2'b01:   job.bth = imm ? BthSendLastImm : BthSendLast;
            default: job.bth = BthSendMiddle;
          endcase
        end
        default: begin
          unique case ({first_i, last_i})
            2'b11:   job.bth = imm ? BthWriteOnlyImm : BthWriteOnly;
            2'b10:   job.bth = BthWriteFirst;
            2'b01:   job.bth = imm ? BthWriteLastImm : BthWriteLast;
            default: job.bth = BthWriteMiddle;
          endcase
        end
      endcase
    end
  end

  // the grant waits for room, so a packet that was decided always fits
  fifo #(.T(tx_job_t), .Depth(4), .Fits(1'b1)) i_jobs (
    .clk_i, .rst_ni, .in_valid_i(send_i), .in_ready_o(unused_ready), .in_data_i(job),
    .out_valid_o(job_valid_o), .out_ready_i(job_ready_i), .out_data_o(job_o), .count_o(count)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) expect_valid_o <= 1'b0;
    else expect_valid_o <= send_i && fetches;
  end

  always_ff @(posedge clk_i) begin
    if (send_i && fetches) begin
      expect_o <= '{
        qpi: qpi_i, slot: slot_i, first: psn_i, last: last_psn_i, laddr: laddr_i, lkey: wqe_i.lkey,
        len: wqe_i.len - off_i, resumed: resumed_i,
        kind: (wqe_i.opcode == WqeRead) ? ExpRead : op_atomic4(wqe_i.opcode) ? ExpAmo4 : ExpAmo8
      };
    end
  end

  logic unused;
  assign unused = &{1'b0, wqe_i.laddr, wqe_i.idx, wqe_i.ce, wqe_i.fence, wqe_i.err};
endmodule
