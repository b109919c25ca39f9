"""A sparse model: m basis samples, their weights, and two triangles; its fit, predictions and variance interval.

Every sparse method is a setting of one fit (`SparseMethod`): it says which noise the samples have, and which variance
the model states. A model predicts without the training set.

`VarianceInterval` proves an interval of the exact model's variance in O(m^2) operations a sample. From above: the exact
model of fewer samples is less certain, so its variance V_S on the basis samples is never below V; nor is k(x, x). From
below: K = Q + E is the covariance of a sum of two independent functions. Knowing the second one besides makes the first
no less certain, whose variance given the samples is the subset of regressors' |C^-1 phi|^2; so V is never below that.

Roundings: the subset's matrix gets a jitter that makes its factor's product at least the exact one (see `jitter`), and
more noise never makes a variance smaller. C C' differs from the exact I + F'DF by h in norm, and the eigenvalues of the
latter are at least one, so the exact quadratic form is at least 1 / (1 + h / (1 - h)) of that by C. Triangular solves
by `Whitening`.

The fit to a basis (`fit_sparse`): the subset of data is the exact model of its samples. All other methods are one fit
of m kernel columns: the weights beta minimise the regularised risk on the columns' span,

    R(beta) = (y - K_nm beta)' D (y - K_nm beta) / 2 + beta' L L' beta / 2,      D = diag(1 / s2_i),

in whitened form: with F = K_nm L^-T, L L' = K_mm and a jitter in proportion to rounding, z = L' beta solves
(I + F'DF) z = F'D y. The minimum over all functions, with K_mm, is half of y' Kbar^-1 y. For FITC, D includes
its variances.

I + F'DF has no eigenvalue below one, and is summed and factored in float64. A residual evaluated anew judges the
solution and refines it: the best weights lower the risk by the decrement zeta' (I + F'DF)^-1 zeta / 2 more, zeta = F'D
r - z. A fit whose decrement stays large after refinement is refused.

A greedy choice has summed A = K_mn D K_nm + K_mm already. F'DF = L^-1 (A - K_mm) L^-T spares the m^2 n operations of
the sum, and is taken if L^-1 times the roundings of A is proven to be small, as for kernels that are not smooth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.models.rounding import EPS, EVALUATION, UNIT, known
from dkgp.models.sparse.bounds import Points, sample_sum_roundings
from dkgp.models.sums import finite_sums
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.block_tasks import centre_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel, CrossResidual
from dkgp.operators.cross.tasks import piece_rows
from dkgp.operators.exact_sums import DEPTH
from dkgp.operators.low_rank.pivots import jittered, solve_by_factor, whiten

Variance = Literal["subset", "regressors", "deterministic"]


@dataclass(frozen=True)
class SparseMethod:
    """A sparse method: its choice of a basis, its noise in the fit, and its variance."""

    name: str
    help: str
    # Of the function at x, with phi = L^-1 k_m(x): the exact one of the basis samples alone; |C^-1 phi|^2, which goes
    # to nothing far from the basis; that plus the residual of k(x, x).
    variance: Variance
    fitc: bool = False  # whether the residual of each sample's k(x, x) counts as noise
    basis: str = "pivoted"  # how the basis is chosen unless a user says otherwise
    neighbours: bool = False  # whether the nearest samples model the residual; see `dkgp.models.sparse.vif`

    @property
    def is_bound(self) -> bool:
        """True if the variational bound is this method's evidence: F F' for K, less the residual trace."""
        return self.variance != "subset" and not (self.fitc or self.neighbours)

    @property
    def caution(self) -> str | None:
        """A warning of the method's own variances, where they mislead."""
        if self.variance != "regressors":
            return None
        return (
            f"variances by {self.name} are too small: they are the lower ends of the exact model's intervals, and "
            "go to "
            "zero far from the basis. 95 % intervals then contain too few targets. Use variance_upper, or train "
            "with vfe or dtc"
        )


