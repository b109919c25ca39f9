"""The solver "auto": which one, from the sizes of a problem and one cheap probe of its smoothness.

The probe is a randomly pivoted Cholesky factor of the kernel matrix of a small random subset. What it leaves of the
diagonal after R pivots, e(R), depends on the kernel and on where the samples lie, hardly on how many there are, and it
says what an iteration gains: with rank R the preconditioned matrix has a condition number of about
n e(R) / (R s2). What follows from it was fitted to solves of kin40k, california, friedman1, pumadyn32nm,
sarcos_test4449 and abalone, at n from 2,000 to 20,000 and ranks from 128 to 1,024, tuned length scales:

* conjugate gradients with a factor of rank R need 2 + 7 sqrt(n e(R) / (R s2)) iterations to max |g| <= 1e-4 (there
  from 3 to 287; most within a fifth; outliers that no landmark is near cost up to three times as many);
* greedy block descent needs 3 + 0.09 n e(R) / (R s2) column passes at R = 10 sqrt(n) (there from 3.1 to 16.2, with
  blocks of one size; blocks that grow take up to a third less, in nearly the same time).

Prices are core times in nanoseconds from `dkgp bench tiles` and `dkgp bench solve`. As for the block size, only their
ratios matter, and nothing is timed at run time: a seeded run makes the same choice everywhere.

Not among the choices, because on none of these problems they came near the best: plain conjugate gradients, kernel and
parameter conjugate gradients (more passes, each as dear), cyclic and gradient selection (5 times the passes of greedy
selection and more), sequential minimal optimisation, and the tiled factor (n^3 / 3 operations and a file of half the
matrix: for matrices that nothing else can solve).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.pivots import RandomlyPivotedCholesky
from dkgp.solvers.block_descent.block_size import automatic_block_size, projected_round
from dkgp.solvers.cholesky.in_memory import cholesky_bytes

__all__ = ["CHOICES", "PROBE_SAMPLES", "Choice", "ResidualCurve", "choose_solver"]

CHOICES = ("gbcd", "pcg", "cholesky")

PROBE_SAMPLES = 2000
# Landmarks of the probe: beyond a quarter of its samples, what is left of them tells little of other samples.
PROBE_SHARE = 0.25
# Up to here the factor of the whole matrix takes a fraction of a second: nothing is probed.
CHOLESKY_UP_TO = 3000
DEFAULT_MEMORY_BYTES = 1024**3

ITERATIONS_LEAST, ITERATIONS_PER_ROOT = 2.0, 7.0
PASSES_LEAST, PASSES_PER_CONDITION = 3.0, 0.09
RANK_PER_SQRT_N = 10.0
# The tolerance that the two laws were fitted at; digits beyond it cost in proportion, from a start at order one.
FITTED_TOLERANCE, START = 1e-4, 50.0

# Nanoseconds on one core.
ENTRY_NS, ENTRY_NS_A_FEATURE, ENTRY_NS_A_TARGET = 0.30, 0.012, 0.05
DOUBLE_ENTRY = 2.2
PAIR_ENTRY = 1.15  # an entry used for both its row and its column
OPERATION_NS = 0.03  # of a float64 matrix product
FACTOR_BYTE_NS = 0.1  # reading F from memory
ITERATION_NS = 2e6  # what an iteration costs besides: messages, n-vectors
GREEDY_OVERHEAD = 1.25  # measured over `projected_round`
SETUP_NS = 5e7


@dataclass(frozen=True)
class ResidualCurve:
    """Residuals of the kernel's diagonal under partial Cholesky factors of growing rank.

    Attributes
    ----------
    ranks : tuple of int
        Landmarks, growing.
    residuals : tuple of float
        Mean of diag(K - F F') over the samples that are no landmarks, in units of the kernel's largest k(x, x).
    """

    ranks: tuple[int, ...]
    residuals: tuple[float, ...]

    @classmethod
    def of(cls, kernel: Kernel, inputs: FloatArray, seed: int = 0) -> ResidualCurve:
        """Probe a kernel on a random subset `inputs` (m, d) of the samples, standardised."""
        evaluator = TileEvaluator(kernel, "double")
        prior = np.asarray(kernel.diagonal(inputs), dtype=np.float64)
        rng = np.random.default_rng([seed, 2])
        largest = max(1, int(PROBE_SHARE * len(inputs)))
        ranks: list[int] = []
        residuals: list[float] = []
        with single_threaded_blas():
            factor = RandomlyPivotedCholesky(evaluator, evaluator.prepare(inputs), prior, largest, rng)
            while not factor.complete:
                factor.extend()
                free = np.ones(len(inputs), dtype=bool)
                free[factor.pivots] = False
                ranks.append(factor.rank)
                residuals.append(float(factor.residual[free].mean() / prior.max()) if free.any() else 0.0)
        return cls(tuple(ranks), tuple(residuals))

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


@dataclass(frozen=True)
class Choice:
    """A solver, and why.

    Attributes
    ----------
    solver : str
        Name, as on the command line.
    rank : int or None
        Of the preconditioner, for "pcg".
    reason : str
        One sentence.
    projected : dict
        For each solver considered its projected core seconds on a nominal machine; their ratios are what counts.
    """

    solver: str
    rank: int | None
    reason: str
    projected: dict[str, float]

    @property
    def options(self) -> dict[str, Any]:
        """The solver's options that go with the choice, by name."""
        return {} if self.rank is None else {"rank": self.rank}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)


