// CQE layout of both format versions (device.md sections 2.1 and 2.2, nic.md section 6). Combinational. All fields that
// are not named stay 0: vni, has_pph, csum_err.
module cqe_format
  import rnic_pkg::*;
(
  /// format version of the QP
  input  logic         version2_i,
  /// QP index
  input  qp_t          qpi_i,
  /// of a receive WQE, else of a WQE of the send queue
  input  logic         recv_i,
  /// error code, CqeOk for success
  input  logic [7:0]   code_i,
  /// opcode of the sender's WQE, 0 where it is not known
  input  logic [7:0]   opcode_i,
  /// with_imm of the WQE, 0 where it is not known
  input  logic         with_imm_i,
  /// immediate data that came with the message
  input  logic [31:0]  imm_i,
  /// solicited event
  input  logic         se_i,
  /// bytes moved
  input  logic [31:0]  len_i,
  /// index of the WQE
  input  logic [16:0]  idx_i,
  /// cycles since reset
  input  logic [47:0]  time_i,
  /// owner bit
  input  logic         owner_i,
  /// 32-byte CQE, byte 0 in [7:0]
  output logic [255:0] cqe_o
);
  always_comb begin
    cqe_o          = '0;
    cqe_o[7:0]     = code_i;
    cqe_o[22:8]    = 15'(qpi_i) + 15'(FirstQpn);
    cqe_o[24]      = se_i;
    cqe_o[26]      = recv_i;
    cqe_o[27]      = with_imm_i;
    cqe_o[63:32]   = imm_i;
    cqe_o[95:64]   = (code_i == CqeOk) ? len_i : 32'd0;
    cqe_o[175:128] = time_i;
    cqe_o[199:192] = opcode_i;
    // wqe_id is the index in units of 16 bytes
    if (version2_i) cqe_o[223:204] = {idx_i, 3'b000};
    else cqe_o[191:176] = {idx_i[12:0], 3'b000};
    cqe_o[255]     = owner_i;
  end
endmodule
