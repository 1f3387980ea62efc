"""Every call of the device API against the WQE and the doorbells that device.md gives for it.

Sweep: 14 atomics x four types x two versions x three driver generations, put and get in all forms, dirty
slots and dirty UB, heads at every wrap. Stimulus: programs on the golden NICs, which need not execute
anything here. Checks: all 128 bytes of each slot where its doorbell is about to ring, and each doorbell,
against the tables written down in `wqe_expect`. Timing: none. Does not prove: what the NIC does with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from pymodel import device
from pymodel.device import DeviceTrap, Generation, GlobalTensor, LocalTensor, Pe, SendWr
from pymodel.device.wr import Opcode, Operands
from pymodel.host.table import START_WRAPS, Fabric, FabricConfig
from pymodel.platform import Observer, PostInfo
from pymodel.run import ModelRun
from tests.model import wqe_expect as expect
from tests.model.model_programs import only

TYPES = (np.int32, np.uint32, np.int64, np.uint64)
GENERATIONS = tuple(Generation)
U32 = 0xFFFF_FFFF


class Slots(Observer):
    """The slot of each posted WQE as it stands when the doorbell is about to ring."""

    def __init__(self) -> None:
        self.run: ModelRun | None = None
        self.seen: list[tuple[PostInfo, bytes]] = []

    def posted(self, post: PostInfo, task: Any) -> None:
        assert self.run is not None
        plan = self.run.fabric.qps[post.pe, post.peer, post.qp]
        slot = plan.sq_base + 128 * (post.index % plan.sq_depth)
        self.seen.append((post, self.run.model.memory(post.pe, slot, 128).tobytes()))


def run(main: Callable[[Pe], Awaitable[Any]], **config: Any) -> tuple[ModelRun, Slots]:
    """``main`` on PE 0, two PEs, the sanitizer off: what is posted counts, not whether it is wise."""
    slots = Slots()
    fabric = Fabric.build(FabricConfig(**{"seed": 3, **config}))
    model = ModelRun(fabric, only(0, main), "lazy", sanitize=False, observers=[slots])
    slots.run = model
    model.run()
    return model, slots


def one(**override: Any) -> dict[str, Any]:
    """Config of a fabric whose QP (0, 1, 0) has these properties."""
    return {"overrides": {(0, 1, 0): override}}


async def call(pe: Pe, name: str, dst: int, value: int, cond: int, kind: Any) -> int | None:
    """One atomic by its long name; an error that it ends in on a NIC without atomics does not matter."""
    function = getattr(device, f"aclshmemx_roce_atomic_{name}")
    args = {"fetch": (), "inc": (), "fetch_inc": (), "compare_swap": (cond, value)}.get(name, (value,))
    try:
        result: int | None = await function(pe, dst, *args, 1, dtype=kind)
    except DeviceTrap:
        return None
    return result


def atomic_wqe(model: ModelRun, name: str, kind: Any, value: int, cond: int, raddr: int) -> expect.Wqe:
    """What the page says, with the keys and addresses of QP (0, 1, 0)."""
    opcode, ds, msg_len, length, atomic = expect.ATOMICS[name](np.dtype(kind).itemsize, value, cond)
    mine, peer = model.fabric.pes
    cell = mine.amo_base + 1024
    return expect.Wqe(opcode, ds, msg_len, length, peer.heap_rkey, raddr, mine.amo_lkey, cell, atomic)


def values(kind: Any) -> list[tuple[int, int]]:
    """(value, cond) at the edges of a type and between."""
    info = np.iinfo(kind)
    low, high = int(info.min), int(info.max)
    middle = 0x0102_0304_0506_0708 & high
    return [(1, 0), (low, high), (high, low), (middle, 0x1112_1314 & high)]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", TYPES)
def test_each_atomic_posts_its_row(kind: Any, version: int, generation: Generation) -> None:
    """5.3 with 1.5: opcode, ds, msg_len, lengths, keys, result cell, operands; over slots full of dirt."""
    calls = [(name, value, cond) for name in expect.ATOMICS for value, cond in values(kind)]

    async def main(pe: Pe) -> int:
        dst = pe.alloc(64)
        for name, value, cond in calls:
            await call(pe, name, dst, value, cond, kind)
        return dst

    # a ring that takes them all: no slot is used twice, so its old content is known
    model, slots = run(main, sq_fill="dirty", generation=generation,
                       **one(version=version, sq_depth=256, cq_depth=256))  # fmt: skip
    plan = model.fabric.qps[0, 1, 0]
    dirt = next(data for addr, data in model.fabric.pes[0].contents if addr == plan.sq_base).tobytes()
    raddr = model.fabric.pes[1].heap_base + (1 << 20)
    assert [post.index for post, _ in slots.seen] == list(range(len(calls)))
    for (post, raw), (name, value, cond) in zip(slots.seen, calls, strict=True):
        wqe = atomic_wqe(model, name, kind, value, cond, raddr)
        old = dirt[128 * post.index : 128 * post.index + 128]
        assert raw == wqe.overlay(old, post.index, version), (name, value, cond)
        assert post.opcode == "ATOMIC" and post.length == wqe.length and post.local == wqe.laddr


VECTORS = {
    "add64": ("1b180000100000000000000006800300", "01020304050607080000000000000000"),
    "add64 masked": ("20180000100000000000000006800300", "0102030405060708ffffffffffffffff"),
    "add32 masked": ("22180000080000000000000006800300", "01020304ffffffff"),
    "cas64": ("1a180000100000000000000006800300", "01020304050607081112131415161718"),
    "cas64 masked": ("1f200000200000000000000006800300", "0102030405060708" + "00" * 8 + "ff" * 8 + "00" * 8),
    "cas32 masked": ("21180000100000000000000006800300", "0102030411121314ffffffffffffffff"),
}  # fmt: skip


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", VECTORS)
def test_worked_vectors_of_atomics(name: str, generation: Generation) -> None:
    """1.7, head 7, version 2, keys and addresses of the page."""
    long, ones = 0x0102030405060708, (1 << 64) - 1
    operands = {
        "add64": (Opcode.FA64, Operands(long, 0)),
        "add64 masked": (Opcode.MFA64, Operands(long, ones)),
        "add32 masked": (Opcode.MFA32, Operands(0x01020304, ones)),
        "cas64": (Opcode.CAS64, Operands(long, 0x1112131415161718)),
        "cas64 masked": (Opcode.MCAS64, Operands(long, 0, ones, 0)),
        "cas32 masked": (Opcode.MCAS32, Operands(0x01020304, 0x11121314, ones, ones)),
    }
    opcode, ops = operands[name]

    async def main(pe: Pe) -> None:
        wr = SendWr(0x12345678000, 0x1122334455667788, 0, opcode, 0xC1C2C3C4, 0xA1A2A3A4, ops)
        assert await device.aclshmemi_roce_fill_wqe(pe, wr, 1, 0, 7) == 128
        raw = pe.memory(pe.qp(1).sq_addr + 7 * 128, 128).tobytes()
        length = "04000000" if "32" in name else "08000000"
        ctrl, atomic = VECTORS[name]
        segments = f"{length}a4a3a2a18877665544332211{length}c4c3c2c10080674523010000"
        assert raw.hex() == (ctrl + segments + atomic).ljust(256, "0")

    run(main, generation=generation, **one(version=2))


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("version", "head", "vector"), [
    (2, 131071, "0210000040000000000000000280ffff"), (2, 131072, "02100000400000000000000002000000"),
])  # fmt: skip
def test_worked_vector_of_read(version: int, head: int, vector: str, generation: Generation) -> None:
    """1.7: READ of 64 bytes at the wrap of its wqe_id."""

    async def main(pe: Pe) -> None:
        wr = SendWr(0x12345678000, 0x1122334455667788, 64, Opcode.READ, 0xB1B2B3B4, 0xA1A2A3A4)
        await device.aclshmemi_roce_fill_wqe(pe, wr, 1, 0, head)
        raw = pe.memory(pe.qp(1).sq_addr + head % pe.qp(1).depth * 128, 128).tobytes()
        assert raw[:16].hex() == vector
        assert raw[16:48].hex() == "40000000a4a3a2a1887766554433221140000000b4b3b2b10080674523010000"

    run(main, generation=generation, **one(version=version))


# ------------------------------------------------------------------ put and get: forms
async def _forms(pe: Pe, dst: int, src: int, buf: LocalTensor) -> list[tuple[int, int, int, int]]:
    """Every form once; gives (opcode, bytes, qp_idx, remote offset) in order."""
    there, here = GlobalTensor(dst, np.int32), GlobalTensor(src, np.int32)
    at = dst - pe.heap_base
    from_ = src - pe.heap_base
    put, get = device.aclshmemx_roce_put_nbi, device.aclshmemx_roce_get_nbi
    await put(pe, dst, src, buf, 5, 1)
    await put(pe, dst, src, buf, 5, 1, 3, dtype=np.float64)
    await put(pe, there, here, buf, 5, 1)
    await put(pe, there, here, buf, 5, 1, 3)
    await get(pe, dst, src, buf, 6, 1)
    await get(pe, dst, src, buf, 6, 1, 3, dtype=np.int16)
    await get(pe, there, here, buf, 6, 1)
    await get(pe, there, here, buf, 6, 1, sync_id=3)
    await device.aclshmemx_roce_qp_put(pe, dst, src, buf, 7, 1, 1)
    await device.aclshmemx_roce_qp_get(pe, there, here, buf, 7, 1, 1, 3)
    await device.aclshmemi_roce_write(pe, pe.ptr(dst, 1), src, 1, 1, 9)
    await device.aclshmemi_roce_read(pe, dst, pe.ptr(src, 1), 1, 1, 9, buf.part(32, 8), buf, 0)
    await pe.put_nbi(dst, src, 0, 1)
    await pe.get_nbi(dst, src, 0, 1)
    return [
        (1, 5, 0, at), (1, 40, 0, at), (1, 20, 0, at), (1, 20, 0, at),
        (2, 6, 0, from_), (2, 12, 0, from_), (2, 24, 0, from_), (2, 24, 0, from_),
        (1, 7, 1, at), (2, 28, 1, from_), (1, 9, 1, at), (2, 9, 1, from_), (1, 0, 0, at), (2, 0, 0, from_),
    ]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
def test_forms_of_put_and_get_in_place(version: int) -> None:
    """5.1, 5.2 in G1: pointer and tensor forms, with and without sync_id, zero length; READ swaps roles."""

    async def main(pe: Pe) -> Any:
        dst, src = pe.alloc(64), pe.alloc(64)
        return dst, src, await _forms(pe, dst, src, pe.local_tensor(0, 128))

    overrides = {(0, 1, q): {"version": version} for q in range(2)}
    model, slots = run(main, qps=2, sq_fill="dirty", overrides=overrides)
    dst, src, calls = model.tasks[0].result  # type: ignore[union-attr]
    mine, peer = model.fabric.pes
    rings = {
        q: next(d for a, d in mine.contents if a == model.fabric.qps[0, 1, q].sq_base).tobytes()
        for q in (0, 1)
    }
    assert len(slots.seen) == len(calls)
    for (post, raw), (opcode, nbytes, qp, offset) in zip(slots.seen, calls, strict=True):
        local = src if opcode == 1 else dst
        wqe = expect.Wqe(
            opcode, 2, nbytes, nbytes, peer.heap_rkey, peer.heap_base + offset, mine.heap_lkey, local
        )
        assert post.qp == qp
        assert raw == wqe.overlay(rings[qp][128 * post.index : 128 * post.index + 128], post.index, version)


def test_what_no_overload_takes() -> None:
    """Pointer with tensor, tensors of two types, a negative count, a scratch too small."""

    async def main(pe: Pe) -> None:
        put, dst, src = device.aclshmemx_roce_put_nbi, pe.alloc(64), pe.alloc(64)
        buf = pe.local_tensor(0, 128)
        with pytest.raises(TypeError, match="the other a pointer"):
            await put(pe, GlobalTensor(dst), src, buf, 1, 1)
        with pytest.raises(TypeError, match="tensors of int32 and float32"):
            await put(pe, GlobalTensor(dst, np.int32), GlobalTensor(src, np.float32), buf, 1, 1)
        with pytest.raises(ValueError, match="-1 elements"):
            await put(pe, dst, src, buf, -1, 1)
        with pytest.raises(ValueError, match="scratch of 127 bytes: this driver generation needs 128"):
            await put(pe, dst, src, buf.part(0, 127), 1, 1)
        with pytest.raises(ValueError, match="stages there"):
            await device.aclshmemi_roce_write(pe, dst, src, 1, 0, 8, None, buf.part(64, 64))
        with pytest.raises(ValueError, match="64-bit scratch word of 7 bytes"):
            await device.aclshmemi_roce_write(pe, dst, src, 1, 0, 8, buf.part(32, 7))
        with pytest.raises(ValueError, match="the UB has 196608 bytes"):
            pe.local_tensor(196608 - 127, 128)
        with pytest.raises(IndexError, match="PE 2 of 2"):
            await put(pe, dst, src, buf, 1, 2)
        with pytest.raises(IndexError, match="QP 1 of 1"):
            await device.aclshmemx_roce_qp_put(pe, dst, src, buf, 1, 1, 1)
        assert pe.qp(1).posts == 0

    run(main, generation=Generation.G2)


def test_g1_is_content_with_64_bytes_of_scratch() -> None:
    """4.6: G1 documents 64 bytes, G2 128."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        await device.aclshmemx_roce_put_nbi(pe, src, src, pe.local_tensor(0, 64), 1, 1)
        with pytest.raises(ValueError, match="needs 64"):
            await device.aclshmemx_roce_put_nbi(pe, src, src, pe.local_tensor(0, 63), 1, 1)

    run(main)