def choose_solver(
    kernel: Kernel,
    noise_variance: float,
    inputs: FloatArray,
    n: int,
    p: int = 1,
    *,
    tolerance: float = FITTED_TOLERANCE,
    double: bool = False,
    candidates: int = 60,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    seed: int = 0,
) -> Choice:
    """Choose between Cholesky, conjugate gradients with a partial Cholesky factor, and greedy block descent.

    Parameters
    ----------
    kernel : Kernel
    noise_variance : float
        s2.
    inputs : (m, d) float64
        A random subset of the standardised inputs, about `PROBE_SAMPLES`; not looked at for small n.
    n, p : int
        Samples and targets of the problem.
    tolerance : float
        On max |g|.
    double : bool
        Whether kernel entries are evaluated in float64 throughout.
    candidates : int
        kappa of the greedy selection.
    memory_bytes : int
        What a factor, of the matrix or of the preconditioner, may take.
    seed : int
        Of the probe.

    Raises
    ------
    InputError
        No samples to probe, or sizes that are not positive.

    Examples
    --------
    >>> from dkgp.kernels import SquaredExponential
    >>> x = np.random.default_rng(0).standard_normal((2000, 2))
    >>> choose_solver(SquaredExponential(gamma=(0.5, 0.5)), 0.1, x, 100_000).solver
    'pcg'
    """
    if n < 1 or p < 1:
        raise InputError(f"expected at least one sample and one target; got n = {n} and p = {p}")
    d = kernel.n_features
    fits = cholesky_bytes(n, d, p) <= memory_bytes
    if n <= CHOLESKY_UP_TO and fits:
        return Choice("cholesky", None, f"{n:,} samples are few: their factor takes a moment", {})
    if inputs.ndim != 2 or len(inputs) < 2:
        raise InputError(f"choosing a solver needs samples to probe, (m, d); got an array of shape {inputs.shape}")
    largest = float(np.max(kernel.diagonal(inputs)))
    if not (np.isfinite(inputs).all() and math.isfinite(largest) and largest > 0.0):
        raise InputError(
            "choosing a solver needs finite samples, and a kernel that is not zero at all of them; got a largest "
            f"k(x, x) of {largest!r}. Remove or fill NaN and infinity, or name a solver"
        )
    curve = ResidualCurve.of(kernel, inputs, seed)
    prices = _Prices(n, d, p, noise_variance / largest, tolerance, double, curve)
    projected: dict[str, float] = {"gbcd": prices.greedy(candidates)}
    if fits:
        projected["cholesky"] = prices.cholesky()
    ranks = _ranks(n, memory_bytes)
    costs = [prices.preconditioned(rank) for rank in ranks]
    rank = ranks[int(np.argmin(costs))]
    projected["pcg"] = min(costs)
    name = min(projected, key=lambda solver: projected[solver])
    return Choice(name, rank if name == "pcg" else None, _reason(name, rank, prices, projected), projected)


