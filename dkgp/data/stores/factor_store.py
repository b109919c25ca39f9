"""A model's variance factor, kept in the model's own folder: costly to compute, the same for every test sample.

Each factor lies in a group of its own, `variance_factor-<random>`, beside the model's arrays, and is committed by a
manifest of its own. So it moves with the model and is deleted with it; the model opens the same with it, without it, or
with one that was never finished; and no two writers ever share an object. A factor remembers, by the checksum of the
model's manifest, which model it was made for, and is never used for another.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import exists, join, list_object_bytes, normalise_url, remove_object, remove_tree
from dkgp.data.stores.arrays import (
    StoredArray,
    create_array,
    create_group,
    default_chunk_rows,
    even_chunk_rows,
    row_ranges,
)
from dkgp.data.stores.manifest import (
    MANIFEST_NAME,
    Manifest,
    check_complete,
    checksum,
    commit,
    is_committed,
    json_bytes,
    read_manifest,
)
from dkgp.data.stores.models.regression import MODEL_KIND
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StorageError, StoreError

FACTOR_KIND = "variance factor"

_FOLDER = re.compile(r"variance_factor-[0-9a-f]{12}")
_MOST_CHUNK_BYTES = 16 * 2**20

FloatColumns = NDArray[np.float32]


class FactorWriter(contextlib.AbstractContextManager["FactorWriter"]):
    """Writes a factor; make one with `create`. Picklable: workers may write columns with copies.

    As a context manager it removes the unfinished factor if the block ends before `commit`.

    Attributes
    ----------
    model_url, metadata, n, rank, chunk_rows
        As for `create`: regions of columns are made of whole chunks.
    url
        Where the factor is being written, inside the model's folder.
    """

    def __init__(
        self, model_url: str, url: str, model_checksum: str, metadata: Json, arrays: list[StoredArray]
    ) -> None:
        self.model_url = model_url
        self.url = url
        self.metadata = metadata
        self._model_checksum = model_checksum
        self._arrays = {array.name: array for array in arrays}
        self.n, self.rank = self._arrays["columns"].shape
        self.chunk_rows = self._arrays["columns"].chunk_rows

    @classmethod
    def create(
        cls, model_url: Location, metadata: Json, n: int, rank: int, chunk_rows: int | None = None
    ) -> FactorWriter:
        """Start a factor with all its arrays, still empty.

        One run writes a factor at a time: an unfinished factor of another run is removed, and that run gets a
        `StoreError`. A finished one stays in use until this one is committed.

        Parameters
        ----------
        model_url
            The model's store: local path or fsspec URL.
        metadata
            JSON that says how the factor was made. "fingerprint", the model's data's, must be there.
        n, rank
            Number of the model's samples, and of landmarks.
        chunk_rows
            Rows of a chunk of the columns; default 8 to 16 MiB.

        Raises
        ------
        InputError
            `n` is not the model's, the rank is not within 1 to n, or there is no fingerprint.
        StoreError
            There is no model.
        StorageError
            The place cannot be written to; the factor is removed.
        """
        address = normalise_url(model_url)
        model = read_manifest(address, MODEL_KIND)
        n_model = int(model["arrays"]["alpha"]["shape"][0])
        if n != n_model or not 1 <= rank <= n:
            raise InputError(f"A factor of shape ({n}, {rank}) does not fit '{address}', which has {n_model} samples.")
        if not isinstance(metadata.get("fingerprint"), str):
            raise InputError("The factor's metadata lacks 'fingerprint'; expected that of the model's data.")
        if chunk_rows is not None and chunk_rows < 1:
            raise InputError(f"chunk_rows must be at least 1; got {chunk_rows}.")
        content: Json = json.loads(json_bytes(metadata))
        for folder in _folders(address):
            if not is_committed(folder):
                _remove(folder)
        url = join(address, f"variance_factor-{secrets.token_hex(6)}")
        rows = chunk_rows or even_chunk_rows(n, max(_MOST_CHUNK_BYTES // (4 * rank), 1))
        square, square_rows = ("landmark", "landmark_column"), default_chunk_rows(rank, rank)
        try:
            create_group(url, FACTOR_KIND, {"metadata": content})
            arrays = [
                create_array(url, "indices", (rank,), rank, ("landmark",), dtype="int64"),
                create_array(url, "lower", (rank, rank), square_rows, square),
                create_array(url, "gram_lower", (rank, rank), square_rows, square),
                create_array(url, "residual_diagonal", (n,), default_chunk_rows(n, 1), ("sample",)),
                create_array(url, "columns", (n, rank), rows, ("sample", "landmark"), dtype="float32"),
            ]
        except BaseException:
            remove_tree(url)
            raise
        return cls(address, url, checksum(model), content, arrays)

    def __exit__(self, *error: object) -> None:
        self.abort()

    def row_chunks(self) -> list[tuple[int, int]]:
        """Row ranges [start, stop) of the chunks of the columns, in order, for `write_columns`."""
        return row_ranges(self.n, self.chunk_rows)

    def write_columns(self, start: int, block: FloatColumns) -> None:
        """Write rows of the columns.

        Rows may be written in any order and from any process, as long as no two writers share a chunk, and may be
        written again.

        Parameters
        ----------
        start
            First row, a multiple of `chunk_rows`.
        block
            (rows, R); rows is a multiple of `chunk_rows` unless the block reaches the last row.

        Raises
        ------
        InputError, NumericalError
            A shape or row range that does not fit; a NaN or infinity. Nothing is written.
        StoreError
            The factor is finished, or was removed by another run.
        StorageError
            The storage refused; all that was written of the factor is removed.
        """
        values = np.asarray(block, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] != self.rank:
            raise InputError(f"The columns have shape {values.shape}; expected (rows, {self.rank}).")
        array = self._arrays["columns"]
        array.require_whole_chunks(start, start + len(values))
        _require_finite("columns", values, start)
        self._require_unfinished()
        with self._removed_on_failure():
            array.write(start, values)

    def commit(
        self, indices: IntArray, lower: FloatArray, gram_lower: FloatArray, residual_diagonal: FloatArray
    ) -> FactorRecord:
        """Write the small arrays and the manifest; the factor can be opened from here on, and replaces any before it.

        Parameters
        ----------
        indices
            The landmarks' rows, (R,), distinct.
        lower, gram_lower
            (R, R).
        residual_diagonal
            (n,).

        Raises
        ------
        InputError, NumericalError
            An array of another shape, landmarks that are no rows of the model; a NaN or infinity.
        StoreError
            Columns are still to be written; the factor is finished already, or was removed by another run.
        StorageError
            The storage refused; all that was written of the factor is removed.
        """
        small: dict[str, NDArray[Any]] = {"indices": _landmarks(indices, self.rank, self.n)}
        for name, values in (("lower", lower), ("gram_lower", gram_lower), ("residual_diagonal", residual_diagonal)):
            small[name] = np.asarray(values, dtype=np.float64)
        for name, values in small.items():
            if values.shape != self._arrays[name].shape:
                raise InputError(f"'{name}' has shape {values.shape}; expected {self._arrays[name].shape}.")
            _require_finite(name, values, 0)
        self._require_unfinished()
        content = {"model": self._model_checksum, "written_nanoseconds": time.time_ns(), "metadata": self.metadata}
        with self._removed_on_failure():
            for name, values in small.items():
                self._arrays[name].write(0, values)
            commit(self.url, FACTOR_KIND, content, self._arrays.values())
        # The newest one counts: one that cannot be removed takes up space, and no more.
        with contextlib.suppress(StorageError):
            for folder in _folders(self.model_url):
                if folder != self.url:
                    _remove(folder)
        return _record(self.url, read_manifest(self.url, FACTOR_KIND))

    def abort(self) -> None:
        """Remove the factor. Nothing happens after `commit`."""
        if not is_committed(self.url):
            remove_tree(self.url)

    def _require_unfinished(self) -> None:
        if is_committed(self.url):
            raise StoreError(f"The variance factor '{self.url}' is finished; it is not written to again.")
        if not exists(join(self.url, "zarr.json")):
            # A copy of this writer may have left a chunk since.
            remove_tree(self.url)
            raise StoreError(
                f"The variance factor '{self.url}' was removed while it was being written: its writing failed, another "
                "run has begun to write one for this model, or the model was replaced. Start it again."
            )

    @contextlib.contextmanager
    def _removed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abort()
            raise


@dataclass(frozen=True, eq=False)
class FactorRecord:
    """A factor as it is kept; picklable. The landmarks' rows are in memory, everything else is read when asked for.

    Attributes
    ----------
    url
        Where it lies, inside the model's folder.
    metadata
        As given to `FactorWriter.create`.
    n, rank
        Number of the model's samples, and of landmarks.
    chunk_rows
        Rows of a chunk of the columns: reads aligned to it touch the fewest chunks.
    indices
        The landmarks' rows among the model's support inputs, (R,).
    """

    url: str
    metadata: Json
    n: int
    rank: int
    chunk_rows: int
    indices: IntArray
    _arrays: dict[str, StoredArray] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all the arrays in memory."""
        return 4 * self.n * self.rank + 8 * (2 * self.rank**2 + self.n + self.rank)

    def row_chunks(self) -> list[tuple[int, int]]:
        """Row ranges [start, stop) of the chunks of the columns, in order."""
        return row_ranges(self.n, self.chunk_rows)

    def lower(self) -> FloatArray:
        """(R, R) float64. `StoreError` where a chunk is missing or damaged, as for all reads."""
        return self._read("lower")

    def gram_lower(self) -> FloatArray:
        """(R, R) float64."""
        return self._read("gram_lower")

    def residual_diagonal(self) -> FloatArray:
        """(n,) float64."""
        return self._read("residual_diagonal")

    def columns(self, start: int, stop: int) -> FloatColumns:
        """Rows [start, stop) of the columns, (stop - start, R) float32."""
        return self._read("columns", start, stop)

    def _read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        array = self._arrays[name]
        with _advice(self.url):
            return array.read_as_stored(start, array.shape[0] if stop is None else stop)


