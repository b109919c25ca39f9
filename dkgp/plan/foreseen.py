"""Predict a training run: its solver, its work, and its memory.

The user names the solver, or `auto` chooses it. The expected number of products or column passes comes from the probe
and the laws that `auto` uses. Its lower and upper limits reflect the observed errors of these laws.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import psutil

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget, worker_cache
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, ModelRecord, memory_model
from dkgp.errors import InputError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import BasisSettings, basis_entries, basis_phases
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings, fixed_size_phases, foreseen_passes, taken
from dkgp.models.classification.labels import LabelledData, Labels, labels_of
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic import RISK_TOLERANCE, RiskSettings
from dkgp.models.classification.logistic import foreseen_products as foreseen_risk_products
from dkgp.models.classification.near import NearSettings, near_phases
from dkgp.models.classification.prototypes import DEFAULT_BASIS
from dkgp.models.memory import (
    Memory,
    Processes,
    TrainingSizes,
    plan_training,
    plan_within,
    tiles_that_fit,
)
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import probe_of
from dkgp.models.sparse.ladder import sparse_phases
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.tuning.subsets import draw_subset
from dkgp.models.variance.iterative import IterativeRun
from dkgp.models.variance.landmarks import Landmarks
from dkgp.models.variance.neighbours.run import TRIED, NeighbourRun, serves
from dkgp.models.variance.run import Request
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import SentRows, VarianceSettings
from dkgp.models.variance.ways import (
    LEAST_MET,
    LEAST_NEAR,
    Forecast,
    Measured,
    count_products,
    whole_memory_bytes,
)
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.keeping import READ_TOGETHER, bytes_that_pay, saved_share
from dkgp.operators.product_error import AUTO as AUTO_PRODUCTS
from dkgp.operators.product_error import ProductMemory
from dkgp.solvers import Choice, Solver
from dkgp.solvers.auto import PROBE_SAMPLES
from dkgp.solvers.conjugate.preconditioner import conjugate_phases, shared_phases, variance_phases
from dkgp.solvers.conjugate.probe import Probe
from dkgp.solvers.prices import Expected, Phase, Prices, Sizes, Work, core_seconds
from dkgp.solvers.registry import AUTO, Need, SolverMemory, solver_memory
from dkgp.solvers.risk import risk_memory

# Full products in float64 of a run with float32 tiles: one to verify the result, and often an earlier one.
CHECKS, CHECKS_IN_DOUBLE = 2.0, 1.0


@dataclass(frozen=True)
class Counts:
    """Counts of the operations that dominate the time of a solve."""

    unit: str  # "products" with the kernel matrix, "column passes", or "factor"
    # Their expected number, with lower and upper limits. All three are equal if the number is known.
    expected: float
    low: float
    high: float
    checks: float  # additional products in float64, which verify the gradient


@dataclass(frozen=True)
class Tiles:
    """Tiles of K that workers keep between products."""

    bytes: int = 0  # in each worker's process
    share: float = 0.0  # of K's entries, by all workers together
    most_bytes: int = 0  # upper limit, reached if the actual prices differ from the predicted ones


@dataclass(frozen=True)
class Foreseen:
    """Prediction of a run, made before it starts."""

    # The solver with all automatic choices made, and the options that build it.
    solver: Solver
    options: SolverOptions
    choice: Choice | None  # reason for the choice; None if the user named the solver
    # Size of the problem, and number of repetitions of its operations.
    sizes: Sizes
    counts: Counts
    memory: SolverMemory  # memory that the solver declares
    width: int  # the kernel's `feature_width`
    tiles_bytes: int  # size of all tiles of K's lower half, in the format in which they are kept
    needs_inputs: str | None  # name of the solver, if it needs all inputs at the coordinator
    products: ProductMemory  # memory of products within a bound; nothing if they evaluate all entries

    def phases(self, count: float, *, spilled: float = 0.0, kept: float = 0.0) -> list[Phase]:
        """Return the work of a run that takes `count` products or passes.

        Parameters
        ----------
        spilled, kept : float
            Share of the factor's leaves that is on disk; share of K that workers keep.
        """
        return self.solver.phases(self.sizes, count, checks=self.counts.checks, spilled=spilled, kept=kept)

    def memory_plan(
        self, cache_bytes: int, budget_bytes: int | None, workers: int = 1, *, resident_bytes: int | None = None
    ) -> Memory:
        """Project the memory; each worker is a separate process. Raise `MemoryBudgetError` if `train` would refuse.

        Parameters
        ----------
        cache_bytes : int
            Size of each worker's cache.
        budget_bytes : int, optional
            Memory limit of the coordinator; by default this process's memory plus the free memory.
        workers : int
            Number of workers that share a factor.
        resident_bytes : int, optional
            Memory of the coordinator before the run; by default the memory that this process uses now.
        """
        resident = resident_bytes or int(psutil.Process().memory_info().rss)
        held = replace(self.memory, cached_bytes=-(-self.memory.cached_bytes // workers))
        # Rows of a low-rank factor are divided among the workers. Building leaves takes the same memory in each worker.
        if not held.cached_bytes:
            held = replace(held, factor_bytes=-(-held.factor_bytes // workers))
        bounded = self.products.kept_bytes + self.products.work_bytes
        held = replace(held, factor_bytes=held.factor_bytes + bounded)
        return plan_within(
            budget_bytes or resident + available_bytes(),
            self.sizes.n,
            self.sizes.d,
            self.sizes.p,
            held,
            Processes(resident, shares_process=False, overlaps=True, cache_bytes=cache_bytes),
            needs_inputs=self.needs_inputs,
            width=self.width,
        )

    def spilled(self, cache_bytes: int, workers: int) -> float:
        """Return the share of a factor's leaves that does not fit into the workers' caches beside the features."""
        kept = self.solver.leaf_bytes(self.sizes.n, self.width)
        if not kept:
            return 0.0
        room = max(0, cache_bytes - 16 * self.sizes.n * (self.width + 1)) * workers
        return max(0.0, 1.0 - room / kept)

    def tiles(self, wanted: TileBudget, workers: int, prices: Prices) -> Tiles:
        """Return the part of K that the workers keep, each within its budget; none if the run keeps no tiles."""
        if self.sizes.double or not self.memory.repeats_products or self.products.kept_bytes:
            return Tiles()
        wanted = replace(wanted, products=None if self.choice is None else self.choice.products)
        part = -(-self.tiles_bytes // workers)
        most = min(part, tiles_that_fit(wanted, self.sizes.n, None))
        each = most
        if wanted.measured:
            using = 4.0 * self.sizes.p  # one entry of a pair serves both its row and its column
            kinds = (Work(entries=1.0), Work(filled=1.0), Work(kept=1.0))
            evaluating, keeping, reading = (prices.seconds(replace(work, operations=using)) for work in kinds)
            saved = saved_share(self.counts.expected, evaluating, keeping, READ_TOGETHER * reading)
            each = bytes_that_pay(replace(wanted, bytes=most), part, saved, self._share_of_products(prices))
        return Tiles(each, min(1.0, workers * each / self.tiles_bytes), most)

    def _share_of_products(self, prices: Prices) -> float:
        """Return the share of the run that float32 products take if all entries are evaluated."""
        phases = self.phases(self.counts.expected)
        return core_seconds([each for each in phases if each.name == "products"], prices) / core_seconds(phases, prices)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "solver": self.solver.name,
            "settings": self.solver.settings(),
            "auto": None if self.choice is None else self.choice.to_json(),
            "counts": asdict(self.counts),
        }


def foresee(
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    options: SolverOptions,
    reporter: Reporter,
    *,
    count: float | None = None,
    memory_bytes: int | None = None,
) -> Foreseen:
    """Choose the solver as `train` would, and predict its number of products or passes.

    Parameters
    ----------
    count : float, optional
        Number of products or column passes, if it is known.
    memory_bytes : int, optional
        Memory limit of the run.

    Raises
    ------
    InputError, UsageError, MemoryBudgetError
        As raised by `train`; and `UsageError` for a solver whose work dkgp cannot count.
    """
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    options.stopping()
    problem = Problem(dataset, hyperparameters.kernel, hyperparameters.noise_of(dataset))
    # The choice and the count share one probe.
    probe = probe_of(problem, tolerance=options.tolerance, seed=options.seed)
    named, choice = options.decided(dataset, hyperparameters, problem=problem, memory_bytes=memory_bytes, probe=probe)
    solver = named.build(n, d, p, reporter)
    double = named.precision == "double"
    context = BlockContext("plan", dataset, hyperparameters.kernel, n)
    sizes = Sizes(n, d, p, double, context.n_blocks)
    width = feature_width(hyperparameters.kernel)
    return Foreseen(
        solver,
        named,
        choice,
        sizes,
        _counts(solver, probe, count, CHECKS_IN_DOUBLE if double else CHECKS),
        solver_memory(solver, n, width),
        width,
        _tiles_bytes(context),
        solver.name if named.needs(Need.INPUTS) else None,
        AUTO_PRODUCTS.memory(hyperparameters.kernel, n, p, None) or ProductMemory(),
    )


def _tiles_bytes(context: BlockContext) -> int:
    """Return the bytes of the tiles of all pairs of blocks. Only the last block differs in size."""
    evaluator, others = context.evaluator("single"), context.n_blocks - 1
    start, stop = context.bounds(others)
    full, last = (
        evaluator.prepare(np.zeros((rows, context.kernel.n_features))) for rows in (context.block_rows, stop - start)
    )
    pairs = others * (others - 1) // 2 * evaluator.room(full, full).nbytes + others * evaluator.room(last, full).nbytes
    return pairs + others * evaluator.room(full).nbytes + evaluator.room(last).nbytes


def _counts(solver: Solver, probe: Probe, known: float | None, checks: float) -> Counts:
    unit = solver.counted_in
    if unit == "factor":
        return Counts(unit, 1.0, 1.0, 1.0, CHECKS_IN_DOUBLE)
    if known is not None:
        return Counts(unit, known, known, known, checks)
    return Counts(unit, *solver.expected(probe).products, checks)


# Rows of a synthetic batch of neighbours, and training samples that determine the sample density.
MAP_ROWS, DENSITY_ROWS = 1024, 5000
# Usual factor between counts on a subset and the actual counts, and number of test samples for counting.
SPREAD, PROBE_TESTS = 2.0, 64


class PlannedWorkers(LocalExecutor):
    """Imaginary worker processes, for which a run computes its layout."""

    shares_memory = False

    def __init__(self, workers: int, threads_per_worker: int) -> None:
        super().__init__(1)
        self.processes, self._each = workers, threads_per_worker

    @property
    def parallelism(self) -> int:
        """Threads of all workers."""
        return self.processes * self._each

    @property
    def threads_per_process(self) -> int:
        """Threads of one worker."""
        return self._each

    @property
    def workers(self) -> dict[str, int]:
        """Threads of each worker."""
        return {str(number): self._each for number in range(self.processes)}


@dataclass(frozen=True)
class ForeseenNeighbours:
    """Variances of a map by neighbours: samples around a tile, and core seconds per sample of the map."""

    neighbours: int
    seconds_per_sample: float


@dataclass(frozen=True)
class ForeseenVariances:
    """Prediction of the work for a model's variances, made before the model exists."""

    tests: int  # number of test samples
    settings: VarianceSettings  # settings of the prediction
    # Expected number of float32 and float64 products with K that one sample takes part in.
    single: Expected
    double: Expected
    # Training samples; the future model without its coefficients; the run on one worker.
    dataset: Dataset
    model: ModelRecord
    run: IterativeRun
    neighbours: ForeseenNeighbours | None = None  # None if neighbours do not apply, or if a trial misses the gap

    def on(self, workers: int, threads_per_worker: int) -> IterativeRun:
        """Return the run's layout for the given number of workers."""
        planned = PlannedWorkers(workers, threads_per_worker)
        return _laid_out(self.model, self.dataset, self.settings, self.tests, planned, self.run.landmarks)

    def phases(self, run: IterativeRun, sizes: Sizes, single: float, double: float) -> list[Phase]:
        """Return the work of a run whose samples take part in the given numbers of products."""
        return (shared_phases if run.is_shared else variance_phases)(sizes, run.batches(single, double, run.threads))

    def memory(self, run: IterativeRun) -> Memory:
        """Project the memory of a worker's process: features, factors, and the batches in progress."""
        return run.memory.plan(min(int(run.plan["batch_size"]), int(run.plan["together"])))

    def peak_bytes(self, run: IterativeRun, resident_bytes: int) -> int:
        """Return the peak of this process by the method with the most memory that may be chosen."""
        threads, settings = run.threads, self.settings
        whole = 0
        if settings.way in ("auto", "cholesky") and not settings.is_iterative and settings.basis is None:
            whole = whole_memory_bytes(self.dataset.n_samples, self.tests, threads, settings.memory_bytes)
        memory = self.memory(run)
        return max(memory.worker_process_bytes(resident_bytes), resident_bytes + memory.runtime_bytes + whole)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
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
    """Compute the layout of a prediction's variances, and count the products per sample on a subset.

    Raises
    ------
    MemoryBudgetError
        As raised by `predict`, if a factor or a sample does not fit.
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
    """Count on a subset the float32 and float64 products that one sample of the planned run takes part in.

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
    """Return limits around a count: at least one to each side, and a factor `SPREAD`. A count of zero stays zero."""
    if not count:
        return Expected(0.0, 0.0, 0.0)
    low, high = min(count / SPREAD, count - 1.0), max(count * SPREAD, count + 1.0)
    return Expected(count, max(1.0, low), min(most, high))


