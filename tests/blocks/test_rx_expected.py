"""Responses that the requester expects (rtl/responder), against rules written here from wire.md.

Sweep: READs of every size class x alignment of the sink x MTU and atomics of both sizes, several open on each
QP, PSNs across the wrap; every way in which a response can be wrong; bus errors on results; local keys that
go in between; responses that nobody waits for; ACKs, NAKs and WRITEs of others among them; QP resets.
Stimulus: the requester's announcements and frames on the link.
Checks: every byte of the memory, so that nothing of a wrong response is written; the events for the requester
in order with slot, last and error; counters.
Timing: no event before the write responses of its bytes and of all before it.
Not proved here: what the requester makes of the events (test_requester.py).
"""

import random
from dataclasses import replace

import cocotb

from tests.blocks import rx_driver
from tests.blocks.rx_driver import ACK as ACK_OP
from tests.blocks.rx_driver import (
    ATOMIC_ACK,
    BUS_RESULT,
    READ_FIRST,
    READ_LAST,
    READ_MIDDLE,
    READ_ONLY,
    Bench,
    Event,
    Expected,
    Frame,
    Peer,
    aeth,
    good,
    reth,
)

BENCH = rx_driver.BENCH
MOD = 1 << 24
ACK = 0x1F
DATA, PLAIN_ACK, NAK, RNR, AHEAD = 3, 0, 1, 2, 4
OK, LOCAL_KEY, LENGTH, OPCODE, BUS = 0, 0xA7, 0xA8, 0xAA, 0xB3
REGION = (0x400, 0x3F000)
MRN = 7


def lkey_of(rkey: int) -> int:
    """The bench's lkey: the other tag."""
    return rkey & ~0xFF | ~rkey & 0xFF


