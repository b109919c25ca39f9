from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fault_table import FaultTable, fault_name


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/engine/test_faults.py::test_a_worker_killed", "a worker killed"),
        ("tests/a.py::TestDisk::test_a_disk_is_full[model-2]", "a disk is full (model-2)"),
    ],
)
def test_names_come_from_the_tests(nodeid: str, name: str) -> None:
    assert fault_name(nodeid) == name


def report(nodeid: str, outcome: Any, seconds: float, *keywords: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid, ("a.py", 1, "test"), dict.fromkeys(keywords, 1), outcome, None, "call", duration=seconds
    )


def test_a_failure_stays_one_and_seconds_add_up(tmp_path: Path) -> None:
    table = FaultTable(str(tmp_path / "table.md"))
    table.pytest_runtest_logreport(report("a.py::test_one", "passed", 1.0, "faults"))
    table.pytest_runtest_logreport(report("a.py::test_one", "failed", 2.25, "faults"))
    table.pytest_runtest_logreport(report("a.py::test_one", "passed", 0.25, "faults"))
    table.pytest_runtest_logreport(report("a.py::test_two[x]", "skipped", 0.0, "faults"))
    table.pytest_runtest_logreport(report("a.py::test_three", "passed", 9.0))
    assert table.markdown().splitlines()[2:] == ["| one | failed | 3.5 |", "| two (x) | skipped | 0.0 |"]
