"""Rounds that predict with a classifier: decisions, classes and probabilities, and what of them is proven.

Decisions are sums over the points of the model, all samples or a few prototypes, which tasks read on the worker that
runs them. Classes and probabilities follow from decisions by arithmetic of one row, at the coordinator. Pieces of a
region are the same whoever computes them, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, PendingRound, split_evenly
from dkgp.data import ClassifierRecord, Dataset, find_classifier
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.exact.certificate import DecisionCertificate, certified_labels
from dkgp.models.classification.exact.decisions import certified_decisions
from dkgp.models.classification.labels import decided
from dkgp.models.prediction.streaming import Streamed
from dkgp.models.rounding import assumptions
from dkgp.models.sums import EVERY_ENTRY, Piece, Sums, cross_products, joined
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

__all__ = ["ClassRounds", "ClassifierSupport", "class_rounds", "decisions_of"]


@dataclass(frozen=True)
class _Cached:
    record: ClassifierRecord

    @property
    def nbytes(self) -> int:
        return int(self.record.coefficients.nbytes)


@dataclass(frozen=True)
class ClassifierSupport:
    """A classifier's points as an input source; travels as an address and opens where it is used.

    Attributes
    ----------
    url : str
        Of the classifier: a store that the process can read, or a model in its own memory.
    version : str
        Under which the process's cache keeps what belongs to the run.
    n_samples, n_features : int
    reference : str
        As of `SupportInputs`.
    """

    url: str
    version: str
    n_samples: int
    n_features: int
    reference: str

    @classmethod
    def of(cls, model: ClassifierRecord, version: str) -> ClassifierSupport:
        """The points of a classifier that is open here."""
        return cls(model.url, version, model.n_support, model.n_features, model.reference)

    def record(self) -> ClassifierRecord:
        """Open the classifier, or take it from this worker's cache."""
        found = worker_cache().get(
            (self.version, "classifier"), lambda: _Cached(find_classifier(self.url, reference=self.reference))
        )
        return found.record

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points start:stop."""
        return self.record().inputs(start, stop)


Decisions = tuple[FloatArray, FloatArray | None]


def decisions_of(
    context: BlockContext, certificate: DecisionCertificate | None, inputs: FloatArray, sums: Sums = EVERY_ENTRY
) -> Decisions:
    """Decisions at standardised inputs (r, d), and with a certificate by how much each may miss: (r, t) both."""
    assert isinstance(context.source, ClassifierSupport)
    model = context.source.record()
    if certificate is None:
        return cross_products(context, inputs, model.coefficients) + model.intercept, None
    assert model.alpha is not None
    assert model.ones is not None
    return certified_decisions(context, certificate, model.alpha, model.ones, model.intercept, inputs, sums)


def decision_task(
    context: BlockContext, certificate: DecisionCertificate | None, sums: Sums, test: Dataset, pieces: list[Piece]
) -> list[tuple[IndexArray, *tuple[FloatArray, ...]]]:
    """Rows of each piece, their decisions, and with a certificate by how much each may miss."""
    found: list[tuple[IndexArray, *tuple[FloatArray, ...]]] = []
    for piece in pieces:
        rows, inputs = sums.read(context, test, piece)
        decisions, bounds = decisions_of(context, certificate, inputs, sums)
        found.append((rows, decisions) if bounds is None else (rows, decisions, bounds))
    return found


@needs_one_arithmetic
def tree_decision_task(
    context: BlockContext, certificate: DecisionCertificate | None, sums: Sums, test: Dataset, pieces: list[Piece]
) -> list[tuple[IndexArray, *tuple[FloatArray, ...]]]:
    """As `decision_task`, by a tree: far away the C library's exponential is taken."""
    return decision_task(context, certificate, sums, test, pieces)