_DECLARED = (
    SparseMethod("sd", "the exact model on a subset of the samples", "subset", basis="uniform"),
    SparseMethod("sr", "subset of regressors (Nyström), whose variances are too small", "regressors", basis="uniform"),
    SparseMethod(
        "dtc", "deterministic training conditional: the means of sr with corrected variances", "deterministic"
    ),
    SparseMethod(
        "fitc",
        "fully independent training conditional: the residual variance of each sample counts as noise",
        "deterministic",
        fitc=True,
    ),
    SparseMethod("vfe", "variational free energy, with the predictions of dtc", "deterministic"),
    SparseMethod(
        "vif",
        "Vecchia and inducing points: a basis for long-range dependence, and the nearest samples for the residual",
        "deterministic",
        neighbours=True,
    ),
    SparseMethod("sggp", "greedy choice of the basis by the risk after refitting", "deterministic", basis="greedy"),
    SparseMethod("mpgp", "greedy choice of the basis by matching pursuit", "deterministic", basis="greedy"),
)
METHODS: dict[str, SparseMethod] = {method.name: method for method in _DECLARED}


def method_named(name: str) -> SparseMethod:
    """Return a method; `InputError` names those that there are."""
    if name not in METHODS:
        raise InputError(f"unknown sparse method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


@dataclass(frozen=True)
class SparseModel:
    """A fitted sparse GP, on the standardised scale; of one with neighbours the part that its basis has."""

    method: SparseMethod
    kernel: Kernel
    prototypes: FloatArray  # (m, d): basis samples Z
    weights: FloatArray  # (m, p): beta: the mean at x is k_m(x)' beta
    lower: FloatArray  # (m, m), Fortran order: L L' = K_mm and a jitter; of the subset of data, K_SS and its noise
    normal: FloatArray | None  # (m, m), Fortran order: C C' = I + F'DF; None of the subset of data
    centre: FloatArray | None = None  # (d,): of the inputs; see `TileEvaluator`

    @property
    def m(self) -> int:
        """Basis samples."""
        return len(self.prototypes)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = [self.prototypes, self.weights, self.lower, self.normal]
        return sum(array.nbytes for array in arrays if array is not None)

    def mean(self, inputs: FloatArray) -> FloatArray:
        """k_m(x)' beta for standardised inputs (r, d): (r, p)."""
        evaluator = self.evaluator()
        prototypes = evaluator.prepare(self.prototypes)
        return finite_sums(evaluator.matmat(self._rows(evaluator, inputs), prototypes, self.weights), inputs)

    def variance(self, inputs: FloatArray) -> FloatArray:
        """The method's own variance of the function at inputs (r, d): (r,); an observation's has its noise besides."""
        evaluator = self.evaluator()
        prototypes, rows = evaluator.prepare(self.prototypes), self._rows(evaluator, inputs)
        result = np.empty(len(inputs))
        longest = piece_rows(self.m)
        # Where k(x, x) overflows so does the variance.
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(inputs), longest):
                stop = min(start + longest, len(inputs))
                phi = whiten(self.lower, evaluator.tile(prototypes, rows.slice(start, stop)), transposed=False)
                result[start:stop] = self._variance(phi, inputs[start:stop])
        return known(result)

    def _variance(self, phi: FloatArray, inputs: FloatArray) -> FloatArray:
        """From phi = L^-1 k_m (m, r)."""
        explained = np.zeros(phi.shape[1])
        if self.normal is not None:
            solved = whiten(self.normal, phi, transposed=False)
            explained = np.einsum("mr,mr->r", solved, solved)
            if self.method.variance == "regressors":
                return np.asarray(explained)
        prior = np.asarray(self.kernel.diagonal(inputs), dtype=np.float64)
        return np.asarray(np.maximum(prior - np.einsum("mr,mr->r", phi, phi), 0.0) + explained)

    def evaluator(self) -> TileEvaluator:
        """The kernel's tiles in float64, about the model's centre."""
        return TileEvaluator(self.kernel, "double", centre=self.centre)

    def _rows(self, evaluator: TileEvaluator, inputs: FloatArray) -> Features:
        if inputs.ndim != 2 or inputs.shape[1] != self.kernel.n_features:
            raise InputError(f"expected inputs of shape (r, {self.kernel.n_features}); got {inputs.shape}")
        return evaluator.prepare(inputs)


