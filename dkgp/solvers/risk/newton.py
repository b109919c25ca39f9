"""Newton's method, inexact: each step by preconditioned conjugate gradients, a product a round, and a line search.

The step solves (W K + lambda I) delta = -g, W = R R' the loss's curvature by sample. With B = lambda I + R'K R, which
is symmetric and positive definite for any W, Woodbury's identity gives

    delta = (R v - g) / lambda,    K delta = (K R v - K g) / lambda,    B v = R'K g,

so that no curvature is divided by: far out, where it underflows, delta is -g / lambda. Conjugate gradients from v = 0
have v'R'K g < g'K g after any number of iterations: every delta is a way down. K R v is a sum of products that the
iterations take, and the line along delta is searched exactly without another one.

Far from the least, where every step finds another curvature, a few iterations of kernel conjugate gradients come
further: they go first. An iteration is a round of the driver, so that a run that is killed loses one product, and a
step's last iteration takes it. They stop where r'M^-1 r is little beside g'K g - v'R'K g, the slope along delta: as
little as the gap asks for.

A step that does not come to that in a few dozen, for its factor is too small for the penalty, is taken as it is. From
then on steps are solved by a factor of the whole matrix (`WholeCurvature`), in float64, where it fits into
memory. Where it does not, kernel conjugate gradients go on for a while: on separable data curvatures fall on their way,
which a step with that of its start does not see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import scipy

from dkgp.errors import InputError, NumericalError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.factor import LowRankFactor
from dkgp.operators.low_rank.pivots import regularised_factor
from dkgp.solvers.base import Clock, nothing
from dkgp.solvers.conjugate.kernel_cg import ratio
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning, factor_bytes_allowed
from dkgp.solvers.losses import CurvatureRoot
from dkgp.solvers.prices import ROUND_SECONDS, Prices
from dkgp.solvers.risk.method import DescentState, RiskConjugateGradient, RiskMethod, descend_or_settle

# The last iteration's gain, as a share of the slope that is left: far from the least, and near it.
LARGEST_SHARE, LEAST_SHARE = 0.1, 1e-8
# Where the gap is to fall by some factor yet, a step need not do better than this share of it.
ENOUGH = 0.1
# Steps begin where the relative gap is so small, or after so many iterations of conjugate gradients.
NEAR, MOST_DESCENTS = 0.3, 10
# Share of g'K g at which r'M^-1 r is pure rounding; iterations after which a step is taken anyway.
ROUNDING = {"single": 1e-7, "double": 1e-15}
MOST_ITERATIONS = 40
# A step that has taken these was beyond its factor: so many iterations of conjugate gradients go before the next one,
# twice as many each time.
PATIENCE = 50
# A step that brings less than this share of its quadratic's forecast is poor; so many in a row are the factor's fault.
POOR_SHARE, MOST_POOR = 0.1, 2


@dataclass
class NewtonState(DescentState):
    """A minimisation between two rounds, in the course of a step; its arrays are empty between two steps.

    - `inner`: iterations of the step under way.
    - `descents`, `until`: iterations of kernel conjugate gradients so far, and how many there are to be before the next
      step.
    - `failures`: steps that took too long.
    - `poor`: steps in a row that have brought little of their forecast.
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
        clock = Clock()
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
        return clock.parts

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

    def _begin(self, operator: KernelOperator, state: NewtonState, clock: Clock) -> None:
        state.residual = state.curvature().transposed_times(state.newton_image)
        state.along, state.along_image = np.zeros_like(state.newton_image), np.zeros_like(state.newton_image)
        state.search = self._precondition(operator, state, clock)
        state.energy = self.risk.inner(state.residual, state.search)
        state.inner = 0

    def _iterate(self, operator: KernelOperator, state: NewtonState, clock: Clock) -> None:
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

    def _precondition(self, operator: KernelOperator, state: NewtonState, clock: Clock) -> FloatArray:
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
        """Return True if the residual is small beside the slope in every problem."""
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
        """Go to the least risk along delta; return True if that is a small share of the forecast."""
        before, promise = state.risks, np.maximum(self._slope(state), 0.0) / (2.0 * self.risk.regularisation)
        gradient, image, penalty = state.gradient, state.newton_image, self.risk.regularisation
        delta = (state.along - gradient) / penalty, (state.along_image - image) / penalty
        descend_or_settle(state, delta, image, (-gradient / penalty, -image / penalty), 1.0)
        state.give_up_the_step()
        return float(np.sum(before - state.risks)) < POOR_SHARE * float(np.sum(promise))


