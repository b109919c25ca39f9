"""Candidates for hyperparameters: figures, choice, scale and leave-one-out predictions against naive computations."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import parse_kernel
from dkgp.models import Hyperparameters, RunContext, tune_dataset
from dkgp.models.refinement.candidates import (
    Candidate,
    Judge,
    Judged,
    Predicted,
    best_of,
    is_at_noise_bound,
    leave_one_out,
    scaled,
)

HYPER = Hyperparameters(parse_kernel("rbf", 2), 0.1)


def judged(rng: np.random.Generator, size: float, n: int = 400, offset: float = 0.0, origin: str = "here") -> Judged:
    """A candidate whose errors have deviation 1, and whose error bars have `size`."""
    truth = np.random.default_rng(0).standard_normal((n, 1))
    means = np.full((n, 1), offset)
    return Judged(Candidate(HYPER, origin), Predicted(truth, means, np.full(n, size**2)), 0.0)


def test_figures_are_those_of_a_loop(rng: np.random.Generator) -> None:
    truth, means, variances = rng.standard_normal((7, 2)), rng.standard_normal((7, 2)), rng.uniform(0.5, 2.0, 7)
    item = Judged(Candidate(HYPER, "here"), Predicted(truth, means, variances), 0.5)
    losses, inside = [], []
    for i in range(7):
        for t in range(2):
            error = truth[i, t] - means[i, t]
            losses.append(0.5 * np.log(2.0 * np.pi * variances[i]) + error**2 / (2.0 * variances[i]))
            inside.append(abs(error) <= 1.959963984540054 * np.sqrt(variances[i]))
    assert item.nlpd == pytest.approx(np.mean(losses), rel=1e-12)
    assert item.coverage_95 == np.mean(inside)
    assert item.rmse == pytest.approx(np.sqrt(np.mean((truth - means) ** 2)), rel=1e-12)
    assert item.row()["from"] == "here"
    assert item.row()["kernel"] == "rbf"
    kernel = parse_kernel("rbf[0, 'north']", 2, ("east", "north"))
    named = Candidate(Hyperparameters(kernel, 0.1, feature_names=("east", "north")), "there")
    text = Judged(named, item.predicted, 0.5).row()["kernel"]
    assert text == "rbf[east, north]"


@pytest.mark.parametrize("size", [0.2, 0.5, 3.0])
def test_scaled_variances_have_the_least_density_of_all_scales(size: float, rng: np.random.Generator) -> None:
    item = judged(rng, size)
    better = item.rescaled()
    assert better is not None
    assert better.predicted is not None
    assert better.beats(item)
    assert better.is_calibrated
    assert not item.is_calibrated
    scores = [
        Judged(
            better.candidate,
            Predicted(better.predicted.truth, better.predicted.means, c * better.predicted.variances),
            0,
        )
        for c in (0.8, 0.95, 1.05, 1.25)
    ]
    assert all(better.nlpd < other.nlpd for other in scores)  # type: ignore[operator]
    ratio = better.candidate.hyperparameters.noise_variance / HYPER.noise_variance
    assert ratio == pytest.approx(item.squared)
    assert better.candidate.origin == "here, variances scaled"


def test_a_scale_that_gains_little_is_left(rng: np.random.Generator) -> None:
    assert judged(rng, 1.0).rescaled() is None
    # Few samples are no evidence of a scale, although the gain in density is large.
    few = Predicted(np.array([[2.5], [0.1], [0.2]]), np.zeros((3, 1)), np.ones(3))
    assert Judged(Candidate(HYPER, "few"), few, 0.0).rescaled() is None


@pytest.mark.parametrize("expression", ["rbf", "rbf + linear", "matern32 * rbf"])
def test_scaling_leaves_means_and_scales_variances(expression: str, rng: np.random.Generator) -> None:
    first = Hyperparameters(parse_kernel(expression, 2), 0.1)
    second = scaled(first, 4.0)
    X, y = rng.standard_normal((30, 2)), rng.standard_normal((30, 1))
    dataset = memory_dataset(X, y)
    one, two = (leave_one_out(dataset, np.arange(30), Candidate(each, "")) for each in (first, second))
    assert one.predicted is not None
    assert two.predicted is not None
    np.testing.assert_allclose(two.predicted.means, one.predicted.means, rtol=1e-9)
    np.testing.assert_allclose(two.predicted.variances, 4.0 * one.predicted.variances, rtol=1e-9)


def test_a_later_candidate_must_gain_more_than_chance(rng: np.random.Generator) -> None:
    first, same, worse, better = (
        judged(rng, 0.5, origin=name, offset=offset, n=n)
        for name, offset, n in (("a", 0, 400), ("b", 1e-3, 400), ("c", 1, 400), ("d", 0, 400))
    )
    better = better.rescaled()  # type: ignore[assignment]
    failed = Judged(Candidate(HYPER, "failed"), None, 0.0)
    assert best_of([first, same, worse]) is first
    assert best_of([first, same, better, worse]) is better
    assert best_of([failed, first]) is first
    assert best_of([first, failed]) is first
    assert failed.row()["nlpd"] is None
    # Predictions that are not finite are none.
    assert (
        Judged(Candidate(HYPER, ""), Predicted(np.full((3, 1), np.nan), np.zeros((3, 1)), np.ones(3)), 0.0).predicted
        is None
    )


def test_leave_one_out_is_that_of_a_loop(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((20, 2)), rng.standard_normal(20)
    dataset = memory_dataset(X, y)
    rows = np.arange(3, 18)
    item = leave_one_out(dataset, rows, Candidate(HYPER, ""))
    inputs, targets = dataset.rows_at(rows), dataset.all_targets()[rows]
    K = HYPER.kernel.matrix(inputs, inputs) + 0.1 * np.eye(15)
    assert item.predicted is not None
    for i in range(15):
        others = np.delete(np.arange(15), i)
        weights = np.linalg.solve(K[np.ix_(others, others)], K[others, i])
        assert item.predicted.means[i, 0] == pytest.approx(weights @ targets[others, 0], rel=1e-9)
        assert item.predicted.variances[i] == pytest.approx(K[i, i] - weights @ K[others, i], rel=1e-9)


def test_exact_predictions_are_those_of_a_loop(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((40, 2)), rng.standard_normal(40)
    judge = Judge.of(memory_dataset(X, y), np.arange(0, 40, 5), 20, 0)
    item = judge.judge_exact(Candidate(HYPER, ""))
    inputs, targets = judge.training.inputs(0, 20), judge.training.all_targets()
    K = HYPER.kernel.matrix(inputs, inputs) + 0.1 * np.eye(20)
    assert item.predicted is not None
    for i, row in enumerate(judge.inputs):
        k = HYPER.kernel.matrix(inputs, row[None])[:, 0]
        weights = np.linalg.solve(K, k)
        assert item.predicted.means[i, 0] == pytest.approx(weights @ targets[:, 0], rel=1e-9)
        assert item.predicted.variances[i] == pytest.approx(1.1 - weights @ k, rel=1e-9)
    flat = Hyperparameters(parse_kernel("rbf(length_scale=100)", 2), 1e-300)
    assert judge.judge_exact(Candidate(flat, "")).nlpd is None


def test_held_out_samples_prefer_the_truth_to_a_subsets_noise(rng: np.random.Generator) -> None:
    X = rng.random((700, 2))
    y = np.sin(25.0 * X[:, 0]) * np.cos(25.0 * X[:, 1]) + 0.05 * rng.standard_normal(700)
    dataset = memory_dataset(X, y)
    held_out = np.arange(0, 700, 10)
    judge = Judge.of(dataset, held_out, 500, 0)
    assert judge.training.n_samples == 500
    np.testing.assert_array_equal(judge.inputs, dataset.rows_at(held_out))
    taken = {tuple(row) for row in judge.training.all_targets()}
    assert not taken & {tuple(row) for row in judge.targets}
    smooth = Hyperparameters(parse_kernel("rbf", 2), 0.5)
    right = tune_dataset(dataset, subset=300)
    context = RunContext(LocalExecutor(1))
    figures = [judge.judge(Candidate(each, ""), context) for each in (smooth, right)]
    assert figures[1].beats(figures[0])
    assert not figures[0].beats(figures[1])
    assert figures[1].rmse is not None
    assert figures[1].rmse < 0.3
    # Rounding exceeds a noise of nothing, which is no candidate and no error.
    assert (
        judge.judge(Candidate(Hyperparameters(parse_kernel("rbf(length_scale=100)", 2), 1e-300), ""), context).nlpd
        is None
    )


def test_noise_at_its_bound_is_known(rng: np.random.Generator) -> None:
    X = np.linspace(0.0, 1.0, 60)[:, None]
    tuned = tune_dataset(memory_dataset(X, np.sin(6.0 * X[:, 0])))
    assert is_at_noise_bound(tuned)
    assert not is_at_noise_bound(tune_dataset(memory_dataset(X, rng.standard_normal(60))))
    assert not is_at_noise_bound(HYPER)


def test_repeated_rows_that_predict_each_other_scale_nothing(rng: np.random.Generator) -> None:
    X, y = rng.random((40, 1)), rng.standard_normal(40)
    dataset = memory_dataset(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    tuned = tune_dataset(dataset)
    assert is_at_noise_bound(tuned)
    item = leave_one_out(dataset, np.arange(80), Candidate(tuned, ""))
    assert item.squared is not None
    assert item.squared < 0.1
    assert item.rescaled() is None
