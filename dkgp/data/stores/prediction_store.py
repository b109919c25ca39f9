"""Predictions in a Zarr store, written region by region, by any number of processes, in any order.

A region is a row range made of whole chunks. Once its chunks are on the disk, a marker object of its own records that
it is done: a run that was killed goes on where it was, and no two writers ever share an object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from dkgp.data.classes import check_classes, codes_of_targets, plain_names
from dkgp.data.remote.claims import Claim
from dkgp.data.remote.storage import (
    exists,
    join,
    list_object_bytes,
    normalise_url,
    read_object,
    remove_store,
    remove_tree,
    sync_tree,
    write_object,
)
from dkgp.data.stores.arrays import (
    StoredArray,
    StoredType,
    create_name_array,
    default_chunk_rows,
    open_arrays,
    row_ranges,
    target_layout,
)
from dkgp.data.stores.manifest import (
    chunk_keys,
    commit,
    described_whole,
    is_committed,
    json_bytes,
    recognise,
    texts,
    typed,
)
from dkgp.data.stores.writable import new_store
from dkgp.data.types import BoolArray, FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError, StorageError, StoreError
from dkgp.html import html_repr, prediction_panel

PREDICTION_KIND = "prediction"
# `noise` is a test sample's noise variance beside the common one, known or by a noise model: part of the variance of a
# new observation there, if that is stored.
VALUE_VARIABLES = ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper", "noise")
PROBABILITIES = ("probability", "probability_lower", "probability_upper")
LATENT_VARIABLES = ("latent_variance_lower", "latent_variance_upper")
CLASS_VARIABLES = ("decision", "decision_error_bound", *PROBABILITIES, "class", "certified", *LATENT_VARIABLES)
VARIABLES = VALUE_VARIABLES + CLASS_VARIABLES
# The format of a store without the variable `noise`.
WITHOUT_NOISE = 4

# A dimension of its own name: xarray could not tell one called "class" from the variable `class`.
_CLASS_DIMENSION = "class_name"
_INTEGERS: dict[str, StoredType] = {"class": "int64", "certified": "int8"}

_PLAN = "dkgp_prediction_plan"
_REGIONS = "regions"
_PARTS = "parts"
_PART_NAME = re.compile(r"(\d+)-(\d+)\.(\d+)\.bin")
_REGION_NAME = re.compile(r"(\d+)-(\d+)\.([a-z_+]+)\.json")

Region = tuple[int, int]


class _Planned:
    """Predictions as they were planned, written or still to be."""

    def __init__(self, url: str, plan: Json, claim: Claim | None = None) -> None:
        self.url = url
        self._plan = plan
        typed(plan, n_samples=int, chunk_rows=int, attributes=dict)
        if min(plan["n_samples"], plan["chunk_rows"]) < 1:
            raise ValueError(f"{plan['n_samples']} samples in chunks of {plan['chunk_rows']}")
        self.n_samples = int(plan["n_samples"])
        self.target_names: tuple[str, ...] = texts(plan["target_names"])
        self.variables: tuple[str, ...] = texts(plan["variables"])
        self.chunk_rows = int(plan["chunk_rows"])
        # Stores of format 1 know no classes.
        self.classes: tuple[str, ...] | None = plain_names(plan.get("classes"))
        self.attributes: Json = plan["attributes"]
        self._arrays = {
            name: StoredArray(url, name, _layout(name, plan)[0], self.chunk_rows, claim) for name in self.variables
        }

    @property
    def n_targets(self) -> int:
        """Number of targets, p."""
        return len(self.target_names)

    @property
    def _class_names(self) -> list[StoredArray]:
        """The classes' names as a coordinate, for those who look at the store with xarray."""
        n_classes = len(self.classes or ())
        return [StoredArray(self.url, _CLASS_DIMENSION, (n_classes,), n_classes)] if n_classes else []


