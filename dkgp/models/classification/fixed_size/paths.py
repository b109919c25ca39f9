"""Paths of sparse conjugate directions pursuit: a model of every cardinality, and its error on a fold.

The path is the product. A direction once taken is kept, w^(k) = sum_{j <= k} eta_j p^(j), so weights of any cardinality
come from one triangular solve. The held-out sum of squares goes along with each step, O(k^2), from the fold's Gram.

Steps are compiled, on eq. 29, one fold at a time (Karsmakers et al. 2011). The matrix of a fold's training part, A = T
- G_v - s s' / w + s2 K_mm, is never made: a step reads one row of each of its terms. T are the sums over all samples,
G_v the held-out fold's triangle (eq. 36), s s' / w takes the intercept out (w is the sum of weights, s that of kernel
columns), and the ridge s2 K_mm stays whole. A_SS = L diag(d) L' grows by a row a step: f_k = p_k' A is the row of the
k-th conjugate direction p_k, the last column of L^-T; eta = c_s / d_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.kernels.compiler import cached_njit
from dkgp.models.classification.fixed_size.system import FoldSystem
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.block_descent.selection import round_generator

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
    # As in `dkgp.solvers.pursuit.engine.drawn`: the least of random keys of those that are left.
    keys = (round_generator(seed, step).random(size) for step in range(steps))
    return Draws(np.stack([np.argsort(key) for key in keys]).astype(np.int32), candidates)


# Schur complements below this share of the diagonal are dependent on the chosen ones, as far as sums can tell.
DEPENDENT = 1e-10


class Terms(NamedTuple):
    """The terms of A, and the sums of their fold's training part.

    `total` (D, D) is T, `ridge` (D, D) K_mm, `sums` (D,) s and `weight` w; `centred` where the intercept is taken out;
    `floor` (D,) the least Schur complements that are not taken for dependence.
    """

    total: NDArray[np.float64]
    ridge: NDArray[np.float64]
    s2: float
    centred: bool
    sums: NDArray[np.float64]
    weight: float
    floor: NDArray[np.float64]


class Held(NamedTuple):
    """Sums over the held-out fold; its triangle is empty where none is held out.

    G_v = K_v' D K_v as a triangle (D (D + 1) / 2,), K_v' D Y (D, t), K_v' D 1 (D,), 1' D 1, and Y' D 1 (t,).
    """

    triangle: NDArray[np.float64]
    projected: NDArray[np.float64]
    sums: NDArray[np.float64]
    weight: float
    targets: NDArray[np.float64]


class Draws(NamedTuple):
    """Random candidates of SCDPP: of those that are left, the first `candidates` in the step's order; 0 takes all.

    `orders` (steps, D) int32.
    """

    orders: NDArray[np.int32]
    candidates: int


class State(NamedTuple):
    """A path as far as it has gone, with room for `cap` steps.

    `C` (t, D) is -g, `left` (D,) the Schur complements, `free` (D,) uint8 the free ones, `F` (cap, D), `L` and `G`
    (cap, cap), `order` (cap,) the chosen ones, `etas` and the weights `W` (cap, t), `intercept` (t,); `errors`
    (cap + 1,) the held-out sums of squares over outputs after each step, the first one known.
    """

    C: NDArray[np.float64]
    left: NDArray[np.float64]
    free: NDArray[np.uint8]
    F: NDArray[np.float64]
    L: NDArray[np.float64]
    G: NDArray[np.float64]
    order: NDArray[np.intp]
    etas: NDArray[np.float64]
    W: NDArray[np.float64]
    intercept: NDArray[np.float64]
    errors: NDArray[np.float64]


@cached_njit(nogil=True)
def _take_off_row(packed: NDArray[Any], s: int, out: NDArray[Any]) -> None:
    """Subtract row s of a triangle's symmetric matrix."""
    place = s * (s + 1) // 2
    for j in range(s + 1):
        out[j] -= packed[place + j]
    place += s
    for j in range(s + 1, len(out)):
        place += j
        out[j] -= packed[place]


