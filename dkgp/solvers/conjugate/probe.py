"""A problem in small: the iterations of conjugate gradients on a subset, extrapolated to all samples.

A random subset of m of the n samples, with the same kernel, takes about as many iterations as the whole, where

* with a halo, halo and leaf are the same share of the samples, s m / n and g m / n, the rank is R sqrt(m / n), and the
  noise s2 sqrt(m / n): a leaf's surroundings are the same in space, and the noise lies between the one that keeps
  single samples alike (s2) and the one that keeps averages alike (s2 m / n);
* with a low-rank factor alone, the rank is R and the noise s2 m / n, which leaves the same spectrum. Ranks of more than
  a fifth of the subset fit it too well: there R (m / n)^0.35, and s2 (m / n)^0.75, and of more than 32 m samples
  2 + 7 sqrt(n e(R) / (R s2)), where e(R), the part of the kernel's diagonal that rank R leaves, is followed beyond
  the ranks of the subset.

Measured (docs/experiments.md) on kin40k, california, friedman1, pumadyn32nm, sarcos_test4449, abalone, magic and
dem_bigtujunga, n from 3,000 to 30,000, two Matern kernels among them: mostly within a fifth, counts from 2 to 170.

Where the noise is so small that the subset does not feel it, samples lie too thinly in it: there counts grow with n,
and go on growing as they do from half of the subset to all of it.

The errors of float32 kernel entries lower the least eigenvalues, about in proportion to n where these are next
to nothing (usps, and three Gaussian features, n from 500 to 4,000: 0.03 to 0.08 n 2^-24 of k(x, x)). Where the
subset's matrix as float32 has it, with a quarter of s2 m / n on its diagonal, is not positive definite, float32 rounds
would not come to their end, and counts are those of float64.

So they are if the subset's matrix is positive definite, but the float32 error at n exceeds s2 and the least
eigenvalue at n: there a float64 gradient finds most of the one before it again. That eigenvalue goes on falling as it
does from half of the subset to all of it (kin40k, gamma 0.12: 1.8e-3, 4.4e-4, 9.9e-5 of 500, 1,000, 2,000 samples).

The subset's matrix is held, and so are its factors: a run takes some hundredths of a second. Nothing is timed: the same
seed comes to the same counts, apart from another processor's roundings.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.terms import MOST_FEATURES
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.local_polynomials import choose_order, grid_scales
from dkgp.operators.low_rank.pivots import RandomlyPivotedCholesky, counted
from dkgp.operators.vecchia.halos import kd_order
from dkgp.operators.vecchia.leaves import EMBEDDING_RANK, is_one_distance
from dkgp.solvers.conjugate.gradient import BlockDirections
from dkgp.solvers.conjugate.preconditioner import expected_second_step
from dkgp.solvers.method_run import only_the_first_drifts

# Powers of m / n.
RANK_BESIDE_A_HALO, NOISE_BESIDE_A_HALO = 0.5, 0.5
LOW_RANK_SHARE, LARGE_RANK, NOISE_OF_A_LARGE_RANK = 0.2, 0.35, 0.75
# Samples far out, which no landmark is near, are few in a subset: with many of them (california) counts are up to some
# times as large, and a factor without a halo cannot grow one.
LARGE_RANK_RISK = 2.0
# Of local polynomials, by their condition number: elevation model, n = 100,000, two kernels, 4 to 144 iterations;
# uniform samples in two dimensions, Matern 3/2, n = 50,000 and 200,000: 81, 57 and 23 of 94, 72 and 19.
ITERATIONS_BY_CONDITION, CONDITION_POWER = 2.8, 0.72
# Beyond so many subsets' samples the residual curve says more of large ranks.
MANY_SUBSETS, ITERATIONS_LEAST, ITERATIONS_PER_ROOT = 32, 2.0, 7.0
# The tolerance that laws by the curve were fitted at; digits beyond it cost in proportion, from a start at order one.
FITTED_TOLERANCE, START = 1e-4, 50.0
# Landmarks at most: beyond a quarter of the samples, their residuals tell little about other samples.
RANK_SHARE = 0.25
# Halos of fewer samples are no halos; counts of smaller shares are extrapolated from their fall up to twice it.
LEAST_HALO = 12
# In up to three dimensions counts fall by at most this power of a halo that is a small share of the samples, and are
# this share of those foreseen: for two dimensions and the samples above 30, 22 and 17 with halos of 64, 128 and 300 at
# n = 200,000, and from 21 to 9 with 32 to 300 at n = 50,000; for three dimensions 18, 13 and 9 there with 64 to 300.
FALL_IN_SPACE, SHARE_IN_SPACE = 0.4, 0.7
# Targets that are solved for: with more, iterations hardly get fewer.
MOST_TARGETS = 8
# A run that has less than this share of its digits half-way to the most it may take is given up, unless it is short.
HOPELESS, LEAST_GIVEN_UP = 0.25, 10
# Where counts grow by this power of 1 / s2, the noise is felt, and they do not depend on n (kin40k, s2 from 1e-4 to
# .005).
FELT, MOST_GROWTH = 0.12, 16.0
# Of a leaf's diagonal: no subset is so regular that it would not be positive definite.
DAMPING, DAMPING_IN_DOUBLE = 1e-6, 1e-10
# This share of the noise is to make up for the error of float32 entries: if all of it hardly does, a float64 gradient
# finds most of the one before it again.
SHARE_OF_NOISE = 0.25
# They take no more than this for each sample, of the largest k(x, x).
MOST_TAKEN = 2.0**-24
# And about so much, of the root mean square of the entries. Where that was six times s2 and the least eigenvalue, twice
# as many rounds of float32 were taken or these came to no end; where 1.1 times, a quarter more (kin40k, n >= 2,000).
TAKEN = 0.05 * 2.0**-24
INVERSE_ITERATIONS = 8


@dataclass(frozen=True)
class ResidualCurve:
    """Residuals of the kernel's diagonal under partial Cholesky factors of growing rank.

    - `ranks`: landmarks, growing.
    - `residuals`: mean of diag(K - F F') over the samples that are no landmarks, in units of the kernel's largest k(x,
      x).
    """

    ranks: tuple[int, ...]
    residuals: tuple[float, ...]

    def at(self, rank: float) -> float:
        """e(R): between the ranks probed along straight lines in logarithms, beyond the last along the last one."""
        tiny = np.finfo(np.float64).tiny
        x, y = np.log(self.ranks), np.log(np.maximum(self.residuals, tiny))
        at = math.log(rank)
        if at <= x[-1] or len(x) < 2:
            return float(np.exp(np.interp(at, x, y)))
        # From half the rank on: single steps scatter.
        first = int(np.searchsorted(x, x[-1] - math.log(2.0)))
        first = min(first, len(x) - 2)
        slope = (y[-1] - y[first]) / (x[-1] - x[first])
        return float(np.exp(y[-1] + min(slope, 0.0) * (at - x[-1])))


class _Landmarks:
    """A pivoted factor of the subset's matrix, and how its residual fell."""

    def __init__(self, evaluator: TileEvaluator, inputs: FloatArray, prior: FloatArray, seed: int) -> None:
        most = max(1, int(RANK_SHARE * len(inputs)))
        rng = np.random.default_rng([seed, 2])
        factor = RandomlyPivotedCholesky(evaluator, evaluator.prepare(inputs), prior, most, rng)
        ranks: list[int] = []
        residuals: list[float] = []
        while not factor.complete:
            factor.extend()
            free = np.ones(len(inputs), dtype=bool)
            free[factor.pivots] = False
            ranks.append(factor.rank)
            residuals.append(float(factor.residual[free].mean() / prior.max()) if free.any() else 0.0)
        self.curve = ResidualCurve(tuple(ranks), tuple(residuals))
        self.rows: FloatArray = factor.rows


def _least_at(n: int, lower: FloatArray) -> float:
    """The least eigenvalue that n samples should have, by the Cholesky factor of m in a random order.

    It falls the faster the more samples there are, so that it is foreseen too large: up to eight times at n = 4 m.
    """
    half, whole = (_least_eigenvalue(lower[:size, :size]) for size in (len(lower) // 2, len(lower)))
    return whole * math.pow(min(1.0, whole / half), max(0.0, math.log2(n / len(lower))))


def _least_eigenvalue(lower: FloatArray) -> float:
    """The least eigenvalue of L L', from above, by inverse iteration."""
    vector = np.random.default_rng(0).standard_normal(len(lower))
    for _ in range(INVERSE_ITERATIONS):
        vector = scipy.linalg.lapack.dpotrs(lower, vector / np.linalg.norm(vector), lower=1)[0].ravel()
    return 1.0 / float(np.linalg.norm(vector))


class _Subset:
    """Some samples, their matrix, and conjugate gradients on it."""

    def __init__(self, kernel: Kernel, inputs: FloatArray, p: int, seed: int) -> None:
        self.m = len(inputs)
        self.double = False
        self._kernel, self._inputs, self._seed = kernel, inputs, seed
        evaluator, double = TileEvaluator(kernel, "single"), TileEvaluator(kernel, "double")
        features = evaluator.prepare(inputs)
        self.matrix = np.ascontiguousarray(evaluator.tile(features, features))
        self.prior = np.asarray(kernel.diagonal(inputs), dtype=np.float64)
        self.landmarks = _Landmarks(double, inputs, self.prior, seed)
        if is_one_distance(evaluator):
            self._points = np.ascontiguousarray(features.values[:, : self.m].T)
        else:
            rows = self.landmarks.rows[:EMBEDDING_RANK] / np.sqrt(counted(self.prior))
            self._points = np.ascontiguousarray(rows.T, dtype=np.float32)
        rng = np.random.default_rng([seed, 3])
        drawn = rng.standard_normal((2, self.m, min(p, MOST_TARGETS)))
        self._smooth = self.matrix @ drawn[0].astype(np.float32)
        self._smooth /= max(float(self._smooth.std()), 1e-30)
        self._rough = drawn[1]
        self._leaves: dict[tuple[int, int], _Leaves] = {}

    def takes_double(self, noise: float, n: int) -> bool:
        """True if float32 rounds on n samples with this noise would come to no end, or to a late one."""
        scaled = SHARE_OF_NOISE * noise * self.m / n
        if scaled >= MOST_TAKEN * self.m * float(self.prior.max()):
            return False
        # In a random order, so that the factor's first half is that of a random half.
        order = np.random.default_rng([self._seed, 5]).permutation(self.m)
        matrix = self.matrix[np.ix_(order, order)].astype(np.float64, order="F")
        taken = TAKEN * n * math.sqrt(max(0.0, float(np.mean(matrix**2) - np.mean(matrix.diagonal() ** 2) / self.m)))
        matrix[np.diag_indices(self.m)] += scaled
        lower, trouble = scipy.linalg.lapack.dpotrf(matrix, lower=1, overwrite_a=1)
        if trouble:
            return True
        return taken > noise and taken > noise + _least_at(n, lower)

    def go_on_in_double(self) -> None:
        """Evaluate the matrix in float64."""
        evaluator = TileEvaluator(self._kernel, "double")
        features = evaluator.prepare(self._inputs)
        self.matrix, self.double = np.ascontiguousarray(evaluator.tile(features, features)), True

    def iterations(self, halo: int, leaf: int, rank: int, noise: float, tolerance: float, most: int) -> int | None:
        """Iterations to max |g| <= tolerance; None if they are more than `most`, or break down."""
        targets = self._smooth + math.sqrt(noise / float(self.prior.max())) * self._rough
        residual: FloatArray = targets / targets.std(axis=0)
        apply = self._preconditioner(halo, leaf, rank, noise)

        def product(vectors: NDArray[Any]) -> FloatArray:
            return np.asarray((self.matrix @ vectors.astype(self.matrix.dtype)).astype(np.float64) + noise * vectors)

        directions = BlockDirections()
        started = float(np.abs(residual).max())
        for count in range(most + 1):
            remaining = float(np.abs(residual).max())
            if remaining <= tolerance:
                return count
            if 2 * count >= most >= LEAST_GIVEN_UP and remaining > started * (tolerance / started) ** HOPELESS:
                return None
            step = directions.advance(apply(residual), residual, product)
            if not len(step):
                return None
            residual -= directions.images @ step
        return None

    def _preconditioner(self, halo: int, leaf: int, rank: int, noise: float) -> Callable[[FloatArray], FloatArray]:
        """M^-1 of a factor with a halo, or of F F' + noise without one."""
        rows = self.landmarks.rows[:rank]
        triangle: Any = 1.0 / math.sqrt(noise)
        if halo:
            triangle = self._triangle(halo, leaf, rows, noise)
        transposed, times = (triangle.T, operator.matmul) if halo else (triangle, operator.mul)
        if not len(rows):
            return lambda residual: np.asarray(times(transposed, times(triangle, residual)))
        images = np.asarray(times(triangle, rows.T))
        gram = images.T @ images
        gram[np.diag_indices(len(gram))] += 1.0
        small = scipy.linalg.cho_factor(gram, lower=True, overwrite_a=True)

        def apply(residual: FloatArray) -> FloatArray:
            forward = times(triangle, residual)
            forward -= images @ scipy.linalg.cho_solve(small, images.T @ forward, check_finite=False)
            return np.asarray(times(transposed, forward))

        return apply

    def _triangle(self, halo: int, leaf: int, rows: FloatArray, noise: float) -> Any:
        """T: a leaf's rows are those of the inverse of its Cholesky factor, conditioned on its halo."""
        if (halo, leaf) not in self._leaves:
            self._leaves[halo, leaf] = _Leaves.of(self.matrix, self.prior, self._points, halo, leaf)
        leaves = self._leaves[halo, leaf]
        data, columns, lengths = [], [], []
        for samples, size in zip(leaves.samples, leaves.sizes, strict=True):
            block = self.matrix[np.ix_(samples, samples)].astype(np.float64)
            part = rows[:, samples]
            block -= part.T @ part
            damping = DAMPING_IN_DOUBLE if self.double else DAMPING
            block[np.diag_indices(len(samples))] += noise + damping * self.prior[samples]
            lower = scipy.linalg.lapack.dpotrf(block, lower=1, clean=1)[0]
            inverse = np.zeros((len(samples), size))
            inverse[np.arange(len(samples) - size, len(samples)), np.arange(size)] = 1.0
            inverse = scipy.linalg.lapack.dtrtrs(lower, inverse, lower=1, trans=1)[0]
            data.append(inverse.T.ravel())
            columns.append(np.tile(samples, size))
            lengths += [len(samples)] * size
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return scipy.sparse.csr_matrix((np.concatenate(data), np.concatenate(columns), starts), (self.m, self.m))


@dataclass(frozen=True)
class _Leaves:
    """The samples of each leaf, its halo's first, and how many are its own."""

    samples: tuple[NDArray[np.intp], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, matrix: NDArray[Any], prior: FloatArray, points: NDArray[np.float32], halo: int, leaf: int) -> _Leaves:
        order, bounds = kd_order(points, leaf)
        samples, sizes = [], []
        root = np.sqrt(counted(prior))
        for start, stop in pairwise(bounds):
            leaf_samples, near = order[start:stop].astype(np.intp), order[:start].astype(np.intp)
            if start > halo:
                alike = (matrix[leaf_samples][:, near] / root[leaf_samples, None]).max(axis=0) / root[near]
                near = near[np.sort(np.argpartition(-alike, halo - 1)[:halo])]
            samples.append(np.concatenate([near, leaf_samples]))
            sizes.append(len(leaf_samples))
        return cls(tuple(samples), tuple(sizes))


class Probe:
    """A problem's subset, and its projections.

    - `noise_variance`: s2.
    - `inputs` (m, d): a random subset of the standardised inputs.
    - `n`, `p`: samples and targets of the problem.
    - `tolerance`: on max |g|, of targets of variance one.
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        inputs: FloatArray,
        n: int,
        p: int = 1,
        *,
        tolerance: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.n, self.p, self.tolerance = n, p, tolerance
        self.kernel, self.inputs = kernel, inputs
        self._noise, self._seed = noise_variance, seed
        self._counts: dict[tuple[float, ...], tuple[int, int | None]] = {}

    @property
    def noise(self) -> float:
        """The noise variance in units of the kernel's largest k(x, x)."""
        return self._noise / float(self._whole.prior.max())

    @property
    def curve(self) -> ResidualCurve:
        """Residuals of the kernel's diagonal under factors of the subset."""
        return self._whole.landmarks.curve

    @property
    def double(self) -> bool:
        """True where float32 rounds would not do, and counts are those of float64."""
        return self._whole.double

    @property
    def largest_rank(self) -> int:
        """The largest rank that counts can be projected for."""
        if self.n > MANY_SUBSETS * self._whole.m:
            return self.n
        return max(1, int(len(self._whole.landmarks.rows) * (self.n / self._whole.m) ** LARGE_RANK))

    @property
    def digits(self) -> float:
        """Digits to the tolerance in units of those to the fitted one."""
        return max(0.1, math.log(START / self.tolerance) / math.log(START / FITTED_TOLERANCE))

    def condition(self, rank: float) -> float:
        """Condition number that a low-rank factor leaves: n e(R) / (R s2)."""
        return self.n * self.curve.at(rank) / (rank * self.noise)

    def opens_in_double(self, rank: int) -> bool:
        """True if a low-rank factor is so good that the first product should be one of float64.

        With targets of variance one that have the noise that they are taken to have, coefficients are residuals over
        s2, and the first step about sqrt(n / s2) long.
        """
        matrix, m = self._whole.matrix.astype(np.float64), self._whole.m
        squares = max(0.0, float(np.sum(matrix**2) - np.sum(matrix.diagonal() ** 2)))
        typical, length = math.sqrt(squares / (m * (m - 1.0))), math.sqrt(self.n / self._noise)
        second = expected_second_step(self.condition(rank))
        return not self.double and only_the_first_drifts(typical, length, second, self.tolerance)

    @property
    def extents(self) -> FloatArray:
        """Sides of the box of the samples, in the kernel's units; `InputError` of a kernel without units."""
        scales = grid_scales(self.kernel)
        spread = np.ptp(self.inputs[:, list(scales)], axis=0) * np.array(list(scales.values()))
        return np.asarray(np.maximum(spread, 1e-9), np.float64)

    def polynomial_iterations(self, extents: FloatArray, rank: int) -> float:
        """Iterations with local polynomials of so many nodes, for samples in a box of these extents."""
        _, condition = choose_order(self.kernel, extents, rank, self.n / self._noise)
        return self.digits * ITERATIONS_BY_CONDITION * math.pow(condition, CONDITION_POWER)

    def iterations(self, halo: int, leaf: int, rank: int, most: float = 400.0) -> float:
        """Iterations on all samples with such a factor; infinity where they are more than `most`."""
        with single_threaded_blas():
            scale = self.n / self._whole.m
            reached = halo / scale
            if halo and reached < LEAST_HALO:
                # Counts fall as a power of the halo.
                halves, wholes = (self._extended(LEAST_HALO * k, LEAST_HALO * k // 2, rank, 400.0) for k in (1, 2))
                fall = max(0.0, math.log2(max(halves, 1.0) / max(wholes, 1.0)))
                if self.kernel.n_features <= MOST_FEATURES:
                    fall, wholes = min(fall, FALL_IN_SPACE), SHARE_IN_SPACE * wholes
                count = wholes * (2.0 * LEAST_HALO / reached) ** fall
                return count if count <= most else math.inf
            return self._extended(round(halo / scale), max(1, round(leaf / scale)), rank, most)

    def _extended(self, halo: int, leaf: int, rank: int, most: float) -> float:
        """Iterations on all samples, with a halo and a leaf of the subset."""
        subset, share = self._whole, self._whole.m / self.n
        if not halo:
            trusted = LOW_RANK_SHARE * subset.m
            counts: list[int | None] = [self._counted(subset, 0, 0, min(rank, trusted), 1.0, math.floor(most))]
            # No more iterations than with the largest rank that the first law tells of.
            if rank > trusted and self.n > MANY_SUBSETS * subset.m:
                root = ITERATIONS_PER_ROOT * math.sqrt(self.condition(rank))
                counts.append(round(self.digits * (ITERATIONS_LEAST + root)))
            elif rank > trusted:
                scaled = rank * share**LARGE_RANK
                few = self._counted(subset, 0, 0, scaled, NOISE_OF_A_LARGE_RANK, math.floor(most / LARGE_RANK_RISK))
                counts.append(None if few is None else round(few * LARGE_RANK_RISK))
            count = min((count for count in counts if count is not None), default=None)
            return math.inf if count is None or count > most else float(count)
        scaled = rank * share**RANK_BESIDE_A_HALO
        count = self._counted(subset, halo, leaf, scaled, NOISE_BESIDE_A_HALO, math.floor(most))
        if count is None or count * self._growth > most:
            return math.inf
        return count * self._growth

    @cached_property
    def _growth(self) -> float:
        """Growth of counts from the subset to all samples, where the subset hardly feels the noise."""
        shares, halo = self.n / self._whole.m, max(LEAST_HALO, self._whole.m // 20)
        scaled, half, noisy = (
            self._counted(subset, halo // part, halo // part // 2, 0.0, power, 400)
            for subset, part, power in ((self._whole, 1, 0.5), (self._half, 2, 0.5), (self._whole, 1, 0.0))
        )
        if scaled is None or half is None or noisy is None or min(scaled, half, noisy) < 3 or shares <= 1.0:
            return 1.0
        felt = math.log(scaled / noisy) / (0.5 * math.log(shares))
        shares = min(shares, MOST_GROWTH)
        return float(shares ** max(0.0, math.log2(scaled / half) * max(0.0, min(1.0, 1.0 - felt / FELT))))

    def _counted(self, subset: _Subset, halo: int, leaf: int, rank: float, power: float, most: int) -> int | None:
        small = max(1, round(rank)) if rank else 0
        key = (subset.m, halo, leaf, small, power)
        limit, count = self._counts.get(key, (-1, None))
        if count is None and limit < most:
            noise = self._noise * (subset.m / self.n) ** power
            count = subset.iterations(halo, leaf, small, noise, self.tolerance, most)
            self._counts[key] = most, count
        return count if count is None or count <= most else None

    @cached_property
    def _whole(self) -> _Subset:
        with single_threaded_blas():
            subset = _Subset(self.kernel, self.inputs, self.p, self._seed)
            if subset.takes_double(self._noise, self.n):
                subset.go_on_in_double()
            return subset

    @cached_property
    def _half(self) -> _Subset:
        rows = np.random.default_rng([self._seed, 4]).permutation(len(self.inputs))[: len(self.inputs) // 2]
        subset = _Subset(self.kernel, self.inputs[np.sort(rows)], self.p, self._seed)
        if self._whole.double:
            subset.go_on_in_double()
        return subset
