"""Serial-order checker: what it accepts is an order, what it refuses has none.

Sweep: all six atomics with WRITEs and READs of 1 to 8 bytes, known and unknown results, 1 to 16 issuers,
with and without times; true histories, and every kind of planted violation: lost update, value returned
twice, torn WRITE, broken program order, result from the future, wrong final value. Stimulus: simulated
interleavings, hypothesis. Checks: a found order is replayed here with plain integers; up to seven operations
every permutation is tried instead. Timing: none (the sizes would not end without pruning). Does not prove
that the operations given are all that happened.
"""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymodel.nic.serial import SearchLimitError, Verdict, WordOp, serial_order

SETTINGS = settings(deadline=None, database=None, derandomize=True, max_examples=200)
SIZE = {26: 8, 27: 8, 31: 8, 32: 8, 33: 4, 34: 4}


def do(op: WordOp, word: int) -> tuple[int, int]:
    """(returned value, word after) with plain integers (device.md 1.5)."""
    size = SIZE.get(op.opcode, op.size) if op.kind == "atomic" else op.size
    bits, shift = 8 * size, 8 * op.offset
    ones = (1 << bits) - 1
    old = word >> shift & ones
    new = old
    if op.kind == "write":
        new = op.data
    elif op.kind == "atomic":
        value, third, s_mask, c_mask = (x & ones for x in op.operands)
        if op.opcode in (26, 31, 33):
            s_mask, c_mask = (ones, ones) if op.opcode == 26 else (s_mask, c_mask)
            if (old ^ third) & c_mask == 0:
                new = old & ~s_mask | value & s_mask
        else:
            new = carry = 0
            for bit in range(bits):
                total = (old >> bit & 1) + (value >> bit & 1) + carry
                new |= (total & 1) << bit
                carry = 0 if op.opcode != 27 and third >> bit & 1 else total >> 1
    return old, word & ~(ones << shift) | (new & ones) << shift


def fits(ops: list[WordOp], order: tuple[int, ...], initial: int, final: int | None) -> bool:
    """Whether that order keeps all constraints and explains all values."""
    assert sorted(order) == list(range(len(ops)))
    word, place = initial, {n: i for i, n in enumerate(order)}
    for n in order:
        old, word = do(ops[n], word)
        if ops[n].kind != "write" and ops[n].returned is not None and old != ops[n].returned:
            return False
    for a, b in itertools.permutations(range(len(ops)), 2):
        first = a < b and ops[a].issuer is not None and ops[a].issuer == ops[b].issuer
        late = ops[a].answered is not None and ops[b].called is not None
        late = late and (ops[a].issuer is None or ops[a].issuer != ops[b].issuer)
        if (first or (late and ops[a].answered < ops[b].called)) and place[a] > place[b]:  # type: ignore[operator]
            return False
    return final is None or word == final


def judged(ops: list[WordOp], initial: int, final: int | None) -> Verdict:
    """The verdict, of which an order has been replayed."""
    got = serial_order(ops, initial, final)
    if got.order is not None:
        assert got.reason == "" and fits(ops, got.order, initial, final)
    else:
        assert len(got.reason) > 20
    return got


def random_op(rng: random.Random, issuer: object, few: bool = True) -> WordOp:
    """Any operation; few: operands from a handful of values, so that values meet."""
    values = [0, 1, 2, 3, 1 << 32, (1 << 64) - 1, 0xFFFF_FFFF]
    pick = (lambda: rng.choice(values)) if few else (lambda: rng.getrandbits(64))
    kind = rng.choice(["atomic", "atomic", "atomic", "write", "read"])
    if kind != "atomic":
        size = rng.choice([8, 8, 4, 1])
        offset = rng.randrange(0, 9 - size, size)
        return WordOp(kind, issuer, data=pick() & (1 << 8 * size) - 1, offset=offset, size=size)  # type: ignore[arg-type]
    opcode = rng.choice(list(SIZE))
    operands = (pick(), rng.choice([0, pick()]), pick(), rng.choice([0, pick()]))
    return WordOp("atomic", issuer, opcode, operands, offset=0 if SIZE[opcode] == 8 else rng.choice([0, 4]))


