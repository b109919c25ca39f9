"""Kernel logistic regression against dense Newton steps; weights, resume, workers, and what is refused.

Products within a bound: decisions within the tolerance against dense Newton steps, or a refusal before any work.

Gaussian process classification at scale against the dense, exact approximation: no interval may miss it.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_classifier, open_prediction, save_classifier
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.data.stores.models.classifier import memory_classifier
from dkgp.errors import InputError, InterruptedRunError, UsageError
from dkgp.kernels import Kernel, Matern12, Matern32, Spherical, SquaredExponential, Wendland, parse_kernel
from dkgp.models.classification import logistic as train
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.laplace import averaged
from dkgp.models.classification.likelihoods import Likelihood, LikelihoodName
from dkgp.models.classification.logistic import (
    RiskError,
    RiskSettings,
    TrainedLogistic,
    product_limit,
    train_gp,
    train_logistic,
)
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.rounding import UNIT, product_roundings
from dkgp.models.tuning.laplace import column_mode, latent_predictions
from dkgp.models.variance import batch, iterative
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.cells.operator import Forecast
from dkgp.operators.product_error import ProductError
from dkgp.solvers import MaxIterations
from dkgp.solvers.losses import LogisticLoss, ProbitLoss
from dkgp.solvers.risk import RISK_METHODS
from tests.models.classification.problems import RiskProblem, noisy_sine
from tests.models.classification.references import dense_minimiser, losses_of
from tests.models.posteriors import class_posterior
from tests.watching import in_context

# The others take thousands of products to a tolerance on decisions.
FAST = tuple(method for method in RISK_METHODS if method not in ("gradient", "paramcg"))
LIKELIHOODS: tuple[tuple[LikelihoodName, int], ...] = (("logit", 2), ("probit", 2), ("logit", 3), ("softmax", 3))


def problem(
    rng: np.random.Generator, name: LikelihoodName = "logit", n_classes: int = 2, n: int = 200, **more: Any
) -> RiskProblem:
    X = rng.standard_normal((n, 3))
    score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    T = rng.standard_normal((50, 3))
    return RiskProblem(X, codes, T, SquaredExponential((0.3,) * 3), 0.5, name, **more)


def dense(found: RiskProblem) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the exact minimiser, and its decisions at the tests."""
    X, y, T, kernel, name, lam, weights = found.reference
    alpha = dense_minimiser(kernel(X, X), y, name, lam, weights)
    return alpha, kernel(T, X) @ alpha


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(("name", "n_classes"), LIKELIHOODS)
def test_decisions_are_those_of_dense_newton_steps(
    name: LikelihoodName, n_classes: int, weighted: bool, rng: np.random.Generator
) -> None:
    found = problem(rng, name, n_classes, weights=rng.uniform(0.0, 3.0, 200) if weighted else None)
    found.settings = {"tolerance": 1e-6}
    alpha, decisions = dense(found)
    assert found.trained.summary["converged"]
    np.testing.assert_allclose(found.predicted["decision"], decisions, atol=1e-6)
    assert (np.abs(found.predicted["decision"] - decisions) <= found.predicted["decision_error_bound"] + 1e-11).all()
    assert found.predicted["decision_error_bound"].max() <= 1.1e-6
    X, y, _, kernel, _, lam, weights = found.reference
    values = kernel(X, X) @ alpha
    each = 1.0 if weights is None else weights[:, None]
    risk = float((each * losses_of(name, y, values)).sum() + 0.5 * lam * (alpha * values).sum())
    assert found.trained.summary["risk"] == pytest.approx(risk, rel=1e-9)
    assert found.trained.summary["risk_lower_bound"] <= risk * (1.0 + 1e-12)
    np.testing.assert_allclose(found.trained.values, values, atol=2e-6)
    curvature = found.likelihood.curvature(y, values) * each
    np.testing.assert_allclose(found.trained.curvature, curvature, atol=1e-5)


def trained(found: RiskProblem, workers: int = 1, **more: Any) -> TrainedLogistic:
    data = LabelledData(found.dataset, found.labels, more.pop("weights", found.weights))
    with closing(LocalExecutor(workers)) as executor:
        context = in_context(executor, more)
        settings = RiskSettings(**{"likelihood": found.likelihood, "regularisation": found.regularisation, **more})
        return train_logistic(data, Hyperparameters(found.kernel, 1.0), context, settings)


