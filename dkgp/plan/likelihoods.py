"""Classifiers with a likelihood foreseen: products by runs on subsets, or the passes of one on a basis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dkgp.data import Dataset
from dkgp.kernels import fold_white
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis.settings import DEFAULT_BASIS, BasisMemory, BasisSettings
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.labels import Labels, labels_of
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.foreseen import foreseen_products
from dkgp.models.classification.logistic.stopping import RISK_TOLERANCE, RiskSettings
from dkgp.models.memory import MemoryPlan, Processes, plan_training
from dkgp.operators.block_tasks import feature_width
from dkgp.operators.cross.runs import MOST_RUNS
from dkgp.plan.foreseen import Counts
from dkgp.plan.variances import PlannedWorkers
from dkgp.solvers.conjugate.phases import conjugate_phases
from dkgp.solvers.prices import Phase, Sizes, Work
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import risk_memory

# On a basis: steps that take a Hessian, about, and passes besides.
HESSIANS, PASSES = 8.0, 16.0


@dataclass(frozen=True)
class LikelihoodSettings:
    """A classifier to foresee."""

    # "logistic" or "gp"; several classes are softmax of the first, and each against the rest of the second.
    method: Literal["logistic", "gp"]
    # Of one on a basis; None for all samples.
    basis_size: int | None = None
    basis: str | None = None
    seed: int = 0  # of the subsets

    def likelihood(self, labels: Labels) -> Likelihood:
        """Return the likelihood of labels."""
        return Likelihood.of("logit", "softmax" if self.method == "logistic" else "ovr", labels.n_classes)

    def on_basis(self) -> BasisSettings | None:
        """Return the basis' settings, where there is one."""
        if self.basis_size is None:
            return None
        return BasisSettings(self.basis_size, self.basis or DEFAULT_BASIS, tolerance=RISK_TOLERANCE, seed=self.seed)


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


@dataclass(frozen=True)
class ForeseenLikelihood:
    """A classifier with a likelihood before it is trained."""

    # Of the classifier.
    settings: LikelihoodSettings
    likelihood: Likelihood
    # Samples, features.
    n: int
    d: int
    blocks: int  # of samples, for products
    width: int  # the kernel's `feature_width`
    cache_bytes: int  # of a worker's feature cache
    products: Counts | None  # of one of all samples

    def memory(self, workers: int, threads_per_worker: int) -> Room | BasisMemory:
        """Project the peaks of the coordinator and of each worker."""
        basis, t = self.settings.on_basis(), self.likelihood.n_outputs
        if basis is not None:
            planned = PlannedWorkers(workers, threads_per_worker)
            coupled = self.likelihood.coupled
            return basis.memory(self.n, self.d, t, planned, self.cache_bytes, self.width, coupled=coupled)
        return Room(
            plan_training(
                self.n,
                self.d,
                t,
                risk_memory(AUTO, self.n, t, self.d),
                Processes(0, shares_process=False, overlaps=True, cache_bytes=self.cache_bytes),
                holds_inputs=False,
                width=self.width,
            )
        )

    def phases(self) -> list[Phase]:
        """Return the work in its order."""
        n, t = float(self.n), self.likelihood.n_outputs
        if self.products is not None:
            sizes = Sizes(self.n, self.d, t, blocks=self.blocks)
            return conjugate_phases(sizes, self.products.expected, checks=self.products.checks)
        basis = self.settings.on_basis()
        assert basis is not None
        m = float(min(basis.size, self.n))
        grams = t * (t + 1) / 2.0 if self.likelihood.coupled else float(t)
        choice = Work(double_entries=n * m) if basis.basis != "uniform" else Work()
        return [
            Phase("choice", 1.0, choice, rounds=1, pieces=MOST_RUNS, returned=8.0 * m * self.d),
            Phase(
                "steps",
                PASSES + HESSIANS,
                Work(double_entries=n * m, double_operations=4.0 * n * m * t),
                rounds=1,
                pieces=MOST_RUNS,
                sent_to_each=8.0 * m * (self.d + t),
                returned=8.0 * m * t,
            ),
            Phase(
                "Hessians",
                HESSIANS,
                Work(double_operations=n * m * m * grams),
                threaded=Work(double_operations=grams * m**3),
                rounds=1,
                pieces=MOST_RUNS,
                returned=8.0 * m * m * grams,
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        basis, t = self.settings.on_basis(), self.likelihood.n_outputs
        rows = self.n if basis is None else min(basis.size, self.n)
        products = self.products
        if products is None:
            entries = (PASSES + HESSIANS + 1.0) * self.n * rows
        else:
            entries = (products.expected + products.checks) * self.n * self.n / 2.0
        return {
            "method": self.settings.method,
            "likelihood": self.likelihood.name,
            "basis_size": None if basis is None else rows,
            "basis": None if basis is None else basis.basis,
            "products": None
            if products is None
            else {"expected": products.expected, "low": products.low, "high": products.high},
            "kernel_evaluations": entries,
            "model_bytes": 8 * rows * (self.d + t),
        }


def foresee_likelihood(
    dataset: Dataset, hyperparameters: Hyperparameters, settings: LikelihoodSettings, cache_bytes: int, blocks: int
) -> ForeseenLikelihood:
    """Foresee a classifier of a dataset's labels, to decisions within `RISK_TOLERANCE`; `InputError` without labels."""
    labels = labels_of(dataset)
    kernel, _ = fold_white(hyperparameters.kernel, hyperparameters.noise_variance)
    likelihood, n = settings.likelihood(labels), dataset.n_samples
    products = None
    if settings.on_basis() is None:
        foreseen = foreseen_products(
            LabelledData(dataset, labels), kernel, RiskSettings(likelihood, seed=settings.seed)
        )
        products = Counts("products", foreseen.count, foreseen.low, foreseen.high, 2.0)
    width = feature_width(kernel)
    return ForeseenLikelihood(settings, likelihood, n, dataset.n_features, blocks, width, cache_bytes, products)
