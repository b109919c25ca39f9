"""Kernel logistic regression against dense Newton steps; weights, resume, workers, and what is refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import CheckpointError, InputError, UsageError
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models.classification import logistic as train
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.likelihoods import Likelihood, LikelihoodName
from dkgp.models.classification.logistic import RiskError, RiskSettings, TrainedLogistic, train_logistic
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.rounding import UNIT, product_roundings
from dkgp.solvers import Checkpointing, MaxIterations
from dkgp.solvers.risk import RISK_METHODS
from tests.covering import few
from tests.models.classification.logistic.dense_risk import dense_minimiser, losses_of
from tests.models.classification.logistic.problems import RiskProblem
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
    np.testing.assert_allclose(found.predicted.decision, decisions, atol=1e-6)
    assert (np.abs(found.predicted.decision - decisions) <= found.predicted.bounds + 1e-11).all()
    assert found.predicted.bounds.max() <= 1.1e-6
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
    np.testing.assert_allclose(few.predicted.decision, kernel(T, repeated) @ alpha, atol=1e-8)


def test_a_class_without_samples_has_no_weight(rng: np.random.Generator) -> None:
    few = problem(rng, n=12)
    few.codes, few.weights = np.zeros(12, int), np.arange(12.0)
    assert few.record.class_weights == {"c0": 5.5}


@pytest.mark.parametrize("method", few(FAST, FAST[0]))  # tests/models/test_conformance.py has them too
def test_the_bits_do_not_depend_on_the_workers(method: str, rng: np.random.Generator) -> None:
    found = problem(rng, "softmax", 3, n=700)
    more = {"method": method, "limits": MaxIterations(12)}
    one, two, five = (trained(found, workers, **more) for workers in (1, 2, 5))
    for other in (two, five):
        assert other.alpha.tobytes() == one.alpha.tobytes()
        assert other.curvature.tobytes() == one.curvature.tobytes()
        assert other.certificate == one.certificate


def test_a_checkpoint_of_another_problem_is_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    found = problem(rng)
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    trained(found, checkpointing=Checkpointing(store, 0.0), method="kcg")
    again: dict[str, Any] = {"checkpointing": Checkpointing(store, 0.0, resume=True), "method": "kcg"}
    for more in (
        {"weights": np.full(200, 2.0)},
        {"regularisation": 0.4},
        {"likelihood": Likelihood("probit", 2)},
    ):
        with pytest.raises(CheckpointError, match="another run|other settings"):
            trained(found, **again, **more)


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
    assert (np.abs(found.predicted.decision - decisions) <= found.predicted.bounds + 1e-11).all()


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
