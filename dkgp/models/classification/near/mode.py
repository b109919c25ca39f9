"""The mode of labels in a sparse model with neighbours: Newton's steps, each a fit to targets with noise by sample.

At values f of one latent function, g = -w l'(y, f) and W = w l''(y, f) with weights w, Newton's step for the mode of a
Gaussian process with covariance K is a fit of least squares (Rasmussen and Williams 2006, section 3.4): to the targets
u, whose noise variances are W^-1,

    u = f + W^-1 g,      a = (K + W^-1)^-1 u,      f+ = u - W^-1 a = K a.

Here K + W^-1 is Sigma, the covariance of targets in `dkgp.models.sparse.vif`, as for regression: what the basis leaves
of a leaf's targets, their noise included, depends on its halo alone. Where it ends, a = g and f = (Sigma - W^-1) g,
with W at f itself: a fixed point, and where halos are everything the exact model's mode. Noise is at least 1 / c, 4 of
a logit, by the weight, so that no leaf is near to singular, whatever the kernel. Sigma - W^-1 moves with W unless halos
are everything, so that the steps are Newton's but for that: near the end each leaves a small share of the way, not a
square. It can also lead away from where it ends, where many samples lie within a length scale or neighbours are few.
So after steps that gain nothing the noise is held: with v for W^-1 as it was, and C the curvature between two values,
what a step makes of their distance,

    (I - v Sigma^-1) (I - v C),

has both factors below one, as norms of v^-1/2 f, where 2 Sigma > v and C < 2 W: then steps of any start lead to one
fixed point, a = g and f = (Sigma - v) g with this v. Where W comes to more than one and a half of what is held it is
raised, which has an end, since curvatures are bounded.

A step longer than one, in the largest value, is halved until what it lowers falls, or rises by no more than the two
steps' covariances may differ in,

    psi(f, a) = sum_i w_i l(y_i, f_i) + a'f / 2,

which is the mode's objective where f = K a. Laplace's evidence, with Sigma for K + W^-1 as everywhere here, is

    log q(y) = -psi - (log|Sigma| + log|W|) / 2,

with W of the last step.

References
----------
D. Zilber, M. Katzfuss, Vecchia-Laplace approximations of generalized Gaussian processes for big non-Gaussian spatial
data (2021), algorithm 1.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, replace

import numpy as np

from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import NumericalError
from dkgp.models.sparse.vif.kept import KeptTerms, rows_bytes
from dkgp.models.sparse.vif.objective import Joint, Neighbourhood
from dkgp.models.sparse.vif.tasks import Described
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.full_products import forget_everywhere
from dkgp.operators.keeping import Keeping
from dkgp.solvers.losses import Loss

# Curvatures are taken to be at least this: a sample whose label says next to nothing has a noise variance of 1e10, of
# which roundings leave a step 1e-6.
LEAST_CURVATURE = 1e-10
# Steps of no more than this in any value are taken whole: of a logit, no curvature changes by more than e.
FREE_STEP = 1.0
MOST_HALVINGS = 20
# A change that falls to this share of the least is a gain, as is a psi that falls below the lowest by this share; after
# so many steps in a row without one the noise is held.
GAINED, LOWER, MOST_IDLE = 0.9, 1e-6, 2
# Of held noise: curvatures that come to so much of its W raise that.
RAISED = 1.5
# Of psi: by so much it may rise in a step, since the covariance is not that of the step before.
SLACK = 1e-3


@dataclass(frozen=True)
class ColumnLabels:
    """The labels of one latent function: signs (n,), weights (n,) or none, and their loss."""

    signs: FloatArray
    loss: Loss
    weights: FloatArray | None = None

    def _weighted(self, values: FloatArray) -> FloatArray:
        return values if self.weights is None else self.weights * values

    def risk(self, values: FloatArray) -> float:
        """sum_i w_i l(y_i, f_i), -log p(y | f)."""
        return float(np.sum(self._weighted(self.loss.value(self.signs, values))))

    def force(self, values: FloatArray) -> FloatArray:
        """The slope g of log p(y | f): (n,)."""
        return -self._weighted(self.loss.slope(self.signs, values))

    def curvature(self, values: FloatArray) -> FloatArray:
        """W, not below `LEAST_CURVATURE`: (n,)."""
        return np.maximum(self._weighted(self.loss.curvature(self.signs, values)), LEAST_CURVATURE)


@dataclass
class ColumnState:
    """One latent function on the way to its mode.

    Attributes
    ----------
    values, weights : (n,) float64
        f and a.
    psi : float
    targets, noise : (n,) float64
        u and W^-1 of the last step, and so of `joint`; none before the first.
    joint : Joint or None
    log_determinant : float
        log|Sigma| of the last step.
    change : float
        The largest of |f+ - f| of the last step, whole.
    least, lowest, idle : float, float and int
        The least change and psi so far, and steps in a row that gained nothing.
    held : bool
        If the noise of the last step is the next one's, too.
    ended : str
        "" while it goes on; "mode", "stalled" or "steps".
    """

    values: FloatArray
    weights: FloatArray
    psi: float
    targets: FloatArray | None = None
    noise: FloatArray | None = None
    joint: Joint | None = None
    log_determinant: float = math.nan
    change: float = math.inf
    steps: int = 0
    least: float = math.inf
    lowest: float = math.inf
    idle: int = 0
    held: bool = False
    ended: str = ""

    @classmethod
    def start(cls, labels: ColumnLabels, values: FloatArray | None = None) -> ColumnState:
        """At zero, or at values (n,) near the mode: of another kernel's, from which the first step is taken whole."""
        if values is not None:
            return cls(values, labels.force(values), math.inf)
        zero = np.zeros(len(labels.signs))
        return cls(zero, zero, labels.risk(zero))

    def next_curvature(self, labels: ColumnLabels) -> FloatArray:
        """W of the next step: at f; where noise is held the last step's, or that at f where it is far above it."""
        curvature = labels.curvature(self.values)
        if not self.held:
            return curvature
        assert self.noise is not None
        last = 1.0 / self.noise
        return np.where(curvature > RAISED * last, curvature, last)


