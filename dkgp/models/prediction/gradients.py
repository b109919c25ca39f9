"""Gradients of predictions in their inputs: of the mean, with a proven bound on its error, and of the deviation.

The mean's is a sum over all training samples, as the mean is. With w = Kbar^-1 k_x the variance of the function has

    dV / dx_l = dk(x, x) / dx_l - 2 (dk_x / dx_l)'w,

and the deviation dV / dx_l / (2 sqrt V), the noise being the same everywhere. w comes from a Cholesky factor of all
samples: one of an exact model that memory holds, built once.

The mean of a sparse model's basis is f(x) = k_m(x)' beta. The proof of it, |f - f*|_H <= sqrt(2 w) for the exact mean
f*, holds for its derivatives by their norm: |df / dx_l - df* / dx_l| <= G_l(x) sqrt(2 w). With phi = L^-1 k_m(x) the
method's variance is |C^-1 phi|^2, with k(x, x) - |phi|^2 added but by the subset of regressors, so that

    dV / dx_l = dk(x, x) / dx_l + 2 (dk_m / dx_l)' L^-T (C^-T C^-1 phi - phi).

A model with neighbours predicts by these too: its derivatives are those of `NearPredictor`. The bound on its mean's is
the bound of f's and the distance between the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import psutil

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import in_parallel, process_threads, single_threaded_blas
from dkgp.data import ModelRecord
from dkgp.data.stores.models.model import KernelModel
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.models.certificate import Certificate, slope_rounding
from dkgp.models.prediction.exact import ExactPosterior
from dkgp.models.prediction.posterior import Want, standardised
from dkgp.models.rounding import EPS, EVALUATION, UNIT, known
from dkgp.models.sparse.stored import OpenedSparse
from dkgp.models.sums import SupportInputs
from dkgp.models.trend import Trend
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.whole_matrix import are_held, whole_layout
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, CachedRows
from dkgp.operators.cross_sums import cross_slopes
from dkgp.operators.low_rank.pivots import solve_by_factor, whiten
from dkgp.registry import byte_text

# Test samples whose sums one thread takes at a time, and whose deviations are solved for together.
PIECE_ROWS, SOLVED_TOGETHER = 64, 64
# Share of a derivative's bound that an error of its sum may add. The bound counts at most as that of a mean with an
# error of one deviation of the noise.
SHARE_OF_BOUND = 0.01
# Share of the free memory that a factor may use.
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Gradients:
    """Derivatives in raw inputs, of values in the targets' units: (r, p, d).

    `error`: bounds on their errors; None of a sparse model's own deviations, which come from nothing but its basis.
    `deviation`: the deviations (r, p), where the derivatives are of these.
    """

    gradient: FloatArray
    error: FloatArray | None
    deviation: FloatArray | None = None


class GradientPredictor(ABC):
    """Gradients of a model's predictions at rows in memory; `InputError` for a kernel without gradient."""

    nbytes = 0  # in a worker's cache, which counts columns and factors separately
    model: KernelModel

    def __call__(self, inputs: FloatArray) -> Gradients:
        """Differentiate at raw inputs: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError` for another number of features, or values that are not finite.
        """
        found, width = self._at(standardised(self.model, inputs)), inputs.shape[1]
        bound = np.zeros_like(found.gradient) if found.error is None else found.error
        gradient, error = in_units(self.model, found.gradient, bound, width)
        scale = np.asarray(self.model.standardisation.target_std)
        deviation = None if found.deviation is None else found.deviation[:, None] * scale
        return Gradients(gradient, None if found.error is None else error, deviation)

    @abstractmethod
    def _at(self, rows: FloatArray) -> Gradients:
        """Return derivatives and bounds (r, p, d), and deviations (r,), standardised, at standardised rows (r, d)."""


