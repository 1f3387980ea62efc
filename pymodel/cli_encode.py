"""``camhil encode``: the WQE and the SQ doorbell that the device API posts for an operation.

Which WQE each operation has is the table of device.md 5.3 (atomics) and section 1 (put, get); the bits that
the driver leaves alone are 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pymodel.cli_input import InputError, read_source
from pymodel.formats import doorbell, wqe
from pymodel.formats.wqe import ATOMIC_MSG_LEN, DS_NUM, WqeOp

#: fields of every operation with their widths in bits
_COMMON: Final = {
    "head": 32, "wqn": doorbell.QP_ID_BITS, "rkey": 32, "lkey": 32, "remote_addr": 64, "local_addr": 64,
}  # fmt: skip
_DATA: Final = {"put": WqeOp.WRITE, "get": WqeOp.READ}
#: which of value and cond each atomic needs; the others may stand in its object and are not used
_ATOMICS: Final[Mapping[str, tuple[str, ...]]] = {
    "fetch": (), "set": ("value",), "compare_swap": ("cond", "value"), "swap": ("value",), "add": ("value",),
    "inc": (), "fetch_add": ("value",), "fetch_inc": (), "and": ("value",), "or": ("value",),
    "xor": ("value",), "fetch_and": ("value",), "fetch_or": ("value",), "fetch_xor": ("value",),
}  # fmt: skip
OPS: Final = (*_DATA, *_ATOMICS)
_HEX: Final = re.compile(r"-?0x[0-9a-fA-F]+\Z")
_VERSIONS: Final = (1, 2)
_BITS: Final = (32, 64)


def encode(source: str) -> str:
    """The JSON list of `source` (a file, '-' standard input) as JSON list of WQEs and doorbells.

    Raises `InputError`.
    """
    objects = _load(source)
    columns = [_fields(item, f"object {i}") for i, item in enumerate(objects)]
    slots = np.zeros((len(objects), wqe.WQE_BYTES), np.uint8)
    for version in _VERSIONS:
        mine = [i for i, (v, _, _) in enumerate(columns) if v == version]
        if mine:
            names = wqe.WQE_FIELDS.names or ()
            fields = {name: np.array([columns[i][1].get(name, 0) for i in mine], np.uint64) for name in names}
            slots[mine] = wqe.pack(fields, version)
    return json.dumps(
        [
            {"wqe": slot.tobytes().hex(), "sq_doorbell": f"0x{ring:016x}"}
            for slot, (_, _, ring) in zip(slots, columns, strict=True)
        ],
        indent=1,
    )


def atomic_fields(op: str, bits: int, value: int, cond: int) -> dict[str, int]:
    """Opcode and operands of an atomic (device.md 5.3). value, cond: `bits` bits, unsigned."""
    ones = (1 << bits) - 1
    add = WqeOp.MFA32 if bits == 32 else WqeOp.MFA64
    cas = WqeOp.MCAS32 if bits == 32 else WqeOp.MCAS64
    match op:
        case "fetch":
            return {"msg_opcode": add}
        case "add":
            return {"msg_opcode": add, "swap_add": value}
        case "inc":
            return {"msg_opcode": add, "swap_add": 1}
        case "fetch_add":
            return {"msg_opcode": add if bits == 32 else WqeOp.FA64, "swap_add": value}
        case "fetch_inc":
            return {"msg_opcode": add if bits == 32 else WqeOp.FA64, "swap_add": 1}
        case "xor" | "fetch_xor":
            return {"msg_opcode": add, "swap_add": value, "compare": ones}
        case "compare_swap" if bits == 64:
            return {"msg_opcode": WqeOp.CAS64, "swap_add": value, "compare": cond}
        case "compare_swap":
            masks = {"swap_mask": ones, "compare_mask": ones}
            return {"msg_opcode": cas, "swap_add": value, "compare": cond, **masks}
        case "set" | "swap":
            return {"msg_opcode": cas, "swap_add": value, "swap_mask": ones}
        case "and" | "fetch_and":
            return {"msg_opcode": cas, "swap_add": value, "swap_mask": value ^ ones}
        case "or" | "fetch_or":
            return {"msg_opcode": cas, "swap_add": value, "swap_mask": value}
    raise ValueError(f"no atomic {op!r}")


def _load(source: str) -> list[Any]:
    raw = read_source(source)
    name = "standard input" if source == "-" else source
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 at byte {error.start}") from error
    try:
        objects = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: {error.msg} at line {error.lineno} column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: {error}") from error
    if not isinstance(objects, list):
        raise InputError(f"{name}: a list of objects is expected")
    return objects


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise InputError(f"field {twice!r} stands twice in one object")
    return out


def _fields(item: Any, where: str) -> tuple[int, dict[str, int], int]:
    """(version, fields of the WQE, doorbell) of one object."""
    if not isinstance(item, dict):
        raise InputError(f"{where}: not an object")
    op = item.get("op")
    if "op" not in item:
        raise InputError(f"{where}: field 'op' is missing")
    if not isinstance(op, str) or op not in OPS:
        raise InputError(f"{where}: unknown op {_shown(op)}: one of {', '.join(OPS)}")
    where += f" ({op})"
    atomic = op in _ATOMICS
    needed = ("version", *_COMMON, *(("bits", *_ATOMICS[op]) if atomic else ("length",)))
    allowed = {"op", *needed, *(("value", "cond") if atomic else ())}
    for name in needed:
        if name not in item:
            raise InputError(f"{where}: field {name!r} is missing")
    for name in item:
        if name not in allowed:
            raise InputError(f"{where}: field {name!r} is not one of this operation")

    version = _choice(item, "version", _VERSIONS, where)
    common = {name: _number(item, name, bits, where) for name, bits in _COMMON.items()}
    if atomic:
        bits = _choice(item, "bits", _BITS, where)
        value, cond = (_number(item, n, bits, where, True) if n in item else 0 for n in ("value", "cond"))
        fields = atomic_fields(op, bits, value, cond)
        code = WqeOp(fields["msg_opcode"])
        size, msg_len = bits // 8, ATOMIC_MSG_LEN[code]
    else:
        code = _DATA[op]
        fields = {"msg_opcode": code}
        size = msg_len = _number(item, "length", 32, where)
    fields |= {
        "ds_data_num": DS_NUM[code],
        "wqe_id": int(wqe.wqe_id_of(common["head"], version)),
        "msg_len": msg_len,
        "ce": 1,
        "in_line": int(atomic),
        "r_len": size,
        "rkey": common["rkey"],
        "raddr": common["remote_addr"],
        "l_len": size,
        "lkey": common["lkey"],
        "laddr": common["local_addr"],
    }
    return version, fields, int(doorbell.sq_encode(common["head"] + 1, common["wqn"], version))


def _choice(item: Mapping[str, Any], name: str, choices: tuple[int, ...], where: str) -> int:
    value = _integer(item[name], name, where)
    if value not in choices:
        raise InputError(f"{where}: {name} {_shown(item[name])}: {' or '.join(map(str, choices))}")
    return value


def _number(item: Mapping[str, Any], name: str, bits: int, where: str, signed: bool = False) -> int:
    """A field of `bits` bits; signed: a negative one is taken as two's complement."""
    value = _integer(item[name], name, where)
    low = -(1 << bits - 1) if signed else 0
    if not low <= value < 1 << bits:
        what = "is negative" if value < 0 and not signed else f"does not fit {bits} bits"
        raise InputError(f"{where}: {name} {_shown(item[name])} {what}")
    return value & (1 << bits) - 1


def _integer(value: Any, name: str, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _HEX.match(value):
        return int(value, 16)
    raise InputError(f"{where}: {name} {_shown(value)} is neither an integer nor a 0x string")


def _shown(value: Any) -> str:
    """A value of the user's in a message, not longer than a line."""
    if isinstance(value, int) and not isinstance(value, bool):
        # as text a huge integer would be refused by Python itself
        return str(value) if abs(value) < 1 << 80 else f"of {value.bit_length()} bits"
    try:
        text = json.dumps(value)
    except RecursionError:
        text = "(nested too deeply)"
    return text if len(text) <= 40 else f"{text[:36]}..."