# Beyond it an end from below would be worth little.
LARGEST_NORMAL_SHARE = 0.5


@dataclass(frozen=True)
class Triangle:
    """A Cholesky factor at prototypes, and how errors grow on their way through it."""

    lower: FloatArray  # (m, m), Fortran order
    whitening: Whitening  # with the prototypes' s

    def solve(self, columns: FloatArray, points: Points, prototype_error: float) -> tuple[FloatArray, FloatArray]:
        """phi = L^-1 k_m(x) for columns (m, r), and how far each is off at most: (m, r) and (r,)."""
        phi = np.asarray(whiten(self.lower, columns, transposed=False))
        off = self.whitening.solving * np.linalg.norm(phi, axis=0)
        off += self.whitening.entries * EPS * points.scale * (points.errors + prototype_error)
        return phi, np.asarray(EVALUATION * off)


def subset_triangle(
    evaluator: TileEvaluator, features: Features, prototypes: Points, noise: Variances
) -> Triangle | None:
    """The factor of K_SS and its noise, with a jitter that makes it no smaller; None where it proves nothing."""
    matrix = np.array(evaluator.tile(features, features))
    matrix[np.diag_indices(len(matrix))] += noise
    lower = scipy.linalg.cholesky(
        jittered(matrix, 2.0 * float(prototypes.errors.max())), lower=True, check_finite=False
    )
    whitening = Whitening.of(lower, prototypes.scale)
    return None if whitening is None else Triangle(np.asfortranarray(lower), whitening)