class MeanGradients(GradientPredictor):
    """Gradients of the mean of an exact model.

    At many rows of a model of many samples, sums are within proven errors that add a hundredth to the bounds at most.

    `version`: as for `Want`.
    """

    def __init__(self, model: ModelRecord, version: str) -> None:
        self.model, self._alpha = model, model.alpha
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        self._deviation = float(np.sqrt(noise_variance))
        self._slopes = SlopeSums(BlockContext(version, SupportInputs.of(model, version), kernel, model.n_samples))
        self._certificate = Certificate.from_json(dict(model.certificate))
        self._trend = Trend.held(model.trend)
        if model.standardisation.covariates:
            raise InputError(
                f"the mean of this model has the covariates {', '.join(model.standardisation.covariate_names)}, in "
                "which its derivatives are not known; predict at points beside each other instead"
            )

    def _at(self, rows: FloatArray) -> Gradients:
        sizes = self._slopes.evaluator.sizes(rows)
        bound = self._certificate.gradient_error_bound(sizes, self._slopes.errors, self._slopes.evaluator.leaves)
        errors = SHARE_OF_BOUND * np.minimum(bound, self._deviation * sizes.slope[:, None, :])
        gradient, off = self._slopes.within(rows, self._alpha, errors)
        if off is not None:
            bound = np.nextafter(bound + off, np.inf)
        if self._trend is not None:
            gradient, bound = self._trend.slopes_at(gradient, bound, rows, off)
        return Gradients(gradient, bound)


class DeviationGradients(GradientPredictor):
    """Gradients of the deviation of an exact model, by a factor of all samples, which is built when this is made.

    `version`: as for `Want`. `latent`: of the function itself; otherwise of a new observation.

    Raises `InputError` for a factor that memory does not hold, noise that depends on the inputs, and a mean whose
    coefficients are uncertain.
    """

    def __init__(self, model: ModelRecord, version: str, *, latent: bool) -> None:
        self.model = model
        if not latent and model.noise_model is not None:
            raise InputError(
                "the noise of this model depends on the inputs, and its gradient is not known; ask for that of the "
                "function's deviation (`latent`)"
            )
        if model.trend is not None:
            raise InputError(
                "the deviation of this model holds that of its mean's coefficients, whose gradient is not known; ask "
                "for the mean's gradient alone, or fit with `mean` centred"
            )
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        context = BlockContext(version, SupportInputs.of(model, version), kernel, model.n_samples)
        self._subject = Subject.of(replace(model, noise_variance=noise_variance), context)
        self._slopes = SlopeSums(self._subject.context)
        needed = whole_layout(model.n_samples).disk_bytes
        room = int(MEMORY_SHARE * psutil.virtual_memory().available)
        if needed > room and not are_held(self._subject.context):
            raise InputError(
                f"the deviation's gradient takes a Cholesky factor of all {model.n_samples:,} samples, which is "
                f"{byte_text(needed)} where {byte_text(room)} are free for it; ask for the mean's alone, or fit a "
                "SparseGPRegressor, whose deviations have gradients at any number of samples"
            )
        # Narrow intervals: the errors of gradients are proportional to their widths.
        settings = VarianceSettings(way="cholesky", latent=latent, gap=1e-6)
        self._posterior = ExactPosterior(model, Want.in_memory(version, settings))
        self._factor = self._posterior.whole_factor()

    def _at(self, rows: FloatArray) -> Gradients:
        starts = range(0, max(1, len(rows)), SOLVED_TOGETHER)
        results = [self._solved(rows[start : start + SOLVED_TOGETHER]) for start in starts]
        deviation, gradient, error = (np.concatenate(parts) for parts in zip(*results, strict=True))
        return Gradients(gradient[:, None, :], error[:, None, :], deviation)

    def _solved(self, rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return deviations (r,), their derivatives and errors (r, d), standardised."""
        d = rows.shape[1]
        with single_threaded_blas():
            lower, upper = self._posterior.interval(rows)
            points = np.column_stack([rows, np.ones(len(rows))]) if self._subject.is_scaled else rows
            w, residual = self._factor.weights(points, threads=process_threads())
        sizes = self._slopes.evaluator.sizes(points)
        slope = self._slopes.diagonal(points, w)
        steepness = 2.0 * (sizes.along - slope)[:, :d]
        magnitude = np.sqrt(self._factor.roundings.scales.prior) @ np.abs(w) * EVALUATION
        s2 = self._factor.roundings.noise_variance
        off = 2.0 * EVALUATION * sizes.slope * (residual / np.sqrt(s2))[:, None]
        roundings = slope_rounding(sizes, self._slopes.errors, self._slopes.evaluator.leaves, len(w), magnitude)
        off += 2.0 * np.einsum("iil->il", roundings)
        # Of samples whose noise is known, s_i stands for a noise within 4u of itself.
        off += 16.0 * UNIT * sizes.slope * sizes.scale[:, None]
        # The derivative of k(x, x), and the difference.
        off += UNIT * (64.0 + 2.0 * sizes.errors[:, None]) * (np.abs(sizes.along) + np.abs(slope))
        return _of_root(lower, upper, steepness, off[:, :d])


def _of_root(
    lower: FloatArray, upper: FloatArray, steepness: FloatArray, off: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """sqrt(V) (r,), its derivatives (r, d) and their errors, for V within an interval and dV / dx within `off`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = np.sqrt(0.5 * (lower + upper))
        halves = 0.5 / middle
        spread = np.maximum(0.5 / np.sqrt(lower) - halves, halves - 0.5 / np.sqrt(upper)) * (1.0 + 16.0 * EPS)
        gradient = steepness * halves[:, None]
        error = off * (0.5 / np.sqrt(lower))[:, None] + np.abs(steepness) * spread[:, None]
        error = error * (1.0 + 16.0 * EPS) + 8.0 * EPS * np.abs(gradient)
    return middle, np.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0), known(error)


