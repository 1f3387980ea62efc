"""Plain-integer twins of rules, for who asks packet by packet, against the rules over arrays.

Sweep: random and corner values. Stimulus: none, pure functions. Checks: equal answers. Timing: none. Does not
prove: that the rules are right.
"""

from __future__ import annotations

import random

from pymodel.formats.packet import Bth
from pymodel.nic import rules
from pymodel.nic.context import MrContext
from pymodel.nic.golden.responder import _shape


def test_access_of_one() -> None:
    """Every key, right and range at and around the edges of regions, up to the end of the address space."""
    rng = random.Random(4)
    top = 1 << 64
    mrs = {
        3: MrContext(0x1000, 0x2000, ltag=1, rtag=2),
        4: MrContext(top - 0x100, 0x100, rem_atomic=False, rem_write=False, ltag=9, rtag=9),
        7: MrContext(0, top, loc_write=False, rem_write=False, rem_atomic=False, ltag=5, rtag=6),
        8: MrContext(0x5000, 0, ltag=7, rtag=7),
        9: MrContext(0x5000, 64, ltag=7, rtag=7, valid=False),
    }
    table = rules.mr_table(mrs, 16)
    edges = sorted(
        {edge + d for mr in mrs.values() for edge in (mr.base, mr.base + mr.length) for d in (-1, 0, 1)}
    )
    seen = set()
    for _ in range(4_000):
        key = rng.choice([3, 4, 7, 8, 9, 10, 16, 300]) << 8 | rng.choice([1, 2, 5, 6, 7, 9])
        remote, right = rng.random() < 0.5, rng.choice(list(rules.Right))
        va = rng.choice([rng.choice(edges), rng.getrandbits(64)]) % top
        length = rng.choice([0, 1, 2, 0x100, 0x1FFF, 0x2000, 0x2001, rng.getrandbits(31)])
        want = rules.MrVerdict(int(rules.mr_check(table, key, remote, right, va, length)))
        assert rules.mr_check_one(mrs, key, remote, right, va, length) is want, (
            key,
            remote,
            right,
            va,
            length,
        )
        seen.add(want)
    assert seen == set(rules.MrVerdict)


def test_lengths_that_stand_for_others() -> None:
    """The few lengths that the golden NIC asks the rules with answer as the real ones do."""
    rng = random.Random(5)
    big = rules.MAX_MESSAGE
    seen = set()
    for _ in range(4_000):
        mtu = rng.choice([256, 512, 1024, 2048, 4096])
        length = rng.choice([0, 1, mtu - 1, mtu, mtu + 1, 4096, rng.randrange(4097)])
        near = [length - 1, length, length + 1, length + mtu]
        left = rng.choice([*near, 0, big - 1, big, big + 1, (1 << 32) - 1, rng.randrange(1 << 32)])
        bth = rng.choice([*Bth])
        want = bool(rules.length_ok(bth, length, mtu, left))
        short, rest = _shape(length, left, mtu)
        assert bool(rules.length_ok(bth, short, mtu, rest)) is want, (bth, length, mtu, left)
        seen.add((short, rest - short, mtu, want))
    assert len(seen) < 150
