"""WQEs as the NIC must understand them: decoded from golden memory at their doorbell, checked, cut into packets."""

from __future__ import annotations

import numpy as np

from pymodel.formats import wqe
from pymodel.formats.arrays import I64, U8, Bools
from pymodel.formats.cqe import CqeError
from pymodel.nic import rules
from pymodel.nic.judge_state import State


def spans(group: I64) -> tuple[I64, I64]:
    """Of a sorted group column: (start row of each row's group, rank of each row in its group)."""
    n = group.size
    first = np.ones(n, np.bool_)
    first[1:] = group[1:] != group[:-1]
    start = np.maximum.accumulate(np.where(first, np.arange(n), 0))
    return start, np.arange(n) - start


def announce(
    state: State, g: I64, idx: I64, raw: U8, mapped: Bools, time: I64, position: I64, known_regular: bool = False
) -> bool:
    """Enter n announced WQEs, sorted by (g, idx), into the table rows beyond the producer indices.

    raw: uint8[n, 128] slots; mapped: their fetch meets memory; time, position: cycle and record of the
    doorbell. Nothing else of the state changes: the caller moves q_pi, q_ann, q_ce (see `settle`).
    Returns whether every WQE is free of errors. Checks: nic.md 4, first match wins.
    known_regular: give up (False) at the first error without working out more.
    """
    n = g.size
    f = np.empty(n, wqe.WQE_FIELDS)
    version = state.q_version[g]
    for v in (1, 2):
        mine = version == v
        if mine.all():
            f = wqe.unpack(raw, v)
        elif mine.any():
            f[mine] = wqe.unpack(raw[mine], v)
    op = f["msg_opcode"].astype(np.int64)
    length = f["msg_len"].astype(np.int64)
    pe = state.q_pe[g]
    err = rules.wqe_check(f, idx, version, ~mapped, state.mr_rows, pe, params=state.params).astype(np.int64)
    mtu = state.q_mtu[g]
    packets = rules.psn_count(length, mtu)
    packets[err != 0] = 0
    flat = state.memory.flats(pe, f["laddr"], length)
    unmapped = (length > 0) & (err == 0) & (flat < 0)
    if known_regular and (err.any() or unmapped.any()):
        return False
    for i in np.flatnonzero(unmapped).tolist():
        # packets before the first whose gather meets no memory are sent (nic.md 5)
        va, size, cut = int(f["laddr"][i]), int(length[i]), int(mtu[i])
        for k in range(int(packets[i])):
            if state.memory.beats_fault(int(pe[i]), va + k * cut, min(cut, size - k * cut)):
                packets[i], err[i] = k, CqeError.DATA_DMA_RD_REQ
                break

    start, _ = spans(g)
    total = np.cumsum(packets)
    before = total - packets
    ce = f["ce"] != 0
    counted = np.cumsum(ce)
    rows = state.q_row[g] + (idx & state.q_mask[g])
    state.w_first[rows] = state.q_ann[g] + before - before[start]
    state.w_np[rows] = packets
    state.w_len[rows] = length
    state.w_raddr[rows] = f["raddr"]
    state.w_laddr[rows] = f["laddr"]
    state.w_flat[rows] = flat
    state.w_rkey[rows] = f["rkey"]
    state.w_op[rows] = op
    state.w_imm[rows] = f["with_imm"]
    state.w_ce[rows] = ce
    state.w_ceno[rows] = state.q_ce[g] + counted - (counted - ce)[start]
    state.w_err[rows] = err
    state.w_local[rows] = err != 0
    state.w_time[rows] = time
    state.w_pos[rows] = position
    return not err.any()


def settle(state: State, g: I64, idx: I64) -> None:
    """Move producer index, packet and CQE counts of the QPs over WQEs that `announce` entered, sorted by (g, idx)."""
    if not g.size:
        return
    last = np.ones(g.size, np.bool_)
    last[:-1] = g[1:] != g[:-1]
    g, idx = g[last], idx[last]
    rows = state.q_row[g] + (idx & state.q_mask[g])
    state.q_pi[g] = idx + 1
    state.q_ann[g] = state.w_first[rows] + state.w_np[rows]
    state.q_ce[g] = state.w_ceno[rows]