# The factor's algebra, anew for every step, may take as long as so many products.
PRODUCTS_A_STEP = 4.0
# Share of a round's nominal seconds in which cores work.
WORK_OF_A_ROUND = 0.25
# The largest is that of F'W F, all columns that it couples together.
LEAST_RANK, LARGEST_RANK = 32, 3000


def affordable_rank(n: int, d: int, p: int, coupled: bool = False) -> int:
    """Return a rank whose algebra for a step, n R^2 operations a block of F'W F, takes as long as a few products.

    The comparison is by the work of cores: most of a round is waiting, which is no reason for them to work more.
    """
    prices = Prices.nominal(d)
    product = n * n * (0.5 * prices.entries + 2.0 * p * prices.operations) + WORK_OF_A_ROUND * ROUND_SECONDS
    blocks = p * (p + 1) // 2 if coupled else p
    rank = math.floor(math.sqrt(PRODUCTS_A_STEP * product / (n * blocks * prices.double_operations)))
    most = LARGEST_RANK // p if coupled else LARGEST_RANK
    return min(n, max(1, most), factor_bytes_allowed(n) // (4 * n), max(LEAST_RANK, rank))


class CurvaturePreconditioner:
    """A preconditioner for Newton's systems: a low-rank factor of K, made once, between roots of the curvature at hand.

    A step solves B v = R'K g with B = lambda I + R'K R and W = R R' the curvature by sample. With K near F F'

        M = lambda I + R'F F'R,    M^-1 r = (r - R'F z) / lambda,    z = (F'W F + lambda I)^-1 F'R r,

    column by column where the loss couples none; else F'W F is one matrix of all columns, a block for each pair of
    them. Nothing is divided by a curvature.

    - `rank`: R, landmarks at most.
    - `regularisation`: lambda.
    - `coupled`: whether the curvature couples columns.
    """

    def __init__(
        self, operator: BlockedKernelOperator, rank: int, regularisation: float, coupled: bool, seed: int
    ) -> None:
        operator.executor.require_one_arithmetic()
        landmarks = FactorPreconditioning(halo=0, rank=rank, seed=seed).choose(operator)
        self._factor = LowRankFactor(operator.with_noise(1.0), landmarks)
        self._regularisation, self._coupled = regularisation, coupled
        self._root: CurvatureRoot | None = None
        self._lower: list[FloatArray] = []

    @classmethod
    def of(
        cls, operator: KernelOperator, rank: int, regularisation: float, coupled: bool, seed: int
    ) -> CurvaturePreconditioner | None:
        """Return the preconditioner of an operator whose rounds can build it, with any rank at all."""
        if rank == 0 or not isinstance(operator, BlockedKernelOperator):
            return None
        return cls(operator, rank, regularisation, coupled, seed)

    def refresh(self, root: CurvatureRoot, columns: int) -> None:
        """Take the curvature's root, of so many columns."""
        self._root, self._lower = root, []
        if self._coupled:
            self._lower = [regularised_factor(self._whole_gram(root, columns), self._regularisation)]
            return
        seen: list[FloatArray] = []
        for column in range(columns):
            weights = root.entries(column, column)
            alike = next((at for at, other in enumerate(seen) if np.array_equal(other, weights)), None)
            seen.append(weights)
            if alike is not None:
                self._lower.append(self._lower[alike])
            else:
                self._lower.append(regularised_factor(self._factor.gram(weights), self._regularisation))

    def _whole_gram(self, root: CurvatureRoot, columns: int) -> FloatArray:
        """F'W F of all columns together: (p R, p R)."""
        rank = self._factor.rank
        whole = np.zeros((columns * rank, columns * rank), order="F")
        for row in range(columns):
            for column in range(row + 1):
                # Between two classes curvatures are not positive.
                sign = 1.0 if row == column else -1.0
                block = sign * self._factor.gram(np.maximum(sign * root.entries(row, column), 0.0))
                places = slice(row * rank, (row + 1) * rank), slice(column * rank, (column + 1) * rank)
                whole[places], whole[places[::-1]] = block, block.T
        return whole

    def apply(self, residual: FloatArray) -> FloatArray:
        """M^-1 r for r (n, p)."""
        assert self._root is not None, "refreshed before it is applied"
        projected = self._factor.project(self._root.times(residual))
        if self._coupled:
            stacked = np.ascontiguousarray(projected.T).ravel()
            z = scipy.linalg.cho_solve((self._lower[0], True), stacked, check_finite=False)
            z = np.ascontiguousarray(z.reshape(projected.T.shape).T)
        else:
            z = np.empty_like(projected)
            for column, lower in enumerate(self._lower):
                z[:, column] = scipy.linalg.cho_solve((lower, True), projected[:, column], check_finite=False)
        expanded = self._root.transposed_times(self._factor.expand(z))
        return np.asarray((residual - expanded) / self._regularisation)


# Memory limit of a step's factors; it is that of 8,192 samples of one column.
MOST_BYTES = 512 * 1024**2
# Rows of K that are evaluated at a time.
PIECE_ROWS = 512
# Steps that are reckoned with before a first one is taken.
USUAL_STEPS = 12


def whole_bytes(n: int, p: int, coupled: bool) -> int:
    """Bytes of a step's factors: one a column, and of coupled columns their sum and an inverse besides."""
    return 8 * n * n * (p + 2 if coupled else p)


def whole_products(n: int, d: int, p: int, coupled: bool) -> float:
    """As many products with K as the factors of `USUAL_STEPS` steps take the time of, at nominal prices."""
    prices = Prices.nominal(d)
    product = n * n * (0.5 * prices.double_entries + 2.0 * p * prices.double_operations) + ROUND_SECONDS
    # A factor, and twice as much for an inverse.
    cubes = 3 * p + 1 if coupled else p
    return USUAL_STEPS * cubes * n**3 / 3.0 * prices.double_operations / product


class WholeCurvature:
    """The exact matrix of Newton's systems, factored anew for every step, where it fits into memory.

    Penalties far below the residual of a low-rank factor of K make the step's system B = lambda I + R'K R one that such
    a factor does not precondition. With roots R = S (I - u u') by sample, S = diag(s) and u'u = 1 for softmax, S alone
    elsewhere, and A_c = lambda I + S_c K S_c for column c,

        B^-1 r = U U'r / lambda + A^-1 q - A^-1 U (sum_c U_c A_c^-1 U_c)^-1 U'A^-1 q,    q = r - U U'r,

    A all A_c in a block diagonal, U all U_c = diag(u_c) stacked: I - U U' projects, and B is Q A Q + lambda (I - Q). C
    + 1 factors of n rows solve a step of C classes (as Rasmussen and Williams 2006, algorithm 3.3), and nothing is
    multiplied by K / lambda, whose digits would be lost.
    """

    def __init__(self, operator: KernelOperator, regularisation: float) -> None:
        self._operator, self._regularisation = operator, regularisation
        self._root: CurvatureRoot | None = None
        self._lower: list[FloatArray] = []
        self._shared: FloatArray | None = None

    @classmethod
    def fits(cls, operator: KernelOperator, p: int, coupled: bool) -> bool:
        """True of an operator that has all entries at hand, and as many samples as fit."""
        exact = isinstance(operator, BlockedKernelOperator) and not operator.approximate
        return exact and whole_bytes(operator.n, p, coupled) <= MOST_BYTES

    def refresh(self, root: CurvatureRoot, columns: int) -> None:
        """Take the curvature's root, of so many columns; `NumericalError` where no factor is finite."""
        self._root, self._lower, self._shared = root, [], None
        unit, shared = root.unit, None
        for column in range(columns):
            lower = regularised_factor(self._scaled(root.spread[:, column]), self._regularisation)
            self._lower.append(lower)
            if unit is None:
                continue
            inverse, trouble = scipy.linalg.lapack.dpotri(lower, lower=1)
            if trouble:
                raise NumericalError("the curvature of a class has no inverse in float64; raise the penalty")
            inverse *= unit[:, column]
            inverse *= unit[:, column, None]
            if shared is None:
                shared = inverse
            else:
                shared += inverse
            del inverse
        if shared is not None:
            shared += np.tril(shared, -1).T
            self._shared = regularised_factor(shared, 0.0)

    def _scaled(self, spread: FloatArray) -> FloatArray:
        """S K S of a column, both triangles: (n, n)."""
        n = self._operator.n
        features = self._operator.features(np.arange(n, dtype=np.intp), "double")
        matrix = np.empty((n, n), order="F")
        for start in range(0, n, PIECE_ROWS):
            stop = min(start + PIECE_ROWS, n)
            matrix[:, start:stop] = self._operator.double.tile(features, features.slice(start, stop))
            matrix[:, start:stop] *= spread[start:stop]
        matrix *= spread[:, None]
        return matrix

    def _separately(self, right: FloatArray) -> FloatArray:
        """A^-1 of (n, p)."""
        solved = [
            scipy.linalg.cho_solve((lower, True), right[:, column], check_finite=False)
            for column, lower in enumerate(self._lower)
        ]
        return np.column_stack(solved)

    def apply(self, residual: FloatArray) -> FloatArray:
        """B^-1 r for r (n, p)."""
        assert self._root is not None, "refreshed before it is applied"
        unit = self._root.unit
        if unit is None or self._shared is None:
            return self._separately(residual)
        along = unit * np.sum(unit * residual, axis=1, keepdims=True)
        solved = self._separately(residual - along)
        shared = scipy.linalg.cho_solve((self._shared, True), np.sum(unit * solved, axis=1), check_finite=False)
        solved -= self._separately(unit * shared[:, None])
        # The part along U is the rounding of a difference.
        solved -= unit * np.sum(unit * solved, axis=1, keepdims=True)
        return np.asarray(solved + along / self._regularisation)


# Iterations that are looked at: the best of the later half against the best of the earlier one.
WINDOW = 10
# Products that conjugate gradients may still need, for Newton's method not to take over.
MOST_PRODUCTS = 40
# Products that conjugate gradients may take after they take over, as a share of the whole matrix's factors, anyway:
# widths go up and down.
LEAST_SHARE_OF_WHOLE = 0.25
# Products of Newton's steps beside conjugate gradients, as a share of theirs at most, where a step has failed and no
# factors of the whole matrix are to come.
MOST_SHARE_OF_STEPS = 0.5
# Where the stopping rule does not say by how much the gradient must fall.
USUAL_GAP = 1e-4


@dataclass
class AutoState(NewtonState):
    """A minimisation between two rounds.

    - `widths`: <g, g>_K / (2 lambda), problems added up, before each of the last iterations of conjugate gradients.
    - `projected`: products that these would still have taken, as it was last found.
    - `steps`: whether Newton's method has taken over.
    - `handed`: iterations of conjugate gradients before Newton's method handed over to them, with factors of the whole
      matrix to come; -1 where it has not.
    """

    counted = (*NewtonState.counted, "widths", "projected", "steps", "handed")

    widths: list[float] = field(default_factory=list)
    projected: float | None = None
    steps: bool = False
    handed: int = -1

    @property
    def choice(self) -> dict[str, Any]:
        """The figures that the choice rests on, in plain JSON types; `reason` where a method handed over."""
        told = {}
        if self.whole:
            told["reason"] = (
                "the penalty is too small for a low-rank preconditioner: each step factorised the whole matrix"
            )
        elif self.failures and not self.steps:
            told["reason"] = (
                "the penalty is too small for Newton steps with a low-rank preconditioner: kcg continued from them"
            )
        return {
            **told,
            "method": "newton" if self.steps else "kcg",
            "iterations": self.descents,
            "projected_products": self.projected,
            "most_products": MOST_PRODUCTS,
            "failed_steps": self.failures,
            "whole_matrix": self.whole,
        }

    def note_width(self) -> None:
        """Note the width after the last iteration, and project the iterations to come."""
        width = float(np.sum(self.width))
        if not math.isfinite(width):
            return
        self.widths = [*self.widths[1 - WINDOW :], width]
        if len(self.widths) < WINDOW:
            return
        early, late = min(self.widths[: WINDOW // 2]), min(self.widths[WINDOW // 2 :])
        fall = self._fall(late)
        if fall <= 1.0:
            self.projected = 0.0
        elif late >= early:
            self.projected = math.inf
        else:
            self.projected = math.log(fall) / (math.log(early / late) / (WINDOW / 2))

    def _fall(self, width: float) -> float:
        """By how much a width must fall."""
        risk, gap = float(np.sum(self.risks)), float(np.sum(self.risks - self.bound))
        if not math.isfinite(self.needed_fall):
            return width / (USUAL_GAP * risk) if risk > 0.0 else 1.0
        # The gap may be below the width, by an earlier bound; the rule tells by how much it must fall.
        return self.needed_fall**2 * (max(width / gap, 1.0) if gap > 0.0 else 1.0)


@dataclass(frozen=True)
class RiskAuto(RiskNewton):
    """The method "auto": kernel conjugate gradients, and Newton's method where they would take long.

    They begin alike, and which one goes on is found out on the way: from the tenth iteration on the last ones' gain
    says how many products conjugate gradients would still take to the gap that is asked for. Beyond `MOST_PRODUCTS`
    Newton's method takes over where it stands, once and for all. Its factor and the algebra of its steps cost about as
    many, and it takes a sixteenth to an eighth of theirs where there are hundreds (docs/experiments.md). Counts and
    bounds decide, and nothing that is timed: a run comes to the same bits wherever it runs.

    A step that its factor does not serve hands over to conjugate gradients from where it has come to. They take a
    quarter of the time that factors of the whole matrix would take, and go on as long as they are foretold to arrive
    sooner than these; then Newton's steps are solved by these, where they fit into memory. Where they do not, Newton's
    method comes back after a while, and has half as many products as conjugate gradients have taken.

    Not among the choices: majorisation (above Newton's count where lambda is large, and far above where it is small),
    gradient descent and conjugate gradients on parameters.

    - `risk`, `precision`, `rank`, `seed`: see `RiskNewton`.
    """

    name = "auto"
    state_type = AutoState

    def _is_far(self, operator: KernelOperator, state: NewtonState) -> bool:
        """True while conjugate gradients go on, and again after a step that took too long."""
        assert isinstance(state, AutoState)
        if state.search.size:
            return False
        if state.steps and self._take_too_much(state):
            least = math.ceil((state.iteration - state.descents) / MOST_SHARE_OF_STEPS)
            state.until = max(least, state.descents + PATIENCE)
        if state.steps and state.descents < state.until:
            state.steps, state.widths = False, []
        if state.steps:
            return False
        # Without a preconditioner Newton's method takes more products, not fewer.
        if state.descents and isinstance(operator, BlockedKernelOperator) and self.rank != 0:
            state.note_width()
            most = self._most_products(operator, state)
            if state.descents >= state.until and state.projected is not None and state.projected > most:
                state.steps = True
                if state.handed >= 0:
                    state.take_the_whole()
                return False
        state.descents += 1
        return True

    def _most_products(self, operator: KernelOperator, state: AutoState) -> float:
        """Products that conjugate gradients may still need, for Newton's method not to take over."""
        if state.handed < 0:
            return MOST_PRODUCTS
        return max(MOST_PRODUCTS, self._whole_products(operator, state) - (state.descents - state.handed))

    def _take_too_much(self, state: AutoState) -> bool:
        """True where steps that succeed, by a little each, have had more than their share of the products."""
        if not state.failures or state.whole or state.handed >= 0 or state.descents < state.until:
            return False
        return state.iteration - state.descents > MOST_SHARE_OF_STEPS * state.descents

    def _whole_products(self, operator: KernelOperator, state: NewtonState) -> float:
        return whole_products(operator.n, operator.kernel.n_features, state.rhs.shape[1], self.risk.loss.coupled)

    def _note_failure(self, operator: KernelOperator, state: NewtonState) -> None:
        """Let conjugate gradients go on, and factors of the whole matrix after them."""
        assert isinstance(state, AutoState)
        if state.whole or not WholeCurvature.fits(operator, state.rhs.shape[1], self.risk.loss.coupled):
            super()._note_failure(operator, state)
            return
        state.steps, state.widths, state.projected, state.handed = False, [], None, state.descents
        state.until = state.descents + math.ceil(LEAST_SHARE_OF_WHOLE * self._whole_products(operator, state))
        state.failures, state.poor = state.failures + 1, 0
