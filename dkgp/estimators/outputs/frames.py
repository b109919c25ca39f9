"""Predictions for a pandas or dask DataFrame: Series and DataFrames with its index.

scikit-learn asks two things of predictions that pandas does not answer: stacking and transformed targets call
`reshape`, and scores of probabilities take `[:, k]`. What is returned here does, and is otherwise as pandas has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray


def frame_index(table: object) -> Any:
    """The index of a pandas DataFrame; None of anything else. pandas is not imported for the answer."""
    pandas = sys.modules.get("pandas")
    return table.index if pandas is not None and isinstance(table, pandas.DataFrame) else None


def framed(values: Any, index: Any, name: str, columns: Sequence[Any] | None = None) -> Any:
    """Values (n,) as a Series of that name, or (n, columns) as a DataFrame, with a pandas index."""
    from dkgp.estimators.outputs.pandas_kinds import PredictedColumn, PredictedColumns

    if values.ndim == 1:
        return PredictedColumn(values, index=index, name=name)
    return PredictedColumns(values, index=index, columns=columns)


def map_rows(frame: Any, compute: Callable[[FloatArray], FloatArray], columns: Sequence[Any]) -> Any:
    """Apply a function of rows (r, d) -> (r, columns) to each partition of a dask DataFrame, as a dask DataFrame.

    Rows and index of a result come from one and the same partition. A dask array of the frame joined to the frame's
    index would not do: dask optimises each of them by itself, so that the graph lacks keys, or a shuffle runs twice and
    orders its rows differently.

    `compute` needs a token of its own (`__dask_tokenize__`), or to be of plain values.
    """
    import pandas

    meta = pandas.DataFrame(np.empty((0, len(columns))), index=frame._meta.index, columns=list(columns))
    return frame.map_partitions(_computed_rows, compute, list(columns), meta=meta)


def _computed_rows(part: Any, compute: Callable[[FloatArray], FloatArray], columns: list[Any]) -> Any:
    return type(part)(compute(part.to_numpy(np.float64, na_value=np.nan)), index=part.index, columns=columns)


def renamed(frame: Any, columns: Sequence[Any]) -> Any:
    """A dask DataFrame with its columns renamed, in order."""
    return frame.rename(columns=dict(zip(frame.columns, columns, strict=True)))
