"""A kd-tree over scaled inputs, and the compiled walk that sums kernel contributions leaf by leaf.

Leaves hold a multiple of 16 points each, so that every leaf starts on a whole vector and its sums are those of the
dense tiles. The walk meets a group of query points (a leaf) with every part of the tree: where the kernel can hardly
vary between the two boxes, the part's whole contribution is one number; elsewhere it goes down, to dense tiles at the
end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dkgp.kernels.compiled import profile_value, tile_matmat
from dkgp.operators.base import FloatArray, IndexArray

__all__ = ["KDTree", "sum_leaves"]

LEAF_ROWS = 128
# Deeper than any tree of 2^48 leaves needs.
STACK = 64


@dataclass(frozen=True)
class KDTree:
    """Points cut in two at the median of their widest feature, again and again.

    Attributes
    ----------
    order : (n,) intp
        Samples in the order of the leaves.
    low, high : (nodes, d) float64
        Corners of each node's bounding box.
    first, last : (nodes,) intp
        Leaves below each node: first, and first after them. Nodes are in preorder; a node's left child is the next.
    right : (nodes,) intp
        Its right child; -1 for a leaf.
    """

    order: IndexArray
    low: FloatArray
    high: FloatArray
    first: IndexArray
    last: IndexArray
    right: IndexArray

    @classmethod
    def of(cls, points: FloatArray) -> KDTree:
        """Build the tree of points (n, d); the same for the same points, whoever builds it."""
        n, d = points.shape
        n_leaves = -(-n // LEAF_ROWS)
        nodes = 2 * n_leaves - 1
        order = np.arange(n, dtype=np.intp)
        low, high = np.empty((nodes, d)), np.empty((nodes, d))
        first, last = np.empty(nodes, np.intp), np.empty(nodes, np.intp)
        right = np.full(nodes, -1, np.intp)
        pending: list[tuple[int, int, int]] = [(0, n_leaves, -1)]
        count = 0
        while pending:
            start, stop, parent = pending.pop()
            node, count = count, count + 1
            if parent >= 0:
                right[parent] = node
            rows = slice(start * LEAF_ROWS, min(stop * LEAF_ROWS, n))
            held = points[order[rows]]
            low[node], high[node] = held.min(axis=0), held.max(axis=0)
            first[node], last[node] = start, stop
            if stop - start > 1:
                middle = (start + stop) // 2
                values = held[:, int(np.argmax(high[node] - low[node]))]
                # Stable, so that equal values fall the same way everywhere.
                order[rows] = order[rows][np.argsort(values, kind="stable")]
                pending.append((middle, stop, node))
                pending.append((start, middle, -1))
        return cls(order, low, high, first, last, right)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int(self.last[0])

    @property
    def leaf_nodes(self) -> IndexArray:
        """The node that each leaf is."""
        return np.flatnonzero(self.right < 0).astype(np.intp)

    def node_sums(self, values: NDArray[np.float64]) -> FloatArray:
        """Sums of values (n, t), in leaf order, over each node: (nodes, t)."""
        starts = np.arange(0, len(values), LEAF_ROWS)
        leaf_sums = np.add.reduceat(values, starts, axis=0)
        sums = np.empty((len(self.right), values.shape[1]))
        for node in range(len(self.right) - 1, -1, -1):
            if self.right[node] < 0:
                sums[node] = leaf_sums[self.first[node]]
            else:
                sums[node] = sums[node + 1] + sums[self.right[node]]
        return sums


@njit(nogil=True, cache=True)
def sum_leaves(  # type: ignore[no-untyped-def]
    first_leaf, last_leaf, leaf_nodes, low, high, first, last, right,
    values, norms, program, weights, sums, magnitudes, allowed, out, bounds,
):  # fmt: skip
    """Sum the contributions of all points to the queries in some leaves.

    Parameters
    ----------
    first_leaf, last_leaf : int
        Leaves whose points are the queries.
    leaf_nodes, low, high, first, last, right
        The tree.
    values, norms, program
        Prepared features in leaf order, and what `tile_matmat` is told of the kernel.
    weights : (n, t)
        Weights in leaf order, amplitude included, in the tiles' precision.
    sums, magnitudes : (nodes, t) float64
        Of the weights, and of their absolute values.
    allowed : (t,) float64
        Half the kernel's variation, at unit amplitude, up to which a part is taken as one number.
    out : (t, padded rows of these leaves) float64
        Where the sums go.
    bounds : (t,) float64
        Largest bound on an entry's error met here.

    Returns
    -------
    int
        Kernel entries evaluated.
    """
    profile, expanded, tile_rows, _ = program
    d, targets = low.shape[1], weights.shape[1]
    n = weights.shape[0]
    base = first_leaf * LEAF_ROWS
    stack = np.empty(STACK, np.intp)
    constant, error = np.empty(targets), np.empty(targets)
    part = np.empty((targets, LEAF_ROWS))
    evaluated = 0
    for leaf in range(first_leaf, last_leaf):
        here = leaf_nodes[leaf]
        start = leaf * LEAF_ROWS
        padded = min(LEAF_ROWS, values.shape[1] - start)
        constant[:], error[:] = 0.0, 0.0
        out[:, start - base : start - base + padded] = 0.0
        near_first, near_last = -1, -1
        depth = 1
        stack[0] = 0
        while depth > 0 or near_first >= 0:
            node = -1
            if depth > 0:
                depth -= 1
                node = stack[depth]
            close = False
            if node >= 0:
                nearest, farthest = 0.0, 0.0
                for f in range(d):
                    gap = max(low[node, f] - high[here, f], low[here, f] - high[node, f], 0.0)
                    span = max(high[node, f] - low[here, f], high[here, f] - low[node, f])
                    nearest += gap * gap
                    farthest += span * span
                largest, smallest = profile_value(nearest, profile), profile_value(farthest, profile)
                half = 0.5 * (largest - smallest)
                empty, negligible = True, True
                for t in range(targets):
                    if magnitudes[node, t] > 0.0:
                        empty = False
                        if not half <= allowed[t]:
                            negligible = False
                if empty:
                    continue
                if negligible:
                    middle = 0.5 * (largest + smallest)
                    for t in range(targets):
                        constant[t] += middle * sums[node, t]
                        error[t] += half * magnitudes[node, t]
                    continue
                if right[node] >= 0:
                    stack[depth] = right[node]
                    stack[depth + 1] = node + 1
                    depth += 2
                    continue
                close = True
            # Neighbouring leaves go to the tiles together.
            if close and near_first >= 0 and first[node] == near_last and near_last - near_first < 64:
                near_last = last[node]
                continue
            if near_first >= 0:
                left, end = near_first * LEAF_ROWS, min(near_last * LEAF_ROWS, n)
                stop = min(near_last * LEAF_ROWS, values.shape[1])
                tile_matmat(
                    values[:, start : start + padded], norms[start : start + padded], values[:, left:stop],
                    norms[left:stop], end - left, weights[left:end], part[:, :padded], profile, expanded, tile_rows,
                )  # fmt: skip
                out[:, start - base : start - base + padded] += part[:, :padded]
                evaluated += (end - left) * min(LEAF_ROWS, n - start)
                near_first = -1
            if close:
                near_first, near_last = first[node], last[node]
        for t in range(targets):
            out[t, start - base : start - base + padded] += constant[t]
            bounds[t] = max(bounds[t], error[t])
    return evaluated
