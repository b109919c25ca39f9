"""The preconditioner: its factor, growth, places in memory and on disk, and hostile problems."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget, worker_cache
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.keeping import kept_bytes_of
from dkgp.operators.vecchia.leaves import OpenBundle
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    MaxIterations,
    Solution,
    solve,
)
from dkgp.solvers.conjugate.preconditioner import MOST_LEVELS, WINDOW, Growth, Price
from dkgp.solvers.driver import Watch
from dkgp.solvers.prices import Sizes
from tests.resuming import Resuming, require_same_bits
from tests.solvers.problems import arm_problem

GIBIBYTE = 1024**3


@pytest.mark.parametrize("n", [10, 300, 3_000, 30_000, 300_000, 1_000_000])
def test_what_is_chosen_fits_the_memory_and_the_samples(n: int) -> None:
    chosen = FactorPreconditioning().resolved(n, 8)
    assert 1 <= chosen.leaf <= chosen.halo <= n
    assert 0 <= chosen.rank <= min(n, 300)
    assert 4 * n * chosen.numbers <= max(GIBIBYTE, 2560 * n)
    assert chosen.resolved(n, 8) == chosen


def test_a_halo_follows_the_samples() -> None:
    assert FactorPreconditioning().resolved(20_000, 8) == FactorPreconditioning(1000, 500, 200)
    # 8 sqrt(n) of them, since a twentieth would cost as much as many products.
    assert FactorPreconditioning(rank=0).resolved(40_000, 8).halo == 1600
    assert FactorPreconditioning(900, rank=0).resolved(40_000, 8) == FactorPreconditioning(900, 450, 0)
    assert FactorPreconditioning(rank=0, leaf=100, memory_bytes=40_000_000).resolved(20_000, 8).halo == 400


def test_the_rank_alone_follows_memory_and_samples() -> None:
    assert FactorPreconditioning(0).resolved(10_000, 8).rank == 1000
    assert FactorPreconditioning(0, memory_bytes=4_000_000).resolved(10_000, 8).rank == 100
    assert FactorPreconditioning(0).resolved(50, 8).rank == 50
    assert FactorPreconditioning(0, rank=70).resolved(50, 8).rank == 50
    assert FactorPreconditioning(700, 60, 80).resolved(50, 8) == FactorPreconditioning(50, 50, 50)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": -1}, "rank must be 'auto' or at least 0; got -1"),
        ({"halo": -1}, "halo must be 'auto' or at least 0; got -1"),
        ({"leaf": 0}, "leaf must be 'auto' or at least 1; got 0"),
        ({"halo": 0, "rank": 0}, "got `halo` 0 and `rank` 0. Raise one of them, or.*`solver` cg"),
        ({"halo": 0, "leaf": 5}, "a leaf goes with a halo; got `leaf` 5 and `halo` 0"),
        ({"rank": 0, "landmarks": "uniform"}, "no landmarks to draw with `rank` 0; got `landmarks` uniform"),
        ({"landmarks": "best"}, "landmarks must be one of pivoted, uniform, polynomials; got 'best'"),
        ({"memory_bytes": 0}, "must not be negative"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FactorPreconditioning(**settings)


@pytest.mark.parametrize(
    ("settings", "numbers"), [({"halo": 0, "rank": 1000}, 1000), ({"halo": 600, "leaf": 300}, 906), ({"rank": 30}, 30)]
)
def test_what_is_named_beyond_its_memory_is_refused_with_numbers(settings: dict[str, Any], numbers: int) -> None:
    expected = f"takes {40_000 * numbers:,} bytes.*may take 1,000,000. Lower them to 25 in all"
    with pytest.raises(InputError, match=expected):
        FactorPreconditioning(**settings, memory_bytes=1_000_000).resolved(10_000, 8)
    # Where nobody gave a limit, the plan of the run's memory is to refuse.
    FactorPreconditioning(**settings).resolved(10**7, 8)


def test_a_low_rank_factor_alone_keeps_the_settings_of_before() -> None:
    """So that its checkpoints are gone on from."""
    solver = ConjugateGradient(FactorPreconditioning(0)).resolved(40_000, 8)
    assert solver.settings() == {
        "solver": "pcg",
        "precision": "mixed",
        "preconditioner": {"rank": 2000, "landmarks": "pivoted", "memory_bytes": GIBIBYTE, "seed": 0},
    }
    assert FactorPreconditioning(900, 450, 7).settings()["halo"] == 900


class TestGrowth:
    def test_it_doubles_halo_and_leaf_as_far_as_memory_goes(self) -> None:
        small = FactorPreconditioning(500, 250, 100, memory_bytes=4 * 30_000 * 4000)
        assert small.grown(30_000) == FactorPreconditioning(1000, 500, 100, memory_bytes=small.memory_bytes)
        assert small.grown(30_000, 2).halo == 2000
        assert small.grown(30_000, 3) == small.grown(30_000, 2)
        assert small.grown(1000) == small
        assert FactorPreconditioning(0, rank=100).grown(30_000).halo == 0
        # Memory is planned for the largest.
        held = small.memory(30_000, 8)
        assert held.cached_bytes > 4 * 30_000 * 2000 > FactorPreconditioning(500, 250, 100).numbers * 4 * 30_000
        assert held.own_bytes > 0
        assert FactorPreconditioning(0, rank=200).memory(30_000, 8).factor_bytes == 200 * (4 * 30_000 + 16 * 200)

    def test_its_price_is_that_of_its_operations(self) -> None:
        """At n = 30,000 and s = 1,500 it was measured to cost as much as 21 products, and an application a quarter.

        Prices are good to half of that.
        """
        price = FactorPreconditioning(1500, 750, 0).price(Sizes(30_000, 8))
        product = FactorPreconditioning(0, rank=1).price(Sizes(30_000, 8)).iteration
        assert 14 < price.build / product < 32
        assert 1.1 < price.iteration / product < 1.5


NOW, LARGER = Price(10.0, 1.0), Price(40.0, 1.1)


def falling(by: float, rounds: int = WINDOW + 1) -> Growth:
    growth = Growth()
    for norm in by ** np.arange(rounds):
        growth.note(float(norm))
    return growth


class TestWhenItPays:
    def test_where_what_is_left_costs_more_than_a_larger_factor(self) -> None:
        # At .9 an iteration 88 are left until 1e-4, and 54 with twice the halo: 34 saved do not pay 60.
        assert not falling(0.9).is_worth(1e4, NOW, LARGER)
        # At .97 it is 302 and 180.
        assert falling(0.97).is_worth(1e4, NOW, LARGER)
        assert falling(1.0).is_worth(1.5, NOW, LARGER)
        assert falling(1.01).is_worth(1.5, NOW, LARGER)

    def test_not_before_the_rate_is_known_nor_without_an_end(self) -> None:
        assert not falling(1.0, WINDOW).is_worth(1e4, NOW, LARGER)
        assert not falling(1.0).is_worth(np.inf, NOW, LARGER)
        assert not falling(1.0).is_worth(1.0, NOW, LARGER)
        assert not Growth(0, [1.0] * WINDOW + [0.0]).is_worth(2.0, NOW, LARGER)

    @pytest.mark.parametrize("share", [0.99, 1.01])
    def test_what_it_may_cost_is_two_thirds_of_what_the_iterations_saved_take(self, share: float) -> None:
        """By the fall over twelve iterations, however the norms went up and down, and with two of zero on the way."""
        rng = np.random.default_rng(7)
        for last in (0.5, 1e-3, 3.0):  # where nothing fell, as if it took a billion iterations to fall by e
            norms = [7.0, *rng.uniform(0.1, 9.0, 11), 7.0 * last]
            norms[1] = norms[-2] = 0.0
            for left in (1.2, 1e5):
                iterations, reached = 1e9 * np.log(left), 1.0
                if last < 1.0:
                    iterations = 0.0
                    while reached * last ** (1 / 12) > 1.0 / left:
                        iterations, reached = iterations + 1.0, reached * last ** (1 / 12)
                    iterations += np.log(left * reached) * 12 / np.log(1.0 / last)
                saved = iterations * (2.0 - 2.1 * 0.5**0.75)
                larger = Price(share * saved / 1.5, 2.1)
                assert bool(Growth(2, norms).is_worth(left, Price(10.0, 2.0), larger)) is (share < 1.0)

    def test_only_the_last_rounds_count_and_only_so_often(self) -> None:
        growth = falling(0.5, 20)
        for _ in range(WINDOW + 1):
            growth.note(1e-3)
        assert growth.is_worth(2.0, NOW, LARGER)
        for level in range(1, MOST_LEVELS + 1):
            growth.grow()
            assert (growth.level, growth.norms) == (level, [])
        for _ in range(WINDOW + 1):
            growth.note(1e-3)
        assert not growth.is_worth(2.0, NOW, LARGER)
        assert Growth.of(growth.metadata()) == growth
        assert Growth.of({"iteration": 3}) == Growth()


PROBLEM = arm_problem(1200)
PROBLEM.noise_variance = 1e-4
SOLVER = ConjugateGradient(FactorPreconditioning(16, 16, 0))
STOPPING = GradientInfNorm(1e-4)


def solved(executor: LocalExecutor, solver: Any = SOLVER, stopping: Any = STOPPING, **watch: Any) -> Solution:
    return solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=stopping, watch=Watch(**watch))


@pytest.fixture(scope="module")
def whole(executor: LocalExecutor) -> Solution:
    return solved(executor)


@pytest.mark.slow
def test_a_hard_problem_is_gone_on_with_by_larger_factors(executor: LocalExecutor, whole: Solution) -> None:
    sizes: list[tuple[int, int]] = []
    solver = ConjugateGradient(
        SOLVER.preconditioner, observe=lambda state: sizes.append((state.growth.level, state.iteration))
    )
    again = solved(executor, solver=solver)
    np.testing.assert_array_equal(again.alpha, whole.alpha)
    assert whole.converged
    assert max(level for level, _ in sizes) >= 2
    # As many rounds as it would take without are not needed.
    limited = FactorPreconditioning(16, 16, 0, memory_bytes=4 * 1200 * 40)
    assert limited.grown(1200) == limited
    without = solved(executor, solver=ConjugateGradient(limited))
    assert whole.progress.iteration < 0.6 * without.progress.iteration


class Killed(BaseException):
    pass


@pytest.mark.long
@pytest.mark.parametrize("build", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_while_a_larger_factor_is_built_it_resumes_to_the_same_bits(
    executor: LocalExecutor, whole: Solution, tmp_path: Path, build: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = PROBLEM.blocked(executor)
    submit, count = operator.submit, [0, 0]

    def dying(name: str, *arguments: Any) -> Any:
        count[0] += name == "kvorder"
        count[1] += name == "kvbuild" and count[0] == build + 1
        if count[1] == 3:
            raise Killed
        return submit(name, *arguments)

    def run(operator: BlockedKernelOperator, **watch: Any) -> Solution:
        return solve(operator, PROBLEM.y, solver=SOLVER, stopping=STOPPING, watch=Watch(**watch))

    monkeypatch.setattr(operator, "submit", dying)
    kept = Resuming(run, tmp_path)
    with pytest.raises(Killed):
        kept.start(operator=operator, every_seconds=0.0)
    latest = kept.store.load_latest()
    assert latest is not None
    assert latest.metadata["state"]["level"] == build - 1
    assert latest.sequence_number >= WINDOW * build
    kept.require_same(whole, operator=PROBLEM.blocked(executor))


@pytest.mark.spread(1)
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_broken_off_anywhere_it_resumes_to_the_same_bits(
    executor: LocalExecutor, whole: Solution, tmp_path: Path, share: float
) -> None:
    kept = Resuming(partial(solved, executor), tmp_path)
    kept.interrupt(round(share * (len(whole.history) - 1)))
    kept.require_same(whole)


PROBLEM_PLACES = arm_problem(1000)
PROBLEM_PLACES.noise_variance = 1e-3
SOLVER_PLACES = ConjugateGradient(FactorPreconditioning(60, 30, 15))
# It proves harder than foreseen: two larger factors are made.
LEAVES = 34 + 17 + 9
# Of the leaves, which take 1000 (60 + 30 / 2 + 15) numbers or so, and of what is cached beside them.
FEW_BYTES, NO_BYTES = 600_000, 1_000


def solved_places(threads: int = 2, tiles: int = 0, **watch: Any) -> Solution:
    executor = LocalExecutor(threads, TileBudget(tiles))
    try:
        with PROBLEM_PLACES.blocked(executor) as operator:
            return solve(
                operator, PROBLEM_PLACES.y, solver=SOLVER_PLACES, stopping=GradientInfNorm(1e-5), watch=Watch(**watch)
            )
    finally:
        executor.close()


@pytest.fixture(scope="module")
def whole_places() -> Solution:
    """One thread, everything in memory, no tiles kept."""
    worker_cache().clear()
    found = solved_places(1)
    assert found.converged
    assert found.refreshes > 0
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Leaves that are made, each time that they are."""
    count, make = [0], OpenBundle._made

    def counting(self: OpenBundle, place: int) -> Any:
        count[0] += 1
        return make(self, place)

    monkeypatch.setattr(OpenBundle, "_made", counting)
    yield count
    worker_cache().clear()


