"""A fixed-size classifier foreseen: entries, seconds by phase and memory, for a search of the usual length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dkgp.data import Dataset
from dkgp.models import Hyperparameters
from dkgp.models.classification.fixed_size.settings import FixedSizeMemory, FixedSizeSettings
from dkgp.models.classification.labels import labels_of
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.cross.runs import MOST_RUNS
from dkgp.plan.variances import PlannedWorkers
from dkgp.solvers.prices import Phase, Work

# Kernels that a search looks at, about, and how many of them share a pass over the data.
KERNELS = {"profile": 7, "annealing": 110, "none": 1}
TOGETHER = {"profile": 2, "annealing": 3, "none": 1}
# Noise variances that each is validated with: decades, and finer about the best.
NOISES = 11
# A path that stops where it gains little takes about this many times the root of the pool: 150 of 2,000 on adult.
STOPPED = 4.0
# Of a path, what is taken in the end.
TAKEN = 0.7


@dataclass(frozen=True)
class ForeseenClassifier:
    """A fixed-size classifier before it is trained."""

    settings: FixedSizeSettings  # of the classifier
    # Samples, features, columns of decisions.
    n: int
    d: int
    t: int
    width: int  # the kernel's `feature_width`
    cache_bytes: int  # of a worker's feature cache

    @property
    def pool(self) -> int:
        """Prototypes to choose among, M."""
        return min(self.settings.pool, self.n)

    @property
    def kernels(self) -> int:
        """Kernels that the search looks at, about."""
        return KERNELS[self.settings.search]

    @property
    def passes(self) -> int:
        """Passes over the data that they take."""
        return -(-self.kernels // TOGETHER[self.settings.search])

    @property
    def explored(self) -> float:
        """Cardinality up to which paths go, about."""
        most = float(self.pool if self.settings.max_basis is None else min(self.settings.max_basis, self.pool))
        return most if self.settings.stop is None else min(STOPPED * self.pool**0.5, most)

    @property
    def taken(self) -> float:
        """Prototypes that are taken in the end, about."""
        return max(1.0, TAKEN * self.explored)

    def memory(self, workers: int, threads_per_worker: int, free_bytes: int | None = None) -> FixedSizeMemory:
        """Project the peaks of the coordinator and of each worker."""
        planned = PlannedWorkers(workers, threads_per_worker)
        return self.settings.memory(
            self.n, self.d, self.t, planned, self.cache_bytes, self.width, budget_bytes=free_bytes
        )

    def phases(self) -> list[Phase]:
        """Return the work in its order, with the messages that it takes: a sum's leaves are its tasks."""
        n, m, k, folds = float(self.n), float(self.pool), self.taken, self.settings.folds
        explored = self.explored
        pool_bytes, model_bytes = 8.0 * m * self.d, 8.0 * k * (self.d + self.t)
        together = -(-self.kernels // self.passes)
        # Of each fold and noise, a path to cardinality k: a column of the system for each prototype, and its triangle.
        path = explored**2 * m + 2.0 * explored * m * self.t
        return [
            Phase("prototypes", 1.0, Work(double_entries=n * m), pieces=MOST_RUNS, returned=pool_bytes),
            Phase(
                "search",
                float(self.kernels),
                Work(double_entries=n * m, double_operations=n * m**2 + 2.0 * n * m * self.t),
                rounds=1,
                pieces=MOST_RUNS,
                sent_to_each=pool_bytes / together,
                returned=8.0 * folds * (0.5 * m**2 + m * self.t),
            ),
            Phase("paths", float(self.kernels), threaded=Work(double_operations=NOISES * (folds + 1) * path)),
            Phase(
                "fit",
                1.0,
                Work(double_entries=2.0 * n * k, double_operations=2.0 * n * k**2 + 4.0 * n * k * self.t),
                rounds=2,
                pieces=MOST_RUNS,
                sent_to_each=model_bytes,
                returned=8.0 * k**2,
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        entries = sum(phase.times * phase.shared.double_entries for phase in self.phases())
        return {
            **asdict(self.settings),
            "pool": self.pool,
            "kernels": self.kernels,
            "passes": self.passes,
            "kernel_evaluations": entries,
            "model_bytes": int(8 * self.taken * (self.d + self.t)),
        }


def foresee_classifier(
    dataset: Dataset, hyperparameters: Hyperparameters, settings: FixedSizeSettings, cache_bytes: int
) -> ForeseenClassifier:
    """Foresee a classifier of a dataset's labels; `InputError` where there are none."""
    outputs = labels_of(dataset).n_outputs
    n, d = dataset.n_samples, dataset.n_features
    return ForeseenClassifier(settings, n, d, outputs, feature_width(hyperparameters.kernel), cache_bytes)
