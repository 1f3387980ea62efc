"""What the host layers of all operators share: window size, storage formats, single checks of tensors.

Order of the checks and texts follow the operators page where it gives them. Nothing here changes any state.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymodel.operators.common import BF16, FP16, MB, OperatorError, TorchBindError

Array: TypeAlias = "NDArray[Any]"
Soc: TypeAlias = Literal["ascend910_93", "ascend910b"]

DEFAULT_BUFFSIZE: Final = 200
"""MB of HCCL_BUFFSIZE where nobody sets it (operators page 1.1)."""
SYSTEM_WORKSPACE: Final = 16 * MB
"""Workspace that every operator has for the system (operators page 1.2)."""
MAX_RANKS: Final = 384
MAX_EXPERTS: Final = 512
MAX_TOKENS: Final = 8000
MAX_TOP_K: Final = 16
X_TYPES: Final = (BF16, FP16)

_LOG = logging.getLogger(__name__)


class NzArray(np.ndarray[Any, np.dtype[Any]]):
    """A logical array with the tag FRACTAL_NZ, which is checked (programs page, section 5)."""


def nz(array: Array) -> NzArray:
    """A view of ``array`` with the tag FRACTAL_NZ."""
    return array.view(NzArray)


def is_nz(array: Array) -> bool:
    """Whether the array is tagged FRACTAL_NZ."""
    return isinstance(array, NzArray)


def hccl_buffsize(explicit: int | None = None) -> int:
    """The window's size in MB: ``explicit``, else the environment's HCCL_BUFFSIZE, else 200.

    The environment's value is kept in 16 bits, so 65536 is 0; one that is no number is logged and the default
    stays (operators page 1.1, 12).
    """
    if explicit is not None:
        return explicit
    text = os.environ.get("HCCL_BUFFSIZE")
    if text is None:
        return DEFAULT_BUFFSIZE
    if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) is None:
        _LOG.warning("HCCL_BUFFSIZE is no number: %r; %d MB are kept", text, DEFAULT_BUFFSIZE)
        return DEFAULT_BUFFSIZE
    return int(text) & 0xFFFF


def require(good: bool, operator: str, text: str) -> None:
    """Raise OperatorError with ``text`` unless ``good``."""
    if not good:
        raise OperatorError(operator, text)


def bind(good: bool, condition: str) -> None:
    """Raise TorchBindError with ``condition`` unless ``good``."""
    if not good:
        raise TorchBindError(condition)


def bind_matrix(name: str, array: Array) -> None:
    """The torch binding's "2-D and contiguous". Raises TorchBindError."""
    bind(array.ndim == 2, f"{name}.dim() == 2")
    bind(array.flags.c_contiguous, f"{name}.is_contiguous()")


def bind_cast(name: str, array: Array, dtype: type[np.int32] | type[np.int64]) -> Array:
    """``array`` cast as the torch binding casts it. Raises TorchBindError where a value does not fit.

    The original wraps such a value around, which could make it legal.
    """
    cast = array.astype(dtype, copy=False)
    bind(bool(np.array_equal(cast, array)), f"{name} fits {np.dtype(dtype).name}")
    return cast


def tensor(operator: str, name: str, array: Array, dims: int, dtypes: Sequence[np.dtype[Any] | type]) -> None:
    """Given at all, number of dimensions, then type. Raises OperatorError."""
    require(isinstance(array, np.ndarray), operator, f"{name} is required.")
    require(array.ndim == dims, operator, f"{name} must be {dims}-dimension, but got {array.ndim}.")
    known = [np.dtype(dtype) for dtype in dtypes]
    names = " or ".join(dtype.name for dtype in known)
    require(array.dtype in known, operator, f"{name} datatype must be {names}, but got {array.dtype.name}.")


def table(operator: str, name: str, array: Array, shape: tuple[int, ...]) -> None:
    """An int32 table of exactly ``shape``. Raises OperatorError."""
    tensor(operator, name, array, len(shape), [np.int32])
    require(array.shape == shape, operator, f"{name} must have shape {shape}, but got {array.shape}.")


def within(operator: str, name: str, value: int, bounds: str) -> None:
    """``value`` lies in an interval as the page writes it, such as "(0, 384]". Raises OperatorError."""
    low, high = (int(part) for part in bounds[1:-1].split(","))
    low_good = value > low if bounds[0] == "(" else value >= low
    high_good = value < high if bounds[-1] == ")" else value <= high
    require(
        low_good and high_good, operator, f"{name} is invalid, only support {bounds}, but got {name}={value}."
    )


def group_name(operator: str, name: str, value: str) -> None:
    """A group's name has 1 to 127 characters. Raises OperatorError."""
    require(
        1 <= len(value) <= 127, operator, f"{name} length must be in [1, 127], but got length {len(value)}."
    )


def fits_window(operator: str, need: int, buffsize: int, why: str) -> None:
    """``need`` bytes fit into a window of ``buffsize`` MB. Raises OperatorError."""
    require(
        need <= buffsize * MB,
        operator,
        f"HCCL_BUFFSIZE is too SMALL, {why}, needs {-(-need // MB)}MB, but got HCCL_BUFFSIZE={buffsize}MB.",
    )


def finite(operator: str, name: str, array: Array) -> None:
    """No NaN and no infinity (programs page, section 5). Raises OperatorError."""
    if not np.isfinite(array).all():
        raise OperatorError(operator, f"{name} holds NaN or infinity.")


def expert_ids(operator: str, name: str, ids: Array, experts: int, lowest: int) -> None:
    """Every id is ``lowest`` or above and below ``experts``. Raises OperatorError.

    ``lowest`` is 0 in prefill, which does not handle -1 (operators page 12), and -1 in fused, which skips it.
    """
    wrong = ids[(ids < lowest) | (ids >= experts)]
    if wrong.size:
        raise OperatorError(operator, f"{name} holds {int(wrong[0])}, only support [{lowest}, {experts}).")
