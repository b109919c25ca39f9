"""Predictions streamed to a store: the mean with its proven error bound, and on request the variance with its interval.

A region of the store is computed, written and marked as done by itself, so memory does not depend on the number of test
samples and an interrupted prediction goes on where it was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, PendingRound, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, ModelRecord, PredictionWriter, exists, open_prediction
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.certificate import Certificate
from dkgp.models.metrics import GapTally, gap_figures
from dkgp.models.rounding import mean_in_units, variance_in_units
from dkgp.models.support import SupportInputs, certified_means
from dkgp.models.variance.variances import VarianceRun, VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

__all__ = ["PredictSummary", "predict"]

PREDICTION_PIECE_ROWS = 512


@dataclass(frozen=True)
class PredictSummary:
    """The record of a prediction run.

    Attributes
    ----------
    n_samples, n_support : int
    seconds : float
    largest_mean_error_bound : float
        In the targets' own units; the largest over samples and targets.
    url : str
    variance : dict, optional
        With variances: `VarianceRun.summary`, its gaps those of the whole store; `computed` counts this run's samples.
    assumes : str, optional
        What the bounds take on trust; see `Certificate`.
    """

    n_samples: int
    n_support: int
    seconds: float
    largest_mean_error_bound: float
    url: str
    variance: dict[str, Any] | None = None
    assumes: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dict(self.__dict__)


def mean_task(
    context: BlockContext, certificate: Certificate, test: Dataset, pieces: list[tuple[int, int]]
) -> list[tuple[FloatArray, FloatArray]]:
    """Predicted means of the test rows of each piece, and bounds on their errors: (rows, p), standardised, float64."""
    return [certified_means(context, certificate, test.inputs(start, stop)) for start, stop in pieces]


class _Rounds(Protocol):
    """The rounds that compute a region's values, `depth` regions under way at once."""

    variables: tuple[str, ...]
    attributes: dict[str, Any]
    depth: int

    def submit(self, start: int, stop: int) -> PendingRound: ...

    def values(self, results: list[Any]) -> dict[str, FloatArray]: ...


class _Means:
    variables: tuple[str, ...] = ("mean", "mean_error_bound")
    depth = 1

    def __init__(
        self,
        context: BlockContext,
        test: Dataset,
        executor: BlockExecutor,
        model: ModelRecord,
        certificate: Certificate,
    ) -> None:
        self._context, self._test, self._executor = context, test, executor
        self._standardisation, self._certificate = model.standardisation, certificate
        self.attributes: dict[str, Any] = {} if certificate.assumes is None else {"assumes": certificate.assumes}

    def submit(self, start: int, stop: int) -> PendingRound:
        pieces = [(a, min(a + PREDICTION_PIECE_ROWS, stop)) for a in range(start, stop, PREDICTION_PIECE_ROWS)]
        groups = split_evenly(pieces, self._executor.parallelism)
        return self._executor.submit("kmean", mean_task, (self._context, self._certificate, self._test), groups)

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        return self.of(*(np.concatenate(parts) for parts in zip(*results, strict=True)))

    def of(self, mean: FloatArray, bound: FloatArray) -> dict[str, FloatArray]:
        to = self._standardisation
        raw, raw_bound = mean_in_units(mean, bound, to.target_std, to.target_mean)
        return {"mean": raw, "mean_error_bound": raw_bound}


class _MeansAndVariances:
    variables: tuple[str, ...] = ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper")

    def __init__(self, means: _Means, run: VarianceRun, model: ModelRecord) -> None:
        self._means, self._run = means, run
        self._scale = np.asarray(model.standardisation.target_std)
        self.attributes: dict[str, Any] = {
            **means.attributes,
            "variance": run.plan,
            "noise_variance": (model.noise_variance * self._scale**2).tolist(),
        }
        self.depth = run.depth

    def submit(self, start: int, stop: int) -> PendingRound:
        return self._run.submit(start, stop)

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        mean, bound, lower, upper = self._run.collect(results)
        low, high = variance_in_units(lower, upper, self._scale)
        return {**self._means.of(mean, bound), "variance": high, "variance_lower": low, "variance_upper": high}


