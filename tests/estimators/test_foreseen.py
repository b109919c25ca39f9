"""Products that a choice of a solver foresees: they reach those who decide what tiles to keep, and change no bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dkgp.estimators.settings
import dkgp.models.classification.exact
import dkgp.models.classification.logistic
from dkgp import LSSVC, GPClassifier, GPRegressor, KernelLogisticClassifier
from dkgp.cli import main
from dkgp.data import dataset_from_arrays, memory_dataset, open_classifier
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RiskSettings
from dkgp.operators.full_products import FullProducts
from dkgp.operators.keeping import Keeping
from dkgp.solvers import Choice

KERNEL, NOISE, N = SquaredExponential((0.8, 0.3)), 0.05, 600


@pytest.fixture
def samples(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(N, 2))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The products, with itself, that each float32 product was decided by."""
    found: list[float] = []
    terms = FullProducts._keeping

    def keeping(self: FullProducts, precision: Any) -> Keeping | None:
        told = terms(self, precision)
        if told is not None:
            assert told.budget.measured
            found.append(told.products)
        return told

    monkeypatch.setattr(FullProducts, "_keeping", keeping)
    return found


def choose(monkeypatch: pytest.MonkeyPatch, where: Any, products: float | None) -> None:
    """Have "auto" take conjugate gradients, which so few samples would not be given, and foresee so many products."""
    choice = Choice("cg", "as the test says", products=products)
    monkeypatch.setattr(where, "choose_solver_for", lambda *_, **__: replace(choice))


def test_regressor(samples: tuple[np.ndarray, np.ndarray], asked: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    models = {}
    for products in (None, 9.5, 400.0):
        asked.clear()
        choose(monkeypatch, dkgp.estimators.settings, products)
        models[products] = GPRegressor(KERNEL, noise_variance=NOISE).fit(*samples)
        # Less one after each; from the third on the fall of the gradient may foresee more.
        assert len(asked) > 4
        assert asked[:3] == ([0.0] * 3 if products is None else [products, products - 1.0, products - 2.0])
    means = {products: model.predict(samples[0]).tobytes() for products, model in models.items()}
    assert len(set(means.values())) == 1
    # One that is named foresees nothing.
    asked.clear()
    GPRegressor(KERNEL, noise_variance=NOISE, solver="cg").fit(*samples)
    assert asked[:3] == [0.0] * 3


def test_classifier(
    samples: tuple[np.ndarray, np.ndarray], asked: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, labels = samples[0], (samples[1] > 0.0).astype(int)
    dataset_from_arrays(tmp_path / "d.zarr", X, labels.astype(float), classes=("no", "yes"))
    write_hyperparameters(tmp_path / "h.json", Hyperparameters(KERNEL, NOISE))
    decisions, alphas = [], []
    for products in (None, 7.5):
        wanted = [0.0] * 3 if products is None else [7.5, 6.5, 5.5]
        choose(monkeypatch, dkgp.models.classification.exact, products)
        asked.clear()
        decisions.append(LSSVC(KERNEL, noise_variance=NOISE).fit(X, labels).decision_function(X).tobytes())
        assert asked[:3] == wanted
        asked.clear()
        out = tmp_path / f"{products}.zarr"
        command = ["classify", tmp_path / "d.zarr", "--out", out, "--method", "exact", "--hyper", tmp_path / "h.json"]
        ran = CliRunner().invoke(main, [str(each) for each in command])
        assert ran.exit_code == 0, ran.output
        assert asked[:3] == wanted
        alpha = open_classifier(str(out)).alpha
        assert alpha is not None
        alphas.append(alpha.tobytes())
    assert len(set(decisions)) == 1
    assert len(set(alphas)) == 1


@pytest.mark.parametrize("estimator", [KernelLogisticClassifier, pytest.param(GPClassifier, marks=pytest.mark.slow)])
def test_likelihoods(
    estimator: Any,
    samples: tuple[np.ndarray, np.ndarray],
    asked: list[float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By runs on subsets, where there are samples enough for these to be nothing beside the rest."""
    X, labels = samples[0], (samples[1] > 0.0).astype(int)
    kernel = SquaredExponential((0.8, 0.3), variance=5.0)
    few = estimator(kernel).fit(X, labels).predict_proba(X)
    assert asked[:3] == [0.0] * 3
    monkeypatch.setattr(dkgp.models.classification.logistic, "SUBSETS", (100, 300))
    monkeypatch.setattr(dkgp.models.classification.logistic, "FORESEEN_FROM", N)
    asked.clear()
    model = estimator(kernel).fit(X, labels)
    # Those on the subsets are decided by nobody: the first run of three or more that falls by one.
    wanted = dkgp.models.classification.logistic.foreseen_products
    dataset = memory_dataset(X, labels.astype(float), classes=("no", "yes"))
    likelihood = Likelihood.of("logit", "softmax", 2)
    expected = wanted(LabelledData(dataset, labels_of(dataset)), kernel, RiskSettings(likelihood)).count
    told = [products for products in asked if products > 0.0]
    assert told[:3] == pytest.approx([expected, expected - 1.0, expected - 2.0])
    assert model.predict_proba(X).tobytes() == few.tobytes()
    # And so by the command.
    dataset_from_arrays(tmp_path / "d.zarr", X, labels.astype(float), classes=("no", "yes"))
    write_hyperparameters(tmp_path / "h.json", Hyperparameters(kernel, 1.0))
    method = "gp" if estimator is GPClassifier else "logistic"
    asked.clear()
    command = ["classify", tmp_path / "d.zarr", "--out", tmp_path / "m.zarr", "--method", method]
    ran = CliRunner().invoke(main, [str(each) for each in (*command, "--hyper", tmp_path / "h.json")])
    assert ran.exit_code == 0, ran.output
    assert next(products for products in asked if products > 0.0) == pytest.approx(expected)
