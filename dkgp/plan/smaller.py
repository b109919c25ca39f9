"""Models beside the exact one, foreseen: sparse ones, and classifiers, fixed-size or with a likelihood.

What they take is counted beside their trainers, and projected by the same settings that train them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from dkgp.data import Dataset
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import DEFAULT_BASIS, BasisSettings, basis_entries, basis_phases
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings, fixed_size_phases, foreseen_passes, taken
from dkgp.models.classification.labels import LabelledData, Labels, labels_of
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RISK_TOLERANCE, RiskSettings, foreseen_products
from dkgp.models.classification.near import NearSettings, near_phases
from dkgp.models.memory import MemoryPlan, Processes, TrainingSizes, plan_training
from dkgp.models.sparse.ladder import sparse_phases
from dkgp.models.sparse.settings import SparseSettings
from dkgp.operators.block_tasks import feature_width
from dkgp.plan.variances import PlannedWorkers
from dkgp.solvers.conjugate.preconditioner import conjugate_phases
from dkgp.solvers.prices import Phase, Sizes
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import risk_memory

# Products in float64 of a solve, which verify it.
CHECKS = 2.0


class Peaks(Protocol):
    """Projected peaks of a model's training."""

    @property
    def worker_bytes(self) -> int:
        """Of each worker's process, beside what it holds already."""

    @property
    def coordinator_bytes(self) -> int:
        """Of the coordinator's process, beside what it holds already."""

    def require(self, budget_bytes: int, resident_bytes: int = 0) -> None:
        """Refuse what exceeds the budget; `MemoryBudgetError`."""


@dataclass(frozen=True)
class Smaller:
    """A model before it is trained."""

    phases: Sequence[Phase]  # its work in its order, with the messages that it takes
    record: dict[str, Any]  # what a plan tells of it, in plain JSON types
    peaks: Callable[[PlannedWorkers, int | None], Peaks]  # on such workers, with so much free at the coordinator

    def memory(self, workers: int, threads_per_worker: int, free_bytes: int | None = None) -> Peaks:
        """Project the peaks of the coordinator and of each worker."""
        return self.peaks(PlannedWorkers(workers, threads_per_worker), free_bytes)


@dataclass(frozen=True)
class LikelihoodSettings:
    """A classifier to foresee."""

    # "logistic" or "gp"; several classes are softmax of the first, and each against the rest of the second.
    method: Literal["logistic", "gp"]
    # Of one on a basis; None for all samples.
    basis_size: int | None = None
    basis: str | None = None
    neighbours: int | None = None  # of a Gaussian process on a basis
    seed: int = 0  # of the subsets

    def likelihood(self, labels: Labels) -> Likelihood:
        """Return the likelihood of labels."""
        return Likelihood.of("logit", "softmax" if self.method == "logistic" else "ovr", labels.n_classes)

    def on_basis(self) -> BasisSettings | None:
        """Return the basis' settings, where there is one."""
        if self.basis_size is None:
            return None
        basis = self.basis or DEFAULT_BASIS
        if self.neighbours is not None:
            return NearSettings(self.basis_size, basis, seed=self.seed, neighbours=self.neighbours)
        return BasisSettings(self.basis_size, basis, tolerance=RISK_TOLERANCE, seed=self.seed)


@dataclass(frozen=True)
class Room:
    """Projected peaks of one of all samples, as those of smaller models are told."""

    plan: MemoryPlan

    @property
    def worker_bytes(self) -> int:
        """Of each worker's process, beside what it holds already."""
        return self.plan.worker_process_bytes(0)

    @property
    def coordinator_bytes(self) -> int:
        """Of the coordinator's process, beside what it holds already."""
        return self.plan.coordinator_bytes

    def require(self, budget_bytes: int, resident_bytes: int = 0) -> None:
        """Refuse what exceeds the budget; `MemoryBudgetError`."""
        self.plan.require(budget_bytes - resident_bytes)


def foresee_sparse(
    dataset: Dataset, hyperparameters: Hyperparameters, settings: SparseSettings, cache_bytes: int
) -> Smaller:
    """Foresee a sparse model of a dataset, its settings with the size that they mean for it."""
    n, d, p, m = dataset.n_samples, dataset.n_features, dataset.n_targets, settings.basis_size
    width, phases = feature_width(hyperparameters.kernel), sparse_phases(settings, n, d, p)
    has_neighbours = settings.sparse_method.neighbours
    record = {
        **asdict(settings),
        "basis": settings.basis_name,
        "kernel_evaluations": _entries(phases),
        "model_bytes": 8 * m * (2 * m + d + p) + (8 * (m * (m + p) + n * (d + p)) if has_neighbours else 0),
    }
    return Smaller(phases, record, lambda workers, free_bytes: settings.memory(n, d, p, workers, cache_bytes, width))


