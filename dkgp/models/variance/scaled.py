"""Variances under noise that differs by sample: those of a scaled kernel under a noise of one.

With the noise N = diag(1 / W_i) and s = W^1/2,

    (K + N)^-1 = S (S K S + I)^-1 S,  V(x) = k(x, x) - k_x'(K + N)^-1 k_x = k(x, x) - (S k_x)'(S K S + I)^-1 (S k_x),

so that V is the variance of a function with the covariance s(x) s(x') k(x, x') and the noise variance 1, at test
samples whose s is 1. That covariance is the kernel times a linear one of one feature more, s. Factors, preconditioners,
bounds and their roundings thus hold as they are, and a sample whose W is tiny, or zero, is one whose row is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dkgp.kernels import ActiveDimensions, Kernel, Linear, Product
from dkgp.models.variance.variances import TestRows
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.inputs import InputSource, centre_of


class PrecisionSource(InputSource, Protocol):
    """Rows of inputs of samples that have noise of their own."""

    def precision_roots(self, column: int, start: int, stop: int) -> FloatArray:
        """sqrt(W_i), one over the deviation of each sample's noise, of rows start:stop of a column, none below zero."""


def scaled_kernel(kernel: Kernel, n_features: int) -> Kernel:
    """s(x) s(x') k(x, x') for inputs (x, s), d features and one more."""
    width = n_features + 1
    samples = ActiveDimensions(kernel, tuple(range(n_features)), width)
    return Product((samples, ActiveDimensions(Linear((1.0,)), (n_features,), width)))


@dataclass(frozen=True)
class ScaledInputs:
    """Rows (x, s) of a source with noise by sample."""

    base: PrecisionSource
    column: int  # of the noise

    @property
    def n_samples(self) -> int:
        """Number of rows n."""
        return self.base.n_samples

    @property
    def n_features(self) -> int:
        """Number of features, s among them."""
        return self.base.n_features + 1

    @property
    def centre(self) -> FloatArray | None:
        """The base's, with zero for s."""
        centre = centre_of(self.base)
        return None if centre is None else np.append(centre, 0.0)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop."""
        roots = self.base.precision_roots(self.column, start, stop)
        return np.column_stack([self.base.inputs(start, stop), roots])


@dataclass(frozen=True)
class ScaledSupport:
    """Training samples (x, s) under a noise of one."""

    source: ScaledInputs
    noise_variance: float = 1.0

    @property
    def n_samples(self) -> int:
        """Number of samples n."""
        return self.source.n_samples

    def input_rows(self, indices: IndexArray) -> FloatArray:
        """Rows at `indices`, read by runs of neighbours."""
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


# Samples that lie no further apart are read in one.
READ_TOGETHER = 64
