"""`predict_gradients` of every estimator: forms, units, refusals, and differences of the estimator's own predictions.

Acquisition functions are compared with 60 digits, in the far tails too.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import mpmath
import numpy as np
import pandas as pd
import pytest

import dkgp
from dkgp import GPRegressor, SparseGPRegressor
from dkgp.errors import InputError
from dkgp.estimators import (
    Acquisition,
    PredictionGradients,
    expected_improvement,
    log_expected_improvement,
    upper_confidence_bound,
)
from dkgp.kernels import Linear, Matern12, parse_kernel
from dkgp.models.sparse.model import METHODS
from dkgp.solvers import GreedyBlockCoordinateDescent
from tests.estimators.conftest import KERNEL, NOISE, Problem

SPARSE = {"noise_variance": NOISE, "basis_size": 50}


def test_the_bound_holds_of_a_loose_fit(problem: Problem) -> None:
    loose, tight = (
        GPRegressor(KERNEL, noise_variance=NOISE, tol=tol, solver=solver).fit(problem.X, problem.y)
        for tol, solver in ((0.1, GreedyBlockCoordinateDescent(block_size=8)), (1e-9, "auto"))
    )
    rough, fine = loose.predict_gradients(problem.X_new), tight.predict_gradients(problem.X_new)
    off = np.abs(rough.mean_gradient - fine.mean_gradient)
    assert (off <= rough.mean_gradient_error + fine.mean_gradient_error).all()
    assert off.max() > 100.0 * fine.mean_gradient_error.max()


@pytest.mark.parametrize("method", ["vfe", "sr", "sd", "fitc"])
def test_a_sparse_model_is_as_far_from_the_exact_one_as_is_proven(problem: Problem, method: str) -> None:
    kernel = KERNEL + Linear((0.3, 0.1, 0.2))
    gp = SparseGPRegressor(kernel, method=method, **SPARSE).fit(problem.X, problem.y)
    exact = GPRegressor(kernel, noise_variance=NOISE, tol=1e-9).fit(problem.X, problem.y)
    got, known = (model.predict_gradients(problem.X_new[:7]) for model in (gp, exact))
    off = np.abs(got.mean_gradient - known.mean_gradient)
    assert (off <= got.mean_gradient_error + 1e-3).all()
    assert off.max() > 0.0
    assert (known.mean_gradient_error.max(axis=0) < 1e-3 * np.abs(known.mean_gradient).max(axis=0) + 1e-300).all()


def test_without_deviations_there_are_none(problem: Problem, fitted: GPRegressor) -> None:
    got = fitted.predict_gradients(problem.X_new)
    assert isinstance(got, PredictionGradients)
    assert (got.mean_gradient[:, 1] == 0.0).all()  # the feature that was constant
    assert (got.mean_gradient_error[:, [0, 2, 3]] > 0.0).all()
    assert got.std is got.std_gradient is got.std_gradient_error is None


def test_means_alone_take_no_variance(
    problem: Problem, fitted: GPRegressor, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(str(tmp_path / "model.zarr"))
    loaded = GPRegressor.load(str(tmp_path / "model.zarr"))

    def used(*_: Any, **__: Any) -> None:
        raise AssertionError("not for means")

    monkeypatch.setattr("dkgp.models.prediction.exact.chosen_run", used)
    monkeypatch.setattr("dkgp.models.variance.whole_matrix.WholeFactor.weights", used)
    got = loaded.predict_gradients(problem.X_new)
    np.testing.assert_array_equal(got.mean_gradient, fitted.predict_gradients(problem.X_new).mean_gradient)
    with pytest.raises(AssertionError, match="not for means"):
        loaded.predict_gradients(problem.X_new, return_std=True)


def test_inputs_of_every_form(problem: Problem, fitted: GPRegressor, tmp_path: Any) -> None:
    expected = fitted.predict_gradients(problem.X_new)
    frame = pd.DataFrame(problem.X_new, index=np.arange(60) + 7)
    lazy = dask.array.from_array(problem.X_new, chunks=(25, -1))
    copied = pickle.loads(pickle.dumps(fitted))
    fitted.save(str(tmp_path / "model.zarr"))
    loaded = GPRegressor.load(str(tmp_path / "model.zarr"))
    for gp, X in ((fitted, frame), (fitted, lazy), (copied, problem.X_new), (loaded, problem.X_new)):
        np.testing.assert_array_equal(gp.predict_gradients(X).mean_gradient, expected.mean_gradient)


def test_what_has_no_gradient_is_refused(problem: Problem) -> None:
    rough = Matern12(KERNEL.gamma)
    for gp in (GPRegressor(rough, noise_variance=NOISE), SparseGPRegressor(rough, **SPARSE)):
        gp.fit(problem.X, problem.y)
        with pytest.raises(InputError, match="'matern12' has no gradient in its inputs.*Take matern32"):
            gp.predict_gradients(problem.X_new)


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
NOISES = np.random.default_rng(6).uniform(1.0, 2000.0, N)
MATERN = "matern52(length_scale=1.0)"
KERNELS = {
    "product of features": "rbf['x0', 'x1'](length_scale=0.8) * matern32['x2'] + 0.3 * linear",
    "periodic": "periodic['x0'](period=1.5) * rbf(length_scale=2.0)",
    "polynomial": "polynomial(degree=2) + rq(alpha=1.5)",
    "white": "matern32(length_scale=1.0) + 0.05 * white",
}


def exact(kernel: str = MATERN, **options: Any) -> GPRegressor:
    names = [f"x{feature}" for feature in range(D)]
    given = {"kernel": parse_kernel(kernel, D, names), "noise_variance": 0.01, **options}
    return GPRegressor(tol=1e-10, variance_gap=1e-9, **given)


def sparse(method: str, kernel: str = MATERN, **options: Any) -> SparseGPRegressor:
    names = [f"x{feature}" for feature in range(D)]
    sizes = {"neighbours": 12} if method == "vif" else {}
    return SparseGPRegressor(
        parse_kernel(kernel, D, names), noise_variance=0.01, method=method, basis_size=15, **sizes, **options
    )


def of_a_line(method: str) -> SparseGPRegressor:
    return sparse(method, KERNELS["polynomial"]).fit(X, Y)


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
    "exact, known noise": lambda _: exact().fit(X, Y, sample_noise=NOISES),
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
    "vfe, known noise": lambda _: sparse("vfe").fit(X, Y, sample_noise=NOISES),
    "vif, known noise": lambda _: sparse("vif").fit(X, Y, sample_noise=NOISES),
    "vif, weights": lambda _: sparse("vif").fit(X, Y, sample_weight=WEIGHTS),
    "vif, two targets": lambda _: sparse("vif").fit(X, BOTH),
    "vif, tuned": lambda _: SparseGPRegressor("rbf", method="vif", basis_size=15, neighbours=12).fit(X, Y),
    "vif, loaded": lambda folder: loaded(sparse("vif"), folder),
    "vif, pickled": lambda _: pickle.loads(pickle.dumps(sparse("vif").fit(X, Y))),
    "vfe, updated": lambda _: updated(sparse("vfe")),
    # Where k(x, x) has a derivative of its own.
    **{f"{method}, polynomial": lambda _, method=method: of_a_line(method) for method in ("vfe", "sr", "sd", "fitc")},
}
# Deviations whose gradient is refused, and the words; those of the function alone are known where they name `latent`.
REFUSED = {
    "exact, constant mean": "the deviation of this model holds that of its mean's .* gradient is not known; ask for",
    "exact, linear mean": "the deviation of this model holds that of its mean's .* gradient is not known; ask for",
    "exact, noise model": "the noise of this model depends on the inputs.* gradient is not known; ask for .*`latent`",
    "exact, student": "gradient is not known; ask for .*`latent`",
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
QUICK = ("exact, known noise", "exact, two targets", "exact, linear mean", "exact, noise model", "vfe, known noise")
QUICK = (*QUICK, "vif, known noise", "vfe, polynomial", "fitc, polynomial")


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
        if name in REFUSED and not (latent and "latent" in REFUSED[name]):
            with pytest.raises(InputError, match=REFUSED[name]):
                gp.predict_gradients(T, return_std=True, latent=latent)
            continue
        got = gp.predict_gradients(T, return_std=True, latent=latent)
        std = gp.predict(T, return_std=True, latent=latent)[1]
        np.testing.assert_allclose(got.std, std, rtol=1e-7)

        def deviation(points: np.ndarray, latent: bool = latent) -> Any:
            return gp.predict(points, return_std=True, latent=latent)[1]

        assert_slopes(got.std_gradient, deviation, 1e-4)
        assert (got.std_gradient_error is None) == isinstance(gp, SparseGPRegressor)


@pytest.mark.spread(2)
@pytest.mark.parametrize("method", ["vif", "vfe", "exact"])
@pytest.mark.parametrize("minimise", [False, True])
def test_acquisition_functions_rise_along_their_gradients(method: str, minimise: bool) -> None:
    gp = (exact() if method == "exact" else sparse(method)).fit(X, Y)
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


mp = mpmath.mp.clone()
mp.dps = 60
Function = Callable[..., Acquisition]
# From where everything underflows to where the improvement is certain; across the forms' borders, -5 and -1.
SCORES = np.array([-1e150, -1e20, -1e6, -1e3, -40.0, -38.0, -5.0 - 1e-9, -5.0, -3.0, -1.0 - 1e-9, -1.0, -0.3, 0.0])
SCORES = np.concatenate([SCORES, [0.7, 5.0, 38.0, 1e3, 1e20]])


def predicted(mean: Any, std: Any, mean_gradient: Any, std_gradient: Any) -> PredictionGradients:
    mean, std = np.asarray(mean, float), np.asarray(std, float)
    none = np.zeros_like(mean)
    return PredictionGradients(
        mean, none, np.asarray(mean_gradient, float), none[:, None], std, np.asarray(std_gradient, float), None
    )


def exact_acquisition(mean: float, std: float, best: float, slopes: tuple[float, float]) -> tuple[Any, Any]:
    """The expected improvement and its derivative along slopes of mean and deviation, in 60 digits."""
    mean, std, best = (mp.mpf(float(value)) for value in (mean, std, best))
    z = (mean - best) / std
    # Further out than 1e3 the distribution by its continued fraction: mpmath's own has no digits of the difference.
    if z < -100:
        t, q = -z, mp.zero
        for k in range(60, 0, -1):
            q = k / (t + q)
        density, m = mp.exp(-t * t / 2) / mp.sqrt(2 * mp.pi), 1 / (t + q)
        h, distribution = density * q * m, density * m
    else:
        density, distribution = mp.npdf(z), mp.ncdf(z)
        h = density + z * distribution
    return std * h, distribution * mp.mpf(slopes[0]) + density * mp.mpf(slopes[1])


@pytest.mark.parametrize("std", [1.0, 1e-7, 3e5])
@pytest.mark.parametrize("minimise", [False, True])
def test_logarithms_are_right_in_the_tails(std: float, minimise: bool) -> None:
    best, sign = 2.0 * std, -1.0 if minimise else 1.0
    mean = best + sign * SCORES * std
    slopes = np.array([[0.7 * std], [-0.2 * std]])
    mean_gradient, std_gradient = (np.repeat(slope[None], len(SCORES), axis=0) for slope in slopes)
    of = predicted(mean, np.full(len(SCORES), std), mean_gradient, std_gradient)
    got = log_expected_improvement(of, best, minimise=minimise)
    for i in range(len(SCORES)):
        # As the function sees it: the mean as rounded.
        value, slope = exact_acquisition(sign * mean[i], std, sign * best, (sign * slopes[0, 0], slopes[1, 0]))
        np.testing.assert_allclose(got.value[i], float(mp.log(value)), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(got.gradient[i, 0], float(slope / value), rtol=1e-11)
    assert np.isfinite(got.value).all()
    assert np.isfinite(got.gradient).all()


@pytest.mark.parametrize("minimise", [False, True])
def test_expected_improvement_is_right_where_it_can_be_told(minimise: bool) -> None:
    sign = -1.0 if minimise else 1.0
    scores = SCORES[(SCORES > -37.0) & (SCORES < 1e10)]
    n = len(scores)
    got = expected_improvement(
        predicted(sign * scores * 0.5, np.full(n, 0.5), np.full((n, 1), 0.7), np.full((n, 1), -0.2)),
        0.0,
        minimise=minimise,
    )
    for i, score in enumerate(scores):
        value, slope = exact_acquisition(0.5 * score, 0.5, 0.0, (sign * 0.7, -0.2))
        np.testing.assert_allclose(got.value[i], float(value), rtol=1e-12)
        np.testing.assert_allclose(got.gradient[i, 0], float(slope), rtol=1e-12)
    far = expected_improvement(predicted([-100.0], [1.0], [[1.0]], [[0.0]]), 0.0)
    assert far.value[0] == far.gradient[0, 0] == 0.0  # the plateau, on which the logarithm rises
    assert log_expected_improvement(predicted([-100.0], [1.0], [[1.0]], [[0.0]]), 0.0).gradient[0, 0] > 99.0


def test_confidence_bounds() -> None:
    of = predicted([3.0], [0.5], [[1.0, -2.0]], [[0.1, 0.2]])
    up, down = upper_confidence_bound(of, 3.0), upper_confidence_bound(of, 3.0, minimise=True)
    np.testing.assert_allclose(up.value, [4.5])
    np.testing.assert_allclose(up.gradient, [[1.3, -1.4]])
    np.testing.assert_allclose(down.value, [-1.5])
    np.testing.assert_allclose(down.gradient, [[-0.7, 2.6]])


@pytest.mark.parametrize("function", [expected_improvement, log_expected_improvement], ids=lambda f: f.__name__)
def test_nothing_is_uncertain_without_a_deviation(function: Function) -> None:
    got = function(predicted([3.0, 1.0], [0.0, 0.0], [[2.0], [2.0]], [[0.0], [0.0]]), 2.0)
    expected = [1.0, 0.0] if function is expected_improvement else [0.0, -np.inf]
    np.testing.assert_array_equal(got.value, expected)
    np.testing.assert_array_equal(got.gradient, [[2.0], [0.0]])


def test_what_cannot_be_is_refused() -> None:
    of = predicted([3.0], [0.5], [[1.0]], [[0.1]])
    with pytest.raises(InputError, match=r"no deviations; predict with predict_gradients\(X, return_std=True\)"):
        expected_improvement(of._replace(std=None), 0.0)
    with pytest.raises(InputError, match=r"of one target; got means of shape \(1, 2\)"):
        log_expected_improvement(of._replace(mean=np.zeros((1, 2))), 0.0)
    with pytest.raises(InputError, match="best= takes a finite number; got nan"):
        expected_improvement(of, float("nan"))
    with pytest.raises(InputError, match="beta= takes a finite number from 0; got -1.0"):
        upper_confidence_bound(of, -1.0)
