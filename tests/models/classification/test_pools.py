"""Cross-validation from fold Grams against refitting each fold from its rows: all cardinalities, any noise variance.

The model of a whole pool against dense least squares of each fold, and the search that takes it or a few of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import Matern52, SquaredExponential
from dkgp.limits import Deadline, limited
from dkgp.models.classification.fixed_size import search as of_pools
from dkgp.models.classification.fixed_size import validation
from dkgp.models.classification.fixed_size.paths import DEPENDENT, Path, candidate_draws
from dkgp.models.classification.fixed_size.settings import (
    JUDGING,
    LARGEST_POOL,
    FixedSizeSettings,
    foresee_search,
    most_widths,
)
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.train import TrainedFixedSize, train_fixed_size
from dkgp.models.classification.fixed_size.validation import (
    Stop,
    Validation,
    chosen_cardinality,
    chosen_noise,
    pool_model,
    spread_noise,
    validate,
    validate_noise,
    validate_pool,
)
from dkgp.models.classification.labels import LabelledData, Labels, decided, label_weights, rare_class, stratified_folds
from dkgp.models.context import RunContext
from dkgp.models.tuning.dense_algebra import factor
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers.pursuit.engine import PursuitSettings, pursue

N, M, FOLDS = 260, 40, 5
KERNELS = (SquaredExponential(gamma=(1.5, 0.8)), Matern52(gamma=(0.7, 0.3), variance=1.7))


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


@pytest.mark.parametrize(("best", "looked_at"), [(0.1, 3), (1.2, 5), (-2.0, 7)])
def test_the_whole_pool_has_three_penalties_and_more_while_the_best_is_at_an_end(best: float, looked_at: int) -> None:
    def scored(place: float) -> Validation:
        return Validation(10.0**place, np.full((2, 3), 1.0), np.array([2.0, 1.0 + (place - best) ** 2]), False)

    found = spread_noise(scored, of_pools.ABOUT, (), chosen_noise, of_pools.ABOUT_STEP)
    places = np.log10([validation.noise_variance for validation in found])
    assert len(places) == looked_at
    np.testing.assert_allclose(np.diff(places), 0.5)
    assert abs(places[np.argmin(np.abs(places - best))] - best) <= 0.25
    assert places[0] < best < places[-1]


def test_errors_that_are_all_rounding_choose_the_most_noise() -> None:
    def scored(noise_variance: float, score: float) -> Validation:
        return Validation(noise_variance, np.full((2, 3), score), np.array([1.0, score]), False)

    # Differences of sums that cancel may come out below zero.
    found = chosen_noise([scored(1e-8, -1.7e-16), scored(1e-7, 2.7e-15), scored(1e-3, 2.9e-7)])
    assert found.noise_variance == 1e-7
    assert chosen_noise([scored(1e-2, 0.5), scored(1e-1, 0.5004), scored(1.0, 0.51)]).noise_variance == 1e-1


def dense(problem: Problem, kernel: Any, fold: int, s2: float, intercept: bool) -> np.ndarray[Any, Any]:
    """Decisions at a fold's rows by least squares on the others', with the ridge that mends dependent columns."""
    K, train = kernel(problem.X, problem.Z), problem.folds != fold
    values, vectors = np.linalg.eigh(kernel(problem.Z, problem.Z))
    root = np.sqrt(s2 * np.maximum(values, 0.0))[:, None] * vectors.T
    mended = np.diag(np.sqrt(DEPENDENT * (K**2 * problem.each[:, None]).sum(axis=0)))
    scale, ones = np.sqrt(problem.each[train])[:, None], np.ones((len(K), int(intercept)))
    columns = np.vstack(
        [scale * np.hstack([K, ones])[train], np.pad(np.vstack([root, mended]), ((0, 0), (0, ones.shape[1])))]
    )
    right = np.vstack([scale * problem.signs[train], np.zeros((2 * M, problem.t))])
    solution = np.linalg.lstsq(columns, right, rcond=None)[0]
    return np.asarray(np.hstack([K, ones])[~train] @ solution)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", ["first", "none"])
def test_each_fold_is_that_of_dense_least_squares(
    rng: np.random.Generator, one_thread: LocalExecutor, weighted: bool, intercept: str
) -> None:
    problem = Problem(rng, one_thread, 3, weighted)
    for kernel, system in zip(KERNELS, problem.systems(intercept), strict=True):
        for s2, found in zip((1e-3, 0.3), validate_pool(system, (1e-3, 0.3)), strict=True):
            for fold, model in enumerate(found.folds):
                own = problem.folds == fold
                decisions = dense(problem, kernel, fold, s2, intercept == "first")
                image = kernel(problem.X[own], problem.Z) @ model.weights + model.intercept
                np.testing.assert_allclose(image, decisions, atol=1e-5)
                squares = np.sum(problem.each[own, None] * (problem.signs[own] - decisions) ** 2)
                assert found.errors[fold] == pytest.approx(squares / problem.each[own].sum(), rel=1e-5)
            assert found.score == pytest.approx(found.errors @ system.weight / system.weight.sum(), rel=1e-12)


def test_an_intercept_that_is_a_regressor_is_no_prototype(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    problem = Problem(rng, one_thread, 2, weighted=False)
    selected, first = problem.systems("selected")[0], problem.systems("first")[0]
    (one, one_error), (other, other_error) = (pool_model(system, 0.1, 2) for system in (selected, first))
    assert len(one.order) == len(one.weights) == M
    assert one_error == pytest.approx(other_error, rel=1e-5)
    np.testing.assert_allclose(one.intercept, other.intercept, atol=1e-4)


def test_sums_that_overflow_are_no_model(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    system = Problem(rng, one_thread, 1, weighted=False).systems("first")[0]
    found, after = validate_pool(system, (float("inf"), 0.1))
    assert found.score == float("inf")
    assert found.folds == ()
    # What could not be factored leaves nothing behind for the next one.
    np.testing.assert_array_equal(after.errors, validate_pool(system, (0.1,))[0].errors)
    assert len(after.folds) == FOLDS


def test_penalties_behind_on_the_first_fold_are_not_fitted_to_the_others(
    rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    system, noises = Problem(rng, one_thread, 3, weighted=True).systems("first")[0], (1e-5, 1e-2, 0.1, 10.0, 1e4)
    every, margin = validate_pool(system, noises), 0.02
    least = min(validation.errors[0] for validation in every)
    best = chosen_noise(every)
    raced = validate_pool(system, noises, margin=margin)
    assert chosen_noise(raced).noise_variance == best.noise_variance
    assert 0 < sum(not validation.folds for validation in raced) < len(noises)
    for full, found in zip(every, raced, strict=True):
        assert found.errors[0] == full.errors[0]
        assert bool(found.folds) == (full.errors[0] <= (1.0 + margin) * least)
        if found.folds:
            np.testing.assert_array_equal(found.errors, full.errors)
            assert found.score == full.score
        else:
            assert found.score > (1.0 + margin) * best.score
            assert np.isinf(found.errors[1:]).all()
    # All are behind a leader that is far better.
    for found in validate_pool(system, (1e3, 1e4), margin=margin, leader=best):
        assert not found.folds
        assert found.score == pytest.approx(best.score * found.errors[0] / best.errors[0])
    # A leader that could not be fitted leads nothing, and another one takes its place.
    nothing = validate_pool(system, (float("inf"),))[0]
    for leader in (nothing, None):
        unfitted, fitted = validate_pool(system, (float("inf"), 0.1), margin=margin, leader=leader)
        assert (unfitted.score, unfitted.folds) == (float("inf"), ())
        np.testing.assert_array_equal(fitted.errors, validate_pool(system, (0.1,))[0].errors)


def test_a_leader_on_the_first_fold_that_fails_on_another_is_replaced(
    rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, noises = Problem(rng, one_thread, 2, weighted=False).systems("first")[0], (1e-5, 0.1, 1e4)
    every = validate_pool(system, noises)
    least = min(noises, key=lambda noise: every[noises.index(noise)].errors[0])
    plain = validation._Part.fitted

    def fails(part: Any, noise: float, ridged: Any) -> Any:
        if noise == least and part.fold == 2:
            raise np.linalg.LinAlgError("not positive definite")
        return plain(part, noise, ridged)

    monkeypatch.setattr(validation._Part, "fitted", fails)
    found = validate_pool(system, noises, margin=0.02)
    assert found[noises.index(least)].score == float("inf")
    rest = [number for number, noise in enumerate(noises) if noise != least]
    second = min(rest, key=lambda number: every[number].errors[0])
    np.testing.assert_array_equal(found[second].errors, every[second].errors)
    assert chosen_noise(found).noise_variance == noises[second]


def letters(rng: np.random.Generator, n: int, classes: int = 12) -> tuple[np.ndarray[Any, Any], Labels]:
    """Classes of four clusters each, which lie between those of others."""
    centres = np.random.default_rng(5).uniform(-2.0, 2.0, (classes, 4, 2))
    codes = np.arange(n) % classes
    X = centres[codes, rng.integers(0, 4, n)] + 0.06 * rng.standard_normal((n, 2))
    return X, Labels(tuple(f"{code:02d}" for code in range(classes)), codes.astype(np.int64))


def trained(
    X: Any, labels: Labels, executor: LocalExecutor, kernel: Any = None, **options: Any
) -> tuple[TrainedFixedSize, list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    dataset = memory_dataset(X, labels.codes.astype(float))
    context = RunContext(executor, callback=records.append)
    settings = FixedSizeSettings(**options)
    return train_fixed_size(LabelledData(dataset, labels), settings, context, kernel=kernel), records


@pytest.mark.long
def test_many_classes_take_the_whole_pool_in_the_passes_that_were_foreseen(
    rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_pools, "FIRST_STEPS", 20)
    X, labels = letters(rng, 1500)
    found, records = trained(X[:900], labels.subset(np.arange(900)), one_thread, pool=300)
    dataset = memory_dataset(X[:900], labels.codes[:900].astype(float))
    wrong = decided(found.model.decisions(dataset.standardisation.inputs(X[900:]))) != labels.codes[900:]
    pursued, _ = trained(X[:900], labels.subset(np.arange(900)), one_thread, pool=300, max_basis=30)
    assert found.summary["cardinality"] == found.path[-1]["cardinality"] == 300
    assert pursued.summary["cardinality"] <= 30
    assert wrong.mean() < pursued.summary["misclassification"] - 0.02
    assert abs(wrong.mean() - found.summary["misclassification"]) < 0.02
    assert found.summary["passes"] == records[-1]["pass"] <= records[-1]["passes_at_most"] == 4
    assert len(records) <= most_widths("shared") + 1
    assert records[-1]["seconds_left"] == 0.0
    assert all(record["seconds_left"] > 0.0 for record in records[:-1])
    # What a store holds has no times.
    assert not {"seconds_left", "passes_at_most"} & set(found.history[0])


def test_a_grid_looks_at_every_width_and_penalty_and_takes_the_best_of_them(
    rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    n = 90
    X, labels = letters(rng, n, 3)
    options: dict[str, Any] = {"pool": n, "search": "grid", "probability": False}
    found, records = trained(X, labels, one_thread, kernel=SquaredExponential((2.0, 2.0)), **options)
    widths = records[:-1]
    assert len(widths) == most_widths("grid") == 10
    np.testing.assert_allclose(np.diff(np.log2([record["scale"] for record in widths])), 1.0, rtol=1e-9)
    assert found.summary["passes"] == records[-1]["pass"] == records[-1]["passes_at_most"] == 6
    for record in widths:
        np.testing.assert_allclose(np.log10(record["noise_variances"]), np.linspace(-3.5, 1.0, 10), atol=1e-9)
    # Every score of a width is that of dense least squares on all but each fold, with a column of ones.
    inputs, folds = (
        memory_dataset(X, labels.codes.astype(float)).standardisation.inputs(X),
        stratified_folds(labels, 5, 0),
    )
    record = widths[9]
    K = SquaredExponential((2.0 * record["scale"],) * 2)(inputs, inputs)
    for s2, score in zip(record["noise_variances"], record["scores"], strict=True):
        squares = 0.0
        for fold in range(5):
            train, own = folds != fold, folds == fold
            signs, matrix = labels.signs()[train], K[np.ix_(train, train)] + s2 * np.eye(train.sum())
            solved = np.linalg.solve(matrix, np.column_stack([signs, np.ones(len(signs))]))
            level = solved[:, :-1].sum(axis=0) / solved[:, -1].sum()
            decisions = K[np.ix_(own, train)] @ (solved[:, :-1] - solved[:, -1:] * level) + level
            squares += float(np.sum((labels.signs()[own] - decisions) ** 2))
        assert score == pytest.approx(squares / n, rel=1e-3)
    # The kernel that is taken has the least squared error among those that err about as little.
    least = min(record["error"] for record in widths)
    near = [record for record in widths if record["error"] <= least + np.sqrt(least * (1.0 - least) / n)]
    assert found.summary["scale"] == min(near, key=lambda record: record["score"])["scale"]
    other, _ = trained(X, labels, one_thread, noise_variances=(0.1, 2.0), **options)
    assert all(record["noise_variances"] == [0.1, 2.0] for record in other.history[:-1])


def test_penalties_that_are_dropped_early_do_not_change_the_model(
    rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, labels = letters(rng, 600)
    every, _ = trained(X, labels, one_thread, pool=100)
    monkeypatch.setattr(of_pools, "TELLING", 100)
    fits = []
    monkeypatch.setattr(validation, "factor", lambda matrix: fits.append(None) or factor(matrix))
    raced, _ = trained(X, labels, one_thread, pool=100)
    fewer = len(fits)
    monkeypatch.setattr(of_pools, "BEHIND", float("inf"))
    trained(X, labels, one_thread, pool=100)
    assert fewer < 0.7 * (len(fits) - fewer)
    np.testing.assert_array_equal(raced.model.weights, every.model.weights)
    # Folds of two classes tell too little.
    monkeypatch.setattr(of_pools, "BEHIND", 0.05)
    fits.clear()
    trained(X, Labels(("a", "b"), labels.codes % 2), one_thread, pool=100)
    assert len(fits) >= most_widths("shared") * 8 * 5


def test_the_fit_of_a_whole_pool_is_that_of_all_samples(
    rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_pools, "FIRST_STEPS", 20)
    X, labels = letters(rng, 600)
    found, _ = trained(X, labels, one_thread, pool=200)
    Z, s2 = found.model.prototypes, found.model.noise_variance
    inputs = memory_dataset(X, labels.codes.astype(float)).standardisation.inputs(X)
    K, K_mm = found.kernel(inputs, Z), found.kernel(Z, Z)
    signs = labels.signs()
    columns, level = K - K.mean(axis=0), signs.mean(axis=0)
    weights = np.linalg.solve(columns.T @ columns + s2 * K_mm + 1e-9 * np.eye(len(Z)), columns.T @ (signs - level))
    expected = K @ weights + level - K.mean(axis=0) @ weights
    assert len(Z) == 200
    np.testing.assert_allclose(found.model.decisions(inputs), expected, atol=1e-4)


def test_classes_have_weights_only_if_they_are_given(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    codes = (rng.uniform(size=1200) < 0.06).astype(np.int64)
    X = rng.standard_normal((1200, 2)) + 1.6 * codes[:, None]
    labels = Labels(("common", "rare"), codes)
    assert rare_class(labels) == 1
    assert rare_class(Labels(("a", "b"), np.arange(100) // 60)) is None
    plain, records = trained(X, labels, one_thread, pool=60)
    assert not plain.summary["weighted"]
    assert len(records) == most_widths("shared") + 1
    samples = memory_dataset(X, codes.astype(float))
    data = LabelledData(samples, labels, label_weights(labels, "balanced"))
    weighted = train_fixed_size(data, FixedSizeSettings(pool=60), one_thread)
    assert weighted.summary["weighted"]
    assert weighted.summary["balanced_error"] < 0.7 * plain.summary["balanced_error"]
    assert weighted.summary["misclassification"] > plain.summary["misclassification"]
    stored = weighted.record(data).class_weights
    assert stored is not None
    assert stored["rare"] / stored["common"] == pytest.approx((1200 - codes.sum()) / codes.sum())
    assert plain.record(LabelledData(samples, labels)).class_weights is None
    # Probabilities of the unweighted model have the shares of the classes.
    calibration = plain.calibration
    assert calibration is not None
    shares = calibration.probabilities(plain.model.decisions(samples.inputs(0, 1200))).mean(axis=0)
    np.testing.assert_allclose(shares[1], codes.mean(), atol=0.01)


def test_pools_grow_with_the_classes_as_far_as_the_work_allows() -> None:
    settings = FixedSizeSettings()
    assert settings.pool_size(17_000, 1) == 2000
    assert settings.pool_size(16_000, 26) == 3600
    assert settings.pool_size(16_000, 3) == 3600
    assert settings.pool_size(10_000, 10) == 3900
    assert settings.pool_size(500, 10) == 500
    assert settings.pool_size(10**6, 26) == 2000
    assert FixedSizeSettings(pool=50).pool_size(16_000, 26) == 50
    assert FixedSizeSettings(search="profile").pool_size(16_000, 26) == 2000
    assert FixedSizeSettings(max_basis=100).pool_size(16_000, 26) == 2000
    assert max(settings.pool_size(n, 26) for n in (4000, 5000, 7000)) <= LARGEST_POOL


def test_what_is_foreseen_grows_with_samples_and_pool() -> None:
    one = foresee_search((16_000, 16, 26), 3000, folds=FOLDS, threads=2)
    assert (one.pool, one.judging, one.passes) == (3000, JUDGING, 4)
    assert one.seconds == pytest.approx(most_widths("shared") * one.width_seconds + one.pool_seconds)
    assert foresee_search((32_000, 16, 26), 3000, folds=FOLDS, threads=2).seconds > 1.3 * one.seconds
    assert foresee_search((16_000, 16, 26), 3000, folds=FOLDS, threads=1).seconds == pytest.approx(2.0 * one.seconds)
    assert foresee_search((16_000, 16, 26), 3000, folds=FOLDS, threads=2, together=1).passes == 8


def test_columns_that_are_alike_are_mended_by_a_ridge(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    X = rng.standard_normal((300, 1))
    labels = Labels(("a", "b"), (X[:, 0] > 0.0).astype(np.int64))
    # A kernel so wide that nothing but a ridge makes Grams of its columns positive definite.
    kernel = SquaredExponential(gamma=(1e-3,))
    Z = memory_dataset(X, labels.codes.astype(float)).inputs(0, 200)
    assert np.linalg.matrix_rank(kernel(Z, Z)) < 20
    data = LabelledData(memory_dataset(X, labels.codes.astype(float)), labels)
    settings = FixedSizeSettings(pool=200, noise_variances=(1e-12,))
    found = train_fixed_size(data, settings, one_thread, kernel=kernel)
    assert found.summary["misclassification"] < 0.05


class Passed:
    """A clock that counts the work of a search: one second for each noise variance of a fold, and each path's steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        fitted, advance = validation._Part.fitted, Path.advance

        def counted(part: Any, *arguments: Any) -> Any:
            self.now += 1.0
            return fitted(part, *arguments)

        def advanced(path: Any, upto: int) -> None:
            self.now += 1.0
            advance(path, upto)

        monkeypatch.setattr(validation._Part, "fitted", counted)
        monkeypatch.setattr(Path, "advance", advanced)

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("classes", [2, 4])
def test_a_search_that_should_finish_ends_with_its_best_so_far(
    classes: int, rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, labels = letters(rng, 400, classes)
    data = LabelledData(memory_dataset(X, labels.codes.astype(float)), labels, np.ones(400))
    clock = Passed(monkeypatch)

    def train(finish: float) -> tuple[TrainedFixedSize, float]:
        clock.now = 0.0
        with limited(Deadline(finish, np.inf, clock)):
            fitted = train_fixed_size(data, FixedSizeSettings(pool=60, folds=FOLDS), one_thread, kernel=KERNELS[0])
        return fitted, clock.now

    whole, needed = train(np.inf)
    assert "ended_early" not in whole.summary
    for share in (0.0, 0.2, 0.5, 0.8):
        early, took = train(share * needed)
        assert early.summary["ended_early"]
        assert len(early.history) < len(whole.history) or share > 0.2
        # After that, one noise variance more of a width and of the chosen model, and the paths' steps under way.
        assert took <= share * needed + 0.25 * needed
        assert early.summary["misclassification"] < 1.0 - 1.0 / classes
