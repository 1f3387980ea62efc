"""What the commands read: seeds, hexadecimal text, files, standard input. Every refusal is one line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

#: more than any sensible input; keeps an endless stream from filling the memory
MAX_INPUT: Final = 64 << 20

SEEDS: Final = 1 << 63
"""Run seeds are below this: what the generators of the testbench tell apart."""

_SEPARATORS: Final = re.compile(r"[\s:]+")
_DIGITS: Final = re.compile(r"[0-9a-fA-F]*\Z")


class InputError(ValueError):
    """Bad input of the user; the text says in one line what is wrong."""


def one_line(text: str) -> str:
    """`text` with everything that is not printable (line ends, escape codes, surrogates) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def run_seed(text: str) -> int:
    """A run seed of a command line, 0 to 2^63 - 1. Raises ArgumentTypeError."""
    try:
        seed = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if seed < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    if seed >= SEEDS:
        raise argparse.ArgumentTypeError("must be less than 2^63")
    return seed


def read_source(source: str) -> bytes:
    """Content of a file, of standard input for '-'. Raises `InputError` where it cannot be read."""
    try:
        if source == "-":
            if sys.stdin is None:
                raise InputError("standard input is closed")
            raw = sys.stdin.buffer.read(MAX_INPUT + 1)
        else:
            with open(source, "rb") as file:
                raw = file.read(MAX_INPUT + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot read {source!r}: {reason}") from error
    if len(raw) > MAX_INPUT:
        raise InputError(f"{source!r} holds more than {MAX_INPUT >> 20} MiB")
    return raw


def hex_groups(words: list[str]) -> list[str]:
    """The HEX arguments as groups as they were written: split at spaces, line ends and colons.

    '-' stands for standard input. Raises `InputError` for what is no hexadecimal digit, and where there is
    none.
    """
    text = " ".join(words)
    if text.strip() == "-":
        text = read_source("-").decode("latin-1")
    groups = [group for group in _SEPARATORS.split(text) if group]
    for group in groups:
        digits = group[2:] if group[:2] in ("0x", "0X") else group
        if not _DIGITS.match(digits):
            bad = next(c for c in digits if not _DIGITS.match(c))
            raise InputError(f"{_short(group)!r}: {bad!r} is no hexadecimal digit")
        if not digits:
            raise InputError(f"{group!r}: no digits behind it")
    if not groups:
        raise InputError("no hexadecimal digits")
    return groups


def hex_bytes(words: list[str]) -> bytes:
    """The HEX arguments as bytes in memory or wire order.

    Each group may begin with 0x and has an even number of digits: to pad a half byte would be a guess.
    """
    groups = hex_groups(words)
    for group in groups:
        if len(group) % 2:
            raise InputError(f"{_short(group)!r}: an odd number of hexadecimal digits")
    return b"".join(bytes.fromhex(group[2:] if group[:2] in ("0x", "0X") else group) for group in groups)


def hex_number(words: list[str], bits: int) -> int:
    """The HEX arguments as one number of at most `bits` bits, most significant digit first.

    A single group behind 0x may have any number of digits, as Python's `hex` prints it.
    """
    groups = hex_groups(words)
    if len(groups) == 1 and groups[0][:2] in ("0x", "0X"):
        digits = groups[0][2:]
        if len(digits) > bits // 4:
            raise InputError(f"{len(digits)} hexadecimal digits: a doorbell has at most {bits // 4}")
        return int(digits, 16)
    raw = hex_bytes(words)
    if len(raw) * 8 > bits:
        raise InputError(f"{2 * len(raw)} hexadecimal digits: a doorbell has at most {bits // 4}")
    return int.from_bytes(raw, "big")


def _short(group: str) -> str:
    return group if len(group) <= 24 else f"{group[:20]}..."
