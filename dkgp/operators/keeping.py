"""Tiles of K that a worker keeps from one product to the next, and the rule behind `--cache-tiles auto`.

A product reads all of K, so a cache that drops the least recently used tiles would drop each tile shortly before its
turn, in every product larger than the cache. Here tiles that do not fit are evaluated again in every product. A tile
makes room only after a whole product without use: its blocks have moved to another worker, or its run is over.

Where dkgp has chosen the budget, every use is timed, and the run's `Watch` decides whether keeping pays. A kept tile is
evaluated once more, on new pages, and read in every later product; any other tile is evaluated in every product. For
the L products that the solver foresees, the next one included, keeping saves

    1 - (keeping + (L - 1) reading) / (L evaluating)

of the seconds that a tile takes. The run is shortened by this share, times the share of K that fits, times the share of
the run that those products take. All tiles that fit are kept where that is more than `LARGE_GAIN`, a modest amount
(`TileBudget.modest_bytes`) where it is more than `LEAST_GAIN`, and none otherwise.

Every worker measures its seconds during the run: the first product is evaluated, and the first tile kept after it gives
the other prices. New pages are touched in steps before a tile is written there, so that expensive pages are noticed
within a step; then no more tiles are kept. Kept tiles are freed once reading them saves too little. Until then either
loses at most a hundredth of the remaining products' time. Bits do not depend on any of this.
"""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from dkgp.cluster.cache import TileBudget
from dkgp.forks import fork_safe

# Shares of the run that must be saved: to keep a modest amount, and to keep all that fits.
LEAST_GAIN, LARGE_GAIN = 0.05, 0.25
# Reading costs this much more than a thread measures that reads alone: all threads share the memory.
READ_TOGETHER = 1.5
# Share of the remaining products' time, if evaluated, that expensive pages, or expensive reading, may cost.
SLACK = 0.01
# Pages are touched in steps of so much.
STEP_BYTES = 4 * 1024**2
# A coarse clock may see no time pass; no price is zero.
LEAST_SECONDS = 1e-9


def kept_bytes_of(n: int) -> int:
    """Bytes of all float32 tiles of K's lower half, at most: tiles across the diagonal are kept whole."""
    return 2 * n * (n + 2048)


def saved_share(products: float, evaluating: float, keeping: float, reading: float) -> float:
    """Share of the seconds of so many products that keeping a tile saves; negative where it costs more."""
    if products <= 1.0:
        return 1.0 - keeping / evaluating
    return 1.0 - (keeping + (products - 1.0) * reading) / (products * evaluating)


def bytes_that_pay(budget: TileBudget, wanted_bytes: int, saved: float, run_share: float) -> int:
    """Bytes of tiles that a worker should keep of the `wanted_bytes` that its part of K would take.

    `saved` is a `saved_share`, `run_share` the share of the run that the remaining products take.
    """
    for count, least in ((budget.bytes, LARGE_GAIN), (budget.modest_bytes, LEAST_GAIN)):
        if saved * run_share * min(1.0, count / max(1, wanted_bytes)) > least:
            return count
    return 0


def most_bytes(budget: TileBudget, wanted_bytes: int, products: float | None) -> int:
    """Most bytes that a worker may come to keep, as if a run were evaluation alone: memory is planned with them.

    `products` is the number foreseen; the first one is evaluated. None means no forecast.
    """
    if not budget.measured or products is None:
        return budget.bytes
    return max(budget.modest_bytes, bytes_that_pay(budget, wanted_bytes, _saved_at_best(products - 1.0), 1.0))


def _saved_at_best(products: float) -> float:
    """Share that is saved where new pages cost nothing, and reading neither."""
    return saved_share(products, 1.0, 1.0, 0.0)


@dataclass(frozen=True)
class Keeping:
    """Terms on which workers keep tiles during one product."""

    budget: TileBudget  # of one worker's process; a `measured` one has the worker find out if tiles pay
    turn: int  # number of the product in its run
    wanted_bytes: int = 0  # of a worker's part of K
    products: float = 0.0  # that the solver foresees, this one included
    run_share: float = 0.0  # share of the run that they take; zero for the first one, which is evaluated


@dataclass
class _Rate:
    """Seconds of a byte, the last measurements counting most."""

    seconds: float = 0.0
    bytes: float = 0.0

    def add(self, seconds: float, count: int) -> None:
        self.seconds, self.bytes = self.seconds + max(seconds, LEAST_SECONDS), self.bytes + count

    def fade(self) -> None:
        if self.bytes > 1.0:  # a price that nothing is added to must not fade to 0 / 0 in a thousand turns
            self.seconds, self.bytes = self.seconds / 2.0, self.bytes / 2.0

    @property
    def value(self) -> float:
        return self.seconds / self.bytes if self.bytes else math.nan


