"""Halos against all distances, in features few and many, with ties and with parts that are too far to look at."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dkgp.operators.vecchia import halos
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order, leaf_count


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


# The kd order: a permutation in leaves of even sizes, whose parts do not overlap along the feature that cut the.


@pytest.mark.parametrize(("n", "leaf"), [(1, 1), (7, 10), (100, 1), (1000, 64), (1013, 37)])
def test_it_is_a_permutation_in_even_leaves(rng: np.random.Generator, n: int, leaf: int) -> None:
    order, bounds = kd_order(rng.standard_normal((n, 3)).astype(np.float32), leaf)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(sizes)) == (0, n, leaf_count(n, leaf))
    assert 1 <= sizes.min() <= sizes.max() <= leaf
    assert sizes.max() - sizes.min() <= max(2, leaf // 8)
    for start, stop in itertools.pairwise(bounds):
        assert (np.diff(order[start:stop]) > 0).all()


def test_halves_are_cut_at_the_median_of_the_widest_feature(rng: np.random.Generator) -> None:
    points = (rng.standard_normal((1024, 3)) * [1.0, 4.0, 1.0]).astype(np.float32)
    order, _ = kd_order(points, 512)
    assert points[order[:512], 1].max() < points[order[512:], 1].min()
    order, _ = kd_order(points, 256)
    first, second = points[order[:256]], points[order[256:512]]
    axis = int(points[order[:512]].var(axis=0).argmax())
    assert first[:, axis].max() < second[:, axis].min()


def test_duplicates_and_both_zeros_are_told_apart_by_their_number() -> None:
    points = np.zeros((64, 2), np.float32)
    points[::2] = -0.0
    order, bounds = kd_order(points, 8)
    np.testing.assert_array_equal(order, np.arange(64))
    assert np.diff(bounds).tolist() == [8] * 8


def test_leaves_are_compact(rng: np.random.Generator) -> None:
    points = rng.uniform(size=(4096, 2)).astype(np.float32)
    order, bounds = kd_order(points, 64)
    spread = [np.ptp(points[order[a:b]], axis=0).prod() for a, b in itertools.pairwise(bounds)]
    assert sum(spread) < 1.0  # boxes of 64 leaves cover the unit square about once
