"""The tree's own promises: who lies where, what its boxes hold, which nodes are queries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.kernels.tiles.blocks import LANES
from dkgp.operators.tree.kd_tree import LEAF_ROWS, QUERY_LEAVES, STACK, KDTree, node_sums


@st.composite
def points(draw: st.DrawFn) -> np.ndarray:
    n, d = draw(st.integers(1, 700)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["spread", "grid", "equal", "far"]))
    if kind == "grid":
        return rng.integers(0, 4, (n, d)).astype(float)
    if kind == "equal":
        return np.full((n, d), rng.standard_normal())
    return rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4, d) + (1e6 if kind == "far" else 0.0)


def rows_of(tree: KDTree, node: int) -> slice:
    return slice(tree.first[node] * LEAF_ROWS, min(tree.last[node] * LEAF_ROWS, len(tree.order)))


@given(X=points())
def test_every_point_lies_in_one_leaf_and_in_the_boxes_above_it(X: np.ndarray) -> None:
    tree = KDTree.of(X)
    assert sorted(tree.order) == list(range(len(X)))
    np.testing.assert_array_equal(tree.points, X[tree.order])
    assert tree.n_leaves == -(-len(X) // LEAF_ROWS)
    leaves = np.flatnonzero(tree.right < 0)
    np.testing.assert_array_equal(tree.first[leaves], np.arange(tree.n_leaves))
    np.testing.assert_array_equal(tree.last[leaves], np.arange(tree.n_leaves) + 1)
    for node in range(len(tree.right)):
        held = tree.points[rows_of(tree, node)]
        # Wider by the rounding that a scaled input bears, and hardly more.
        slack = np.spacing(np.abs(X).max(axis=0))
        assert (tree.low[node] <= held.min(axis=0) - 0.4 * slack).all()
        assert (tree.high[node] >= held.max(axis=0) + 0.4 * slack).all()
        assert (tree.low[node] >= held.min(axis=0) - 4.0 * slack).all()
        assert (tree.high[node] <= held.max(axis=0) + 4.0 * slack).all()


@given(X=points())
def test_nodes_are_in_preorder_and_cut_at_the_median_of_their_widest_feature(X: np.ndarray) -> None:
    tree = KDTree.of(X)
    depth = np.zeros(len(tree.right), int)
    for node in np.flatnonzero(tree.right >= 0):
        left, right = node + 1, tree.right[node]
        assert (tree.first[left], tree.last[right]) == (tree.first[node], tree.last[node])
        assert tree.last[left] == tree.first[right]
        sizes = [tree.last[child] - tree.first[child] for child in (left, right)]
        assert abs(sizes[0] - sizes[1]) <= 1
        held = tree.points[rows_of(tree, node)]
        widest = np.argmax(held.max(axis=0) - held.min(axis=0))
        below, above = (tree.points[rows_of(tree, child)][:, widest] for child in (left, right))
        assert below.max() <= above.min()
        depth[left] = depth[right] = depth[node] + 1
    assert depth.max() + 1 < STACK
    again = KDTree.of(X.copy(order="F"))
    np.testing.assert_array_equal(again.order, tree.order)


def test_the_walk_fits_its_stack_whatever_the_number_of_samples() -> None:
    # Halved down to one leaf, 2^48 of them are 48 levels deep.
    assert STACK > 48 + 2


@given(X=points())
def test_queries_cover_the_leaves_in_order(X: np.ndarray) -> None:
    tree = KDTree.of(X)
    queries = tree.queries()
    np.testing.assert_array_equal(tree.first[queries], np.r_[0, tree.last[queries][:-1]])
    assert tree.last[queries[-1]] == tree.n_leaves
    sizes = tree.last[queries] - tree.first[queries]
    assert sizes.max() <= QUERY_LEAVES
    assert sizes.min() >= min(tree.n_leaves, (QUERY_LEAVES + 1) // 2)
    # Each starts on a whole vector.
    assert LEAF_ROWS % LANES == 0


@given(X=points(), targets=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_node_sums_are_the_sums_of_what_a_node_holds(X: np.ndarray, targets: int, share: float) -> None:
    tree, rng = KDTree.of(X), np.random.default_rng(len(X))
    active = np.flatnonzero(rng.random(len(X)) < share)
    weights = rng.standard_normal((len(active), targets))
    starts = tree.leaf_starts(active)
    assert (starts[0], starts[-1]) == (0, len(active))
    sums, magnitudes = np.empty((2, len(tree.right), targets))
    node_sums(starts, weights, tree.first, tree.right, sums, magnitudes)
    for node in range(len(tree.right)):
        rows = rows_of(tree, node)
        inside = (active >= rows.start) & (active < rows.stop)
        np.testing.assert_allclose(sums[node], weights[inside].sum(axis=0), rtol=0, atol=1e-12)
        np.testing.assert_allclose(magnitudes[node], np.abs(weights[inside]).sum(axis=0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", [1, LEAF_ROWS, LEAF_ROWS + 1])
def test_smallest_trees(n: int) -> None:
    tree = KDTree.of(np.arange(float(n))[:, None])
    assert len(tree.right) == (1 if n <= LEAF_ROWS else 3)
    assert tree.queries().tolist() == [0]
    assert tree.nbytes >= 16 * n