def class_rounds(
    model: ClassifierRecord,
    test: Dataset,
    executor: BlockExecutor,
    version: str,
    note: Callable[[str], None] | None = None,
    sums: Sums = EVERY_ENTRY,
) -> ClassRounds:
    """Return the rounds of a prediction; parameters as of `exact_rounds`.

    Raises
    ------
    InputError
        Tree sums over a few prototypes, or of a kernel that a tree cannot serve.
    StoreError
        The model's support inputs cannot be read.
    """
    kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
    context = BlockContext(version, ClassifierSupport.of(model, version), kernel, model.n_support)
    if sums.tree_error is not None and model.is_sparse:
        raise InputError(
            f"`tree_error` prunes sums over all training samples; '{model.url}' is a sum over {model.n_support:,} "
            "prototypes, which takes no time. Leave it out"
        )
    sums.require(context, executor)
    model.inputs(0, min(1, model.n_support))  # points that are gone are found out before anything is written
    certificate = DecisionCertificate.from_json(dict(model.certificate)) if model.form == "exact" else None
    assumes = None if certificate is None else assumptions(kernel)
    if note is not None and model.calibration is None:
        note("the classifier was trained without calibration: no probabilities are predicted")
    return ClassRounds(model, context, certificate, test, executor, assumes, sums)


class ClassRounds:
    """The rounds of a classifier's prediction; see `Rounds`.

    Parameters
    ----------
    model : ClassifierRecord
    context : BlockContext
        Of its points.
    certificate : DecisionCertificate or None
        Of an exact one.
    test : Dataset
        As the model sees it.
    executor : BlockExecutor
    assumes : str or None
        What bounds take on trust.
    sums : Sums
        How decisions take theirs.
    """

    depth = 2
    region_rows: int | None = None

    def __init__(
        self,
        model: ClassifierRecord,
        context: BlockContext,
        certificate: DecisionCertificate | None,
        test: Dataset,
        executor: BlockExecutor,
        assumes: str | None,
        sums: Sums,
    ) -> None:
        self._context, self._certificate, self._test, self._executor = context, certificate, test, executor
        self._sums = sums
        self._calibration = None if model.calibration is None else Calibration.from_json(model.calibration)
        self.classes: tuple[str, ...] | None = model.classes
        self.n_support, self.assumes = model.n_support, assumes
        self.variables: tuple[str, ...] = (
            "decision",
            *(() if certificate is None else ("decision_error_bound",)),
            *(() if self._calibration is None else ("probability",)),
            "class",
            *(() if certificate is None else ("certified",)),
        )
        self.attributes: dict[str, Any] = {} if assumes is None else {"assumes": assumes}
        self.attributes |= {"classes": list(model.classes), "method": model.form, "basis_size": model.n_support}
        self.attributes |= sums.attributes

    def prepare(self) -> None:
        """Nothing: the first task that a worker gets opens the model."""

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        groups = split_evenly(self._sums.pieces(start, stop), self._executor.parallelism)
        arguments = (self._context, self._certificate, self._sums, self._test)
        task = decision_task if self._sums.tree_error is None else tree_decision_task
        return self._executor.submit("kdecide", task, arguments, groups)

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """Join a region's pieces, and tell class and probability of its decisions."""
        decisions, *bounds_of = joined(results)
        found: dict[str, Any] = {"decision": decisions, "class": decided(decisions)}
        if self._certificate is not None:
            (bounds,) = bounds_of
            found["decision_error_bound"] = bounds
            found["certified"] = certified_labels(decisions, bounds).astype(np.int64)
        if self._calibration is not None:
            found["probability"] = self._calibration.probabilities(decisions)
        return {name: found[name] for name in self.variables}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any]:
        """Figures of the classes: method, counts by name, certified (a count, None where nothing is), computed."""
        assert self.classes is not None
        return {
            "method": self.attributes["method"],
            "counts": dict(zip(self.classes, streamed.counts, strict=True)),
            "certified": streamed.certified,
            "seconds_per_sample": seconds / max(1, streamed.computed),
            "computed": streamed.computed,
        }
