"""What comes first in the report of a failed run: WQEs that completed with an error.

A driver forgets errors, so what follows (a hang, a race, wrong data) is what a program meets; the CQE stands
in the CQ, consumed or not, and says why (programs page, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pymodel.device.pe import Pe
from pymodel.device.queues import QpState, code_text
from pymodel.device.wqe import U32
from pymodel.formats.cqe import CqeError
from pymodel.formats.error_codes import meaning
from pymodel.runner import HangError
from pymodel.unawaited import UnawaitedError

#: QPs that a report names at most
_MOST = 8


def place(pe: Pe, qp: QpState) -> str:
    """A QP in words."""
    return f"PE {pe.rank} to PE {qp.peer}, QP {qp.qp_idx} (QPN {qp.wqn})"


def error_text(pe: Pe, qp: QpState, index: int, code: int) -> str:
    """A WQE that failed, by its entry in `QpState.errors`, in one line."""
    if not qp.by_id:
        # the driver counts CQEs, which stand for WQEs
        plan = pe.fabric.qps[pe.rank, qp.peer, qp.qp_idx]
        index = index - plan.start_cq + plan.start_index & U32
    return f"WQE {index} completed with error {code_text(code)}: {meaning(code)}"


def _errors(qp: QpState) -> Iterator[tuple[int, int]]:
    """(index, code) as in `QpState.errors`, of consumed CQEs and of those that wait in the CQ."""
    yield from qp.errors
    if qp.overrun or not qp.depth:
        return
    for index in range(qp.cq_tail, qp.cq_tail + qp.cq_depth):
        valid, code = qp.cqe(index)
        if not valid:
            return
        if code:
            yield qp.posted_index(qp.cqe_index(index & qp.cq_depth - 1)) if qp.by_id else index & U32, code


def failed_wqes(pes: Iterable[Pe]) -> list[str]:
    """A line for each QP with errors that its program did not announce: the first that is no flush.

    QPs that were only flushed come last: the peer's request, or a reset, did it.
    """
    own, flushed = list[str](), list[str]()
    for pe in pes:
        for qp in pe.qps():
            # after a trap the same CQE still waits in the CQ
            found = list(dict.fromkeys(pair for pair in _errors(qp) if pair[1] not in qp.provoked))
            if found:
                first = next((pair for pair in found if pair[1] != CqeError.FLUSH), found[0])
                more = f", and {len(found) - 1} after it" if len(found) > 1 else ""
                lines = flushed if first[1] == CqeError.FLUSH else own
                lines.append(f"{place(pe, qp)}: {error_text(pe, qp, *first)}{more}")
    lines = own + flushed
    return lines[:_MOST] + ([f"and {len(lines) - _MOST} more QPs with errors"] if len(lines) > _MOST else [])


def blame(error: Exception, pes: Iterable[Pe]) -> None:
    """Put WQEs that failed before what ``error`` says where it may follow from them, else into its notes."""
    if isinstance(error, UnawaitedError):
        return
    lines = failed_wqes(pes)
    if lines and isinstance(error, HangError | AssertionError):
        error.args = ("\n".join([*lines, *filter(None, [str(error)])]),)
    else:
        for line in lines:
            error.add_note(line)
