"""Which operators are compiled for an SoC: the resolver over ``operator_registry.json`` (operators page, 2).

``python -m pymodel.operators.select_ops --registry PATH --soc NAME --shmem 0|1 [--quant] [--ops "a;b"]``
prints one operator a line. Notes and errors go to stderr. Exit codes: 0, 1 for an ``ERROR:``, 2 for a command
line that cannot be parsed. The registries of the generations M and F lie in `REGISTRY`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

REGISTRY: Final = Path(__file__).parent / "registry"
"""Holds ``operator_registry_m.json`` and ``operator_registry_f.json``."""
BASE: Final = "fused_deep_moe"
W4A8: Final = "fused_deep_moe_w4a8"
"""Shares its source file names with `BASE`: only one of them fits into a run package."""


class SelectionError(ValueError):
    """Nothing can be selected; the text is the message of operators page 2.3 without its prefix."""


def registry_path(generation: Literal["M", "F"]) -> Path:
    """The registry of a generation: M (main branch) or F (feature branch)."""
    return REGISTRY / f"operator_registry_{generation.lower()}.json"


def load_registry(path: str | Path) -> dict[str, Any]:
    """The registry as JSON gives it. Raises SelectionError for no file, no JSON, or no JSON object."""
    if not Path(path).is_file():
        raise SelectionError(f"registry file not found: {path}")
    try:
        registry = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(registry, dict):
            raise ValueError("not a JSON object")
    except (ValueError, OSError) as error:  # JSON and UTF-8 errors are ValueErrors
        raise SelectionError(f"registry JSON parse error: {path}: {error}") from None
    return registry


def soc_operators(registry: Mapping[str, Any], soc: str) -> list[str]:
    """The operators of an SoC in registry order. Raises SelectionError for an SoC that is not listed."""
    versions = registry.get("soc_versions", {})
    if soc not in versions:
        known = ", ".join(versions) if versions else "(none)"
        raise SelectionError(f"SOC '{soc}' not registered; supported: [{known}]")
    return list(versions[soc])


def user_operators(text: str | None, listed: Sequence[str]) -> list[str] | None:
    """The entries of ``--ops``, or None where it was not given.

    Raises SelectionError for an empty entry anywhere, then for the first one that is not in ``listed``.
    """
    if text is None:
        return None
    entries = [entry.strip() for entry in text.split(";")]
    if "" in entries:
        raise SelectionError("-a list contains empty entry")
    for entry in entries:
        if entry not in listed:
            raise SelectionError(f"operator '{entry}' not in SOC support list; valid: [{', '.join(listed)}]")
    return entries


def resolve(
    registry: Mapping[str, Any], soc: str, shmem: bool, quant: bool = False, ops: str | None = None
) -> tuple[list[str], list[str]]:
    """Rules 2 to 7 of operators page 2.2, in its order: (operators in registry order, notes).

    The operators may be none: what that means is up to the caller. Raises SelectionError.
    """
    listed = soc_operators(registry, soc)
    asked = user_operators(ops, listed)
    candidates = list(listed) if asked is None else asked
    notes: list[str] = []
    if quant:
        if asked is not None and BASE in asked:
            raise SelectionError(f"-q selects {W4A8}; remove {BASE} from -a or drop -q")
        # w4a8 comes in unasked; where the SoC does not list it, the last rule drops it without a word
        candidates = [op for op in candidates if op != BASE]
        if W4A8 not in candidates:
            candidates.append(W4A8)
    elif BASE in candidates and W4A8 in candidates:
        if asked is not None:
            raise SelectionError(f"{BASE} and {W4A8} share filenames; select only one, or use -q for {W4A8}")
        notes.append(f"dropping {W4A8} (shares filenames with {BASE} in the same run package)")
        candidates = [op for op in candidates if op != W4A8]
    if not shmem:
        meta = registry.get("operator_meta", {})
        needing = {op for op in candidates if meta.get(op, {}).get("requires_shmem", False)}
        notes += [
            f"dropping {op} (requires SHMEM, which is not installed)" for op in candidates if op in needing
        ]
        candidates = [op for op in candidates if op not in needing]
    return [op for op in listed if op in candidates], notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of operators page 2.2."""
    parser.add_argument("--registry", required=True, metavar="PATH", help="operator_registry.json")
    parser.add_argument("--soc", required=True, metavar="NAME", help="SoC, for example ascend910_93")
    parser.add_argument("--shmem", required=True, choices=("1", "0"), help="whether SHMEM is installed")
    parser.add_argument("--quant", action="store_true", help=f"{W4A8} instead of {BASE}")
    parser.add_argument("--ops", metavar="LIST", help="operators, separated by ';' (default: all of the SoC)")


def run(args: argparse.Namespace) -> int:
    """The command after its arguments: prints operators, notes and errors; gives the exit code."""
    try:
        registry = load_registry(args.registry)
        selected, notes = resolve(registry, args.soc, args.shmem == "1", args.quant, args.ops)
        for note in notes:
            print(f"NOTE: {note}", file=sys.stderr)
        if not selected:
            raise SelectionError(
                "no operators to compile after filtering (check SHMEM installation or -a selection)"
            )
    except SelectionError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    print("\n".join(selected))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m pymodel.operators.select_ops``."""
    parser = argparse.ArgumentParser(prog="select_ops", description="The operators to compile for an SoC.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
