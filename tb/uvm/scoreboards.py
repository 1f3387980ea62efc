"""Scoreboards. The judge of `pymodel` decides; each scoreboard reports its part of what it found.

All share one judge, because effects cross interfaces: a CQE is right only after its ACK, an ACK only after
write responses. The judge is fed once per batch, before the scoreboards see the batch; it may hold records
back until they are worth a pass, so a finding comes with a later batch or at the end.
"""

from __future__ import annotations

import logging
from typing import Any

from pyuvm import ConfigDB, uvm_scoreboard, uvm_subscriber

from pymodel.nic.judge import Finding, Judge
from tb.uvm.items import Batch


class JudgeScoreboard(uvm_subscriber, uvm_scoreboard):
    """Logs the judge's findings whose check begins with `part`, one error each."""

    part = ""

    def build_phase(self) -> None:
        """Find the judge's findings (a function, as the judge starts with the run)."""
        self._judge: Any = ConfigDB().get(self, "", "JUDGE")
        self._taken = 0
        #: batches seen, findings reported
        self.batches = 0
        self.reported = 0

    @property
    def judge(self) -> Judge | None:
        """The judge, None before the run started or where judging is off."""
        judge: Judge | None = self._judge()
        return judge

    def write(self, batch: Batch) -> None:
        """One drained batch, which the judge has seen already."""
        self.batches += 1
        self.report()

    def report(self, final: bool = False) -> None:
        """Log what is new; final: of all records, also those that the judge still holds back."""
        judge = self.judge
        if judge is None:
            return
        new = judge.findings[self._taken :] if final else judge.known(self._taken)
        self._taken += len(new)
        for finding in new:
            if self.mine(finding):
                self.reported += 1
                self.logger.error(finding.render())

    def mine(self, finding: Finding) -> bool:
        """Whether this scoreboard reports the finding."""
        return finding.check.partition(".")[0] == self.part

    def extract_phase(self) -> None:
        """What the closing checks added."""
        self.report(final=True)

    def report_phase(self) -> None:
        """One line at the end; findings that the judge counted but did not keep."""
        judge = self.judge
        total = (
            0 if judge is None else sum(n for c, n in judge.counts.items() if c.startswith(self.part + "."))
        )
        level = logging.INFO if not total else logging.ERROR
        self.logger.log(level, f"{self.part}: {self.batches} batches, {total} findings")


class PacketScoreboard(JudgeScoreboard):
    """Every byte of every packet, ICRC by an outside CRC, ACKs as a legal set."""

    part = "packet"


class MemoryScoreboard(JudgeScoreboard):
    """AXI legality and every byte of memory at the end."""

    part = "memory"


class CqeScoreboard(JudgeScoreboard):
    """Slot, owner and every field; order per QP; none missing, none twice."""

    part = "cqe"


class DoorbellScoreboard(JudgeScoreboard):
    """Doorbell verdicts, counters, asynchronous events, what is outstanding at the end."""

    part = "doorbell"


class AtomicScoreboard(JudgeScoreboard):
    """Original and new value, executed exactly once, one at a time and under the lock."""

    part = "atomic"


SCOREBOARDS: tuple[type[JudgeScoreboard], ...] = (
    PacketScoreboard,
    MemoryScoreboard,
    CqeScoreboard,
    DoorbellScoreboard,
    AtomicScoreboard,
)
