"""Predictions of a sparse model at rows in memory: the method's own mean and variance, beside what is proven.

The mean comes with a bound on its distance from the exact model's, the variance with a proven interval of the exact
one, all from the sparse model alone. Of one with neighbours proofs are those of the basis' own mean f, and |m - f| is
added to the bound of its mean m. Results do not depend on how many threads share the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import in_parallel, single_threaded_blas
from dkgp.data.stores.models.regression import SparseRecord
from dkgp.models.metrics import outside_interval
from dkgp.models.prediction.predictor import standardised
from dkgp.models.rounding import EPS, mean_in_units, outward, variance_in_units
from dkgp.models.sparse.bounds import Points
from dkgp.models.sparse.stored import OpenedSparse, opened_sparse
from dkgp.operators.base import FloatArray

PIECE_ROWS = 1024


@dataclass(frozen=True)
class SparsePredicted:
    """Predictions in the targets' own units, float64."""

    # (r, p): the mean, and a bound on its distance from the exact model's.
    mean: FloatArray
    mean_error: FloatArray
    variance: FloatArray | None = None  # (r, p): the method's own; None where variances were not asked for
    # (r, p): the proven interval of the exact model's.
    variance_lower: FloatArray | None = None
    variance_upper: FloatArray | None = None
    unproven: int = 0  # samples whose neighbours may not be the nearest

    @property
    def outside(self) -> float | None:
        """Share of samples whose own variance is proven to be too small, or too large; None without variances."""
        if self.variance is None or self.variance_lower is None or self.variance_upper is None:
            return None
        count = outside_interval(self.variance, self.variance_lower, self.variance_upper)
        return count / max(1, len(self.variance))


class SparsePredictor:
    """Predicts rows in memory.

    `variance`: predict variances too. Bounds on means are narrower then: by the exact variance's upper end instead of
    k(x, x). `latent`: variances of the function, without the noise. `threads`: all cores by default.
    """

    def __init__(
        self, opened: OpenedSparse, *, variance: bool = False, latent: bool = False, threads: int | None = None
    ) -> None:
        self._opened, self._threads = opened, threads
        self._interval = opened.interval() if variance else None
        self._noise = 0.0 if latent else opened.record.noise_variance
        self._near = opened.near_predictor

    @property
    def nbytes(self) -> int:
        """Bytes of the model's arrays and the interval's triangle; never more than a cache would keep."""
        m = self._opened.model.m
        nbytes = self._opened.model.nbytes + (0 if self._interval is None else 8 * m**2)
        nbytes += 0 if self._opened.near is None else self._opened.near.nbytes
        return min(nbytes, worker_cache().budget_bytes)

    def __call__(self, inputs: FloatArray) -> SparsePredicted:
        """Predict at raw inputs of the model's features: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        return self.at(standardised(self._opened.record, inputs))

    def at(self, rows: FloatArray) -> SparsePredicted:
        """The same at standardised inputs (r, d)."""
        r, p = len(rows), self._opened.record.n_targets
        mean, bound = np.empty((r, p)), np.empty((r, p))
        variance_of_method, lower, upper = np.empty(r), np.empty(r), np.empty(r)

        def work(piece: int) -> None:
            where = slice(piece * PIECE_ROWS, (piece + 1) * PIECE_ROWS)
            parts = (values[where] for values in (rows, mean, bound, variance_of_method, lower, upper))
            self._predict(*parts)

        with single_threaded_blas():
            in_parallel(work, -(-r // PIECE_ROWS), self._threads)
        unproven = 0
        if self._near is not None:
            near, variance_of_method, missed = self._near.predicted(rows, self._threads)
            unproven = int(missed.sum())
            # A difference of two numbers, and a sum.
            mean, bound = near, (np.abs(near - mean) + bound) * (1.0 + 4.0 * EPS)
        to = self._opened.record.standardisation
        means = mean_in_units(mean, bound, to.target_std, to.target_mean)
        if self._interval is None:
            return SparsePredicted(*means, unproven=unproven)
        low, high = outward(lower + self._noise, upper + self._noise)
        with np.errstate(over="ignore"):  # as the interval's ends: infinite beyond the largest number
            variance = (variance_of_method + self._noise)[:, None] * np.asarray(to.target_std) ** 2
        interval = variance_in_units(np.maximum(low, 0.0), high, to.target_std)
        return SparsePredicted(*means, variance, *interval, unproven)

    def _predict(
        self,
        rows: FloatArray,
        mean: FloatArray,
        bound: FloatArray,
        variance: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """Write the basis' predictions at standardised rows into the arrays."""
        model, certificate = self._opened.model, self._opened.certificate
        points = Points.of(model.kernel, model.evaluator(), rows)
        mean[:] = model.mean(rows)
        upper[:] = points.highest
        if self._interval is not None:
            lower[:], upper[:] = self._interval(rows)
            variance[:] = model.variance(rows)
        bound[:] = certificate.mean_error_bound(upper, points.prior, points.errors)


@dataclass(frozen=True)
class SparsePredictorSource:
    """Source of a process's predictor; travels with tasks."""

    url: str  # of the model: a store that the process can read, or a model in its own memory
    version: str  # under which the process's cache keeps what belongs to the model
    # As for `SparsePredictor`.
    variance: bool
    latent: bool

    def predictor(self) -> SparsePredictor:
        """Return this process's predictor for calls by single threads; the first call makes it, others wait."""
        return worker_cache().get((self.version, "predictor", self.variance, self.latent), self._make)

    def _make(self) -> SparsePredictor:
        opened = opened_sparse(SparseRecord.find(self.url))
        return SparsePredictor(opened, variance=self.variance, latent=self.latent, threads=1)