@pytest.mark.spread(1)
@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_tiles_kept_or_not(whole_places: Solution, threads: int, share: float) -> None:
    require_same_bits(solved_places(threads, int(share * kept_bytes_of(1000))), whole_places)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("budget", "tiles"),
    [(10**9, 0), (10**9, 10**9), (FEW_BYTES, 0), (FEW_BYTES, 10**9), pytest.param(NO_BYTES, 0, marks=pytest.mark.slow)],
)
def test_leaves_in_memory_or_on_disk(
    whole_places: Solution, made: list[int], budget: int, tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_cache(), "budget_bytes", budget)
    worker_cache().clear()
    require_same_bits(solved_places(tiles=tiles), whole_places)
    if budget > NO_BYTES:  # there not even what tells where they lie is kept
        assert made[0] == LEAVES


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk that has room for so many bytes of leaves; returns what is left of it."""
    left, write = [count], os.pwrite

    def little(descriptor: int, content: Any, place: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, content[: left[0]], place)
        left[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", little)
    return left


@pytest.mark.parametrize("room", [pytest.param(0, marks=pytest.mark.slow), 50_000])
def test_a_scratch_disk_that_is_full(
    whole_places: Solution, made: list[int], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts without space on the disk are computed anew for each use."""
    left = full_after(room, monkeypatch)
    monkeypatch.setattr(worker_cache(), "budget_bytes", FEW_BYTES)
    worker_cache().clear()
    require_same_bits(solved_places(), whole_places)
    assert left == [0]
    assert made[0] > 2 * LEAVES


