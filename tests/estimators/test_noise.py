"""Noise of samples: noise models, known variances and weights, against dense Gaussian processes."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.linalg

from dkgp import GPRegressor, SparseGPRegressor
from dkgp.data import ingest
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.solvers.registry import solver_names
from tests.estimators.conftest import KERNEL, NOISE, Problem

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
    with pytest.raises(InputError, match="got both the noise of the samples and a noise model"):
        GPRegressor(noise_model="linear").fit(X, y, sample_noise=np.ones(60))
    with pytest.raises(InputError, match="got both the noise of the samples and a noise model"):
        GPRegressor(kernel=fitted.hyperparameters_).fit(X, y, sample_weight=np.full(60, 2.0))
    gp = GPRegressor(kernel=fitted.hyperparameters_).fit(X, y)
    with pytest.raises(InputError, match="got both the noise of the samples and a noise model"):
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


KEPT = [0, 2, 3]


@pytest.fixture(scope="module")
def variances(problem: Problem) -> np.ndarray:
    """In the target's units squared: from nothing to its own variance."""
    return np.asarray(problem.y.var() * np.linspace(0.0, 1.0, 300) ** 2)


def solved(X: np.ndarray, y: np.ndarray, noise: np.ndarray, T: np.ndarray, like: Any = None) -> Any:
    """Mean and the function's variance in the target's units, for noise (n,) on the standardised scale."""
    inputs, targets = (X, y) if like is None else like
    mean, std = inputs[:, KEPT].mean(axis=0), inputs[:, KEPT].std(axis=0)
    Z, Z_new = (X[:, KEPT] - mean) / std, (T[:, KEPT] - mean) / std
    factor = scipy.linalg.cho_factor(KERNEL(Z, Z) + np.diag(noise))
    cross = KERNEL(Z_new, Z)
    alpha = scipy.linalg.cho_solve(factor, (y - targets.mean()) / targets.std())
    variance = KERNEL.diagonal(Z_new) - np.einsum("ij,ji->i", cross, scipy.linalg.cho_solve(factor, cross.T))
    return cross @ alpha * targets.std() + targets.mean(), variance * targets.var()


def test_known_noise_is_that_of_the_dense_process(problem: Problem, variances: np.ndarray) -> None:
    gp = GPRegressor(KERNEL, noise_variance=NOISE, tol=1e-8).fit(problem.X, problem.y, sample_noise=variances)
    mean, variance = solved(problem.X, problem.y, NOISE + variances / problem.y.var(), problem.X_new)
    found, var, bounds = gp.predict(problem.X_new, return_var=True, return_bounds=True, latent=True)
    assert (np.abs(found - mean) <= bounds.mean_error).all()
    assert bounds.mean_error.max() < 1e-3
    assert (bounds.variance_lower <= variance * (1 + 1e-9)).all()
    assert (variance <= var * (1 + 1e-9)).all()
    # A new observation has the common noise.
    assert gp.noise_variance_ == NOISE
    std = gp.predict(problem.X_new, return_std=True)[1]
    np.testing.assert_allclose(std**2, variance + NOISE * problem.y.var(), rtol=0.021)
    draws = gp.sample_y(problem.X_new[:3], 400, random_state=1)
    np.testing.assert_allclose(draws.std(axis=1), np.sqrt(variance[:3]), rtol=0.2)


@pytest.mark.spread(12)
@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("form", ["sample_noise", "sample_weight"])
@pytest.mark.parametrize("largest", [1e39, 1e300])
@pytest.mark.parametrize("solver", solver_names())
def test_noise_beyond_float32_ends_with_every_solver(solver: str, largest: float, form: str, problem: Problem) -> None:
    """In the means of the samples without it, or in words."""
    X, y = problem.X[:80], problem.y[:80].copy()
    y[:3] += 200.0
    told = np.full(80, largest if form == "sample_noise" else 1.0 / largest)
    told[3:] = 0.0 if form == "sample_noise" else 1.0
    gp = GPRegressor(KERNEL, noise_variance=0.1, solver=solver, tol=1e-6)
    if solver == "paramcg":
        with pytest.raises(NumericalError, match="broke down in float64"):
            gp.fit(X, y, **{form: told})
        return
    gp.fit(X, y, **{form: told})
    assert gp.solution_["converged"] == (solver != "cg")
    if solver == "cg":
        assert "gained nothing" in gp.solution_["reason"]
        return
    noise = np.full(80, 0.1)
    noise[:3] = 1e30
    mean, _ = solved(X, y, noise, problem.X_new)
    np.testing.assert_allclose(gp.predict(problem.X_new), mean, atol=1e-4 * y.std())