@pytest.mark.parametrize("method", FAST)
def test_every_method_finds_the_same_function(method: str, rng: np.random.Generator) -> None:
    found = problem(rng, "softmax", 3)
    made = trained(found, method=method)
    alpha, _ = dense(found)
    X, _, _, kernel, *_ = found.reference
    assert made.summary["converged"]
    assert made.summary["solver"] == method
    np.testing.assert_allclose(made.values, kernel(X, X) @ alpha, atol=1e-3)


def test_a_weight_counts_as_so_many_samples(rng: np.random.Generator) -> None:
    few = problem(rng, n=60)
    times = rng.integers(0, 4, 60)
    X, y, T, kernel, name, lam, _ = few.reference
    repeated = X.repeat(times, axis=0)
    alpha = dense_minimiser(kernel(repeated, repeated), y.repeat(times, axis=0), name, lam)
    few.weights, few.settings = times.astype(np.float64), {"tolerance": 1e-8}
    np.testing.assert_allclose(few.predicted["decision"], kernel(T, repeated) @ alpha, atol=1e-8)


def test_a_class_without_samples_has_no_weight(rng: np.random.Generator) -> None:
    few = problem(rng, n=12)
    few.codes, few.weights = np.zeros(12, int), np.arange(12.0)
    assert few.record.class_weights == {"c0": 5.5}


def test_a_gap_stops_it_too(rng: np.random.Generator) -> None:
    found = problem(rng)
    vague, close = trained(found, gap=1e-2), trained(found, gap=1e-8)
    assert vague.summary["iterations"] < close.summary["iterations"]
    assert close.summary["risk_gap"] <= 1e-8 * (1.0 + 1e-6)
    assert vague.summary["risk_gap"] <= 1e-2
    assert max(close.certificate.radius) < max(vague.certificate.radius)


def test_far_from_the_minimum_no_long_step_is_taken(rng: np.random.Generator) -> None:
    """A step to the ball's centre has half the bound; of little penalty it is another function altogether."""
    found = problem(rng)
    made = trained(found, regularisation=1e-6, method="kcg", limits=MaxIterations(3))
    assert not made.summary["centred"]
    assert made.alpha.tobytes() == made.solution.alpha.tobytes()
    centred = 0
    for tolerance in (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
        near = trained(found, tolerance=tolerance, method="kcg")
        assert near.summary["decision_error"][0] <= tolerance * (1.0 + 1e-6)
        assert near.summary["centred"] == (near.alpha.tobytes() != near.solution.alpha.tobytes())
        centred += near.summary["centred"]
    assert centred


@pytest.mark.long
@pytest.mark.parametrize(("name", "n_classes"), [("logit", 2), ("softmax", 3)])
def test_of_little_penalty_roundings_are_looked_at_closely(
    name: LikelihoodName, n_classes: int, rng: np.random.Generator
) -> None:
    found = problem(rng, name, n_classes)
    found.kernel, found.regularisation = SquaredExponential((5.0,) * 3), 1e-6
    found.settings = {"tolerance": 1e-7, "limits": MaxIterations(400), "method": "kcg"}
    assert found.trained.summary["sharpened"]
    errors, bounds, _ = found.long_errors()
    assert (errors <= bounds).all()
    made = found.trained
    # As large as the diagonal lets entries be: what the bound would be without.
    plain = 200 * product_roundings(200) * UNIT * np.abs(made.solution.alpha).sum(axis=0) * 0.25 / found.regularisation
    assert max(made.certificate.radius) < plain.max()


def test_inputs_that_the_coordinator_may_not_hold_change_no_bit(rng: np.random.Generator) -> None:
    found = problem(rng, "softmax", 3)
    assert trained(found, coordinator_input_bytes=0).alpha.tobytes() == trained(found).alpha.tobytes()


def test_white_noise_and_noise_variance_play_no_part(rng: np.random.Generator) -> None:
    found = problem(rng)
    plain = trained(found)
    noisy = replace(found, kernel=found.kernel + parse_kernel("0.3 * white", 3))
    vars(noisy)["dataset"] = found.dataset
    assert trained(noisy).alpha.tobytes() == plain.alpha.tobytes()


@pytest.mark.parametrize("error", [1e-6, 1e-9])
def test_approximate_products_are_allowed_for(error: float, rng: np.random.Generator) -> None:
    # Expansions in three features take seconds, and are the products' own tests.
    found = replace(problem(rng, "softmax", 3), kernel=SquaredExponential((0.3, 0.3)).on((0, 1), 3))
    found.settings = {"product_error": error, "limits": MaxIterations(15)}
    _, decisions = dense(found)
    assert found.trained.summary["product_error"] == error
    assert found.trained.product_error > 0.0
    assert (np.abs(found.predicted["decision"] - decisions) <= found.predicted["decision_error_bound"] + 1e-11).all()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"regularisation": 0.0}, "the regularisation must be finite and positive; got 0.0"),
        ({"regularisation": np.nan}, "the regularisation must be finite and positive; got nan"),
        ({"tolerance": 0.0}, "tolerance of decisions must be finite and above 0; got 0.0"),
        ({"gap": -1.0}, "the tolerance must be finite and above 0; got -1.0"),
        ({"likelihood": Likelihood("softmax", 3)}, "there are 2 classes; the likelihood is of 3"),
        ({"product_error": 0.0}, "`product_error` must be a positive finite number, auto or none; got 0.0"),
    ],
)
def test_what_is_refused(more: dict[str, Any], message: str, rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match=message):
        trained(problem(rng), **more)


