"""Random lives of many QPs in the requester: all operations, failures, ERR and reset, reuse.

Sweep: 12 QPs on 8 lanes, both versions, all MTUs, random starts of PSNs and indices near their wraps,
max_rd_atomic 1 to 16, WRITEs, READs and atomics with and without fence and ce, doorbells in random portions,
acknowledgements that cover much or little, data packet by packet; at most one failure found by the requester
and one brought by a response per life; ERR from outside; resets at any time; three rates at which packets are
taken.
Stimulus: WQEs, doorbells and responses as in test_requester; the responder answers in PSN order.
Checks: every packet and expectation of each life in order; limit and fence at every start; every CQE, its
order and its code; silence after a reset.
Timing: none. Not proved here: windows (test_requester), anything beyond the requester's ports.
"""

from dataclasses import dataclass, field

import cocotb

from tests.blocks.requester_driver import (
    ACCESS,
    ACK,
    DMA,
    FLUSH,
    FORMAT,
    INV,
    KEY_BAD,
    LENGTH,
    LOCAL,
    NAK,
    OK,
    REMOTE,
    RSP_LEN,
    RSP_OP,
    SCATTER,
    VA,
    Bench,
    Job,
    Qp,
    fetches,
)
from tests.blocks.requester_driver import (
    BENCH as BENCH,
)
from tests.blocks.wqe_slot import ATOMICS, READ, WRITE, Wqe

NUM_QP = 12
LOCAL_FAULTS: list[tuple[dict[str, int | bool], int]] = [
    ({"id_error": 8}, FORMAT),
    ({"bus": True}, DMA),
    ({"l_len": 5}, LENGTH),
    ({"lkey": KEY_BAD}, LOCAL),
]


@dataclass
class Life:
    """A QP from its programming to its reset."""

    qp: Qp
    wqes: list[Wqe]
    local: int | None  # WQE that the requester refuses, its code
    local_code: int
    remote: int | None  # WQE that a response fails, its code; by NAK or by data
    remote_code: int
    by_data: bool
    end: str  # "done", or "err" or "reset" at cycle `end_at` of the life
    end_at: int
    born: int
    rung: int = 0
    seen: int = 0  # packets
    started: int = 0  # READs and atomics
    answered: int = 0  # packets of WRITEs and whole READs and atomics that the responder is through with
    data_sent: int = 0  # data packets of the READ that is being answered
    ended: set[int] = field(default_factory=set)  # READs and atomics whose last data was taken
    packets: list[tuple[int, Job]] = field(default_factory=list)  # all packets to come: WQE, job
    failed: bool = False
    dead: bool = False

    @property
    def failing(self) -> tuple[int, int] | None:
        """The WQE that fails and its code."""
        if self.remote is not None and (self.local is None or self.remote < self.local):
            return self.remote, self.remote_code
        return None if self.local is None else (self.local, self.local_code)


