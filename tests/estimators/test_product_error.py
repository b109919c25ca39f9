"""`product_error=` of estimators: bounds that hold against dense algebra, and values that are refused."""

from __future__ import annotations

from typing import Any

import dask.array
import numpy as np
import pytest

from dkgp import LSSVC, GPClassifier, GPRegressor, KernelLogisticClassifier
from dkgp.errors import InputError
from dkgp.kernels import Linear, Matern32, SquaredExponential
from dkgp.models import Hyperparameters, sums
from dkgp.models.variance import ways
from dkgp.models.variance.neighbours.run import NeighbourRun
from dkgp.operators import cross_sums
from dkgp.operators.cells.cross import SOURCE_LEAF
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


@pytest.fixture
def small_sums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sums in memory are within an error, for few samples too, by pieces of 64 rows; the numbers of rows are noted."""
    for name in ("CLASS_ENTRIES", "PIECE_ENTRIES"):
        monkeypatch.setattr(cross_sums, name, {1: 0.0, 2: 0.0, 3: 0.0})
    monkeypatch.setattr(cross_sums, "SHARE_OF_ENTRIES", 1e9)
    monkeypatch.setattr(sums, "LEAST_ENTRIES", 0.0)
    monkeypatch.setattr(sums, "WIDE_PIECE_ROWS", 64)
    monkeypatch.setitem(SOURCE_LEAF, 2, 2)
    noted: list[int] = []
    by_cells = sums.cross_sums

    def noting(context: Any, inputs: np.ndarray, *more: Any) -> Any:
        noted.append(len(inputs))
        return by_cells(context, inputs, *more)

    monkeypatch.setattr(sums, "cross_sums", noting)
    return noted


def test_means_in_memory_are_sums_within_an_error(
    samples: tuple[np.ndarray, np.ndarray], small_sums: list[int], rng: np.random.Generator
) -> None:
    X, y = samples
    settings = {"noise_variance": NOISE, "solver": "cg", "tol": 0.05}
    model, every = (GPRegressor(KERNEL, product_error=each, **settings).fit(X, y) for each in ("auto", "none"))
    Z, targets = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    alpha = np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(N), targets)
    most = 0.011 * np.sqrt(NOISE) * y.std()
    for _ in range(2):  # as many other rows have another order
        T = rng.uniform(size=(150, 2))
        # Without variances, beside which means evaluate every entry.
        found = model._fitted.posterior(None, 150)(T)
        assert sorted(small_sums) == [22, 64, 64]
        small_sums.clear()
        full = every._fitted.posterior(None, 150)(T)
        assert not small_sums
        exact = KERNEL((T - X.mean(axis=0)) / X.std(axis=0), Z) @ alpha * y.std() + y.mean()
        assert (np.abs(found["mean"][:, 0] - exact) <= found["mean_error_bound"][:, 0]).all()
        assert 0.0 < np.abs(found["mean"] - full["mean"]).max() <= most
        assert (found["mean_error_bound"] > full["mean_error_bound"]).any()
        assert (found["mean_error_bound"] <= full["mean_error_bound"] + most).all()
        np.testing.assert_array_equal(model.predict(T), found["mean"][:, 0])
        small_sums.clear()
    # Lazily, chunk by chunk.
    lazy = model.predict(dask.array.from_array(T, chunks=(75, 2))).compute(scheduler="sync")
    assert sorted(small_sums) == [11, 11, 64, 64]
    assert (np.abs(lazy - exact) <= found["mean_error_bound"][:, 0] + most).all()


@pytest.mark.parametrize("estimator", [LSSVC, KernelLogisticClassifier])
def test_decisions_in_memory_are_sums_within_an_error(
    samples: tuple[np.ndarray, np.ndarray], small_sums: list[int], rng: np.random.Generator, estimator: Any
) -> None:
    X, y = samples
    # Solvers that stop at the tolerance, and not far below it.
    more: dict[str, Any] = {"noise_variance": NOISE, "solver": "cg"} if estimator is LSSVC else {"solver": "kcg"}
    model, every = (
        estimator(KERNEL, product_error=each, tol=0.01, **more).fit(X, np.where(y > 0.0, "up", "down"))
        for each in ("auto", "none")
    )
    T = rng.uniform(size=(150, 2))
    decision, bound = model.decision_function(T, return_bounds=True)
    assert sorted(small_sums) == [22, 64, 64]
    small_sums.clear()
    other, full = every.decision_function(T, return_bounds=True)
    assert not small_sums
    assert (np.abs(decision - other) > 0.0).any()
    assert (np.abs(decision - other) <= bound - full + 1e-12).all()
    assert (bound <= 1.05 * full).all()


@pytest.mark.parametrize("known", [False, True])
def test_variances_in_memory_go_by_neighbours(
    samples: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, known: bool
) -> None:
    X, y = samples
    monkeypatch.setattr(ways, "LEAST_NEAR", N)
    monkeypatch.setattr(ways.Forecast, "whole", lambda forecast: 1e9)
    monkeypatch.setattr(ways, "_partial_is_quicker", lambda *arguments: False)
    own = rng.uniform(0.01, 0.1, N) if known else None
    model = GPRegressor(KERNEL, noise_variance=NOISE, tol=1e-6, variance_gap=0.05).fit(X, y, sample_noise=own)
    Z, targets = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    noise = np.full(N, model.noise_variance_) + (0.0 if own is None else own / y.var())
    inverse = np.linalg.inv(KERNEL(Z, Z) + np.diag(noise))
    for count in (60, 30):
        T = rng.uniform(size=(count, 2))
        mean, variance, bounds = model.predict(T, return_var=True, return_bounds=True, latent=True)
        K = KERNEL((T - X.mean(axis=0)) / X.std(axis=0), Z)
        exact = (1.0 - np.einsum("ij,jk,ik->i", K, inverse, K)) * y.var()
        assert (bounds.variance_lower <= exact * (1.0 + 1e-9)).all()
        assert (exact <= bounds.variance_upper * (1.0 + 1e-9)).all()
        assert np.mean(bounds.variance_upper - bounds.variance_lower <= 0.05 * bounds.variance_upper) > 0.9
        np.testing.assert_allclose(variance, 0.5 * (bounds.variance_lower + bounds.variance_upper), rtol=1e-12)
        assert (np.abs(mean - (K @ inverse @ targets * y.std() + y.mean())) <= bounds.mean_error).all()
    assert all(isinstance(each._run, NeighbourRun) for each in model._fitted._posteriors.values())
