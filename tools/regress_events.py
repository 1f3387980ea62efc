"""pytest plugin of regress.py: writes one JSON line for the plan and for each result, as they come.

Loaded with `-p tools.regress_events`; the file's path is in CAMHIL_REGRESS_EVENTS. Lines:
  {"total": n}    tests collected (with -n, by the first worker that is ready)
  {"id": node id, "when": phase, "outcome": passed, failed or skipped, "cause": first line, "seconds": s}
A test counts once: by its call, or by the phase (collection, set-up, tear-down) that failed or skipped it.
"""

import json
import os
from typing import Any

import pytest


def _write(line: dict[str, Any]) -> None:
    with open(os.environ["CAMHIL_REGRESS_EVENTS"], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _result(test: str, when: str, outcome: str, cause: str, seconds: float) -> None:
    _write({"id": test, "when": when, "outcome": outcome, "cause": cause, "seconds": seconds})


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _cause(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no message"


class Events:
    """Hooks of the controlling process only: with -n the workers' reports arrive there too."""

    def __init__(self) -> None:
        self.planned = False

    def _plan(self, total: int) -> None:
        if not self.planned:
            self.planned = True
            _write({"total": total})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan of a run without workers."""
        if session.items:
            self._plan(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Plan of a run with workers."""
        self._plan(len(ids))

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be collected is a failure of its own."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            cause = lines[-1][1:].strip() if lines else _cause(report)
            _result(report.nodeid, "collect", "failed", cause, 0.0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One line a test."""
        if report.when == "call" or report.failed or (report.when == "setup" and report.skipped):
            cause = _cause(report) if report.failed else ""
            _result(report.nodeid, report.when, report.outcome, cause, report.duration)


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks in the controlling process."""
    if not _is_worker(config):
        config.pluginmanager.register(Events(), "regress-events")
