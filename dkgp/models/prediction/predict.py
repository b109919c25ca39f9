"""Predictions to a store: the mean with its proven error bound, and on request the variance with its interval.

Each region of the store is computed, written and marked as done separately. Memory therefore does not depend on the
number of test samples, and an interrupted prediction continues where it stopped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import to_json
from dkgp.data import (
    AnyModel,
    ClassifierRecord,
    Dataset,
    LinearRecord,
    ModelRecord,
    PredictionWriter,
    Progress,
    SparseRecord,
    is_resident,
    open_prediction,
)
from dkgp.data.remote.claims import locked
from dkgp.data.stores.models.classifier import find_any_model
from dkgp.data.stores.models.model import ModelAddress
from dkgp.errors import InputError, InterruptedRunError
from dkgp.limits import Pace
from dkgp.models.context import RunContext
from dkgp.models.prediction.classes import ClassPosterior
from dkgp.models.prediction.exact import ExactPosterior
from dkgp.models.prediction.posterior import (
    Columns,
    LinearPosterior,
    Pending,
    Posterior,
    Region,
    Streamed,
    Want,
)
from dkgp.models.prediction.sparse import SparsePosterior
from dkgp.models.sums import cached_model
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import AUTO, OLD_NAME, ProductError

# The posterior of each kind of model.
POSTERIORS: dict[str, type[Posterior[Any]]] = {
    ModelRecord.kind: ExactPosterior,
    SparseRecord.kind: SparsePosterior,
    ClassifierRecord.kind: ClassPosterior,
    LinearRecord.kind: LinearPosterior,
}


@dataclass(frozen=True)
class PredictSummary:
    """The record of a prediction run.

    Attributes
    ----------
    n_samples, n_support : int
        Number of test samples, and number of samples in a mean's sum: the training set, or a sparse model's basis.
    largest_mean_error_bound : float or None
        Maximum over samples and targets, in the targets' own units. None for a classifier or a linear regression.
    mean_error_bound_rms : float or None
        The root mean square of the bounds, in the same units.
    variance : dict, optional
        With variances: `VarianceRun.summary`. For a sparse model: method, latent, and the share of samples `outside`,
        whose own variance is proven wrong. Gaps cover the whole store; `computed` counts this run's samples.
    assumes : str, optional
        Assumption of the bounds; see `Certificate`.
    classes : dict, optional
        For a classifier: method, number of samples of each class by name (`counts`), number of certified samples, and
        the largest error of a decision (`largest_decision_error_bound`). The last two are None if nothing is proven.
    """

    n_samples: int
    n_support: int
    seconds: float
    largest_mean_error_bound: float | None
    mean_error_bound_rms: float | None
    url: str
    variance: dict[str, Any] | None = None
    assumes: str | None = None
    classes: dict[str, Any] | None = None


@dataclass(frozen=True)
class Destination:
    """The prediction store that predictions are written to.

    Parameters
    ----------
    url : str
        Address of the store.
    chunk_rows : int, optional
        Rows of a chunk of the store, and of a region.
    overwrite : bool
        Replace an existing store.
    resume : bool
        Continue an interrupted prediction store; existing regions are not computed again.
    """

    url: str
    chunk_rows: int | None = None
    overwrite: bool = False
    resume: bool = False


def posterior_of(model: AnyModel | LinearRecord, want: Want) -> Posterior[Any]:
    """Return the posterior of a model of any kind; raise the errors of the kind's class."""
    kind: Any = POSTERIORS[model.kind]
    posterior: Posterior[Any] = kind(model, want)
    return posterior


@dataclass(frozen=True)
class PosteriorSource:
    """Address of a posterior of rows in memory: travels with tasks, and each process makes its own posterior from it.

    Fields are as for `Want.in_memory`.
    """

    address: ModelAddress
    version: str
    variance: VarianceSettings | None = None
    n_test: int = 1
    plug_in: bool = False
    error: ProductError = AUTO

    def posterior(self) -> Posterior[Any]:
        """Return this process's posterior for calls by single threads; the first call makes it, others wait."""
        key = (self.version, "posterior", self.variance, self.n_test, self.plug_in, self.error)
        return worker_cache().get(key, lambda: posterior_of(self._record(), self.want(threads=1)))

    def want(self, threads: int | None = None) -> Want:
        """Return the request of a process's posterior, for so many threads, all by default."""
        return Want.in_memory(
            self.version,
            self.variance,
            threads=threads,
            n_test=self.n_test,
            plug_in=self.plug_in,
            error=self.error,
        )

    def _record(self) -> Any:
        return cached_model(self.version, lambda: find_any_model(self.address))


