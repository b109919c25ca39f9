"""Decisions of a ladder: raise the bound, grow, or stop, by what the last steps gained and what the next ones cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from dkgp.errors import MemoryBudgetError
from dkgp.models.memory import RUNTIME_BYTES, mib
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.ladder.costs import ExactModel, passes_seconds, product_seconds, rung_seconds
from dkgp.models.sparse.ladder.target import LadderTarget, Rung, Step
from dkgp.models.sparse.settings import SparseSettings
from dkgp.operators.base import FloatArray
from dkgp.solvers.greedy_basis import GreedySettings
from dkgp.solvers.stopping import StopReason

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
    memory_bytes: int | None  # what it may need

    @staticmethod
    def identity(settings: SparseSettings, target: LadderTarget) -> dict[str, Any]:
        """The settings that a ladder's checkpoint must share."""
        shared = {name: value for name, value in asdict(settings).items() if name not in ("basis_size", "gap")}
        return {"ladder": target.to_json(), **shared}

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
                f"the first rung of {size:,} basis samples is projected to need {mib(self.needed(size))}; there are "
                f"{mib(self.memory_bytes)}"
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
        """Decide what comes next.

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
            # Before any were taken, what growing on and on would not account for.
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
            return StopReason("dependent", False, f"{size:,} basis samples, to which no other has anything to add")
        if size >= self.largest:
            whose = "all there are" if size >= self.n else "the largest basis that was allowed"
            return StopReason("size", False, f"{size:,} basis samples, {whose}")
        larger = self.next_of(size)
        if not self._fits(larger):
            assert self.memory_bytes is not None
            message = f"{larger:,} are projected to need {mib(self.needed(larger))}; there are {mib(self.memory_bytes)}"
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
        far = f"{needed:,.0f} or so" if needed <= self.n else "more than there are"
        message = f"as the last ones fell, the target takes {far}, and longer than the exact model"
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
        """The reason to stop with what is proven so far, and with advice."""
        advice = f"train the exact model ({self.exact.choice.solver}), or ask for less"
        if reason.rule == "exact":
            advice += "; with a `largest_basis` the basis grows on up to that, whatever it costs"
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
