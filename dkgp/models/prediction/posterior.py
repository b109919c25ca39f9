"""The posterior of a model at test samples: the one source of predictions for stores, tables, lines, arrays and dask.

Each kind of model has a class. It cuts a region of rows into pieces, sends them to workers as tasks, and makes columns
of their results, in the targets' units. A prediction store is filled region by region; rows in memory are one region.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import (
    BlockExecutor,
    BlockTask,
    HereExecutor,
    LocalExecutor,
    PendingRound,
    split_evenly,
)
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, LinearRecord
from dkgp.data.stores.models.model import Model
from dkgp.errors import InputError
from dkgp.models.classification.metrics import label_widths
from dkgp.models.metrics import GapTally, gap_figures, outside_interval
from dkgp.models.variance.run import Parts
from dkgp.models.variance.settings import SentRows, TestRows, VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import AUTO, ProductError

MEANS = ("mean", "mean_error_bound")
VARIANCES = (*MEANS, "variance", "variance_lower", "variance_upper")
# Rows of a piece of a linear regression.
PIECE_ROWS = 4096
_NOTHING_PROVEN = (
    "the model proves nothing of an exact one; train an exact LS-SVM or a logistic classifier, or certify the basis of "
    "one"
)
_NO_INTERVALS = (
    "the model has no proven intervals of probabilities; train a logistic classifier of all samples for that"
)
_NO_VARIANCES = "the model has no variances of latent functions; train a Gaussian process of labels for that"
# Reasons for which a model does not predict a column.
_REASONS = {
    "probability": "the model was trained without probabilities; train it again with `probability`",
    "probability_lower": _NO_INTERVALS,
    "probability_upper": _NO_INTERVALS,
    "latent_variance_lower": _NO_VARIANCES,
    "latent_variance_upper": _NO_VARIANCES,
    "certified": _NOTHING_PROVEN,
    "decision_error_bound": _NOTHING_PROVEN,
}


class Columns(dict[str, FloatArray]):
    """Predictions of r rows, (r, columns) or (r,) each, by their names in a prediction store."""

    def __missing__(self, name: str) -> FloatArray:
        raise InputError(_REASONS.get(name, f"the model predicts no '{name}'; it predicts {', '.join(self)}"))


@dataclass(frozen=True)
class Pending:
    """A region in progress: rounds submitted together, and a function that converts their results to columns."""

    rounds: Sequence[PendingRound]
    conclude: Callable[[list[Any]], Columns]

    def done(self) -> bool:
        """True if `result` would return without waiting."""
        return all(pending.done() for pending in self.rounds)

    def result(self) -> Columns:
        """Wait for all rounds."""
        return self.conclude([pending.result() for pending in self.rounds])


@dataclass(frozen=True)
class Want:
    """A request for predictions of a model.

    Parameters
    ----------
    version : str
        Key of the model's data in workers' caches.
    executor : BlockExecutor
    variance : VarianceSettings, optional
        Predict variances too.
    plug_in : bool
        Take a classifier's probabilities at its decisions, without averaging them over variances.
    error : ProductError
        Allowed error of the sums over all training samples.
    test : Dataset, optional
        Test set with the model's features, for a store. Without it, each call passes rows in memory.
    n_test : int
        Approximate number of rows in memory, which the plan of variances assumes.
    stored : mapping, optional
        Attributes of an unfinished prediction store, which is completed.
    note : callable, optional
        Called with a message about the preparation in progress.
    """

    version: str
    executor: BlockExecutor
    variance: VarianceSettings | None = None
    plug_in: bool = False
    error: ProductError = AUTO
    test: Dataset | None = None
    n_test: int = 1
    stored: Mapping[str, Any] | None = None
    note: Callable[[str], None] | None = None

    @classmethod
    def in_memory(
        cls,
        version: str = "",
        variance: VarianceSettings | None = None,
        *,
        threads: int | None = None,
        n_test: int = 1,
        plug_in: bool = False,
        error: ProductError = AUTO,
    ) -> Self:
        """Return a request for rows in memory, with the given number of threads or all threads of this process."""
        executor = HereExecutor() if threads == 1 else LocalExecutor(threads)
        return cls(version, executor, variance, plug_in, error, None, n_test)

    def rows(self, n_features: int) -> TestRows:
        """Return the test set; no rows if they come from memory."""
        return SentRows(np.zeros((0, n_features))) if self.test is None else self.test

    def say(self, words: str | None) -> None:
        """Pass a message on to the caller, if there is one."""
        if self.note is not None and words is not None:
            self.note(words)


@dataclass(frozen=True)
class Region:
    """The figures of a region that is stored."""

    bound: float | None  # largest error of a mean, or a decision; None without a bound
    gaps: GapTally | None  # how wide the variances' intervals are
    # The sum of the squared bounds on means, and how many they are.
    squared_bounds: tuple[float, int] | None = None
    outside: int = 0  # samples whose own variance is proven wrong
    # Of a classifier: samples of each class, and with certified labels; the sum and the largest width of the intervals
    # of their classes' probabilities, where these are proven.
    counts: tuple[int, ...] = ()
    certified: int | None = None
    widths: tuple[float, float] | None = None

    @classmethod
    def of(cls, values: Mapping[str, FloatArray], attributes: Mapping[str, Any]) -> Region:
        """Take in a region's values, with the store's attributes."""
        if "class" in values:
            return cls._of_classes(values, len(attributes["classes"]))
        bound, squares = None, None
        if "mean_error_bound" in values:
            bounds = np.asarray(values["mean_error_bound"])
            bound, squares = float(np.max(bounds)), (float(np.sum(bounds**2)), bounds.size)
        if "variance" not in attributes or "variance_lower" not in values:
            return cls(bound, None, squares)
        variance, lower, upper = (values[name] for name in ("variance", "variance_lower", "variance_upper"))
        gaps = GapTally.of(lower, upper, attributes["variance"]["gap"])
        return cls(bound, gaps, squares, outside_interval(variance, lower, upper))

    @classmethod
    def _of_classes(cls, values: Mapping[str, FloatArray], n_classes: int) -> Region:
        labels = np.asarray(values["class"]).reshape(-1).astype(np.intp)
        counts = np.bincount(labels, minlength=n_classes)
        widths = None
        if "probability_lower" in values and len(labels):
            of_samples = label_widths(labels, values["probability_lower"], values["probability_upper"])
            widths = float(of_samples.sum()), float(of_samples.max())
        bound = float(np.max(values["decision_error_bound"])) if "decision_error_bound" in values else None
        certified = int(np.sum(values["certified"])) if "certified" in values else None
        return cls(bound, None, counts=tuple(counts.tolist()), certified=certified, widths=widths)


@dataclass(frozen=True)
class Streamed:
    """All regions of a finished store, and how many of its samples this run computed."""

    regions: Sequence[Region]
    computed: int

    @property
    def bound(self) -> float | None:
        """The largest error of a mean, or a decision; None without a bound."""
        return max((region.bound for region in self.regions if region.bound is not None), default=None)

    @property
    def bound_root_mean_square(self) -> float | None:
        """The root mean square of the bounds on means: the root mean square of their errors is no more."""
        known = [region.squared_bounds for region in self.regions if region.squared_bounds is not None]
        return math.sqrt(sum(of[0] for of in known) / sum(of[1] for of in known)) if known else None

    @property
    def counts(self) -> list[int]:
        """Samples of each class, of a classifier."""
        return [sum(counts) for counts in zip(*(region.counts for region in self.regions), strict=True)]

    @property
    def certified(self) -> int | None:
        """Samples whose class is proven to be the exact solution's; None where nothing is proven."""
        known = [region.certified for region in self.regions if region.certified is not None]
        return sum(known) if known else None

    @property
    def interval_widths(self) -> tuple[float, float] | None:
        """Mean and largest width of the intervals of the classes' probabilities; None where there are none."""
        known = [region.widths for region in self.regions if region.widths is not None]
        if not known:
            return None
        return sum(total for total, _ in known) / sum(self.counts), max(widest for _, widest in known)

    @property
    def outside(self) -> int:
        """Samples whose own variance is proven wrong."""
        return sum(region.outside for region in self.regions)

    def gaps(self, wanted: float | None) -> dict[str, Any]:
        """The relative widths of variances' intervals: gap_mean, gap_max, and met and unmet where one was wanted."""
        tallies = [region.gaps for region in self.regions if region.gaps is not None]
        relative = gap_figures(tallies, wanted)
        figures = {"gap_mean": relative["variance_gap_mean"], "gap_max": relative["variance_gap_max"]}
        unmet = relative["variance_unmet"]
        if unmet is not None:
            figures |= {"met": sum(tally.n for tally in tallies) - unmet, "unmet": unmet}
        return {**figures, "computed": self.computed}