class Watch:
    """Prices of one run's tiles, as a worker has measured them, and the time that keeping them has lost."""

    def __init__(self) -> None:
        self.evaluating, self.keeping, self.reading = _Rate(), _Rate(), _Rate()
        # No more tiles are kept; no tile is.
        self.pages_are_dear = self.given_up = False
        self._trying = self._doubts = False
        self._overrun = 0.0
        self._late = _Rate()  # of reading, since it began to be late
        self._turn, self._foreseen, self.warm = 0, 0.0, False
        self._look_at = math.inf
        self._lock = threading.Lock()

    def bytes_to_keep(self, keeping: Keeping) -> int:
        """Bytes that may be kept now; the first thread that asks once evaluating has a price measures the others."""
        with self._lock:
            self._begin(keeping)
            if self.pages_are_dear or self.given_up or math.isnan(self.evaluating.value):
                return 0
            if math.isnan(self.keeping.value):
                if self._trying or not self._may_pay(keeping):
                    return 0
                self._trying = True
                return keeping.budget.modest_bytes
            return bytes_that_pay(keeping.budget, keeping.wanted_bytes, self.saved(keeping), keeping.run_share)

    def saved(self, keeping: Keeping) -> float:
        """See `saved_share`; by the prices seen so far."""
        return saved_share(keeping.products, self.evaluating.value, self.keeping.value, self.reading.value)

    def touch(self, entries: NDArray[Any], keeping: Keeping) -> float | None:
        """Touch the pages of tiles to be kept and return the seconds; None once pages are too expensive."""
        memory, total = entries.view(np.uint8), 0.0
        for start in range(0, memory.nbytes, STEP_BYTES):
            step = memory[start : start + STEP_BYTES]
            seconds = timed(lambda: touch_pages(step))  # noqa: B023
            total += seconds
            with self._lock:
                self._overrun = max(0.0, self._overrun + seconds - self._affordable(keeping) * step.nbytes)
                self.pages_are_dear = self.pages_are_dear or self._overrun > self._slack(keeping)
                if self.pages_are_dear:
                    self._trying = False
                    return None
        return total

    def note_evaluated(self, seconds: float, count: int, warm: bool) -> None:
        """Record the seconds of evaluating tiles; `warm` unless code may have been loaded for it."""
        with self._lock:
            self.warm = True
            if warm:
                self.evaluating.add(seconds, count)

    def note_kept(self, seconds: float, count: int) -> bool:
        """Record the seconds of touching and filling; true if reading has no price yet."""
        with self._lock:
            self.keeping.add(seconds, count)
            return math.isnan(self.reading.value)

    def note_read(self, seconds: float, count: int, keeping: Keeping) -> None:
        """Record the seconds of reading."""
        with self._lock:
            self._begin(keeping)
            self.reading.add(seconds, count)
            self._late.add(seconds, count)
            lost = self._late.seconds - self.evaluating.value * self._late.bytes
            if lost <= 0.0:
                self._late = _Rate()
            self._doubts = lost > self._slack(keeping)

    def stop_trying(self) -> None:
        """Leave it to another thread to measure keeping and reading."""
        with self._lock:
            self._trying = False

    def note_read_alone(self, seconds: float, count: int) -> None:
        """Record the seconds of reading by one thread alone."""
        with self._lock:
            self.reading.add(READ_TOGETHER * seconds, count)
            self._trying = False
            self._look_at = self._turn + 2

    @property
    def doubts(self) -> bool:
        """True if reading has been slow, or some products have passed: evaluating is to be measured again."""
        return self._doubts or self._turn >= self._look_at

    def reconsider(self, seconds: float, count: int) -> None:
        """Record the present price of evaluating, and give up where reading saves too little."""
        with self._lock:
            self.evaluating = _Rate()
            self.evaluating.add(seconds, count)
            reading = (self._late if self._doubts else self.reading).value
            self.given_up = self.given_up or reading > (1.0 - LEAST_GAIN) * self.evaluating.value
            self._doubts, self._late, self._look_at = False, _Rate(), 2.0 * self._turn

    def reason(self) -> str:
        """Say in a few words why tiles are kept or not."""
        if self.given_up:
            return f"given up: reading takes {self._reading_share:.2f} times as long as evaluating"
        if self.pages_are_dear:
            return "no more, because new memory is slow on this machine"
        foreseen = f"{self._foreseen:.0f} products forecast"
        if math.isnan(self.reading.value):
            return f"{foreseen}, too few for a gain"
        return f"{foreseen}, and reading takes {self._reading_share:.2f} times as long as evaluating"

    @property
    def _reading_share(self) -> float:
        return self.reading.value / self.evaluating.value

    def _begin(self, keeping: Keeping) -> None:
        if math.isnan(self.reading.value):  # the decision is taken by these
            self._foreseen = max(self._foreseen, keeping.products)
        if keeping.turn > self._turn:
            self._turn = keeping.turn
            for rate in (self.evaluating, self.keeping, self.reading):
                rate.fade()

    def _may_pay(self, keeping: Keeping) -> bool:
        at_best = _saved_at_best(keeping.products)
        return bool(bytes_that_pay(keeping.budget, keeping.wanted_bytes, at_best, keeping.run_share))

    def _affordable(self, keeping: Keeping) -> float:
        """Seconds that touching a byte may take so that keeping it does not lose."""
        reading = 0.0 if math.isnan(self.reading.value) else self.reading.value
        return max(0.0, (keeping.products - 1.0) * (self.evaluating.value - reading))

    def _slack(self, keeping: Keeping) -> float:
        return SLACK * max(1.0, keeping.products) * self.evaluating.value * keeping.wanted_bytes


