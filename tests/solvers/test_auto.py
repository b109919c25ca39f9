"""The choice of a solver, and the prices that it compares."""

from __future__ import annotations

import functools
import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.errors import InputError, UsageError
from dkgp.kernels import Kernel, Linear, Matern32, SquaredExponential, Wendland
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.operators.product_error import ProductError
from dkgp.solvers import Cholesky, ConjugateGradient, GreedyBlockCoordinateDescent, MaxIterations, choose_solver, solve
from dkgp.solvers.auto import CHOLESKY_UNLESS_EASY, CHOLESKY_WITHOUT_A_LOOK, Choice, choose_by, probed_samples
from dkgp.solvers.block_descent.block_size import descent_phases, projected_round
from dkgp.solvers.cholesky.in_memory import cholesky_phases
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning, conjugate_phases, leaves_work
from dkgp.solvers.conjugate.probe import Probe
from dkgp.solvers.prices import Prices, Sizes, Work, core_seconds
from dkgp.solvers.registry import build_solver
from dkgp.solvers.stopping import GradientInfNorm


def samples(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def probe_of(kernel: Kernel, n: int, noise: float, **options: Any) -> Probe:
    return Probe(kernel, noise, samples(1000, kernel.n_features), n, **options)


@functools.cache
def shared_probe(kernel: Kernel, n: int, noise: float, **options: Any) -> Probe:
    """Return a probe that counts once for all choices from it."""
    probe = probe_of(kernel, n, noise, **options)
    probe.iterations = functools.cache(probe.iterations)  # type: ignore[method-assign]
    return probe


@functools.cache
def choice(kernel: Kernel, n: int, noise: float = 0.05, **options: Any) -> Choice:
    probed = {name: options.pop(name) for name in ("tolerance", "seed") if name in options}
    return choose_by(shared_probe(kernel, n, noise, **probed), **options)


SMOOTH = SquaredExponential(gamma=(0.05, 0.05))
ROUGH = SquaredExponential(gamma=(0.5,) * 8)
BETWEEN = SquaredExponential(gamma=(1.0,) * 4)


def test_small_halos_are_looked_at_where_large_ones_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once local polynomials are in sight, the first halo's leaves alone take longer than they do."""
    monkeypatch.setattr(ProductError, "share", lambda self, kernel, n: 0.44)
    inputs = np.random.default_rng(0).uniform(-1.73, 1.73, (1000, 2))
    choice = choose_by(Probe(Wendland.from_length_scales((0.69, 0.69)), 0.01, inputs, 80_000))
    assert 200 < choice.halo < 800
    assert choice.landmarks is None
    assert choice.products < 12


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("kernel", "noise", "n", "spared"),
    [
        (SquaredExponential((1.0, 1.0)), 1e-3, 8000, 4.0),
        # Halos that the way to the best one leads over take longer than the rank.
        (SquaredExponential((0.03,) * 8), 2e-3, 5000, 1.0),  # 707 on either processor; with NEAR at 1 a rank of 124
    ],
    ids=["rank", "halo"],
)
def test_a_look_at_a_rank_spares_halos_and_changes_no_choice(
    kernel: Kernel, noise: float, n: int, spared: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, iterations = [0.0], Probe.iterations

    def counted(probe: Probe, halo: int, leaf: int, rank: int, most: float = 400.0) -> float:
        count = iterations(probe, halo, leaf, rank, most)
        looked[-1] += min(count, most) if halo else 0.0
        return count

    monkeypatch.setattr(Probe, "iterations", counted)
    inputs = samples(probed_samples(n), kernel.n_features)
    found = choose_by(Probe(kernel, noise, inputs, n))
    looked.append(0.0)
    monkeypatch.setattr("dkgp.solvers.auto.NEAR", np.inf)
    assert choose_by(Probe(kernel, noise, inputs, n)) == found
    assert found.solver == "pcg"
    assert bool(found.halo) == (spared == 1.0)
    assert looked[1] >= spared * looked[0]


def test_few_samples_are_factored_without_a_look() -> None:
    found = choose_solver(SMOOTH, 0.1, np.empty((0, 2)), 2800)
    assert (found.solver, found.projected, found.options) == ("cholesky", {}, {})


def test_of_some_thousand_samples_one_look_tells_the_easy_ones() -> None:
    assert CHOLESKY_WITHOUT_A_LOOK < choice(ROUGH, 3500, noise=0.5).projected["cholesky"] < CHOLESKY_UNLESS_EASY
    easy, hard = choice(ROUGH, 3500, noise=0.5), choice(BETWEEN, 3500, noise=1e-4)
    assert (easy.solver, easy.halo, easy.leaf, easy.rank) == ("pcg", 350, 175, 0)
    assert easy.projected["pcg"] <= 0.5 * easy.projected["cholesky"]
    assert (hard.solver, hard.projected.keys()) == ("cholesky", {"cholesky"})


def test_a_smooth_problem_gets_a_low_rank_factor_alone() -> None:
    found = choice(SMOOTH, 50_000)
    assert (found.solver, found.halo, found.leaf) == ("pcg", 0, None)
    # A twentieth of the most that a rank may be, and no rank between it and those beside it comes to less.
    assert found.rank is not None
    assert found.rank <= 300
    assert "rank" in found.reason
    assert "gbcd" in found.reason


@pytest.mark.parametrize("n", [20_000, 50_000, 1_000_000])
def test_no_rank_beside_the_one_that_is_chosen_comes_to_less(n: int) -> None:
    """The best of the first four is not yet the end: half as many again, and two thirds, until it gets worse."""
    probe, sizes, prices = Probe(SMOOTH, 0.05, samples(1000, 2), n), Sizes(n, 2, 1, False), Prices.nominal(2)
    found = choose_by(probe)

    def comes_to(rank: int) -> float:
        once = [core_seconds(conjugate_phases(sizes, count, rank=rank), prices) for count in (0.0, 1.0)]
        return once[0] + probe.iterations(0, 0, rank) * (once[1] - once[0])

    assert found.rank is not None
    assert comes_to(found.rank) == pytest.approx(found.projected["pcg"], rel=1e-9)
    for rank in (1.5 * found.rank, found.rank / 1.5):
        assert comes_to(round(rank)) >= found.projected["pcg"]


def test_a_problem_with_many_directions_and_little_noise_gets_a_halo() -> None:
    found = choice(BETWEEN, 30_000, noise=0.005)
    assert found.solver == "pcg"
    assert found.options.keys() == {"halo", "leaf", "rank"}
    assert found.halo is not None
    assert found.leaf == -(-found.halo // 2)
    assert f"halos of {found.halo:,}" in found.reason
    build_solver(found.solver, found.options).resolved(30_000, 4)


def test_more_memory_is_not_taken_than_there_is() -> None:
    for numbers in (2000, 300, 100, 40):
        found = choice(BETWEEN, 30_000, noise=0.005, memory_bytes=4 * 30_000 * numbers)
        assert sum(found.options.values()) <= numbers


def test_what_leaves_no_memory_for_a_factor_gets_greedy_descent() -> None:
    found = choice(BETWEEN, 30_000, noise=0.005, memory_bytes=4 * 30_000 * 40)
    assert (found.solver, found.options) == ("gbcd", {})
    assert "column passes" in found.reason


def test_unlike_workers_get_a_solver_that_may_mix_them() -> None:
    found = choice(BETWEEN, 30_000, noise=0.005, one_arithmetic=False)
    assert found.solver == "gbcd"
    assert "workers" in found.reason
    assert choose_by(Probe(SMOOTH, 0.1, np.empty((0, 2)), 100), one_arithmetic=False).solver == "cholesky"


def test_products_of_an_allowed_error_get_a_factor_that_suits_their_price() -> None:
    short = SquaredExponential(gamma=(200.0, 200.0))
    whole, pruned = (choice(short, 30_000, noise=0.001, product_error=ProductError.of(error)) for error in (None, 1e-5))
    assert (pruned.solver, pruned.projected.keys()) == ("pcg", {"pcg"})
    assert pruned.projected["pcg"] < whole.projected["pcg"]
    assert sum(pruned.options.values()) < sum(whole.options.values())
    few = choose_by(Probe(short, 0.01, np.empty((0, 2)), 300), product_error=ProductError(1e-5))
    assert (few.solver, few.options) == ("pcg", {})


@pytest.mark.long
def test_products_that_a_forecast_does_not_take_leave_the_choice_alone() -> None:
    short, wide = SquaredExponential(gamma=(200.0, 200.0)), SquaredExponential(gamma=(0.1,) * 4)
    for kernel, n, same in ((short, 5000, True), (wide, 100_000, True), (short, 100_000, False)):
        chosen, before = (choice(kernel, n, noise=0.001, product_error=ProductError.of(v)) for v in ("auto", "none"))
        assert (chosen == before) == same
    assert chosen.projected["pcg"] < before.projected["pcg"]


def test_cheap_products_of_a_smooth_kernel_get_local_polynomials() -> None:
    chosen = choice(SquaredExponential(gamma=(5.0, 5.0)), 400_000, noise=0.01, product_error=ProductError.of("auto"))
    assert chosen.options["landmarks"] == "polynomials"
    assert chosen.to_json()["landmarks"] == "polynomials"
    assert "local polynomials" in chosen.reason


def test_memory_that_does_not_hold_the_matrix_rules_cholesky_out() -> None:
    found = choose_solver(ROUGH, 1e-4, samples(1000, 8), 4000, memory_bytes=50_000_000)
    assert "cholesky" not in found.projected
    assert choose_solver(SMOOTH, 0.1, samples(100, 2), 1000, memory_bytes=1000).solver != "cholesky"


def test_a_matrix_that_nothing_thins_out_is_factored() -> None:
    found = choose_solver(SquaredExponential(gamma=(0.1,) * 8), 1e-7, samples(1000, 8), 4200)
    assert found.solver == "cholesky"
    assert found.projected["cholesky"] == min(found.projected.values())


def test_a_tighter_tolerance_costs_more() -> None:
    loose, tight = choice(BETWEEN, 20_000), choice(BETWEEN, 20_000, tolerance=1e-8)
    assert loose.projected.keys() == {"gbcd", "pcg"}
    assert all(tight.projected[name] > loose.projected[name] for name in loose.projected)


def test_more_noise_costs_less() -> None:
    little, much = choice(BETWEEN, 20_000, noise=0.001), choice(BETWEEN, 20_000, noise=0.5)
    assert much.projected["pcg"] < little.projected["pcg"]
    assert much.projected["gbcd"] < little.projected["gbcd"]


def test_the_amplitude_does_not_matter_if_the_noise_goes_with_it() -> None:
    scaled = SquaredExponential(gamma=BETWEEN.gamma, variance=64.0)
    assert choice(scaled, 20_000, noise=3.2).options == choice(BETWEEN, 20_000).options


def test_the_same_seed_makes_the_same_choice_and_it_is_json() -> None:
    first, second = (choose_by(probe_of(BETWEEN, 20_000, 0.05, seed=3)) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first.to_json())) == first.to_json()


CASES = [
    (BETWEEN, 0.01, 200, 0),
    pytest.param(BETWEEN, 0.01, 200, 100, marks=pytest.mark.slow),
    (BETWEEN, 0.01, 0, 200),
    (Matern32(gamma=(0.3,) * 4), 0.05, 150, 0),
    pytest.param(SquaredExponential(gamma=(2.0, 2.0)), 0.01, 100, 0, marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "noise", "halo", "rank"), CASES)
def test_what_is_expected_of_all_samples_is_what_they_take(kernel: Kernel, noise: float, halo: int, rank: int) -> None:
    n, d = 4000, kernel.n_features
    x = samples(n, d)
    y = np.sin(2.0 * x.sum(axis=1))[:, None] + np.sqrt(noise) * samples(n, 1, seed=1)
    solver = ConjugateGradient(FactorPreconditioning(halo, "auto", rank)).resolved(n, d)
    with BlockedKernelOperator(kernel, noise, ArrayInputs(x), LocalExecutor(2)) as operator:
        stopping = GradientInfNorm(1e-4) | MaxIterations(200)
        taken = solve(operator, y / y.std(), solver=solver, stopping=stopping).progress.iteration
    expected = solver.expected(Probe(kernel, noise, x[:1000], n))
    assert expected.low <= taken <= expected.high


def test_counts_are_expected_of_solvers_that_may_be_chosen() -> None:
    probe = Probe(BETWEEN, 0.05, samples(500, 4), 10_000)
    descent = GreedyBlockCoordinateDescent().resolved(10_000, 4)
    assert Cholesky().expected(probe).count == 1.0
    assert 3.0 <= descent.expected(probe).low * 1.5 <= 30.0
    with pytest.raises(InputError, match="foretells gbcd, pcg and cholesky"):
        ConjugateGradient().expected(probe)


def test_a_larger_problem_is_looked_at_more_closely() -> None:
    assert [probed_samples(n) for n in (400, 4000, 12_000, 10**6)] == [400, 500, 1500, 2000]


@pytest.mark.parametrize(("n", "p", "shape"), [(0, 1, (10, 2)), (10, 0, (10, 2)), (5000, 1, (0, 2)), (5000, 1, (7,))])
def test_sizes_that_make_no_sense_are_refused(n: int, p: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="expected|needs samples"):
        choose_solver(SMOOTH, 0.1, np.zeros(shape), n, p)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_refused(bad: float) -> None:
    x = samples(500, 2)
    x[7, 1] = bad
    with pytest.raises(InputError, match="needs finite samples"):
        choose_solver(SMOOTH, 0.1, x, 50_000)


def test_kernels_that_vanish_or_have_rank_one() -> None:
    x = samples(500, 1)
    with pytest.raises(InputError, match="not zero at all of them"):
        choose_solver(Linear((1.0,)), 0.1, np.zeros((500, 1)), 50_000)
    found = choose_solver(Linear((1.0,)), 0.1, x, 50_000)
    assert (found.solver, found.halo) == ("pcg", 0)


def test_identical_samples_can_be_looked_at() -> None:
    x = np.repeat(samples(250, 3), 2, axis=0)
    doubled = choose_solver(SquaredExponential(gamma=(1.0,) * 3), 0.01, x, 20_000)
    constant = choose_solver(SquaredExponential(gamma=(1.0,) * 3), 0.1, np.ones((500, 3)), 20_000)
    assert {doubled.solver, constant.solver} <= {"pcg", "gbcd"}


@pytest.mark.spread(1)
@pytest.mark.parametrize(("d", "measured"), [(2, {64: 30, 128: 22, 300: 17}), (3, None)])
def test_halos_in_few_dimensions_are_foreseen_as_measured(d: int, measured: dict[int, int] | None) -> None:
    """Matern 3/2, length a tenth of a cube's side, noise .01, n = 200,000 in a square and 50,000 in a cube."""
    X = np.random.default_rng(1).uniform(size=(2000, d))
    probe = Probe(Matern32((50.0,) * d), 0.01, X, 200_000 if d == 2 else 50_000)
    for halo, count in (measured or {64: 18, 128: 13}).items():
        assert count / 1.3 <= probe.iterations(halo, halo // 2, 0) <= 1.3 * count
    if d == 2:
        # One with a halo takes fewer iterations than the polynomials that cost as much.
        choice = choose_by(probe, product_error=ProductError("auto"))
        assert choice.landmarks is None
        assert 64 <= choice.halo <= 600


SIZES = Sizes(n=12_000, d=5, p=2, blocks=8)


def total(phases: list, name: str, kind: str) -> float:
    return sum(
        phase.times * getattr(work, kind)
        for phase in phases
        if phase.name == name
        for work in (phase.shared, phase.threaded, phase.alone)
    )


def test_prices_price_every_kind_of_work() -> None:
    kinds = [each.name for each in fields(Work)]
    prices = Prices(**{name: 10.0**place for place, name in enumerate(kinds)})
    assert prices.seconds(Work(**dict.fromkeys(kinds, 1.0))) == int("1" * len(kinds))
    assert all(value > 0.0 for value in vars(Prices.nominal(3)).values())


def test_iterations_evaluate_half_the_matrix_and_use_it_twice() -> None:
    phases = conjugate_phases(SIZES, 30, rank=100, checks=2.0)
    n = SIZES.n
    assert total(phases, "products", "entries") == pytest.approx(30 * n * n / 2)
    assert total(phases, "products", "operations") == pytest.approx(30 * n * n / 2 * 2 * 2 * SIZES.p)
    assert total(phases, "check", "double_entries") == pytest.approx(2 * n * n / 2)
    assert total(phases, "check", "entries") == 0.0
    # Each application reads F twice, in float32; one begins the search.
    assert total(phases, "application", "bytes") == pytest.approx(31 * 2 * 4 * n * 100)


def test_leaves_on_disk_are_read_as_often_as_they_are_used() -> None:
    none, half = (conjugate_phases(SIZES, 9, halo=200, leaf=100, rank=30, spilled=share) for share in (0.0, 0.5))
    assert total(none, "application", "spilled") == 0.0
    assert total(half, "application", "spilled") == pytest.approx(total(half, "application", "bytes") / 2)
    once = conjugate_phases(SIZES, 9, halo=200, leaf=100, spilled=1.0)
    assert total(once, "application", "spilled") == pytest.approx(10 * 4 * SIZES.n * 250)


def test_float64_throughout_evaluates_nothing_in_float32() -> None:
    double = Sizes(SIZES.n, SIZES.d, double=True)
    for phases in (conjugate_phases(double, 30, rank=100), descent_phases(double, 1000, 60, 5.0)):
        assert total(phases, "products", "entries") == 0.0
        assert total(phases, "products", "double_entries") > 0.0


@pytest.mark.parametrize(("halo", "leaf", "rank"), [(300, 150, 0), (300, 150, 40), (0, 100, 0)])
def test_leaves_are_counted_as_a_loop_counts_them(halo: int, leaf: int, rank: int) -> None:
    entries = double_entries = operations = double_operations = 0.0
    order = halo + leaf
    for _ in range(0, SIZES.n, leaf):
        operations += leaf * min(40 * halo, SIZES.n / 2) * 2 * (SIZES.d + 1)  # distances to samples before the leaf
        entries += sum(range(order))
        double_entries += order * rank
        algebra = sum(row * row for row in range(halo))  # Cholesky of the halo, row by row
        algebra += leaf * halo**2  # its triangle solved for the leaf's rows
        algebra += leaf**2 * halo  # what they leave of the leaf
        algebra += 2 * sum(row * row for row in range(leaf))  # the leaf's triangle, and its inverse
        algebra += leaf**2 * halo + leaf * halo**2  # times the rows, times the halo's triangle
        algebra += rank * (order**2 + 2 * leaf * order)  # F F', its lower half, and V
        operations += 1.5 * algebra
        double_operations += rank**2 * (order + leaf)  # rows of F, and V'V
    found = leaves_work(SIZES, halo, leaf, rank)
    assert found.entries == pytest.approx(entries, rel=0.02)
    assert found.double_entries == pytest.approx(double_entries)
    assert found.operations == pytest.approx(operations, rel=0.02)
    assert found.double_operations == pytest.approx(double_operations)


def test_a_factor_without_leaves_needs_no_order() -> None:
    assert [phase.name for phase in conjugate_phases(SIZES, 10)] == ["products", "check"]
    low_rank = [phase.name for phase in conjugate_phases(SIZES, 10, rank=50)]
    assert low_rank == ["landmarks", "factor", "products", "application", "check"]
    leaves = [phase.name for phase in conjugate_phases(SIZES, 10, halo=200, leaf=100)]
    assert leaves == ["order", "factor", "products", "application", "check"]


def test_rounds_of_descent_add_up_to_the_passes() -> None:
    phases = descent_phases(SIZES, 500, 60, 4.0)
    assert total(phases, "products", "entries") == pytest.approx(4.0 * SIZES.n**2)
    assert total(phases, "selection", "drawn") == pytest.approx(4.0 * SIZES.n)
    selection = next(phase for phase in phases if phase.name == "selection")
    assert selection.hidden
    # What block sizes are chosen by is the same: candidates scored against half the block on average.
    prices = Prices.nominal(SIZES.d)
    parts = [phase for phase in phases if phase.name in ("products", "selection")]
    entries_alone = sum(prices.entries * (phase.shared.entries + phase.threaded.entries) for phase in parts)
    dense = sum(prices.seconds(phase.alone) for phase in parts if phase.name == "selection")
    assert projected_round(SIZES.n, SIZES.d, 60, 500) == pytest.approx(entries_alone + dense + 5e-3)


def test_rounds_by_rows_bring_the_candidates_gradient_alone() -> None:
    small, large = (descent_phases(Sizes(n, 8), 1000, 60, 1.0, memory=5)[1] for n in (1_000_000, 10_000_000))
    assert small.by_rows is None
    by_rows = large.by_rows
    assert by_rows is not None
    assert (large.returned, by_rows.returned) == (8e7, 6 * 8 * 60_000)
    assert by_rows.shared.entries == large.shared.entries
    assert by_rows.shared.vectors == large.alone.vectors
    assert by_rows.alone.vectors < 0.01 * large.alone.vectors
    # Without remembered steps the gradient alone comes, and rows pay from fewer samples on.
    paper = descent_phases(Sizes(1_000_000, 8), 1000, 60, 1.0, memory=0)[1].by_rows
    assert paper is not None
    assert paper.returned == 8 * 60_000


def test_dearer_work_makes_a_dearer_solve() -> None:
    prices = Prices.nominal(5)
    assert core_seconds(cholesky_phases(Sizes(20_000, 5)), prices) > 7 * core_seconds(
        cholesky_phases(Sizes(10_000, 5)), prices
    )
    few, many = (core_seconds(conjugate_phases(SIZES, count, rank=100), prices) for count in (10, 20))
    assert 1.5 * few < many < 2.0 * few


def test_a_method_says_what_its_solve_takes() -> None:
    n, d = SIZES.n, SIZES.d
    halo = build_solver("pcg", {"halo": 300, "leaf": 100, "rank": 40})
    for solver, expected in (
        (build_solver("gbcd", {"block_size": 500}), descent_phases(SIZES, 500, 60, 7.0, checks=2.0)),
        (build_solver("bcdc", {"block_size": 500}), descent_phases(SIZES, 500, 0, 7.0, checks=2.0)),
        (halo, conjugate_phases(SIZES, 7.0, halo=300, leaf=100, rank=40, checks=2.0, spilled=0.5, kept=0.3)),
        (build_solver("cholesky"), cholesky_phases(SIZES, checks=2.0)),
    ):
        assert solver.resolved(n, d).phases(SIZES, 7.0, checks=2.0, spilled=0.5, kept=0.3) == expected
    for name in ("cg", "kcg", "smo"):
        with pytest.raises(UsageError, match=f"a plan knows the solvers gbcd, pcg and cholesky; got `solver` {name}"):
            build_solver(name).resolved(n, d).phases(SIZES, 7.0)
