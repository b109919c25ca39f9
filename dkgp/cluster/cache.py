"""Memory of a worker between rounds, within byte budgets: prepared features of row blocks, and kernel matrix tiles.

The cache can always be rebuilt from the store, so losing it (a worker dies, a block is evicted) costs time and nothing
else. The budget of tiles is the user's, or a share of the available memory.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import psutil
from zict import LRU

from dkgp.forks import fork_safe


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


ValueT = TypeVar("ValueT", bound=_Sized)

DEFAULT_BUDGET_BYTES = 2 * 1024**3


class FeatureCache:
    """A least-recently-used cache of sized values, safe for several threads, that builds each missing value once.

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


_WORKER_CACHE = FeatureCache()


def worker_cache() -> FeatureCache:
    """The cache of this process; workers that share a process share it."""
    return _WORKER_CACHE


_scratch: str | None = None


def worker_scratch() -> str | None:
    """The folder to which this process's cache spills; None for the system's place for temporary files."""
    return _scratch


def set_worker_scratch(folder: str) -> None:
    """Set the folder of `worker_scratch`; called in worker processes."""
    global _scratch
    _scratch = folder


# By default a third of a worker's memory, or of the available memory where workers have no limit.
SHARE = 3
# The most that a budget of dkgp's choice takes where tiles pay, but not enough for the whole share.
MODEST_BYTES = 1024**3


@dataclass(frozen=True)
class TileBudget:
    """Budget of the tiles that a worker may keep of the kernel matrix between products."""

    # In each worker's process.
    bytes: int = 0
    # True of a budget that dkgp has chosen: workers measure whether it pays (see `dkgp.operators.keeping`).
    measured: bool = False
    # Products with the whole matrix that the run is foreseen to take; None where the solver foresees them on its way.
    products: float | None = None

    @property
    def modest_bytes(self) -> int:
        """Bytes that may be kept where that pays at all; more of a measured budget only where much is gained."""
        return min(self.bytes, MODEST_BYTES) if self.measured else self.bytes


def budget_here(size: int | str, processes: int = 1, worker_memory_bytes: int | None = None) -> TileBudget:
    """The budget of each of so many worker processes on this machine; `size` is a number of bytes, or "auto"."""
    if isinstance(size, int):
        return TileBudget(size)
    memory = worker_memory_bytes or int(psutil.virtual_memory().available) // max(1, processes)
    return TileBudget(memory // SHARE, measured=True)


def budget_elsewhere(size: int | str, workers: Iterable[Mapping[str, Any]]) -> TileBudget:
    """The budget of each worker that a scheduler describes; nothing where one has no limit, which hides its memory."""
    if isinstance(size, int):
        return TileBudget(size)
    memory = min((int(worker.get("memory_limit") or 0) for worker in workers), default=0)
    return TileBudget(memory // SHARE, measured=True)
