"""Paths of sparse conjugate directions pursuit: a model of every cardinality, and what each comes to on a fold.

The path is the product. A direction once taken is kept, w^(k) = sum_{j <= k} eta_j p^(j), so weights of any cardinality
come from one triangular solve. The held-out sum of squares goes along with each step, O(k^2), from the fold's Gram.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.models.classification.fixed_size.steps import DEPENDENT, Draws, Held, State, Terms, advance
from dkgp.models.classification.fixed_size.system import FoldSystem
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.block_descent.draws import round_generator

FIRST_ROOM = 64


@dataclass(frozen=True)
class PathModel:
    """A model along a path: regressors in the order of choice (k,), weights (k, t), intercept (t,)."""

    order: IndexArray
    weights: FloatArray
    intercept: FloatArray


class Path:
    """A path on all samples, or on all but a `fold`, which goes as far as it is asked to.

    `draws` are the candidates of each step (SCDPP); all by default. `count` steps were taken, and `ended` is true where
    nothing admissible was left.
    """

    def __init__(
        self, system: FoldSystem, noise_variance: float, fold: int | None = None, draws: Draws | None = None
    ) -> None:
        self._system = system
        self.count, self.ended = 0, False
        D, t = system.size, system.outputs
        training = np.arange(system.folds) != (-1 if fold is None else fold)
        sums, weight = system.sums[training].sum(axis=0), float(system.weight[training].sum())
        targets, projected = system.targets[training].sum(axis=0), system.projected[training].sum(axis=0)
        self._start = targets / weight if system.centred else np.zeros(t)
        gradient = projected - np.outer(sums, self._start) if system.centred else projected
        with np.errstate(over="ignore"):  # an infinite diagonal leaves a prototype without weight
            diagonal = system.total.diagonal() + float(noise_variance) * system.ridge.diagonal()
        number = 0 if fold is None else fold
        triangle = np.empty(0) if fold is None else system.held[fold]
        if fold is not None:
            places = np.arange(D)
            diagonal = diagonal - triangle[places * (places + 1) // 2 + places]
        self._terms = Terms(
            system.total, system.ridge, float(noise_variance), system.centred, sums, weight, DEPENDENT * diagonal
        )
        self._held = Held(
            triangle, system.projected[number], system.sums[number], float(system.weight[number]),
            system.targets[number],
        )  # fmt: skip
        self._draws = Draws(np.empty((1, 0), dtype=np.int32), 0) if draws is None else draws
        room = min(FIRST_ROOM, D)
        self._state = State(
            C=np.ascontiguousarray(gradient.T),
            left=diagonal - sums**2 / weight if system.centred else diagonal.copy(),
            free=np.ones(D, dtype=np.uint8),
            F=np.empty((room, D)),
            L=np.zeros((room, room)),
            G=np.zeros((0, 0) if fold is None else (room, room)),
            order=np.zeros(room, dtype=np.intp),
            etas=np.zeros((room, t)),
            W=np.zeros((room, t)),
            intercept=self._start.copy(),
            errors=np.zeros(room + 1),
        )
        if fold is not None:
            # |y - b0|^2 of the fold.
            square = system.squares[fold] - 2.0 * self._start * system.targets[fold]
            self._state.errors[0] = float(np.sum(square + self._start**2 * system.weight[fold]))

    @property
    def order(self) -> IndexArray:
        """Regressors in the order of choice."""
        return self._state.order[: self.count]

    @property
    def errors(self) -> FloatArray:
        """Held-out sums of squares of cardinalities 0 .. count."""
        return self._state.errors[: self.count + 1]

    def advance(self, upto: int) -> None:
        """Go on to so many steps, if there are as many."""
        upto = min(upto, self._system.size)
        if self.ended or upto <= self.count:
            return
        self._make_room(upto)
        self.count = advance(self.count, upto, self._terms, self._held, self._draws, self._state)
        self.ended = self.count < upto

    def model(self, cardinality: int) -> PathModel:
        """The model of so many regressors, or of as many as there are; an intercept among them is not a prototype."""
        k, state = min(cardinality, self.count), self._state
        order, weights = state.order[:k].copy(), np.zeros((k, self._system.outputs))
        if k:
            weights = scipy.linalg.solve_triangular(
                state.L[:k, :k], state.etas[:k], lower=True, trans="T", unit_diagonal=True, check_finite=False
            )
        intercept = self._start
        if self._system.centred:
            intercept = self._start - self._terms.sums[order] @ weights / self._terms.weight
        if self._system.selected:
            is_prototype = order < self._system.size - 1
            intercept = weights[~is_prototype].sum(axis=0)
            order, weights = order[is_prototype], weights[is_prototype]
        return PathModel(order, weights, intercept)

    def _make_room(self, upto: int) -> None:
        state, k = self._state, self.count
        room = len(state.order)
        if upto <= room:
            return
        grown, outputs = min(max(2 * room, upto), self._system.size), self._system.outputs
        self._state = state._replace(
            F=_grown(state.F, (grown, self._system.size), k),
            L=_grown(state.L, (grown, grown), k),
            G=_grown(state.G, (grown, grown), k) if len(self._held.triangle) else state.G,
            order=_grown(state.order, (grown,), k),
            etas=_grown(state.etas, (grown, outputs), k),
            W=_grown(state.W, (grown, outputs), k),
            errors=_grown(state.errors, (grown + 1,), k + 1),
        )


def _grown(values: NDArray[Any], shape: tuple[int, ...], kept: int) -> NDArray[Any]:
    new = np.zeros(shape, dtype=values.dtype)
    new[(slice(kept), *(slice(values.shape[axis]) for axis in range(1, values.ndim)))] = values[:kept]
    return new


def path_bytes(size: int, cardinality: int, outputs: int) -> int:
    """Bytes of a path at its end."""
    return 8 * (cardinality * (size + 2 * cardinality + 3 * outputs) + size * (outputs + 3))


def candidate_draws(size: int, steps: int, candidates: int | None, seed: int) -> Draws | None:
    """Candidates of each step, the same for all folds and hyperparameters (remark 8); None for all."""
    if candidates is None or candidates >= size:
        return None
    # As in `dkgp.solvers.pursuit.settings.drawn`: the least of random keys of those that are left.
    keys = (round_generator(seed, step).random(size) for step in range(steps))
    return Draws(np.stack([np.argsort(key) for key in keys]).astype(np.int32), candidates)
