"""Landmarks: the training samples that a model's partial Cholesky factor is built on, and their number.

Landmarks are drawn by randomly pivoted Cholesky: the next pivots are sampled in proportion to the residual diagonal,
that of K - Q. The pivots are drawn from a random subset of the training samples, which represents all of them.

The smoothness of the kernel determines the number of landmarks. Once trace(K - Q) tr(K Kbar^-1) / n is small compared
with the gap, the factor alone certifies variances, without a product with K. All costs of the factor grow with its
rank, so the smallest sufficient rank is the best. For a rough kernel no feasible rank suffices, and memory and time
limit the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.variance.nystrom import GROUP
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.low_rank.pivots import (
    SINGLE_FROM_RANK,
    RandomlyPivotedCholesky,
    jitter,
    regularised_factor,
    stand_in,
)
from dkgp.operators.low_rank.products import LandmarkTriangle

__all__ = ["Landmarks", "SupportSamples", "choose_landmarks", "group_gain", "is_enough", "jitter", "judged"]

FIRST_CHECK_RANK = 128
# Largest interval widths over the bound of `is_enough`, which is a bound of norms. Of 5,000 latent intervals the widest
# had .28 and .23 of the bound at ranks 1,000 and 800, the mean .19 and .16 (Friedman1, n = 100,000). With the noise,
# the factor .3 would miss outlying samples: their ||v||^2 is ten times the mean, and the latent case profits from their
# larger function variance.
WIDEST_LATENT, WIDEST = 0.3, 1.0
# Largest interval widths over that bound divided by the gain of the remainder's groups. The widest of 1,000 latent
# intervals had from .6 to .95, the mean .22 (Friedman1, n = 20,000, ranks 300 to 740). With the noise, about one
# outlying sample in a thousand has five. Samples that the factor does not certify take products with all samples, which
# cost more than landmarks (n = 100,000, 1,000 samples, gap 2 %: at most 3.5 % with 3, .4 with 10; ranks 267, 347).
GROUPED_LATENT, GROUPED = 1.2, 12.0
# Number of groups that the gain is measured on.
GROUPS_LOOKED_AT = 4


class SupportSamples(Protocol):
    """Training samples and their noise: a stored model, or a model scaled by `dkgp.models.variance.scaled`."""

    @property
    def n_samples(self) -> int:
        """Number of samples n."""

    @property
    def noise_variance(self) -> float:
        """s2."""

    def input_rows(self, indices: IndexArray) -> FloatArray:
        """Standardised inputs at `indices`, (len(indices), d)."""


@dataclass(frozen=True)
class Landmarks:
    """The chosen training samples."""

    indices: IndexArray  # (R,) int: rows of the model's support inputs, in the order of choice
    residual_trace: float  # trace(K - Q), extrapolated from the subset
    # tr(Q (Q + s2 I)^-1) of the subset; of its first landmarks only, if these show that the kernel is rough.
    effective_dimension: float
    kernel_trace: float = math.nan  # trace(K), extrapolated from the subset; NaN where it is not known
    gain: float = math.nan  # see `group_gain`; NaN where it has not been computed

    @property
    def rank(self) -> int:
        """Number of landmarks, R."""
        return len(self.indices)


def choose_landmarks(
    model: SupportSamples,
    kernel: Kernel,
    *,
    gap: float,
    largest_rank: int,
    latent: bool = False,
    fixed: bool = False,
    seed: int = 0,
    hopeful: Callable[[int, float, float], bool] | None = None,
) -> Landmarks:
    """Draw landmarks from a model's support inputs.

    Parameters
    ----------
    gap : float
        Relative gap that variances are to be certified to.
    largest_rank : int
        Largest number of landmarks.
    latent : bool
        Whether the gap is relative to the function's variance, without the noise.
    fixed : bool
        Take `largest_rank` landmarks, up to the kernel's numerical rank, even if the kernel is smooth.
    hopeful : callable, optional
        Called with (rank, trace(K - Q), effective dimension) as landmarks are drawn; drawing stops at False.

    Returns
    -------
    Landmarks
        Fewer than `largest_rank` where the kernel is smooth enough or its numerical rank is reached.

    References
    ----------
    Y. Chen, E. N. Epperly, J. A. Tropp, R. J. Webber, Randomly pivoted Cholesky (2023), algorithm 2 (blocks).
    """
    rng = np.random.default_rng(seed)
    n = model.n_samples
    largest_rank = min(largest_rank, n)
    subset = stand_in(n, largest_rank, rng)
    evaluator = TileEvaluator(kernel, "double")
    inputs = np.asarray(model.input_rows(subset))
    prior = np.asarray(kernel.diagonal(inputs), dtype=np.float64)
    factor = RandomlyPivotedCholesky(evaluator, evaluator.prepare(inputs), prior, largest_rank, rng)
    dimension, gain, enough, last = 0.0, math.nan, False, 0
    while not factor.complete:
        last = factor.rank
        factor.extend()
        if not fixed and factor.rank >= FIRST_CHECK_RANK:
            trace = _residual_trace(factor, n)
            # The dimension grows with the rank: if the last dimension is already too large, a new one is not needed.
            best = float(GROUP)  # no gain is larger
            if dimension == 0.0 or is_enough(trace, dimension, model.noise_variance, gap, n, best, latent=latent):
                dimension = _effective_dimension(factor.rows, model.noise_variance, n / len(subset))
                if is_enough(trace, dimension, model.noise_variance, gap, n, best, latent=latent):
                    gain = group_gain(model, kernel, subset[factor.pivots])
                    enough = is_enough(trace, dimension, model.noise_variance, gap, n, gain, latent=latent)
                    if enough:
                        break
            if hopeful is not None and not hopeful(factor.rank, trace, dimension):
                break
            if factor.rank >= SINGLE_FROM_RANK:
                factor.continue_in_single_if_rough()
    traces = _residual_traces(factor, max(last, FIRST_CHECK_RANK - 1), n) if enough else []
    for rank, trace in enumerate(traces, factor.rank + 1 - len(traces)):
        if is_enough(trace, dimension, model.noise_variance, gap, n, gain, latent=latent):
            return Landmarks(subset[factor.pivots[:rank]], trace, dimension, float(prior.mean() * n), gain)
    trace = _residual_trace(factor, n)
    if dimension == 0.0 or is_enough(trace, dimension, model.noise_variance, gap, n, float(GROUP), latent=latent):
        dimension = _effective_dimension(factor.rows, model.noise_variance, n / len(subset))
    return Landmarks(subset[factor.pivots], trace, dimension, float(prior.mean() * n), gain)


def _residual_trace(factor: RandomlyPivotedCholesky, n: int) -> float:
    """Return trace(K - Q) of n samples, from the subset's samples that are no landmarks; landmarks have residual 0."""
    others = len(factor.residual) - factor.rank
    return float(factor.residual.sum() / max(others, 1) * (n - factor.rank))


