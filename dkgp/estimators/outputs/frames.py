"""Predictions for a pandas or dask DataFrame: Series and DataFrames with its index.

scikit-learn asks two things of predictions that pandas does not answer: stacking and transformed targets call
`reshape`, and scores of probabilities take `[:, k]`. What is returned here does, and is otherwise as pandas has it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any


def frame_index(table: object) -> Any:
    """The index of a pandas DataFrame; None of anything else. pandas is not imported for the answer."""
    pandas = sys.modules.get("pandas")
    return table.index if pandas is not None and isinstance(table, pandas.DataFrame) else None


def framed(values: Any, index: Any, name: str, columns: Sequence[Any] | None = None) -> Any:
    """Values (n,) as a Series of that name, or (n, columns) as a DataFrame; dask's, not computed, for dask's index."""
    if hasattr(index, "dask"):
        from dask.dataframe import from_dask_array

        return from_dask_array(values, columns=name if values.ndim == 1 else list(columns or ()), index=index)
    from dkgp.estimators.outputs.pandas_kinds import PredictedColumn, PredictedColumns

    if values.ndim == 1:
        return PredictedColumn(values, index=index, name=name)
    return PredictedColumns(values, index=index, columns=columns)


def framed_lazily(
    parts: Mapping[str, Any], index: Any, titles: Mapping[str, str], columns: Sequence[Any]
) -> dict[str, Any]:
    """Numbers of the same tasks, (n,) or (n, columns), as dask Series of their titles or DataFrames.

    They are columns of one DataFrame, so that what is computed together is computed once.
    """
    from dask.array import concatenate
    from dask.dataframe import from_dask_array

    wide = {name: values[:, None] if values.ndim == 1 else values for name, values in parts.items()}
    labels = {name: [f"{name}.{column}" for column in range(values.shape[1])] for name, values in wide.items()}
    joint = concatenate(list(wide.values()), axis=1, allow_unknown_chunksizes=True).rechunk({1: -1})
    frame = from_dask_array(joint, columns=[label for each in labels.values() for label in each], index=index)
    framed_parts = {}
    for name, values in parts.items():
        if values.ndim == 1:
            framed_parts[name] = frame[labels[name][0]].rename(titles[name])
        else:
            framed_parts[name] = frame[labels[name]].rename(columns=dict(zip(labels[name], columns, strict=True)))
    return framed_parts
