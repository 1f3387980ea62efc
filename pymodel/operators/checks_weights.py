"""Checks of the fused operators' weights, scales and biases (operators page 6.1, 6.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from pymodel.operators import checks
from pymodel.operators.checks import Array
from pymodel.operators.common import OperatorError

Tensors: TypeAlias = "Sequence[Array] | Array | None"


@dataclass(frozen=True)
class Variant:
    """What differs between W8A8 and W4A8."""

    operator: str
    dtype: np.dtype[Any]
    """Of a weight."""
    packed: int
    """Elements of a word along N; 0 where weights are not packed."""

    @property
    def nz(self) -> bool:
        """Weights are tagged FRACTAL_NZ; packed ones are tagged ND."""
        return not self.packed


W8A8: Final = Variant("fused_deep_moe", np.dtype(np.int8), 0)
W4A8: Final = Variant("fused_deep_moe_w4a8", np.dtype(np.int32), 8)


@dataclass(frozen=True)
class Pair:
    """Weight, scale and bias of one product."""

    weight: Any
    scale: Any
    bias: Any = None


def per_expert(tensors: Sequence[Array], local: int) -> list[Array]:
    """One array per local expert, untagged, from either style: a list, or one tensor for all (checked).

    Scales and biases of El = 1 come as [N] or [1, N], weights as [h, N] or [1, h, N].
    """
    plain = [np.asarray(tensor) for tensor in tensors]
    return list(plain[0]) if len(plain) == 1 and local > 1 else plain


def routed_pair(
    variant: Variant,
    x_type: np.dtype[Any],
    local: int,
    hidden: int,
    as_list: bool,
    first: Pair,
    second: Pair,
) -> int:
    """Weights and scales of the routed experts, in the table's order; gives N1. Raises OperatorError."""
    op = variant.operator
    scales = (np.dtype(np.float32), x_type)
    inner = 0
    for name, pair, rows in (("gmm1", first, hidden), ("gmm2", second, 0)):
        rows = rows or inner // 2
        weight = f"{name}Weight"
        columns = _routed(op, weight, pair.weight, local, as_list, (rows, None), [variant.dtype], variant)
        if name == "gmm1":
            inner = columns
            _inner(op, "gmm1 hidden size", inner)
        else:
            checks.require(
                columns == hidden, op, f"gmm2Weight must have {hidden} columns, but got {columns}."
            )
        _routed(op, f"{weight}Scale", pair.scale, local, as_list, (columns,), scales)
        if variant.packed:
            # the original looks at the scale instead of the bias of gmm2, so a wrong bias passes there
            checks.require(pair.bias is not None, op, f"{name}Bias is required.")
            _routed(op, f"{name}Bias", pair.bias, local, as_list, (columns,), [np.dtype(np.float32)])
        else:
            checks.require(pair.bias is None, op, f"{name}Bias is not an input.")
    return inner


def _inner(op: str, name: str, inner: int) -> None:
    checks.require(
        1024 <= inner <= 6144, op, f"{name} is invalid. Only support [1024, 6144], but got {inner}."
    )
    checks.require(inner % 1024 == 0, op, f"{name} must be divisible by 1024, but got {inner}.")


def _routed(
    op: str,
    name: str,
    tensors: Sequence[Array],
    local: int,
    as_list: bool,
    shape: tuple[int | None, ...],
    dtypes: Sequence[np.dtype[Any]],
    weight: Variant | None = None,
) -> int:
    """One input: list style, local experts, dimensions, type, format; gives its columns, unpacked."""
    checks.require((len(tensors) > 1) == as_list, op, f"{name} listFlag does not match gmm1Weight listFlag.")
    mismatch = f"{name} does not match local expert number per rank."
    if as_list:
        checks.require(len(tensors) == local, op, mismatch)
        checks.require(
            all(tensor.ndim == len(shape) for tensor in tensors),
            op,
            f"{name} must be a list of {len(shape)}-dimension tensors.",
        )
    else:
        checks.require(len(tensors) == 1, op, mismatch)
        whole = tensors[0]
        if local > 1 or whole.ndim != len(shape):
            checks.require(whole.ndim == len(shape) + 1 and whole.shape[0] == local, op, mismatch)
    columns = 0
    for tensor in tensors:
        columns = _one(op, name, tensor, shape, dtypes, weight)
        shape = (*shape[:-1], columns)  # all of a list are alike
    return columns


def _one(
    op: str,
    name: str,
    tensor: Array,
    shape: tuple[int | None, ...],
    dtypes: Sequence[np.dtype[Any]],
    weight: Variant | None,
) -> int:
    """Trailing dimensions, type, format or values of one tensor; gives its columns, unpacked."""
    got = list(tensor.shape[-len(shape) :])
    if weight is not None and weight.packed:
        got[-1] *= weight.packed
    good = all(want is None or want == have for want, have in zip(shape, got, strict=True))
    wanted = ", ".join("N" if want is None else str(want) for want in shape)
    checks.require(good, op, f"{name} must have dimensions [{wanted}], but got {got}.")
    names = " or ".join(dtype.name for dtype in dict.fromkeys(dtypes))
    checks.require(
        tensor.dtype in dtypes, op, f"{name} datatype must be {names}, but got {tensor.dtype.name}."
    )
    if weight is None:
        checks.finite(op, name, tensor)
    elif checks.is_nz(tensor) != weight.nz:
        raise OperatorError(op, f"{name} format must be {'FRACTAL_NZ' if weight.nz else 'ND'}.")
    return int(got[-1])


def shared_pair(
    variant: Variant,
    hidden: int,
    scale_types: tuple[np.dtype[Any], np.dtype[Any]],
    first: Pair,
    second: Pair,
) -> int | None:
    """The shared expert's inputs, all or none; gives Ns, None without one. Raises OperatorError."""
    op = variant.operator
    given = [first.weight, first.scale, second.weight, second.scale]
    given += [first.bias, second.bias] if variant.packed else []
    if all(one is None for one in (*given, first.bias, second.bias)):
        return None
    count = "six" if variant.packed else "four"
    checks.require(
        all(one is not None for one in given), op, f"share weights and scales: all {count} or none."
    )
    inner = 0
    for name, pair, kind in (("shareGmm1", first, scale_types[0]), ("shareGmm2", second, scale_types[1])):
        rows = inner // 2 if inner else hidden
        want = None if not inner else hidden
        columns = _share(op, f"{name}Weight", pair.weight, (rows, want), variant.dtype, variant)
        if not inner:
            inner = columns
            _inner(op, "share gmm1 hidden size", inner)
        _share(op, f"{name}WeightScale", pair.scale, (columns,), kind)
        if variant.packed:
            _share(op, f"{name}Bias", pair.bias, (columns,), np.dtype(np.float32))
        else:
            checks.require(pair.bias is None, op, f"{name}Bias is not an input.")
    return inner


def _share(
    op: str,
    name: str,
    tensor: Array,
    shape: tuple[int | None, ...],
    dtype: np.dtype[Any],
    weight: Variant | None = None,
) -> int:
    """As `_one`; a leading 1 is allowed."""
    dims = len(shape)
    checks.require(
        tensor.ndim == dims or (tensor.ndim == dims + 1 and tensor.shape[0] == 1),
        op,
        f"{name} must have {dims} dimensions, with or without a leading 1, but got shape {tensor.shape}.",
    )
    return _one(op, name, tensor, shape, [dtype], weight)
