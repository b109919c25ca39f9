"""Rounds that predict with a linear regression: a sum over the features that have a weight, without a bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, PendingRound, split_evenly
from dkgp.data import Dataset, LinearRecord
from dkgp.errors import InputError
from dkgp.models.prediction.streaming import Rounds
from dkgp.operators.base import FloatArray

PIECE_ROWS = 4096


def linear_task(
    coefficients: FloatArray, intercept: FloatArray, test: Dataset, pieces: list[tuple[int, int]]
) -> list[FloatArray]:
    """Standardised predictions of the rows of each piece: (rows, p)."""
    predictions = []
    for start, stop in pieces:
        inputs = test.inputs(start, stop)
        values = np.tile(intercept, (len(inputs), 1))
        # Sums and products by themselves: their bits are the same on every processor, a BLAS's are not.
        for feature in np.flatnonzero(coefficients.any(axis=1)):
            values += inputs[:, [feature]] * coefficients[feature]
        predictions.append(values)
    return predictions


class LinearRounds(Rounds):
    """Rounds of means; `InputError` for variances, which a linear regression does not have."""

    variables = ("mean",)

    def __init__(self, model: LinearRecord, test: Dataset, executor: BlockExecutor, wants_variances: bool) -> None:
        if wants_variances:
            raise InputError(
                f"`variance` is of Gaussian processes; '{model.url}' is a linear regression, which predicts means "
                "alone. Leave it out"
            )
        self._model, self._test, self._executor = model, test, executor
        self.n_support = int(np.count_nonzero(model.coefficients.any(axis=1)))
        self.attributes: dict[str, Any] = {"linear": str(model.summary["method"])}

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        pieces = [(first, min(first + PIECE_ROWS, stop)) for first in range(start, stop, PIECE_ROWS)]
        groups = split_evenly(pieces, self._executor.parallelism)
        arguments = (self._model.coefficients, self._model.intercept, self._test)
        return self._executor.submit("klinear", linear_task, arguments, groups)

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """Join a region's pieces, in the targets' own units."""
        to = self._model.standardisation
        return {"mean": np.concatenate(results) * to.target_std + to.target_mean}
