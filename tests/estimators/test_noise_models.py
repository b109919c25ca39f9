"""`GPRegressor(noise_model=...)`: deviations that follow the noise, kept by copies, stores and updates."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp import GPRegressor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential

PLACES = np.array([[-1.5, 0.0], [0.0, 0.5], [1.5, -1.0]])


def samples(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    X = rng.uniform(-2.0, 2.0, (n, 2)) * [1.0, 100.0]
    return X, 5.0 + 20.0 * (np.sin(2.0 * X[:, 0]) + deviation(X) * rng.standard_normal(n))


def deviation(X: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-1.5 + 0.8 * X[:, 0]))


@pytest.fixture(scope="module")
def fitted() -> GPRegressor:
    return GPRegressor(noise_model="auto", tol=1e-6).fit(*samples())


def dense(
    gp: GPRegressor, X: np.ndarray, y: np.ndarray, where: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, deviation of the function and of an observation, in the standardisation of the first samples."""
    first_X, first_y = samples()
    centre, spread = first_X.mean(axis=0), first_X.std(axis=0)
    Z, T = (X - centre) / spread, (where - centre) / spread
    model = gp.hyperparameters_.noise_model
    assert model is not None

    def noise(rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.clip(np.exp(model.offset + rows @ np.array(model.weights)), model.lowest, model.highest))

    matrix, cross = gp.kernel_(Z, Z) + np.diag(noise(Z)), gp.kernel_(T, Z)
    mean = cross @ np.linalg.solve(matrix, (y - first_y.mean()) / first_y.std())
    latent = 1.0 - np.einsum("ij,ji->i", cross, np.linalg.solve(matrix, cross.T))
    scale = first_y.std()
    return mean * scale + first_y.mean(), np.sqrt(latent) * scale, np.sqrt(latent + noise(T)) * scale


def test_deviations_follow_the_noise(fitted: GPRegressor) -> None:
    assert fitted.hyperparameters_.noise_comparison["kind"] == "linear"  # type: ignore[index]
    mean, of_function, of_observation = dense(fitted, *samples(), PLACES)
    found, std = fitted.predict(PLACES, return_std=True)
    np.testing.assert_allclose(found, mean, atol=1e-3)
    np.testing.assert_allclose(std, of_observation, rtol=0.02)
    np.testing.assert_allclose(fitted.predict(PLACES, return_std=True, latent=True)[1], of_function, rtol=0.02)
    np.testing.assert_allclose(std, 20.0 * deviation(PLACES), rtol=0.25)
    even = GPRegressor().fit(*samples()).predict(PLACES, return_std=True)[1]
    assert even[0] > 2.5 * std[0]


def test_intervals_are_proven(fitted: GPRegressor) -> None:
    _, bounds = fitted.predict(PLACES, return_bounds=True)
    variance = dense(fitted, *samples(), PLACES)[2] ** 2
    assert (bounds.variance_lower <= variance).all()
    assert (variance <= bounds.variance_upper).all()


def test_copies_and_stores_predict_alike(fitted: GPRegressor, tmp_path: Path) -> None:
    expected = fitted.predict(PLACES, return_std=True)[1]
    fitted.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    assert loaded.hyperparameters_ == fitted.hyperparameters_
    for other in (loaded, pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict(PLACES, return_std=True)[1], expected)
        assert other.noise_model == "auto"
    again = GPRegressor(kernel=fitted.hyperparameters_, tol=1e-6).fit(*samples())
    np.testing.assert_allclose(again.predict(PLACES, return_std=True)[1], expected, rtol=0.02)


def test_updates_take_the_noise_of_the_new_samples() -> None:
    X, y = samples()
    gp = GPRegressor(noise_model="linear", tol=1e-7).fit(X, y)
    more = np.array([[1.8, 0.0], [-1.8, 0.0]])
    gp.update(more, np.array([100.0, -15.0]))
    both = np.vstack([X, more]), np.append(y, [100.0, -15.0])
    mean, _, of_observation = dense(gp, *both, PLACES)
    found, std = gp.predict(PLACES, return_std=True)
    np.testing.assert_allclose(found, mean, atol=1e-3)
    np.testing.assert_allclose(std, of_observation, rtol=0.02)
    # The far one lies where the noise is large, and hardly moves the function.
    moved = np.abs(dense(gp, X, y, more)[0] - dense(gp, *both, more)[0])
    assert moved[0] < 0.2 * (100.0 - dense(gp, X, y, more)[0][0])


