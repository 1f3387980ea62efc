// Results of atomics that are kept for their duplicates (nic.md 5, wire.md 5): of a QP the max_dest_rd_atomic newest ones that
// were accepted, by PSN. A place is given away when an atomic is accepted, in turn, and gets its value when that is executed,
// so an atomic of which no answer can be given yet is known as such. PSNs and values are memories.
module resp_saved
  import rnic_pkg::*, resp_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast
    input  ctx_wr_t     ctx_i,
    /// an atomic was accepted
    input  logic        accept_i,
    /// its QP
    input  qp_t         accept_qpi_i,
    /// its PSN
    input  psn_t        accept_psn_i,
    /// an atomic was executed
    input  logic        save_i,
    /// its QP
    input  qp_t         save_qpi_i,
    /// atomics of that QP that were accepted and not executed until now
    input  logic [4:0]  save_left_i,
    /// original value that it found
    input  logic [63:0] save_value_i,
    /// QP that ask_i speaks of in the next cycle
    input  qp_t         read_qpi_i,
    /// QP and PSN of a duplicate, results that the QP keeps
    input  resp_ask_t   ask_i,
    /// atomics of that QP that are accepted and not executed
    input  logic [4:0]  left_i,
    /// an atomic with that PSN is one of those that are kept
    output logic        found_o,
    /// it was executed
    output logic        ready_o,
    /// its original value, one cycle later
    output logic [63:0] value_o
);
  slot_t                  next_q[NumQp];  // place that the next one gets
  logic [4:0]             some_q[NumQp];  // places in use
  slot_t                  next, place;
  logic [4:0]             age;
  logic [MaxInflight-1:0] same;

  for (genvar i = 0; i < MaxInflight; i++) begin : gen_psn
    psn_t psn;
    ctx_ram #(.T(psn_t), .Depth(NumQp)) i_psns (
        .clk_i, .wr_en_i(accept_i && next_q[accept_qpi_i] == slot_t'(i)), .wr_addr_i(accept_qpi_i),
        .wr_data_i(accept_psn_i), .rd_en_i(1'b1), .rd_addr_i(read_qpi_i), .rd_data_o(psn)
    );
    assign same[i] = psn == ask_i.psn;
  end

  // the newest one that fits: an older one is of an earlier round of the PSNs. Age 0 is the newest.
  assign next = next_q[ask_i.qpi];
  always_comb begin
    found_o = 1'b0;
    age     = '0;
    for (int a = MaxInflight - 1; a >= 0; a--) begin
      if (same[next-slot_t'(a+1)] && 5'(a) < some_q[ask_i.qpi] && 5'(a) < ask_i.depth) begin
        found_o = 1'b1;
        age     = 5'(a);
      end
    end
  end
  assign place   = next - slot_t'(age) - slot_t'(1);
  // they are executed in turn
  assign ready_o = found_o && age >= left_i;

  ctx_ram #(.T(logic [63:0]), .Depth(NumQp * MaxInflight)) i_values (
      .clk_i, .wr_en_i(save_i), .wr_addr_i({save_qpi_i, next_q[save_qpi_i] - slot_t'(save_left_i)}),
      .wr_data_i(save_value_i), .rd_en_i(found_o), .rd_addr_i({ask_i.qpi, place}), .rd_data_o(value_o)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      next_q <= '{default: '0};
      some_q <= '{default: '0};
    end else begin
      if (accept_i) begin
        next_q[accept_qpi_i] <= next_q[accept_qpi_i] + slot_t'(1);
        if (some_q[accept_qpi_i] != 5'(MaxInflight)) some_q[accept_qpi_i] <= some_q[accept_qpi_i] + 5'd1;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        next_q[ctx_i.qpi] <= '0;
        some_q[ctx_i.qpi] <= '0;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = ^ctx_i;

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni) begin
      assert (!save_i || (save_left_i != '0 && save_left_i <= 5'(MaxInflight)))
      else $error("resp_saved: executed without having been accepted");
    end
  end
  `endif  // SYNTHESIS
endmodule