@pytest.mark.long
def test_broken_off_on_a_full_disk_and_resumed_with_room(
    whole_places: Solution, made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Resuming(solved_places, tmp_path)
    with monkeypatch.context() as patch:
        full_after(20_000, patch)
        patch.setattr(worker_cache(), "budget_bytes", FEW_BYTES)
        worker_cache().clear()
        kept.interrupt(len(whole_places.history) // 2)
    assert made[0] > LEAVES
    worker_cache().clear()
    kept.require_same(whole_places, threads=3, tiles=10**9)


def test_another_seed_is_other_bits(whole_places: Solution) -> None:
    """Otherwise equal ones would say little."""
    executor = LocalExecutor(2)
    other = ConjugateGradient(FactorPreconditioning(60, 30, 15, seed=1))
    with PROBLEM_PLACES.blocked(executor) as operator:
        found = solve(operator, PROBLEM_PLACES.y, solver=other, stopping=GradientInfNorm(1e-5))
    executor.close()
    assert found.alpha.tobytes() != whole_places.alpha.tobytes()
    np.testing.assert_allclose(found.alpha, whole_places.alpha, rtol=0, atol=0.05)


N = 300
FACTOR = FactorPreconditioning(40, 20, 10)


def rbf(d: int = 3, gamma: float = 1 / 3, variance: float = 1.0) -> SquaredExponential:
    return SquaredExponential(gamma=(gamma,) * d, variance=variance)


def drawn(n: int = N, d: int = 3) -> np.ndarray:
    return np.random.default_rng([n, d]).standard_normal((n, d))


def targets(n: int, p: int = 1) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, p))


