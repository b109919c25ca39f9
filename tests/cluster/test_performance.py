"""Dask's performance report of a run: written whole, for a run that fails too, or refused before any cluster starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor
from dkgp.cluster.connect import performance_report
from dkgp.errors import InputError, UsageError
from tests.cluster.helpers import Listener


class FakeClient:
    """A client whose scheduler draws a page of two words, or fails at it."""

    def __init__(self, bokeh: bool = True, error: Exception | None = None) -> None:
        self._bokeh, self._error, self.streams = bokeh, error, 0
        self.scheduler = type("Scheduler", (), {"performance_report": None})

    def run_on_scheduler(self, function: Any) -> object:
        return self._bokeh

    def get_task_stream(self, start: float, stop: float) -> None:
        self.streams += 1

    def sync(self, function: Any, **options: Any) -> str:
        if self._error is not None:
            raise self._error
        return "<html>tasks</html>"


def test_a_report_is_written_at_the_end(tmp_path: Path) -> None:
    path, client, listener = tmp_path / "report.html", FakeClient(), Listener()
    with performance_report(client, str(path), listener):  # type: ignore[arg-type]
        assert client.streams == 1
        assert list(tmp_path.iterdir()) == []
    assert path.read_text() == "<html>tasks</html>"
    assert list(tmp_path.iterdir()) == [path]
    assert listener.notes == [f"performance report: {path}"]


def test_a_run_that_fails_has_its_report_too(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with pytest.raises(ZeroDivisionError), performance_report(FakeClient(), str(path), Listener()):  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert path.exists()


def test_a_lost_cluster_takes_its_records_along(tmp_path: Path) -> None:
    path, listener = tmp_path / "report.html", Listener()
    with performance_report(FakeClient(error=OSError("scheduler is gone")), str(path), listener):  # type: ignore[arg-type]
        pass
    assert listener.warnings == [f"the performance report '{path}' could not be written: scheduler is gone"]
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_without_bokeh_is_refused(tmp_path: Path) -> None:
    client: Any = FakeClient(bokeh=False)
    with (
        pytest.raises(
            UsageError, match=r"`performance_report` needs bokeh in the scheduler.s environment.*dkgp\[dashboard\]"
        ),
        performance_report(client, str(tmp_path / "report.html"), Listener()),
    ):
        pass
    assert client.streams == 0


def test_what_no_report_can_describe_or_be_written_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="describes work on Dask, and `cluster` none runs without"):
        ClusterOptions(kind="none", performance_report="report.html")
    for path in (tmp_path, tmp_path / "no" / "folder.html"):
        options = ClusterOptions(kind="slurm", workers=1, performance_report=str(path))
        with pytest.raises(InputError, match="`performance_report`: .* cannot be written"), open_executor(options, 1):
            pass
    assert ClusterOptions(performance_report="a.html").anchored().performance_report == str(Path("a.html").absolute())


def doubled(group: list[int]) -> list[int]:
    return [2 * item for item in group]


def test_a_small_problem_runs_on_dask_for_its_report(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")
    path = tmp_path / "report.html"
    options = ClusterOptions(threads_per_worker=1, performance_report=str(path))
    with open_executor(options, 10, Listener()) as executor:
        assert not isinstance(executor, LocalExecutor)
        assert executor.submit("kproduct", doubled, (), [[1]]).result() == [2]
    assert "kproduct" in path.read_text()
