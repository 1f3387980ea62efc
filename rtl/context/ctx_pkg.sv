// Context commands: codes, the layout of the staged words, and the checks that need one word only (nic.md section 2).
// A command that breaks several rules is refused with the lowest code that applies.
package ctx_pkg;
  import rnic_pkg::*;

  typedef enum logic [3:0] {
    OpSet    = 4'd1,
    OpModify = 4'd2,
    OpReset  = 4'd3,
    OpQuery  = 4'd4
  } op_e;

  typedef enum logic [3:0] {
    ObjQp = 4'd1,
    ObjCq = 4'd2,
    ObjMr = 4'd3
  } obj_e;

  /// STATUS[15:8]
  typedef enum logic [3:0] {
    CodeOk          = 4'd0,
    CodeBadOp       = 4'd1,   // no such operation, or CMD written in part
    CodeBadObject   = 4'd2,   // no such object, or the operation does not exist for it
    CodeBadIndex    = 4'd3,
    CodeBadState    = 4'd4,
    CodeBadDepth    = 4'd5,
    CodeBadBase     = 4'd6,   // base is not a multiple of the slot size
    CodeBadMtu      = 4'd7,
    CodeBadCq       = 4'd8,   // no such CQ, or not programmed
    CodeCqTooSmall  = 4'd9,   // shallower than the SQ that completes to it
    CodeBadStride   = 4'd10,
    CodeBadRange    = 4'd11,  // MR ends beyond 2^64
    CodeBadRights   = 4'd12,  // remote write or atomic without local write
    CodeBadRdAtomic = 4'd13,
    CodeCqInUse     = 4'd14,
    CodeReserved    = 4'd15   // a reserved bit is set
  } code_e;

  /// bit n: code n applies
  typedef logic [15:0] code_mask_t;

  localparam int unsigned NumWord = 16;  // staged words
  localparam int unsigned QpWords = 10;  // words of a QP context
  localparam int unsigned CqWords = 3;
  localparam int unsigned MrWords = 3;
  localparam logic [4:0] MaxRdAtomic = 5'd16;

  /// lowest code of a mask; a mask of 0 is CodeOk
  function automatic code_e lowest_code(code_mask_t mask);
    code_e code;
    code = CodeOk;
    for (int unsigned i = 15; i >= 1; i--) if (mask[i]) code = code_e'(4'(i));
    return code;
  endfunction

  /// 1 if depth is a power of two from 2 to 2^max_log
  function automatic logic depth_ok(logic [23:0] depth, logic [4:0] max_log);
    return depth >= 24'd2 && (depth & (depth - 24'd1)) == '0 && depth <= (24'd1 << max_log);
  endfunction

  /// log2 of a power of two
  function automatic logic [4:0] log2_of(logic [23:0] depth);
    logic [4:0] log;
    log = '0;
    for (int unsigned i = 0; i < 24; i++) if (depth[i]) log |= 5'(i);
    return log;
  endfunction

  /// fields of word 0 that modify changes; the others stay as programmed
  localparam logic [63:0] QpModifyMask = {5'h00, 5'h1f, 3'h7, 3'h7, 16'h0000, 8'hff, 8'hff, 6'h00, 3'h7, 3'h7, 4'h0};

  // the checks take whole words and look at some of their bits
  // verilator lint_off UNUSEDSIGNAL
  /// reserved bits of the words of a QP; word 8 carries the state of query and modify and means nothing to set
  function automatic logic qp_reserved(logic [3:0] word, logic [63:0] data);
    unique case (word)
      4'd0: return data[63:59] != '0 || data[15:10] != '0;
      4'd1: return data[31:24] != '0;
      4'd2: return data[63:48] != '0;
      4'd3, 4'd9: return data[63:56] != '0 || data[31:24] != '0;
      4'd7: return data[63:48] != '0;
      default: return 1'b0;
    endcase
  endfunction

  /// checks of set QP; version2 and rq_misaligned come from the words before
  function automatic code_mask_t qp_word_bad(logic [3:0] word, logic [63:0] data, logic version2, logic rq_misaligned);
    code_mask_t bad;
    bad = '0;
    bad[CodeReserved] = qp_reserved(word, data);
    unique case (word)
      4'd0: bad[CodeBadMtu] = data[3:1] < 3'd1 || data[3:1] > 3'd5;
      4'd4: bad[CodeBadBase] = data[6:0] != '0;
      4'd7: begin
        bad[CodeBadCq] = data[15:0] >= 16'(NumCq) || data[31:16] >= 16'(NumCq);
        bad[CodeBadRdAtomic] = data[39:32] > 8'(MaxRdAtomic) || data[47:40] > 8'(MaxRdAtomic);
      end
      4'd9: begin
        // wqe_id holds 13 bits of the index for V1 and 17 for V2; an RQ index has 17, and half of that is the
        // greatest distance that can be told from a stale one
        bad[CodeBadDepth] = !depth_ok(data[23:0], version2 ? 5'd17 : 5'd13)
            || (data[55:32] != '0 && !depth_ok(data[55:32], version2 ? 5'd16 : 5'd13));
        bad[CodeBadBase] = data[55:32] != '0 && rq_misaligned;
      end
      default: ;
    endcase
    return bad;
  endfunction

  /// checks of set CQ; base_low is word 0 bits [5:0]
  function automatic code_mask_t cq_word_bad(logic [3:0] word, logic [63:0] data, logic [5:0] base_low);
    code_mask_t bad;
    bad = '0;
    unique case (word)
      4'd1: begin
        bad[CodeBadDepth] = !depth_ok(data[23:0], 5'd22);
        bad[CodeBadStride] = data[39:32] != 8'd64 && data[39:32] != 8'd32;
        bad[CodeBadBase] = (data[39:32] == 8'd64 && base_low != '0) || (data[39:32] == 8'd32 && base_low[4:0] != '0);
        bad[CodeReserved] = data[63:41] != '0 || data[31:24] != '0;
      end
      4'd2: bad[CodeReserved] = data[63:32] != '0;
      default: ;
    endcase
    return bad;
  endfunction

  /// checks of set MR, all at its last word; an MR that is being invalidated may hold anything
  function automatic code_mask_t mr_word_bad(logic [3:0] word, logic [63:0] data, logic [63:0] base,
                                             logic [63:0] length);
    code_mask_t bad;
    logic [65:0] last;
    bad = '0;
    last = 66'({data[0], length}) + 66'(base);
    if (word == 4'd2 && data[24]) begin
      bad[CodeBadRange] = last > {2'b01, 64'd0};
      bad[CodeBadRights] = (data[2] || data[4]) && !data[1];
      bad[CodeReserved] = data[63:25] != '0 || data[7:5] != '0;
    end
    return bad;
  endfunction
  // verilator lint_on UNUSEDSIGNAL

endpackage
