"""A ladder of bases: m, 2 m, 4 m, ... until the target is proven, or going on is not worth the cost.

The cost is geometric: the last rung takes most of it. The proof of a rung is R of its mean less a lower bound on min R.
A larger basis lowers R. Products with all of K raise the bound, which all rungs share: one product with the rung's own
residual if that is expected to be near the solution, or else some rounds of the solver that "auto" would choose for the
exact model. The next step is the one with the largest expected gain for its price. Growing is expected to lower R as
before; products, to close the part that all further growing would leave, and later a fifth of their last gain.

Prices are core seconds of a nominal machine, computed from counts, so that a seeded run takes the same steps
everywhere. Messages scale them by the time of the rungs so far over the time projected for them.

A ladder ends without its target if the next step would take longer than the exact model; if the target, extrapolated
from the last rungs, would; if a rung exceeds the memory; at the largest size that the user allows, at n, or when no
further sample adds anything. Bases are nested if possible: a greedy choice continues from the last one, uniform and
pivoted ones begin anew and start alike.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.options import ClusterOptions
from dkgp.codec import to_json
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.models.context import RunContext
from dkgp.models.memory import RUNTIME_BYTES, Processes, mib, plan_within
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import choose_solver_for
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.model import Basis, SparseFit, fit_sparse
from dkgp.models.sparse.near import factors_phase, leaves_phase, search_phase
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.stored import residual_start
from dkgp.models.sparse.train import SparseProblem, TrainedSparse
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.exact_sums import unit_count
from dkgp.progress import ProgressCallback
from dkgp.solvers import Choice, GradientInfNorm, GreedyBlockCoordinateDescent, MaxPasses, Solver, StoppingRule, solve
from dkgp.solvers.auto import GREEDY_OVERHEAD
from dkgp.solvers.base import Clock
from dkgp.solvers.block_descent.block_size import automatic_block_size, descent_phases
from dkgp.solvers.cholesky.in_memory import cholesky_phases
from dkgp.solvers.conjugate.preconditioner import conjugate_phases
from dkgp.solvers.driver import Iteration, Loop, Watch
from dkgp.solvers.greedy_basis import GreedyBasis, GreedyEngine, GreedyProgress, GreedySettings
from dkgp.solvers.prices import ROUND_SECONDS, Phase, Prices, Sizes, Work, core_seconds
from dkgp.solvers.registry import build_solver, solver_memory
from dkgp.solvers.stopping import StopReason


@dataclass(frozen=True)
class LadderTarget:
    """The distance or the gap that a ladder has to prove, or both."""

    # Root mean square of the mean's distance from the exact one over the training samples, in standard deviations of
    # the target; the largest over targets
    distance: float | None = None
    gap: float | None = None  # duality gap of all targets together, `SparseCertificate.total_gap`
    # Basis samples at most: then the basis grows up to that size at any cost. Without it no rung
    # is begun that costs more than the exact model.
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.distance is None and self.gap is None:
            raise InputError("a basis that grows by itself needs a target: a `target_distance`, or a `gap`")
        for name, value in (("target_distance", self.distance), ("gap", self.gap)):
            if value is not None and not (np.isfinite(value) and value > 0.0):
                raise InputError(f"`{name}` must be positive; got {value}")
        if self.largest is not None and self.largest < 1:
            raise InputError(f"the largest basis has one sample at least; got {self.largest}")

    def missed(self, certificate: SparseCertificate) -> float:
        """The factor by which the proven excess of the risk has to fall, of the worst target; 1 at most if met."""
        parts = [0.0]
        if self.distance is not None:
            parts.append(float((certificate.rms_bound.max() / self.distance) ** 2))
        if self.gap is not None:
            parts.append(certificate.total_gap / self.gap)
        return max(parts)

    def status(self, certificate: SparseCertificate) -> str:
        """The proven distance and gap beside those asked for, in words."""
        parts = []
        if self.distance is not None:
            parts.append(f"distance {certificate.rms_bound.max():.3g} (requested: {self.distance:g})")
        if self.gap is not None:
            parts.append(f"duality gap {certificate.total_gap:.3g} (requested: {self.gap:g})")
        return ", ".join(parts)


@dataclass(frozen=True)
class Step:
    """A step that raised the bound."""

    kind: str  # "product" with the residual of a rung, or "solve": some more of the exact model's solve
    size: int  # of the rung, m
    passes: float  # products or column passes
    rise: float  # of the bound, summed over targets


@dataclass(frozen=True)
class Rung:
    """The record of a rung: a size of the basis, and its proof when the ladder went on."""

    size: int  # m
    # (p,): R of the means at most, min R at least: by the bounds of that time
    risk: list[float]
    least: list[float]
    best: list[str]  # (p,): the bounds that won
    distance: float  # proven, of the worst target
    gap: float | None  # proven, of all targets together; None where not informative
    elbo: float | None
    passes: float  # column passes spent on bounds so far
    entries: int  # kernel entries evaluated so far
    seconds: float  # since the start

    @classmethod
    def of(cls, certificate: SparseCertificate, passes: float, entries: int, seconds: float) -> Rung:
        """Build the record from a certificate."""
        return cls(
            certificate.m,
            list(certificate.risk),
            certificate.least.tolist(),
            list(certificate.best),
            float(certificate.rms_bound.max()),
            certificate.total_gap if math.isfinite(certificate.total_gap) else None,
            None if certificate.evidence is None else float(certificate.evidence.lower),
            passes,
            entries,
            round(seconds, 3),
        )

    @property
    def total_risk(self) -> float:
        """R summed over targets."""
        return float(np.sum(self.risk))

    def excess(self, least: FloatArray) -> float:
        """R above the current bound on min R, summed over targets."""
        return float(np.sum(np.maximum(np.asarray(self.risk) - least, 0.0)))


# Passes over the entries of K_nm: whitening, verification of the fit, and the certificate.
FIT_PASSES = 3
# Cubes of m that a fit and its certificate take at the coordinator: factors, the subset's own model, L's inverse.
COORDINATOR_CUBES = 4.0
# Of a draw of candidates, as for `GreedyBlockCoordinateDescent`.
DESCENT_CANDIDATES = 60
LARGEST_BUDGET = 1 << 62


def rung_seconds(n: int, d: int, size: int, before: int = 0, greedy: GreedySettings | None = None) -> float:
    """Choice, fit and certificate of `size` basis samples; a greedy choice has `before` of them already."""
    return core_seconds(rung_phases(n, size, before, greedy), Prices.nominal(d))


def rung_phases(n: int, size: int, before: int = 0, greedy: GreedySettings | None = None) -> list[Phase]:
    """The work of a rung; a greedy choice is the work of one more basis sample, times their number."""
    samples, m = float(n), float(size)
    phases = [
        Phase("fit", 1.0, Work(double_entries=FIT_PASSES * samples * m, double_operations=2.0 * samples * m**2)),
        Phase("algebra", 1.0, threaded=Work(double_operations=COORDINATOR_CUBES * m**3)),
    ]
    if greedy is not None:
        new, middle = m - before, (m + before) / 2.0
        looked_at = float(greedy.candidates if not greedy.exhaustive else n) + greedy.kept / greedy.per_round
        refitted = min(looked_at, float(greedy.screen)) if greedy.screen else looked_at
        rows = samples if greedy.score_rows is None else min(samples, float(greedy.score_rows))
        products = refitted if greedy.score == "refit" else 1.0
        scored = rows * looked_at if greedy.screen else samples * looked_at
        phases.append(
            Phase(
                "choice",
                new,
                Work(
                    double_entries=samples * middle / greedy.per_round + scored + samples * (refitted + 1.0),
                    double_operations=2.0 * samples * middle * products,
                ),
            )
        )
    return phases


def sparse_phases(settings: SparseSettings, n: int, d: int, p: int) -> list[Phase]:
    """The work of a model whose size is settled, in its order, with its messages; a sum's leaves are its tasks."""
    m = settings.basis_size
    greedy = settings.greedy() if settings.basis_name == "greedy" else None
    basis_bytes = 8.0 * m * (d + p)
    fit, algebra, *choices = rung_phases(n, m, greedy=greedy)
    phases = [
        replace(
            fit,
            rounds=FIT_PASSES,
            pieces=unit_count(n),
            sent_to_each=basis_bytes + 8.0 * m * m,
            returned=8.0 * m * m,
        ),
        algebra,
    ]
    if settings.sparse_method.neighbours:
        near = settings.near
        phases += [
            search_phase(near, n, d),
            leaves_phase(1.0, near, n, m),
            factors_phase("sums", 1.0, near, n, d, m, p),
        ]
    if greedy is not None:
        each, count = choices[0], greedy.per_round
        looked_at = count * greedy.candidates + greedy.kept
        choice = Phase(
            "choice",
            each.times / count,
            Work(**{name: count * value for name, value in asdict(each.shared).items()}),
            # Scores of many are taken first, then sums of those that were chosen.
            rounds=1 if count == 1 else 2,
            pieces=unit_count(n),
            sent_to_each=0.5 * basis_bytes + 8.0 * looked_at * d,
            returned=8.0 * looked_at * 0.5 * m,
        )
        phases.insert(0, choice)
    return phases