def predict(
    model: AnyModel | LinearRecord,
    dataset: Dataset,
    out: Destination | str,
    context: RunContext | BlockExecutor,
    *,
    variance: VarianceSettings | None = None,
    plug_in: bool = False,
    note: Callable[[str], None] | None = None,
) -> PredictSummary:
    """Predict means with their proven error bounds, and variances in proven intervals, to a prediction store.

    A linear regression predicts means alone.

    A classifier predicts decisions, classes and probabilities instead; an exact one with proven bounds of decisions,
    and which classes they certify; a Gaussian process of all samples with averaged probabilities, and variances of its
    latent functions, in proven intervals.

    Parameters
    ----------
    model : ModelRecord, SparseRecord, ClassifierRecord or LinearRecord
    dataset : Dataset
        Test inputs; its features are matched to the model's by name and mapped by the model's standardisation.
    out : Destination or str
        Address of the prediction store; values are in the targets' own units.
    context : RunContext or BlockExecutor
        Who computes. Its `within` is called with the samples that are done, of all; `interrupted` is asked between
        regions, and when it answers true the regions done stay, to be resumed. Its `product_error`
        is the allowed error of sums over all training samples, of each standardised mean or decision; bounds allow for
        it. A number is for a kernel that falls with the distance, of few features.
    variance : VarianceSettings, optional
        Predict variances too: of a new observation, noise included (also its own, where the data set knows that),
        unless `latent` asks for the function's. The store's `variance` is the middle of the proven interval; of a
        sparse model its method's own, and the interval that of the exact model's.
    plug_in : bool
        Of a Gaussian process classifier: take the likelihood's probabilities at the decisions, without averaging them
        over the variances of its latent functions.
    note : callable, optional
        Called with a message about the preparation in progress.

    Returns
    -------
    PredictSummary

    Raises
    ------
    InputError
        The test store lacks a feature of the model or has a NaN, or the store to resume was made from something else;
        settings of variances that a sparse model has no use for, any of a classifier without latent functions of its
        own; a number as `product_error` where there are no such sums.
    StoreError
        The model's support inputs cannot be read.
    MemoryBudgetError
        Variances, or a sparse model, do not fit in their working memory.
    OutputExistsError
        Another process is writing there.
    """
    started = time.perf_counter()
    context, out = RunContext.of(context), out if isinstance(out, Destination) else Destination(out)
    url, of_classes = out.url, model.class_names is not None
    if plug_in and not model.averages:
        raise InputError(
            f"`plug_in` is for the averaged probabilities of a Gaussian process classifier, and '{model.url}' is none; "
            "leave it out"
        )
    _require_sums(model, None if of_classes else variance, context.product_error, plug_in)
    names = () if of_classes else model.target_names
    test = dataset.as_seen_by(model.feature_names, names, model.standardisation)
    _require_finite(test)
    if model.standardisation.transforms and note is not None:
        note(
            "the model was trained on transformed targets, and the store has predictions on that scale; "
            "`dkgp evaluate` and `dkgp export` convert them to the target's units"
        )
    version = f"{model.fingerprint}-{time.time_ns():x}"
    try:
        with locked(url), single_threaded_blas():
            writer = PredictionWriter.begun(url) if out.resume else None
            stored = None if writer is None else writer.attributes
            if stored is not None and OLD_NAME in stored:
                raise InputError(
                    f"the predictions in '{url}' were begun by an earlier version with sums by a tree, which this one "
                    "does not take; start afresh with `overwrite`"
                )
            want = Want(
                version,
                context.executor,
                variance,
                plug_in,
                context.product_error,
                test,
                stored=stored,
                note=note,
            )
            posterior = posterior_of(model, want)
            noise = None if variance is None or test.noise_name is None else _TestNoise(test, variance.latent)
            attributes = {
                # A model in memory has another address in each process.
                "model": f"memory://{model.fingerprint}" if is_resident(model.url) else model.url,
                "model_fingerprint": model.fingerprint,
                "data_fingerprint": dataset.fingerprint,
                "target_std": np.asarray(model.standardisation.target_std).tolist(),
                **transform_attribute(model),
                **posterior.attributes,
                **({} if noise is None else {"noise": test.noise_name}),
            }
            variables = posterior.variables if noise is None else (*posterior.variables, "noise")
            if writer is None:
                rows = posterior.region_rows if out.chunk_rows is None else out.chunk_rows
                writer = PredictionWriter.create(
                    url,
                    dataset.n_samples,
                    model.target_names,
                    tuple(dict.fromkeys(variables)),  # a noise model also has the variable
                    rows,
                    attributes,
                    out.overwrite or out.resume,  # which has nothing to keep
                    posterior.classes,
                )
            elif writer.attributes != attributes:
                raise InputError(
                    f"'{url}' was predicted from another model or other data, or with other settings; "
                    "start afresh with `overwrite`"
                )
            streamed = _stream(writer, posterior, want, noise, context)
    finally:
        worker_cache().discard_run(version)
    seconds = time.perf_counter() - started
    figures = posterior.summary(seconds, streamed)
    about = (dataset.n_samples, posterior.n_support, seconds)
    if figures is not None and of_classes:
        figures["largest_decision_error_bound"] = streamed.bound
        return PredictSummary(*about, None, None, str(url), None, posterior.assumes, figures)
    bounds = streamed.bound, streamed.bound_root_mean_square
    return PredictSummary(*about, *bounds, str(url), figures, posterior.assumes)