@dataclass(frozen=True)
class VarianceInterval:
    """Bounds on the exact variance of the function; see `interval_of`."""

    model: SparseModel
    evaluator: TileEvaluator
    features: Features  # the prototypes'
    prototypes: Points  # the prototypes
    subset: Triangle | None  # of K_SS and its noise; None where the prototypes are no samples
    regressors: Triangle | None  # L; None where it is too ill-conditioned to prove anything
    normal: Whitening | None  # of C
    normal_share: float  # h: bound on the norm of C C' - (I + F'DF)

    # Overflows and NaN prove nothing: `_least` replaces them by 0.
    @np.errstate(over="ignore", invalid="ignore")
    def __call__(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends at standardised inputs (r, d): (r,) each."""
        points = Points.of(self.model.kernel, self.evaluator, inputs)
        columns = np.asarray(self.evaluator.tile(self.features, self.evaluator.prepare(inputs)))
        worst = float(self.prototypes.errors.max())
        lower, upper = np.zeros(len(inputs)), points.highest.copy()
        with single_threaded_blas():
            if self.subset is not None:
                phi, off = self.subset.solve(columns, points, worst)
                upper = np.minimum(upper, points.highest - _least(phi, off) ** 2 * (1.0 - 4.0 * EPS))
            if self.regressors is not None and self.normal is not None and self.model.normal is not None:
                phi, off = self.regressors.solve(columns, points, worst)
                solved = np.asarray(whiten(self.model.normal, phi, transposed=False))
                # |C^-1| is at most 1 / sqrt(1 - h).
                off = off / np.sqrt(1.0 - self.normal_share)
                off += EVALUATION * self.normal.solving * np.linalg.norm(solved, axis=0)
                share = 1.0 + self.normal_share / (1.0 - self.normal_share)
                lower = _least(solved, off) ** 2 / share * (1.0 - 4.0 * EPS)
        upper = np.nextafter(np.maximum(upper, 0.0), np.inf)
        return np.minimum(np.nextafter(lower, -np.inf), upper), upper


def interval_of(model: SparseModel, noise: Variances | None, normal_share: float) -> VarianceInterval:
    """Prepare an interval: a few m^3 multiply-adds.

    `noise`: of the basis samples; None where they are none of the training set. `normal_share`: see
    `SparseCertificate`.
    """
    evaluator = TileEvaluator(model.kernel, "double", centre=model.centre)
    features = evaluator.prepare(model.prototypes)
    prototypes = Points.of(model.kernel, evaluator, model.prototypes)
    with single_threaded_blas():
        subset = None if noise is None else subset_triangle(evaluator, features, prototypes, noise)
        regressors = normal = None
        # FITC counts more noise, and is less certain than the subset of regressors.
        if model.normal is not None and not model.method.fitc and normal_share < LARGEST_NORMAL_SHARE:
            whitening = Whitening.of(model.lower, prototypes.scale)
            regressors = None if whitening is None else Triangle(model.lower, whitening)
            normal = Whitening.of(model.normal, np.ones(model.m))
    return VarianceInterval(model, evaluator, features, prototypes, subset, regressors, normal, normal_share)


def _least(vectors: FloatArray, off: FloatArray) -> FloatArray:
    """The least length that vectors (m, r) may have, each as far off as `off` says."""
    m = len(vectors)
    # `fmax` replaces NaN by 0: nothing is known there.
    return np.asarray(np.fmax(np.linalg.norm(vectors, axis=0) * (1.0 - (m + 4) * UNIT) - off, 0.0))


# Refined until the decrement is this share of the risk; accepted, where rounding ends it, up to the second.
REFINED, ACCEPTED = 1e-12, 1e-7
MOST_REFINEMENTS = 6
# Limits of F'DF from a choice's sums: its error, by which variances widen in proportion; and m times the error, by
# which log|I + F'DF| moves, as a share of tr(D E), the samples' unexplained variances. Half of
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
    squares: FloatArray  # (n,): squared length of each row of F: the part of k(x, x) that the basis explains
    risk: FloatArray  # (p,): R(beta), by residuals
    decrement: FloatArray  # (p,): by how much the least R on the span is estimated to be below
    passes: int  # times that all entries of K_nm were evaluated
    # Bound on the distance, in norm, between the F'DF that C was made of and that of F as computed, beyond what summing
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
        z = solve_by_factor(normal, projected)
        beta = whiten(lower, z, transposed=True)
        passes, before = 1, np.full(z.shape[1], np.inf)
        while True:
            passes += 1
            residual = _residual(cross, beta, targets, variances)
            z = np.asarray(lower.T @ beta)
            risk = 0.5 * (residual.squares + np.einsum("mp,mp->p", z, z))
            zeta = whiten(lower, residual.projected, transposed=False) - z
            step = solve_by_factor(normal, zeta)
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
    taken off, evaluated once more, by 2 eps s_i s_j (e_i + e_j) <= 8 max(e) u a_i a_j, and one for the difference. An
    error E with |E_ij| <= c a_i a_j becomes, by L^-1, one of norm at most c || |L^-1| a ||^2.

    X = L^-1 G and Y = X L^-T as solved have L X = G + E, |E| <= gamma |L| |X|, and Y L' = X + E', |E'| <= gamma |Y|
    |L'| (Higham 2002, theorem 8.5). So Y is off by gamma |Y| B' + gamma (1 + gamma) B |Y| B', B = |L^-1| |L|: in
    Frobenius' norm by gamma b (1 + b) ||Y||_F, b = ||B||, apart from the margin of `EVALUATION`; and by sqrt(2) times
    that if one triangle stands for both.
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


def _residual(cross: CrossKernel, beta: FloatArray, targets: FloatArray, variances: Variances) -> CrossResidual:
    """K_mn D r and r'D r."""
    if not isinstance(variances, float):
        return cross.residual(beta, targets, variances)
    residual = cross.residual(beta, targets)
    return CrossResidual(residual.projected / variances, residual.squares / variances, None)


# Sums of squares and of products of numbers within it do not overflow float64, and neither do their quotients.
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
                f"{what} is {value:.3g}; expected a value between {SMALLEST:g} and {LARGEST:g} in a sparse model. "
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
        weights = solve_by_factor(lower, targets[indices])
    return SparseModel(method, operator.kernel, operator.inputs(indices), np.asarray(weights), lower, None, centre)