def product_seconds(n: int, d: int, p: int) -> float:
    """A product with all of K in float64."""
    return Prices.nominal(d).seconds(Sizes(n, d, p).whole(double=True))


def passes_seconds(n: int, d: int, p: int, choice: Choice, passes: float) -> float:
    """A bound by `passes` products or column passes of the chosen solver; by Cholesky it is the whole factorisation."""
    sizes, prices = Sizes(n, d, p, choice.precision == "double"), Prices.nominal(d)
    if choice.solver == "pcg":
        return core_seconds(_conjugate(sizes, choice, passes), prices)
    if choice.solver == "cholesky":
        return core_seconds(cholesky_phases(sizes), prices)
    block = automatic_block_size(n, d, DESCENT_CANDIDATES)
    return GREEDY_OVERHEAD * core_seconds(descent_phases(sizes, block, DESCENT_CANDIDATES, passes), prices)


def _conjugate(sizes: Sizes, choice: Choice, products: float) -> list[Phase]:
    halo, rank = choice.halo or 0, choice.rank or 0
    return conjugate_phases(sizes, products, halo=halo, leaf=(choice.leaf or 0) if halo else 0, rank=rank)


@dataclass(frozen=True)
class ExactModel:
    """The exact model of the same problem: its projected cost."""

    choice: Choice  # of "auto"
    core_seconds: float  # nominal
    memory_bytes: int  # projected peak of the coordinator's process, beside its current memory

    @classmethod
    def of(
        cls,
        problem: Problem,
        executor: BlockExecutor,
        *,
        memory_bytes: int | None,
        cache_bytes: int,
    ) -> ExactModel:
        """Look at the problem in small, as training with "auto" does."""
        dataset, kernel = problem.dataset, problem.kernel
        n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
        # Known noise of the data set counts, and multiples of s2 do not: these are figures of a plan.
        probed = Problem(dataset, kernel, Noise(problem.noise.common).beside(dataset))
        choice = choose_solver_for(probed, memory_bytes=memory_bytes)
        seconds = choice.projected.get(choice.solver)
        if seconds is None:  # few samples: none but the matrix' factor was looked at
            seconds = core_seconds(cholesky_phases(Sizes(n, d, p)), Prices.nominal(d))
        width = feature_width(kernel)
        solver: Solver = build_solver(choice.solver, choice.options, precision=choice.precision).resolved(n, d)
        plan = plan_within(
            LARGEST_BUDGET,
            n,
            d,
            p,
            solver_memory(solver, n, width),
            Processes(0, executor.shares_memory, executor.overlaps, cache_bytes),
            width=width,
        )
        return cls(choice, seconds, plan.coordinator_bytes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "solver": self.choice.solver,
            "reason": self.choice.reason,
            "core_seconds": self.core_seconds,
            "memory_bytes": self.memory_bytes,
        }