def test_one_estimator_out_of_another(problem: Problem, variances: np.ndarray, tmp_path: Path) -> None:
    gp = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y, variances)
    answers = [values.tobytes() for values in gp.predict(problem.X_new, return_std=True)]
    gp.save(tmp_path / "model.zarr")
    for other in (pickle.loads(pickle.dumps(gp)), GPRegressor.load(tmp_path / "model.zarr")):
        assert [values.tobytes() for values in other.predict(problem.X_new, return_std=True)] == answers
        np.testing.assert_allclose(other._fitted.record.sample_noise, variances / problem.y.var(), rtol=1e-12)


def test_lists_frames_series_and_lazy_arrays(problem: Problem, variances: np.ndarray) -> None:
    gp = GPRegressor(KERNEL, noise_variance=NOISE)
    plain = gp.fit(problem.X, problem.y, variances).predict(problem.X_new)
    frame = pd.DataFrame(problem.X, columns=list("abcd"))
    named = gp.fit(frame, pd.Series(problem.y, name="y"), sample_noise=pd.Series(variances[:, None].ravel()))
    np.testing.assert_allclose(named.predict(pd.DataFrame(problem.X_new, columns=list("abcd"))), plain, rtol=1e-9)
    lazy = gp.fit(da.from_array(problem.X, chunks=(100, 4)), problem.y, sample_noise=da.from_array(variances))
    np.testing.assert_allclose(lazy.predict(problem.X_new), plain, rtol=1e-9)


def test_a_store_brings_its_own(problem: Problem, variances: np.ndarray, tmp_path: Path) -> None:
    table = pd.DataFrame(problem.X, columns=list("abcd")).assign(y=problem.y, v=variances)
    table.to_csv(tmp_path / "data.csv", index=False)
    ingest(tmp_path / "data.csv", tmp_path / "data.zarr", target="y", noise_column="v")
    gp = GPRegressor(KERNEL, noise_variance=NOISE).fit(tmp_path / "data.zarr")
    same = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y, variances)
    np.testing.assert_allclose(gp.predict(problem.X_new), same.predict(problem.X_new), rtol=1e-9)
    other = GPRegressor(KERNEL, noise_variance=NOISE).fit(tmp_path / "data.zarr", sample_noise=np.zeros(300))
    assert np.abs(other.predict(problem.X_new) - gp.predict(problem.X_new)).max() > 0.1
    with pytest.raises(InputError, match="has a column of known noise, 'v'; leave sample_weight out"):
        gp.fit(tmp_path / "data.zarr", sample_weight=np.full(300, 2.0))


@pytest.mark.parametrize("kind", [GPRegressor, SparseGPRegressor])
def test_a_weight_counts_as_so_many_samples(problem: Problem, kind: Any) -> None:
    """Under one standardisation: inputs and targets whose moments repeating does not change."""
    X, y = np.vstack([problem.X[:60]] * 2), np.concatenate([problem.y[:60]] * 2)
    options = {"kernel": KERNEL, "noise_variance": NOISE, "tol": 1e-9} if kind is GPRegressor else {"basis_size": 40}
    model = kind(**{"kernel": KERNEL, "noise_variance": NOISE, **options})
    weighed = model.fit(X, y, sample_weight=np.full(120, 3.0)).predict(problem.X_new)
    repeated = model.fit(np.vstack([X] * 3), np.concatenate([y] * 3)).predict(problem.X_new)
    if kind is GPRegressor:
        np.testing.assert_allclose(weighed, repeated, rtol=1e-6)
    once = model.fit(X, y).predict(problem.X_new)
    assert np.abs(weighed - once).max() > 1e-3
    ones = model.fit(X, y, sample_weight=np.ones(120)).predict(problem.X_new)
    assert ones.tobytes() == once.tobytes()
    # Above and below one; against the dense answer.
    weights = np.geomspace(0.05, 20.0, 120)
    mixed = model.fit(X, y, sample_weight=weights)
    mean, _ = solved(X, y, NOISE / weights, problem.X_new)
    found, bounds = mixed.predict(problem.X_new, return_bounds=True)
    assert (np.abs(found - mean) <= bounds.mean_error).all()


