"""A tree whose points carry weights, and the sums that queries take from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.kernels import TileEvaluator
from dkgp.kernels.tiles.profiles import falling_functions
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.tree.forest import Forest, radial_of
from dkgp.operators.tree.kd_tree import node_sums, sum_queries

__all__ = ["WeightedTree"]


@dataclass(frozen=True)
class WeightedTree:
    """Weights of some of a tree's points, and their sums over its nodes.

    Attributes
    ----------
    forest : Forest
    active : (m,) intp
        Points that have a weight, ascending, in the tree's order.
    starts : (leaves + 1,) intp
        Where each leaf's begin.
    weights : (m, t) float64
        The kernel's amplitude included.
    sums, magnitudes : (nodes, t) float64
        See `node_sums`.
    """

    forest: Forest
    active: IndexArray
    starts: IndexArray
    weights: FloatArray
    sums: FloatArray
    magnitudes: FloatArray

    @classmethod
    def of(cls, forest: Forest, weights: FloatArray, active: IndexArray | None = None) -> WeightedTree:
        """Add up weights (m, t) of the points `active` (all of them if None)."""
        tree = forest.tree
        # What came in a message may be read-only, and another type to compiled code.
        weights = np.require(weights, requirements=["C", "W"])
        chosen = np.arange(len(tree.order)) if active is None else np.require(active, requirements=["C", "W"])
        starts = tree.leaf_starts(chosen)
        sums, magnitudes = np.empty((2, len(tree.right), weights.shape[1]))
        node_sums(starts, weights, tree.first, tree.right, sums, magnitudes)
        return cls(forest, chosen, starts, weights, sums, magnitudes)

    @property
    def nbytes(self) -> int:
        """Bytes held beside the forest."""
        arrays = (self.active, self.starts, self.weights, self.sums, self.magnitudes)
        return sum(array.nbytes for array in arrays)

    def at(
        self,
        evaluator: TileEvaluator,
        asking: FloatArray,
        places: IndexArray,
        low: FloatArray,
        high: FloatArray,
        errors: FloatArray,
        coordinate: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Sums at points that ask, query by query: (r, t), and bounds on their errors, (t,).

        Parameters
        ----------
        evaluator : TileEvaluator
            By differences (not `expanded`).
        asking : (..., d) float64
            Points as the kernel's profile sees them; rows places[0] to places[-1] of it ask.
        places : (q + 1,) intp
        low, high : (q, d) float64
        coordinate : float
            See `sum_queries`.
        errors : (t,) float64
            What pruning may cost each sum.
        """
        profile, parameter = radial_of(evaluator)
        tree, like = self.forest.tree, np.empty(0, evaluator.dtype)
        out, bounds = np.empty((self.weights.shape[1], places[-1] - places[0])), np.zeros(self.weights.shape[1])
        evaluated = sum_queries(
            asking, places, low, high, tree.points, tree.low, tree.high, tree.first, tree.last, tree.right, coordinate,
            self.active, self.starts, self.weights, self.sums, self.magnitudes, errors.copy(),
            falling_functions(profile), parameter, profile.rounding, evaluator.program, like, out, bounds,
        )  # fmt: skip
        evaluator.count(evaluated)
        return np.ascontiguousarray(out.T), bounds