Move = StopReason | Literal["product", "solve", "grow"]

FIRST_RUNG = 128
# The size of a rung over that of the one before it.
STEP = 2
# Products of the first step that raises the bound, or column passes; each later one takes twice as many.
FIRST_PRODUCTS, FIRST_PASSES = 2.0, 1.0
# The share of the last step's gain that is expected of the next one of its kind; of growing, where R has not fallen
# twice yet.
GROWING_AGAIN, RAISING_AGAIN = 0.5, 0.2
# A product with the rung's own residual comes first where it is expected to leave no more than this of the excess.
PRODUCT_LEAVES = 0.5
# A step that promises less than this share of the excess is not worth its products.
LEAST_PROMISE = 0.1
# Rungs before the size that meets the target is projected. Risks of smooth kernels fall faster from rung to rung: the
# target may be met in half of the rungs that the last two project.
RUNGS_TOLD, SOONER = 3, 0.5


@dataclass(frozen=True)
class LadderPlan:
    """The rules of one ladder."""

    n: int
    d: int
    p: int
    settings: SparseSettings
    target: LadderTarget
    exact: ExactModel
    needed: Callable[[int], int]  # bytes that the coordinator's process is projected to need for a rung of this size
    memory_bytes: int | None  # its limit

    @staticmethod
    def identity(settings: SparseSettings, target: LadderTarget) -> dict[str, Any]:
        """The settings that a ladder's checkpoint must share."""
        shared = {name: value for name, value in to_json(settings).items() if name not in ("basis_size", "gap")}
        return {"ladder": to_json(target), **shared}

    @property
    def largest(self) -> int:
        """Basis samples at most."""
        return min(self.n, self.target.largest or self.n)

    @property
    def first(self) -> int:
        """The first rung.

        Raises `MemoryBudgetError`: there is no room for it.
        """
        size = min(FIRST_RUNG, self.largest)
        if not self._fits(size):
            assert self.memory_bytes is not None
            raise MemoryBudgetError(
                f"a model of {size:,} basis samples is projected to need {mib(self.needed(size))}; the limit "
                f"is {mib(self.memory_bytes)}"
            )
        return size

    def settings_of(self, size: int) -> SparseSettings:
        """Settings of a rung."""
        return replace(self.settings, basis_size=size, gap=None)

    def greedy_of(self, size: int) -> GreedySettings | None:
        """Settings of a rung's greedy choice; None where the basis is blind."""
        if self.settings.basis_name != "greedy":
            return None
        return replace(self.settings_of(size).greedy(), dual=self.target.gap is not None)

    def next_of(self, size: int) -> int:
        """The rung after that of this size."""
        return min(STEP * size, self.largest)

    def next_passes(self, steps: list[Step]) -> float:
        """Passes of the solve's next part."""
        before = sum(step.kind == "solve" for step in steps)
        return (FIRST_PRODUCTS if self.exact.choice.solver == "pcg" else FIRST_PASSES) * 2.0**before

    def move(
        self,
        rungs: list[Rung],
        certificate: SparseCertificate,
        steps: list[Step],
        full: bool,
        remaining_excess: float = math.inf,
    ) -> Move:
        """Decide on the next step.

        `rungs` are those below, `certificate` is this one's, with all that is known of min R; `steps` raised the bound.
        `full` says that no sample adds anything. A product with this rung's residual is expected to leave
        `remaining_excess` of the risk.
        """
        size, target = certificate.m, self.target
        if target.missed(certificate) <= 1.0:
            return StopReason("target", True, f"{target.status(certificate)} with {size:,} basis samples")
        stuck, growing, excess = self._stuck(size, full), self._growing(size), float(certificate.excess.sum())
        coming, further = _falls([*(rung.total_risk for rung in rungs), float(np.sum(certificate.risk))])
        # A second product with the same rung's residual would prove the same.
        multiplied = any(step.kind == "product" and step.size == size for step in steps)
        near = not multiplied and remaining_excess <= PRODUCT_LEAVES * excess
        raising: Literal["product", "solve"] = "product" if near else "solve"
        seconds = self._raising(raising, size, steps)
        if raising == "product":
            promise = excess - remaining_excess
        else:
            # Before the first step, the part that all further growing would leave.
            promise = RAISING_AGAIN * steps[-1].rise if steps else excess - (0.0 if full else min(further, excess))
        worth = seconds is not None and promise >= LEAST_PROMISE * excess
        if stuck is None and seconds is not None and worth and promise / seconds > min(coming, excess) / growing:
            return raising
        over = stuck or self._dear(rungs, certificate, growing)
        if over is None:
            return "grow"
        first_look = seconds is not None and not rungs and not steps
        return raising if worth or first_look else self._with_advice(over, certificate)

    def _growing(self, size: int) -> float:
        larger = self.next_of(size)
        return rung_seconds(self.n, self.d, larger, size, self.greedy_of(larger))

    def _raising(self, kind: str, size: int, steps: list[Step]) -> float | None:
        """Seconds of the next step that raises the bound; None where it exceeds the passes, the memory or the cost."""
        passes, spent = 1.0 if kind == "product" else self.next_passes(steps), sum(step.passes for step in steps)
        if self.settings.certify_passes and spent + passes > self.settings.certify_passes:
            return None
        room = math.inf if self.memory_bytes is None else self.memory_bytes + RUNTIME_BYTES
        if kind == "solve" and self.needed(size) + self.exact.memory_bytes > room:
            return None
        seconds = self._step_seconds(kind, passes)
        so_far = sum(self._step_seconds(step.kind, step.passes) for step in steps)
        return seconds if so_far + seconds <= self.exact.core_seconds else None

    def _step_seconds(self, kind: str, passes: float) -> float:
        if kind == "product":
            return product_seconds(self.n, self.d, self.p)
        return passes_seconds(self.n, self.d, self.p, self.exact.choice, passes)

    def _stuck(self, size: int, full: bool) -> StopReason | None:
        if full:
            return StopReason("dependent", False, f"{size:,} basis samples: further samples change nothing in float64")
        if size >= self.largest:
            whose = "all samples" if size >= self.n else "the largest basis that was allowed"
            return StopReason("size", False, f"{size:,} basis samples ({whose})")
        larger = self.next_of(size)
        if not self._fits(larger):
            assert self.memory_bytes is not None
            needed = mib(self.needed(larger))
            message = f"{larger:,} are projected to need {needed}; the limit is {mib(self.memory_bytes)}"
            return StopReason("memory", False, f"{size:,} basis samples; {message}")
        return None

    def _dear(self, rungs: list[Rung], certificate: SparseCertificate, growing: float) -> StopReason | None:
        """The reason to stop where the exact model is cheaper than going on; None if the user set a largest basis."""
        if self.target.largest is not None:
            return None
        size, exact = certificate.m, self.exact.core_seconds
        if growing > exact:
            message = f"{self.next_of(size):,} would take {growing / exact:.1f} times as long as the exact model"
            return StopReason("exact", False, f"{size:,} basis samples; {message}")
        if len(rungs) + 1 < RUNGS_TOLD:
            return None
        needed = self._projected_size(rungs, certificate)
        climbing = math.inf
        if needed <= self.n:
            climbing, before = 0.0, size
            while before < needed:
                climbing += self._growing(before)
                before = self.next_of(before)
        if climbing <= exact:
            return None
        far = f"about {needed:,.0f}" if needed <= self.n else "more than all samples"
        message = f"extrapolated, the requested distance takes {far}, and more time than the exact model"
        return StopReason("exact", False, f"{size:,} basis samples; {message}")

    def _projected_size(self, rungs: list[Rung], certificate: SparseCertificate) -> float:
        """The size that meets the target, should the excess go on falling as it did, or a little faster."""
        least: FloatArray = certificate.least
        before, now = rungs[-1].excess(least), float(certificate.excess.sum())
        missed = self.target.missed(certificate)
        if not (0.0 < now < before and math.isfinite(missed)):
            return math.inf
        further_rungs = SOONER * math.log(missed) / math.log(before / now)
        return float(certificate.m * STEP ** min(math.ceil(further_rungs), 64))

    def _with_advice(self, reason: StopReason, certificate: SparseCertificate) -> StopReason:
        """Add the proof so far and advice to a reason to stop."""
        advice = f"train the exact model ({self.exact.choice.solver}), or request less accuracy"
        if reason.rule == "exact":
            advice += "; with `largest_basis` the basis grows up to that size, even if the exact model is cheaper"
        elif reason.rule == "dependent" and self.settings.basis_name == "greedy":
            advice = f"choose a pivoted `basis`, whose samples may be nearer to each other, {advice}"
        elif reason.rule == "size" and self.largest < self.n:
            advice = f"allow a larger basis, {advice}"
        elif reason.rule == "memory":
            advice = f"allow more memory, {advice}"
        return replace(reason, message=f"{self.target.status(certificate)} with {reason.message}", advice=advice)

    def _fits(self, size: int) -> bool:
        return self.memory_bytes is None or self.needed(size) <= self.memory_bytes