def predict(
    model: ModelRecord,
    dataset: Dataset,
    url: str,
    executor: BlockExecutor,
    *,
    variance: VarianceSettings | None = None,
    chunk_rows: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    interrupted: Callable[[], bool] | None = None,
) -> PredictSummary:
    """Predict means with their proven error bounds, and variances in proven intervals, to a prediction store.

    Parameters
    ----------
    model : ModelRecord
    dataset : Dataset
        Test inputs; its features are matched to the model's by name and mapped by the model's standardisation.
    url : str
        Where the prediction store goes; values are in the targets' own units.
    executor : BlockExecutor
    variance : VarianceSettings, optional
        Predict variances too: of a new observation, noise included, unless `latent` asks for the function's own. The
        store's `variance` is the proven upper end of the interval.
    chunk_rows : int, optional
        Rows of a chunk of the store, and of a region.
    progress : callable, optional
        Called with (samples done, samples in all).
    note : callable, optional
        Called with a line on what is being prepared.
    overwrite : bool
    resume : bool
        Continue a prediction store that was interrupted; regions already there are not computed again.
    interrupted : callable, optional
        Asked between regions; when it answers true the regions done stay, for `resume`.

    Returns
    -------
    PredictSummary

    Raises
    ------
    InputError
        The test store lacks a feature of the model or has a NaN, or the store to resume was made from something else.
    StoreError
        The model's support inputs cannot be read.
    MemoryBudgetError
        Variances do not fit in their working memory.
    """
    started = time.perf_counter()
    kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
    if noise_variance != model.noise_variance:
        model = replace(model, kernel=kernel.to_json(), noise_variance=noise_variance)
    test = dataset.as_seen_by(model.feature_names, model.target_names, model.standardisation)
    _require_finite(test)
    version = f"{model.fingerprint}-{time.time_ns():x}"
    source = SupportInputs.of(model, version)
    context = BlockContext(version, source, kernel, model.n_samples)
    model.inputs(0, 1)  # support inputs that are gone are found out before anything is written
    scale = np.asarray(model.standardisation.target_std)
    certificate = Certificate.from_json(dict(model.certificate))
    if note is not None and not certificate.complete:
        note(
            "the model was certified by an older version, which did not count every rounding; train it again (a warm "
            "start from it takes one pass) for bounds that do"
        )
    writer = PredictionWriter.open_to_resume(url) if resume and exists(url) else None
    try:
        with single_threaded_blas():
            means = _Means(context, test, executor, model, certificate)
            rounds: _Rounds = means
            run: VarianceRun | None = None
            if variance is not None:
                stored = None if writer is None else writer.attributes.get("variance")
                run = VarianceRun(model, kernel, context, certificate, test, executor, variance, stored)
                rounds = _MeansAndVariances(means, run, model)
            attributes = {
                "model": model.url,
                "model_fingerprint": model.fingerprint,
                "data_fingerprint": dataset.fingerprint,
                "target_std": scale.tolist(),
                **rounds.attributes,
            }
            if writer is None:
                chunk = run.region_rows if chunk_rows is None and run is not None else chunk_rows
                names = model.target_names
                writer = PredictionWriter.create(
                    url, dataset.n_samples, names, rounds.variables, chunk, attributes, overwrite
                )
            elif writer.attributes != attributes:
                raise InputError(
                    f"'{url}' was predicted from another model or other data, or with other settings; "
                    "start afresh with `overwrite`"
                )
            try:
                if run is not None and writer.pending_regions():
                    said = run.prepare(model)
                    if note is not None:
                        note(said)
                regions = _write_regions(writer, rounds, progress, interrupted)
                writer.commit()
            except BaseException:
                if not writer.done_regions():
                    writer.abort()
                raise
    finally:
        worker_cache().discard_run(version)
    seconds = time.perf_counter() - started
    if len(regions) < -(-writer.n_samples // writer.chunk_rows):
        regions = _with_earlier_regions(regions, url)
    bound = max(region.bound for region in regions.values())
    figures = None if run is None else _of_store(run.summary(seconds), list(regions.values()))
    return PredictSummary(dataset.n_samples, model.n_samples, seconds, bound, str(url), figures, certificate.assumes)


@dataclass(frozen=True)
class _Region:
    """The record of a region that is stored: the largest error of a mean, and how wide intervals are."""

    bound: float
    gaps: GapTally | None

    @classmethod
    def of(cls, values: Mapping[str, FloatArray], attributes: Mapping[str, Any]) -> _Region:
        gaps = None
        if "variance" in attributes:
            gaps = GapTally.of(values["variance_lower"], values["variance_upper"], attributes["variance"]["gap"])
        return cls(float(np.max(values["mean_error_bound"])), gaps)


def _write_regions(
    writer: PredictionWriter,
    rounds: _Rounds,
    progress: Callable[[int, int], None] | None,
    interrupted: Callable[[], bool] | None,
) -> dict[int, _Region]:
    """Compute and write what is missing; return what there is to say of each region, by its first row."""
    regions: dict[int, _Region] = {}
    todo = deque(
        (start, min(start + writer.chunk_rows, last))
        for first, last in writer.pending_regions()
        for start in range(first, last, writer.chunk_rows)
    )
    done = writer.n_samples - sum(stop - start for start, stop in todo)
    under_way: deque[tuple[int, int, PendingRound]] = deque()
    while todo or under_way:
        if interrupted is not None and interrupted():
            raise InterruptedRunError(
                f"interrupted after {done} of {writer.n_samples} test samples; continue with `resume`", writer.url
            )
        while todo and len(under_way) < rounds.depth:
            start, stop = todo.popleft()
            under_way.append((start, stop, rounds.submit(start, stop)))
        start, stop, pending = under_way.popleft()
        values = rounds.values(pending.result())
        writer.write(start, **values)
        regions[start] = _Region.of(values, writer.attributes)
        done += stop - start
        if progress is not None:
            progress(done, writer.n_samples)
    return regions


def _with_earlier_regions(regions: dict[int, _Region], url: str) -> dict[int, _Region]:
    """The regions of the whole store; those that an earlier run wrote are read back."""
    stored = open_prediction(url)
    return {
        start: regions.get(start)
        or _Region.of({name: stored.read(name, start, stop) for name in stored.variables}, stored.attributes)
        for start, stop in stored.row_chunks()
    }


def _of_store(figures: dict[str, Any], regions: list[_Region]) -> dict[str, Any]:
    """A run's figures with the gaps of all that is stored in place of its own, and how many of them it computed."""
    tallies = [region.gaps for region in regions if region.gaps is not None]
    found = gap_figures(tallies, figures["gap"])
    unmet = found["variance_unmet"]
    return {
        **figures,
        "met": sum(tally.n for tally in tallies) - unmet,
        "unmet": unmet,
        "gap_mean": found["variance_gap_mean"],
        "gap_max": found["variance_gap_max"],
        "computed": figures["met"] + figures["unmet"],
    }


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
