"""Standardisation of inputs and targets, and transforms of targets, computed from the training set.

Both are stored with the training set, and applied unchanged to new data. Columns get zero mean and unit variance, in
one streaming pass. A transform makes the distribution of a target more nearly normal before that: Yeo and Johnson, *A
new family of power transformations to improve normality or symmetry*, Biometrika 87 (2000). Its lambda lies between 0
and 2, so that every number is the transform of some target, and intervals and means come back finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.codec import fields_from_json, rule, to_json
from dkgp.data.types import BoolArray, FloatArray, Json, quoted
from dkgp.errors import InputError

TransformName: TypeAlias = Literal["log", "yeo-johnson"]
TRANSFORMS: tuple[str, ...] = get_args(TransformName)
LEAST_LAMBDA, MOST_LAMBDA = 0.0, 2.0
# Targets that lambda is found from: of more, every second, third ...
MOST_TARGETS = 2**20
# Of averages: nodes on each side of zero, where the second derivative jumps, and deviations that they reach over.
_NODES, _REACH = 64, 10.0
_AT, _WEIGHTS = np.polynomial.legendre.leggauss(_NODES)
# Unit roundoff, and a few times the error of a product below the smallest normal number.
_UNIT, _LOST = 2.0**-53, 2.0**-1070
# Rows whose nodes are held at once.
_ROWS = 4096


@dataclass(frozen=True)
class TargetTransform:
    """One target's transform T, increasing; `parameter` is lambda, and 0 of a logarithm."""

    name: TransformName
    parameter: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in TRANSFORMS or not LEAST_LAMBDA <= self.parameter <= MOST_LAMBDA:
            raise InputError(
                f"Got the transform '{self.name}' with the parameter {self.parameter}; expected "
                f"{' or '.join(TRANSFORMS)}, with one from {LEAST_LAMBDA:g} to {MOST_LAMBDA:g}."
            )

    def forward(self, targets: FloatArray) -> FloatArray:
        """T(y); NaN or minus infinity where a logarithm takes no y."""
        with np.errstate(all="ignore"):
            return np.asarray(np.log(targets) if self.name == "log" else _yeo_johnson(targets, self.parameter))

    def inverse(self, transformed: FloatArray) -> FloatArray:
        """T^-1; infinite where that is beyond float64."""
        with np.errstate(all="ignore"):
            return np.asarray(np.exp(transformed) if self.name == "log" else _inverse(transformed, self.parameter))

    def inverse_error(self, inverse: FloatArray) -> FloatArray:
        """Return by how much results of `inverse` may differ from the exact T^-1, with `parameter` as stored.

        NumPy's exp, expm1 and log1p are within 4 units in the last place, 8 u. The exponent E = log(1 + |y|) has a
        product, log1p, a quotient and 2 - lambda, each of whose relative errors moves E by no more than the same share;
        an error of E moves y by at most (1 + E) times its share. Products below the smallest normal number lose up to
        2^-1075, which a quotient by the power enlarges. See `docs/proofs.md`.
        """
        size = np.abs(inverse)
        with np.errstate(all="ignore"):
            if self.name == "log":
                error = 10.0 * _UNIT * size + _LOST
            else:
                powers = (self.parameter, 2.0 - self.parameter)
                lost = _LOST * (1.0 + sum(1.0 / power for power in powers if power > 0.0))
                error = _UNIT * size * (12.0 * np.log1p(size) + 24.0) + lost * (1.0 + size)
        return np.asarray(np.where(np.isnan(error), np.inf, error))

    def log_slope(self, targets: FloatArray) -> FloatArray:
        """log T'(y), by which a density in y is larger than one in T(y)."""
        with np.errstate(all="ignore"):
            if self.name == "log":
                return np.asarray(-np.log(targets))
            return np.asarray((self.parameter - 1.0) * np.sign(targets) * np.log1p(np.abs(targets)))

    def mean(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        """E[T^-1(t)] of normal t with this mean and variance, (rows,) each.

        Of a logarithm exp(m + v / 2); else by Gauss-Legendre quadrature on both sides of t = 0.
        """
        if self.name == "log":
            with np.errstate(over="ignore"):
                return np.asarray(np.exp(mean + 0.5 * variance))
        pieces = [slice(start, start + _ROWS) for start in range(0, len(mean), _ROWS)]
        parts = [self._average(mean[rows], np.sqrt(variance[rows])) for rows in pieces]
        return np.concatenate(parts) if parts else np.empty(0)

    def _average(self, mean: FloatArray, deviation: FloatArray) -> FloatArray:
        # Where T^-1 grows as exp, the mass lies `deviation` further out.
        low, high = -_REACH - deviation, _REACH + deviation
        with np.errstate(all="ignore"):
            middle = np.clip(np.nan_to_num(-mean / deviation), low, high)
            total: FloatArray = np.zeros(len(mean))
            for start, stop in ((low, middle), (middle, high)):
                half = 0.5 * (stop - start)
                u = (start + half)[:, None] + half[:, None] * _AT
                density = np.exp(-0.5 * u**2) / np.sqrt(2.0 * np.pi)
                total += half * ((self.inverse(mean[:, None] + deviation[:, None] * u) * density) @ _WEIGHTS)
        return total


def fit_transform(name: TransformName, targets: FloatArray) -> TargetTransform:
    """The transform of training targets (n,): lambda by maximum likelihood of normal transformed ones.

    Raises `InputError`: targets that are not positive, of a logarithm.
    """
    if name == "log":
        require_positive(targets, "the target")
        return TargetTransform(name)
    signed = np.sign(targets) * np.log1p(np.abs(targets))
    drift = float(np.mean(signed))

    def loss(parameter: float) -> float:
        with np.errstate(all="ignore"):
            spread = float(np.var(_yeo_johnson(targets, parameter)))
            value = 0.5 * np.log(spread) - (parameter - 1.0) * drift
        return float(value) if np.isfinite(value) else 1e300

    best = scipy.optimize.minimize_scalar(loss, bounds=(LEAST_LAMBDA, MOST_LAMBDA), method="bounded")
    ends = [float(best.x), LEAST_LAMBDA, MOST_LAMBDA]
    return TargetTransform(name, min(ends, key=loss))


def require_positive(targets: FloatArray, name: str, place: Callable[[int], str] | None = None) -> None:
    """Refuse targets (rows,) without a logarithm.

    Raises `InputError`, which names the first by `place` of its row; by its number, from 1, without.
    """
    wrong = np.flatnonzero(~(targets > 0.0))
    if len(wrong):
        row = int(wrong[0])
        where = f"row {row + 1}" if place is None else place(row)
        raise InputError(
            f"'{name}' holds {targets[row]:g} in {where}, and a logarithm takes positive numbers only. "
            "Give `transform` yeo-johnson, which takes all numbers, or leave such rows out."
        )


def _yeo_johnson(y: FloatArray, parameter: float) -> FloatArray:
    positive = _power(np.maximum(y, 0.0), parameter)
    return np.asarray(np.where(y >= 0.0, positive, -_power(np.maximum(-y, 0.0), 2.0 - parameter)))


def _power(size: FloatArray, power: float) -> FloatArray:
    """((1 + size)^power - 1) / power, without cancellation; its limit at the power 0."""
    logarithm = np.log1p(size)
    return np.asarray(logarithm if power == 0.0 else np.expm1(power * logarithm) / power)


def _inverse(t: FloatArray, parameter: float) -> FloatArray:
    positive = _root(np.maximum(t, 0.0), parameter)
    return np.asarray(np.where(t >= 0.0, positive, -_root(np.maximum(-t, 0.0), 2.0 - parameter)))


def _root(size: FloatArray, power: float) -> FloatArray:
    """Inverse of `_power`."""
    return np.asarray(np.expm1(size if power == 0.0 else np.log1p(power * size) / power))


# Below it squared deviations have lost digits, or are 0 altogether.
LEAST_VARIANCE = 1e-280
# Values of a block whose range is a smaller share of their size have their first row subtracted: a sum of n values of
# size a loses up to n u a, which is then no longer small against their spread.
NEAR = 2.0**-16


def require_varying_targets(names: Sequence[str], constant: BoolArray, values: FloatArray, n_samples: int) -> None:
    """Refuse targets that are constant: their spread, by which errors and variances would be measured, is none.

    Raises `InputError`: naming the first of them.

    Parameters
    ----------
    names : sequence of p str
    constant : (p,) bool
    values : (p,) float64
        Of any sample.
    """
    for index in np.flatnonzero(constant).tolist():
        others = " or leave this one out" if len(names) > 1 else ""
        raise InputError(
            f"The target '{names[index]}' is constant: all {n_samples:,} samples are {values[index]:g}. "
            f"There is nothing to learn; choose another target{',' if others else ''}{others}."
        )


def standardised_noise(variances: FloatArray, target_std: FloatArray) -> FloatArray:
    """Return known noise variances (rows,) of one target on its standardised scale; `InputError` beyond float64."""
    with np.errstate(over="ignore"):
        standardised = np.asarray(variances / float(target_std[0]) ** 2)
    beyond = np.isinf(standardised)
    if beyond.any():
        raise InputError(
            f"A known noise variance is {variances[int(np.argmax(beyond))]:.3g}, and the target's standard deviation "
            f"is {float(target_std[0]):.3g}; expected a quotient noise / deviation^2 within float64. Leave out samples "
            "whose noise is that large."
        )
    return standardised


Scale: TypeAlias = Literal["each", "common"]


class RunningMoments:
    """Mean and variance of columns, from blocks that may be merged in any tree.

    Chan, Golub & LeVeque (1983): for two parts with counts n_a, n_b, means m_a, m_b and sums of squared deviations
    S_a, S_b, with delta = m_b - m_a and n = n_a + n_b,

        m = m_a + delta n_b / n,    S = S_a + S_b + delta^2 n_a n_b / n,

    which does not cancel where the mean is large against the spread. A column whose first block holds values that are
    near to each other is measured from its first value, the origin: such differences are exact, and neither sums nor
    means of blocks round to the digits of the origin. Other columns have the origin 0. (scikit-learn's scaler can do
    this, but is an extra, and tells a column that is constant by its rounded variance.)

    Parameters
    ----------
    n_columns
        Number of columns.
    """

    def __init__(self, n_columns: int) -> None:
        self.count = 0
        self._origin: FloatArray = np.zeros(n_columns)
        self._offset: FloatArray = np.zeros(n_columns)  # the mean less the origin
        self.squared_deviations: FloatArray = np.zeros(n_columns)
        self.minimum: FloatArray = np.full(n_columns, np.inf)
        self.maximum: FloatArray = np.full(n_columns, -np.inf)

    def update(self, block: FloatArray) -> None:
        """Take in rows, shape (rows, n_columns)."""
        if len(block) == 0:
            return
        values = np.asarray(block, dtype=np.float64)
        block_moments = RunningMoments(values.shape[1])
        block_moments.minimum, block_moments.maximum = values.min(axis=0), values.max(axis=0)
        with np.errstate(all="ignore"):  # `require_range` reports overflow and underflow once
            block_moments.count = len(values)
            size = np.maximum(np.abs(block_moments.minimum), np.abs(block_moments.maximum))
            near = block_moments.maximum - block_moments.minimum <= NEAR * size
            if near.any():
                block_moments._origin = np.where(near, values[0], 0.0)
                values = values - block_moments._origin
            block_moments._offset = values.mean(axis=0)
            block_moments.squared_deviations = ((values - block_moments._offset) ** 2).sum(axis=0)
        self.merge(block_moments)

    def merge(self, other: RunningMoments) -> None:
        """Add the rows that another one has counted."""
        if other.count == 0:
            return
        total = self.count + other.count
        if self.count == 0:
            self._origin = other._origin
        with np.errstate(all="ignore"):
            delta = (other._origin - self._origin) + (other._offset - self._offset)
            self._offset = self._offset + delta * (other.count / total)
            self.squared_deviations = (
                self.squared_deviations + other.squared_deviations + delta**2 * (self.count * (other.count / total))
            )
        self.minimum = np.minimum(self.minimum, other.minimum)
        self.maximum = np.maximum(self.maximum, other.maximum)
        self.count = total

    @property
    def mean(self) -> FloatArray:
        """Mean of each column, shape (n_columns,)."""
        with np.errstate(over="ignore"):
            return np.asarray(self._origin + self._offset)

    @property
    def variance(self) -> FloatArray:
        """Population variance (divided by the count), shape (n_columns,); exactly 0 for a constant column."""
        if self.count == 0:
            return np.full(self.mean.shape, np.nan)
        return np.where(self.constant, 0.0, self.squared_deviations / self.count)

    @property
    def std(self) -> FloatArray:
        """Square root of the variance, shape (n_columns,)."""
        return np.sqrt(self.variance)

    @property
    def constant(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask of the columns that hold one value only, (n_columns,). Rounding of the mean plays no part in it."""
        return np.asarray(self.minimum >= self.maximum)

    def require_range(self, names: Sequence[str]) -> None:
        """Refuse columns, by their names (n_columns,), whose variance overflows or underflows.

        Raises
        ------
        InputError
            Naming the first of them.
        """
        variance = self.variance
        wrong = ~np.isfinite(variance) | (~self.constant & ~(variance >= LEAST_VARIANCE))
        for column in np.flatnonzero(wrong).tolist():
            ends = f"they lie between {self.minimum[column]:.3g} and {self.maximum[column]:.3g}"
            if variance[column] < LEAST_VARIANCE:
                raise InputError(
                    f"The values of '{names[column]}' are too near to each other to be standardised (their variance "
                    f"underflows, it must be at least {LEAST_VARIANCE:g}; {ends}); rescale that column."
                )
            raise InputError(
                f"The values of '{names[column]}' are too large to be standardised (their variance overflows; {ends}); "
                "rescale that column."
            )


@dataclass(frozen=True)
class Covariate:
    """A column that enters the mean of a model and is no feature of its kernel: external drift.

    Attributes
    ----------
    name
    column
        Its place among the raw features.
    mean, std
        Of the training set, in the units of the column.
    """

    name: str
    column: int
    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class Standardisation:
    """The affine map of raw inputs and targets to zero mean and unit variance of the training set.

    Attributes
    ----------
    input_mean, input_std
        Of the features kept, shape (d,), in the units of the features.
    target_mean, target_std
        Shape (p,), in the units of the targets; of transformed ones, on their scale.
    kept
        For each raw feature whether it is kept, length d_raw; a feature that is constant on the training set is not.
    transforms
        The transform of each target before it is standardised, length p; empty without transforms.
    covariates
        Columns that enter the mean alone, c of them. They are not kept as features.
    """

    input_mean: FloatArray
    input_std: FloatArray
    target_mean: FloatArray
    target_std: FloatArray
    kept: tuple[bool, ...]
    transforms: tuple[TargetTransform, ...] = field(default=(), metadata=rule(omit_default=True))
    covariates: tuple[Covariate, ...] = field(default=(), metadata=rule(omit_default=True))

    def __post_init__(self) -> None:
        for name in ("input_mean", "input_std", "target_mean", "target_std"):
            values = np.array(getattr(self, name), dtype=np.float64).reshape(-1)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
            if not np.all(np.isfinite(values)) or (name.endswith("std") and not np.all(values > 0)):
                raise InputError(
                    f"The standardisation's {name} must be finite{' and positive' if name.endswith('std') else ''}; "
                    f"got {values.tolist()}."
                )
        object.__setattr__(self, "kept", tuple(bool(keep) for keep in self.kept))
        if not (self.input_mean.shape == self.input_std.shape == (sum(self.kept),)):
            raise InputError(
                f"The standardisation keeps {sum(self.kept)} features but has {self.input_mean.size} means and "
                f"{self.input_std.size} standard deviations."
            )
        if self.transforms and len(self.transforms) != self.target_mean.size:
            raise InputError(
                f"The standardisation has {len(self.transforms)} transforms of {self.target_mean.size} targets; "
                "expected as many, or none."
            )
        if self.target_mean.shape != self.target_std.shape:
            raise InputError(
                f"The standardisation has {self.target_mean.size} target means and {self.target_std.size} "
                "target standard deviations; expected as many of each."
            )

    @classmethod
    def identity(cls, n_features: int, n_targets: int) -> Standardisation:
        """The map that changes nothing and keeps every feature."""
        d, p = n_features, n_targets
        return cls(np.zeros(d), np.ones(d), np.zeros(p), np.ones(p), (True,) * d)

    @property
    def n_raw_features(self) -> int:
        """Number of features before constant ones are dropped."""
        return len(self.kept)

    def inputs(self, raw: FloatArray) -> FloatArray:
        """Standardised inputs, shape (rows, d), of raw ones, shape (rows, d_raw)."""
        _require_columns("Inputs", raw, len(self.kept))
        with np.errstate(over="ignore"):  # readers of inputs of another training set refuse infinite ones
            return (self.keep(raw) - self.input_mean) / self.input_std

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """Names of the columns that enter the mean alone, length c."""
        return tuple(covariate.name for covariate in self.covariates)

    @property
    def row_mean(self) -> FloatArray:
        """Means of features and covariates, shape (d + c,)."""
        return np.append(self.input_mean, [covariate.mean for covariate in self.covariates])

    @property
    def row_std(self) -> FloatArray:
        """Standard deviations of features and covariates, shape (d + c,)."""
        return np.append(self.input_std, [covariate.std for covariate in self.covariates])

    def rows(self, raw: FloatArray) -> FloatArray:
        """Standardised rows, shape (rows, d + c), features before covariates, of raw ones, shape (rows, d_raw)."""
        if not self.covariates:
            return self.inputs(raw)
        _require_columns("Inputs", raw, len(self.kept))
        with np.errstate(over="ignore"):
            return np.asarray((self.keep_rows(raw) - self.row_mean) / self.row_std)

    def keep_rows(self, raw: FloatArray) -> FloatArray:
        """Features and covariates, unscaled, (rows, d + c), of raw inputs (rows, d_raw), or of those columns alone.

        Columns are in the order of the raw inputs, with or without those that the map drops.
        """
        if not self.covariates:
            return self.keep(raw) if raw.shape[1] == len(self.kept) else raw
        places = self._places if raw.shape[1] == len(self.kept) else np.argsort(self.raw_order)
        return np.ascontiguousarray(raw[:, places])

    @property
    def _places(self) -> NDArray[np.intp]:
        return np.append(np.flatnonzero(self.kept), [each.column for each in self.covariates]).astype(np.intp)

    @property
    def raw_order(self) -> NDArray[np.intp]:
        """Places among features and covariates of the columns that are needed, in the order of the raw inputs."""
        return np.argsort(self._places)

    def with_covariates(self, names: Sequence[str], feature_names: Sequence[str]) -> Standardisation:
        """Return the map with some of the features as covariates; `feature_names` are those of all raw features.

        Raises `InputError`: names that are no features, or constant on the training set, or all features.
        """
        place = {name: column for column, name in enumerate(feature_names)}
        wrong = [name for name in names if name not in place]
        if wrong:
            raise InputError(
                f"there is no column {quoted(wrong)} for `covariates`; expected some of {quoted(feature_names)}."
            )
        kept, moved = np.array(self.kept), dict.fromkeys(names)
        constant = [name for name in moved if not kept[place[name]]]
        if constant:
            raise InputError(
                f"the covariate {quoted(constant)} is constant on the training set, as the constant of the mean is. "
                "Leave it out of `covariates`."
            )
        scales = np.cumsum(kept) - 1  # place among the features that are kept
        covariates = tuple(
            Covariate(name, place[name], float(self.input_mean[at]), float(self.input_std[at]))
            for name in moved
            for at in (scales[place[name]],)
        )
        features = kept.copy()
        features[[covariate.column for covariate in covariates]] = False
        if covariates and not features.any():
            raise InputError("all features are among `covariates`; the kernel needs at least one that is none.")
        return replace(
            self,
            input_mean=self.input_mean[features[kept]],
            input_std=self.input_std[features[kept]],
            kept=tuple(features.tolist()),
            covariates=(*self.covariates, *covariates),
        )

    def in_order(self) -> Standardisation:
        """Return the map of rows that hold the features, then the covariates, and nothing else."""
        d = self.input_mean.size
        covariates = tuple(replace(each, column=d + index) for index, each in enumerate(self.covariates))
        return replace(self, kept=(True,) * d + (False,) * len(covariates), covariates=covariates)

    def keep(self, raw: FloatArray) -> FloatArray:
        """The kept columns of raw inputs, unscaled, shape (rows, d)."""
        return raw if all(self.kept) else raw[:, np.array(self.kept)]

    def inputs_back(self, standardised: FloatArray, dropped: FloatArray) -> FloatArray:
        """Raw inputs (rows, d_raw) of standardised rows (rows, d + c); `dropped` (d_raw,) fills the other columns."""
        result = np.tile(dropped, (len(standardised), 1))
        raw = standardised * self.row_std + self.row_mean
        result[:, np.array(self.kept)] = raw[:, : self.input_mean.size]
        result[:, [covariate.column for covariate in self.covariates]] = raw[:, self.input_mean.size :]
        return result

    def targets(self, raw: FloatArray) -> FloatArray:
        """Standardised targets of raw ones, both of shape (rows, p)."""
        _require_columns("Targets", raw, self.target_mean.size)
        with np.errstate(over="ignore"):
            return (self.transformed(raw) - self.target_mean) / self.target_std

    def transformed(self, raw: FloatArray) -> FloatArray:
        """Targets (rows, p) on the scale that is standardised; `InputError` where a logarithm takes one not."""
        if not self.transforms:
            return raw
        for t, of in enumerate(self.transforms):
            if of.name == "log":
                require_positive(raw[:, t], f"target {t}")
        return np.stack([of.forward(raw[:, t]) for t, of in enumerate(self.transforms)], axis=1)

    def targets_back(self, standardised: FloatArray) -> FloatArray:
        """Targets in their own units of standardised ones, both of shape (rows, p)."""
        _require_columns("Targets", standardised, self.target_mean.size)
        scaled = standardised * self.target_std + self.target_mean
        if not self.transforms:
            return scaled
        return np.stack([of.inverse(scaled[:, t]) for t, of in enumerate(self.transforms)], axis=1)

    @classmethod
    def from_json(cls, content: Json) -> Standardisation:
        """Return the map that a manifest has; `KeyError`, `TypeError` or `ValueError` for other content."""
        return cls(**fields_from_json(cls, content))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Standardisation) and to_json(self) == to_json(other)

    def __hash__(self) -> int:
        return hash((self.kept, self.input_mean.tobytes(), self.input_std.tobytes(), self.target_mean.tobytes()))


def _require_columns(role: str, rows: FloatArray, count: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != count:
        raise InputError(f"{role} have shape {rows.shape}; expected (rows, {count}).")
