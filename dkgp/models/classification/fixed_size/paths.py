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

from dkgp.models.classification.fixed_size.steps import DEPENDENT, advance
from dkgp.models.classification.fixed_size.system import FoldSystem
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.block_descent.draws import round_generator

__all__ = ["Draws", "Path", "PathModel", "candidate_draws", "path_bytes"]

FIRST_ROOM = 64


@dataclass(frozen=True)
class Draws:
    """Random candidates of SCDPP.

    Attributes
    ----------
    orders : (steps, D) int32
        Of each step: of those that are left the first in this order are its candidates.
    candidates : int
        So many of them, rho.
    """

    orders: NDArray[np.int32]
    candidates: int


@dataclass(frozen=True)
class PathModel:
    """A model along a path.

    Attributes
    ----------
    order : (k,) int
        Prototypes in the order of choice.
    weights : (k, t) float64
    intercept : (t,) float64
    """

    order: IndexArray
    weights: FloatArray
    intercept: FloatArray


class Path:
    """A path on all samples, or on all but a fold, which goes as far as it is asked to.

    Parameters
    ----------
    system : FoldSystem
    noise_variance : float
        s2 = 1 / gamma_K.
    fold : int, optional
        Held out; none by default.
    draws : Draws, optional
        Candidates of each step (SCDPP); all by default.

    Attributes
    ----------
    count : int
        Steps taken.
    ended : bool
        True where nothing admissible was left.
    """

    def __init__(
        self, system: FoldSystem, noise_variance: float, fold: int | None = None, draws: Draws | None = None
    ) -> None:
        self._system, self._noise = system, float(noise_variance)
        self.count, self.ended = 0, False
        D, t, out = system.size, system.outputs, fold is not None
        each = np.arange(system.folds) != (-1 if fold is None else fold)
        self._held = system.held[fold] if fold is not None else np.empty(0)
        self._sums, self._weight = system.sums[each].sum(axis=0), float(system.weight[each].sum())
        targets, projected = system.targets[each].sum(axis=0), system.projected[each].sum(axis=0)
        self._start = targets / self._weight if system.centred else np.zeros(t)
        self._intercept = self._start.copy()
        gradient = projected - np.outer(self._sums, self._start) if system.centred else projected
        self._C = np.ascontiguousarray(gradient.T)
        with np.errstate(over="ignore"):  # an infinite diagonal leaves a prototype without weight
            diagonal = system.total.diagonal() + self._noise * system.ridge.diagonal()
        if out:
            places = np.arange(D)
            diagonal = diagonal - self._held[places * (places + 1) // 2 + places]
        self._floor = DEPENDENT * diagonal
        self._left = diagonal - self._sums**2 / self._weight if system.centred else diagonal.copy()
        self._free = np.ones(D, dtype=np.uint8)
        self._draws = Draws(np.empty((1, 0), dtype=np.int32), 0) if draws is None else draws
        room = min(FIRST_ROOM, D)
        self._F, self._L = np.empty((room, D)), np.zeros((room, room))
        self._G = np.zeros((room, room) if out else (0, 0))
        self._order, self._etas = np.zeros(room, dtype=np.intp), np.zeros((room, t))
        self._W, self._errors = np.zeros((room, t)), np.zeros(room + 1)
        own = 0 if fold is None else fold
        self._of_fold = (
            system.projected[own], system.sums[own], float(system.weight[own]), system.targets[own]
        )  # fmt: skip
        if fold is not None:
            # |y - b0|^2 of the fold.
            square = system.squares[fold] - 2.0 * self._start * system.targets[fold]
            self._errors[0] = float(np.sum(square + self._start**2 * system.weight[fold]))

    @property
    def order(self) -> IndexArray:
        """Regressors in the order of choice."""
        return self._order[: self.count]

    @property
    def errors(self) -> FloatArray:
        """Held-out sums of squares of cardinalities 0 .. count."""
        return self._errors[: self.count + 1]

    def advance(self, upto: int) -> None:
        """Go on to so many steps, if there are as many."""
        upto = min(upto, self._system.size)
        if self.ended or upto <= self.count:
            return
        self._make_room(upto)
        system = self._system
        self.count = advance(
            self.count, upto, system.total, self._held, system.ridge, self._noise, system.centred, self._sums,
            self._weight, self._floor, self._draws.orders, self._draws.candidates, self._C, self._left, self._free,
            self._F, self._L, self._G,
            self._order, self._etas, self._W, self._intercept, *self._of_fold, self._errors,
        )  # fmt: skip
        self.ended = self.count < upto

    def model(self, cardinality: int) -> PathModel:
        """The model of so many regressors, or of as many as there are; an intercept among them is not a prototype."""
        k = min(cardinality, self.count)
        order, weights = self._order[:k].copy(), np.zeros((k, self._system.outputs))
        if k:
            weights = scipy.linalg.solve_triangular(
                self._L[:k, :k], self._etas[:k], lower=True, trans="T", unit_diagonal=True, check_finite=False
            )
        intercept = self._start - self._sums[order] @ weights / self._weight if self._system.centred else self._start
        if self._system.selected:
            is_prototype = order < self._system.size - 1
            intercept = weights[~is_prototype].sum(axis=0)
            order, weights = order[is_prototype], weights[is_prototype]
        return PathModel(order, weights, intercept)

    def _make_room(self, upto: int) -> None:
        room = len(self._order)
        if upto <= room:
            return
        grown = min(max(2 * room, upto), self._system.size)
        k = self.count
        self._F = _grown(self._F, (grown, self._system.size), k)
        self._L = _grown(self._L, (grown, grown), k)
        if len(self._held):
            self._G = _grown(self._G, (grown, grown), k)
        self._order = _grown(self._order, (grown,), k)
        self._etas, self._W = (_grown(values, (grown, values.shape[1]), k) for values in (self._etas, self._W))
        self._errors = _grown(self._errors, (grown + 1,), k + 1)


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
    return Draws(np.stack([np.argsort(some) for some in keys]).astype(np.int32), candidates)
