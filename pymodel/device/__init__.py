"""The device API as device programs see it: fine-grained primitives, coarse calls, and the PE they run on."""

from pymodel.device.pe import DeviceOptions, Pe
from pymodel.device.xscale import (
    SendWr,
    aclshmem_roce_ptr,
    aclshmemi_qp_info_fetch,
    aclshmemi_roce_fill_wqe,
    aclshmemi_roce_poll_cq,
    aclshmemi_roce_post_send,
    aclshmemi_roce_quiet,
    aclshmemi_roce_ring_cq_doorbell,
    aclshmemi_roce_ring_sq_doorbell,
    aclshmemi_roce_write,
    aclshmemx_roce_put_nbi,
    aclshmemx_roce_qp_put,
    aclshmemx_roce_qp_quiet,
    aclshmemx_roce_quiet,
)

__all__ = [
    "DeviceOptions",
    "Pe",
    "SendWr",
    "aclshmem_roce_ptr",
    "aclshmemi_qp_info_fetch",
    "aclshmemi_roce_fill_wqe",
    "aclshmemi_roce_poll_cq",
    "aclshmemi_roce_post_send",
    "aclshmemi_roce_quiet",
    "aclshmemi_roce_ring_cq_doorbell",
    "aclshmemi_roce_ring_sq_doorbell",
    "aclshmemi_roce_write",
    "aclshmemx_roce_put_nbi",
    "aclshmemx_roce_qp_put",
    "aclshmemx_roce_qp_quiet",
    "aclshmemx_roce_quiet",
]