@dataclass(frozen=True)
class _TestNoise:
    """Individual noise of test samples, which a new observation has in addition to the common noise."""

    test: Dataset
    latent: bool  # variances are of the function, and the noise is stored beside them

    def added(self, columns: Columns, start: int, stop: int) -> Columns:
        """Add the noise to variances of a new observation, outward."""
        noise = self.test.sample_noise(start, stop, standardised=False)
        assert noise is not None
        known = noise[:, None]
        if not self.latent:
            for name, end in (("variance_lower", -np.inf), ("variance_upper", np.inf), ("variance", np.inf)):
                columns[name] = np.maximum(np.nextafter(columns[name] + known, end), 0.0)
        return Columns({**columns, "noise": known + columns.get("noise", 0.0)})


class _RegionParts:
    """Parts of a region that are kept beside the store until the region is whole, and the watch over them."""

    def __init__(
        self, writer: PredictionWriter, watch: RunContext, rows: tuple[int, int], done: int, pace: Pace
    ) -> None:
        self._writer, self._watch, (self._start, self._stop), self._done = writer, watch, rows, done
        self._pace = pace

    def load(self, count: int) -> dict[int, FloatArray]:
        """Return the parts, of so many, that are kept there."""
        parts = self._writer.read_parts(self._start, self._stop)
        kept = {number: values for number, values in parts.items() if number < count}
        self._done += sum(values.shape[1] for values in kept.values())
        return kept

    def keep(self, number: int, values: FloatArray) -> None:
        """Keep a part, values of (rows) each, and report progress."""
        self._writer.write_part(self._start, self._stop, number, values)
        self._done += values.shape[1]
        if self._watch.within is not None:
            self._watch.within(Progress(self._watch.unit, self._done, self._writer.n_samples, self._watch.unit))

    def interrupted(self) -> bool:
        """Return True if interruption was requested, or if the time limit would be missed."""
        requested = self._watch.interrupted is not None and self._watch.interrupted()
        return requested or self._pace.is_too_slow(self._done)

    def end(self) -> None:
        """Raise `InterruptedRunError`."""
        raise _interrupted(self._writer, self._done)


def _interrupted(writer: PredictionWriter, done: int) -> InterruptedRunError:
    return InterruptedRunError(
        f"interrupted after {done} of {writer.n_samples} test samples; continue with `resume`", writer.url
    )