def _foresee_neighbours(
    model: ModelRecord, dataset: Dataset, settings: VarianceSettings, tests: int
) -> ForeseenNeighbours | None:
    """Try neighbours on a few tiles of a map with `tests` samples."""
    kernel, n = kernel_from_json(model.kernel), model.n_samples
    context = BlockContext(f"plan-{uuid.uuid4().hex[:12]}", dataset, kernel, n)
    if n < LEAST_NEAR or settings.is_iterative or settings.basis is not None or not serves(context):
        return None
    rows, settings = SentRows(_map_rows(model, tests, settings.seed)), replace(settings, batch_size=MAP_ROWS)
    try:
        subject = Subject(model, kernel, context, model)
        patience = Forecast(n, tests, kernel.n_features, 1, True, Measured.nominal(kernel.n_features)).patience()
        run = NeighbourRun(Request(subject, None, rows, PlannedWorkers(1, 1), settings), patience)
    except InputError:  # too many neighbours
        return None
    finally:
        worker_cache().discard_run(context.run_id)
    count = int(run.plan["neighbours"])
    return ForeseenNeighbours(count, run.trial.seconds) if run.trial.met >= LEAST_MET else None


def _map_rows(model: ModelRecord, tests: int, seed: int) -> FloatArray:
    """Return synthetic batches of neighbours, like those of a map of `tests` samples over the training samples."""
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
    subject = Subject(model, kernel, BlockContext("plan", dataset, kernel, model.n_samples), model)
    return IterativeRun(Request(subject, None, dataset, workers, settings, tests=tests), landmarks=landmarks)


