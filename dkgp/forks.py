"""Locks, thread pools, caches and temporary folders that a forked child process can use.

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
from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, cast

from zict import LRU

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


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


ValueT = TypeVar("ValueT", bound=_Sized)

DEFAULT_BUDGET_BYTES = 2 * 1024**3


class FeatureCache:
    """A least-recently-used cache of sized values, safe for threads and forks, that builds each missing value once.

    Parameters
    ----------
    budget_bytes : int
        Values are evicted, oldest use first, when their sum exceeds this. A value larger than the whole budget is
        returned but not kept.
    """

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.hits = 0
        self.misses = 0
        self._values: LRU[Hashable, Any] = LRU(
            budget_bytes, {}, weight=lambda key, value: value.nbytes, on_evict=self._is_gone
        )
        # By all parts of a key but the last.
        self._sums: Counter[Hashable] = Counter()
        self._lock = fork_safe(threading.Lock())
        fork_safe(self._values.lock)
        self._building: dict[Hashable, threading.Lock] = {}
        self._abandoned: deque[tuple[Hashable, ...]] = deque()

    @property
    def budget_bytes(self) -> int:
        """Bytes that values may take together."""
        return int(self._values.n)

    @budget_bytes.setter
    def budget_bytes(self, count: int) -> None:
        self._values.n = count

    def make_room(self, count: int) -> None:
        """Raise the budget to `count` bytes, for values that a memory plan has counted."""
        self.budget_bytes = max(self.budget_bytes, count)

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return int(self._values.total_weight)

    def get(self, key: Hashable, build: Callable[[], ValueT], keep: Callable[[ValueT], bool] | None = None) -> ValueT:
        """Return the value under `key`; where it is missing it is built, while other threads that ask for it wait.

        A value is not kept where `keep` returns false of it.
        """
        with self._lock:
            self._drop_abandoned()
            if key in self._values:
                return cast(ValueT, self._hit(key))
            gate = self._building.setdefault(key, fork_safe(threading.Lock()))
        with gate:
            with self._lock:
                if key in self._values:
                    return cast(ValueT, self._hit(key))
            try:
                built = build()
                if keep is not None and not keep(built):
                    return built
                with self._lock:
                    self.misses += 1
                    # Evicted at once, a value may be built by two threads that waited; the later one stays.
                    if key in self._values:
                        self._is_gone(key, self._values[key])
                    self._sums[_family(key)] += built.nbytes
                    self._values[key] = built
            finally:
                with self._lock:
                    self._building.pop(key, None)
            return built

    def _hit(self, key: Hashable) -> Any:
        self.hits += 1
        return self._values[key]  # and it is the latest used now

    def bytes_of(self, *family: Hashable) -> int:
        """Bytes of the values whose keys have one part more than these."""
        with self._lock:
            return self._sums[family]

    def _is_gone(self, key: Hashable, value: Any) -> None:
        family = _family(key)
        self._sums[family] -= value.nbytes
        if not self._sums[family]:
            del self._sums[family]

    def discard_run(self, run_id: str) -> None:
        """Forget every value whose key starts with `run_id`, or with a run within it, `run_id/...`."""
        self.discard(run_id)

    def discard(self, *prefix: Hashable, but: Hashable = None) -> None:
        """Forget every value whose key starts with `prefix`, `but` those where this follows."""
        with self._lock:
            self._drop(prefix, but)

    def abandon(self, *prefix: Hashable) -> None:
        """Forget the values of `discard`, now or at the next use; for finalizers.

        The garbage collector runs finalizers on any thread at any moment, even while that thread holds this cache's
        lock: to wait for the lock there would be to wait for ever.
        """
        self._abandoned.append(prefix)
        if self._lock.acquire(blocking=False):
            try:
                self._drop_abandoned()
            finally:
                self._lock.release()

    def _drop_abandoned(self) -> None:
        while self._abandoned:
            self._drop(self._abandoned.popleft())

    def _drop(self, prefix: tuple[Hashable, ...], but: Hashable = None) -> None:
        count = len(prefix)
        for key in [k for k in self._values if isinstance(k, tuple) and _starts(k, prefix)]:
            if but is None or key[count] != but:
                self._is_gone(key, self._values[key])
                del self._values[key]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._sums.clear()


def _starts(key: tuple[Hashable, ...], prefix: tuple[Hashable, ...]) -> bool:
    """True if a key starts with a prefix; a run `a/b` belongs to the run `a`."""
    if key[: len(prefix)] == prefix:
        return True
    run, of = key[:1], prefix[:1]
    if len(prefix) > 1 or not run or not (isinstance(run[0], str) and isinstance(of[0], str)):
        return False
    return run[0].startswith(f"{of[0]}/")


def _family(key: Hashable) -> Hashable:
    return key[:-1] if isinstance(key, tuple) else ()


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
