"""Paths by cardinality against scikit-learn's, and naive loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError
from dkgp.models.linear import LinearSettings, TrainedLinear, follow, reading_bytes, sums_bytes, train_linear
from dkgp.operators import ArrayInputs
from dkgp.solvers import GramSystem, RowSystem
from dkgp.solvers.pursuit.rivals import homotopy
from tests.workers import on_dask


def problem(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) + 0.7 * rng.standard_normal((n, 1))
    y = X @ (rng.standard_normal(d) * (rng.random(d) < 0.5)) + rng.standard_normal(n)
    return X, y, X.T @ X


@pytest.mark.parametrize("method", ["scdp", "omp"])
def test_pursuit_is_scikit_learns_at_every_cardinality(method: str, rng: np.random.Generator) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    for _ in range(20):
        X, y, A = problem(rng, int(rng.integers(20, 60)), int(rng.integers(2, 15)))
        d = A.shape[1]
        path = follow(method, GramSystem(A), X.T @ y, d)
        assert path.longest == d
        for k in range(1, d + 1):
            expected = linear_model.orthogonal_mp_gram(A, X.T @ y, n_nonzero_coefs=k)
            np.testing.assert_allclose(path.solution(k, d), expected, rtol=1e-9, atol=1e-10)
        assert not path.solution(0, d).any()


def test_lars_and_lasso_end_each_cardinality_where_scikit_learn_goes_beyond_it(rng: np.random.Generator) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    dropped = 0
    for _ in range(40):
        n, d = int(rng.integers(15, 60)), int(rng.integers(2, 14))
        X, y, A = problem(rng, n, d)
        # scikit-learn 1.9 leaves the least angles' path where a weight changes its sign.
        drops = any((at.weights == 0.0).any() for at in homotopy(A, X.T @ y).breaks[1:])
        dropped += drops
        for name, method in (("lasso", "lasso"), *(() if drops else (("lars", "lar"),))):
            *_, coefficients = linear_model.lars_path_gram(X.T @ y, A, n_samples=n, method=method)
            some = np.abs(coefficients) > 1e-12
            # Up to a break: what has a weight there, and what had one at the break before.
            counts = np.count_nonzero(some | np.roll(some, 1, axis=1) & (np.arange(some.shape[1]) > 0), axis=0)
            most = int(rng.integers(1, d + 1))
            path = follow(name, GramSystem(A), X.T @ y, most)
            assert path.longest == min(most, counts.max())
            for k in range(path.longest + 1):
                beyond = np.flatnonzero(counts > k)
                last = beyond[0] - 1 if len(beyond) else len(counts) - 1
                np.testing.assert_allclose(path.solution(k, d), coefficients[:, last], atol=1e-8)
    assert 0 < dropped < 40


def test_lasso_solves_its_own_problem(rng: np.random.Generator) -> None:
    """Against coordinate descent, by the penalty that the conditions of the minimum give."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y, A = problem(rng, 80, 10)
    path = follow("lasso", GramSystem(A), X.T @ y, 10)
    for k in range(1, 10):
        w = path.solution(k, 10)
        level = float(np.abs(X.T @ (y - X @ w)).max())
        _, expected, _ = linear_model.lasso_path(X, y, alphas=[level / 80], tol=1e-13, max_iter=100_000)
        np.testing.assert_allclose(w, expected[:, 0], atol=1e-6)


def test_matching_pursuit_is_its_loop(rng: np.random.Generator) -> None:
    X, y, A = problem(rng, 50, 12)
    path = follow("mp", GramSystem(A), X.T @ y, 6)
    w, order = np.zeros(12), list[int]()
    while True:
        c = X.T @ (y - X @ w)
        best = int(np.argmax(np.abs(c)))
        if best not in order:
            assert np.array_equal(path.supports[len(order)], order)
            np.testing.assert_allclose(path.solution(len(order), 12), w, rtol=1e-9, atol=1e-12)
            if len(order) == 6:
                break
            order.append(best)
        w[best] += c[best] / A[best, best]
    assert path.longest == 6


