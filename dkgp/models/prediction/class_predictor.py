"""Predictions of a classifier at rows in memory: decisions, labels, probabilities, and proofs of these.

As `dkgp.models.prediction.predictor`: a predictor belongs to one process and serves all its threads, and a
`ClassPredictorSource` is all that travels. Results do not depend on how many threads share the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor, LocalExecutor
from dkgp.cluster.threads import in_parallel, single_threaded_blas
from dkgp.data import ClassifierRecord, standardised_inputs
from dkgp.data.types import IntArray
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.prediction.class_variances import ClassVariances
from dkgp.models.prediction.deciders import ClassifierSupport, decider_of
from dkgp.models.prediction.predictor import standardised
from dkgp.models.sums import MemorySums
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.product_error import AUTO, EVERY_ENTRY, ProductError

ROWS_PLANNED_FOR = 1024


@dataclass(frozen=True)
class ClassPredicted:
    """Predictions of r samples.

    `values`: what the model's `Decider` tells, by the names of `CLASS_VARIABLES`. Properties read it, and raise
    `InputError` where the model has no such thing.
    """

    values: dict[str, FloatArray]

    @property
    def decision(self) -> FloatArray:
        """Decisions, (r, t): one column for two classes, otherwise one for each."""
        return self.values["decision"]

    @property
    def decision_error_bound(self) -> FloatArray | None:
        """By how much decisions can miss the exact model's, (r, t); None of a model that proves nothing."""
        return self.values.get("decision_error_bound")

    @property
    def code(self) -> IntArray:
        """Labels as codes, (r,)."""
        return self.values["class"].astype(np.int64)

    @property
    def probability(self) -> FloatArray:
        """Probabilities of the classes, (r, C)."""
        return self._of("probability", "the model was trained without probabilities; train it again with `probability`")

    @property
    def probability_lower(self) -> FloatArray:
        """Proven lower bounds on the exact model's probabilities, (r, C)."""
        return self._of("probability_lower", _NO_INTERVALS)

    @property
    def probability_upper(self) -> FloatArray:
        """Proven upper bounds on the exact model's probabilities, (r, C)."""
        return self._of("probability_upper", _NO_INTERVALS)

    @property
    def latent_variance_lower(self) -> FloatArray:
        """Proven lower bounds on the latent functions' variances, (r, t)."""
        return self._of("latent_variance_lower", _NO_VARIANCES)

    @property
    def latent_variance_upper(self) -> FloatArray:
        """Proven upper bounds on the latent functions' variances, (r, t)."""
        return self._of("latent_variance_upper", _NO_VARIANCES)

    @property
    def certified(self) -> NDArray[np.bool_]:
        """True where the label is proven to be the exact model's, (r,)."""
        return np.asarray(self._of("certified", _NOTHING_PROVEN) > 0.0)

    @property
    def bounds(self) -> FloatArray:
        """The decisions' error bounds, (r, t)."""
        return self._of("decision_error_bound", _NOTHING_PROVEN)

    def _of(self, name: str, otherwise: str) -> FloatArray:
        if name not in self.values:
            raise InputError(otherwise)
        return self.values[name]


_NOTHING_PROVEN = (
    "the model proves nothing of an exact one; train an exact LS-SVM or a logistic classifier, or certify the basis of "
    "one"
)
_NO_INTERVALS = (
    "the model has no proven intervals of probabilities; train a logistic classifier of all samples for that"
)
_NO_VARIANCES = "the model has no variances of latent functions; train a Gaussian process of labels for that"


class ClassPredictor:
    """Predicts rows in memory.

    `model`: in a store, or in this process's memory. `version`: under which this process's cache keeps what belongs to
    the model; see `Predictor.forget`. `threads`: all cores by default. `variance`: of a Gaussian process' latent
    variances. `n_test`: about how many rows will be predicted in all; what latent variances are planned for. `plug_in`:
    no variances, and probabilities that are not averaged; decisions are the same without. `error`: of the sums of
    decisions over all samples, as for `Predictor`; beside latent variances they evaluate every entry.
    """

    nbytes = 0  # in a worker's cache, which counts the large parts by themselves

    def __init__(
        self,
        model: ClassifierRecord,
        version: str,
        *,
        threads: int | None = None,
        variance: VarianceSettings | None = None,
        n_test: int = ROWS_PLANNED_FOR,
        plug_in: bool = False,
        error: ProductError = AUTO,
    ) -> None:
        kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        self._model, self._threads = model, threads
        self._context = BlockContext(version, ClassifierSupport.of(model, version), kernel, model.n_support)
        self._decider = decider_of(model, plug_in=plug_in)
        self._variances: ClassVariances | None = None
        if model.form == "gp" and not model.is_sparse and not plug_in:
            executor: BlockExecutor = HereExecutor() if threads == 1 else LocalExecutor(threads)
            none = standardised_inputs(np.zeros((0, model.n_features)), model.feature_names)
            with single_threaded_blas():
                self._variances = ClassVariances(
                    model, self._context, none, executor, variance, self._decider, n_test=n_test
                )
        chooses = not model.is_sparse and self._variances is None
        self._sums = MemorySums(
            self._context,
            error if chooses else EVERY_ENTRY,
            lambda: self._decider.weighted(model, self._context),
        )

    def __call__(self, inputs: FloatArray) -> ClassPredicted:
        """Predict at raw inputs of the model's features: (r, d), or (r, d_raw) with those that were constant.

        Raises `InputError`: another number of features, or values that are not finite.
        """
        rows = standardised(self._model, inputs)
        sums, order = self._sums.at(rows)
        ordered, size = rows if order is None else rows[order], sums.piece_rows
        pieces = max(1, -(-len(rows) // size))
        pieces_decided: list[dict[str, FloatArray]] = [{}] * pieces

        def work(piece: int) -> None:
            where = slice(piece * size, (piece + 1) * size)
            pieces_decided[piece] = self._decider.decide(self._context, ordered[where], sums)

        with single_threaded_blas():
            in_parallel(work, pieces, self._threads)
            joined = {name: np.concatenate([piece[name] for piece in pieces_decided]) for name in pieces_decided[0]}
            if order is not None:
                places = np.argsort(order)
                joined = {name: values[places] for name, values in joined.items()}
            joined |= self._latent(rows)
        return ClassPredicted(self._decider.conclude(joined))

    def _latent(self, rows: FloatArray) -> dict[str, FloatArray]:
        """The ends of latent variances, where the model has some."""
        if self._variances is None:
            return {}
        if not len(rows):
            nothing = np.zeros((0, self._model.n_outputs))
            return {"latent_variance_lower": nothing, "latent_variance_upper": nothing}
        run = self._variances.at(standardised_inputs(rows, self._model.feature_names))
        return run.collect(run.submit(0, len(rows)).result(), 0, len(rows))


@dataclass(frozen=True)
class ClassPredictorSource:
    """Source of a process's predictor; travels with tasks.

    `url`: of the model: a store that the process can read, or a model in its own memory. `version`, `plug_in`: as for
    `ClassPredictor`, as is `error`. `reference`: as of `SupportInputs`.
    """

    url: str
    version: str
    reference: str
    plug_in: bool = False
    error: ProductError = AUTO

    def predictor(self) -> ClassPredictor:
        """Return this process's predictor for calls by single threads; the first call makes it, others wait."""
        source = ClassifierSupport(self.url, self.version, 0, 0, self.reference)
        return worker_cache().get(
            (self.version, "predictor", self.plug_in, self.error),
            lambda: ClassPredictor(source.record(), self.version, threads=1, plug_in=self.plug_in, error=self.error),
        )