def _stream(
    writer: PredictionWriter, posterior: Posterior[Any], want: Want, noise: _TestNoise | None, watch: RunContext
) -> Streamed:
    """Compute, write and finish the missing regions of a store. `watch` receives progress and requests interruption.

    Raises `InterruptedRunError` if interruption was requested; finished regions stay. After any error, a store without
    finished regions is removed.
    """
    try:
        if writer.pending_regions():
            want.say(posterior.prepare())
        regions = _write(writer, posterior, want, noise, watch)
        writer.commit()
        want.say(posterior.remark())
    except BaseException:
        if not writer.done_regions() and not writer.has_parts():
            writer.abort()
        raise
    n, rows = writer.n_samples, writer.chunk_rows
    computed = sum(min(start + rows, n) - start for start in regions)
    if computed < n:
        regions = _with_earlier_regions(regions, writer.url)
    return Streamed(list(regions.values()), computed)


def _write(
    writer: PredictionWriter, posterior: Posterior[Any], want: Want, noise: _TestNoise | None, watch: RunContext
) -> dict[int, Region]:
    """Compute and write the missing regions; return the figures of each, by its first row."""
    assert want.test is not None
    regions: dict[int, Region] = {}
    todo = deque(
        (start, min(start + writer.chunk_rows, last))
        for first, last in writer.pending_regions()
        for start in range(first, last, writer.chunk_rows)
    )
    done = writer.n_samples - sum(stop - start for start, stop in todo)
    under_way: deque[tuple[int, int, Pending]] = deque()
    pace = Pace(writer.n_samples, done)
    while todo or under_way:
        if pace.is_too_slow(done) or (watch.interrupted is not None and watch.interrupted()):
            raise _interrupted(writer, done)
        while todo and len(under_way) < posterior.depth:
            start, stop = todo.popleft()
            parts = _RegionParts(writer, watch, (start, stop), done, pace)
            under_way.append((start, stop, posterior.submit(want.test, start, stop, parts)))
        start, stop, pending = under_way.popleft()
        values = pending.result() if noise is None else noise.added(pending.result(), start, stop)
        writer.write(start, **values)
        regions[start] = Region.of(values, writer.attributes)
        done += stop - start
        if watch.within is not None:
            watch.within(Progress(watch.unit, done, writer.n_samples, watch.unit))
    return regions


def _with_earlier_regions(regions: dict[int, Region], url: str) -> dict[int, Region]:
    """Return the regions of the whole store; regions of an earlier run are read back."""
    stored = open_prediction(url)
    return {
        start: regions.get(start)
        or Region.of({name: stored.read(name, start, stop) for name in stored.variables}, stored.attributes)
        for start, stop in stored.row_chunks()
    }


def transform_attribute(model: AnyModel | LinearRecord) -> dict[str, Any]:
    """Return the attribute of predictions on the scale of transformed targets."""
    transforms = model.standardisation.transforms
    return {"transform": to_json(transforms)} if transforms else {}


def _require_sums(
    model: AnyModel | LinearRecord, variance: VarianceSettings | None, error: ProductError, plug_in: bool
) -> None:
    """Refuse a number as the error of sums where there are none over all samples; `InputError`."""
    if error.number is None:
        return
    if model.averages and not (model.is_sparse or plug_in):
        raise InputError(
            "`product_error` is for sums over all training samples, as decisions are; a Gaussian process's "
            "probabilities are averaged over variances, which take whole columns of the kernel matrix. Leave it out, "
            "or give `plug_in`, too"
        )
    if variance is not None and not variance.leaves_sums:
        raise InputError(
            "`product_error` is for sums over all training samples, as means are; variances take whole columns of the "
            "kernel matrix. Leave it out, predict means alone, or take `way` neighbours or vif"
        )
    if model.without_sums is not None:
        raise InputError(
            f"`product_error` is of sums over all training samples; '{model.url}' {model.without_sums}. Leave it out"
        )


def _require_finite(test: Dataset) -> None:
    """Refuse inputs that are not finite."""
    for start, stop in test.row_chunks():
        inputs = test.inputs(start, stop)
        wrong = np.flatnonzero(~np.isfinite(inputs).all(axis=1))
        if len(wrong):
            raise InputError(
                f"'{test.url}' has a NaN or an infinity in row {start + int(wrong[0])}; predictions need finite "
                "inputs. Remove the row or fill it, and ingest again"
            )
