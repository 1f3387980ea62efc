// What READs and atomics of this NIC expect back (the requester's side of the receive path): a queue per QP in a memory, of
// which the oldest entry counts. How far it has come is one PSN: everything else follows from the distance to the entry's
// first PSN. After a response that failed its WQE, its QP expects nothing more. Before requests are sent again, what they
// expected is forgotten; they will say it once more.
module rd_expect
  import rnic_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast
    input  ctx_wr_t     ctx_i,
    /// a READ or atomic was started; at most MaxInflight of a QP are open
    input  logic        expect_valid_i,
    /// what it expects
    input  expect_t     expect_i,
    /// look up the oldest entry of a QP
    input  logic        look_valid_i,
    /// the QP
    input  qp_t         look_qpi_i,
    /// one cycle later: a response is expected
    output logic        found_o,
    /// the entry
    output expect_t     entry_o,
    /// PSN of the next response
    output psn_t        psn_o,
    /// the response that was looked up is taken
    input  logic        take_valid_i,
    /// its QP
    input  qp_t         take_qpi_i,
    /// PSN behind it
    input  psn_t        take_psn_i,
    /// it was the last of its entry
    input  logic        take_last_i,
    /// the response failed its WQE
    input  logic        fail_valid_i,
    /// its QP
    input  qp_t         fail_qpi_i,
    /// forget all entries of a QP; never in a cycle in which it is looked up or takes a response
    input  logic        rewind_valid_i,
    /// its QP
    input  qp_t         rewind_qpi_i,
    /// writing the bytes of a response failed
    input  logic        bus_valid_i,
    /// its QP
    input  qp_t         bus_qpi_i
);
  localparam int unsigned CntW = SlotW + 1;
  typedef logic [CntW-1:0] ptr_t;

  ptr_t             head_q[NumQp];
  ptr_t             tail_q[NumQp];
  logic [NumQp-1:0] mid_q, stop_q;       // the oldest entry has got responses; the QP expects nothing more
  logic             found_q, look_mid_q;
  psn_t             psn;

  ctx_ram #(.T(expect_t), .Depth(NumQp * MaxInflight)) i_entries (
      .clk_i, .wr_en_i(expect_valid_i), .wr_addr_i({expect_i.qpi, tail_q[expect_i.qpi][SlotW-1:0]}),
      .wr_data_i(expect_i), .rd_en_i(look_valid_i), .rd_addr_i({look_qpi_i, head_q[look_qpi_i][SlotW-1:0]}),
      .rd_data_o(entry_o)
  );
  ctx_ram #(.T(psn_t), .Depth(NumQp)) i_progress (
      .clk_i, .wr_en_i(take_valid_i), .wr_addr_i(take_qpi_i), .wr_data_i(take_psn_i),
      .rd_en_i(look_valid_i), .rd_addr_i(look_qpi_i), .rd_data_o(psn)
  );
  assign found_o = found_q;
  assign psn_o   = look_mid_q ? psn : entry_o.first;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q     <= '{default: '0};
      tail_q     <= '{default: '0};
      mid_q      <= '0;
      stop_q     <= '0;
      found_q    <= 1'b0;
      look_mid_q <= 1'b0;
    end else begin
      if (look_valid_i) begin
        found_q    <= head_q[look_qpi_i] != tail_q[look_qpi_i] && !stop_q[look_qpi_i];
        look_mid_q <= mid_q[look_qpi_i];
      end
      if (expect_valid_i) tail_q[expect_i.qpi] <= tail_q[expect_i.qpi] + ptr_t'(1);
      if (take_valid_i) begin
        mid_q[take_qpi_i] <= !take_last_i;
        if (take_last_i) head_q[take_qpi_i] <= head_q[take_qpi_i] + ptr_t'(1);
      end
      if (fail_valid_i) stop_q[fail_qpi_i] <= 1'b1;
      if (bus_valid_i) stop_q[bus_qpi_i] <= 1'b1;
      if (rewind_valid_i) begin
        head_q[rewind_qpi_i] <= tail_q[rewind_qpi_i];
        mid_q[rewind_qpi_i]  <= 1'b0;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        head_q[ctx_i.qpi] <= '0;
        tail_q[ctx_i.qpi] <= '0;
        mid_q[ctx_i.qpi]  <= 1'b0;
        stop_q[ctx_i.qpi] <= 1'b0;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = ^ctx_i;
endmodule
