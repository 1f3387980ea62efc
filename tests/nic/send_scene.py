"""What tests of SEND share: fabrics with receive queues, messages and what must come of them, traffic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cocotb

from pymodel.device import Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.platform import sleep
from tests.nic.raw import RawQp
from tests.nic.raw_receive import Receiver, collect, fields_of
from tests.nic.stage import DEPTH, Stage, any_good

QPS = 4
PATIENCE = 300_000
#: RQ of each QP: depth, first index, depth of a receive CQ of its own
QUEUES = (
    {"rq_depth": 16, "rq_start": (1 << 17) - 21, "recv_cq_depth": 32},
    {"rq_depth": 8, "rq_start": (1 << 13) - 11, "recv_cq_depth": 0, "cq_depth": 64},
    {"rq_depth": 2, "rq_start": 0, "recv_cq_depth": 4},
    {"rq_depth": 16, "rq_start": 5, "recv_cq_depth": 16},
)


def fabric(**override: Any) -> Fabric:
    """Several QPs each way, everything mixed, each with a receive queue."""
    every: dict[tuple[int, int, int], dict[str, Any]] = {
        (pe, 1 - pe, q): {"cq_depth": DEPTH, **QUEUES[q], **override} for pe in (0, 1) for q in range(QPS)
    }
    config = FabricConfig.mixed(
        2, QPS, cocotb.RANDOM_SEED, sq_depths=(DEPTH,), heap_bytes=32 << 20, overrides=every
    )
    return Fabric.build(config)


@dataclass
class Message:
    """What the receiver of a message must see."""

    length: int
    op: int = 0
    with_imm: int = 0
    imm: int = 0
    se: int = 0
    source: bytes = b""


@dataclass
class Pipe:
    """One direction of a QP pair: sender, receiver, what is on its way between them."""

    sender: RawQp
    receiver: Receiver
    due: list[Message] = field(default_factory=list)
    posted: list[dict[str, int]] = field(default_factory=list)
    done: int = 0


class Scene(Stage):
    """Rig with both ends of every QP, and the receive queues of those that have one."""

    async def start(self) -> None:
        """Bring-up, sources."""
        await super().start()
        self.receivers = {key: Receiver(self.rig, qp) for key, qp in self.ends.items() if qp.plan.rq_depth}

    def pipe(self, pe: int, q: int) -> Pipe:
        """From a PE over its QP q."""
        return Pipe(self.ends[pe, 1 - pe, q], self.receivers[1 - pe, pe, q])

    def message(self, pipe: Pipe, rng: random.Random, short: bool = False) -> tuple[dict[str, Any], Message]:
        """A random SEND, or WRITE with immediate, and what must come of it."""
        mtu, qp = pipe.sender.plan.mtu, pipe.sender
        most = 200 if short else 3 * mtu + 5
        length = rng.choice((0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, rng.randrange(most), rng.randrange(most)))
        length = min(length, most)
        at, imm, se = rng.randrange(32 << 10), rng.getrandbits(32), rng.randrange(2)
        with_imm = rng.randrange(2)
        if rng.randrange(3):
            item = qp.send(length, at, with_imm=with_imm, opcode_data=imm, se=se)
            op = 0
        else:
            item = qp.fields(length, at, with_imm=1, opcode_data=imm, se=se)
            op, with_imm = 1, 1
        start = item["laddr"]
        source = self.rig.lib.memory(qp.plan.pe, start, max(length, 1))[:length].tobytes()
        return item, Message(length, op, with_imm, imm if with_imm else 0, se, source)

    def arrived(self, pipe: Pipe, cqe: Any) -> None:
        """One CQE of a receive, and its buffer, against the message that is due."""
        message, buffer, receiver = pipe.due[pipe.done], pipe.posted[pipe.done], pipe.receiver
        index = receiver.head - len(pipe.posted) + pipe.done
        assert fields_of(cqe) == {
            "error_code": 0, "type": 1, "msg_opcode": message.op, "with_imm": message.with_imm,
            "imm_data": message.imm, "msg_len": message.length, "wqe_id": receiver.wqe_id(index),
            "se": message.se,
        }, f"receive {pipe.done} of QPN {receiver.plan.qpn}"  # fmt: skip
        if not message.op:
            got = receiver.content(buffer["addr"], message.length)
            assert got == message.source, f"receive {pipe.done} of QPN {receiver.plan.qpn}"
        pipe.done += 1

    async def both(self, *jobs: tuple[int, Any]) -> None:
        """Run jobs on their PEs, all at the same time."""

        async def main(pe: Pe) -> None:
            for task in [
                await pe.spawn(job, f"job {i}") for i, (rank, job) in enumerate(jobs) if rank == pe.rank
            ]:
                await pe.join(task)

        result = await self.rig.run(main, hang_after=PATIENCE)
        assert result.good, result.problems


async def feed(scene: Scene, pipe: Pipe, total: int, rng: random.Random, lag: int) -> None:
    """Receive WQEs as there is room, each CQE checked; ``lag``: most cycles before new ones are posted."""
    depth = pipe.receiver.plan.rq_depth
    while pipe.done < total:
        room = min(depth - (len(pipe.posted) - pipe.done), total - len(pipe.posted))
        if room > 0:
            count = rng.randrange(1, room + 1)
            shifts = [
                {"addr": pipe.receiver.place(pipe.receiver.head + k) + rng.randrange(64)}
                for k in range(count)
            ]
            pipe.posted += await pipe.receiver.post_receive(*shifts)
        for cqe in await collect(pipe.receiver.cq, 1, rng.randrange(1, len(pipe.posted) - pipe.done + 1)):
            scene.arrived(pipe, cqe)
        if lag:
            await sleep(rng.randrange(1, lag))


async def pour(
    scene: Scene, pipe: Pipe, total: int, rng: random.Random, patient: bool, others: Sequence[int] = ()
) -> None:
    """Messages, other WQEs between them; ``patient``: only as many as receive WQEs are posted."""
    qp, sent = pipe.sender, 0
    while sent < total:
        items = []
        most = rng.randrange(1, 5)
        while patient and len(pipe.posted) <= sent:
            await sleep(50)
        free = len(pipe.posted) - sent if patient else total
        for _ in range(min(most, total - sent, free)):
            item, message = scene.message(pipe, rng)
            pipe.due.append(message)
            items.append(item)
            sent += 1
            if others and rng.randrange(2):
                items.append(any_good(qp, rng, others, ce=1))
        await qp.post(*items)
        for cqe in await collect(qp, 0, len(items)):
            assert not cqe["error_code"], f"QPN {qp.plan.qpn}: {cqe['error_code']:#x}"


async def traffic(
    scene: Scene, total: int, lag: int, patient: bool, others: Sequence[int] = ()
) -> list[Pipe]:
    """Messages both ways over all QPs."""
    pipes = [scene.pipe(pe, q) for pe in (0, 1) for q in range(QPS)]
    jobs = []
    for number, pipe in enumerate(pipes):
        rng = random.Random(f"send {scene.seed} {number}")
        jobs.append((pipe.sender.plan.pe, pour(scene, pipe, total, rng, patient, others)))
        rng = random.Random(f"receive {scene.seed} {number}")
        jobs.append((pipe.receiver.plan.pe, feed(scene, pipe, total, rng, lag)))
    await scene.both(*jobs)
    await scene.rig.settle()
    assert all(pipe.done == total for pipe in pipes)
    return pipes
