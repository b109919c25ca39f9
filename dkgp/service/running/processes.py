"""A job's processes as others see them: the files that they leave, their standard error, and their memory.

`process.json` names the process, with the time it began, so that a process id that another process has by now is not
mistaken for it. `log.txt` has the output of the process and its children; a thread makes events of its lines.

All processes of the job's session count towards its memory: the session begins with the job's process, and its workers
are born into it. Workers of a scheduler elsewhere are not the service's to count; they have limits of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Self

import psutil

POLL_SECONDS = 0.25
# Beyond this the log begins anew, and the earlier lines are kept once, as log.old.txt.
LARGEST_LOG_BYTES = 4 * 1024**2
LONGEST_LINE_BYTES = 4000
MOST_LINES = 5000


def write_process_file(folder: Path, attempt: int) -> None:
    """Name this process as the one that runs the job."""
    content = {"pid": os.getpid(), "began": psutil.Process().create_time(), "attempt": attempt}
    temporary = folder / "process.json.new"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(folder / "process.json")


def has_process_file(folder: Path, attempt: int) -> bool:
    """True if a process began to run this attempt."""
    process = _process(folder)
    return process is not None and process["attempt"] == attempt


def process_id(folder: Path, attempt: int) -> int | None:
    """Return the process that runs this attempt; None where it is not there, or not there yet."""
    record = _process(folder)
    if record is None or record["attempt"] != attempt:
        return None
    try:
        process = psutil.Process(int(record["pid"]))
        return process.pid if process.create_time() == record["began"] else None
    except psutil.Error:
        return None


def send_signal(folder: Path, attempt: int, number: signal.Signals) -> bool:
    """Send a signal to the process that runs this attempt; False where it is not there, or not there yet."""
    pid = process_id(folder, attempt)
    try:
        if pid is not None:
            psutil.Process(pid).send_signal(number)
    except psutil.Error:
        return False
    return pid is not None


def last_lines(path: Path, n_bytes: int = 2000) -> str:
    """Return the end of a log, whole lines where there are any."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - n_bytes))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _process(folder: Path) -> dict[str, float] | None:
    try:
        record: dict[str, float] = json.loads((folder / "process.json").read_bytes())
    except (OSError, ValueError):
        return None
    return record


class LogTail:
    """Sends this process's output to a file, C libraries and child processes included, and follows that file.

    It is a file and no pipe: output before the process was killed is not lost. `on_line` is called with
    each line, from a thread.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self._path, self._on_line = path, on_line
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="dkgp-log", daemon=True)
        self._offset, self._rest, self._lines = 0, b"", 0

    def __enter__(self) -> Self:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._offset = os.fstat(handle).st_size
        for standard in (1, 2):
            os.dup2(handle, standard)
        os.close(handle)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(POLL_SECONDS)
            # A full disk must not end the thread.
            with contextlib.suppress(OSError):
                self._read()
        if self._rest:
            self._tell(self._rest)

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while piece := file.read(1024**2):
                self._offset += len(piece)
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    self._tell(line)
                if len(self._rest) > LONGEST_LINE_BYTES:
                    self._tell(self._rest)
                    self._rest = b""
        if self._offset > LARGEST_LOG_BYTES:
            shutil.copyfile(self._path, self._path.with_name("log.old.txt"))
            # Processes that append go on at the new end.
            os.truncate(self._path, 0)
            self._offset = 0

    def _tell(self, line: bytes) -> None:
        self._lines += 1
        text = line[:LONGEST_LINE_BYTES].decode(errors="replace").rstrip()
        if self._lines < MOST_LINES and text:
            self._on_line(text)
        elif self._lines == MOST_LINES:
            self._on_line("more lines are only in the job's log.txt")


# Share of this machine's memory: the rest is for the service and the system.
SHARE_OF_JOBS = 0.9
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Pages that dropping caches does not free.
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
