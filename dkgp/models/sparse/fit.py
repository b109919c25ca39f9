"""The fit of every sparse method to a basis that is there.

The subset of data is the exact model of its samples. All other methods are one fit of m kernel columns: the weights
beta minimise the regularised risk on the columns' span,

    R(beta) = (y - K_nm beta)' D (y - K_nm beta) / 2 + beta' L L' beta / 2,      D = diag(1 / s2_i),

in whitened form: with F = K_nm L^-T, L L' = K_mm and a jitter in proportion to rounding, z = L' beta solves
(I + F'DF) z = F'D y. The minimum over all functions, with K_mm, is half of y' Kbar^-1 y. D has FITC's variances in it
where that is the method.

I + F'DF has no eigenvalue below one, and is summed and factored in float64. What the factor gives is judged by a
residual that is evaluated anew, and refined by it: the decrement zeta' (I + F'DF)^-1 zeta / 2, zeta = F'D r - z, is
what the best weights are still better by. Where refinement does not make it small, the fit is refused.

A greedy choice has summed A = K_mn D K_nm + K_mm already. F'DF = L^-1 (A - K_mm) L^-T spares the m^2 n operations of
the sum, and is taken where what L^-1 makes of A's roundings is proven to be small: of kernels that are not smooth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.models.rounding import EVALUATION, UNIT
from dkgp.models.sparse.errors import Points, sample_sum_roundings
from dkgp.models.sparse.methods import SparseMethod
from dkgp.models.sparse.model import SparseModel
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel, CrossResidual
from dkgp.operators.exact_sums import DEPTH
from dkgp.operators.inputs import centre_of
from dkgp.operators.low_rank.pivots import whiten

# Refined until the decrement is this share of the risk; accepted, where rounding ends it, up to the second.
REFINED, ACCEPTED = 1e-12, 1e-7
MOST_REFINEMENTS = 6
# Of F'DF from a choice's sums: what it may be off by, which is what variances widen by in proportion; and what m times
# that, by which it moves log|I + F'DF|, may be of tr(D E), what the basis leaves of the samples' own variances. Half of
# that is between the bounds on the evidence in any case.
MOST_OFF, MOST_OF_TRACE = 5e-3, 1e-4


@dataclass(frozen=True)
class RegressorFit:
    """Weights of m kernel columns, and the factors and sums that gave them."""

    cross: CrossKernel  # K_nm
    variances: Variances  # D's inverse: the noise, FITC's terms included
    # (m, p): beta, and z = L' beta
    weights: FloatArray
    whitened: FloatArray
    normal: FloatArray  # (m, m), Fortran order: C C' = I + F'DF
    squares: FloatArray  # (n,): squared length of each row of F: what of k(x, x) the basis explains
    risk: FloatArray  # (p,): R(beta), by residuals
    decrement: FloatArray  # (p,): by how much the least R on the span is estimated to be below
    passes: int  # times that all entries of K_nm were evaluated
    # Bound on the distance, in norm, of the F'DF that C was made of from that of F as computed, beyond what summing
    # F'DF itself would be off by
    off: float = 0.0


def fit_regressors(
    cross: CrossKernel, targets: FloatArray, *, fitc: bool = False, system: FloatArray | None = None
) -> RegressorFit:
    """Fit kernel columns to standardised targets (n, p).

    `targets` (n, p). `fitc`: by FITC's variances. `system` (m, m): K_mn D K_nm + K_mm, summed over the samples in
    float64 by the operator's noise; without `fitc`.

    Raises `NumericalError`: I + F'DF is not positive definite in float64, or its factor not good enough to refine with.
    """
    noise = cross.operator.noise
    by_sample = None if isinstance(noise, float) and not fitc else np.broadcast_to(noise, (cross.n,)).copy()
    known = None if system is None else whitened_system(cross, system)
    if known is not None and not _good_enough(cross, *known):
        known = None
    gram = cross.whitened(targets, by_sample, fitc=fitc, product=known is None)
    variances: Variances = noise
    if fitc:
        assert by_sample is not None
        variances = by_sample + np.maximum(cross.operator.prior() - gram.squares, 0.0)
    matrix, projected, off = gram.matrix, gram.projected, 0.0
    if by_sample is None:
        matrix /= noise
        projected /= noise
    if known is not None:
        matrix, off = known
    with single_threaded_blas():
        normal = normal_factor(matrix, float(np.min(noise)))
        lower = cross.lower
        z = _solved(normal, projected)
        beta = whiten(lower, z, transposed=True)
        passes, before = 1, np.full(z.shape[1], np.inf)
        while True:
            passes += 1
            residual = _residual(cross, beta, targets, variances)
            z = np.asarray(lower.T @ beta)
            risk = 0.5 * (residual.squares + np.einsum("mp,mp->p", z, z))
            zeta = whiten(lower, residual.projected, transposed=False) - z
            step = _solved(normal, zeta)
            decrement = 0.5 * np.einsum("mp,mp->p", zeta, step)
            if not np.isfinite(decrement).all():
                raise NumericalError("the fit overflows: bring inputs that are far out closer")
            done = decrement <= REFINED * risk
            stalled = passes > MOST_REFINEMENTS + 1 or bool(np.all((decrement > 0.25 * before) | done))
            if done.all() or stalled:
                break
            before = decrement
            beta = beta + whiten(lower, step, transposed=True)
        if np.any(decrement > ACCEPTED * risk):
            worst = int(np.argmax(decrement / np.maximum(risk, np.finfo(float).tiny)))
            raise NumericalError(
                f"the fit of {cross.m:,} basis functions does not come closer to the best one than a risk of "
                f"{decrement[worst]:.3g} more than {risk[worst]:.6g}, after {passes} passes over the data: rounding "
                f"exceeds the noise variance {float(np.min(noise)):.3g}. Raise it, or take fewer basis functions"
            )
    return RegressorFit(cross, variances, beta, z, normal, gram.squares, risk, np.abs(decrement), passes, off)


def whitened_system(cross: CrossKernel, system: FloatArray) -> tuple[FloatArray, float] | None:
    """L^-1 (A - K_mm) L^-T in Fortran order, its lower triangle, and how far in norm it is from F'DF.

    F is K_nm as evaluated times the exact L^-T. None where L is too ill-conditioned for its inverse to be judged.

    Parameters
    ----------
    system : (m, m) float64
        A = K_mn D K_nm + K_mm, as summed.

    Notes
    -----
    With a_i = sqrt(A_ii), sum_n D_n |k_ni| |k_nj| + |K_ij| <= a_i a_j (Cauchy and Schwarz). So A_ij is off by at most
    (N + 7) u a_i a_j, N the additions on the way of a term, with seven for D, the products and K_ij; the K_ij that is
    taken off, evaluated once more, by 2 eps s_i s_j (e_i + e_j) <= 8 max(e) u a_i a_j, and one for the difference. What
    L^-1 makes of an error E with |E_ij| <= c a_i a_j is, in norm, at most c || |L^-1| a ||^2.

    X = L^-1 G and Y = X L^-T as solved have L X = G + E, |E| <= gamma |L| |X|, and Y L' = X + E', |E'| <= gamma |Y|
    |L'| (Higham 2002, theorem 8.5). So Y is off by gamma |Y| B' + gamma (1 + gamma) B |Y| B', B = |L^-1| |L|: in
    Frobenius' norm by gamma b (1 + b) ||Y||_F, b = ||B||, but for what `EVALUATION` has room for; and by sqrt(2) times
    that where one triangle stands for both.
    """
    operator, lower = cross.operator, cross.lower
    sizes = np.sqrt(system.diagonal())
    with single_threaded_blas():
        whitening = Whitening.of(lower, sizes)
        if whitening is None:
            return None
        half = whiten(lower, system - cross.kernel_matrix(), transposed=False)
        matrix = np.asarray(whiten(lower, half.T, transposed=False))
    errors = Points.of(operator.kernel, operator.double, cross.prototypes).errors
    # Digits that are cut off are in proportion to the largest number of a column (Lemma 2b).
    cut = 2.0 ** (1 - DEPTH) * float(np.linalg.norm(sizes) / sizes.min())
    summed = ((sample_sum_roundings(cross.n) + 8.0 + 8.0 * float(errors.max())) * UNIT + cut) * whitening.entries**2
    solved = whitening.solving * (1.0 + whitening.solving / ((cross.m + 1) * UNIT)) * np.linalg.norm(matrix)
    return matrix, float(EVALUATION * (summed + np.sqrt(2.0) * solved))


def _good_enough(cross: CrossKernel, matrix: FloatArray, off: float) -> bool:
    """True if the F'DF that the choice's sums give is accurate enough."""
    trace = float(np.sum(cross.operator.prior() / cross.operator.noise)) - float(np.trace(matrix))
    return off <= MOST_OFF and cross.m * off <= MOST_OF_TRACE * trace


def normal_factor(matrix: FloatArray, noise_variance: float) -> FloatArray:
    """C C' = I + F'DF, C in Fortran order with zeros above its diagonal; the matrix (m, m) is overwritten.

    Raises `NumericalError`: it is not positive definite in float64: nothing is added to its diagonal to make it so.
    """
    largest = float(matrix.diagonal().max())
    matrix[np.diag_indices(len(matrix))] += 1.0
    lower, trouble = scipy.linalg.lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if trouble or not np.isfinite(lower).all():
        raise NumericalError(
            f"the normal equations of {len(matrix):,} basis functions are not positive definite in float64: their "
            f"entries go up to {largest:.3g} times the noise variance {noise_variance:.3g}, which rounding exceeds. "
            "Raise the noise variance, or take fewer basis functions"
        )
    return np.asarray(lower)


def _solved(normal: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(whiten(normal, whiten(normal, right, transposed=False), transposed=True))


def _residual(cross: CrossKernel, beta: FloatArray, targets: FloatArray, variances: Variances) -> CrossResidual:
    """K_mn D r and r'D r."""
    if not isinstance(variances, float):
        return cross.residual(beta, targets, variances)
    residual = cross.residual(beta, targets)
    return CrossResidual(residual.projected / variances, residual.squares / variances, None)


