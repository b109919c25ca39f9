"""Tiles of K that a worker keeps from one product for the next: filled once, within a budget, and read from then on.

A product goes through all of K, so a cache that puts out what was used longest ago would be emptied by every product
that is larger than it, each tile shortly before its turn. Here what does not fit is evaluated time and again, and tiles
make room only once a whole product has passed them by, because their blocks have moved to another worker or their run
is over.

Where a budget is not a user's but dkgp's own choice, every use is timed, and the run's `Watch` says what may be kept
(`dkgp.operators.keeping`). Bits do not depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import psutil
from numpy.typing import NDArray

from dkgp.operators.keeping import Keeping, Watch, timed

__all__ = ["Kept", "TileCache", "worker_tiles"]


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

# Tiles of another run are in nobody's use after so many seconds; a coordinator that was killed frees nothing.
FORGOTTEN_SECONDS = 300.0
# Memory of the machine that stays free whatever the budget says.
SPARED_SHARE = 0.08


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
        self._lock = threading.Lock()
        self.nbytes = 0

    def use(
        self,
        run_id: str,
        pair: tuple[int, int],
        keeping: Keeping,
        room: Callable[[], KeptT],
        work: Callable[[KeptT | None], None],
    ) -> bool:
        """Have `work` done once with the tiles of a pair: filled ones, ones to fill, or none; whether they were filled.

        `room` makes tiles for the pair; `work` with tiles that are not filled fills them.
        """
        if keeping.budget.measured:
            return self._use_watched(run_id, pair, keeping, room, work)
        with self.lent(run_id, pair, keeping, room) as tiles:
            read = tiles is not None and tiles.filled
            work(tiles)
        return read

    @contextmanager
    def lent(
        self,
        run_id: str,
        pair: tuple[int, int],
        keeping: Keeping,
        room: Callable[[], KeptT],
        budget_bytes: int | None = None,
    ) -> Iterator[KeptT | None]:
        """Tiles of a pair while the context is open: filled ones, ones to fill, or none; all within the budget."""
        held = self._take(run_id, pair, keeping, room, keeping.budget.bytes if budget_bytes is None else budget_bytes)
        if held is None or held.tiles.filled:
            yield None if held is None else held.tiles
            return
        # Nobody waits for a thread that is at the same pair: what it does for another task is no part of this one.
        mine = held.filling.acquire(blocking=False)
        try:
            yield held.tiles if mine else None
        finally:
            if mine:
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

    def _use_watched(
        self,
        run_id: str,
        pair: tuple[int, int],
        keeping: Keeping,
        room: Callable[[], KeptT],
        work: Callable[[KeptT | None], None],
    ) -> bool:
        watch, held = self._watch(run_id), self._held.get((run_id, pair))
        if held is None or not held.tiles.filled:
            self._keep_or_evaluate(run_id, pair, watch, keeping, room, work)
            return False
        tiles = held.tiles
        with self._lock:
            held.turn, held.used_at = max(held.turn, keeping.turn), time.monotonic()
        if watch.doubts:
            watch.reconsider(timed(lambda: work(None)), tiles.nbytes)
            if watch.given_up:
                self._discard_tiles(run_id)
            return False
        watch.note_read(timed(lambda: work(tiles)), tiles.nbytes, keeping)
        return True

    def _keep_or_evaluate(
        self,
        run_id: str,
        pair: tuple[int, int],
        watch: Watch,
        keeping: Keeping,
        room: Callable[[], KeptT],
        work: Callable[[KeptT | None], None],
    ) -> None:
        """Keep a pair's tiles where that pays; forget them where their pages, or the first reading, tell otherwise."""
        allowed = watch.bytes_to_keep(keeping)
        if allowed:
            with self.lent(run_id, pair, keeping, room, allowed) as tiles:
                touched = None if tiles is None else watch.touch(tiles.entries, keeping)
                if tiles is not None and touched is not None:
                    filled = touched + timed(lambda: work(tiles))
                    if watch.note_kept(filled, tiles.nbytes):
                        watch.note_read_alone(timed(lambda: work(tiles)), tiles.nbytes)
                        if not watch.bytes_to_keep(keeping):
                            self._forget(run_id, pair)
                    return
                watch.stop_trying()
            if tiles is not None:
                self._forget(run_id, pair)
        warm, count = watch.warm, room().nbytes
        watch.note_evaluated(timed(lambda: work(None)), count, warm)

    def _forget(self, run_id: str, pair: tuple[int, int]) -> None:
        with self._lock:
            if (run_id, pair) in self._held:
                self._drop((run_id, pair))

    def _take(
        self, run_id: str, pair: tuple[int, int], keeping: Keeping, room: Callable[[], Kept], budget_bytes: int
    ) -> _Held | None:
        key, now = (run_id, pair), time.monotonic()
        with self._lock:
            held = self._held.get(key)
            if held is None:
                tiles = room()  # no more than addresses yet
                if not self._make_room(run_id, tiles.nbytes, keeping, now, budget_bytes):
                    return None
                held = self._held[key] = _Held(tiles, keeping.turn, now)
                self.nbytes += tiles.nbytes
            held.turn, held.used_at = max(held.turn, keeping.turn), now
            return held

    def _make_room(self, run_id: str, wanted: int, keeping: Keeping, now: float, budget_bytes: int) -> bool:
        def fits() -> bool:
            return self.nbytes + wanted <= budget_bytes

        for key, held in list(self._held.items()):
            if fits():
                break
            idle = held.turn < keeping.turn - 1 if key[0] == run_id else now - held.used_at > FORGOTTEN_SECONDS
            if idle:
                self._drop(key)
        if not fits():
            return False
        memory = psutil.virtual_memory()
        return bool(memory.available - wanted > SPARED_SHARE * memory.total)

    def _drop(self, key: tuple[str, tuple[int, int]]) -> None:
        self.nbytes -= self._held.pop(key).tiles.nbytes


_WORKER_TILES = TileCache()


def worker_tiles() -> TileCache:
    """The tiles of this process; workers that share a process share them."""
    return _WORKER_TILES