def test_up_to_32_qps_a_peer() -> None:
    """5.1: each QP has rings of its own; a 33rd is refused."""

    async def main(pe: Pe) -> None:
        src = pe.alloc(64)
        for qp in range(32):
            await device.aclshmemx_roce_qp_put(pe, src, src, None, 8, 1, qp)
        await device.aclshmemx_roce_quiet(pe, 1)
        assert [pe.qp(1, qp).cq_tail - pe.qp(1, qp).sq_head for qp in range(32)] == [0] * 32

    model, slots = run(main, qps=32)
    assert len({model.fabric.qps[0, 1, post.qp].qpn for post, _ in slots.seen}) == 32

    async def beyond(pe: Pe) -> None:
        await device.aclshmemx_roce_qp_quiet(pe, 1, 32)

    with pytest.raises(IndexError, match="QP 32 to PE 1: the device API has at most 32"):
        run(beyond, qps=33)


# ------------------------------------------------------------------ staging in UB
class Scratch:
    """The scratch of one call chain, followed by hand (1.6, 4.6)."""

    def __init__(self, content: bytes) -> None:
        self.bytes = bytearray(content)

    def staged(self, wqe: expect.Wqe, head: int, version: int) -> bytes:
        """The 128 bytes copied; they stay in the scratch."""
        self.bytes[:] = wqe.overlay(bytes(self.bytes), head, version)
        return bytes(self.bytes)

    def words(self, word32: int, word64: int) -> None:
        """Bytes 0..3 take the 32-bit value, bytes 32..39 the 64-bit one."""
        self.bytes[0:4] = word32.to_bytes(4, "little")
        self.bytes[32:40] = word64.to_bytes(8, "little")


