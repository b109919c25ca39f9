"""Samples held out of a refinement, and how they are scored."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dkgp.cluster import LocalExecutor
from dkgp.codec import to_json
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.models.noise import Noise
from dkgp.models.refinement import validation
from dkgp.models.refinement.validation import (
    ExceptRows,
    HeldOut,
    SomeRows,
    held_out_rows,
    held_out_samples,
    score_held_out,
    variances_given_nearest,
)
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import FactorPreconditioning
from tests.models.refinement.refine_problems import ApproximateOperator, draw

KERNEL, NOISE = SquaredExponential((0.5, 0.3), 1.2), 0.1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_all_rows_but_some(n: int, data: st.DataObject) -> None:
    X = np.arange(2.0 * n).reshape(n, 2)
    excluded = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))), dtype=np.intp)
    left = np.delete(X, excluded, axis=0)
    source = ExceptRows(ArrayInputs(X), excluded)
    assert (source.n_samples, source.n_features) == left.shape
    start = data.draw(st.integers(0, len(left)))
    stop = data.draw(st.integers(start, len(left)))
    np.testing.assert_array_equal(source.inputs(start, stop), left[start:stop])


@pytest.mark.parametrize("excluded", [[3, 1], [1, 1], [-1], [5]])
def test_rows_that_cannot_be_left_out_are_refused(excluded: list[int]) -> None:
    with pytest.raises(InputError, match="sorted, distinct"):
        ExceptRows(ArrayInputs(np.zeros((5, 1))), np.array(excluded))


def test_it_travels_as_its_source_does() -> None:
    inputs = ArrayInputs(np.arange(5.0)[:, None])
    there = pickle.loads(pickle.dumps(ExceptRows(inputs, np.array([2]))))
    np.testing.assert_array_equal(there.inputs(1, 4)[:, 0], [1.0, 3.0, 4.0])


def test_some_rows_are_one_of_each_group(rng: np.random.Generator) -> None:
    X = rng.normal(size=(1003, 2))
    some = SomeRows(ExceptRows(ArrayInputs(X), np.array([5, 900])), 8, 3)
    assert (some.n_samples, some.n_features) == (125, 2)
    rows = some.rows(0, 125)
    np.testing.assert_array_equal(rows // 8, np.arange(125))
    assert np.bincount(rows % 8, minlength=8).min() >= 5  # no period of the rows is met
    np.testing.assert_array_equal(some.inputs(0, 125), np.delete(X, [5, 900], axis=0)[rows])
    np.testing.assert_array_equal(some.inputs(17, 40), some.inputs(0, 125)[17:40])
    assert some.inputs(9, 9).shape == (0, 2)
    assert not np.array_equal(rows, SomeRows(ArrayInputs(X), 8, 4).rows(0, 125))


def test_how_many_are_held_out() -> None:
    assert [held_out_samples(n, 500) for n in (5, 100, 4000, 100_000)] == [0, 10, 400, 500]
    rows = held_out_rows(1000, 500, 3)
    assert len(np.unique(rows)) == 100
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(rows, held_out_rows(1000, 500, 3))
    assert not np.array_equal(rows, held_out_rows(1000, 500, 4))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("own", [False, True], ids=["one noise", "by sample"])
def test_the_score_is_a_dense_gps(own: bool, p: int, rng: np.random.Generator) -> None:
    score = compare_with_a_dense_gp(BlockedKernelOperator, own, p, rng)
    # The variance reported is the upper end of an interval of at most 2 %.
    assert score.gap_max <= 0.02


@pytest.mark.parametrize("own", [False, True], ids=["one noise", "by sample"])
def test_the_score_with_approximate_products_is_a_dense_gps(own: bool, rng: np.random.Generator) -> None:
    compare_with_a_dense_gp(ApproximateOperator, own, 2, rng)


def compare_with_a_dense_gp(operator_type: Any, own: bool, p: int, rng: np.random.Generator) -> Any:
    data = draw(rng, KERNEL, NOISE, 500, p)
    X, y, X_new, y_new = data.X[:400], data.y[:400], data.X[400:], data.y[400:]
    noise = NOISE * 20.0 ** rng.random(500) if own else np.full(500, NOISE)
    of_training: Any = noise[:400] if own else NOISE
    held_out = HeldOut(X_new, y_new, Noise(NOISE, noise[400:] - NOISE if own else None))
    matrix, cross = KERNEL(X, X) + np.diag(noise[:400]), KERNEL(X, X_new)
    mean = cross.T @ np.linalg.solve(matrix, y)
    variance = 1.2 + noise[400:] - np.sum(cross * np.linalg.solve(matrix, cross), axis=0)
    losses = -stats.norm.logpdf(y_new, mean, np.sqrt(variance)[:, None])
    executor = LocalExecutor(2)
    with operator_type(KERNEL, of_training, ArrayInputs(X), executor) as operator:
        how = (FactorPreconditioning(50), FactorPreconditioning(0, rank=50))
        score = score_held_out(operator, y, held_out, *how)
        with pytest.raises(InterruptedRunError):
            score_held_out(operator, y, held_out, *how, interrupted=lambda: True)
    executor.close()
    assert score.nlpd == pytest.approx(losses.mean(), abs=0.01)
    np.testing.assert_allclose(score.losses, losses.mean(axis=1), atol=0.02)
    assert score.rmse == pytest.approx(np.sqrt(np.mean((y_new - mean) ** 2)), rel=1e-4)
    inside = np.abs(y_new - mean) <= 1.959963984540054 * np.sqrt(variance)[:, None]
    assert score.coverage_95 == pytest.approx(inside.mean(), abs=0.011)
    assert "losses" not in to_json(score)
    return score


@pytest.mark.parametrize("threads", [1, 3])
def test_variances_given_the_nearest_samples_are_upper_ends(
    threads: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "NEAREST", 25)
    n = 700
    noise = NOISE * 20.0 ** rng.random(n)
    X = np.round(rng.uniform(-2.0, 2.0, (n, 2)), 1)  # many at the same distance
    points = rng.uniform(-2.0, 2.0, (9, 2))
    executor = LocalExecutor(threads)
    with BlockedKernelOperator(KERNEL, noise, ArrayInputs(X), executor) as operator:
        found = variances_given_nearest(operator, points)
    executor.close()
    cross = KERNEL(points, X)
    exact = 1.2 - np.sum(cross * np.linalg.solve(KERNEL(X, X) + np.diag(noise), cross.T).T, axis=1) + noise.min()
    assert (found >= exact).all()
    for value, covariances in zip(found, cross, strict=True):
        nearest = np.argsort(-covariances, kind="stable")[:25]
        matrix = KERNEL(X[nearest], X[nearest]) + np.diag(noise[nearest])
        expected = 1.2 - covariances[nearest] @ np.linalg.solve(matrix, covariances[nearest]) + noise.min()
        assert value == pytest.approx(expected, rel=0.05)  # rounding may choose others of equal distance
    assert (found <= 1.5 * exact).all()
