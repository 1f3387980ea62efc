// Cuts one packet from a message (wire.md section 2): how many bytes from where, whether it is the first or last, and how
// many packets the message has. The request of a READ or atomic is one packet without payload, and takes the PSNs of its
// responses. Where a message is sent again, the packets before the oldest unacknowledged one are left out: a WRITE goes on in
// the middle, a READ asks for the rest. One register stage.
module tx_cut
  import rnic_pkg::*;
  import req_pkg::*;
(
  /// clock
  input  logic            clk_i,
  /// cut
  input  logic            en_i,
  /// message in progress: the rest counts, else the whole WQE
  input  logic            mid_i,
  /// packets of the message that are left out, if it is not in progress
  input  psn_t            skip_i,
  /// READ or atomic
  input  logic            fetches_i,
  /// path MTU, 1..5
  input  logic [2:0]      mtu_i,
  /// message length
  input  logic [31:0]     len_i,
  /// message source
  input  logic [63:0]     laddr_i,
  /// bytes left
  input  logic [LenW-1:0] rem_i,
  /// where they are
  input  logic [63:0]     src_i,
  /// source of the access to judge, in the cycle of en_i: whole message at first, then the packet
  output logic [63:0]     chk_va_o,
  /// its bytes
  output logic [31:0]     chk_len_o,
  /// first packet of the message that is sent
  output logic            first_o,
  /// last packet of the message
  output logic            last_o,
  /// payload bytes
  output logic [12:0]     pay_o,
  /// payload source
  output logic [63:0]     laddr_o,
  /// bytes left behind this packet
  output logic [LenW-1:0] rem_o,
  /// source behind this packet
  output logic [63:0]     src_o,
  /// a READ asks for bytes from here on
  output logic [31:0]     off_o,
  /// packets of the message that are still to be sent, at least 1
  output psn_t            num_o,
  /// PSNs that this packet takes
  output psn_t            step_o
);
  logic [31:0]     off;
  logic [12:0]     mtu, pay;
  logic [LenW-1:0] left;
  logic [LenW:0]   num;
  logic            last;

  always_comb begin
    off       = '0;
    mtu       = '0;
    left      = '0;
    num       = '0;
    last      = 1'b0;
    pay       = '0;
    chk_va_o  = '0;
    chk_len_o = '0;
    if (en_i) begin
      mtu       = 13'd1 << mtu_log(mtu_i);
      off       = mid_i ? '0 : 32'(skip_i) << mtu_log(mtu_i);
      left      = mid_i ? rem_i : len_i - off;
      last      = (left <= LenW'(mtu));
      pay       = last ? left[12:0] : mtu;
      if (fetches_i) begin
        last = 1'b1;
        pay  = '0;
      end
      num       = ({1'b0, left} + (LenW + 1)'(mtu) - (LenW + 1)'(1)) >> mtu_log(mtu_i);
      if (left == '0) num = (LenW + 1)'(1);
      chk_va_o  = mid_i ? src_i : laddr_i + 64'(off);
      chk_len_o = mid_i ? 32'(pay) : left;
    end
  end

  always_ff @(posedge clk_i) begin
    if (en_i) begin
      off_o   <= off;
      first_o <= !mid_i;
      last_o  <= last;
      pay_o   <= pay;
      laddr_o <= chk_va_o;
      rem_o   <= left - LenW'(pay);
      src_o   <= chk_va_o + 64'(pay);
      num_o   <= num[23:0];
      step_o  <= fetches_i ? num[23:0] : psn_t'(1);
    end
  end

  logic unused;
  assign unused = &{1'b0, num[LenW:24]};
endmodule
