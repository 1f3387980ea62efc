"""What looks over the driver's shoulder during a run: the driver itself believes any CQE.

It takes whatever the owner bit lets through (device page 2.4 and 8.1 rows 6 and 7): a CQE that the NIC never
wrote, a repeated or a foreign one.
"""

from __future__ import annotations

from collections.abc import Callable

from pymodel.device.queues import QpState
from pymodel.generation import Generation
from pymodel.host.table import Fabric
from pymodel.model import ModelBackend
from pymodel.platform import Observer

_U32 = 0xFFFF_FFFF


class CompletionCheck(Observer):
    """Golden check of poll_cq on the model: what the CQ says is complete must be so.

    A ring that was not filled with ones gives false completions (device page 2.3), which the driver cannot
    see.
    """

    def __init__(self, fabric: Fabric, backend: ModelBackend) -> None:
        self._fabric, self._backend = fabric, backend
        self.findings: list[str] = []

    def polled(self, pe: int, peer: int, qp: int, target: int, tail: int, status: int) -> None:
        """Every WQE before ``tail`` must have retired."""
        plan = self._fabric.qps[pe, peer, qp]
        index = tail - 1
        if self._fabric.pes[pe].generation < Generation.G3:
            # a count of CQEs, which stands for WQEs
            index += plan.start_index - plan.start_cq
        if not self._backend.nics[pe].completed(plan.qpn, index):
            self.findings.append(
                f"false completion: PE {pe} consumed the CQE of WQE {index & _U32} to PE {peer},"
                f" QP {qp}, at cycle {self._backend.now()}, but the NIC has not completed it"
            )


class CqeCheck(Observer):
    """Every CQE that poll_cq consumed must name its QP and WQE, on every platform.

    G1 and G2: each WQE has one CQE, so they are numbered alike. G3: WQEs with ce = 0 have none, so the
    indices go up and stay within what was posted.
    """

    def __init__(self, fabric: Fabric, qp: Callable[[int, int, int], QpState]) -> None:
        self._fabric, self._qp = fabric, qp
        self._next: dict[tuple[int, int, int], tuple[int, int]] = {}
        """CQ index and WQE index that come next."""
        self.findings: list[str] = []

    def polled(self, pe: int, peer: int, qp: int, target: int, tail: int, status: int) -> None:
        """The slots are still as the poll saw them: the CQ doorbell that frees them comes later."""
        key = (pe, peer, qp)
        state = self._qp(pe, peer, qp)
        if state.overrun:
            return
        plan, (at, end) = self._fabric.qps[key], state.seen
        # at the first poll the cells still say where an earlier run on the same fabric ended
        first = state.sq_tail if state.by_id else at - plan.start_cq + plan.start_index
        cq, wqe = self._next.get(key, (at, first))
        # after a trap the same CQEs are seen again
        while end - cq & _U32 and end - cq & _U32 < 1 << 31:
            slot = cq & plan.cq_depth - 1
            base = slot * plan.cq_stride
            qp_id = state.cq_bytes[base + 1] | (state.cq_bytes[base + 2] & 0x7F) << 8
            index = state.cqe_index(slot)
            ahead = index - wqe & state.id_mask
            room = state.sq_head - wqe & _U32 if state.by_id else 1
            if qp_id != plan.qpn or ahead >= room:
                self.findings.append(
                    f"wrong CQE: PE {pe} consumed CQE {cq} from PE {peer}, QP {qp}, which names"
                    f" QPN {qp_id} and WQE {index} instead of QPN {plan.qpn} and WQE {wqe & _U32}"
                )
                ahead = 0
            wqe = wqe + ahead + 1 & _U32
            cq = cq + 1 & _U32
        self._next[key] = cq, wqe
