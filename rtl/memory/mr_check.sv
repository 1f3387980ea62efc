// Judges an access against a memory region: key (index, tag, valid), right and range (nic.md 2, wire.md 5).
// A pipeline of two stages: one request a cycle, the verdict exactly two cycles later. Offsets are 65 bits wide, so a
// region that ends at 2^64 and a length that wraps are both judged right. A zero length passes without a look.
module mr_check
  import rnic_pkg::*;
(
    /// clock
    input  logic        clk_i,
    /// asynchronous reset, active low
    input  logic        rst_ni,
    /// context broadcast: mr_set programs or invalidates a region
    input  ctx_wr_t     ctx_i,
    /// request
    input  logic        req_valid_i,
    /// lkey or rkey: region index in [31:8], tag in [7:0]
    input  logic [31:0] key_i,
    /// the key is an rkey (else an lkey)
    input  logic        is_remote_i,
    /// right that the access needs
    input  right_e      right_i,
    /// first byte of the access
    input  logic [63:0] va_i,
    /// bytes of the access
    input  logic [31:0] len_i,
    /// verdict, two cycles after its request
    output logic        rsp_valid_o,
    /// the key names a valid region (or the length is zero)
    output logic        key_ok_o,
    /// key, right and range all hold (or the length is zero)
    output logic        ok_o
);
  typedef struct packed {
    logic [63:0] base;
    logic [64:0] length;
    logic        loc_write;
    logic        rem_write;
    logic        rem_read;
    logic        rem_atomic;
    logic [7:0]  ltag;
    logic [7:0]  rtag;
  } region_t;

  typedef struct packed {
    logic        remote;
    right_e      right;
    logic [23:0] index;
    logic [7:0]  tag;
    logic [63:0] va;
    logic [31:0] len;
  } req_t;

  region_t           set_region, region;
  mr_t               index;
  logic [NumMr-1:0]  valid_q;
  logic              s1_valid_q, s1_mr_valid_q, s2_valid_q, key_ok_q, ok_q;
  req_t              s1_q;
  logic              key_ok, right_ok, range_ok;
  logic [64:0]       offset;
  logic [65:0]       past;

  assign index = key_i[8+:MrW];
  assign set_region = '{
      base: ctx_i.mr.base, length: ctx_i.mr.length, loc_write: ctx_i.mr.loc_write, rem_write: ctx_i.mr.rem_write,
      rem_read: ctx_i.mr.rem_read, rem_atomic: ctx_i.mr.rem_atomic, ltag: ctx_i.mr.ltag, rtag: ctx_i.mr.rtag
  };

  ctx_ram #(.T(region_t), .Depth(NumMr)) i_regions (
      .clk_i, .wr_en_i(ctx_i.mr_set), .wr_addr_i(ctx_i.mrn), .wr_data_i(set_region),
      .rd_en_i(req_valid_i), .rd_addr_i(index), .rd_data_o(region)
  );

  // a region programmed in the cycle of the request is already seen, as in the memory beside it
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q       <= '0;
      s1_valid_q    <= 1'b0;
      s1_mr_valid_q <= 1'b0;
      s2_valid_q    <= 1'b0;
    end else begin
      if (ctx_i.mr_set) valid_q[ctx_i.mrn] <= ctx_i.mr.valid;
      s1_valid_q <= req_valid_i;
      s2_valid_q <= s1_valid_q;
      if (req_valid_i) begin
        s1_mr_valid_q <= (ctx_i.mr_set && ctx_i.mrn == index) ? ctx_i.mr.valid : valid_q[index];
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (req_valid_i) begin
      s1_q <= '{remote: is_remote_i, right: right_i, index: key_i[31:8], tag: key_i[7:0], va: va_i, len: len_i};
    end
    if (s1_valid_q) begin
      key_ok_q <= key_ok || s1_q.len == '0;
      ok_q     <= (key_ok && right_ok && range_ok) || s1_q.len == '0;
    end
  end

  always_comb begin
    unique case (s1_q.right)
      RightNone:     right_ok = 1'b1;
      RightLocWrite: right_ok = region.loc_write;
      RightRemWrite: right_ok = region.rem_write;
      RightRemRead:  right_ok = region.rem_read;
      RightRemAtom:  right_ok = region.rem_atomic;
      default:       right_ok = 1'b0;
    endcase
  end

  // va >= base and (va - base) + len <= length; the programmed length never reaches beyond 2^64. Below the base the
  // difference borrows into bit 64, and is larger than what any region with a base leaves.
  assign key_ok   = s1_mr_valid_q && s1_q.index[23:MrW] == '0 &&
                    s1_q.tag == (s1_q.remote ? region.rtag : region.ltag);
  assign offset   = {1'b0, s1_q.va} - {1'b0, region.base};
  assign past     = {1'b0, offset} + 66'(s1_q.len);
  assign range_ok = past <= {1'b0, region.length};

  logic unused_ctx;
  assign unused_ctx = ^ctx_i;  // only the region fields are used here

  assign rsp_valid_o = s2_valid_q;
  assign key_ok_o    = key_ok_q;
  assign ok_o        = ok_q;
endmodule