# Sums of squares and of products of what lies within it are numbers of float64, and so are their quotients.
LARGEST, SMALLEST = 1e100, 1e-100


@dataclass(frozen=True)
class Basis:
    """Basis samples."""

    inputs: FloatArray  # (m, d): standardised
    indices: IndexArray | None = None  # (m,): which samples they are; None where they are none, as centres of k-means

    def noise_of(self, noise: Variances) -> FloatArray | None:
        """The noise of the basis samples, (m,); None if the noise is not by sample, or the basis is of other points."""
        return None if self.indices is None or isinstance(noise, float) else noise[self.indices]


@dataclass(frozen=True)
class SparseFit:
    """A model, and the fit to all samples that it comes from; None of the subset of data."""

    model: SparseModel
    regressors: RegressorFit | None


def require_range(operator: BlockedKernelOperator, targets: FloatArray) -> None:
    """Refuse numbers whose sums would overflow or underflow; one round, no kernel entries.

    Raises `NumericalError`: k(x, x), the noise, the targets, or the first and the last of these over the noise are out
    of range.
    """
    noise, largest = float(np.min(operator.noise)), float(np.max(operator.prior()))
    tops = np.max(np.abs(targets), axis=0, initial=0.0)
    # Python's power raises where a square overflows. A target that is zero throughout is as good as any.
    squares = [top * top for top in tops.tolist() if top > 0.0] or [1.0]
    for what, value in (
        ("the noise variance", noise),
        ("the largest k(x, x)", largest),
        ("k(x, x) over the noise variance", largest / noise),
        ("the largest target's square", max(squares)),
        ("the largest target's square over the noise variance", max(squares) / noise),
        ("the square of the largest number of a target", min(squares)),
        ("the square of the largest number of a target over the noise variance", min(squares) / noise),
    ):
        if not SMALLEST <= value <= LARGEST:
            raise NumericalError(
                f"{what} is {value:.3g}; sums of a sparse model take what is between {SMALLEST:g} and {LARGEST:g}. "
                "Scale the inputs or the targets, or choose another kernel or noise variance"
            )


