"""The services of docker-compose.yml as processes of this machine: their own commands, in the same wiring.

Read from the file, not copied: commands, entry points, environments, secrets, the order of starting, and the health
checks. Replaced: names by 127.0.0.1, ports by free ones, mount points by folders, the S3 store by moto's server.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.deploy.deployment import DEPLOY, IMAGE, ROOT, compose
from tests.s3 import S3Server

__all__ = ["Wiring", "free_ports"]

START_SECONDS = 180.0
COMMAND_SECONDS = 300.0
PORTS = (8780, 8786, 8787, 8788)

# What the image has on its PATH, for commands to be started as they are written.
_PROGRAMS = {
    "tini": 'shift\nexec "$@"',
    "dkgp": f'exec "{sys.executable}" -m dkgp "$@"',
    "dask": f'exec "{sys.executable}" -m dask "$@"',
    "python": f'exec "{sys.executable}" "$@"',
    "dkgp-health": f'exec "{sys.executable}" "{DEPLOY / "healthcheck.py"}"',
}


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass
class Wiring:
    """The project, started service by service.

    Parameters
    ----------
    folder
        For logs, secrets and what the containers mount.
    server
        In the store's place.
    workers
        As `--scale worker=N`.
    settings
        Variables of docker-compose.yml.
    """

    folder: Path
    server: S3Server
    workers: int
    settings: dict[str, str]
    services: dict[str, dict[str, Any]] = field(init=False)
    ports: dict[int, int] = field(init=False)
    processes: dict[str, subprocess.Popen[bytes]] = field(init=False, default_factory=dict)
    _worker_ports: list[int] = field(init=False)

    def __post_init__(self) -> None:
        made = subprocess.run(
            ["sh", DEPLOY / "compose" / "make-secrets", self.folder / "secrets", self.folder / "env"],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        group = dict(line.split("=") for line in (self.folder / "env").read_text().split())
        self.services = compose({**group, **self.settings})["services"]
        *shared, _ = free_ports(len(PORTS))
        self.ports = dict(zip(PORTS, [*shared, 0], strict=True))
        self._worker_ports = free_ports(self.workers)
        for name in ("bin", "data", "home", "queue", "tmp"):
            (self.folder / name).mkdir()
        for name, script in _PROGRAMS.items():
            (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.folder / "bin" / name).chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # ------------------------------------------------------------------------------------------------------- starting

    def start(self) -> None:
        """Start what `docker compose up` starts, each when what it depends on is as it should be."""
        started = {"store"}
        waiting = [n for n, s in self.services.items() if "profiles" not in s and n not in started]
        while waiting:
            ready = [n for n in waiting if self.services[n].get("depends_on", {}).keys() <= started]
            assert ready, f"{waiting} wait for each other"
            for name in ready:
                self._start(name)
                started.add(name)
                waiting.remove(name)

    def _start(self, name: str) -> None:
        for replica in range(self.workers if name == "worker" else 1):
            label = f"{name}-{replica}" if name == "worker" else name
            arguments, environment = self.command(name, replica=replica), self.environment(name, replica=replica)
            with (self.folder / f"{label}.log").open("wb") as log:
                self.processes[label] = subprocess.Popen(
                    arguments, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
                )
            if self.services[name]["restart"] == "on-failure":
                assert self.processes[label].wait(START_SECONDS) == 0, self.log(label)
                del self.processes[label]
            else:
                self.wait_until(
                    lambda label=label, env=environment: self._is_healthy(label, env), f"{label} is healthy"
                )

    def _is_healthy(self, label: str, environment: dict[str, str]) -> bool:
        assert self.processes[label].poll() is None, f"{label} ended:\n{self.log(label)}"
        assert "DKGP_HEALTH_URL" in environment
        return subprocess.run(["dkgp-health"], env=environment, capture_output=True).returncode == 0

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {START_SECONDS:.0f} s: {what}"
            time.sleep(0.2)

    def log(self, label: str) -> str:
        return (self.folder / f"{label}.log").read_text(errors="replace")

    # ----------------------------------------------------------------------------------------------------- in its place

    def command(self, name: str, *more: str, replica: int = 0) -> list[str]:
        """The service's command line; `more` in the place of its command, as `docker compose run` does."""
        service = self.services[name]
        assert service["image"] == IMAGE
        entry_point = service.get("entrypoint", ["tini", "--"])
        return [self.here(word, name, replica) for word in [*entry_point, *(more or service["command"])]]

    def environment(self, name: str, replica: int = 0) -> dict[str, str]:
        """Return the service's environment variables, and those of any process."""
        service = self.services[name]
        own = {key: self.here(value, name, replica) for key, value in service.get("environment", {}).items()}
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder / "home"),
            "DASK_TEMPORARY_DIRECTORY": str(self.folder / "tmp"),
            "no_proxy": "*",
            **own,
        }

    def here(self, word: str, name: str, replica: int = 0) -> str:
        """A word of the file with this machine's names, ports and folders; only secrets that the service is given."""
        service = self.services[name]
        for secret in re.findall(r"/run/secrets/([\w-]+)", word):
            assert secret in service["secrets"], f"{name} is not given {secret}"
        # First, since this test's own folder may lie below /tmp too.
        word = re.sub(r"^/tmp/", f"{self.folder}/tmp/{name}-{replica}-", word)
        word = word.replace("/run/secrets", str(self.folder / "secrets"))
        for volume in service.get("volumes", []):
            source, mount, *_ = volume.split(":")
            if source.startswith("./deploy/"):
                # Where containers of an image see it, too.
                file = self.folder / Path(source).name
                if (ROOT / source).is_file() and not file.exists():
                    shutil.copy(ROOT / source, file)
                word = word.replace(mount, str(file))
                continue
            word = re.sub(rf"^{mount}(?=/|$)", str(self.folder / ("data" if mount == "/data" else "queue")), word)
        # The store in its place lets everybody do everything: it has no users.
        word = word.replace("http://store:9000", self.server.endpoint).replace("/rustfs/admin/v3", "")
        ports = {**self.ports, 8788: self._worker_ports[replica]}
        for other in self.services:
            if set(self.services[other]["networks"]) & set(service["networks"]):
                word = re.sub(rf"(?<=//){other}(?=:\d+$)", "127.0.0.1", word)
        word = re.sub(r"(?:(?<=:)|(?<=^))(\d{4})(?=/|$)", lambda m: str(ports.get(int(m[1]), m[1])), word)
        # What listens at every address of its container listens at this machine's loopback alone.
        return re.sub(r"^(?:0\.0\.0\.0$|(?=:\d+$))", "127.0.0.1", word)

    # --------------------------------------------------------------------------------------------------------- working

    def run(self, *arguments: str) -> str:
        """`docker compose run --rm dkgp ARGUMENTS`: what it prints."""
        ran = subprocess.run(
            self.command("dkgp", *arguments),
            env=self.environment("dkgp"),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        logs = "".join(f"\n--- {label}\n{self.log(label)[-3000:]}" for label in self.processes)
        assert ran.returncode == 0, f"dkgp {' '.join(arguments)}: {ran.returncode}\n{ran.stdout}{ran.stderr}{logs}"
        return ran.stdout

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Give this process the environment of a one-off command, to read what was written."""
        before = dict(os.environ)
        for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
            del os.environ[name]
        os.environ.update({k: v for k, v in self.environment("dkgp").items() if k.startswith(("AWS_", "no_proxy"))})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def stop(self) -> dict[str, int]:
        """`docker compose down`: SIGTERM to all, the last one first; the codes that they leave with."""
        codes = {}
        for label in reversed(list(self.processes)):
            process = self.processes[label]
            process.send_signal(signal.SIGTERM)
            codes[label] = process.wait(START_SECONDS)
        return codes
