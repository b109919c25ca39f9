"""Zarr stores whose metadata names codecs that run code, or promises more than there is: refused before it is read."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import LocalStore

import dkgp.data.remote.zarr_store as zarr_metadata
from dkgp.data import ingest
from dkgp.data.remote.limits import Limits, limited_to
from dkgp.data.remote.zarr_store import LimitedStore
from dkgp.errors import InputError

N = 10
Json = dict[str, Any]


class Command:
    """Unpickled, it makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.place),)


def array_v2(dtype: Any = "<f8", **changes: Any) -> Json:
    return {
        "zarr_format": 2,
        "shape": [N],
        "chunks": [N],
        "dtype": dtype,
        "order": "C",
        "fill_value": None if dtype == "|O" else 0,
        "compressor": None,
        "filters": None,
        **changes,
    }


def array_v3(codecs: list[Any], **changes: Any) -> Json:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [N],
        "data_type": "float64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [N]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": codecs,
        "attributes": {},
        **changes,
    }


def write(place: Path, documents: dict[str, Any]) -> Path:
    """A group with a target `y`, and documents of metadata besides."""
    version = 3 if any(name.endswith("zarr.json") for name in documents) else 2
    group = zarr.create_group(place, zarr_format=version)
    group.create_array("y", data=np.arange(float(N)), chunks=(N,))
    for name, document in documents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(json.dumps(document))
    return place


PICKLED = {"filters": [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}]}


@pytest.mark.parametrize("limited", [False, True], ids=["command", "below roots"])
def test_a_pickle_is_not_opened(tmp_path: Path, limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # As before numcodecs 0.16.6: nothing but dkgp's list stands before it.
    monkeypatch.setattr(numcodecs.Pickle, "decode", lambda self, buf, out=None: pickle.loads(bytes(buf)))
    place = write(tmp_path / "a.zarr", {"a/.zarray": array_v2("|O", **PICKLED)})
    (place / "a" / "0").write_bytes(pickle.dumps(Command(tmp_path / "ran")))
    with (
        limited_to(*([Limits((str(tmp_path),))] if limited else [])),
        pytest.raises(InputError, match="codec 'pickle'"),
    ):
        ingest(place, tmp_path / "d.zarr", labels="a")
    assert not (tmp_path / "ran").exists()


REFUSED_CODECS: dict[str, dict[str, Any]] = {
    "compressor": {"a/.zarray": array_v2("|O", filters=[{"id": "vlen-utf8"}], compressor={"id": "pickle"})},
    "unknown": {"a/.zarray": array_v2(filters=[{"id": "somebodys"}])},
    "no name": {"a/.zarray": array_v2(filters=[{}])},
    "json": {"a/.zarray": array_v2("|O", filters=[{"id": "json2"}])},
    "consolidated": {
        "a/.zarray": array_v2(),
        ".zmetadata": {"zarr_consolidated_format": 1, "metadata": {"a/.zarray": array_v2("|O", **PICKLED)}},
    },
    # Zarr puts the documents of a path together.
    "in two": {
        "a/.zarray": array_v2(),
        ".zmetadata": {
            "zarr_consolidated_format": 1,
            "metadata": {"a/.zarray": array_v2("|O"), "a/.zgroup": {"filters": [{"id": "pickle"}]}},
        },
    },
    "inline": {
        "a/.zarray": array_v2(),
        ".zgroup": {
            "zarr_format": 2,
            "consolidated_metadata": {"kind": "inline", "metadata": {"a": array_v2("|O", **PICKLED)}},
        },
    },
    "v3": {"a/zarr.json": array_v3([{"name": "bytes"}, {"name": "somebodys"}])},
    "v3 by name": {"a/zarr.json": array_v3(["bytes", "numcodecs.pickle"])},
    "v3 consolidated": {
        "zarr.json": {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": {},
            "consolidated_metadata": {
                "kind": "inline",
                "must_understand": False,
                "metadata": {"deep": {"consolidated_metadata": {"metadata": {"a": array_v3(["somebodys"])}}}},
            },
        }
    },
    "in a shard": {
        "a/zarr.json": array_v3(
            [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [5],
                        "codecs": [{"name": "bytes"}, {"name": "somebodys"}],
                        "index_codecs": [{"name": "bytes"}],
                    },
                }
            ]
        )
    },
    "in a shard's index": {
        "a/zarr.json": array_v3(
            [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [5],
                        "codecs": [{"name": "bytes"}],
                        "index_codecs": [{"name": "bytes"}, {"name": "somebodys"}],
                    },
                }
            ]
        )
    },
}


@pytest.mark.parametrize("case", REFUSED_CODECS)
def test_codecs_outside_the_list_are_refused(tmp_path: Path, case: str) -> None:
    place = write(tmp_path / "a.zarr", REFUSED_CODECS[case])
    with pytest.raises(
        InputError, match="names the codec .*, which is not one that is read.* Known: adler32|Known: blosc"
    ):
        ingest(place, tmp_path / "d.zarr", target="y")


def sharded(shard: list[int], chunk: list[int], *, outer: tuple[str, ...] = ()) -> Json:
    codecs = [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": chunk,
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            },
        },
        *({"name": name, "configuration": {}} for name in outer),
    ]
    return array_v3(codecs, shape=shard, chunk_grid={"name": "regular", "configuration": {"chunk_shape": shard}})


