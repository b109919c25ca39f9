"""Limits to the folders that a process may touch, held where a file is opened and not only where its name is checked.

Between a check of a name and its use somebody else may put a link in the place of a file, or of a folder on the way.
So the file is opened first, and the system is asked where the open file lies: a file that is read is refused before a
byte of it is used, and a file that is written, replaced or removed is named by its open folder, which stays the same
folder even if its name is exchanged. Where there are no limits nothing is asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from dkgp.errors import StorageError

_OPEN_FILES = "/proc/self/fd"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Limits(NamedTuple):
    """Folders, by names without links; `excluded` folders do not belong to `folders`."""

    folders: tuple[str, ...]
    # The process's own: it may name files there, and no other name may lead there.
    excluded: tuple[str, ...] = ()

    def require(self, real: str, name: str) -> None:
        """Refuse a file or folder outside; `StorageError`. `name` is the name that it was opened by."""
        if _below(name, self.excluded):
            return
        allowed, temporary = self.folders, os.path.abspath(tempfile.gettempdir())
        if _below(name, (temporary,)) and not _below(name, self.folders):
            # Of dkgp's own making, such as tiles that outgrow memory.
            allowed = (*allowed, os.path.realpath(temporary))
        if not _below(real, allowed) or _below(real, self.excluded):
            raise StorageError(
                f"'{name}' leads outside the folders that this process may touch ({', '.join(self.folders)}): a "
                "symbolic link, or a folder on its way, was exchanged since it was checked. Nothing was read or "
                "written there; put the place back, or choose another."
            )


_of_process: list[Limits] = []
# Limits of a task that a worker runs for a client: of this task alone, since others use the process as well.
_of_task: ContextVar[tuple[Limits, ...]] = ContextVar("limits", default=())


def active() -> tuple[Limits, ...]:
    """The limits that hold here; picklable, so that a worker's tasks keep to the limits of their client."""
    return tuple(dict.fromkeys((*_of_process, *_of_task.get())))


@contextmanager
def limited_to(*limits: Limits) -> Iterator[None]:
    """Hold all threads of this process to limits, besides those that it has."""
    _of_process.extend(limits)
    try:
        yield
    finally:
        for limit in limits:
            _of_process.remove(limit)


@contextmanager
def task_limited_to(limits: tuple[Limits, ...]) -> Iterator[None]:
    """Hold this thread, within the block, to limits besides those of the process."""
    before = _of_task.set(limits)
    try:
        yield
    finally:
        _of_task.reset(before)


def open_local(path: str | os.PathLike[str]) -> BinaryIO:
    """A local file to read; `StorageError` where it lies outside the limits."""
    file = cast(BinaryIO, open(path, "rb"))  # noqa: SIM115
    try:
        require_within(file.fileno(), path)
    except BaseException:
        file.close()
        raise
    return file


def require_within(handle: int, path: str | os.PathLike[str]) -> None:
    """Refuse an open file that lies outside the limits; `StorageError`."""
    if limits := active():
        real = _place_of(handle, path)
        for limit in limits:
            limit.require(real, os.path.abspath(path))


@contextmanager
def in_open_folder(path: Path, *, make: bool = False) -> Iterator[Path]:
    """The path of a file by its folder as it is now, which is kept open: it stays within the limits.

    With `make` a folder that is missing is made. `StorageError` outside the limits. A link in the file's own place is
    for the caller not to follow. Where there are no limits, or the system has no names of open files, the path itself.
    """
    if not active():
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield path
        return
    handle = _open_folder(os.path.abspath(path.parent), make)
    try:
        place = Path(_OPEN_FILES, str(handle))
        yield (place if place.exists() else path.parent) / path.name
    finally:
        os.close(handle)


def _open_folder(folder: str, make: bool) -> int:
    try:
        handle = os.open(folder, _FOLDER)
    except FileNotFoundError:
        if not make:
            raise
        # Each within the one above that is held: so none is made elsewhere.
        above, name = os.path.split(folder)
        holder = _open_folder(above, make)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=holder)
            handle = os.open(name, _FOLDER, dir_fd=holder)
        finally:
            os.close(holder)
    try:
        require_within(handle, folder)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _place_of(handle: int, path: str | os.PathLike[str]) -> str:
    """The place of an open file or folder by the system's own record; without one, by its name."""
    try:
        return os.readlink(f"{_OPEN_FILES}/{handle}")
    except OSError:
        pass
    # macOS has no such folder, but this.
    get_path: int | None = getattr(fcntl, "F_GETPATH", None)
    if get_path is None:
        return os.path.realpath(path)
    return os.fsdecode(fcntl.fcntl(handle, get_path, bytes(1024)).rstrip(b"\0"))


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
