"""The solver "auto": which one, and with which factor, from the sizes of a problem and a look at it in small.

A look is a run of conjugate gradients on a subset of at most 2,000 samples, which foretells the iterations on all of
them (`dkgp.solvers.conjugate.probe`). Halo, leaf and rank are searched for by such looks, the cheapest by projected
time taken further; none goes on once its candidate can no longer be the best, or, far behind, beyond half of that time.
So a smooth problem gets a low-rank factor alone, a rough one a halo, and most in between a halo with some landmarks.
Time is flat about the best of them, and a run that proves harder than foreseen grows its halo: a look needs to be right
within a third. If float32 is too inaccurate, counts, prices and the choice are those of float64.

The other candidates are the whole matrix' Cholesky factor, for few samples, and greedy block descent, which needs no
factor: it takes 3 + 0.09 n e(R) / (R s2) column passes, R = 10 sqrt(n), where e(R) is the part of the kernel's diagonal
that a pivoted factor of rank R leaves (kin40k, california, friedman1, pumadyn32nm, sarcos_test4449 and abalone, n from
2,000 to 20,000: 3.1 to 16.2 passes).

Prices are those of `dkgp.solvers.prices`: only their ratios matter, and nothing is timed at run time, so that a seeded
run makes the same choice everywhere.

Not among the choices, because on none of these problems they came near the best: plain conjugate gradients, kernel and
parameter conjugate gradients (more passes, each as dear), cyclic and gradient selection (5 times the passes of greedy
selection and more), sequential minimal optimisation, and the tiled factor (n^3 / 3 operations and a file of half the
matrix: for matrices that nothing else can solve).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.operators.base import FloatArray
from dkgp.operators.low_rank.factor import HELD_BYTES, low_rank_bytes
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers.block_descent.block_size import automatic_block_size, descent_phases, expected_passes
from dkgp.solvers.cholesky.in_memory import cholesky_bytes, cholesky_phases
from dkgp.solvers.conjugate.preconditioner import (
    MOST_ITERATIONS,
    Landmarks,
    conjugate_phases,
    factor_bytes_allowed,
    polynomial_phases,
)
from dkgp.solvers.conjugate.probe import FITTED_TOLERANCE, Probe
from dkgp.solvers.prices import Prices, Sizes, core_seconds

CHOICES = ("gbcd", "pcg", "cholesky")
# kappa of the block descent that is compared.
CANDIDATES = 60

# Samples that are looked at, of so many times as many.
PROBE_SAMPLES, LEAST_PROBED, PROBED_SHARE = 2000, 500, 8
# Nominal seconds of the whole matrix' factor. One that takes less is made without a look, which would take as long (up
# to about 2,800 samples); where it takes less than the second (about 4,100), one look says whether conjugate gradients
# with a halo take half of that at most, and a search would take longer than its result could save.
CHOLESKY_WITHOUT_A_LOOK, CHOLESKY_UNLESS_EASY, EASY = 0.25, 0.7, 0.5

# Halos are searched for from this share of the samples, by factors of two; a leaf is half of its halo. Where one look
# decides, halos are this much larger: at n = 3,000 of kin40k the best of Matern 1/2 and 3/2, for any noise.
HALO_SHARE, ONE_LOOK = 20, 2.0
LEAST_HALO = 64
# Halos are walked to while they take less than so many times the time of a rank alone.
NEAR = 1.5
# Ranks that are tried, in sqrt(n): 100, 300, 1,000 and 1,700 at n = 30,000.
RANKS_PER_SQRT_N, LARGEST_RANK = (0.6, 1.75, 5.8, 10.0), 4000
IN_DOUBLE = " in float64, for float32 has too little room for this noise"

# Nodes of local polynomials that are tried.
NODES = (500, 1000, 2000, 3000, 4000, 6000)

# Of block descent, measured over its work: one core selects while the others wait.
GREEDY_OVERHEAD = 2.0


@dataclass(frozen=True)
class Choice:
    """A solver, and why.

    Attributes
    ----------
    solver : str
        Name, as on the command line.
    halo, leaf, rank : int or None
        Of the preconditioner, for "pcg"; no leaf where the halo is 0.
    precision : {"mixed", "double"}
        "double" where float32 rounds would not do; of no matter for "cholesky".
    reason : str
        One sentence.
    products : float or None
        Products with the whole matrix that are foreseen.
    projected : dict
        For each solver considered its projected core seconds on a nominal machine; only their ratios matter.
    """

    solver: str
    reason: str
    projected: dict[str, float] = field(default_factory=dict)
    halo: int | None = None
    leaf: int | None = None
    rank: int | None = None
    precision: Literal["mixed", "double"] = "mixed"
    products: float | None = None
    landmarks: Landmarks | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The solver's options that go with the choice, by name."""
        return {
            name: value for name in ("halo", "leaf", "rank", "landmarks") if (value := getattr(self, name)) is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {name: value for name, value in self.__dict__.items() if name != "landmarks" or value is not None}


def probed_samples(n: int) -> int:
    """Samples that are looked at: few of a small problem, which is solved in little time."""
    return min(n, PROBE_SAMPLES, max(LEAST_PROBED, n // PROBED_SHARE))


def choose_solver(
    kernel: Kernel,
    noise_variance: float,
    inputs: FloatArray,
    n: int,
    p: int = 1,
    *,
    tolerance: float = FITTED_TOLERANCE,
    memory_bytes: int | None = None,
    seed: int = 0,
) -> Choice:
    """Choose between Cholesky, conjugate gradients with a factor, and greedy block descent.

    Parameters
    ----------
    inputs : (m, d) float64
        A random subset of the standardised inputs, about `probed_samples(n)`; not looked at for small n.
    n, p : int
        Samples and targets of the problem.
    tolerance : float
        On max |g|.
    memory_bytes : int, optional
        Memory limit of a factor, of the matrix or of the preconditioner; by default `factor_bytes_allowed`.
    seed : int
        Of the probe.

    Raises
    ------
    InputError
        No samples to probe, or sizes that are not positive.

    Examples
    --------
    >>> from dkgp.kernels import SquaredExponential
    >>> x = np.random.default_rng(0).standard_normal((1000, 2))
    >>> choose_solver(SquaredExponential(gamma=(0.5, 0.5)), 0.1, x, 100_000).solver
    'pcg'
    """
    return choose_by(
        Probe(kernel, noise_variance, inputs, n, p, tolerance=tolerance, seed=seed), memory_bytes=memory_bytes
    )


def choose_by(
    probe: Probe,
    *,
    double: bool = False,
    memory_bytes: int | None = None,
    one_arithmetic: bool = True,
    product_error: ProductError = EVERY_ENTRY,
) -> Choice:
    """Choose for the problem of a probe, which looks at its samples where sizes alone do not decide.

    With `double` kernel entries are evaluated in float64 throughout. Without `one_arithmetic` workers do not compute
    alike, and only solvers are considered whose bits do not depend on the worker. Products with a
    number as their `product_error` are of use to conjugate gradients alone, with the factor that suits their price.
    """
    n, p, d = probe.n, probe.p, probe.kernel.n_features
    if n < 1 or p < 1:
        raise InputError(f"expected at least one sample and one target; got n = {n} and p = {p}")
    memory_bytes = factor_bytes_allowed(n) if memory_bytes is None else memory_bytes
    fits = cholesky_bytes(n, d, p) <= memory_bytes
    sizes, prices = Sizes(n, d, p, double), Prices.nominal(d)
    factor = core_seconds(cholesky_phases(sizes), prices)
    share = product_error.share(probe.kernel, n)
    if share is not None and n < LEAST_PROBED:
        return Choice("pcg", f"{n:,} samples are few: its factor is nearly that of the matrix")
    quick = CHOLESKY_WITHOUT_A_LOOK if one_arithmetic else CHOLESKY_UNLESS_EASY
    if fits and share is None and factor <= quick:
        return Choice("cholesky", f"a Cholesky factor of {n:,} samples takes little time")
    _require_samples(probe)
    if probe.double and not double:
        sizes = replace(sizes, double=True)
    if share is not None:
        sizes = replace(sizes, evaluated=share)
        nodes = _nodes(probe, sizes, prices, memory_bytes)
        best = _Search(probe, sizes, prices, memory_bytes, nodes.seconds).run()
        return _with_error(min(nodes, best, key=lambda factor: factor.seconds), share, sizes.double)
    if fits and factor <= CHOLESKY_UNLESS_EASY:
        return _easy(_Search(probe, sizes, prices, memory_bytes, EASY * factor).first(), factor, sizes.double)
    m = automatic_block_size(n, d, CANDIDATES)
    greedy = core_seconds(descent_phases(sizes, m, CANDIDATES, expected_passes(probe)), prices)
    projected = {"gbcd": GREEDY_OVERHEAD * greedy}
    if fits:
        projected["cholesky"] = factor
    if not one_arithmetic:
        name = min(projected, key=lambda solver: projected[solver])
        return Choice(
            name,
            f"the workers' processors or libraries differ, and its bits do not depend on that; {_how(name, probe)}",
            projected,
            precision=_precision(name, sizes),
        )
    best = _Search(probe, sizes, prices, memory_bytes, min(projected.values())).run()
    if math.isfinite(best.seconds):
        projected["pcg"] = best.seconds
    name = min(projected, key=lambda solver: projected[solver])
    others = _others(name, projected)
    if name != "pcg":
        return Choice(name, f"{_how(name, probe)}; {others}", projected, precision=_precision(name, sizes))
    return best.choice(others, projected, sizes.double)


def _require_samples(probe: Probe) -> None:
    inputs = probe.inputs
    if inputs.ndim != 2 or len(inputs) < 2:
        raise InputError(f"choosing a solver needs samples to probe, (m, d); got an array of shape {inputs.shape}")
    largest = float(np.max(probe.kernel.diagonal(inputs)))
    if not (np.isfinite(inputs).all() and math.isfinite(largest) and largest > 0.0):
        raise InputError(
            "choosing a solver needs finite samples, and a kernel that is not zero at all of them; got a largest "
            f"k(x, x) of {largest!r}. Remove or fill NaN and infinity, or name a solver"
        )


def _with_error(best: _Factor, share: float, double: bool) -> Choice:
    """Choose conjugate gradients, with the factor that suits products of an allowed error."""
    reason = f"products take {share:.1g} of the time of evaluating every entry"
    if math.isinf(best.seconds):
        return Choice("pcg", f"{reason}, and its own sizes may grow", precision="double" if double else "mixed")
    return best.choice(reason, {"pcg": best.seconds}, double)


def _nodes(probe: Probe, sizes: Sizes, prices: Prices, memory_bytes: int) -> _Factor:
    """The best number of nodes of local polynomials, seconds infinite where a kernel has none."""
    best = _Factor(sizes.n, 0, 0, 1, math.inf, math.inf, "polynomials")
    try:
        extents = probe.extents
    except InputError:
        return best
    for rank in NODES:
        if 24 * rank**2 > memory_bytes or rank > sizes.n:
            continue
        count = probe.polynomial_iterations(extents, rank)
        seconds = core_seconds(polynomial_phases(sizes, count, rank), prices)
        if count <= MOST_ITERATIONS and seconds < best.seconds:
            best = _Factor(sizes.n, 0, 0, rank, count, seconds, "polynomials")
    return best


def _precision(name: str, sizes: Sizes) -> Literal["mixed", "double"]:
    return "double" if sizes.double and name != "cholesky" else "mixed"


def _easy(look: _Factor, factor: float, double: bool) -> Choice:
    """Choose for few samples: the factor of the matrix, unless one look promises half of its time."""
    projected = {"cholesky": factor}
    if math.isinf(look.seconds):
        return Choice("cholesky", f"{look.samples:,} samples are few for a problem that is not easy", projected)
    projected["pcg"] = look.seconds
    return look.choice(_others("pcg", projected), projected, double)


@dataclass(frozen=True)
class _Factor:
    """A factor that was looked at, with its projected count and time."""

    samples: int
    halo: int
    leaf: int
    rank: int
    count: float
    seconds: float
    landmarks: Landmarks | None = None

    def choice(self, others: str, projected: dict[str, float], double: bool) -> Choice:
        """Conjugate gradients with this factor, in float64 throughout where `double`."""
        reason = f"{self.reason}{IN_DOUBLE if double else ''}; {others}"
        halo, leaf = (self.halo, self.leaf) if self.halo else (0, None)
        precision: Literal["mixed", "double"] = "double" if double else "mixed"
        return Choice("pcg", reason, projected, halo, leaf, self.rank, precision, self.count, self.landmarks)

    @property
    def reason(self) -> str:
        """Half of a sentence."""
        if self.landmarks == "polynomials":
            return f"local polynomials of {self.rank:,} nodes: about {self.count:.0f} iterations by a forecast"
        if not self.halo:
            return f"a factor of rank {self.rank:,}: about {self.count:.0f} iterations by a forecast"
        landmarks = f" on a factor of rank {self.rank:,}" if self.rank else ""
        return (
            f"leaves of {self.leaf:,} samples with halos of {self.halo:,}{landmarks}: about "
            f"{self.count:.0f} iterations by a forecast"
        )


class _Search:
    """Halo and rank by projected time: from one place downhill, a look at a time."""

    def __init__(self, probe: Probe, sizes: Sizes, prices: Prices, memory_bytes: int, limit: float) -> None:
        self._probe, self._sizes, self._prices, self._limit = probe, sizes, prices, limit
        self._memory_bytes = memory_bytes
        # Numbers that may be held for each sample.
        self._held = max(1, memory_bytes // (4 * sizes.n))
        self._seen: dict[tuple[int, int], _Factor] = {}
        self._first = max(LEAST_HALO, sizes.n / HALO_SHARE)
        self.best = _Factor(sizes.n, 0, 0, 1, math.inf, math.inf)

    def first(self) -> _Factor:
        """Return the factor of one halo, its seconds infinite if they exceed `limit`."""
        halo = self._halo(ONE_LOOK * self._first)
        if halo:
            self._look(halo, 0)
        return self.best

    def run(self) -> _Factor:
        """Return the best; one whose seconds are infinite could not compete with `limit`."""
        n = self._sizes.n
        ranks = [self._rank(share * math.sqrt(n)) for share in RANKS_PER_SQRT_N]
        if not self._fits(0, 0, ranks[0]):
            ranks[0] = self._rank(self._held)
        # A look at a rank alone takes a fifth of one with a halo, and spares those that come nowhere near it.
        nothing, low = self.best, self._look(0, ranks[1]) or self.best
        self._limit, self.best = min(self._limit, NEAR * low.seconds), nothing
        self._walk(self._halo(self._first), 0)
        self.best = min(self.best, low, key=lambda factor: factor.seconds)
        for rank in ranks:
            self._look(0, rank)
        if self.best.halo:
            for rank in ranks[1:3]:
                if self._look(self.best.halo, rank) is self.best:
                    self._walk(self.best.halo, rank)
        elif not math.isinf(self.best.seconds):
            for factor in (1.5, 1.0 / 1.5):
                before = 0
                while before != self.best.rank:
                    before = self.best.rank
                    self._look(0, self._rank(before * factor))
        if math.isinf(self.best.seconds):
            # Nothing competes: look at a factor within the memory, for the record.
            self._limit, self._seen = math.inf, {}
            halo = self._halo(self._first)
            self._look(*((halo, 0) if halo else (0, ranks[-1])))
        return self.best

    def _walk(self, halo: int, rank: int) -> None:
        """Go on by halving, or else doubling, while it gets better; then by smaller steps."""
        # A halo whose leaves alone take longer than the limit says nothing of smaller ones.
        while halo and self._seconds(1.0, halo, -(-halo // 2), rank) > min(self._limit, self.best.seconds):
            halo = self._halo(0.5 * halo)
        self._look(halo, rank)
        for factor in (0.5, 2.0, math.sqrt(0.5), math.sqrt(2.0)):
            start = self.best.halo or halo
            while self._look(self._halo(start * factor), rank) is self.best and self.best.halo != start:
                start = self.best.halo
                if factor in (math.sqrt(0.5), math.sqrt(2.0)):
                    break

    def _halo(self, size: float) -> int:
        """A halo that the memory holds, with its leaf; 0 where there is no room for one."""
        halo = int(min(size, self._held / 1.5, self._sizes.n / 3))
        return halo if halo >= LEAST_HALO else 0

    def _rank(self, size: float) -> int:
        return max(1, min(round(size), LARGEST_RANK, self._sizes.n, self._probe.largest_rank))

    def _look(self, halo: int, rank: int) -> _Factor | None:
        """Look at a factor, unless its making alone takes too long; None where it cannot be the best."""
        leaf = -(-halo // 2)
        if (halo, rank) in self._seen or not self._fits(halo, leaf, rank):
            return self._seen.get((halo, rank))
        made, more = (self._seconds(count, halo, leaf, rank) for count in (0.0, 1.0))
        most = min(float(MOST_ITERATIONS), (min(self._limit, self.best.seconds) - made) / (more - made))
        count = self._probe.iterations(halo, leaf, rank, most) if most >= 1.0 else math.inf
        factor = _Factor(self._sizes.n, halo, leaf, rank, count, made + count * (more - made))
        self._seen[halo, rank] = factor
        if factor.seconds < self.best.seconds:
            self.best = factor
        return factor

    def _fits(self, halo: int, leaf: int, rank: int) -> bool:
        """True for a factor within the memory; a low-rank one that is too large to be held is evaluated."""
        if halo:
            return halo + leaf + rank <= self._held
        return bool(rank) and low_rank_bytes(self._sizes.n, rank) <= self._memory_bytes

    def _seconds(self, count: float, halo: int, leaf: int, rank: int) -> float:
        seconds = core_seconds(conjugate_phases(self._sizes, count, halo=halo, leaf=leaf, rank=rank), self._prices)
        if not halo and 4 * self._sizes.n * rank > HELD_BYTES:
            again = self._sizes.product(self._sizes.n, 2.0 * rank, double=True)
            seconds += (count + 1.0) * self._prices.seconds(again)
        return seconds


def _how(name: str, probe: Probe) -> str:
    if name == "cholesky":
        return f"{probe.n:,} samples are few for a problem this rough"
    return f"about {expected_passes(probe):.0f} column passes are expected, and no factor is needed"


def _others(name: str, projected: dict[str, float]) -> str:
    ratios = [
        f"{other} {seconds / projected[name]:.1f} times as long"
        for other, seconds in projected.items()
        if other != name
    ]
    return f"forecast of the others: {', '.join(ratios)}" if ratios else "a factor would take too many iterations"
