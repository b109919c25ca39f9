"""Block kriging against the oracle, dense quadrature and the true average."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.kriging.blocks import krige_blocks, rules_of
from dkgp.kriging.field import Field, Solving
from dkgp.kriging.quadrature import Rule, rectangle
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.context import RunContext

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
SQUARE = (1.0, 3.0, 1.0, 3.0)


def field_of(variogram: Variogram, X: Any, z: Any, mean: Any = "constant") -> Field:
    space = Space(2)
    errors = np.full(len(z), variogram.error_variance)
    samples = Samples(space.places(tuple(X.T)), z[:, None], errors, 0.0, np.zeros((len(z), 0)))
    return Field.fit(samples, space, variogram, Solving(tolerance=1e-12), mean=mean)


def predicted(field: Field, rules: list[Rule]) -> Any:
    executor = LocalExecutor(1)
    try:
        return krige_blocks(field, rules, RunContext(executor), tolerance=1e-11)
    finally:
        executor.close()


def dense(variogram: Variogram, X: Any, z: Any, rule: Rule, degree: int) -> tuple[float, float]:
    """Mean and variance of the weighted sum, by dense algebra."""

    def columns(points: Any) -> Any:
        x, y = points.T
        return np.column_stack(
            [np.ones(len(x)), *([x, y] if degree else []), *([x * x, x * y, y * y] if degree > 1 else [])]
        )

    A = variogram.anisotropy(2)
    cov = lambda a, b: variogram.covariance(cdist(a @ A.T, b @ A.T))  # noqa: E731
    K = cov(X, X) + variogram.error_variance * np.eye(len(X))
    k, H, h = cov(X, rule.nodes) @ rule.weights, columns(X), columns(rule.nodes).T @ rule.weights
    S = np.linalg.solve(K, np.column_stack([z, H, k]))
    G = H.T @ S[:, 1:-1]
    beta = np.linalg.solve(G, H.T @ S[:, 0])
    R = h - H.T @ S[:, -1]
    own = rule.weights @ cov(rule.nodes, rule.nodes) @ rule.weights
    return float(h @ beta + k @ (S[:, 0] - S[:, 1:-1] @ beta)), float(own - k @ S[:, -1] + R @ np.linalg.solve(G, R))


def test_the_oracle_of_a_square() -> None:
    variogram = Variogram("exponential", psill=2, range=1.5, nugget=0.25)
    field = field_of(variogram, X, Z)
    for order, mean, variance in ((8, 2.3333438253, 0.4396315226), (32, 2.3333649530, 0.4373051091)):
        rule = rectangle(SQUARE, variogram, order)
        exact = Rule(rule.nodes, rule.weights, 0.0, 0.0, rule.area)
        result = predicted(field, [exact])
        assert result.mean[0, 0] == pytest.approx(mean, abs=1e-10)
        assert result.variance[0, 0] == pytest.approx(variance, abs=1e-10)
        assert (result.variance_upper - result.variance_lower)[0, 0] < 1e-9
    # c_BB is known exactly: the average's own prior variance.
    rule = rectangle(SQUARE, variogram, 8)
    own = rule.weights @ variogram.covariance(cdist(rule.nodes, rule.nodes)) @ rule.weights
    assert abs(np.sqrt(own) - np.sqrt(1.05249177967321)) <= rule.error


@pytest.mark.parametrize("model", ["exponential", "matern32", "matern52", "gaussian", "spherical", "cubic"])
@pytest.mark.parametrize("mean", ["constant", "linear", "quadratic"])
def test_intervals_hold_the_values_of_dense_algebra(model: str, mean: str, rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (40, 2))
    z = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(40)
    variogram = Variogram(model, psill=1.3, range=2.0, nugget=0.05, angle=20.0, ratio=0.6)
    field = field_of(variogram, X, z, mean)
    coarse = rectangle((1.0, 2.5, 0.5, 3.0), variogram, 4)
    fine = rectangle((1.0, 2.5, 0.5, 3.0), variogram, 24)
    degree = ("constant", "linear", "quadratic").index(mean)
    sums = predicted(field, [Rule(coarse.nodes, coarse.weights, 0.0, 0.0, coarse.area)])
    m, v = dense(variogram, X, z, coarse, degree)
    assert abs(sums.mean[0, 0] - m) <= sums.mean_error_bound[0, 0] + 1e-11
    assert sums.variance_lower[0, 0] - 1e-12 <= v <= sums.variance_upper[0, 0] + 1e-12
    assert (sums.variance_upper - sums.variance_lower)[0, 0] < 1e-6
    # With the error of quadrature the interval holds the value of a far finer rule.
    whole = predicted(field, [coarse])
    m, v = dense(variogram, X, z, fine, degree)
    assert abs(whole.mean[0, 0] - m) <= whole.mean_error_bound[0, 0]
    assert whole.variance_lower[0, 0] <= v <= whole.variance_upper[0, 0]


def test_polygons_are_averaged_over_their_area(rng: np.random.Generator) -> None:
    shapely = pytest.importorskip("shapely")
    variogram = Variogram("matern32", psill=1.0, range=2.0, nugget=0.1)
    X = rng.uniform(0.0, 5.0, (30, 2))
    field = field_of(variogram, X, np.sin(X[:, 0]), "quadratic")
    ring = shapely.Point(2.5, 2.5).buffer(1.5, quad_segs=4).difference(shapely.Point(2.5, 2.5).buffer(0.5, quad_segs=4))
    coarse, fine = (rules_of(field, [ring], order=order, tolerance=np.inf)[0] for order in (6, 32))
    assert coarse.area == pytest.approx(ring.area)
    assert coarse.weights.sum() == pytest.approx(1.0)
    assert fine.error < coarse.error
    result = predicted(field, [coarse])
    m, v = dense(variogram, X, np.sin(X[:, 0]), fine, 2)
    assert abs(result.mean[0, 0] - m) <= result.mean_error_bound[0, 0]
    assert result.variance_lower[0, 0] <= v <= result.variance_upper[0, 0]