def solved_hostile(
    executor: LocalExecutor,
    X: np.ndarray,
    kernel: Kernel | None = None,
    noise: Any = 0.01,
    factor: FactorPreconditioning = FACTOR,
    tolerance: float = 1e-6,
) -> Solution:
    """A solve to the end, its gradient and its solution as dense algebra has them."""
    kernel = kernel or rbf(X.shape[1])
    operator = BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor)
    y, stopping = targets(len(X)), GradientInfNorm(tolerance) | MaxIterations(300)
    found = solve(operator, y, solver=ConjugateGradient(factor), stopping=stopping)
    assert found.converged
    K = kernel(X, X) + np.diag(np.broadcast_to(noise, len(X)))
    assert np.abs(K @ found.alpha - y).max() <= 2.0 * tolerance
    np.testing.assert_allclose(K @ found.alpha - y, found.gradient, rtol=0, atol=0.5 * tolerance)
    # |alpha - alpha*| <= |K^-1| |g|, whatever K is like.
    least = np.linalg.eigvalsh(K)[0]
    expected = np.linalg.solve(K, y)
    assert np.linalg.norm(found.alpha - expected) <= 3.0 * np.linalg.norm(found.gradient) / least + 1e-9
    return found


def with_column(values: Any) -> np.ndarray:
    X = drawn()
    X[:, 1] = values
    return X


