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
    with pytest.raises(InputError, match="data 1 is not finite in 1 rows; the intrinsic model needs"):
        Cokriging(Kriging(SHAPE), T).fit(coordinates, (data[0], np.append(data[1][:-1], np.nan), data[2]))
    with pytest.raises(InputError, match="subtract known means"):
        Cokriging(Kriging(SHAPE, kind="simple", mean=1.0), T)
    with pytest.raises(InputError, match="two or more arrays"):
        Cokriging(Kriging(SHAPE), T).fit(coordinates, data[:1])