@dataclass(frozen=True)
class _Prices:
    """Core seconds of each solver on one problem; `noise` is s2 over the kernel's largest k(x, x)."""

    n: int
    d: int
    p: int
    noise: float
    tolerance: float
    double: bool
    curve: ResidualCurve

    @property
    def _single(self) -> float:
        return ENTRY_NS + ENTRY_NS_A_FEATURE * self.d + ENTRY_NS_A_TARGET * self.p

    @property
    def _entry(self) -> float:
        return self._single * (DOUBLE_ENTRY if self.double else 1.0)

    @property
    def _digits(self) -> float:
        """Digits to this tolerance in units of those to the fitted one."""
        return max(0.1, math.log(START / self.tolerance) / math.log(START / FITTED_TOLERANCE))

    def condition(self, rank: float) -> float:
        """Condition number that a factor of this rank leaves: n e(R) / (R s2)."""
        return self.n * self.curve.at(rank) / (rank * self.noise)

    def iterations(self, rank: int) -> float:
        """Of conjugate gradients with a factor of this rank."""
        return (ITERATIONS_LEAST + ITERATIONS_PER_ROOT * math.sqrt(self.condition(rank))) * self._digits

    def passes(self) -> float:
        """Column passes of greedy block descent."""
        rank = min(float(self.n), RANK_PER_SQRT_N * math.sqrt(self.n))
        return (PASSES_LEAST + PASSES_PER_CONDITION * self.condition(rank)) * self._digits

    def preconditioned(self, rank: int) -> float:
        """Seconds with a factor of this rank: its pivots, its rows, the iterations, the check in float64."""
        n, double = self.n, DOUBLE_ENTRY * self._single
        pool = min(n, max(4000, 1.5 * rank))
        setup = (pool + n) * rank * double + (2.0 * pool + 3.0 * n) * rank**2 * OPERATION_NS
        product = 0.5 * n * n * self._entry * PAIR_ENTRY
        iteration = product + 8.0 * n * rank * self.p * FACTOR_BYTE_NS + ITERATION_NS
        return 1e-9 * (SETUP_NS + setup + self.iterations(rank) * iteration + 0.5 * n * n * double)

    def greedy(self, candidates: int) -> float:
        """Seconds of greedy block descent with the block size that `auto` picks."""
        m = automatic_block_size(self.n, self.d, candidates)
        dearer = self._entry / (ENTRY_NS + ENTRY_NS_A_FEATURE * self.d)
        rounds = self.passes() * self.n / m
        check = 0.5 * self.n**2 * DOUBLE_ENTRY * self._single
        return rounds * projected_round(self.n, self.d, candidates, m, dearer) * GREEDY_OVERHEAD + 1e-9 * check

    def cholesky(self) -> float:
        """Seconds of the whole factor."""
        n = float(self.n)
        return 1e-9 * (n * n * DOUBLE_ENTRY * self._single + n**3 / 3.0 * OPERATION_NS)


def _ranks(n: int, memory_bytes: int) -> list[int]:
    """Ranks worth pricing, by steps of a quarter; what the memory holds at most, and half the samples."""
    largest = max(1, min(n // 2, memory_bytes // (4 * n)))
    steps = range(1 + max(0, math.floor(math.log(largest / 64) / math.log(1.25)))) if largest > 64 else range(0)
    return sorted({min(largest, 16 * round(4 * 1.25**step)) for step in steps} | {largest})


def _reason(name: str, rank: int, prices: _Prices, projected: dict[str, float]) -> str:
    others = ", ".join(
        f"{other} {seconds / projected[name]:.1f} times" for other, seconds in projected.items() if other != name
    )
    how = {
        "pcg": f"a factor of rank {rank:,} should leave about {prices.iterations(rank):.0f} iterations",
        "gbcd": f"about {prices.passes():.0f} column passes are expected, and no factor is needed",
        "cholesky": f"{prices.n:,} samples are few for a problem this rough",
    }
    return f"{how[name]}; projected time of the others: {others}"
