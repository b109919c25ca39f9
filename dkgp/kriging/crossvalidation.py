"""Cross-validation of a kriged field: leave-one-out without refits, in proven intervals, and blocks of samples.

With P = Kbar^-1 - Kbar^-1 H G^-1 H'Kbar^-1 and alpha = P z, the error of the prediction of sample i from all others is
e_i = z_i - z_-i = alpha_i / P_ii, and its variance 1 / P_ii. Those of a set b of samples are P_bb^-1 alpha_b and
P_bb^-1 (Dubrule 1983). The mean is fitted again without them, and the variogram stays.

For few samples P_ii comes from the inverse S of Kbar: with r = e_i - Kbar s_i,

    (Kbar^-1)_ii = s_ii + s_i'r + r'Kbar^-1 r,     0 <= r'Kbar^-1 r <= |r|^2 / min n.

For many it comes from the interval of the variance V_i of the signal at the sample: P_ii = (n_i - V_i) / n_i^2, n_i the
sample's noise. alpha is off by the residual of the solve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.spatial
from numpy.typing import ArrayLike

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, StoreError
from dkgp.kernels import kernel_from_json
from dkgp.kriging.field import Field, Solving
from dkgp.kriging.grids import Grid
from dkgp.kriging.samples import Samples, groups_of
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.trend import Drift, Trend
from dkgp.models.variance.settings import VarianceSettings

# Samples whose matrix is inverted in this process: some five arrays of n x n numbers.
MOST_INVERTED = 4096
# Relative width of the intervals of leave-one-out variances beyond.
_GAP = 0.05
_NORMAL_95 = 1.959963984540054
# Roundings of an entry of the matrix: direct differences, a profile of a few operations.
_ENTRY = 64.0


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Errors of leave-one-out predictions, value minus prediction, in the target's units: (n, p) each.

    The exact errors lie between `error_lower` and `error_upper`, the variances of the left-out values between
    `variance_lower` and `variance_upper`. Where the upper end is infinite, nothing is proven, and errors and variances
    are NaN.
    """

    error: FloatArray
    error_lower: FloatArray
    error_upper: FloatArray
    variance: FloatArray
    variance_lower: FloatArray
    variance_upper: FloatArray


