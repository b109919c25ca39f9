"""Eq. 29 of one kernel, for all samples and for all but each fold: sums over samples, after which none is needed.

By eqs. 36 and 37 a fold's training part is all samples' sums without its own; the ridge stays whole. The sums are
those of `dkgp.operators.cross.folds`: one pass over the data serves several kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkgp.errors import NumericalError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import centre_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.folds import fold_sums, triangle_numbers, unpacked

# Of the intercept where it is chosen like a prototype (eq. 34).
INTERCEPT_RIDGE = 1e-8


@dataclass(frozen=True)
class Targets:
    """Targets of a fit: signs (n, t), the fold of each sample (n,) from 0, and its weight, D.

    `count` is the number of folds; weights are ones by default.
    """

    signs: FloatArray
    folds: IndexArray
    count: int
    weights: FloatArray | None = None

    @property
    def outputs(self) -> int:
        """Number of outputs, t."""
        return int(self.signs.shape[1])

    def by_fold(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """1'D1 (v,), Y'D1 and the diagonal of Y'DY (v, t) of each fold."""
        weights = np.ones(len(self.signs)) if self.weights is None else self.weights
        members = [self.folds == fold for fold in range(self.count)]
        totals = np.array([weights[member].sum() for member in members])
        targets = np.array([weights[member] @ self.signs[member] for member in members])
        squares = np.array([weights[member] @ self.signs[member] ** 2 for member in members])
        return totals, targets, squares


@dataclass(frozen=True)
class FoldSystem:
    """Sums that eq. 29 is made of, D = M regressors, and the intercept besides where it is chosen like them.

    Attributes
    ----------
    kernel : Kernel
    total, ridge : (D, D) float64
        K_mn D K_nm of all samples, and K_mm.
    held : (v, D (D + 1) / 2) float64
        Each fold's K_v' D K_v as a triangle.
    projected : (v, D, t) float64
        K_v' D Y.
    sums : (v, D) float64
        K_v' D 1.
    weight, targets, squares : (v,), (v, t), (v, t) float64
        1'D1, Y'D1, and Y'DY's diagonal.
    centred : bool
        Whether the intercept is taken out beforehand.
    selected : bool
        Whether it is the last regressor.
    """

    kernel: Kernel
    total: FloatArray
    ridge: FloatArray
    held: FloatArray
    projected: FloatArray
    sums: FloatArray
    weight: FloatArray
    targets: FloatArray
    squares: FloatArray
    centred: bool
    selected: bool

    @property
    def size(self) -> int:
        """Regressors, D."""
        return len(self.total)

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.held)

    @property
    def outputs(self) -> int:
        """Number of outputs, t."""
        return int(self.targets.shape[1])


def fold_systems(
    operator: BlockedKernelOperator,
    prototypes: FloatArray,
    kernels: Sequence[Kernel],
    targets: Targets,
    intercept: str,
    phase: str = "search",
) -> list[FoldSystem]:
    """Sum up eq. 29 for several kernels in one pass over the samples; the operator's own kernel plays no part.

    `intercept` is "first", "selected" or "none", `phase` the name of the pass in progress. `NumericalError`: sums
    that are not finite.
    """
    ones = np.ones((len(targets.signs), 1))
    vectors = np.concatenate([targets.signs, ones], axis=1), targets.weights
    grams, projected = fold_sums(operator, prototypes, kernels, (targets.folds, targets.count), vectors, phase)
    of_targets = targets.by_fold()
    systems = []
    for number, kernel in enumerate(kernels):
        if not (np.isfinite(grams[number]).all() and np.isfinite(projected[number]).all()):
            raise NumericalError(
                f"the sums over samples of {kernel!r} overflow; bring inputs that are far out closer, or scale it"
            )
        evaluator = TileEvaluator(kernel, "double", centre=centre_of(operator.context.source))
        features = evaluator.prepare(prototypes)
        ridge = np.array(evaluator.tile(features, features), dtype=np.float64)
        systems.append(
            _system(kernel, grams[number], projected[number], 0.5 * (ridge + ridge.T), of_targets, intercept)
        )
    return systems


def _system(
    kernel: Kernel,
    held: FloatArray,
    projected: FloatArray,
    ridge: FloatArray,
    of_targets: tuple[FloatArray, FloatArray, FloatArray],
    intercept: str,
) -> FoldSystem:
    weight, targets, squares = of_targets
    right, sums, m = np.ascontiguousarray(projected[:, :, :-1]), np.ascontiguousarray(projected[:, :, -1]), len(ridge)
    selected = intercept == "selected"
    if selected:
        held = np.concatenate([held, sums, weight[:, None]], axis=1)
        right = np.concatenate([right, targets[:, None, :]], axis=1)
        sums = np.concatenate([sums, weight[:, None]], axis=1)
        ridge = np.pad(ridge, (0, 1))
        m += 1
        assert held.shape[1] == triangle_numbers(m)
    total = unpacked(_total(held), m)
    if selected:
        total[-1, -1] += INTERCEPT_RIDGE
    return FoldSystem(kernel, total, ridge, held, right, sums, weight, targets, squares, intercept == "first", selected)


def _total(parts: FloatArray) -> FloatArray:
    total: FloatArray = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
