"""`dkgp serve` as a process of its own and in a thread, and a small problem for its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import psutil
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import write_friedman1
from dkgp.service import serve
from dkgp.service.running.supervisor import Supervisor
from dkgp.service.settings import ServiceSettings
from tests.problem import Stored, write_hyper
from tests.service.stage import TOKEN

END_SECONDS = 120.0


@dataclass
class ServiceProcess:
    """A service that runs, and a client that shows its token."""

    process: subprocess.Popen[str]
    started: dict[str, Any]
    client: httpx.Client

    @property
    def url(self) -> str:
        return str(self.started["url"])

    def stop(self) -> tuple[int, str, str]:
        """Ask it to end; return its exit code and what else it printed."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, out, err


@contextlib.contextmanager
def service_process(folder: Path, root: Path, *options: str, token: str | None = TOKEN) -> Iterator[ServiceProcess]:
    """Start a service on a free port; what is left of it is ended with the context."""
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        **({} if token is None else {"DKGP_SERVICE_TOKEN": token}),
    }
    command = [sys.executable, "-m", "dkgp", "serve", "--folder", folder, "--root", root, "--port", "0", *options]
    process = subprocess.Popen(
        [str(part) for part in (*command, "--cluster", "none", "--json")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=END_SECONDS)[1])
        started = json.loads(line)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=started["url"], headers=headers, timeout=END_SECONDS, trust_env=False) as client:
            yield ServiceProcess(process, started, client)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        # A job's process outlives its service.
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line_of = other.cmdline()
                if "dkgp.service.running.runner" in line_of and str(folder) in line_of:
                    other.kill()


@contextlib.contextmanager
def service_here(settings: ServiceSettings) -> Iterator[str]:
    """Serve as `dkgp serve` does, in a thread of this process; yields the address. No job is started."""
    servers, addresses, make = list[Any](), Queue[str](), serve._server

    def made(*parts: Any) -> Any:
        servers.append(make(*parts))
        return servers[-1]

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as threads:
        patch.setattr(serve, "_server", made)
        patch.setattr(Supervisor, "start", lambda _: None)
        told = {"on_listening": lambda started: addresses.put(started["url"])}
        ended = threads.submit(serve.run_serve, settings, SilentReporter(), **told)
        ended.add_done_callback(lambda _: addresses.put(""))
        try:
            yield addresses.get(timeout=END_SECONDS) or str(ended.result())
        finally:
            for server in servers:
                server.should_exit = True
            ended.result(END_SECONDS)


def small_problem(folder: Path, n: int = 2000) -> dict[str, Any]:
    """Write a data set and hyperparameters; return a training job's options, of several dozen short rounds."""
    write_friedman1(folder / "train.zarr", None, n, seed=1)
    write_hyper(folder / "hyper.json", [0.1] * 5 + [0.01] * 5, 0.01)
    return Stored(folder).training(folder / "model.zarr", solver={"block_size": 100, "tolerance": 1e-3})