def foresee_classifier(
    dataset: Dataset, hyperparameters: Hyperparameters, settings: FixedSizeSettings, cache_bytes: int
) -> Smaller:
    """Foresee a fixed-size classifier of a dataset's labels; `InputError` where there are none."""
    n, d, t = dataset.n_samples, dataset.n_features, labels_of(dataset).n_outputs
    width, phases = feature_width(hyperparameters.kernel), fixed_size_phases(settings, n, d, t)
    kernels, passes = foreseen_passes(settings)
    record = {
        **asdict(settings),
        "pool": settings.pool_size(n, t),
        "kernels": kernels,
        "passes": passes,
        "kernel_evaluations": _entries(phases),
        "model_bytes": int(8 * taken(settings, n, t) * (d + t)),
    }

    def peaks(workers: PlannedWorkers, free_bytes: int | None) -> Peaks:
        return settings.memory(TrainingSizes(n, d, t, workers, cache_bytes, width), budget_bytes=free_bytes)

    return Smaller(phases, record, peaks)


def foresee_likelihood(
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    settings: LikelihoodSettings,
    cache_bytes: int,
    blocks: int,
    kept_bytes: int = 0,
) -> Smaller:
    """Foresee a classifier of a dataset's labels, to decisions within `RISK_TOLERANCE`; `InputError` without labels.

    `blocks` are those of the samples, for products; `kept_bytes` are what a worker may keep of neighbours' leaves.
    """
    labels = labels_of(dataset)
    kernel = hyperparameters.kernel
    likelihood, basis, width = settings.likelihood(labels), settings.on_basis(), feature_width(kernel)
    n, d, t, coupled = dataset.n_samples, dataset.n_features, likelihood.n_outputs, likelihood.coupled
    rows = n if basis is None else min(basis.size, n)
    record: dict[str, Any] = {
        "method": settings.method,
        "likelihood": likelihood.name,
        "basis_size": None if basis is None else rows,
        "basis": None if basis is None else basis.basis,
        "products": None,
        "kernel_evaluations": 0.0 if basis is None else basis_entries(basis, n),
        "model_bytes": 8 * rows * (d + t),
    }
    if isinstance(basis, NearSettings):
        return _foresee_near(
            basis, TrainingSizes(n, d, t, PlannedWorkers(1, 1), cache_bytes, width), record, kept_bytes
        )
    if basis is not None:
        phases = basis_phases(basis, n, d, t, coupled=coupled)

        def peaks(workers: PlannedWorkers, free_bytes: int | None) -> Peaks:
            return basis.memory(TrainingSizes(n, d, t, workers, cache_bytes, width), coupled=coupled)

        return Smaller(phases, record, peaks)
    products = foreseen_products(LabelledData(dataset, labels), kernel, RiskSettings(likelihood, seed=settings.seed))
    record["products"] = {"expected": products.count, "low": products.low, "high": products.high}
    record["kernel_evaluations"] = (products.count + CHECKS) * n * n / 2.0
    elsewhere = Processes(0, shares_process=False, overlaps=True, cache_bytes=cache_bytes)
    memory = risk_memory(AUTO, n, t, d)
    room = Room(plan_training(n, d, t, memory, elsewhere, holds_inputs=False, width=width))
    phases = conjugate_phases(Sizes(n, d, t, blocks=blocks), products.count, checks=CHECKS)
    return Smaller(phases, record, lambda workers, free_bytes: room)


def _foresee_near(settings: NearSettings, sizes: TrainingSizes, record: dict[str, Any], kept_bytes: int) -> Smaller:
    """Foresee a classifier with neighbours; work is that of one worker, more of which keep more leaves."""
    (n, d, t), useful = (sizes.n, sizes.d, sizes.t), settings.memory(sizes).useful_bytes
    phases = near_phases(settings, n, d, t, min(1.0, kept_bytes / useful))
    m = min(settings.size, n)

    def peaks(workers: PlannedWorkers, free_bytes: int | None) -> Peaks:
        plan, kept = settings.memory(replace(sizes, executor=workers)), min(kept_bytes, -(-useful // workers.processes))
        return replace(plan, worker_bytes=plan.worker_bytes + kept)

    told = {
        "neighbours": settings.neighbours,
        "kernel_evaluations": _entries(phases),
        "model_bytes": 8 * (m * (m + d) + t * m * (m + 2) + n * (d + 2 * t)),
    }
    return Smaller(phases, {**record, **told}, peaks)


def _entries(phases: Sequence[Phase]) -> float:
    return sum(phase.times * phase.shared.double_entries for phase in phases)