M = TypeVar("M", bound=Model)


class Posterior(ABC, Generic[M]):
    """Predictions of one kind of model.

    Attributes
    ----------
    model
        The record.
    variables : tuple of str
        Columns, by the names that a prediction store has for them.
    attributes : dict
        Attributes of a store: the origin of its values. They are compared before a prediction is completed.
    n_support : int
        Number of training samples in a mean's sum.
    depth : int
        Number of concurrent regions.
    region_rows : int or None
        Rows of a region, where it matters.
    assumes : str or None
        Assumption of the bounds.
    classes : tuple of str or None
        Names of the classes, of a classifier.
    """

    nbytes: int = 0  # in a worker's cache, which counts the large parts by themselves
    model: M
    variables: tuple[str, ...]
    attributes: dict[str, Any]
    n_support: int
    depth: int = 2
    region_rows: int | None = None
    assumes: str | None = None
    classes: tuple[str, ...] | None = None
    _want: Want

    def prepare(self) -> str | None:
        """Prepare the data that all regions need; return a message about it."""
        return None

    def remark(self) -> str | None:
        """Return a message on the computed regions."""
        return None

    @abstractmethod
    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> Pending:
        """Start a region; a region that takes long keeps its results in `parts` until it is whole."""

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Return figures of the variances, or the classes, of a whole store; None without either."""
        return None

    def at(self, rows: FloatArray) -> Columns:
        """Predict at standardised rows in memory, (r, d), or (r, d + c) with the covariates of the mean."""
        if not len(rows):
            return Columns({name: np.empty((0, *self._shape(name))) for name in self.variables})
        with single_threaded_blas():
            return self.submit(SentRows(rows, self.model.n_features), 0, len(rows)).result()

    def __call__(self, inputs: FloatArray) -> Columns:
        """Predict at raw inputs of the model's features: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        return self.at(standardised(self.model, inputs))

    def _shape(self, name: str) -> tuple[int, ...]:
        """Shape of one row of a variable."""
        return (self.model.n_targets,)

    def _start(self, name: str, task: BlockTask, arguments: tuple[Any, ...], pieces: Sequence[Any]) -> PendingRound:
        """Start the tasks of a region's pieces; this thread does one that is alone, no other has to wake up for it."""
        alone = self._want.test is None and len(pieces) == 1
        executor = HereExecutor() if alone else self._want.executor
        return executor.submit(name, task, arguments, split_evenly(pieces, executor.parallelism))


