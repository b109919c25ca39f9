"""The table that `make test-faults` ends with: each fault, its outcome, and the seconds that took."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

__all__ = ["FaultTable", "fault_name"]

FAULT = "fault"


def fault_name(nodeid: str) -> str:
    """Return the subject of a test from its name: `test_a_worker_killed[kblock]` becomes "a worker killed (kblock)"."""
    name = nodeid.rsplit("::", 1)[-1]
    found = re.fullmatch(r"test_(\w+?)(?:\[(.*)\])?", name)
    if found is None:
        return name
    words = found[1].replace("_", " ")
    return f"{words} ({found[2]})" if found[2] else words


class FaultTable:
    """Collects the tests marked `faults`; prints them, and writes them as Markdown where a file was asked for.

    Parameters
    ----------
    file : str, optional
        Where the Markdown goes.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._rows: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test's outcome and add up its seconds, fixtures included."""
        if "faults" not in report.keywords:
            return
        outcome, seconds = self._rows.get(report.nodeid, ("passed", 0.0))
        if report.outcome != "passed":
            outcome = report.outcome
        self._rows[report.nodeid] = (outcome, seconds + report.duration)

    def markdown(self) -> str:
        """The table, in the order in which the tests ran."""
        lines = ["| fault | outcome | seconds |", "|---|---|---|"]
        for nodeid, (outcome, seconds) in self._rows.items():
            lines.append(f"| {fault_name(nodeid)} | {outcome} | {seconds:.1f} |")
        return "\n".join(lines) + "\n"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table where all that ran were faults, which is what `make test-faults` runs."""
        if not self._rows:
            return
        if self._file is not None:
            Path(self._file).write_text(self.markdown(), encoding="utf-8")
        if terminalreporter.config.getoption("markexpr") == "faults":
            terminalreporter.section("faults")
            terminalreporter.write(self.markdown())
