"""The golden model's judgement of what NICs did: packets, memory, CQEs, doorbells, counters (programs.md 3).

Feed the record stream in batches of any size; at the end compare memory and counters and ask what is
outstanding. The judge replays the observed order and decides every value; findings are collected and printed,
never raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from pymodel.faults import AnyRule
from pymodel.faults.memory import keyed
from pymodel.formats.arrays import I64, U8, U64, Rec
from pymodel.nic.exact_core import FRAME_COUNTERS, PACKET_COUNTERS
from pymodel.nic.judge_batch import Batch
from pymodel.nic.judge_exact import Exact
from pymodel.nic.judge_records import RECORD, Check, Finding, Kind
from pymodel.nic.judge_state import PeConfig, Region, State
from pymodel.nic.params import DEFAULT_PARAMS, AxiId, Cnt, Params

__all__ = ["RECORD", "Check", "Finding", "Judge", "Kind", "PeConfig", "Region"]

#: below this many records the exact engine is as fast as the batch engine
_SMALL = 48
#: records that one pass of the batch engine takes: its intermediate arrays stay in the cache
_LARGE = 1 << 17
#: records, or bytes beside them, that are worth a pass
_ENOUGH, _ENOUGH_BYTES = 6 << 14, 10 << 20
#: records and bytes that may wait
_ROOM, _ROOM_BYTES = 5 << 15, 24 << 20
#: AXI_W records with 64 bytes, by kind and AXI ID << 16
_BEATS = tuple(np.uint64(Kind.AXI_W | ident << 16) for ident in (AxiId.CQE, AxiId.ATOMIC))
#: findings of one check on one QP that are kept; the rest is only counted
_KEEP = 8


class Judge:
    """Judges the record stream of all NICs of one run.

    pes: configuration by PE. time_origin: record time at which the NICs' time stamp is 0.
    exact: judge every record by the exact engine alone (slow; same answers).
    """

    def __init__(
        self,
        pes: Sequence[PeConfig],
        params: Params = DEFAULT_PARAMS,
        time_origin: int = 0,
        exact: bool = False,
    ) -> None:
        self.state = State(pes, params)
        self._findings: list[Finding] = []
        self._counts: Counter[Check] = Counter()
        self._seen: Counter[tuple[Check, int, int]] = Counter()
        self.exact = Exact(self.state, self._report, time_origin)
        self.batch = Batch(self.state, self.exact)
        self._always_exact = exact
        #: records that each engine judged
        self.batch_records = self.exact_records = 0
        # what waits: records, and the bytes that belong to them one behind the other
        self._held: Rec = np.empty(0, RECORD)
        self._bytes: U8 = np.empty(0, np.uint8)
        self._records_held = self._bytes_held = 0

    def _report(self, finding: Finding) -> None:
        self._counts[finding.check] += 1
        key = finding.check, finding.pe, finding.qpn
        self._seen[key] += 1
        if self._seen[key] > _KEEP:
            return
        self._findings.append(finding)

    @property
    def findings(self) -> list[Finding]:
        """Findings that were kept, of all records fed so far."""
        self.flush()
        return self._findings

    @property
    def counts(self) -> Counter[Check]:
        """Number of findings by check, those that were not kept included, of all records fed so far."""
        self.flush()
        return self._counts

    def known(self, start: int = 0) -> list[Finding]:
        """Findings from number `start` on that are known by now; records that wait are not judged for it."""
        return self._findings[start:]

    def feed(self, records: Rec, side: U8) -> None:
        """Take the next records of the stream; side: uint8[size], bytes of a record at off % size.

        A batch may end anywhere. Records and their bytes are copied and judged when enough are there,
        since many small batches cost far more than a few large ones; `flush` and everything that gives
        results judges what waits. Raises TypeError for another record layout.
        """
        if records.dtype != RECORD:
            if records.dtype.itemsize != RECORD.itemsize:
                raise TypeError(f"records of {records.dtype.itemsize} bytes, expected {RECORD.itemsize}")
            records = records.view(RECORD)
        if not records.size:
            return
        low, high = self._span(records)
        many = records.size >= _ENOUGH or high - low >= _ENOUGH_BYTES
        if not self._records_held and many:
            self._judge(records, side)
            return
        if self._records_held + records.size > _ROOM or self._bytes_held + high - low > _ROOM_BYTES:
            self.flush()
            if records.size > _ROOM or high - low > _ROOM_BYTES:
                self._judge(records, side)
                return
        if not self._held.size:
            self._held, self._bytes = np.empty(_ROOM, RECORD), np.zeros(_ROOM_BYTES + 4096, np.uint8)
        start, size, at = low % max(side.size, 1), high - low, self._bytes_held
        first = min(size, side.size - start)
        self._bytes[at : at + first] = side[start : start + first]
        self._bytes[at + first : at + size] = side[: size - first]
        # as plain words: much faster than field by field
        here = (
            self._held[self._records_held : self._records_held + records.size].view(np.uint64).reshape(-1, 8)
        )
        here[:] = np.ascontiguousarray(records).view(np.uint64).reshape(-1, 8)
        here[:, 4] += np.uint64(at - low & (1 << 64) - 1)
        self._records_held += records.size
        self._bytes_held += size
        if self._records_held >= _ENOUGH or self._bytes_held >= _ENOUGH_BYTES:
            self.flush()

    @staticmethod
    def _span(records: Rec) -> tuple[int, int]:
        """Absolute side offsets of the first byte of the records and of the one behind the last."""
        words = np.ascontiguousarray(records).view(np.uint64).reshape(-1, 8)
        word, start = words[:, 1].copy(), words[:, 4].copy()
        what = word & np.uint64(0xFF00FF)  # kind, AXI ID << 16
        beat = (what == _BEATS[0]) | (what == _BEATS[1])
        has = ((word & np.uint64(0xFF)) - np.uint64(Kind.STORE) <= np.uint64(Kind.RXPKT - Kind.STORE)) | beat
        if not has.any():
            return 0, 0
        stop = start + np.where(beat, np.uint64(64), word >> np.uint64(32))
        far = np.uint64((1 << 64) - 1)
        return int(np.where(has, start, far).min()), int(np.where(has, stop, np.uint64(0)).max())

    def flush(self) -> None:
        """Judge all records that wait."""
        if self._records_held:
            held, self._records_held, self._bytes_held = self._records_held, 0, 0
            self._judge(self._held[:held], self._bytes)

    def _judge(self, records: Rec, side: U8) -> None:
        passes = -(-records.size // _LARGE)
        for i in range(passes):
            part = slice(i * records.size // passes, (i + 1) * records.size // passes)
            self._stretch(records[part], side)

    def _stretch(self, records: Rec, side: U8) -> None:
        if self._always_exact or records.size <= _SMALL:
            self.exact.judge(records, side)
            self.exact_records += records.size
        elif self.batch.judge(records, side):
            self.batch_records += records.size
        else:
            # something unusual somewhere: halve until the exact engine gets only its surroundings
            half = records.size // 2
            self._stretch(records[:half], side)
            self._stretch(records[half:], side)

    def add_error(self, pe: int, addr: int, length: int, on: str = "rw") -> None:
        """NIC accesses that touch the range get an error, as the memory model was told; on: "r", "w"."""
        self.flush()
        self.state.memory.add_error(pe, addr, length, "r" in on, "w" in on)

    def clear_errors(self, pe: int) -> None:
        """The memory model forgot its error ranges."""
        self.flush()
        self.state.memory.clear_errors(pe)

    def set_memory_faults(self, rules: Sequence[AnyRule], seed: int) -> None:
        """The memory model got these rules in place of all others, with this seed."""
        self.flush()
        self.state.memory.set_rules([(rule, key) for _, rule, key in keyed(rules, seed)])

    # ------------------------------------------------------------------ end of test
    def dirty_pages(self, pe: int) -> U64:
        """Addresses of the 4 KiB pages that the golden model wrote on a PE."""
        self.flush()
        return self.state.memory.dirty_pages(pe)

    def check_memory(self, pe: int, dirty: U64, memory: Callable[[int, int, int], U8]) -> int:
        """Compare every page that either side wrote; the number of pages.

        dirty: page addresses that the run reports; memory(pe, address, length): its bytes.
        """
        self.flush()
        golden = self.state.memory
        pages = np.union1d(
            np.asarray(dirty, np.uint64) & np.uint64(~4095 & (1 << 64) - 1), self.dirty_pages(pe)
        )
        for page in pages.tolist():
            for addr, at, length in golden.clip(pe, page, 4096):
                want, got = golden.bytes[at : at + length], memory(pe, addr, length)
                if np.array_equal(want, got):
                    continue
                wrong = np.flatnonzero(want != got)
                first = int(wrong[0])
                stop = min(first + 16, length)
                self._report(
                    Finding(
                        Check.CONTENT, pe, -1, -1, -1, self.state.cycle,
                        f"{wrong.size} bytes of page {page:#x}, from {addr + first:#x}",
                        want[first:stop].tobytes().hex(" "), got[first:stop].tobytes().hex(" "),
                    )
                )  # fmt: skip
        return int(pages.size)

    def expected_counters(self, pe: int) -> I64:
        """Counters as they must read when the NIC is quiet, int64[64] by Cnt."""
        self.flush()
        self.exact.overruns()
        out: I64 = self.state.counters[pe].copy()
        lost = self.exact.discards(pe)
        out[Cnt.WQE] = self.exact.completed(pe) + lost
        out[Cnt.CQE_DISCARD] += lost
        out[Cnt.ATOMIC] += self.exact.atomics.unanswered(pe)
        reads, atomics = self.exact.requests.duplicates.dropped(pe)
        out[Cnt.READ] -= reads
        out[Cnt.RD_TOO_MANY] += reads
        if atomics:
            self.exact.core.open_counters(pe, atomics, (Cnt.RD_TOO_MANY,))
        return out

    def check_counters(self, pe: int, values: Sequence[int] | I64 | U64) -> None:
        """Compare counters read over MMIO, by number, with the expected ones."""
        expected = self.expected_counters(pe).tolist()
        loose, most = self.exact.loose, self.exact.core.open_packets[pe]
        for counter in Cnt:
            want, got = min(int(expected[counter]), 0xFFFFFFFF), int(values[counter])
            if want == got:
                continue
            due = f"{want}"
            if counter == Cnt.RETRY:
                # passes that were overtaken, or not seen as such
                more = max(self.exact.core.retry_open[pe], 0)
                if want < got <= want + more:
                    continue
                due = f"{want} to {want + more}"
            if (pe, int(counter)) in loose:
                if counter not in PACKET_COUNTERS or abs(want - got) <= most:
                    continue
                due = f"{max(want - most, 0)} to {want + most}"
            self._count_wrong(pe, counter.name, due, f"{got}")
        # whatever a race leaves open: each frame moves exactly one, an ACK that was handed to the requester
        # a second one if that drops it
        frames, counted = int(self.state.rx_frames[pe]), sum(int(values[n]) for n in FRAME_COUNTERS)
        twice = int(values[Cnt.DROP_RESPONSE])
        if any((pe, int(n)) in loose for n in PACKET_COUNTERS) and not 0 <= counted - frames <= twice:
            due = f"{frames} to {frames + twice}"
            self._count_wrong(pe, "RX_PACKET and all drops together", due, f"{counted}")

    def _count_wrong(self, pe: int, name: str, expected: str, got: str) -> None:
        self._report(Finding(Check.COUNTER, pe, -1, -1, -1, self.state.cycle, name, expected, got))

    def finish(self) -> list[Finding]:
        """Report everything that is still outstanding; the findings of the whole run."""
        self.flush()
        self.exact.overruns()
        self.exact.finish()
        for finding in self.exact.outstanding():
            self._report(finding)
        return self.findings

    def outstanding(self) -> list[str]:
        """The drain report: what is still due and where it waits, ten lines at most and "and n more"."""
        self.flush()
        return self.exact.rest.lines()

    def patience(self) -> tuple[int, int]:
        """Cycles without an event after which no transport timer acts any more, and the bound of all retries.

        Both 0 where nothing that was sent is unacknowledged.
        """
        self.flush()
        return self.exact.rest.waits.patience()

    def report(self) -> str:
        """All kept findings as readable blocks, WQEs that are left as the drain report, what was left out."""
        shown = [f for f in self.findings if f.check is not Check.OUTSTANDING]
        blocks = [f.render() for f in shown]
        if self.counts[Check.OUTSTANDING]:
            blocks += [f"{Check.OUTSTANDING}: did not drain:", *(f"    {x}" for x in self.outstanding())]
        left_out = sum(self.counts.values()) - self.counts[Check.OUTSTANDING] - len(shown)
        return "\n".join([*blocks, f"... and {left_out} more"] if left_out else blocks)