def open_factor(model_url: Location, *, fingerprint: str) -> FactorRecord | None:
    """Open the factor that is kept with a model.

    Parameters
    ----------
    model_url
        The model's store: local path or fsspec URL.
    fingerprint
        Of the model's data.

    Returns
    -------
    The factor, or None where there is none that may be used: none was kept, its writing never ended, or it was made for
    another fingerprint, or for another model than the one that is there now (other kernel, noise variance or data).
    Such a factor is never returned; the next one to be committed replaces it.

    Raises
    ------
    StoreError
        There is no model; or the factor was finished and has a missing or damaged chunk since. The message names
        the folder to remove.
    """
    address = normalise_url(model_url)
    model_checksum = read_manifest(address, MODEL_KIND).written
    usable: list[tuple[int, str, Manifest]] = []
    for folder in _folders(address):
        if not is_committed(folder):
            continue
        with _advice(folder):
            manifest = read_manifest(folder, FACTOR_KIND)
            content = manifest["metadata"]
            if (content["model"], content["metadata"]["fingerprint"]) == (model_checksum, fingerprint):
                usable.append((int(content["written_nanoseconds"]), folder, manifest))
    if not usable:
        return None
    _, url, manifest = max(usable, key=lambda candidate: candidate[:2])
    with _advice(url):
        check_complete(url, manifest)
        return _record(url, manifest)


