"""From dask arrays to a dataset store, a few row chunks at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.dataset_writer import DatasetWriter
from dkgp.data.types import FloatArray, Location
from dkgp.errors import InputError

# Chunks that are computed together, so that those who compute them have something to do side by side.
MOST_BYTES_TOGETHER = 128 * 2**20
MOST_CHUNKS_TOGETHER = 16


def ingest_blocks(
    url: Location,
    X: Any,
    y: Any,
    *,
    feature_names: Sequence[str],
    target_names: Sequence[str],
    classes: Sequence[str] | None = None,
    scheduler: Any = None,
) -> Dataset:
    """Write arrays that need not fit in memory to a dataset store.

    X is a dask array (n, d), y a dask or numpy array, (n,) or (n, p), of codes into `classes` where these are given;
    `scheduler` is as for `dask.compute`. Errors as of `DatasetWriter`.
    """
    n_samples = None if np.isnan(X.shape[0]) else int(X.shape[0])
    with DatasetWriter.create(url, feature_names, target_names, n_samples=n_samples, classes=classes) as writer:
        for inputs, targets in _blocks(X, y, scheduler):
            writer.append(inputs, targets)
        return writer.finish()


def _blocks(X: Any, y: Any, scheduler: Any) -> Iterator[tuple[FloatArray, FloatArray]]:
    from dask.base import compute

    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    if hasattr(y, "dask"):
        y = y.rechunk({1: -1}) if y.ndim == 2 and y.numblocks[1] > 1 else y
        known = not (np.isnan(X.chunks[0]).any() or np.isnan(y.chunks[0]).any())
        if known and X.shape[0] == y.shape[0]:
            y = y.rechunk({0: X.chunks[0]})
        if y.numblocks[0] != X.numblocks[0] or (known and X.shape[0] != y.shape[0]):
            raise InputError(
                f"X and y have shapes {X.shape} and {y.shape} in {X.numblocks[0]} and {y.numblocks[0]} row chunks; "
                "expected as many samples in both, and the same chunks where their sizes are not known"
            )
    count, row = X.numblocks[0], 0
    together = _together(X)
    for first in range(0, count, together):
        numbers = range(first, min(first + together, count))
        chunks = [X.blocks[number] for number in numbers]
        if hasattr(y, "dask"):
            chunks += [y.blocks[number] for number in numbers]
        values = compute(*chunks, scheduler=scheduler)
        for position in range(len(numbers)):
            inputs = np.asarray(values[position], dtype=np.float64)
            if hasattr(y, "dask"):
                targets = np.asarray(values[len(numbers) + position])
            else:
                targets = np.asarray(y[row : row + len(inputs)])
            row += len(inputs)
            yield inputs, targets
    if not hasattr(y, "dask") and row != len(y):
        raise InputError(f"X has {row} samples and y {len(y)}; expected as many in both")


def _together(X: Any) -> int:
    largest = max(X.chunks[0])
    if np.isnan(largest):
        return 1
    return int(max(1, min(MOST_CHUNKS_TOGETHER, MOST_BYTES_TOGETHER // max(1, 8 * int(largest) * X.shape[1]))))


class _RawRows:
    """A dataset's raw inputs, as something that dask can slice; pickles to a few kilobytes."""

    def __init__(self, dataset: Dataset, columns: Sequence[int]) -> None:
        self._dataset, self._columns = dataset, list(columns)
        self.shape, self.dtype, self.ndim = (dataset.n_samples, len(columns)), np.dtype(np.float64), 2

    def __getitem__(self, index: Any) -> FloatArray:
        rows, columns = index
        start, stop, _ = rows.indices(self.shape[0])
        block: FloatArray = self._dataset.raw_inputs(start, stop)[:, self._columns][:, columns]
        return block


def stored_inputs(dataset: Dataset, names: Sequence[str]) -> Any:
    """Raw inputs of a dataset store as a dask array (n, d) in the store's row chunks.

    The columns are those named; `InputError` for a name that is not there.
    """
    import dask.array
    from dask.base import tokenize

    missing = [name for name in names if name not in dataset.raw_feature_names]
    if missing:
        shown = ", ".join(f"'{name}'" for name in dataset.raw_feature_names[:20])
        raise InputError(f"'{dataset.url}' has no feature '{missing[0]}'; it has {shown}")
    rows = _RawRows(dataset, [dataset.raw_feature_names.index(name) for name in names])
    chunks = (dataset.chunk_rows, len(names))
    return dask.array.from_array(rows, chunks=chunks, name=f"dkgp-{tokenize(dataset.url, dataset.fingerprint, *names)}")
