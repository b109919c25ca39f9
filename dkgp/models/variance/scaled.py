"""Variances under noise that differs by sample, as the variances of a scaled kernel with unit noise.

With the noise N = diag(1 / W_i) and s = W^1/2,

    (K + N)^-1 = S (S K S + I)^-1 S,  V(x) = k(x, x) - k_x'(K + N)^-1 k_x = k(x, x) - (S k_x)'(S K S + I)^-1 (S k_x),

so V is the variance of a function with the covariance s(x) s(x') k(x, x') and the noise variance 1, at test samples
with s = 1. This covariance is the product of the kernel and a linear kernel of one additional feature, s. Factors,
preconditioners, bounds and their roundings therefore need no change. A tiny or zero W gives a tiny or zero row.

The noise s2_i = s2 + v_i of a regression is treated alike, with s_i = sqrt(s2 / s2_i) and the noise variance s2. The
noise of a new observation, to which gaps are relative, is again s2. Since s_i is rounded, the noise that it represents
has a relative error of 4u. V grows with the noise, and no faster, so its relative error is also at most 4u.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dkgp.data import ModelRecord
from dkgp.errors import InputError
from dkgp.kernels import ActiveDimensions, Kernel, Linear, Product
from dkgp.models.noise import Noise
from dkgp.models.rounding import EPS, outward
from dkgp.models.sums import NoisySupport
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.settings import TestRows
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext, InputSource, centre_of


def scaled_kernel(kernel: Kernel, n_features: int) -> Kernel:
    """Return the kernel s(x) s(x') k(x, x') for inputs (x, s) with d + 1 features."""
    width = n_features + 1
    samples = ActiveDimensions(kernel, tuple(range(n_features)), width)
    return Product((samples, ActiveDimensions(Linear((1.0,)), (n_features,), width)))


@dataclass(frozen=True)
class ScaledInputs:
    """Rows (x, s) of a source whose samples have noise of their own.

    `roots(start, stop)` returns s >= 0, the inverse deviation of the noise of those rows.
    """

    base: InputSource
    roots: Callable[[int, int], FloatArray]

    @property
    def n_samples(self) -> int:
        """Number of rows n."""
        return self.base.n_samples

    @property
    def n_features(self) -> int:
        """Number of features, including s."""
        return self.base.n_features + 1

    @property
    def centre(self) -> FloatArray | None:
        """Centre of the base, with zero for s."""
        centre = centre_of(self.base)
        return None if centre is None else np.append(centre, 0.0)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop."""
        return np.column_stack([self.base.inputs(start, stop), self.roots(start, stop)])


@dataclass(frozen=True)
class ScaledSupport:
    """Training samples (x, s) with one noise variance for all."""

    source: ScaledInputs | NoisySupport
    noise_variance: float = 1.0

    @property
    def n_samples(self) -> int:
        """Number of samples n."""
        return self.source.n_samples

    def input_rows(self, indices: IndexArray) -> FloatArray:
        """Return the rows at `indices`, read in runs of nearby rows."""
        order = np.argsort(indices, kind="stable")
        ascending = np.asarray(indices)[order]
        rows = np.empty((len(ascending), self.source.n_features))
        runs = np.split(np.arange(len(ascending)), np.flatnonzero(np.diff(ascending) > READ_TOGETHER) + 1)
        for run in runs:
            if len(run):
                first = int(ascending[run[0]])
                block = self.source.inputs(first, int(ascending[run[-1]]) + 1)
                rows[order[run]] = block[ascending[run] - first]
        return rows


@dataclass(frozen=True)
class ScaledTest:
    """Test samples (x, 1)."""

    base: TestRows

    @property
    def n_samples(self) -> int:
        """Their number."""
        return self.base.n_samples

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop."""
        rows = self.base.inputs(start, stop)
        return np.column_stack([rows, np.ones(len(rows))])

    def rows(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop; variances take no covariates."""
        return self.inputs(start, stop)


# Rows at most this far apart are read together.
READ_TOGETHER = 64
# Quotients of noise variances below which s_i would lose digits.
LEAST_QUOTIENT = 1e-290


@dataclass(frozen=True)
class Subject:
    """The regression whose variances are computed for an exact model: samples, kernel, context.

    It is the model's own regression or, if the samples' noise is known, the equivalent scaled regression. `record` is
    the samples' exact model, None for a classifier.
    """

    model: SupportSamples
    kernel: Kernel
    context: BlockContext
    record: ModelRecord | None = None

    @classmethod
    def of(cls, model: ModelRecord, context: BlockContext) -> Subject:
        """Build the subject of a model and its context; s2 must already include the kernel's white noise.

        Raises `InputError` if the ratio of the samples' noise variances is too large for float64.
        """
        noise = Noise.of_model(model).diagonal
        if isinstance(noise, float):
            return cls(model, context.kernel, context, model)
        s2 = model.noise_variance
        least, most = float(noise.min()), float(noise.max())
        if not (s2 / most >= LEAST_QUOTIENT and least / s2 >= LEAST_QUOTIENT):
            raise InputError(
                f"the noise of samples goes from {least:.3g} to {most:.3g}, too far for variances. Leave the noisiest "
                "samples out of the training set, or raise the noise variance"
            )
        kernel = scaled_kernel(context.kernel, model.n_features)
        source = NoisySupport(context, s2)
        scaled = BlockContext(f"{context.run_id}/noise", source, kernel, model.n_samples)
        return cls(ScaledSupport(source, s2), kernel, scaled, model)

    @property
    def is_scaled(self) -> bool:
        """True if the samples' noise is known."""
        return isinstance(self.model, ScaledSupport)

    @property
    def keeper(self) -> ModelRecord | None:
        """The stored model that may keep a partial factor of this regression: an exact one, of one noise variance."""
        return None if self.is_scaled else self.record

    def tests(self, test: TestRows) -> TestRows:
        """Return the test samples as inputs of the subject."""
        return ScaledTest(test) if self.is_scaled else test

    def interval(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return intervals of a regression's variances from the subject's, widened by the rounding of s_i: (rows,)."""
        if not self.is_scaled or self.record is None:
            return lower, upper
        low, high = outward(lower * (1.0 - 4.0 * EPS), upper * (1.0 + 4.0 * EPS))
        return np.maximum(low, 0.0), high
