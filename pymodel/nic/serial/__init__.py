"""Serial-order checker: does one order explain everything that was done to one 8-byte word?

Atomics are indivisible against each other and against WRITEs to the same 8 bytes (nic.md 5), so for each word
there must be an order of all operations on it that keeps each issuer's own order and what was over before
something else began, in which every operation returns what it did return and the last leaves the final value.
`serial_order` finds such an order or says in words why there is none. What an atomic does is decided by
`pymodel.nic.rules`; nothing here knows packets, queues or time other than as numbers to compare.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from pymodel.nic.serial.ledger import ledgers_of
from pymodel.nic.serial.ops import ADDS, NEVER, PLAIN_ADDS, WORD, Move, WordOp, low_bit, move_of
from pymodel.nic.serial.search import Search, SearchLimitError

__all__ = ["SearchLimitError", "Verdict", "WordOp", "serial_order"]


class Verdict(NamedTuple):
    """``order``: indices of the operations, first to last, None where there is no order; then ``reason``."""

    order: tuple[int, ...] | None
    reason: str = ""

    @property
    def good(self) -> bool:
        """There is an order."""
        return self.order is not None


def serial_order(ops: Sequence[WordOp], initial: int, final: int | None, limit: int = 200_000) -> Verdict:
    """Whether one serial order explains `ops`; the first one found, or why there is none.

    initial, final: the word's 8 bytes as a little-endian integer (of a 4-byte word, its 4 bytes); final None:
    not looked at. limit: states that the search visits before it raises `SearchLimitError`; fetch_adds alone,
    whose sum does not wrap, need no search. Raises ValueError for an operation that no word has.
    """
    moves = [move_of(op) for op in ops]
    ledgers = ledgers_of(moves, initial, final)
    for ledger in ledgers:
        if ledger.dead:
            return Verdict(None, ledger.explain(ops, moves))
    order = _additions(ops, moves, initial, final)
    if order is not None:
        return Verdict(order)
    found = Search(ops, moves, ledgers, initial, final, limit).run()
    return Verdict(None, found) if isinstance(found, str) else Verdict(found)


def _additions(
    ops: Sequence[WordOp], moves: Sequence[Move], initial: int, final: int | None
) -> tuple[int, ...] | None:
    """The order of fetch_adds whose sum does not wrap, by the values they returned; None: not of this kind.

    Whoever found more came later; at one value, those that add nothing come first.
    """
    mask = moves[0].mask if moves else 0
    keys = []
    for n, (op, move) in enumerate(zip(ops, moves, strict=True)):
        bounded = op.operands[1] and op.opcode not in PLAIN_ADDS
        if not mask or move.mask != mask or move.expect is None or op.opcode not in ADDS or bounded:
            return None
        distance = (move.expect - (initial & mask) & mask) >> low_bit(mask)
        keys.append((distance, not move.keeps, move.called, n))
    keys.sort()
    order = tuple(key[-1] for key in keys)
    word, latest = initial & WORD, NEVER
    for n in order:
        if word & mask != moves[n].expect:
            return None
        word = word & ~mask | (moves[n].result or 0)
    place: dict[Hashable, int] = {}
    for n in order:
        if ops[n].issuer is not None and place.setdefault(ops[n].issuer, -1) > n:
            return None
        place[ops[n].issuer] = n
    for n in reversed(order):
        if latest < moves[n].called:
            return None
        latest = min(latest, moves[n].answered)
    return order if final is None or word == final else None
