"""Memory of a job's processes on this machine, and of this machine.

All processes of the job's session count: it begins with the job's process, and its workers are born into it. Workers of
a scheduler elsewhere are not the service's to count; they have limits of their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

# Of what this machine has: the rest is the service's and the system's.
SHARE_OF_JOBS = 0.9
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# What cannot be had back by dropping caches.
_HELD = ("Pss_Anon:", "Pss_Shmem:")


def machine_bytes(files: Iterable[str] = _GROUPS) -> int:
    """Return this machine's memory, or its container's limit (of a control group) where that is less."""
    total = int(psutil.virtual_memory().total)
    for name in files:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text()))
    return total


def session_bytes(leaders: Collection[int]) -> dict[int, int]:
    """Return the bytes of memory that the processes of each session take, by its leader's process id.

    Resident pages first, which is quick; `held_bytes` counts exactly.
    """
    taken = dict.fromkeys(leaders, 0)
    for pid, leader in _members(taken):
        with contextlib.suppress(psutil.Error):
            taken[leader] += psutil.Process(pid).memory_info().rss
    return taken


def held_bytes(leader: int) -> int:
    """Return the bytes that a session's processes hold, pages that several share counted once, caches of files not.

    Where the system does not tell (none but Linux does), resident pages.
    """
    return sum(_held(pid) for pid, _ in _members({leader: 0}))


def _members(leaders: Collection[int]) -> Iterable[tuple[int, int]]:
    if not leaders:
        return
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            leader = os.getsid(pid)
            if leader in leaders:
                yield pid, leader


def _held(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        figures = [int(line.split()[1]) * 1024 for line in lines if line.startswith(_HELD)]
    except (OSError, ValueError, IndexError):
        figures = []
    if figures:
        return sum(figures)
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