TOO_MUCH: dict[str, tuple[dict[str, Any], str]] = {
    "chunk": ({"a/.zarray": array_v2(chunks=[2_000_000_000])}, "takes 16,000,000,000 bytes; at most 2,147,483,648"),
    "wide chunk": ({"a/.zarray": array_v2(shape=[N, 1], chunks=[1, 2_000_000_000])}, "takes 16,000,000,000 bytes"),
    "chunk of v3": (
        {
            "a/zarr.json": array_v3(
                [{"name": "bytes"}], chunk_grid={"name": "regular", "configuration": {"chunk_shape": [2_000_000_000]}}
            )
        },
        "takes 16,000,000,000 bytes",
    ),
    "long texts": ({"a/.zarray": array_v2("<U500000000", fill_value="")}, "takes 20,000,000,000 bytes"),
    "long texts of v3": (
        {
            "a/zarr.json": array_v3(
                [{"name": "bytes"}],
                data_type={"name": "null_terminated_bytes", "configuration": {"length_bytes": 2_000_000_000}},
                fill_value="",
            )
        },
        "takes 20,000,000,000 bytes",
    ),
    "structured": ({"a/.zarray": array_v2([["b", "<U500000000"]])}, "takes 20,000,000,000 bytes"),
    "unknown type": ({"a/.zarray": array_v2("somebodys")}, "names the type 'somebodys', which Zarr does not read"),
    "chunk of a shard": ({"a/zarr.json": sharded([2**40], [2**32])}, "takes 34,359,738,368 bytes"),
    "shard read as a whole": (
        {"a/zarr.json": sharded([2**32], [2**20], outer=("gzip",))},
        "takes 34,359,738,368 bytes",
    ),
    "index of a shard": ({"a/zarr.json": sharded([2**40], [1])}, "index of a shard .* takes 17,592,186,044,416 bytes"),
    "decoded to text": (
        {"a/.zarray": array_v2(filters=[{"id": "astype", "encode_dtype": "<f8", "decode_dtype": "<U500000000"}])},
        "codec 'astype' with the type '<U500000000'; expected a type of numbers",
    ),
    "negative": ({"a/.zarray": array_v2(chunks=[-5])}, "where lengths belong"),
    "no fields": ({"a/.zarray": [1, 2]}, "where fields belong"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_metadata_that_promises_too_much(tmp_path: Path, case: str) -> None:
    documents, message = TOO_MUCH[case]
    with pytest.raises(InputError, match=message):
        ingest(write(tmp_path / "a.zarr", documents), tmp_path / "d.zarr", target="y")


@pytest.mark.parametrize("name", [".zmetadata", "a/.zattrs", "a/.zarray"])
@pytest.mark.parametrize("limited", [False, True], ids=["command", "below roots"])
def test_metadata_of_many_bytes_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limited: bool
) -> None:
    monkeypatch.setattr(zarr_metadata, "MOST_DOCUMENT_BYTES", 10_000)
    place = write(tmp_path / "a.zarr", {"a/.zarray": array_v2()})
    (place / name).write_text(json.dumps({"text": "x" * 20_000}))
    with (
        limited_to(*([Limits((str(tmp_path),))] if limited else [])),
        pytest.raises(InputError, match="takes more than 10,000 bytes"),
    ):
        ingest(place, tmp_path / "d.zarr", target="y")


def test_metadata_that_is_nested_deep_is_refused(tmp_path: Path) -> None:
    """Python's limit depends on the frames below it: where the check meets it, Zarr need not."""
    place = write(tmp_path / "a.zarr", {})
    (place / "a").mkdir()
    inner = json.dumps(array_v2("|O", **PICKLED))[:-1]
    (place / "a" / ".zarray").write_text(f'{inner}, "more": {"[" * 2000}{"]" * 2000}}}')
    with pytest.raises(InputError, match="a/.zarray' is nested too deep to be read. Write it again with fewer"):
        ingest(place, tmp_path / "d.zarr", target="y")


def test_codecs_of_the_list_are_read(tmp_path: Path) -> None:
    values = np.arange(float(N))
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    filters = [numcodecs.Delta("f8"), numcodecs.Shuffle(8)]
    compressors = [
        numcodecs.Blosc(),
        numcodecs.Zlib(),
        numcodecs.LZ4(),
        numcodecs.BZ2(),
        numcodecs.LZMA(),
        numcodecs.Zstd(),
    ]
    for index, compressor in enumerate(compressors):
        array = group.create_array(
            f"a{index}", shape=(N,), dtype="f8", chunks=(5,), filters=filters, compressors=compressor
        )
        array[:] = values + index
    group.create_array("y", data=values, chunks=(5,))
    dataset = ingest(tmp_path / "a.zarr", tmp_path / "d.zarr", target="y").train
    np.testing.assert_array_equal(dataset.raw_inputs(0, N), values[:, None] + np.arange(len(compressors)))


@pytest.mark.parametrize(
    "part",
    [
        None,
        RangeByteRequest(3, 7),
        RangeByteRequest(90, 200),
        OffsetByteRequest(95),
        SuffixByteRequest(4),
        SuffixByteRequest(200),
    ],
)
def test_parts_of_files_below_roots_are_those_of_zarr(tmp_path: Path, part: ByteRequest | None) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    limited = LimitedStore(str(tmp_path), limits=(Limits((str(tmp_path),)),)).get_sync("a", byte_range=part)
    expected = LocalStore(tmp_path).get_sync("a", byte_range=part)
    assert limited is not None
    assert expected is not None
    assert limited.to_bytes() == expected.to_bytes()


def test_shards_are_read(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3)
    values = np.arange(200.0).reshape(100, 2)
    group.create_array("X", data=values, chunks=(5, 2), shards=(50, 2))
    group.create_array("y", data=values[:, 0], chunks=(5,), shards=(50,))
    with limited_to(Limits((str(tmp_path),))):
        dataset = ingest(tmp_path / "a.zarr", tmp_path / "d.zarr", target="y").train
        np.testing.assert_array_equal(dataset.raw_inputs(0, 100), values)