def discard_factor(model_url: Location) -> None:
    """Remove every factor kept with a model, finished or not; nothing happens where there is none.

    Raises `StorageError` where the storage refuses.
    """
    for folder in _folders(normalise_url(model_url)):
        _remove(folder)


def _record(url: str, manifest: Manifest) -> FactorRecord:
    arrays = {name: StoredArray.from_manifest(url, name, manifest) for name in manifest["arrays"]}
    n, rank = arrays["columns"].shape
    indices = arrays["indices"].read_as_stored(0, rank)
    return FactorRecord(url, manifest["metadata"]["metadata"], n, rank, arrays["columns"].chunk_rows, indices, arrays)


def _folders(model_url: str) -> list[str]:
    names = {name.partition("/")[0] for name in list_object_bytes(model_url)}
    return [join(model_url, name) for name in sorted(names) if _FOLDER.fullmatch(name)]


def _remove(url: str) -> None:
    # The manifest first: an interrupted removal then leaves an unfinished factor, not a damaged one.
    remove_object(join(url, MANIFEST_NAME))
    remove_tree(url)


@contextlib.contextmanager
def _advice(url: str) -> Iterator[None]:
    """Let a `StoreError` say that it is about the factor, which can be done without, and not about the model."""
    try:
        yield
    except (StoreError, KeyError) as error:
        reason = f"Its manifest lacks {error}." if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"The variance factor kept with the model cannot be used. {reason} Once the folder '{url}' is removed, "
            "the factor is computed again when it is needed."
        ) from error


def _landmarks(indices: IntArray, rank: int, n: int) -> IntArray:
    rows = np.asarray(indices)
    if rows.dtype.kind not in "iu" or rows.shape != (rank,) or np.unique(rows).size != rank:
        raise InputError(f"The landmarks must be {rank} distinct integers; got {rows.dtype}, shape {rows.shape}.")
    if rows.min() < 0 or rows.max() >= n:
        raise InputError(f"The landmarks are rows {rows.min()} to {rows.max()}; the model has rows 0 to {n - 1}.")
    return rows.astype(np.int64)


def _require_finite(name: str, values: NDArray[Any], first_row: int) -> None:
    if not np.isfinite(values).all():
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        row = first_row + int(np.argmax(bad))
        raise NumericalError(f"'{name}' of the variance factor is not finite (row {row}); it is not kept.")
