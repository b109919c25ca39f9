"""Tiles of K that a worker keeps from one product for the next: filled once, within a budget, and read from then on.

A product goes through all of K, so a cache that drops the least recently used tiles would drop each tile shortly before
its turn, in every product that is larger than the cache. Here tiles that do not fit are evaluated again in every
product, and a tile makes room only if a whole product has not used it: its blocks have moved to another worker, or its
run is over.

Where dkgp has chosen the budget, every use is timed, and the run's `Watch` decides what may be kept
(`dkgp.operators.keeping`). Bits do not depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import psutil
from numpy.typing import NDArray

from dkgp.forks import fork_safe
from dkgp.operators.keeping import Keeping, Watch, timed


class Kept(Protocol):
    """Entries that are kept."""

    @property
    def entries(self) -> NDArray[Any]:
        """The entries, and the memory that they lie in."""

    @property
    def filled(self) -> bool:
        """True if all of them have been left there."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


KeptT = TypeVar("KeptT", bound=Kept)

# Tiles of another run count as abandoned after so many seconds; a coordinator that was killed frees nothing.
FORGOTTEN_SECONDS = 300.0
# Memory of the machine that stays free whatever the budget says.
SPARED_SHARE = 0.08


@dataclass(frozen=True)
class TileRequest(Generic[KeptT]):
    """The tiles of one pair of blocks of a run, on the terms of a product; `room` makes them, not filled yet."""

    run_id: str
    pair: tuple[int, int]
    keeping: Keeping
    room: Callable[[], KeptT]

    @property
    def key(self) -> tuple[str, tuple[int, int]]:
        """Their key in the cache."""
        return self.run_id, self.pair


@dataclass
class _Held:
    tiles: Any
    turn: int
    used_at: float
    filling: threading.Lock = field(default_factory=threading.Lock)


class TileCache:
    """Tiles of pairs of blocks, by run."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, tuple[int, int]], _Held] = {}
        self._watches: dict[str, Watch] = {}
        self._lock = fork_safe(threading.Lock())
        self.nbytes = 0

    def use(self, request: TileRequest[KeptT], work: Callable[[KeptT | None], None]) -> bool:
        """Do `work` once with tiles that are filled, that it fills, or without; return True if they were filled."""
        if request.keeping.budget.measured:
            return self._use_watched(request, work)
        with self.lent(request) as tiles:
            read = tiles is not None and tiles.filled
            work(tiles)
        return read

    @contextmanager
    def lent(self, request: TileRequest[KeptT], budget_bytes: int | None = None) -> Iterator[KeptT | None]:
        """Tiles of a pair while the context is open: filled ones, ones to fill, or none; all within the budget."""
        held = self._take(request, request.keeping.budget.bytes if budget_bytes is None else budget_bytes)
        if held is None or held.tiles.filled:
            yield None if held is None else held.tiles
            return
        # Nobody waits for a thread that fills the same pair: that belongs to another task.
        acquired = held.filling.acquire(blocking=False)
        try:
            yield held.tiles if acquired else None
        finally:
            if acquired:
                held.filling.release()

    def reason(self, run_id: str, keeping: Keeping) -> str:
        """Say in a few words why tiles of a run are kept or not."""
        return self._watch(run_id).reason() if keeping.budget.measured else "as asked for"

    def discard_run(self, run_id: str) -> None:
        """Forget a run, and every tile of it."""
        with self._lock:
            self._watches.pop(run_id, None)
        self._discard_tiles(run_id)

    def _discard_tiles(self, run_id: str) -> None:
        with self._lock:
            for key in [key for key in self._held if key[0] == run_id]:
                self._drop(key)

    def _watch(self, run_id: str) -> Watch:
        with self._lock:
            return self._watches.setdefault(run_id, Watch())

    def _use_watched(self, request: TileRequest[KeptT], work: Callable[[KeptT | None], None]) -> bool:
        watch, held = self._watch(request.run_id), self._held.get(request.key)
        if held is None or not held.tiles.filled:
            self._keep_or_evaluate(request, watch, work)
            return False
        tiles = held.tiles
        with self._lock:
            held.turn, held.used_at = max(held.turn, request.keeping.turn), time.monotonic()
        if watch.doubts:
            watch.reconsider(timed(lambda: work(None)), tiles.nbytes)
            if watch.given_up:
                self._discard_tiles(request.run_id)
            return False
        watch.note_read(timed(lambda: work(tiles)), tiles.nbytes, request.keeping)
        return True

    def _keep_or_evaluate(
        self, request: TileRequest[KeptT], watch: Watch, work: Callable[[KeptT | None], None]
    ) -> None:
        """Keep a pair's tiles where that pays; drop them where their pages, or the first reading, are too expensive."""
        keeping = request.keeping
        allowed = watch.bytes_to_keep(keeping)
        if allowed:
            with self.lent(request, allowed) as tiles:
                touched = None if tiles is None else watch.touch(tiles.entries, keeping)
                if tiles is not None and touched is not None:
                    filled = touched + timed(lambda: work(tiles))
                    if watch.note_kept(filled, tiles.nbytes):
                        watch.note_read_alone(timed(lambda: work(tiles)), tiles.nbytes)
                        if not watch.bytes_to_keep(keeping):
                            self._forget(request.key)
                    return
                watch.stop_trying()
            if tiles is not None:
                self._forget(request.key)
        warm, count = watch.warm, request.room().nbytes
        watch.note_evaluated(timed(lambda: work(None)), count, warm)

    def _forget(self, key: tuple[str, tuple[int, int]]) -> None:
        with self._lock:
            if key in self._held:
                self._drop(key)

    def _take(self, request: TileRequest[Any], budget_bytes: int) -> _Held | None:
        turn, now = request.keeping.turn, time.monotonic()
        with self._lock:
            held = self._held.get(request.key)
            if held is None:
                tiles = request.room()  # no more than addresses yet
                if not self._make_room(request, tiles.nbytes, now, budget_bytes):
                    return None
                held = self._held[request.key] = _Held(tiles, turn, now)
                self.nbytes += tiles.nbytes
            held.turn, held.used_at = max(held.turn, turn), now
            return held

    def _make_room(self, request: TileRequest[Any], needed: int, now: float, budget_bytes: int) -> bool:
        def fits() -> bool:
            return self.nbytes + needed <= budget_bytes

        for key, held in list(self._held.items()):
            if fits():
                break
            same_run = key[0] == request.run_id
            idle = held.turn < request.keeping.turn - 1 if same_run else now - held.used_at > FORGOTTEN_SECONDS
            if idle:
                self._drop(key)
        if not fits():
            return False
        memory = psutil.virtual_memory()
        return bool(memory.available - needed > SPARED_SHARE * memory.total)

    def _drop(self, key: tuple[str, tuple[int, int]]) -> None:
        self.nbytes -= self._held.pop(key).tiles.nbytes


_WORKER_TILES = TileCache()


def worker_tiles() -> TileCache:
    """The tiles of this process; workers that share a process share them."""
    return _WORKER_TILES
