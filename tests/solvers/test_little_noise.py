"""Little noise, duplicates, many features: what float32 cannot do is foreseen, or found out and done in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import CheckpointStore
from dkgp.kernels import Kernel, SquaredExponential, TileEvaluator
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, GradientInfNorm, MaxIterations, choose_solver, solve
from dkgp.solvers.conjugate.probe import Probe, _least_at
from dkgp.solvers.driver import Checkpointing, Watch
from dkgp.solvers.registry import build_solver
from tests.solvers.problems import Problem

TOLERANCE = 1e-4
STOPPING = GradientInfNorm(TOLERANCE) | MaxIterations(300)
SETTINGS = [(3, 0.3), (3, 5.0), (8, 0.1), (32, 0.02), (256, 0.002)]
NOISES = (1e-2, 1e-4, 1e-6, 1e-8)


def problem(n: int, d: int, gamma: float, noise: float, duplicates: bool = False) -> Problem:
    """Waves over Gaussian inputs; 256 features lie near a plane of six, as those of images do."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d))
    if d == 256:
        X = 0.4 * X[:, :6] @ rng.standard_normal((6, d)) + 0.05 * X
    if duplicates:
        X[n // 2 :] = X[: n - n // 2]
    y = np.sin(X @ rng.standard_normal((d, 2)) * 1.5 / np.sqrt(d)) + np.sqrt(noise) * rng.standard_normal((n, 2))
    return Problem(SquaredExponential((gamma,) * d), noise, X, (y / y.std(axis=0))[:, : 1 + duplicates])


def problems(n: int) -> Iterator[Problem]:
    for d, gamma in SETTINGS:
        for noise in NOISES:
            for duplicates in (False, True):
                yield problem(n, d, gamma, noise, duplicates)


def require_solved(found: Problem, executor: LocalExecutor, solver: Any) -> Any:
    with found.blocked(executor) as operator:
        solution = solve(operator, found.y, solver=solver, stopping=STOPPING)
    assert solution.converged
    assert np.abs(found.gradient(solution.alpha)).max() <= 1.01 * TOLERANCE
    return solution


@pytest.mark.long
def test_the_factor_as_it_comes_solves_them_all(executor: LocalExecutor) -> None:
    for found in problems(300):
        require_solved(
            found, executor, ConjugateGradient(FactorPreconditioning()).resolved(300, found.kernel.n_features)
        )


@pytest.mark.slow
def test_without_room_for_the_matrix_auto_picks_what_gets_there(executor: LocalExecutor) -> None:
    picked = set()
    for found in list(problems(500))[::3]:
        d = found.kernel.n_features
        choice = choose_solver(found.kernel, found.noise_variance, found.X[::2], 500, memory_bytes=400_000)
        solver = build_solver(choice.solver, choice.options, precision=choice.precision)
        require_solved(found, executor, solver.resolved(500, d))
        picked.add((choice.solver, choice.precision))
    assert {("pcg", "mixed"), ("pcg", "double")} <= picked
    assert "cholesky" not in {solver for solver, _ in picked}


# Float32 entries take 1e-6 from eigenvalues that are next to nothing, so that the matrix with this noise is indefinite.
HARD = (400, 3, 0.3, 5e-8)


def test_float32_that_leads_astray_is_given_up_before_float64_goes_on(executor: LocalExecutor) -> None:
    found = problem(*HARD)
    with found.blocked(executor) as operator:
        features = operator.single.prepare(found.X)
        single = np.asarray(operator.single.tile(features, features), dtype=np.float64)
    assert np.linalg.eigvalsh(single)[0] < -found.noise_variance
    solution = require_solved(found, executor, ConjugateGradient(FactorPreconditioning()).resolved(400, 3))
    in_double = require_solved(found, executor, ConjugateGradient(FactorPreconditioning(), "double").resolved(400, 3))
    # Some rounds of float32, a float64 product, and the same way from the start.
    rounds = len(in_double.history) - 1
    norms, wanted = ([each.gradient_norm for each in run.history[-rounds:]] for run in (solution, in_double))
    assert norms == wanted
    assert solution.refreshes > in_double.refreshes


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 6])
def test_broken_off_while_it_finds_that_out_it_resumes_to_the_same_bits(
    executor: LocalExecutor, tmp_path: Any, rounds: int
) -> None:
    found, solver = problem(*HARD), ConjugateGradient(FactorPreconditioning()).resolved(400, 3)
    whole = require_solved(found, executor, solver)
    store = CheckpointStore(str(tmp_path / "c"))
    with found.blocked(executor) as operator:
        solve(
            operator, found.y, solver=solver, stopping=GradientInfNorm(TOLERANCE) | MaxIterations(rounds),
            watch=Watch(checkpointing=Checkpointing(store, 0.0, {}, False)),
        )  # fmt: skip
    with found.blocked(executor) as operator:
        resumed = solve(
            operator,
            found.y,
            solver=solver,
            stopping=STOPPING,
            watch=Watch(checkpointing=Checkpointing(store, 0.0, {}, True)),
        )
    assert resumed.converged
    np.testing.assert_array_equal(resumed.alpha, whole.alpha)


