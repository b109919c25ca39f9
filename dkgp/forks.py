"""Locks, thread pools and temporary folders that a forked child process can use.

A fork copies the memory of a process and none of its threads but the one that calls it. A lock that another thread
holds stays locked in the child, and a pool waits for threads that are not there. Both are made anew in the child. A
temporary folder stays the parent's: the child does not remove it. A fork waits for code that another thread compiles,
whose state a child could not use.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

LockT = TypeVar("LockT")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_pools: weakref.WeakSet[ForkSafePool] = weakref.WeakSet()
_compiler_locks: list[Any] = []  # of Numba, while a fork goes on


def fork_safe(lock: LockT) -> LockT:
    """Return the lock, a `threading.Lock` or `RLock`, which will be open in a forked child."""
    _locks.add(lock)
    return lock


class ForkSafePool(ThreadPoolExecutor):
    """A thread pool that starts threads of its own in a forked child; a pool that was shut down stays so."""

    def __init__(self, threads: int, prefix: str) -> None:
        super().__init__(threads, thread_name_prefix=prefix)
        self._arguments = threads, prefix
        _pools.add(self)

    def renew(self) -> None:
        """Forget the parent's threads and their tasks."""
        if not self._shutdown:
            super().__init__(self._arguments[0], thread_name_prefix=self._arguments[1])


def remove_with(owner: object, folder: str) -> None:
    """Remove a temporary folder when `owner` is gone or the process ends; a forked child leaves it alone."""
    weakref.finalize(owner, _remove, folder, os.getpid())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _hold_compiler() -> None:
    compiler = sys.modules.get("numba.core.compiler_lock")
    if compiler is not None:
        compiler.global_compiler_lock.acquire()
        _compiler_locks.append(compiler.global_compiler_lock)


def _release_compiler() -> None:
    if _compiler_locks:
        _compiler_locks.pop().release()


def _renew() -> None:
    _release_compiler()
    for lock in _locks:
        lock._at_fork_reinit()  # as the standard library does with its own locks
    for pool in _pools:
        pool.renew()
    # dask's threaded scheduler, which computes dask inputs, keeps its pools the same way.
    threaded = sys.modules.get("dask.threaded")
    if threaded is not None:
        vars(threaded).update(default_pool=None, pools_lock=threading.Lock())
        threaded.pools.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_hold_compiler, after_in_parent=_release_compiler, after_in_child=_renew)
