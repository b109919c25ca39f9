"""Predictive variances foreseen: factors and batches as a prediction would lay them out, and the products they take.

The layout is the prediction's own, for workers that are only planned. How many products a batch takes is counted in
small: a random subset of m of the n samples, with halos of s m / n, a rank of R sqrt(m / n) and noise s2 (n / m)^1/4,
takes about as many to the same gap. Of fewer samples less is known, and as gaps are relative to what is not known and
the noise together, there is more of both.

Measured (docs/experiments.md) on kin40k, also with a tenth of its noise and latent, n from 6,000 to 30,000: of 2 to 9
products in float32 all were told within two, and within a factor of two.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, ModelRecord, memory_model, standardised_inputs
from dkgp.kernels import Kernel, fold_white, kernel_from_json
from dkgp.models import Hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.tuning.tune import draw_subset
from dkgp.models.variance.batch import BatchOptions, solve_batch
from dkgp.models.variance.landmarks import Landmarks, choose_landmarks
from dkgp.models.variance.nystrom import FactorSource, leaves_of
from dkgp.models.variance.search import local_samples
from dkgp.models.variance.sizes import precision_of
from dkgp.models.variance.variances import VarianceRun, VarianceSettings
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.auto import PROBE_SAMPLES, Expected
from dkgp.solvers.conjugate.phases import Batches, variance_phases
from dkgp.solvers.prices import Phase, Sizes

# Powers of m / n.
RANK_POWER, NOISE_POWER = 0.5, -0.25
# Of counts foretold, in most cases.
SPREAD = 2.0
PROBE_TESTS = 64


class PlannedWorkers(LocalExecutor):
    """Worker processes that are not there: what a run lays its work out by."""

    shares_memory = False

    def __init__(self, workers: int, threads_per_worker: int) -> None:
        super().__init__(1)
        self._workers, self._each = workers, threads_per_worker

    @property
    def parallelism(self) -> int:
        """Threads of all of them."""
        return self._workers * self._each

    @property
    def threads_per_process(self) -> int:
        """Threads of one."""
        return self._each


@dataclass(frozen=True)
class ForeseenVariances:
    """Variances of a prediction, before there is a model."""

    tests: int  # samples that are predicted
    settings: VarianceSettings  # as for the prediction
    # Products with K that a sample is expected to take part in, in float32 and float64.
    single: Expected
    double: Expected
    # Training samples; the model that training will make of them, but for its coefficients; the run on one worker.
    dataset: Dataset
    model: ModelRecord
    run: VarianceRun

    def on(self, workers: int, threads_per_worker: int) -> VarianceRun:
        """Return the run as it would be laid out on so many workers."""
        planned = PlannedWorkers(workers, threads_per_worker)
        return _laid_out(self.model, self.dataset, self.settings, self.tests, planned, self.run.landmarks)

    def phases(self, run: VarianceRun, sizes: Sizes, single: float, double: float) -> list[Phase]:
        """Return the work of a run whose samples take part in so many products."""
        plan, batch = run.plan, int(run.plan["batch_size"])
        batches = Batches(
            self.tests,
            math.ceil(self.tests / batch),
            min(batch, int(plan["together"])),
            int(plan["rank"]),
            int(plan["halo"]),
            local_samples(sizes.n),
            run.memory.precision == "double",
            single,
            double,
        )
        return variance_phases(sizes, batches)

    def worker_bytes(self, run: VarianceRun, resident_bytes: int) -> int:
        """Return the peak of a worker's process that held so much before: features, factors, and batches under way."""
        memory = run.memory
        at_once = min(int(run.plan["batch_size"]), int(run.plan["together"]))
        batches = memory.fixed + memory.batches * at_once * memory.of_a_sample
        return resident_bytes + RUNTIME_BYTES + 16 * memory.n * (memory.width + 1) + batches

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "tests": self.tests,
            **self.run.plan,
            "precision": self.run.memory.precision,
            "factor_bytes": self.run.memory.fixed,
            "sample_bytes": self.run.memory.of_a_sample,
            "products_float32": asdict(self.single),
            "products_float64": asdict(self.double),
        }


