"""Mixed RDMA WRITE traffic between all PEs: what ``make sim`` runs.

Every QP has its own task. Sizes from 0 B to 1 MiB (log-uniform up to 64 KiB, a few whole MiB), every
alignment at both ends, every MTU, V1 and V2, ring depths 16 to 128 each lapped at least three times,
counters started close to their wraps. Sizes of the run: programs page, section 6.
"""

from __future__ import annotations

import random

from pymodel.device import Pe
from pymodel.host.table import FabricConfig

MIB = 1 << 20
WINDOW = MIB + 4096
"""Bytes of the landing window of one (source PE, QP): the largest message at any offset within a page."""
POOL = MIB + 64 * 1024
"""Bytes of random source data a PE draws its messages from; read-only after start."""
LAPS = 3
WHOLE_MIB_PER_PE = 6
MTUS = (256, 512, 1024, 2048, 4096)


def qps_per_pair(n_pes: int) -> int:
    """One QP per MTU to each peer, fewer where a NIC has not enough QPs."""
    return min(len(MTUS), 60 // max(n_pes - 1, 1))


def fabric(n_pes: int, seed: int) -> FabricConfig:
    """Both versions, both strides, every MTU, depths 16 to 128, all counters close to a wrap."""
    qps = qps_per_pair(n_pes)
    sizes = random.Random(f"mixed mtu {seed}")
    overrides = {}
    for low in range(n_pes):
        for high in range(low + 1, n_pes):
            order = sizes.sample(MTUS, qps)
            for qp in range(qps):
                overrides[low, high, qp] = overrides[high, low, qp] = {"mtu": order[qp]}
    heap = 4 * MIB + (n_pes - 1) * qps * (WINDOW + 4096)
    return FabricConfig.mixed(n_pes, qps, seed, heap_bytes=-(-heap // MIB) * MIB, overrides=overrides)


def sizes_of(rng: random.Random, count: int, whole: bool) -> list[int]:
    """Message sizes of one QP.

    Log-uniform in [1, 64 KiB], one in 32 of zero bytes, and one whole MiB if asked.
    """
    sizes = [0 if rng.randrange(32) == 0 else int(2 ** rng.uniform(0, 16)) for _ in range(count)]
    if whole:
        sizes[rng.randrange(count)] = MIB
    return sizes


async def talk(pe: Pe, peer: int, qp: int, source: int, window: int, whole: bool) -> int:
    """Post all messages of one QP, then quiet it; gives the number of messages."""
    rng = random.Random(f"mixed {pe.seed} {pe.rank} {peer} {qp}")
    depth = pe.qp(peer, qp).depth
    sizes = sizes_of(rng, max(LAPS * depth + 24, 150), whole)
    for size in sizes:
        src = source + rng.randrange(POOL - size)
        dst = window + rng.randrange(WINDOW - size)
        await pe.put_nbi(dst, src, size, peer, qp)
    await pe.quiet(peer, qp)
    return len(sizes)


async def main(pe: Pe) -> int:
    """Fill the pool, run one task per QP; gives the number of messages that this PE sent."""
    source = pe.alloc(POOL)
    # symmetric windows: one per (source PE, QP), so that no two QPs write the same byte
    qps = pe.qp_num
    windows = {(rank, qp): pe.alloc(WINDOW) for rank in range(pe.n_pes - 1) for qp in range(qps)}
    await pe.store(source, pe.rng.randbytes(POOL))
    tasks = []
    for number, (peer, qp) in enumerate((p, q) for q in range(qps) for p in range(pe.n_pes) if p != pe.rank):
        # my number among the peers of `peer` picks the window there
        slot = pe.rank if pe.rank < peer else pe.rank - 1
        program = talk(pe, peer, qp, source, windows[slot, qp], number < WHOLE_MIB_PER_PE)
        tasks.append(await pe.spawn(program, f"QP {qp} to PE {peer}"))
    return sum([await pe.join(task) for task in tasks])