@dataclass(frozen=True)
class Smaller:
    """Prediction of a sparse model's or a classifier's training."""

    phases: Sequence[Phase]  # its work in order of execution, including the messages
    record: dict[str, Any]  # description for the plan, in plain JSON types
    # For the given workers, and the given free memory of the coordinator.
    peaks: Callable[[PlannedWorkers, int | None], Memory]

    def memory(self, workers: int, threads_per_worker: int, free_bytes: int | None = None) -> Memory:
        """Project the peaks of the coordinator and of each worker."""
        return self.peaks(PlannedWorkers(workers, threads_per_worker), free_bytes)


@dataclass(frozen=True)
class LikelihoodSettings:
    """Settings of a classifier to predict."""

    # Several classes use softmax with "logistic", and one-versus-rest with "gp".
    method: Literal["logistic", "gp"]
    # Only for a classifier on a basis; None to use all samples.
    basis_size: int | None = None
    basis: str | None = None
    neighbours: int | None = None  # only for a Gaussian process on a basis
    seed: int = 0  # seed of the subsets

    def likelihood(self, labels: Labels) -> Likelihood:
        """Return the likelihood for the labels."""
        return Likelihood.of("logit", "softmax" if self.method == "logistic" else "ovr", labels.n_classes)

    def on_basis(self) -> BasisSettings | None:
        """Return the settings of the basis, if there is one."""
        if self.basis_size is None:
            return None
        basis = self.basis or DEFAULT_BASIS
        if self.neighbours is not None:
            return NearSettings(self.basis_size, basis, seed=self.seed, neighbours=self.neighbours)
        return BasisSettings(self.basis_size, basis, tolerance=RISK_TOLERANCE, seed=self.seed)


