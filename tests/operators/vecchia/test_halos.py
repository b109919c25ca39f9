"""Halos against all distances, in features few and many, with ties and with parts that are too far to look at."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.operators.vecchia import halos
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order


def ordered(points: np.ndarray, leaf: int) -> OrderedPoints:
    order, bounds = kd_order(points, leaf)
    return OrderedPoints(points[order], order, bounds)


def by_force(points: np.ndarray, found: OrderedPoints, leaf: int, size: int) -> np.ndarray:
    placed = points[found.order].astype(np.float64)
    start, stop = found.bounds[leaf], found.bounds[leaf + 1]
    squares = ((placed[:start, None] - placed[None, start:stop]) ** 2).sum(axis=2).min(axis=1)
    return np.sort(np.argsort(squares, kind="stable")[:size])


@pytest.mark.parametrize(("n", "features", "leaf", "size"), [(600, 2, 30, 50), (600, 10, 37, 100), (500, 90, 50, 64)])
def test_they_are_the_nearest(rng: np.random.Generator, n: int, features: int, leaf: int, size: int) -> None:
    points = rng.standard_normal((n, features)).astype(np.float32)
    found = ordered(points, leaf)
    for number in range(len(found.bounds) - 1):
        np.testing.assert_array_equal(found.halo(number, size), by_force(points, found, number, size))


def test_of_equal_distances_the_first_places_count() -> None:
    points = np.repeat(np.arange(40, dtype=np.float32)[:, None], 10, axis=0)
    found = ordered(points, 20)
    for number in range(20):
        np.testing.assert_array_equal(found.halo(number, 15), by_force(points, found, number, 15))


def test_the_first_leaves_have_all_that_come_before_them(rng: np.random.Generator) -> None:
    found = ordered(rng.standard_normal((100, 2)).astype(np.float32), 10)
    assert len(found.halo(0, 25)) == 0
    np.testing.assert_array_equal(found.halo(2, 25), np.arange(20))
    assert len(found.halo(3, 0)) == 0


def test_far_leaves_are_not_looked_at(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ordered(rng.uniform(size=(20_000, 2)).astype(np.float32), 50)
    looked = 0
    search = halos._search

    def counting(*arguments: object) -> tuple[bool, int]:
        nonlocal looked
        is_proven, of_one = search(*arguments)
        looked += of_one
        return is_proven, of_one

    monkeypatch.setattr(halos, "_search", counting)
    for number in range(len(found.bounds) - 1):
        found.halo(number, 100)
    assert looked < 400 * 1000  # of 400 leaves times 10,000 samples before them on average
