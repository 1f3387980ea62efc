// READs and atomics that the responder accepted, per QP in order (nic.md 5). An entry is put in when its packet is accepted,
// may be executed when the write responses of everything before it are there, is issued (all READ response packets on their
// way, or the atomic in its unit), and makes room when its last response is with the framer. Duplicates have places of
// their own: what comes for the first time is never refused because of them. Entries and the progress of the oldest READ
// are memories; the positions of a QP are counters modulo twice the places.
module resp_table
  import rnic_pkg::*, dp_pkg::*, resp_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast
    input  ctx_wr_t     ctx_i,
    /// QP that a reset waits for
    input  qp_err_evt_t drain_i,
    /// entries of that QP are still to be executed
    output logic        drain_busy_o,
    /// QP whose entries are counted
    input  qp_t         look_qpi_i,
    /// its READs and atomics, without duplicates
    output logic [4:0]  used_o,
    /// its entries
    output place_t      held_o,
    /// entry comes in
    input  logic        entry_valid_i,
    /// its QP
    input  qp_t         entry_qpi_i,
    /// entry
    input  resp_entry_t entry_i,
    /// the next entry may be executed
    input  logic        start_valid_i,
    /// its QP
    input  qp_t         start_qpi_i,
    /// entries that may be executed so far
    output place_t      start_place_o,
    /// read the oldest entry that is not issued
    input  logic        read_i,
    /// of this QP
    input  qp_t         read_qpi_i,
    /// place of that entry
    output index_t      read_index_o,
    /// QP that was read last
    input  qp_t         turn_qpi_i,
    /// it has an entry to execute
    output logic        has_o,
    /// nothing of it is executed any more
    output logic        flush_o,
    /// entries issued so far
    output place_t      place_o,
    /// READ responses of the entry were issued
    output logic        mid_o,
    /// entry, one cycle after read_i
    output resp_entry_t entry_o,
    /// first byte, bytes and PSN of what is left of it
    output logic [63:0] addr_o,
    /// bytes left
    output logic [31:0] left_o,
    /// PSN of the next response
    output psn_t        psn_o,
    /// one response of turn_qpi_i is issued
    input  logic        step_i,
    /// it is the last one of its entry
    input  logic        step_last_i,
    /// bytes of it
    input  logic [12:0] step_len_i,
    /// nothing of turn_qpi_i shall be executed any more
    input  logic        drop_i,
    /// the same, for a response that failed
    input  logic        flush_valid_i,
    /// its QP
    input  qp_t         flush_qpi_i,
    /// nothing of flush_qpi_i from this place on shall be executed any more
    input  logic        stop_valid_i,
    /// the place
    input  place_t      stop_place_i,
    /// QPs of which no further entry is executed
    output logic [NumQp-1:0] gone_o,
    /// read an atomic for its execution
    input  logic        exec_read_i,
    /// its QP: the next of its atomics
    input  qp_t         exec_qpi_i,
    /// entry, one cycle after exec_read_i
    output resp_entry_t exec_entry_o,
    /// the last response of a READ is with the framer
    input  logic        read_out_i,
    /// its QP
    input  qp_t         read_out_qpi_i,
    /// it answers a duplicate
    input  logic        read_out_dup_i,
    /// the response of an atomic is with the framer
    input  logic        amo_out_i,
    /// its QP
    input  qp_t         amo_out_qpi_i,
    /// it answers a duplicate
    input  logic        amo_out_dup_i
);
  typedef struct packed {
    psn_t        psn;
    logic [31:0] left;
    logic [63:0] addr;
  } rest_t;
  /// resp_entry_t without operands
  typedef logic [$bits(resp_entry_t)-$bits(amo_t)-1:0] head_t;

  logic [4:0]       first_in_q[NumQp];   // accepted, without duplicates
  logic [4:0]       first_out_q[NumQp];  // answered, without duplicates
  slot_t            amo_in_q[NumQp];     // atomics accepted, without duplicates
  slot_t            amo_run_q[NumQp];    // atomics read for their execution
  logic             amo_in;
  place_t           in_q[NumQp];     // accepted
  place_t           start_q[NumQp];  // may be executed
  place_t           issue_q[NumQp];  // issued
  place_t           out_q[NumQp];    // answered
  place_t           stop_at_q[NumQp];
  logic [NumQp-1:0] mid_q, flush_q, stop_q;
  rest_t            rest, rest_next;
  head_t            head;

  // the operands of an atomic are needed for its execution only
  ctx_ram #(.T(head_t), .Depth(NumQp * Places)) i_entries (
      .clk_i, .wr_en_i(entry_valid_i), .wr_addr_i({entry_qpi_i, in_q[entry_qpi_i][SlotW:0]}),
      .wr_data_i(entry_i[$bits(resp_entry_t)-1:$bits(amo_t)]),
      .rd_en_i(read_i), .rd_addr_i({read_qpi_i, issue_q[read_qpi_i][SlotW:0]}), .rd_data_o(head)
  );
  assign entry_o = {head, amo_t'('0)};
  // they are executed in the order in which they are accepted
  assign amo_in = entry_valid_i && is_atomic(entry_i.bth) && !entry_i.dup;
  ctx_ram #(.T(resp_entry_t), .Depth(NumQp * MaxInflight)) i_exec (
      .clk_i, .wr_en_i(amo_in), .wr_addr_i({entry_qpi_i, amo_in_q[entry_qpi_i]}), .wr_data_i(entry_i),
      .rd_en_i(exec_read_i), .rd_addr_i({exec_qpi_i, amo_run_q[exec_qpi_i]}), .rd_data_o(exec_entry_o)
  );
  ctx_ram #(.T(rest_t), .Depth(NumQp)) i_rest (
      .clk_i, .wr_en_i(step_i && !step_last_i), .wr_addr_i(turn_qpi_i), .wr_data_i(rest_next),
      .rd_en_i(read_i), .rd_addr_i(read_qpi_i), .rd_data_o(rest)
  );

  assign used_o        = first_in_q[look_qpi_i] - first_out_q[look_qpi_i];
  assign held_o        = in_q[look_qpi_i] - out_q[look_qpi_i];
  assign start_place_o = start_q[start_qpi_i];
  assign read_index_o  = issue_q[read_qpi_i][SlotW:0];
  assign has_o         = issue_q[turn_qpi_i] != start_q[turn_qpi_i] && !flush_o;
  assign flush_o       = flush_q[turn_qpi_i] ||
                         (stop_q[turn_qpi_i] && issue_q[turn_qpi_i] == stop_at_q[turn_qpi_i]);
  assign gone_o        = flush_q | stop_q;
  assign place_o       = issue_q[turn_qpi_i];
  assign mid_o         = mid_q[turn_qpi_i];
  assign addr_o        = mid_o ? rest.addr : entry_o.addr;
  assign left_o        = mid_o ? rest.left : entry_o.len;
  assign psn_o         = mid_o ? rest.psn : entry_o.psn;
  assign rest_next     = '{psn: psn_o + 24'd1, left: left_o - 32'(step_len_i), addr: addr_o + 64'(step_len_i)};
  assign drain_busy_o  = drain_i.valid && issue_q[drain_i.qpi] != start_q[drain_i.qpi] && !flush_q[drain_i.qpi] &&
                         !(stop_q[drain_i.qpi] && issue_q[drain_i.qpi] == stop_at_q[drain_i.qpi]);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      amo_in_q    <= '{default: '0};
      amo_run_q   <= '{default: '0};
      first_in_q  <= '{default: '0};
      first_out_q <= '{default: '0};
      in_q    <= '{default: '0};
      start_q <= '{default: '0};
      issue_q <= '{default: '0};
      out_q   <= '{default: '0};
      mid_q   <= '0;
      flush_q <= '0;
      stop_q  <= '0;
      stop_at_q <= '{default: '0};
    end else begin
      if (entry_valid_i) in_q[entry_qpi_i] <= in_q[entry_qpi_i] + place_t'(1);
      if (amo_in) amo_in_q[entry_qpi_i] <= amo_in_q[entry_qpi_i] + slot_t'(1);
      if (exec_read_i) amo_run_q[exec_qpi_i] <= amo_run_q[exec_qpi_i] + slot_t'(1);
      if (entry_valid_i && !entry_i.dup) first_in_q[entry_qpi_i] <= first_in_q[entry_qpi_i] + 5'd1;
      if (start_valid_i) start_q[start_qpi_i] <= start_q[start_qpi_i] + place_t'(1);
      if (step_i) begin
        mid_q[turn_qpi_i] <= !step_last_i;
        if (step_last_i) issue_q[turn_qpi_i] <= issue_q[turn_qpi_i] + place_t'(1);
      end
      // never both of one QP: its READs wait for its atomics and the other way round
      if (read_out_i) out_q[read_out_qpi_i] <= out_q[read_out_qpi_i] + place_t'(1);
      if (amo_out_i) out_q[amo_out_qpi_i] <= out_q[amo_out_qpi_i] + place_t'(1);
      if (read_out_i && !read_out_dup_i) first_out_q[read_out_qpi_i] <= first_out_q[read_out_qpi_i] + 5'd1;
      if (amo_out_i && !amo_out_dup_i) first_out_q[amo_out_qpi_i] <= first_out_q[amo_out_qpi_i] + 5'd1;
      if (drop_i) flush_q[turn_qpi_i] <= 1'b1;
      if (flush_valid_i) flush_q[flush_qpi_i] <= 1'b1;
      if (stop_valid_i) begin
        stop_q[flush_qpi_i]    <= 1'b1;
        stop_at_q[flush_qpi_i] <= stop_place_i;
      end
      if (ctx_i.qp_set || ctx_i.qp_reset) begin
        amo_in_q[ctx_i.qpi]    <= '0;
        amo_run_q[ctx_i.qpi]   <= '0;
        first_in_q[ctx_i.qpi]  <= '0;
        first_out_q[ctx_i.qpi] <= '0;
        in_q[ctx_i.qpi]    <= '0;
        start_q[ctx_i.qpi] <= '0;
        issue_q[ctx_i.qpi] <= '0;
        out_q[ctx_i.qpi]   <= '0;
        mid_q[ctx_i.qpi]   <= 1'b0;
        flush_q[ctx_i.qpi] <= 1'b0;
        stop_q[ctx_i.qpi]  <= 1'b0;
      end
    end
  end

  logic unused_bits;
  assign unused_bits = ^ctx_i;

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni && entry_valid_i) begin
      assert (in_q[entry_qpi_i] - out_q[entry_qpi_i] < place_t'(Places))
      else $error("resp_table: an entry without a place");
    end
  end
  `endif  // SYNTHESIS
endmodule
