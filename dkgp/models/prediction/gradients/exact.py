"""Gradients of predictions in their inputs: of the mean, with a proven bound on its error, and of the deviation.

The mean's is a sum over all training samples, as the mean is. With w = Kbar^-1 k_x the variance of the function has

    dV / dx_l = dk(x, x) / dx_l - 2 (dk_x / dx_l)'w,

and the deviation dV / dx_l / (2 sqrt V), the noise being the same everywhere. w comes from a Cholesky factor of all
samples: one of an exact model that memory holds, built once. A sparse model has its own, of its basis.
"""

from __future__ import annotations

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
from dkgp.models.noise import NoiseModel
from dkgp.models.prediction.predictor import Predictor, standardised
from dkgp.models.rounding import EPS, EVALUATION, UNIT, known
from dkgp.models.sums import SupportInputs
from dkgp.models.trend import Trend
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.whole_matrix import are_held, whole_layout
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, CachedRows
from dkgp.operators.cross_sums import cross_slopes

# Test samples whose sums one thread takes at a time, and whose deviations are solved for together.
PIECE_ROWS, SOLVED_TOGETHER = 64, 64
# Share of a derivative's bound that an error of its sum may add; the bound taken for at most that of a mean which is a
# deviation of the noise off.
SHARE_OF_BOUND = 0.01
# Of the memory that is free, what a factor may take.
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Gradients:
    """Derivatives in raw inputs, of values in the targets' units, and bounds on their errors: (r, p, d) each."""

    gradient: FloatArray
    error: FloatArray


@dataclass(frozen=True)
class DeviationGradients:
    """Deviations (r, p) and their derivatives, with bounds on those' errors, (r, p, d), in the targets' units.

    Of a sparse model's own deviations, which are made of nothing but its basis, there is no bound.
    """

    deviation: FloatArray
    gradient: FloatArray
    error: FloatArray | None


class GradientPredictor:
    """Gradients of the mean of an exact model at rows in memory.

    At many rows of a model of many samples, sums are within proven errors that add a hundredth to the bounds at most.

    `model`, `version`: as for `Predictor`.

    Raises `InputError` for a kernel without gradient.
    """

    nbytes = 0  # in a worker's cache, which counts columns by themselves

    def __init__(self, model: ModelRecord, version: str) -> None:
        self._model = model
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        self._deviation = float(np.sqrt(noise_variance))
        self._slopes = SlopeSums(BlockContext(version, SupportInputs.of(model, version), kernel, model.n_samples))
        self._certificate = Certificate.from_json(dict(model.certificate))
        self._trend = Trend.held(model.trend)

    def __call__(self, inputs: FloatArray) -> Gradients:
        """Differentiate the mean at raw inputs: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        rows = standardised(self._model, inputs)
        sizes = self._slopes.evaluator.sizes(rows)
        bound = self._certificate.gradient_error_bound(sizes, self._slopes.errors, self._slopes.evaluator.leaves)
        errors = SHARE_OF_BOUND * np.minimum(bound, self._deviation * sizes.slope[:, None, :])
        gradient, off = self._slopes.within(rows, self._model.alpha, errors)
        if off is not None:
            bound = np.nextafter(bound + off, np.inf)
        if self._trend is not None:
            gradient, bound = self._trend.slopes_at(gradient, bound, off)
        return Gradients(*in_units(self._model, gradient, bound, inputs.shape[1]))


class DeviationPredictor:
    """Gradients of the deviation of an exact model, by a factor of all samples, which is built when this is made.

    `model`, `version`: as for `Predictor`. `latent`: of the function itself; otherwise of a new observation.

    Raises `InputError` for a kernel without gradient, a factor that memory does not hold, noise that depends on the
    inputs, and a mean whose coefficients are uncertain.
    """

    nbytes = 0  # in a worker's cache, which counts the factor by itself

    def __init__(self, model: ModelRecord, version: str, *, latent: bool) -> None:
        self._model, self._latent = model, latent
        if not latent and NoiseModel.held(model.noise_model) is not None:
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
                f"{needed / 1e9:.3g} GB where {room / 1e9:.3g} GB are free for it; ask for the mean's alone, or fit a "
                "SparseGPRegressor, whose deviations have gradients at any number of samples"
            )
        # Narrow intervals: what deviations are, their gradients are relative to.
        settings = VarianceSettings(way="cholesky", latent=latent, gap=1e-6)
        self._predictor = Predictor(model, version, settings)
        self._factor = self._predictor.whole_factor()

    def __call__(self, inputs: FloatArray) -> DeviationGradients:
        """Differentiate the deviation at raw inputs: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        rows, width = standardised(self._model, inputs), inputs.shape[1]
        starts = range(0, max(1, len(rows)), SOLVED_TOGETHER)
        results = [self._at(rows[start : start + SOLVED_TOGETHER]) for start in starts]
        deviation, gradient, error = (np.concatenate(parts) for parts in zip(*results, strict=True))
        scale = np.asarray(self._model.standardisation.target_std)
        gradient, error = in_units(self._model, gradient[:, None, :], error[:, None, :], width)
        return DeviationGradients(deviation[:, None] * scale, gradient, error)

    def _at(self, rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Deviations (r,), their derivatives and errors (r, d), standardised."""
        d = rows.shape[1]
        with single_threaded_blas():
            lower, upper = self._predictor.standardised_interval(rows)
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