def test_a_method_that_is_none_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(UsageError, match="no method 'sgd'"):
        trained(problem(rng), method="sgd")


@pytest.mark.parametrize("codes", [[0, 1], [1, 1]])
def test_two_samples(codes: list[int]) -> None:
    data = memory_dataset(np.array([[0.0, 1.0], [1.0, -1.0]]), np.array(codes, dtype=float))
    labels = Labels(("a", "b"), np.array(codes))
    with closing(LocalExecutor(1)) as executor:
        made = train_logistic(
            LabelledData(data, labels),
            Hyperparameters(SquaredExponential((1.0, 1.0)), 1.0),
            executor,
            RiskSettings(Likelihood("logit", 2)),
        )
    assert made.summary["converged"]
    assert (made.values * labels.signs() > 0.0).all()


def test_all_samples_alike_of_two_classes() -> None:
    """The decision is the penalised logit of the share, wherever it is asked for."""
    data = memory_dataset(np.ones((12, 2)) + np.arange(12)[:, None] * 1e-300, np.arange(12) % 3 == 0)
    labels = Labels(("a", "b"), (np.arange(12) % 3 == 0).astype(int))
    with closing(LocalExecutor(1)) as executor:
        made = train_logistic(
            LabelledData(data, labels),
            Hyperparameters(parse_kernel("constant", 2), 1.0),
            executor,
            RiskSettings(Likelihood("logit", 2), tolerance=1e-9),
        )
    f = made.values[0, 0]
    # 12 sigma(f) - 4 + f = 0.
    assert 12.0 / (1.0 + np.exp(-f)) - 4.0 + f == pytest.approx(0.0, abs=1e-7)


def test_the_rule_goes_by_the_distance(rng: np.random.Generator) -> None:
    found = problem(rng)
    vague, close = trained(found, tolerance=0.1, method="kcg"), trained(found, tolerance=1e-5, method="kcg")
    assert vague.summary["iterations"] < close.summary["iterations"]
    rule = RiskError(0.1, 1.0)
    assert rule.measure(vague.solution.progress) <= 0.1 < rule.measure(vague.solution.history[0])
    assert rule.needed_fall(close.solution.progress) <= 1e-3
    assert vague.solution.reason.rule == "decision_error"


def minimised(tolerance: float) -> TrainedLogistic:
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(300, 2))
    codes = (np.sin(X @ [9.0, -5.0]) + 0.2 * rng.standard_normal(300) > 0.0).astype(int)
    data = LabelledData(memory_dataset(X, codes, classes=("a", "b")), Labels(("a", "b"), codes))
    hyperparameters = Hyperparameters(SquaredExponential((2.0, 2.0), 100.0), 1.0)
    with closing(LocalExecutor(1)) as executor:
        settings = RiskSettings(Likelihood("logit", 2), tolerance=tolerance, method="kcg")
        return train_logistic(data, hyperparameters, executor, settings)