INPUTS = {
    "every row twice": np.repeat(drawn(150), 2, axis=0),
    "every row twenty times": np.repeat(drawn(15), 20, axis=0),
    "all rows equal": np.ones((N, 3)),
    "one feature constant": with_column(7.0),
    "one feature of scale 1e12": with_column(1e12 * drawn()[:, 1]),
    "one feature far from zero": with_column(1e12 + drawn()[:, 1]),
    "one feature of scale 1e-30": with_column(1e-30 * drawn()[:, 1]),
    "one value far out": with_column(np.r_[1e30, drawn()[1:, 1]]),
    "one feature": drawn(d=1),
    "three hundred features": drawn(d=300),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(executor: LocalExecutor, name: str) -> None:
    solved_hostile(executor, INPUTS[name])


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_a_value_beyond_float32(executor: LocalExecutor) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        solved_hostile(executor, with_column(np.r_[1e39, -1e200, drawn()[2:, 1]]))


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("factor", [FactorPreconditioning(), FACTOR, FactorPreconditioning(1, 1, 1)])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_few_samples(executor: LocalExecutor, n: int, factor: FactorPreconditioning, equal: bool) -> None:
    solved_hostile(executor, np.ones((n, 3)) if equal else drawn(n), factor=factor)


@pytest.mark.spread(3)
@pytest.mark.covering
@pytest.mark.parametrize(
    "factor",
    [
        FactorPreconditioning(N, 20, 0),
        FactorPreconditioning(10 * N, 10 * N, 10 * N),
        FactorPreconditioning(40, 1, 10),
        FactorPreconditioning(1, 1, 0),
        FactorPreconditioning(1, N, 0),
        FactorPreconditioning(40, 20, N),
        FactorPreconditioning(0, rank=N),
    ],
    ids=["halo n", "all beyond n", "leaf 1", "halo 1", "leaf n", "rank n", "rank n alone"],
)
@pytest.mark.parametrize("every", [1, 4])
def test_sizes(executor: LocalExecutor, factor: FactorPreconditioning, every: int) -> None:
    found = solved_hostile(executor, np.repeat(drawn(N // every), every, axis=0), factor=factor)
    if max(factor.halo, factor.leaf if factor.halo else 0, factor.rank) >= N:
        assert found.progress.iteration <= 5


def test_landmarks_that_are_all_one_sample(executor: LocalExecutor) -> None:
    solved_hostile(executor, np.ones((N, 3)), factor=FactorPreconditioning(40, 20, 200, "uniform"))


@pytest.mark.parametrize("factor", [FACTOR, FactorPreconditioning(150, 75, 0)])
@pytest.mark.parametrize("every", [1, 2])
def test_noise_by_sample_of_ten_orders(executor: LocalExecutor, every: int, factor: FactorPreconditioning) -> None:
    noise = 10.0 ** np.random.default_rng(3).uniform(-8.0, 2.0, N)
    X = np.repeat(drawn(N // every), every, axis=0)
    solved_hostile(executor, X, noise=noise, factor=factor, tolerance=1e-4)


@pytest.mark.parametrize("noise", [1e-8, 1e-6, 1e10])
@pytest.mark.parametrize("every", [1, 2])
def test_noise(executor: LocalExecutor, noise: float, every: int) -> None:
    solved_hostile(executor, np.repeat(drawn(N // every), every, axis=0), noise=noise, tolerance=1e-4)


@pytest.mark.parametrize(("variance", "gamma"), [(1e-8, 0.3), (1e-38, 0.3), (1.0, 1e10), (1.0, 1e-10), (1e6, 0.3)])
def test_kernels_parameters(executor: LocalExecutor, variance: float, gamma: float) -> None:
    solved_hostile(executor, drawn(), rbf(3, gamma, variance), tolerance=1e-4)


@pytest.mark.covering
@pytest.mark.parametrize("noise", [0.01, 1e-6])
@pytest.mark.parametrize(
    "text", ["linear", "polynomial(degree=3)", "constant", "periodic * rbf", "rbf * linear", "linear + matern12"]
)
def test_kernels_without_a_metric(executor: LocalExecutor, text: str, noise: float) -> None:
    solved_hostile(executor, np.repeat(drawn(N // 2), 2, axis=0), parse_kernel(text, 3), noise, tolerance=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_refused(executor: LocalExecutor, bad: float) -> None:
    with pytest.raises(InputError, match=f"inputs must be finite; got {bad} in row 3, column 1"):
        solved_hostile(executor, with_column(np.r_[drawn()[:3, 1], bad, drawn()[4:, 1]]))


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.r_[0.0, np.ones(N - 1)]])
def test_noise_that_is_none_is_refused(executor: LocalExecutor, noise: Any) -> None:
    with pytest.raises(InputError, match=r"noise variances? must be finite and positive; got (0\.0|-1\.0|nan)"):
        solved_hostile(executor, drawn(), noise=noise)


@pytest.mark.parametrize("noise", [1e-12, 1e-14, 1e-16])
def test_noise_beyond_float64_is_never_called_solved(executor: LocalExecutor, noise: float) -> None:
    """Every row twice: what rounding leaves of K is larger, and no tolerance is met by what is not a solution."""
    X, y = np.repeat(drawn(N // 2), 2, axis=0), targets(N)
    operator = BlockedKernelOperator(rbf(), noise, ArrayInputs(X), executor)
    stopping = GradientInfNorm(1e-4) | MaxIterations(100)
    found = solve(operator, y, solver=ConjugateGradient(FACTOR), stopping=stopping)
    # Which of them depends on the processor's roundings.
    assert found.reason.rule in ("rounding", "max_iterations")
    assert not found.converged
    assert "noise variance" in found.reason.advice or found.reason.rule == "max_iterations"
    assert np.abs((rbf()(X, X) + noise * np.eye(N)) @ found.alpha - y).max() > 1e-4


@pytest.mark.parametrize("noise", [0.1, 1e-6])
@pytest.mark.parametrize("factor", [FactorPreconditioning(4, 3, 2), FactorPreconditioning(12, 12, 0)])
def test_a_dozen_samples_against_fifty_digits(
    executor: LocalExecutor, factor: FactorPreconditioning, noise: float
) -> None:
    X, y = drawn(12, 2), targets(12)
    operator = BlockedKernelOperator(rbf(2, 0.7, 1.3), noise, ArrayInputs(X), executor)
    stopping = GradientInfNorm(1e-9) | MaxIterations(100)
    found = solve(operator, y, solver=ConjugateGradient(factor), stopping=stopping)
    assert found.converged
    with mpmath.workdps(50):
        K = mpmath.matrix(12, 12)
        for i in range(12):
            for j in range(12):
                square = sum((mpmath.mpf(a) - mpmath.mpf(b)) ** 2 for a, b in zip(X[i], X[j], strict=True))
                K[i, j] = mpmath.mpf(1.3) * mpmath.exp(-mpmath.mpf(0.7) * square) + (noise if i == j else 0)
        expected = mpmath.lu_solve(K, mpmath.matrix(y[:, 0].tolist()))
        gradient = K * mpmath.matrix(found.alpha[:, 0].tolist()) - mpmath.matrix(y[:, 0].tolist())
    assert max(abs(value) for value in gradient) <= 1.1e-9
    exact = np.array([float(value) for value in expected])
    np.testing.assert_allclose(found.alpha[:, 0], exact, rtol=0, atol=2e-9 / noise)