def foresee_sparse(
    dataset: Dataset, hyperparameters: Hyperparameters, settings: SparseSettings, cache_bytes: int
) -> Smaller:
    """Predict the training of a sparse model; `settings` contain the basis size for this dataset."""
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
    """Predict the training of a fixed-size classifier; raise `InputError` if the dataset has no labels."""
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

    def peaks(workers: PlannedWorkers, free_bytes: int | None) -> Memory:
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
    """Predict training to decisions within `RISK_TOLERANCE`; raise `InputError` if the dataset has no labels.

    `blocks` is the number of blocks of samples in a product. `kept_bytes` is a worker's limit for kept leaves of
    neighbours.
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

        def peaks(workers: PlannedWorkers, free_bytes: int | None) -> Memory:
            return basis.memory(TrainingSizes(n, d, t, workers, cache_bytes, width), coupled=coupled)

        return Smaller(phases, record, peaks)
    products = foreseen_risk_products(
        LabelledData(dataset, labels), kernel, RiskSettings(likelihood, seed=settings.seed)
    )
    record["products"] = {"expected": products.count, "low": products.low, "high": products.high}
    record["kernel_evaluations"] = (products.count + CHECKS) * n * n / 2.0
    elsewhere = Processes(0, shares_process=False, overlaps=True, cache_bytes=cache_bytes)
    memory = risk_memory(AUTO, n, t, d)
    plan = plan_training(n, d, t, memory, elsewhere, holds_inputs=False, width=width)
    phases = conjugate_phases(Sizes(n, d, t, blocks=blocks), products.count, checks=CHECKS)
    return Smaller(phases, record, lambda workers, free_bytes: plan)


def _foresee_near(settings: NearSettings, sizes: TrainingSizes, record: dict[str, Any], kept_bytes: int) -> Smaller:
    """Predict a classifier with neighbours. The work is for one worker; additional workers keep more leaves."""
    (n, d, t), useful = (sizes.n, sizes.d, sizes.t), settings.memory(sizes).useful_bytes
    phases = near_phases(settings, n, d, t, min(1.0, kept_bytes / useful))
    m = min(settings.size, n)

    def peaks(workers: PlannedWorkers, free_bytes: int | None) -> Memory:
        plan, kept = settings.memory(replace(sizes, executor=workers)), min(kept_bytes, -(-useful // workers.processes))
        return plan.plus(kept_bytes=kept)

    told = {
        "neighbours": settings.neighbours,
        "kernel_evaluations": _entries(phases),
        "model_bytes": 8 * (m * (m + d) + t * m * (m + 2) + n * (d + 2 * t)),
    }
    return Smaller(phases, {**record, **told}, peaks)


def _entries(phases: Sequence[Phase]) -> float:
    return sum(phase.times * phase.shared.double_entries for phase in phases)
