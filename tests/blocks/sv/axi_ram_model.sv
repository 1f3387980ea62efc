// Memory behind an AXI4 port for block benches: 1 MiB at address 0, everything else answers DECERR. Latency and stalls are
// inputs. It also checks the manager's bursts: aligned, INCR of whole beats (ID 2: one beat of 4 or 8 bytes, whose other
// lanes read as noise), inside one 4 KiB page, WLAST in its place.
module axi_ram_model #(
    parameter int unsigned Beats = 16384
) (
    input  logic         clk_i,
    input  logic         rst_ni,
    // knobs: cycles from address to data (write: from last data to response), stall probability in 1/256, seed
    input  logic [15:0]  latency_i,
    input  logic [7:0]   stall_i,
    input  logic [31:0]  seed_i,
    // direct access of the test
    input  logic         poke_i,
    input  logic [13:0]  poke_beat_i,
    input  logic [511:0] poke_data_i,
    input  logic [13:0]  peek_beat_i,
    output logic [511:0] peek_data_o,
    // answers an access (or only a write) with SLVERR where the address is in this beat
    input  logic         fault_i,
    input  logic [13:0]  fault_beat_i,
    input  logic         fault_writes_i = 1'b0,
    output logic [31:0]  reads_o,
    output logic [31:0]  most_reads_o,
    output logic [31:0]  writes_o,
    // AXI4
    input  logic [3:0]   awid,
    input  logic [63:0]  awaddr,
    input  logic [7:0]   awlen,
    input  logic [2:0]   awsize,
    input  logic [1:0]   awburst,
    input  logic         awvalid,
    output logic         awready,
    input  logic [511:0] wdata,
    input  logic [63:0]  wstrb,
    input  logic         wlast,
    input  logic         wvalid,
    output logic         wready,
    output logic [3:0]   bid,
    output logic [1:0]   bresp,
    output logic         bvalid,
    input  logic         bready,
    input  logic [3:0]   arid,
    input  logic [63:0]  araddr,
    input  logic [7:0]   arlen,
    input  logic [2:0]   arsize,
    input  logic [1:0]   arburst,
    input  logic         arvalid,
    output logic         arready,
    output logic [3:0]   rid,
    output logic [511:0] rdata,
    output logic [1:0]   rresp,
    output logic         rlast,
    output logic         rvalid,
    input  logic         rready
);
  typedef struct packed {
    logic [3:0]  id;
    logic [63:0] addr;
    logic [7:0]  len;
    logic [2:0]  size;
    logic        err;
    logic [31:0] due;
  } burst_t;

  typedef struct packed {
    logic [511:0] data;
    logic [63:0]  strb;
    logic         last;
  } beat_t;

  logic [511:0] mem[Beats];
  beat_t        data[$];
  burst_t       reads[$], writes[$], answers[$];
  logic         live_q = 1'b0;  // from the first reset on: before it the manager's outputs mean nothing
  logic [31:0]  now_q, lfsr_q;
  int unsigned  outstanding_q;

  function automatic logic bad(input logic [63:0] addr, input logic is_write);
    return addr[63:20] != '0 || (fault_i && addr[19:6] == fault_beat_i && (is_write || !fault_writes_i));
  endfunction

  // lanes of the beat that the burst reaches; what else comes on them is noise
  function automatic logic [63:0] lanes(input logic [63:0] addr, input logic [2:0] size);
    return ((64'd1 << (64'd1 << size)) - 64'd1) << (size == 3'd6 ? 6'd0 : addr[5:0]);
  endfunction

  always_comb peek_data_o = mem[peek_beat_i];

  function automatic void check(input logic [3:0] id, input logic [63:0] addr, input logic [7:0] len,
                                input logic [2:0] size, input logic [1:0] burst);
    if (id == 4'd2) begin
      assert ((size == 3'd2 || size == 3'd3) && len == '0 && (addr & ((64'd1 << size) - 64'd1)) == '0)
      else $error("atomic access at %x: size %0d, %0d beats", addr, size, 32'(len) + 1);
    end else begin
      assert (addr[5:0] == '0) else $error("burst at %x is not beat-aligned", addr);
      assert (size == 3'd6) else $error("burst at %x: size %0d", addr, size);
    end
    assert (burst == 2'b01) else $error("burst at %x: type %0d", addr, burst);
    assert (13'({addr[11:6], 6'b0}) + {len[6:0] + 7'd1, 6'b0} <= 13'd4096 && len < 8'd64)
    else $error("burst at %x of %0d beats crosses 4 KiB", addr, 32'(len) + 1);
  endfunction

  always_ff @(posedge clk_i) begin
    if (poke_i) mem[poke_beat_i] <= poke_data_i;
    if (!rst_ni) live_q <= 1'b1;
    if (!rst_ni || !live_q) begin
      now_q <= '0;
      lfsr_q <= seed_i | 32'd1;
      arready <= 1'b0;
      awready <= 1'b0;
      wready <= 1'b0;
      rvalid <= 1'b0;
      bvalid <= 1'b0;
      reads_o <= '0;
      writes_o <= '0;
      most_reads_o <= '0;
      outstanding_q <= 0;
      reads.delete();
      writes.delete();
      answers.delete();
      data.delete();
    end else begin
      automatic int unsigned beats = outstanding_q;
      now_q  <= now_q + 1;
      lfsr_q <= {lfsr_q[30:0], lfsr_q[31] ^ lfsr_q[21] ^ lfsr_q[1] ^ lfsr_q[0]} + 32'h9e37_79b9;
      arready <= lfsr_q[7:0] >= stall_i;
      awready <= lfsr_q[12:5] >= stall_i;
      // reads
      if (arvalid && arready) begin
        check(arid, araddr, arlen, arsize, arburst);
        reads.push_back('{id: arid, addr: araddr, len: arlen, size: arsize, err: 1'b0, due: now_q + 32'(latency_i)});
        reads_o <= reads_o + 1;
        beats += 32'(arlen) + 1;
      end
      if (rvalid && rready) begin
        rvalid <= 1'b0;
        beats--;
      end
      outstanding_q <= beats;
      if (beats > most_reads_o) most_reads_o <= beats;
      if ((!rvalid || rready) && reads.size() != 0 && now_q >= reads[0].due && lfsr_q[17:10] >= stall_i) begin
        rvalid <= 1'b1;
        rid    <= reads[0].id;
        rdata  <= mem[reads[0].addr[19:6]];
        if (reads[0].size != 3'd6) begin
          for (int i = 0; i < 64; i++) begin
            automatic logic [63:0] own = lanes(reads[0].addr, reads[0].size);
            if (!own[i]) rdata[8*i+:8] <= lfsr_q[7:0] ^ 8'(i);
          end
        end
        rresp  <= bad(reads[0].addr, 1'b0) ? 2'b11 : 2'b00;
        rlast  <= reads[0].len == 0;
        if (reads[0].len == 0) void'(reads.pop_front());
        else begin
          reads[0].len  = reads[0].len - 1;
          reads[0].addr = reads[0].addr + 64;
        end
      end
      // writes: data waits for its address
      if (wvalid && wready) data.push_back('{data: wdata, strb: wstrb, last: wlast});
      if (data.size() != 0 && writes.size() != 0) begin
        automatic logic [511:0] word = mem[writes[0].addr[19:6]];
        automatic logic err = bad(writes[0].addr, 1'b1);
        for (int i = 0; i < 64; i++) if (data[0].strb[i]) word[8*i+:8] = data[0].data[8*i+:8];
        if (!err) mem[writes[0].addr[19:6]] <= word;
        assert (data[0].strb != '0) else $error("write beat without a byte");
        assert (writes[0].size == 3'd6 || data[0].strb == lanes(writes[0].addr, writes[0].size))
        else $error("atomic write at %x: strobes %x", writes[0].addr, data[0].strb);
        assert (data[0].last == (writes[0].len == 0)) else $error("WLAST in the wrong place");
        void'(data.pop_front());
        writes[0].err = writes[0].err || err;
        if (writes[0].len == 0) begin
          writes[0].due = now_q + 32'(latency_i);
          answers.push_back(writes.pop_front());
        end else begin
          writes[0].len  = writes[0].len - 1;
          writes[0].addr = writes[0].addr + 64;
        end
      end
      if (awvalid && awready) begin
        check(awid, awaddr, awlen, awsize, awburst);
        writes.push_back('{id: awid, addr: awaddr, len: awlen, size: awsize, err: 1'b0, due: 0});
        writes_o <= writes_o + 1;
      end
      wready <= lfsr_q[22:15] >= stall_i && data.size() < 8;
      if (bvalid && bready) bvalid <= 1'b0;
      if ((!bvalid || bready) && answers.size() != 0 && now_q >= answers[0].due) begin
        bvalid <= 1'b1;
        bid    <= answers[0].id;
        bresp  <= answers[0].err ? 2'b10 : 2'b00;
        void'(answers.pop_front());
      end
    end
  end
endmodule
