"""A Series and a DataFrame with the methods of arrays that scikit-learn calls; see `dkgp.estimators.outputs`."""

from __future__ import annotations

from typing import Any

import pandas as pd


class PredictedColumn(pd.Series):  # type: ignore[misc]  # pandas ships no types
    """A Series with an array's `reshape`, which stacking and transformed targets call."""

    def reshape(self, *shape: Any) -> Any:
        """The values as an array of another shape."""
        return self.to_numpy().reshape(*shape)


class PredictedColumns(pd.DataFrame):  # type: ignore[misc]
    """A DataFrame that takes `[:, k]`, as scores of probabilities do, for the values of its columns by place."""

    def __getitem__(self, key: Any) -> Any:
        """Columns as pandas has it; of rows and columns by place an array."""
        by_place = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], slice)
        return self.to_numpy()[key] if by_place else super().__getitem__(key)
