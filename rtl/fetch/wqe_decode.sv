// WQE decode and the checks that need no memory region (nic.md section 4, device.md sections 1.2 to 1.5). Combinational:
// the used bytes of a slot in, the decoded WQE with the code of the first failing check out. Ignored bits never reach
// the output, so a dirty WQE decodes like a clean one.
module wqe_decode
  import rnic_pkg::*;
  import req_pkg::*;
#(
  /// operands of the unmasked atomics (opcodes 26 and 27) are little-endian
  parameter bit AmoPlainLittle = 1'b0,
  /// masked atomics carry their remote length shifted left by one
  parameter bit AmoShiftedLen = 1'b0
) (
  /// first 64 bytes of the slot: control, remote, local and first atomic segment
  input  data_t        data_i,
  /// bytes 64 to 79: second atomic segment
  input  logic [127:0] ext_i,
  /// format version of the QP
  input  logic         version2_i,
  /// index of the slot
  input  idx_t         idx_i,
  /// a beat of the slot came with a bus error
  input  logic         bus_err_i,
  /// decoded WQE
  output wqe_t         wqe_o
);
  typedef enum logic [2:0] {ClsBad, ClsSend, ClsWrite, ClsRead, ClsAtomic} class_e;

  // control segment
  logic [7:0]   opcode;
  logic         with_imm, se, ce, in_line;
  logic [4:0]   ds_num;
  logic [31:0]  msg_len, imm;
  logic [1:0]   fence_mode;
  logic [16:0]  id_index;
  logic [2:0]   id_low;
  // data segments: the first and second after control
  logic [31:0]  len_a, key_a, len_b, key_b;
  logic [63:0]  addr_a, addr_b;

  class_e       cls;
  logic [4:0]   ds_want;
  logic [31:0]  msg_want, seg_want, rem_len;
  logic         len_bad;

  assign opcode     = data_i[7:0];
  assign with_imm   = data_i[8];
  assign ds_num     = data_i[15:11];
  assign msg_len    = data_i[63:32];
  assign imm        = data_i[95:64];
  assign se         = data_i[96];
  assign ce         = data_i[97];
  assign in_line    = data_i[98];
  assign fence_mode = data_i[100:99];
  // wqe_id holds the index in units of 16 bytes: 20 bits V2, 16 bits V1
  assign id_index   = version2_i ? data_i[127:111] : {4'b0, data_i[31:19]};
  assign id_low     = version2_i ? data_i[110:108] : data_i[18:16];
  assign len_a      = data_i[159:128];
  assign key_a      = data_i[191:160];
  assign addr_a     = data_i[255:192];
  assign len_b      = data_i[287:256];
  assign key_b      = data_i[319:288];
  assign addr_b     = data_i[383:320];

  // what the opcode asks for (device.md 1.4, 1.5)
  always_comb begin
    cls      = ClsAtomic;
    ds_want  = 5'd3;
    msg_want = 32'd16;
    seg_want = op_atomic4(opcode) ? 32'd4 : 32'd8;
    unique case (opcode)
      WqeSend: begin
        cls     = ClsSend;
        ds_want = 5'd1;
      end
      WqeWrite: begin
        cls     = ClsWrite;
        ds_want = 5'd2;
      end
      WqeRead: begin
        cls     = ClsRead;
        ds_want = 5'd2;
      end
      WqeCas64, WqeFa64, WqeMFa64, WqeMCas32: ;
      WqeMCas64: begin
        ds_want  = 5'd4;
        msg_want = 32'd32;
      end
      WqeMFa32: msg_want = 32'd8;
      default:  cls = ClsBad;
    endcase
    // the shifted form has a reserved bit at the bottom
    rem_len = (AmoShiftedLen && opcode >= 8'(WqeMCas64)) ? {1'b0, len_a[31:1]} : len_a;
  end

  // segment lengths that must agree; a SEND has the local segment alone
  always_comb begin
    unique case (cls)
      ClsSend:   len_bad = (len_a != msg_len);
      ClsAtomic: len_bad = (msg_len != msg_want) || (rem_len != seg_want) || (len_b != seg_want);
      default:   len_bad = (len_a != msg_len) || (len_b != msg_len);
    endcase
  end

  // Operands from byte 48 on, big-endian; 4-byte operations have all of theirs in the first segment. An unmasked
  // fetch-and-add goes out with 0 in the place of compare (wire.md 2), whatever stands in the slot.
  amo_t amo;
  always_comb begin
    amo = '0;
    if (cls == ClsAtomic) begin
      amo.swap_add = dp_pkg::be64(data_i[447:384]);
      amo.compare  = dp_pkg::be64(data_i[511:448]);
      if (op_atomic4(opcode)) begin
        amo.swap_add = {32'd0, dp_pkg::be32(data_i[415:384])};
        amo.compare  = {32'd0, dp_pkg::be32(data_i[447:416])};
      end else if (AmoPlainLittle && opcode <= 8'(WqeFa64)) begin
        amo.swap_add = data_i[447:384];
        amo.compare  = data_i[511:448];
      end
      if (opcode == WqeFa64) amo.compare = 64'd0;
      if (opcode == WqeMCas64) begin
        amo.swap_mask    = dp_pkg::be64(ext_i[63:0]);
        amo.compare_mask = dp_pkg::be64(ext_i[127:64]);
      end
      if (opcode == WqeMCas32) begin
        amo.swap_mask    = {32'd0, dp_pkg::be32(data_i[479:448])};
        amo.compare_mask = {32'd0, dp_pkg::be32(data_i[511:480])};
      end
    end
  end

  always_comb begin
    wqe_o          = '0;
    wqe_o.idx      = idx_i;
    wqe_o.ce       = ce;
    wqe_o.se       = se;
    wqe_o.fence    = (fence_mode == 2'd1);
    wqe_o.amo      = amo;
    wqe_o.imm      = with_imm ? imm : 32'd0;
    // of an atomic the bytes that it moves, which are not the message length of its WQE
    wqe_o.len      = (cls == ClsAtomic) ? seg_want : msg_len;
    wqe_o.raddr    = addr_a;
    wqe_o.rkey     = key_a;
    wqe_o.laddr    = (cls == ClsSend) ? addr_a : addr_b;
    wqe_o.lkey     = (cls == ClsSend) ? key_a : key_b;
    // a slot that could not be read says nothing about its WQE (nic.md 6)
    wqe_o.opcode   = bus_err_i ? 8'd0 : opcode;
    wqe_o.with_imm = with_imm && !bus_err_i;

    if (bus_err_i) wqe_o.err = CqeWqeDma;
    else if (id_index != idx_logical(idx_i, version2_i) || id_low != 3'd0) wqe_o.err = CqeWqeFormat;
    else if (cls == ClsBad) wqe_o.err = CqeWqeFormat;
    else if (with_imm && (cls == ClsRead || cls == ClsAtomic)) wqe_o.err = CqeWqeFormat;
    else if (in_line != (cls == ClsAtomic)) wqe_o.err = CqeWqeFormat;
    else if (ds_num != ds_want) wqe_o.err = CqeWqeFormat;
    else if (msg_len > 32'h8000_0000) wqe_o.err = CqeWqeLen;
    else if (len_bad) wqe_o.err = CqeWqeLen;
    else wqe_o.err = CqeOk;
  end

  // csum_en, the reserved bits and mask of the control segment are ignored
  logic unused;
  assign unused = &{1'b0, data_i[107:101], data_i[31:16], data_i[10:9]};
endmodule
