"""Predictions of rows in memory: from a model, made ready once, to means and variances block by block.

A predictor belongs to one process and serves all its threads. Nothing travels but a `PredictorSource`, a few hundred
bytes: each process makes its own predictor from it, and keeps that in its worker cache.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, LocalExecutor, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset, ModelRecord, standardised_inputs
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.model import Model
from dkgp.errors import InputError
from dkgp.forks import fork_safe
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.certificate import Certificate
from dkgp.models.noise import NoiseModel
from dkgp.models.prediction.exact import allowed_errors, mean_task
from dkgp.models.rounding import mean_in_units, middle, variance_in_units
from dkgp.models.sums import MemorySums, Rows, SupportInputs, joined
from dkgp.models.trend import Trend
from dkgp.models.variance.batched import BatchedRun
from dkgp.models.variance.neighbours.run import NeighbourRun
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import SentRows, TestRows, VarianceSettings
from dkgp.models.variance.ways import Request, chosen_run, may_be_near
from dkgp.models.variance.whole_matrix import WholeFactor, WholeRun
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.product_error import AUTO, ProductError


@dataclass(frozen=True)
class Predicted:
    """Predictions in the targets' own units, float64."""

    # (r, p): the mean, and a bound on its distance from the exact solution's.
    mean: FloatArray
    mean_error: FloatArray
    # (r, p): the proven interval of the variance; None where variances were not asked for.
    variance_lower: FloatArray | None = None
    variance_upper: FloatArray | None = None

    @property
    def variance(self) -> FloatArray | None:
        """The variance to report: the middle of the interval."""
        if self.variance_lower is None or self.variance_upper is None:
            return None
        return middle(self.variance_lower, self.variance_upper)


class Predictor:
    """Predicts rows in memory.

    `model`: in a store, or in this process's memory. `version`: under which this process's cache keeps what belongs to
    the model; see `forget`. `variance`: predict variances too. `n_test`: about how many rows will be predicted in all;
    what variances are planned for. `every_thread`: whether a call may use all of this process's threads; otherwise it
    uses the one that makes it. `error`: of the sums of means, which evaluate every entry with "none"; otherwise a
    forecast decides for each call.

    Variances by the way "auto" are chosen at the first call, by its rows, where neighbours may be quickest.
    """

    nbytes = 0  # in a worker's cache, which counts the large parts by themselves

    def __init__(
        self,
        model: ModelRecord,
        version: str,
        variance: VarianceSettings | None = None,
        *,
        n_test: int = 1,
        every_thread: bool = True,
        error: ProductError = AUTO,
    ) -> None:
        self._model = model
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        source = SupportInputs.of(model, version)
        self._context = BlockContext(version, source, kernel, model.n_samples)
        self._executor: BlockExecutor = LocalExecutor() if every_thread else HereExecutor()
        self._here = HereExecutor()
        with described_whole(model.url, "train again"):
            self._certificate = Certificate.from_json(dict(model.certificate))
        self._trend = Trend.held(model.trend)
        self._noise = None if variance is None or variance.latent else NoiseModel.held(model.noise_model)
        self._sums = MemorySums(
            self._context, error, lambda: (model.alpha, allowed_errors(model, self._context, self._certificate))
        )
        self._variance: BatchedRun | None = None
        self._request: Request | None = None
        self._lock = fork_safe(threading.Lock())
        if variance is not None:
            none = standardised_inputs(np.zeros((0, model.n_features)), model.feature_names)
            subject = self._subject = Subject.of(replace(model, noise_variance=noise_variance), self._context)
            self._request = Request(
                subject.model,
                subject.kernel,
                subject.context,
                self._certificate,
                subject.tests(none),
                self._executor,
                variance,
                tests=max(1, n_test),
            )
            if not may_be_near(self._request):
                self._run()

    def _run(self, test: TestRows | None = None) -> BatchedRun:
        """Return the run of variances, which is chosen the first time, by the test samples if there are any."""
        assert self._request is not None
        with self._lock, single_threaded_blas():
            if self._variance is None:
                request = self._request
                if test is not None:
                    tests = max(test.n_samples, request.n_test)
                    request = replace(request, test=self._subject.tests(test), tests=tests)
                run = chosen_run(request)
                if isinstance(run, WholeRun):
                    run.prepare(self._subject.model)
                run = run.without_means() if isinstance(run, NeighbourRun) else run
                self._variance = run.at(self._request.test)  # the first test samples need not stay
            return self._variance

    def __call__(self, inputs: FloatArray) -> Predicted:
        """Predict at raw inputs of the model's features: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        scale, offset = self._model.standardisation.target_std, self._model.standardisation.target_mean
        test = standardised_inputs(standardised(self._model, inputs), self._model.feature_names)
        if test.n_samples == 0:
            return self._nothing()
        with single_threaded_blas():
            if self._request is None:
                mean, bound, off = self._means(test)
                if self._trend is not None:
                    taken = self._trend.at(mean, bound, test.inputs(0, test.n_samples), *off)
                    mean, bound = taken.mean, taken.bound
                return Predicted(*mean_in_units(mean, bound, scale, offset))
            mean, bound, off, lower, upper = self._with_variances(test)
        if self._trend is not None:
            taken = self._trend.at(mean, bound, test.inputs(0, test.n_samples), *off)
            mean, bound = taken.mean, taken.bound
            lower, upper = taken.widened(lower, upper)
        if self._noise is not None:
            lower, upper = self._noise.widened(lower, upper, test.inputs(0, test.n_samples))
        return Predicted(*mean_in_units(mean, bound, scale, offset), *variance_in_units(lower, upper, scale))

    def _means(self, test: Dataset) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """Means and their errors (r, p), standardised, and the errors of their sums where these are not zero."""
        sums, order = self._sums.at(test.inputs(0, test.n_samples))
        rows: Rows = test if order is None else SentRows(test.inputs(0, test.n_samples)[order])
        pieces = sums.pieces(0, test.n_samples)
        # What one thread does is done by this one: another would have to wake up for it.
        executor = self._executor if len(pieces) > 1 else self._here
        groups = split_evenly(pieces, executor.parallelism)
        arguments = (self._context, self._certificate, sums, rows)
        mean, bound, *off = joined(executor.submit("kmean", mean_task, arguments, groups).result(), order)
        return mean, bound, off

    def standardised_interval(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ends of the variances' intervals at standardised rows (r, d), without a noise model's part: (r,) each."""
        test = standardised_inputs(rows, self._model.feature_names)
        with single_threaded_blas():
            return self._intervals(self._run(test), test)[2:]

    def whole_factor(self) -> WholeFactor:
        """Return the factor of all samples that variances come from, of a predictor whose `way` is "cholesky"."""
        run = self._run()
        assert isinstance(run, WholeRun)
        return run.factor()

    def _with_variances(self, test: Dataset) -> tuple[FloatArray, FloatArray, list[FloatArray], FloatArray, FloatArray]:
        """Means, their errors and those of their sums as by `_means`, and ends of variances' intervals (r,)."""
        run = self._run(test)
        mean, bound, lower, upper = self._intervals(run, test)
        off: list[FloatArray] = []
        if isinstance(run, NeighbourRun):
            mean, bound, off = self._means(test)
        return mean, self._certificate.by_variance(bound, self._context.kernel, upper), off, lower, upper

    def _intervals(self, run: BatchedRun, test: TestRows) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Means and their errors (r, p), where the run has them, and ends of variances' intervals (r,)."""
        at = run.at(self._subject.tests(test))
        mean, bound, lower, upper = at.collect(at.submit(0, test.n_samples).result())
        return mean, bound, *self._subject.interval(lower, upper)

    def _nothing(self) -> Predicted:
        empty = np.empty((0, self._model.n_targets))
        return Predicted(empty, empty) if self._request is None else Predicted(empty, empty, empty, empty)

    @staticmethod
    def forget(version: str) -> None:
        """Drop what this process keeps under a version; a finalizer may call it."""
        worker_cache().abandon(version)


