"""Block kriging against the oracle, dense quadrature and the true average."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.data import ModelRecord
from dkgp.errors import InputError
from dkgp.kriging import Kriging
from dkgp.kriging.areas import _sums, polygon_variance, rectangle_variance
from dkgp.kriging.blocks import krige_blocks, rules_of
from dkgp.kriging.field import Field, Solving
from dkgp.kriging.outlines import Outline, covariances
from dkgp.kriging.quadrature import Cells, Rule, fourth_derivatives, moved_rectangle, polygon, rectangle
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.context import RunContext

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
SQUARE = (1.0, 3.0, 1.0, 3.0)
MODELS = (
    "exponential",
    "matern32",
    "matern52",
    "gaussian",
    "spherical",
    "cubic",
    "wendland",
    "rational",
    "stable",
    "nested",
)


def field_of(variogram: Variogram, X: Any, z: Any, mean: Any = "constant") -> Field:
    space = Space(2)
    errors = np.full(len(z), variogram.error_variance)
    samples = Samples(space.places(tuple(X.T)), z[:, None], errors, 0.0, np.zeros((len(z), 0)))
    return Field.fit(samples, space, variogram, Solving(tolerance=1e-12), mean=mean)


def variogram_of(model: str) -> Variogram:
    shape: dict[str, Any] = {"angle": 20.0, "ratio": 0.6}
    if model == "nested":
        return Variogram("spherical", psill=0.9, range=1.5, nugget=0.05, **shape) + Variogram(
            "gaussian", psill=0.4, range=4.0, **shape
        )
    alpha: dict[str, Any] = {"alpha": 0.7} if model == "stable" else {"alpha": 1.3} if model == "rational" else {}
    return Variogram(model, psill=1.3, range=2.0, nugget=0.05, **shape, **alpha)


def predicted(field: Field, rules: list[Rule]) -> Any:
    executor = LocalExecutor(1)
    try:
        return krige_blocks(field, rules, RunContext(executor), tolerance=1e-11)
    finally:
        executor.close()


def over_polygon(rings: Any, x: Any, value: Any, length: float) -> float:
    """Integral over a polygon of a function of the distance to x: by triangles from x to the edges, signed.

    Quadrature along each edge, and from x to its points; with a break at the distance `length`.
    """
    nodes, weights = np.polynomial.legendre.leggauss(30)
    nodes, weights = 0.5 + 0.5 * nodes, 0.5 * weights
    # From x, the first part goes by a power, for correlations with a power of the distance.
    t, share = (
        np.stack([first, *[other] * 4]) for first, other in ((nodes**4, nodes), (4.0 * nodes**3 * weights, weights))
    )
    total = 0.0
    for ring in rings:
        for p, q in zip(ring - x, np.roll(ring, -1, axis=0) - x, strict=True):
            step = q - p
            foot, size = -p @ step / (step @ step), np.linalg.norm(step)
            apart = abs(p[0] * q[1] - p[1] * q[0]) / size
            breaks = [foot] + [foot + sign * apart * 2.0**k / size for k in range(-1, 25) for sign in (1, -1)]
            reach = np.sqrt(max(length**2 - apart**2, 0.0)) / size
            cuts = np.array(sorted({0.0, 1.0, *(v for v in (*breaks, foot - reach, foot + reach) if 0.0 < v < 1.0)}))
            v = (cuts[:-1, None] + np.diff(cuts)[:, None] * nodes).ravel()
            radius = np.linalg.norm(p + v[:, None] * step, axis=1)
            inner = np.minimum(length / np.maximum(radius, 1e-300), 1.0)
            ends = np.minimum(np.array([0.0, 1.0, 2.0, 4.0, 8.0, 1e9])[:, None] * inner, 1.0)[..., None]
            u = ends[:-1] + np.diff(ends, axis=0) * t[:, None]
            along = np.sum(np.diff(ends, axis=0) * u * value(u * radius[:, None]) * share[:, None], axis=(0, 2))
            total += (p[0] * q[1] - p[1] * q[0]) * float(along @ (np.diff(cuts)[:, None] * weights).ravel())
    return total


def covariances_of(variogram: Variogram, rings: Any, points: Any) -> Any:
    """Covariances of a block's average with points, in the target's units."""
    A = variogram.anisotropy(2)
    moved = [ring @ A.T for ring in rings]
    area = over_polygon(moved, moved[0][0] + 0.1, np.ones_like, 1.0)
    pieces = [
        [over_polygon(moved, x, replace(one, also=(), nugget=0.0).covariance, one.range) for x in points @ A.T]
        for one in (variogram, *variogram.also)
    ]
    return np.sum(pieces, axis=0) / area


def columns_of(points: Any, degree: int) -> Any:
    x, y = points.T
    return np.column_stack(
        [np.ones(len(x)), *([x, y] if degree else []), *([x * x, x * y, y * y] if degree > 1 else [])]
    )


def averages_of_columns(rings: Any, degree: int) -> Any:
    """Averages of the mean's columns over a polygon: the middles of a triangle's sides are exact for squares."""
    total: Any = 0.0
    for ring in rings:
        for p, q in zip(ring, np.roll(ring, -1, axis=0), strict=True):
            corner = rings[0][0]
            area = 0.5 * ((p - corner)[0] * (q - corner)[1] - (p - corner)[1] * (q - corner)[0])
            middles = 0.5 * np.array([p + q, p + corner, q + corner])
            total = total + area * columns_of(middles, 2).mean(axis=0)
    return (total / total[0])[: columns_of(rings[0], degree).shape[1]]


def dense(variogram: Variogram, X: Any, z: Any, rule: Rule, degree: int, noise: Any = None) -> tuple[float, float]:
    """Mean and variance of the block's average by dense algebra, the latter without (less than) `rule.error` squared.

    Of the weighted sum itself for a rule without rings.
    """
    A = variogram.anisotropy(2)

    def cov(a: Any, b: Any) -> Any:
        return variogram.covariance(cdist(a @ A.T, b @ A.T))

    K = cov(X, X) + np.diag(np.full(len(X), variogram.error_variance) if noise is None else noise)
    H = columns_of(X, degree)
    own = rule.weights @ cov(rule.nodes, rule.nodes) @ rule.weights
    if rule.rings:
        k, h = covariances_of(variogram, rule.rings, X), averages_of_columns(rule.rings, degree)
        outline = Outline.of([ring @ A.T for ring in rule.rings], 0.0)
        cross = covariances(outline, rule.nodes @ A.T, variogram, 1.0)[0] * variogram.field_variance
        own = 2.0 * rule.weights @ cross - own
    else:
        k, h = cov(X, rule.nodes) @ rule.weights, columns_of(rule.nodes, degree).T @ rule.weights
    S = np.linalg.solve(K, np.column_stack([z, H, k]))
    G = H.T @ S[:, 1:-1]
    beta = np.linalg.solve(G, H.T @ S[:, 0])
    R = h - H.T @ S[:, -1]
    return float(h @ beta + k @ (S[:, 0] - S[:, 1:-1] @ beta)), float(own - k @ S[:, -1] + R @ np.linalg.solve(G, R))


@pytest.mark.spread(4)
@pytest.mark.parametrize("model", [*MODELS])
def test_covariances_with_blocks_are_those_of_a_quadrature_over_triangles(model: str) -> None:
    variogram = variogram_of(model)
    A = variogram.anisotropy(2)
    ring = [(0.0, 0.0), (1.1, 0.2), (0.9, 1.4), (0.5, 0.6)]
    hole = [(0.6, 0.3), (0.6, 0.5), (0.8, 0.4)]
    x = [(0.65, 0.4), (0.3, 0.2), (2.0, 1.0), (0.55 + 1e-7, 0.1), (0.0, 0.0), (-3.0, 1.5), (0.0, 12.0), (0.75, 0.55)]
    for scale in (1.0, 0.03, 6.0):
        rings, points = [scale * np.array(one) @ A.T for one in (ring, hole)], scale * np.array(x) @ A.T
        values, errors, _ = covariances(Outline.of(rings, 0.0), points, variogram, 0.7)
        # The unit of coordinates is 0.7.
        truth = covariances_of(
            variogram, [0.7 * scale * np.array(one) for one in (ring, hole)], 0.7 * scale * np.array(x)
        )
        assert (np.abs(values * variogram.field_variance - truth) <= errors * variogram.field_variance + 1e-13).all()
        assert errors.max() < (1e-8 if model in ("cubic", "wendland", "nested", "spherical") else 1e-10)


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


def test_gaussian_covariances_of_rectangles_are_products_of_error_functions(rng: np.random.Generator) -> None:
    mpmath = pytest.importorskip("mpmath")
    variogram = Variogram("gaussian", psill=1.0, range=1.0)
    with mpmath.workdps(40):
        for size in (1e-4, 0.03, 1.0, 30.0):
            width, height = size * rng.uniform(0.2, 1.0, 2)
            corner = rng.uniform(-3.0, 3.0, 2)
            x, y = corner[0] + width, corner[1] + height
            inside = corner + rng.uniform(0.0, 1.0, (3, 2)) * [width, height]
            edges = [(x, inside[0, 1]), (x + 1e-12, y), (inside[1, 0], corner[1] - 1e-7 * size), tuple(corner), (x, y)]
            points = np.vstack([inside, edges, corner + rng.normal(size=(3, 2)), corner + 8.0 * size])
            ring = np.array([corner, (x, corner[1]), (x, y), (corner[0], y)])
            values, errors, _ = covariances(Outline.of([ring], 0.0), points, variogram, 1.0)
            for point, value, error in zip(points, values, errors, strict=True):
                truth = mpmath.mpf(1)
                for low, high, at in zip(corner, (x, y), point, strict=True):
                    low, high = mpmath.mpf(float(low)), mpmath.mpf(float(high))
                    share = mpmath.erf(high - float(at)) - mpmath.erf(low - float(at))
                    truth *= mpmath.sqrt(mpmath.pi) / 2 * share / (high - low)
                assert abs(value - truth) <= error
                assert error < 1e-9


def variance_of_rectangle(variogram: Variogram, sides: tuple[float, float]) -> float:
    """The average covariance of two points of a rectangle: rays of differences in polar coordinates."""
    x, w = np.polynomial.legendre.leggauss(60)
    corner = np.arctan2(sides[1], sides[0])
    total = 0.0
    for low, high in ((0.0, corner), (corner, 0.5 * np.pi)):
        for angle, share in zip(low + 0.5 * (high - low) * (x + 1.0), 0.5 * (high - low) * w, strict=True):
            direction = np.array([np.cos(angle), np.sin(angle)])
            longest = float(np.min(np.array(sides) / direction))
            for way in (1.0, -1.0):
                stretch = float(np.linalg.norm(variogram.anisotropy(2) @ (direction * [1.0, way])))
                end = min(longest, variogram.range / stretch) if variogram.model in COMPACT else longest
                r = 0.5 * end * (x + 1.0)
                left = (1.0 - r * direction[0] / sides[0]) * (1.0 - r * direction[1] / sides[1])
                total += share * 0.5 * end * float(w @ (variogram.covariance(r * stretch) * left * r))
    return 2.0 * total / (sides[0] * sides[1])


COMPACT = ("spherical", "cubic", "wendland")


@pytest.mark.parametrize("sides", [(0.6, 1.0), (4.0, 3.0)], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_the_variance_of_a_rectangles_average_lies_in_its_narrow_interval(
    model: str, sides: tuple[float, float]
) -> None:
    variogram = variogram_of(model)
    parts = (replace(variogram, also=(), nugget=0.0), *variogram.also)
    truth = sum(variance_of_rectangle(one, sides) for one in parts) / variogram.field_variance
    low, high = rectangle_variance(sides, variogram, 1e-6)
    assert low <= truth * (1.0 + 1e-12)
    assert truth <= high * (1.0 + 1e-12)
    assert high - low < 3e-4


@pytest.mark.parametrize("model", ["exponential", "matern52", "nested"])
def test_the_variance_of_a_polygons_average_lies_in_its_interval(model: str) -> None:
    shapely = pytest.importorskip("shapely")
    variogram, sides = variogram_of(model), (0.6, 1.0)
    parts = (replace(variogram, also=(), nugget=0.0), *variogram.also)
    truth = sum(variance_of_rectangle(one, sides) for one in parts) / variogram.field_variance
    low, high = polygon_variance(shapely.box(4e5, 4e6, 4e5 + sides[0], 4e6 + sides[1]), variogram, 1e-3)
    assert low <= truth <= high
    assert high - low < 1e-3


def test_sums_over_the_cells_of_a_polygon_are_those_over_all_pairs() -> None:
    shapely = pytest.importorskip("shapely")
    variogram = variogram_of("matern32")
    hole = [(1.0, 1.0), (1.7, 1.1), (1.2, 1.8)]
    ell = shapely.Polygon([(0, 0), (3, 0.2), (2.8, 1.4), (1.9, 1.5), (2.0, 3.0), (0.1, 2.9)], [hole])
    cells = Cells.of(ell, 20, variogram)
    nodes, weights = np.concatenate([cells.full, cells.clipped]), [*[cells.share] * len(cells.full), *cells.shares]
    assert abs(sum(weights) - 1.0) < 1e-12
    assert min(len(cells.full), len(cells.clipped)) > 50
    own, missed = _sums(cells, variogram)
    truth = weights @ variogram.covariance(cdist(nodes, nodes)) @ np.array(weights)
    assert own == pytest.approx(truth, rel=1e-12)
    rule = polygon(ell, variogram, 20)
    assert np.sqrt(missed) == pytest.approx(rule.error, rel=1e-4)


@pytest.mark.covering(rest="long")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mean", ["constant", "linear", "quadratic"])
def test_intervals_hold_the_values_of_dense_algebra(model: str, mean: str, rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (40, 2))
    z = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(40)
    variogram = variogram_of(model)
    field = field_of(variogram, X, z, mean)
    coarse = rectangle((1.0, 2.5, 0.5, 3.0), variogram, 4)
    fine = rectangle((1.0, 2.5, 0.5, 3.0), variogram, 24)
    degree = ("constant", "linear", "quadratic").index(mean)
    bare = Rule(coarse.nodes, coarse.weights, 0.0, 0.0, coarse.area)
    sums = predicted(field, [bare])
    m, v = dense(variogram, X, z, bare, degree)
    assert abs(sums.mean[0, 0] - m) <= sums.mean_error_bound[0, 0] + 1e-11
    assert sums.variance_lower[0, 0] - 1e-12 <= v <= sums.variance_upper[0, 0] + 1e-12
    assert (sums.variance_upper - sums.variance_lower)[0, 0] < 1e-6
    # The block's own average, whose variance is known up to the square of the finer rule's error.
    whole = predicted(field, [coarse])
    m, v = dense(variogram, X, z, fine, degree)
    assert abs(whole.mean[0, 0] - m) <= whole.mean_error_bound[0, 0]
    assert whole.mean_error_bound[0, 0] < 1e-6
    assert whole.variance_lower[0, 0] <= v + fine.error**2
    assert v <= whole.variance_upper[0, 0]


@pytest.mark.parametrize(("mean", "times"), [("constant", 10.0), ("quadratic", 2.0)])
def test_means_of_blocks_are_refined_beyond_the_fields_own_solve(
    mean: str, times: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = rng.uniform(0.0, 5.0, (60, 2))
    z, noise = 3.0 * rng.standard_normal(60), np.full(60, 0.1) * 10.0 ** rng.uniform(0.0, 1.0, 60)
    variogram = variogram_of("matern32")
    samples = Samples(X, z[:, None], noise, 0.0, np.zeros((60, 0)))
    field = Field.fit(samples, Space(2), variogram, Solving(tolerance=1e-2, solver="cg"), mean=mean)
    rule = rectangle((1.0, 2.5, 0.5, 3.0), variogram, 24)
    m, _ = dense(variogram, X, z, rule, ("constant", "linear", "quadratic").index(mean), noise)
    certificate = field.record.certificate
    length = np.max(certificate["residual_norm"]) / np.sqrt(certificate["noise_variance"])
    result = predicted(field, [rule])
    assert abs(result.mean[0, 0] - m) <= result.mean_error_bound[0, 0]
    # Without the residual's share of the mean, the bound is the residual's length times the block's deviation.
    monkeypatch.setattr(ModelRecord, "training_state", lambda record: None)
    unrefined = predicted(field, [rule])
    assert abs(unrefined.mean[0, 0] - m) <= unrefined.mean_error_bound[0, 0]
    assert unrefined.mean_error_bound[0, 0] > 0.1 * length
    # The rest of the bound is the error of the drift's coefficients.
    assert unrefined.mean_error_bound[0, 0] > times * result.mean_error_bound[0, 0]
    assert abs(unrefined.mean[0, 0] - m) > 2.0 * abs(result.mean[0, 0] - m)


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
    assert result.variance_lower[0, 0] <= v + fine.error**2
    assert v <= result.variance_upper[0, 0]


SHAPES = {
    "rational": "(1 + r**2 / (2 * a))**-a",
    "stable": "exp(-(r**a))",
    "exponential": "exp(-r)",
    "matern32": "(1 + sqrt(3) * r) * exp(-sqrt(3) * r)",
    "matern52": "(1 + sqrt(5) * r + 5 * r**2 / 3) * exp(-sqrt(5) * r)",
    "gaussian": "exp(-r**2)",
    "spherical": "1 - 1.5 * r + 0.5 * r**3",
    "cubic": "1 - 7 * r**2 + 8.75 * r**3 - 3.5 * r**5 + 0.75 * r**7",
    "wendland": "1 - 10 * r**2 + 20 * r**3 - 15 * r**4 + 4 * r**5",
}


@pytest.mark.parametrize("model", SHAPES)
def test_fourth_derivatives_are_bounded_at_every_distance(model: str) -> None:
    mpmath = pytest.importorskip("mpmath")
    alpha: dict[str, Any] = {"alpha": 1.3} if model in ("rational", "stable") else {}
    variogram = Variogram(model, psill=1.0, range=1.0, **alpha)
    code = compile(SHAPES[model], "rho", "eval")

    def rho(x: Any, y: Any) -> Any:
        values = {"r": mpmath.sqrt(x * x + y * y), "a": 1.3, "exp": mpmath.exp, "sqrt": mpmath.sqrt}
        return eval(code, {}, values)

    distances = [1e-3, 0.03, 0.2, 0.5, 0.8, 0.95]
    if model not in ("spherical", "cubic", "wendland"):
        distances += [1.5, 4.0, 12.0]
    with mpmath.workdps(40):
        for r in distances:
            bound = float(fourth_derivatives(variogram, np.array([r]), np.array([r]))[0])
            sizes = []
            for turn in (0.0, 0.4, 0.8, 1.2, np.pi / 2):
                x, y = r * mpmath.cos(turn), r * mpmath.sin(turn)
                # Along one direction, and along two at right angles.
                sizes += [abs(mpmath.diff(rho, (x, y), orders)) for orders in ((4, 0), (2, 2))]
            assert max(sizes) <= bound
            assert bound <= 2000.0 * max(sizes)
    # A bound over distances holds at each of them; across the range of a polynomial there is none.
    low, high = np.array([0.3, 0.9, 1.0]), np.array([0.5, 1.1, 1.2])
    over = fourth_derivatives(variogram, low, high)
    for r in (0.3, 0.4, 0.5):
        assert fourth_derivatives(variogram, np.array([r]), np.array([r]))[0] <= over[0]
    if model in ("spherical", "cubic", "wendland"):
        assert np.isinf(over[1])
        assert over[2] == 0.0


def true_error(rule: Rule, cells: Rule, variogram: Variogram) -> float:
    """Prior deviation of a rule minus a far finer one."""
    A = variogram.anisotropy(2)
    nodes = np.vstack([rule.nodes, cells.nodes]) @ A.T
    u = np.concatenate([rule.weights, -cells.weights])
    return float(np.sqrt(max(u @ variogram.covariance(cdist(nodes, nodes)) @ u, 0.0)))


@pytest.mark.parametrize("model", ["exponential", "matern52", "gaussian", "spherical", "rational", "stable", "nested"])
def test_errors_of_rules_bound_their_true_error(model: str) -> None:
    variogram = variogram_of(model)
    fine = rectangle((1.0, 2.5, 0.5, 3.0), variogram, 24)
    for order in (1, 2, 3, 6):
        rule = rectangle((1.0, 2.5, 0.5, 3.0), variogram, order)
        assert true_error(rule, fine, variogram) <= rule.error + fine.error
        assert rule.error <= 2.0 * np.sqrt(variogram.field_variance) * 1.001
    # A block of the same size elsewhere has the error of the first, and far away also that of its coordinates.
    moved = moved_rectangle((501.0, 502.5, 4000.5, 4003.0), variogram, 6, rule)
    assert moved.error == pytest.approx(rule.error, rel=1e-2)
    assert moved.error >= rule.error


def test_polygons_with_holes_and_several_parts_are_cut_exactly() -> None:
    shapely = pytest.importorskip("shapely")
    variogram = variogram_of("matern32")
    ring = shapely.Point(2.5, 2.5).buffer(1.5).difference(shapely.Point(2.4, 2.6).buffer(0.9))
    several = shapely.union_all([ring, shapely.box(5.0, 5.0, 6.0, 6.5), shapely.Point(2.4, 2.6).buffer(0.2)])
    for shape in (ring, several, shapely.box(0.0, 0.0, 10.0, 0.01)):
        coarse, fine = (polygon(shape, variogram, order) for order in (5, 20))
        assert coarse.area == pytest.approx(shape.area)
        assert coarse.weights.sum() == pytest.approx(1.0, abs=1e-13)
        assert coarse.weights @ coarse.nodes == pytest.approx(np.ravel(shape.centroid.coords), abs=1e-9)
        assert true_error(coarse, fine, variogram) <= coarse.error + fine.error
    # The square's rule of centroids is the midpoint rule.
    square = polygon(shapely.box(0.0, 0.0, 2.0, 2.0), variogram, 2)
    assert sorted(map(tuple, square.nodes)) == [(0.5, 0.5), (0.5, 1.5), (1.5, 0.5), (1.5, 1.5)]
    corners = variogram.anisotropy(2) @ np.array([[0.5, 0.5], [0.5, -0.5]])
    assert square.spread == pytest.approx(max((corners**2).sum(axis=0)))


def test_hostile_polygons_are_refused_by_name() -> None:
    shapely = pytest.importorskip("shapely")
    variogram = variogram_of("exponential")
    bow = shapely.Polygon([(0, 0), (2, 2), (2, 0), (0, 2)])
    needle = shapely.Polygon([(0, 0), (1e6, 1e6), (1e6, 1e6 + 1e-4)])
    for shape, words in (
        (bow, r"the polygon parish-7 is not valid: Self-intersection.*make_valid"),
        (shapely.Polygon(), "the polygon parish-7 has no area"),
        (needle, "the polygon parish-7 has an area of 50, too little for its extent"),
        (shapely.LineString([(0, 0), (1, 1)]), "the block parish-7 is a LineString; expected a polygon"),
        (None, "the block parish-7 is a NoneType; expected a polygon"),
    ):
        with pytest.raises(InputError, match=words):
            polygon(shape, variogram, 8, "parish-7")
    with pytest.raises(InputError, match="west < east and south < north"):
        rectangle((1.0, 1.0, 0.0, 2.0), variogram)


def test_one_node_misses_the_square_of_a_drift(rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (40, 2))
    variogram = variogram_of("matern52")
    z = 3.0 * X[:, 0] ** 2
    field = field_of(variogram, X, z, "quadratic")
    one, fine = rectangle((0.5, 4.5, 1.0, 4.0), variogram, 1), rectangle((0.5, 4.5, 1.0, 4.0), variogram, 16)
    result = predicted(field, [one])
    m, v = dense(variogram, X, z, fine, 2)
    assert one.spread > 0.0
    assert abs(result.mean[0, 0] - m) <= result.mean_error_bound[0, 0]
    assert result.variance_lower[0, 0] <= v + fine.error**2
    assert v <= result.variance_upper[0, 0]


def test_blocks_far_from_the_origin_and_the_data(rng: np.random.Generator) -> None:
    shift = np.array([5e5, 5.8e6])
    X = rng.uniform(0.0, 5.0, (30, 2)) + shift
    variogram = variogram_of("matern32")
    z = 1e4 + np.sin(X[:, 0] - shift[0])
    field = field_of(variogram, X, z, "constant")
    near = tuple(np.repeat(shift, 2) + np.array([1.0, 2.0, 1.0, 2.0]))
    far = tuple(np.repeat(shift, 2) + np.array([500.0, 501.0, 1.0, 2.0]))
    rules = [rectangle(near, variogram, 6), rectangle(far, variogram, 6)]
    exact = [Rule(rule.nodes, rule.weights, 0.0, 0.0, rule.area) for rule in rules]
    result = predicted(field, exact)
    for index, rule in enumerate(rules):
        moved = Rule(rule.nodes - shift, rule.weights, 0.0, 0.0, rule.area)
        m, v = dense(variogram, X - shift, z, moved, 0)
        assert abs(result.mean[index, 0] - m) <= result.mean_error_bound[index, 0] + 1e-8
        assert result.mean_error_bound[index, 0] < 1e-6
        assert result.variance_lower[index, 0] - 1e-9 <= v <= result.variance_upper[index, 0] + 1e-9
    result = predicted(field, rules)
    for index, rule in enumerate(rules):
        moved = replace(rule, nodes=rule.nodes - shift, rings=(rule.rings[0] - shift,))
        m, v = dense(variogram, X - shift, z, moved, 0)
        # Standardised samples are off by roundings of their coordinates.
        assert abs(result.mean[index, 0] - m) <= result.mean_error_bound[index, 0] + 5e-8
        assert result.mean_error_bound[index, 0] < 1e-5
        assert result.variance_lower[index, 0] - 1e-9 <= v + rule.error**2
        assert v <= result.variance_upper[index, 0] + 1e-9


def test_errors_of_covariances_are_near_their_roundings(rng: np.random.Generator) -> None:
    ring = 1.75 * np.array([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    points = np.concatenate([rng.uniform(-10.0, 10.0, (300, 2)), rng.uniform(-0.5, 2.5, (100, 2))])
    for model in ("exponential", "matern32", "gaussian"):
        _, errors, moved = covariances(Outline.of([ring], 0.0), points, Variogram(model, psill=1.0, range=1.0), 1.0)
        assert errors.max() < 1e-12
        assert not moved.any()


def test_roundings_of_corners_far_from_the_origin_widen_no_variance(rng: np.random.Generator) -> None:
    shift = np.array([5e5, 5.8e6])
    X = rng.uniform(0.0, 5.0, (150, 2)) + shift
    variogram = Variogram("matern32", psill=1.3, range=2.0, nugget=1.3e-6)
    z = np.sin(X[:, 0] - shift[0])
    blocks = [tuple(np.repeat(shift, 2) + np.array(sides)) for sides in ((1.0, 1.5, 1.0, 1.5), (1.0, 4.0, 0.5, 4.0))]
    rules = [rectangle(block, variogram, 8) for block in blocks]  # type: ignore[arg-type]
    result = predicted(field_of(variogram, X, z), rules)
    assert ((result.variance_upper - result.variance_lower) < 0.05 * result.variance_upper).all()
    assert (result.mean_error_bound < 3e-5).all()
    for index, block in enumerate(blocks):
        low, high = rectangle_variance((block[1] - block[0], block[3] - block[2]), variogram, 1e-9)
        rule = replace(rules[index], nodes=rules[index].nodes - shift, rings=(rules[index].rings[0] - shift,))
        own = 2.0 * rule.weights @ covariances_of(variogram, rule.rings, rule.nodes)
        own -= rule.weights @ variogram.covariance(cdist(rule.nodes, rule.nodes)) @ rule.weights
        v = dense(variogram, X - shift, z, rule, 0)[1] - own
        assert result.variance_lower[index, 0] <= v + 1.3 * high + 1e-9
        assert v + 1.3 * low - 1e-9 <= result.variance_upper[index, 0]


@pytest.mark.spread(3)
@pytest.mark.parametrize("number", range(10))
def test_no_bound_of_random_blocks_is_broken(number: int) -> None:
    shapely = pytest.importorskip("shapely")
    rng = np.random.default_rng(number)
    n, degree = int(rng.integers(12, 50)), number % 3
    X = rng.uniform(0.0, 5.0, (n, 2))
    z = rng.normal(size=n) + X[:, 0]
    variogram = variogram_of(MODELS[number % len(MODELS)])
    noise = variogram.error_variance + rng.uniform(0.0, 0.3, n)
    samples = Samples(X, z[:, None], noise, 0.0, np.zeros((n, 0)))
    # Equations that are solved loosely: the bounds hold all the same.
    mean = ("constant", "linear", "quadratic")[degree]
    field = Field.fit(samples, Space(2), variogram, Solving(tolerance=1e-4), mean=mean)  # type: ignore[arg-type]
    coarse, fine = [], []
    for block in range(4):
        x, y, width, height = *rng.uniform(-1.0, 6.0, 2), *rng.uniform(0.05, 3.0, 2)
        order = int(rng.integers(1, 5))
        make: Any = partial(rectangle, (x, x + width, y, y + height), variogram)
        if block % 2:
            disc = shapely.Point(x, y).buffer(width, quad_segs=order)
            hole = shapely.Point(x + 0.3 * width, y).buffer(0.6 * width, quad_segs=4)
            make = partial(polygon, disc.difference(hole), variogram)
        coarse.append(make(order=order))
        fine.append(make(order=18))
    executor = LocalExecutor(1)
    try:
        result = krige_blocks(field, coarse, RunContext(executor), tolerance=1e-3)
    finally:
        executor.close()
    for index, rule in enumerate(fine):
        m, v = dense(variogram, X, z, rule, degree, noise)
        assert abs(result.mean[index, 0] - m) <= result.mean_error_bound[index, 0]
        assert result.variance_lower[index, 0] <= v + rule.error**2
        assert v <= result.variance_upper[index, 0]
        assert true_error(coarse[index], rule, variogram) <= coarse[index].error + 1e-9


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_covariates_are_averaged_over_the_nodes(degree: int, rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (40, 2))

    def height(x: Any, y: Any) -> Any:
        return np.column_stack([np.where(x < 4.5, np.sin(3.0 * x) + 0.2 * y, np.nan)])

    def columns(points: Any) -> Any:
        return np.column_stack([columns_of(points, degree), height(*points.T)])

    variogram = variogram_of("exponential")
    X = X[X[:, 0] < 4.5]
    z = 100.0 + 5.0 * height(*X.T)[:, 0] + rng.standard_normal(len(X))
    kriging = Kriging(variogram, kind="universal", degree=degree, covariates="height")
    kriging.fit(tuple(X.T), z, covariates=height(*X.T))
    block, beyond = (1.0, 2.5, 0.5, 3.0), (4.0, 5.0, 1.0, 2.0)
    with pytest.warns(
        UserWarning, match="covariates are missing at nodes of 1 of 2 blocks, first of block 1; they are"
    ):
        table = kriging.blocks([block, beyond], quadrature=16, covariates=height)
    assert table.loc[1, ["mean", "mean_error_bound", "variance", "variance_upper"]].isna().all()
    rule = rectangle(block, variogram, 16)
    A = variogram.anisotropy(2)
    K = variogram.covariance(cdist(X @ A.T, X @ A.T)) + np.diag(np.full(len(X), variogram.error_variance))
    k, h, H = covariances_of(variogram, rule.rings, X), columns(rule.nodes).T @ rule.weights, columns(X)
    G = H.T @ np.linalg.solve(K, H)
    beta = np.linalg.solve(G, H.T @ np.linalg.solve(K, z))
    R = h - H.T @ np.linalg.solve(K, k)
    cross = covariances_of(variogram, rule.rings, rule.nodes) @ rule.weights
    own = 2.0 * cross - rule.weights @ variogram.covariance(cdist(rule.nodes @ A.T, rule.nodes @ A.T)) @ rule.weights
    variance = own - k @ np.linalg.solve(K, k) + R @ np.linalg.solve(G, R)
    assert abs(table["mean"][0] - (h @ beta + k @ np.linalg.solve(K, z - H @ beta))) <= table["mean_error_bound"][0]
    assert table["mean_error_bound"][0] < 1e-6
    assert table["variance_lower"][0] <= variance + rule.error**2
    assert variance <= table["variance_upper"][0]


def test_covariates_of_blocks_are_asked_for_by_name(rng: np.random.Generator) -> None:
    X = rng.uniform(0.0, 5.0, (20, 2))
    variogram = variogram_of("exponential")
    kriging = Kriging(variogram, kind="universal", degree=0, covariates="height")
    kriging.fit(tuple(X.T), X[:, 0], covariates=X[:, 1] ** 2)
    for covariates, words in (
        (None, "the field has the covariates height; pass rasters of them, or a function of x and y"),
        ({"height": np.zeros((3, 3))}, "`covariates` of blocks are rasters, or a function of x and y; got dict"),
        (lambda x, y: x, r"covariates of 64 points have shape \(64,\); expected \(64, 1\)"),
        (lambda x, y: np.full((len(x), 1), np.nan), "covariates are missing at nodes of every block"),
    ):
        with pytest.raises(InputError, match=words):
            kriging.blocks([(1.0, 2.0, 1.0, 2.0)], covariates=covariates, quadrature_tolerance=1.0)
    with pytest.raises(InputError, match="the field has no covariates; pass no `covariates`"):
        Kriging(variogram).fit(tuple(X.T), X[:, 0]).blocks([(1.0, 2.0, 1.0, 2.0)], covariates=lambda x, y: x)
