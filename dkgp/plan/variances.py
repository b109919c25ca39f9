"""Predictive variances foreseen: factors and batches as a prediction would lay them out, and the products they take.

The layout is the prediction's own, for workers that are only planned; products are counted in small.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, ModelRecord, memory_model
from dkgp.errors import InputError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models import Hyperparameters
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.noise import Noise
from dkgp.models.tuning.subsets import draw_subset
from dkgp.models.variance.iterative import IterativeRun
from dkgp.models.variance.landmarks import Landmarks
from dkgp.models.variance.neighbours.run import TRIED, NeighbourRun, serves
from dkgp.models.variance.run import Request
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import SentRows, VarianceSettings
from dkgp.models.variance.ways import LEAST_MET, LEAST_NEAR, NEAR_PATIENCE, count_products
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.auto import PROBE_SAMPLES
from dkgp.solvers.conjugate.preconditioner import shared_phases, variance_phases
from dkgp.solvers.prices import Expected, Phase, Sizes

# Rows of a made-up batch of neighbours, and training samples that tell how dense the samples are.
MAP_ROWS, DENSITY_ROWS = 1024, 5000
# Factor between counts in small and the actual ones, in most cases; test samples of a count.
SPREAD, PROBE_TESTS = 2.0, 64


class PlannedWorkers(LocalExecutor):
    """Worker processes that are not there: what a run lays its work out by."""

    shares_memory = False

    def __init__(self, workers: int, threads_per_worker: int) -> None:
        super().__init__(1)
        self.processes, self._each = workers, threads_per_worker

    @property
    def parallelism(self) -> int:
        """Threads of all of them."""
        return self.processes * self._each

    @property
    def threads_per_process(self) -> int:
        """Threads of one."""
        return self._each

    @property
    def workers(self) -> dict[str, int]:
        """Threads of each."""
        return {str(number): self._each for number in range(self.processes)}


@dataclass(frozen=True)
class ForeseenNeighbours:
    """Variances of a map by neighbours: samples around a tile, and a core's seconds for a sample of the map."""

    neighbours: int
    seconds_per_sample: float


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
    run: IterativeRun
    neighbours: ForeseenNeighbours | None = None  # None where they do not serve, or a trial misses the gap

    def on(self, workers: int, threads_per_worker: int) -> IterativeRun:
        """Return the run as it would be laid out on so many workers."""
        planned = PlannedWorkers(workers, threads_per_worker)
        return _laid_out(self.model, self.dataset, self.settings, self.tests, planned, self.run.landmarks)

    def phases(self, run: IterativeRun, sizes: Sizes, single: float, double: float) -> list[Phase]:
        """Return the work of a run whose samples take part in so many products."""
        return (shared_phases if run.is_shared else variance_phases)(sizes, run.batches(single, double, run.threads))

    def worker_bytes(self, run: IterativeRun, resident_bytes: int) -> int:
        """Return the peak of a worker's process that held so much before: features, factors, and batches under way."""
        memory = run.memory
        at_once = min(int(run.plan["batch_size"]), int(run.plan["together"]))
        return resident_bytes + RUNTIME_BYTES + 16 * memory.n * (memory.width + 1) + memory.of_batch(at_once)

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
            "neighbours": None if self.neighbours is None else asdict(self.neighbours),
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
    kernel, noise_variance = hyperparameters.kernel, Noise(hyperparameters.noise_variance).beside(dataset).typical
    unknown = np.broadcast_to(0.0, (dataset.n_samples, dataset.n_targets))
    model = memory_model(dataset, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=unknown)
    with single_threaded_blas():
        run = _laid_out(model, dataset, settings, tests, PlannedWorkers(1, threads_per_worker))
        single = double = Expected(0.0, 0.0, 0.0)
        if settings.max_passes >= 1 and not run.plan["smooth"]:
            single, double = _foreseen_products(dataset, kernel, noise_variance, settings, run.plan)
        near = _foresee_neighbours(model, dataset, settings, tests)
    return ForeseenVariances(tests, settings, single, double, dataset, model, run, near)


def _foreseen_products(
    dataset: Dataset, kernel: Kernel, noise_variance: float, settings: VarianceSettings, plan: dict[str, Any]
) -> tuple[Expected, Expected]:
    """Count in small how many float32 and float64 products a sample of the planned run takes part in.

    The kernel has no white noise.
    """
    n = dataset.n_samples
    m, tests = min(n, PROBE_SAMPLES), min(n, PROBE_TESTS)
    rng = np.random.default_rng([settings.seed, 5])
    inputs = dataset.input_rows(rng.permutation(draw_subset(n, m + tests, settings.seed)))
    counted = count_products(
        inputs[:m], inputs[-tests:], n, kernel, noise_variance, settings, rank=plan["rank"], halo=plan["halo"]
    )
    most = settings.max_passes
    return _between(counted.single, most), _between(counted.double, most)


def _between(count: float, most: float) -> Expected:
    """Expect a count to be right within one, and within a factor; without products there are none."""
    if not count:
        return Expected(0.0, 0.0, 0.0)
    low, high = min(count / SPREAD, count - 1.0), max(count * SPREAD, count + 1.0)
    return Expected(count, max(1.0, low), min(most, high))


def _foresee_neighbours(
    model: ModelRecord, dataset: Dataset, settings: VarianceSettings, tests: int
) -> ForeseenNeighbours | None:
    """Try neighbours on a few tiles of a map of so many samples."""
    kernel, n = kernel_from_json(model.kernel), model.n_samples
    context = BlockContext(f"plan-{uuid.uuid4().hex[:12]}", dataset, kernel, n)
    if n < LEAST_NEAR or settings.is_iterative or settings.basis is not None or not serves(context):
        return None
    rows, settings = SentRows(_map_rows(model, tests, settings.seed)), replace(settings, batch_size=MAP_ROWS)
    try:
        subject = Subject(model, kernel, context)
        run = NeighbourRun(Request(subject, None, rows, PlannedWorkers(1, 1), settings), NEAR_PATIENCE)
    except InputError:  # too many samples are near
        return None
    finally:
        worker_cache().discard_run(context.run_id)
    count = int(run.plan["neighbours"])
    return ForeseenNeighbours(count, run.trial.seconds) if run.trial.met >= LEAST_MET else None


def _map_rows(model: ModelRecord, tests: int, seed: int) -> FloatArray:
    """Make up batches of neighbours, as a map of so many samples over the training samples has them."""
    rng, n = np.random.default_rng(seed), model.n_samples
    some = np.asarray(model.input_rows(np.sort(rng.permutation(n)[:DENSITY_ROWS])))
    scale = np.maximum(some.std(axis=0), np.finfo(np.float64).tiny)
    batches = []
    for centre in rng.permutation(some)[:TRIED]:
        away = np.abs((some - centre) / scale).max(axis=1)
        half = float(np.quantile(away, min(1.0, MAP_ROWS / tests))) * scale
        batches.append(centre + rng.uniform(-1.0, 1.0, (MAP_ROWS, len(scale))) * half)
    return np.concatenate(batches)


def _laid_out(
    model: ModelRecord,
    dataset: Dataset,
    settings: VarianceSettings,
    tests: int,
    workers: PlannedWorkers,
    landmarks: Landmarks | None = None,
) -> IterativeRun:
    kernel = kernel_from_json(model.kernel)
    subject = Subject(model, kernel, BlockContext("plan", dataset, kernel, model.n_samples))
    return IterativeRun(Request(subject, None, dataset, workers, settings, tests=tests), landmarks=landmarks)
