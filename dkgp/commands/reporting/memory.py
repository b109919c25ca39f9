"""Peak memory of this process and of its child processes, in bytes."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil

# A sample reads a few files of this process and of each child, so its cost is far below a thousandth of a core.
SAMPLING_SECONDS = 1.0


def own_peak_bytes() -> int:
    """Return the largest resident set of this process since its start, in bytes.

    It is read from /proc if possible, because `getrusage` includes the parent's memory at the start of this process.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def available_bytes() -> int:
    """Return the memory available on this machine without swapping, in bytes."""
    return int(psutil.virtual_memory().available)


def memory_budget(limit_bytes: int | None = None) -> tuple[int, int]:
    """Return this process's bytes, and the limit of all processes on this machine: the given one, or free memory."""
    resident_bytes = int(psutil.Process().memory_info().rss)
    return resident_bytes, limit_bytes or resident_bytes + available_bytes()


class PeakMemory:
    """Context manager that tracks the resident sets of this process and all its descendants.

    Shared pages count once for each process, so the figure is an upper estimate with worker processes.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._had_children = False
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dkgp-memory", daemon=True)

    @property
    def bytes(self) -> int:
        """The peak so far, in bytes."""
        self._sample()
        # The kernel knows a single process's peak exactly; for several processes, only samples can be added up.
        return max(self._peak if self._had_children else 0, own_peak_bytes())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._finished.wait(SAMPLING_SECONDS):
            self._sample()

    def _sample(self) -> None:
        sizes = list(_resident_bytes())
        self._had_children |= len(sizes) > 1
        self._peak = max(self._peak, sum(sizes))


def _resident_bytes() -> Iterator[int]:
    processes = [psutil.Process()]
    while processes:
        process = processes.pop()
        with contextlib.suppress(psutil.Error):
            yield int(process.memory_info().rss)
            processes += _children(process)


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Return the direct children; those of Linux without a walk over all processes of the machine."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        names = [name for task in tasks for name in (task / "children").read_text(encoding="ascii").split()]
    except OSError:  # another system, a kernel without these files, or a thread that ended meanwhile
        return list[psutil.Process](process.children())
    children = []
    for name in names:
        with contextlib.suppress(psutil.Error):
            children.append(psutil.Process(int(name)))
    return children
