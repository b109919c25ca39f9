"""A way to a model and its predictions: how it is built, its forecast, its judgement and its words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from dkgp.cluster import ClusterOptions
from dkgp.codec import from_json
from dkgp.commands.classify import ClassifyJob
from dkgp.commands.evaluate import EvaluateJob
from dkgp.commands.ingest import IngestJob
from dkgp.commands.predict.job import PredictJob
from dkgp.commands.recipe import command_words
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.sparse import SparseJob
from dkgp.commands.train import TrainJob
from dkgp.commands.tune import TuneJob
from dkgp.data import TableOptions, open_dataset
from dkgp.fit.job import HYPER, MODEL, PREDICTIONS, TEST, TEST_SAMPLE, TRAIN, FitJob
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.labels import labels_of
from dkgp.models.context import RunContext
from dkgp.models.refinement.candidates import Candidate, Judge, Judged
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.variance.settings import VarianceSettings
from dkgp.options import words_of
from dkgp.registry import byte_text

# Gaps of variances that are tried with the exact model, best first.
GAPS = (VarianceSettings().gap, 0.1)
# Words for the exact model's variances by `--variance-way vif`.
APPROXIMATE = "approximate, from neighbours (VIF)"
# Names of classifiers with a likelihood.
CLASSIFIERS = {"logistic": "logistic classifier", "gp": "Gaussian process classifier"}

Name = Literal["exact", "vif", "sparse", "fixed-size", "logistic", "gp"]
TrainingJob = TrainJob | SparseJob | ClassifyJob


@dataclass(frozen=True)
class Variant:
    """A way to predict; `sampled`: only some of the test rows."""

    variance: VarianceSettings | None
    words: str
    sampled: bool = False

    @property
    def needs_factor(self) -> bool:
        """True for variances whose intervals have to reach a gap."""
        return self.variance is not None and not self.sampled and self.variance.way != "vif"


@dataclass(frozen=True)
class Way:
    """A way to a model and its predictions, with its forecast.

    Attributes
    ----------
    name
        Name of the model.
    size
        Basis samples, or prototypes to choose among; None for the exact model.
    gap
        Gap of the exact model's proven intervals of variances.
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

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Way:
        """Read the way of a fit's document."""
        return from_json(cls, {name: value for name, value in document.items() if name not in cls.derived})

    @property
    def seconds(self) -> float:
        """Time of training and predicting."""
        return self.train_seconds + self.predict_seconds

    @property
    def words(self) -> str:
        """The model in a few words."""
        if self.approximate:
            return f"exact model (variances {APPROXIMATE})"
        if self.name == "exact":
            return "exact model" + ("" if self.gap is None else f" (variances certified within {100 * self.gap:g} %)")
        if self.name == "vif":
            return f"model with neighbours (vif, {self.size:,} basis samples)"
        if self.name in CLASSIFIERS:
            return f"{CLASSIFIERS[self.name]} on {f'a basis of {self.size:,}' if self.size else 'all'} samples"
        if self.name == "sparse":
            return f"sparse model with {self.size:,} basis samples"
        return f"fixed-size classifier (up to {self.size:,} prototypes)"

    @property
    def forecast(self) -> str:
        """The figures of the forecast in words."""
        return f"{spoken(self.seconds)} to train and predict, and {byte_text(self.memory_bytes)} of memory"

    def fits(self, seconds: float, memory_bytes: int) -> bool:
        """Return True if the forecast is within the limits."""
        return self.seconds <= seconds and self.memory_bytes <= memory_bytes

    def approximated(self, near: Way) -> Way:
        """Return the exact model with the variances of the model with neighbours, which is fitted for them."""
        memory = max(self.memory_bytes, near.memory_bytes)
        return replace(self, gap=None, approximate=True, predict_seconds=near.seconds, memory_bytes=memory)

    def at_load(self, slowness: float, training: float, predicting: float) -> Way:
        """Return the way with a forecast for the current load; the last two are fixed costs in processor seconds."""
        return replace(
            self,
            train_seconds=slowness * (self.train_seconds + training),
            predict_seconds=slowness * (self.predict_seconds + predicting),
        )

    def training(self, job: FitJob, hyper: str) -> TrainingJob:
        """Return the job that trains the model on the fit's samples, with the hyperparameters of the file `hyper`."""
        train, model, seed = job.place(TRAIN), job.place(MODEL), job.seed
        shared: dict[str, Any] = {
            "memory_limit_bytes": job.memory_bytes,
            "overwrite": True,
            "cluster": job.cluster,
        }
        if self.name == "exact":
            solver = SolverOptions(seed=seed)
            return TrainJob(train, job.place(hyper), model, solver=solver, variance_gap=self.gap, **shared)
        if self.name in ("sparse", "vif"):
            settings = SparseSettings(method="vif" if self.name == "vif" else "vfe", seed=seed)
            return SparseJob(train, job.place(hyper), model, settings, basis_size=self.size, **shared)
        if self.name == "fixed-size":
            folded = FixedSizeSettings(pool=self.size, folds=folds_of(train), seed=seed)
            return ClassifyJob(train, model, settings=folded, **shared)
        likelihood: dict[str, Any] = {"method": self.name, "basis_size": self.size}
        return ClassifyJob(train, model, settings=FixedSizeSettings(seed=seed), **likelihood, **shared)

    def variance(self, seed: int) -> VarianceSettings:
        """Return the settings of the predictions' variances."""
        settings = VarianceSettings(seed=seed, memory_bytes=self.variance_memory_bytes)
        if self.approximate:
            return replace(settings, way="vif")
        return settings if self.gap is None else replace(settings, gap=self.gap)

    def variants(self, variance: VarianceSettings | None) -> list[Variant]:
        """Return the ways to predict, best and slowest first."""
        of_sample = "of a sample of the test rows"
        if variance is None:
            return [Variant(None, "predictions"), Variant(None, f"predictions {of_sample}", sampled=True)]
        whole = [Variant(variance, "variances")]
        if self.name == "exact":
            gaps = dict.fromkeys((variance.gap, max(variance.gap, GAPS[-1])))
            whole = [Variant(replace(variance, gap=gap), f"variances within {100 * gap:g} %") for gap in gaps]
            whole.append(Variant(replace(variance, way="vif"), f"variances that are {APPROXIMATE}"))
        return [
            *whole,
            replace(whole[-1], words=f"{whole[-1].words}, {of_sample}", sampled=True),
            Variant(None, "means without variances"),
            Variant(None, f"means {of_sample}, without variances", sampled=True),
        ]

    def predicting(self, variance: VarianceSettings | None) -> Way:
        """Return the way with the variances that were predicted; None: with means alone."""
        if self.name != "exact" or variance is None:
            return replace(self, gap=None, approximate=False)
        approximate = variance.way == "vif"
        return replace(self, gap=None if approximate else variance.gap, approximate=approximate)

    def judged(self, judge: Judge, candidate: Candidate, context: RunContext) -> Judged:
        """Predict the judge's held-out samples by this model of the other samples."""
        if self.name == "vif":
            return judge.judge(candidate, context)
        if self.size is None:
            return judge.judge_exact(candidate)
        return judge.judge_basis(candidate, self.size, context)


