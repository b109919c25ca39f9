"""Derivatives of sums over weighted points at other inputs, by cells: with a proven bound on each (Theorem 19b).

Local expansions are differentiated; near sources are evaluated entry by entry from the inputs themselves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkgp.kernels.small_products import LANES
from dkgp.kernels.terms import Terms
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.kernels.vector_math import fma
from dkgp.operators.base import FloatArray
from dkgp.operators.cells.cross import PiecePlan, Sources
from dkgp.operators.cells.plan import Translations, Walk
from dkgp.operators.cells.products import UNDERFLOW, Moments
from dkgp.operators.cells.sweeps import split_expansions, translate

UNIT = 2.0**-53


class CrossSlopes:
    """Derivatives of K(T, X) V in T, for a kernel of one term, points X and weights V that stay.

    Derivatives in all features are of the kernel's evaluator where sources are near, whose roundings a certificate
    counts; the bounds here are of the rest.
    """

    def __init__(
        self, terms: Terms, evaluator: SlopeEvaluator, inputs: FloatArray, weights: FloatArray, tolerance: float
    ) -> None:
        (self._term,) = terms.terms
        self._evaluator, self._inputs, self._weights = evaluator, inputs, weights
        self._columns = evaluator.coordinates(inputs)
        share = tolerance / max(self._term.amplitude, 1e-300)
        self._sources = Sources(self._term, inputs, share, slopes=True)
        self._moments = self._sources.moments(weights)
        self._masses = np.abs(weights).sum(axis=0) * (1.0 + 1e-9)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = [self._inputs, self._weights, self._columns, *vars(self._moments).values()]
        return self._sources.nbytes + int(sum(array.nbytes for array in arrays))

    def at(self, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return derivatives at targets (r, n_features) and bounds on the errors of their far parts, (r, t, d)."""
        term, t = self._term, self._weights.shape[1]
        features, scale = list(term.features), term.amplitude * np.array(term.scale)
        result, bounds = np.zeros((2, len(targets), t, targets.shape[1]))
        # Products of tiny numbers lose up to 2^-1075 each.
        lost = UNDERFLOW * np.maximum(1.0, np.abs(scale))
        bounds[:, :, features] = np.where(self._masses[:, None] > 0.0, lost, 0.0)
        rows = np.ascontiguousarray(targets[:, features])
        outside, _, steepest = self._sources.beyond(rows)
        bounds[np.ix_(outside, np.arange(t), np.array(features))] += (
            steepest[:, None, None] * self._masses[:, None] * np.abs(scale) * (1.0 + 1e-9)
        )
        inside = np.setdiff1d(np.arange(len(rows)), outside, assume_unique=True)
        if not len(inside):
            return result, bounds
        plan = _SlopePlan(self._sources, rows[inside])
        far, off = plan.slopes(self._moments)
        tree, leaves = plan.targets, plan.targets.leaves
        for leaf in range(len(leaves)):
            start, stop = int(leaves.start[leaf]), int(leaves.stop[leaf])
            chosen, places = tree.rows_of(start, stop)
            at = inside[chosen]
            ranges = [
                plan.sources.rows_of(int(first), int(last))[0]
                for first, last in zip(
                    plan.near_start[plan.near[leaf] : plan.near[leaf + 1]],
                    plan.near_stop[plan.near[leaf] : plan.near[leaf + 1]],
                    strict=True,
                )
            ]
            if ranges:
                near = np.concatenate(ranges)
                result[at] = self._evaluator.sums(
                    targets[at], np.ascontiguousarray(self._columns[:, near]), self._weights[near]
                )
            place = np.ix_(at, np.arange(t), np.array(features))
            parts = far[start:stop][places] * scale
            result[place] += parts
            bounds[place] += off[start:stop][places] * np.abs(scale) * (1.0 + 1e-9)
            bounds[place] += 2.0 * UNIT * (2.0 * np.abs(parts) + np.abs(result[place]))
        return result, bounds