def leave_one_out(field: Field, *, most_inverted: int = MOST_INVERTED) -> LeftOut:
    """Return the errors of predicting each sample from all others; see this module.

    Parameters
    ----------
    field : Field
    most_inverted : int
        Up to so many samples the covariance matrix is inverted in this process, in time n^3. Beyond, each sample takes
        the interval of a variance.
    """
    noise, p = _noise(field), field.record.n_targets
    if field.n_samples <= most_inverted:
        with single_threaded_blas():
            diagonal = _inverse_diagonal(field, noise)
        alpha, bound, taken = _alpha(field, diagonal[1])
        lower, upper = np.maximum(diagonal[0] - taken[1], 0.0), diagonal[1] - taken[0]
    else:
        alpha, bound, _ = _alpha(field, 1.0 / noise)
        lower, upper = _from_variances(field, noise)
    # The variance of a left-out value is at least its noise.
    upper = np.minimum(upper * (1.0 + 4.0 * EPS), 1.0 / noise * (1.0 + 2.0 * EPS))
    lower = np.minimum(np.maximum(lower * (1.0 - 4.0 * EPS), 0.0), upper)
    middle = np.where(lower > 0.0, 0.5 * (lower + upper), np.nan)
    unit = field.unit[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        most, least = (1.0 / lower)[:, None], (1.0 / upper)[:, None]
        ends = np.stack([(alpha + sign * bound) * end for sign in (-1.0, 1.0) for end in (least, most)])
        ends = np.where(np.isnan(ends), 0.0, ends)
        error = alpha / middle[:, None]
    wide = 1.0 + 8.0 * EPS
    low, high = ends.min(axis=0) * unit, ends.max(axis=0) * unit
    low, high = np.where(low > 0.0, low / wide, low * wide), np.where(high > 0.0, high * wide, high / wide)
    ones = np.ones((1, p))
    return LeftOut(
        error * unit,
        low,
        high,
        (1.0 / middle)[:, None] * unit**2,
        least * ones * unit**2 / wide,
        most * ones * unit**2 * wide,
    )


def _noise(field: Field) -> FloatArray:
    """Return the noise of each sample on the engine's scale: (n,)."""
    _, noise = Noise.of_model(field.record).without_white(kernel_from_json(field.record.kernel))
    return np.array(np.broadcast_to(noise.diagonal, (field.n_samples,)), dtype=np.float64)


def _matrix(field: Field, noise: FloatArray) -> FloatArray:
    """Return Kbar: (n, n)."""
    inputs = field.sample_inputs
    matrix = np.array(kernel_from_json(field.record.kernel)(inputs, inputs))
    matrix[np.diag_indices_from(matrix)] += noise
    return matrix


def _inverse(matrix: FloatArray) -> FloatArray:
    try:
        factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        raise InputError(
            "the covariance matrix is singular to float64; give a nugget of at least 1e-8 of the sill"
        ) from None
    return np.asarray(scipy.linalg.cho_solve(factor, np.eye(len(matrix)), overwrite_b=True, check_finite=False))


def _inverse_diagonal(field: Field, noise: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the diagonal of Kbar^-1: (n,) each."""
    matrix, n = _matrix(field, noise), len(noise)
    inverse = _inverse(matrix)
    rest = matrix @ inverse
    np.negative(rest, out=rest)
    rest[np.diag_indices_from(rest)] += 1.0
    # The error of a column of the residual: products of n terms, entries of the matrix, the difference.
    terms = math.sqrt(n) * np.abs(inverse).sum(axis=0) + np.sqrt(((noise[:, None] * inverse) ** 2).sum(axis=0))
    lengths, columns = np.linalg.norm(rest, axis=0), np.linalg.norm(inverse, axis=0)
    unknown = EVALUATION * UNIT * ((n + _ENTRY + 8.0) * terms + 2.0 * lengths)
    form = inverse.diagonal() + np.einsum("ij,ij->j", inverse, rest)
    slack = EVALUATION * (columns * unknown + (n + 4.0) * UNIT * (columns * lengths + inverse.diagonal()))
    above = EVALUATION * (lengths + unknown) ** 2 / noise.min()
    return np.maximum(form - slack, 0.0), form + slack + above


def _alpha(field: Field, diagonal: FloatArray) -> tuple[FloatArray, FloatArray, tuple[FloatArray, FloatArray]]:
    """Return alpha, bounds on its error, and the ends of the mean's part of the diagonal of Kbar^-1 - P.

    (n, p) twice, and (n,) twice. `diagonal` bounds the diagonal of Kbar^-1.
    """
    record, trend = field.record, Trend.held(field.record.trend)
    certificate = Certificate.from_json(dict(record.certificate))
    factor = certificate.proven_residual_norm / math.sqrt(certificate.noise_variance) * (1.0 + 8.0 * EPS)
    bound = np.sqrt(diagonal)[:, None] * factor * (1.0 + 8.0 * EPS)
    if trend is None:
        zero = np.zeros(field.n_samples)
        return record.alpha, bound, (zero, zero)
    # e_i'Kbar^-1 stands in the place of k'Kbar^-1, and zero in that of h.
    known = trend.taken(record.alpha, bound, np.zeros((field.n_samples, trend.count)))
    return known.mean, known.bound, (known.lower, known.upper)


def _from_variances(field: Field, noise: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the diagonal of P from intervals of variances: (n,) each."""
    settings = VarianceSettings(gap=_GAP * float(np.min(noise / (1.0 + noise))), latent=True)
    rows = _rows(field)
    columns = field.fitted.posterior(settings, len(rows))(rows)
    # Rows have roundings of their way back from the standardised ones.
    moved = 8.0 * EPS * float(np.linalg.norm(np.abs(rows).max(axis=0)))
    variance = field.variogram.field_variance
    rise = max(variance - float(field.variogram.covariance(moved)), 0.0) + 16.0 * EPS * variance
    step = math.sqrt(2.0 * rise / variance)
    square = field.unit[0] ** 2
    low, high = columns["variance_lower"][:, 0] / square, columns["variance_upper"][:, 0] / square
    low, high = np.maximum(np.sqrt(low) - step, 0.0) ** 2, (np.sqrt(high) + step) ** 2
    slack = 8.0 * EPS * noise
    return np.maximum(noise - high - slack, 0.0) / noise**2, (noise - low + slack) / noise**2


def _rows(field: Field) -> FloatArray:
    """Return the samples' coordinates without anisotropy and covariates, not standardised: (n, k + c)."""
    record = field.record
    rows = np.concatenate([record.rows(*rows) for rows in record.row_chunks()])
    return np.asarray(rows * record.standardisation.row_std + record.standardisation.row_mean)


# ---------------------------------------------------------------------------------------------------------- the folds


@dataclass(eq=False)
class BlockKFold:
    """Folds of samples by the blocks of a lattice: those of verde's `BlockKFold`, a splitter of scikit-learn.

    Samples of a block are left out together, so that no close neighbour of a test sample is in the training set.

    Parameters
    ----------
    spacing : float or (north, east), optional
        Size of the blocks, adjusted to the region of the samples. Or `shape`, the number of blocks (rows, columns).
    shape : (int, int), optional
    n_splits : int, default 5
    shuffle : bool, default False
        Distribute the blocks over the folds at random.
    random_state : int, optional
        Seed of `shuffle`.
    balance : bool, default True
        Folds of nearly equal numbers of samples; else of blocks.

    Raises
    ------
    InputError
        Both or neither of `spacing` and `shape`, fewer than 2 folds, or fewer blocks than folds.
    """

    spacing: Any = None
    shape: tuple[int, int] | None = None
    n_splits: int = 5
    shuffle: bool = False
    random_state: int | None = None
    balance: bool = True

    def __post_init__(self) -> None:
        if (self.spacing is None) == (self.shape is None):
            raise InputError("give either `spacing` or `shape` of the blocks")
        if self.n_splits < 2:
            raise InputError(f"cross-validation needs at least 2 folds; got {self.n_splits}")

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(self, X: ArrayLike, y: Any = None, groups: Any = None) -> Iterator[tuple[IntArray, IntArray]]:
        """Iterate over the rows of the training and the test set of each fold.

        Parameters
        ----------
        X : (n, 2) array_like
            Easting and northing.
        """
        rows = np.arange(len(np.asarray(X)))
        for test in self.folds(np.asarray(X, dtype=np.float64)):
            yield np.setdiff1d(rows, test), test

    def folds(self, places: FloatArray) -> list[IntArray]:
        """Return the rows of each fold, of places (n, 2 or more)."""
        labels = self._labels(places[:, 0], places[:, 1])
        blocks = np.unique(labels)
        if self.n_splits > len(blocks):
            raise InputError(
                f"the samples lie in {len(blocks)} blocks, fewer than the {self.n_splits} folds; take smaller blocks "
                "or fewer folds"
            )
        if self.shuffle:
            np.random.RandomState(self.random_state).shuffle(blocks)
        cuts = None
        if self.balance:
            sizes = np.cumsum([np.count_nonzero(labels == block) for block in blocks])
            cuts = np.searchsorted(sizes, np.arange(1, self.n_splits) * (sizes[-1] // self.n_splits), side="right")
        if cuts is None or len(np.unique(cuts)) < len(cuts) or 0 in cuts:
            counts = np.full(self.n_splits, len(blocks) // self.n_splits)
            counts[: len(blocks) % self.n_splits] += 1
            cuts = np.cumsum(counts)[:-1]
        return [np.flatnonzero(np.isin(labels, part)) for part in np.split(blocks, cuts)]

    def _labels(self, x: FloatArray, y: FloatArray) -> IntArray:
        """Return the block of each sample, numbered row by row from the south-west."""
        region = (float(x.min()), float(x.max()), float(y.min()), float(y.max()))
        grid = Grid.of(region, shape=self.shape, spacing=self.spacing, pixel_register=True)
        edges = region[2], region[0]
        parts = [
            np.clip(np.floor((values - edge) / step).astype(np.int64), 0, count - 1)
            for values, edge, step, count in zip((y, x), edges, grid.spacing, grid.shape, strict=True)
        ]
        return parts[0] * grid.shape[1] + parts[1]


def random_folds(n: int, folds: int, seed: int = 0) -> list[IntArray]:
    """Return the rows of folds of single samples, drawn at random; `InputError` for more folds than samples."""
    if not 2 <= folds <= n:
        raise InputError(f"cross-validation has 2 to {n} folds, the number of samples; got {folds}")
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(n), folds)]


def folds_errors(
    field: Field,
    folds: Sequence[IntArray],
    client: Any = None,
    *,
    context: RunContext | None = None,
    most_inverted: int = MOST_INVERTED,
) -> tuple[FloatArray, FloatArray]:
    """Return errors and variances of samples that are predicted from the other folds: (n, p) each.

    Up to `most_inverted` samples by one inverse, P_bb^-1 alpha_b; beyond by a refit for each fold, with the variogram
    of all samples, on the workers of a client or of a context. The samples of no fold have NaN.
    """
    shape = (field.n_samples, field.record.n_targets)
    errors, variances = np.full(shape, np.nan), np.full(shape, np.nan)
    few = field.n_samples <= most_inverted
    if few:
        with single_threaded_blas():
            matrix = _projected_inverse(field)
        alpha, _, _ = _alpha(field, np.ones(field.n_samples))
    for number, rows in enumerate(folds):
        if not few:
            errors[rows], variances[rows] = _refitted(field, rows, client, context)
            continue
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(matrix[np.ix_(rows, rows)]))
        except np.linalg.LinAlgError:
            raise InputError(
                f"the samples without fold {number} do not determine the mean; take smaller blocks or more folds"
            ) from None
        errors[rows] = inverse.T @ (inverse @ alpha[rows]) * field.unit
        variances[rows] = (inverse**2).sum(axis=0)[:, None] * field.unit**2
    return errors, variances


def _projected_inverse(field: Field) -> FloatArray:
    """Return P: (n, n)."""
    inverse = _inverse(_matrix(field, _noise(field)))
    record, trend = field.record, Trend.held(field.record.trend)
    if trend is None:
        return inverse
    columns = np.concatenate([trend.kind.columns_at(record.rows(*rows)) for rows in record.row_chunks()])
    solved = inverse @ columns
    return np.asarray(inverse - solved @ np.linalg.solve(columns.T @ solved, solved.T))


def _refitted(field: Field, test: IntArray, client: Any, context: RunContext | None) -> tuple[FloatArray, FloatArray]:
    """Return the errors of a fold, and their variances, by a fit to all other samples: (b, p) each."""
    if field.record.training_state() is None:
        raise StoreError("this field was stored without its values; fit it again")
    rows, k = _rows(field), field.record.n_features
    places, covariates = rows[:, :k], rows[:, k:]
    # Places are already without anisotropy.
    plain: dict[str, Any] = {"ratio": 1.0, "angle": None, "angles": None}
    also = tuple(replace(one, **plain) for one in field.variogram.also)
    variogram = replace(field.variogram, also=(), **plain)
    variogram = replace(variogram, also=also)
    rest = np.setdiff1d(np.arange(len(rows)), test)
    samples = Samples(
        places[rest],
        field.values[rest],
        field.errors[rest],
        field.variogram.microscale_variance,
        covariates[rest],
    )
    solving = Solving(field.about["tolerance"], field.fitted.product_error.to_json(), client=client)
    mean, names = Drift.from_json(field.about["mean"]), field.record.target_names
    fit = Field.fit(
        samples, Space(min(k, 3), has_time=k > 3), variogram, solving, context=context, mean=mean, names=names
    )
    kriged = fit.at(places[test], covariates=covariates[test] if covariates.shape[1] else None, variance=True)
    assert kriged.variance is not None
    noise = (field.errors[test] + field.variogram.microscale_variance)[:, None]
    return field.values[test] - kriged.mean, kriged.variance + noise


# -------------------------------------------------------------------------------------------------------- the figures


def scores(value: ArrayLike, error: ArrayLike, variance: ArrayLike | None = None) -> dict[str, float]:
    """Return the figures of a cross-validation; rows with NaN are left out.

    Parameters
    ----------
    value : (n,) array_like
        Measured values.
    error : (n,) array_like
        Value minus prediction.
    variance : (n,) array_like, optional
        Of the error.

    Returns
    -------
    dict
        n, ME (mean error), RMSE, R2, LE68 and LE90 (percentiles of |error|). With variances also SRMSE, the root mean
        square of error over deviation, whose ideal is 1, coverage95, the share of values in 95 % intervals, and
        log_score, the mean logarithm of the predicted density.
    """
    truth, off = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (value, error))
    spread = None if variance is None else np.asarray(variance, dtype=np.float64).reshape(-1)
    if len(truth) != len(off) or (spread is not None and len(spread) != len(off)):
        raise InputError(f"scores need one error and variance for each of {len(truth)} values; got {len(off)} errors")
    usable = np.isfinite(truth) & np.isfinite(off)
    if spread is not None:
        usable &= np.isfinite(spread) & (spread > 0.0)
    if not usable.any():
        raise InputError("no value has a finite error; nothing can be scored")
    truth, off = truth[usable], off[usable]
    around = float(((truth - truth.mean()) ** 2).sum())
    figures = {
        "n": float(len(off)),
        "ME": float(off.mean()),
        "RMSE": float(np.sqrt((off**2).mean())),
        "R2": 1.0 - float((off**2).sum()) / around if around > 0.0 else math.nan,
        "LE68": float(np.percentile(np.abs(off), 68.0)),
        "LE90": float(np.percentile(np.abs(off), 90.0)),
    }
    if spread is not None:
        standardised = off / np.sqrt(spread[usable])
        figures["SRMSE"] = float(np.sqrt((standardised**2).mean()))
        figures["coverage95"] = float((np.abs(standardised) <= _NORMAL_95).mean())
        logarithms = np.log(2.0 * np.pi * spread[usable])
        figures["log_score"] = float(-0.5 * (standardised**2 + logarithms).mean())
    return figures


# --------------------------------------------------------------------------------------------------------- the tables


def sample_coordinates(field: Field) -> dict[str, FloatArray]:
    """Return the samples' coordinates by name, up to roundings: (n,) each."""
    space, k = field.space, field.record.n_features
    places = _rows(field)[:, :k]
    columns: list[Any] = list(np.linalg.solve(field.variogram.anisotropy(k), places.T))
    if space.metric != "plane":
        x, y, z = columns[:3]
        # The ratio of the squares of the axes turns a geocentric latitude into a geodetic one.
        ratio = 1.0 if space.metric == "sphere" else (1.0 - 1.0 / 298.257223563) ** 2
        columns[:3] = [np.degrees(np.arctan2(y, x)), np.degrees(np.arctan2(z, ratio * np.hypot(x, y)))]
    if space.has_time:
        columns[-1] = columns[-1] / space.time_scale
    return dict(zip(space.names, columns, strict=True))


def left_out_table(field: Field) -> Any:
    """Return the table of `Kriging.leave_one_out`."""
    result = leave_one_out(field)
    if np.isnan(result.error).all():
        raise InputError(
            f"leave-one-out of {field.n_samples} samples needs a larger nugget: beyond {MOST_INVERTED} "
            "samples, errors come from the variances at the samples, which are inaccurate there. Use "
            "`cross_validate`"
        )
    parts = {
        name: getattr(result, name)
        for name in ("error", "error_lower", "error_upper", "variance", "variance_lower", "variance_upper")
    }
    return _table(field, {}, parts)


def folds_table(field: Field, blocks: Any, folds: int, seed: int, client: Any = None) -> Any:
    """Return the table of `Kriging.cross_validate`."""
    coordinates = np.column_stack(list(sample_coordinates(field).values()))
    if blocks is None:
        parts = random_folds(field.n_samples, folds, seed)
    else:
        if coordinates.shape[1] < 2:
            raise InputError("`blocks` are those of places in a plane; leave it out for samples along a line")
        parts = BlockKFold(blocks, n_splits=folds, shuffle=True, random_state=seed).folds(coordinates)
    errors, variances = folds_errors(field, parts, client)
    number = np.empty(field.n_samples, dtype=np.int64)
    for index, rows in enumerate(parts):
        number[rows] = index
    return _table(field, {"fold": number}, {"error": errors, "variance": variances})


def _table(field: Field, more: dict[str, Any], parts: dict[str, FloatArray]) -> Any:
    import pandas as pd

    columns: dict[str, Any] = {**sample_coordinates(field), **more}
    targets, figures = field.record.target_names, {}
    for index, target in enumerate(targets):
        start = "" if len(targets) == 1 else f"{target}_"
        value, error, variance = field.values[:, index], parts["error"][:, index], parts["variance"][:, index]
        columns |= {f"{start}value": value, f"{start}prediction": value - error}
        columns |= {start + name: values[:, index] for name, values in parts.items()}
        columns[f"{start}standardised"] = error / np.sqrt(variance)
        figures[target] = scores(value, error, variance)
    table = pd.DataFrame(columns)
    table.attrs["scores"] = figures[targets[0]] if len(targets) == 1 else figures
    return table


def sequential_statistics(places: FloatArray, values: FloatArray, variogram: Variogram) -> tuple[float, float, float]:
    """Return Q1, Q2 and cR of ordinary kriging of each sample from those before it (Kitanidis 1997, section 4.3).

    Parameters
    ----------
    places : (n, k)
        Without anisotropy. A later sample at the place of an earlier one does not count.
    values : (n,)
    variogram : Variogram

    Raises
    ------
    InputError
        Too many samples for a dense matrix, or a singular one.
    """
    n, advice = len(places), "Use `kriging.cross_validate()` or `kriging.leave_one_out()`"
    if n > MOST_INVERTED:
        raise InputError(f"statistics are of at most {MOST_INVERTED:,} samples; got {n:,}. {advice}")
    matrix = variogram.covariance(scipy.spatial.distance.cdist(places, places)) + sum(variogram.nugget) * np.eye(n)
    try:
        lower = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError as error:
        raise InputError(f"the samples' covariance matrix is singular. {advice}") from error
    # Innovations of the values and of the constant; the mean of the samples before, and its variance.
    steps, ones = scipy.linalg.solve_triangular(lower, np.column_stack([values, np.ones(n)]), lower=True).T
    total, mass = np.cumsum(steps * ones)[:-1], np.cumsum(ones**2)[:-1]
    new = np.sort(groups_of(places)[0])[1:] - 1
    scale = np.diag(lower)[1:][new]
    delta = scale * (steps[1:] - ones[1:] * total / mass)[new]
    sigma = scale * np.sqrt(1.0 + ones[1:] ** 2 / mass)[new]
    standard, count = delta / sigma, len(new)
    q2 = float((standard**2).sum()) / (count - 1)
    return abs(float(standard.sum())) / (count - 1), q2, q2 * math.exp(float(np.log(sigma**2).mean()))
