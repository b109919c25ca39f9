"""A queue that an earlier version left, with a job of every kind waiting in it, is taken over and its jobs run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import open_model, open_prediction
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.specification import job_from_options, run_job
from tests.service.problem import claim, make_problem

# The database as the first release wrote it, before modules were sorted into rooms; files lie below /PLACE.
LEFT = Path(__file__).with_name("queue_of_version_1.sql")


def test_waits_of_an_earlier_version_are_kept(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    with sqlite3.connect(tmp_path / "queue.sqlite") as database:
        database.executescript(LEFT.read_text())
        database.execute(
            "UPDATE jobs SET created = '2026-01-02T03:04:05+00:00', started = '2026-01-02T03:05:35+00:00', "
            "attempt = 1, state = 'done' WHERE command = 'tune'"
        )
    database.close()
    queue = JobQueue(tmp_path)
    ended = queue.list(states=("done",))[0]
    assert ended.waited_seconds == pytest.approx(90.0, abs=0.01)
    assert {(job.queued == job.created, job.waited_seconds) for job in queue.list(states=("queued",))} == {(True, 0.0)}
    queue.close()


def test_jobs_that_an_earlier_version_queued_still_run(tmp_path: Path) -> None:
    make_problem(tmp_path)
    folder = tmp_path / "queue"
    (folder / "jobs").mkdir(parents=True)
    (folder / "services").mkdir()
    with sqlite3.connect(folder / "queue.sqlite") as database:
        database.executescript(LEFT.read_text().replace("/PLACE", str(tmp_path)))
        for (identity,) in database.execute("SELECT id FROM jobs").fetchall():
            (folder / "jobs" / identity).mkdir()
    database.close()
    queue = JobQueue(folder)
    # What they were written without counts as not asked for.
    assert {(job.owner, job.memory_bytes) for job in queue.list()} == {(None, None)}
    JobQueue(folder).close()
    ran = []
    while (job := claim(queue)) is not None:
        run_job(job_from_options(job.command, job.options), SilentReporter())
        ran.append(job.command)
    queue.close()
    assert ran == ["tune", "train", "train", "predict", "evaluate"]
    # What was asked for is what was run.
    pcg, gbcd = (open_model(tmp_path / f"{name}.zarr").summary["settings"] for name in ("model", "gbcd"))
    assert (pcg["solver"], pcg["preconditioner"]["rank"], pcg["preconditioner"]["landmarks"]) == ("pcg", 60, "uniform")
    expected = {"block_size": 50, "candidates": 20, "memory": 3, "precision": "double", "variables_per_step": 1}
    assert {name: gbcd[name] for name in expected} == expected
    assert open_prediction(tmp_path / "pred.zarr").n_samples == 400
