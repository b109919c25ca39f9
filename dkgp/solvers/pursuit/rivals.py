"""Rivals of conjugate directions on A w = b: matching pursuit and forward stagewise.

Orthogonal matching pursuit is `pursue` itself, and orthogonal least squares that with `score="refit"`; least angles and
the LASSO are in `dkgp.solvers.pursuit.homotopy`. Only columns of A are taken, each once: A may be X'X of rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.pursuit.systems import PursuitSystem, as_system, right_hand_sides


class Columns:
    """Columns of A, fetched when they are first asked for."""

    def __init__(self, system: PursuitSystem) -> None:
        self._system = system
        self._held: dict[int, FloatArray] = {}

    def __getitem__(self, index: int) -> FloatArray:
        if index not in self._held:
            (self._held[index],) = self._system.columns(np.asarray([index], dtype=np.intp)).T.copy()
        return self._held[index]


@dataclass(frozen=True)
class RivalPath:
    """Solutions of growing cardinality, the last of each that a rival passed through.

    - `order` (k,): regressors in the order in which they were first used.
    - `weights`: of the first j of the order, when one more was about to be used, or at the end; j = 1, ..., k.
    - `iterations`: steps taken by then.
    """

    order: IndexArray
    weights: list[FloatArray]
    iterations: list[int]
    seconds: list[float]

    def solution(self, k: int, size: int) -> FloatArray:
        """w of cardinality k, with its zeros: (D,)."""
        full = np.zeros(size)
        full[self.order[:k]] = self.weights[k - 1] if k else 0.0
        return full


def matching_pursuit(
    system: PursuitSystem | ArrayLike,
    rhs: ArrayLike,
    *,
    shrinkage: float = 1.0,
    most: int | None = None,
    iterations: int = 100_000,
    tolerance: float = 0.0,
) -> RivalPath:
    """Make the largest gradient zero by its own weight, over and over (Algorithm 1); or go a share of the way.

    With g = A w - b and j = argmax |g_j| the step is w_j -= e g_j / A_jj, g -= e a_j g_j / A_jj: the paper prints the
    second with a plus, which would lead away.

    - `system`, `rhs`: as of `pursue`, with one right-hand side.
    - `shrinkage`: e, 0 < e <= 1; less than 1 is forward stagewise.
    - `most`: regressors at most: it ends when one more would be used.
    - `iterations`: steps at most.
    - `tolerance`: it ends where max |g| is this.

    Raises `InputError`: a shrinkage or `most` out of range, or several right-hand sides.
    """
    if not 0.0 < shrinkage <= 1.0:
        raise InputError(f"`shrinkage` must be above 0, and 1 at most; got {shrinkage}")
    system = as_system(system)
    b, began = one_right_hand_side(system, rhs), time.perf_counter()
    most = most_of(system, most)
    columns, gradient, weights = Columns(system), -b, np.zeros(system.size)
    order: list[int] = []
    out = np.zeros(system.size, dtype=bool)
    solutions: list[FloatArray] = []
    steps: list[int] = []
    seconds: list[float] = []
    done = 0
    for done in range(iterations + 1):
        sizes = np.where(out, -1.0, np.abs(gradient))
        best = int(np.argmax(sizes))
        if done == iterations or sizes[best] <= tolerance:
            break
        if best not in order:
            if not columns[best][best] > 0.0:
                out[best] = True  # a column of zeros
                continue
            if order:
                solutions.append(weights[order])
                steps.append(done)
                seconds.append(time.perf_counter() - began)
            if len(order) == most:
                break
            order.append(best)
        step = -shrinkage * gradient[best] / columns[best][best]
        weights[best] += step
        gradient += step * columns[best]
    if len(solutions) < len(order):
        solutions.append(weights[order])
        steps.append(done)
        seconds.append(time.perf_counter() - began)
    return RivalPath(np.asarray(order, dtype=np.intp), solutions, steps, seconds)


def one_right_hand_side(system: PursuitSystem, rhs: ArrayLike) -> FloatArray:
    """b (D,) of one right-hand side; `InputError` where there are several."""
    values = right_hand_sides(rhs)
    if values.shape[1] != 1:
        raise InputError(f"one right-hand side at a time has such a path; got {values.shape[1]}")
    return np.asarray(system.project(values)[:, 0])


def most_of(system: PursuitSystem, most: int | None) -> int:
    """Regressors at most, all by default; `InputError` of a negative number."""
    if most is not None and most < 0:
        raise InputError(f"`most` must not be negative; got {most}")
    return system.size if most is None else most
