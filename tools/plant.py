"""Planted RTL faults: does a run turn red when the design is wrong in one place?

``python tools/plant.py --list`` prints the table of faults, ``--all`` (or names) plants them one after the
other and prints for each whether it was caught, by which program and why; exit code 1 if any was missed or
the unplanted model is not green.

All faults live in one model: a copy of ``rtl/`` in which each place reads "if this fault is chosen, the wrong
expression, else the right one" (mutant schemata). A run chooses one by ``+plant=n``; 0 chooses none and must
pass. So that a table that no longer fits the design cannot pass unseen, every place must be found exactly
once.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tb.sim import build, run  # noqa: E402  (needs the path above)
from tools.rtl_files import rtl_files  # noqa: E402

#: directory of the mutated sources, the results and the logs
OUT = build.BUILD / "plant"
PACKAGE = """// Which fault is planted: +plant=n, 0 none.
package plant_pkg;
  function automatic int unsigned chosen();
    int unsigned n;
    if ($value$plusargs("plant=%d", n) == 0) n = 0;
    return n;
  endfunction
  int unsigned planted = chosen();
endpackage
"""


@dataclass(frozen=True)
class Fault:
    """One wrong place.

    ``place``: source text, found once in ``file``; what «» marks is an expression, and ``wrong`` comes in its
    place.
    """

    name: str
    file: str
    place: str
    wrong: str

    @property
    def block(self) -> str:
        """The folder of the design that it is in."""
        return self.file.split("/")[0]


FAULTS = [
    # ---- doorbell
    Fault("doorbell-stale-accepted", "doorbell/db_pkg.sv", "end else if («ahead <= half») begin", "1'b1"),
    Fault(
        "doorbell-full-ring-refused",
        "doorbell/db_pkg.sv",
        "(IdxW + 1)'(outstanding) <= «((IdxW + 1)'(1) << log)»",
        "(((IdxW + 1)'(1) << log) - (IdxW + 1)'(1))",
    ),
    Fault(
        "doorbell-overrun-accepted",
        "doorbell/db_pkg.sv",
        "<= «((IdxW + 1)'(1) << log)») begin",
        "((IdxW + 1)'(2) << log)",
    ),
    Fault("doorbell-v1-width", "doorbell/db_pkg.sv", "return version2 ? '1 : «18'h03fff»;", "18'h07fff"),
    Fault(
        "async-event-number",
        "doorbell/db_decode.sv",
        "AsyncSqOverrun,\n          number: 24'(eff_qpi_q) + «24'(FirstQpn)»",
        "24'd0",
    ),
    # ---- fetch
    Fault("fetch-ring-wrap-missing", "fetch/fetch_eng.sv", "if («to_end < idx_t'(num)») num", "1'b0"),
    Fault("fetch-crosses-4k", "fetch/fetch_eng.sv", "if («to_page < 6'(num)») num", "1'b0"),
    Fault(
        "fetch-not-announced", "fetch/fetch_eng.sv", "if («avail < idx_t'(num)») num = avail[3:0];", "1'b0"
    ),
    Fault(
        "decode-dirty-bit",
        "fetch/wqe_decode.sv",
        "assign with_imm   = «data_i[8]»;",
        "(data_i[8] || data_i[9])",
    ),
    Fault(
        "decode-id-unchecked",
        "fetch/wqe_decode.sv",
        "else if («id_index != idx_logical(idx_i, version2_i) || id_low != 3'd0»)",
        "id_low != 3'd0",
    ),
    Fault(
        "decode-local-length-unchecked",
        "fetch/wqe_decode.sv",
        "default:   len_bad = «(len_a != msg_len) || (len_b != msg_len)»;",
        "len_a != msg_len",
    ),
    Fault(
        "decode-swap-mask-misplaced",
        "fetch/wqe_decode.sv",
        "amo.swap_mask    = dp_pkg::be64(«ext_i[63:0]»);",
        "ext_i[127:64]",
    ),
    Fault(
        "atomic-length-of-its-wqe",
        "fetch/wqe_decode.sv",
        "wqe_o.len      = («cls == ClsAtomic») ? seg_want",
        "1'b0",
    ),
    Fault(
        "fetch-error-of-the-first-beat",
        "fetch/fetch_eng.sv",
        ".bus_err_i(«err_q || beat_i.err»),",
        "beat_i.err",
    ),
    Fault(
        "decode-segments-behind-lengths",
        "fetch/wqe_decode.sv",
        "else if («ds_num != ds_want») wqe_o.err",
        "ds_num != ds_want && !len_bad",
    ),
    Fault(
        "decode-message-limit",
        "fetch/wqe_decode.sv",
        "else if («msg_len > 32'h8000_0000») wqe_o.err",
        "msg_len > 32'h8000_0001",
    ),
    # ---- context
    Fault(
        "reset-late",
        "context/ctx_cmd.sv",
        "assign reset_o = '{valid: «cmd_op == OpReset && cmd_live» && cmd_bad == '0,",
        "st_q == StJudge && op_q == OpReset && live_q",
    ),
    Fault(
        "reset-in-spite-of-reserved-bits",
        "context/ctx_cmd.sv",
        "cmd_op == OpReset && cmd_live && «cmd_bad == '0»,",
        "1'b1",
    ),
    Fault(
        "cq-in-use-unchecked",
        "context/ctx_cmd.sv",
        "bad_d[CodeCqInUse] = «live_q && cq_rdata.users != '0»;",
        "1'b0",
    ),
    Fault(
        "refused-region-rights",
        "context/ctx_pkg.sv",
        "bad[CodeBadRights] = «(data[2] || data[4]) && !data[1]»;",
        "1'b0",
    ),
    Fault(
        "fence-snapshot-early",
        "context/mr_fence.sv",
        "end else if («delay_q != DelayW'(Delay)») begin",
        "1'b0",
    ),
    # ---- requester
    Fault("psn-step-zero-length", "requester/tx_cut.sv", "if («left == '0») num = (LenW + 1)'(1);", "1'b0"),
    Fault(
        "cut-last-at-mtu", "requester/tx_cut.sv", "last      = («left <= LenW'(mtu)»);", "left < LenW'(mtu)"
    ),
    Fault(
        "ack-interval",
        "requester/tx_form.sv",
        "last_i || (num_i == «4'(AckInterval - 1)»);",
        "4'(AckInterval - 2)",
    ),
    Fault(
        "ack-covers-one-more", "requester/ack_track.sv", "rsp_q.psn + «psn_t'(1)» : rsp_q.psn;", "psn_t'(2)"
    ),
    Fault(
        "ack-outside-window",
        "requester/ack_track.sv",
        "assign known     = («in_window < (iss.psn - una.psn)»)",
        "1'b1",
    ),
    Fault(
        "nak-code-swapped",
        "requester/ack_track.sv",
        "(mark_i.odd ? CqeAtomicVa : «CqeNakInvReq»)",
        "CqeNakAccess",
    ),
    Fault(
        "gather-error-does-not-stop",
        "memory/gather.sv",
        "blocked = «blocked_q[pkt_q.job.qpi] && psn_t'(pkt_q.job.psn - blocked_psn) < 24'h80_0000»;",
        "1'b0",
    ),
    Fault("in-flight-unbounded", "requester/tx_sched.sv", ">= «5'(MaxInflight)») &&", "5'd31"),
    Fault(
        "read-takes-one-psn",
        "requester/tx_sched.sv",
        "assign psn_next     = send ? psn_q[lane_q] + «step» :",
        "psn_t'(1)",
    ),
    Fault(
        "read-ends-at-first-data",
        "requester/ack_track.sv",
        "assign ends     = is_data && «rsp_q.last» &&",
        "1'b1",
    ),
    Fault(
        "read-never-counted-out",
        "requester/ack_track.sv",
        "rd: rd_q + rd_num_t'(«rd_step_q»)",
        "1'b0",
    ),
    Fault(
        "four-byte-result-as-eight",
        "requester/tx_form.sv",
        "«op_atomic4(wqe_i.opcode)» ? ExpAmo4",
        "1'b0",
    ),
    Fault(
        "fence-ignored",
        "requester/tx_gate.sv",
        "assign rd_ok       = («!fence_i || outstanding == '0») && (!fetches_i",
        "1'b1",
    ),
    Fault(
        "read-limit-ignored",
        "requester/tx_gate.sv",
        "&& (!fetches_i || «outstanding < keep.max_rd»);",
        "1'b1",
    ),
    # ---- completion
    Fault("cqe-owner-of-next-index", "completion/cq_state.sv", ": {9'd0, «pos.pi»};", "(pos.pi + 23'd1)"),
    Fault(
        "cqe-slot-of-next-index",
        "completion/cq_state.sv",
        "assign slot  = «pos.pi» & (depth",
        "(pos.pi + 23'd1)",
    ),
    Fault(
        "cq-room-off-by-one",
        "completion/cq_state.sv",
        "keep.ignore_overrun || («used < depth»);",
        "used <= depth",
    ),
    Fault(
        "cq-doorbell-beyond-producer",
        "completion/cq_state.sv",
        "assign db_verdict_o = («ahead <= used»)",
        "ahead <= used + 23'd1",
    ),
    Fault(
        "cqe-strobes-neighbour",
        "completion/cqe_writer.sv",
        "beat_o.strb[63:32]   = '1;\n      end else begin\n        beat_o.data[255:0] = head.payload;\n"
        "        beat_o.strb[31:0]  = «'1»;",
        "32'h7fff_ffff",
    ),
    Fault("cqe-length-on-error", "completion/cqe_format.sv", "(«code_i == CqeOk») ? len_i", "1'b1"),
    Fault("cqe-flush-opcode", "completion/comp_eng.sv", "if («what == WhatFlush» || (is_recv", "1'b0"),
    Fault(
        "cqe-order-not-kept",
        "completion/comp_eng.sv",
        "if («acked_q && !flush_q[qpi_q]» && !failed_i) what = WhatGood;",
        "(acked_q || next_acked_q) && !flush_q[qpi_q]",
    ),
    Fault(
        "retired-index-late",
        "completion/comp_eng.sv",
        "retire_o          <= «moved»;",
        "{moved.valid, moved.qpi, ri}",
    ),
    Fault(
        "flush-missing",
        "completion/comp_eng.sv",
        "assign push    = «go && need && !overrun»;",
        "go && need && !overrun && what != WhatFlush",
    ),
    Fault(
        "error-without-ce-silent",
        "completion/comp_eng.sv",
        "assign need    = («what == WhatFail») ||",
        "what == WhatFail && entry_i.wqe.ce",
    ),
    Fault("cq-wait-ignored", "completion/comp_eng.sv", "(«time_i - since > {16'd0, cq_wait_i}»)", "1'b0"),
    Fault(
        "arm-fires-for-ever",
        "completion/cq_event.sv",
        "if («set_valid_o») arm_q[done_cqn_i] <= 1'b0;",
        "1'b0",
    ),
    Fault(
        "arm-solicited-ignored",
        "completion/cq_event.sv",
        "(«!arm_sol_q[done_cqn_i] || done_solicit_i»);",
        "1'b1",
    ),
    Fault(
        "room-wakes-one-qp",
        "completion/comp_pend.sv",
        "(wake_all ? «wait_q» : '0);",
        "(wait_q & (~wait_q + NumQp'(1)))",
    ),
    Fault(
        "overrun-ends-one-qp",
        "completion/cq_event.sv",
        "walk_q <= («qpi_q != qp_t'(NumQp - 1)»);",
        "qpi_q != qp_t'(NumQp - 1) && !err_o.valid",
    ),
    Fault("cqe-bus-error-ignored", "completion/cqe_writer.sv", "assign done_err_o     = «b_err_i»;", "1'b0"),
    Fault("counter-collision", "csr/counter_merge.sv", "if («owed_q != '0») cnt_o", "1'b0"),
    # ---- loss recovery
    Fault(
        "retry-stops-behind-a-failure",
        "requester/requester.sv",
        ".live_i(«live & ~stop»), .tx_fail_i",
        "live & ~stop & ~fail_local",
    ),
    Fault("reset-leaves-cqes", "requester/requester.sv", "«drain_cqe»);", "1'b0"),
    Fault(
        "retry-limit-off-by-one",
        "requester/retry_ctl.sv",
        "(is_seq && «passes_q[qpi_q] == limit.retry»)",
        "passes_q[qpi_q] == limit.retry + 3'd1",
    ),
    Fault("rnr-wait-ignored", "requester/retry_ctl.sv", "wait_valid   = «go && !empty && is_rnr»;", "1'b0"),
    Fault(
        "resume-from-the-start",
        "requester/retry_ctl.sv",
        "skip: «(started && !failed) ? una.psn - first_i : '0»,",
        "'0",
    ),
    Fault(
        "rest-of-a-message-from-the-start",
        "requester/retry_ctl.sv",
        "started = («una.idx != high.idx»);",
        "una.psn != high.psn",
    ),
    Fault(
        "timer-never-expires", "requester/retry_timer.sv", "'{valid: «running && expired», qpi: at_q", "1'b0"
    ),
    Fault("passed-read-forgotten", "requester/ack_track.sv", "retry_o.valid   = «implied» || is_rnr", "1'b0"),
    Fault(
        "duplicate-atomic-executed",
        "responder/resp_rules.sv",
        "else if (seen_i.ready) act_o.kind = «ActSaved»;",
        "ActAtomic",
    ),
    Fault(
        "nak-for-each-packet-ahead", "responder/resp_rules.sv", "act_o.ack  = «!state_i.nak_sent»;", "1'b1"
    ),
    # ---- memory
    Fault(
        "gather-leaves-the-fence",
        "memory/gather.sv",
        "assign mr_drain_busy_o = «ahead_q || fence_busy»;",
        "1'b0",
    ),
    Fault("gather-error-ignored", "memory/gather.sv", "assign done_err = «err_q || beat_i.err»;", "1'b0"),
    Fault(
        "gather-not-whole", "memory/gather.sv", "assign whole   = «pkt_q.beats == '0 || head_done»;", "1'b1"
    ),
    Fault(
        "strobe-end-off-by-one",
        "memory/realign.sv",
        "? 7'd64 : «{1'b0, cmd_end[5:0]}»;",
        "{1'b0, cmd_end[5:0]} + 7'd1",
    ),
    Fault(
        "strobe-start-off-by-one",
        "memory/realign.sv",
        "{DataBytes{1'b1}} << «s1_q.lo»;",
        "{s1_q.lo[5:1], 1'b0}",
    ),
    Fault("realign-stale-lanes", "memory/realign.sv", "older = «s1_q.alone» ? rd_data_i : prev_q;", "1'b1"),
    Fault(
        "scatter-page-crossing",
        "memory/scatter.sv",
        "assign two         = «!cmd.move.skip && beats > to_page_end»;",
        "1'b0",
    ),
    Fault(
        "atomic-reads-whole-beat",
        "memory/axi_rd_mux.sv",
        "assign m_axi_arsize  = «ar.req.size»;",
        "SizeBeat",
    ),
    Fault(
        "decerr-on-reads-ignored", "memory/axi_rd_mux.sv", "err: «m_axi_rresp[1]»,", "m_axi_rresp == 2'b10"
    ),
    Fault(
        "decerr-on-writes-ignored",
        "memory/axi_wr_mux.sv",
        "b_err_o <= «m_axi_bresp[1]»;",
        "m_axi_bresp == 2'b10",
    ),
    Fault(
        "lock-ignored", "memory/scatter.sv", "assign locked   = «lock_valid_i» && !cmd.move.result", "1'b0"
    ),
    Fault("result-under-inbound-id", "memory/scatter.sv", "= «cmd.move.result» ? IdResult", "1'b0"),
    Fault(
        "empty-response-not-counted-out",
        "memory/gather.sv",
        "rsp_out_valid_o <= «leave && is_rsp»;",
        "leave && is_rsp && pkt_q.beats != '0",
    ),
    Fault(
        "mr-bound-without-carry",
        "memory/mr_check.sv",
        "past     = «{1'b0, offset} + 66'(s1_q.len)»;",
        "{2'b00, offset[63:0] + {32'd0, s1_q.len}}",
    ),
    Fault(
        "mr-end-unchecked",
        "memory/mr_check.sv",
        "assign range_ok = «past» <= {1'b0, region.length};",
        "{1'b0, offset}",
    ),
    Fault(
        "mr-tag-unchecked",
        "memory/mr_check.sv",
        "«s1_q.tag == (s1_q.remote ? region.rtag : region.ltag)»;",
        "1'b1",
    ),
    Fault(
        "mr-right-unchecked", "memory/mr_check.sv", "RightRemWrite: right_ok = «region.rem_write»;", "1'b1"
    ),
    # ---- responder
    Fault(
        "ack-before-write-response",
        "responder/wr_order.sv",
        "assign waits        = «seen_q != head.bursts»;",
        "1'b0",
    ),
    Fault(
        "write-error-ignored",
        "responder/wr_order.sv",
        "assign out_failed_o = «bad_q || (waits && b_err)»;",
        "1'b0",
    ),
    Fault(
        "executes-after-nak",
        "responder/responder.sv",
        "qp_rts_i[p1_qpi_q] && «!nak_q[p1_qpi_q]» && !dead_i[p1_qpi_q]",
        "1'b1",
    ),
    Fault("duplicate-executed", "responder/resp_rules.sv", "end else if («ahead[23]») begin", "1'b0"),
    Fault("psn-ahead-executed", "responder/resp_rules.sv", "end else if («ahead != '0») begin", "1'b0"),
    Fault(
        "msn-not-for-only",
        "responder/resp_rules.sv",
        "if («last || only || read || atomic») next_o.msn",
        "last",
    ),
    Fault("qp-right-unchecked", "responder/resp_rules.sv", "!length_ok || «!right_ok» || (atomic", "1'b0"),
    Fault(
        "nak-code-wrong",
        "responder/resp_emit.sv",
        "if (refused) done_o.syndrome = act_i.send ? SynNakOp : «SynNakAcc»;",
        "SynNakInv",
    ),
    Fault(
        "atomic-under-qp-write-right",
        "responder/resp_rules.sv",
        "ctx_i.rem_read : (atomic ? «ctx_i.rem_atomic» : (send",
        "ctx_i.rem_write",
    ),
    Fault(
        "atomic-under-region-write-right",
        "responder/resp_rules.sv",
        "= read ? RightRemRead : (atomic ? «RightRemAtom» : RightRemWrite);",
        "RightRemWrite",
    ),
    Fault("nak-repeated", "responder/resp_rules.sv", "act_o.ack  = «!state_i.nak_sent»;", "1'b1"),
    Fault("read-psn-count", "responder/resp_pkg.sv", "sum = 33'(len) + (33'd128 << mtu) - «33'd1»;", "33'd0"),
    Fault("read-msn", "responder/resp_emit.sv", "psn: hdr_i.psn, msn: «next_i.msn», rkey:", "state_i.msn"),
    Fault(
        "read-middle-opcode",
        "responder/resp_turn.sv",
        "mid_i ? (last ? BthReadLast : «BthReadMiddle»)",
        "BthReadFirst",
    ),
    Fault(
        "read-progress",
        "responder/resp_table.sv",
        "addr: addr_o + 64'(«step_len_i»)};",
        "step_len_i + 13'd1",
    ),
    Fault("read-place-kept", "responder/resp_table.sv", "if («read_out_i») out_q[read_out_qpi_i]", "1'b0"),
    Fault("write-overtakes-atomic", "responder/responder.sv", "!hazard && !«behind» &&", "1'b0"),
    Fault(
        "atomic-overtakes-read",
        "responder/resp_turn.sv",
        "assign amo      = tries && atomic && (executed_i || entry_i.dup) && «!in_gather_i»;",
        "1'b1",
    ),
    Fault(
        "read-overtakes-atomic",
        "responder/resp_turn.sv",
        "assign go       = tries && !atomic && «!in_answer_i» && job_room_i;",
        "1'b1",
    ),
    Fault(
        "response-offset",
        "responder/rsp_rules.sv",
        "act_o.addr   = expect_i.laddr + 64'(«offset»);",
        "36'd0",
    ),
    Fault(
        "atomic-result-order",
        "responder/rsp_rules.sv",
        "(expect_i.kind == ExpAmo8) ? AckValueLe : «AckValueBe»;",
        "AckValueLe",
    ),
    Fault("response-psn-kept", "responder/rd_expect.sv", "mid_q[take_qpi_i] <= «!take_last_i»;", "1'b0"),
    # ---- atomic
    Fault(
        "atomic-carry-across-fields",
        "atomic/atomic_alu.sv",
        "sum = ((«old_i & ~boundary») + (amo_i",
        "old_i",
    ),
    Fault(
        "atomic-compare-mask-ignored",
        "atomic/atomic_alu.sv",
        "(old_i ^ amo_i.compare) & «compare_mask» & width",
        "64'hffff_ffff_ffff_ffff",
    ),
    Fault(
        "atomic-failed-compare-writes",
        "atomic/atomic_unit.sv",
        "finish = rd_beat_i.err || «!write»;",
        "1'b0",
    ),
    Fault(
        "atomic-ignores-earlier-writes",
        "atomic/atomic_unit.sv",
        "assign rd_req_valid_o = state_q == StDrain && «ahead == '0»;",
        "1'b1",
    ),
    Fault(
        "atomic-answered-before-its-write",
        "atomic/atomic_unit.sv",
        "StResponse: if («b_valid_i») begin",
        "1'b1",
    ),
    Fault(
        "atomic-upper-word",
        "atomic/atomic_unit.sv",
        "64'(«op_q.addr[2]» ? word[63:32] : word[31:0]);",
        "1'b0",
    ),
    # ---- receive queues
    Fault("rnr-never", "responder/resp_rules.sv", "else if («takes && !rq_ready_i») begin", "1'b0"),
    Fault(
        "rnr-latch-missing",
        "responder/responder.sv",
        "«act_qq.kind inside {ActAhead, ActNotReady}»);",
        "act_qq.kind == ActAhead",
    ),
    Fault(
        "receive-length-unchecked", "responder/resp_rules.sv", "else if («send && too_long») begin", "1'b0"
    ),
    Fault(
        "receive-key-unchecked",
        "responder/resp_rules.sv",
        "act_o.right  = «RightLocWrite»;",
        "RightNone",
    ),
    Fault(
        "receive-slot-error-ignored",
        "responder/resp_rules.sv",
        "(«send && begins && rq_i.err») begin",
        "1'b0",
    ),
    Fault(
        "send-continues-a-write",
        "responder/resp_rules.sv",
        "state_i.in_message && («begins || send == state_i.send»);",
        "1'b1",
    ),
    Fault(
        "receive-slot-read-too-early",
        "receive/rq_slots.sv",
        "if («avail < rq_idx_t'(num)») num = avail[2:0];",
        "1'b0",
    ),
    Fault("receive-slot-wrap", "receive/rq_slots.sv", "if («to_end < rq_idx_t'(num)») num", "1'b0"),
    Fault(
        "receive-slot-not-awaited",
        "responder/responder.sv",
        "(«rq_marked_i[qpi] || (rq_ready_i[qpi] && !rq_loaded_i[qpi] && is_send(hdr_i.bth))»);",
        "1'b0",
    ),
    Fault("receive-room-unlimited", "receive/rq_slots.sv", "ready_q[qpi_q]  <= «posted && room»;", "posted"),
    Fault(
        "immediate-misplaced",
        "wire/rx_verdict.sv",
        "be32((«op == BthWriteOnlyImm») ?",
        "1'b0",
    ),
    Fault(
        "solicited-event-lost", "completion/comp_eng.sv", "solicit: «se || code != CqeOk»", "code != CqeOk"
    ),
    Fault(
        "receive-error-tells-of-its-message", "completion/comp_eng.sv", "(«is_recv && code != CqeOk»)", "1'b0"
    ),
    Fault(
        "receive-flush-missing", "completion/recv_pend.sv", "assign flush_o = «qp_err_i[qpi_i]» &&", "1'b0"
    ),
    Fault(
        "receive-flush-early",
        "completion/recv_pend.sv",
        "posted_q && «!on_way» && cnt_q",
        "1'b1",
    ),
    Fault(
        "receive-cqe-before-its-data",
        "responder/resp_done.sv",
        "head.recv && «!failed» && !dead",
        "1'b1",
    ),
    Fault(
        "receive-index-stuck", "doorbell/db_index.sv", "else retired_o = «retired_live_q[qpi_i]» ?", "1'b0"
    ),
    Fault("receive-cq-swapped", "completion/comp_eng.sv", "assign cq       = «is_recv» ?", "1'b0"),
    Fault(
        "write-imm-needs-no-receive",
        "common/dp_pkg.sv",
        "opens_send(op) || «op == BthWriteLastImm» || op",
        "1'b0",
    ),
    # ---- wire
    Fault("icrc-ignored", "wire/rx_verdict.sv", "else if («icrc_recv_i != icrc_calc_i») reason", "1'b0"),
    Fault("opcode-unchecked", "wire/rx_verdict.sv", "else if («!opcode_known(op)») reason", "1'b0"),
    Fault("pkey-unchecked", "wire/rx_verdict.sv", "(«head_i[8*30+:16] != DefaultPkey») reason", "1'b0"),
    Fault("tver-unchecked", "wire/rx_verdict.sv", "else if («head_i[8*29+:4] != 4'd0») reason", "1'b0"),
    Fault(
        "udp-port-unchecked", "wire/rx_verdict.sv", "(«be16(head_i[8*22+:16]) != RoceUdpPort») reason", "1'b0"
    ),
    Fault("length-unchecked", "wire/rx_verdict.sv", "else if («!len_ok») reason", "1'b0"),
    Fault("ip-checksum-unchecked", "wire/rx_verdict.sv", "assign sum_ok = «sum[15:0] == 16'hffff»;", "1'b1"),
    Fault(
        "pad-count",
        "wire/tx_header.sv",
        "assign pad    = «2'(-draft_q.pay_len[1:0])»;",
        "draft_q.pay_len[1:0]",
    ),
    Fault("mig-req-bit", "wire/tx_header.sv", "draft_q.se, «1'b1», pad, 4'h0, draft_q.bth,", "1'b0"),
    Fault("ip-checksum-fold", "wire/tx_header.sv", "return «~sum[15:0]»;", "~sum[16:1]"),
    Fault(
        "read-response-aeth-empty",
        "wire/tx_header.sv",
        "if («read_has_aeth(pkt_i.bth)») draft.ext",
        "1'b0",
    ),
    Fault(
        "atomic-header-cut",
        "wire/tx_merge.sv",
        "else carry_q <= «data_t'(hdr_i.data[MaxHdrW-1:DataW])»;",
        "'0",
    ),
    Fault(
        "atomic-operand-misplaced",
        "wire/rx_verdict.sv",
        "amo.compare_mask = «64'(be32(d[8*12+:32]))»;",
        "64'(be32(d[8*8+:32]))",
    ),
    Fault(
        "atomic-value-byte-order",
        "wire/rx_parse.sv",
        "store_data[8*AckValueLe+:64] = «be64(beat.data[8*44+:64])»;",
        "beat.data[8*44+:64]",
    ),
    Fault(
        "atomic-value4-byte-order",
        "wire/rx_parse.sv",
        "store_data[8*AckValueBe+:32] = «beat.data[8*48+:32]»;",
        "be32(beat.data[8*48+:32])",
    ),
    Fault(
        "rx-buffer-leak",
        "wire/rx_parse.sv",
        "assign base       = («end_q && !keep») ? start_q : wr_q;",
        "1'b0",
    ),
    Fault(
        "reset-leaves-the-receive-path",
        "wire/rx_parse.sv",
        "assign drain_busy_o = «drain_port || drain_hdr»;",
        "1'b0",
    ),
]

#: (module, test) in order; the first that fails has caught the fault
PROGRAMS = [
    ("tests.tools.plant_program", "program"),
    ("tests.nic.test_atomic_opcodes", "test_every_opcode"),
    ("tests.nic.test_errors", "test_error_codes/order=1"),
    ("tests.nic.test_cq_full", "test_waiting_disturbs_nobody"),
    ("tests.nic.test_cq_full", "test_events_and_arming"),
    ("tests.nic.test_cq_full", "test_cq_wait_ends_in_overrun"),
    ("tests.nic.test_errors", "test_err_without_a_wqe"),
    ("tests.nic.test_errors", "test_cqe_write_bus_error"),
    ("tests.nic.test_bus_faults", "test_both_kinds_alike"),
    ("tests.nic.test_sizes", "test_reads_among_writes"),
    ("tests.nic.test_contended_atomics", "test_one_serial_order"),
    ("tests.nic.test_read_order", "test_fences"),
    ("tests.nic.test_read_order", "test_limits"),
    ("tests.nic.test_read_errors", "test_error_codes"),
    ("tests.nic.test_regions", "test_rights"),
    ("tests.nic.test_reset", "test_packets_in_the_receive_path/before=7"),
    ("tests.nic.test_fault_matrix", "test_matrix/operation=write"),
    ("tests.nic.test_fault_matrix", "test_matrix/operation=read"),
    ("tests.nic.test_fault_matrix", "test_matrix/operation=fa64"),
    ("tests.nic.test_link_loss", "test_retry_limit/limit=1"),
    ("tests.nic.test_link_loss", "test_rnr/limit=2"),
    ("tests.nic.test_link_loss", "test_without_a_timer/lost=2"),
    ("tests.nic.test_packet_fuzz", "test_unrequested_responses"),
    ("tests.nic.test_packet_fuzz", "test_opcodes/state=message"),
    ("tests.nic.test_packet_fuzz", "test_fields/state=idle"),
    ("tests.nic.test_races", "test_doorbells_before_a_reset"),
    ("tests.nic.test_resume_cut_short", "test_the_rest_goes_on/fault=0/mtu=256"),
    ("tests.nic.test_send", "test_messages"),
    ("tests.nic.test_send", "test_receive_wqe_fails/name=1/q=0"),
    ("tests.nic.test_send", "test_receive_wqe_fails/name=3/q=0"),
    ("tests.nic.test_send", "test_receive_wqe_fails/name=5/q=1"),
    ("tests.nic.test_send", "test_receive_wqe_fails/name=6/q=0"),
    ("tests.nic.test_send", "test_receive_wqe_fails/name=7/q=0"),
    ("tests.nic.test_send", "test_err_reset_and_again"),
    ("tests.nic.test_send", "test_err_while_messages_arrive"),
    ("tests.nic.test_send", "test_full_receive_cq"),
    ("tests.nic.test_send", "test_solicited_events"),
    ("tests.nic.test_send", "test_late_receivers"),
    ("tests.nic.test_races", "test_doorbells_behind_a_reset/state=RTS"),
    ("tests.nic.test_wqe_faults", "test_every_fault_at_every_place/number=one"),
    ("tests.nic.test_wqe_faults", "test_every_fault_at_every_place/number=two"),
    ("tests.nic.test_commands", "test_commands_under_traffic"),
    ("tests.nic.test_fence_sweep", "test_fence/victim=1"),
    ("tests.nic.test_fence_sweep", "test_fence/victim=3"),
    ("tests.nic.test_cq_races", "test_room_in_each_cycle/steps=True"),
    ("tests.nic.test_cq_races", "test_end_of_cq_wait_in_each_cycle"),
    ("tests.nic.test_cq_races", "test_shared_cq"),
]
#: wall-clock limit of one program, seconds
TIMEOUT = 240.0


class PlantError(Exception):
    """The table does not fit the design."""


def mutate(faults: Sequence[Fault] = FAULTS, rtl: Path = ROOT / "rtl", out: Path = OUT / "rtl") -> list[Path]:
    """A copy of the design with all faults in it, to be chosen by +plant; its files in compile order."""
    texts = {p.relative_to(rtl).as_posix(): p.read_text(encoding="utf-8") for p in rtl_files(rtl)}
    edits: dict[str, list[tuple[int, int, str]]] = {}
    for number, fault in enumerate(faults, 1):
        place = re.fullmatch("(.*)«(.*)»(.*)", fault.place, re.DOTALL)
        if place is None or fault.file not in texts:
            raise PlantError(f"{fault.name}: no marked expression, or no file {fault.file}")
        before, right, after = place.groups()
        found = [m.start() for m in re.finditer(re.escape(before + right + after), texts[fault.file])]
        if len(found) != 1:
            text = before + right + after
            raise PlantError(f"{fault.name}: {len(found)} places in {fault.file} read {text!r}")
        start = found[0] + len(before)
        chosen = f"plant_pkg::planted == {number}"
        choice = f"(({chosen}) ? ({fault.wrong}) : (\0))"
        edits.setdefault(fault.file, []).append((start, start + len(right), choice))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        spans: dict[tuple[int, int], str] = {}
        for start, stop, form in edits.get(name, []):
            # two faults in one expression: one choice around the other
            inner = spans.get((start, stop), text[start:stop])
            spans[start, stop] = form.replace("\0", inner)
        for (start, stop), new in sorted(spans.items(), reverse=True):
            text = text[:start] + new + text[stop:]
        _write(out / name, text)
    _write(out / "plant_pkg.sv", PACKAGE)
    for stray in set(out.rglob("*.sv")) - {out / name for name in texts} - {out / "plant_pkg.sv"}:
        stray.unlink()
    return rtl_files(out)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def model() -> Path:
    """The simulator with all faults; built where the cache does not hold it."""
    with build._locked(OUT / "rtl.lock"):
        files = mutate()
    return build.build(build.nic_bench(2, [str(p) for p in files]))


@dataclass(frozen=True)
class Verdict:
    """What a fault led to. ``program``: what caught it, empty if nothing did; ``cause``: one line."""

    fault: str
    program: str
    cause: str
    seconds: float


def attempt(exe: Path, number: int, seed: int, programs: Iterable[tuple[str, str]]) -> Verdict:
    """Run programs with fault ``number`` (0: none) until one fails."""
    name = FAULTS[number - 1].name if number else "no fault"
    start = time.monotonic()
    for module, test in programs:
        out = OUT / "results" / f"{name}-{re.sub('[^a-z_0-9]+', '_', test)}"
        outcome = run.run(
            exe,
            module,
            "tb_top",
            out=out,
            seed=seed,
            test=test,
            pes=2,
            timeout=TIMEOUT,
            args=[f"+plant={number}"],
        )
        error = outcome.error
        if error is None and outcome.tests != 1:
            error = f"{outcome.tests} results in place of one"
        if error is not None:
            return Verdict(name, test, _cause(error), time.monotonic() - start)
    return Verdict(name, "", "", time.monotonic() - start)


def _cause(error: str) -> str:
    """One line of a failure's text: that of the exception, where it is a traceback."""
    lines = error.split("\n")
    if lines[0].startswith("Traceback"):
        lines = [
            line for line in lines if re.match(r"[\w.]+(Error|Failed|Exception|Stalled)\b", line)
        ] or lines
    return " ".join(" ".join(lines).split())


