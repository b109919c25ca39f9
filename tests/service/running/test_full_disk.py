"""A disk that fills up as a job writes what it came to: the job says so, and resumed it comes to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.specification import job_from_options, run_job
from tests.cli.runs import bits
from tests.full_disk import full_for
from tests.service.problem import Problem
from tests.service.running.test_runner import attempt


# The manifest and the plot are written by the same lines as on the command line.
@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    ["out/alpha/c/", *(pytest.param(part, marks=pytest.mark.slow) for part in ("out/dkgp-manifest.json", "run.png"))],
)
def test_a_job_whose_disk_is_full_at_its_end(queue: JobQueue, problem: Problem, tmp_path: Path, part: str) -> None:
    out, plot, whole = tmp_path / "out", tmp_path / "run.png", tmp_path / "whole"
    options: dict[str, Any] = problem.training(out, overwrite=True, plot=str(plot), checkpoint_seconds=0.0)
    run_job(job_from_options("train", problem.training(whole)), SilentReporter())
    run_job(job_from_options("train", {**options, "solver": {"block_size": 40}}), SilentReporter())
    earlier = bits(out)
    assert earlier != bits(whole)
    job, _ = queue.submit("train", options)
    with full_for(part) as met:
        failed = attempt(queue, job.id)
    assert met
    assert (failed.state, failed.exit_code) == ("failed", 3)
    assert failed.error is not None
    assert failed.error["type"] == "StorageError"
    assert "the disk is full" in failed.error["message"]
    if part != "run.png":
        assert bits(out) == earlier
        assert CheckpointStore(f"{out}.checkpoint").load_latest() is not None
    queue.resume(job.id)
    done = attempt(queue, job.id)
    assert (done.state, done.error) == ("done", None)
    assert bits(out) == bits(whole)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[:1] == ".") == []


def test_a_job_whose_document_finds_no_room_is_done_all_the_same(
    queue: JobQueue, problem: Problem, tmp_path: Path
) -> None:
    job, _ = queue.submit("train", problem.training(tmp_path / "out"))
    with full_for("document.json") as met:
        done = attempt(queue, job.id)
    assert met
    assert (done.state, done.error) == ("done", None)
    assert done.document is not None
