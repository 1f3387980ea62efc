"""Console script ``camhil``: the command of `pymodel` joined with the RTL platform of the testbench.

It lives outside `pymodel`, which knows nothing of simulators; the testbench is imported only for ``--on
rtl``.
"""

from __future__ import annotations

import importlib
import sys

from pymodel import cli
from pymodel.run import RunConfig

RTL_HOOK = "tb.sim.run_program"
"""Module whose ``main(config.

RunConfig) -> int`` builds the model, runs the program and gives the exit code.
"""


def _rtl(config: RunConfig) -> int:
    try:
        hook = importlib.import_module(RTL_HOOK)
    except ModuleNotFoundError as error:
        print(f"camhil: the RTL platform is not available: {error}", file=sys.stderr)
        return 2
    code: int = hook.main(config)
    return code


def main() -> int:
    """Entry point."""
    return cli.main(rtl=_rtl)


if __name__ == "__main__":
    sys.exit(main())