class ModeSearch:
    """Newton's steps of one model's latent functions.

    `operator` is of the kernel, with any noise; `held` are its samples' leaves and halos, `model` these with the basis.
    """

    def __init__(self, operator: BlockedKernelOperator, held: Neighbourhood, model: Described) -> None:
        self.model = model  # with terms on which workers keep of its leaves what the steps have a use for again
        self._operator, self._held = operator, held
        self._label, self._turns = f"mode-{uuid.uuid4().hex[:12]}", 0

    def close(self) -> None:
        """Have workers forget what they keep of leaves."""
        if self._turns:
            forget_everywhere(self._operator.executor, self._label)
            self._turns = 0

    def _keep(self) -> None:
        """Set the terms of the next step."""
        executor = self._operator.executor
        if executor.tiles.bytes > 0:
            self._turns += 1
            # Reading always pays: entries, and what becomes of them, are float64.
            keeping = Keeping(TileBudget(executor.tiles.bytes), self._turns)
            rows = rows_bytes(self._operator.n, self.model.leaves) // max(1, len(executor.workers))
            self.model = replace(self.model, kept=KeptTerms(self._label, keeping, rows))

    def step(self, state: ColumnState, labels: ColumnLabels, tolerance: float, most_steps: int) -> None:
        """Take a step, in place, and say whether it was the last.

        Raises `NumericalError`: values overflow, or rounding exceeds the noise.
        """
        f, a = state.values, state.weights
        noise = 1.0 / state.next_curvature(labels)
        targets = f + noise * labels.force(f)
        noisy = self._operator.with_noise(noise)
        self._keep()
        joint = self._held.joint(noisy, self.model, targets[:, None])
        towards = self._held.weights(noisy, self.model, joint, targets[:, None])[:, 0]
        change, turn = targets - noise * towards - f, towards - a
        state.targets, state.noise, state.joint = targets, noise, joint
        # Of the targets' log likelihood, which a shorter step's coefficients do not have.
        state.log_determinant = -2.0 * joint.value - len(f) * math.log(2.0 * math.pi) - float(targets @ towards)
        state.steps, state.change = state.steps + 1, float(np.abs(change).max())
        if not math.isfinite(state.change):
            raise NumericalError("the labels' mode overflows: bring inputs that are far out closer")

        def psi(length: float) -> float:
            values = f + length * change
            return labels.risk(values) + 0.5 * float((a + length * turn) @ values)

        length, reached = 1.0, psi(1.0)
        if state.change > FREE_STEP:
            most = state.psi + SLACK * abs(state.psi)
            # An overflow is no step either.
            while not reached <= most:
                if length <= 0.5**MOST_HALVINGS:
                    state.ended = "stalled"
                    return
                length *= 0.5
                reached = psi(length)
        nearer, lower = state.change < GAINED * state.least, reached < (1.0 - LOWER) * state.lowest
        state.idle = 0 if nearer or lower else state.idle + 1
        state.least = state.change if nearer else state.least
        state.lowest = min(state.lowest, reached)
        state.held = state.held or state.idle >= MOST_IDLE
        state.values, state.weights, state.psi = f + length * change, a + length * turn, reached
        if state.change <= tolerance:
            state.ended = "mode"
        elif state.steps >= most_steps:
            state.ended = "steps"


def evidence(state: ColumnState) -> float:
    """Laplace's log q(y), in nats: psi where the function is, Sigma and W of its last step."""
    noise = state.noise
    assert noise is not None
    return -state.psi - 0.5 * (state.log_determinant - float(np.log(noise).sum()))
