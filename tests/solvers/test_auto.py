"""`auto`: what it foresees is what happens, and what it picks is what should be picked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Linear, SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.inputs import ArrayInputs
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, choose_solver, solve
from dkgp.solvers.auto import CHOLESKY_UP_TO, Choice, ResidualCurve


def samples(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def choice(kernel: Kernel, n: int, noise: float = 0.05, **options: object) -> Choice:
    return choose_solver(kernel, noise, samples(min(n, 1000), kernel.n_features), n, **options)


SMOOTH = SquaredExponential(gamma=(0.05, 0.05))
ROUGH = SquaredExponential(gamma=(0.5,) * 8)


def test_few_samples_are_factored_without_a_look() -> None:
    found = choose_solver(SMOOTH, 0.1, np.empty((0, 2)), CHOLESKY_UP_TO)
    assert (found.solver, found.projected) == ("cholesky", {})


def test_a_smooth_problem_gets_a_preconditioner_of_low_rank() -> None:
    found = choice(SMOOTH, 50_000)
    assert found.solver == "pcg"
    assert found.rank is not None
    assert found.rank <= 256
    assert "rank" in found.reason
    assert "gbcd" in found.reason


def test_what_leaves_no_memory_for_a_factor_gets_greedy_descent() -> None:
    found = choice(ROUGH, 1_000_000, noise=0.005)
    assert (found.solver, found.rank) == ("gbcd", None)
    assert set(found.projected) == {"gbcd", "pcg"}


def test_a_rough_problem_of_moderate_size_is_factored() -> None:
    found = choose_solver(ROUGH, 1e-4, samples(1000, 8), 4000)
    assert found.solver == "cholesky"
    assert found.projected["cholesky"] == min(found.projected.values())


def test_memory_that_does_not_hold_the_matrix_rules_cholesky_out() -> None:
    found = choose_solver(ROUGH, 1e-4, samples(1000, 8), 4000, memory_bytes=50_000_000)
    assert "cholesky" not in found.projected
    assert choose_solver(SMOOTH, 0.1, samples(100, 2), 1000, memory_bytes=1000).solver != "cholesky"


def test_the_rank_stays_within_the_memory() -> None:
    found = choose_solver(ROUGH, 0.005, samples(1000, 8), 20_000, memory_bytes=4 * 20_000 * 100)
    if found.rank is not None:
        assert found.rank <= 100
    assert choose_solver(SMOOTH, 0.005, samples(1000, 2), 20_000, memory_bytes=4 * 20_000 * 20).rank == 20


def test_a_tighter_tolerance_costs_more() -> None:
    loose, tight = choice(ROUGH, 20_000), choice(ROUGH, 20_000, tolerance=1e-8)
    assert all(tight.projected[name] > loose.projected[name] for name in loose.projected)


def test_more_noise_costs_less() -> None:
    little, much = choice(ROUGH, 20_000, noise=0.001), choice(ROUGH, 20_000, noise=0.5)
    assert much.projected["pcg"] < little.projected["pcg"]
    assert much.projected["gbcd"] < little.projected["gbcd"]


def test_the_amplitude_does_not_matter_if_the_noise_goes_with_it() -> None:
    scaled = SquaredExponential(gamma=ROUGH.gamma, variance=100.0)
    assert choice(scaled, 20_000, noise=5.0).projected == pytest.approx(choice(ROUGH, 20_000).projected, rel=1e-6)


def test_the_same_seed_makes_the_same_choice_and_it_is_json() -> None:
    first, second = choice(ROUGH, 20_000, seed=3), choice(ROUGH, 20_000, seed=3)
    assert first == second
    assert json.loads(json.dumps(first.to_json())) == first.to_json()


def test_the_curve_falls_like_the_dense_residual() -> None:
    kernel, x = SquaredExponential(gamma=(0.3, 0.3, 0.3)), samples(600, 3)
    curve = ResidualCurve.of(kernel, x)
    values = np.linalg.eigvalsh(kernel(x, x))[::-1]
    for rank, residual in zip(curve.ranks, curve.residuals, strict=True):
        least = values[rank:].sum() / (600 - rank)
        # No factor of that rank leaves less, and the best one of a quarter of the rank leaves more.
        assert least <= residual * (1.0 + 1e-9)
        assert residual <= values[rank // 4 :].sum() / (600 - rank // 4)
    assert np.all(np.diff(curve.residuals) < 0)
    assert curve.at(curve.ranks[0]) == pytest.approx(curve.residuals[0])
    assert curve.at(4 * curve.ranks[-1]) < curve.residuals[-1]


@pytest.mark.parametrize(("gamma", "noise", "rank"), [(0.05, 0.02, 64), (0.05, 0.02, 256), (0.2, 0.05, 128)])
def test_iterations_are_what_the_law_says(gamma: float, noise: float, rank: int) -> None:
    n, d = 3000, 4
    kernel, x = SquaredExponential(gamma=(gamma,) * d), samples(n, d)
    y = np.sin(x.sum(axis=1))[:, None] + 0.1 * samples(n, 1, seed=1)
    with BlockedKernelOperator(kernel, noise, ArrayInputs(x), LocalExecutor(2)) as operator:
        solver = ConjugateGradient(FactorPreconditioning(0, rank=rank)).resolved(n, d)
        iterations = solve(operator, y, solver=solver).progress.iteration
    law = 2.0 + 7.0 * np.sqrt(n * ResidualCurve.of(kernel, x[:2000]).at(rank) / (rank * noise))
    assert iterations / 3.0 <= law <= 3.0 * iterations


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
    assert choose_solver(Linear((1.0,)), 0.1, x, 50_000).solver == "pcg"