def command_lines(
    job: FitJob, table: TableOptions, ids: Sequence[str], decision: Mapping[str, Any], tuning: Sequence[str] = ()
) -> list[str]:
    """Return the commands that repeat a fit, in a folder of their own.

    Columns are read by `table` and `ids`. The kernel is the job's, and the model that of the decision: neither depends
    on a time limit. `tuning` are further words of `dkgp tune`. Hyperparameters that depend on the time limit are read
    from the fit's own file instead, and so are the test samples if the fit predicted only a sample of them.
    """
    job = replace(job, cluster=ClusterOptions())
    again = replace(job, out=f"{job.out.rstrip('/')}-again")
    train, test, hyper, model, predictions = (again.place(name) for name in (TRAIN, TEST, HYPER, MODEL, PREDICTIONS))
    if decision.get("sampled"):
        test = job.place(TEST_SAMPLE)
    way = Way.from_document(decision["way"])
    training = replace(way.training(job, decision.get("hyper", HYPER)), dataset=train, out=model)
    variance = way.variance(job.seed) if decision.get("has_variance", True) else None
    lines = [command_words(replace(again.ingest_job(), table=table, ids=tuple(ids)))]
    if isinstance(training, ClassifyJob):
        variance = None
    elif "--all-samples-seconds" not in tuning:
        tune = TuneJob(train, hyper, kernel=job.kernel, seed=job.seed, overwrite=True)
        lines.append([*command_words(tune), *tuning])
        training = replace(training, hyper=hyper)
    lines += map(
        command_words,
        (
            training,
            PredictJob(model, test, predictions, variance, overwrite=True),
            EvaluateJob(predictions, test, compare=bool(decision.get("compare"))),
        ),
    )
    return [shlex.join(line) for line in lines]


def column_words(table: TableOptions, ids: Sequence[str]) -> list[str]:
    """Return the options of columns as words of a command line."""
    return words_of(IngestJob((), table=table, ids=tuple(ids)))


def folds_of(train: str) -> int:
    """Return the folds of a fixed-size classifier: no more than the rarest class of the data set has samples."""
    return min(FixedSizeSettings.folds, int(labels_of(open_dataset(train)).counts().min()))


def spoken(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 1.0:
        return f"{seconds:.1g} s"
    if seconds < 90.0:
        return f"{seconds:.2g} s" if seconds < 10.0 else f"{seconds:.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.2g} min" if seconds < 600.0 else f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
