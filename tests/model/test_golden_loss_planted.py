"""Defects planted into the loss recovery of the golden NICs: the tests of test_golden_loss.py find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymodel.faults.link import FaultyLink
from pymodel.nic.golden import GoldenNic
from tests.model import test_golden_loss as loss

_go_back, _lost, _not_ready = GoldenNic._go_back, GoldenNic._lost, GoldenNic._not_ready


def _too_late(self: GoldenNic, qp: Any) -> None:
    _go_back(self, qp)
    qp.sending.sent += 1


def _whole_read(self: GoldenNic, qp: Any) -> None:
    _go_back(self, qp)
    for work in qp.reads:
        work.resumed = 0


def _no_limit(self: GoldenNic, qp: Any) -> None:
    qp.retries = 0
    _lost(self, qp)


def _no_wait(self: GoldenNic, qp: Any, syndrome: int) -> None:
    _not_ready(self, qp, syndrome)
    qp.hold = None


def _execute_again(self: GoldenNic, qp: Any, packet: Any) -> None:
    self._enter(qp, packet)
    qp.epsn = (qp.epsn - 1) % (1 << 24)


def _not_saved(self: GoldenNic, qp: Any, packet: Any) -> None:
    return None


def _nothing(*_: Any) -> None:
    return None


def _took_all(self: FaultyLink, *args: Any) -> None:
    nic, _, sent, packet, state = args
    self._note(sent, state, 0)
    self._arrive(sent, packet, self._now())


PLANTS: dict[str, tuple[type, str, Callable[..., Any], Callable[[], None]]] = {
    "nothing is sent again": (GoldenNic, "_go_back", _nothing, loss.test_sequence_error),
    "one packet too late": (GoldenNic, "_go_back", _too_late, loss.test_sequence_error),
    "a READ from its start": (
        GoldenNic, "_go_back", _whole_read, loss.test_a_read_resumes_where_its_response_is_missing,
    ),
    "no timer": (GoldenNic, "_due", _nothing, loss.test_time_out_of_a_lost_tail),
    "no implied NAK": (
        GoldenNic, "_lost", _nothing, loss.test_an_acknowledgement_that_passes_a_read_tells_of_its_loss,
    ),
    "no limit": (GoldenNic, "_lost", _no_limit, lambda: loss.test_retry_limit(1)),
    "no RNR wait": (GoldenNic, "_not_ready", _no_wait, lambda: loss.test_rnr_wait_and_limit(7)),
    "atomics again": (GoldenNic, "_answer_again", _execute_again, lambda: loss.test_duplicates("atomic")),
    "no saved results": (
        GoldenNic, "_answer_again", _not_saved, loss.test_saved_results_are_as_many_as_the_table,
    ),
    "duplicate WRITE silent": (
        GoldenNic, "_duplicate", _nothing, loss.test_a_lost_acknowledgement,
    ),
    "damaged packets taken": (
        FaultyLink, "_damage", _took_all,
        lambda: loss.test_damaged_packets_are_lost_and_counted("corrupt 1 byte of icrc"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_planted(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is seen."""
    owner, name, body, check = PLANTS[plant]
    check()
    monkeypatch.setattr(owner, name, body)
    with pytest.raises(AssertionError):
        check()
