"""`dkgp serve` as a process of its own, on a small problem, to be killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import dkgp
from dkgp.service.client import ServiceClient

TOKEN = "a-token-for-tests-of-faults"
START_SECONDS = 120.0
# What a job may take beside all the others on a busy machine.
JOB_SECONDS = 240.0

Document = dict[str, Any]


def dkgp_environment() -> dict[str, str]:
    """The environment of a dkgp process: this checkout, one BLAS thread, no proxy of the test machine's own."""
    package = str(Path(dkgp.__file__).resolve().parents[1])
    chosen = {"PYTHONPATH": package, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **chosen, "DKGP_SERVICE_TOKEN": TOKEN}


def dkgp_process(*arguments: object) -> subprocess.Popen[str]:
    """Start a dkgp command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "dkgp", *map(str, arguments)],
        env=dkgp_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def dkgp_command(*arguments: object) -> Document:
    """Run a dkgp command in a process of its own; return its document, whatever its exit code."""
    process = dkgp_process(*arguments, "--json", "--quiet")
    printed, said = process.communicate(timeout=JOB_SECONDS)
    try:
        document: Document = json.loads(printed)
    except ValueError:
        raise AssertionError(f"{arguments}: {process.returncode}\n{printed}\n{said}") from None
    return document


def until(condition: Callable[[], Any], what: str, seconds: float = JOB_SECONDS) -> Any:
    """Ask again and again until there is an answer; return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


@dataclass
class ServiceProcess:
    """One service on a queue's folder; every start after the first takes the port of the first."""

    folder: Path
    root: Path
    options: tuple[object, ...] = ()
    name: str = "service"
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    _starts: int = field(default=0, init=False)

    @property
    def url(self) -> str:
        """Address of the service."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """File with the output of its latest process."""
        return self.root / f"{self.name}-{self._starts}.log"

    def start(self) -> None:
        """Start it; return once it answers."""
        self._starts += 1
        command = [sys.executable, "-m", "dkgp", "serve", "--folder", self.folder, "--port", self.port]
        command += ["--root", self.root, "--cluster", "none", *self.options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], env=dkgp_environment(), stdout=log, stderr=subprocess.STDOUT
            )
        found = until(self._address, f"{self.name} prints its address", START_SECONDS)
        self.port = int(found)
        with self.client() as client:
            client.service()

    def _address(self) -> str | None:
        text = self.log.read_text()
        assert self.process.poll() is None, f"the service ended with {self.process.returncode}\n{text}"
        match = re.search(r"http://127\.0\.0\.1:(\d+)", text)
        return match and match[1]

    def client(self, retry_seconds: float = START_SECONDS) -> ServiceClient:
        """A client of it."""
        return ServiceClient(self.url, token=TOKEN, retry_seconds=retry_seconds)

    def end(self, number: signal.Signals) -> int:
        """Send it a signal; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=JOB_SECONDS)

    def runners(self, job_id: str = "") -> list[psutil.Process]:
        """The processes that run jobs of its queue, or one of the jobs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if "dkgp.service.running.runner" in line and str(self.folder) in line and job_id in " ".join(line):
                    found.append(process)
        return found

    def events(self, job_id: str) -> list[Document]:
        """The job's events as they lie on the disk; a torn last line is none."""
        try:
            lines = (self.folder / "jobs" / job_id / "events.jsonl").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def kinds(self, job_id: str) -> list[str]:
        """The kinds of the job's events, in order."""
        return [event["kind"] for event in self.events(job_id)]

    def clean_up(self) -> None:
        """End everything that this service or its jobs left running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for runner in self.runners():
            with contextlib.suppress(psutil.Error):
                runner.kill()
                runner.wait(timeout=10)


@contextlib.contextmanager
def service_on(folder: Path, root: Path, *options: object, name: str = "service") -> Iterator[ServiceProcess]:
    """A service that runs; what it leaves is ended with the context."""
    service = ServiceProcess(folder, root, options, name)
    try:
        service.start()
        yield service
    finally:
        service.clean_up()
