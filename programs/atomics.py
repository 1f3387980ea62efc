"""Every atomic on slots of all other PEs, as the unit tests of operators page 10.3 do it.

Slot ``pe`` of an operation belongs to PE ``pe``: no two PEs touch one word, so every old and new value is
known. The owner's own slot keeps what it stored.
"""

import numpy as np

from pymodel.device import Pe

START = 0x0F0F_1234_5678_9ABC
OPERAND = 0x0000_00FF_FF00_5555
SLOT = 64
ARITHMETIC = ("inc", "add", "fetch_inc", "fetch_add")
LOGIC = ("and_", "or_", "xor", "fetch_and", "fetch_or", "fetch_xor", "set", "swap", "compare_swap", "fetch")


def after(name: str, old: int, bits: int) -> int:
    """The word behind the operation, in plain integers."""
    value, ones = OPERAND & (1 << bits) - 1, (1 << bits) - 1
    if "inc" in name:
        return old + 1 & ones
    if "add" in name:
        return old + value & ones
    if "and" in name:
        return old & value
    if "xor" in name:
        return old ^ value
    if "or" in name:
        return old | value
    return old if name == "fetch" else value


async def one(pe: Pe, name: str, slot: int, peer: int, dtype: type[np.unsignedinteger]) -> None:
    """The operation ``name`` on ``slot`` of ``peer``; its old value, where it gives one."""
    bits = 8 * np.dtype(dtype).itemsize
    start, value = START & (1 << bits) - 1, OPERAND & (1 << bits) - 1
    call = getattr(pe.atomic, name)
    if name in ("inc", "fetch_inc", "fetch"):
        old = await call(slot, peer, dtype=dtype)
    elif name == "compare_swap":
        old = await call(slot, start, value, peer, dtype=dtype)
    else:
        old = await call(slot, value, peer, dtype=dtype)
    if name.startswith("fetch") or "swap" in name:
        assert old == start, f"{name} of {bits} bits: {old:#x} from {peer} on {pe}"
        pe.atomics_checked += 1


async def main(pe: Pe) -> None:
    """All operations, 4 and 8 bytes; behind a barrier each PE looks at its own memory."""
    for dtype in (np.uint32, np.uint64):
        size = np.dtype(dtype).itemsize
        start = START & (1 << 8 * size) - 1
        names = (*ARITHMETIC, *LOGIC)
        areas = [pe.alloc(SLOT * pe.n_pes) for _ in names]
        for area in areas:
            await pe.store(area, b"".join(start.to_bytes(SLOT, "little") for _ in range(pe.n_pes)))
        await pe.barrier_all()
        for name, area in zip(names, areas, strict=True):
            for peer in range(pe.n_pes):
                if peer != pe.rank:
                    await one(pe, name, area + SLOT * pe.rank, peer, dtype)
        await pe.barrier_all()
        for name, area in zip(names, areas, strict=True):
            for peer in range(pe.n_pes):
                word = int.from_bytes(pe.memory(area + SLOT * peer, SLOT).tobytes(), "little")
                want = start if peer == pe.rank else after(name, start, 8 * size)
                assert word == want, f"{name} of {8 * size} bits by PE {peer}: {word:#x} on {pe}"
