// Deep queue in a memory with registered read, with a short queue at its output. Flags come from state only; an entry
// shows at the output three cycles after it was accepted.
module ram_fifo #(
    /// payload type
    parameter type T = logic,
    /// entries in the memory, a power of two
    parameter int unsigned Depth = 128,
    /// the writer does not look at in_ready_o, because it knows that there is room: what does not fit is a fault
    parameter bit Fits = 1'b0,
    /// derived: width of the fill count
    localparam int unsigned CntW = $clog2(Depth + 1)
) (
    /// clock
    input  logic clk_i,
    /// asynchronous reset, active low
    input  logic rst_ni,
    /// entry offered
    input  logic in_valid_i,
    /// an entry is free
    output logic            in_ready_o,
    /// entry to store
    input  T     in_data_i,
    /// an entry is available
    output logic            out_valid_o,
    /// oldest entry is taken
    input  logic out_ready_i,
    /// oldest entry
    output T                out_data_o,
    /// entries in the memory, without those at the output
    output logic [CntW-1:0] count_o
);
  localparam int unsigned PtrW = $clog2(Depth);
  // entries on their way out: enough for one a cycle over the two cycles from read strobe to output
  localparam int unsigned OutDepth = 4;

  logic [PtrW-1:0]            wr_q, rd_q;
  logic [CntW-1:0]            cnt_q;
  logic                       full_q, read_q, push, read;
  logic [$clog2(OutDepth+1)-1:0] out_cnt;
  T                           rd_data;
  logic                       unused_ready;  // room was checked before the read

  assign count_o    = cnt_q;
  assign push       = in_valid_i && in_ready_o;
  assign in_ready_o = !full_q;
  assign read       = cnt_q != '0 && out_cnt + 3'(read_q) < 3'(OutDepth);

  ram_sdp #(.T(T), .Depth(Depth)) i_ram (
      .clk_i, .wr_en_i(push), .wr_addr_i(wr_q), .wr_data_i(in_data_i),
      .rd_en_i(read), .rd_addr_i(rd_q), .rd_data_o(rd_data)
  );

  fifo #(.T(T), .Depth(OutDepth), .Fits(1'b1)) i_out (
      .clk_i, .rst_ni, .in_valid_i(read_q), .in_ready_o(unused_ready), .in_data_i(rd_data),
      .out_valid_o, .out_ready_i, .out_data_o, .count_o(out_cnt)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q   <= '0;
      rd_q   <= '0;
      cnt_q  <= '0;
      full_q <= 1'b0;
      read_q <= 1'b0;
    end else begin
      read_q <= read;
      if (push) wr_q <= wr_q + PtrW'(1);
      if (read) rd_q <= rd_q + PtrW'(1);
      if (push && !read) begin
        cnt_q  <= cnt_q + CntW'(1);
        full_q <= cnt_q == CntW'(Depth - 1);
      end else if (read && !push) begin
        cnt_q  <= cnt_q - CntW'(1);
        full_q <= 1'b0;
      end
    end
  end

  `ifndef SYNTHESIS
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (rst_ni && Fits) begin
      assert (!in_valid_i || in_ready_o)
      else $error("%m: an entry does not fit and is lost");
    end
  end
  `endif  // SYNTHESIS
endmodule
