"""The tests of a mutant, their order, and the contents of the table of equivalent mutants."""

from __future__ import annotations

import pytest

pytest.importorskip("cosmic_ray", reason="`make mutants` installs what makes the changes")
pytest.importorskip("coverage", reason="`make mutants` installs what it runs with")

from tests.mutants import __main__ as mutants
from tests.mutants.copies import Ran

FILE = "dkgp/solvers/stopping.py"


def ran(name: str, seconds: float, *lines: int) -> Ran:
    return Ran(name, seconds, {FILE: list(lines)} if lines else {})


TESTS = [
    ran("tests/solvers/test_method_run.py::test_quick", 0.1, 4, 5),
    ran("tests/solvers/test_method_run.py::test_beside", 0.05),
    ran("tests/solvers/test_method_run.py::test_slow", 9.0, 5),
    ran("tests/solvers/test_stopping.py::test_own", 0.3, 5),
    ran("tests/solvers/test_other.py::test_elsewhere", 0.01, 3),
    ran("tests/solvers/test_other.py::test_far", 0.01),
]


def names(tests: list[Ran]) -> list[str]:
    return [test.name.partition("::test_")[2] for test in tests]


def test_tests_of_the_line_come_first_and_their_files_others_last() -> None:
    ordered, reached = mutants.order(FILE, range(5, 6), TESTS)
    assert reached
    assert names(ordered) == ["own", "quick", "slow", "beside"]


def test_a_line_that_none_runs_meets_all_that_run_its_file() -> None:
    ordered, reached = mutants.order(FILE, [77], TESTS)
    assert not reached
    assert names(ordered) == ["elsewhere", "own", "quick", "slow"]
    # Compiled code: no test runs a line of it as Python.
    ordered, reached = mutants.order("dkgp/kernels/tiles/loops.py", [1], TESTS)
    assert (len(ordered), reached) == (len(TESTS), False)


def test_seconds_bound_the_tests_and_one_is_always_met() -> None:
    ordered, _ = mutants.order(FILE, [5], TESTS)
    assert names(mutants.within(ordered, 20.0)) == ["own", "quick", "slow", "beside"]
    assert names(mutants.within(ordered, 2.0)) == ["own", "quick"]
    assert names(mutants.within(ordered, 0.0)) == ["own"]


def test_tests_lie_where_the_source_does_or_above_it() -> None:
    files = mutants.files_of_tests("dkgp/solvers/risk/line_search.py")
    assert "tests/solvers/risk/test_methods.py" in files
    assert "tests/solvers/test_risk.py" in files
    assert "tests/solvers/test_auto.py" not in files
    assert all((mutants.ROOT / file).is_file() for file in files)
    assert mutants.files_of_tests(FILE, ["tests/solvers/test_method_run.py"]) == ["tests/solvers/test_method_run.py"]
    for places in mutants.ALSO.values():
        assert all((mutants.ROOT / place).exists() for place in places)


def test_the_table_speaks_of_lines_that_are_there() -> None:
    for entry in mutants.equivalents():
        lines = [line.strip() for line in (mutants.ROOT / entry.file).read_text().splitlines()]
        assert set(entry.before.splitlines()) <= set(lines), f"{entry.file} has no line {entry.before!r} any more"
        assert entry.before != entry.after
        assert len(entry.reason.split()) > 3
