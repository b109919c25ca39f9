"""Tiles of K that a worker keeps from one product for the next: filled once, within a budget, and read from then on.

A product goes through all of K, so a cache that puts out what was used longest ago would be emptied by every product
that is larger than it, each tile shortly before its turn. Here what does not fit is evaluated time and again, and tiles
make room only once a whole product has passed them by, because their blocks have moved to another worker or their run
is over.

Reading an entry takes a tenth of a nanosecond or more of memory's time, which all cores share; evaluating it takes that
long or many times as long, by kernel and processor. Memory that is used for the first time has its price too, on
virtual machines a high one. Where a budget is not a user's but dkgp's own choice, the first pair of blocks tells: it is
evaluated, kept and read back by the clock. Bits do not depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import psutil

__all__ = ["Keeping", "Kept", "TileCache", "keeping_pays", "kept_bytes_of", "worker_tiles"]


class Kept(Protocol):
    """Entries that are kept."""

    @property
    def filled(self) -> bool:
        """True if all of them have been left there."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""


KeptT = TypeVar("KeptT", bound=Kept)

# Reading counts for so much more than by the clock of one thread: the others read meanwhile, too.
READ_TOGETHER = 1.5
# Products that what keeping takes is spread over; a solve takes ten to a hundred.
PRODUCTS = 20
# Tiles of another run are in nobody's use after so many seconds; a coordinator that was killed frees nothing.
FORGOTTEN_SECONDS = 300.0
# Memory of the machine that stays free whatever the budget says.
SPARED_SHARE = 0.08


def kept_bytes_of(n: int) -> int:
    """Bytes of all float32 tiles of K's lower half, at most: what lies across the diagonal is kept whole."""
    return 2 * n * (n + 2048)


def keeping_pays(evaluating: float, keeping: float, reading: float) -> bool:
    """True if products are quicker with tiles kept, by the seconds of a thread for each of these."""
    return keeping + (PRODUCTS - 1) * READ_TOGETHER * reading < PRODUCTS * evaluating


@dataclass(frozen=True)
class Keeping:
    """Terms on which workers keep tiles during one product.

    Attributes
    ----------
    budget_bytes : int
        What tiles may take in one worker's process.
    measured : bool
        Whether the worker finds out first if reading pays.
    turn : int
        Number of the product in its run.
    """

    budget_bytes: int
    measured: bool
    turn: int


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
        self._pays: dict[str, bool | None] = {}
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
        if keeping.measured and not self._may_keep(run_id, room, work):
            work(None)
            return False
        with self.lent(run_id, pair, keeping, room) as tiles:
            read = tiles is not None and tiles.filled
            work(tiles)
        return read

    @contextmanager
    def lent(
        self, run_id: str, pair: tuple[int, int], keeping: Keeping, room: Callable[[], KeptT]
    ) -> Iterator[KeptT | None]:
        """Tiles of a pair while the context is open: filled ones, ones to fill, or none."""
        held = self._take(run_id, pair, keeping, room)
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

    def discard_run(self, run_id: str) -> None:
        """Forget every tile of a run."""
        with self._lock:
            self._pays.pop(run_id, None)
            for key in [key for key in self._held if key[0] == run_id]:
                self._drop(key)

    def _take(self, run_id: str, pair: tuple[int, int], keeping: Keeping, room: Callable[[], Kept]) -> _Held | None:
        key, now = (run_id, pair), time.monotonic()
        with self._lock:
            held = self._held.get(key)
            if held is None:
                tiles = room()  # no more than addresses yet
                if not self._make_room(run_id, tiles.nbytes, keeping, now):
                    return None
                held = self._held[key] = _Held(tiles, keeping.turn, now)
                self.nbytes += tiles.nbytes
            held.turn, held.used_at = max(held.turn, keeping.turn), now
            return held

    def _make_room(self, run_id: str, wanted: int, keeping: Keeping, now: float) -> bool:
        def fits() -> bool:
            return self.nbytes + wanted <= keeping.budget_bytes

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

    def _may_keep(self, run_id: str, room: Callable[[], KeptT], work: Callable[[KeptT | None], None]) -> bool:
        """True where reading pays for this run; found out by the first thread that asks, while others evaluate."""
        with self._lock:
            if run_id in self._pays:
                return bool(self._pays[run_id])
            self._pays[run_id] = None
        try:
            tiles = room()
            evaluating, keeping, reading = (_seconds(lambda: work(where)) for where in (None, tiles, tiles))  # noqa: B023
            pays = keeping_pays(evaluating, keeping, reading)
        except BaseException:
            self._pays.pop(run_id, None)
            raise
        self._pays[run_id] = pays
        return pays


def _seconds(work: Callable[[], None]) -> float:
    # The thread's own time: on a busy machine the clock on the wall would tell of others.
    began = time.thread_time()
    work()
    return time.thread_time() - began


_WORKER_TILES = TileCache()


def worker_tiles() -> TileCache:
    """The tiles of this process; workers that share a process share them."""
    return _WORKER_TILES
