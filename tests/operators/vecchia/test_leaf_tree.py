"""Searches of a limited number of leaves: against a loop over their definition, and what they prove against all."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from dkgp.operators.vecchia.halos import LeafTree, OrderedPoints, kd_order, tree_bytes
from tests.operators.vecchia.test_halos import by_force


def boxes(points: np.ndarray, leaf: int) -> tuple[np.ndarray, np.ndarray]:
    order, bounds = kd_order(points, leaf)
    placed = points[order]
    parts = [placed[start:stop] for start, stop in pairwise(bounds)]
    return np.array([part.min(axis=0) for part in parts]), np.array([part.max(axis=0) for part in parts])


def level_by_level(
    low: np.ndarray, high: np.ndarray, at: tuple[np.ndarray, np.ndarray], before: int, radius: float, budget: int
) -> tuple[list[int], float]:
    """The definition, in Python: ranges of leaves that are cut in two, the nearest middles of those within reach."""

    def within(first: int, count: int) -> tuple[np.float32, np.float32]:
        box_low, box_high = low[first : first + count].min(axis=0), high[first : first + count].max(axis=0)
        box = middle = np.float32(0.0)
        for a, b, c, d in zip(box_low, box_high, *at, strict=True):
            box += max(a - d, c - b, np.float32(0.0)) ** 2
            middle += ((a + b) - (c + d)) ** 2
        return box * np.float32(1.0 - 1e-4), middle

    ranges, unseen = [(0, len(low))], np.inf
    while any(count > 1 for _, count in ranges):
        halves: list[tuple[int, int]] = []
        for first, count in ranges:
            below = count // 2
            halves += [(first, 1)] if count == 1 else [(first, below), (first + below, count - below)]
        reached = [each for each in halves if each[0] < before and within(*each)[0] <= radius]
        ranked = sorted(range(len(reached)), key=lambda place: (within(*reached[place])[1], place))
        unseen = min([unseen, *(float(within(*reached[place])[0]) for place in ranked[budget:])])
        ranges = [reached[place] for place in sorted(ranked[:budget])]
    return sorted(first for first, _ in ranges), unseen


@pytest.mark.parametrize(("n", "features", "radius"), [(300, 2, 0.05), (300, 2, np.inf), (230, 9, np.inf), (7, 3, 1.0)])
@pytest.mark.parametrize("budget", [1, 3, 8, 100])
def test_a_search_is_its_definition(
    n: int, features: int, radius: float, budget: int, rng: np.random.Generator
) -> None:
    low, high = boxes(rng.uniform(size=(n, features)).astype(np.float32), 7)
    tree = LeafTree(low, high)
    assert tree.nbytes <= tree_bytes(len(low), features)
    for before in {1, len(low) // 3 + 1, len(low)}:
        at = (low[before - 1], high[before - 1]) if before < len(low) else (low[0] + 0.1, low[0] + 0.1)
        places, unseen = tree.near(*at, before, radius, budget)
        expected, left_out = level_by_level(low, high, at, before, radius, budget)
        assert (places.tolist(), unseen) == (expected, left_out)


def test_boxes_that_are_alike_are_taken_in_order() -> None:
    low = np.zeros((40, 2), np.float32)
    places, unseen = LeafTree(low, low).near(low[0], low[0], 40, 0.0, 6)
    assert (places.tolist(), unseen) == level_by_level(low, low, (low[0], low[0]), 40, 0.0, 6)
    assert (len(places), unseen) == (6, 0.0)


@pytest.mark.parametrize("features", [2, 5, 14])
def test_what_is_proven_is_the_nearest_whatever_the_limit(features: int, rng: np.random.Generator) -> None:
    """Whole numbers, too, with ties and duplicates everywhere; and limits that are no limit prove everything."""
    counted: Counter[bool] = Counter()
    for points in (rng.standard_normal((900, features)), rng.integers(0, 3, (900, features))):
        points = points.astype(np.float32)
        order, bounds = kd_order(points, 10)
        for searched in (1, 6, 15, 40, 90):
            found = OrderedPoints(points[order], order, bounds, searched)
            for leaf in range(0, 90, 7):
                halo, is_proven = found.searched_halo(leaf, 20)
                assert len(np.unique(halo)) == min(20, bounds[leaf])
                assert not len(halo) or halo.max() < bounds[leaf]
                counted[is_proven] += 1
                if is_proven:
                    np.testing.assert_array_equal(halo, by_force(points, found, leaf, 20))
                assert is_proven or searched < leaf
            for point in points[:5] + np.float32(0.3):
                near, is_proven = found.near(point, 20)
                squares = ((points[order].astype(np.float64) - point) ** 2).sum(axis=1)
                if is_proven:
                    assert squares[near].max() <= np.sort(squares)[19] * (1.0 + 1e-5)
                assert is_proven or searched < 90
    assert min(counted[True], counted[False]) > 10


def test_of_many_features_most_are_found_in_a_part_of_the_leaves(rng: np.random.Generator) -> None:
    points = rng.uniform(size=(12_000, 16)).astype(np.float32)
    order, bounds = kd_order(points, 20)
    limited, exact = (OrderedPoints(points[order], order, bounds, searched) for searched in (100, None))
    leaves = range(400, 600, 20)
    shares = [np.isin(limited.halo(leaf, 60), exact.halo(leaf, 60)).mean() for leaf in leaves]
    # A fifth of the leaves before these; drawn at random they would have a fifth.
    assert 0.6 < np.mean(shares) < 1.0


def test_a_search_looks_at_as_many_leaves_as_it_may_however_many_there_are(rng: np.random.Generator) -> None:
    """Nothing is far in many features: samples at hand grow with the budget alone."""
    for n in (4_000, 16_000):
        points = rng.uniform(size=(n, 30)).astype(np.float32)
        low, high = boxes(points, 20)
        places, _ = LeafTree(low, high).near(low[-1], high[-1], len(low), np.inf, 50)
        assert len(np.unique(places)) == len(places) == 50