def _version(variables: Sequence[str]) -> int | None:
    """The format of a store of these variables; None for the newest."""
    return None if "noise" in variables else WITHOUT_NOISE


def _layout(name: str, plan: Json) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and dimensions of a variable; one column, of one target or of two classes' decisions, is a vector."""
    n, n_classes = int(plan["n_samples"]), len(plan.get("classes") or ())
    if name in _INTEGERS:
        return (n,), ("sample",)
    if name in PROBABILITIES or (name in CLASS_VARIABLES and n_classes > 2):
        return (n, n_classes), ("sample", _CLASS_DIMENSION)
    return target_layout(n, 1 if name in CLASS_VARIABLES else len(plan["target_names"]))


class PredictionWriter(_Planned):
    """Writes a prediction store; make one with `create` or `open_to_resume`. Picklable: workers may write with copies.

    Attributes
    ----------
    url, n_samples, target_names, variables, chunk_rows, attributes, classes
        As given to `create`.
    """

    def __init__(self, url: str, plan: Json, claim: Claim) -> None:
        super().__init__(url, plan, claim)
        self._claim = claim
        self._has_parts = False

    @classmethod
    def create(
        cls,
        url: Location,
        n_samples: int,
        target_names: Sequence[str],
        variables: Sequence[str] = ("mean", "mean_error_bound"),
        chunk_rows: int | None = None,
        attributes: Json | None = None,
        overwrite: bool = False,
        classes: Sequence[str] | None = None,
    ) -> PredictionWriter:
        """Start a store with all its arrays, still empty.

        Parameters
        ----------
        n_samples, target_names, variables
            Number of samples, names of the targets, and names among `VARIABLES`.
        chunk_rows
            Rows of a chunk, and so the smallest region; default about 8192 to 16384.
        attributes
            JSON that identifies model and inputs (fingerprints); compare it before resuming.
        overwrite
            Replace a prediction store that is there. Anything else that is there is left alone.
        classes
            Names of the C classes, for `CLASS_VARIABLES`: decision, decision_error_bound and the ends of the latent
            variance have one column for two classes, else C; probability and its ends have C; class (a code into the
            names) and certified (0 or 1) have one.

        Raises
        ------
        InputError
            An unknown variable, one of `CLASS_VARIABLES` without classes, no target or no sample.
        OutputExistsError, StorageError
            The place is taken, or cannot be written to.
        """
        unknown = [name for name in variables if name not in VARIABLES]
        if unknown or not variables or len(set(variables)) < len(variables):
            raise InputError(f"Cannot store the variables {list(variables)}; expected some of {', '.join(VARIABLES)}.")
        known = None if classes is None else check_classes(classes)
        of_classes = [name for name in variables if name in CLASS_VARIABLES]
        if of_classes and (known is None or len(target_names) != 1):
            raise InputError(
                f"Cannot store the variables {of_classes} of {len(target_names)} targets and "
                f"{len(known or ())} classes; expected one target and the names of its classes."
            )
        if n_samples < 1 or not target_names or (chunk_rows is not None and chunk_rows < 1):
            raise InputError(
                f"Expected at least one sample, one target and one row per chunk; got {n_samples}, "
                f"{len(target_names)} and {chunk_rows}."
            )
        address = normalise_url(url)
        plan = {
            "n_samples": int(n_samples),
            "target_names": list(target_names),
            "variables": list(variables),
            "chunk_rows": int(chunk_rows or default_chunk_rows(n_samples, max(len(target_names), len(known or ())))),
            "attributes": json.loads(json_bytes(attributes or {})),
        }
        shown: Json = {"target_names": plan["target_names"]}
        if known is not None:
            plan["classes"] = shown["classes"] = list(known)
        with new_store(address, PREDICTION_KIND, {_PLAN: plan, **shown}, overwrite, _version(variables)) as store:
            if known is not None:
                create_name_array(store.claim.url, _CLASS_DIMENSION, known, store.claim)
            for name in variables:
                # A flag variable of CF: the meanings of codes are attributes.
                flags = {"classes": list(known or ())} if name == "class" else None
                store.create_array(
                    name, *_layout(name, plan), plan["chunk_rows"], flags, _INTEGERS.get(name, "float64")
                )
            # A run that is interrupted goes on with the regions in their final place.
            store.take_place()
        return cls(address, plan, store.claim)

    @classmethod
    def begun(cls, url: Location) -> PredictionWriter | None:
        """Go on with a store if there is one; None also if its writer was killed while it laid out the arrays.

        Errors as for `open_to_resume`.
        """
        address = normalise_url(url)
        unfinished = exists(address) and recognise(address) == PREDICTION_KIND and not is_committed(address)
        if not exists(address) or (unfinished and not exists(join(address, "zarr.json"))):
            return None
        writer = cls.open_to_resume(address)
        laid_out = not unfinished or all(exists(join(address, name, "zarr.json")) for name in writer.variables)
        return writer if laid_out else None

    @classmethod
    def open_to_resume(cls, url: Location) -> PredictionWriter:
        """Go on with a store that `create` started, finished or not. `StoreError` where there is none.

        A process that still writes an unfinished one on an object store is cut off: it ends with an error.
        """
        address = normalise_url(url)
        if not exists(address):
            raise StoreError(f"There is no prediction store at '{address}' to resume. Check the path.")
        kind = recognise(address)
        if kind != PREDICTION_KIND:
            description = f"a dkgp {kind} store" if kind else "not a dkgp store"
            raise StoreError(f"'{address}' is {description}; expected a prediction store to resume.")
        try:
            plan = json.loads(read_object(join(address, "zarr.json")))["attributes"][_PLAN]
            finished = is_committed(address)
            claim = Claim(address, "") if finished else Claim.take(address, PREDICTION_KIND, over=True)
            return cls(address, plan, claim)
        except StorageError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"The prediction store '{address}' cannot be resumed: {error}. Start it again.") from error

    def write(self, start: int, **arrays: FloatArray) -> None:
        """Write one region and record that it is done.

        Regions may be written in any order and from any process, as long as no two of them share a chunk. A region
        may be written again.

        Parameters
        ----------
        start
            First row, a multiple of `chunk_rows`.
        arrays
            Variable -> values of shape (rows, columns), or (rows,) for one column; rows is a multiple of `chunk_rows`
            unless the region reaches the last sample. Not all the variables need to come at once.

        Raises
        ------
        InputError
            A variable, shape or row range that does not fit.
        StoreError
            The store is finished.
        NumericalError
            A NaN, or a probability outside [0, 1].
        StorageError
            The storage refused; the region is not recorded.
        """
        blocks = {name: self._checked(name, values) for name, values in arrays.items()}
        lengths = {len(block) for block in blocks.values()}
        if len(lengths) != 1:
            raise InputError(f"The variables of a region differ in length: {sorted(lengths)}.")
        stop = start + lengths.pop()
        self._arrays[self.variables[0]].require_whole_chunks(start, stop)
        if is_committed(self.url):
            raise StoreError(f"The prediction store '{self.url}' is finished; it is not written to again.")
        for name, block in blocks.items():
            array = self._arrays[name]
            array.write(start, block.reshape(stop - start, *array.shape[1:]))
        chunks = range(start // self.chunk_rows, -(-stop // self.chunk_rows))
        keys = self._chunk_keys()
        sync_tree(self.url, [f"{name}/{keys[name][index]}" for name in blocks for index in chunks])
        # Chunks, then this look, then the marker: a writer that was taken over leaves no marker for chunks that its
        # successor has removed.
        self._claim.require()
        marker = f"{start:012d}-{stop:012d}.{'+'.join(sorted(blocks))}.json"
        write_object(join(self.url, _REGIONS, marker), json_bytes({"start": start, "stop": stop}))
        if self._has_parts:
            for name in self._part_names(start, stop).values():
                remove_tree(join(self.url, _PARTS, name))

    def write_part(self, start: int, stop: int, number: int, values: FloatArray) -> None:
        """Keep a part of a region that is under way, rows of float64, until the region is written."""
        shape, content = np.array(values.shape, dtype="<i8").tobytes(), values.astype("<f8").tobytes()
        pieces = [hashlib.sha256(shape + content).digest(), shape, content]
        self._claim.require()
        self._has_parts = True
        write_object(join(self.url, _PARTS, f"{start:012d}-{stop:012d}.{number}.bin"), pieces, synced=False)

    def read_parts(self, start: int, stop: int) -> dict[int, FloatArray]:
        """Return the parts of a region that are kept; one that is damaged counts for nothing."""
        self._has_parts, parts = True, {}
        for number, name in self._part_names(start, stop).items():
            content = read_object(join(self.url, _PARTS, name))
            digest, content = content[:32], content[32:]
            if hashlib.sha256(content).digest() == digest:
                rows, columns = np.frombuffer(content[:16], dtype="<i8")
                parts[number] = np.frombuffer(content[16:], dtype="<f8").reshape(rows, columns)
        return parts

    def has_parts(self) -> bool:
        """Return True if parts of any region are kept."""
        return bool(list_object_bytes(join(self.url, _PARTS)))

    def _part_names(self, start: int, stop: int) -> dict[int, str]:
        matches = [_PART_NAME.fullmatch(name) for name in list_object_bytes(join(self.url, _PARTS))]
        region = f"{start:012d}", f"{stop:012d}"
        return {int(match[3]): match[0] for match in matches if match is not None and match.groups()[:2] == region}

    def done_regions(self, variables: Sequence[str] | None = None) -> list[Region]:
        """Row ranges [start, stop) in which all the given variables (default: all) are written, joined and in order."""
        return self._joined(self._done(variables))

    def pending_regions(self) -> list[Region]:
        """Row ranges [start, stop) that `done_regions` leaves out."""
        return self._joined(~self._done(None))

    def commit(self) -> Prediction:
        """Write the manifest and return the finished store; `StoreError` where a region is still pending."""
        if is_committed(self.url):
            return open_prediction(self.url)
        pending = self.pending_regions()
        if pending:
            n_rows = sum(stop - start for start, stop in pending)
            raise StoreError(
                f"The prediction store '{self.url}' lacks {n_rows} of {self.n_samples} rows, the first of them rows "
                f"{pending[0][0]} to {pending[0][1] - 1}. Resume the prediction."
            )
        arrays = [*self._arrays.values(), *self._class_names]
        commit(self.url, PREDICTION_KIND, self._plan, arrays, self._claim, _version(self.variables))
        # The manifest has taken over; markers left by a crash just here do no harm.
        remove_tree(join(self.url, _REGIONS))
        remove_tree(join(self.url, _PARTS))
        return open_prediction(self.url)

    def abort(self) -> None:
        """Remove the store."""
        remove_store(self._claim)

    def _checked(self, name: str, values: FloatArray) -> FloatArray:
        if name not in self.variables:
            raise InputError(f"The store has no variable '{name}'; it has {', '.join(self.variables)}.")
        block = np.asarray(values, dtype=np.float64)
        if block.ndim == 1:
            block = block[:, None]
        width = int(np.prod(self._arrays[name].shape[1:], dtype=np.int64))
        if block.ndim != 2 or block.shape[1] != width:
            raise InputError(f"'{name}' has shape {np.shape(values)}; expected (rows, {width}).")
        if np.isnan(block).any():
            raise NumericalError(f"'{name}' holds a NaN in row {int(np.argmax(np.isnan(block).any(axis=1)))}.")
        # Roundings of rows that were scaled to sum to one are allowed.
        outside = (np.abs(block - 0.5) > 0.5 + 1e-9).any(axis=1)
        if name in PROBABILITIES and outside.any():
            row = int(np.argmax(outside))
            raise NumericalError(f"'{name}' holds {block[row].tolist()} in row {row}; expected 0 to 1.")
        if name in _INTEGERS:
            codes_of_targets(block[:, 0], 2 if name == "certified" else len(self.classes or ()), f"'{name}'")
        return block

    def _chunk_keys(self) -> dict[str, list[str]]:
        return {name: chunk_keys(array.shape, self.chunk_rows) for name, array in self._arrays.items()}

    def _done(self, variables: Sequence[str] | None) -> BoolArray:
        n_chunks = -(-self.n_samples // self.chunk_rows)
        committed = is_committed(self.url)
        done = {name: np.full(n_chunks, committed) for name in self.variables}
        keys = self._chunk_keys()
        sizes = list_object_bytes(self.url)
        for path in sizes:
            folder, _, marker = path.rpartition("/")
            match = _REGION_NAME.fullmatch(marker) if folder == _REGIONS else None
            if match is None:
                continue
            chunks = range(int(match.group(1)) // self.chunk_rows, -(-int(match.group(2)) // self.chunk_rows))
            for name in match.group(3).split("+"):
                if name in done:
                    for index in chunks:
                        # A marker whose chunk is gone counts for nothing.
                        done[name][index] = bool(sizes.get(f"{name}/{keys[name][index]}"))
        names = self.variables if variables is None else tuple(variables)
        unknown = [name for name in names if name not in done]
        if unknown:
            raise InputError(f"The store has no variable '{unknown[0]}'; it has {', '.join(self.variables)}.")
        return np.asarray(np.logical_and.reduce([done[name] for name in names]))

    def _joined(self, chunks: BoolArray) -> list[Region]:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], chunks, [False]]).astype(np.int8)))
        rows = np.minimum(edges * self.chunk_rows, self.n_samples)
        return [(int(start), int(stop)) for start, stop in zip(rows[::2], rows[1::2], strict=True)]