def test_noise_of_weights_has_digits_or_the_weight_is_refused(problem: Problem) -> None:
    gp = GPRegressor(KERNEL, noise_variance=NOISE)
    weights = np.concatenate([[1e12, 3.7e11, 5e5, 1e-250], np.ones(296)])
    gp.fit(problem.X, problem.y, sample_weight=weights)
    noise = NOISE + gp._fitted.record.sample_noise
    np.testing.assert_allclose(noise, NOISE / weights, rtol=3e-4)
    for weight in (1.1e12, 1e16, 1e17, 1e300):
        words = rf"sample_weight is {re.escape(f'{weight:.3g}')} for sample 299; expected weights of at most 1e\+12"
        with pytest.raises(InputError, match=words):
            gp.fit(problem.X, problem.y, sample_weight=np.concatenate([np.ones(299), [weight]]))
    with pytest.raises(InputError, match=r"sample_weight is 1e-307 for sample 0; .* \(noise_variance is 50\)"):
        gp.set_params(noise_variance=50.0).fit(
            problem.X, problem.y, sample_weight=np.concatenate([[1e-307], np.ones(299)])
        )


@pytest.mark.parametrize("kind", [GPRegressor, SparseGPRegressor])
def test_noise_beyond_float64_on_the_standardised_scale_is_refused(problem: Problem, kind: Any, tmp_path: Path) -> None:
    noise = np.concatenate([[1.0, 3e290], np.ones(298)])
    words = r"A known noise variance is 3e\+290, and the target's standard deviation is .*e-19; expected a quotient"
    with pytest.raises(InputError, match=words):
        kind(kernel=KERNEL, noise_variance=NOISE).fit(problem.X, problem.y * 1e-20, sample_noise=noise)
    table = pd.DataFrame(problem.X, columns=list("abcd")).assign(y=problem.y * 1e-20, v=noise)
    table.to_csv(tmp_path / "data.csv", index=False)
    ingest(tmp_path / "data.csv", tmp_path / "data.zarr", target="y", noise_column="v")
    with pytest.raises(InputError, match=words):
        kind(kernel=KERNEL, noise_variance=NOISE).fit(tmp_path / "data.zarr")


@pytest.mark.parametrize("kind", [GPRegressor, SparseGPRegressor])
def test_samples_of_weight_zero_are_left_out(problem: Problem, kind: Any) -> None:
    weights = np.where(np.arange(300) % 3 == 0, 0.0, 2.0)
    y = np.where(weights == 0.0, 1e6, problem.y)
    kept = weights > 0.0
    model = kind(kernel=KERNEL, noise_variance=NOISE)
    left_out = model.fit(problem.X, y, sample_weight=weights).predict(problem.X_new)
    without = model.fit(problem.X[kept], problem.y[kept], sample_weight=weights[kept]).predict(problem.X_new)
    assert left_out.tobytes() == without.tobytes()
    lists = model.fit(problem.X.tolist(), y.tolist(), sample_weight=weights.tolist()).predict(problem.X_new)
    assert lists.tobytes() == without.tobytes()
    frame = model.fit(pd.DataFrame(problem.X, columns=list("abcd")), pd.Series(y), sample_weight=weights)
    new = pd.DataFrame(problem.X_new, columns=list("abcd"))
    np.testing.assert_allclose(frame.predict(new), without, rtol=1e-9)
    lazy = da.from_array(problem.X, chunks=(100, 4)), da.from_array(y, chunks=100)
    found = model.fit(*lazy, sample_weight=weights).predict(problem.X_new)
    np.testing.assert_allclose(found, without, rtol=1e-6)


@pytest.mark.parametrize("kind", [GPRegressor, SparseGPRegressor])
@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"sample_noise": np.ones(299)}, r"sample_noise has shape \(299,\); expected \(300,\)"),
        ({"sample_noise": np.r_[np.ones(7), -1e-9, np.ones(292)]}, "sample_noise is -1e-09 for sample 7"),
        ({"sample_noise": np.r_[np.ones(299), np.nan]}, "sample_noise is nan for sample 299"),
        ({"sample_noise": np.ones((300, 2))}, r"sample_noise has shape \(300, 2\)"),
        ({"sample_noise": ["much"] * 300}, "sample_noise holds text where a number belongs, such as 'much'"),
        ({"sample_weight": np.r_[np.inf, np.ones(299)]}, "sample_weight is inf for sample 0"),
        ({"sample_weight": np.zeros(300)}, "zero for every sample"),
        ({"sample_weight": 2.0}, r"sample_weight has shape \(\)"),
        ({"sample_weight": np.full(300, 2.0), "sample_noise": np.ones(300)}, "both set the samples' noise"),
    ],
)
def test_noise_that_is_none_is_refused(problem: Problem, kind: Any, told: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(kernel=KERNEL, noise_variance=NOISE).fit(problem.X, problem.y, **told)


def test_noise_in_the_units_of_several_targets_is_refused(problem: Problem) -> None:
    y = np.column_stack([problem.y, -problem.y])
    with pytest.raises(InputError, match="units of one target, and there are 2"):
        GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, y, sample_noise=np.ones(300))
    weighed = GPRegressor(KERNEL, noise_variance=NOISE, tol=1e-7).fit(problem.X, y, sample_weight=np.full(300, 0.1))
    mean, _ = solved(problem.X, problem.y, np.full(300, 10.0 * NOISE), problem.X_new)
    np.testing.assert_allclose(weighed.predict(problem.X_new)[:, 0], mean, rtol=1e-4)


