"""Search for a serial order."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from pymodel.nic.serial.ledger import Ledger
from pymodel.nic.serial.ops import ADDS, NEVER, WORD, Move, WordOp, apply_atomic, low_bit


class SearchLimitError(RuntimeError):
    """The search gave up: neither an order nor a conflict was found."""


class Search:
    """Depth first over (how far each issuer is, value of the word); no state is tried twice."""

    def __init__(
        self,
        ops: Sequence[WordOp],
        moves: Sequence[Move],
        ledgers: Sequence[Ledger],
        initial: int,
        final: int | None,
        limit: int,
    ) -> None:
        self.ops, self.moves, self.ledgers, self.final, self.limit = ops, moves, ledgers, final, limit
        chains: dict[Hashable, list[int]] = {}
        for n, op in enumerate(ops):
            chains.setdefault(("alone", n) if op.issuer is None else ("issuer", op.issuer), []).append(n)
        self.chains = list(chains.values())
        #: per chain and place: the earliest answer of what is still to come
        self.earliest: list[list[int]] = []
        for chain in self.chains:
            best = [NEVER]
            for n in reversed(chain):
                best.append(min(best[-1], moves[n].answered))
            self.earliest.append(best[::-1])
        #: per operation with an unknown result: its issuer's next known value less what is added before it
        self.due: list[tuple[int, int] | None] = [None] * len(ops)
        for chain in self.chains:
            due: tuple[int, int] | None = None
            for n in reversed(chain):
                move = moves[n]
                self.due[n] = due
                if move.expect is not None and move.mask:
                    due = move.expect, move.mask
                elif due is not None and ops[n].opcode in ADDS:
                    due = due[0] - (ops[n].operands[0] << low_bit(due[1])), due[1]
        self.timed = any(m.answered != NEVER for m in moves)
        self.place = [0] * len(self.chains)
        self.alive = {c for c, chain in enumerate(self.chains) if chain}
        self.word = initial & WORD
        self.taken: list[tuple[int, int, int]] = []  # (chain, operation, word before)
        self.deepest: tuple[int, int, tuple[int, ...], list[int]] | None = None

    def run(self) -> tuple[int, ...] | str:
        """The first order, or why there is none."""
        seen: set[tuple[tuple[int, ...], int]] = set()
        stack: list[tuple[int, Iterator[int]]] = []  # (operations before, what may come next)
        while True:
            steps = self._settled()
            if len(self.taken) == len(self.ops) and self.final in (None, self.word):
                return tuple(n for _, n, _ in self.taken)
            if not steps or any(ledger.dead for ledger in self.ledgers):
                self._dead_end()
            else:
                key = tuple(self.place), self.word
                if key not in seen:
                    if len(seen) >= self.limit:
                        raise SearchLimitError(
                            f"{len(self.ops)} operations: no order and no conflict in {self.limit} states"
                        )
                    seen.add(key)
                    stack.append((len(self.taken), iter(self._ranked(steps))))
            while stack:
                depth, candidates = stack[-1]
                self._back_to(depth)
                chain = next(candidates, None)
                if chain is not None:
                    self._take(chain)
                    break
                stack.pop()
            else:
                return self._explain()

    def _open(self) -> Iterator[tuple[int, Move]]:
        """(chain, move) of what no order between operations holds back now."""
        first = second = NEVER
        earliest, place = self.earliest, self.place
        if self.timed:
            times = sorted(earliest[c][place[c]] for c in self.alive)
            first, second = (times + [NEVER, NEVER])[:2]
        for c in self.alive:
            move = self.moves[self.chains[c][place[c]]]
            if move.called <= (second if earliest[c][place[c]] == first else first):
                yield c, move

    def _settled(self) -> list[int]:
        """Take what may happen and changes nothing: later it could not be easier. Then: the next steps."""
        while True:
            fits = [(c, m) for c, m in self._open() if m.expect is None or self.word & m.mask == m.expect]
            keep = [c for c, m in fits if m.keeps]
            if not keep:
                return [c for c, _ in fits]
            for c in keep:
                self._take(c)

    def _ranked(self, steps: list[int]) -> list[int]:
        """Those first that values speak for; of others, the one whose issuer must go on soonest."""
        if len(steps) < 2:
            return steps
        wanted = [m for _, m in self._open() if m.expect is not None]

        def rank(c: int) -> tuple[int, int]:
            chain, at = self.chains[c], self.place[c]
            if self.moves[chain[at]].expect is not None:
                return 0, 0
            after = self._after(c)
            ahead = WORD
            if (due := self.due[chain[at]]) is not None:
                # how much may still be added by others until this issuer's next known value is there
                value, mask = due
                ahead = (value - after & mask) >> low_bit(mask)
            return 1 if any(after & m.mask == m.expect for m in wanted) else 2, ahead

        return sorted(steps, key=rank)

    def _after(self, c: int) -> int:
        """The word after the chain's next operation."""
        n = self.chains[c][self.place[c]]
        move = self.moves[n]
        if move.result is not None:
            return self.word & ~move.mask | move.result
        shift = 8 * self.ops[n].offset
        return self.word & ~move.mask | apply_atomic(self.ops[n], (self.word & move.mask) >> shift) << shift

    def _take(self, c: int) -> None:
        n, after = self.chains[c][self.place[c]], self._after(c)
        self.taken.append((c, n, self.word))
        self.place[c] += 1
        if self.place[c] == len(self.chains[c]):
            self.alive.discard(c)
        self.word = after
        for ledger in self.ledgers:
            ledger.take(self.moves[n], after)

    def _back_to(self, depth: int) -> None:
        while len(self.taken) > depth:
            c, n, self.word = self.taken.pop()
            self.place[c] -= 1
            self.alive.add(c)
            for ledger in self.ledgers:
                ledger.back(self.moves[n], self.word)

    # ------------------------------------------------------------------ words
    def _dead_end(self) -> None:
        if self.deepest is None or len(self.taken) > self.deepest[0]:
            waiting = [self.chains[c][self.place[c]] for c in sorted(self.alive)]
            self.deepest = len(self.taken), self.word, tuple(n for _, n, _ in self.taken), waiting

    def _explain(self) -> str:
        assert self.deepest is not None, "a search fails at dead ends only"
        done, word, order, waiting = self.deepest
        last = f", the last of them {self.ops[order[-1]]}" if order else ""
        text = f"no serial order: at best {done} of {len(self.ops)} operations fit{last};"
        text += f" then the word is {word:#x}"
        if waiting:
            text += ", next would be " + ", or ".join(str(self.ops[n]) for n in waiting[:6])
        else:
            text += f" and not {self.final:#x}"
        return text
