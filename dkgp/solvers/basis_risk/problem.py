"""A regularised risk over the span of a basis' kernel columns, evaluated in whitened coordinates.

    R(z, b) = sum_i w_i l(y_i, f_i) + lambda |z|^2 / 2,    f = F z + b = K_nm beta + b,    F = K_nm L^-T,  z = L' beta,

L L' = K_mm with a jitter that is in proportion to rounding. The intercept b, where there is one, goes unpenalised; it
is the last of the q coefficients. Columns are problems of their own, unless the loss couples them: then all are one.

Tasks evaluate a loss, its slopes and curvatures at the samples of a run of blocks, and their sums, each entry once:
values f = K_nm W + b, losses, K_mn u for the slopes u_i = w_i l'(y_i, f_i), and on request F' W F for curvatures W_i =
w_i l''(y_i, f_i), F = K_nm L^-T: Grams of one pass share the entries and the triangular solve.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.tasks import Prototypes, Run, columns_between, piece_rows, scratch
from dkgp.operators.exact_sums import RunSums, Triangles
from dkgp.operators.low_rank.pivots import solve_by_factor, whiten
from dkgp.solvers.losses import Loss
from dkgp.solvers.risk.problem import Risk

Mask = NDArray[np.bool_]

LARGEST_STEP = 2.0**30
# Of a gradient: its square is a number of float64.
LARGEST = 1e150
# Bytes of the Grams of one pass; those of more columns take several.
GRAM_BYTES = 2**29


@dataclass(frozen=True)
class Evaluated:
    """A risk at some coefficients.

    - `values` (n, t): f at the samples.
    - `risk` (p,): p = t, or 1 of a coupled loss.
    - `gradient` (q, t).
    - `explained`: sum of the squares of F, once Grams were summed.
    """

    values: FloatArray
    risk: FloatArray
    gradient: FloatArray
    explained: float | None = None

    def with_columns(self, update: Evaluated, columns: IndexArray, problems: Mask | IndexArray) -> Evaluated:
        """Replace the results of some columns, which make up some problems."""
        if len(columns) == self.values.shape[1]:
            return replace(update, explained=self.explained if update.explained is None else update.explained)
        values, risk, gradient = self.values.copy(), self.risk.copy(), self.gradient.copy()
        values[:, columns], risk[problems], gradient[:, columns] = update.values, update.risk, update.gradient
        return Evaluated(values, risk, gradient, self.explained if update.explained is None else update.explained)

    def where(self, mask: Mask, other: Evaluated) -> Evaluated:
        """These problems as they are here, the rest as of the other."""
        if mask.all():
            return self
        values, risk, gradient = (
            np.where(mask, getattr(self, name), getattr(other, name)) for name in ("values", "risk", "gradient")
        )
        return Evaluated(values, risk, gradient, self.explained)


@dataclass(frozen=True)
class Factor:
    """Cholesky factors of a Hessian F'WF + lambda I: exact where Grams are of this point, else a preconditioner.

    - `kind`: one for all columns, one for each, or one of all columns together.
    - `lowers`: (q, q), q = m and one more with an intercept; of blocks (m t, m t).
    - `coupled`: of a shared one: columns answer to their differences alone, and their mean to the penalty.
    """

    kind: Curvatures
    lowers: tuple[FloatArray, ...]
    coupled: bool
    regularisation: float

    def solve(self, right: FloatArray) -> FloatArray:
        """H^-1 G for G (q, t): row by row in memory, as a checkpoint's arrays are, for sums depend on it."""
        return np.ascontiguousarray(self._solve(right))

    def _solve(self, right: FloatArray) -> FloatArray:
        if self.kind == "columns":
            return np.column_stack(
                [solve_by_factor(lower, g[:, None]) for lower, g in zip(self.lowers, right.T, strict=True)]
            )
        if self.kind == "blocks":
            return solve_by_factor(self.lowers[0], right.T.reshape(-1, 1)).reshape(right.T.shape).T
        if not self.coupled:
            return solve_by_factor(self.lowers[0], right)
        mean = right.mean(axis=1, keepdims=True)
        return np.asarray(solve_by_factor(self.lowers[0], right - mean) + mean / self.regularisation)

    def stacked(self) -> FloatArray:
        """Return the factors as a checkpoint holds them: (k, q, q), transposed."""
        return np.stack([lower.T for lower in self.lowers])

    @classmethod
    def restored(cls, kind: Curvatures, lowers: FloatArray, coupled: bool, regularisation: float) -> Factor:
        """Rebuild from `stacked` factors."""
        return cls(kind, tuple(np.ascontiguousarray(lower).T for lower in lowers), coupled, regularisation)


