"""Gaussian process classifiers on a basis with neighbours: each latent function's mode, and the labels' evidence.

Mode
----
Newton's steps to the mode are fits to targets with noise by sample. At values f of one latent function, g = -w l'(y, f)
and W = w l''(y, f) with weights w, Newton's step for the mode of a Gaussian process with covariance K is a fit of least
squares (Rasmussen and Williams 2006, section 3.4): to the targets u, whose noise variances are W^-1,

    u = f + W^-1 g,      a = (K + W^-1)^-1 u,      f+ = u - W^-1 a = K a.

Here K + W^-1 is Sigma, the covariance of targets in `dkgp.models.sparse.vif`, as for regression: the residual of a
leaf's targets, their noise included, depends on its halo alone. The steps end with a = g and f = (Sigma - W^-1) g, with
W at f itself: a fixed point, and the exact model's mode where halos are everything. Noise is at least 1 / c, 4 of a
logit, by the weight, so that no leaf is near to singular, for any kernel. Sigma - W^-1 moves with W unless halos are
everything, so that the steps are Newton's but for that: near the end each leaves a small share of the way, not a
square. It can also lead away from where it ends, where many samples lie within a length scale or neighbours are few. So
after steps that gain nothing the noise is held: with v for W^-1 as it was, and C the curvature between two values, the
factor of their distance in a step,

    (I - v Sigma^-1) (I - v C),

has both factors below one, as norms of v^-1/2 f, where 2 Sigma > v and C < 2 W: then steps of any start lead to one
fixed point, a = g and f = (Sigma - v) g with this v. Where W exceeds the held one by half it is raised, which has an
end, since curvatures are bounded.

A step longer than one, in the largest value, is halved until psi falls, or rises by no more than the two steps'
covariances may differ in,

    psi(f, a) = sum_i w_i l(y_i, f_i) + a'f / 2,

which is the mode's objective where f = K a. Laplace's evidence, with Sigma for K + W^-1 as everywhere here, is

    log q(y) = -psi - (log|Sigma| + log|W|) / 2,

with W of the last step.

Evidence
--------
Hyperparameters are chosen by Laplace's evidence and its gradient. At the mode of a latent function (`mode`), with noise
v = W^-1, targets u = f + v g and eta_i the slope of log N(u; 0, Sigma) by v_i, the evidence is that of targets which
the labels stand for,

    log q(y) = sum_i [log p(y_i | f_i) + v_i g_i^2 / 2 + log(2 pi v_i) / 2] + log N(u; 0, Sigma).

With f held, it moves as the last term does, a regression's. By f itself, since dg = -W df and Sigma^-1 u = g,

    s_i = v_i' (1 / v_i - g_i^2 + 2 eta_i) / 2,      v' = dv / df,

and the mode Sigma g = u moves by (Sigma W - J)^-1 dSigma g, with J how (Sigma - W^-1) g moves with f by its first
factor: zero where halos are everything. So the rest of the gradient is b'Sigma^-1 dSigma Sigma^-1 u with b = v (s +
J'Sigma^-1 b); b = v s is a first guess, and each turn leaves a small share of the error (`CORRECTIONS`). Both are the
slopes, in one pass, of

    -tr(M Y'Sigma^-1 Y) / 2 - log|Sigma| / 2,      Y = [u, b],  M = [1, 1;  1, 0].

Latent functions, each class against the rest, are added up.

References
----------
D. Zilber, M. Katzfuss, Vecchia-Laplace approximations of generalized Gaussian processes for big non-Gaussian spatial
data (2021), algorithm 1. C. E. Rasmussen, C. K. I. Williams, Gaussian processes for machine learning (2006), section
5.5.1.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.stores.models.classifier import ClassifierForm, Support
from dkgp.errors import InputError, NumericalError
from dkgp.models.classification.basis import BasisSettings, choice_phase, opened, train_on_basis
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.trained import BasisForm, TrainedBasis, TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.memory import Memory, TrainingSizes
from dkgp.models.sparse.near import Near, factors_phase, leaves_phase, near_fields, search_phase
from dkgp.models.sparse.search import BASIS_SIZES, SearchTargets, tune_by_bound
from dkgp.models.sparse.vif import (
    HALO,
    LEAF,
    SEARCHED,
    Described,
    Joint,
    KeptTerms,
    NearEvidence,
    Neighbourhood,
    Neighbours,
    kept_bytes,
    rows_bytes,
    vif_bytes,
)
from dkgp.models.tuning.laplace import LabelLikelihood, LogitEvidence, ProbitEvidence
from dkgp.models.tuning.search import Choices, SearchSettings, SubsetSummary
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import InputSource
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.full_products import forget_everywhere
from dkgp.operators.keeping import Keeping
from dkgp.operators.low_rank.pivots import whiten
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import Iteration
from dkgp.solvers.losses import LabelLoss, Loss
from dkgp.solvers.prices import Phase
from dkgp.solvers.stopping import Progress, StopReason


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedNear(TrainedBasis):
    """A Gaussian process classifier on a basis with neighbours.

    Attributes
    ----------
    near : Near
        The samples, the targets u of the last step, whole, and their noise W^-1, by latent function.
    values : (n, t) float64
        The latent functions at the samples.
    """

    kernel_lower: FloatArray
    near: Near
    values: FloatArray

    form: ClassifierForm = "gp"
    support: ClassVar[Support] = "neighbours"

    def fields(self) -> dict[str, Any]:
        """Return the basis, and the samples."""
        return {**super().fields(), **near_fields(self.near)}


def train_near(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: NearSettings,
    *,
    likelihood: Likelihood,
    given: IndexArray | FloatArray | None = None,
) -> TrainedNear:
    """Train a Gaussian process classifier on a basis with neighbours, by Laplace's approximation.

    Parameters and errors are those of `train_on_basis`; softmax is refused too.
    """
    refuse_coupled(likelihood)
    signs = likelihood.targets(data.labels)
    columns = [ColumnLabels(np.ascontiguousarray(column), likelihood.loss, data.weights) for column in signs.T]
    with opened(data, hyperparameters, context, settings, likelihood, "near", 1.0, given) as run:
        operator = run.operator
        lower = CrossKernel(operator, run.prototypes).lower
        held = Neighbourhood(operator, settings.near)
        run.clock.lap("neighbours")
        with closing(ModeSearch(operator, held, held.described(operator, run.prototypes))) as search:
            state = Modes(search, columns, settings, run.prototypes, run.indices)
            reason = run.resumed(state).run(state)
        run.clock.lap("steps")
        near = _near(operator, held, state.columns, settings)
        joint = state.columns[0].joint
        assert joint is not None
        about = run.summary(joint.explained)
    summary = {
        **about,
        "method": "gp",
        "neighbours": near.size,
        "neighbours_unproven": held.unproven,
        "search_samples": settings.searched,
        "solver": "newton",
        **reason.summary(),
        "iterations": state.iteration,
        "steps": [column.steps for column in state.columns],
        "decision_error": [column.change for column in state.columns],
        "risk": sum(labels.risk(column.values) for labels, column in zip(columns, state.columns, strict=True)),
        "evidence": sum(evidence(column) for column in state.columns),
    }
    return TrainedNear(
        kernel=operator.kernel,
        classes=data.labels.classes,
        history=[progress.to_json() for progress in state.history],
        summary=summary,
        likelihood=likelihood,
        prototypes=run.prototypes,
        indices=run.indices,
        kernel_lower=lower,
        weights=np.ascontiguousarray(whiten(lower, near.whitened, transposed=True)),
        near=near,
        values=np.stack([column.values for column in state.columns], axis=1),
    )


def train_with_basis(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: BasisSettings,
    *,
    likelihood: Likelihood,
    form: BasisForm,
    regularisation: float = 1.0,
) -> TrainedClassifier:
    """Train on a basis, with neighbours where the settings have some; see `train_near` and `train_on_basis`."""
    if isinstance(settings, NearSettings):
        return train_near(data, hyperparameters, context, settings, likelihood=likelihood)
    return train_on_basis(
        data, hyperparameters, context, settings, likelihood=likelihood, form=form, regularisation=regularisation
    )


def _near(
    operator: BlockedKernelOperator, held: Neighbourhood, columns: list[ColumnState], settings: NearSettings
) -> Near:
    n, joints = operator.n, [column.joint for column in columns]
    inputs = np.ascontiguousarray(operator.context.source.inputs(0, n))
    targets, noise = (
        np.ascontiguousarray(np.stack([getattr(column, name) for column in columns], axis=1))
        for name in ("targets", "noise")
    )
    whitened = np.ascontiguousarray(np.concatenate([joint.whitened for joint in joints if joint is not None], axis=1))
    normal = np.stack([joint.normal for joint in joints if joint is not None])
    size = min(n, settings.near.leaf + settings.near.halo)
    return Near(inputs, targets, noise, size, whitened, normal, held.leaves.embedding, settings.searched)


class Modes(Iteration):
    """Newton's steps to the modes of all latent functions, one function after the other."""

    saved = ("prototypes", "indices")
    recorded: ClassVar[Mapping[str, type]] = {"history": Progress}

    def __init__(
        self,
        search: ModeSearch,
        labels: list[ColumnLabels],
        settings: NearSettings,
        prototypes: FloatArray,
        indices: IndexArray | None,
    ) -> None:
        self._search, self._labels, self._settings = search, labels, settings
        self.prototypes, self.indices = prototypes, indices
        self.columns = [ColumnState.start(each) for each in labels]
        self.history: list[Progress] = []

    @property
    def iteration(self) -> int:
        """Steps of all latent functions together."""
        return sum(column.steps for column in self.columns)

    @iteration.setter
    def iteration(self, steps: int) -> None:
        assert steps == self.iteration, "restored by column"

    def advance(self) -> None:
        """Take a step of the first latent function that is not at its end."""
        column, labels = next(pair for pair in zip(self.columns, self._labels, strict=True) if not pair[0].ended)
        clock, before = Clock(), self._search.operator.kernel_evaluations
        self._search.step(column, labels, self._settings.tolerance, self._settings.max_iterations)
        seconds, entries = clock.seconds, self._search.operator.kernel_evaluations - before
        last = self.history[-1] if self.history else None
        self.history.append(
            Progress(
                iteration=self.iteration,
                column_passes=0.0,
                kernel_evaluations=entries + (0 if last is None else last.kernel_evaluations),
                seconds=seconds + (0.0 if last is None else last.seconds),
                gradient_inf_norm=column.change,
                gradient_norm=column.change,
                relative_residual=column.change,
                objective=sum(each.psi for each in self.columns),
                objective_gap_bound=np.inf,
                timings={"step": seconds},
            )
        )

    def stop(self) -> StopReason | None:
        """Return the reason to stop once every latent function is at its end."""
        columns, tolerance = self.columns, self._settings.tolerance
        if not all(column.ended for column in columns):
            return None
        worst = max(column.change for column in columns)
        if all(column.ended == "mode" for column in columns):
            return StopReason("decision", True, f"decisions changed by {worst:.3g} <= {tolerance:.3g} at last")
        steps = max(column.steps for column in columns)
        stalled = any(column.ended == "stalled" for column in columns)
        came = f"{steps} steps, and the last ones came no closer" if stalled else f"{steps} steps"
        return StopReason(
            "stalled" if stalled else "iterations",
            False,
            f"{came}; decisions still changed by {worst:.3g} > {tolerance:.3g}",
            "take a larger basis (`basis_size`), more `neighbours`, or a smaller amplitude of the kernel",
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        columns = [column.arrays() for column in self.columns]
        numbered = {f"{name}-{number}": array for number, each in enumerate(columns) for name, array in each.items()}
        return {**super().arrays(), **numbered}

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint, in plain JSON types."""
        return {**super().metadata(), "columns": [column.metadata() for column in self.columns]}

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        self.columns = []
        for number, document in enumerate(metadata["columns"]):
            names = (name for name in arrays if name.endswith(f"-{number}"))
            self.columns.append(
                ColumnState.restored({name.rpartition("-")[0]: arrays[name] for name in names}, document)
            )
        super().restore(arrays, metadata)


@dataclass(frozen=True)
class NearSettings(BasisSettings):
    """Settings of a basis with neighbours.

    Parameters
    ----------
    size, basis, seed
        As of `BasisSettings`; 200 basis samples by default.
    tolerance : float, default 1e-3
        Of decisions: the largest change of one at a sample in the last of Newton's steps.
    max_iterations : int, default 100
        Steps of one latent function.
    neighbours : int, default 128
        Nearest samples that a prediction stands on; in the fit a quarter of them are in a leaf.
    searched : int, default 32768
        Samples that a search for them looks at, at most.

    Raises
    ------
    InputError
        A setting out of range, or a certificate, which there is none of.
    """

    size: int = 200
    tolerance: float = 1e-3
    max_iterations: int = 100
    neighbours: int = LEAF + HALO
    searched: int = SEARCHED

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("neighbours", "searched"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        if self.certify:
            raise InputError(
                "there are no proofs for a basis with `neighbours`. Leave out `certify`, or the neighbours"
            )

    @property
    def near(self) -> Neighbours:
        """Sizes of leaves and halos, and of searches for these."""
        return Neighbours.of(self.neighbours, self.searched)

    def memory(self, sizes: TrainingSizes, *, coupled: bool = False) -> Memory:
        """Project the memory of training; columns are never `coupled`, and have their steps one after the other."""
        n, d, t, executor = sizes.n, sizes.d, sizes.t, sizes.executor
        plan = super().memory(replace(sizes, t=1))
        m, threads = min(self.size, n), executor.threads_per_process
        # Each column's factor, values, weights, targets and noise, and a record's inputs and copies of these.
        return plan.plus(
            matrices_bytes=2 * t * 8 * m * m,
            vectors_bytes=8 * n * (12 * (t - 1) + 2 * d + 4),
            worker_bytes=vif_bytes(n, d, m, 1, threads, self.near),
            useful_bytes=kept_bytes(n, m, self.near),
        )


def refuse_coupled(likelihood: Likelihood) -> None:
    """Refuse a likelihood whose latent functions hang together; `InputError`."""
    if likelihood.coupled:
        raise InputError(
            "softmax couples the classes, and neighbours are of one latent function: take the classes one against the "
            "rest (`multi_class` ovr), or leave out the `neighbours`"
        )


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

    def arrays(self) -> dict[str, FloatArray]:
        """Return the arrays of a checkpoint."""
        arrays = {"values": self.values, "weights": self.weights}
        if self.joint is not None:
            assert self.targets is not None
            assert self.noise is not None
            arrays |= {"targets": self.targets, "noise": self.noise}
            arrays |= {"normal": self.joint.normal, "whitened": self.joint.whitened}
        return arrays

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint; numbers without a value yet are left out."""
        document = {name: getattr(self, name) for name in ("psi", "steps", "idle", "held", "ended")}
        if self.joint is not None:
            document |= {"change": self.change, "log_determinant": self.log_determinant}
            document |= {"value": self.joint.value, "explained": self.joint.explained}
            least = {"least": self.least, "lowest": self.lowest}
            document |= {name: value for name, value in least.items() if math.isfinite(value)}
        return document

    @classmethod
    def restored(cls, arrays: dict[str, FloatArray], document: dict[str, Any]) -> ColumnState:
        """Rebuild from a checkpoint; `length` is that of a version that shortened steps."""
        numbers = {name: value for name, value in document.items() if name != "length"}
        joint = None
        if "value" in numbers:
            normal = np.asfortranarray(arrays["normal"])
            joint = Joint(normal, arrays["whitened"], numbers.pop("value"), numbers.pop("explained"))
        targets, noise = arrays.get("targets"), arrays.get("noise")
        return cls(arrays["values"], arrays["weights"], targets=targets, noise=noise, joint=joint, **numbers)

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
        self.model = model  # with terms on which workers keep parts of its leaves for later steps
        self.operator, self._held = operator, held
        self._label, self._turns = f"mode-{uuid.uuid4().hex[:12]}", 0

    def close(self) -> None:
        """Have workers forget the parts of leaves that they keep."""
        if self._turns:
            forget_everywhere(self.operator.executor, self._label)
            self._turns = 0

    def _keep(self) -> None:
        """Set the terms of the next step."""
        executor = self.operator.executor
        if executor.tiles.bytes > 0:
            self._turns += 1
            # Reading always pays: entries and their products are float64.
            keeping = Keeping(TileBudget(executor.tiles.bytes), self._turns)
            rows = rows_bytes(self.operator.n, self.model.leaves) // max(1, len(executor.workers))
            self.model = replace(self.model, kept=KeptTerms(self._label, keeping, rows))

    def step(self, state: ColumnState, labels: ColumnLabels, tolerance: float, most_steps: int) -> None:
        """Take a step, in place, and say whether it was the last.

        Raises `NumericalError`: values overflow, or rounding exceeds the noise.
        """
        f, a = state.values, state.weights
        noise = 1.0 / state.next_curvature(labels)
        targets = f + noise * labels.force(f)
        noisy = self.operator.with_noise(noise)
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


TITLE = "evidence with neighbours"
# Of the last step to a mode, in any value.
TOLERANCE = 1e-6
MOST_STEPS = 60
# Turns for b: see `docs/experiments.md`.
CORRECTIONS = 1
# Each class against the rest: their losses, and the evidence of labels that do not depend on inputs.
_DENSE: dict[LabelLikelihood | None, type[LogitEvidence] | type[ProbitEvidence]] = {
    "logit": LogitEvidence,
    "probit": ProbitEvidence,
}
# M: of the targets with themselves and with b; of the targets with b.
_BOTH, _ACROSS = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])


