"""WQEs as the NIC must understand them: decoded from golden memory at their doorbell, checked, cut up."""

from __future__ import annotations

import numpy as np

from pymodel.formats import wqe
from pymodel.formats.arrays import I64, U8, U64, Bools
from pymodel.formats.cqe import CqeError
from pymodel.nic import rules
from pymodel.nic.judge_state import ATOMIC, READ, WRITE, State


def spans(group: I64) -> tuple[I64, I64]:
    """Of a sorted group column: (start row of each row's group, rank of each row in its group)."""
    n = group.size
    if not n:
        return group, group
    edge = np.zeros(n + 1, np.bool_)
    edge[0] = edge[n] = True
    edge[1:n] = group[1:] != group[:-1]
    begin = edge.nonzero()[0]
    start = np.repeat(begin[:-1], begin[1:] - begin[:-1])
    return start, np.arange(n) - start


def _plain(state: State, g: I64, idx: I64, words: U64, v1: Bools, length: I64, pe: I64) -> bool:
    """Whether n WQEs, by column of 64-bit words, all are good WRITEs; then no rule needs to look closer."""
    low, high, remote, _, local, laddr = words
    # opcode 1, with_imm 0, ds_data_num 2, in_line 0; csum_en and the rest of the dword do not matter
    good = (low & np.uint64(0xF9FF) == 2 << 11 | 1) & (high & np.uint64(1 << 34) == 0)
    wqe_id = high >> np.uint64(44)
    if v1.any():
        wqe_id = np.where(v1, low >> np.uint64(16) & np.uint64(0xFFFF), wqe_id)
    good &= wqe_id == (idx << 3 & np.where(v1, 0xFFFF, 0xFFFFF)).view(np.uint64)
    size, half = length.view(np.uint64), np.uint64(0xFFFFFFFF)
    good &= (length <= rules.MAX_MESSAGE) & (remote & half == size) & (local & half == size)
    if not good.all():
        return False
    lkey, right = (local >> np.uint64(32)).view(np.int64), np.full(g.size, int(rules.Right.NONE))
    return state.allowed(lkey, False, right, laddr, length, pe)


def announce(
    state: State,
    g: I64,
    idx: I64,
    raw: U8,
    mapped: Bools,
    time: I64,
    position: I64,
    known_regular: bool = False,
) -> bool:
    """Enter n announced WQEs, sorted by (g, idx), into the table rows beyond the producer indices.

    raw: uint8[n, 128] slots; mapped: their fetch meets memory; time, position: cycle and record of the
    doorbell. Nothing else of the state changes: the caller moves q_pi, q_ann, q_ce (see `settle`).
    Returns whether every WQE is free of errors. Checks: nic.md 4, first match wins.
    known_regular: give up (False) at an error without working out more.
    """
    version = state.q_version[g]
    pe = state.q_pe[g]
    # control, remote and local segment by column
    words: U64 = np.ascontiguousarray(raw.view("<u8")[:, :6].T)
    low, high, remote, raddr, local, laddr = words
    op = (low & np.uint64(0xFF)).view(np.int64)
    with_imm = (low >> np.uint64(8) & np.uint64(1)).view(np.int64)
    send = op == wqe.WqeOp.SEND
    if (send | (with_imm != 0)).any():
        if known_regular:
            return False
        # the local segment of a SEND is its only one (nic.md 5)
        local, laddr = np.where(send, remote, local), np.where(send, raddr, laddr)
    ce = high & np.uint64(1 << 33) != 0
    length = (low >> np.uint64(32)).view(np.int64)
    err = np.zeros(g.size, np.int64)
    kind = np.full(g.size, WRITE)
    rows = state.q_row[g] + (idx & state.q_mask[g])
    if not _plain(state, g, idx, words, version == 1, length, pe) or not mapped.all():
        fields = np.empty(g.size, wqe.WQE_FIELDS)
        for v in (1, 2):
            mine = version == v
            if mine.any():
                fields[mine] = wqe.unpack(raw[mine], v, state.params.plain_atomics_le)
        err = rules.wqe_check(
            fields, idx, version, ~mapped, state.mr_rows, pe, max_rd_atomic=state.q_max_rd[g],
            params=state.params,
        ).astype(np.int64)  # fmt: skip
        if known_regular and err.any():
            return False
        kind[op == wqe.WqeOp.READ] = READ
        atomic = np.flatnonzero(rules.IS_ATOMIC[op])
        kind[atomic] = ATOMIC
        length[atomic] = rules.OPERAND_BYTES[op[atomic]]
        for column, name in (
            (state.w_swap, "swap_add"), (state.w_cmp, "compare"), (state.w_smask, "swap_mask"),
            (state.w_cmask, "compare_mask"),
        ):  # fmt: skip
            column[rows[atomic]] = fields[name][atomic]
    mtu = state.q_mtu[g]
    packets = rules.psn_count(length, mtu)
    packets[err != 0] = 0
    flat = state.memory.flats(pe, laddr, length)
    unmapped = (length > 0) & (err == 0) & (kind == WRITE)
    unmapped &= (flat < 0) | state.memory.faulty(pe, laddr, length, False)
    if known_regular and unmapped.any():
        return False
    for i in np.flatnonzero(unmapped).tolist():
        # packets before the first whose gather meets no memory are sent (nic.md 5)
        va, size, cut = int(laddr[i]), int(length[i]), int(mtu[i])
        for k in range(int(packets[i])):
            if state.memory.beats_fault(int(pe[i]), va + k * cut, min(cut, size - k * cut)):
                packets[i], err[i] = k, CqeError.DATA_DMA_RD_REQ
                break

    start, _ = spans(g)
    total = np.cumsum(packets)
    before = total - packets
    counted = np.cumsum(ce)
    state.w_first[rows] = state.q_ann[g] + before - before[start]
    state.w_np[rows] = packets
    state.w_kind[rows] = kind
    state.w_len[rows] = length
    state.w_raddr[rows] = raddr
    state.w_laddr[rows] = laddr
    state.w_flat[rows] = flat
    state.w_rkey[rows] = (remote >> np.uint64(32)).view(np.int64)
    state.w_lkey[rows] = (local >> np.uint64(32)).view(np.int64)
    state.w_fence[rows] = high >> np.uint64(35) & np.uint64(3) == 1
    state.w_got[rows] = 0
    state.w_land[rows] = np.where(kind == WRITE, packets, 0)
    state.w_op[rows] = op
    state.w_imm[rows] = with_imm
    state.w_data[rows] = (high & np.uint64(0xFFFFFFFF)).view(np.int64)
    state.w_se[rows] = high >> np.uint64(32) & np.uint64(1)
    state.w_ce[rows] = ce
    state.w_ceno[rows] = state.q_ce[g] + counted - (counted - ce)[start]
    state.w_err[rows] = err
    state.w_local[rows] = err != 0
    state.w_time[rows] = time
    state.w_done[rows] = 0
    state.w_pos[rows] = position
    state.w_sent[rows] = 1 << 62
    return not err.any()


def settle(state: State, g: I64, idx: I64) -> None:
    """Move producer index and counts of the QPs over WQEs that `announce` entered, sorted by (g, idx)."""
    if not g.size:
        return
    last = np.ones(g.size, np.bool_)
    last[:-1] = g[1:] != g[:-1]
    g, idx = g[last], idx[last]
    rows = state.q_row[g] + (idx & state.q_mask[g])
    state.q_pi[g] = idx + 1
    state.q_ann[g] = state.w_first[rows] + state.w_np[rows]
    state.q_ce[g] = state.w_ceno[rows]