def test_new_samples_bring_their_noise(problem: Problem, variances: np.ndarray) -> None:
    scale = problem.y.var()
    gp = GPRegressor(KERNEL, noise_variance=NOISE, tol=1e-7).fit(problem.X, problem.y, sample_noise=variances)
    gp.update(problem.X_new[:20], problem.y_new[:20], sample_noise=np.full(20, 0.3 * scale))
    gp.partial_fit(problem.X_new[20:30], problem.y_new[20:30])
    gp.update(problem.X_new[30:40], problem.y_new[30:40], sample_weight=np.full(10, 4.0))
    noise = np.r_[NOISE + variances / scale, np.full(20, NOISE + 0.3), np.full(10, NOISE), np.full(10, NOISE / 4.0)]
    X, y = np.vstack([problem.X, problem.X_new[:40]]), np.r_[problem.y, problem.y_new[:40]]
    mean, variance = solved(X, y, noise, problem.X_new, like=(problem.X, problem.y))
    found, bounds = gp.predict(problem.X_new, return_bounds=True, latent=True)
    assert (np.abs(found - mean) <= bounds.mean_error).all()
    assert (bounds.variance_lower <= variance * (1 + 1e-9)).all()
    assert (variance <= bounds.variance_upper * (1 + 1e-9)).all()
    # From a model without any.
    plain = GPRegressor(KERNEL, noise_variance=NOISE, tol=1e-7).fit(problem.X, problem.y)
    plain.update(problem.X_new[:20], problem.y_new[:20], sample_noise=np.full(20, 0.3 * scale))
    noise = np.r_[np.full(300, NOISE), np.full(20, NOISE + 0.3)]
    mean, _ = solved(X[:320], y[:320], noise, problem.X_new, like=(problem.X, problem.y))
    found, bounds = plain.predict(problem.X_new, return_bounds=True)
    assert (np.abs(found - mean) <= bounds.mean_error).all()
    with pytest.raises(InputError, match=r"sample_noise has shape \(3,\); expected \(20,\)"):
        plain.update(problem.X_new[:20], problem.y_new[:20], sample_noise=np.ones(3))


def test_a_sparse_model_of_known_noise(problem: Problem, variances: np.ndarray) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=120)
    model.fit(problem.X, problem.y, sample_noise=variances)
    mean, _ = solved(problem.X, problem.y, NOISE + variances / problem.y.var(), problem.X_new)
    found, bounds = model.predict(problem.X_new, return_bounds=True)
    assert (np.abs(found - mean) <= bounds.mean_error).all()
    relative = 1.0 + variances / problem.y.var() / NOISE
    same = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=120)
    np.testing.assert_allclose(
        found, same.fit(problem.X, problem.y, relative_noise=relative).predict(problem.X_new), rtol=1e-6
    )
    added = problem.X_new[:20], problem.y_new[:20]
    model.update(*added, sample_noise=np.full(20, problem.y.var()))
    same.update(*added, np.full(20, 1.0 + 1.0 / NOISE))
    np.testing.assert_allclose(model.predict(problem.X_new), same.predict(problem.X_new), rtol=1e-6)
    with pytest.raises(InputError, match="relative_noise is one over sample_weight"):
        model.fit(problem.X, problem.y, relative_noise=relative, sample_weight=relative)


def test_tuning_leaves_the_known_noise_out_of_what_it_finds(problem: Problem) -> None:
    """Half of the samples have as much noise as the target has variance: the common part is what the others have."""
    rng = np.random.default_rng(4)
    known = np.where(np.arange(300) % 2 == 0, problem.y.var(), 0.0)
    y = problem.y + np.sqrt(known) * rng.normal(size=300)
    told = GPRegressor().fit(problem.X, y, sample_noise=known)
    untold = GPRegressor().fit(problem.X, y)
    assert told.noise_variance_ < 0.1 < untold.noise_variance_
    error = [np.sqrt(np.mean((gp.predict(problem.X_new) - problem.y_new) ** 2)) for gp in (told, untold)]
    assert error[0] < 0.9 * error[1]
