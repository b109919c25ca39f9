"""Cross-validation from fold Grams against refitting each fold from its rows: all cardinalities, any noise variance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import Matern52, SquaredExponential
from dkgp.models.classification.fixed_size.paths import Path, candidate_draws
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.validation import (
    Stop,
    Validation,
    chosen_cardinality,
    chosen_noise,
    validate,
    validate_noise,
)
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers.pursuit.engine import pursue
from dkgp.solvers.pursuit.settings import PursuitSettings

N, M, FOLDS = 260, 40, 5
KERNELS = (SquaredExponential(gamma=(1.5, 0.8)), Matern52(gamma=(0.7, 0.3), variance=1.7))


@pytest.fixture
def one_thread() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(1)
    yield executor
    executor.close()


class Problem:
    """Samples, their kernel columns, and the sums that come of them."""

    def __init__(self, rng: np.random.Generator, executor: LocalExecutor, outputs: int, weighted: bool) -> None:
        X = rng.standard_normal((N, 2))
        self.dataset = memory_dataset(X, X[:, 0])
        self.X = self.dataset.inputs(0, N)
        noise = rng.standard_normal((N, outputs))
        self.signs = np.where(np.sin(2.0 * X[:, :1] + np.arange(outputs)) + X[:, 1:] + 0.3 * noise > 0.0, 1.0, -1.0)
        self.folds = rng.integers(0, FOLDS, N)
        self.weights = rng.uniform(0.2, 2.0, N) if weighted else None
        self.each = np.ones(N) if self.weights is None else self.weights
        self.Z = self.X[:M]
        self.executor = executor

    def systems(self, intercept: str) -> list[FoldSystem]:
        targets = Targets(self.signs, self.folds.astype(np.intp), FOLDS, self.weights)
        with BlockedKernelOperator(KERNELS[0], 1.0, self.dataset, self.executor) as operator:
            return fold_systems(operator, self.Z, KERNELS, targets, intercept)

    def refitted(
        self, kernel: object, fold: int, chosen: NDArray[np.intp], s2: float, intercept: bool
    ) -> tuple[NDArray[np.float64], float]:
        """Decisions at a fold's rows by least squares on the others', and the weighted sum of squares."""
        K, K_mm = kernel(self.X, self.Z[chosen]), kernel(self.Z[chosen], self.Z[chosen])  # type: ignore[operator]
        values, vectors = np.linalg.eigh(K_mm)
        root = np.sqrt(s2 * np.maximum(values, 0.0))[:, None] * vectors.T
        train, own = self.folds != fold, self.folds == fold
        ones = np.ones((N, int(intercept)))
        rows = np.hstack([K, ones])[train] * np.sqrt(self.each[train])[:, None]
        stacked = np.vstack([rows, np.pad(root, ((0, 0), (0, int(intercept))))])
        right = np.vstack([self.signs[train] * np.sqrt(self.each[train])[:, None], np.zeros((len(chosen), self.t))])
        solution = np.linalg.lstsq(stacked, right, rcond=None)[0]
        decisions = np.hstack([K, ones])[own] @ solution
        return decisions, float(np.sum(self.each[own, None] * (self.signs[own] - decisions) ** 2))

    @property
    def t(self) -> int:
        return self.signs.shape[1]


@pytest.mark.covering
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("intercept", ["first", "none"])
def test_every_cardinality_is_as_if_each_fold_were_refitted(
    rng: np.random.Generator, one_thread: LocalExecutor, weighted: bool, outputs: int, intercept: str
) -> None:
    problem = Problem(rng, one_thread, outputs, weighted)
    for kernel, system in zip(KERNELS, problem.systems(intercept), strict=True):
        for s2 in (1e-3, 0.3):
            found = validate(system, s2, stop=None, max_basis=30)
            assert len(found.scores) == 31
            totals = np.zeros(31)
            for fold in range(FOLDS):
                path = Path(system, s2, fold)
                path.advance(30)
                for k in range(1, 31, 7):
                    decisions, error = problem.refitted(kernel, fold, path.order[:k], s2, intercept == "first")
                    model = path.model(k)
                    own = problem.folds == fold
                    image = kernel(problem.X[own], problem.Z[model.order]) @ model.weights + model.intercept
                    np.testing.assert_allclose(image, decisions, rtol=0.0, atol=1e-8)
                    np.testing.assert_allclose(found.errors[k, fold] * problem.each[own].sum(), error, rtol=1e-8)
                    totals[k] += error
            np.testing.assert_allclose(found.scores[1::7], totals[1::7] / problem.each.sum(), rtol=1e-8)


def test_an_intercept_that_competes_takes_a_place(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    problem = Problem(rng, one_thread, 1, False)
    problem.signs = np.where(rng.uniform(size=(N, 1)) < 0.9, 1.0, -1.0)
    system = problem.systems("selected")[0]
    assert system.size == M + 1
    path = Path(system, 0.1, 2)
    path.advance(12)
    assert M in path.order
    model = path.model(12)
    assert len(model.order) == 11
    decisions, error = problem.refitted(KERNELS[0], 2, model.order, 0.1, intercept=True)
    own = problem.folds == 2
    image = KERNELS[0](problem.X[own], problem.Z[model.order]) @ model.weights + model.intercept
    # nu = 1e-8 (eq. 34) holds the intercept back a little.
    np.testing.assert_allclose(image, decisions, rtol=0.0, atol=1e-7)
    np.testing.assert_allclose(path.errors[12], error, rtol=1e-7)


def test_the_choice_is_by_the_largest_gradient(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    problem = Problem(rng, one_thread, 3, True)
    system, s2 = problem.systems("first")[1], 0.05
    path = Path(system, s2)
    path.advance(10)
    K, K_mm = KERNELS[1](problem.X, problem.Z), KERNELS[1](problem.Z, problem.Z)
    share = problem.each / problem.each.sum()
    K, y = K - share @ K, problem.signs - share @ problem.signs
    A, b = K.T @ (problem.each[:, None] * K) + s2 * K_mm, K.T @ (problem.each[:, None] * y)
    chosen: list[int] = []
    for _ in range(10):
        w = np.zeros_like(b)
        if chosen:
            w[chosen] = np.linalg.solve(A[np.ix_(chosen, chosen)], b[chosen])
        scores = np.sum((b - A @ w) ** 2, axis=1)
        scores[chosen] = -1.0
        chosen.append(int(np.argmax(scores)))
    assert path.order.tolist() == chosen


@pytest.mark.parametrize("candidates", [None, 4])
def test_each_folds_path_is_that_of_the_pursuit_of_its_system(
    rng: np.random.Generator, one_thread: LocalExecutor, candidates: int | None
) -> None:
    problem = Problem(rng, one_thread, 2, True)
    system, s2, kernel = problem.systems("none")[0], 0.1, KERNELS[0]
    K, K_mm = kernel(problem.X, problem.Z), kernel(problem.Z, problem.Z)
    draws = candidate_draws(M, 20, candidates, seed=3)
    for fold in range(FOLDS):
        some = problem.folds != fold
        weighted = problem.each[some, None] * K[some]
        A, b = K[some].T @ weighted + s2 * K_mm, weighted.T @ problem.signs[some]
        expected = pursue(0.5 * (A + A.T), b, PursuitSettings(size=20, candidates=candidates, seed=3))
        path = Path(system, s2, fold, draws)
        path.advance(20)
        assert path.order.tolist() == expected.order.tolist()
        for k in (1, 7, 20):
            np.testing.assert_allclose(path.model(k).weights, expected.weights_at(k), rtol=1e-6, atol=1e-9)


def test_candidates_that_are_all_dependent_leave_the_others(
    rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    problem = Problem(rng, one_thread, 1, False)
    problem.Z = np.concatenate([np.repeat(problem.X[:1], 12, axis=0), problem.X[1:5]])
    system = problem.systems("first")[0]
    path = Path(system, 0.1, 0, candidate_draws(16, 16, 2, seed=0))
    path.advance(16)
    assert path.count == 5


def test_duplicates_are_taken_once(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    problem = Problem(rng, one_thread, 1, False)
    problem.Z = np.concatenate([problem.X[:8], problem.X[:8], problem.X[:8]])
    system = problem.systems("first")[0]
    path = Path(system, 0.01, 0)
    path.advance(24)
    assert path.ended
    assert sorted(order % 8 for order in path.order.tolist()) == list(range(8))
    found = validate(system, 0.01, stop=None, max_basis=24)
    assert len(found.scores) == 9


def test_the_rule_stops_at_its_first_cardinality(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    system = Problem(rng, one_thread, 1, False).systems("first")[0]
    whole = validate(system, 0.1, stop=None, max_basis=M)
    stop = Stop(4, 1e-2)
    short = validate(system, 0.1, stop=stop, max_basis=M)
    assert short.stopped
    expected = next(
        k for k in range(5, M) if abs(np.mean(whole.scores[k - 4 : k]) - whole.scores[k]) < 1e-2 * whole.scores[k]
    )
    assert len(short.scores) == expected + 1
    np.testing.assert_array_equal(short.scores, whole.scores[: expected + 1])
    np.testing.assert_array_equal(short.errors, whole.errors[: expected + 1])


def test_a_path_that_overfits_ends() -> None:
    scores = np.concatenate([[1.0, 0.8, 0.5], 0.5 * 1.01 ** np.arange(1, 60)])
    assert Stop(5, 1e-3).first(scores) == 2 + 15
    assert Stop(5, 1e-3).first(scores, at_least=30) == 30
    # Off, as in the paper, a negative eps ends nothing.
    assert Stop(5, -np.inf).first(scores) is None
    falling = 0.99 ** np.arange(80)
    assert Stop(5, 1e-3).first(falling) is None


def test_cardinality_by_rule(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    system = Problem(rng, one_thread, 1, False).systems("first")[0]
    found = validate(system, 0.1, stop=None, max_basis=M)
    best = 1 + int(np.argmin(found.scores[1:]))
    assert chosen_cardinality(found, "best") == best
    deviation = np.std(found.errors[best], ddof=1)
    for rule, share in (("tenth", 0.1), ("one-standard-error", FOLDS**-0.5)):
        allowed = [k for k in range(1, M + 1) if found.scores[k] <= found.scores[best] + share * deviation]
        assert chosen_cardinality(found, rule) == allowed[0]
    with pytest.raises(InputError, match="must be one of tenth, best, one-standard-error; got 'most'"):
        chosen_cardinality(found, "most")


def test_noise_variances_get_finer_about_the_best(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    system = Problem(rng, one_thread, 1, False).systems("first")[1]
    found = validate_noise(system, None, stop=Stop(), max_basis=M)
    values = [validation.noise_variance for validation in found]
    assert values == sorted(values)
    best = chosen_noise(found)
    alike = [validation for validation in found if validation.score <= 1.001 * min(each.score for each in found)]
    assert best is alike[-1]
    place = values.index(best.noise_variance)
    # k(x, x) is the unit; the neighbours of the best are a quarter of a decade away.
    neighbours = [np.log10(values[place + side] / values[place]) for side in (-1, 1)]
    np.testing.assert_allclose(np.abs(neighbours).min(), 0.25, rtol=1e-9)
    given = validate_noise(system, (0.5, 0.1), stop=None, max_basis=5)
    assert [validation.noise_variance for validation in given] == [0.1, 0.5]


def test_errors_that_are_all_rounding_choose_the_most_noise() -> None:
    def scored(noise_variance: float, score: float) -> Validation:
        return Validation(noise_variance, np.full((2, 3), score), np.array([1.0, score]), False)

    # Differences of sums that cancel may come out below zero.
    found = chosen_noise([scored(1e-8, -1.7e-16), scored(1e-7, 2.7e-15), scored(1e-3, 2.9e-7)])
    assert found.noise_variance == 1e-7
    assert chosen_noise([scored(1e-2, 0.5), scored(1e-1, 0.5004), scored(1.0, 0.51)]).noise_variance == 1e-1