def test_rounds_leave_roundings_room_in_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    made = minimised(1e-8)
    assert made.summary["converged"]
    assert max(made.summary["decision_error"]) <= 1e-8
    assert "beyond_tolerance" not in made.summary
    # Roundings alone exceed this one, which is said.
    beyond = minimised(1e-9)
    assert beyond.summary["converged"]
    assert max(beyond.summary["decision_error"]) > 1e-9
    assert "not within `tolerance` 1e-09: the rest is roundings of float64" in beyond.summary["beyond_tolerance"]
    # Without them in the rule, the bound that is stored exceeds the tolerance.
    monkeypatch.setattr(train._Proof, "radius", lambda proof, state: 0.0)
    assert max(minimised(1e-8).summary["decision_error"]) > 1e-8


KERNELS: dict[str, Kernel] = {
    "steep": SquaredExponential((0.3, 0.3), 100.0),
    "rough": Matern12((1.0, 1.0), 4.0),
    "smooth": Matern32((0.5, 0.5)),
    "compact": Wendland((0.3, 0.3)),
    "spherical": Spherical((0.5, 0.5), 10.0),
}


def bounded_problem(kernel: Kernel, n_classes: int = 2, n: int = 300) -> RiskProblem:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.7, 1.7, (n, 2))
    score = np.sin(X @ [3.0, -2.0]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    name: LikelihoodName = "logit" if n_classes == 2 else "softmax"
    return RiskProblem(X, codes, X[:1], kernel, 1.0, name)


def trained_within(found: RiskProblem, error: Any, **more: Any) -> TrainedLogistic:
    settings = RiskSettings(found.likelihood, found.regularisation, limits=MaxIterations(300), **more)
    with closing(LocalExecutor(1)) as executor:
        context = RunContext(executor, product_error=ProductError.of(error))
        data = LabelledData(found.dataset, found.labels, found.weights)
        return train_logistic(data, Hyperparameters(found.kernel, 1.0), context, settings)


def largest(message: str) -> float:
    """The number that a refusal advises."""
    return float(re.findall(r"Give ([\d.e+-]+) or less", message)[0])


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have auto take products by cells of few samples, with pairs that are far."""
    monkeypatch.setattr("dkgp.operators.cells.operator.choose", lambda kernel, n: Forecast(True, "as the test says"))
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper", lambda cost, n: True)
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper_in_double", lambda cost, n: True)
    monkeypatch.setattr("dkgp.operators.cells.operator.reaches_sooner", lambda terms, n, tolerance, loose: True)
    monkeypatch.setattr("dkgp.operators.cells.plan.LEAF", (8,))


@pytest.mark.spread(2)
@pytest.mark.covering
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_the_largest_number_that_a_refusal_names_works(name: str, n_classes: int, cells: None) -> None:
    found = bounded_problem(KERNELS[name], n_classes)
    with pytest.raises(
        InputError, match=r"got 0\.0001\. Give .* or less, or auto or none, or a `tolerance` of"
    ) as error:
        trained_within(found, 1e-4, tolerance=1e-3)
    number = largest(str(error.value))
    assert number < 1e-4
    made = trained_within(found, number, tolerance=1e-3)
    assert made.summary["converged"], made.summary["reason"]
    assert 0.0 < made.product_error <= number * 1.01
    assert max(made.summary["decision_error"]) <= 1e-3
    X, y, _, kernel, risk, penalty, _ = found.reference
    exact = kernel(X, X) @ dense_minimiser(kernel(X, X), y, risk, penalty)
    assert np.abs(kernel(X, X) @ made.alpha - exact).max() <= 1e-3
    with pytest.raises(InputError, match="or its errors decide them"):
        trained_within(found, 1.1 * number, tolerance=1e-3)


def test_the_tolerance_that_a_refusal_names_works() -> None:
    found = bounded_problem(KERNELS["smooth"])
    with pytest.raises(InputError) as error:
        trained_within(found, 1e-5, tolerance=1e-4)
    tolerance = float(re.findall(r"a `tolerance` of ([\d.e+-]+) or more", str(error.value))[0])
    assert 1e-4 < tolerance < 1e-2
    assert trained_within(found, 1e-5, tolerance=tolerance).summary["converged"]


@pytest.mark.spread(2)
@pytest.mark.covering
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_auto_keeps_decisions_within_the_tolerance(name: str, n_classes: int, tolerance: float, cells: None) -> None:
    found = bounded_problem(KERNELS[name], n_classes)
    made = trained_within(found, "auto", tolerance=tolerance)
    assert made.summary["products"]["kind"] == "cells"
    assert made.summary["converged"], made.summary["reason"]
    # Roundings of sums, which say nothing on when to stop, are in the bound; they are those of every entry's sums.
    every = trained_within(found, "none", tolerance=tolerance).summary["decision_error"]
    assert max(made.summary["decision_error"]) <= max(tolerance, 1.1 * max(every))
    X, y, _, kernel, risk, penalty, _ = found.reference
    exact = kernel(X, X) @ dense_minimiser(kernel(X, X), y, risk, penalty)
    assert np.abs(kernel(X, X) @ made.alpha - exact).max() <= tolerance


def test_the_limit_follows_from_the_risk() -> None:
    found = bounded_problem(Matern32((0.5, 0.5), 3.0), 4)
    data, settings = LabelledData(found.dataset, found.labels, None), RiskSettings(found.likelihood, 2.0)
    # lambda tol / (c sqrt(p) n k): softmax's curvature is at most 1/2.
    assert product_limit(data, found.kernel, settings) == pytest.approx(2.0 * 1e-3 / (0.5 * 2.0 * 300 * 3.0))
    weighted = replace(data, weights=np.full(300, 2.0))
    assert product_limit(weighted, found.kernel, settings) == pytest.approx(2.0 * 1e-3 / (0.5 * 2.0 * 600 * 3.0))
    assert product_limit(data, found.kernel, replace(settings, gap=1e-3)) is None


@pytest.mark.long
def test_a_gap_that_products_do_not_reach_is_told_with_its_remedy() -> None:
    made = trained_within(bounded_problem(KERNELS["steep"]), 1e-4, gap=1e-9)
    assert not made.summary["converged"]
    assert "product_error" in made.summary["advice"]


def test_least_squares_machines_refuse_too() -> None:
    found = bounded_problem(KERNELS["smooth"])
    data = LabelledData(found.dataset, found.labels, None)
    with closing(LocalExecutor(1)) as executor:
        context = RunContext(executor, product_error=ProductError(1e-3))
        with pytest.raises(InputError, match=r"decisions within `tolerance` 0\.001 .* got 0\.001\. Give"):
            train_exact(data, Hyperparameters(found.kernel, 0.1), context, ExactSettings())


FloatArray = NDArray[np.float64]
GP_KERNEL = SquaredExponential(gamma=(0.6, 0.1, 0.1), variance=5.0)
LOSSES = {"logit": LogisticLoss(), "probit": ProbitLoss()}
VERSIONS = count()


def exact(
    data: Dataset, labels: Labels, name: str, kernel: Kernel, test: FloatArray, weights: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Means and variances of the latent functions of the exact mode, by dense algebra: (r, t)."""
    inputs, signs = data.inputs(0, data.n_samples), labels.signs()
    matrix = np.asfortranarray(kernel(inputs, inputs))
    work = np.empty_like(matrix, order="F")
    columns = []
    for column in range(signs.shape[1]):
        mode = column_mode(matrix, signs[:, column], LOSSES[name], work, weights)
        assert mode is not None
        columns.append(latent_predictions(mode, work, kernel(inputs, test), kernel.diagonal(test)))
    means, variances = (np.column_stack(parts) for parts in zip(*columns, strict=True))
    return means, variances


def trained_gp(
    data: Dataset, labels: Labels, name: str, kernel: Kernel = GP_KERNEL, **settings: Any
) -> TrainedLogistic:
    executor = LocalExecutor(2)
    try:
        likelihood = Likelihood.of(name, "ovr", labels.n_classes)  # type: ignore[arg-type]
        samples = LabelledData(data, labels, settings.pop("weights", None))
        return train_gp(samples, Hyperparameters(kernel, 1.0), executor, RiskSettings(likelihood, **settings))
    finally:
        executor.close()


def require_held(found: Any, means: FloatArray, variances: FloatArray, name: str, classes: int) -> None:
    likelihood = Likelihood.of(name, "ovr", classes)  # type: ignore[arg-type]
    slack = 1e-9 * (1.0 + np.abs(means))  # of the dense mode
    assert (np.abs(found["decision"] - means) <= found["decision_error_bound"] + slack).all()
    assert (found["latent_variance_lower"] <= variances * (1.0 + 1e-8)).all()
    assert (variances * (1.0 - 1e-8) <= found["latent_variance_upper"]).all()
    probabilities = averaged(likelihood, means, variances)
    assert (found["probability_lower"] <= probabilities + 1e-9).all()
    assert (probabilities <= found["probability_upper"] + 1e-9).all()
    assert (found["probability_lower"] <= found["probability"]).all()
    assert (found["probability"] <= found["probability_upper"]).all()
    certified = found["certified"] > 0.0
    assert (found["class"][certified] == probabilities.argmax(axis=1)[certified]).all()


@pytest.mark.covering
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("tolerance", [1e-3, 0.3])
def test_no_interval_misses_the_exact_approximation(
    name: str, classes: int, tolerance: float, rng: np.random.Generator
) -> None:
    data, labels = noisy_sine(rng, 150, classes)
    model = trained_gp(data, labels, name, tolerance=tolerance)
    record = memory_classifier(model.record(LabelledData(data, labels)), data)
    test = rng.standard_normal((60, 3)) * 1.5
    found = class_posterior(record, f"gp-{next(VERSIONS)}")(test)
    seen = (test - data.standardisation.input_mean) / data.standardisation.input_std
    require_held(found, *exact(data, labels, name, GP_KERNEL, seen), name, classes)
    widths = found["probability_upper"] - found["probability_lower"]
    assert widths.max() < (0.02 if tolerance < 0.01 else 0.5)
    if tolerance < 0.01:
        assert (found["certified"] > 0.0).mean() > 0.9


@pytest.mark.parametrize("expression", ["matern32 + 0.5 * linear", "4.0 * rbf[0] * matern52[1, 2]"])
def test_any_kernel_and_weights(expression: str, rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng, 120)
    kernel, weights = parse_kernel(expression, 3), rng.choice([0.0, 0.5, 2.0], 120)
    model = trained_gp(data, labels, "logit", kernel, weights=weights)
    record = memory_classifier(model.record(LabelledData(data, labels, weights)), data)
    test = rng.standard_normal((40, 3))
    found = class_posterior(record, f"gp-{next(VERSIONS)}")(test)
    seen = (test - data.standardisation.input_mean) / data.standardisation.input_std
    require_held(found, *exact(data, labels, "logit", kernel, seen, weights), "logit", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("settings", [{}, {"max_passes": 0.0}, {"rank": 100, "halo": 200}])
def test_no_interval_misses_the_exact_approximation_of_2000(
    name: str, settings: dict[str, float], rng: np.random.Generator
) -> None:
    data, labels = noisy_sine(rng, 2000)
    kernel = parse_kernel("5.0 * matern32(length_scale=0.6)", 3)
    model = trained_gp(data, labels, name, kernel)
    record = memory_classifier(model.record(LabelledData(data, labels)), data)
    test = rng.standard_normal((300, 3)) * 1.5
    variance = VarianceSettings(**settings)  # type: ignore[arg-type]
    found = class_posterior(record, f"gp-{next(VERSIONS)}", variance=variance)(test)
    seen = (test - data.standardisation.input_mean) / data.standardisation.input_std
    require_held(found, *exact(data, labels, name, kernel, seen), name, 2)


def test_probabilities_are_scikit_learns(rng: np.random.Generator) -> None:
    data, labels = noisy_sine(rng, 500, 3)
    scales = 1.0 / np.sqrt(2.0 * np.asarray(GP_KERNEL.gamma))
    theirs = GaussianProcessClassifier(ConstantKernel(5.0) * RBF(scales), optimizer=None, max_iter_predict=1000)
    theirs.fit(data.inputs(0, 500), labels.codes)
    record = memory_classifier(trained_gp(data, labels, "logit").record(LabelledData(data, labels)), data)
    test = rng.standard_normal((50, 3))
    found = class_posterior(record, f"gp-{next(VERSIONS)}")(test)
    seen = (test - data.standardisation.input_mean) / data.standardisation.input_std
    np.testing.assert_allclose(found["probability"], theirs.predict_proba(seen), atol=2e-3)


def few_landmarks(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Factors that do not suffice everywhere, tried on a few samples at a time; small batches, and groups of them."""
    monkeypatch.setattr(iterative, "chosen_rank", lambda *_: rank)
    monkeypatch.setattr(iterative, "judged", lambda landmarks, *_, **__: (landmarks, True))
    monkeypatch.setattr(iterative, "MOST_DECIDED", 30)
    monkeypatch.setattr(iterative, "LARGEST_JOINT_BATCH", 4)
    monkeypatch.setattr(batch, "AT_ONCE", 16)


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("classes", [2, 3])
def test_variances_are_as_precise_as_averages_have_use_for(
    name: str, classes: int, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals hold, those of averages are hardly wider than with all variances to the gap, and less is done."""
    few_landmarks(monkeypatch, 40)
    data, labels = noisy_sine(rng, 300, classes)
    record = memory_classifier(trained_gp(data, labels, name, tolerance=0.3).record(LabelledData(data, labels)), data)
    rows = 2.0 * rng.standard_normal((90, 3))
    test = dataset_from_arrays(tmp_path / "test.zarr", rows, None)
    seen = (rows - data.standardisation.input_mean) / data.standardisation.input_std
    expected = exact(data, labels, name, GP_KERNEL, seen)
    likelihood = Likelihood.of(name, "ovr", classes)  # type: ignore[arg-type]
    figures, ends = [], []
    for settings in (None, VarianceSettings()):
        executor, place = LocalExecutor(2), str(tmp_path / f"{settings is None}.zarr")
        try:
            summary = predict(record, test, place, executor, variance=settings)
        finally:
            executor.close()
        stored = open_prediction(place)
        mean, bound, lower, upper, low, high = (
            stored.read(variable)
            for variable in (
                "decision",
                "decision_error_bound",
                "latent_variance_lower",
                "latent_variance_upper",
                "probability_lower",
                "probability_upper",
            )
        )
        assert (lower <= expected[1] * (1.0 + 1e-8)).all()
        assert (expected[1] * (1.0 - 1e-8) <= upper).all()
        probabilities = averaged(likelihood, *expected)
        assert (low <= probabilities + 1e-9).all()
        assert (probabilities <= high + 1e-9).all()
        assert summary.classes is not None
        figures.append(summary.classes["latent_variance"])
        ends.append((lower, upper, high - low))
        assert (np.abs(mean - expected[0]) <= bound + 1e-9 * (1.0 + np.abs(mean))).all()
    needed, asked = figures
    assert needed["for_averages"]
    assert not asked["for_averages"]
    assert needed["unmet"] == asked["unmet"] == 0
    assert needed["gap_max"] > 0.1
    assert needed["column_passes"] < 0.8 * asked["column_passes"]
    widths, at_most = ends[0][2], ends[1][2]
    assert (widths <= 1.15 * at_most).all()
    assert widths.mean() <= 1.05 * at_most.mean()


@pytest.mark.long
@pytest.mark.parametrize("settings", [pytest.param(VarianceSettings(batch_size=16), marks=pytest.mark.slow), None])
def test_stores_are_resumed_and_have_the_same_bits_on_any_number_of_workers(
    settings: VarianceSettings | None, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings is None:
        few_landmarks(monkeypatch, 60)
    data, labels = noisy_sine(rng, 150, 3)
    train = dataset_from_arrays(
        tmp_path / "train.zarr", data.inputs(0, 150), labels.codes.astype(np.float64), chunk_rows=60
    )
    test = dataset_from_arrays(tmp_path / "test.zarr", rng.standard_normal((90, 3)), None, chunk_rows=30)
    url = str(tmp_path / "model.zarr")
    save_classifier(url, trained_gp(train, labels, "logit").record(LabelledData(train, labels)), dataset=train)
    model, stored = open_classifier(url), []

    def begin(place: str, executor: LocalExecutor) -> None:
        """Interrupted after the first regions; other settings may not go on from there."""
        asked = count()
        with pytest.raises(InterruptedRunError):
            predict(model, test, place, RunContext(executor, interrupted=lambda: next(asked) > 1), variance=settings)
        with pytest.raises(InputError, match="started with"):
            predict(
                model,
                test,
                Destination(place, resume=True),
                executor,
                variance=VarianceSettings(batch_size=16, gap=0.5),
            )

    for threads in (1, 5):
        executor, place = LocalExecutor(threads), str(tmp_path / f"p{threads}.zarr")
        try:
            if threads == 5:
                begin(place, executor)
            summary = predict(model, test, Destination(place, resume=threads == 5), executor, variance=settings)
        finally:
            executor.close()
        prediction = open_prediction(place)
        stored.append({name: prediction.read(name) for name in prediction.variables})
    assert {"probability_lower", "probability_upper", "latent_variance_lower", "latent_variance_upper"} <= set(
        stored[0]
    )
    for other_store in stored[1:]:
        for name, values in stored[0].items():
            np.testing.assert_array_equal(values, other_store[name], err_msg=name)
    assert summary.classes is not None
    assert summary.classes["latent_variance"]["unmet"] == 0
    inside = class_posterior(model, f"gp-{next(VERSIONS)}", variance=settings, n_test=90)(
        test.inputs(0, 90, standardised=False)
    )
    np.testing.assert_allclose(inside["probability"], stored[0]["probability"], rtol=1e-3 if settings is None else 1e-6)


def test_what_a_gaussian_process_refuses(rng: np.random.Generator, tmp_path: Path) -> None:
    data, labels = noisy_sine(rng, 60, 3)
    executor = LocalExecutor(1)
    try:
        given = (LabelledData(data, labels), Hyperparameters(GP_KERNEL, 1.0), executor)
        with pytest.raises(InputError, match=r"one matrix of order 180, .* KiB"):
            train_gp(*given, RiskSettings(Likelihood("softmax", 3)))
        with pytest.raises(InputError, match="has no regularisation, got 0.5"):
            train_gp(*given, RiskSettings(Likelihood("logit", 3), regularisation=0.5))
    finally:
        executor.close()


def test_a_mode_that_is_far_from_found_says_so(rng: np.random.Generator) -> None:
    """Whatever the mode, the intervals hold; far from it they tell little, and nothing wrong."""
    from dkgp.solvers import MaxIterations

    data, labels = noisy_sine(rng, 120)
    model = trained_gp(data, labels, "probit", limits=MaxIterations(1))
    assert not model.summary["converged"]
    record = memory_classifier(model.record(LabelledData(data, labels)), data)
    test = rng.standard_normal((30, 3))
    found = class_posterior(record, f"gp-{next(VERSIONS)}")(test)
    seen = (test - data.standardisation.input_mean) / data.standardisation.input_std
    require_held(found, *exact(data, labels, "probit", GP_KERNEL, seen), "probit", 2)


def _hostile(rng: np.random.Generator) -> dict[str, tuple[FloatArray, NDArray[np.int64], Kernel]]:
    X = rng.standard_normal((60, 3))
    two = (X[:, 0] > 0.0).astype(np.int64)
    return {
        "duplicates of both classes": (np.tile(X[:30], (2, 1)), np.repeat([0, 1], 30), GP_KERNEL),
        "separable": (X, two, SquaredExponential(gamma=(0.1, 0.1, 0.1), variance=1e4)),
        "hopelessly steep": (X, two, SquaredExponential(gamma=(0.1, 0.1, 0.1), variance=1e6)),
        "linear, far out": (X, two, parse_kernel("linear + constant", 3)),
        "hardly any amplitude": (X, two, SquaredExponential(gamma=(0.1, 0.1, 0.1), variance=1e-6)),
        "islands": (X, two, SquaredExponential(gamma=(1e3, 1e3, 1e3), variance=50.0)),
        "rare classes": (X, np.r_[np.zeros(57, np.int64), 1, 2, 2], GP_KERNEL),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logit", "probit"])
@pytest.mark.parametrize("what", _hostile(np.random.default_rng(0)))
def test_no_hostile_problem_breaks_an_interval(name: str, what: str, rng: np.random.Generator) -> None:
    X, codes, kernel = _hostile(rng)[what]
    data, labels = memory_dataset(X, codes.astype(np.float64)), Labels(tuple("abc"[: codes.max() + 1]), codes)
    record = memory_classifier(trained_gp(data, labels, name, kernel).record(LabelledData(data, labels)), data)
    test = np.concatenate([rng.standard_normal((20, 3)), 1e3 * rng.standard_normal((5, 3)), X[:5]])
    found = class_posterior(record, f"gp-{next(VERSIONS)}")(test)
    seen = (test - data.standardisation.input_mean) / data.standardisation.input_std
    require_held(found, *exact(data, labels, name, kernel, seen), name, labels.n_classes)
