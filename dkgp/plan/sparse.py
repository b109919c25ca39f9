"""A sparse model foreseen: entries, seconds by phase and memory, by the counts that its ladder decides by."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dkgp.data import Dataset
from dkgp.models import Hyperparameters
from dkgp.models.sparse.ladder.costs import FIT_PASSES, rung_phases
from dkgp.models.sparse.settings import SparseMemory, SparseSettings
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.cross.runs import MOST_RUNS
from dkgp.plan.variances import PlannedWorkers
from dkgp.solvers.greedy_basis.settings import GreedySettings
from dkgp.solvers.prices import Phase, Work


@dataclass(frozen=True)
class ForeseenSparse:
    """A sparse model before it is trained."""

    settings: SparseSettings  # with the basis' size
    # Samples, features, targets.
    n: int
    d: int
    p: int
    width: int  # the kernel's `feature_width`
    cache_bytes: int  # of a worker's feature cache

    @property
    def greedy(self) -> GreedySettings | None:
        """The choice, where it is greedy."""
        return self.settings.greedy() if self.settings.chosen_basis == "greedy" else None

    def memory(self, workers: int, threads_per_worker: int) -> SparseMemory:
        """Project the peaks of the coordinator and of each worker."""
        planned = PlannedWorkers(workers, threads_per_worker)
        return self.settings.memory(self.n, self.d, self.p, planned, self.cache_bytes, self.width)

    def phases(self) -> list[Phase]:
        """Return the work in its order, with the messages that it takes: a sum's leaves are its tasks."""
        m, greedy = self.settings.basis_size, self.greedy
        basis_bytes = 8.0 * m * (self.d + self.p)
        phases_by_name = {phase.name: phase for phase in rung_phases(self.n, m, greedy=greedy)}
        fit = replace(
            phases_by_name["fit"],
            rounds=FIT_PASSES,
            pieces=MOST_RUNS,
            sent_to_each=basis_bytes + 8.0 * m * m,
            returned=8.0 * m * m,
        )
        phases = [fit, phases_by_name["algebra"]]
        if greedy is not None:
            each, count = phases_by_name["choice"], greedy.per_round
            work = Work(**{name: count * value for name, value in asdict(each.shared).items()})
            looked_at = count * greedy.candidates + greedy.kept
            choice = Phase(
                "choice",
                each.times / count,
                work,
                # Scores of many are taken first, then sums of those that were chosen.
                rounds=1 if count == 1 else 2,
                pieces=MOST_RUNS,
                sent_to_each=0.5 * basis_bytes + 8.0 * looked_at * self.d,
                returned=8.0 * looked_at * 0.5 * m,
            )
            phases.insert(0, choice)
        return phases

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        entries = sum(phase.times * phase.shared.double_entries for phase in self.phases())
        return {
            **asdict(self.settings),
            "basis": self.settings.chosen_basis,
            "kernel_evaluations": entries,
            "model_bytes": 8 * self.settings.basis_size * (2 * self.settings.basis_size + self.d + self.p),
        }


def foresee_sparse(
    dataset: Dataset, hyperparameters: Hyperparameters, settings: SparseSettings, cache_bytes: int
) -> ForeseenSparse:
    """Foresee a sparse model of a dataset, its settings with the size that they mean for it."""
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    return ForeseenSparse(settings, n, d, p, feature_width(hyperparameters.kernel), cache_bytes)
