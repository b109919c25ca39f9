"""The choice of the model that a fit trains: the first way whose forecast is within its time and its memory.

Forecasts are those of `dkgp plan`: the solver that `train` would take, its products from a probe of the samples, the
variances' layout, and entries of sparse models and classifiers, at prices of this machine that are measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import psutil

from dkgp.cluster import BlockExecutor, ClusterOptions
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.fit.classifiers import Comparison, basis_size
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.labels import labels_of
from dkgp.models.context import RunContext
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.refinement.candidates import MOST_SAMPLES, Candidate, Judge, Judged, draw_held_out
from dkgp.models.sparse.near import SMALL
from dkgp.models.sparse.search import BASIS_SIZES as BASIS_SIZES_OF_EVIDENCE
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.tuning.tune import DEFAULT_SUBSET
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import variance_memory
from dkgp.plan.fleet import Fleet, project
from dkgp.plan.foreseen import Smaller, foresee, foresee_classifier, foresee_sparse, foresee_variances
from dkgp.plan.machine import MachineFigures, Network, measure_machine
from dkgp.solvers.prices import Phase, Prices, Sizes, Work

# Gaps of variances that are tried with the exact model, and sizes of smaller models, best first.
GAPS = (VarianceSettings().gap, 0.1)
BASIS_SIZES = (4000, 2000, 1000, 500, 250, 100)
POOLS = (2000, 1000, 500, 250)
# A sparse model is compared with the one with neighbours at this size at most, in this share of the time that is left.
COMPARED_BASIS, SHARE_OF_COMPARISON = 1000, 0.1
# Of the time that is left: a forecast at nominal prices of less is good enough, and no machine is measured.
CERTAIN_SHARE = 0.05
# Kernel matrices that training by a likelihood holds at most.
MATRICES = 3
# Messages between threads of this process.
THREADS = Network(round_trip_seconds=2e-4, task_seconds=2e-5, submit_seconds=1e-5, bytes_per_second=2e10)

# Basis samples of the model with neighbours.
NEAR_BASIS = BASIS_SIZES_OF_EVIDENCE["vif"]

# Words for the exact model's variances by `--variance-way vif`.
APPROXIMATE = "approximate, from neighbours (VIF)"

Name = Literal["exact", "vif", "sparse", "fixed-size", "logistic", "gp"]


@dataclass(frozen=True)
class Way:
    """A way to a model and its predictions, foreseen.

    Attributes
    ----------
    name
        Of the model.
    size
        Basis samples, or prototypes to choose among; None of the exact model.
    gap
        Of the variances' proven intervals, of the exact model.
    train_seconds, predict_seconds
    memory_bytes
        The peak, including memory that this process holds already.
    variance_memory_bytes
        Working memory of variances under a memory limit; None without a limit.
    approximate
        Whether the exact model's variances are those of neighbours (VIF), without intervals.
    """

    name: Name
    size: int | None
    gap: float | None
    train_seconds: float
    predict_seconds: float
    memory_bytes: int
    variance_memory_bytes: int | None = None
    approximate: bool = False

    derived: ClassVar = ("seconds", "words")

    @property
    def seconds(self) -> float:
        """Time of training and predicting."""
        return self.train_seconds + self.predict_seconds

    @property
    def words(self) -> str:
        """The model in a few words."""
        if self.approximate:
            return f"exact (variances {APPROXIMATE})"
        if self.name == "exact":
            return "exact" if self.gap is None else f"exact (variances within {100 * self.gap:g} %)"
        if self.name == "vif":
            return f"vif with {self.size:,} basis samples and neighbours"
        if self.name in ("logistic", "gp"):
            return f"{self.name} on {'all samples' if self.size is None else f'a basis of {self.size:,} samples'}"
        what = "basis samples" if self.name == "sparse" else "prototypes to choose among"
        return f"{self.name} with {self.size:,} {what}"

    @property
    def forecast(self) -> str:
        """Its figures in words."""
        return f"{spoken(self.seconds)} and {self.memory_bytes / 1024**3:.2f} GiB"


@dataclass(frozen=True)
class Decision:
    """The way that is taken, why, and those that were foreseen before it."""

    way: Way
    reason: str
    passed_over: tuple[Way, ...]


def spoken(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 1.0:
        return f"{seconds:.1g} s"
    if seconds < 90.0:
        return f"{seconds:.2g} s" if seconds < 10.0 else f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"


def decide(ways: Iterator[Way] | Sequence[Way], seconds: float, memory_bytes: int) -> Decision:
    """Take the first way that fits; those after it are not foreseen.

    Raises `InputError`: none fits the time; `MemoryBudgetError`: none of them fits the memory.

    Parameters
    ----------
    ways : iterable of Way
        Best first.
    seconds, memory_bytes : float, int
        Limits for training and predicting, together, and for memory.
    """
    passed: list[Way] = []
    for way in ways:
        if way.seconds <= seconds and way.memory_bytes <= memory_bytes:
            return Decision(way, _reason(way, passed, seconds, memory_bytes), tuple(passed))
        passed.append(way)
    if not passed:
        raise MemoryBudgetError(f"no model fits in {memory_bytes / 1024**3:.2f} GiB; give more with `memory_bytes`")
    least = min(passed, key=lambda way: way.memory_bytes)
    if least.memory_bytes > memory_bytes:
        raise MemoryBudgetError(
            f"the model with the least memory ({least.words}) is forecast to take {least.forecast}; there are "
            f"{memory_bytes / 1024**3:.2f} GiB. Give more with `memory_bytes`, or fewer samples"
        )
    quickest = min((way for way in passed if way.memory_bytes <= memory_bytes), key=lambda way: way.seconds)
    raise InputError(
        f"the fastest model ({quickest.words}) is forecast to take {quickest.forecast}; of `seconds`, "
        f"{spoken(seconds)} remain for it. Give more, or fewer samples"
    )


def _reason(way: Way, passed: Sequence[Way], seconds: float, memory_bytes: int) -> str:
    limits = f"{spoken(seconds)} and {memory_bytes / 1024**3:.2f} GiB"
    fits = f"{way.words} is forecast to take {way.forecast} (available: {limits})"
    if not passed:
        return fits
    before = passed[-1]
    over = [
        *(["too long"] if before.seconds > seconds else []),
        *(["too much memory"] if before.memory_bytes > memory_bytes else []),
    ]
    return f"{fits}. {before.words} would take {' and '.join(over)} ({before.forecast})"


def is_certain(way: Way, seconds: float, memory_bytes: int) -> bool:
    """True for a way that fits on any machine."""
    return way.seconds <= CERTAIN_SHARE * seconds and way.memory_bytes <= memory_bytes


def compare_basis(
    dataset: Dataset, hyperparameters: Hyperparameters, size: int, executor: BlockExecutor, seed: int
) -> tuple[Judged, Judged]:
    """Judge the model with neighbours and a sparse one of `size` basis samples by the same held-out samples."""
    held_out = draw_held_out(dataset.n_samples, DEFAULT_SUBSET, seed)
    judge, context = Judge.of(dataset, held_out, MOST_SAMPLES, seed), RunContext(executor)
    candidate = Candidate(hyperparameters, "tuned")
    return judge.judge(candidate, context), judge.judge_basis(candidate, size, context)


class Forecasts:
    """Foresees ways for a data set on this machine, one after another as they are asked for.

    Parameters
    ----------
    dataset : Dataset
        The training samples.
    hyperparameters : Hyperparameters or None
        Tuned; None of labels, whose classifier finds its own.
    tests : int
        Samples to predict.
    memory_bytes : int
        Limit.
    cluster : ClusterOptions
        Whose caches count.
    compared : Comparison, optional
        Methods of classifiers, compared on held-out training samples.
    limited : bool
        Whether the user set the memory limit, which variances then keep.
    measured : bool
        Whether at prices that are measured here, in some seconds; at those of a nominal machine otherwise.

    Attributes
    ----------
    resident_bytes
        Memory that this process holds already, which every way's memory includes.
    """

    def __init__(
        self,
        dataset: Dataset,
        hyperparameters: Hyperparameters | None,
        tests: int,
        memory_bytes: int,
        seed: int,
        cluster: ClusterOptions,
        reporter: Reporter,
        *,
        compared: Comparison | None = None,
        measured: bool = True,
        limited: bool = False,
    ) -> None:
        self._dataset, self._tests, self._budget, self._is_limited = dataset, tests, memory_bytes, limited
        self._hyperparameters = hyperparameters or Hyperparameters(SquaredExponential((1.0,) * dataset.n_features), 0.1)
        self._compared = compared
        self._labelled, self._seed, self._cluster, self._reporter = hyperparameters is None, seed, cluster, reporter
        self.resident_bytes = int(psutil.Process().memory_info().rss)
        kernel, noise_variance = self._hyperparameters.kernel, self._hyperparameters.noise_variance
        self._machine = (
            measure_machine(dataset, kernel, noise_variance)
            if measured
            else MachineFigures(dataset.n_features, Prices.nominal(dataset.n_features), (1.0,))
        )
        self._fleet = Fleet(1, available_cores(), self._machine.speedups, THREADS, one_machine=True)

    def ways(self) -> Iterator[Way]:
        """Yield ways, best first; one that `train` would refuse for its memory is left out, and said."""
        if self._labelled:
            compared = self._compared or Comparison()
            yield from (self._likelihood(compared, name) for name in compared.ranked if name != "fixed-size")
            yield from (self._classifier(size) for size in self._sizes(POOLS))
            return
        exact: Way | None = None
        for gap in GAPS:
            try:
                exact = self._exact(gap)
            except MemoryBudgetError as error:
                self._reporter.note(f"the exact model does not fit: {error}")
                break
            yield exact
        if (near := self.near()) is not None:
            if exact is not None:
                memory = max(exact.memory_bytes, near.memory_bytes)
                yield replace(exact, gap=None, approximate=True, predict_seconds=near.seconds, memory_bytes=memory)
            yield near
        yield from (self._sparse(size) for size in self._sizes(BASIS_SIZES))

    def smaller(self, way: Way) -> Iterator[Way]:
        """Yield cheaper models that replace one whose training takes too long, best first."""
        if self._labelled:
            most = way.size if way.name == "fixed-size" and way.size is not None else self._dataset.n_samples
            yield from (self._classifier(size) for size in POOLS if size < most)
            return
        near = self.near() if way.name == "exact" else None
        most = way.size if way.name == "sparse" and way.size is not None else self._dataset.n_samples
        others = [self._sparse(size) for size in BASIS_SIZES if size < most]
        for other in [*([] if near is None else [near]), *others]:
            if other.train_seconds < way.train_seconds:
                yield other

    def _sizes(self, sizes: Sequence[int]) -> list[int]:
        """Sizes below the number of samples; that number itself if it is below all sizes."""
        n = self._dataset.n_samples
        return [size for size in sizes if size < n] or [n]

    def _exact(self, gap: float) -> Way:
        dataset, hyperparameters, threads = self._dataset, self._hyperparameters, self._fleet.threads
        foreseen = foresee(
            dataset, hyperparameters, SolverOptions(seed=self._seed), self._reporter, memory_bytes=self._budget
        )
        cache = self._cluster.cache_bytes
        memory = foreseen.memory_plan(cache, self._budget)
        settings = VarianceSettings(gap=gap, seed=self._seed)
        if self._is_limited:
            working = variance_memory(dataset.n_samples, max(0, self._budget - self.resident_bytes - RUNTIME_BYTES))
            settings = replace(settings, memory_bytes=working)
        variances = foresee_variances(dataset, hyperparameters, settings, self._tests, threads)
        run = variances.on(1, threads)
        work = foreseen.phases(foreseen.counts.expected, spilled=foreseen.spilled(cache, 1))
        training = self._seconds(work, foreseen.sizes)
        phases = variances.phases(run, foreseen.sizes, variances.single.count, variances.double.count)
        predicting = variances.peak_bytes(run, self.resident_bytes)
        peak = max(memory.coordinator_bytes + memory.worker_parts, predicting)
        return Way("exact", None, gap, training, self._seconds(phases, foreseen.sizes), peak, settings.memory_bytes)

    def near(self) -> Way | None:
        """The model with neighbours (VIF), whose variances are its own; None for few samples."""
        if self._dataset.n_samples <= NEAR_BASIS:
            return None
        settings = SparseSettings(method="vif", basis_size=NEAR_BASIS, seed=self._seed)
        foreseen = foresee_sparse(self._dataset, self._hyperparameters, settings, self._cluster.cache_bytes)
        c, m = float(settings.neighbours), float(NEAR_BASIS)
        work = Work(double_entries=c**2 + c * m, double_operations=SMALL * (c**3 / 3.0 + c**2 * m + m**2))
        seconds = self._tests * self._machine.prices.seconds(work)
        return Way("vif", NEAR_BASIS, None, self._seconds(foreseen.phases), seconds, self._peak(foreseen))

    def _sparse(self, size: int) -> Way:
        settings = SparseSettings(basis_size=size, seed=self._seed)
        foreseen = foresee_sparse(self._dataset, self._hyperparameters, settings, self._cluster.cache_bytes)
        predicting = self._machine.prices.seconds(
            Work(double_entries=float(self._tests) * size, double_operations=4.0 * self._tests * size**2)
        )
        return Way("sparse", size, None, self._seconds(foreseen.phases), predicting, self._peak(foreseen))

    def _classifier(self, size: int) -> Way:
        settings = FixedSizeSettings(pool=size, seed=self._seed)
        foreseen = foresee_classifier(self._dataset, self._hyperparameters, settings, self._cluster.cache_bytes)
        predicting = self._machine.prices.seconds(Work(double_entries=float(self._tests) * size))
        return Way("fixed-size", size, None, self._seconds(foreseen.phases), predicting, self._peak(foreseen))

    def _likelihood(self, compared: Comparison, name: str) -> Way:
        """Forecast a method with a likelihood from its time in the comparison; its memory by kernel matrices."""
        n, tests = self._dataset.n_samples, self._tests
        size, training = basis_size(name, n), compared.train_seconds(name, n)
        entries, targets = n * float(size or n), labels_of(self._dataset).n_outputs
        predicting = training * min(1.0, tests / n) * (targets if name == "gp" else 1)
        peak = self.resident_bytes + int(8 * MATRICES * entries)
        return Way("gp" if name == "gp" else "logistic", size, None, training, predicting, peak)

    def _peak(self, foreseen: Smaller) -> int:
        memory = foreseen.memory(1, self._fleet.threads, max(0, self._budget - self.resident_bytes))
        return self.resident_bytes + memory.coordinator_bytes + memory.worker_parts

    def _seconds(self, phases: Sequence[Phase], sizes: Sizes | None = None) -> float:
        sizes = sizes or Sizes(self._dataset.n_samples, self._dataset.n_features, self._dataset.n_targets)
        return project(phases, sizes, self._machine.prices, self._fleet).total
