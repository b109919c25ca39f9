"""Training on a basis with neighbours: choose the basis, order the samples, and find each latent function's mode."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.models.classification.basis.opening import Opened, opened
from dkgp.models.classification.basis.settings import BasisSettings
from dkgp.models.classification.basis.train import train_on_basis
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.near.mode import ColumnLabels, ColumnState, ModeSearch, evidence
from dkgp.models.classification.near.settings import NearSettings, refuse_coupled
from dkgp.models.classification.trained import BasisForm, TrainedBasis, TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.sparse.vif.objective import Joint, Neighbourhood
from dkgp.models.sparse.vif.prediction import Near
from dkgp.models.sparse.vif.stored import near_fields
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.low_rank.landmark_rows import whiten
from dkgp.solvers.checkpointing import interrupted
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

    def stored(self) -> dict[str, Any]:
        """With the samples."""
        return {**super().stored(), **near_fields(self.near)}


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

    Parameters
    ----------
    data : LabelledData
    hyperparameters : Hyperparameters
        The kernel; noise plays no part.
    context : RunContext or BlockExecutor
        Who computes, and who watches; checkpoints are of Newton's steps.
    settings : NearSettings
    likelihood : Likelihood
        Not softmax.
    given : (m,) int or (m, d) float64, optional
        A basis of the user's own, samples or standardised inputs.

    Raises
    ------
    InputError
        Softmax, or a basis that is none.
    NumericalError
        See `ModeSearch.step`.
    CheckpointError
        A checkpoint of another run.
    InterruptedRunError
        The context asked for the end.
    """
    refuse_coupled(likelihood)
    signs = likelihood.targets(data.labels)
    columns = [ColumnLabels(np.ascontiguousarray(column), likelihood.loss, data.weights) for column in signs.T]
    with opened(data, hyperparameters, context, settings, likelihood, "near", 1.0, given) as run:
        operator, checkpoint = run.operator, run.checkpoint
        if checkpoint is None:
            state = _State(run.prototypes, run.indices, [ColumnState.start(labels) for labels in columns])
        else:
            state = _State.restored(checkpoint.metadata["state"], checkpoint.arrays)
        lower = CrossKernel(operator, run.prototypes).lower
        held = Neighbourhood(operator, settings.near)
        run.laps.end("neighbours")
        with closing(ModeSearch(operator, held, held.described(operator, run.prototypes))) as search:
            _find_modes(search, run, state, columns, settings)
        run.laps.end("steps")
        near = _near(operator, held, state.columns, settings)
        joint = state.columns[0].joint
        assert joint is not None
        told = run.summary(joint.explained)
    reason = _reason(state.columns, settings)
    summary = {
        **told,
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


def _find_modes(
    search: ModeSearch, run: Opened, state: _State, columns: list[ColumnLabels], settings: NearSettings
) -> None:
    """Take steps of one latent function after the other, until all have ended."""
    operator, context, checkpoints = run.operator, run.context, run.checkpoints
    for column, labels in zip(state.columns, columns, strict=True):
        while not column.ended:
            if context.interrupted is not None and context.interrupted():
                checkpoints.save(state)
                done = f"{state.iteration} steps"
                raise interrupted(f"after {done}", checkpoints.url, f"{done} are")
            began, entries = time.perf_counter(), operator.kernel_evaluations
            search.step(column, labels, settings.tolerance, settings.max_iterations)
            state.note(column, time.perf_counter() - began, operator.kernel_evaluations - entries)
            if context.callback is not None:
                context.callback(state.history[-1])
            checkpoints.save_if_due(state)
    if checkpoints.saved_iteration != state.iteration:
        checkpoints.save(state)


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


def _reason(columns: list[ColumnState], settings: NearSettings) -> StopReason:
    worst = max(column.change for column in columns)
    if all(column.ended == "mode" for column in columns):
        return StopReason("decision", True, f"decisions changed by {worst:.3g} <= {settings.tolerance:.3g} at last")
    steps = max(column.steps for column in columns)
    stalled = any(column.ended == "stalled" for column in columns)
    came = f"{steps} steps, of which the last came no closer" if stalled else f"{steps} steps"
    return StopReason(
        "stalled" if stalled else "iterations",
        False,
        f"{came}; decisions still changed by {worst:.3g} > {settings.tolerance:.3g}",
        "take a larger basis (`basis_size`), more `neighbours`, or a smaller amplitude of the kernel",
    )


@dataclass
class _State:
    """All latent functions between two steps, and as a checkpoint holds them."""

    prototypes: FloatArray
    indices: IndexArray | None
    columns: list[ColumnState]
    history: list[Progress] = field(default_factory=list)

    @property
    def iteration(self) -> int:
        """Steps of all latent functions together."""
        return sum(column.steps for column in self.columns)

    def note(self, column: ColumnState, seconds: float, entries: int) -> None:
        """Add the record of a step."""
        before = self.history[-1] if self.history else None
        psi = sum(each.psi for each in self.columns)
        self.history.append(
            Progress(
                iteration=self.iteration,
                column_passes=0.0,
                kernel_evaluations=entries + (0 if before is None else before.kernel_evaluations),
                seconds=seconds + (0.0 if before is None else before.seconds),
                gradient_inf_norm=column.change,
                gradient_norm=column.change,
                relative_residual=column.change,
                objective=psi,
                objective_gap_bound=np.inf,
                timings={"step": seconds},
            )
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        arrays = {"prototypes": self.prototypes} | ({} if self.indices is None else {"indices": self.indices})
        for number, column in enumerate(self.columns):
            arrays |= {f"values-{number}": column.values, f"weights-{number}": column.weights}
            if column.joint is not None:
                assert column.targets is not None
                assert column.noise is not None
                arrays |= {f"targets-{number}": column.targets, f"noise-{number}": column.noise}
                arrays |= {f"normal-{number}": column.joint.normal, f"whitened-{number}": column.joint.whitened}
        return arrays

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        names = ("psi", "steps", "idle", "held", "ended")
        columns = [{name: getattr(column, name) for name in names} for column in self.columns]
        for column, document in zip(self.columns, columns, strict=True):
            if column.joint is not None:
                document |= {"change": column.change, "log_determinant": column.log_determinant}
                document |= {"value": column.joint.value, "explained": column.joint.explained}
                least = {"least": column.least, "lowest": column.lowest}
                document |= {name: value for name, value in least.items() if math.isfinite(value)}
        return {
            "iteration": self.iteration,
            "columns": columns,
            "history": [progress.to_json() for progress in self.history],
        }

    @classmethod
    def restored(cls, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> _State:
        """Rebuild from a checkpoint."""
        columns = []
        for number, document in enumerate(metadata["columns"]):
            more: dict[str, Any] = {}
            document.pop("length", None)  # of a version that shortened steps
            if "value" in document:
                normal = np.asfortranarray(arrays[f"normal-{number}"])
                joint = Joint(normal, arrays[f"whitened-{number}"], document.pop("value"), document.pop("explained"))
                named = {name: arrays.get(f"{name}-{number}") for name in ("targets", "noise")}
                more = {"joint": joint, **named}
            columns.append(ColumnState(arrays[f"values-{number}"], arrays[f"weights-{number}"], **document, **more))
        history = [Progress(**record) for record in metadata["history"]]
        return cls(arrays["prototypes"], arrays.get("indices"), columns, history)
