"""Plug-ins of workers for these tests: one notes what runs where, one ends its worker after a while."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from distributed import WorkerPlugin

Key = tuple[Any, ...]


@dataclass
class Invocations(WorkerPlugin):
    """Notes each start of a task in a file of the worker's process, so that it outlives kill -9."""

    folder: str
    name: ClassVar[str] = "invocations"

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if finish == "executing":
            handle = os.open(f"{self.folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(handle, f"{key!r}\n".encode())
            os.close(handle)


def invocations(folder: Path) -> dict[Key, list[int]]:
    """Processes in which each task was begun, by what the task is: name, executor, round, index."""
    begun: dict[Key, list[int]] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            key = eval(line)
            if isinstance(key, tuple) and len(key) == 6:
                name, executor, number, _, index, _ = key
                begun.setdefault((name, executor, number, index), []).append(int(path.name))
    return begun


@dataclass
class Mortal(WorkerPlugin):
    """Ends its worker by a segmentation fault, after a time that is Poisson's: the same chance in each moment."""

    folder: str
    mean_seconds: float
    least_seconds: float = 1.5
    name: ClassVar[str] = "mortal"

    def setup(self, worker: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        lifetime = self.least_seconds + random.Random(worker.address).expovariate(1.0 / self.mean_seconds)
        timer = threading.Timer(lifetime, self.die)
        timer.daemon = True
        timer.start()

    def die(self) -> None:
        Path(self.folder, f"{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGSEGV)