@dataclass(frozen=True)
class EvidenceLabels(ColumnLabels):
    """The labels of one latent function, of whose loss is known how its curvature moves."""

    loss: LabelLoss

    def log_curvature_slope(self, values: FloatArray) -> FloatArray:
        """d log W / df: (n,)."""
        return self.loss.log_curvature_slope(self.signs, values)


class LabelVifObjective(NearEvidence):
    """Evidence of labels, a column for each latent function; the noise variance is of no account.

    `start` (n, t) are the modes of the last evaluation.
    """

    def __init__(
        self,
        source: InputSource,
        columns: Sequence[EvidenceLabels],
        context: RunContext | BlockExecutor,
        neighbours: Neighbours | None = None,
    ) -> None:
        if not columns or any(len(labels.signs) != source.n_samples for labels in columns):
            counts = [len(labels.signs) for labels in columns]
            raise InputError(f"expected columns of labels of {source.n_samples:,} samples; got {counts}")
        super().__init__(source, context, neighbours)
        self._columns = columns

    def _evaluated(
        self, held: Neighbourhood, operator: BlockedKernelOperator, model: Described
    ) -> tuple[float, FloatArray, float]:
        value, gradient, explained, modes = 0.0, np.zeros(len(operator.kernel.parameters()) + 1), 0.0, []
        with closing(ModeSearch(operator, held, model)) as search:
            for column, labels in enumerate(self._columns):
                start = None if self.start is None else self.start[:, column].astype(np.float64)
                state = _mode(search, labels, start)
                value += evidence(state)
                gradient[:-1] += _slopes(held, operator, search.model, state, labels)
                assert state.joint is not None
                explained = state.joint.explained
                modes.append(state.values.astype(np.float32))
        self.start = np.column_stack(modes)
        return value, gradient, explained


