"""The manifest: one small JSON object, written last, that turns a folder of chunks into a store.

It names the kind of store, its metadata, and the size in bytes of every chunk object, so that one listing at open
finds a chunk that is missing or cut short. (A chunk damaged inside carries its own CRC32C, checked when it is read.)
A store without a manifest was never finished, and is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shlex
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dkgp.codec import to_json
from dkgp.data.remote.claims import CLAIM_NAME, Claim, beside
from dkgp.data.remote.object_store import tag_of
from dkgp.data.remote.storage import (
    exists,
    is_file,
    is_local,
    join,
    list_object_bytes,
    normalise_url,
    read_object,
    remove_tree,
    sync_tree,
    translate_write_errors,
    write_object,
)
from dkgp.data.types import MOST_CHUNK_BYTES, Json
from dkgp.errors import DkgpError, DocumentError, OutputExistsError, StorageError, StoreError
from dkgp.registry import LaterModule

if TYPE_CHECKING:
    import zarr

    from dkgp.data.remote import zarr_store
else:
    zarr, zarr_store = LaterModule("zarr"), LaterModule("dkgp.data.remote.zarr_store")

MANIFEST_NAME = "dkgp-manifest.json"
# The format of each kind of store that is written; older ones are read. Datasets: 2 may name classes and weigh
# samples, 3 transform targets. Predictions: 2 may hold decisions, classes and probabilities, 3 intervals of these, 4
# be of transformed targets, as may 2 of models; classifiers: 2 may hold a likelihood. Data sets of 4,
# models of 3 and predictions of 5 have known noise of the samples, data sets of 5 covariates, models of 4 a mean with
# coefficients, classifiers of 3 neighbours; all are written for such alone.
FORMAT_VERSIONS = {
    "dataset": 5,
    "prediction": 5,
    "classifier": 3,
    "model": 4,
    "sparse model": 2,
    "linear model": 2,
}
_KIND_ATTRIBUTE = "dkgp_store"
_JSON_TYPES = (dict, list, str, bool, int, float, type(None))
# A manifest names the bytes of each chunk, a dozen characters for each: of some millions of chunks.
MOST_DESCRIPTION_BYTES = 64 * 2**20


def store_attributes(kind: str, version: int | None = None) -> Json:
    """The root attributes by which a store is known as dkgp's, from the first moment it is being written."""
    return {_KIND_ATTRIBUTE: kind, "dkgp_format_version": version or _version(kind)}


def _version(kind: str) -> int:
    return FORMAT_VERSIONS.get(kind, 1)


def recognise(url: str) -> str | None:
    """The kind of dkgp store at a place, finished or not; None for anything else."""
    for name, path in (
        (MANIFEST_NAME, ("kind",)),
        ("zarr.json", ("attributes", _KIND_ATTRIBUTE)),
        (CLAIM_NAME, ("kind",)),
    ):
        try:
            content: Any = json.loads(read_object(join(url, name), MOST_DESCRIPTION_BYTES))
            for key in path:
                content = content[key]
        except (StorageError, StoreError):
            # A storage that does not answer may still hold a dkgp store.
            raise
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(content, str):
            return content
    return None


