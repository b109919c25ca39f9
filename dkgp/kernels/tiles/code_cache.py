"""Compiled code that is kept on disk, and dropped when any source that it was made of has changed.

Numba keeps compiled code beside a function's file and checks that file alone, while the code also holds functions that
were inlined from other files. Here the stamp on kept code covers all files of `dkgp.kernels` and the function's own, so
that an upgrade never runs loops with the arithmetic of the version before. Every compiled function of dkgp is decorated
with `dkgp.kernels.compiler.cached_njit`, which imports this module when a function is first used.

Any number of processes may fill one cache. While one of them compiles a function the others wait, and read it: so
helpers can compile ahead of a run in the background. A folder that was filled beforehand
(`dkgp.kernels.tiles.kept_code`) is read first and never written.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from numba import cfunc, njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

from dkgp.forks import fork_safe
from dkgp.kernels.compiler import prepare
from dkgp.kernels.tiles.kept_code import describe, kept_folder

# Much more than one function takes to compile, on a busy machine too: a process that holds a place for longer has
# failed, and the others compile for themselves.
_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.02
_LOCK_FILE = "dkgp.lock"


def _stamp_of_sources() -> str:
    digest = hashlib.sha256()
    # The whole layer: nothing else records the code that is inlined from one file into another.
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


SOURCES_STAMP = _stamp_of_sources()
# Now: the first compiled function settles which processor this process compiles for.
FILLED_FOLDER = kept_folder(SOURCES_STAMP)


class _Places:
    """Places in one folder's cache that one process at a time may be at: bytes of a file, locked.

    Such locks end with their process, and network file systems know them. A process holds one descriptor for good:
    closing any other of the same file would let go of its locks. Where a file system has no locks nobody waits.
    """

    _of_folder: ClassVar[dict[str, _Places]] = {}
    _lock: ClassVar[threading.Lock] = fork_safe(threading.Lock())

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._file = os.open(os.path.join(folder, _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._process = os.getpid()

    @classmethod
    def of(cls, folder: str) -> _Places | None:
        """The folder's; None where nothing can be written."""
        with cls._lock:
            places = cls._of_folder.get(folder)
            if places is None or places._process != os.getpid():
                try:
                    places = cls._of_folder[folder] = cls(folder)
                except OSError:
                    return None
            return places

    def take(self, name: str) -> bool:
        """Wait for a place; return True if another process had it meanwhile."""
        place, deadline, waited = self._number(name), time.monotonic() + _WAIT_SECONDS, False
        while time.monotonic() < deadline:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                waited = True
                time.sleep(_POLL_SECONDS)
            except OSError:
                break
            else:
                break
        return waited

    def leave(self, name: str) -> None:
        """Let the next one in."""
        with suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._number(name))

    @staticmethod
    def _number(name: str) -> int:
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") % 2**40


class _SharedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """A function's files, whose index several processes may write: none loses another's entry, or takes its name."""

    def save(self, key: Any, data: Any) -> None:
        with self._alone():
            super().save(key, data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        places = _Places.of(self._cache_path)
        if places is None:
            yield
            return
        places.take(self._index_name)
        try:
            yield
        finally:
            places.leave(self._index_name)


class _KeptCode(FunctionCache):  # type: ignore[misc]
    """Numba's cache of one function's code, shared between processes, behind the folder filled beforehand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        base, source = self._impl.filename_base, Path(inspect.getfile(function))
        # Content alone: the time of a file is another one in every layer of an image.
        stamp = (hashlib.sha256(source.read_bytes()).hexdigest(), SOURCES_STAMP)
        self._cache_file = _SharedFiles(self._cache_path, base, stamp)
        self._filled: IndexDataCacheFile | None = None
        if FILLED_FOLDER is not None:
            path = FILLED_FOLDER / self._impl.locator.get_suitable_cache_subpath(str(source))
            self._filled = IndexDataCacheFile(str(path), base, stamp)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        key = self._index_key(sig, target_context.codegen())
        if self._filled is not None:
            data = self._filled.load(key)
            if data is not None:
                return self._impl.rebuild(target_context, data)
        data = self._cache_file.load(key)
        if data is None:
            places = _Places.of(self._cache_path)
            # Held until it is saved; released at once where another process has saved it.
            if places is not None and places.take(self._place(sig)):
                data = self._cache_file.load(key)
                if data is not None:
                    places.leave(self._place(sig))
        return None if data is None else self._impl.rebuild(target_context, data)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        finally:
            places = _Places.of(self._cache_path)
            if places is not None:
                places.leave(self._place(sig))

    def _place(self, sig: Any) -> str:
        return f"{self._impl.filename_base} {sig}"


def kept_njit(function: Callable[..., Any], **options: Any) -> Any:
    """Return `numba.njit` of a function, with a cache on disk; see `dkgp.kernels.compiler.cached_njit`."""
    dispatcher = njit(**options)(function)
    _keep(dispatcher, function)
    return dispatcher


def c_function(
    function: Callable[..., Any],
    signature: Any,
    *,
    cache: bool = True,
    inner: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Compile `function` to a C function; `.address` is valid as long as the result lives.

    A closure around `inner` is kept on disk under the file and name of `inner`.
    """
    prepare()
    if not cache:
        return cfunc(signature, **options)(function)
    if inner is not None:
        # Symbols of code that several processes kept must not depend on the order in which one of them compiled.
        function.__module__, function.__qualname__ = inner.__module__, f"{inner.__qualname__}.{function.__name__}"
    compiled = CFunc(function, normalize_signature(signature), locals={}, options=options)
    _keep(compiled, inner or function)
    compiled.compile()
    return compiled


def is_stamped(dispatcher: Any) -> bool:
    """True if a compiled function's cache notices changes in the files of the compiled kernels."""
    stamp = getattr(getattr(getattr(dispatcher, "_cache", None), "_cache_file", None), "_source_stamp", None)
    return isinstance(stamp, tuple) and stamp[1] == SOURCES_STAMP


def describe_here(target: str) -> str:
    """Description, as JSON, of a folder that this process has filled for `target`."""
    return json.dumps(describe(target, SOURCES_STAMP), indent=2)


def _keep(compiled: Any, function: Callable[..., Any]) -> None:
    # Where there is no folder that this process may write to, it compiles for itself alone.
    with suppress(RuntimeError):
        compiled._cache = _KeptCode(function)


def _nothing() -> None:
    """Has a place in the cache, and tells where that is."""


def cache_folder() -> Path | None:
    """The folder that this process keeps compiled code of this package in; None where there is none to write to."""
    with suppress(RuntimeError):
        return Path(_KeptCode(_nothing).cache_path)
    return None
