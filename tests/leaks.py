"""Leaks that tests must not cause: processes, threads, listening ports, open files, temporary files.

A room's conftest takes the fixtures: `from tests.leaks import no_module_leaks as no_module_leaks` and so on.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

# How long what was ended may take to go.
SECONDS = 60.0
# Threads that a library starts once in a process, and keeps for whoever comes next: by the beginning of their names.
KEPT_THREADS = (
    "Dask-Offload",  # distributed's pool for what would hold up its loop
    "Dask-Callback",  # and that for what is called when a future is done
    "dkgp-helper",  # dkgp's one pool for BLAS beside compiled loops
    "IO loop",  # the loop of all clients of this process
    "Profile",  # distributed's sampler of this process
    "asyncio_",  # the loop's pool for blocking calls
    "fsspecIO",  # fsspec's own loop
    "zarr_io",  # zarr's
    "zarr_pool",
    "Thread-",  # tornado's waker and numba's, which have no name of their own; they are counted instead
)
MOST_NAMELESS = 3
# Of executors that a module's tests share, started when there is something to do: looked for when the module is done.
SHARED_THREADS = ("dkgp-block", "Dask-Default-Threads")
# Python's own, which ends with this process.
KEPT_PROCESSES = ("resource_tracker", "forkserver")
# Pipes of the loops above, and modules' files that were opened for the first time.
MOST_DESCRIPTORS = 24


@dataclass(frozen=True)
class Held:
    """All that this process holds that outlives a test if nobody lets it go."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    ports: frozenset[tuple[str, int]]
    descriptors: int

    @classmethod
    def now(cls) -> Held:
        own = psutil.Process()
        ports = {
            (str(connection.laddr.ip), int(connection.laddr.port))
            for connection in own.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        processes = {child.pid for child in own.children(recursive=True) if _counts(child)}
        return cls(frozenset(processes), frozenset(threading.enumerate()), frozenset(ports), own.num_fds())


def _counts(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and not any(name in line for name in KEPT_PROCESSES)
    except psutil.NoSuchProcess:
        return False


def complaints(before: Held, after: Held, shared: tuple[str, ...] = ()) -> list[str]:
    """Return the leaks in words; threads of pools whose names contain one of `shared` are allowed.

    One in the place of another that has gone is none: a cluster that a module's tests share replaces its workers.
    """
    gone = Counter(thread.name for thread in before.threads if not thread.is_alive())
    new = [thread for thread in after.threads - before.threads if thread.is_alive()]
    new = [thread for thread in new if not any(name in thread.name for name in shared)]
    named = list((Counter(thread.name for thread in new if not thread.name.startswith(KEPT_THREADS)) - gone).elements())
    nameless = [thread.name for thread in new if thread.name.startswith("Thread-")]
    words = []
    processes = after.processes - before.processes
    if len(after.processes) > len(before.processes):
        words.append(f"processes {[(pid, _line(pid)) for pid in sorted(processes)]}")
    if named or len(nameless) > MOST_NAMELESS:
        words.append(f"threads {sorted(named) + sorted(nameless)}")
    if ports := after.ports - before.ports:
        words.append(f"listening ports {sorted(ports)}")
    if after.descriptors > before.descriptors + MOST_DESCRIPTORS:
        words.append(f"{after.descriptors - before.descriptors} open files more")
    return words


def _line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[-200:]
    except psutil.NoSuchProcess:
        return "gone"


@pytest.fixture(scope="module", autouse=True)
def no_module_leaks() -> Iterator[None]:
    """Compare what is held before and after a module's tests, what they share included."""
    before = Held.now()
    yield
    _require_nothing(lambda: complaints(before, Held.now()))


@pytest.fixture(autouse=True)
def nothing_leaks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare what is held before and after a test, and look what is left of its temporary files."""
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = Held.now()
    yield
    _require_nothing(lambda: _left(before, scratch))


def _require_nothing(looks: Callable[[], list[str]]) -> None:
    """Wait for what is on its way, and collect what hangs in a cycle where there is something: that takes a second."""
    until = time.monotonic() + SECONDS
    while (words := looks()) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.1)
    assert not words, f"left behind: {'; '.join(words)}"


def _left(before: Held, scratch: Path) -> list[str]:
    words = complaints(before, Held.now(), SHARED_THREADS)
    if files := sorted(str(path.relative_to(scratch)) for path in scratch.rglob("*") if not _empty(path)):
        words.append(f"temporary files {files[:10]}")
    return words


def _empty(path: Path) -> bool:
    """True for a folder: dask's own of a process stays, empty or with locks of nobody."""
    return path.is_dir() or path.suffix in {".lock", ".dirlock"} or not os.path.lexists(path)