@pytest.mark.parametrize("method", ["scdp", "mp", "lars", "lasso"])
def test_errors_are_those_of_residuals(method: str, rng: np.random.Generator) -> None:
    X, y, A = problem(rng, 40, 9)
    path = follow(method, GramSystem(A), X.T @ y, 7)
    used = path.used()
    found = path.errors(A[np.ix_(used, used)], (X.T @ y)[used], float(y @ y), used)
    expected = [np.sum((y - X @ path.solution(k, 9)) ** 2) for k in range(8)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("method", ["scdp", "mp", "lars", "lasso"])
def test_a_target_that_no_feature_has_anything_of(method: str) -> None:
    path = follow(method, GramSystem(np.eye(4)), np.zeros(4), 3)
    assert path.longest == 0
    assert not path.solution(3, 4).any()
    assert path.used().tolist() == []


N, D = 400, 12
PLENTY = 2**30


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(2)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, D)) * np.exp(rng.standard_normal(D)) + 5.0 * rng.standard_normal(D)
    y = np.column_stack([X[:, [2, 7, 5]] @ [1.0, -2.0, 0.5], X[:, 4] + 0.1 * X[:, 1]])
    return X, y + 0.5 * rng.standard_normal((N, 2)) + 30.0


@pytest.fixture(scope="module")
def dataset(arrays: Any, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset_from_arrays(tmp_path_factory.mktemp("linear") / "a.zarr", *arrays, chunk_rows=64)


def fitted(dataset: Dataset, executor: Any, memory_bytes: int = PLENTY, **settings: Any) -> TrainedLinear:
    return train_linear(dataset, LinearSettings(**settings), executor, memory_bytes=memory_bytes)


def standardised(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return dataset.inputs(0, dataset.n_samples), dataset.all_targets()


def greedy_errors(X: np.ndarray, y: np.ndarray, T: np.ndarray, truth: np.ndarray, most: int) -> list[float]:
    """Sums of squared errors at T of orthogonal matching pursuit with an intercept, refitted by lstsq."""
    means, offset, S, errors = X.mean(axis=0), y.mean(), list[int](), []
    w = np.zeros(0)
    for k in range(most + 1):
        errors.append(float(np.sum((truth - offset - (T - means)[:, S] @ w) ** 2)))
        if k == most:
            return errors
        c = np.abs((X - means).T @ (y - offset - (X - means)[:, S] @ w))
        S.append(max((j for j in range(X.shape[1]) if j not in S), key=lambda j: c[j]))
        w = np.linalg.lstsq((X - means)[:, S], y - offset, rcond=None)[0]
    raise AssertionError


@pytest.mark.parametrize("held_out", [None, 0.3])
def test_scores_are_those_of_samples_left_out(
    held_out: float | None, dataset: Dataset, executor: LocalExecutor
) -> None:
    settings = LinearSettings(folds=5, held_out=held_out, stop=None, cardinality="best", seed=4)
    found = train_linear(dataset, settings, executor, memory_bytes=PLENTY)
    X, y = standardised(dataset)
    groups = settings.group_of(N)
    assert np.bincount(groups).tolist() == ([80] * 5 if held_out is None else [120, 280])
    for target, some in enumerate(found.targets):
        squared = []
        for fold in range(5 if held_out is None else 1):
            out = groups == fold
            squared.append(greedy_errors(X[~out], y[~out, target], X[out], y[out, target], D))
        means = np.asarray(squared) / np.sum(groups == 0)
        np.testing.assert_allclose(some.scores, means.mean(axis=0), rtol=1e-9)
        expected = means.std(axis=0, ddof=1) if held_out is None else np.zeros(D + 1)
        np.testing.assert_allclose(some.spread, expected, rtol=1e-8, atol=1e-15)
        assert some.cardinality == int(np.argmin(means.mean(axis=0)))
        np.testing.assert_allclose(some.errors, np.divide(greedy_errors(X, y[:, target], X, y[:, target], D), N))
    assert found.passes == 1


def test_which_cardinality_is_chosen(dataset: Dataset, executor: LocalExecutor) -> None:
    chosen = {}
    for rule in ("best", "tenth", "one-standard-error"):
        found = fitted(dataset, executor, cardinality=rule, stop=None)
        for number, some in enumerate(found.targets):
            scores, spread = np.asarray(some.scores), np.asarray(some.spread)
            best = int(np.argmin(scores))
            share = {"best": 0.0, "tenth": 0.1, "one-standard-error": 1.0 / np.sqrt(10.0)}[rule]
            assert some.cardinality == next(k for k in range(D + 1) if scores[k] <= scores[best] + share * spread[best])
            assert np.count_nonzero(found.coefficients[:, number]) == some.cardinality
            chosen[rule, number] = some.cardinality
    assert chosen["one-standard-error", 0] <= chosen["tenth", 0] <= chosen["best", 0]
    assert len(set(chosen.values())) > 1


def test_rule_38_ends_a_path(dataset: Dataset, executor: LocalExecutor) -> None:
    whole = fitted(dataset, executor, stop=None).targets[0]
    found = fitted(dataset, executor, stop=(2, 0.01)).targets[0]
    scores = np.asarray(whole.scores)
    end = next(k for k in range(3, D + 1) if abs(scores[k - 2 : k].mean() - scores[k]) < 0.01 * scores[k])
    assert found.path.longest == end < D
    assert "(38)" in found.reason
    assert np.array_equal(np.asarray(found.scores), scores[: end + 1])


def test_coefficients_and_intercept_are_least_squares(dataset: Dataset, executor: LocalExecutor) -> None:
    found = fitted(dataset, executor, cardinality=3)
    X, y = standardised(dataset)
    for target, some in enumerate(found.targets):
        assert (some.cardinality, some.scores) == (3, None)
        S = np.sort(some.path.supports[3])
        assert np.array_equal(S, np.flatnonzero(found.coefficients[:, target]))
        expected = np.linalg.lstsq(np.column_stack([X[:, S], np.ones(N)]), y[:, target], rcond=None)[0]
        np.testing.assert_allclose(found.coefficients[S, target], expected[:-1], rtol=1e-9)
        assert found.intercept[target] == pytest.approx(expected[-1], abs=1e-12)


@pytest.mark.parametrize("method", ["scdp", "mp", "lars", "lasso"])
def test_passes_come_to_what_sums_do(method: str, dataset: Dataset, executor: LocalExecutor) -> None:
    once = fitted(dataset, executor, method=method, cardinality=4)
    reading = reading_bytes(8 * 64 * D, RowSystem(dataset, executor).block_bytes, 2)
    little = 2 * 8 * 4 * (D + 4) + reading
    assert little < sums_bytes(D, 2, 1, 2) + reading
    often = fitted(dataset, executor, little, method=method, cardinality=4)
    assert (once.passes, often.passes > 4) == (1, True)
    np.testing.assert_allclose(often.coefficients, once.coefficients, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(often.intercept, once.intercept, atol=1e-12)
    for one, other in zip(once.targets, often.targets, strict=True):
        np.testing.assert_allclose(other.errors, one.errors, rtol=1e-9)
    with pytest.raises(MemoryBudgetError, match=r"needed for 4 columns of 12 numbers, 0 MiB of it .* smaller `card"):
        fitted(dataset, executor, little - 1, method=method, cardinality=4)
    with pytest.raises(MemoryBudgetError, match=r"products of 12 features for 10 folds, 0 MiB of it .*a number for"):
        fitted(dataset, executor, little, method=method)


@pytest.mark.parametrize("by_passes", [False, True])
def test_random_draws(by_passes: bool, dataset: Dataset, executor: LocalExecutor) -> None:
    """With as many candidates as features the path is that of all; with one it is random and set by the seed."""
    reading = reading_bytes(8 * 64 * D, RowSystem(dataset, executor).block_bytes, 2)
    settings: dict[str, Any] = {"cardinality": 5, "memory_bytes": reading + 2000 if by_passes else PLENTY}
    all_of_them = fitted(dataset, executor, **settings)
    assert np.allclose(fitted(dataset, executor, candidates=D, **settings).coefficients, all_of_them.coefficients)
    one = fitted(dataset, executor, candidates=1, seed=5, **settings)
    other = fitted(dataset, executor, candidates=1, seed=6, **settings)
    assert one.targets[0].path.supports[5].tolist() != other.targets[0].path.supports[5].tolist()
    again = fitted(dataset, executor, candidates=1, seed=5, **settings)
    assert np.array_equal(one.coefficients, again.coefficients)
    assert (one.passes > 1) == by_passes


def test_the_same_bits_on_any_number_of_workers(dataset: Dataset) -> None:
    found = []
    for workers in (1, 2, 5):
        executor = LocalExecutor(workers)
        found += [fitted(dataset, executor, method=method) for method in ("scdp", "lasso")]
        executor.close()
    with on_dask(2, processes=False) as (dask, _):
        found += [fitted(dataset, dask, method=method) for method in ("scdp", "lasso")]
    for number, other in enumerate(found):
        first = found[number % 2]
        assert np.array_equal(other.coefficients, first.coefficients)
        assert np.array_equal(other.intercept, first.intercept)
        for one, two in zip(first.targets, other.targets, strict=True):
            assert np.array_equal(np.asarray(one.scores), np.asarray(two.scores))
            assert np.array_equal(one.errors, two.errors)


def test_a_feature_that_is_constant_but_in_one_fold(executor: LocalExecutor, tmp_path: Path) -> None:
    """The remainder of the other folds' sums is rounding, and must not count as a feature."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) + 1e3
    X[:, 1] = 0.1
    X[7, 1] = 5.0
    dataset = dataset_from_arrays(tmp_path / "a.zarr", X, X[:, 0] + 0.1 * rng.standard_normal(60))
    settings = LinearSettings(stop=None, cardinality="best")
    found = train_linear(dataset, settings, executor, memory_bytes=PLENTY).targets[0]
    X, y = standardised(dataset)
    groups, squared = settings.group_of(60), np.zeros(4)
    for fold in range(10):
        out = groups == fold
        use = [0, 2] if out[7] else [0, 1, 2]
        errors = greedy_errors(X[~out][:, use], y[~out, 0], X[out][:, use], y[out, 0], len(use))
        squared += [*errors, *errors[-1:]][:4]
    np.testing.assert_allclose(np.asarray(found.scores), squared / 60, rtol=1e-7)


def test_fewer_samples_than_features(executor: LocalExecutor, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((20, 50))
    dataset = dataset_from_arrays(tmp_path / "a.zarr", X, X[:, 3] + 0.01 * rng.standard_normal(20))
    for method in ("scdp", "mp", "lars", "lasso"):
        found = fitted(dataset, executor, method=method, folds=4, cardinality="one-standard-error")
        assert np.isfinite(found.coefficients).all()
        assert found.targets[0].path.supports[1].tolist() == [3]
        # Matching pursuit refits nothing, and goes on to features that the others have no use for.
        assert found.targets[0].path.longest < 20 or method == "mp"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "omp2"}, "`method` must be one of scdp, omp, mp, lars, lasso"),
        ({"cardinality": "some"}, "a number or one of tenth, best, one-standard-error"),
        ({"cardinality": 0}, "`cardinality` must be at least 1"),
        ({"cardinality": 13}, "there are 12 features that vary; got `cardinality` 13"),
        ({"longest": 13}, "got `longest` 13"),
        ({"folds": 1}, "`folds` must be at least 2"),
        ({"folds": 401}, "there are 400 samples for 401 folds"),
        ({"held_out": 1.0}, "a share between 0 and 1"),
        ({"held_out": 0.001}, "leaves out 0 of 400 samples"),
        ({"method": "mp", "candidates": 3}, "drawn by `method` scdp alone"),
        ({"stop": (0, 0.1)}, "a window of at least 1"),
        ({"seed": -1}, "`seed` must not be negative"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], words: str, dataset: Dataset, executor: LocalExecutor) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        fitted(dataset, executor, **settings)


def test_data_that_are_not_finite_are_refused(executor: LocalExecutor) -> None:
    X = np.ones((50, 2))
    X[:, 1] = 1e200
    with pytest.raises(InputError, match="column 1 of X is not finite, or overflows"):
        RowSystem(ArrayInputs(X), executor).sums_by_group(np.ones((50, 1)), np.zeros(50, dtype=np.intp), 1)


def test_who_is_told_may_end_it(dataset: Dataset, executor: LocalExecutor) -> None:
    heard: list[tuple[str, int, int]] = []
    train_linear(
        dataset, LinearSettings(), executor, memory_bytes=PLENTY, told=lambda *progress: heard.append(progress)
    )
    assert {what for what, *_ in heard} == {"sums over samples", "paths of folds"}
    assert heard[-1] == ("paths of folds", 10, 10)

    def enough(what: str, done: int, of: int) -> None:
        raise InterruptedRunError("enough")

    with pytest.raises(InterruptedRunError, match="enough"):
        train_linear(dataset, LinearSettings(), executor, memory_bytes=PLENTY, told=enough)
