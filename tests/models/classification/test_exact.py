"""The exact LS-SVM against dense solves of its bordered system; weights, resume, workers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.exact import DecisionError, ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData, Labels, label_weights
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, GreedyBlockCoordinateDescent
from tests.models.classification.problems import LabelProblem
from tests.models.classification.references import dense_decisions
from tests.watching import in_context

TIGHT = 1e-9


def problem(rng: np.random.Generator, n_classes: int = 2, n: int = 300, **more: Any) -> LabelProblem:
    X = rng.standard_normal((n, 3))
    score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    return LabelProblem(X, codes, rng.standard_normal((50, 3)), SquaredExponential((0.3,) * 3), 0.2, **more)


@pytest.mark.covering
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(
    "solver", [None, GreedyBlockCoordinateDescent(), ConjugateGradient(FactorPreconditioning())], ids=str
)
def test_decisions_are_those_of_the_dense_solve(
    n_classes: int, weighted: bool, fit_intercept: bool, solver: Any, rng: np.random.Generator
) -> None:
    weights = rng.uniform(0.1, 3.0, 300) if weighted else None
    found = problem(rng, n_classes, weights=weights, fit_intercept=fit_intercept)
    found.settings = {"solver": solver, "tolerance": TIGHT}
    decisions, _ = found.predicted
    assert found.trained.summary["converged"]
    np.testing.assert_allclose(decisions, dense_decisions(*found.reference), atol=2 * TIGHT)
    assert found.trained.alpha.shape == (300, found.labels.n_outputs)
    if fit_intercept:
        assert np.abs(found.trained.alpha.sum(axis=0)).max() < 1e-12
    else:
        assert not found.trained.intercept.any()


def test_a_weight_counts_as_so_many_samples(rng: np.random.Generator) -> None:
    few = problem(rng, n=60)
    times = rng.integers(1, 4, 60)
    repeated = few.dataset.inputs(0, 60).repeat(times, axis=0)
    signs = few.labels.signs().repeat(times, axis=0)
    few.weights, few.settings = times.astype(np.float64), {"tolerance": TIGHT}
    np.testing.assert_allclose(
        few.predicted[0], dense_decisions(repeated, signs, few.tests, few.kernel, 0.2), atol=2 * TIGHT
    )


def test_balanced_classes_weigh_the_same(rng: np.random.Generator) -> None:
    found = problem(rng)
    found.codes = (found.X[:, 0] > 1.0).astype(np.int64)
    found.weights = label_weights(found.labels, "balanced")
    plain = problem(rng)
    plain.X, plain.T, plain.codes = found.X, found.T, found.codes
    assert (found.predicted[0] > 0.0).sum() > (plain.predicted[0] > 0.0).sum()


def trained(found: LabelProblem, workers: int = 1, **more: Any) -> Any:
    hyperparameters = Hyperparameters(found.kernel, found.noise_variance)
    data = LabelledData(found.dataset, found.labels, more.pop("weights", None))
    executor = LocalExecutor(workers)
    try:
        context = in_context(executor, more)
        settings = ExactSettings(**{"calibrate": False, **more})
        return train_exact(data, hyperparameters, context, settings)
    finally:
        executor.close()


def test_calibration_orders_the_classes(rng: np.random.Generator) -> None:
    found = trained(problem(rng), calibrate=True)
    chances = found.calibration.probabilities(np.array([[-1.0], [0.0], [1.0]]))[:, 1]
    assert chances[0] < 0.2 < chances[1] < 0.8 < chances[2]
    stored = {"alpha", "ones", "intercept", "classes", "calibration"}
    assert (found.form, set(found.fields())) == ("exact", stored)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"weights": np.where(np.arange(300) == 7, 0.0, 1.0)},
            "got 0.0 for sample 7. Leave samples without weight out",
        ),
        ({"weights": np.where(np.arange(300) == 7, np.nan, 1.0)}, "got nan for sample 7"),
        ({"tolerance": 0.0}, "tolerance of decisions must be finite and above 0; got 0.0"),
        ({"calibrate": True, "calibration_subset": 3}, "subset of 3 samples is too small"),
    ],
)
def test_what_is_refused(more: dict[str, Any], message: str, rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match=message):
        trained(problem(rng), **more)


def test_two_samples_alike_of_two_classes(rng: np.random.Generator) -> None:
    """All duplicates: the decision is the mean of the labels, wherever it is asked for."""
    X = np.zeros((6, 2))
    data = memory_dataset(np.vstack([X, X]), np.arange(12) % 2)
    labels = Labels(("a", "b"), np.array([0, 1, 1] * 4))
    executor = LocalExecutor(1)
    hyperparameters = Hyperparameters(SquaredExponential((1.0, 1.0)), 0.1)
    found = train_exact(LabelledData(data, labels), hyperparameters, executor, ExactSettings(calibrate=False))
    executor.close()
    assert found.intercept[0] == pytest.approx(1.0 / 3.0)
    assert np.abs(found.alpha.sum()) < 1e-12


def test_the_rule_goes_by_the_tolerance(rng: np.random.Generator) -> None:
    found = problem(rng)
    vague = trained(found, solver=ConjugateGradient(None), tolerance=0.1)
    close = trained(found, solver=ConjugateGradient(None), tolerance=1e-6)
    assert vague.summary["iterations"] < close.summary["iterations"]
    rule = DecisionError(0.1, 0.2, 1.0)
    assert rule.measure(vague.solution.progress) <= 0.1 < rule.measure(vague.solution.history[0])
    assert rule.needed_fall(close.solution.progress) <= 1e-4


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("noise_variance", [1e3, 1e10])
def test_noise_that_drowns_the_kernel_leaves_the_intercept(
    rng: np.random.Generator, noise_variance: float, weighted: bool
) -> None:
    found = problem(rng, n=60)
    codes = (np.arange(60) < 20).astype(np.int64)
    data, labels = memory_dataset(found.X, codes.astype(np.float64)), Labels(("a", "b"), codes)
    weights = label_weights(labels, {"b": 3.0}) if weighted else None
    hyperparameters, executor = Hyperparameters(found.kernel, noise_variance), LocalExecutor(1)
    solver = ConjugateGradient(None)
    settings = ExactSettings(solver=solver, calibrate=False)
    result = train_exact(LabelledData(data, labels, weights), hyperparameters, executor, settings)
    executor.close()
    # The exact intercept is the weighted mean of the signs, but for what the kernel still says.
    mean = np.average(labels.signs()[:, 0], weights=weights)
    assert result.summary["converged"]
    assert result.intercept[0] == pytest.approx(mean, abs=0.01)


def test_the_rule_takes_kernels_of_any_size() -> None:
    nothing = DecisionError(0.1, 0.2, 0.0, intercept=False)
    assert nothing.gradient_tolerance(100) == 0.1  # decisions are 0 however large the gradient is
    huge = DecisionError(0.1, 1e-100, 1e250, intercept=False)
    assert huge.gradient_tolerance(100) == pytest.approx(0.1 / 10.0 / 1e175)
    assert 0.0 < DecisionError(1e-8, 1e-307, 1e300).gradient_tolerance(10**6) < 1e-300


def test_the_gradient_leaves_roundings_room_in_the_tolerance() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(300, 2))
    codes = (np.sin(X @ [9.0, -5.0]) + 0.2 * rng.standard_normal(300) > 0.0).astype(int)
    data = LabelledData(memory_dataset(X, codes, classes=("a", "b")), Labels(("a", "b"), codes))
    hyperparameters = Hyperparameters(SquaredExponential((2.0, 2.0)), 1e-2)
    made = {}
    for tolerance in (8e-8, 7e-8, 1e-9):
        executor = LocalExecutor(1)
        settings = ExactSettings(ConjugateGradient(), tolerance, calibrate=False)
        made[tolerance] = train_exact(data, hyperparameters, executor, settings)
        executor.close()
        assert made[tolerance].summary["converged"]
    # The solve of the second goes on, and all of it is on record.
    assert max(made[7e-8].summary["decision_error"]) <= 7e-8
    assert made[7e-8].summary["iterations"] > made[8e-8].summary["iterations"]
    assert len(made[7e-8].history) >= made[7e-8].summary["iterations"]
    assert made[7e-8].solution.alpha.shape == (300, 2)
    words = made[1e-9].summary["beyond_tolerance"]
    assert "not within `tolerance` 1e-09: the rest is roundings of float64" in words
    assert "beyond_tolerance" not in made[7e-8].summary
