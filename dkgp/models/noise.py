"""The noise of samples as one value: its variances, and its law where it depends on the inputs or has heavy tails.

A sample i has the noise variance s2_i = r_i s2 + v_i: a multiple r_i of the common s2 (1 by default), and a known
variance v_i beside it (0 by default). A law says more:

- `NoiseModel`: log s2(x) = b + x'w, or with a Gaussian process's mean in the place of x'w, b + sum_j a_j k(x, z_j).
  Outside the range of the training samples it stays at the ends of that range: an exponential must not run away.
- `StudentT`: t of nu degrees of freedom and the scale s is a normal distribution of the variance s2 / lambda, lambda
  from a gamma distribution of mean one. Given the residual r of a target, the mean of lambda is
  (nu + 1) / (nu + r^2 / s2): the weight of the sample, whose noise is s2 over it, (nu s2 + r^2) / (nu + 1). Solving
  under this noise, and computing it from the residuals, in turns, is iteratively reweighted least squares. Each turn
  raises the posterior density of the function (K. L. Lange, R. J. A. Little, J. M. G. Taylor, *Robust Statistical
  Modeling Using the t Distribution*, JASA 84, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy

from dkgp.codec import from_json
from dkgp.data import Dataset, ModelRecord
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, fold_white
from dkgp.models.rounding import outward
from dkgp.operators.base import Variances

# Kinds of noise models that a search fits; "student-t" is the law of new observations under Student's t.
KINDS = ("linear", "gp")
ALL_KINDS = (*KINDS, "student-t")
_PIECE_ROWS = 4096
# Nodes in log lambda, on which sums converge fast: the integrand and all its derivatives vanish at both ends.
_NODES = np.linspace(-36.0, 6.0, 281)
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class NoiseModel:
    """The variance of the noise at standardised inputs, on the scale of standardised targets.

    Parameters
    ----------
    kind : {"linear", "gp", "student-t"}
        Whether log s2 is a linear function of the inputs, or the mean of a Gaussian process; "student-t" is that of
        `StudentT.of_observations`, a linear one whose weights are zero.
    offset : float
        b.
    weights : tuple of float
        w (d,), or the a (q,) of a Gaussian process.
    lowest, highest : float
        The least and the greatest variance of the samples that the model was fitted to.
    kernel : Kernel, optional
        k of a Gaussian process.
    basis : tuple of q tuples, optional
        The points z_j of the Gaussian process, (q, d).

    Raises
    ------
    InputError
        An unknown kind, numbers that are not finite, or shapes that do not match.
    """

    omits_none: ClassVar = True

    kind: str
    offset: float
    weights: tuple[float, ...]
    lowest: float
    highest: float
    kernel: Kernel | None = None
    basis: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ALL_KINDS:
            raise InputError(f"a noise model's kind is one of {', '.join(ALL_KINDS)}; got {self.kind!r}")
        numbers = [self.offset, *self.weights, self.lowest, self.highest, *(z for row in self.basis or () for z in row)]
        if not all(map(math.isfinite, numbers)):
            raise InputError("a noise model's numbers must be finite; tune again")
        if not 0.0 < self.lowest <= self.highest:
            raise InputError(
                f"a noise model's least variance must be positive and at most its greatest; got {self.lowest:g} and "
                f"{self.highest:g}"
            )
        if self.kind == "gp" and (
            self.kernel is None
            or self.basis is None
            or len(self.basis) != len(self.weights)
            or {len(row) for row in self.basis} != {self.kernel.n_features}
        ):
            raise InputError(
                "a noise model of kind gp needs a kernel, and as many points of its features as its "
                f"{len(self.weights)} weights; tune again"
            )

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return len(self.weights) if self.kernel is None else self.kernel.n_features

    def variances(self, inputs: FloatArray) -> FloatArray:
        """Return the noise variances s2(x) at standardised inputs (m, d): (m,)."""
        if inputs.ndim != 2 or inputs.shape[1] != self.n_features:
            raise InputError(f"the noise model is of {self.n_features} features; got inputs of shape {inputs.shape}")
        result = np.empty(len(inputs))
        for start in range(0, len(inputs), _PIECE_ROWS):
            rows = slice(start, start + _PIECE_ROWS)
            result[rows] = self._in_piece(np.asarray(inputs[rows], dtype=np.float64))
        return result

    def beyond_least_of(self, dataset: Dataset) -> FloatArray:
        """Return `beyond_least` of all samples of a data set, read chunk by chunk: (n,)."""
        return np.concatenate([self.beyond_least(dataset.inputs(*rows)) for rows in dataset.row_chunks()])

    def beyond_least(self, inputs: FloatArray) -> FloatArray:
        """Return the variances at inputs (m, d) beyond `lowest`, the noise that all samples have: (m,), 0 or more."""
        return np.asarray(np.maximum(self.variances(inputs) - self.lowest, 0.0))

    def widened(self, lower: FloatArray, upper: FloatArray, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Replace the noise `lowest` in intervals of variances by the noise at the inputs (m, d): (m,) both."""
        beyond = self.beyond_least(inputs)
        less, more = outward(beyond, beyond)
        return outward(lower + less, upper + more)

    def _in_piece(self, inputs: FloatArray) -> FloatArray:
        columns = inputs if self.kernel is None else self.kernel.matrix(inputs, np.array(self.basis))
        log_variance = np.full(len(inputs), self.offset)
        # Column by column: no bit of a row depends on the rows beside it.
        for column, weight in zip(columns.T, self.weights, strict=True):
            log_variance += weight * column
        inside = np.clip(log_variance, math.log(self.lowest), math.log(self.highest))
        return np.asarray(np.clip(np.exp(inside), self.lowest, self.highest))


