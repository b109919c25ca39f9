"""The opening of training on a basis, with neighbours or without: kernel, checkpoints, operator, and the basis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Checkpoint
from dkgp.models.classification.basis.settings import BasisSettings
from dkgp.models.classification.labelled import LabelledData, Laps, digest, interruption
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.sparse.bases import given_basis
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.checkpointing import Checkpoints


@dataclass(frozen=True)
class Opened:
    """A run whose basis is there: standardised inputs (m, d), and the samples (m,) that they are, if any."""

    context: RunContext
    checkpoints: Checkpoints
    checkpoint: Checkpoint | None  # from which it goes on
    operator: BlockedKernelOperator
    prototypes: FloatArray
    indices: IndexArray | None
    laps: Laps
    told: dict[str, Any]  # of data and problem, as summaries tell them

    def summary(self, explained: float) -> dict[str, Any]:
        """Data, problem and effort, and what a basis that explains so much of the samples' k(x, x) leaves of it."""
        return {
            **self.told,
            "basis_size": len(self.prototypes),
            "left": 1.0 - explained / float(self.operator.prior().sum()),
            "kernel_evaluations": self.operator.kernel_evaluations,
            **self.laps.summary(),
        }


@contextmanager
def opened(
    data: LabelledData,
    hyperparameters: Hyperparameters,
    context: RunContext | BlockExecutor,
    settings: BasisSettings,
    likelihood: Likelihood,
    form: str,
    regularisation: float,
    given: IndexArray | FloatArray | None,
) -> Iterator[Opened]:
    """Open a run, and have its basis: a checkpoint's, the user's, or one that is chosen.

    Raises `InputError` for a basis that is none, `CheckpointError` for a checkpoint of another run, and
    `InterruptedRunError` where the context asks for the end.
    """
    laps, context = Laps(), RunContext.of(context)
    kernel, _ = data.kernel(Hyperparameters(hyperparameters.kernel, 1.0))
    problem = {"likelihood": likelihood.to_json(), "regularisation": regularisation}
    identity = {**settings.identity(), **problem, "form": form, **data.identity, "given": digest(given, "<f8")}
    checkpoints = Checkpoints(context.checkpointing, identity, dict)
    checkpoint = checkpoints.latest()
    # Least squares that bound the loss from above have this noise: what a greedy choice is judged by.
    noise = regularisation / likelihood.loss.curvature_bound
    check = interruption(context, checkpoints, "steps")
    with context.operator(kernel, noise, data.dataset) as operator, operator.watched(check, context.within):
        if checkpoint is not None:
            indices, prototypes = checkpoint.arrays.get("indices"), checkpoint.arrays["prototypes"]
        elif given is not None:
            basis = given_basis(operator, given)
            indices, prototypes = basis.indices, basis.inputs
        else:
            indices, prototypes = choose_prototypes(
                settings.basis, operator, settings.size, settings.seed, targets=data.labels.signs()
            )
        laps.end("choice")
        told = {**data.summary(), **problem, "basis": settings.basis if given is None else "given"}
        yield Opened(context, checkpoints, checkpoint, operator, prototypes, indices, laps, told)
