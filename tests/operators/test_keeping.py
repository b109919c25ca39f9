"""Tiles that `auto` keeps, by the seconds of a whole run, and its corrections if these were wrong."""

from __future__ import annotations

import ctypes
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import MODEST_BYTES, TileBudget
from dkgp.kernels import SquaredExponential
from dkgp.kernels.tiles.evaluator import KeptTiles, fresh_array
from dkgp.operators import ArrayInputs, BlockedKernelOperator, keeping
from dkgp.operators.keeping import (
    Keeping,
    TileCache,
    TileRequest,
    bytes_that_pay,
    kept_bytes_of,
    most_bytes,
    saved_share,
    worker_tiles,
)

GIB = 2**30
PAIRS = 40
PAIR_BYTES = 8 * 2**20
WANTED = PAIRS * PAIR_BYTES


def seconds_of_a_run(
    products: int, whole: float, kept: float, evaluating: float, keeping: float, reading: float, others: float
) -> float:
    """Seconds of a run, product after product, where so many of K's bytes are kept."""
    seconds = others
    for product in range(products):
        seconds += (whole - kept) * evaluating + kept * (keeping if product == 0 else reading)
    return seconds


@given(
    products=st.integers(1, 100),
    fits=st.floats(0.01, 3.0),
    modest=st.floats(0.01, 1.0),
    keeping=st.floats(0.5, 20.0),
    reading=st.floats(0.05, 2.0),
    others=st.floats(0.0, 50.0),
)
def test_what_is_kept_is_what_a_naive_sum_over_the_run_says(
    products: int, fits: float, modest: float, keeping: float, reading: float, others: float
) -> None:
    wanted = int(GIB / modest)  # of which a gibibyte is this share
    budget = TileBudget(max(GIB, int(fits * wanted)), measured=True)
    whole = float(wanted)

    def gain(kept: float) -> float:
        without = seconds_of_a_run(products, whole, 0.0, 1.0 / whole, 0.0, 0.0, others)
        held = min(kept, whole)
        return 1.0 - seconds_of_a_run(products, whole, held, 1.0 / whole, keeping / whole, reading / whole, others) / (
            without
        )

    large, small = gain(budget.bytes), gain(MODEST_BYTES)
    if min(abs(large - 0.25), abs(small - 0.05)) < 1e-9:
        return
    expected = budget.bytes if large > 0.25 else MODEST_BYTES if small > 0.05 else 0
    saved = saved_share(float(products), 1.0, keeping, reading)
    assert bytes_that_pay(budget, wanted, saved, products / (products + others)) == expected


