"""Steps without function values, on functions whose maximum is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dkgp.models.refinement.refine import RADIUS, Point, QuasiNewton, estimated_gain, gain_error

Gradient = Callable[[np.ndarray], np.ndarray]
FREE = np.array([True, True, True])
WIDE = np.array([[-10.0, 10.0]] * 3)


def climb(gradient: Gradient, start: np.ndarray, search: QuasiNewton, steps: int) -> list[Point]:
    point = Point(start, gradient(start), np.full(start.shape, 1e-3))
    points = [point]
    for _ in range(steps):
        there = search.propose(point)
        new = Point(there, gradient(there), point.error)
        if search.learn(point, new):
            point = new
            points.append(point)
    return points


def quadratic(hessian: np.ndarray, top: np.ndarray) -> Gradient:
    return lambda at: -hessian @ (at - top)


def test_it_reaches_the_top_of_a_quadratic_in_few_steps(rng: np.random.Generator) -> None:
    half = rng.normal(size=(3, 3))
    hessian, top = half @ half.T + np.diag([100.0, 10.0, 1.0]), np.array([0.6, -0.4, 0.3])
    # The curvature to start with is off by factors, as an estimate's is.
    search = QuasiNewton(WIDE, 3.0 * hessian.diagonal(), FREE)
    points = climb(quadratic(hessian, top), np.zeros(3), search, 12)
    np.testing.assert_allclose(points[-1].parameters, top, atol=1e-3)


def test_no_step_is_longer_than_the_radius() -> None:
    search = QuasiNewton(WIDE, np.full(3, 1e-6), FREE)
    points = climb(quadratic(np.eye(3), np.full(3, 5.0)), np.zeros(3), search, 15)
    steps = np.diff([point.parameters for point in points], axis=0)
    assert np.abs(steps).max() == pytest.approx(RADIUS)
    np.testing.assert_allclose(points[-1].parameters, 5.0, atol=0.05)


def test_bounds_hold_and_a_bound_that_is_pushed_against_ends_the_matter() -> None:
    bounds = np.array([[-10.0, 10.0], [-0.2, 0.2], [-10.0, 10.0]])
    search = QuasiNewton(bounds, np.ones(3), FREE)
    points = climb(quadratic(np.eye(3), np.array([0.5, 3.0, -0.5])), np.zeros(3), search, 10)
    last = points[-1]
    np.testing.assert_allclose(last.parameters, [0.5, 0.2, -0.5], atol=1e-3)
    assert last.gradient[1] > 1.0
    assert search.free(last).tolist() == [True, False, True]
    assert last.significance(search.free(last)) < 1.0 < last.significance(FREE)


def test_what_is_held_fixed_stays() -> None:
    search = QuasiNewton(WIDE, np.ones(3), np.array([True, False, True]))
    points = climb(quadratic(np.eye(3) + 0.3, np.full(3, 1.0)), np.zeros(3), search, 10)
    assert all(point.parameters[1] == 0.0 for point in points)
    assert abs(points[-1].gradient[[0, 2]]).max() < 1e-2


def test_a_step_far_past_the_top_is_taken_back() -> None:
    # Flat where it starts, steep behind the top: Newton's step from a small curvature leads far beyond.
    def gradient(at: np.ndarray) -> np.ndarray:
        return np.where(at < 0.1, 1.0, 1.0 - 200.0 * (at - 0.1))

    search = QuasiNewton(WIDE, np.full(3, 1e-3), FREE)
    points = climb(gradient, np.zeros(3), search, 25)
    assert len(points) < 26  # some were taken back
    np.testing.assert_allclose(points[-1].parameters, 0.105, atol=2e-3)


def test_retreats_end_the_search() -> None:
    search = QuasiNewton(WIDE, np.ones(3), FREE)
    for _ in range(5):
        assert not search.stuck
        search.retreat()
    assert search.stuck


def test_gain_and_its_error(rng: np.random.Generator) -> None:
    hessian, top = np.diag([4.0, 2.0, 1.0]), np.array([0.3, 0.2, 0.1])
    gradient = quadratic(hessian, top)
    start, end = np.zeros(3), np.array([0.2, 0.2, 0.3])
    old, new = (Point(at, gradient(at), np.array([0.1, 0.2, 0.4])) for at in (start, end))

    def value(at: np.ndarray) -> float:
        return -0.5 * float((at - top) @ hessian @ (at - top))

    assert estimated_gain(old, new) == pytest.approx(value(end) - value(start))  # exact for a quadratic
    assert gain_error(old, new) == pytest.approx(np.linalg.norm([0.02, 0.04, 0.12]))


def test_a_component_that_is_negligible_is_not_significant() -> None:
    point = Point(np.zeros(3), np.array([5.0, 1e-3, 0.0]), np.array([5.0, 1e-9, 0.0]))
    assert point.significance(FREE) == pytest.approx(np.sqrt(1.0 / 3.0), rel=1e-3)
    assert point.significance(np.zeros(3, dtype=bool)) == 0.0
