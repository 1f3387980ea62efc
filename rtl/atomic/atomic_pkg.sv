// Types of the atomic unit: what it executes and what comes of it.
package atomic_pkg;
  import rnic_pkg::*;

  /// an atomic whose key, right and range are good and whose address is a multiple of its size
  typedef struct packed {
    qp_t         qpi;
    logic [SlotW+1:0] place;     // in the table of its QP
    psn_t        psn;
    logic [23:0] msn;            // of its answer, if it succeeds
    logic [7:0]  bth;            // request opcode
    logic [63:0] addr;
    amo_t        amo;
  } amo_op_t;

  /// what became of it
  typedef struct packed {
    qp_t         qpi;
    logic [SlotW+1:0] place;
    psn_t        psn;
    logic [23:0] msn;
    logic        err;            // a memory access failed
    logic        skipped;        // not executed: an earlier atomic of its QP failed
    logic [63:0] value;          // original value
  } amo_done_t;

  /// the operation is on 8 bytes, else on 4
  function automatic logic amo_wide(input logic [7:0] bth);
    return bth != BthMCas32 && bth != BthMFa32;
  endfunction
  /// compare-and-swap, else fetch-and-add
  function automatic logic amo_cas(input logic [7:0] bth);
    return bth == BthCmpSwap || bth == BthMCas64 || bth == BthMCas32;
  endfunction
  /// the masks and the field boundary of the request count
  function automatic logic amo_masked(input logic [7:0] bth);
    return bth != BthCmpSwap && bth != BthFetchAdd;
  endfunction

endpackage