def _residual_traces(factor: RandomlyPivotedCholesky, first: int, n: int) -> list[float]:
    """Return trace(K - Q) of n samples after each pivot from number `first` on."""
    of_rows = np.einsum("ri,ri->r", factor.rows[first:], factor.rows[first:], dtype=np.float64)
    remaining = factor.residual.sum() + np.append(np.cumsum(of_rows[:0:-1])[::-1], 0.0)
    ranks = np.arange(first + 1, factor.rank + 1)
    return [float(value) for value in remaining / np.maximum(len(factor.residual) - ranks, 1) * (n - ranks)]


def _effective_dimension(rows: NDArray[Any], noise_variance: float, copies: float) -> float:
    """Return tr(S (S + s2 I)^-1) with S = `copies` rows rows'; the subset represents all samples."""
    gram = copies * np.asarray(rows @ rows.T, dtype=np.float64)
    lower = regularised_factor(gram, noise_variance)
    inverse, _ = scipy.linalg.lapack.dtrtri(lower, lower=1)
    return float(len(gram) - noise_variance * np.sum(np.tril(inverse) ** 2))


def judged(
    landmarks: Landmarks, model: SupportSamples, kernel: Kernel, *, gap: float, latent: bool
) -> tuple[Landmarks, bool]:
    """Return the landmarks, with the groups' gain if it matters, and whether a factor on them is likely to suffice."""
    measured = landmarks.residual_trace, landmarks.effective_dimension, model.noise_variance, gap, model.n_samples
    if not is_enough(*measured, float(GROUP), latent=latent):
        return landmarks, False
    if math.isnan(landmarks.gain):
        landmarks = replace(landmarks, gain=group_gain(model, kernel, landmarks.indices))
    return landmarks, is_enough(*measured, landmarks.gain, latent=latent)


def group_gain(model: SupportSamples, kernel: Kernel, landmarks: IndexArray) -> float:
    """Return the factor by which groups tighten the bound of `Remainder`, trace(E_bb)^2 / |E_bb|^2.

    The factor is from 1 to the size of a group. It is measured on a few runs of consecutive samples of the model. It is
    small if consecutive samples are neighbours in space.
    """
    evaluator = TileEvaluator(kernel, "double", expanded=False)
    triangle = LandmarkTriangle.of(evaluator, np.asarray(model.input_rows(landmarks)))
    count = min(GROUP, model.n_samples)
    traces = squares = 0.0
    for start in np.linspace(0, model.n_samples - count, GROUPS_LOOKED_AT).astype(np.intp):
        rows = evaluator.prepare(np.asarray(model.input_rows(np.arange(start, start + count))))
        f = triangle.columns(evaluator, rows)
        block = evaluator.tile(rows, rows) - f.T @ f
        trace = float(np.trace(block))
        traces += trace * trace  # Python's power raises where it overflows
        squares += float(np.einsum("ij,ij->", block, block))
    return min(max(1.0, traces / squares), float(count)) if squares > 0.0 else float(count)


def is_enough(
    residual_trace: float,
    dimension: float,
    noise_variance: float,
    gap: float,
    n: int,
    gain: float = 1.0,
    *,
    latent: bool = False,
) -> bool:
    """Return True if a factor with this trace(K - Q) is expected to certify variances to `gap` by itself.

    Its upper bound exceeds the exact variance by at most trace(K - Q) ||v||^2, and with groups by this over their
    `gain`. ||v||^2 is about dimension / n at test samples like the training samples. The variance is about s2
    dimension / n, and the noise is s2.
    """
    typical = _typical(dimension, noise_variance, n, gain, latent=latent)
    return residual_trace * dimension / n <= gap * typical


def enough_trace(
    dimension: float, noise_variance: float, gap: float, n: int, gain: float = 1.0, *, latent: bool = False
) -> float:
    """Return the largest trace(K - Q) for which `is_enough` is true."""
    typical = _typical(dimension, noise_variance, n, gain, latent=latent)
    return gap * typical * n / dimension if dimension > 0.0 else math.inf


def _typical(dimension: float, noise_variance: float, n: int, gain: float, *, latent: bool) -> float:
    typical = noise_variance * dimension / n / min(WIDEST_LATENT, GROUPED_LATENT / gain)
    if latent:
        return typical
    # An interval that is narrow relative to the function's variance is narrow relative to a larger variance.
    return max(typical, noise_variance / min(WIDEST, GROUPED / gain))