def history(
    ops_by_issuer: list[list[WordOp]], rng: random.Random, initial: int, times: bool, known: float = 0.9
) -> tuple[list[WordOp], int]:
    """Executes them in a random interleaving: (operations as issuers know them, final value)."""
    left = [list(ops) for ops in ops_by_issuer]
    done: list[list[WordOp]] = [[] for _ in left]
    word, now = initial, 0
    while any(left):
        who = rng.choice([n for n, ops in enumerate(left) if ops])
        op = left[who].pop(0)
        old, word = do(op, word)
        # called some time before and answered some time after; an issuer waits for its answers
        before = (done[who][-1].answered or 0) if done[who] else 0
        now = max(now + 10, before)
        called = max(now - rng.randrange(30), before) if times else None
        answered = now + rng.randrange(30) if times else None
        told = op.kind != "write" and (op.kind == "read" or rng.random() < known)
        done[who].append(replace(op, returned=old if told else None, called=called, answered=answered))
    return [op for ops in done for op in ops], word


def all_orders(ops: list[WordOp], initial: int, final: int | None) -> bool:
    """Whether any permutation fits."""
    return any(fits(ops, order, initial, final) for order in itertools.permutations(range(len(ops))))


# ------------------------------------------------------------------------------- against all permutations


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_small_histories_true_and_spoiled(seed: int, times: bool) -> None:
    """True histories have an order; of spoiled ones the verdict is that of all permutations."""
    rng = random.Random(f"{seed} {times}")
    initial = rng.choice([0, 1, 3, rng.getrandbits(64)])
    count = rng.choice([1, 2, 3])
    plan = [[random_op(rng, n) for _ in range(rng.randrange(1, 7 // count + 1))] for n in range(count)]
    ops, final = history(plan, rng, initial, times)
    assert judged(ops, initial, final).good and judged(ops, initial, None).good
    spoiled, end = list(ops), final
    for _ in range(4):
        n = rng.randrange(len(spoiled))
        match rng.randrange(5):
            case 0 if spoiled[n].returned is not None:
                spoiled[n] = replace(spoiled[n], returned=rng.choice([0, 1, 2, spoiled[n].returned ^ 1]))
            case 1:
                other = rng.randrange(len(spoiled))
                spoiled[n], spoiled[other] = (
                    replace(spoiled[other], issuer=spoiled[n].issuer),
                    replace(spoiled[n], issuer=spoiled[other].issuer),
                )
            case 2:
                end = rng.choice([end ^ 1, 0, initial])
            case 3 if times:
                spoiled[n] = replace(spoiled[n], called=0, answered=rng.choice([5, 15, 1000]))
            case _:
                spoiled[n] = replace(spoiled[n], issuer=rng.choice([None, 0, 1]))
        assert judged(spoiled, initial, end).good is all_orders(spoiled, initial, end), (
            spoiled,
            initial,
            end,
        )


@SETTINGS
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), max_size=6),
    st.integers(0, 6),
)
def test_small_additions(rows: list[tuple[int, int, int]], final: int) -> None:
    """Any few fetch_adds with any results, the kind that needs no search."""
    ops = [WordOp("atomic", issuer or None, 27, (add, 0, 0, 0), found) for found, add, issuer in rows]
    assert judged(ops, 0, final).good is all_orders(ops, 0, final)


# ------------------------------------------------------------------------------- large


@pytest.mark.parametrize("opcode", [27, 32, 34, 0x14, 0xC3])
@pytest.mark.parametrize("issuers", [2, 16])
def test_many_additions(opcode: int, issuers: int) -> None:
    """640 fetch_adds: found, and refused for each kind of violation, with the culprits named."""
    rng = random.Random(opcode)
    offset, size = (4, 4) if opcode in (34, 0xC3) else (0, 8)
    # over the wrap, too
    initial = rng.getrandbits(64) if opcode != 32 else (1 << 64) - 500
    plan = [
        [WordOp("atomic", n, 34 if size == 4 else 27, (rng.choice([0, 1, 1, 5]), 0, 0, 0), offset=offset)
         for _ in range(640 // issuers)]
        for n in range(issuers)
    ]  # fmt: skip
    ops, final = history(plan, rng, initial, times=False)
    shift, ones = 8 * offset, (1 << 8 * size) - 1
    word = initial
    place: dict[int, int] = {}
    # all results known, as the opcode under test
    ops = [replace(op, opcode=opcode, name=f"add {n}") for n, op in enumerate(ops)]
    order = serial_order(ops, initial, final).order
    assert order is not None
    for n in order:
        issuer = ops[n].issuer
        assert place.get(issuer, -1) < n  # type: ignore[call-overload]
        place[issuer] = n  # type: ignore[index]
        found = word >> shift & ones
        assert ops[n].returned in (None, found)
        ops[n] = replace(ops[n], returned=found)
        word = word & ~(ones << shift) | (found + ops[n].operands[0] & ones) << shift
    assert word == final and serial_order(ops, initial, final).good
    adders = [n for n in order if ops[n].operands[0]]
    for at in (3, len(adders) // 2, len(adders) - 3):
        first, second = ops[adders[at]], ops[adders[at + 1]]
        # lost update: two found the same value
        lost = [replace(op, returned=first.returned) if op is second else op for op in ops]
        verdict = serial_order(lost, initial, None)
        assert not verdict.good and f"{first.name} " in verdict.reason and f"{second.name} " in verdict.reason
        # executed twice, answered once; never executed
        for change in (-first.operands[0], first.operands[0]):
            wrong = final & ~(ones << shift) | ((final >> shift) + change & ones) << shift
            assert "final value" in serial_order(ops, initial, wrong).reason
        # program order broken: an issuer's two results exchanged
        mine = [n for n in range(len(ops)) if ops[n].issuer == first.issuer and ops[n].operands[0] == 1]
        a, b = mine[0], mine[-1]
        swapped = list(ops)
        swapped[a], swapped[b] = (
            replace(ops[a], returned=ops[b].returned),
            replace(ops[b], returned=ops[a].returned),
        )
        assert "at best" in serial_order(swapped, initial, final).reason
    # a neighbour in the same word changed
    if size == 4:
        assert not serial_order(ops, initial, final ^ 1).good


@pytest.mark.parametrize("issuers", [2, 5, 16])
@pytest.mark.parametrize("seed", range(12))
def test_large_mixed_histories(seed: int, issuers: int) -> None:
    """All kinds and sizes, up to 25 operations an issuer, some results not known; 16 issuers with times."""
    rng = random.Random(f"{seed} {issuers}")
    initial = rng.getrandbits(64)
    plan = [
        [random_op(rng, n, few=bool(seed % 2)) for _ in range(min(200 // issuers, 25))]
        for n in range(issuers)
    ]
    ops, final = history(plan, rng, initial, times=issuers == 16 or seed % 3 == 0)
    assert judged(ops, initial, final).good


@pytest.mark.parametrize("issuers", [2, 16])
def test_contended_words(issuers: int) -> None:
    """Whole words without times: WRITEs that are seen or not, swaps, chains of compare-and-swap, adds."""
    rng = random.Random(issuers)
    for _ in range(10):
        plan = []
        for n in range(issuers):
            chain = []
            for step in range(25):
                value = n << 32 | step << 8
                chain.append(
                    rng.choice([
                        WordOp("write", n, data=value), WordOp("atomic", n, 31, (value, 0, (1 << 64) - 1, 0)),
                        WordOp("atomic", n, 26, (value, rng.getrandbits(2), 0, 0)), WordOp("read", n),
                        WordOp("atomic", n, 27, (1, 0, 0, 0)), WordOp("atomic", n, 32, (3, 2, 0, 0)),
                    ])
                )  # fmt: skip
            plan.append(chain)
        ops, final = history(plan, rng, 0, times=False, known=1.0)
        assert judged(ops, 0, final).good


# ------------------------------------------------------------------------------- each violation, by hand


def add(value: int, found: int | None, **more: object) -> WordOp:
    """A fetch_add."""
    return WordOp("atomic", opcode=27, operands=(value, 0, 0, 0), returned=found, **more)  # type: ignore[arg-type]


def write(value: int, **more: object) -> WordOp:
    """A WRITE."""
    return WordOp("write", data=value, **more)  # type: ignore[arg-type]


def read(found: int | None, **more: object) -> WordOp:
    """A READ."""
    return WordOp("read", returned=found, **more)  # type: ignore[arg-type]


def cas(value: int, compare: int, found: int, **more: object) -> WordOp:
    """A compare and swap."""
    return WordOp("atomic", opcode=26, operands=(value, compare, 0, 0), returned=found, **more)  # type: ignore[arg-type]


GOOD: dict[str, tuple[list[WordOp], int, int | None]] = {
    "nothing": ([], 7, 7),
    "an unseen WRITE": ([write(1), write(2)], 0, 2),
    "values come back": ([add(1, 0), add((1 << 64) - 1, 1), add(1, 0), add((1 << 64) - 1, 1)], 0, 0),
    "a failed compare": ([cas(9, 5, 0), add(1, 0)], 0, 1),
    "halves": ([WordOp("atomic", opcode=34, operands=(1, 0, 0, 0), returned=0xFFFF_FFFF),
                WordOp("atomic", opcode=34, operands=(1, 0, 0, 0), returned=0, offset=4)], 0xFFFF_FFFF,
               1 << 32),
    "bytes": ([write(0xAA, size=1, offset=7), write(0xBB, size=1), read(0xAA << 56 | 0xBB)], 0,
              0xAA << 56 | 0xBB),
    "a READ between": ([read(1), add(1, 0), add(1, 1)], 0, 2),
    "a READ that tells nothing": ([read(None), add(1, 0)], 0, 1),
    "times that touch": ([add(1, 1, called=5, answered=9), add(1, 0, called=0, answered=5)], 0, 2),
    "an unknown result": ([add(1, None), read(1), read(0)], 0, 1),
}  # fmt: skip
BAD: dict[str, tuple[list[WordOp], int, int | None, str]] = {
    "lost update": ([add(1, 0, name="A"), add(1, 0, name="B")], 0, 1, r"0x0 was there 1 times.*2.*A.*B"),
    "lost with a WRITE": ([add(1, 0), write(5), add(1, 5), add(1, 5)], 0, None, "0x5 was there 1 times"),
    "value returned twice": ([add(1, 0), add(1, 1), add(1, 1)], 0, None, "0x1 was there 1 times"),
    "torn WRITE": ([write(0x1111_1111_2222_2222), read(0x1111_1111_0000_0000)], 0, None, "never was there"),
    "torn swap": ([cas((1 << 64) - 1, 0, 0), read(0xFFFF_FFFF)], 0, None, "never was there"),
    "torn half": ([WordOp("atomic", opcode=33, operands=(0x0102_0304, 0, 0xFFFF_FFFF, 0), returned=0),
                   read(0x0304, size=4)], 0, None, "never was there"),
    "add done twice": ([add(1, 0)], 0, 2, "final value"),
    "add not done": ([add(1, 0)], 0, 0, "final value"),
    "final value from nowhere": ([write(1), write(2)], 0, 3, "0x3 was there 0 times"),
    "failed compare that wrote": ([cas(9, 5, 0), read(9)], 0, 9, "0x9 was there 0 times"),
    "swap that failed to write": ([cas(9, 0, 0, name="S")], 0, 0, "S"),
    "program order": ([add(1, 1, issuer=1), add(1, 0, issuer=1)], 0, 2, "at best 0 of 2"),
    "WRITE before its own atomic": ([add(1, 5, issuer="q"), write(5, issuer="q")], 0, None, "at best"),
    "result from the future": ([add(1, 1, called=0, answered=4), add(1, 0, called=5, answered=9)], 0, 2,
                               "at best"),
    "reads go back": ([write(1), read(1, issuer=1), read(0, issuer=1)], 0, 1, "at best"),
    "boundary ignored": ([WordOp("atomic", opcode=32, operands=(1, 1, 0, 0), returned=1), read(2)], 1, None,
                         "never"),
    "wrong half": ([WordOp("atomic", opcode=34, operands=(1, 0, 0, 0), returned=0)], 0, 1 << 32, "0x"),
    "READ that stays behind": ([write(1, called=0, answered=1), read(0, called=2, answered=3)], 0, 1,
                               "at best"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_by_hand(name: str) -> None:
    """Has an order."""
    ops, initial, final = GOOD[name]
    assert judged(ops, initial, final).good and all_orders(ops, initial, final)


@pytest.mark.parametrize("name", BAD)
def test_bad_by_hand(name: str) -> None:
    """Has none, and the explanation names value or operation."""
    ops, initial, final, words = BAD[name]
    verdict = judged(ops, initial, final)
    assert not verdict.good and not all_orders(ops, initial, final)
    assert re.search(words, verdict.reason), verdict.reason


def test_what_is_no_operation_of_a_word() -> None:
    """Refused, not guessed."""
    for op in (
        WordOp("atomic", opcode=1), WordOp("atomic", opcode=34, offset=2),
        WordOp("atomic", opcode=27, offset=4),
        WordOp("write", offset=5, size=4), WordOp("read", offset=-1), WordOp("write", size=0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"atomic|inside a word"):
            serial_order([op], 0, None)


def test_giving_up_is_no_verdict() -> None:
    """A search that is cut short raises."""
    plus, minus = add(1, None), add((1 << 64) - 1, None)
    ops = [replace(op, issuer=n) for n in range(12) for op in (plus, minus, plus)]
    assert serial_order(ops, 0, 12).good
    with pytest.raises(SearchLimitError, match="36 operations"):
        serial_order(ops, 0, 13, limit=50)