FEW = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (1250, 8))  # of variance one


@cache
def least_in_float32(kernel: Kernel) -> float:
    """The least eigenvalue of the few samples' matrix, as float32 has it."""
    single = TileEvaluator(kernel, "single")
    features = single.prepare(FEW)
    return float(np.linalg.eigvalsh(np.asarray(single.tile(features, features), dtype=np.float64))[0])


class TestTheLook:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("d", "gamma", "noise", "double"),
        [
            (3, 0.3, 1e-2, False),
            (3, 0.3, 1e-4, False),
            (3, 0.3, 1e-6, True),
            (8, 1.0, 1e-8, False),  # every sample on its own: float32 leaves the matrix as it is
            (256, 0.002, 1e-4, False),
            (256, 0.002, 1e-8, False),
        ],
    )
    def test_it_says_where_float32_will_not_do(self, d: int, gamma: float, noise: float, double: bool) -> None:
        found = problem(1000, d, gamma, noise)
        probe = Probe(found.kernel, noise, found.X, 2000)
        assert probe.double is double
        # And counts come to an end, that of float64 where float32 has none.
        assert 2 <= probe.iterations(500, 250, 0) <= 200

    @pytest.mark.covering
    @pytest.mark.parametrize("variance", [1.0, 400.0])
    @pytest.mark.parametrize(
        ("n", "noise", "double"),
        [
            (4_000, 1e-8, False),
            (10_000, 1e-8, True),
            (10_000, 1e-4, False),
            (30_000, 1e-8, True),
            (30_000, 1e-4, False),
        ],
    )
    def test_it_says_what_float32_takes_of_all_samples_and_not_of_the_few(
        self, n: int, noise: float, double: bool, variance: float
    ) -> None:
        kernel = SquaredExponential((0.12,) * 8, variance)
        probe = Probe(kernel, noise * variance, FEW, n)
        assert probe.double is double
        # The few alone, which are positive definite in float32 by far, say nothing of it.
        assert least_in_float32(kernel) > 1e-5 * variance

    def test_the_least_eigenvalue_of_all_is_foreseen_from_the_few(self) -> None:
        inputs = np.random.default_rng(1).standard_normal((2000, 8))
        matrix = SquaredExponential((0.2,) * 8)(inputs, inputs)
        lower = np.asarray(np.linalg.cholesky(matrix[:500, :500]), dtype=np.float64)
        foreseen = _least_at(2000, lower)
        few, known = (np.linalg.eigvalsh(matrix[:size, :size])[0] for size in (500, 2000))
        assert known / 2.0 < foreseen < 8.0 * known < 0.5 * few
        assert _least_at(500, lower) == pytest.approx(few, rel=0.2)

    def test_a_breakdown_is_no_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = problem(1000, 3, 0.3, 1e-8)
        monkeypatch.setattr("dkgp.solvers.conjugate.probe._Subset.takes_double", lambda self, noise, n: False)
        assert Probe(found.kernel, 1e-8, found.X, 2000).iterations(100, 50, 0) == np.inf

    def test_what_it_says_is_what_the_solver_is_told(self) -> None:
        found = problem(1000, 3, 0.3, 1e-6)
        choice = choose_solver(found.kernel, 1e-6, found.X, 100_000)
        assert choice.solver != "cholesky"
        assert choice.precision == "double"
        assert choose_solver(found.kernel, 0.1, found.X, 100_000).precision == "mixed"
