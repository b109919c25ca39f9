"""Newton's method, inexact: each step by preconditioned conjugate gradients, a product a round, and a line search.

The step solves (W K + lambda I) delta = -g, W = R R' the loss's curvature by sample. With B = lambda I + R'K R, which
is symmetric and positive definite whatever W, Woodbury's identity gives

    delta = (R v - g) / lambda,    K delta = (K R v - K g) / lambda,    B v = R'K g,

so that no curvature is divided by: far out, where it underflows, delta is -g / lambda. Conjugate gradients from v = 0
have v'R'K g < g'K g after any number of iterations: every delta is a way down. K R v is a sum of products that the
iterations take, and the line along delta is searched exactly without another one.

Far from the least, where every step finds another curvature, a few iterations of kernel conjugate gradients come
further: they go first. An iteration is a round of the driver, so that a run that is killed loses one product, and a
step's last iteration takes it. They stop where r'M^-1 r is little beside g'K g - v'R'K g, the slope along delta: as
little as the gap asks for.

A step that does not come to that in a few dozen, for its factor is too small for the penalty, is taken as it is. From
then on steps are solved by a factor of the whole matrix (`dkgp.solvers.risk.whole`), in float64, where it fits into
memory. Where it does not, kernel conjugate gradients go on for a while: on separable data curvatures fall on their way,
which a step with that of its start does not see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import PhaseClock
from dkgp.solvers.conjugate.kernel_cg import ratio
from dkgp.solvers.losses import CurvatureRoot
from dkgp.solvers.risk.descent import DescentState, RiskConjugateGradient
from dkgp.solvers.risk.method import RiskMethod, descend_or_settle
from dkgp.solvers.risk.preconditioner import CurvaturePreconditioner, affordable_rank
from dkgp.solvers.risk.whole import WholeCurvature
from dkgp.solvers.state import nothing

# The last iteration's gain, as a share of the slope that is left: far from the least, and near it.
LARGEST_SHARE, LEAST_SHARE = 0.1, 1e-8
# Where the gap is to fall by some factor yet, a step need not do better than this share of it.
ENOUGH = 0.1
# Steps begin where the relative gap is so small, or after so many iterations of conjugate gradients.
NEAR, MOST_DESCENTS = 0.3, 10
# What is left of r'M^-1 r beside g'K g when rounding is all there is; iterations after which a step is taken anyway.
ROUNDING = {"single": 1e-7, "double": 1e-15}
MOST_ITERATIONS = 40
# A step that has taken these was beyond its factor: so many iterations of conjugate gradients go before the next one,
# twice as many each time.
PATIENCE = 50
# A step that brings less than this share of what its quadratic foretold is poor, and so many in a row are the factor's.
POOR_SHARE, MOST_POOR = 0.1, 2


@dataclass
class NewtonState(DescentState):
    """A minimisation between two rounds, in the course of a step; its arrays are empty between two steps.

    - `inner`: iterations of the step under way.
    - `descents`, `until`: iterations of kernel conjugate gradients so far, and how many there are to be before the next
      step.
    - `failures`: steps that took too long.
    - `poor`: steps in a row that have brought little of what they were to bring.
    - `whole`: whether steps are solved by factors of the whole matrix.
    - `newton_image` (n, p): K g.
    - `along`, `along_image` (n, p): R v and K R v so far.
    - `residual`, `search` (n, p): r = R'K g - B v, and the direction in v to come.
    - `energy` (q,): r'M^-1 r.
    """

    saved = (*DescentState.saved, "newton_image", "along", "along_image", "residual", "search", "energy")
    counted = (*DescentState.counted, "inner", "descents", "until", "failures", "poor", "whole")

    inner: int = 0
    descents: int = 0
    until: int = MOST_DESCENTS
    failures: int = 0
    poor: int = 0
    whole: bool = False
    newton_image: FloatArray = field(default_factory=nothing)
    along: FloatArray = field(default_factory=nothing)
    along_image: FloatArray = field(default_factory=nothing)
    residual: FloatArray = field(default_factory=nothing)
    search: FloatArray = field(default_factory=nothing)
    energy: FloatArray = field(default_factory=lambda: np.zeros(0))
    root: CurvatureRoot | None = None
    preconditioner: CurvaturePreconditioner | WholeCurvature | None = None
    refreshed: bool = False

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Compute values and gradient anew; a step under way, made for the ones before, is given up."""
        super().renew_gradient(operator)
        self.give_up_the_step()

    def give_up_the_step(self) -> None:
        """Forget the step under way."""
        self.inner, self.root, self.refreshed = 0, None, False
        self.newton_image = self.along = self.along_image = self.residual = self.search = nothing()
        self.energy = np.zeros(0)

    def take_the_whole(self) -> None:
        """Solve steps by factors of the whole matrix, in float64: float32 products are off by more than the penalty."""
        self.whole, self.precision = True, "double"

    def curvature(self) -> CurvatureRoot:
        """R of the values at which the step began."""
        if self.root is None:
            self.root = self.risk.curvature_root(self.rhs, self.values)
        return self.root


