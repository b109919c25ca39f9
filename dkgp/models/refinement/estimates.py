"""Stochastic estimates on all samples, with standard errors: gradient and value of the log marginal likelihood.

The gradient. With alpha = Kbar^-1 Y, p targets that share the hyperparameters, and probes z_1 .. z_S of independent
random signs, v_s = Kbar^-1 z_s,

    d log p / d theta = 1/2 tr(alpha' dK alpha) - p/2 tr(Kbar^-1 dK),    tr(Kbar^-1 dK) = E z' Kbar^-1 dK z
                     ~= 1/S sum_s 1/2 (tr(alpha' dK alpha) - p v_s' dK z_s),

theta the logarithms of the kernel's parameters and of the noise variance. The spread of the S terms, each by itself an
unbiased estimate, gives the standard error. The probes stay the same while theta moves, so that the estimate is a
smooth function of theta, and its zero can be found to any accuracy; that zero lies within the standard error of the
exact one.

Compared with the pathwise estimator (Lin et al. 2024: z ~ N(0, Kbar), tr = E v' dK v), standard deviation of one
probe, n = 1,500, the two shortest length scales and the noise, in nats: kin40k 59, 59 and 8 with random signs, 36, 36
and 12 pathwise; California 22, 22 and 14, against 15, 16 and 47. Neither is better, both are small beside the gradients
that count, and pathwise probes are samples of the prior at all n inputs, which no general method draws for every
kernel; random signs need nothing.

Where products evaluate every entry, one pass over the entries' derivatives serves all parameters. Where products are
approximate, and take far less than n^2 evaluations, each parameter takes two products with [alpha, Z]
(`dkgp.operators.contract_tasks`).

The value, by stochastic Lanczos quadrature. With M^-1 = T' T, a block-Vecchia factor without landmarks, whose
determinant is known,

    log det Kbar = log det M + tr log A,    A = T Kbar T',    tr log A = E z' log(A) z,

z random signs. M is near Kbar, so log A is small, and its estimate varies little. Lanczos' tridiagonal matrix of A and
z gives z' log(A) z by Gauss quadrature. Its vectors q are never needed: with u = T' q a step takes y = Kbar u and
w = M^-1 y = T' A q, and has q' A q = u' y and |A q|^2 = y' w. With g = Kbar alpha - y for any alpha near the solution,

    y' Kbar^-1 y = y' alpha - alpha' g + g' Kbar^-1 g.

The last term is of second order; M replaces Kbar in it.

References
----------
M. F. Hutchinson, A stochastic estimator of the trace of the influence matrix (1990).
J. A. Lin, S. Padhy, B. Mlodozeniec, J. Antoran, J. M. Hernandez-Lobato, Improving linear system solvers for
hyperparameter optimisation in iterative Gaussian processes (2024): warm starts with frozen probes.
S. Ubaru, J. Chen, Y. Saad, Fast estimation of tr(f(A)) via stochastic Lanczos quadrature (2017).
J. Wenger, G. Pleiss, P. Hennig, J. Cunningham, J. Gardner, Preconditioning for scalable Gaussian process
hyperparameter optimization (2022): the preconditioner's determinant reduces the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from dkgp.cluster.executors.base import BlockExecutor, split_evenly
from dkgp.data.types import BoolArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.noise import SAME_NOISE, Noise
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import InputSource
from dkgp.operators.contract_tasks import contract, slope_products
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.solvers import ConjugateGradient, MaxIterations, MaxPasses, RelativeResidual, solve
from dkgp.solvers.base import Clock, SolverState
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning
from dkgp.solvers.driver import Watch

# More probes than this form this many groups, because each group costs a contraction.
MOST_GROUPS = 8
# The error of solutions is estimated by their change since their residual was at this multiple of the tolerance.
REMEMBERED_AT = 4.0
# Tolerances of approximate products, as shares of the sum of weights: 1 / s2 in a solve, one in differences. Actual
# errors are 10^4 to 10^5 times smaller than proven ones (docs/experiments.md): invisible beside the standard error.
SOLVE_SHARE, SLOPE_SHARE = 1e-7, 1e-8


def draw_probes(n: int, count: int, seed: int) -> FloatArray:
    """Draw random signs: (n, count); a seed fixes them."""
    if count < 2:
        raise InputError(f"a standard error needs at least 2 probes; got {count}")
    return np.random.default_rng([seed, 2]).choice(np.array([-1.0, 1.0]), (n, count))


@dataclass(frozen=True)
class GradientEstimate:
    """The gradient at one point with its errors, (q + 1,) arrays, the noise variance last.

    In nats, with respect to the logarithms of the kernel's parameters and of the noise variance.
    """

    gradient: FloatArray
    standard_error: FloatArray  # of the trace's estimate
    solver_error: FloatArray  # error by inexact solutions, extrapolated from their last passes
    # Curvature of the log likelihood by parameter, an estimate of the Fisher information's diagonal: random signs vary
    # as much as data do.
    curvature: FloatArray
    solutions: FloatArray  # alpha and V, the start of the next solve: (n, p + S)
    column_passes: float  # of the solve, every full product counted
    contractions: int  # passes over the kernel matrix's derivatives, or products for their differences
    relative_residual: float  # largest of all right-hand sides, evaluated in float64
    tolerance: float  # residual that the solve aimed at
    converged: bool  # whether the residual met the tolerance
    seconds: float

    @property
    def error(self) -> FloatArray:
        """Root of the sum of both squared errors: (q + 1,)."""
        return np.asarray(np.hypot(self.standard_error, self.solver_error))


class GradientEstimator:
    """Estimates gradients at one point after another, on the same samples with the same probes.

    Inputs and targets (n, p) are standardised; `probes` (n, S) are independent columns with E z z' = 1, such as those
    of `draw_probes`; `noise` is that of the samples, for any s2; `tolerance` limits ||r|| / ||b|| of every right-hand
    side. A solve that ends at `max_passes` counts too, with its error.
    """

    def __init__(
        self,
        source: InputSource,
        targets: FloatArray,
        probes: FloatArray,
        context: RunContext | BlockExecutor,
        *,
        preconditioner: FactorPreconditioning,
        noise: Noise = SAME_NOISE,
        tolerance: float = 0.01,
        max_passes: float = 100.0,
    ) -> None:
        if probes.ndim != 2 or probes.shape[0] != targets.shape[0] or probes.shape[1] < 2:
            raise InputError(f"expected at least 2 probes of {targets.shape[0]} samples; got shape {probes.shape}")
        self._source, self._targets, self._probes, self._context = source, targets, probes, RunContext.of(context)
        self.preconditioner, self._noise = preconditioner, noise
        self._tolerance, self._max_passes = tolerance, max_passes
        self._rhs = np.hstack([targets, probes])
        self._groups = split_evenly(range(probes.shape[1]), MOST_GROUPS)

    def operator(self, kernel: Kernel, noise_variance: float) -> BlockedKernelOperator:
        """Return Kbar of the samples; the caller closes it."""
        noise = self._noise.with_common(noise_variance).checked(self._source.n_samples).diagonal
        tolerance = max(self._tolerance, SOLVE_SHARE * self._source.n_samples / float(np.min(noise)))
        # Only the first operator of many reports its products.
        context, self._context = self._context, replace(self._context, note=None)
        return context.operator(kernel, noise, self._source, tolerance=tolerance)

    def __call__(
        self,
        kernel: Kernel,
        noise_variance: float,
        initial: FloatArray | None = None,
        moved: BoolArray | None = None,
        tolerance: float | None = None,
    ) -> GradientEstimate:
        """Estimate the gradient at one point.

        `initial` (n, p + S) are solutions at a point nearby. `moved` (q,) is the mask of the kernel's parameters whose
        derivatives are needed; those of others may be zero. `tolerance` replaces the estimator's.

        Raises `NumericalError`, where Kbar is not numerically positive definite, and `InterruptedRunError`.
        """
        clock = Clock()
        tolerance = self._tolerance if tolerance is None else tolerance
        with self.operator(kernel, noise_variance) as operator:
            remembered = Remembered(REMEMBERED_AT * tolerance)
            # At least one iteration: without any change the error is unknown.
            solution = solve(
                operator,
                self._rhs,
                solver=ConjugateGradient(self.preconditioner, observe=remembered),
                stopping=(RelativeResidual(tolerance) & MaxIterations(1)) | MaxPasses(self._max_passes),
                initial=initial,
                watch=Watch(interrupted=self._context.interrupted),
            )
            residual = solution.progress.relative_residual
            assert remembered.solution is not None
            derivatives = self._by_products if operator.approximate else self._by_entries
            values, change, count = derivatives(operator, solution.alpha, remembered.solution, moved)
        values, change = self._with_noise(noise_variance, values, change, solution.alpha, remembered.solution)
        shrunk = max(0.5, remembered.residual / max(residual, 1e-300) - 1.0)
        sizes = np.array([len(group) for group in self._groups])
        spread = np.sqrt(np.average((values - np.average(values, axis=0, weights=sizes)) ** 2, axis=0, weights=sizes))
        p = self._targets.shape[1]
        standard_error = spread / math.sqrt(len(sizes) - 1)
        curvature = standard_error**2 * self._probes.shape[1] / p
        # A better estimate for the noise: p/2 s2^2 tr(Kbar^-2).
        v = solution.alpha[:, p:]
        curvature[-1] = 0.5 * p * noise_variance**2 * float(np.einsum("is,is->", v, v)) / v.shape[1]
        return GradientEstimate(
            gradient=np.average(values, axis=0, weights=sizes),
            standard_error=standard_error,
            solver_error=np.abs(change) / shrunk,
            curvature=curvature,
            solutions=solution.alpha,
            column_passes=solution.progress.column_passes + solution.refreshes + (initial is not None),
            contractions=count,
            relative_residual=residual,
            tolerance=tolerance,
            converged=residual <= tolerance,
            seconds=clock.seconds,
        )

    def _by_entries(
        self, operator: BlockedKernelOperator, solutions: FloatArray, before: FloatArray, moved: BoolArray | None
    ) -> tuple[FloatArray, FloatArray, int]:
        """Return each group's estimate (groups, q), their change since `before` (q,), and passes over derivatives."""
        p, t = self._targets.shape[1], solutions.shape[1]
        count = t - p
        vectors = np.hstack([solutions, before, self._probes])  # [alpha, V, alpha before, V before, Z]
        matrices = []
        for group in self._groups:
            matrices.append(np.zeros((vectors.shape[1],) * 2))
            matrices[-1][range(p), range(p)] = 1.0
            for s in group:
                _pair(matrices[-1], p + s, 2 * t + s, -p / len(group))
        change = np.zeros((vectors.shape[1],) * 2)
        change[range(p), range(p)] = 1.0
        change[range(t, t + p), range(t, t + p)] = -1.0
        for s in range(count):
            _pair(change, p + s, 2 * t + s, -p / count)
            _pair(change, t + p + s, 2 * t + s, p / count)
        matrices.append(change)
        contracted = 0.5 * contract(operator, vectors, matrices)
        return contracted[:-1], contracted[-1], len(matrices)

    def _by_products(
        self, operator: BlockedKernelOperator, solutions: FloatArray, before: FloatArray, moved: BoolArray | None
    ) -> tuple[FloatArray, FloatArray, int]:
        """Return the values of `_by_entries`, by products with K at shifted parameters."""
        kernel, p, products = operator.kernel, self._targets.shape[1], 0
        q, tolerance = len(kernel.parameters()), max(self._tolerance, SLOPE_SHARE * operator.n)
        vectors = np.hstack([solutions[:, :p], before[:, :p], self._probes])
        sizes = np.maximum(np.abs(vectors).mean(axis=0), np.finfo(np.float64).tiny)
        vectors /= sizes

        def product(shifted: Kernel) -> FloatArray:
            nonlocal products
            products += 1
            noise = operator.noise
            with self._context.operator(shifted, noise, self._source, tolerance=tolerance) as other:
                result = other.matmat(vectors)
                result -= other.noise_times(vectors)
            result *= sizes
            return result

        values, change = np.zeros((len(self._groups), q)), np.zeros(q)
        for index, slopes in slope_products(product, kernel, np.ones(q, bool) if moved is None else moved):
            values[:, index], change[index] = self._forms(slopes, solutions, before)
        return values, change, products

    def _with_noise(
        self, noise_variance: float, values: FloatArray, change: FloatArray, solutions: FloatArray, before: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Append the noise's components: dKbar / d log s2 = s2 I, also with known noise of the samples."""
        p = self._targets.shape[1]
        images = noise_variance * np.hstack([solutions[:, :p], before[:, :p], self._probes])
        of_noise, changed = self._forms(images, solutions, before)
        return np.column_stack([values, of_noise]), np.append(change, changed)

    def _forms(self, images: FloatArray, solutions: FloatArray, before: FloatArray) -> tuple[FloatArray, float]:
        """Return each group's estimate (groups,) and their change, for dK [alpha, alpha before, Z] = `images`."""
        p = self._targets.shape[1]
        fit = np.einsum("ij,ij->", solutions[:, :p], images[:, :p])
        earlier = np.einsum("ij,ij->", before[:, :p], images[:, p : 2 * p])
        traces, earlier_traces = (
            np.einsum("is,is->s", side[:, p:], images[:, 2 * p :]) for side in (solutions, before)
        )
        groups = np.array([0.5 * (fit - p * np.mean(traces[list(group)])) for group in self._groups])
        return groups, 0.5 * float(fit - earlier - p * np.mean(traces - earlier_traces))


class Remembered:
    """An earlier `solution` (n, t) of a solve, and its largest relative `residual`.

    It is the first whose relative residuals are all at most `at`. The final solution's change since then estimates its
    own distance from the exact one.
    """

    def __init__(self, at: float) -> None:
        self._at = at
        self.solution: FloatArray | None = None
        self.residual = np.inf

    def __call__(self, state: SolverState) -> None:
        """Remember the solution of an iteration."""
        if self.solution is not None and self.residual <= self._at:
            return
        norms, scale = (np.linalg.norm(values, axis=0) for values in (state.gradient, state.rhs))
        residual = float(np.max(norms / np.maximum(scale, np.finfo(np.float64).tiny)))
        if self.solution is None or residual <= self._at:
            self.solution, self.residual = state.alpha.copy(), residual


def _pair(matrix: FloatArray, i: int, j: int, value: float) -> None:
    matrix[i, j] += 0.5 * value
    matrix[j, i] += 0.5 * value


# Most steps; the estimate has settled if a step changes it by less than this share of its standard error.
MOST_STEPS, LARGEST_CHANGE = 40, 0.05
# Smaller squares of an off-diagonal element are rounding: the Krylov space ends.
LEAST_SQUARE = 1e-12


@dataclass(frozen=True)
class LogLikelihood:
    """An estimate of the log marginal likelihood.

    Attributes
    ----------
    value, standard_error : float
        In nats, of all targets together.
    log_determinant : float
        Estimate of log det Kbar.
    of_factor : float
        log det M, the part that is known.
    steps : int
        Lanczos steps, a product with all probes each.
    """

    value: float
    standard_error: float
    log_determinant: float
    of_factor: float
    steps: int


def estimate_log_likelihood(
    operator: BlockedKernelOperator,
    factor: VecchiaFactor,
    targets: FloatArray,
    alpha: FloatArray,
    gradient: FloatArray,
    *,
    probes: int,
    seed: int,
) -> LogLikelihood:
    """Estimate the log marginal likelihood of targets (n, p).

    `factor` has no landmarks; `alpha` (n, p) are coefficients near Kbar^-1 targets, `gradient` (n, p) is Kbar alpha
    less the targets.
    """
    n, p = targets.shape
    fit = float(np.sum(targets * alpha) - np.sum(alpha * gradient) + np.sum(gradient * factor.apply(gradient)))
    values, steps = quadratures(operator, factor, probes=probes, seed=seed)
    log_determinant = factor.log_determinant + float(values.mean())
    standard_error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return LogLikelihood(
        value=-0.5 * (fit + p * log_determinant + n * p * math.log(2.0 * math.pi)),
        standard_error=0.5 * p * standard_error,
        log_determinant=log_determinant,
        of_factor=factor.log_determinant,
        steps=steps,
    )


def quadratures(
    operator: BlockedKernelOperator, factor: VecchiaFactor, *, probes: int, seed: int
) -> tuple[FloatArray, int]:
    """Return z' log(A) z for each probe (S,), and the number of steps."""
    n = operator.n
    vectors = factor.probes(probes, seed) / math.sqrt(n)
    before, off = np.zeros_like(vectors), np.zeros(probes)
    diagonals: list[FloatArray] = []
    offs: list[FloatArray] = []
    values = np.full(probes, np.inf)
    while len(diagonals) < MOST_STEPS:
        images = operator.matmat(vectors)
        preconditioned = factor.apply(images)
        diagonal = np.einsum("is,is->s", vectors, images)
        diagonals.append(diagonal)
        last, values = values, n * _log_quadratures(np.array(diagonals), np.array(offs))
        change, error = float(np.abs(values - last).mean()), float(values.std()) / math.sqrt(probes)
        squares = np.einsum("is,is->s", images, preconditioned) - diagonal**2 - off**2
        if change <= LARGEST_CHANGE * error or not np.any(squares > LEAST_SQUARE):
            break
        # A probe whose Krylov space has ended continues with a zero vector.
        goes_on = squares > LEAST_SQUARE
        preconditioned -= diagonal * vectors + off * before
        off = np.where(goes_on, np.sqrt(np.maximum(squares, LEAST_SQUARE)), 0.0)
        offs.append(off)
        before, vectors = vectors, np.where(goes_on, preconditioned / np.where(goes_on, off, 1.0), 0.0)
    return values, len(diagonals)


def _log_quadratures(diagonals: FloatArray, offs: FloatArray) -> FloatArray:
    """Return e_1' log(T) e_1 for tridiagonal matrices T of diagonals (k, S) and off-diagonals (k - 1, S): (S,)."""
    results = np.empty(diagonals.shape[1])
    for s in range(len(results)):
        # The matrix of a Krylov space that has ended is smaller.
        second = offs[:, s] if len(offs) else np.zeros(0)
        ended = np.flatnonzero(second == 0.0)
        size = int(ended[0]) + 1 if len(ended) else len(diagonals)
        nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonals[:size, s], second[: size - 1])
        results[s] = float(np.sum(vectors[0] ** 2 * np.log(np.maximum(nodes, np.finfo(np.float64).tiny))))
    return results
