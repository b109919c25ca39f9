"""A job's process tells nobody the secrets of the cluster that it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dkgp.errors import ClusterError
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.running import runner
from tests.service.problem import Problem


def test_secrets_of_the_cluster_are_not_in_events_or_errors(
    queue: JobQueue, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*arguments: Any) -> Any:
        raise ClusterError("no luck with hunter2-hunter2")

    monkeypatch.setattr(runner, "_work", work)
    monkeypatch.setattr(runner, "LogTail", Tail)
    job, _ = queue.submit("train", problem.training(tmp_path / "model.zarr"))
    claimed = queue.claim()
    assert claimed is not None
    cluster = {"kind": "gateway", "settings": {"password": "hunter2-hunter2"}}
    assert runner._run(queue.folder, job.id, claimed.attempt, [], cluster) == 0
    record = queue.get(job.id)
    assert record.error is not None
    assert record.error["message"] == "no luck with ***"
    assert "logging in with ***" in (queue.folder_of(job.id) / "events.jsonl").read_text()
    assert "hunter2" not in (queue.folder_of(job.id) / "events.jsonl").read_text()


class Tail:
    """Takes a line at once, where the real one would take this process's standard output away."""

    def __init__(self, path: Path, on_line: Any) -> None:
        self.on_line = on_line

    def __enter__(self) -> None:
        self.on_line("logging in with hunter2-hunter2")

    def __exit__(self, *error: object) -> None:
        pass
