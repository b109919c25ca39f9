"""Rounds that predict with a classifier: decisions, classes and probabilities, and proofs of these.

Pieces of a region are the same whoever computes them, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, PendingRound, split_evenly
from dkgp.data import ClassifierRecord, Dataset
from dkgp.errors import InputError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.context import RunContext
from dkgp.models.prediction.class_variances import ClassVariances
from dkgp.models.prediction.deciders import UNPROVEN, ClassifierSupport, Decider, decider_of
from dkgp.models.prediction.sparse_rounds import PredictionMemory, of_unproven
from dkgp.models.prediction.streaming import Rounds, Streamed, Together
from dkgp.models.sums import EVERY_ENTRY, Piece, Sums, chosen_sums
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext

Decided = tuple[IndexArray, dict[str, FloatArray]]


def decision_task(
    context: BlockContext, decider: Decider, sums: Sums, test: Dataset, pieces: list[Piece]
) -> list[Decided]:
    """Rows of each piece, their decisions, and what goes with them."""
    decisions = []
    for piece in pieces:
        rows, inputs = sums.read(context, test, piece)
        decisions.append((rows, decider.decide(context, inputs, sums)))
    return decisions


@needs_one_arithmetic
def library_decision_task(
    context: BlockContext, decider: Decider, sums: Sums, test: Dataset, pieces: list[Piece]
) -> list[Decided]:
    """Decisions as by `decision_task`, of sums within an error or by a method that takes BLAS."""
    return decision_task(context, decider, sums, test, pieces)


def class_rounds(
    model: ClassifierRecord,
    test: Dataset,
    context: RunContext,
    version: str,
    *,
    plug_in: bool = False,
    variance: VarianceSettings | None = None,
    stored: Mapping[str, Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> ClassRounds:
    """Return the rounds of a prediction; `version`, `stored` and `note` as of `exact_rounds`, `plug_in` of `predict`.

    Sums of decisions are within the context's `product_error`; those of a Gaussian process with latent variances
    evaluate every entry, which takes less than the variances. `variance` are settings of latent variances, which a
    Gaussian process of all samples has in any case.

    Raises
    ------
    InputError
        A number as the error of sums over a few prototypes, or for a kernel without proven bounds; other settings of
        variances than those of the prediction to resume, or any where there are none.
    MemoryBudgetError
        Latent variances do not fit in their working memory.
    StoreError
        The model's support inputs cannot be read.
    """
    executor, error = context.executor, context.product_error
    kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
    points = BlockContext(version, ClassifierSupport.of(model, version), kernel, model.n_support)
    if error.number is not None and model.is_sparse:
        raise InputError(
            f"`product_error` is of sums over all training samples; '{model.url}' is a sum over {model.n_support:,} "
            "prototypes, which takes no time. Leave it out"
        )
    model.inputs(0, min(1, model.n_support))  # points that are gone are found out before anything is written
    decider = decider_of(model, plug_in=plug_in)
    if model.neighbours is not None:
        PredictionMemory.of(model, executor.threads_per_process, variance=True).require(None)
    variances, sums = None, EVERY_ENTRY
    if model.form == "gp" and not model.is_sparse and not plug_in:
        plans = None if stored is None else stored.get("latent_variance")
        variances = ClassVariances(model, points, test, executor, variance, decider, plans)
    elif variance is not None:
        if model.form == "gp" and not plug_in:
            raise InputError(
                f"`variance`: '{model.url}' is a classifier on a basis, which predicts its latent functions' variances "
                "without it; leave it out"
            )
        raise InputError(
            f"`variance`: '{model.url}' is a classifier, which has no variances; leave it out. A Gaussian process of "
            "all samples has those of its latent functions; bounds of decisions tell what of others is proven"
        )
    elif not model.is_sparse:
        weights, errors = decider.weighted(model, points)
        sums = chosen_sums(points, executor, weights, test.n_samples, error, errors, stored, note)
    return ClassRounds(model, points, decider, test, executor, sums, plug_in=plug_in, variances=variances)


class ClassRounds(Rounds):
    """The rounds of a classifier's prediction; see `Rounds`.

    `context` is of the model's points, `test` as the model sees it; `sums` says how decisions take theirs; `plug_in`
    whether the store is to say that probabilities are not averaged; `variances` are of the latent functions.
    """

    def __init__(
        self,
        model: ClassifierRecord,
        context: BlockContext,
        decider: Decider,
        test: Dataset,
        executor: BlockExecutor,
        sums: Sums = EVERY_ENTRY,
        *,
        plug_in: bool = False,
        variances: ClassVariances | None = None,
    ) -> None:
        self._context, self._decider, self._test, self._executor = context, decider, test, executor
        self._sums, self._variances = sums, variances
        self._searched, self._computed, self._unproven = model.search_samples, 0, 0
        self.depth = 2 if variances is None else variances.depth
        self.region_rows = sums.region_rows if variances is None else variances.region_rows
        self.classes = model.classes
        self.n_support, self.assumes, self.variables = model.n_support, decider.assumes, decider.variables
        self.lacks = decider.lacks
        self.attributes = {} if decider.assumes is None else {"assumes": decider.assumes}
        self.attributes |= {"classes": list(model.classes), "method": model.form, "basis_size": model.n_support}
        if model.likelihood is not None:
            self.attributes["likelihood"] = model.likelihood["name"]
        if plug_in:
            self.attributes["plug_in"] = True
        self.attributes |= sums.attributes
        if variances is not None:
            self.attributes["latent_variance"] = variances.plan

    def prepare(self) -> str | None:
        """Build the factors of latent variances; without these, a worker's first task opens the model."""
        return None if self._variances is None else self._variances.prepare()

    def conclude(self) -> str | None:
        """Say of how many samples the neighbours may not be the nearest, if of any."""
        return of_unproven(self._unproven, self._computed, self._searched)

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        groups = split_evenly(self._sums.pieces(start, stop), self._executor.parallelism)
        portable = self._sums.errors is None and not self._decider.takes_blas
        task = decision_task if portable else library_decision_task
        arguments = (self._context, self._decider, self._sums, self._test)
        decisions = self._executor.submit("kdecide", task, arguments, groups)
        if self._variances is None:
            return decisions
        return Together([decisions, self._variances.submit(start, stop)], (start, stop))

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """Join a region's pieces; classes and probabilities follow from its decisions."""
        joined: dict[str, FloatArray] = {}
        if self._variances is not None:
            results, of_variances, start, stop = results
            joined = self._variances.collect(of_variances, start, stop)
        order = np.concatenate([rows for rows, _ in results])
        for name in results[0][1]:
            by_piece = np.concatenate([values[name] for _, values in results])
            joined[name] = np.empty_like(by_piece)
            joined[name][order] = by_piece
        self._computed += len(order)
        self._unproven += int(joined.pop(UNPROVEN, np.zeros(0)).sum())
        values = self._decider.conclude(joined)
        return {name: values[name] for name in self.variables}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any]:
        """Figures of the classes: method, counts by name, certified (a count, None where nothing is), computed."""
        assert self.classes is not None
        widths = streamed.interval_widths
        return {
            "method": self.attributes["method"],
            "counts": dict(zip(self.classes, streamed.counts, strict=True)),
            "certified": streamed.certified,
            "interval_width_mean": None if widths is None else widths[0],
            "interval_width_max": None if widths is None else widths[1],
            "seconds_per_sample": seconds / max(1, streamed.computed),
            "computed": streamed.computed,
            **({} if self._variances is None else {"latent_variance": self._variances.summary(seconds)}),
        }
