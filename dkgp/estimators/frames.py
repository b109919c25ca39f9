"""Predictions for a pandas DataFrame: Series and DataFrames with its index.

scikit-learn asks two things of predictions that pandas does not answer: stacking and transformed targets call
`reshape`, and scores of probabilities take `[:, k]`. What is returned here does, and is otherwise as pandas has it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def frame_index(table: object) -> Any:
    """The index of a pandas DataFrame; None of anything else. pandas is not imported for the answer."""
    pandas = sys.modules.get("pandas")
    return table.index if pandas is not None and isinstance(table, pandas.DataFrame) else None


def framed(values: Any, index: Any, name: str, columns: Sequence[Any] | None = None) -> Any:
    """Values (n,) as a Series of that name, or (n, columns) as a DataFrame."""
    from dkgp.estimators.pandas_kinds import PredictedColumn, PredictedColumns

    if values.ndim == 1:
        return PredictedColumn(values, index=index, name=name)
    return PredictedColumns(values, index=index, columns=columns)