@pytest.mark.parametrize(
    ("products", "n", "free", "expected"),
    [
        (3.0, 100_000, 8 * GIB, GIB),  # the demo
        (4.5, 100_000, 8 * GIB, 8 * GIB),
        (None, 100_000, 8 * GIB, 8 * GIB),  # however many they come to be
        (30.0, 100_000, 2 * GIB, GIB),  # a tenth of K
        (30.0, 30_000, 8 * GIB, 8 * GIB),
        (30.0, 30_000, GIB // 2, GIB // 2),
    ],
)
def test_most_of_it_is_foretold(products: float | None, n: int, free: int, expected: int) -> None:
    assert most_bytes(TileBudget(free, measured=True), kept_bytes_of(n), products) == expected
    # No price makes it more: were new pages and reading to cost nothing, and products all there is to a run.
    if products is not None:
        at_best = saved_share(products - 1.0, 1.0, 1.0, 0.0)
        assert bytes_that_pay(TileBudget(free, measured=True), kept_bytes_of(n), at_best, 1.0) <= expected
    assert most_bytes(TileBudget(free), kept_bytes_of(n), products) == free


@dataclass
class Machine:
    """A machine with a clock of its own, whose prices are given: seconds of a pair."""

    evaluating: float = 1.0
    filling: float = 1.5
    reading: float = 0.2
    touching: float = 0.5
    dear_from: int = 10**9  # bytes that have been touched once pages are dear
    dear: float = 30.0
    now: float = 0.0
    touched: int = 0
    cache: TileCache = field(default_factory=TileCache)

    def room(self) -> KeptTiles:
        return KeptTiles(fresh_array(PAIR_BYTES, np.uint8))

    def touch(self, memory: NDArray[np.uint8]) -> None:
        self.touched += memory.nbytes
        price = self.dear if self.touched > self.dear_from else self.touching
        self.now += price * memory.nbytes / PAIR_BYTES

    def work(self, tiles: KeptTiles | None) -> None:
        self.now += self.evaluating if tiles is None else self.reading if tiles.filled else self.filling
        if tiles is not None:
            tiles.filled = True

    def product(
        self, turn: int, products: float, budget: int = 2 * WANTED, run_share: float = 0.9
    ) -> tuple[int, float]:
        """Pairs that a product reads, and its seconds."""
        began = self.now
        terms = Keeping(TileBudget(budget, measured=True), turn, WANTED, products, run_share if turn > 1 else 0.0)
        read = sum(self.cache.use(TileRequest("run", (pair, 0), terms, self.room), self.work) for pair in range(PAIRS))
        return read, self.now - began

    @property
    def why(self) -> str:
        return self.cache.reason("run", Keeping(TileBudget(1, measured=True), 1))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(keeping.time, "thread_time", lambda: found.now)
    monkeypatch.setattr(keeping, "touch_pages", found.touch)
    monkeypatch.setattr("dkgp.operators.keeping.psutil.virtual_memory", plenty)
    return found


def plenty() -> object:
    return PLENTY


PLENTY = psutil.virtual_memory()._replace(available=64 * GIB, total=64 * GIB)


def run_of(machine: Machine, products: int) -> tuple[list[int], float]:
    """Pairs read in each product of a run that was foreseen, and its seconds by those of one without tiles."""
    found = [machine.product(turn, products + 1.0 - turn) for turn in range(1, products + 1)]
    return [read for read, _ in found], sum(seconds for _, seconds in found) / (products * PAIRS * 1.0)


def test_a_long_run_keeps_from_its_second_product_on(machine: Machine) -> None:
    reads, ratio = run_of(machine, 20)
    # Evaluating is looked at again in products 4, 8 and 16.
    looked_at = {3: 1, 7: 1, 15: 1}
    assert reads == [0, 0] + [PAIRS - looked_at.get(turn, 0) for turn in range(2, 20)]
    # 1 evaluated, 1 kept at 2 seconds, 18 read, one of the pairs twice; all over 20 seconds a pair.
    assert ratio == pytest.approx((1.0 + 2.0 + 18 * 0.2 + (0.2 + 3 * 0.8) / PAIRS) / 20.0)
    assert machine.cache.nbytes == WANTED
    assert "20 products forecast, and reading takes 0.2" in machine.why


@pytest.mark.portable
def test_prices_outlast_thousands_of_products(machine: Machine) -> None:
    """Evaluating is looked at in product 2,048 and then in 4,096; halved as often, its price was 0 / 0."""
    reads, _ = run_of(machine, 4095)
    assert sum(reads[2048:]) == 2047 * PAIRS
    assert "4095 products forecast, and reading takes 0.20 times as long as evaluating" in machine.why


def test_a_clock_that_sees_no_time_pass_ends_nothing(machine: Machine) -> None:
    machine.evaluating = machine.filling = machine.reading = machine.touching = 0.0
    run_of(machine, 20)
    assert "20 products forecast, and reading takes" in machine.why


def test_a_short_run_keeps_nothing_and_touches_nothing(machine: Machine) -> None:
    assert run_of(machine, 2) == ([0, 0], 1.0)
    assert (machine.touched, machine.cache.nbytes) == (0, 0)
    assert machine.why == "2 products forecast, too few for a gain"


def test_where_no_product_is_foreseen_nothing_is_kept(machine: Machine) -> None:
    assert [machine.product(turn, 0.0)[0] for turn in range(1, 6)] == 5 * [0]
    assert machine.touched == 0


def test_the_price_of_reading_is_looked_at_once_and_what_tells_it_is_forgotten(machine: Machine) -> None:
    machine.reading = 0.9  # with others at it, too, more than evaluating
    reads, ratio = run_of(machine, 20)
    assert reads == 20 * [0]
    assert (machine.touched, machine.cache.nbytes) == (PAIR_BYTES, 0)
    assert ratio < 1.005


@pytest.mark.parametrize("dear_from", [0, PAIR_BYTES // 2, 7 * PAIR_BYTES])
@pytest.mark.parametrize("products", [3, 10, 30])
def test_dear_pages_are_noticed_wherever_they_begin(machine: Machine, products: int, dear_from: int) -> None:
    machine.dear_from, machine.dear = dear_from, 3.0 * products
    reads, ratio = run_of(machine, products)
    kept = dear_from // PAIR_BYTES
    assert max(reads) <= kept
    assert machine.cache.nbytes == max(reads) * PAIR_BYTES
    # No more than a step's worth beyond what was affordable.
    assert machine.touched <= dear_from + PAIR_BYTES
    assert ratio < 1.05
    if products > 3:
        assert "new memory is slow" in machine.why


def test_modest_bytes_are_not_exceeded_for_a_small_gain(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.cluster.cache.MODEST_BYTES", 12 * PAIR_BYTES)
    for turn in range(1, 12):
        machine.product(turn, 20.0 - turn, run_share=0.3)
    assert machine.cache.nbytes == 12 * PAIR_BYTES
    machine.product(12, 20.0, run_share=0.9)
    assert machine.cache.nbytes == WANTED


def test_tiles_that_are_read_make_no_room_for_others(machine: Machine) -> None:
    budget = 12 * PAIR_BYTES
    reads = [machine.product(turn, 20.0 - turn, budget)[0] for turn in range(1, 16)]
    # The first twelve, time and again, but for what is evaluated to look at its price in products 4 and 8.
    assert reads == [0, 0, 12, 11, 12, 12, 12, 11] + 7 * [12]
    assert sorted(pair for _, (pair, _) in machine.cache._entries) == list(range(12))


def test_where_there_was_no_memory_to_try_it_is_tried_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.product(1, 20.0)
    with monkeypatch.context() as scarce:
        scarce.setattr("dkgp.operators.keeping.psutil.virtual_memory", lambda: PLENTY._replace(available=GIB))
        assert machine.product(2, 19.0)[0] == 0
    assert (machine.touched, machine.cache.nbytes) == (0, 0)
    assert [machine.product(turn, 21.0 - turn)[0] for turn in (3, 4)] == [0, PAIRS]
    assert machine.cache.nbytes == WANTED


def test_dear_reading_is_given_up_and_freed(machine: Machine) -> None:
    run_of(machine, 5)
    assert machine.cache.nbytes == WANTED
    machine.reading = 3.0
    without = machine.evaluating * PAIRS
    lost = sum(machine.product(turn, 26.0 - turn)[1] - without for turn in range(6, 26))
    assert machine.cache.nbytes == 0
    assert "given up" in machine.why
    assert lost < 0.05 * 20 * without


def test_reading_that_is_late_because_all_is_late_is_not_given_up(machine: Machine) -> None:
    run_of(machine, 5)
    machine.reading, machine.evaluating = 2.0, 10.0  # others have come to the machine
    reads = [machine.product(turn, 26.0 - turn)[0] for turn in range(6, 12)]
    # Evaluating is looked at again now and then.
    assert min(reads) >= PAIRS - 1
    assert sum(reads) < 6 * PAIRS
    assert machine.cache.nbytes == WANTED


def test_reading_that_others_slow_down_is_noticed_after_a_product(machine: Machine) -> None:
    def work(tiles: KeptTiles | None) -> None:
        slowed = tiles is not None and tiles.filled and machine.cache.nbytes > PAIR_BYTES
        machine.now += 0.8 if slowed else 0.0  # to a second a pair, once there is more than one to read
        Machine.work(machine, tiles)

    machine.work = work  # type: ignore[method-assign]
    reads, ratio = run_of(machine, 60)
    assert machine.cache.nbytes == 0
    assert sum(reads) < 3 * PAIRS
    assert ratio < 1.05
    assert "given up: reading takes" in machine.why


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_memory_that_is_freed_goes_back_to_the_system() -> None:
    cache, terms = TileCache(), Keeping(TileBudget(GIB), 1)

    def fill(tiles: KeptTiles | None) -> None:
        assert tiles is not None
        tiles.entries[:] = 1
        tiles.filled = True

    # Of a size that an allocator would hold back.
    before = resident_bytes()
    for pair in range(64):
        cache.use(TileRequest("run", (pair, 0), terms, lambda: KeptTiles(fresh_array(2**20, np.uint8))), fill)
    held = resident_bytes()
    cache.discard_run("run")
    assert held - before > 60 * 2**20
    assert resident_bytes() - before < 8 * 2**20


def touched_again_and_again(memory: NDArray[np.uint8]) -> None:
    """Touch pages that are taken away a hundred times before: each time they are new to the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(100):
        memory[:: mmap.PAGESIZE] = 0
        assert (
            libc.madvise(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes), mmap.MADV_DONTNEED) == 0
        )
    memory[:: mmap.PAGESIZE] = 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="pages cannot be given back here")
def test_a_run_on_dear_pages_keeps_nothing_and_has_the_same_bits(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 4000
    X, V = rng.standard_normal((n, 3)), rng.standard_normal((n, 1))
    budget = TileBudget(kept_bytes_of(n), measured=True, products=30.0)

    def products(tiles: TileBudget, count: int) -> tuple[list[NDArray[np.float64]], int, str]:
        executor = LocalExecutor(2, tiles)
        with BlockedKernelOperator(SquaredExponential((0.3, 0.3, 0.3)), 0.1, ArrayInputs(X), executor) as operator:
            found = [operator.matmat(V, "single") for _ in range(count)]
            held, reason = worker_tiles().nbytes, operator.kept["reason"]
        executor.close()
        return found, held, reason

    expected = products(TileBudget(), 1)[0][0]
    with monkeypatch.context() as patched:
        patched.setattr(keeping, "touch_pages", touched_again_and_again)
        dear, held, reason = products(budget, 4)
    assert held == 0
    assert "new memory is slow" in reason
    cheap, _, _ = products(budget, 4)
    for product in (*dear, *cheap):
        np.testing.assert_array_equal(product, expected)


def test_threads_share_what_they_see(machine: Machine) -> None:
    with ThreadPoolExecutor(4) as pool:
        terms = [Keeping(TileBudget(2 * WANTED, measured=True), turn, WANTED, 20.0, 0.9) for turn in (1, 2, 3)]
        first = replace(terms[0], run_share=0.0)
        for keeping_terms in (first, terms[1], terms[2]):
            requests = [TileRequest("run", (pair, 0), keeping_terms, machine.room) for pair in range(PAIRS)]
            tasks = [pool.submit(machine.cache.use, request, machine.work) for request in requests]
            read = [task.result() for task in tasks]
    assert machine.cache.nbytes == PAIR_BYTES * len(machine.cache._entries)
    assert sum(read) > PAIRS // 2


# Tiles that are kept: within the budget, and out of turn first.


ROOM = 100  # bytes of a pair


def room() -> KeptTiles:
    return KeptTiles(np.empty(ROOM, np.int8))


def fill(tiles: KeptTiles | None) -> None:
    if tiles is not None:
        tiles.filled = True


def use(cache: TileCache, pair: tuple[int, int], turn: int, budget: int = 3 * ROOM, run: str = "run") -> bool:
    return cache.use(TileRequest(run, pair, Keeping(TileBudget(budget), turn), room), fill)


def test_what_fits_is_kept_and_stays() -> None:
    cache = TileCache()
    pairs = [(i, 0) for i in range(5)]
    assert [use(cache, pair, 1) for pair in pairs] == [False] * 5
    # A cache that put out the oldest would hold none of the first three by now.
    for turn in (2, 3):
        assert [use(cache, pair, turn) for pair in pairs] == [True] * 3 + [False] * 2
    assert cache.nbytes == 3 * ROOM


def test_what_a_whole_product_passed_by_makes_room() -> None:
    cache = TileCache()
    for pair in [(0, 0), (1, 0), (2, 0)]:
        use(cache, pair, 1)
    for turn in (2, 3):
        assert [use(cache, pair, turn) for pair in [(0, 0), (1, 0)]] == [True] * 2
        assert not use(cache, (9, 0), turn)
    assert use(cache, (9, 0), 4)
    assert not use(cache, (2, 0), 4)
    assert cache.nbytes == 3 * ROOM


@pytest.mark.parametrize("later", [1.0, 800.0])
def test_tiles_of_another_run_stay_until_it_is_long_gone(monkeypatch: pytest.MonkeyPatch, later: float) -> None:
    cache, now = TileCache(), [1000.0]
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now[0])
    use(cache, (0, 0), 7, ROOM, "old")
    use(cache, (0, 0), 1, ROOM, "new")
    assert not use(cache, (0, 0), 2, ROOM, "new")
    now[0] += keeping.FORGOTTEN_SECONDS + later
    use(cache, (0, 0), 3, ROOM, "new")
    assert use(cache, (0, 0), 4, ROOM, "new")
    assert not use(cache, (0, 0), 8, ROOM, "old")


def test_a_run_is_forgotten_as_a_whole() -> None:
    cache = TileCache()
    use(cache, (0, 0), 1, run="one")
    use(cache, (0, 0), 1, run="other")
    cache.discard_run("one")
    assert cache.nbytes == ROOM
    assert use(cache, (0, 0), 2, run="other")
    assert not use(cache, (0, 0), 2, run="one")


def test_nothing_is_kept_where_the_machine_has_little_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found = psutil.virtual_memory()
    monkeypatch.setattr(keeping.psutil, "virtual_memory", lambda: found._replace(available=found.total // 50))
    cache = TileCache()
    assert not use(cache, (0, 0), 1)
    assert not use(cache, (0, 0), 2)
    assert cache.nbytes == 0


@pytest.mark.parametrize(("more", "kept"), [(-1, False), (1, True)])
def test_what_is_kept_is_not_of_the_memory_that_stays_free(
    monkeypatch: pytest.MonkeyPatch, more: int, kept: bool
) -> None:
    found, total = psutil.virtual_memory(), 10**9
    free = int(keeping.SPARED_SHARE * total) + ROOM + more
    monkeypatch.setattr(keeping.psutil, "virtual_memory", lambda: found._replace(available=free, total=total))
    cache = TileCache()
    use(cache, (0, 0), 1)
    assert use(cache, (0, 0), 2) is kept


def test_work_that_fails_leaves_nothing_that_looks_filled() -> None:
    cache = TileCache()

    def fail(tiles: KeptTiles | None) -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        cache.use(TileRequest("run", (0, 0), Keeping(TileBudget(ROOM), 1), room), fail)
    assert not use(cache, (0, 0), 2)
    assert use(cache, (0, 0), 3)


def test_two_threads_at_one_pair_do_not_wait_for_each_other() -> None:
    cache, given = TileCache(), []
    both = threading.Barrier(2, timeout=240)

    def work(tiles: KeptTiles | None) -> None:
        given.append(tiles)
        both.wait()
        fill(tiles)

    with ThreadPoolExecutor(2) as pool:
        request = TileRequest("run", (0, 0), Keeping(TileBudget(ROOM), 1), room)
        tasks = [pool.submit(cache.use, request, work) for _ in range(2)]
        assert [task.result() for task in tasks] == [False, False]
    assert sum(tiles is None for tiles in given) == 1
    assert use(cache, (0, 0), 2, ROOM)