def _mode(search: ModeSearch, labels: EvidenceLabels, start: FloatArray | None) -> ColumnState:
    """The mode, from values (n,) near it or, where these are none or lead nowhere, from zero."""
    state = ColumnState.start(labels, start)
    # With held noise it would be the mode of a covariance that depends on the way there.
    while not (state.ended or state.held):
        search.step(state, labels, TOLERANCE, MOST_STEPS)
    if state.ended == "mode":
        return state
    if start is not None:
        return _mode(search, labels, None)
    raise NumericalError(
        f"the labels' mode was not found in {state.steps} steps; the last one's largest change is {state.change:.2g}"
    )


def _slopes(
    held: Neighbourhood, operator: BlockedKernelOperator, model: Described, state: ColumnState, labels: EvidenceLabels
) -> FloatArray:
    """Slopes of one mode's evidence by the logarithms of the kernel's parameters: (q,)."""
    u, noise, joint = state.targets, state.noise, state.joint
    assert u is not None
    assert noise is not None
    assert joint is not None
    noisy = operator.with_noise(noise)
    with single_threaded_blas():
        moved = joint.moved()
    eta = held.noise_slopes(noisy, model, moved, u[:, None])
    rate = -labels.log_curvature_slope(state.values)  # v' / v
    # Where W is held, the noise does not move.
    rate[noise >= 1.0 / LEAST_CURVATURE] = 0.0
    s = 0.5 * rate * (1.0 + noise * (2.0 * eta - state.weights**2))
    targets = np.column_stack([u, noise * s])
    pair = held.joint(noisy, model, targets)
    for _ in range(CORRECTIONS):
        z = held.weights(noisy, model, pair, targets)[:, 1]
        with single_threaded_blas():
            moved = pair.moved(_ACROSS, 0.0)
        across = held.noise_slopes(noisy, model, moved, targets)
        # J'z: the part of d (z'Sigma g) / dv beside the noise itself.
        targets[:, 1] = noise * (s + noise * rate * (across - z * state.weights))
        pair = held.joint(noisy, model, targets)
    with single_threaded_blas():
        moved = pair.moved(_BOTH, 1.0)
    slopes, _ = held.slopes(noisy, model, moved, targets)
    return slopes


