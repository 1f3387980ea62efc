"""What must balance: each value of a word is left at most as often as it arises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pymodel.nic.serial.ops import Move, WordOp, low_bit


class Ledger:
    """Books of one part of the word: how often each value is still to arise, and still to be left or met.

    An operation with a known result leads from one value to another, so no value can be left more often than
    it arises (and is there now). Operations whose way is not known (`wild`) may leave and arise anywhere,
    once each. `dead` says that what is left to do cannot be done from here, in whatever order.
    """

    def __init__(self, moves: Sequence[Move], mask: int, initial: int, final: int | None) -> None:
        self.mask, self.word = mask, initial & mask
        self.stays = None if final is None else final & mask
        self.wild = self.lacking = self.absent = 0
        self.arises: Counter[int] = Counter()
        self.left: Counter[int] = Counter()
        self.met: Counter[int] = Counter()
        for move in moves:
            self._book(move, 1)
        for value in {*self.left, *self.met, *(() if self.stays is None else (self.stays,))}:
            self._weigh(value, 1)

    @property
    def dead(self) -> bool:
        return self.lacking > self.wild or (self.absent > 0 and not self.wild)

    def lack(self, value: int) -> int:
        """How often the value is left more often than it arises."""
        have = self.arises[value] + (value == self.word)
        return max(0, self.left[value] + (value == self.stays) - have)

    def never(self, value: int) -> bool:
        """The value is to be met and will not be there."""
        return self.met[value] > 0 and not self.arises[value] and value != self.word

    def take(self, move: Move, after: int) -> None:
        """The operation is done and the word is `after`."""
        self._change(move, after, -1)

    def back(self, move: Move, before: int) -> None:
        """Undo it: the word is `before` again."""
        self._change(move, before, 1)

    def _change(self, move: Move, word: int, sign: int) -> None:
        word &= self.mask
        if not move.mask & self.mask:
            return
        values = {self.word, word}
        if move.expect is not None:
            values.add(move.expect & self.mask)
        if move.result is not None:
            values.add(move.result & self.mask)
        for value in values:
            self._weigh(value, -1)
        self._book(move, sign)
        self.word = word
        for value in values:
            self._weigh(value, 1)

    def _weigh(self, value: int, sign: int) -> None:
        self.lacking += sign * self.lack(value)
        self.absent += sign * self.never(value)

    def _book(self, move: Move, sign: int) -> None:
        mask = self.mask
        if not move.mask & mask:
            return
        if move.result is None:
            self.wild += sign
        elif move.expect is None:
            self.arises[move.result & mask] += sign
        elif (move.expect ^ move.result) & mask:
            self.left[move.expect & mask] += sign
            self.arises[move.result & mask] += sign
        else:
            self.met[move.expect & mask] += sign

    def explain(self, ops: Sequence[WordOp], moves: Sequence[Move]) -> str:
        """Why it is dead, before anything was done."""
        shift = low_bit(self.mask)
        lacks, absent = [], []
        here = [n for n, m in enumerate(moves) if m.mask & self.mask == self.mask and m.expect is not None]
        for value in sorted({*self.left, *self.met, *(() if self.stays is None else (self.stays,))}):
            who = [n for n in here if (moves[n].expect or 0) & self.mask == value]
            if self.lack(value):
                names = ", ".join(str(ops[n]) for n in who if not moves[n].keeps) or "none"
                end = " and it is the final value" if value == self.stays else ""
                lacks.append(
                    f"{value >> shift:#x} was there {self.arises[value] + (value == self.word)} times,"
                    f" but {self.left[value]} operations found and changed it ({names}){end}"
                )
            elif self.never(value):
                absent.append(f"{value >> shift:#x} never was there: {ops[who[0]]}")
        return "; ".join([*lacks, *absent][:3])


def ledgers_of(moves: Sequence[Move], initial: int, final: int | None) -> list[Ledger]:
    """Books of the parts of the word that no operation touches in part only."""
    edges = {0, 64, *(e for m in moves if m.mask for e in (low_bit(m.mask), m.mask.bit_length()))}
    cuts = sorted(edges)
    masks = [(1 << high) - (1 << low) for low, high in zip(cuts, cuts[1:], strict=False)]
    return [Ledger(moves, mask, initial, final) for mask in masks]
