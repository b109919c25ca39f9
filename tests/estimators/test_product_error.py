"""`product_error=` of estimators: bounds that hold against dense algebra, and values that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp import LSSVC, GPClassifier, GPRegressor, KernelLogisticClassifier
from dkgp.errors import InputError
from dkgp.kernels import Linear, Matern32, SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.solvers import TiledCholesky

KERNEL, NOISE, N = SquaredExponential((20.0, 30.0)), 0.05, 400


@pytest.fixture
def samples(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(size=(N, 2))
    return X, np.sin(X @ [9.0, -5.0]) + 0.2 * rng.standard_normal(N)


@pytest.mark.parametrize("solver", ["auto", "cg"])
def test_the_regressors_bounds_hold(samples: tuple[np.ndarray, np.ndarray], solver: str) -> None:
    X, y = samples
    models = {}
    for error in (1e-5, "none"):
        models[error] = GPRegressor(KERNEL, noise_variance=NOISE, solver=solver, product_error=error).fit(X, y)
    model = models[1e-5]
    assert model.solution_["product_error"] == 1e-5
    assert 0.0 < model.certificate_.product_error <= 1.01e-5
    assert models["none"].certificate_.product_error == 0.0
    assert "product_error" not in models["none"].solution_
    Z, targets = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    exact = KERNEL(Z, Z) @ np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(N), targets) * y.std() + y.mean()
    mean, bounds = model.predict(X, return_bounds=True)
    assert (np.abs(mean - exact) <= bounds.mean_error + 1e-10).all()


@pytest.mark.parametrize("estimator", [LSSVC, KernelLogisticClassifier, GPClassifier])
def test_classifiers_allow_for_it(samples: tuple[np.ndarray, np.ndarray], estimator: Any) -> None:
    X, y = samples
    labels = np.where(y > 0.0, "up", "down")
    more = {"noise_variance": NOISE} if estimator is LSSVC else {}
    found = {}
    for error in (1e-7, "none"):
        found[error] = estimator(KERNEL, product_error=error, **more).fit(X, labels)
    assert all(model.solution_["converged"] for model in found.values())
    assert found[1e-7].solution_["product_error"] == 1e-7
    decision, bound = found[1e-7].decision_function(X, return_bounds=True)
    other, other_bound = found["none"].decision_function(X, return_bounds=True)
    assert (np.abs(decision - other) <= bound + other_bound).all()


def test_what_is_refused(samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = samples
    with pytest.raises(InputError, match="product_error= takes a positive finite number, .*; got 'tree'"):
        GPRegressor(KERNEL, noise_variance=NOISE, product_error="tree").fit(X, y)
    with pytest.raises(InputError, match=r"product_error= takes .*; got -1.0"):
        LSSVC(KERNEL, noise_variance=NOISE, product_error=-1.0).fit(X, np.sign(y))
    with pytest.raises(InputError, match="`product_error` must be below `tolerance`"):
        GPRegressor(KERNEL, noise_variance=NOISE, solver="cg", product_error=1e-3).fit(X, y)
    for solver, name in (("cholesky", "cholesky"), ("smo", "smo"), (TiledCholesky(), "tiled-cholesky")):
        # Before hyperparameters are tuned, which takes longer than all other checks.
        with pytest.raises(InputError, match=f"`product_error` 1e-06 is for .*; {name} evaluates the entries themsel"):
            GPRegressor("rbf", solver=solver, product_error=1e-6).fit(X, y)
        with pytest.raises(InputError, match=f"`product_error` 1e-06 is for .*; {name} evaluates the entries themsel"):
            LSSVC("rbf", solver=solver, product_error=1e-6).fit(X, np.sign(y))
    GPRegressor(KERNEL, noise_variance=NOISE, solver="cholesky", product_error="auto").fit(X, y)
    with pytest.raises(InputError, match="a part of dot products"):
        GPRegressor(Linear((1.0, 1.0)), noise_variance=NOISE, solver="cg", product_error=1e-5).fit(X, y)


@pytest.mark.parametrize("more", [{"product_error": 1e-6}, {"solver": "pcg", "product_error": "none"}, {}])
@pytest.mark.parametrize("estimator", [GPRegressor, LSSVC])
def test_distances_without_features_are_refused_before_any_work(
    samples: tuple[np.ndarray, np.ndarray], estimator: Any, more: dict[str, Any]
) -> None:
    X, y = samples
    alone = SquaredExponential((0.0, 0.0))
    with pytest.raises(InputError, match=r"^gamma\[0\] must be positive and finite; got 0.0"):
        estimator(alone, noise_variance=NOISE, **more).fit(X, np.sign(y))
    with pytest.raises(InputError, match=r"parts\[1\].gamma\[0\] must be positive and finite; got 0.0"):
        Hyperparameters(KERNEL + Matern32((0.0, 0.0)), NOISE)
    assert Hyperparameters(SquaredExponential((0.0, 2.0)), NOISE).kernel.n_features == 2