def tune_labels_by_neighbours(
    data: LabelledData,
    context: RunContext | BlockExecutor,
    choices: Choices,
    settings: SearchSettings,
    *,
    basis_size: int = BASIS_SIZES["vif"],
    note: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Find a kernel's hyperparameters by the evidence of all labels; parameters and errors as of `tune_by_bound`.

    Of the choices' likelihoods softmax is refused: its classes have no functions of their own. `InputError`: samples
    of one class alone, too.
    """
    labels, name = data.labels, choices.likelihood
    if name not in _DENSE:
        raise InputError(
            f"the evidence of labels with neighbours is of the likelihoods logit and probit, each class against the "
            f"rest; got {name}"
        )
    if len(np.unique(labels.codes)) < 2:
        raise InputError(f"the {data.n:,} samples are of one class only; expected at least two classes to tell apart")
    signs, dense = labels.signs(), _DENSE[name]
    columns = [EvidenceLabels(np.ascontiguousarray(column), dense.loss, data.weights) for column in signs.T]
    summary = SubsetSummary(signs.size, dense.independent(signs, data.weights), np.zeros(0))
    targets = SearchTargets(
        "vif",
        summary,
        lambda within: LabelVifObjective(data.dataset, columns, within),
        TITLE,
        "Take fewer basis samples, start from a smaller amplitude, or give the hyperparameters yourself",
    )
    return tune_by_bound(
        data.dataset,
        context,
        choices,
        settings,
        objective=targets,
        basis_size=basis_size,
        note=note,
    )


# Steps to the mode of one latent function, about: six to twenty were seen.
STEPS = 9.0


def near_phases(settings: NearSettings, n: int, d: int, t: int, kept: float) -> list[Phase]:
    """The work on n samples of d features in its order, of t latent functions; workers keep a share `kept` of leaves.

    Within a step leaves are passed twice, for sums and for weights; kept parts are made once for all steps.
    """
    m, near, steps = min(settings.size, n), settings.near, STEPS * t
    made = 1.0 + (1.0 - kept) * (2.0 * steps - 1.0)
    return [
        choice_phase(settings, n, d),
        search_phase(near, n, d),
        leaves_phase(made, near, n, m),
        factors_phase("steps", steps * (2.0 - kept), near, n, d, m, 1),
    ]
