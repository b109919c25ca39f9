"""The search by leave-one-out, and scores against predictions by models that never saw what they predict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models import tune
from dkgp.models.tuning.families import ArdSquaredExponential
from dkgp.models.tuning.objectives import LeaveOneOut, fold_predictions
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import ScoreSums, cut_folds, scores_of

FloatArray = NDArray[np.float64]


def family_of(inputs: FloatArray, learn_variance: bool = True) -> ArdSquaredExponential:
    names = tuple(f"x{index}" for index in range(inputs.shape[1]))
    return ArdSquaredExponential(inputs, learn_variance=learn_variance, feature_names=names)


def predicted_by_others(
    inputs: FloatArray, targets: FloatArray, parameters: FloatArray, left_out: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Means (m, p) and variances (m,) of the held-out samples, from a model of all others."""
    kernel = SquaredExponential(gamma=tuple(np.exp(parameters[:-2]).tolist()), variance=math.exp(parameters[-2]))
    kept = np.setdiff1d(np.arange(len(inputs)), left_out)
    system = kernel(inputs[kept], inputs[kept]) + math.exp(parameters[-1]) * np.eye(len(kept))
    cross = kernel(inputs[left_out], inputs[kept])
    mean = cross @ np.linalg.solve(system, targets[kept])
    explained = np.einsum("ij,ji->i", cross, np.linalg.solve(system, cross.T))
    return mean, kernel.variance - explained + math.exp(parameters[-1])


def test_search_finds_the_optimum_of_the_objective(rng: np.random.Generator) -> None:
    inputs = rng.standard_normal((120, 2))
    targets = np.sin(2.0 * inputs[:, 0]) + 0.3 * rng.standard_normal(120)
    found = tune(inputs, targets, objective="loo", tolerance=1e-6)
    assert found.converged
    assert (found.objective, found.log_marginal_likelihood) == ("loo", None)
    function = LeaveOneOut(family_of(inputs, False), targets[:, None])
    bounds = np.vstack([family_of(inputs, False).bounds, np.log([[1e-6, 4.0]])])

    def negative(parameters: FloatArray) -> float:
        outcome = function(parameters)
        return -outcome[0]

    reference = optimize.minimize(negative, np.log([0.5, 0.1, 0.3]), method="L-BFGS-B", bounds=bounds)
    assert found.leave_one_out_log_likelihood == pytest.approx(-reference.fun, abs=1e-3)
    # Not the marginal likelihood's optimum under another name.
    other = tune(inputs, targets, tolerance=1e-6)
    assert abs(math.log(other.gamma[0] / found.gamma[0])) > 1e-3


@pytest.mark.parametrize("folds", [2, 3, 31])
def test_folds_are_predicted_as_by_models_of_the_other_folds(rng: np.random.Generator, folds: int) -> None:
    inputs, targets = rng.standard_normal((31, 2)), rng.standard_normal((31, 2))
    parameters = np.log([0.3, 1.2, 1.7, 0.1])
    parts = cut_folds(np.arange(31.0)[:, None], folds, seed=1, subset=0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(31))
    assert {len(part) for part in parts} <= {31 // folds, 31 // folds + 1}
    mean, variance = fold_predictions(family_of(inputs), parameters, targets, parts)
    for part in parts:
        expected_mean, expected_variance = predicted_by_others(inputs, targets, parameters, part)
        np.testing.assert_allclose(mean[part], expected_mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(variance[part], expected_variance, rtol=1e-9)


def test_samples_with_equal_inputs_are_in_one_fold(rng: np.random.Generator) -> None:
    inputs = rng.integers(0, 4, (60, 2)).astype(np.float64)
    parts = cut_folds(inputs, 5, seed=1, subset=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    places = [{tuple(row) for row in inputs[part].tolist()} for part in parts]
    assert sum(len(place) for place in places) == len(set.union(*places)) > 10
    # With fewer distinct inputs than folds, samples are drawn one by one.
    same = cut_folds(np.ones((7, 1)), 3, seed=1, subset=0)
    assert sorted(len(part) for part in same) == [2, 2, 3]


def test_folds_of_a_singular_matrix_are_refused() -> None:
    with pytest.raises(NumericalError, match="cannot be scored"):
        fold_predictions(
            family_of(np.zeros((2, 1))), np.array([0.0, 40.0, -40.0]), np.ones((2, 1)), [np.array([0]), np.array([1])]
        )


def test_scores_are_those_of_the_definitions(rng: np.random.Generator) -> None:
    truth, mean, variance = rng.standard_normal((40, 2)), rng.standard_normal((40, 2)), rng.uniform(0.5, 2.0, 40)
    densities = stats.norm(mean, np.sqrt(variance)[:, None])
    low, high = densities.interval(0.95)
    halves = [ScoreSums.of(truth[part], mean[part], variance[part]) for part in (slice(0, 11), slice(11, 40))]
    scores = scores_of(halves)
    assert scores["predictions"] == 80
    assert scores["rmse"] == pytest.approx(math.sqrt(np.mean((truth - mean) ** 2)))
    assert scores["nlpd"] == pytest.approx(-densities.logpdf(truth).mean())
    assert scores["coverage_95"] == np.mean((truth >= low) & (truth <= high))


def test_scores_of_a_run_are_those_of_its_result(rng: np.random.Generator) -> None:
    inputs = rng.standard_normal((150, 2))
    targets = np.sin(2.0 * inputs[:, 0]) + 0.1 * rng.standard_normal(150)
    found = tune(inputs, targets, subset=60, subsets=2, folds=5, holdout=0.5, seed=4)
    assert set(found.scores) == {"folds", "holdout"}
    assert (found.scores["folds"]["folds"], found.scores["folds"]["predictions"]) == (5, 120)
    assert (found.scores["holdout"]["rows"], found.scores["holdout"]["predictions"]) == (30, 60)
    # The noise is 0.1 of a signal of deviation 0.7, and predictions of few samples are a little worse than it.
    for scores in found.scores.values():
        assert 0.09 < scores["rmse"] < 0.3
        assert scores["nlpd"] < 0.3
        assert 0.8 < scores["coverage_95"] <= 1.0


def test_held_out_rows_are_predicted_as_by_a_model_of_the_subset(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((50, 2)), rng.standard_normal(50)
    found = tune(inputs, targets, subset=30, holdout=0.4, seed=3, max_evaluations=6)
    plan = plan_subsets(50, 30, seed=3, holdout=0.4)
    tuned_on, held_out = plan.subset(0), plan.held_out()
    both = np.concatenate([tuned_on, held_out])
    parameters = np.log([*found.gamma, 1.0, found.noise_variance])
    mean, variance = predicted_by_others(inputs[both], targets[both, None], parameters, np.arange(30, 42))
    expected = scores_of([ScoreSums.of(targets[held_out, None], mean, variance)])
    for name, value in expected.items():
        assert found.scores["holdout"][name] == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("folds", [1, 0, -3, 21])
def test_impossible_folds_are_refused(rng: np.random.Generator, folds: int) -> None:
    with pytest.raises(
        InputError, match=rf"`folds` must be from 2 to the number of samples in a subset, 20; got {folds}"
    ):
        tune(rng.standard_normal((30, 1)), rng.standard_normal(30), subset=20, folds=folds)
