"""The matrix of link faults: kind x operation x position in the message x state of the QP (`make faults`).

Sweep: each kind of fault of docs/faults.md on each packet that an operation has (only, first, middle and last
of a WRITE or SEND and its ACK; request and each response of a READ; request and response of an atomic), with
the QP otherwise idle, in the middle of other work, hit again when it sends again, with a WQE behind that
fails here, and reset while the fault acts; messages that need a receive WQE also while there is none (its RNR
NAK is a packet of its own).
Stimulus: a rule that hits exactly that packet. Checks: the fault was applied (a second time too where a lost
packet is hit again); CQEs (good; good, error and flush; after the reset those of the next life), those of the
receiver; the judge's after each cell, and at the end.
Timing: none. Not proved: faults on two packets of a message at once (soak_round.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.faults.rule import Action
from pymodel.formats.wqe import WqeOp
from pymodel.host.table import Fabric, FabricConfig
from pymodel.platform import sleep
from tb.sim.build import BUILD
from tests.nic.raw import FLUSH, RawQp, renew
from tests.nic.raw_receive import Receiver, collect, drain
from tests.nic.stage import DEPTH, READS, RESULTS, WORDS, WRITES, Stage, any_good, local

PES = 2
KINDS = {
    "drop": "drop", "duplicate": "duplicate", "delay": "delay 2us", "reorder": "reorder 1 within 2us",
    "corrupt": "corrupt 1 bit", "truncate": "truncate",
}  # fmt: skip
STATES = ("idle", "busy", "again", "error", "reset")
MTU = 256
#: bytes of a message of one packet, and of one of four
SHORT, LONG = 100, 900
#: operation -> (position, opcode as rules name it, from the requester, bytes)
WRITE = [
    ("only", "write_only", True, SHORT), ("first", "write_first", True, LONG),
    ("middle", "write_middle", True, LONG), ("last", "write_last", True, LONG), ("ack", "ack", False, LONG),
]  # fmt: skip
SEND = [
    ("only", "send_only", True, SHORT), ("first", "send_first", True, LONG),
    ("middle", "send_middle", True, LONG), ("last", "send_last", True, LONG), ("ack", "ack", False, LONG),
    ("rnr", "rnr_nak", False, SHORT),
]  # fmt: skip
#: WRITE with immediate: what differs from WRITE
IMMEDIATE = [
    ("only", "write_only_imm", True, SHORT), ("last", "write_last_imm", True, LONG),
    ("ack", "ack", False, LONG), ("rnr", "rnr_nak", False, SHORT),
]  # fmt: skip
READ = [
    ("request", "read_request", True, LONG), ("only", "read_response_only", False, SHORT),
    ("first", "read_response_first", False, LONG), ("middle", "read_response_middle", False, LONG),
    ("last", "read_response_last", False, LONG),
]  # fmt: skip
ATOMICS = {
    "cas64": (WqeOp.CAS64, "cmp_swap"), "fa64": (WqeOp.FA64, "fetch_add"),
    "mcas64": (WqeOp.MCAS64, "masked_cmp_swap_8"), "mfa64": (WqeOp.MFA64, "masked_fetch_add_8"),
    "mcas32": (WqeOp.MCAS32, "masked_cmp_swap_4"), "mfa32": (WqeOp.MFA32, "masked_fetch_add_4"),
}  # fmt: skip
#: operations whose messages need a receive WQE: rows
RECEIVING = {"send": SEND, "immediate": IMMEDIATE}
#: cycles that a receive WQE comes too late in the state "rnr"
LATE = 1500
PATIENCE = 300_000
#: what a bad local key gives; one that the responder refused would end its QP, and with it all retries
BAD_KEY = 0xA7


@dataclass(frozen=True)
class Cell:
    """One cell. ``request``: the packet goes from the requester to the responder."""

    operation: str
    position: str
    kind: str
    state: str
    opcode: str
    request: bool
    length: int

    def wqe(self, qp: RawQp, rng: random.Random) -> dict[str, Any]:
        """The WQE whose packet is hit."""
        if self.operation == "send":
            return qp.send(self.length, rng.randrange(1 << 14), se=rng.randrange(2))
        if self.operation == "immediate":
            imm = rng.getrandbits(32)
            return qp.fields(self.length, WRITES + rng.randrange(1 << 14), with_imm=1, opcode_data=imm)
        if self.operation == "write":
            return qp.fields(self.length, WRITES + rng.randrange(1 << 14))
        if self.operation == "read":
            sink = local(qp, READS + rng.randrange(1 << 14))
            return qp.read(self.length, rng.randrange(1 << 14), laddr=sink)
        result = RESULTS + 8 * rng.randrange(512)
        return qp.atomic(
            ATOMICS[self.operation][0], WORDS + 8 * rng.randrange(8), result, swap_add=rng.getrandbits(32)
        )

    @property
    def receives(self) -> bool:
        """It needs a receive WQE."""
        return self.operation in RECEIVING

    def rules(self, qp: RawQp) -> list[str]:
        """The rules that hit it: its first packet of this kind, or the second where others go before.

        What a resumed READ gives starts with First or Only again, whatever was lost (wire page 5).
        """
        to = qp.plan.peer_qpn if self.request else qp.plan.qpn
        way, fault = "0->1" if self.request else "1->0", KINDS[self.kind]
        packets = f"direction {way} qp {to} opcode"
        if self.state == "busy" and self.position != "ack":
            return [f"{packets} {self.opcode} nth 2: {fault} once"]
        if self.state != "again":
            # also the ACK of a busy QP, where one may stand for several
            return [f"{packets} {self.opcode}: {fault} once"]
        if self.operation == "read" and self.position in ("middle", "last"):
            resumed = "read_response_first or read_response_only nth 2"
            return [f"{packets} {self.opcode}: {fault} once", f"{packets} {resumed}: {fault} once"]
        return [f"{packets} {self.opcode}: {fault} 2 times"]


def cells(operation: str) -> Iterator[Cell]:
    """All cells of an operation."""
    if operation in ATOMICS:
        rows = [("request", ATOMICS[operation][1], True, 8), ("response", "atomic_response", False, 8)]
    else:
        rows = RECEIVING.get(operation, WRITE if operation == "write" else READ)
    for position, opcode, request, length in rows:
        for kind in KINDS:
            states: tuple[str, ...] = STATES
            if operation in RECEIVING:
                states = ("rnr",) if position == "rnr" else (*STATES, "rnr")
            for state in states:
                yield Cell(operation, position, kind, state, opcode, request, length)


async def receive(receiver: Receiver, cell: Cell, messages: int) -> None:
    """Receive WQEs, at once or too late, and their CQEs."""
    if cell.state == "rnr":
        await sleep(LATE)
    await receiver.post_receive(*[{}] * messages)
    found = await collect(receiver.cq, 1, messages, PATIENCE)
    assert [int(c["error_code"]) for c in found] == [0] * messages
    assert [int(c["msg_len"]) for c in found] == [cell.length] * messages


async def run_cell(stage: Stage, cell: Cell, rng: random.Random, receiver: Receiver | None) -> None:
    """Post, hit, collect, compare."""
    rig, qp, back = stage.rig, stage.ends[0, 1, 0], stage.ends[1, 0, 0]
    seen = len(rig.fault_log())
    rig.lib.set_faults(cell.rules(qp))
    target, other = (lambda: cell.wqe(qp, rng)), (lambda: any_good(qp, rng))
    work = {
        "idle": [target], "busy": [other, target, other, target, other], "again": [target],
        "error": [target, lambda: qp.fields(64, WRITES, lkey=0), other], "reset": [target, target, other],
        "rnr": [target, other],
    }[cell.state]  # fmt: skip
    codes = [0] * len(work)
    if cell.state == "error":
        codes = [0, BAD_KEY, FLUSH]

    async def post(pe: Pe) -> None:
        if pe.rank == 1 and receiver is not None and cell.state == "reset":
            await receiver.post_receive(*[{}] * work.count(target))
        if pe.rank == 0:
            await qp.post(*[make() for make in work])

    async def gather(pe: Pe) -> None:
        if pe.rank == 0:
            found = await qp.collect(len(codes), PATIENCE)
            assert found["error_code"].tolist() == codes, found["error_code"]
            await qp.ring_cq()

    async def empty(pe: Pe) -> None:
        if pe.rank == 1 and receiver is not None:
            await drain(receiver.cq)

    async def both(pe: Pe) -> None:
        if pe.rank == 1 and receiver is not None:
            await receive(receiver, cell, work.count(target))
        elif pe.rank == 0:
            await post(pe)
            await gather(pe)

    if cell.state != "reset":
        await rig.run(both, hang_after=PATIENCE)
    else:
        await rig.run(post, hang_after=PATIENCE)
        for _ in range(500):
            if len(rig.fault_log()) > seen:
                break
            await rig.lib.cycles(16)
        await rig.lib.cycles(rng.randrange(1, 400))
    log = rig.fault_log()[seen:]
    hits = log[log["action"] != Action.RELEASE]
    assert len(hits) >= 1, f"the fault was not applied: {cell.rules(qp)}"
    if cell.state == "again" and cell.kind in ("drop", "truncate"):
        assert len(hits) == 2, "what is sent again was not hit"
    rig.lib.set_faults([])
    if cell.state in ("error", "reset"):
        await rig.settle()
        psns = rng.getrandbits(24), rng.getrandbits(24)
        if receiver is not None:
            await rig.run(empty, hang_after=PATIENCE)
            receiver.head = receiver.plan.rq_start
        await renew(rig, qp, back, psns, cqs=True)
        work, codes = [target, other, target], [0, 0, 0]
        await rig.run(both, hang_after=PATIENCE)
    assert rig.judge is not None
    if rig.judge.findings:
        raise AssertionError(rig.judge.findings[0].render())


@cocotb.test()
@cocotb.parametrize(
    operation=["write", "send", "immediate", "read", "cas64", "fa64", "mcas64", "mfa64", "mcas32", "mfa32"]
)
async def test_matrix(dut, operation: str) -> None:
    """All cells of an operation, one after the other on one QP pair."""
    rng = random.Random(f"matrix {operation} {cocotb.RANDOM_SEED}")
    some = {"timer": 5, "sq_depth": DEPTH, "cq_depth": DEPTH}
    if operation in RECEIVING:
        some |= {"rq_depth": 8, "recv_cq_depth": 32, "rnr_retry": 7}
    ends = {(pe, 1 - pe, 0): some for pe in range(PES)}
    config = FabricConfig.mixed(PES, 1, rng.getrandbits(31), heap_bytes=32 << 20, mtus=(MTU,), overrides=ends)
    stage = Stage(dut, Fabric.build(config), (), stall_limit=PATIENCE)
    await stage.start()
    receiver = Receiver(stage.rig, stage.ends[1, 0, 0]) if operation in RECEIVING else None
    done: list[list[str]] = []
    folder = BUILD / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{operation}-{cocotb.RANDOM_SEED}.json"
    for cell in cells(operation):
        try:
            await run_cell(stage, cell, rng, receiver)
        except Exception as error:
            error.add_note(f"cell: {cell.operation}, {cell.position}, {cell.kind}, {cell.state}")
            raise
        done.append([cell.operation, cell.position, cell.kind, cell.state])
        # whole at any time, so that a run that is interrupted loses nothing
        file.with_suffix(".new").write_text(json.dumps(done))
        file.with_suffix(".new").replace(file)
    await stage.rig.check()
