"""Tasks of tuning on workers: an objective of one subset at given parameters, and a subset's scores.

Tasks are stateless functions of (context, arguments, subsets). A worker reads a subset's rows when it first meets it
and keeps them, and the matrices it works in, in its cache; both can be had again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import process_threads
from dkgp.data.sources.tables.survey import count_repeated_rows
from dkgp.data.types import FloatArray
from dkgp.kernels import Kernel
from dkgp.models.noise import Noise
from dkgp.models.trend import CENTRED, MeanKind, columns_at, require_independent
from dkgp.models.tuning.kernel_family import family_of
from dkgp.models.tuning.laplace.columns import LabelEvidence, LogitEvidence, ProbitEvidence
from dkgp.models.tuning.laplace.softmax import SoftmaxEvidence
from dkgp.models.tuning.leave_one_out import LeaveOneOut
from dkgp.models.tuning.marginal_likelihood import DenseObjective, KernelFamily, LogMarginalLikelihood
from dkgp.models.tuning.subsets import Subsets

Outcome: TypeAlias = tuple[float, FloatArray] | None
Objective: TypeAlias = Literal["likelihood", "loo"]
LabelLikelihood: TypeAlias = Literal["logit", "probit", "softmax"]

OBJECTIVES: dict[Objective, type[DenseObjective]] = {"likelihood": LogMarginalLikelihood, "loo": LeaveOneOut}
# Evidence of labels, in Laplace's approximation.
LABEL_OBJECTIVES: dict[LabelLikelihood, type[LabelEvidence]] = {
    "logit": LogitEvidence,
    "probit": ProbitEvidence,
    "softmax": SoftmaxEvidence,
}


@dataclass(frozen=True)
class SubsetSummary:
    """Summary of a subset for the search."""

    n_targets: int  # samples times columns
    independent: float  # the objective's value for targets that do not depend on their inputs
    deviations: FloatArray  # (p,): the targets' standard deviations; none of labels, which have no scale
    rows: int = 0  # samples that were looked at for copies, and how many repeat an earlier one, targets included
    copies: int = 0


@dataclass(frozen=True)
class CachedSubset:
    """A subset as a worker keeps it."""

    inputs: FloatArray
    targets: FloatArray
    family: KernelFamily
    weights: FloatArray | None
    noise: Noise

    @property
    def nbytes(self) -> int:
        """Bytes held, the family's own arrays estimated."""
        return 4 * self.inputs.nbytes + self.targets.nbytes


class _Matrices:
    """Lends sets of `count` arrays (n, n), one for each thread: new memory would cost as much as a product."""

    def __init__(self, n: int, count: int) -> None:
        self._n, self._count = n, count
        self._free: list[list[FloatArray]] = []

    @property
    def nbytes(self) -> int:
        """Bytes held when every thread of this process has asked."""
        return 8 * self._n**2 * self._count * process_threads()

    @contextmanager
    def lent(self) -> Iterator[list[FloatArray]]:
        """A set, not initialised, in Fortran order."""
        try:
            matrices = self._free.pop()  # a list's `pop` and `append` are whole for threads
        except IndexError:
            matrices = [np.empty((self._n, self._n), order="F") for _ in range(self._count)]
        try:
            yield matrices
        finally:
            self._free.append(matrices)


@dataclass(frozen=True)
class TuningContext:
    """Everything a task needs to know besides the parameters; the kernel's values are where the search starts."""

    run_id: str
    source: Subsets
    kernel: Kernel
    learn_variance: bool
    feature_names: tuple[str, ...]
    objective: Objective
    likelihood: LabelLikelihood | None = None
    mean: MeanKind = CENTRED

    @property
    def kind(self) -> type[DenseObjective]:
        """The function that is maximised."""
        return OBJECTIVES[self.objective] if self.likelihood is None else LABEL_OBJECTIVES[self.likelihood]

    def family(self, inputs: FloatArray) -> KernelFamily:
        """The kernel with its parameters, on these inputs (n, d)."""
        return family_of(self.kernel, inputs, self.learn_variance, self.feature_names)

    def trend(self, subset: CachedSubset) -> FloatArray | None:
        """The columns of the mean at a subset's samples, (m, q); None where it has none."""
        return None if self.mean == CENTRED else columns_at(self.mean, subset.inputs)

    def subset(self, index: int) -> CachedSubset:
        """A subset's rows, from this worker's cache or their source."""

        def build() -> CachedSubset:
            inputs, targets = self.source.rows(index)
            weights, noise = self.source.weights(index), self.source.noise(index)
            return CachedSubset(inputs, targets, self.family(inputs), weights, noise)

        return worker_cache().get((self.run_id, index), build)

    def matrices(self, n: int) -> _Matrices:
        """Lend this worker's matrices of order n."""
        return worker_cache().get((self.run_id, "matrices", n), lambda: _Matrices(n, self.kind.n_matrices))

    def forget(self) -> None:
        """Drop what this process keeps; workers drop it when new runs need the room."""
        worker_cache().discard_run(self.run_id)


@needs_one_arithmetic
def summary_task(context: TuningContext, subsets: list[int]) -> list[SubsetSummary]:
    """Read subsets and say what their targets are like. `InputError` for NaN or infinity."""
    summaries = []
    for index in subsets:
        subset = context.subset(index)
        targets = subset.targets
        deviations = targets.std(axis=0) if context.likelihood is None else np.zeros(0)
        if (trend := context.trend(subset)) is not None:
            require_independent(trend, context.feature_names)
            independent = LogMarginalLikelihood.independent_about(targets, trend)
        else:
            independent = context.kind.independent(targets, subset.weights)
        copies = count_repeated_rows(np.column_stack([subset.inputs, targets])) or 0
        summaries.append(SubsetSummary(targets.size, independent, deviations, len(targets), copies))
    return summaries


@needs_one_arithmetic
def evaluate_task(
    context: TuningContext, parameters: FloatArray, starts: tuple[FloatArray | None, ...], subsets: list[int]
) -> list[tuple[Outcome, FloatArray | None]]:
    """The objective's value and gradient on each subset, or None where it does not exist; and the mode of labels.

    That is searched for from the mode of an earlier evaluation, one of `starts` for each subset.
    """
    outcomes = []
    for index in subsets:
        subset = context.subset(index)
        with context.matrices(len(subset.inputs)).lent() as matrices:
            objective = context.kind(
                subset.family, subset.targets, matrices, subset.weights, subset.noise, context.trend(subset)
            )
            objective.start = starts[index]
            outcomes.append((objective(parameters), objective.reached))
    return outcomes
