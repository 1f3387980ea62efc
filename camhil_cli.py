"""Console script ``camhil``: the command of `pymodel` joined with the RTL platform of the testbench.

It lives outside `pymodel`, which knows nothing of simulators; the testbench is imported only for ``--on
rtl``.
"""

from __future__ import annotations

import importlib
import sys

from pymodel import cli
from pymodel.run import RunConfig


def _rtl(config: RunConfig, pcap: str | None) -> int:
    code: int = importlib.import_module("tb.sim.sim").run_rtl(config, pcap)
    return code


def main() -> int:
    """Entry point."""
    try:
        return cli.main(rtl=_rtl)
    except KeyboardInterrupt:
        print("camhil: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