def touch_pages(memory: NDArray[np.uint8]) -> None:
    """Touch every page of some memory."""
    memory[:: mmap.PAGESIZE] = 0


def timed(work: Callable[[], None]) -> float:
    """Seconds of its thread's own time, new pages and waiting for memory included, that some work takes.

    The wall clock would also count other processes, and evaluating and reading are not timed at the same moment.
    """
    began = time.thread_time()
    work()
    return time.thread_time() - began


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
        """Bytes in memory."""


KeptT = TypeVar("KeptT", bound=Kept)

# Tiles of another run count as abandoned after so many seconds; a coordinator that was killed frees nothing.
FORGOTTEN_SECONDS = 300.0
# Share of the machine's memory that stays free with any budget.
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
class _Entry:
    tiles: Any
    turn: int
    used_at: float
    filling: threading.Lock = field(default_factory=threading.Lock)


class TileCache:
    """Tiles of pairs of blocks, by run."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, tuple[int, int]], _Entry] = {}
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
        entry = self._take(request, request.keeping.budget.bytes if budget_bytes is None else budget_bytes)
        if entry is None or entry.tiles.filled:
            yield None if entry is None else entry.tiles
            return
        # Nobody waits for a thread that fills the same pair: that belongs to another task.
        acquired = entry.filling.acquire(blocking=False)
        try:
            yield entry.tiles if acquired else None
        finally:
            if acquired:
                entry.filling.release()

    def reason(self, run_id: str, keeping: Keeping) -> str:
        """Say in a few words why tiles of a run are kept or not."""
        return self._watch(run_id).reason() if keeping.budget.measured else "as requested"

    def discard_run(self, run_id: str) -> None:
        """Forget a run, and every tile of it."""
        with self._lock:
            self._watches.pop(run_id, None)
        self._discard_tiles(run_id)

    def _discard_tiles(self, run_id: str) -> None:
        with self._lock:
            for key in [key for key in self._entries if key[0] == run_id]:
                self._drop(key)

    def _watch(self, run_id: str) -> Watch:
        with self._lock:
            return self._watches.setdefault(run_id, Watch())

    def _use_watched(self, request: TileRequest[KeptT], work: Callable[[KeptT | None], None]) -> bool:
        watch, entry = self._watch(request.run_id), self._entries.get(request.key)
        if entry is None or not entry.tiles.filled:
            self._keep_or_evaluate(request, watch, work)
            return False
        tiles = entry.tiles
        with self._lock:
            entry.turn, entry.used_at = max(entry.turn, request.keeping.turn), time.monotonic()
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
            if key in self._entries:
                self._drop(key)

    def _take(self, request: TileRequest[Any], budget_bytes: int) -> _Entry | None:
        turn, now = request.keeping.turn, time.monotonic()
        with self._lock:
            entry = self._entries.get(request.key)
            if entry is None:
                tiles = request.room()  # no more than addresses yet
                if not self._make_room(request, tiles.nbytes, now, budget_bytes):
                    return None
                entry = self._entries[request.key] = _Entry(tiles, turn, now)
                self.nbytes += tiles.nbytes
            entry.turn, entry.used_at = max(entry.turn, turn), now
            return entry

    def _make_room(self, request: TileRequest[Any], needed: int, now: float, budget_bytes: int) -> bool:
        def fits() -> bool:
            return self.nbytes + needed <= budget_bytes

        for key, entry in list(self._entries.items()):
            if fits():
                break
            same_run = key[0] == request.run_id
            idle = entry.turn < request.keeping.turn - 1 if same_run else now - entry.used_at > FORGOTTEN_SECONDS
            if idle:
                self._drop(key)
        if not fits():
            return False
        memory = psutil.virtual_memory()
        return bool(memory.available - needed > SPARED_SHARE * memory.total)

    def _drop(self, key: tuple[str, tuple[int, int]]) -> None:
        self.nbytes -= self._entries.pop(key).tiles.nbytes


_WORKER_TILES = TileCache()


def worker_tiles() -> TileCache:
    """The tiles of this process; workers that share a process share them."""
    return _WORKER_TILES