@dataclass(frozen=True)
class PredictorSource:
    """Source of a process's predictor; travels with tasks."""

    url: str  # of the model: a store that the process can read, or a model in its own memory
    # As for `Predictor`.
    version: str
    variance: VarianceSettings | None
    n_test: int
    reference: str  # as of `SupportInputs`
    error: ProductError = AUTO  # as for `Predictor`

    def predictor(self) -> Predictor:
        """Return this process's predictor for calls by single threads; the first call makes it, others wait."""
        source = SupportInputs(self.url, self.version, 0, 0, self.reference)
        return worker_cache().get(
            (self.version, "predictor", self.variance, self.n_test, self.error),
            lambda: Predictor(
                source.record(), self.version, self.variance, n_test=self.n_test, every_thread=False, error=self.error
            ),
        )


def standardised(model: Model, inputs: FloatArray) -> FloatArray:
    """Raw inputs (r, d), or (r, d_raw) with the features that were constant, as the model sees them: (r, d).

    Raises `InputError`: another number of features, or values that are not finite.
    """
    standardisation = model.standardisation
    if inputs.ndim == 2 and inputs.shape[1] == standardisation.n_raw_features:
        inputs = standardisation.keep(inputs)
    elif inputs.ndim != 2 or inputs.shape[1] != model.n_features:
        raise InputError(
            f"inputs have shape {inputs.shape}; expected (rows, {standardisation.n_raw_features}), or the "
            f"{model.n_features} features that vary"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        result: FloatArray = (inputs - standardisation.input_mean) / standardisation.input_std
    if not np.isfinite(result).all():
        row, column = np.argwhere(~np.isfinite(result))[0]
        raise InputError(
            f"the feature '{model.feature_names[column]}' is {inputs[row, column]} in row {row}, {result[row, column]} "
            "when standardised; predictions need finite inputs. Remove or fill in such rows"
        )
    return result
