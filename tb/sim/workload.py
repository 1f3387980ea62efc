"""Recorded workloads: what Python did to the testbench, to be run again by the bare C++ loop (``sim --bare
FILE``).

A workload is recorded while a test runs (:meth:`tb.sim.lib.SimLib.record`) and then holds the cycle of
every action, so that
the bare run does the same work in the same cycles; or it is written by hand with watches and waits.
"""

from __future__ import annotations

import enum
import json
import struct
import subprocess
from pathlib import Path

#: all PEs, for set_knob
ALL_PES = (1 << 64) - 1
_MASK = (1 << 64) - 1


class Op(enum.IntEnum):
    """Operations; tb/cpp/workload.cpp has the same numbers and says what the fields mean."""

    AT = 1
    RESET = 2
    REGION = 3
    STORE = 4
    WRITE = 5
    READ = 6
    MAC = 7
    KNOB = 8
    WATCH = 9
    WAIT = 10
    SEED = 11


class Workload:
    """A growing list of operations, kept as the bytes of its file."""

    def __init__(self) -> None:
        self._bytes = bytearray(b"CAMHILW1")
        self._cycle = -1
        self.operations = 0

    def add(
        self,
        op: Op,
        pe: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        data: bytes = b"",
        at: int | None = None,
    ) -> None:
        """Appends an operation; ``at``: the cycle in which it has to happen."""
        if at is not None and at != self._cycle:
            self._cycle = at
            self.add(Op.AT, a=at)
        self._bytes += struct.pack("<6Q", op, pe & _MASK, a & _MASK, b & _MASK, c & _MASK, len(data))
        self._bytes += data + bytes(-len(data) % 8)
        self.operations += 1

    def wait(self) -> None:
        """The following operations wait until every watch so far has fired."""
        self.add(Op.WAIT)

    def save(self, path: Path) -> None:
        """Writes the file that ``sim --bare`` reads."""
        path.write_bytes(self._bytes)


def run_bare(
    exe: Path, workload: Path, *, pes: int = 1, seed: int = 1, digest: bool = False
) -> dict[str, float]:
    """Runs a workload in the bare C++ loop.

    Returns cycles, cpu_s, wall_s, records and (with ``digest``) the digest of the record stream. Raises
    RuntimeError.
    """
    cmd = [
        str(exe),
        "--bare",
        str(workload),
        "--pes",
        str(pes),
        "--seed",
        str(seed),
        "--digest",
        str(int(digest)),
    ]
    cmd += ["+verilator+rand+reset+2", f"+verilator+seed+{seed % (2**31 - 1) + 1}"]
    done = subprocess.run(cmd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"bare run failed ({done.returncode}): {(done.stderr or done.stdout).strip()[:500]}"
        )
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