@pytest.mark.parametrize("generation", [Generation.G2, Generation.G3])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fill", ["zero", "dirty"])
def test_staged_wqes_carry_the_scratch_with_them(fill: str, version: int, generation: Generation) -> None:
    """1.6: what is not written is whatever stood in UB; bytes 0..3 are the last head or CQ tail.

    Puts, gets and atomics share the scratch; atomics are built in the slot, over what was staged there a lap
    before. Heads from 500 on, so csum_en sees bit 9 of the head.
    """
    depth, start = 16, 505
    steps = [("put", 100), ("get", 3), ("add", 0), ("put", 0), ("quiet", 0), ("put", 8)] * 7

    async def main(pe: Pe) -> tuple[bytes, int, bytes]:
        src, scratch = pe.alloc(256), bytes(pe.ub[190 * 1024 : 190 * 1024 + 128])
        for step, nbytes in steps:
            if step == "put":
                await pe.put_nbi(src, src, nbytes, 1)
            elif step == "get":
                await pe.get_nbi(src, src, nbytes, 1)
            elif step == "quiet":
                await pe.quiet(1)
            else:
                await pe.atomic.add(src, 3, 1, dtype=np.int32)
        await pe.atomic.add(src, 3, 1, dtype=np.int32)
        last = bytes(pe.ub[190 * 1024 : 190 * 1024 + 128])
        await pe.quiet(1)
        return scratch, src, last

    model, slots = run(main, generation=generation, ub_fill=fill, sq_fill="dirty",
                       **one(version=version, sq_depth=depth, cq_depth=16, start_index=start))  # fmt: skip
    mine, peer = model.fabric.pes
    plan = model.fabric.qps[0, 1, 0]
    content, src, last = model.tasks[0].result  # type: ignore[union-attr]
    assert any(content) == (fill == "dirty")
    scratch = Scratch(content)
    ring = bytearray(next(d for a, d in mine.contents if a == plan.sq_base).tobytes())
    raddr = src - mine.heap_base + peer.heap_base
    head, tail, seen, sq_tail = start, start, iter(slots.seen), start
    csum = set()

    def poll() -> None:
        nonlocal tail, sq_tail
        if generation is Generation.G3 and head == sq_tail:
            return
        tail = head
        sq_tail = head if generation is Generation.G3 else sq_tail
        scratch.words(tail, expect.cq_doorbell(tail, plan.cqn))

    for step, nbytes in [*steps, ("add", 0)]:
        if step == "quiet":
            poll()
            continue
        if (head + 16) % depth == (depth + sq_tail) % depth:
            poll()
        at = 128 * (head % depth)
        if step == "add":
            wqe = atomic_wqe(model, "add", np.int32, 3, 0, raddr)
            raw = wqe.overlay(bytes(ring[at : at + 128]), head, version)
        else:
            opcode = 1 if step == "put" else 2
            wqe = expect.Wqe(opcode, 2, nbytes, nbytes, peer.heap_rkey, raddr, mine.heap_lkey, src)
            raw = scratch.staged(wqe, head, version)
            csum.add(raw[1] >> 1 & 3)
        post, got = next(seen)
        assert post.index == head and got == raw, (step, head)
        ring[at : at + 128] = raw
        head += 1
        scratch.words(head, expect.sq_doorbell(head, plan.qpn, version))
    assert next(seen, None) is None and last == scratch.bytes
    assert csum == {0, 1}, "csum_en of a good WQE is bits 10:9 of a head"


