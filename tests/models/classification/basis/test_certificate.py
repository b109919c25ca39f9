"""No function of a basis is farther from the exact minimiser than is proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.kernels import Kernel, Linear, Matern32, SquaredExponential
from dkgp.operators import BlockedKernelOperator
from tests.models.classification.basis.problems import exact_decisions, samples, trained

KERNELS: list[Kernel] = [
    SquaredExponential((0.3, 0.3, 0.3)),
    SquaredExponential((1e-3,) * 3, variance=50.0),
    Matern32((2.0, 0.5, 1.0), variance=3.0),
]


def judged(rng: np.random.Generator, kernel: Kernel, n: int = 150, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """Errors at test inputs against the dense minimiser, and their bounds."""
    n_classes = more.pop("n_classes", 2)
    dataset, labels = samples(rng, n, n_classes)
    found = trained(dataset, labels, kernel=kernel, settings={"certify": True, **more.pop("settings", {})}, **more)
    tests = np.concatenate([2.0 * rng.standard_normal((60, 3)), dataset.inputs(0, 20)])
    decisions = kernel(tests, found.prototypes) @ found.weights
    assert found.certificate is not None
    bounds = found.certificate.decision_error_bound(decisions, kernel.diagonal(tests), np.full(len(tests), 64.0))
    exact = exact_decisions(dataset, labels, tests, kernel, found.likelihood, found.regularisation, more.get("weights"))
    return np.abs(decisions - exact), bounds


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=["rbf", "flat", "rough"])
@pytest.mark.parametrize(
    ("link", "multi_class", "n_classes"),
    [("logit", "ovr", 2), ("probit", "ovr", 2), ("logit", "ovr", 3), ("logit", "softmax", 3)],
)
def test_bounds_hold(kernel: Kernel, link: str, multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    for regularisation, size in ((10.0, 5), (0.1, 40)):
        errors, bounds = judged(
            rng, kernel, n_classes=n_classes, link=link, multi_class=multi_class, regularisation=regularisation,
            size=size,
        )  # fmt: skip
        assert (errors <= bounds * (1.0 + 1e-12) + 1e-9).all()
        assert np.isfinite(bounds).all()


@pytest.mark.parametrize(("multi_class", "n_classes"), [("ovr", 2), ("softmax", 3)])
def test_bounds_hold_of_a_few_samples(multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    errors, bounds = judged(rng, KERNELS[0], n=60, n_classes=n_classes, multi_class=multi_class, size=10)
    assert (errors <= bounds).all()
    assert 1e-3 < errors.max() < bounds.max() < 10.0


def test_bounds_hold_of_weighted_samples_and_of_fits_that_were_cut_short(rng: np.random.Generator) -> None:
    for steps in (1, 3):
        weights = rng.uniform(0.0, 3.0, 150)
        errors, bounds = judged(
            rng, KERNELS[0], weights=weights, regularisation=0.3, settings={"max_iterations": steps}
        )
        assert (errors <= bounds).all()


def test_all_samples_leave_no_distance(rng: np.random.Generator) -> None:
    errors, bounds = judged(rng, KERNELS[2], size=150, settings={"basis": "uniform", "tolerance": 1e-10})
    assert errors.max() < 1e-7
    # Of what the jitter moves the fit, and of roundings.
    assert bounds.max() < 1e-3
    assert (errors <= bounds).all()


def test_bounds_say_something_where_the_basis_is_good(rng: np.random.Generator) -> None:
    kernel = SquaredExponential((0.05,) * 3)
    errors, bounds = judged(rng, kernel, size=60)
    assert bounds.max() < 0.05
    assert (errors <= bounds).all()


def test_a_kernel_of_little_rank(rng: np.random.Generator) -> None:
    errors, bounds = judged(rng, Linear((0.5,) * 3), size=3, settings={"basis": "uniform"})
    assert (errors <= bounds).all()
    assert errors.max() < 1e-3


def test_bounds_hold_of_problems_drawn_at_random(rng: np.random.Generator) -> None:
    for _ in range(10):
        kernel = SquaredExponential(tuple(10.0 ** rng.uniform(-3, 1, 3)), variance=10.0 ** rng.uniform(-2, 4))
        multi_class, n_classes = [("ovr", 2), ("ovr", 3), ("softmax", 3)][rng.integers(3)]
        link = "logit" if multi_class == "softmax" else ["logit", "probit"][rng.integers(2)]
        weights = 10.0 ** rng.uniform(-6, 2, 40) if rng.random() < 0.5 else None
        regularisation = 10.0 ** rng.uniform(-3, 4)
        errors, bounds = judged(
            rng, kernel, n=40, n_classes=n_classes, link=link, multi_class=multi_class, weights=weights,
            regularisation=regularisation, size=int(rng.integers(1, 41)),
            settings={"basis": ["uniform", "k-means"][rng.integers(2)], "tolerance": 10.0 ** rng.uniform(-9, 1)},
        )  # fmt: skip
        # The dense minimiser has roundings of its own.
        assert (errors <= bounds * (1.0 + 1e-9) + 1e-8 * (1.0 + np.sqrt(kernel.variance))).all()


@pytest.mark.parametrize(("multi_class", "n_classes"), [("ovr", 3), ("softmax", 3)])
def test_the_least_risk_is_not_below_its_bound(multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 80, n_classes)
    X, kernel = dataset.inputs(0, 80), SquaredExponential((0.3,) * 3, variance=25.0)
    found = trained(
        dataset, labels, kernel=kernel, multi_class=multi_class, size=20, settings={"certify": True}, regularisation=0.2
    )
    values = exact_decisions(dataset, labels, X, kernel, found.likelihood, 0.2)
    loss, targets = found.likelihood.loss, found.likelihood.targets(labels)
    alpha = -loss.slope(targets, values) / 0.2
    least = float(loss.value(targets, values).sum() + 0.1 * np.sum(alpha * (kernel(X, X) @ alpha)))
    assert found.summary["risk_lower_bound"] <= least * (1.0 + 1e-10)
    assert least < found.summary["risk"]
    assert found.summary["distance"][0] == pytest.approx(5.0 * found.certificate.radius[0])
    away = np.abs(kernel(X, found.prototypes) @ found.weights - values).max()
    assert 0.0 < away <= max(found.summary["distance"])
    assert found.summary["risk_gap"] == pytest.approx(1.0 - found.summary["risk_lower_bound"] / found.summary["risk"])


def test_the_errors_of_approximate_products_are_in_the_bounds(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The radius is proven by one product with all of K, here off by as much as is said, against the truth."""
    multiply, kernel = BlockedKernelOperator.matmat, KERNELS[0]
    dataset, labels = samples(rng, 150, 2)
    tests = 2.0 * rng.standard_normal((60, 3))
    radius = []
    for error in (0.0, 0.05):

        def off(self: BlockedKernelOperator, V: Any, precision: Any = "double", error: float = error) -> np.ndarray:
            self.error_rows = np.full(V.shape, error)
            return multiply(self, V, precision) - error * np.sign(V)

        monkeypatch.setattr(BlockedKernelOperator, "matmat", off)
        found = trained(dataset, labels, kernel=kernel, size=60, settings={"certify": True})
        assert found.certificate is not None
        radius.append(found.certificate.radius[0])
        decisions = kernel(tests, found.prototypes) @ found.weights
        bounds = found.certificate.decision_error_bound(decisions, kernel.diagonal(tests), np.full(60, 64.0))
        exact = exact_decisions(dataset, labels, tests, kernel, found.likelihood, found.regularisation)
        assert (np.abs(decisions - exact) <= bounds * (1.0 + 1e-12) + 1e-9).all()
    assert radius[0] < radius[1]