@dataclass
class BasisRisk:
    """A risk over the functions of a basis; `InputError` where its parts do not fit.

    - `targets` (n, t).
    - `intercept`: whether every column has one.
    """

    cross: CrossKernel
    targets: FloatArray
    risk: Risk
    intercept: bool = False
    passes: int = field(default=0, init=False)
    gram_passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        n = self.cross.n
        if self.targets.ndim != 2 or len(self.targets) != n or not self.targets.shape[1]:
            raise InputError(f"expected targets of shape ({n:,}, t); got {self.targets.shape}")
        if not np.isfinite(self.targets).all():
            raise InputError("the targets must be finite; leave out samples that are not")
        self.risk.check(self.targets)
        if self.intercept and self.loss.coupled:
            raise InputError("a loss that couples its columns has no intercept here: leave it out")

    @property
    def loss(self) -> Loss:
        """l."""
        return self.risk.loss

    @property
    def regularisation(self) -> float:
        """lambda."""
        return self.risk.regularisation

    @property
    def shape(self) -> tuple[int, int]:
        """Coefficients of a column, q, and columns, t."""
        return self.cross.m + self.intercept, self.targets.shape[1]

    @cached_property
    def lower(self) -> FloatArray:
        """L: (m, m)."""
        return self.cross.lower

    @property
    def problems(self) -> int:
        """Problems of their own, p."""
        return 1 if self.loss.coupled else self.shape[1]

    def dots(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Inner products by problem: (p,), for arrays (r, t), or (r, s) of some columns."""
        if self.loss.coupled:
            return np.array([float(np.einsum("ij,ij->", left, right))])
        return np.asarray(np.einsum("ij,ij->j", left, right))

    def coefficients(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights beta (m, t) and intercepts (t,) of coefficients (q, t)."""
        m = self.cross.m
        intercept = theta[m] if self.intercept else np.zeros(theta.shape[1])
        return np.asarray(whiten(self.lower, theta[:m], transposed=True)), np.asarray(intercept)

    def evaluate(self, theta: FloatArray, of: Mask, base: Evaluated) -> Evaluated:
        """Evaluate some problems at coefficients (q, t), in one pass; the others are those of the base."""
        columns = self._columns(of)
        evaluated, _ = self._evaluated(theta[:, columns], "none", columns)
        return base.with_columns(evaluated, columns, of)

    def factored(
        self,
        theta: FloatArray,
        kind: Curvatures,
        of: Mask | None = None,
        base: Evaluated | None = None,
        known: Factor | None = None,
    ) -> tuple[Evaluated, Factor]:
        """Evaluate at coefficients (q, t), and factor the Hessian there.

        Of `kind` "columns" only some problems' on request: the others are as `base` and `known` have them.

        Raises `NumericalError`: one is not positive definite in float64.
        """
        (q, t), some = self.shape, np.ones(self.problems, dtype=bool) if of is None else of
        if kind != "columns":
            evaluated, sums = self._evaluated(theta, kind, np.arange(t))
            return evaluated, self._factor(kind, sums)
        lowers: list[FloatArray] = [np.zeros((0, 0))] * t
        if known is not None:
            lowers = list(known.lowers) if known.kind == "columns" else [known.lowers[0]] * t
        evaluated = Evaluated(np.zeros((self.cross.n, t)), np.zeros(t), np.zeros((q, t))) if base is None else base
        at_once, columns = max(1, GRAM_BYTES // (8 * q * q)), self._columns(some)
        for first in range(0, len(columns), at_once):
            part = columns[first : first + at_once]
            update, sums = self._evaluated(theta[:, part], kind, part)
            for column, lower in zip(part, self._factor(kind, sums).lowers, strict=True):
                lowers[column] = lower
            evaluated = evaluated.with_columns(update, part, part)
        return evaluated, Factor(kind, tuple(lowers), False, self.regularisation)

    def _columns(self, of: Mask) -> IndexArray:
        return np.arange(self.shape[1]) if self.loss.coupled else np.flatnonzero(of)

    def _factor(self, kind: Curvatures, sums: tuple[FloatArray, ...]) -> Factor:
        with single_threaded_blas():
            return _factor_of(
                kind,
                sums[3],
                sums[4],
                sums[5],
                self.regularisation,
                coupled=self.loss.coupled,
                intercept=self.intercept,
            )

    def _evaluated(
        self, theta: FloatArray, kind: Curvatures, columns: IndexArray
    ) -> tuple[Evaluated, tuple[FloatArray, ...]]:
        all_columns = len(columns) == self.shape[1]
        with single_threaded_blas():
            beta, intercept = self.coefficients(theta)
            totals = self.cross.sums(
                "kbasisrisk",
                "slopes" if kind == "none" else "Hessian",
                basis_risk_task,
                (self.loss, beta, intercept, kind),
                {"targets": self.targets if all_columns else self.targets[:, columns], "weights": self.risk.weights},
            )
            projected, losses, slopes, *_, explained = totals.sums
            z = theta[: self.cross.m]
            gradient = whiten(self.lower, projected, transposed=False) + self.regularisation * z
            if self.intercept:
                gradient = np.concatenate([gradient, slopes[None, :]])
            risk = losses + 0.5 * self.regularisation * self.dots(z, z)
        if not (np.isfinite(risk).all() and (np.abs(gradient) < LARGEST).all()):
            raise NumericalError(
                "the risk overflows: bring inputs that are far out closer, or raise the `regularisation`"
            )
        self.passes += 1
        self.gram_passes += kind != "none"
        assert totals.rows is not None
        known = None if kind == "none" else float(explained[0])
        return Evaluated(totals.rows, risk, np.ascontiguousarray(gradient), known), totals.sums

    def line_minimum(
        self, theta: FloatArray, direction: FloatArray, start: Evaluated, end: Evaluated, problem: int
    ) -> float:
        """The step at which a problem's risk along a line is least, by values at the samples alone; no pass.

        - `theta`, `direction` (q, t).
        - `start`, `end`: at theta, and at theta and the direction.
        """
        columns = slice(None) if self.loss.coupled else slice(problem, problem + 1)
        z, d = theta[: self.cross.m, columns], direction[: self.cross.m, columns]
        linear = self.regularisation * float(np.einsum("ij,ij->", z, d))
        quadratic = self.regularisation * float(np.einsum("ij,ij->", d, d))
        values, targets = start.values[:, columns], self.targets[:, columns]
        image = end.values[:, columns] - values

        def slope(step: float) -> float:
            u = self.risk.slope(targets, values + step * image)
            return float(np.einsum("ij,ij->", u, image)) + linear + step * quadratic

        if not slope(0.0) < 0.0:
            return 0.0
        upper = 1.0
        while slope(upper) < 0.0 and upper < LARGEST_STEP:
            upper *= 2.0
        if not slope(upper) > 0.0:
            return upper
        return float(scipy.optimize.brentq(slope, 0.0, upper, xtol=1e-12 * upper, rtol=1e-10))


def _factor_of(
    kind: Curvatures,
    grams: FloatArray,
    borders: FloatArray,
    corners: FloatArray,
    regularisation: float,
    *,
    coupled: bool,
    intercept: bool,
) -> Factor:
    """Factor Grams as tasks have summed them; they are overwritten.

    Raises `NumericalError`: one is not positive definite in float64.
    """
    if kind == "blocks":
        return Factor(kind, (_factored(_joined(grams), regularisation),), coupled, regularisation)
    lowers = []
    for gram, border, corner in zip(grams, borders, corners, strict=True):
        matrix = gram.T
        if intercept:
            m = len(border)
            matrix = np.zeros((m + 1, m + 1), order="F")
            matrix[:m, :m] = gram.T
            matrix[m, :m] = border
            # Where no sample is curved, nothing tells of the intercept, and it stays.
            matrix[m, m] = corner if corner > 0.0 else 1.0
        lowers.append(_factored(matrix, regularisation, len(gram)))
    return Factor(kind, tuple(lowers), coupled, regularisation)


def _joined(grams: FloatArray) -> FloatArray:
    """The Hessian of all columns from the Grams of their pairs: its lower triangle, in Fortran order."""
    m = grams.shape[1]
    t = round((np.sqrt(8 * len(grams) + 1) - 1) / 2)
    matrix = np.zeros((t * m, t * m), order="F")
    for gram, (c, other) in zip(grams, block_pairs(t), strict=True):
        matrix[c * m : (c + 1) * m, other * m : (other + 1) * m] = gram
    return matrix


def _factored(matrix: FloatArray, regularisation: float, penalised: int | None = None) -> FloatArray:
    """Factor a matrix, given by its lower triangle, with the penalty on its first rows."""
    where = np.arange(len(matrix) if penalised is None else penalised)
    largest = float(matrix.diagonal().max(initial=0.0))
    matrix[where, where] += regularisation
    lower, trouble = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if trouble or not np.isfinite(lower).all():
        raise NumericalError(
            f"the Hessian of {len(matrix):,} coefficients is not positive definite in float64: its entries go up to "
            f"{largest:.3g}, whose rounding exceeds the `regularisation` {regularisation:.3g}. Raise it, or take fewer "
            "basis samples"
        )
    return np.asarray(lower)


# Which Grams are summed: none; one that serves all columns, whose curvatures are alike; one of each column; or of a
# coupled loss one of each pair of columns.
Curvatures = Literal["none", "shared", "columns", "blocks"]


def block_pairs(columns: int) -> list[tuple[int, int]]:
    """Pairs (c, c'), c' <= c, of columns whose Grams make up a coupled loss's Hessian."""
    return [(c, other) for c in range(columns) for other in range(c + 1)]


@needs_one_arithmetic
def basis_risk_task(
    prototypes: Prototypes,
    loss: Loss,
    weights: FloatArray,
    intercept: FloatArray,
    curvatures: Curvatures,
    runs: list[Run],
) -> list[RunSums]:
    """Sums over each run, and f at its samples (rows, t).

    Of the run's `targets` (rows, t) and `weights` (rows,), ones without: K(Z, X_b) u (m, t); losses (p,); u (t,); Grams
    F_b' W F_b (g, m, m); F_b' W 1 (g, m); 1' W 1 (g,); and the sum
    of the squares of F_b (1,), zero without Grams.
    """
    return [_sums(prototypes, loss, weights, intercept, curvatures, run) for run in runs]


def _sums(
    prototypes: Prototypes, loss: Loss, weights: FloatArray, intercept: FloatArray, curvatures: Curvatures, run: Run
) -> RunSums:
    context, (m, t) = prototypes.context, weights.shape
    evaluator = context.evaluator("double")
    triangle = None if curvatures == "none" else prototypes.triangle()
    features = prototypes.features() if triangle is None else triangle.features
    count = {"none": 0, "shared": 1, "columns": t, "blocks": t * (t + 1) // 2}[curvatures]
    projected, slopes = np.zeros((m, t)), np.zeros(t)
    losses = np.zeros(1 if loss.coupled else t)
    grams, borders, corners = np.zeros((count, m, m)), np.zeros((count, m)), np.zeros(count)
    explained, values = np.zeros(1), np.empty((run.samples(context), t))
    for rows, where in run.pieces(context, "double", piece_rows(m)):
        kernel = columns_between(evaluator, features, rows, "columns")
        f = kernel @ weights + intercept
        values[where], y = f, run.rows["targets"][where]
        counts = run.rows["weights"][where, None] if "weights" in run.rows else None
        u, lost = loss.slope(y, f), loss.value(y, f)
        if counts is not None:
            u, lost = counts * u, counts * lost
        projected += kernel.T @ u
        slopes += u.sum(axis=0)
        losses += lost.sum(axis=0)
        if triangle is None:
            continue
        curved = _curved(loss, y, f, curvatures)
        if counts is not None:
            curved = counts * curved
        stride = kernel.strides[0] // kernel.itemsize
        blas("trsm", b"L", b"L", b"N", b"N", m, rows.n, 1.0, triangle.lower, m, kernel, stride)
        explained += np.einsum("ij,ij->", kernel, kernel)
        for number in range(count):
            _add_gram(kernel, curved[:, number], grams[number], borders[number])
        corners += curved.sum(axis=0)
    return RunSums((projected, losses, slopes, Triangles(grams), borders, corners, explained), values)


def _curved(loss: Loss, y: FloatArray, f: FloatArray, curvatures: Curvatures) -> FloatArray:
    """Curvatures that the Grams are weighted with: (b, g)."""
    if curvatures == "shared":
        if not loss.coupled:
            return np.asarray(loss.curvature(y, f)[:, :1])
        # On differences of classes, to which a coupled loss answers at equal values by the same number for all.
        unit = np.zeros(f.shape)
        unit[:, 0], unit[:, 1] = 1.0, -1.0
        return np.asarray(loss.curvature_times(y, f, unit)[:, :1])
    if curvatures == "columns":
        return np.asarray(loss.curvature(y, f))
    unit, columns = np.zeros(f.shape), []
    for c in range(f.shape[1]):
        unit[:, c] = 1.0
        columns.append(loss.curvature_times(y, f, unit))
        unit[:, c] = 0.0
    return np.stack([columns[c][:, other] for c, other in block_pairs(f.shape[1])], axis=1)


def _add_gram(kernel: NDArray[np.float64], curved: FloatArray, gram: FloatArray, border: FloatArray) -> None:
    """Add F_b' W F_b and F_b' W 1, W of one sign."""
    rows, m = kernel.shape
    negative = bool((curved < 0.0).any())
    scale = np.sqrt(-curved if negative else curved)[:, None]
    weighted = scratch("weighted", rows, m, kernel.dtype)
    np.multiply(kernel, scale, out=weighted)
    sign = -1.0 if negative else 1.0
    blas("syrk", b"L", b"N", m, rows, sign, weighted, m, 1.0, gram, m)
    border += sign * (weighted.T @ scale[:, 0])
