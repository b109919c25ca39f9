"""The processes of a cluster that is not spared: a scheduler, and workers that are killed, cut off, sent away, joined.

Workers have no nanny, so that nobody but this module replaces one. Each speaks to the scheduler through a wire of its
own (`dkgp_benchmarks.chaos.wire`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import urlsplit

from dkgp.errors import DkgpError
from dkgp.plan.validation import found_environment
from dkgp_benchmarks.chaos.wire import Wire

_START_SECONDS = 60.0

End = Literal["killed", "cut off", "left", "died", "stayed"]


@dataclass
class Worker:
    """A worker process, with the seconds of its start and end on the cluster's clock, and how it ended."""

    name: str
    process: subprocess.Popen[bytes]
    wire: Wire
    started: float
    ended: float | None = None
    end: End = "stayed"


@dataclass
class TimeLine:
    """The course of a run: its workers, the starts of its command, and how long it took."""

    workers: list[Worker] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, end: str) -> int:
        """Workers that ended so."""
        return sum(worker.end == end for worker in self.workers)


class Members:
    """A scheduler and so many single-threaded workers; a context manager, which ends them all.

    Attributes
    ----------
    workers
        All that there ever were.
    scheduler_file
        What commands are to be given.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.workers: list[Worker] = []
        self.scheduler_file = folder / "scheduler.json"
        self._folder, self._begun = folder, time.perf_counter()
        self._environment = found_environment("dkgp_benchmarks")
        self._log = (folder / "cluster.log").open("wb")
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.scheduler_file))
        self._scheduler = self._start("scheduler", *options)
        try:
            until = time.monotonic() + _START_SECONDS
            while not self.scheduler_file.exists():
                if self._scheduler.poll() is not None or time.monotonic() > until:
                    raise DkgpError(f"the scheduler did not start; see '{folder / 'cluster.log'}'")
                time.sleep(0.05)
            address = urlsplit(json.loads(self.scheduler_file.read_text(encoding="utf-8"))["address"])
            self._address = (str(address.hostname), int(address.port or 0))
            for _ in range(count):
                self.join()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Members:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """The time on the cluster's clock."""
        return time.perf_counter() - self._begun

    @property
    def alive(self) -> list[Worker]:
        """Workers that run; ends that nobody asked for are noted."""
        for worker in self.workers:
            if worker.ended is None and worker.process.poll() is not None:
                self._ended(worker, "died")
        return [worker for worker in self.workers if worker.ended is None]

    def join(self) -> Worker:
        """Start another worker."""
        name, wire = f"worker-{len(self.workers)}", Wire(self._address)
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--name", name, "--death-timeout", "10")
        preload = ("--preload", "dkgp.operators.preload")
        process = self._start(
            "worker", f"tcp://127.0.0.1:{wire.port}", *options, *preload, "--local-directory", str(self._folder / name)
        )
        self.workers.append(Worker(name, process, wire, self.seconds))
        return self.workers[-1]

    def settle(self) -> None:
        """Wait until all workers have joined, by what they write.

        Raises `DkgpError` where one does not within a minute.
        """
        log, until = self._folder / "cluster.log", time.monotonic() + _START_SECONDS
        while log.read_bytes().count(b"Registered to:") < len(self.workers):
            if time.monotonic() > until or len(self.alive) < len(self.workers):
                raise DkgpError(f"a worker did not join; see '{log}'")
            time.sleep(0.05)

    def kill(self, worker: Worker) -> None:
        """End a worker without a word: kill -9."""
        worker.process.kill()
        self._ended(worker, "killed")

    def cut(self, worker: Worker) -> None:
        """Cut a worker's connections to the scheduler; dask's workers end on that."""
        worker.wire.cut()
        self._ended(worker, "cut off")

    def send_away(self, worker: Worker) -> None:
        """Ask a worker to leave, as a cluster that grows smaller does: it hands over what it holds."""
        worker.process.send_signal(signal.SIGTERM)
        self._ended(worker, "left")

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
            worker.wire.cut()
            if worker.ended is None:
                worker.ended = self.seconds
        self._scheduler.kill()
        self._scheduler.wait()
        self._log.close()

    def _ended(self, worker: Worker, end: End) -> None:
        worker.ended, worker.end = self.seconds, end

    def _start(self, role: str, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "dask", role, *options],
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # a terminal's Ctrl-C is for this process alone
        )