@dataclass(frozen=True)
class RiskNewton(RiskMethod[NewtonState]):
    """Newton's method with preconditioned conjugate gradients.

    Parameters
    ----------
    risk, precision
        See `RiskMethod`.
    rank : int or "auto"
        Of the preconditioner's low-rank factor, 0 for none. "auto" takes one whose algebra for a step takes as long as
        a few products.
    seed : int
        Of its landmarks.

    References
    ----------
    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning (2006), section 3.4; R. S. Dembo, S.
    C. Eisenstat, T. Steihaug, Inexact Newton methods (1982).
    """

    rank: int | Literal["auto"] = "auto"
    seed: int = 0

    name = "newton"
    state_type = NewtonState

    def __post_init__(self) -> None:
        if self.rank != "auto" and self.rank < 0:
            raise InputError(f"the rank of Newton's preconditioner must be 'auto' or not negative; got {self.rank!r}")
        super().__post_init__()

    def resolved(self, n: int, d: int, p: int = 1) -> RiskNewton:
        """Return the settings with the rank chosen."""
        rank = affordable_rank(n, d, p, self.risk.loss.coupled) if self.rank == "auto" else min(n, self.rank)
        return replace(self, rank=rank)

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), "rank": self.rank, "seed": self.seed}

    def advance(self, operator: KernelOperator, state: NewtonState) -> dict[str, float]:
        """One iteration of a step, or the product that it begins with, in place; seconds by phase."""
        if self._is_far(operator, state):
            return RiskConjugateGradient(self.risk, self.precision).advance(operator, state)
        state.direction = state.image = state.before = nothing()
        clock = PhaseClock()
        if not state.search.size:
            state.newton_image = state.image_of_gradient(operator)
            clock.lap("update")
            self._begin(operator, state, clock)
        else:
            self._iterate(operator, state, clock)
        done = self._is_done(state)
        if done or state.inner >= MOST_ITERATIONS:
            beyond = not done or bool((state.energy < 0.0).any())
            poor = self._step(state)
            state.poor = state.poor + 1 if poor else 0
            if beyond or (state.poor >= MOST_POOR and not state.whole):
                self._note_failure(operator, state)
        clock.lap("line search")
        state.iteration += 1
        return clock.seconds

    def _is_far(self, operator: KernelOperator, state: NewtonState) -> bool:
        """True while kernel conjugate gradients go on: before the first step, and after one that took too long."""
        if state.search.size or state.descents >= state.until:
            return False
        risk, bound = float(np.sum(state.risks)), float(np.sum(state.bound))
        if not state.failures and risk - bound <= NEAR * abs(risk):
            state.until = state.descents
            return False
        state.descents += 1
        return True

    def _begin(self, operator: KernelOperator, state: NewtonState, clock: PhaseClock) -> None:
        state.residual = state.curvature().transposed_times(state.newton_image)
        state.along, state.along_image = np.zeros_like(state.newton_image), np.zeros_like(state.newton_image)
        state.search = self._precondition(operator, state, clock)
        state.energy = self.risk.inner(state.residual, state.search)
        state.inner = 0

    def _iterate(self, operator: KernelOperator, state: NewtonState, clock: PhaseClock) -> None:
        root, search = state.curvature(), state.search
        rooted = root.times(search)
        image = state.product(operator, rooted)
        clock.lap("update")
        bent = self.risk.regularisation * search + root.transposed_times(image)
        length = ratio(state.energy, self.risk.inner(search, bent))
        state.along = state.along + length * rooted
        state.along_image = state.along_image + length * image
        state.residual = state.residual - length * bent
        preconditioned = self._precondition(operator, state, clock)
        energy = self.risk.inner(state.residual, preconditioned)
        state.search = preconditioned + ratio(energy, state.energy) * search
        state.energy = energy
        state.inner += 1

    def _precondition(self, operator: KernelOperator, state: NewtonState, clock: PhaseClock) -> FloatArray:
        if self.rank == 0:
            return state.residual / self.risk.regularisation
        if state.whole and not isinstance(state.preconditioner, WholeCurvature):
            state.preconditioner = WholeCurvature(operator, self.risk.regularisation)
        if state.preconditioner is None:
            assert self.rank != "auto", "settings are resolved before a run"
            state.preconditioner = CurvaturePreconditioner.of(
                operator, self.rank, self.risk.regularisation, self.risk.loss.coupled, self.seed
            )
        if state.preconditioner is None:
            return state.residual / self.risk.regularisation
        if not state.refreshed:
            state.preconditioner.refresh(state.curvature(), state.rhs.shape[1])
            state.refreshed = True
        clock.lap("factor")
        preconditioned = state.preconditioner.apply(state.residual)
        clock.lap("precondition")
        return preconditioned

    def _slope(self, state: NewtonState) -> FloatArray:
        """lambda times how steep the risk falls along delta: g'K g - v'R'K g, (q,)."""
        return self.risk.inner(state.gradient, state.newton_image) - self.risk.inner(state.along, state.newton_image)

    def _is_done(self, state: NewtonState) -> bool:
        """True if what is left of the residual is little beside the slope, in every problem."""
        slope = np.maximum(self._slope(state), 0.0)
        risks = state.risks
        gap = ratio(slope / (2.0 * self.risk.regularisation), np.abs(risks))
        share = np.minimum(LARGEST_SHARE, np.sqrt(gap))
        enough = (
            ENOUGH / state.needed_fall**2
            if math.isfinite(state.needed_fall) and state.needed_fall > 1.0
            else LARGEST_SHARE
        )
        share = np.maximum(share, min(enough, LARGEST_SHARE))
        rounding = ROUNDING[state.precision] * self.risk.inner(state.gradient, state.newton_image)
        negligible = np.maximum(np.maximum(share, LEAST_SHARE) * slope, rounding)
        return bool((state.energy <= negligible).all())

    def _note_failure(self, operator: KernelOperator, state: NewtonState) -> None:
        """Say how the next step is to be solved, after one that took too long."""
        fits = self.rank != 0 and WholeCurvature.fits(operator, state.rhs.shape[1], self.risk.loss.coupled)
        if fits and not state.whole:
            state.take_the_whole()
        else:
            state.until = state.descents + PATIENCE * 2**state.failures
        state.failures, state.poor = state.failures + 1, 0

    def _step(self, state: NewtonState) -> bool:
        """Go to the least risk along delta; true if that is a small share of what the step was to bring."""
        before, promise = state.risks, np.maximum(self._slope(state), 0.0) / (2.0 * self.risk.regularisation)
        gradient, image, penalty = state.gradient, state.newton_image, self.risk.regularisation
        delta = (state.along - gradient) / penalty, (state.along_image - image) / penalty
        descend_or_settle(state, delta, image, (-gradient / penalty, -image / penalty), 1.0)
        state.give_up_the_step()
        return float(np.sum(before - state.risks)) < POOR_SHARE * float(np.sum(promise))