class Prediction(_Planned):
    """Handle on a finished prediction store; open one with `open_prediction`. Picklable.

    Attributes
    ----------
    url, n_samples, target_names, variables, chunk_rows, attributes, classes
        As given to `PredictionWriter.create`.
    """

    def read(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """One variable's rows [start, stop), shape (rows, columns), columns as in `PredictionWriter.create`.

        Raises `InputError` for a variable that is not there, `StoreError` for a missing or damaged chunk.
        """
        if name not in self._arrays:
            raise InputError(f"'{self.url}' has no variable '{name}'; it has {', '.join(self.variables)}.")
        end = self.n_samples if stop is None else stop
        values = self._arrays[name].read(start, end)
        return values[:, None] if values.ndim == 1 else values

    def labels(self, start: int = 0, stop: int | None = None) -> IntArray:
        """Codes of the classes decided for, into `classes`, (rows,) of [start, stop). Errors as for `read`."""
        return self.read("class", start, stop)[:, 0].astype(np.int64)

    def certified(self, start: int = 0, stop: int | None = None) -> BoolArray:
        """True where the label is proven to be the exact solution's, (rows,). Errors as for `read`."""
        return np.asarray(self.read("certified", start, stop)[:, 0] > 0.0)

    def row_chunks(self) -> list[Region]:
        """Row ranges [start, stop) of the chunks, in order."""
        return row_ranges(self.n_samples, self.chunk_rows)

    _panel, _repr_html_ = prediction_panel, html_repr


def open_prediction(url: Location) -> Prediction:
    """Open a prediction store.

    Raises
    ------
    StoreError
        The store is missing, of another kind, or unfinished, or a chunk is missing or damaged.
    """
    address, manifest, _ = open_arrays(url, PREDICTION_KIND)
    with described_whole(address, "predict again"):
        return Prediction(address, manifest["metadata"])
