// Counts cycles and reports an error of the chosen kind when the count is reached.
module error_bench (
  input  logic       clk_i,
  input  logic       rst_ni,
  /// 0 none, 1 $error, 2 $fatal, 3 immediate assertion, 4 concurrent assertion, 5 $stop, 6 $finish
  input  logic [2:0] kind_i,
  output logic [7:0] count_o
);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) count_o <= '0;
    else count_o <= count_o + 8'd1;
  end

  always_ff @(posedge clk_i) begin
    if (rst_ni && count_o == 8'd20) begin
      case (kind_i)
        3'd1: $error("planted error");
        3'd2: $fatal(1, "planted fatal");
        3'd5: $stop;
        3'd6: $finish;
        default: ;
      endcase
      planted_immediate : assert (kind_i != 3'd3)
      else $error("planted immediate assertion");
    end
  end

  planted_concurrent : assert property (@(posedge clk_i) disable iff (!rst_ni) count_o == 8'd20 |=> kind_i != 3'd4)
  else $error("planted concurrent assertion");

endmodule
