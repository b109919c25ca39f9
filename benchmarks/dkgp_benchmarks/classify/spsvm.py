"""spSVM: a support vector machine with few kernel columns, the sparse rival of the pursuit paper's tables.

The squared hinge loss in the primal, of a basis S that grows by one sample at a time:

    R(beta, b) = s2 / 2 beta' K_SS beta + sum_i max(0, 1 - y_i o_i)^2 / 2,   o = K_nS beta + b.

Each new sample is the best of a random draw by the decrease of R when its coefficient alone takes a Newton step, and it
takes that step; all coefficients are optimised again, by Newton's method on the margin's violators, at k = 1, 2, 4, 8,
... and at the end, by dkgp's own minimiser of a loss over a basis.

References
----------
S. S. Keerthi, O. Chapelle, D. DeCoste, Building support vector machines with reduced classifier complexity, Journal of
Machine Learning Research 7 (2006).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.candidates import GrowingBasis
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.basis_risk.minimise import minimise_on_basis
from dkgp.solvers.losses import SquaredHingeLoss

CANDIDATES = 59
# Of decisions: how near to the best ones all coefficients together are brought.
TOLERANCE = 1e-7
# Rounds in a row whose candidates bring nothing.
MOST_EMPTY = 5
# Of a candidate's curvature: what is left of it beside the basis is nothing.
LEAST_CURVATURE = 1e-12
LINE_STEPS = 60


@dataclass(frozen=True)
class SparseSVMSettings:
    """Settings of a run.

    Parameters
    ----------
    size : int
        Basis samples at most.
    candidates : int, default 59
        Each choice is the best of so many drawn at random.
    intercept : bool, default True
        Whether there is a b, which nothing holds back.
    pool : (M,) int, optional
        Samples that are drawn from; all by default.
    seed : int
    """

    size: int
    candidates: int = CANDIDATES
    intercept: bool = True
    pool: IndexArray | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.candidates < 1:
            raise InputError(f"`size` and `candidates` must be at least 1; got {self.size:,} and {self.candidates:,}")


@dataclass(frozen=True)
class SparseSVM:
    """A trained machine, and those of fewer basis samples on its way.

    Attributes
    ----------
    kernel : Kernel
    indices : (k,) int
        Basis samples in the order of choice.
    prototypes : (k, d) float64
        Their standardised inputs.
    path : list of ((j,) float64, float)
        Coefficients and intercept with the first j basis samples, j = 1..k; optimised at powers of two and at the end.
    objective : list of float
        R with each of them.
    seconds : float
    """

    kernel: Kernel
    indices: IndexArray
    prototypes: FloatArray
    path: list[tuple[FloatArray, float]]
    objective: list[float]
    seconds: float

    @property
    def size(self) -> int:
        """Number of basis samples."""
        return len(self.indices)

    def decisions(self, inputs: FloatArray, size: int | None = None) -> FloatArray:
        """Decisions (r,) at standardised inputs (r, d), with the first `size` basis samples, all by default."""
        weights, intercept = self.path[(size or self.size) - 1]
        return np.asarray(self.kernel(inputs, self.prototypes[: len(weights)]) @ weights + intercept)

    def path_decisions(self, inputs: FloatArray) -> FloatArray:
        """Decisions with 1, 2, .. basis samples: (k, r)."""
        table = np.zeros((self.size, self.size))
        for row, (weights, _) in enumerate(self.path):
            table[row, : len(weights)] = weights
        intercepts = np.array([[intercept] for _, intercept in self.path])
        return np.asarray(table @ self.kernel(inputs, self.prototypes).T + intercepts)


def train_spsvm(operator: BlockedKernelOperator, signs: FloatArray, settings: SparseSVMSettings) -> SparseSVM:
    """Grow a basis, and optimise its coefficients from time to time.

    Parameters
    ----------
    operator : BlockedKernelOperator
        Its noise variance is s2; of the support vector machine's C it is 1 / (2 C).
    signs : (n,) float64
        -1 or +1.
    settings : SparseSVMSettings

    Raises
    ------
    InputError
        Labels of another number or kind.
    NumericalError
        No basis sample is of use.
    """
    if signs.shape != (operator.n,) or not np.isin(signs, (-1.0, 1.0)).all():
        raise InputError(f"expected a sign, -1 or +1, for each of {operator.n:,} samples; got shape {signs.shape}")
    return _Growth(operator, signs, settings).run()


class _Growth:
    """A basis under way: coefficients, and what they come to at all samples."""

    def __init__(self, operator: BlockedKernelOperator, signs: FloatArray, settings: SparseSVMSettings) -> None:
        self._operator, self._signs, self._settings = operator, signs, settings
        self._s2 = float(operator.noise_variance)
        self._pool = np.arange(operator.n, dtype=np.intp) if settings.pool is None else settings.pool
        self._basis: list[int] = []
        self._weights, self._intercept = np.empty(0), 0.0
        self._outputs = np.zeros(operator.n)
        self._bent = 0.0  # beta' K_SS beta
        self._rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([settings.seed])))

    def run(self) -> SparseSVM:
        """The whole run."""
        began = time.perf_counter()
        path: list[tuple[FloatArray, float]] = []
        objective: list[float] = []
        empty = 0
        if self._settings.intercept:
            self._move_intercept()
        while len(self._basis) < min(self._settings.size, len(self._pool)) and empty < MOST_EMPTY:
            if not self._grow():
                empty += 1
                continue
            empty, k = 0, len(self._basis)
            if k & (k - 1) == 0:
                self._optimise()
            path.append((self._weights.copy(), self._intercept))
            objective.append(self._risk(self._outputs, self._bent))
        if path and len(path) & (len(path) - 1):
            self._optimise()
            path[-1] = (self._weights.copy(), self._intercept)
            objective[-1] = self._risk(self._outputs, self._bent)
        if not path:
            raise NumericalError("no sample lowers the risk of spSVM; give it labels of both classes")
        indices = np.asarray(self._basis, dtype=np.intp)
        seconds = time.perf_counter() - began
        return SparseSVM(self._operator.kernel, indices, self._operator.inputs(indices), path, objective, seconds)

    def _risk(self, outputs: FloatArray, bent: float) -> float:
        slack = np.maximum(0.0, 1.0 - self._signs * outputs)
        return 0.5 * float(slack @ slack) + 0.5 * self._s2 * bent

    def _misfit(self) -> tuple[FloatArray, FloatArray]:
        """y - o at the violators, zero elsewhere; and the inverses of the samples' weights."""
        violating = self._signs * self._outputs < 1.0
        return np.where(violating, self._signs - self._outputs, 0.0), np.where(violating, 1.0, np.inf)

    def _grow(self) -> bool:
        """Add the best of a draw; False where no candidate lowers R."""
        operator = self._operator
        candidates = np.setdiff1d(self._pool, self._basis, assume_unique=True)
        drawn = np.sort(self._rng.choice(candidates, min(self._settings.candidates, len(candidates)), replace=False))
        inputs = operator.inputs(drawn)
        misfit, variances = self._misfit()
        sums = GrowingBasis(operator, variances).sums(inputs, misfit[:, None], single=True)
        slope, curvature = sums.projected[:, 0], sums.squares + self._s2 * operator.kernel.diagonal(inputs)
        bent = np.zeros(len(drawn))
        if self._basis:
            features = operator.double.prepare(inputs)
            basis = operator.features(np.asarray(self._basis, dtype=np.intp), "double")
            bent = operator.double.matmat(features, basis, self._weights[:, None])[:, 0]
            slope = slope - self._s2 * bent
        usable = curvature > LEAST_CURVATURE
        score = np.where(usable, slope**2 / np.where(usable, curvature, 1.0), 0.0)
        best = int(np.argmax(score))
        if not score[best] > 0.0:
            return False
        column = CrossKernel(operator, inputs[best : best + 1]).columns(np.ones((1, 1)))[:, 0]
        own, mixed = float(operator.kernel.diagonal(inputs[best : best + 1])[0]), float(bent[best])
        step = self._line(column, mixed, own, slope[best] / curvature[best])
        if not np.isfinite(step) or step == 0.0:
            return False
        self._basis.append(int(drawn[best]))
        self._weights = np.append(self._weights, step)
        self._outputs = self._outputs + step * column
        self._bent += 2.0 * step * mixed + step * step * own
        if self._settings.intercept:
            self._move_intercept()
        return True

    def _move_intercept(self) -> None:
        ones = np.ones(self._operator.n)
        step = self._line(ones, 0.0, 0.0, 0.0)
        self._intercept += step
        self._outputs = self._outputs + step

    def _line(self, direction: FloatArray, mixed: float, own: float, start: float) -> float:
        """The step t along a direction of outputs that R is least at: Newton's method, halved where it overshoots.

        `mixed` and `own` are beta' K p and p' K p of the direction p of coefficients.
        """
        step = start
        low, high = -np.inf, np.inf
        for _ in range(LINE_STEPS):
            outputs = self._outputs + step * direction
            violating = self._signs * outputs < 1.0
            along = direction[violating]
            slope = float((outputs[violating] - self._signs[violating]) @ along) + self._s2 * (mixed + step * own)
            curvature = float(along @ along) + self._s2 * own
            low, high = (step, high) if slope < 0.0 else (low, step)
            if slope == 0.0 or curvature <= 0.0:
                return step
            new = step - slope / curvature
            if abs(new - step) <= 1e-14 * max(abs(step), abs(new)):
                return new
            step = new if low < new < high else 0.5 * (low + high)
        return step

    def _optimise(self) -> None:
        """Newton's method over all coefficients and the intercept."""
        operator = self._operator
        cross = CrossKernel(operator, operator.inputs(np.asarray(self._basis, dtype=np.intp)))
        start = [*(cross.lower.T @ self._weights), *([self._intercept] if self._settings.intercept else [])]
        solution = minimise_on_basis(
            cross,
            self._signs[:, None],
            loss=SquaredHingeLoss(),
            regularisation=self._s2,
            intercept=self._settings.intercept,
            initial=np.array(start)[:, None],
            tolerance=TOLERANCE,
        )
        self._weights, self._intercept = solution.weights[:, 0], float(solution.intercept[0])
        self._outputs = solution.values[:, 0]
        self._bent = float(self._weights @ cross.inner(solution.weights)[:, 0])


def validated_errors(
    executor: BlockExecutor,
    kernel: Kernel,
    s2: float,
    inputs: FloatArray,
    signs: FloatArray,
    folds: IndexArray,
    settings: SparseSVMSettings,
) -> FloatArray:
    """Share of wrong labels in each fold, by a machine that was trained without it, with 1, 2, .. samples: (folds, k).

    Settings without a pool: each fold's machine draws from what is left.
    """
    shares = []
    for fold in range(int(folds.max()) + 1):
        test = folds == fold
        operator = BlockedKernelOperator(kernel, s2, ArrayInputs(inputs[~test]), executor)
        decisions = train_spsvm(operator, signs[~test], settings).path_decisions(inputs[test])
        shares.append(np.mean(np.where(decisions >= 0.0, 1.0, -1.0) != signs[test], axis=1))
    shortest = min(len(share) for share in shares)
    return np.asarray([share[:shortest] for share in shares])