def main(argv: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(prog="plant.py", description="plant RTL faults, see runs turn red")
    parser.add_argument("names", nargs="*", help="faults to plant")
    parser.add_argument("--all", action="store_true", help="plant every fault")
    parser.add_argument("--list", action="store_true", help="print the table")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    numbers = {fault.name: number for number, fault in enumerate(FAULTS, 1)}
    unknown = [name for name in args.names if name not in numbers]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}")
    if args.list:
        for fault in FAULTS:
            print(f"{fault.name:30} {fault.file:28} {fault.place}  ->  {fault.wrong}".replace("\n", " "))
        return 0
    chosen = list(numbers) if args.all else args.names
    if not chosen:
        parser.error("name faults, or --all, or --list")
    try:
        exe = model()
    except (PlantError, build.BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    control = attempt(exe, 0, args.seed, PROGRAMS)
    if control.program:
        print(f"the unplanted model fails {control.program}: {control.cause[:200]}")
        return 1
    caught = 0
    for name in chosen:
        verdict = attempt(exe, numbers[name], args.seed, PROGRAMS)
        caught += bool(verdict.program)
        state = f"caught by {verdict.program}: {verdict.cause[:70]}" if verdict.program else "MISSED"
        print(f"{name:30} {FAULTS[numbers[name] - 1].block:11} {verdict.seconds:5.1f} s  {state}", flush=True)
    print(f"{caught} of {len(chosen)} planted faults caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
