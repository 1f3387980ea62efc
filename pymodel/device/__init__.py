"""The device API as device programs see it: public calls, fine-grained functions, and the PE they run on."""

from pymodel.device.amo import (
    AtomicOpTraits,
    aclshmemi_roce_amo_add,
    aclshmemi_roce_amo_cas,
    aclshmemi_roce_atomic_compare_and_swap,
    aclshmemi_roce_atomic_fetch_and_add,
    aclshmemi_roce_get_atomic_fetch_addr,
    aclshmemi_roce_get_atomic_fetch_data,
)
from pymodel.device.atomics import (
    Atomics,
    aclshmemx_roce_atomic_add,
    aclshmemx_roce_atomic_and,
    aclshmemx_roce_atomic_compare_swap,
    aclshmemx_roce_atomic_fetch,
    aclshmemx_roce_atomic_fetch_add,
    aclshmemx_roce_atomic_fetch_and,
    aclshmemx_roce_atomic_fetch_inc,
    aclshmemx_roce_atomic_fetch_or,
    aclshmemx_roce_atomic_fetch_xor,
    aclshmemx_roce_atomic_inc,
    aclshmemx_roce_atomic_or,
    aclshmemx_roce_atomic_set,
    aclshmemx_roce_atomic_swap,
    aclshmemx_roce_atomic_xor,
)
from pymodel.device.batch import (
    aclshmemx_roce_qp_get_defer,
    aclshmemx_roce_qp_get_submit,
    aclshmemx_roce_qp_put_defer,
    aclshmemx_roce_qp_put_submit,
)
from pymodel.device.pe import DeviceOptions, Pe
from pymodel.device.queues import DeviceAbort, DeviceTrap
from pymodel.device.roce import (
    aclshmemx_roce_get_nbi,
    aclshmemx_roce_put_nbi,
    aclshmemx_roce_qp_get,
    aclshmemx_roce_qp_put,
    aclshmemx_roce_qp_quiet,
    aclshmemx_roce_quiet,
)
from pymodel.device.sync import (
    SignalOp,
    Team,
    aclshmemx_roce_barrier,
    aclshmemx_roce_barrier_all,
    aclshmemx_roce_sync_all,
    aclshmemx_roce_team_sync,
    aclshmemx_signal_op,
)
from pymodel.device.ub import GlobalTensor, LocalTensor, RdmaConfig
from pymodel.device.wr import Opcode, Operands, SendWr
from pymodel.device.xscale import (
    aclshmem_roce_ptr,
    aclshmemi_qp_info_fetch,
    aclshmemi_roce_fill_wqe,
    aclshmemi_roce_poll_cq,
    aclshmemi_roce_post_send,
    aclshmemi_roce_quiet,
    aclshmemi_roce_read,
    aclshmemi_roce_ring_cq_doorbell,
    aclshmemi_roce_ring_sq_doorbell,
    aclshmemi_roce_write,
)
from pymodel.generation import Generation

__all__ = [
    "AtomicOpTraits", "Atomics", "DeviceAbort", "DeviceOptions", "DeviceTrap", "Generation", "GlobalTensor",
    "LocalTensor", "Opcode", "Operands", "Pe", "RdmaConfig", "SendWr", "SignalOp", "Team",
    "aclshmem_roce_ptr", "aclshmemi_qp_info_fetch", "aclshmemi_roce_amo_add", "aclshmemi_roce_amo_cas",
    "aclshmemi_roce_atomic_compare_and_swap", "aclshmemi_roce_atomic_fetch_and_add",
    "aclshmemi_roce_fill_wqe", "aclshmemi_roce_get_atomic_fetch_addr",
    "aclshmemi_roce_get_atomic_fetch_data", "aclshmemi_roce_poll_cq", "aclshmemi_roce_post_send",
    "aclshmemi_roce_quiet", "aclshmemi_roce_read", "aclshmemi_roce_ring_cq_doorbell",
    "aclshmemi_roce_ring_sq_doorbell", "aclshmemi_roce_write", "aclshmemx_roce_atomic_add",
    "aclshmemx_roce_atomic_and", "aclshmemx_roce_atomic_compare_swap", "aclshmemx_roce_atomic_fetch",
    "aclshmemx_roce_atomic_fetch_add", "aclshmemx_roce_atomic_fetch_and",
    "aclshmemx_roce_atomic_fetch_inc", "aclshmemx_roce_atomic_fetch_or", "aclshmemx_roce_atomic_fetch_xor",
    "aclshmemx_roce_atomic_inc", "aclshmemx_roce_atomic_or", "aclshmemx_roce_atomic_set",
    "aclshmemx_roce_atomic_swap", "aclshmemx_roce_atomic_xor", "aclshmemx_roce_barrier",
    "aclshmemx_roce_barrier_all", "aclshmemx_roce_get_nbi", "aclshmemx_roce_put_nbi",
    "aclshmemx_roce_qp_get", "aclshmemx_roce_qp_get_defer", "aclshmemx_roce_qp_get_submit",
    "aclshmemx_roce_qp_put", "aclshmemx_roce_qp_put_defer", "aclshmemx_roce_qp_put_submit",
    "aclshmemx_roce_qp_quiet", "aclshmemx_roce_quiet", "aclshmemx_roce_sync_all",
    "aclshmemx_roce_team_sync", "aclshmemx_signal_op",
]  # fmt: skip