def test_the_callers_scratch_is_the_one_that_is_staged_in() -> None:
    """Two scratches keep their own garbage; the words of `rdma_config` move with it."""

    async def main(pe: Pe) -> list[bytes]:
        src, one, two = pe.alloc(64), pe.local_tensor(1024, 128), pe.local_tensor(4096, 256)
        pe.ub[one.offset : one.offset + 128] = b"\x11" * 128
        pe.ub[two.offset : two.offset + 256] = b"\x22" * 256
        await device.aclshmemx_roce_put_nbi(pe, src, src, one, 8, 1)
        await device.aclshmemx_roce_put_nbi(pe, src, src, two, 8, 1)
        pe.rdma_config.aclshmem_ub = two.part(128, 128)
        await pe.put_nbi(src, src, 8, 1)
        assert pe.ub[190 * 1024 : 190 * 1024 + 128] == bytes(128)
        return [bytes(pe.ub[at : at + 4]) for at in (one.offset, two.offset, two.offset + 128)]

    model, slots = run(main, generation=Generation.G2)
    assert [raw[48:] for _, raw in slots.seen] == [b"\x11" * 80, b"\x22" * 80, b"\x22" * 80]
    heads = [n.to_bytes(4, "little") for n in (1, 2, 3)]
    assert model.tasks[0].result == heads  # type: ignore[union-attr]