class Asker:
    """Requester state of one QP: what it started and what comes back."""

    def __init__(self, bench: Bench, qpi: int, mtu: int, lkey: int) -> None:
        self.bench, self.qpi, self.size, self.lkey = bench, qpi, 128 << mtu, lkey
        self.psn = random.choice([0, MOD - 2, random.randrange(MOD)])
        self.slot = random.randrange(16)

    async def read(self, laddr: int, length: int, lkey: int | None = None) -> list[tuple[Frame, Event]]:
        """Starts a READ: its good responses and the events that they give."""
        count = max(1, -(-length // self.size))
        last = (self.psn + count - 1) % MOD
        key = self.lkey if lkey is None else lkey
        await self.bench.expect(
            Expected(self.qpi, self.slot, 0, self.psn, last, laddr, key if length else 0, length)
        )
        found = []
        for k in range(count):
            ends = k == count - 1
            opcode = (READ_ONLY if ends else READ_FIRST) if k == 0 else READ_LAST if ends else READ_MIDDLE
            data = random.randbytes(min(self.size, length - k * self.size))
            frame = good(
                self.qpi,
                opcode=opcode,
                psn=(self.psn + k) % MOD,
                payload=data,
                ext=b"" if opcode == READ_MIDDLE else aeth(random.randrange(32), random.getrandbits(24)),
            )
            found.append((frame, Event(self.qpi, DATA, frame.psn, self.slot, ends, OK)))
        self.step(count)
        return found

    async def atomic(self, laddr: int, size: int, lkey: int | None = None) -> list[tuple[Frame, Event]]:
        """Starts an atomic of 8 or 4 bytes: its answer and the event."""
        key = self.lkey if lkey is None else lkey
        await self.bench.expect(
            Expected(self.qpi, self.slot, 1 if size == 8 else 2, self.psn, self.psn, laddr, key, size)
        )
        value = random.randbytes(8) if size == 8 else bytes(4) + random.randbytes(4)
        frame = good(self.qpi, opcode=ATOMIC_ACK, psn=self.psn, ext=aeth(ACK, 1) + value)
        event = Event(self.qpi, DATA, self.psn, self.slot, True, OK)
        self.step(1)
        return [(frame, event)]

    def step(self, count: int) -> None:
        """The next WQE."""
        self.psn = (self.psn + count) % MOD
        self.slot = (self.slot + 1) % 16


def land(memory: bytearray, laddr: int, frame: Frame) -> int:
    """Puts the bytes of a response where they belong; how many."""
    data = frame.payload
    if frame.opcode == ATOMIC_ACK:
        value = frame.ext[4:]
        data = value[::-1] if any(value[:4]) else value[4:]
    memory[laddr : laddr + len(data)] = data
    return len(data)


async def ready(dut, latency: int = 10, stall: int = 0, **knobs: float) -> tuple[Bench, int]:
    """A bench with one region that only the NIC itself writes; its lkey."""
    bench = Bench(dut, **knobs)
    await bench.start(latency=latency, stall=stall)
    return bench, lkey_of(await bench.set_mr(MRN, *REGION, rights=1))


async def program(bench: Bench, qpi: int, lkey: int, mtu: int | None = None) -> Asker:
    """Programs a QP."""
    mtu = random.randrange(1, 6) if mtu is None else mtu
    await bench.set_qp(qpi, Peer(mtu=mtu, peer_qpn=500 + qpi, sport=0xC000 + qpi))
    return Asker(bench, qpi, mtu, lkey)


def show(events: list[Event]) -> str:
    """The first events, for a message."""
    return f"{len(events)}: {events[:4]}"


@cocotb.test()
@cocotb.parametrize(mtu=[1, 2, 3, 4, 5])
async def test_results(dut, mtu: int) -> None:
    """Every size class at every alignment of the sink, across beats and pages."""
    bench, lkey = await ready(dut)
    asker = await program(bench, 3, lkey, mtu)
    size = asker.size
    lengths = [0, 1, 3, 4, 8, 63, 64, 65, 100, *(k * size + d for k in (1, 2, 3) for d in (-1, 0, 1, 63))]
    want: list[Event] = []
    for n, offset in enumerate(random.sample(range(64), 64) * 2):
        base = random.choice([0x1000, 0x2FC0, 0x6F80, 0x1F000 - 64])
        if n % 3:
            length = lengths[n % len(lengths)]
            parts = await asker.read(base + offset, length)
        else:
            parts = await asker.atomic(base + offset, random.choice([4, 8]))
        at = base + offset
        for frame, event in parts:
            at += land(bench.memory, at, frame)
            bench.send(frame)
            want.append(event)
        if n % 8 == 7:
            await bench.until(lambda: len(bench.events) >= len(want), 8000)
    await bench.settle()
    assert bench.events == want, show([e for e, w in zip(bench.events, want, strict=False) if e != w])
    assert bench.counts() == {"rx_packet": len(want)}
    assert int(dut.inbounds_o.value) == 0 and int(dut.results_o.value) > 0, "results have an ID of their own"
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(case=[(5, 0, 0.0), (200, 0, 0.0), (40, 120, 0.3)])
async def test_several_qps(dut, case: tuple[int, int, float]) -> None:
    """READs and atomics of several QPs, up to 16 open on each, with inbound WRITEs and ACKs among them."""
    latency, stall, gap = case
    bench, lkey = await ready(dut, latency, stall, rx_gap=gap)
    rkey = await bench.set_mr(MRN + 1, *REGION, rights=3)
    askers = [await program(bench, qpi, lkey) for qpi in range(5)]
    open_frames: dict[int, list[tuple[Frame, Event]]] = {a.qpi: [] for a in askers}
    want: dict[int, list[Event]] = {a.qpi: [] for a in askers}
    held = dict.fromkeys(open_frames, 0)
    inbound = dict.fromkeys(open_frames, 0)
    at = {a.qpi: 0x1000 + 0x8000 * a.qpi for a in askers}

    def done(event: Event) -> None:
        held[event.qpi] -= event.kind == DATA and event.last

    bench.on_event = done
    for _ in range(900):
        asker = random.choice(askers)
        queue, q = open_frames[asker.qpi], asker.qpi
        if held[q] < 16 and random.random() < 0.4:
            place = at[q]
            if random.random() < 0.5:
                length = random.choice([0, 1, 64, 300, random.randrange(2000)])
                parts = await asker.read(place, length)
            else:
                parts = await asker.atomic(place, random.choice([4, 8]))
            for frame, _ in parts:
                place += land(bench.memory, place, frame)
            at[q] = 0x1000 + 0x8000 * q + (place + random.randrange(70)) % 0x5000
            # what lands earlier in the same bytes is overwritten, as it comes earlier
            queue += parts
            held[q] += 1
        elif queue and random.random() < 0.8:
            frame, event = queue.pop(0)
            bench.send(frame)
            want[q].append(event)
        elif random.random() < 0.5:
            psn = random.getrandbits(24)
            plain = [(ACK, PLAIN_ACK), (0, PLAIN_ACK), (0x63, NAK), (0x60, NAK), (0x2A, RNR)]
            syndrome, kind = random.choice(plain)
            bench.send(good(q, opcode=ACK_OP, psn=psn, ext=aeth(syndrome, 5)))
            want[q].append(Event(q, kind, psn, -1, False, OK))
        else:
            data = random.randbytes(random.randrange(1, 200))
            va = 0x30000 + random.randrange(0x5000)
            bench.memory[va : va + len(data)] = data
            bench.send(good(q, psn=inbound[q], payload=data, ext=reth(va, rkey, len(data))))
            inbound[q] += 1
    for q, queue in open_frames.items():
        for frame, event in queue:
            bench.send(frame)
            want[q].append(event)
    await bench.until(lambda: not bench.wire, 100_000)
    await bench.settle(3 * latency + 300)
    for q in want:
        got = [e if e.kind == DATA else replace(e, slot=-1, last=False) for e in bench.events if e.qpi == q]
        assert got == want[q], f"QP {q}: {show([e for e, w in zip(got, want[q], strict=False) if e != w])}"
    assert bench.counts()["rx_packet"] == sum(map(len, want.values())) + sum(inbound.values())
    await bench.compare()


@cocotb.test()
async def test_data_before_event(dut) -> None:
    """An event waits for the write responses of its bytes; later ones, plain ACKs too, wait behind it."""
    latency = 400
    bench, lkey = await ready(dut, latency)
    asker = await program(bench, 0, lkey, 5)
    for n in range(6):
        # one burst, two bursts across a page, or an atomic's word across one
        addr = (0x2000, 0x3FF0, 0x4FFC)[n % 3]
        parts = await (asker.read(addr, 100) if n % 3 < 2 else asker.atomic(addr, 8))
        land(bench.memory, addr, parts[0][0])
        bench.send(parts[0][0])
        bench.send(good(0, opcode=ACK_OP, psn=5, ext=aeth(ACK, 1)))
        other = await asker.read(0x9000, 0)
        bench.send(other[0][0])
        await bench.until(lambda: not bench.wire)
        bench.events.clear()
        start = bench.cycles
        await bench.until(lambda: bool(bench.events))
        assert latency < bench.cycles - start < latency + 60, f"event after {bench.cycles - start} cycles"
        await bench.idle(10)
        assert [e.kind for e in bench.events] == [DATA, PLAIN_ACK, DATA]
        assert bench.events[0] == parts[0][1] and bench.events[2] == other[0][1]
    await bench.compare()


def spoil(rng: random.Random, frame: Frame, size: int, asker: Asker) -> tuple[str, int]:
    """Makes one thing wrong with a good response; what, and the error that it gives."""
    if frame.opcode == ATOMIC_ACK:
        frame.opcode = rng.choice([READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY])
        frame.ext = frame.ext[:4] if frame.opcode != READ_MIDDLE else b""
        frame.payload = rng.randbytes(8)
        return "data for an atomic", OPCODE
    good_size = len(frame.payload)
    ways = ["opcode", "atomic", "longer", "both"] + (["shorter"] if frame.payload else [])
    way = rng.choice(ways)
    if way in ("opcode", "both"):
        had_aeth = frame.opcode != READ_MIDDLE
        frame.opcode = rng.choice([o for o in range(READ_FIRST, READ_ONLY + 1) if o != frame.opcode])
        if frame.opcode == READ_MIDDLE:
            frame.ext = b""
        elif not had_aeth:
            frame.ext = aeth(ACK, 1)
    if way == "atomic":
        frame.opcode, frame.ext, frame.payload = ATOMIC_ACK, aeth(ACK, 1) + rng.randbytes(8), b""
    elif way == "shorter":
        frame.payload = frame.payload[rng.choice([1, len(frame.payload)]) :]
    elif way != "opcode":
        frame.payload += rng.randbytes(rng.choice([1, 4, 64]))
    if len(frame.payload) > 4096:
        frame.payload = frame.payload[: 4096 if good_size < 4096 else 4095]
    if way in ("opcode", "atomic", "both"):
        return way, OPCODE
    return way, LENGTH


@cocotb.test()
@cocotb.parametrize(mtu=[1, 3, 5])
async def test_wrong_responses(dut, mtu: int) -> None:
    """A wrong opcode is aa, a wrong length a8: nothing is written, its QP awaits nothing any more."""
    bench, lkey = await ready(dut)
    rng = random.Random(cocotb.RANDOM_SEED)
    other = await program(bench, 9, lkey)
    seen: dict[tuple[str, int], int] = {}
    for _ in range(120):
        qpi = rng.randrange(4)
        asker = await program(bench, qpi, lkey, mtu)
        bench.events.clear()
        before = bench.counts()
        if rng.random() < 0.3:
            parts = await asker.atomic(0x2001, rng.choice([4, 8]))
        else:
            length = rng.choice([0, 10, asker.size, 2 * asker.size, 3 * asker.size + 9, asker.size - 1])
            parts = await asker.read(0x2001, length)
        behind = await asker.read(0x20000, 100)
        bad = rng.randrange(len(parts))
        at, want = 0x2001, []
        for frame, event in parts[:bad]:
            at += land(bench.memory, at, frame)
            bench.send(frame)
            want.append(event)
        frame, event = parts[bad]
        what, code = spoil(rng, frame, asker.size, asker)
        seen[what, code] = seen.get((what, code), 0) + 1
        bench.send(frame)
        want.append(replace(event, fail=code))
        # what comes behind it has no taker
        rest = [f for f, _ in parts[bad + 1 :]] + [f for f, _ in behind]
        for frame in rest:
            bench.send(frame)
        for frame, event in await other.read(0x30000, rng.randrange(500)):
            land(bench.memory, 0x30000, frame)
            bench.send(frame)
            want.append(event)
            break
        other.psn = (want[-1].psn + 1) % MOD
        await bench.settle()
        mine = [e for e in bench.events if e.qpi != 9] + [e for e in bench.events if e.qpi == 9]
        assert mine == want, f"{what}: {mine}, want {want}"
        counts = bench.counts()
        assert counts.get("response", 0) - before.get("response", 0) == len(rest), what
        await bench.reset_qp(9)
        other = await program(bench, 9, lkey)
        await bench.reset_qp(qpi)
    assert {code for _, code in seen} == {OPCODE, LENGTH} and len(seen) >= 5, f"{seen}"
    await bench.compare()


@cocotb.test()
async def test_nobody_waits(dut) -> None:
    """Responses behind, ahead, repeated or never asked for are dropped and counted; bad syndromes too.

    The first one ahead since the last that was taken is told to the requester.
    """
    bench, lkey = await ready(dut)
    asker = await program(bench, 0, lkey, 1)
    drops = syndromes = 0
    for opcode in (READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ATOMIC_ACK):
        ext = b"" if opcode == READ_MIDDLE else aeth(ACK, 1)
        ext += bytes(8) if opcode == ATOMIC_ACK else b""
        bench.send(good(0, opcode=opcode, psn=asker.psn, ext=ext, payload=b"" if len(ext) > 4 else b"1234"))
        drops += 1
    await bench.settle()
    for round_ in range(30):
        parts = await asker.read(0x2000 + round_, random.choice([100, 700, 256]))
        parts += await asker.atomic(0x8001, random.choice([4, 8]))
        expected: list[Event] = []
        places = [0x2000 + round_, 0x8001]
        bench.events.clear()
        for n, (frame, event) in enumerate(parts):
            # ahead, behind, repeated: not now
            told = False
            for off in random.sample([-2, -1, 1, 2, 100, MOD // 2], random.randrange(3)):
                bench.send(replace(frame, psn=(frame.psn + off) % MOD, payload=frame.payload[::-1]))
                drops += 1
                if 0 < off < MOD // 2 and not told:
                    told = True
                    psn, end = (frame.psn + off) % MOD, parts[-2 if n < len(parts) - 1 else -1][0].psn
                    expected.append(Event(0, AHEAD, psn, event.slot, psn == end, OK))
            # a response with AETH carries ACK, nothing else
            if frame.opcode != READ_MIDDLE and random.random() < 0.5:
                syndrome = random.choice([0x20, 0x3F, 0x40, 0x60, 0x61, 0x63, 0x64, 0x80, 0x9F, 0xFF])
                bench.send(replace(frame, ext=bytes([syndrome]) + frame.ext[1:]))
                syndromes += 1
            place = places[0] + sum(len(f.payload) for f, _ in parts[:n]) if n < len(parts) - 1 else places[1]
            land(bench.memory, place, frame)
            bench.send(frame)
            expected.append(event)
            if random.random() < 0.3:
                bench.send(frame)
                drops += 1
        for syndrome in (0x64, 0x7F, 0x40, 0x80):
            bench.send(good(0, opcode=ACK_OP, psn=asker.psn, ext=aeth(syndrome, 1)))
            syndromes += 1
        await bench.settle()
        assert bench.events == expected, show(bench.events)
    counts = bench.counts()
    assert (counts["response"], counts["syndrome"]) == (drops, syndromes)
    await bench.compare()


@cocotb.test()
async def test_local_keys(dut) -> None:
    """Key, right and range are judged for each response: a7, nothing of that packet is written."""
    bench, lkey = await ready(dut)
    base, room = REGION
    poor = lkey_of(await bench.set_mr(MRN + 1, base, room, rights=0))
    # (sink, key, what happens after the first response)
    cases: list[tuple[int, int, dict[str, object] | None]] = [
        (0x2000, lkey ^ 1, None),
        (0x2000, lkey ^ 1 << 16, None),
        (0x2000, poor, None),
        (0x2000, lkey & ~0xFF | 0x5A, None),  # the rkey
        (base - 1, lkey, None),
        (base + room - 256 - 40, lkey, None),  # the second response crosses the end
        (0x2000, lkey, {"valid": False}),
        (0x2000, lkey, {"tag": 0x11}),
        (0x2000, lkey, {"rights": 2 | 4 | 8}),
        (0x2000, lkey, {"length": 0x2000 - base + 256}),
    ]
    for sink, key, change in cases:
        for kind in ("read", "atomic"):
            asker = await program(bench, 2, lkey, 1)
            bench.events.clear()
            want: list[Event] = []
            fails_first = change is None and sink != base + room - 256 - 40
            parts = await asker.read(sink, 256 + 41, key) if kind == "read" else []
            if kind == "atomic":
                good_one = await asker.read(0x3000, 10)
                land(bench.memory, 0x3000, good_one[0][0])
                far = {base + room - 256 - 40: base + room - 7}.get(sink, sink)
                parts = good_one + await asker.atomic(far if change is None else 0x2100, 8, key)
            else:
                if not fails_first:
                    land(bench.memory, sink, parts[0][0])
            bench.send(parts[0][0])
            await bench.settle()
            failing = 0 if kind == "read" and fails_first else 1
            if change is not None:
                await bench.set_mr(MRN, **{"base": base, "length": room, "rights": 1, **change})
            bench.send(parts[1][0])
            await bench.settle()
            want = [event for _, event in parts[: failing + 1]]
            want[failing] = replace(want[failing], fail=LOCAL_KEY)
            assert bench.events == want, f"{kind} {sink:#x} {change}: {bench.events}, want {want}"
            assert lkey_of(await bench.set_mr(MRN, *REGION, rights=1)) == lkey
            await bench.reset_qp(2)
    await bench.compare()


@cocotb.test()
@cocotb.parametrize(stall=[0, 120])
async def test_bus_errors(dut, stall: int) -> None:
    """A result that cannot be written: b3 for its WQE, later data of its QP has no taker, ACKs still come."""
    bench, lkey = await ready(dut, 50, stall)
    dut.fault_i.value = 1
    dut.fault_beat_i.value = 0x6000 // 64
    for n in range(16):
        asker = await program(bench, 1, lkey, 1)
        other = await program(bench, 2, lkey, 1)
        bench.events.clear()
        bad = n % 4
        kind = "atomic" if n % 5 == 4 else "read"
        start = 0x6000 - 256 * bad - 3 if kind == "read" else 0x6000 - 4
        parts = await (asker.read(start, 5 * 256) if kind == "read" else asker.atomic(start, 8))
        parts += await asker.read(0x9000, 10)
        want: list[Event] = []
        at = start
        failing = bad if kind == "read" else 0
        for k, (frame, event) in enumerate(parts):
            bench.send(frame)
            if k < failing:
                at += land(bench.memory, at, frame)
                want.append(event)
            elif k == failing:
                # its burst in the page before may stand, as it has a response of its own
                copy = bytearray(bench.memory)
                land(copy, at, frame)
                bench.memory[at:0x6000] = copy[at:0x6000]
                want.append(replace(event, fail=BUS))
        bench.send(good(1, opcode=ACK_OP, psn=77, ext=aeth(ACK, 1)))
        beside = await other.read(0xA000, 300)
        land(bench.memory, 0xA000, beside[0][0])
        land(bench.memory, 0xA100, beside[1][0])
        for frame, _ in beside:
            bench.send(frame)
        await bench.settle(300)
        mine = [e for e in bench.events if e.qpi == 1]
        assert mine[: len(want)] == want, f"{kind}, packet {failing}: {mine}, want {want}"
        assert [(e.kind, e.psn) for e in mine[len(want) :]] == [(PLAIN_ACK, 77)]
        assert [e for e in bench.events if e.qpi == 2] == [event for _, event in beside]
        assert bench.counts()[str(BUS_RESULT)] >= n + 1
        # what came before the failure was known is written; everything else of these bytes may be old or new
        for at, size in ((0x5C00, 0x1000), (0x9000, 16)):
            for beat in range(at // 64, (at + size) // 64 + 1):
                if beat != 0x6000 // 64:
                    dut.peek_beat_i.value = beat
                    await bench.cycle()
                    if beat > 0x6000 // 64:
                        found = int(dut.peek_data_o.value).to_bytes(64, "little")
                        bench.memory[64 * beat : 64 * beat + 64] = found
        await bench.reset_qp(1)
        await bench.reset_qp(2)
    await bench.compare()


@cocotb.test()
async def test_reset(dut) -> None:
    """A QP that is set again expects nothing of before."""
    bench, lkey = await ready(dut, 100)
    for n in range(10):
        asker = await program(bench, 5, lkey, 1)
        bench.events.clear()
        parts = await asker.read(0x2000, 2000)
        parts += await asker.atomic(0x3001, 8)
        at = 0x2000
        for frame, _ in parts[: n % 5]:
            at += land(bench.memory, at, frame)
            bench.send(frame)
        await bench.until(lambda: not bench.wire)
        await bench.idle(10)
        await bench.reset_qp(5)
        assert len(bench.events) == n % 5
        again = await program(bench, 5, lkey, 2)
        before = bench.counts().get("response", 0)
        bench.send(parts[n % 5][0])
        await bench.settle()
        assert bench.counts()["response"] == before + 1 and len(bench.events) == n % 5
        fresh = await again.read(0x5000, 600)
        land(bench.memory, 0x5000, fresh[0][0])
        land(bench.memory, 0x5200, fresh[1][0])
        for frame, _ in fresh:
            bench.send(frame)
        await bench.settle(200)
        assert bench.events[n % 5 :] == [event for _, event in fresh]
        await bench.reset_qp(5)
    await bench.compare()


@cocotb.test()
async def test_invalidation_waits(dut) -> None:
    """An invalidation waits for the results that its old entry allowed."""
    bench, lkey = await ready(dut, 300)
    asker = await program(bench, 0, lkey, 5)
    parts = await asker.read(0x2000, 4000)
    land(bench.memory, 0x2000, parts[0][0])
    bench.send(parts[0][0])
    await bench.until(lambda: int(dut.results_o.value) == 1)
    dut.mr_drain_i.value = 1
    await bench.set_mr(MRN, *REGION, rights=1, valid=False)
    await bench.idle(20)
    while dut.mr_drain_busy_o.value == 1:
        assert not bench.events
        await bench.cycle()
    await bench.idle(3)
    assert bench.events == [parts[0][1]]
    await bench.compare()
