"""A long life of one service, compressed: many small jobs, restarts in between, and what is held at the end."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.service_process import ServiceProcess, service_on, until
from tests.service.problem import make_problem

# Jobs on their way at a time.
WAITING = 8
# By what figures may grow from the first start to the last: pools of threads, and pages that Python does not give back.
MOST_HANDLES, MOST_BYTES = 8, 48 * 2**20
# Of records and logs, a job.
MOST_BYTES_A_JOB = 64 * 1024
# And what is kept where the folder has a limit.
LIMIT = 1024**2


@dataclass(frozen=True)
class Level:
    """Resources of an idle service's process."""

    handles: int
    resident: int
    threads: int

    @classmethod
    def of(cls, service: ServiceProcess) -> Level:
        process = psutil.Process(service.process.pid)
        return cls(process.num_fds(), process.memory_info().rss, process.num_threads())


def bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder, from which a service may remove some meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


def live(service: ServiceProcess, options: list[dict[str, Any]], moments: random.Random) -> tuple[list[str], Level]:
    """Submit jobs and wait for them, a few at a time; their ids, and the level after the first few."""
    ids: list[str] = []
    first: Level | None = None
    with service.client() as client:
        for start in range(0, len(options), WAITING):
            some = [str(client.submit("tune", each)["id"]) for each in options[start : start + WAITING]]
            if first is not None and moments.random() < 0.2:
                service.end(moments.choice([signal.SIGKILL, signal.SIGTERM]))
                service.start()
            for job_id in some:
                record = client.wait(job_id, until=time.monotonic() + 240.0)
                assert record["state"] == "done", record
            ids += some
            first = first or Level.of(service)
    assert first is not None
    return ids, first


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(40, marks=pytest.mark.faults),
        pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_many_jobs_leave_nothing_but_their_records(tmp_path: Path, count: int) -> None:
    problem, moments = make_problem(tmp_path), random.Random(count)
    outputs = [tmp_path / "outputs" / f"hyper-{number}.json" for number in range(count)]
    options = [{"dataset": problem.dataset, "out": str(out), "subset": 20, "seed": 0} for out in outputs]
    began = time.monotonic()
    with service_on(tmp_path / "queue", tmp_path, "--concurrent-jobs", 2, "--max-folder", "1GiB") as service:
        ids, first = live(service, options, moments)
        # A job is done when it is on record; its process ends a moment later.
        until(lambda: not service.runners(), "the last job's process ends", 60.0)
        last = Level.of(service)
        restarts = service._starts - 1
        # Each ran, none twice at once, and of those that a kill has met a second attempt ended it.
        assert len(set(ids)) == count
        assert all(out.exists() for out in outputs)
        assert last.handles <= first.handles + MOST_HANDLES
        assert last.resident <= first.resident + MOST_BYTES
        records = bytes_in(tmp_path / "queue")
        assert records <= count * MOST_BYTES_A_JOB + 2 * 2**20
        service.end(signal.SIGTERM)
    # With a limit the next service forgets what ended first, and never what a job wrote.
    with service_on(tmp_path / "queue", tmp_path, "--max-folder", f"{LIMIT // 2**20}MiB", name="limited") as service:
        jobs = tmp_path / "queue" / "jobs"
        until(lambda: bytes_in(jobs) <= LIMIT, "records beyond the limit are forgotten", 120.0)
        assert all(out.exists() for out in outputs)
    seconds, mebibytes = time.monotonic() - began, [level.resident / 2**20 for level in (first, last)]
    print(f"\n{count} jobs, {restarts} restarts, {seconds:.0f} s, {records / count:,.0f} bytes of records a job")
    print(f"handles {first.handles} -> {last.handles}, MiB {mebibytes[0]:.0f} -> {mebibytes[1]:.0f}")