def forget(version: str) -> None:
    """Drop this process's data of a version; a finalizer may call this function."""
    worker_cache().abandon(version)


def pieces_of(start: int, stop: int, rows: int) -> list[tuple[int, int]]:
    """Cut a region into pieces of so many rows."""
    return [(first, min(first + rows, stop)) for first in range(start, stop, rows)]


def standardised(model: Model, inputs: FloatArray) -> FloatArray:
    """Raw inputs (r, d), or (r, d_raw) with the features that were constant, as the model sees them: (r, d).

    Covariates of the mean are further columns, among the raw ones in the order of the training set, and in the result
    after the features: (r, d + c).

    Raises `InputError`: another number of features, or values that are not finite.
    """
    standardisation = model.standardisation
    names = (*model.feature_names, *standardisation.covariate_names)
    if inputs.ndim != 2 or inputs.shape[1] not in (standardisation.n_raw_features, len(names)):
        raise InputError(
            f"inputs have shape {inputs.shape}; expected (rows, {standardisation.n_raw_features}), or the "
            f"{len(names)} features that vary"
        )
    inputs = standardisation.keep_rows(inputs)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        result: FloatArray = (inputs - standardisation.row_mean) / standardisation.row_std
    if not np.isfinite(result).all():
        row, column = np.argwhere(~np.isfinite(result))[0]
        raise InputError(
            f"the feature '{names[column]}' is {inputs[row, column]} in row {row}, {result[row, column]} "
            "when standardised; predictions need finite inputs. Remove or fill in such rows"
        )
    return result


def linear_task(
    coefficients: FloatArray, intercept: FloatArray, test: TestRows, pieces: list[tuple[int, int]]
) -> list[FloatArray]:
    """Return the standardised predictions of the rows of each piece: (rows, p)."""
    predictions = []
    for start, stop in pieces:
        inputs = test.inputs(start, stop)
        values = np.tile(intercept, (len(inputs), 1))
        # Separate sums and products have the same bits on every processor; those of a BLAS may differ.
        for feature in np.flatnonzero(coefficients.any(axis=1)):
            values += inputs[:, [feature]] * coefficients[feature]
        predictions.append(values)
    return predictions


class LinearPosterior(Posterior[LinearRecord]):
    """Means of a linear regression: a sum over the features that have a weight, without a bound.

    Raises `InputError`: variances, which a linear regression does not have.
    """

    variables = ("mean",)

    def __init__(self, model: LinearRecord, want: Want) -> None:
        if want.variance is not None:
            raise InputError(
                f"`variance` is of Gaussian processes; '{model.url}' is a linear regression, which predicts means "
                "alone. Leave it out"
            )
        self.model, self._want = model, want
        self.n_support = int(np.count_nonzero(model.coefficients.any(axis=1)))
        self.attributes = {"linear": str(model.summary["method"])}

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> Pending:
        """Start a region."""
        to, arguments = self.model.standardisation, (self.model.coefficients, self.model.intercept, rows)
        pending = self._start("klinear", linear_task, arguments, pieces_of(start, stop, PIECE_ROWS))
        return Pending(
            [pending],
            lambda results: Columns({"mean": np.concatenate(results[0]) * to.target_std + to.target_mean}),
        )
