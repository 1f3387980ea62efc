// AXI4-Lite rules: stable while waiting, no response without its request.
module axil_checker (
  /// clock
  input logic        clk_i,
  /// asynchronous reset, active low
  input logic        rst_ni,
  /// AXI4-Lite
  input logic [31:0] awaddr_i,
  input logic [2:0]  awprot_i,
  input logic        awvalid_i,
  input logic        awready_i,
  input logic [63:0] wdata_i,
  input logic [7:0]  wstrb_i,
  input logic        wvalid_i,
  input logic        wready_i,
  input logic [1:0]  bresp_i,
  input logic        bvalid_i,
  input logic        bready_i,
  input logic [31:0] araddr_i,
  input logic [2:0]  arprot_i,
  input logic        arvalid_i,
  input logic        arready_i,
  input logic [63:0] rdata_i,
  input logic [1:0]  rresp_i,
  input logic        rvalid_i,
  input logic        rready_i
);

  stable_checker #(
    .Width(35),
    .Name ("AXI-Lite AW")
  ) u_aw (
    .clk_i,
    .rst_ni,
    .valid_i  (awvalid_i),
    .ready_i  (awready_i),
    .payload_i({awaddr_i, awprot_i})
  );
  stable_checker #(
    .Width(72),
    .Name ("AXI-Lite W")
  ) u_w (
    .clk_i,
    .rst_ni,
    .valid_i  (wvalid_i),
    .ready_i  (wready_i),
    .payload_i({wdata_i, wstrb_i})
  );
  stable_checker #(
    .Width(2),
    .Name ("AXI-Lite B")
  ) u_b (
    .clk_i,
    .rst_ni,
    .valid_i  (bvalid_i),
    .ready_i  (bready_i),
    .payload_i(bresp_i)
  );
  stable_checker #(
    .Width(35),
    .Name ("AXI-Lite AR")
  ) u_ar (
    .clk_i,
    .rst_ni,
    .valid_i  (arvalid_i),
    .ready_i  (arready_i),
    .payload_i({araddr_i, arprot_i})
  );
  stable_checker #(
    .Width(66),
    .Name ("AXI-Lite R")
  ) u_r (
    .clk_i,
    .rst_ni,
    .valid_i  (rvalid_i),
    .ready_i  (rready_i),
    .payload_i({rdata_i, rresp_i})
  );

  int aw_q, w_q, ar_q;  // requests accepted whose response has not been taken

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      aw_q <= 0;
      w_q  <= 0;
      ar_q <= 0;
    end else begin
      aw_q <= aw_q + int'(awvalid_i && awready_i) - int'(bvalid_i && bready_i);
      w_q  <= w_q + int'(wvalid_i && wready_i) - int'(bvalid_i && bready_i);
      ar_q <= ar_q + int'(arvalid_i && arready_i) - int'(rvalid_i && rready_i);
      if (bvalid_i) begin
        b_has_request : assert (aw_q > 0 && w_q > 0)
        else $error("write response before address and data (AXI A3.3.1)");
      end
      if (rvalid_i) begin
        r_has_request : assert (ar_q > 0)
        else $error("read data before its address (AXI A3.3.1)");
      end
    end
  end

endmodule
