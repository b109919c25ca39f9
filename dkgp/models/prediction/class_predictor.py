"""Predictions of a classifier at rows in memory: decisions, labels, probabilities, and what of them is certified.

As `dkgp.models.prediction.predictor`: a predictor belongs to one process and serves all its threads, and a
`ClassPredictorSource` is all that travels. Results do not depend on how many threads share the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import in_parallel, single_threaded_blas
from dkgp.data import ClassifierRecord
from dkgp.data.types import IntArray
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact.certificate import DecisionCertificate, certified_labels
from dkgp.models.classification.labels import decided
from dkgp.models.prediction.classes import ClassifierSupport, decisions_of
from dkgp.models.prediction.predictor import standardised
from dkgp.models.sums import PIECE_ROWS
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

__all__ = ["ClassPredicted", "ClassPredictor", "ClassPredictorSource"]


@dataclass(frozen=True)
class ClassPredicted:
    """Predictions of r samples.

    Attributes
    ----------
    decision : (r, t)
        One column for two classes, otherwise one for each.
    decision_error_bound : (r, t) or None
        By how much decisions can miss the exact model's; None of a model that proves nothing.
    calibration : Calibration or None
        How decisions become probabilities.
    """

    decision: FloatArray
    decision_error_bound: FloatArray | None
    calibration: Calibration | None

    @property
    def code(self) -> IntArray:
        """Labels as codes, (r,)."""
        return decided(self.decision)

    @property
    def probability(self) -> FloatArray:
        """Probabilities of the classes, (r, C).

        Raises
        ------
        InputError
            The model was trained without.
        """
        if self.calibration is None:
            raise InputError("the model was trained without probabilities; train it again with `probability`")
        return self.calibration.probabilities(self.decision)

    @property
    def certified(self) -> NDArray[np.bool_]:
        """True where the label is proven to be the exact model's, (r,).

        Raises
        ------
        InputError
            The model proves nothing.
        """
        return certified_labels(self.decision, self.bounds)

    @property
    def bounds(self) -> FloatArray:
        """The decisions' error bounds, (r, t); errors as of `certified`."""
        if self.decision_error_bound is None:
            raise InputError("a model of prototypes proves nothing of an exact one; train an exact LS-SVM for that")
        return self.decision_error_bound


class ClassPredictor:
    """Predicts rows in memory.

    Parameters
    ----------
    model : ClassifierRecord
        In a store, or in this process's memory.
    version : str
        Under which this process's cache keeps what belongs to the model; see `Predictor.forget`.
    threads : int, optional
        All cores by default.
    """

    nbytes = 0  # in a worker's cache: what is large is there by itself

    def __init__(self, model: ClassifierRecord, version: str, *, threads: int | None = None) -> None:
        kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        self._model, self._threads = model, threads
        self._context = BlockContext(version, ClassifierSupport.of(model, version), kernel, model.n_support)
        exact = model.form == "exact"
        self._certificate = DecisionCertificate.from_json(dict(model.certificate)) if exact else None
        self._calibration = None if model.calibration is None else Calibration.from_json(model.calibration)

    def __call__(self, inputs: FloatArray) -> ClassPredicted:
        """Predict at raw inputs of the model's features: (r, d), or (r, d_raw) with those that were constant.

        Raises
        ------
        InputError
            Another number of features, or values that are not finite.
        """
        rows = standardised(self._model, inputs)
        shape = (len(rows), self._model.n_outputs)
        decisions = np.empty(shape)
        bounds = None if self._certificate is None else np.empty(shape)

        def work(piece: int) -> None:
            where = slice(piece * PIECE_ROWS, (piece + 1) * PIECE_ROWS)
            decisions[where], bound = decisions_of(self._context, self._certificate, rows[where])
            if bounds is not None and bound is not None:
                bounds[where] = bound

        with single_threaded_blas():
            in_parallel(work, -(-len(rows) // PIECE_ROWS), self._threads)
        return ClassPredicted(decisions, bounds, self._calibration)


@dataclass(frozen=True)
class ClassPredictorSource:
    """Source of a process's predictor; travels with tasks.

    Attributes
    ----------
    url : str
        Of the model: a store that the process can read, or a model in its own memory.
    version : str
        As for `ClassPredictor`.
    reference : str
        As of `SupportInputs`.
    """

    url: str
    version: str
    reference: str

    def predictor(self) -> ClassPredictor:
        """Return this process's predictor for calls by single threads; the first call makes it, others wait."""
        source = ClassifierSupport(self.url, self.version, 0, 0, self.reference)
        return worker_cache().get(
            (self.version, "predictor"), lambda: ClassPredictor(source.record(), self.version, threads=1)
        )
