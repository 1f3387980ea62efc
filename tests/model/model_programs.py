"""What the tests of programs on the golden NICs share: building a run, one PE's program beside idle ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pymodel.device import DeviceOptions, Pe
from pymodel.host.table import Fabric, FabricConfig
from pymodel.model import SCHEDULES, Schedule
from pymodel.run import ModelRun

Main = Callable[[Pe], Awaitable[Any]]

__all__ = ["SCHEDULES", "Main", "Schedule", "model_run", "only"]


def model_run(main: Any, schedule: Schedule = "eager", *, seed: int = 1, poll_limit: int | None = None,
              poll_batch: int = 1, observers: Any = (), sanitize: bool = True, hang_after: int = 2_000_000,
              fabric: Fabric | None = None, post_cycles: int = 0, **config: Any) -> ModelRun:  # fmt: skip
    """A run that is ready to start; ``config`` goes to `FabricConfig`."""
    built = fabric or Fabric.build(FabricConfig(**{"seed": seed, **config}))
    options = DeviceOptions(poll_limit=poll_limit, poll_batch=poll_batch, post_cycles=post_cycles)
    return ModelRun(built, main, schedule, seed=seed, options=options, sanitize=sanitize, observers=observers,
                    hang_after=hang_after)  # fmt: skip


def only(rank: int, main: Main) -> Main:
    """``main`` on one PE, nothing on the others."""

    async def wrapped(pe: Pe) -> Any:
        return await main(pe) if pe.rank == rank else None

    return wrapped
