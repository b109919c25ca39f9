"""The choice of the model that a fit trains: the first way whose forecast is within its time and its memory.

The density of held-out training samples then compares it with the next one: an exact model with the one with
neighbours (VIF), and that one with a sparse model.

Forecasts are those of `dkgp plan`: the solver that `train` would take, its products from a probe of the samples, the
variances' layout, and entries of sparse models and classifiers, at prices of this machine that are measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import psutil

from dkgp.cluster import BlockExecutor, ClusterOptions
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.codec import to_json
from dkgp.commands.candidates import evaluation_seconds
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.fit.budget import CHOOSE, FORECAST, LEAST, LEAST_KERNEL, LEAST_MEASUREMENT, Budget
from dkgp.fit.classifiers import Comparison, basis_size
from dkgp.fit.job import HYPER, TEST, TRAIN, FitJob
from dkgp.fit.ways import GAPS, Way, spoken
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.labels import labels_of
from dkgp.models.context import RunContext
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.refinement.candidates import (
    LEAST_GAIN,
    MOST_SAMPLES,
    Candidate,
    Judge,
    Judged,
    draw_held_out,
)
from dkgp.models.sparse.near import SMALL
from dkgp.models.sparse.search import BASIS_SIZES as BASIS_SIZES_OF_EVIDENCE
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.tuning.tune import DEFAULT_SUBSET
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import variance_memory
from dkgp.models.warm_up import compile_seconds, pieces_of_model
from dkgp.plan.fleet import Fleet, project
from dkgp.plan.foreseen import (
    Foreseen,
    ForeseenVariances,
    Smaller,
    foresee,
    foresee_classifier,
    foresee_sparse,
    foresee_variances,
)
from dkgp.plan.machine import MachineFigures, Network, measure_machine
from dkgp.registry import byte_text
from dkgp.solvers.auto import PROBE_SAMPLES
from dkgp.solvers.prices import Phase, Prices, Sizes, Work

# Sizes of smaller models, best first.
BASIS_SIZES = (4000, 2000, 1000, 500, 250, 100)
POOLS = (2000, 1000, 500, 250)
# A sparse model is compared with the one with neighbours at this size at most, in this share of the time that is left.
COMPARED_BASIS, SHARE_OF_COMPARISON = 1000, 0.1
# The exact model is compared with the one with neighbours up to this number of samples, and gives way for this gain in
# nats a sample: its means are proven.
MOST_DENSE, PROOF_GAIN = 4000, 0.01
# Of the time that is left: a forecast at nominal prices of less is good enough, and no machine is measured.
CERTAIN_SHARE = 0.05
# Share of the time for forecasts of models at nominal prices, and processor seconds of an idle machine that the exact
# model's takes at least, of as many samples as its solver looks at.
SHARE_OF_FORECASTS, LEAST_FORECAST = 0.1, 1.0
# Up to this number of samples, the exact model needs no forecast of its own: nominal costs of its factor suffice.
FEW_SAMPLES = 2000
# Any model takes less than this one. Of forecasts that differ by at most this factor, the better model is chosen.
EVERY, SIMILAR = Way("exact", None, None, math.inf, math.inf, 0), 1.25
# Kernel matrices that training by a likelihood holds at most.
MATRICES = 3
# Messages between threads of this process.
THREADS = Network(round_trip_seconds=2e-4, task_seconds=2e-5, submit_seconds=1e-5, bytes_per_second=2e10)

# Basis samples of the model with neighbours.
NEAR_BASIS = BASIS_SIZES_OF_EVIDENCE["vif"]


@dataclass(frozen=True)
class Decision:
    """The way that is taken, why, and those that were foreseen before it."""

    way: Way
    reason: str
    passed_over: tuple[Way, ...]


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
        if way.fits(seconds, memory_bytes):
            return Decision(way, _reason(way, passed, seconds, memory_bytes), tuple(passed))
        passed.append(way)
    if not passed:
        raise MemoryBudgetError(f"no model fits in {byte_text(memory_bytes)}; raise `memory_bytes`")
    least = min(passed, key=lambda way: way.memory_bytes)
    if least.memory_bytes > memory_bytes:
        raise MemoryBudgetError(
            f"the model with the least memory is the {least.words}, forecast to take {least.forecast}. The "
            f"limit is {byte_text(memory_bytes)}. Raise `memory_bytes`, or give fewer samples"
        )
    quickest = min((way for way in passed if way.memory_bytes <= memory_bytes), key=lambda way: way.seconds)
    raise InputError(
        f"the fastest model is the {quickest.words}, forecast to take {quickest.forecast}. Only {spoken(seconds)} of "
        "the time limit remain for it. Raise `seconds`, or give fewer samples"
    )


def _reason(way: Way, passed: Sequence[Way], seconds: float, memory_bytes: int) -> str:
    limits = f"{spoken(seconds)} and {byte_text(memory_bytes)}"
    fits = f"Forecast: {way.forecast} (available: {limits})"
    if not passed:
        return fits
    before = passed[-1]
    over = [
        *(["too long"] if before.seconds > seconds else []),
        *(["too much memory"] if before.memory_bytes > memory_bytes else []),
    ]
    return f"{fits}. The {before.words} would take {' and '.join(over)} ({before.forecast})"


def is_certain(way: Way, seconds: float, memory_bytes: int) -> bool:
    """True for a way that fits on any machine."""
    return way.fits(CERTAIN_SHARE * seconds, memory_bytes)


def compare_ways(
    dataset: Dataset, hyperparameters: Hyperparameters, ways: Sequence[Way], executor: BlockExecutor, seed: int
) -> list[Judged]:
    """Judge the models of some ways by the same held-out samples, which are not in the subset of the tuning."""
    subset = hyperparameters.subset_size or DEFAULT_SUBSET
    judge = Judge.of(dataset, draw_held_out(dataset.n_samples, subset, seed), MOST_SAMPLES, seed)
    candidate, context = Candidate(hyperparameters, "tuned"), RunContext(executor)
    return [way.judged(judge, candidate, context) for way in ways]


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
    most_seconds : float
        An exact model whose training alone takes longer has no forecast of its variances, which costs more than that.

    Prices are those of a nominal machine, or measured here in some seconds (`measured`). The work is counted once.

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
        limited: bool = False,
        most_seconds: float = math.inf,
    ) -> None:
        self._dataset, self._tests, self._budget, self._is_limited = dataset, tests, memory_bytes, limited
        self._hyperparameters = hyperparameters or Hyperparameters(SquaredExponential((1.0,) * dataset.n_features), 0.1)
        self._compared, self._most_seconds = compared, most_seconds
        self._labelled, self._seed, self._cluster, self._reporter = hyperparameters is None, seed, cluster, reporter
        self._counted: dict[str, Any] = {}
        self._take(MachineFigures(dataset.n_features, Prices.nominal(dataset.n_features), (1.0,)))

    def measured(self) -> Forecasts:
        """Return forecasts of the same work at prices that are measured here."""
        kernel, noise_variance = self._hyperparameters.kernel, self._hyperparameters.noise_variance
        other = copy(self)
        other._take(measure_machine(self._dataset, kernel, noise_variance))
        return other

    def _take(self, machine: MachineFigures) -> None:
        self.resident_bytes = int(psutil.Process().memory_info().rss)
        self._machine = machine
        self._fleet = Fleet(1, available_cores(), machine.speedups, THREADS, one_machine=True)

    def _once(self, name: str, count: Callable[[], Any]) -> Any:
        """Return the work that `count` counts; it is counted only once for each name."""
        if name not in self._counted:
            self._counted[name] = count()
        return self._counted[name]

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
                self._reporter.note(
                    f"the exact model does not fit into the memory: {str(error).partition('. Parts:')[0]}"
                )
                break
            yield exact
            if exact.gap is None:
                break
        if (near := self.near()) is not None:
            if exact is not None and exact.gap is not None:
                yield exact.approximated(near)
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
        options = SolverOptions(seed=self._seed)
        foreseen: Foreseen = self._once(
            "training",
            lambda: foresee(dataset, hyperparameters, options, self._reporter, memory_bytes=self._budget),
        )
        cache = self._cluster.cache_bytes
        memory = foreseen.memory_plan(cache, self._budget)
        work = foreseen.phases(foreseen.counts.expected, spilled=foreseen.spilled(cache, 1))
        training, peak = self._seconds(work, foreseen.sizes), memory.coordinator_bytes + memory.worker_parts
        if training > self._most_seconds:
            return Way("exact", None, None, training, 0.0, peak)
        settings = self._variance(gap)
        variances: ForeseenVariances = self._once(
            f"variances {settings}",
            lambda: foresee_variances(dataset, hyperparameters, settings, self._tests, threads),
        )
        run = variances.on(1, threads)
        phases = variances.phases(run, foreseen.sizes, variances.single.count, variances.double.count)
        peak = max(peak, variances.peak_bytes(run, self.resident_bytes))
        return Way("exact", None, gap, training, self._seconds(phases, foreseen.sizes), peak, settings.memory_bytes)

    def _variance(self, gap: float) -> VarianceSettings:
        settings = VarianceSettings(gap=gap, seed=self._seed)
        if not self._is_limited:
            return settings
        rest = max(0, self._budget - self.resident_bytes - RUNTIME_BYTES)
        return replace(settings, memory_bytes=variance_memory(self._dataset.n_samples, rest))

    def of_few(self) -> list[Way]:
        """Return the exact model of at most `FEW_SAMPLES` samples, by its Cholesky factor; none for more, or labels."""
        n, tests, prices = float(self._dataset.n_samples), float(self._tests), self._machine.prices
        if self._labelled or n > FEW_SAMPLES:
            return []
        training = prices.seconds(Work(double_entries=n**2, double_operations=n**3 / 3.0))
        predicting = prices.seconds(Work(double_entries=tests * n, double_operations=tests * n**2))
        peak = self.resident_bytes + 8 * MATRICES * int(n) ** 2
        return [Way("exact", None, GAPS[0], training, predicting, peak, self._variance(GAPS[0]).memory_bytes)]

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


class Chooser:
    """Forecasts the models of a fit whose hyperparameters are tuned, and chooses one.

    Parameters
    ----------
    memory_bytes : int
        Limit of the whole process.

    Attributes
    ----------
    methods
        Methods of classifiers, compared on held-out training samples; None for a regression.
    """

    def __init__(self, job: FitJob, budget: Budget, reporter: Reporter, memory_bytes: int) -> None:
        self._job, self._budget, self._reporter, self._memory_bytes = job, budget, reporter, memory_bytes
        self.methods: Comparison | None = None

    def choose(self, *, hurried: bool) -> Document:
        """Return the decision as a document; a fit in a hurry takes one of the quickest models."""
        budget, seconds = self._budget, FORECAST * self._budget.for_model
        slowness = budget.slowness()
        rows: list[Document] = []
        later: list[Way] = []
        given_up: list[dict[str, str]] = []
        few = [self._at_load(way, slowness) for way in self.forecasts().of_few()]
        if hurried and (ways := [*few, *self.smaller(EVERY)]):
            decision = self._quickest(ways, seconds, slowness)
            self._reporter.note(f"chosen: {decision.way.words}. {decision.reason}")
            return dict(to_json(decision))
        forecasts, limit = self.forecasts(seconds / slowness), SHARE_OF_FORECASTS * self._job.seconds
        nominal, probed = None, min(1.0, open_dataset(self._job.place(TRAIN)).n_samples / PROBE_SAMPLES)
        if few:
            nominal = [*few, *self.smaller(EVERY)]
        elif self._labelled or slowness * LEAST_FORECAST * probed <= limit:
            nominal = self._foreseen(lambda: forecasts, seconds, slowness, limit)
        if nominal is None:
            nominal = self.smaller(EVERY)
            text = f"the exact model was not considered, because its forecast alone takes more than {spoken(limit)}"
            self._reporter.warn(f"time limit: {text}")
            given_up = [{"step": "choose", "text": text}]
        if nominal and is_certain(nominal[0], seconds, self._memory_bytes):
            decision = decide(nominal[:1], seconds, self._memory_bytes)
        else:
            limit = 0.0 if hurried or given_up or few else CHOOSE * self._job.seconds
            decision, later = self._decide(forecasts, nominal, seconds, slowness, limit)
            if slowness > 1.0:
                times = f"{slowness:.2g}" if slowness < 10.0 else f"{slowness:,.0f}"
                busy = f"The machine is busy, so that forecasts are {times} times those of an idle machine"
                decision = replace(decision, reason=f"{decision.reason}. {busy}")
        if decision.way.name in ("exact", "vif"):
            near = forecasts.near() if decision.way.name == "exact" else None
            others = later if near is None else [self._at_load(near, slowness)]
            other = next((way for way in others if way.fits(seconds, self._memory_bytes)), None)
            decision, rows = self._by_density(decision, other, seconds)
        self._reporter.note(f"chosen: {decision.way.words}. {decision.reason}")
        return {**to_json(decision), "compared": rows, "given_up": given_up}

    def smaller(self, way: Way) -> list[Way]:
        """Return the smaller models with forecasts for the current load, best first."""
        slowness = self._budget.slowness()
        return [self._at_load(other, slowness) for other in self.forecasts().smaller(way)]

    def forecasts(self, most_seconds: float = math.inf) -> Forecasts:
        """Return forecasts at nominal prices."""
        job = self._job
        return Forecasts(
            open_dataset(job.place(TRAIN)),
            None if self._labelled else read_hyperparameters(job.place(HYPER)),
            open_dataset(job.place(TEST)).n_samples,
            self._memory_bytes,
            job.seed,
            job.cluster,
            self._reporter,
            compared=self.methods,
            limited=job.memory_bytes is not None,
            most_seconds=most_seconds,
        )

    @property
    def _labelled(self) -> bool:
        return self._job.ingestion.labels is not None

    def _quickest(self, ways: Sequence[Way], seconds: float, slowness: float) -> Decision:
        """Choose the best model whose forecast is close to that of the quickest.

        Its fixed costs may exceed the limit. Refuse if the number of samples alone makes it exceed the limit.
        """
        fitting = [way for way in ways if way.memory_bytes <= self._memory_bytes]
        quick = min(fitting or ways, key=lambda way: way.seconds)
        fixed = sum(self._fixed_seconds(quick))
        if quick.seconds / slowness - fixed <= max(fixed, self._job.seconds):
            seconds = SIMILAR * quick.seconds
        decision = decide(ways, seconds, self._memory_bytes)
        reason = f"Forecast: {decision.way.forecast}"
        if decision.way is not ways[0]:
            reason += "; better models take too long"
        return replace(decision, reason=reason)

    def _foreseen(
        self, forecasts: Callable[[], Forecasts], seconds: float, slowness: float, limit: float
    ) -> list[Way] | None:
        """Forecast models, best first, until one fits; return None if this takes longer than the limit."""
        ways: list[Way] = []

        def work() -> Document:
            for way in forecasts().ways():
                ways.append(self._at_load(way, slowness))
                fits = [one for one in ways if one.fits(seconds, self._memory_bytes)]
                # The model with neighbours may be compared with the next one.
                if fits and (fits[0].name != "vif" or len(fits) > 1):
                    break
            return {}

        return None if self._budget.attempt(work, limit, limit).document is None else ways

    def _decide(
        self,
        forecasts: Forecasts,
        nominal: Sequence[Way],
        seconds: float,
        slowness: float,
        limit: float,
    ) -> tuple[Decision, list[Way]]:
        """Decide by measured prices, by nominal prices if that may exceed the limit; also return later ways."""
        # The measurement runs code of the exact model.
        needed = slowness * (LEAST_MEASUREMENT + compile_seconds(pieces_of_model("exact", LEAST_KERNEL)))
        ways = None
        if needed <= limit:
            self._reporter.note("measuring this machine to forecast time and memory of the possible models")
            ways = self._foreseen(forecasts.measured, seconds, slowness, limit)
        ways = list(nominal) if ways is None else ways
        try:
            decision = decide(ways, seconds, self._memory_bytes)
            return decision, ways[ways.index(decision.way) + 1 :]
        except MemoryBudgetError:
            raise
        except InputError:
            quick = min((way for way in ways if way.memory_bytes <= self._memory_bytes), key=lambda way: way.seconds)
            fixed = sum(self._fixed_seconds(quick))
            if quick.seconds / slowness - fixed > seconds:
                raise
            # Fixed costs or the load of the machine exceed the time, and no model can change that.
            reason = f"Forecast: {quick.forecast}; this is the fastest model"
            return Decision(quick, reason, tuple(way for way in ways if way is not quick)), []

    def _at_load(self, way: Way, slowness: float) -> Way:
        return way.at_load(slowness, *self._fixed_seconds(way))

    def _fixed_seconds(self, way: Way) -> tuple[float, float]:
        """Return the processor seconds of training and predicting that no samples change."""
        kernel = LEAST_KERNEL if self._labelled else read_hyperparameters(self._job.place(HYPER)).kernel
        return LEAST["train"] + compile_seconds(pieces_of_model(way.name, kernel)), LEAST["predict"]

    def _by_density(self, decision: Decision, other: Way | None, seconds: float) -> tuple[Decision, list[Document]]:
        """Compare the chosen model with another one that fits, on held-out training samples.

        The decision stands without another model and without time. Also return the rows of the comparison.
        """
        job, train, way = self._job, open_dataset(self._job.place(TRAIN)), decision.way
        is_exact, n = way.name == "exact", train.n_samples
        if other is None or other.size is None or (is_exact and (n > MOST_DENSE or train.noise_name is not None)):
            return decision, []
        tried = other if is_exact else replace(other, size=min(COMPARED_BASIS, other.size))
        if is_exact:
            forecast = other.train_seconds + self._budget.slowness() * evaluation_seconds(n)
        else:
            share = min(1.0, MOST_SAMPLES / n) * (min(COMPARED_BASIS, other.size) / other.size) ** 2
            forecast = way.train_seconds + share * other.train_seconds
        if forecast > (limit := SHARE_OF_COMPARISON * seconds):
            skipped = (
                f"It was not compared with the {tried.words}: the comparison may take a tenth of the available time "
                f"({spoken(limit)}), and its forecast is {spoken(forecast)}"
            )
            return replace(decision, reason=f"{decision.reason}. {skipped}"), []
        judged: list[Judged] = []

        def work() -> Document:
            executor = LocalExecutor(available_cores())
            try:
                hyperparameters = read_hyperparameters(job.place(HYPER))
                judged.extend(compare_ways(train, hyperparameters, (way, tried), executor, job.seed))
            finally:
                executor.close()
            return {}

        limit = SHARE_OF_COMPARISON * job.seconds
        if self._budget.attempt(work, limit, limit).document is None:
            return decision, []
        first, second = judged
        rows = [{**first.row(), "model": way.words}, {**second.row(), "model": tried.words}]
        seen = ", ".join(f"{_figure(row['nlpd'])} for the {row['model']}" for row in rows)
        reason = decision.reason
        if second.beats(first, PROOF_GAIN if is_exact else LEAST_GAIN):
            way, reason = other, f"Forecast: {other.forecast}"
        reason += f". The NLPD of held-out training samples (smaller is better) is {seen}"
        return replace(decision, way=way, reason=reason), rows


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