class SlopeSums:
    """Sums of a kernel's derivatives over the samples of a context, block by block from this process's cache."""

    def __init__(self, context: BlockContext) -> None:
        self.context, self.evaluator = context, SlopeEvaluator(context.kernel)
        blocks = range(context.n_blocks)
        # The largest e of any training sample; they differ for periodic kernels alone.
        self.errors = max(float(self.evaluator.sizes(self._rows(block)).errors.max()) for block in blocks)

    def __call__(self, rows: FloatArray, weights: FloatArray) -> FloatArray:
        """sum_j weights_jt dk(x, x_j) / dx_l at standardised rows (r, d), for weights (n, t): (r, t, d)."""
        result = np.zeros((len(rows), weights.shape[1], rows.shape[1]))

        def work(piece: int) -> None:
            where = slice(piece * PIECE_ROWS, (piece + 1) * PIECE_ROWS)
            for block in range(self.context.n_blocks):
                first, last = self.context.bounds(block)
                result[where] += self.evaluator.sums(rows[where], self._columns(block), weights[first:last])

        in_parallel(work, -(-len(rows) // PIECE_ROWS))
        return result

    def within(self, rows: FloatArray, weights: FloatArray, errors: FloatArray) -> tuple[FloatArray, FloatArray | None]:
        """Return the sums at standardised rows, and how far they may be off besides rounding: at most `errors`.

        All (r, t, d). Without a second, every entry was evaluated. `weights` are the same at each call.
        """
        approximate = cross_slopes(self.context, self.evaluator, rows, weights, errors) if len(rows) else None
        if approximate is None:
            return self(rows, weights), None
        sums, bounds = approximate
        beyond = np.flatnonzero(~(bounds <= errors).all(axis=(1, 2)))
        if len(beyond):
            sums[beyond], bounds[beyond] = self(rows[beyond], weights), 0.0
        return sums, bounds

    def diagonal(self, rows: FloatArray, weights: FloatArray) -> FloatArray:
        """sum_j weights_ji dk(x_i, x_j) / dx_l at each row x_i with weights of its own, (n, r): (r, d)."""
        result = np.zeros(rows.shape)

        def work(i: int) -> None:
            for block in range(self.context.n_blocks):
                first, last = self.context.bounds(block)
                of_row = np.ascontiguousarray(weights[first:last, i : i + 1])
                result[i] += self.evaluator.sums(rows[i : i + 1], self._columns(block), of_row)[0, 0]

        in_parallel(work, len(rows))
        return result

    def _rows(self, block: int) -> FloatArray:
        return self.context.source.inputs(*self.context.bounds(block))

    def _columns(self, block: int) -> FloatArray:
        key = (self.context.run_id, block, "slope columns")
        return worker_cache().get(key, lambda: CachedRows(self.evaluator.coordinates(self._rows(block)))).values


def in_units(model: KernelModel, gradient: FloatArray, bound: FloatArray, width: int) -> tuple[FloatArray, FloatArray]:
    """Derivatives (r, p, d) and bounds, standardised, in the targets' units per unit of `width` raw inputs.

    Two roundings, then outward; features that were constant, where `width` counts them, change nothing.
    """
    to = model.standardisation
    factors = np.asarray(to.target_std)[:, None] / np.asarray(to.input_std)
    with np.errstate(over="ignore"):
        result, error = gradient * factors, bound * factors * (1.0 + 8.0 * EPS)
        error = np.nextafter(error + 4.0 * EPS * np.abs(result), np.inf)
    if width == result.shape[2]:
        return result, error
    kept = np.flatnonzero(to.kept)
    whole = np.zeros((2, *result.shape[:2], width))
    whole[0][:, :, kept], whole[1][:, :, kept] = result, error
    return whole[0], whole[1]


# Number of test samples per step.
SPARSE_ROWS = 256


class SparseMeanGradients(GradientPredictor):
    """Gradients of a sparse model's mean."""

    def __init__(self, opened: OpenedSparse) -> None:
        self._opened, model = opened, opened.model
        self.model = opened.record
        self._slopes = SlopeEvaluator(model.kernel)
        self._columns = self._slopes.coordinates(model.prototypes)
        self._errors = float(self._slopes.sizes(model.prototypes).errors.max())

    def _at(self, rows: FloatArray) -> Gradients:
        model, certificate = self._opened.model, self._opened.certificate
        parts = []
        for start in range(0, max(1, len(rows)), SPARSE_ROWS):
            piece = rows[start : start + SPARSE_ROWS]
            sizes = self._slopes.sizes(piece)
            distance = np.sqrt(2.0 * certificate.excess) * (1.0 + 8.0 * EPS)
            magnitude = np.asarray(certificate.magnitude)
            bound = sizes.slope[:, None, :] * distance[:, None]
            bound = bound + slope_rounding(sizes, self._errors, self._slopes.leaves, model.m, magnitude)
            parts.append((self._slopes.sums(piece, self._columns, model.weights), known(bound)))
        gradient, bound = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if self._opened.near_predictor is not None:
            near = self._opened.near_predictor.slopes(rows, self._slopes, self._columns, of_variance=False)
            # A difference of two numbers, and a sum.
            gradient, bound = near, known((np.abs(near - gradient) + bound) * (1.0 + 4.0 * EPS))
        return Gradients(gradient, bound)


class SparseDeviationGradients(GradientPredictor):
    """Gradients of a sparse model's own deviation, noise included unless `latent`."""

    def __init__(self, opened: OpenedSparse, *, latent: bool) -> None:
        self._opened, model = opened, opened.model
        self.model = opened.record
        self._slopes = SlopeEvaluator(model.kernel)
        self._columns = self._slopes.coordinates(model.prototypes)
        self._noise = 0.0 if latent else opened.record.noise_variance

    def _at(self, rows: FloatArray) -> Gradients:
        model, near = self._opened.model, self._opened.near_predictor
        if near is None:
            variance, steepness = model.variance(rows), self._steepness(rows)
        else:
            _, variance, _ = near.predicted(rows, None)
            steepness = near.slopes(rows, self._slopes, self._columns, of_variance=True)[:, 0]
        if model.method.variance != "regressors":
            steepness = steepness + self._slopes.sizes(rows).along
        deviation = np.sqrt(variance + self._noise)
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(deviation[:, None] > 0.0, steepness / deviation[:, None], 0.0)
        return Gradients(slopes[:, None, :], None, deviation)

    def _steepness(self, rows: FloatArray) -> FloatArray:
        """Return half of the basis' dV / dx at standardised rows, without the derivative of k(x, x): (r, d)."""
        model = self._opened.model
        weights, steepness = np.empty((model.m, len(rows))), np.empty(rows.shape)
        evaluator = model.evaluator()
        prototypes = evaluator.prepare(model.prototypes)
        for start in range(0, len(rows), SPARSE_ROWS):
            where = slice(start, start + SPARSE_ROWS)
            weights[:, where] = self._weights(evaluator.tile(prototypes, evaluator.prepare(rows[where])))
        for i in range(len(rows)):
            of_row = np.ascontiguousarray(weights[:, i : i + 1])
            steepness[i] = self._slopes.sums(rows[i : i + 1], self._columns, of_row)[0, 0]
        return steepness

    def _weights(self, columns: FloatArray) -> FloatArray:
        """L^-T (C^-T C^-1 phi - phi) of columns k_m (m, r); of the subset of regressors without the last term."""
        model = self._opened.model
        with single_threaded_blas():
            phi = np.asarray(whiten(model.lower, columns, transposed=False))
            result = np.zeros_like(phi)
            if model.normal is not None:
                result += solve_by_factor(model.normal, phi)
            if model.normal is None or model.method.variance != "regressors":
                result -= phi
            return np.asarray(whiten(model.lower, result, transposed=True))