@dataclass(frozen=True)
class StudentT:
    """The distribution of the noise on standardised targets.

    Parameters
    ----------
    degrees : float
        nu, above 2, so that the noise has a variance.
    scale : float
        s2, the square of the scale.

    Raises
    ------
    InputError
        Values out of range.
    """

    degrees: float
    scale: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.degrees) and self.degrees > 2.0):
            raise InputError(f"a t distribution's degrees of freedom must be above 2 and finite; got {self.degrees!r}")
        if not (math.isfinite(self.scale) and self.scale > 0.0):
            raise InputError(f"the squared scale of a t distribution must be positive and finite; got {self.scale!r}")

    @property
    def variance(self) -> float:
        """Noise variance of a new observation, s2 nu / (nu - 2)."""
        return self.scale * self.degrees / (self.degrees - 2.0)

    @property
    def least(self) -> float:
        """Noise variance of a sample whose residual is zero: the least."""
        return self.scale * self.degrees / (self.degrees + 1.0)

    def beyond_least(self, squares: FloatArray) -> FloatArray:
        """Return the noise of samples beyond `least`, given the squares of their residuals: both (n,)."""
        return np.asarray(squares / (self.degrees + 1.0))

    def weights(self, beyond: FloatArray) -> FloatArray:
        """Return the weights of samples, at most 1 + 1 / nu, given their noise beyond `least`: both (n,)."""
        return np.asarray(self.scale / (self.least + beyond))

    def log_density(self, errors: FloatArray, latent: FloatArray) -> FloatArray:
        """Return log densities of errors (n,) of predictions whose functions have the variances `latent` (n,) >= 0."""
        log_weight, result = self._log_weights(), np.empty(len(errors))
        for rows, variance in self._variances(latent):
            normal = -0.5 * (np.log(2.0 * math.pi * variance) + errors[rows, None] ** 2 / variance)
            result[rows] = scipy.special.logsumexp(normal + log_weight, axis=1)
        return result

    def normal_scores(self, errors: FloatArray, latent: FloatArray) -> FloatArray:
        """Return numbers (n,), in the order of the errors (n,), that are standard normal under `log_density`."""
        weight, result = np.exp(self._log_weights()), np.empty(len(errors))
        for rows, variance in self._variances(latent):
            beyond = scipy.special.ndtr(-np.abs(errors[rows, None]) / np.sqrt(variance)) @ weight
            result[rows] = -scipy.special.ndtri(np.clip(beyond, np.finfo(np.float64).tiny, 0.5))
        return np.asarray(np.copysign(result, errors))

    def half_widths(self, latent: FloatArray, score: float) -> FloatArray:
        """Return the errors (n,) whose normal score is `score`, positive: half the width of a central interval.

        They are interpolated between 65 variances of the function, to about a part in ten thousand.
        """
        wide = np.sqrt(latent + self.scale)
        knots = np.linspace(wide.min(), wide.max(), 65)
        at = np.maximum(knots**2 - self.scale, 0.0)
        low, high = np.zeros(len(at)), 60.0 * score * np.sqrt(at + self.variance)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.normal_scores(middle, at) < score
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(np.interp(wide, knots, 0.5 * (low + high)))

    def _log_weights(self) -> FloatArray:
        """Logarithms of the weights that make a sum over `_NODES` the mean over lambda."""
        half = 0.5 * self.degrees
        density = half * (math.log(half) + _NODES - np.exp(_NODES)) - scipy.special.gammaln(half)
        return np.asarray(density + math.log(_NODES[1] - _NODES[0]))

    def _variances(self, latent: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Variances of errors given lambda, (rows, nodes), some rows at a time."""
        noise = self.scale * np.exp(-_NODES)
        for start in range(0, len(latent), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            yield rows, latent[rows, None] + noise

    def of_observations(self, n_features: int) -> NoiseModel:
        """Return a noise model of new observations, the same everywhere, beside the least noise of the samples."""
        variance = self.variance
        return NoiseModel("student-t", math.log(variance), (0.0,) * n_features, self.least, variance)

    @classmethod
    def held(cls, document: object) -> StudentT | None:
        """Return the distribution that `to_json` wrote, None for None; `InputError` for another document."""
        return None if document is None else from_json(cls, document, called="a t distribution")


NoiseLaw: TypeAlias = NoiseModel | StudentT


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of n samples, on the scale of standardised targets.

    Parameters
    ----------
    common : float
        s2, the noise variance that all samples have in common. Under a law it is the least variance of a sample.
    by_sample : (n,) float64, optional
        v_i, the known variances beside s2. A negative value means that the sample is less noisy than s2.
    relative : (n,) float64, optional
        r_i, the multiples of s2; 1 by default.
    law : NoiseModel or StudentT, optional
        The law that `by_sample` and the noise of new observations follow.
    """

    common: float
    by_sample: FloatArray | None = None
    relative: FloatArray | None = None
    law: NoiseLaw | None = None

    @classmethod
    def of(cls, noise: float | Noise, sample_noise: Any = None, relative_noise: Any = None) -> Noise:
        """Return the noise that a caller names: s2 with known variances and multiples, or the whole value."""
        if isinstance(noise, Noise):
            return noise
        known, relative = (
            None if values is None else np.array(values, dtype=np.float64) for values in (sample_noise, relative_noise)
        )
        return cls(noise, known, relative)

    @classmethod
    def of_model(cls, model: ModelRecord, common: float | None = None) -> Noise:
        """Return the noise of a stored model's samples; `common` replaces its s2."""
        s2, document = model.noise_variance if common is None else common, model.noise_model
        return cls(s2, model.sample_noise, law=None if document is None else from_json(NoiseModel, document))

    @property
    def is_common(self) -> bool:
        """True if all samples have the noise variance s2."""
        return self.by_sample is None and self.relative is None

    @property
    def diagonal(self) -> Variances:
        """The noise variances: s2, or s2_i of each sample (n,)."""
        scaled = self.common if self.relative is None else self.common * self.relative
        return scaled if self.by_sample is None else scaled + self.by_sample

    @property
    def typical(self) -> float:
        """The harmonic mean of the samples' noise variances.

        With this one variance for all samples tr(N^-1 K) stays the same; the least variance may be that of one sample.
        """
        noise = self.diagonal
        return noise if isinstance(noise, float) else float(len(noise) / np.sum(1.0 / noise))

    def with_common(self, common: float) -> Noise:
        """Return the noise with another s2."""
        return replace(self, common=common)

    def without_white(self, kernel: Kernel) -> tuple[Kernel, Noise]:
        """Move white noise of the kernel into s2; return both."""
        kernel, common = fold_white(kernel, self.common)
        return kernel, replace(self, common=common)

    def beside(self, dataset: Dataset) -> Noise:
        """Return the noise with the known variances of the data set, unless it has known variances."""
        return self if self.by_sample is not None else replace(self, by_sample=dataset.all_sample_noise())

    def rows(self, which: IntArray | slice) -> Noise:
        """Return the noise of some samples."""
        known, relative = (None if values is None else values[which] for values in (self.by_sample, self.relative))
        return replace(self, by_sample=known, relative=relative)

    def append(self, n: int, known: FloatArray | None, n_new: int) -> Noise:
        """Return the noise of n samples and of new ones after them, whose known variances are `known` (n_new,)."""
        if self.by_sample is None and known is None:
            return self
        parts = [
            np.zeros(count) if values is None else values for values, count in ((self.by_sample, n), (known, n_new))
        ]
        return replace(self, by_sample=np.concatenate(parts))

    def checked(self, n: int) -> Noise:
        """Return the noise with arrays of shape (n,).

        Raises `InputError`: arrays of another shape, or a variance that is not positive and finite.
        """
        relative, known = self.relative, self.by_sample
        if relative is not None:
            check_relative(relative, n)
        if known is None:
            return self
        if known.shape not in ((n,), (n, 1)):
            raise InputError(
                f"`sample_noise` has shape {known.shape}; expected ({n},), the variance of each sample's known noise"
            )
        known = known.reshape(n)
        noise = self.common + known
        invalid = ~(np.isfinite(noise) & (noise > 0.0))
        if invalid.any():
            row = int(np.argmax(invalid))
            raise InputError(
                f"`sample_noise` is {known[row]} for sample {row}, whose noise would be {noise[row]} with the "
                f"common {self.common:.3g}; expected a positive variance. Leave samples out that nothing is known of"
            )
        return replace(self, by_sample=known)

    def at(self, inputs: FloatArray) -> FloatArray:
        """Return the noise variances of new observations at standardised inputs (m, d): (m,)."""
        return self.law.variances(inputs) if isinstance(self.law, NoiseModel) else np.full(len(inputs), self.common)

    @property
    def of_observations(self) -> NoiseModel | None:
        """Noise model of new observations, if their variance depends on the inputs."""
        return self.law if isinstance(self.law, NoiseModel) else None


# The noise of samples that differ in nothing; a search replaces its s2.
SAME_NOISE = Noise(1.0)


def check_relative(relative: FloatArray, n: int) -> None:
    """Refuse multiples of s2 that are not n positive, finite numbers; `InputError`."""
    if relative.shape != (n,):
        raise InputError(f"`relative_noise` has shape {relative.shape}; expected ({n},), a value for each sample")
    usable = np.isfinite(relative) & (relative > 0.0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise InputError(f"`relative_noise` must be positive and finite; got {relative[row]} for sample {row}")
