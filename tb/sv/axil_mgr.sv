// AXI4-Lite manager that takes its requests from the C++ mailbox (tb/cpp/mailbox.cpp): writes back to back with several
// responses open, a read only when the bus is idle.
module axil_mgr (
  /// clock
  input  logic        clk_i,
  /// asynchronous reset, active low
  input  logic        rst_ni,
  /// whose mailbox this is
  input  int          pe_i,
  /// the mailbox may hold something (tie to 1 where nobody computes it)
  input  logic        work_i,
  /// AXI4-Lite
  output logic [31:0] awaddr_o,
  output logic [2:0]  awprot_o,
  output logic        awvalid_o,
  input  logic        awready_i,
  output logic [63:0] wdata_o,
  output logic [7:0]  wstrb_o,
  output logic        wvalid_o,
  input  logic        wready_i,
  input  logic [1:0]  bresp_i,
  input  logic        bvalid_i,
  output logic        bready_o,
  output logic [31:0] araddr_o,
  output logic [2:0]  arprot_o,
  output logic        arvalid_o,
  input  logic        arready_i,
  input  logic [63:0] rdata_i,
  input  logic [1:0]  rresp_i,
  input  logic        rvalid_i,
  output logic        rready_o
);

  import "DPI-C" function int mbx_pop(input int pe, input int idle, output int addr, output longint unsigned data,
                                      output int strb, output int aw_wait, output int w_wait);
  import "DPI-C" function void mbx_write_done(input int pe, input int resp);
  import "DPI-C" function void mbx_read_done(input int pe, input longint unsigned data, input int resp);
  import "DPI-C" function void mbx_reset(input int pe);

  /// writes without a response at one time
  localparam int MaxOpen = 8;

  int   open_q;             // writes whose response is missing
  logic reading_q;
  logic aw_todo_q, w_todo_q; // channel holds a request that is not accepted yet
  int   aw_wait_q, w_wait_q;

  assign awprot_o  = 3'd0;
  assign arprot_o  = 3'd0;
  assign bready_o  = 1'b1;
  assign rready_o  = 1'b1;
  assign awvalid_o = aw_todo_q && aw_wait_q == 0;
  assign wvalid_o  = w_todo_q && w_wait_q == 0;

  // not always_ff: locals are assigned in nested blocks
  always @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      open_q    <= 0;
      reading_q <= 1'b0;
      aw_todo_q <= 1'b0;
      w_todo_q  <= 1'b0;
      aw_wait_q <= 0;
      w_wait_q  <= 0;
      arvalid_o <= 1'b0;
    end else begin
      automatic int open = open_q;
      automatic logic aw_todo = aw_todo_q && !(awvalid_o && awready_i);
      automatic logic w_todo = w_todo_q && !(wvalid_o && wready_i);
      automatic logic reading = reading_q;
      if (aw_wait_q != 0) aw_wait_q <= aw_wait_q - 1;
      if (w_wait_q != 0) w_wait_q <= w_wait_q - 1;
      if (arvalid_o && arready_i) arvalid_o <= 1'b0;
      if (bvalid_i) begin
        mbx_write_done(pe_i, int'(bresp_i));
        open -= 1;
      end
      if (rvalid_i) begin
        mbx_read_done(pe_i, rdata_i, int'(rresp_i));
        reading = 1'b0;
      end
      if (work_i && !aw_todo && !w_todo && !reading && open < MaxOpen) begin
        automatic int addr, strb, aw_wait, w_wait;
        automatic longint unsigned data;
        case (mbx_pop(pe_i, int'(open == 0), addr, data, strb, aw_wait, w_wait))
          1: begin
            awaddr_o  <= addr;
            wdata_o   <= data;
            wstrb_o   <= 8'(strb);
            aw_wait_q <= aw_wait;
            w_wait_q  <= w_wait;
            aw_todo = 1'b1;
            w_todo  = 1'b1;
            open += 1;
          end
          2: begin
            araddr_o  <= addr;
            arvalid_o <= 1'b1;
            reading = 1'b1;
          end
          default: ;
        endcase
      end
      open_q    <= open;
      aw_todo_q <= aw_todo;
      w_todo_q  <= w_todo;
      reading_q <= reading;
    end
  end

  always_ff @(posedge clk_i) begin
    if (rst_ni && arvalid_o) begin
      read_alone : assert (open_q == 0)
      else $error("a read is on the bus with %0d writes open: MMIO is in order per PE", open_q);
    end
  end

  // what the C++ side has of before the reset is gone with it
  always_ff @(negedge rst_ni) mbx_reset(pe_i);

endmodule
