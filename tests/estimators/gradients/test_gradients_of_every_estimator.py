"""Gradients of every estimator that has them are derivatives of that estimator's own predictions."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkgp
from dkgp import GPRegressor, SparseGPRegressor
from dkgp.errors import InputError
from dkgp.estimators import expected_improvement, log_expected_improvement, upper_confidence_bound
from dkgp.kernels import parse_kernel
from dkgp.models.sparse.model import METHODS

N, D = 90, 3
STEPS = (-2, -1, 1, 2), np.array([1.0, -8.0, 8.0, -1.0]) / 12.0


def samples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs whose units are orders of magnitude apart, targets far from zero, and test inputs."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (N + 6, D))
    y = 1e4 + 300.0 * (np.sin(2.0 * X[:, 0]) * np.cos(X[:, 1]) + 0.3 * X[:, 2] + 0.05 * rng.normal(size=N + 6))
    X = X * (1.0, 1e-3, 1e5) + (0.0, 2.0, -1e6)
    return X[:N], y[:N], X[N:]


X, Y, T = samples()
NOISE = np.random.default_rng(6).uniform(1.0, 2000.0, N)
KERNEL = "matern52(length_scale=1.0)"
KERNELS = {
    "product of features": "rbf['x0', 'x1'](length_scale=0.8) * matern32['x2'] + 0.3 * linear",
    "periodic": "periodic['x0'](period=1.5) * rbf(length_scale=2.0)",
    "polynomial": "polynomial(degree=2) + rq(alpha=1.5)",
    "white": "matern32(length_scale=1.0) + 0.05 * white",
}


def exact(kernel: str = KERNEL, **options: Any) -> GPRegressor:
    names = [f"x{feature}" for feature in range(D)]
    given = {"kernel": parse_kernel(kernel, D, names), "noise_variance": 0.01, **options}
    return GPRegressor(tol=1e-10, variance_gap=1e-9, **given)


def sparse(method: str, kernel: str = KERNEL, **options: Any) -> SparseGPRegressor:
    names = [f"x{feature}" for feature in range(D)]
    sizes = {"neighbours": 12} if method == "vif" else {}
    return SparseGPRegressor(
        parse_kernel(kernel, D, names), noise_variance=0.01, method=method, basis_size=15, **sizes, **options
    )


def updated(gp: Any) -> Any:
    return gp.fit(X[:-9], Y[:-9]).update(X[-9:], Y[-9:])


def loaded(gp: Any, folder: Path) -> Any:
    gp.fit(X, Y).save(str(folder / "model.zarr"))
    return type(gp).load(str(folder / "model.zarr"))


def gaps() -> np.ndarray:
    both = np.column_stack([Y, -2.0 * Y + 7.0])
    both[::3, 1] = np.nan
    return both


BOTH = np.column_stack([Y, np.cos(Y / 100.0)])
WEIGHTS = 1.0 + np.arange(N) % 3
FITTED: dict[str, Callable[[Path], Any]] = {
    "exact": lambda _: exact().fit(X, Y),
    "exact, tuned": lambda _: GPRegressor("rbf + linear", tol=1e-10, variance_gap=1e-9).fit(X, Y),
    "exact, constant mean": lambda _: exact(mean="constant").fit(X, Y),
    "exact, linear mean": lambda _: exact(mean="linear").fit(X, Y),
    "exact, two targets": lambda _: exact().fit(X, BOTH),
    "exact, two targets with gaps": lambda _: exact().fit(X, gaps()),
    "exact, known noise": lambda _: exact().fit(X, Y, sample_noise=NOISE),
    "exact, weights": lambda _: exact().fit(X, Y, sample_weight=WEIGHTS),
    "exact, noise model": lambda _: GPRegressor(noise_model="linear", tol=1e-10, variance_gap=1e-9).fit(X, Y),
    "exact, student": lambda _: GPRegressor(likelihood="student-t", tol=1e-10, variance_gap=1e-9).fit(X, Y),
    "exact, with variances": lambda _: exact(with_variances=True).fit(X, Y),
    "exact, updated": lambda _: updated(exact()),
    "exact, loaded": lambda folder: loaded(exact(), folder),
    "exact, pickled": lambda _: pickle.loads(pickle.dumps(exact().fit(X, Y))),
    **{f"exact, {name}": lambda _, text=text: exact(text).fit(X, Y) for name, text in KERNELS.items()},
    **{f"sparse, {method}": lambda _, method=method: sparse(method).fit(X, Y) for method in METHODS},
    **{f"vif, {name}": lambda _, text=text: sparse("vif", text).fit(X, Y) for name, text in KERNELS.items()},
    "vfe, known noise": lambda _: sparse("vfe").fit(X, Y, sample_noise=NOISE),
    "vif, known noise": lambda _: sparse("vif").fit(X, Y, sample_noise=NOISE),
    "vif, weights": lambda _: sparse("vif").fit(X, Y, sample_weight=WEIGHTS),
    "vif, two targets": lambda _: sparse("vif").fit(X, BOTH),
    "vif, tuned": lambda _: SparseGPRegressor("rbf", method="vif", basis_size=15, neighbours=12).fit(X, Y),
    "vif, loaded": lambda folder: loaded(sparse("vif"), folder),
    "vif, pickled": lambda _: pickle.loads(pickle.dumps(sparse("vif").fit(X, Y))),
    "vfe, updated": lambda _: updated(sparse("vfe")),
}
# Deviations whose gradient is refused in words; those of the function alone are known where the value is True.
REFUSED = {
    "exact, constant mean": False,
    "exact, linear mean": False,
    "exact, noise model": True,
    "exact, student": True,
}


def slopes(value: Callable[[np.ndarray], Any]) -> np.ndarray:
    """Central differences of fourth order: (r, [p,] d)."""
    results = []
    for feature in range(D):
        step = np.zeros(D)
        step[feature] = 2e-4 * np.ptp(X[:, feature])
        times, weights = STEPS
        results.append(sum(w * value(T + t * step) for t, w in zip(times, weights, strict=True)) / step[feature])
    return np.stack(results, axis=-1)


def assert_slopes(got: np.ndarray, value: Callable[[np.ndarray], Any], share: float) -> None:
    expected = slopes(value)
    assert got.shape == expected.shape
    largest = np.abs(expected).max(axis=0)
    assert (largest > 0.0).all()
    assert (np.abs(got - expected) <= share * largest).all()


# Those of a second and less; the others are long.
QUICK = ("exact, known noise", "exact, two targets", "exact, linear mean", "vfe, known noise", "vif, known noise")


def test_no_estimator_is_forgotten() -> None:
    named = (getattr(dkgp, name) for name in dkgp.__all__)
    able = {of for of in named if inspect.isclass(of) and hasattr(of, "predict_gradients")}
    assert able == {GPRegressor, SparseGPRegressor}


@pytest.mark.filterwarnings("ignore:the subset of regressors' variances")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FITTED]
)
def test_gradients_are_slopes_of_the_predictions(name: str, tmp_path: Path) -> None:
    gp = FITTED[name](tmp_path)
    got = gp.predict_gradients(T)
    np.testing.assert_array_equal(got.mean, gp.predict(T))
    assert_slopes(got.mean_gradient, gp.predict, 1e-6)
    for latent in (True, False):
        if name in REFUSED and not (latent and REFUSED[name]):
            with pytest.raises(InputError, match="gradient is not known; ask for"):
                gp.predict_gradients(T, return_std=True, latent=latent)
            continue
        got = gp.predict_gradients(T, return_std=True, latent=latent)
        std = gp.predict(T, return_std=True, latent=latent)[1]
        np.testing.assert_allclose(got.std, std, rtol=1e-7)

        def deviation(points: np.ndarray, latent: bool = latent) -> Any:
            return gp.predict(points, return_std=True, latent=latent)[1]

        assert_slopes(got.std_gradient, deviation, 1e-4)


@pytest.mark.parametrize("method", ["vif", "vfe"])
@pytest.mark.parametrize("minimise", [False, True])
def test_acquisition_functions_rise_along_their_gradients(method: str, minimise: bool) -> None:
    gp = sparse(method).fit(X, Y)
    best = float(np.median(Y))
    for function, argument in (
        (expected_improvement, best),
        (log_expected_improvement, best),
        (upper_confidence_bound, 2.0),
    ):

        def value(points: np.ndarray, function: Any = function, argument: float = argument) -> Any:
            at = gp.predict_gradients(points, return_std=True, latent=True)
            return function(at, argument, minimise=minimise)

        assert_slopes(value(T).gradient, lambda points, value=value: value(points).value, 1e-5)
