"""The model of a whole pool against dense least squares of each fold, and the search that takes it or a few of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.fixed_size import search as of_pools
from dkgp.models.classification.fixed_size.paths import DEPENDENT
from dkgp.models.classification.fixed_size.settings import (
    JUDGING,
    LARGEST_POOL,
    FixedSizeSettings,
    foresee_search,
    most_widths,
)
from dkgp.models.classification.fixed_size.train import TrainedFixedSize, train_fixed_size
from dkgp.models.classification.fixed_size.validation import pool_model, validate_pool
from dkgp.models.classification.labels import LabelledData, Labels, decided, label_weights, rare_class, stratified_folds
from dkgp.models.context import RunContext
from tests.models.classification.fixed_size.test_validation import FOLDS, KERNELS, M, Problem


@pytest.fixture
def one_thread() -> Iterator[LocalExecutor]:
    with closing(LocalExecutor(1)) as executor:
        yield executor


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


def letters(rng: np.random.Generator, n: int, classes: int = 12) -> tuple[np.ndarray[Any, Any], Labels]:
    """Classes of four clusters each, which lie between those of others."""
    centres = np.random.default_rng(5).uniform(-2.0, 2.0, (classes, 4, 2))
    codes = np.arange(n) % classes
    X = centres[codes, rng.integers(0, 4, n)] + 0.06 * rng.standard_normal((n, 2))
    return X, Labels(tuple(f"{code:02d}" for code in range(classes)), codes.astype(np.int64))


def trained(
    X: Any, labels: Labels, executor: LocalExecutor, considered: Any = None, kernel: Any = None, **options: Any
) -> tuple[TrainedFixedSize, list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    dataset = memory_dataset(X, labels.codes.astype(float))
    context = RunContext(executor, callback=records.append)
    settings = FixedSizeSettings(**options)
    return train_fixed_size(
        LabelledData(dataset, labels), settings, context, considered=considered, kernel=kernel
    ), records


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


def test_weights_are_taken_where_a_rare_class_is_found_more_often_by_them(
    rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    codes = (rng.uniform(size=1200) < 0.06).astype(np.int64)
    X = rng.standard_normal((1200, 2)) + 1.6 * codes[:, None]
    labels = Labels(("common", "rare"), codes)
    balanced = label_weights(labels, "balanced")
    assert rare_class(labels) == 1
    assert rare_class(Labels(("a", "b"), np.arange(100) // 60)) is None
    weighted, records = trained(X, labels, one_thread, balanced, pool=60)
    plain, _ = trained(X, labels, one_thread, pool=60)
    assert weighted.summary["weighted"]
    assert not plain.summary["weighted"]
    assert weighted.summary["balanced_error"] < 0.7 * plain.summary["balanced_error"]
    assert [record["weighted"] for record in records[-2:]] == [False, True]
    assert weighted.summary["weighings"][1]["balanced_error"] < weighted.summary["weighings"][0]["balanced_error"]
    data = LabelledData(memory_dataset(X, codes.astype(float)), labels)
    stored = weighted.record(data).class_weights
    assert stored is not None
    assert stored["rare"] / stored["common"] == pytest.approx((1200 - codes.sum()) / codes.sum())
    assert plain.record(data).class_weights is None
    # The same weights, given from the first, come to the same model at that width and penalty.
    given = train_fixed_size(
        LabelledData(memory_dataset(X, codes.astype(float)), labels, balanced),
        FixedSizeSettings(pool=60),
        one_thread,
    )
    assert given.summary["balanced_error"] < 0.7 * plain.summary["balanced_error"]


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
    both = foresee_search((16_000, 16, 26), 3000, folds=FOLDS, threads=2, weighings=2)
    assert both.seconds == pytest.approx(one.seconds + one.pool_seconds)
    assert both.passes == one.passes + 1
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