@cached_njit(nogil=True)
def _entry(packed: NDArray[Any], i: int, j: int) -> float:
    a, b = max(i, j), min(i, j)
    return packed[a * (a + 1) // 2 + b]  # type: ignore[no-any-return]


@cached_njit(nogil=True)
def _best(C, free, left, floor, order, count):  # type: ignore[no-untyped-def]
    """The admissible one with the largest sum of squares over outputs (eq. 19); or -1.

    Among all, or those `count` that come first in an order of those that are left.
    """
    best, most, seen = -1, 0.0, 0
    for place in range(len(free)):
        i = order[place] if count else place
        if not free[i]:
            continue
        seen += 1
        if count and seen > count:
            break
        if left[i] > floor[i]:
            score = 0.0
            for c in range(C.shape[0]):
                score += C[c, i] * C[c, i]
            if score > most:
                best, most = i, score
    return best


@cached_njit(nogil=True)
def _eliminate(f, F, factors, k):  # type: ignore[no-untyped-def]
    """`f -= sum_j factors_j F_j` over k rows, four at a time."""
    j = 0
    while j + 4 <= k:
        a, b, c, d = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
        for i in range(len(f)):
            f[i] -= a * F[j, i] + b * F[j + 1, i] + c * F[j + 2, i] + d * F[j + 3, i]
        j += 4
    while j < k:
        a = factors[j]
        for i in range(len(f)):
            f[i] -= a * F[j, i]
        j += 1


@cached_njit(nogil=True)
def advance(k, upto, terms, held_out, draws, state):  # type: ignore[no-untyped-def]
    """Take steps k + 1 .. upto; return how many there are, fewer where nothing admissible is left."""
    total, ridge, s2, centred, sums, weight, floor = terms
    held, held_projected, held_sums, held_weight, held_targets = held_out
    orders, candidates = draws
    C, left, free, F, L, G, order, etas, W, intercept, errors = state
    D, t = total.shape[0], C.shape[0]
    p, z = np.empty(len(order)), np.empty(len(order))
    while k < upto:
        s = _best(C, free, left, floor, orders[min(k, len(orders) - 1)], candidates)
        if s < 0 and candidates:
            s = _best(C, free, left, floor, orders[0], 0)
        if s < 0:
            break
        f, factors = F[k], L[k]
        for j in range(D):
            f[j] = total[s, j] + s2 * ridge[s, j]
        if len(held):
            _take_off_row(held, s, f)
        if centred:
            share = sums[s] / weight
            for j in range(D):
                f[j] -= share * sums[j]
        for j in range(k):
            factors[j] = F[j, s] / F[j, order[j]]
        _eliminate(f, F, factors, k)
        free[s] = 0
        d = f[s]
        if not d > floor[s]:
            continue  # by the rounding of the sums: dependent after all
        order[k] = s
        for j in range(D):
            left[j] -= f[j] * f[j] / d
        for c in range(t):
            eta = C[c, s] / d
            etas[k, c] = eta
            for j in range(D):
                C[c, j] -= eta * f[j]
        # The direction: L' p = e_k.
        for j in range(k):
            p[j] = 0.0
        p[k] = 1.0
        for i in range(k, 0, -1):
            for j in range(i):
                p[j] -= L[i, j] * p[i]
        shift = 0.0
        if centred:
            for j in range(k + 1):
                shift -= sums[order[j]] * p[j]
            shift /= weight
        if len(held):
            for j in range(k + 1):
                G[k, j] = _entry(held, s, order[j])
            for i in range(k + 1):
                z[i] = 0.0
            for i in range(k + 1):
                inner, along = 0.0, p[i]
                for j in range(i):
                    inner += G[i, j] * p[j]
                    z[j] += G[i, j] * along
                z[i] += inner + G[i, i] * along
            curvature, mean = 0.0, 0.0
            for j in range(k + 1):
                curvature += p[j] * z[j]
                mean += p[j] * held_sums[order[j]]
            curvature += 2.0 * shift * mean + shift * shift * held_weight
            change = 0.0
            for c in range(t):
                slope, level = -intercept[c] * mean, held_targets[c] - intercept[c] * held_weight
                for j in range(k + 1):
                    slope += p[j] * held_projected[order[j], c]
                for j in range(k):
                    slope -= z[j] * W[j, c]
                    level -= held_sums[order[j]] * W[j, c]
                slope += shift * level
                change += etas[k, c] * (etas[k, c] * curvature - 2.0 * slope)
            errors[k + 1] = errors[k] + change
        for c in range(t):
            W[k, c] = 0.0
            for j in range(k + 1):
                W[j, c] += etas[k, c] * p[j]
            intercept[c] += etas[k, c] * shift
        k += 1
    return k