def _falls(risks: list[float]) -> tuple[float, float]:
    """The fall of R that is expected of the next rung, and of all further ones; infinite if unknown."""
    if len(risks) < 2:
        return math.inf, math.inf
    last, share = max(risks[-2] - risks[-1], 0.0), GROWING_AGAIN
    if len(risks) > 2 and risks[-3] > risks[-2]:
        share = min(last / (risks[-3] - risks[-2]), 1.0)
    return share * last, math.inf if share == 1.0 else share / (1.0 - share) * last


# Rounds of tasks of a fit and its certificate: most of the time that a small problem takes.
ROUNDS_OF_A_FIT = 6


class Ladder(Iteration):
    """The finished rungs, and the one that is being climbed.

    A round of the ladder is a round of the greedy choice, a fit with its certificate, a step that raises the bound, or
    the step to the next rung. A checkpoint holds no fit: a restored rung is fitted again, to the same bits.

    - `within`: called during long work, and may end it.
    - `leave_callback`: called with each finished rung.
    - `rungs`: the finished ones.
    - `choice`: the greedy choice of the rung; None for a blind basis.
    - `least`: bounds on the least risk by name; `raised`: steps that raised them.
    - `alpha`, `gradient` (n, p): the exact model's solution so far; None before the first step that raises a bound.
    """

    saved = ("alpha", "gradient")
    counted = ("size", "steps", "least", "seconds", "entries")
    recorded: ClassVar[Mapping[str, type]] = {"raised": Step, "rungs": Rung}
    parts = ("choice",)

    alpha: FloatArray | None = None
    gradient: FloatArray | None = None

    def __init__(
        self,
        problem: SparseProblem,
        operator: BlockedKernelOperator,
        plan: LadderPlan,
        within: ProgressCallback,
        leave_callback: Callable[[Rung], None] | None = None,
    ) -> None:
        self._problem, self._operator, self._plan, self._within = problem, operator, plan, within
        self._leave_callback = leave_callback
        self.size, self.steps = plan.first, 0
        self.least: dict[str, list[float]] = {}
        self.raised: list[Step] = []
        self._residual: tuple[FloatArray, FloatArray] | None = None
        self._basis = Basis(np.empty((0, operator.kernel.n_features)))
        self._greedy: GreedyBasis | None = None
        self._system: FloatArray | None = None
        self._fit: SparseFit | None = None
        self._certificate: SparseCertificate | None = None
        self.clock, self._entries = Clock("choice", "fit", "certificate", "bound"), 0
        self._nominal = 0.0  # projected time of the last fit and certificate; `_took` is the measured one
        self._took = 0.0
        self.rungs: list[Rung] = []
        self._move: Move | None = None  # the next step of a fitted rung
        self._reason: StopReason | None = None

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """Steps of the ladder, and rounds of its choice."""
        return self.steps + (0 if self.choice is None else self.choice.iteration)

    @property
    def size(self) -> int:
        """Basis samples of the rung; a new size begins its choice."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size, settings = size, self._plan.greedy_of(size)
        self.choice = None if settings is None else GreedyEngine(self._operator, self._problem.targets, settings)

    @property
    def entries(self) -> int:
        """Kernel entries evaluated, earlier runs included."""
        return self._entries + self._operator.kernel_evaluations

    @entries.setter
    def entries(self, earlier: int) -> None:
        self._entries = earlier

    @property
    def history(self) -> list[GreedyProgress]:  # type: ignore[override]
        """Records of the choice."""
        return [] if self.choice is None else self.choice.history

    def stop(self) -> StopReason | None:
        """Return the reason to stop."""
        return self._reason

    def advance(self) -> None:
        """Do the next round of the choice, or the next step of the rung."""
        move, self.save_now = self._move, True
        if move is None:
            if self.choice is not None and (reason := self.choice.stop()) is None:
                with self.clock.measured("choice"):
                    self.choice.advance()
                # The fit that follows the last round may take as long as the choice.
                self.save_now = self.choice.stop() is not None
                return
            self._take_basis(None if self.choice is None else reason)
            self._fit_rung()
            self.save_now = False
        elif move == "product" or move == "solve":
            self._raise_bound(move)
        else:
            self._leave(move)
            return
        self._move = self._next_move()

    def close(self) -> None:
        """Release the columns that workers keep for the choice."""
        if self.choice is not None:
            self.choice.close()

    def _take_basis(self, reason: StopReason | None) -> None:
        """Take the basis that the greedy choice ended with, or choose one blindly."""
        settings = self._plan.settings
        with self.clock.measured("choice"):
            if self.choice is None:
                self._basis = blind_basis(self._operator, settings.basis_name, self.size, settings.seed)
                return
            assert reason is not None
            self.choice.close()
            greedy = self.choice.result(reason)
            self._greedy, self._system = replace(greedy, system=None), greedy.system
            self._basis = Basis(self._operator.inputs(greedy.indices), greedy.indices)

    def _fit_rung(self) -> None:
        """Fit and certify; bounds on the least risk that are known from below the rung count as well."""
        operator, problem, plan, before = self._operator, self._problem, self._plan, self.clock.total
        with self.clock.measured("fit"):
            method = plan.settings.sparse_method
            self._fit = fit_sparse(operator, problem.targets, self._basis, method, self._system)
            self._system = None
        with self.clock.measured("certificate"):
            certificate = problem.certify(operator, self._fit, self._basis, self._greedy)
        self._took = self.clock.total - before
        size, d = len(self._basis.inputs), operator.kernel.n_features
        self._nominal = rung_seconds(operator.n, d, size) + ROUNDS_OF_A_FIT * ROUND_SECONDS
        for name, values in self.least.items():
            certificate = certificate.with_bound(name, 2.0 * np.asarray(values))
        self._know(certificate)
        self._residual = None
        if plan.target.missed(certificate) > 1.0:
            with self.clock.measured("bound"):
                self._residual = residual_start(operator, problem.targets, self._fit.model, plan.settings.seed)

    def _next_move(self) -> Move:
        full = len(self._basis.inputs) < self.size
        remaining_excess = np.inf
        if self._residual is not None:
            # R above the value that the dual takes at the residual.
            remaining_excess = float(np.sum(np.maximum(np.asarray(self.certificate.risk) - self._residual[1], 0.0)))
        return self._plan.move(self.rungs, self.certificate, self.raised, full, remaining_excess)

    def _raise_bound(self, kind: Literal["product", "solve"]) -> None:
        """Take a product with the rung's residual, or go on with the exact model's solve; update the bounds."""
        operator, exact = self._operator, self._plan.exact.choice
        before, passes = self.certificate.least.sum(), 1.0
        alpha, gradient = self.alpha, self.gradient
        solver: Solver = GreedyBlockCoordinateDescent()
        stopping: StoppingRule = GradientInfNorm(sys.float_info.max)  # the start's own gradient is all that is wanted
        with self.clock.measured("bound"):
            if kind == "product":
                assert self._residual is not None
                alpha, gradient = self._residual[0], None
            else:
                passes = self._plan.next_passes(self.raised)
                solver = build_solver(exact.solver, exact.options, precision=exact.precision)
                stopping = MaxPasses(passes)
            solution = solve(
                operator,
                self._problem.targets,
                solver=solver,
                stopping=stopping,
                initial=alpha,
                initial_gradient=gradient,
                watch=Watch(within=self._within),
            )
            self.alpha, self.gradient = solution.alpha, solution.gradient
            self._know(self._problem.with_descent(operator, self.certificate, self.fitted.model, solution))
        self.raised.append(Step(kind, self.certificate.m, passes, float(self.certificate.least.sum() - before)))
        self.steps += 1

    def _leave(self, move: Move) -> None:
        """Record the rung, and go on to the next one, or stop."""
        self._move = None
        passes = sum(step.passes for step in self.raised)
        self.rungs.append(Rung.of(self.certificate, passes, self.entries, self.seconds))
        if self._leave_callback is not None:
            self._leave_callback(self.rungs[-1])
        if isinstance(move, StopReason):
            self._reason = move
            return
        below, self.size, self.steps = self.choice, self._plan.next_of(self.size), self.steps + 1
        if below is not None and self.choice is not None:
            self.choice.restore(below.arrays(), below.metadata())

    @property
    def certificate(self) -> SparseCertificate:
        """The certificate of the current rung."""
        assert self._certificate is not None
        return self._certificate

    @property
    def fitted(self) -> SparseFit:
        """The rung's fit."""
        assert self._fit is not None
        return self._fit

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint; a restored run fits the last rung again and then leaves it."""
        below = self.rungs if self._reason is None else self.rungs[:-1]
        return {**super().metadata(), "rungs": to_json(below)}

    def trained(self, reason: StopReason) -> TrainedSparse:
        """Return the last rung's model, with all rungs in its summary."""
        plan, last = self._plan, self.rungs[-1]
        record = {
            **reason.summary(),
            "ladder": {
                "target": to_json(plan.target),
                "rungs": to_json(self.rungs),
                "exact": self._exact(),
            },
            "kernel_evaluations": last.entries,
            "seconds": last.seconds,
            "seconds_by_part": self.clock.rounded(),
        }
        settings = plan.settings_of(self.size)
        return self._problem.trained(settings, self.fitted, self._basis, self._greedy, self.certificate, record)

    def _exact(self) -> dict[str, Any]:
        """Cost and gain of the exact model: in seconds as this machine took them for the last fit."""
        exact, m, n = self._plan.exact, len(self._basis.inputs), self._operator.n
        seconds, distance = exact.core_seconds * self._took / self._nominal, float(self.certificate.rms_bound.max())
        words = (
            f"the exact model ({exact.choice.solver}) would take about {_about(seconds)} s and "
            f"{exact.memory_bytes / 2**20:,.0f} MiB; its mean is within {distance:.3g} of this one's at the training "
            "samples (root mean square, in standard deviations of the target), and a prediction takes "
            f"{n / m:,.0f} times the kernel entries"
        )
        return {**exact.to_json(), "seconds": round(seconds, 3), "distance": distance, "words": words}

    def _know(self, certificate: SparseCertificate) -> None:
        self._certificate = certificate
        self.least = {name: list(values) for name, values in certificate.least_risk.items()}


