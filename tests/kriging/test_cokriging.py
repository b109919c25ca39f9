"""Cokriging against the dense joint system of all targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import Kriging, Variogram
from dkgp.kriging.cokriging import NO_GAIN, Cokriging, coregionalisation

SHAPE = Variogram("exponential", psill=3.0, range=2.0, nugget=0.5)
T = np.array([[2.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])
S = np.array([[0.3, 0.1, 0.0], [0.1, 0.6, 0.0], [0.0, 0.0, 0.02]])


@pytest.fixture
def samples(rng: Any) -> tuple[Any, Any]:
    x, y = rng.uniform(0.0, 8.0, (2, 20))
    z = np.sin(x) + 0.2 * y
    return (x, y), (z, 2.0 * z + 0.3 * rng.standard_normal(20), 5.0 + rng.standard_normal(20))


def dense(coordinates: Any, data: Any, points: Any, sills: Any, nuggets: Any) -> Any:
    """Means (r, p) and covariances (r, p, p) of ordinary cokriging, from one matrix of p n rows."""
    at, p = np.column_stack(coordinates), len(data)
    rho = np.exp(-np.linalg.norm(at[:, None] - at, axis=2) / 2.0)
    n = len(at)
    K = np.kron(sills, rho) + np.kron(nuggets, np.eye(n))
    H, z = np.kron(np.eye(p), np.ones((n, 1))), np.concatenate(data)
    G = H.T @ np.linalg.solve(K, H)
    beta = np.linalg.solve(G, H.T @ np.linalg.solve(K, z))
    means, covariances = [], []
    for point in np.column_stack(points):
        k = np.kron(sills, np.exp(-np.linalg.norm(at - point, axis=1) / 2.0)[:, None])
        R = np.eye(p) - H.T @ np.linalg.solve(K, k)
        means.append(beta + k.T @ np.linalg.solve(K, z - H @ beta))
        covariances.append(sills - k.T @ np.linalg.solve(K, k) + R.T @ np.linalg.solve(G, R))
    return np.array(means), np.array(covariances)


def test_rotated_targets_solve_the_joint_system(samples: Any, rng: Any) -> None:
    coordinates, data = samples
    points = tuple(rng.uniform(0.0, 8.0, (2, 15)))
    model = Cokriging(Kriging(SHAPE, tolerance=1e-10, variance_gap=1e-6), T, S).fit(coordinates, data)
    assert model.note_ is None
    result: Any = model.kriged(points, variance=True)
    means, covariances = dense(coordinates, data, points, T, S)
    np.testing.assert_allclose(result.mean, means, atol=1e-8)
    np.testing.assert_allclose(result.covariance, covariances, atol=1e-5)
    assert (np.abs(result.mean - means) <= result.mean_error_bound + 1e-12).all()
    exact = np.diagonal(covariances, axis1=1, axis2=2)
    assert (result.variance_lower <= exact + 1e-12).all()
    assert (exact <= result.variance_upper + 1e-12).all()
    np.testing.assert_allclose(np.stack(model.predict(points), axis=1), means, atol=1e-8)
    maps = model.grid(region=(0, 8, 0, 8), spacing=4.0, variance=True)
    x, y = np.meshgrid(maps["easting"], maps["northing"])
    means, covariances = dense(coordinates, data, (x.ravel(), y.ravel()), T, S)
    for number in range(3):
        np.testing.assert_allclose(maps[f"scalars{number}"].values.ravel(), means[:, number], atol=1e-8)
        assert (maps[f"scalars{number}_variance_upper"].values.ravel() + 1e-12 >= covariances[:, number, number]).all()


def test_bounds_hold_for_a_coarse_solve(samples: Any, rng: Any) -> None:
    coordinates, data = samples
    points = tuple(rng.uniform(0.0, 8.0, (2, 50)))
    result: Any = Cokriging(Kriging(SHAPE, tolerance=1e-2), T, S).fit(coordinates, data).kriged(points, variance=True)
    means, covariances = dense(coordinates, data, points, T, S)
    exact = np.diagonal(covariances, axis1=1, axis2=2)
    assert (np.abs(result.mean - means) <= result.mean_error_bound + 1e-12).all()
    assert ((result.variance_lower <= exact + 1e-12) & (exact <= result.variance_upper + 1e-12)).all()


@pytest.fixture
def gaps(samples: Any, rng: Any) -> tuple[Any, Any]:
    """Samples with 7, 0 and 12 missing values; one has none at all."""
    coordinates, data = samples
    values = [np.array(each) for each in data]
    values[0][rng.permutation(20)[:7]] = np.nan
    values[2][rng.permutation(20)[:12]] = np.nan
    return coordinates, values


ERRORS = np.diag([0.3, 0.6, 0.02])


def dense_with_gaps(coordinates: Any, data: Any, points: Any, columns: Any, rho: Any) -> Any:
    """Means (r, p) and covariances (r, p, p) of cokriging of the known values, from one dense matrix.

    `columns` returns the mean's columns of one target at x and y; none for simple kriging.
    """
    at, p, z = np.column_stack(coordinates), len(data), np.stack(data)
    target, row = np.nonzero(np.isfinite(z))
    distance = np.linalg.norm(at[row][:, None] - at[row], axis=2)
    K = T[target[:, None], target] * rho(distance) + np.diag(np.diag(ERRORS)[target])

    def drift(x: Any, y: Any, number: Any) -> Any:
        one = columns(x, y)
        return np.concatenate([one * (number == a)[:, None] for a in range(p)], axis=1)

    H, values = drift(at[row, 0], at[row, 1], target), z[target, row]
    G = H.T @ np.linalg.solve(K, H)
    beta = np.linalg.solve(G, H.T @ np.linalg.solve(K, values)) if H.size else np.zeros(0)
    alpha, means, covariances = np.linalg.solve(K, values - H @ beta), [], []
    for point in np.column_stack(points):
        k = T[target] * rho(np.linalg.norm(at[row] - point, axis=1))[:, None]
        h = drift(*np.repeat(point[:, None], p, axis=1), np.arange(p))
        R = h.T - H.T @ np.linalg.solve(K, k)
        means.append(h @ beta + k.T @ alpha)
        added = R.T @ np.linalg.solve(G, R) if H.size else 0.0
        covariances.append(T - k.T @ np.linalg.solve(K, k) + added)
    return np.array(means), np.array(covariances)


def ones(x: Any, y: Any) -> Any:
    return np.column_stack([np.ones(len(x))])


def planes(x: Any, y: Any) -> Any:
    return np.column_stack([np.ones(len(x)), x, y])


def planes_and_hill(x: Any, y: Any) -> Any:
    return np.column_stack([planes(x, y), np.sin(x) * y])


def nothing(x: Any, y: Any) -> Any:
    return np.zeros((len(x), 0))


def exponential(distance: Any) -> Any:
    return np.exp(-distance / 2.0)


def spherical(distance: Any) -> Any:
    u = np.minimum(distance / 3.0, 1.0)
    return 1.0 - 1.5 * u + 0.5 * u**3


MEANS: dict[str, tuple[dict[str, Any], Any]] = {
    "ordinary": ({}, ones),
    "simple": ({"kind": "simple", "mean": 0.0}, nothing),
    "universal": ({"kind": "universal", "degree": 1}, planes),
    "drift": ({"kind": "universal", "degree": 1, "covariates": ("hill",)}, planes_and_hill),
}


@pytest.mark.parametrize("kind", MEANS)
@pytest.mark.parametrize("model", [exponential, spherical])
def test_missing_values_are_left_out_of_the_joint_system(gaps: Any, rng: Any, kind: str, model: Any) -> None:
    coordinates, data = gaps
    # Far from the samples, near them, and at the place of one with a missing value.
    points = tuple(np.append(rng.uniform(-3.0, 11.0, (2, 12)), np.array(coordinates)[:, :4], axis=1))
    settings, columns = MEANS[kind]
    shape = SHAPE if model is exponential else Variogram("spherical", psill=1.0, range=3.0)
    drifts = [{"hill": np.sin(x) * y} if kind == "drift" else None for x, y in (coordinates, points)]
    cokriging = Cokriging(Kriging(shape, variance_gap=1e-9, **settings), T, np.diag(ERRORS))
    cokriging.fit(coordinates, data, covariates=drifts[0])
    assert cokriging.n_missing_ == (7, 0, 12)
    assert cokriging.note_ is None
    result: Any = cokriging.kriged(points, variance=True, covariates=drifts[1])
    means, covariances = dense_with_gaps(coordinates, data, points, columns, model)
    np.testing.assert_allclose(result.mean, means, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(result.covariance, covariances, atol=1e-9)
    exact = np.diagonal(covariances, axis1=1, axis2=2)
    np.testing.assert_allclose(0.5 * (result.variance_lower + result.variance_upper), exact, atol=1e-10)
    assert (np.abs(result.mean - means) <= result.mean_error_bound + 1e-12).all()
    assert ((result.variance_lower <= exact + 1e-12) & (exact <= result.variance_upper + 1e-12)).all()
    np.testing.assert_array_equal(np.stack(cokriging.predict(points, covariates=drifts[1]), axis=1), result.mean)


def test_bounds_hold_for_a_coarse_solve_with_gaps(gaps: Any, rng: Any) -> None:
    coordinates, data = gaps
    points = tuple(rng.uniform(0.0, 8.0, (2, 30)))
    model = Kriging(SHAPE, tolerance=1e-2, variance_gap=0.5)
    result: Any = Cokriging(model, T, np.diag(ERRORS)).fit(coordinates, data).kriged(points, variance=True)
    means, covariances = dense_with_gaps(coordinates, data, points, ones, exponential)
    exact = np.diagonal(covariances, axis1=1, axis2=2)
    assert (np.abs(result.mean - means) <= result.mean_error_bound + 1e-12).all()
    assert ((result.variance_lower <= exact + 1e-12) & (exact <= result.variance_upper + 1e-12)).all()


def test_a_system_without_gaps_is_that_of_rotated_targets(samples: Any) -> None:
    """One value that is missing at a sample far away changes nothing else."""
    (x, y), data = samples
    points = np.array([1.0, 5.0]), np.array([2.0, 7.0])
    model = Kriging(SHAPE, kind="simple", mean=0.0)
    full: Any = Cokriging(model, T, ERRORS).fit((x, y), data).kriged(points, variance=True)
    far = [np.append(each, value) for each, value in zip(data, (1.0, np.nan, 2.0), strict=True)]
    joint: Any = Cokriging(model, T, ERRORS).fit((np.append(x, 500.0), np.append(y, 500.0)), far)
    result = joint.kriged(points, variance=True)
    np.testing.assert_allclose(result.mean, full.mean, atol=1e-8)
    np.testing.assert_allclose(result.covariance, full.covariance, atol=1e-7)
    maps = joint.grid((0.0, 8.0, 0.0, 8.0), spacing=4.0, variance=True)
    at = joint.kriged((maps["easting"][1], maps["northing"][2]), variance=True)
    for name, values in (("scalars2", at.mean), ("scalars2_variance_upper", at.variance_upper)):
        assert float(maps[name][2, 1]) == pytest.approx(values[0, 2], rel=1e-12)


def test_gaps_are_left_out_of_estimates_and_refused_with_advice(gaps: Any) -> None:
    coordinates, data = gaps
    sills, nuggets = coregionalisation(coordinates, data, SHAPE, bins=4, correlated=False)
    np.testing.assert_array_equal(nuggets, np.diag(np.diag(nuggets)))
    assert np.linalg.eigvalsh(sills).min() > 0.0
    # Samples with both targets decide their covariance.
    (x, y), known = coordinates, np.isfinite(data[0])
    one = coregionalisation((x, y), data[:2], SHAPE, bins=4, correlated=False)[0]
    both = [each[known] for each in data[:2]]
    other = coregionalisation((x[known], y[known]), both, SHAPE, bins=4, correlated=False)[0]
    np.testing.assert_allclose(one[0], other[0], rtol=1e-9)
    assert one[1, 1] != pytest.approx(other[1, 1], rel=1e-3)
    with pytest.raises(InputError, match=r"errors are independent: `nuggets` are p variances; got .* Pass their diag"):
        Cokriging(Kriging(SHAPE), T, S).fit(coordinates, data)
    with pytest.raises(InputError, match="needs measurement errors: `nuggets` of at least 1e-08 of the sills; got 0"):
        Cokriging(Kriging(SHAPE), T).fit(coordinates, data)
    few = Kriging(SHAPE, kind="universal", degree=2, covariates=("a", "b", "c"))
    with pytest.raises(InputError, match="data 2 has 8 values; its mean needs 9 at least"):
        Cokriging(few, T, np.diag(ERRORS)).fit(coordinates, data, covariates=np.random.default_rng(0).random((20, 3)))


def test_noise_in_proportion_to_the_sills_gains_nothing(samples: Any) -> None:
    coordinates, data = samples
    points = (np.array([1.0, 5.0]), np.array([2.0, 7.0]))
    model = Cokriging(Kriging(SHAPE, tolerance=1e-9), T, 0.1 * T).fit(coordinates, data)
    assert model.note_ == NO_GAIN
    for number, target in enumerate(data):
        sill = T[number, number]
        alone = Kriging(Variogram("exponential", psill=sill, range=2.0, nugget=0.1 * sill), tolerance=1e-9)
        np.testing.assert_allclose(
            model.predict(points)[number], alone.fit(coordinates, target).predict(points), atol=1e-6
        )
    assert Cokriging(Kriging(SHAPE), T).fit(coordinates, data).note_ == NO_GAIN


def test_estimated_sills_follow_the_targets(rng: Any) -> None:
    """The estimate of linear combinations of the targets is that of the targets, transformed."""
    x, y = rng.uniform(0.0, 10.0, (2, 150))
    at = np.column_stack([x, y])
    root = np.linalg.cholesky(np.exp(-np.linalg.norm(at[:, None] - at, axis=2)) + 1e-10 * np.eye(150))
    fields = root @ rng.standard_normal((150, 2)) + 0.8 * rng.standard_normal((150, 2))
    shape = Variogram("exponential", psill=1.0, range=1.0)
    first, noise = coregionalisation((x, y), list(fields.T), shape)
    mix = np.array([[1.0, 0.5], [-0.5, 2.0]])
    second, mixed = coregionalisation((x, y), list((fields @ mix.T).T), shape)
    np.testing.assert_allclose(second, mix @ first @ mix.T, rtol=1e-9)
    np.testing.assert_allclose(mixed, mix @ noise @ mix.T, rtol=1e-9, atol=1e-12)
    assert np.linalg.eigvalsh(first).min() > 0.0
    # One field of 150 samples: the sills are near one.
    assert 0.4 < first[0, 0] < 1.8
    model = Cokriging(Kriging(shape)).fit((x, y), tuple(fields.T))
    np.testing.assert_array_equal(model.sills_, first)


def test_matrices_and_data_are_checked(samples: Any) -> None:
    coordinates, data = samples
    with pytest.raises(InputError, match="`sills` must be symmetric"):
        Cokriging(Kriging(SHAPE), [[1, 0, 1], [0, 1, 0], [0, 0, 1]]).fit(coordinates, data)
    with pytest.raises(InputError, match="`sills` must be positive definite"):
        Cokriging(Kriging(SHAPE), np.ones((3, 3))).fit(coordinates, data)
    with pytest.raises(InputError, match="`nuggets` is no covariance: its least eigenvalue is -1"):
        Cokriging(Kriging(SHAPE), T, [1.0, -1.0, 1.0]).fit(coordinates, data)
    with pytest.raises(InputError, match=r"`sills` is a finite matrix \(3, 3\)"):
        Cokriging(Kriging(SHAPE), T[:2, :2]).fit(coordinates, data)
    with pytest.raises(InputError, match="data 1 is infinite in 1 rows; NaN is a missing value"):
        Cokriging(Kriging(SHAPE), T).fit(coordinates, (data[0], np.append(data[1][:-1], np.inf), data[2]))
    with pytest.raises(InputError, match="subtract known means"):
        Cokriging(Kriging(SHAPE, kind="simple", mean=1.0), T)
    with pytest.raises(InputError, match="two or more arrays"):
        Cokriging(Kriging(SHAPE), T).fit(coordinates, data[:1])