class _SlopePlan(PiecePlan):
    """The plan of the far parts of derivatives at some targets, along the axes of a term."""

    def _translations(self, walk: Walk, level: int, pairs) -> Translations:  # type: ignore[no-untyped-def]
        canons, transforms = (sorted({kind[part] for kind in pairs.kinds}) for part in (0, 1))
        self._kinds = getattr(self, "_kinds", {})
        self._kinds[level] = {
            canons.index(canon) * len(transforms) + transforms.index(transform): (canon, transform[0])
            for canon, transform in pairs.kinds
        }
        return super()._translations(walk, level, pairs)

    def slopes(self, moments: Moments) -> tuple[FloatArray, FloatArray]:
        """Return derivatives of unit amplitude, in units of the profile, and their bounds.

        Both (points, t, d), in the order of the targets' tree.
        """
        tree, t, d, p = self.targets, moments.weights.shape[1], self.d, self.order
        out, bounds = np.zeros((2, tree.n_points, t, d))
        table, L, above = tree.leaves, np.zeros(0), np.zeros((0, t, d))
        for number, level in enumerate(tree.levels):
            cells = len(level)
            L_here, bound = np.zeros(cells * t * p**d + LANES), np.zeros((cells, t, d))
            if number in self.translations:
                part = self.translations[number]
                self._translate(part, number, moments, L_here)
                for axis in range(d):
                    bound[:, :, axis] = self._translate(self._along(part, number, axis), number, moments, np.zeros(0))
            if number:
                last, unused = tree.levels[number - 1], np.zeros(max(cells, len(tree.levels[number - 1])) * t)
                split_expansions(
                    0, len(last), last.child, last.children, level.coord, 0, 0, cells, self.down, d, p, t, L, unused,
                    L_here, np.zeros(cells * t),
                )  # fmt: skip
                bound += above[np.repeat(np.arange(len(last)), last.children)]
            leaves = np.flatnonzero(table.level == number)
            _leaf_slopes(leaves, tree.y, table.start, table.stop, table.cell, table.scale, table.coord, p, L_here, out)
            for leaf in leaves:
                bounds[table.start[leaf] : table.stop[leaf]] = bound[table.cell[leaf]]
            L, above = L_here, bound
        out /= self.side
        return out, bounds * (1.0 + 1e-9) + 4.0 * UNIT * np.abs(out)

    def _translate(self, part: Translations, number: int, moments: Moments, L: FloatArray) -> FloatArray:
        """Add pairs of a level to expansions `L`; return the bounds on their errors, (cells, t)."""
        cells, t = len(self.targets.levels[number]), moments.weights.shape[1]
        bound = np.zeros(cells * t)
        translate(
            0, cells, part.pairs, part.sources, part.keys, part.transforms, part.counts, part.operators,
            part.operators_at, part.places, part.source_places, part.signs, part.weights, part.remainder,
            moments.values, moments.groups, moments.mass, int(self.sources.at[number]), t, self.order**self.d,
            self.moments**self.d, L, bound,
        )  # fmt: skip
        return bound.reshape(cells, t)

    def _along(self, part: Translations, number: int, axis: int) -> Translations:
        """Return the pairs as ones that translate nothing, with the weights of the bound along an axis."""
        profile, parameter = self.term.profile, self.term.parameter
        most = int(np.diff(part.pairs).max(initial=0))
        count = len(part.counts) * part.transforms
        weights, remainder, none = np.zeros((count, self.group_count)), np.zeros(count), np.zeros(count, np.int64)
        for key, (canon, order) in self._kinds[number].items():
            expansion = self.shared.expansion(number, canon)
            if expansion.order == 0:
                remainder[key] = expansion.slope_left_out(profile, parameter, self.roundings)
            else:
                weights[key], remainder[key] = expansion.slope_weights(
                    profile, parameter, self.roundings, number, most, order.index(axis)
                )
        return replace(part, transforms=1, counts=none, operators_at=none, weights=weights, remainder=remainder)


@cached_njit(nogil=True)
def _leaf_slopes(leaves, y, start, stop, cell, scale, coord, p, L, out):  # type: ignore[no-untyped-def]
    """Put derivatives of the expansions of some leaves, times the root's side, to `out` (points, t, d)."""
    d, t = y.shape[0], out.shape[1]
    T, D = np.ones((d, p)), np.zeros((d, p))
    for k in leaves:
        for i in range(start[k], stop[k]):
            for f in range(d):
                x = y[f, i] * scale[k] - (2.0 * coord[k, f] + 1.0)
                # U_(k-1) and U_(k-2)
                one, two = 1.0, 0.0
                for a in range(1, p):
                    T[f, a] = x if a == 1 else fma(x + x, T[f, a - 1], -T[f, a - 2])
                    D[f, a] = a * one
                    one, two = fma(x + x, one, -two), one
            for j in range(t):
                base = (cell[k] * t + j) * p**d
                for axis in range(d):
                    total = 0.0
                    X = D[0] if axis == 0 else T[0]
                    for a in range(p):
                        if d == 1:
                            total += L[base + a] * X[a]
                            continue
                        Y, row = D[1] if axis == 1 else T[1], 0.0
                        for b in range(p):
                            if d == 2:
                                row += L[base + a * p + b] * Y[b]
                                continue
                            Z, line = D[2] if axis == 2 else T[2], 0.0
                            for c in range(p):
                                line += L[base + (a * p + b) * p + c] * Z[c]
                            row += line * Y[b]
                        total += row * X[a]
                    out[i, j, axis] = total * scale[k]