# ------------------------------------------------------------------ doorbells
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("wrap", START_WRAPS)
def test_doorbells_and_cells_of_every_generation(wrap: int, version: int, generation: Generation) -> None:
    """3.1, 3.2, 4.2, 4.3: one SQ doorbell a post, one CQ doorbell a poll; G3 skips a poll of nothing.

    Heads run through every wrap; G1 and G2 leave the SQ tail where it was, G3 writes it.
    """
    start = wrap - 3 & U32

    async def main(pe: Pe) -> None:
        src, qp = pe.alloc(64), pe.qp(1)
        await pe.quiet(1)
        for step in range(7):
            await pe.put_nbi(src, src, 8, 1)
            head = start + step + 1 & U32
            assert qp.sq_head == head
            await pe.quiet(1)
            await pe.quiet(1)
            assert qp.cq_tail == head
            assert qp.sq_tail == (head if generation is Generation.G3 else start)

    model, _ = run(
        main, generation=generation, **one(version=version, start_index=start, sq_depth=64, cq_depth=64)
    )
    plan = model.fabric.qps[0, 1, 0]
    page = 0x0800_0000 + 4096 * plan.qpn
    twice = 1 if generation is Generation.G3 else 2
    bells = [] if generation is Generation.G3 else [(0, page + 16, expect.cq_doorbell(start, plan.cqn))]
    for step in range(7):
        head = start + step + 1 & U32
        bells.append((0, page, expect.sq_doorbell(head, plan.qpn, version)))
        bells += [(0, page + 16, expect.cq_doorbell(head, plan.cqn))] * twice
    assert model.model.mmio_log == bells