class Soak:
    """All QPs, one `cycle` at a time."""

    def __init__(self, bench: Bench) -> None:
        self.b = bench
        self.rng = bench.rng
        self.lives: dict[int, Life] = {}
        self.lives_done = 0
        self.jobs_seen = self.expects_seen = self.answers_seen = 0
        self.covered: set[str] = set()

    async def born(self, num: int) -> None:
        """Program a QP and draw its life."""
        b, rng = self.b, self.rng
        version = rng.choice((1, 2))
        top = 1 << (14 if version == 1 else 18)
        qp = await b.qp(
            num,
            version=version,
            mtu=rng.choice((256, 512, 1024, 2048, 4096)),
            log=7,
            start=rng.choice((0, top - rng.randrange(1, 30), rng.randrange(top))),
            psn=rng.choice(((1 << 24) - rng.randrange(1, 60), rng.getrandbits(24))),
            max_rd=rng.choice((1, 2, 3, 8, 16)),
        )
        wqes = []
        for _ in range(rng.randrange(5, 60)):
            op = rng.choice((WRITE, WRITE, WRITE, READ, READ, rng.choice(list(ATOMICS))))
            length = rng.choice((0, 64, qp.mtu, rng.randrange(3 * qp.mtu), rng.randrange(2 * qp.mtu)))
            fence = int(rng.random() < 0.15)
            ce = int(rng.random() < 0.7)
            wqes.append(b.wqe(op, length, fence=fence, ce=ce, raddr=rng.getrandbits(64)))
        local = remote = None
        code = remote_code = OK
        by_data = False
        if rng.random() < 0.3:
            local = rng.randrange(len(wqes))
            change, code = rng.choice(LOCAL_FAULTS)
            w = wqes[local]
            if code == LOCAL and w.msg_len == 0:
                wqes[local] = w = b.wqe(WRITE, 64)
            for name, value in change.items():
                setattr(w, name, value)
        if rng.random() < 0.4:
            remote = rng.randrange(len(wqes))
            w = wqes[remote]
            by_data = fetches(w) and rng.random() < 0.6
            if by_data:
                remote_code = rng.choice((RSP_LEN, RSP_OP, SCATTER, LOCAL))
            else:
                remote_code = rng.choice((INV, ACCESS, REMOTE))
                if remote_code == INV and w.op in ATOMICS and w.raddr % ATOMICS[w.op][2]:
                    remote_code = VA
        end = rng.choice(("done", "done", "done", "err", "reset"))
        self.lives[num] = Life(
            qp, wqes, local, code, remote, remote_code, by_data, end, rng.randrange(900), b.cycle
        )
        b.write(qp, *wqes)
        life = self.lives[num]
        life.packets = [(i, job) for i in range(len(wqes)) for job in qp.jobs(i)]

    def watch(self) -> None:
        """Judge what the requester did since the last look."""
        b = self.b
        for answer in b.answered[self.answers_seen :]:
            life = self.lives[answer["qpi"]]
            if answer["kind"] == 3 and answer["last"] and not answer["fail"]:
                slots = [i for i in range(len(life.wqes)) if i not in life.ended and fetches(life.wqes[i])]
                assert life.qp.slot(slots[0]) == answer["slot"]
                life.ended.add(slots[0])
        self.answers_seen = len(b.answered)
        for job in b.jobs[self.jobs_seen :]:
            life = self.lives[job.qp]
            assert life.seen < len(life.packets), f"{job}: more packets than WQEs"
            offset, want = life.packets[life.seen]
            assert job == want, f"packet {life.seen}: {job}, expected {want}"
            assert life.local is None or offset < life.local, f"{job} of a WQE that has to fail or behind it"
            w = life.wqes[offset]
            if w.fence and job == life.qp.jobs(offset)[0]:
                before = {i for i in range(offset) if fetches(life.wqes[i])}
                assert before <= life.ended, f"{job} passed its fence: {before - life.ended} are out"
                self.covered.add("fence")
            life.seen += 1
        self.jobs_seen = len(b.jobs)
        for expect in b.expects[self.expects_seen :]:
            life = self.lives[expect.qp]
            reads = [i for i, w in enumerate(life.wqes) if fetches(w)]
            want = life.qp.expect(reads[life.started])
            assert expect == want, f"{expect}, expected {want}"
            life.started += 1
            out = life.started - len(life.ended)
            assert out <= life.qp.max_rd, f"{expect}: {out} READs and atomics out"
            if out == life.qp.max_rd:
                self.covered.add("limit")
        self.expects_seen = len(b.expects)

    def respond(self, life: Life) -> None:
        """The responder answers the oldest packet that it is not through with."""
        b, rng, qp = self.b, self.rng, life.qp
        if life.failed or life.answered >= life.seen:
            return
        offset, job = life.packets[life.answered]
        w = life.wqes[offset]
        fails = life.failing == (offset, life.remote_code) and offset == life.remote
        if fails and not (life.by_data and life.data_sent < qp.psns(offset) - 1 and rng.random() < 0.7):
            life.failed = True
            self.covered.add(f"{life.remote_code:#x}")
            if life.by_data:
                b.data(qp, offset, life.data_sent, fail=life.remote_code)
            else:
                code = {VA: 1, INV: 1, ACCESS: 2, REMOTE: 3}[life.remote_code]
                b.respond(qp, NAK, job.psn + life.data_sent, code=code)
            return
        if fetches(w):
            b.data(qp, offset, life.data_sent)
            life.data_sent += 1
            if life.data_sent == qp.psns(offset):
                life.answered += 1
                life.data_sent = 0
            return
        life.answered += 1
        # a later response covers it, but failing data covers nothing
        more = life.answered < life.seen
        next_fails = more and life.packets[life.answered][0] == life.remote
        if job.ack and not (more and not next_fails and rng.random() < 0.5):
            b.respond(qp, ACK, job.psn)

    def finished(self, life: Life) -> bool:
        """Every CQE of a life is there and nothing is left to do, or its way to ERR made an end of it."""
        if life.dead:
            return self.flushed(life)
        if life.failing is None and life.answered < len(life.packets):
            return False
        return len(self.b.cqes_of(life.qp)) == len(self.want(life))

    def want(self, life: Life) -> dict[int, int]:
        """The CQEs of a life that ends by itself: WQE, code."""
        if life.failing is None:
            return {i: OK for i, w in enumerate(life.wqes) if w.ce}
        offset, code = life.failing
        codes = {i: OK for i, w in enumerate(life.wqes[:offset]) if w.ce} | {offset: code}
        return codes | dict.fromkeys(range(offset + 1, len(life.wqes)), FLUSH)

    def flushed(self, life: Life) -> bool:
        """After ERR from outside: good CQEs, perhaps the failure, then a flush CQE for each of the rest."""
        cqes = self.b.cqes_of(life.qp)
        good = [cqe for cqe in cqes if cqe.code != FLUSH]
        rest = cqes[len(good) :]
        first = life.rung - len(rest)
        if first < 0 or [life.qp.cqe(i, FLUSH) for i in range(first, life.rung)] != rest:
            return False
        codes = {i: code for i, code in self.want(life).items() if i < first}
        return [life.qp.cqe(i, code) for i, code in codes.items()] == good

    async def bury(self, life: Life) -> None:
        """Reset, silence, and the next life."""
        b, num = self.b, life.qp.num
        b.errors = [qp for qp in b.errors if qp != num]
        await b.reset(num)
        self.watch()
        jobs, cqes = len(b.jobs), len(b.cqes_of(life.qp))
        await b.step(self.rng.randrange(30))
        assert all(job.qp != num for job in b.jobs[jobs:]), f"QP {num}: a packet after the reset"
        assert len(b.cqes_of(life.qp)) == cqes, f"QP {num}: a CQE after the reset"
        b.cqes = [cqe for cqe in b.cqes if cqe.qp != num]
        self.lives_done += 1
        self.covered.add(life.end)
        self.watch()
        await self.born(num)

    async def cycle(self) -> None:
        """One cycle: doorbells, responses, ends."""
        b, rng = self.b, self.rng
        await b.step()
        self.watch()
        life = self.lives[rng.randrange(NUM_QP)]
        qp = life.qp
        if life.rung < len(life.wqes) and rng.random() < 0.1:
            life.rung = min(len(life.wqes), life.rung + rng.randrange(1, 12))
            await b.ring(qp, life.rung)
            self.watch()
        if not life.dead and len(b.responses) < 4 and rng.random() < 0.8:
            self.respond(life)
        age = b.cycle - life.born
        if life.end == "reset" and age > life.end_at:
            await self.bury(life)
        elif life.end == "err" and age > life.end_at and not life.dead:
            life.dead = True
            b.state(qp.num, "err")
        elif b.cycle % 64 < 8 and life.rung == len(life.wqes) and self.finished(life):
            if not life.dead:
                b.check_cqes(qp, self.want(life))
            await self.bury(life)
        assert age < 30000, f"QP {qp.num}: stands still, {len(b.cqes_of(qp))} CQEs of {self.want(life)}"


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5, 0.85])
async def test_lives(dut, stall):
    """Whatever happens to the others, each QP's packets and CQEs are exactly its own."""
    b = await Bench(dut, stall, latency=20).start()
    soak = Soak(b)
    for num in range(NUM_QP):
        await soak.born(num)
    while soak.lives_done < 500:
        await soak.cycle()
    assert {"fence", "limit", "done", "err", "reset"} <= soak.covered, soak.covered
