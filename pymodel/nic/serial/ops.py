"""Operations on one 8-byte word, as their issuers see them and as the checker uses them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from pymodel.formats.packet import Bth
from pymodel.formats.wqe import WqeOp
from pymodel.nic import rules

WORD: Final = (1 << 64) - 1
NEVER: Final = 1 << 200
#: opcodes that add, and those of them that look at no boundary (device.md 1.5)
ADDS: Final = (WqeOp.FA64, WqeOp.MFA64, WqeOp.MFA32, Bth.FETCH_ADD, Bth.MFA64, Bth.MFA32)
PLAIN_ADDS: Final = (WqeOp.FA64, Bth.FETCH_ADD)


@dataclass(frozen=True, slots=True)
class WordOp:
    """One operation on a word.

    ``issuer``: operations of one issuer happened in the order in which they are given; None: on its own.
    ``opcode``: of an atomic, WQE or BTH. ``operands``: swap or add, compare or boundary, swap mask, compare
    mask. ``returned``: what an atomic or READ returned as an integer, None where that is not known.
    ``data``: what a WRITE writes, as a little-endian integer. ``offset``, ``size``: bytes of the word that
    are touched; the size of an atomic comes from its opcode. ``called``, ``answered``: time at which it was
    posted and was complete, None where not known: what was answered before another was called comes before
    it. ``name`` stands for it in explanations.
    """

    kind: Literal["atomic", "write", "read"]
    issuer: Hashable | None = None
    opcode: int = 0
    operands: tuple[int, int, int, int] = (0, 0, 0, 0)
    returned: int | None = None
    data: int = 0
    offset: int = 0
    size: int = 8
    called: int | None = None
    answered: int | None = None
    name: str = ""

    def __str__(self) -> str:
        what = {"atomic": f"atomic {self.opcode:#x}", "write": f"WRITE of {self.data:#x}"}.get(
            self.kind, "READ"
        )
        who = self.name or (f"{what} of {self.issuer}" if self.issuer is not None else what)
        return who if self.returned is None else f"{who} (returned {self.returned:#x})"


class Move(NamedTuple):
    """An operation on the whole word: where it may happen (``expect`` under ``mask``), what it leaves there.

    ``result`` None: depends on the value that is met.
    """

    mask: int
    expect: int | None
    result: int | None
    called: int
    answered: int

    @property
    def keeps(self) -> bool:
        """Changes nothing wherever it may happen."""
        return self.expect is not None and self.expect == self.result


def move_of(op: WordOp) -> Move:
    """The operation as a move on the whole word. Raises ValueError for one that no word has."""
    size = op.size
    if op.kind == "atomic":
        size = int(rules.OPERAND_BYTES[op.opcode])
        if not size:
            raise ValueError(f"opcode {op.opcode} is no atomic")
        if op.offset % size:
            raise ValueError(f"{op}: an atomic of {size} bytes at byte {op.offset} of its word")
    if not (0 <= op.offset and 1 <= size and op.offset + size <= 8):
        raise ValueError(f"{op}: bytes {op.offset} to {op.offset + size - 1} are not inside a word")
    shift, part = 8 * op.offset, (1 << 8 * size) - 1
    mask = part << shift
    expect = None if op.returned is None else (op.returned & part) << shift
    result = None
    if op.kind == "write":
        expect, result = None, (op.data & part) << shift
    elif op.returned is not None:
        result = expect if op.kind == "read" else apply_atomic(op, op.returned & part) << shift
    elif op.kind == "read" or _adds_nothing(op, part):
        # tells nothing and does nothing: it may stand anywhere
        mask = expect = result = 0
    called = -NEVER if op.called is None else op.called
    return Move(mask, expect, result, called, NEVER if op.answered is None else op.answered)


def _adds_nothing(op: WordOp, part: int) -> bool:
    return op.opcode in ADDS and not op.operands[0] & part


@lru_cache(maxsize=1 << 16)
def apply_atomic(op: WordOp, old: int) -> int:
    """What an atomic leaves where it meets `old`."""
    new, writes = rules.atomic(op.opcode, old, *op.operands)
    return int(new) if writes else old


def low_bit(mask: int) -> int:
    """Number of the lowest set bit."""
    return (mask & -mask).bit_length() - 1
