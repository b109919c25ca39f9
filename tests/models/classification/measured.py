"""Figures of labels that are all in memory, as `ClassTally` has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray, IntArray
from dkgp.models.classification.metrics import ClassMetrics, ClassTally, mean_area


def class_metrics(
    classes: Iterable[str],
    codes: IntArray,
    predicted: IntArray,
    *,
    decisions: FloatArray | None = None,
    abstain: bool = False,
    **beside: Any,
) -> ClassMetrics:
    """Measure all at once; `decisions` (n, t) are for the area under the curve, the others are those of a tally."""
    tally = ClassTally(tuple(classes), abstain)
    tally.add(codes, predicted, **beside)
    if decisions is None:
        return tally.metrics()
    kept = beside["certified"] if abstain else np.ones(len(codes), dtype=bool)
    return tally.metrics(mean_area(codes[kept], lambda column: decisions[kept, column], decisions.shape[1]))
