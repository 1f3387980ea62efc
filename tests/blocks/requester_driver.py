"""Driver of the bench around the whole requester (requester_bench.sv): memory, responder port, host front.

One `step` is a cycle. What the requester does is collected; what it must do is computed here from the posted
WQEs (nic.md 4 to 6, wire.md 2, 3 and 5).
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import cocotb
from cocotb.triggers import RisingEdge

from tests.blocks.wqe_slot import (
    ATOMICS,
    CAS64,
    FA64,
    MCAS32,
    MCAS64,
    MFA32,
    MFA64,
    OPERANDS,
    READ,
    Wqe,
    legal,
)

BENCH = {
    "top": "requester_bench",
    "sources": [
        "rtl/rnic_pkg.sv",
        "rtl/common/*.sv",
        "rtl/requester/req_pkg.sv",
        "rtl/context/ctx_ram.sv",
        "rtl/memory/mr_check.sv",
        "rtl/requester/req_table.sv",
        "rtl/requester/req_fail.sv",
        "rtl/requester/tx_cut.sv",
        "rtl/requester/tx_gate.sv",
        "rtl/requester/tx_form.sv",
        "rtl/requester/tx_sched.sv",
        "rtl/requester/ack_track.sv",
        "rtl/requester/retry_timer.sv",
        "rtl/requester/retry_ctl.sv",
        "rtl/fetch/wrr_arb.sv",
        "rtl/fetch/lane_ctl.sv",
        "rtl/fetch/wqe_decode.sv",
        "rtl/fetch/fetch_eng.sv",
        "rtl/completion/cqe_format.sv",
        "rtl/completion/recv_pend.sv",
        "rtl/completion/cq_state.sv",
        "rtl/completion/comp_qp.sv",
        "rtl/completion/comp_pend.sv",
        "rtl/completion/comp_pick.sv",
        "rtl/completion/comp_eng.sv",
        "rtl/completion/cqe_writer.sv",
        "rtl/completion/cq_event.sv",
        "rtl/requester/requester.sv",
        "tests/blocks/sv/requester_bench.sv",
    ],
}

ACK, NAK, RNR, DATA, AHEAD = range(5)
OK, VA, LENGTH, INV, ACCESS, REMOTE, LOCAL, RSP_LEN, RSP_OP, FORMAT, DMA, GATHER, SCATTER, FLUSH = (
    0x00,
    0x89,
    0x9F,
    0xA4,
    0xA5,
    0xA6,
    0xA7,
    0xA8,
    0xAA,
    0xAB,
    0xAC,
    0xB2,
    0xB3,
    0xFF,
)
READ_REQUEST = 0x0C
BTH = {CAS64: 0x13, FA64: 0x14, MCAS64: 0xC0, MFA64: 0xC1, MCAS32: 0xC2, MFA32: 0xC3}
FIRST, MIDDLE, LAST, ONLY = 0x06, 0x07, 0x08, 0x0A
FIRST_QPN = 2
ACK_INTERVAL = 16
CNT_DROP_RESPONSE, CNT_NAK_RX, CNT_RNR, CNT_RETRY = 17, 33, 37, 46
# MR 3 may be written, MR 4 may only be read; both cover REGION
REGION, REGION_BYTES, TAG = 0x10_0000_0000, 1 << 33, 0x5C
KEY, KEY_READ_ONLY, KEY_BAD = 3 << 8 | TAG, 4 << 8 | TAG, 3 << 8 | TAG ^ 1


@dataclass(frozen=True)
class Job:
    """A packet job; what its opcode does not use is 0."""

    qp: int
    slot: int
    bth: int
    psn: int
    ack: int
    reth: int
    raddr: int = 0
    rkey: int = 0
    dma_len: int = 0
    laddr: int = 0
    pay: int = 0
    amo: tuple[int, int, int, int] = (0, 0, 0, 0)  # swap or add, compare, swap mask, compare mask


@dataclass(frozen=True)
class Expect:
    """What a started READ or atomic says that it expects."""

    qp: int
    slot: int
    kind: int
    first: int
    last: int
    laddr: int
    lkey: int
    length: int


@dataclass(frozen=True)
class Cqe:
    """The fields of a CQE that a requester decides."""

    qp: int
    code: int
    wqe_id: int
    length: int = 0
    opcode: int = 0


@dataclass
class Qp:
    """A QP: its context, what was posted, and where it stands."""

    num: int
    version: int
    mtu: int
    log: int
    base: int
    start: int
    psn: int
    max_rd: int
    posted: list[Wqe] = field(default_factory=list)

    def index(self, offset: int) -> int:
        """Index of the WQE `offset` after the first, 14 bits V1 and 18 bits V2."""
        return (self.start + offset) % (1 << (14 if self.version == 1 else 18))

    def slot(self, offset: int) -> int:
        """Its place in the outstanding table."""
        return self.index(offset) % 16

    def psns(self, offset: int) -> int:
        """PSNs that the WQE takes (wire.md 5)."""
        w = self.posted[offset]
        return 1 if w.op in ATOMICS else max(1, -(-w.msg_len // self.mtu))

    def first(self, offset: int) -> int:
        """Its first PSN; `offset` may be one beyond the last WQE."""
        return (self.psn + sum(self.psns(i) for i in range(offset))) % (1 << 24)

    def last(self, offset: int) -> int:
        """Its last PSN."""
        return (self.first(offset) + self.psns(offset) - 1) % (1 << 24)

    def jobs(self, offset: int) -> list[Job]:
        """Its packets."""
        w, slot, psn = self.posted[offset], self.slot(offset), self.first(offset)
        if w.op == READ:
            return [Job(self.num, slot, READ_REQUEST, psn, 1, 1, w.raddr, w.rkey, w.msg_len)]
        if w.op in ATOMICS:
            return [Job(self.num, slot, BTH[w.op], psn, 1, 0, w.raddr, w.rkey, amo=operands(w))]
        total, jobs = self.psns(offset), []
        for k in range(total):
            last = k == total - 1
            bth = ((MIDDLE, LAST), (FIRST, ONLY))[k == 0][last]
            pay = w.msg_len - k * self.mtu if last else self.mtu
            jobs.append(
                Job(
                    self.num,
                    slot,
                    bth,
                    (psn + k) % (1 << 24),
                    int(last or (k + 1) % ACK_INTERVAL == 0),
                    int(k == 0),
                    *((w.raddr, w.rkey, w.msg_len) if k == 0 else (0, 0, 0)),
                    laddr=(w.laddr + k * self.mtu) % (1 << 64) if pay else 0,
                    pay=pay,
                )
            )
        return jobs

    def expect(self, offset: int) -> Expect:
        """What its READ or atomic expects."""
        w = self.posted[offset]
        kind = 0 if w.op == READ else 1 if ATOMICS[w.op][2] == 8 else 2
        length = w.msg_len if w.op == READ else ATOMICS[w.op][2]
        return Expect(
            self.num, self.slot(offset), kind, self.first(offset), self.last(offset), w.laddr, w.lkey, length
        )

    def cqe(self, offset: int, code: int = OK) -> Cqe:
        """Its CQE."""
        wqe_id = self.index(offset) * 8 % (1 << (16 if self.version == 1 else 20))
        if code in (FLUSH, DMA):
            return Cqe(self.num, code, wqe_id)
        w = self.posted[offset]
        length = ATOMICS[w.op][2] if w.op in ATOMICS else w.msg_len
        return Cqe(self.num, code, wqe_id, 0 if code else length, w.op)


def operands(w: Wqe) -> tuple[int, int, int, int]:
    """Operands of a posted atomic as integers, in the order of Job.amo."""
    names, size = OPERANDS[w.op]
    got = dict.fromkeys(("swap_add", "compare", "swap_mask", "compare_mask"), 0)
    for k, name in enumerate(names):
        if name:
            got[name] = int.from_bytes(w.tail[k * size : (k + 1) * size], "big")
    return (got["swap_add"], got["compare"], got["swap_mask"], got["compare_mask"])


def fetches(w: Wqe) -> bool:
    """A READ or atomic."""
    return w.op == READ or w.op in ATOMICS


class Bench:
    """Drives the requester and collects what it does."""

    def __init__(self, dut, stall: float = 0.0, latency: int = 6) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.stall, self.latency = stall, latency
        self.cycle = 0
        self.qps: dict[int, Qp] = {}
        self.slots: dict[int, tuple[int, bool]] = {}  # slot address: (word, bus error)
        self.jobs: list[Job] = []
        self.job_at: list[int] = []
        self.expects: list[Expect] = []
        self.expect_at: list[int] = []
        self.cqes: list[Cqe] = []
        self.errors: list[int] = []
        self.fetched: Counter[int] = Counter()  # WQEs read, by QP
        self.counts: Counter[int] = Counter()
        self.responses: deque[dict[str, int]] = deque()
        self.answered: list[dict[str, int]] = []  # responses that were taken
        self.answered_at: list[int] = []
        self.beats: deque[tuple[int, int, bool]] = deque()
        self.cqe_acks: deque[int] = deque()
        self.rts = self.err = 0
        self.ready = 1
        self.ready_held: int | None = None  # a fixed value in place of random stalls
        self.pulsed: list[str] = []
        self.offered = False

    async def start(self) -> "Bench":
        """Reset, regions and CQ 0."""
        dut = self.dut
        for handle in dut:
            name = handle._name
            if name.endswith("_i") and name not in ("clk_i", "rst_ni"):
                handle.value = 0
        dut.rst_ni.value = 0
        await RisingEdge(dut.clk_i)
        await RisingEdge(dut.clk_i)
        dut.rst_ni.value = 1
        dut.job_ready_i.value = 1
        dut.fetch_ready_i.value = 1
        await self.step()
        for mrn, write in ((3, 1), (4, 0)):
            region = {"mr_base_i": REGION, "mr_length_i": REGION_BYTES, "mr_tag_i": TAG, "mr_write_i": write}
            await self.step(mr_set_i=1, ctx_mrn_i=mrn, **region)
        await self.cq(0)
        return self

    async def cq(self, cqn: int, log: int = 16) -> None:
        """Program a CQ of 2^log entries."""
        await self.step(cq_set_i=1, ctx_cqn_i=cqn, cq_base_i=cqn + 1 << 40, cq_log_i=log)

    async def qp(
        self,
        num: int,
        *,
        version: int = 2,
        mtu: int = 1024,
        log: int = 7,
        start: int = 0,
        psn: int = 0,
        max_rd: int = 16,
        cqn: int = 0,
        retry: int = 7,
        rnr: int = 7,
        timer: int = 0,
    ) -> Qp:
        """Program a QP; RTS from the next cycle on."""
        qp = self.qps[num] = Qp(num, version, mtu, log, num + 1 << 24, start, psn, max_rd)
        await self.step(
            qp_set_i=1,
            ctx_qpi_i=num,
            qp_version2_i=version == 2,
            qp_mtu_i=mtu.bit_length() - 8,
            qp_log_i=log,
            qp_base_i=qp.base,
            qp_start_i=start,
            qp_psn_i=psn,
            qp_max_rd_i=max_rd,
            qp_retry_i=retry,
            qp_rnr_i=rnr,
            qp_timer_i=timer,
            qp_cqn_i=cqn,
        )
        self.rts |= 1 << num
        await self.step(qp_rts_i=self.rts)
        return qp

    def state(self, num: int, name: str) -> None:
        """State vectors as the host front drives them, from the next cycle on."""
        self.rts = self.rts & ~(1 << num) | (name == "rts") << num
        self.err = self.err & ~(1 << num) | (name == "err") << num
        self.dut.qp_rts_i.value = self.rts
        self.dut.qp_err_i.value = self.err

    async def reset(self, num: int) -> int:
        """RTS or ERR to RESET: waits until nothing of the QP is left; the cycles that it took."""
        self.state(num, "reset")
        began = self.cycle
        self.dut.drain_valid_i.value = 1
        self.dut.drain_qpi_i.value = num
        await self.step(2)
        while int(self.dut.drain_busy_o.value):
            await self.step()
            assert self.cycle - began < 2000, f"QP {num}: the reset does not end"
        # the data path has taken the QP's responses and jobs by now
        self.responses = deque(r for r in self.responses if r["qpi"] != num)
        self.offered = False
        self.dut.rsp_valid_i.value = 0
        self.dut.drain_valid_i.value = 0
        await self.step(qp_reset_i=1, ctx_qpi_i=num)
        return self.cycle - began

    def write(self, qp: Qp, *wqes: Wqe) -> None:
        """Store WQEs into the ring behind those that are there."""
        for w in wqes:
            offset = len(qp.posted)
            w = replace(w, version=qp.version, index=qp.index(offset))
            qp.posted.append(w)
            self.slots[qp.base + 128 * (w.index % (1 << qp.log))] = (w.encode(), w.bus)

    async def ring(self, qp: Qp, count: int | None = None) -> None:
        """Doorbell: the first `count` WQEs (all by default) are announced."""
        index = qp.index(len(qp.posted) if count is None else count)
        await self.step(db_valid_i=1, db_qpi_i=qp.num, db_idx_i=index)

    async def post(self, qp: Qp, *wqes: Wqe) -> None:
        """Store and announce."""
        self.write(qp, *wqes)
        await self.ring(qp)

    def wqe(self, op: int, length: int = 64, **fields: int) -> Wqe:
        """A legal WQE with a good local key and random operands."""
        names, size = OPERANDS.get(op, ((), 0))
        tail = b"".join(self.rng.randbytes(size) for _ in names)
        span = min(length, REGION_BYTES // 2)
        w = replace(
            legal(op, length=length),
            lkey=KEY,
            laddr=REGION + self.rng.randrange(REGION_BYTES - span - 16),
            raddr=self.rng.getrandbits(60) << 3,
            rkey=self.rng.getrandbits(32),
            tail=tail,
        )
        return replace(w, **fields)

    def respond(
        self, qp: Qp, kind: int, psn: int, *, code: int = 0, slot: int = 0, last: int = 0, fail: int = OK
    ) -> None:
        """Queue a response; `code`: of a NAK, or of an RNR NAK's time."""
        self.responses.append(
            {
                "qpi": qp.num,
                "kind": kind,
                "psn": psn % (1 << 24),
                "syndrome": {ACK: 0x1F, NAK: 0x60 | code, RNR: 0x20 | code, DATA: 0x1F, AHEAD: 0x1F}[kind],
                "slot": slot,
                "last": last,
                "fail": fail,
            }
        )

    def data(self, qp: Qp, offset: int, upto: int | None = None, fail: int = OK) -> None:
        """The response of a READ's packet `upto` (its last one by default) or of an atomic."""
        total = qp.psns(offset)
        k = total - 1 if upto is None else upto
        last = int(k == total - 1)
        self.respond(qp, DATA, qp.first(offset) + k, slot=qp.slot(offset), last=last, fail=fail)

    async def step(self, count: int = 1, **pulses: int) -> None:
        """`count` cycles, the first with these inputs set; outputs are taken at the end of each cycle."""
        dut = self.dut
        for name, value in pulses.items():
            getattr(dut, name).value = value
            if name.endswith(("_valid_i", "_set_i", "_reset_i")):
                self.pulsed.append(name)
        for _ in range(count):
            self._drive()
            await RisingEdge(dut.clk_i)
            self.cycle += 1
            for name in self.pulsed:
                getattr(dut, name).value = 0
            self.pulsed.clear()
            self._collect()

    def _drive(self) -> None:
        """Inputs of the coming cycle."""
        dut = self.dut
        if self.ready_held is not None:
            self.ready = self.ready_held
        elif self.stall:
            self.ready = int(self.rng.random() >= self.stall)
        dut.job_ready_i.value = self.ready
        if self.beats and self.beats[0][0] <= self.cycle:
            _, word, error = self.beats.popleft()
            dut.fbeat_valid_i.value = 1
            dut.fbeat_data_i.value = word
            dut.fbeat_err_i.value = error
        else:
            dut.fbeat_valid_i.value = 0
        if self.cqe_acks and self.cqe_acks[0] <= self.cycle:
            self.cqe_acks.popleft()
            dut.cqe_b_valid_i.value = 1
        else:
            dut.cqe_b_valid_i.value = 0
        if self.responses and not self.offered:
            for name, value in self.responses[0].items():
                getattr(dut, f"rsp_{name}_i").value = value
            dut.rsp_valid_i.value = 1
            self.offered = True
        dut.time_i.value = self.cycle
        dut.rewound_i.value = int(self.rewound())

    def rewound(self) -> bool:
        """The receive side has forgotten what the QP that goes back expects: at once here."""
        return bool(int(self.dut.rewind_valid_o.value))

    def _collect(self) -> None:
        """Take the outputs of the cycle that ended."""
        dut = self.dut
        if self.offered and int(dut.rsp_ready_o.value):
            self.answered.append(self.responses.popleft())
            self.answered_at.append(self.cycle)
            self.offered = False
            dut.rsp_valid_i.value = 0
        if not int(dut.any_o.value):
            return
        if int(dut.fetch_valid_o.value):
            self._fetch(int(dut.fetch_addr_o.value), int(dut.fetch_len_o.value) + 1)
        if int(dut.job_valid_o.value) and self.ready:
            self._job()
        if int(dut.expect_valid_o.value):
            names = ("qpi", "slot", "kind", "first", "last", "laddr", "lkey", "len")
            self.expects.append(Expect(*(int(getattr(dut, f"expect_{n}_o").value) for n in names)))
            self.expect_at.append(self.cycle)
        if int(dut.cqe_valid_o.value):
            self._cqe(int(dut.cqe_data_o.value))
        if int(dut.err_valid_o.value):
            self.errors.append(int(dut.err_qpi_o.value))
            if self.rts >> self.errors[-1] & 1:
                self.state(self.errors[-1], "err")
        bits = int(dut.cnt_o.value)
        while bits:
            low = bits & -bits
            self.counts[low.bit_length() - 1] += 1
            bits ^= low

    def _fetch(self, address: int, beats: int) -> None:
        """A burst of WQE reads; its data comes after the latency, behind what is on its way."""
        qp = self.qps[(address >> 24) - 1]
        self.fetched[qp.num] += beats // 2
        due = self.cycle + self.latency
        for slot in range(address, address + 64 * beats, 128):
            assert slot in self.slots, f"QP {qp.num}: fetch of {slot:#x}, which nobody announced"
            word, error = self.slots[slot]
            self.beats.append((due, word % (1 << 512), error))
            self.beats.append((due, word >> 512, False))

    def _job(self) -> None:
        """A packet left."""
        dut = self.dut
        names = ("qpi", "slot", "bth", "psn", "ack", "reth", "raddr", "rkey", "len", "laddr", "pay")
        got = dict(zip(names, (int(getattr(dut, f"job_{n}_o").value) for n in names), strict=True))
        atomic = got["bth"] in BTH.values()
        amo = int(dut.job_amo_o.value) if atomic else 0
        parts = [amo >> 64 * k & (1 << 64) - 1 for k in range(4)]  # swap_add lowest
        flags = (int(dut.job_se_o.value), int(dut.job_imm_o.value), int(dut.job_rsp_o.value))
        assert flags == (0, 0, 0), f"se, immediate, response: {flags}"
        if not got["reth"]:
            got["len"] = 0
            if not atomic:
                got["raddr"] = got["rkey"] = 0
        if not got["pay"]:
            got["laddr"] = 0
        self.jobs.append(Job(*got.values(), amo=(parts[0], parts[1], parts[2], parts[3])))
        self.job_at.append(self.cycle)

    def _cqe(self, data: int) -> None:
        """A CQE is written."""
        num = (data >> 8 & 0x7FFF) - FIRST_QPN
        v2 = self.qps[num].version == 2
        wqe_id = data >> 204 & 0xFFFFF if v2 else data >> 176 & 0xFFFF
        self.cqes.append(Cqe(num, data & 0xFF, wqe_id, data >> 64 & 0xFFFFFFFF, data >> 192 & 0xFF))
        self.cqe_acks.append(self.cycle + 12)

    def of(self, qp: Qp) -> list[Job]:
        """The packets of a QP so far."""
        return [job for job in self.jobs if job.qp == qp.num]

    def cqes_of(self, qp: Qp) -> list[Cqe]:
        """The CQEs of a QP so far."""
        return [cqe for cqe in self.cqes if cqe.qp == qp.num]

    def check_jobs(self, qp: Qp, count: int, offsets: Sequence[int] | None = None) -> None:
        """The packets of a QP are those of its first `count` WQEs, or of the WQEs at `offsets`."""
        want = [job for i in (range(count) if offsets is None else offsets) for job in qp.jobs(i)]
        got = self.of(qp)
        for k, (a, b) in enumerate(zip(got, want, strict=False)):
            assert a == b, f"QP {qp.num} packet {k}: {a}, expected {b}"
        assert len(got) == len(want), f"QP {qp.num}: {len(got)} packets, expected {len(want)}"

    def check_cqes(self, qp: Qp, codes: dict[int, int]) -> None:
        """The CQEs of a QP are those of these WQEs with these codes."""
        want = [qp.cqe(offset, code) for offset, code in codes.items()]
        got = self.cqes_of(qp)
        assert got == want, f"QP {qp.num}: CQEs {got}, expected {want}"