def test_what_cannot_be_is_refused() -> None:
    X, y = samples(60)
    with pytest.raises(InputError, match="noise_model= takes 'none', 'linear', 'gp' or 'auto'; got 'cubic'"):
        GPRegressor(noise_model="cubic").fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is found where a kernel is tuned"):
        GPRegressor(kernel=SquaredExponential((1.0, 1.0)), noise_variance=0.1, noise_model="gp").fit(X, y)
    with pytest.raises(InputError, match="is found where a kernel is tuned"):
        GPRegressor(optimizer=None, noise_model="gp").fit(X, y)
    with pytest.raises(InputError, match="held fixed"):
        GPRegressor(noise_variance=0.1, noise_model="linear").fit(X, y)


def test_noise_that_is_told_is_not_reckoned_too(fitted: GPRegressor) -> None:
    X, y = samples(60)
    with pytest.raises(InputError, match="told of the samples, and reckoned by a noise model"):
        GPRegressor(noise_model="linear").fit(X, y, sample_noise=np.ones(60))
    with pytest.raises(InputError, match="told of the samples, and reckoned by a noise model"):
        GPRegressor(kernel=fitted.hyperparameters_).fit(X, y, sample_weight=np.full(60, 2.0))
    gp = GPRegressor(kernel=fitted.hyperparameters_).fit(X, y)
    with pytest.raises(InputError, match="told of the samples, and reckoned by a noise model"):
        gp.update(X[:5], y[:5], sample_noise=np.ones(5))


def test_a_noise_variance_beside_hyperparameters_is_for_all(fitted: GPRegressor) -> None:
    gp = GPRegressor(kernel=fitted.hyperparameters_, noise_variance=0.2).fit(*samples())
    plain = GPRegressor(kernel=replace(fitted.hyperparameters_, noise_model=None), noise_variance=0.2).fit(*samples())
    found, expected = (of.predict(PLACES, return_std=True)[1] for of in (gp, plain))
    np.testing.assert_array_equal(found, expected)
    assert gp.noise_variance_ == 0.2


def with_outliers(n: int = 250) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(6)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    f = 100.0 * np.sin(2.0 * X[:, 0]) + X[:, 1]
    return X, f + np.where(rng.random(n) < 0.08, rng.normal(0.0, 200.0, n), rng.normal(0.0, 5.0, n)), f


def test_outliers_pull_less_under_students_t(tmp_path: Path) -> None:
    X, y, f = with_outliers()
    robust, normal = (GPRegressor(likelihood=of).fit(X, y) for of in ("auto", "gaussian"))
    errors = [float(np.sqrt(np.mean((gp.predict(X) - f) ** 2))) for gp in (robust, normal)]
    assert errors[0] < 0.6 * errors[1]
    t = robust.hyperparameters_.student_t
    assert t is not None
    assert robust.solution_["weights"]["turns"] > 2
    # Of an observation the variance of t, of the function its own.
    std, own = (robust.predict(X[:5], return_std=True, latent=latent)[1] for latent in (False, True))
    np.testing.assert_allclose(std**2 - own**2, t.variance * y.std() ** 2, rtol=0.02)
    robust.save(tmp_path / "model.zarr")
    loaded = GPRegressor.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(X[:5], return_std=True)[1], std)
    assert loaded.hyperparameters_.student_t == t
    with pytest.raises(InputError, match="fit again with all of them"):
        robust.update(X[:3], y[:3])


def test_likelihoods_that_cannot_be_are_refused() -> None:
    X, y, _ = with_outliers(60)
    with pytest.raises(InputError, match="likelihood= takes 'gaussian', 'student-t' or 'auto'; got 'cauchy'"):
        GPRegressor(likelihood="cauchy").fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave one of them out"):
        GPRegressor(likelihood="student-t", noise_model="linear").fit(X, y)
    with pytest.raises(InputError, match="is found where a kernel is tuned"):
        GPRegressor(kernel=SquaredExponential((1.0, 1.0)), noise_variance=0.1, likelihood="auto").fit(X, y)
    with pytest.raises(InputError, match="weighs samples by one target"):
        GPRegressor(likelihood="student-t").fit(X, np.column_stack([y, y]))