def fit_sparse(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    basis: Basis,
    method: SparseMethod,
    system: FloatArray | None = None,
) -> SparseFit:
    """Fit a method to standardised targets (n, p).

    `system` is K_mn D K_nm + K_mm, as a choice by the same noise has summed it: see `fit_regressors`.

    Raises `InputError`: the subset of data of a basis that is no samples; `NumericalError`: see `fit_regressors`; the
    subset's matrix is not positive definite in float64.
    """
    centre = centre_of(operator.context.source)
    if method.variance == "subset":
        return SparseFit(_subset(operator, targets, basis, method, centre), None)
    cross = CrossKernel(operator, basis.inputs)
    fit = fit_regressors(cross, targets, fitc=method.fitc, system=None if method.fitc else system)
    model = SparseModel(method, operator.kernel, fit.cross.prototypes, fit.weights, fit.cross.lower, fit.normal, centre)
    return SparseFit(model, fit)


def _subset(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    basis: Basis,
    method: SparseMethod,
    centre: FloatArray | None,
) -> SparseModel:
    indices = basis.indices
    if indices is None:
        raise InputError("the subset of data needs a basis of training samples; this one's are none of them")
    matrix = operator.submatrix(indices, indices)
    with single_threaded_blas():
        try:
            lower = np.asfortranarray(scipy.linalg.cholesky(matrix, lower=True, check_finite=False))
        except np.linalg.LinAlgError as error:
            least = float(np.min(noise_at(operator.noise, indices)))
            raise NumericalError(
                f"the matrix of the subset's {len(indices):,} samples is not positive definite in float64 ({error}): "
                f"rounding exceeds the noise variance {least:.3g}. Raise it, or take fewer samples"
            ) from error
        weights = whiten(lower, whiten(lower, targets[indices], transposed=False), transposed=True)
    return SparseModel(method, operator.kernel, operator.inputs(indices), np.asarray(weights), lower, None, centre)