def chunk_keys(shape: tuple[int, ...], chunk_rows: int) -> list[str]:
    """Object names of the chunks of an array that is chunked along its rows only, in row order."""
    tail = "/0" * (len(shape) - 1)
    return [f"c/{index}{tail}" for index in range(-(-shape[0] // chunk_rows))]


def chunk_rows_of_key(key: str, n_rows: int, chunk_rows: int) -> tuple[int, int]:
    """The row range [start, stop) that a chunk object holds."""
    start = int(key.split("/")[1]) * chunk_rows
    return start, min(start + chunk_rows, n_rows)


class WrittenArray(Protocol):
    """An array that a store consists of; a `StoredArray` is one."""

    name: str
    shape: tuple[int, ...]
    chunk_rows: int


def commit(
    url: str,
    kind: str,
    metadata: Json,
    arrays: Iterable[WrittenArray],
    claim: Claim | None = None,
    version: int | None = None,
) -> None:
    """Write the manifest of a store whose arrays are complete. The store exists from here on.

    `kind` is "dataset", "model", "prediction" or "variance factor", `metadata` the JSON that the store wants to
    remember, `arrays` are all of its arrays; `claim` is the writer's, where two writers could share the place;
    `version` the format, by default the newest.

    Raises `StoreError`: a chunk is missing. `StorageError`: the storage refused the write, or another writer has taken
    the place over.
    """
    with warnings.catch_warnings(), translate_write_errors(url):
        # Consolidated metadata is not in the Zarr v3 specification yet, but lets xarray open a store in one read.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(zarr_store.zarr_place(url, claim))
    sizes = list_object_bytes(url)
    entries: Json = {}
    names = ["zarr.json"]
    for array in arrays:
        chunks = [f"{array.name}/{key}" for key in chunk_keys(array.shape, array.chunk_rows)]
        missing = [chunk for chunk in chunks if not sizes.get(chunk)]
        if missing:
            raise _missing_chunk(url, missing, array.shape[0], array.chunk_rows, "was never written")
        names += [f"{array.name}/zarr.json", *chunks]
        entries[array.name] = {
            "shape": list(array.shape),
            "chunk_rows": array.chunk_rows,
            "chunk_bytes": [sizes[chunk] for chunk in chunks],
        }
    sync_tree(url, names)
    content: Json = {"kind": kind, "version": version or _version(kind), "metadata": metadata, "arrays": entries}
    # Hash the content as a reader will parse it: after one round through JSON.
    content = json.loads(json_bytes(content))
    content["checksum"] = checksum(content)
    if claim is not None:
        claim.require()
    try:
        write_object(join(url, MANIFEST_NAME), json_bytes(content), replace=claim is None or not claim.writer)
    except OutputExistsError:
        # Of two manifests that of the claim's holder counts, and a writer that was taken over gives way.
        if claim is not None:
            claim.require()
        write_object(join(url, MANIFEST_NAME), json_bytes(content))
    if is_local(url):
        remove_tree(str(set_aside_place(url)))


def set_aside_place(url: str) -> Path:
    """The place of a finished local store while another is written in its own."""
    return beside(Path(url), ".dkgp-replaced-")


def is_committed(url: str) -> bool:
    """True if the writing of a store was finished."""
    return exists(join(url, MANIFEST_NAME))


class Manifest(dict[str, Any]):
    """A manifest, with the `mark` of its file, by which one that took its place is known, and its checksum."""

    mark: str | None = None
    written: str = ""


def manifest_mark(url: str) -> str | None:
    """The mark of a store's manifest, unlike that of one that takes its place; None where there is none.

    Of a remote store its tag, by one request for the object's description. `StorageError`: the storage gives no answer.
    """
    place = join(url, MANIFEST_NAME)
    if not is_local(url):
        return tag_of(place)
    try:
        status = os.stat(place)
    except OSError:
        return None
    return f"{status.st_mtime_ns}|{status.st_size}"


def read_manifest(url: str, kind: str) -> Manifest:
    """The manifest of a finished store of the given kind.

    Raises `StoreError`: nothing there, another kind of store or none of dkgp's, unfinished, damaged, or of a newer
    format.
    """
    mark = manifest_mark(url)
    try:
        content = read_object(join(url, MANIFEST_NAME), MOST_DESCRIPTION_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_manifest(url, kind) from None
    except (StorageError, StoreError):
        raise
    except OSError as error:
        raise StoreError(f"The {kind} store '{url}' cannot be read: {error}.") from error
    try:
        manifest = Manifest(json.loads(content))
        manifest.mark = mark
        manifest.written = manifest.pop("checksum")
        stored_kind, version = str(manifest["kind"]), int(manifest["version"])
        undamaged = manifest.written == checksum(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        undamaged, stored_kind, version = False, kind, 1
    if not undamaged:
        raise StoreError(f"The manifest '{join(url, MANIFEST_NAME)}' is damaged; write the store again.")
    if stored_kind != kind:
        raise StoreError(f"'{url}' holds a dkgp {stored_kind} store; expected a {kind} store.")
    if version > _version(kind):
        raise StoreError(
            f"'{url}' has store format {version}; this dkgp reads up to {_version(kind)}. Install a newer dkgp."
        )
    if not _describes_arrays(manifest):
        raise StoreError(
            f"The manifest '{join(url, MANIFEST_NAME)}' describes no arrays in chunks of rows; write the store again."
        )
    return manifest


def _describes_arrays(manifest: Json) -> bool:
    """True if a manifest has the fields of every store, in the types that readers expect."""

    def counts(values: object) -> bool:
        return isinstance(values, list) and all(type(value) is int for value in values)

    arrays = manifest.get("arrays")
    return (
        isinstance(manifest.get("metadata"), dict)
        and isinstance(arrays, dict)
        and all(
            isinstance(entry, dict)
            and counts(entry.get("shape"))
            and len(entry["shape"]) >= 1
            and counts([entry.get("chunk_rows")])
            and counts(entry.get("chunk_bytes"))
            for entry in arrays.values()
        )
    )


def stored_checksum(url: str) -> str:
    """The checksum that a store's manifest ends in; `OSError`, `ValueError` or `AttributeError` where there is none."""
    return str(json.loads(read_object(join(url, MANIFEST_NAME), MOST_DESCRIPTION_BYTES)).get("checksum"))


def check_complete(url: str, manifest: Json) -> None:
    """Compare every object of a store with its manifest, by one listing.

    Raises `StoreError`, which names the array and the chunk that is missing or has another size than was written.
    """
    sizes = list_object_bytes(url)
    for name, entry in manifest["arrays"].items():
        shape, chunk_rows = tuple(entry["shape"]), int(entry["chunk_rows"])
        # Before names of chunks are made: a few bytes may promise any number of them.
        if chunk_rows < 1 or min(shape, default=0) < 0 or len(entry["chunk_bytes"]) != -(-shape[0] // chunk_rows):
            raise StoreError(
                f"The manifest of '{url}' lists {len(entry['chunk_bytes']):,} chunks of {chunk_rows:,} rows for the "
                f"array '{name}' of shape {shape}, which does not match; write the store again."
            )
        refuse_large_chunks(name, shape, chunk_rows)
        if f"{name}/zarr.json" not in sizes:
            raise StoreError(f"The array '{name}' of '{url}' is missing (no {name}/zarr.json); write the store again.")
        chunks = [f"{name}/{key}" for key in chunk_keys(shape, chunk_rows)]
        missing = [chunk for chunk in chunks if chunk not in sizes]
        if missing:
            raise _missing_chunk(url, missing, shape[0], chunk_rows, "is missing")
        for chunk, expected_bytes in zip(chunks, entry["chunk_bytes"], strict=True):
            if sizes[chunk] != expected_bytes:
                raise StoreError(
                    f"{chunk_place(url, chunk, shape[0], chunk_rows)} is damaged: it has {sizes[chunk]} bytes, "
                    f"{expected_bytes} were written. Write the store again."
                )


def refuse_large_chunks(name: str, shape: tuple[int, ...], chunk_rows: int) -> None:
    """Refuse an array whose chunks take more memory than a worker should hold at once; `StoreError`."""
    unpacked = 8 * min(chunk_rows, shape[0]) * math.prod(shape[1:])
    if unpacked > MOST_CHUNK_BYTES:
        raise StoreError(
            f"A chunk of {chunk_rows:,} rows of the array '{name}' takes {unpacked:,} bytes; at most "
            f"{MOST_CHUNK_BYTES:,} are read or written at once. Write the data again with a smaller `chunk_rows`."
        )


@contextlib.contextmanager
def described_whole(url: str, advice: str) -> Iterator[None]:
    """Turn errors about fields that a store's manifest lacks, or that are nothing of their kind, into a `StoreError`.

    It ends with the advice. The block must only make values of the manifest's content: mistakes in any other work there
    would be reported as the store's. An `AttributeError` of an object that JSON cannot hold is certainly a mistake of
    the code, and is raised unchanged.
    """
    try:
        yield
    except DocumentError as error:
        raise StoreError(f"The manifest of '{url}' does not describe such a store: {error}") from error
    except DkgpError:
        raise
    except KeyError as error:
        raise StoreError(f"The manifest of '{url}' lacks {error}; {advice}.") from error
    except (TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        if isinstance(error, AttributeError) and not isinstance(error.obj, _JSON_TYPES):
            raise
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"The manifest of '{url}' does not describe such a store ({reason}); {advice}.") from error


def typed(content: Json, **kinds: type | tuple[type, ...]) -> None:
    """Refuse JSON whose named fields have other types; `KeyError` for one that is missing, `TypeError` else."""
    for name, kind in kinds.items():
        if not isinstance(content[name], kind):
            raise TypeError(f"'{name}' is a {type(content[name]).__name__}")


def texts(value: object) -> tuple[str, ...]:
    """A list of texts from JSON, as a tuple; `TypeError` for anything else."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError("names are no list of texts")
    return tuple(value)


def json_bytes(content: Any, *, indent: int | None = 1) -> bytes:
    """JSON with NumPy's scalars and arrays taken as numbers and lists; floats keep every digit.

    Without an indent it takes a third of the time: for files that are written often and read by dkgp alone.
    """
    return json.dumps(content, indent=indent, sort_keys=True, default=to_json).encode()


def checksum(content: Json) -> str:
    """SHA-256 (hexadecimal) of a manifest as `read_manifest` returns it: of the store's content, not of its place."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def chunk_place(url: str, chunk: str, n_rows: int, chunk_rows: int) -> str:
    """A chunk, "array/c/0", as messages name it, with the rows that it holds."""
    start, stop = chunk_rows_of_key(chunk.partition("/")[2], n_rows, chunk_rows)
    return f"Chunk {chunk} (rows {start} to {stop - 1}) of '{url}'"


def _missing_chunk(url: str, missing: list[str], n_rows: int, chunk_rows: int, fault: str) -> StoreError:
    more = f" ({len(missing) - 1} more chunks of this array too)" if len(missing) > 1 else ""
    return StoreError(f"{chunk_place(url, missing[0], n_rows, chunk_rows)} {fault}{more}. Write the store again.")


def _no_manifest(url: str, kind: str) -> StoreError:
    url = normalise_url(url)
    if not exists(url):
        return StoreError(f"There is no {kind} store at '{url}'. Check the path.")
    if is_file(url):
        return StoreError(f"'{url}' is not a dkgp {kind} store but a file. {_way_from_file(url, kind)}")
    stored_kind = recognise(url)
    if stored_kind is None:
        return StoreError(f"'{url}' is not a dkgp {kind} store: it has no {MANIFEST_NAME}.")
    if stored_kind != kind:
        return StoreError(f"'{url}' holds an unfinished dkgp {stored_kind} store; expected a {kind} store.")
    return StoreError(
        f"The {kind} store '{url}' is incomplete: its writing was interrupted before the manifest was written. "
        "Write it again, or resume the command that was writing it."
    )


def _way_from_file(url: str, kind: str) -> str:
    """Advice on how a file becomes a store of a kind, or where such stores come from."""
    if kind == "dataset":
        name = url.rsplit("/", 1)[-1]
        store = f"{url.removesuffix(name)}{name.split('.', 1)[0] or 'data'}.zarr"
        line = shlex.join(["dkgp", "ingest", url, store])
        target, labels = (f"--{role} NAME" for role in ("target", "labels"))
        return f"Run dkgp ingest first: {line} {target} (for labels: {labels}; for prediction inputs: neither)."
    if kind == "prediction":
        return "A table of predictions is for other programs: let dkgp predict write a store, and dkgp export a table."
    if kind in {"model", "sparse model", "classifier", "linear model"}:
        return "Run dkgp ingest first, then dkgp tune and dkgp train, which writes the store of a model."
    return "Check the path."
