"""Predictions to a store: the mean with its proven error bound, and on request the variance with its interval."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import to_json
from dkgp.data import AnyModel, ClassifierRecord, Dataset, LinearRecord, PredictionWriter, SparseRecord, exists
from dkgp.data.remote.claims import locked
from dkgp.errors import InputError
from dkgp.models.context import RunContext
from dkgp.models.prediction.classes import class_rounds
from dkgp.models.prediction.exact import exact_rounds
from dkgp.models.prediction.linear import LinearRounds
from dkgp.models.prediction.sparse_rounds import SparseRounds, SparseRoundsWithBases
from dkgp.models.prediction.streaming import Rounds, WithTestNoise, stream
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import OLD_NAME, ProductError


@dataclass(frozen=True)
class PredictSummary:
    """The record of a prediction run.

    Attributes
    ----------
    n_samples, n_support : int
        Test samples, and those that a mean is a sum over: all of the training set's, or a sparse model's basis.
    largest_mean_error_bound : float or None
        In the targets' own units; the largest over samples and targets. None of a classifier or a linear regression.
    mean_error_bound_rms : float or None
        The root mean square of the bounds, in the same units.
    variance : dict, optional
        With variances: `VarianceRun.summary`, or of a sparse model method, latent, and the share of samples `outside`,
        whose own variance is proven wrong; gaps are those of the whole store, `computed` counts this run's samples.
    assumes : str, optional
        What the bounds take on trust; see `Certificate`.
    classes : dict, optional
        Of a classifier: method, samples of each class by name (`counts`), of certified ones, and the largest error of a
        decision (`largest_decision_error_bound`); both None where nothing is proven.
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Destination:
    """The prediction store that predictions go to.

    Parameters
    ----------
    url : str
        Where it is.
    chunk_rows : int, optional
        Rows of a chunk of the store, and of a region.
    overwrite : bool
        Replace what is there.
    resume : bool
        Continue a prediction store that was interrupted; regions already there are not computed again.
    """

    url: str
    chunk_rows: int | None = None
    overwrite: bool = False
    resume: bool = False


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
        Where the prediction store goes; values are in the targets' own units.
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
        Called with a line on what is being prepared.

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
    executor, url = context.executor, out.url
    of_classes = isinstance(model, ClassifierRecord)
    if plug_in and not (isinstance(model, ClassifierRecord) and model.form == "gp"):
        raise InputError(
            f"`plug_in` is for the averaged probabilities of a Gaussian process classifier, and '{model.url}' is none; "
            "leave it out"
        )
    _require_sums(model, None if of_classes else variance, context.product_error, plug_in)
    names = () if of_classes else model.target_names
    test = dataset.as_seen_by(model.feature_names, names, model.standardisation)
    _require_finite(test)
    if model.standardisation.transforms and note is not None:
        note("the model is of transformed targets, and so are predictions in the store; evaluate brings them back")
    version = f"{model.fingerprint}-{time.time_ns():x}"
    try:
        with locked(url), single_threaded_blas():
            begins = out.resume and PredictionWriter.lacks_arrays(url)
            writer = PredictionWriter.open_to_resume(url) if out.resume and exists(url) and not begins else None
            rounds: Rounds
            stored = None if writer is None else writer.attributes
            if stored is not None and OLD_NAME in stored:
                raise InputError(
                    f"the predictions in '{url}' were begun by an earlier version with sums by a tree, which this one "
                    "does not take; start afresh with `overwrite`"
                )
            if isinstance(model, ClassifierRecord):
                rounds = of_labels = class_rounds(
                    model, test, context, version, plug_in=plug_in, variance=variance, stored=stored, note=note
                )
                if note is not None and of_labels.lacks is not None:
                    note(of_labels.lacks)
            elif isinstance(model, LinearRecord):
                rounds = LinearRounds(model, test, executor, variance is not None)
            elif isinstance(model, SparseRecord) and variance is not None and variance.basis is not None:
                rounds = SparseRoundsWithBases(model, test, executor, version, variance)
            elif isinstance(model, SparseRecord):
                rounds = SparseRounds(model, test, executor, version, variance)
            else:
                rounds = exact_rounds(model, test, executor, version, variance, stored, note, context.product_error)
            if variance is not None and test.noise_name is not None:
                rounds = WithTestNoise(rounds, test, variance.latent)
            attributes = {
                "model": model.url,
                "model_fingerprint": model.fingerprint,
                "data_fingerprint": dataset.fingerprint,
                "target_std": np.asarray(model.standardisation.target_std).tolist(),
                **_transforms(model),
                **rounds.attributes,
            }
            if writer is None:
                rows = rounds.region_rows if out.chunk_rows is None else out.chunk_rows
                writer = PredictionWriter.create(
                    url,
                    dataset.n_samples,
                    model.target_names,
                    rounds.variables,
                    rows,
                    attributes,
                    out.overwrite or begins,
                    rounds.classes,
                )
            elif writer.attributes != attributes:
                raise InputError(
                    f"'{url}' was predicted from another model or other data, or with other settings; "
                    "start afresh with `overwrite`"
                )
            streamed = stream(writer, rounds, context, note)
    finally:
        worker_cache().discard_run(version)
    seconds = time.perf_counter() - started
    figures = rounds.summary(seconds, streamed)
    about = (dataset.n_samples, rounds.n_support, seconds)
    if figures is not None and of_classes:
        figures["largest_decision_error_bound"] = streamed.bound
        return PredictSummary(*about, None, None, str(url), None, rounds.assumes, figures)
    bounds = streamed.bound, streamed.bound_root_mean_square
    return PredictSummary(*about, *bounds, str(url), figures, rounds.assumes)


def _transforms(model: AnyModel | LinearRecord) -> dict[str, Any]:
    """The attribute of predictions that are on the scale of transformed targets."""
    transforms = model.standardisation.transforms
    return {"transform": to_json(transforms)} if transforms else {}


def _require_sums(
    model: AnyModel | LinearRecord, variance: VarianceSettings | None, error: ProductError, plug_in: bool
) -> None:
    """Refuse a number as the error of sums where there are none over all samples; `InputError`."""
    if error.number is None:
        return
    if isinstance(model, ClassifierRecord) and model.form == "gp" and not (model.is_sparse or plug_in):
        raise InputError(
            "`product_error` is for sums over all training samples, as decisions are; a Gaussian process's "
            "probabilities are averaged over variances, which take whole columns of the kernel matrix. Leave it out, "
            "or give `plug_in`, too"
        )
    if variance is not None and variance.way != "neighbours":
        raise InputError(
            "`product_error` is for sums over all training samples, as means are; variances take whole columns of the "
            "kernel matrix. Leave it out, predict means alone, or take `way` neighbours"
        )
    if isinstance(model, LinearRecord):
        raise InputError(
            f"`product_error` is of sums over all training samples; '{model.url}' is a linear regression, which has "
            "none. Leave it out"
        )
    if isinstance(model, SparseRecord):
        raise InputError(
            f"`product_error` is of sums over all training samples; '{model.url}' is a sum over {model.basis_size:,} "
            "basis samples, which takes no time. Leave it out"
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