def _about(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10.0 else f"{seconds:.2g}"


def climb(
    problem: SparseProblem,
    context: RunContext | BlockExecutor,
    settings: SparseSettings,
    target: LadderTarget,
    *,
    rung_callback: Callable[[Rung], None] | None = None,
    memory_bytes: int | None = None,
    cache_bytes: int = ClusterOptions.cache_bytes,
) -> TrainedSparse:
    """Train sparse models of growing bases until the target is proven; return the last, all rungs in its summary.

    Checkpoints are saved between rungs, between steps that raise the bound, and within a greedy choice. A ladder ends
    in the same bits from a checkpoint. Of the settings `basis_size` is not looked at, and the gap is the target's;
    `per_round` is by default that of each rung's size; `certify_passes`, where it is positive, is all that may be spent
    on bounds. `rung_callback` is called after every rung. `memory_bytes` is the free memory of the coordinator's
    process: no rung is begun that is projected to need more; `cache_bytes` is the budget of a worker's feature cache.

    Raises `InputError`, `NumericalError`, `InterruptedRunError`: see `train_sparse`; `MemoryBudgetError`: not even the
    first rung fits.
    """
    settings.refuse_target()
    if settings.gap is not None:
        raise InputError("the `gap` of a basis that grows by itself is its target's; it was given twice")
    dataset, kernel, run = problem.dataset, problem.kernel, problem.context(context)
    loop = Loop(run, LadderPlan.identity(settings, target))
    with problem.operator(run) as operator, operator.watched(loop.pass_on):
        exact = ExactModel.of(problem, run.executor, memory_bytes=memory_bytes, cache_bytes=cache_bytes)
        n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets

        def needed(size: int) -> int:
            rung = plan.settings_of(size)
            return rung.memory(n, d, p, run.executor, cache_bytes, feature_width(kernel)).coordinator_bytes

        plan = LadderPlan(n, d, p, settings, target, exact, needed, memory_bytes)
        ladder = Ladder(problem, operator, plan, loop.pass_on, rung_callback)
        with closing(ladder):
            return ladder.trained(loop.run(ladder))