def foresee_variances(
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    settings: VarianceSettings,
    tests: int,
    threads_per_worker: int = 1,
) -> ForeseenVariances:
    """Lay a prediction's variances out, and count the products of one in small.

    Raises
    ------
    MemoryBudgetError
        As `predict` would: a factor or a sample that does not fit.
    """
    kernel, noise_variance = fold_white(hyperparameters.kernel, hyperparameters.noise_variance)
    unknown = np.broadcast_to(0.0, (dataset.n_samples, dataset.n_targets))
    model = memory_model(dataset, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=unknown)
    with single_threaded_blas():
        run = _laid_out(model, dataset, settings, tests, PlannedWorkers(1, threads_per_worker))
        single = double = Expected(0.0, 0.0, 0.0)
        if settings.max_passes >= 1 and not run.plan["smooth"]:
            single, double = _counted(dataset, kernel, noise_variance, settings, run.plan)
    return ForeseenVariances(tests, settings, single, double, dataset, model, run)


def _laid_out(
    model: ModelRecord,
    dataset: Dataset,
    settings: VarianceSettings,
    tests: int,
    workers: PlannedWorkers,
    landmarks: Landmarks | None = None,
) -> VarianceRun:
    kernel = kernel_from_json(model.kernel)
    return VarianceRun(
        model,
        kernel,
        BlockContext("plan", dataset, kernel, model.n_samples),
        Certificate(model.noise_variance, model.n_samples, (), (), (), ()),  # nothing is predicted by it
        dataset,
        workers,
        settings,
        n_test=tests,
        landmarks=landmarks,
    )


def _counted(
    dataset: Dataset, kernel: Kernel, noise_variance: float, settings: VarianceSettings, plan: dict[str, Any]
) -> tuple[Expected, Expected]:
    """Count the float32 and the float64 products of a batch in small."""
    n = dataset.n_samples
    m, tests = min(n, PROBE_SAMPLES), min(n, PROBE_TESTS)
    rng = np.random.default_rng([settings.seed, 5])
    inputs = dataset.input_rows(rng.permutation(draw_subset(n, m + tests, settings.seed)))
    few = standardised_inputs(inputs[:m], dataset.feature_names)
    rank, noise_variance = max(1, round(plan["rank"] * (m / n) ** RANK_POWER)), noise_variance * (m / n) ** NOISE_POWER
    model = memory_model(few, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=np.zeros((m, 1)))
    landmarks = choose_landmarks(
        model, kernel, gap=settings.gap, largest_rank=rank, latent=settings.latent, fixed=True, seed=settings.seed
    )
    traces = landmarks.residual_trace, landmarks.kernel_trace
    context, executor = BlockContext(f"small-{uuid.uuid4().hex[:12]}", few, kernel, m), LocalExecutor(1)
    leaves = None
    if plan["halo"]:
        leaves = leaves_of(context, noise_variance, executor, max(1, round(plan["halo"] * m / n)))
    source = FactorSource(
        context,
        noise_variance,
        model.input_rows(landmarks.indices),
        precision_of(False, *traces, noise_variance),
        leaves is None,
        None,
        leaves,
    )
    try:
        tally = solve_batch(
            source.factor(),
            inputs[-tests:],
            BatchOptions(settings.gap, settings.max_passes, settings.latent, factor_first=False),
            source.preconditioner(1),
        ).tally
    finally:
        worker_cache().discard_run(context.run_id)
        executor.close()
    single, double = (columns / tests for columns in (tally.single_columns, tally.double_columns))
    most = settings.max_passes
    return _between(single, most), _between(double, most)


def _between(count: float, most: float) -> Expected:
    """Counts so near, by one or by a factor; none where none are taken."""
    if not count:
        return Expected(0.0, 0.0, 0.0)
    low, high = min(count / SPREAD, count - 1.0), max(count * SPREAD, count + 1.0)
    return Expected(count, max(1.0, low), min(most, high))
