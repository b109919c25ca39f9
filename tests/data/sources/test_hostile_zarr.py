"""Zarr stores whose metadata names codecs that run code, or promises more than there is: refused before it is read."""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import LocalStore

import dkgp.data.remote.zarr_store as zarr_metadata
import dkgp.data.sources.xarray as hdf5
from dkgp.data import ingest, open_dataset
from dkgp.data.remote.limits import Limits, limited_to
from dkgp.data.remote.zarr_store import LimitedStore
from dkgp.errors import InputError
from tests.cli.invoke import files_below, refused, run

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
    with pytest.raises(InputError, match="names the codec .*, which dkgp does not read.* Known: adler32|Known: blosc"):
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


# HDF5 files that name other files, or promise more than they hold: refused before a value is read.


SECRET = b"the token of the admin, 44 characters long!!"
HDF5_N = len(SECRET)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file beside the folder that may be read."""
    (tmp_path / "root").mkdir()
    (tmp_path / "token").write_bytes(SECRET)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["values"] = np.frombuffer(SECRET, "u1").astype(float)
    return tmp_path / "token"


def write_hdf5(place: Path, add: Callable[[h5py.File], object]) -> Path:
    """A file with a target `y` and whatever `add` adds."""
    with h5py.File(place, "w") as file:
        file["y"] = np.arange(HDF5_N, dtype=float)
        add(file)
    return place


def external(file: h5py.Group) -> None:
    file.create_dataset("a", (HDF5_N,), "u1", external=[("../token", 0, HDF5_N)])


def absolute(file: h5py.Group) -> None:
    token = Path(file.file.filename).parent.parent / "token"
    file.create_dataset("a", (HDF5_N,), "u1", external=[(str(token), 0, HDF5_N)])


def nested(file: h5py.File) -> None:
    file["x"] = np.arange(HDF5_N, dtype=float)
    external(file.create_group("deep/deeper"))


def soft_to_nested(file: h5py.File) -> None:
    external(file.create_group("deep/deeper"))
    file["a"] = h5py.SoftLink("/deep/deeper/a")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((HDF5_N,), "f8")
    layout[:] = h5py.VirtualSource("../secret.h5", "values", (HDF5_N,))
    file.create_virtual_dataset("a", layout)


def virtual_by_pattern(file: h5py.File) -> None:
    """Sources by a pattern of names, along a dimension without an end."""
    space = h5py.h5s.create_simple((HDF5_N,), (h5py.h5s.UNLIMITED,))
    space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (HDF5_N,), (HDF5_N,))
    source = h5py.h5s.create_simple((HDF5_N,))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_virtual(space, b"../secret-%b.h5", b"values", source)
    shape = h5py.h5s.create_simple((HDF5_N,), (h5py.h5s.UNLIMITED,))
    h5py.h5d.create(file.id, b"a", h5py.h5t.NATIVE_DOUBLE, shape, plist)


def linked(file: h5py.File) -> None:
    file["a"] = h5py.ExternalLink("../secret.h5", "/values")


def linked_group(file: h5py.File) -> None:
    file["x"] = np.arange(HDF5_N, dtype=float)
    file["deep"] = h5py.ExternalLink("../secret.h5", "/")


LEADING_OUT = {
    "external": (external, "the values of the variable '/a' lie in external files"),
    "absolute": (absolute, "the values of the variable '/a' lie in external files"),
    "nested": (nested, "the variable '/deep/deeper/a' lie in external files"),
    "soft link": (soft_to_nested, "the variable '/deep/deeper/a' lie in external files"),
    "virtual": (virtual, "the variable '/a' is a virtual dataset"),
    "pattern": (virtual_by_pattern, "the variable '/a' is a virtual dataset"),
    "link": (linked, "the link '/a' leads to another file"),
    "link to a group": (linked_group, "the link '/deep' leads to another file"),
}


@pytest.mark.parametrize("name", LEADING_OUT)
@pytest.mark.parametrize("limited", [False, True], ids=["command", "below roots"])
def test_files_that_name_other_files_are_refused(secret: Path, name: str, limited: bool) -> None:
    add, message = LEADING_OUT[name]
    root = secret.parent / "root"
    write_hdf5(root / "data.h5", add)
    with limited_to(*([Limits((str(root),))] if limited else [])), pytest.raises(InputError, match=message) as error:
        ingest(root / "data.h5", root / "d.zarr", target="y")
    assert "refers to other files" in str(error.value)
    assert "Copy the values into one file" in str(error.value)
    assert not (root / "d.zarr").exists()


def test_on_object_storage_too(secret: Path) -> None:
    content = write_hdf5(secret.parent / "root" / "data.h5", absolute).read_bytes()
    place = f"memory://{secret.parent.name}.h5"
    with fsspec.open(place, "wb") as file:
        file.write(content)
    with pytest.raises(InputError, match="lie in external files"):
        ingest(place, secret.parent / "d.zarr", target="y")
    fsspec.filesystem("memory").rm(f"/{secret.parent.name}.h5")


def test_a_fit_is_refused_on_the_command_line(secret: Path) -> None:
    write_hdf5(secret.parent / "root" / "data.h5", external)
    result = run("fit", secret.parent / "root" / "data.h5", "--target", "y", "--out", secret.parent / "fitted")
    refused(result, "refers to other files")
    assert not any(SECRET in path.read_bytes() for path in (secret.parent / "fitted").rglob("*") if path.is_file())


def test_links_within_a_file_are_followed(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        file["kept/a"] = np.arange(HDF5_N) ** 2.0
        file["a"] = h5py.SoftLink("/kept/a")
        file["b"] = file["kept/a"]
        # A cycle of groups.
        file["kept/again"] = file["/"]

    dataset = ingest(write_hdf5(tmp_path / "data.h5", add), tmp_path / "d.zarr", target="y").train
    assert dataset.feature_names == ("a", "b")
    np.testing.assert_array_equal(dataset.raw_inputs(0, HDF5_N), np.arange(HDF5_N)[:, None] ** [2.0, 2.0])
    np.testing.assert_array_equal(
        open_dataset(tmp_path / "d.zarr").targets(0, HDF5_N, standardised=False)[:, 0], np.arange(HDF5_N)
    )


def test_a_change_after_the_check_does_not_lead_out(secret: Path) -> None:
    """A checked file whose bytes are exchanged in place: its values are those of the checked description, or none."""
    place = secret.parent / "root" / "data.h5"
    write_hdf5(place, lambda file: file.create_dataset("a", (HDF5_N,), "u1", data=np.zeros(HDF5_N)))
    hostile = write_hdf5(secret.parent / "root" / "hostile.h5", external).read_bytes()
    with hdf5.CheckedFile(str(place)) as file:
        with place.open("r+b") as target:
            target.write(hostile)
        assert file.h5["a"].external is None
        np.testing.assert_array_equal(file.h5["a"][:].tobytes() == SECRET, False)


def test_an_exchanged_name_does_not_lead_out(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is walked is the file that is read, whatever its name leads to between the two."""
    place = secret.parent / "root" / "data.h5"
    write_hdf5(place, lambda file: file.create_dataset("a", (HDF5_N,), "u1", data=np.arange(HDF5_N)))
    hostile = write_hdf5(secret.parent / "root" / "hostile.h5", external)
    checked = hdf5.CheckedFile.__enter__

    def exchange(self: hdf5.CheckedFile) -> hdf5.CheckedFile:
        if hostile.exists():
            hostile.replace(place)
        return checked(self)

    monkeypatch.setattr(hdf5.CheckedFile, "__enter__", exchange)
    from dkgp.data.sources.xarray import XarraySource

    source = XarraySource(str(place), "h5netcdf")
    assert [column.name for column in source.columns] == ["a", "y"]
    # Opened anew for its values, it is another file, and refused.
    with pytest.raises(InputError, match="refers to other files"):
        next(source.blocks(source.columns))


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (
            lambda file: file.create_dataset("a", (HDF5_N,), "f8", chunks=(2**30,), maxshape=(None,)),
            r"A chunk of the variable '/a' of .* takes 8,589,934,592 bytes; at most 2,147,483,648",
        ),
        (
            lambda file: file.create_dataset("a", (HDF5_N, 2), "f8", chunks=(1, 2**29), maxshape=(None, None)),
            "Write the variable again with smaller chunks",
        ),
        (lambda file: [file.create_group(f"g{index}") for index in range(40)], "more than 20 groups and variables"),
        (
            lambda file: [
                file[f"a{index}"].attrs.update(text=np.bytes_(b"x" * 60_000)) for index in file_of_vectors(file, 3)
            ],
            "The attributes of .* take .* bytes; at most 100,000 are read",
        ),
    ],
    ids=["chunk", "wide chunk", "objects", "attributes"],
)
def test_files_that_promise_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Callable[[h5py.File], object], message: str
) -> None:
    monkeypatch.setattr(hdf5, "MOST_OBJECTS", 20)
    monkeypatch.setattr(hdf5, "MOST_DOCUMENT_BYTES", 100_000)
    with pytest.raises(InputError, match=message):
        ingest(write_hdf5(tmp_path / "data.h5", add), tmp_path / "d.zarr", target="y")


def file_of_vectors(file: h5py.File, count: int) -> range:
    for index in range(count):
        file[f"a{index}"] = np.arange(HDF5_N, dtype=float)
    return range(count)


def test_a_filter_that_no_list_knows(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((HDF5_N,))
        plist.set_filter(40_000, h5py.h5z.FLAG_OPTIONAL, (1, 2))
        h5py.h5d.create(file.id, b"a", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((HDF5_N,)), plist)

    with pytest.raises(InputError, match="'/a' of .* is stored with the HDF5 filter 40000"):
        ingest(write_hdf5(tmp_path / "data.h5", add), tmp_path / "d.zarr", target="y")


@pytest.mark.parametrize(
    "options",
    [{"compression": "gzip", "shuffle": True}, {"compression": "lzf", "fletcher32": True}, {"scaleoffset": 3}],
)
def test_filters_that_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    def add(file: h5py.File) -> None:
        file.create_dataset("a", data=np.arange(HDF5_N, dtype=float), chunks=(10,), **options)

    dataset = ingest(write_hdf5(tmp_path / "data.h5", add), tmp_path / "d.zarr", target="y").train
    np.testing.assert_allclose(dataset.raw_inputs(0, HDF5_N)[:, 0], np.arange(HDF5_N), atol=1e-3)


def test_a_dimension_that_no_name_leads_to(tmp_path: Path) -> None:
    place = tmp_path / "data.nc"
    xr.Dataset({"a": ("sample", np.arange(5.0)), "sample": ("sample", np.arange(5))}).to_netcdf(
        place, engine="h5netcdf"
    )
    with h5py.File(place, "r+") as file:
        # The references stay.
        file["gone"] = file["sample"]
        del file["sample"], file["gone"]
    with pytest.raises(InputError, match="described by an object that no name leads to|cannot be opened"):
        ingest(place, tmp_path / "d.zarr", target="a")


def test_a_long_coordinate_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinate of the samples' dimension is read by blocks, as any column is: no index is made of it."""
    place = tmp_path / "data.nc"
    columns = {name: ("sample", np.arange(50.0)) for name in ("a", "y", "sample")}
    xr.Dataset(columns).to_netcdf(place, engine="h5netcdf")

    def no_index(*_: object, **__: object) -> None:
        raise AssertionError("an index was made")

    monkeypatch.setattr(xr.indexes.PandasIndex, "from_variables", no_index)
    assert ingest(place, tmp_path / "d.zarr", target="y").n_samples == 50


# Archives whose members have names of other places: nothing is unpacked to a disk, whatever they are called.


NAMES = ["../escaped", "../../escaped", "/tmp/dkgp-escaped", "..\\escaped", "a/../../escaped"]


def array_bytes(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def write_archive(place: Path, *members: tuple[zipfile.ZipInfo | str, bytes]) -> None:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_members_with_names_of_other_places_are_written_nowhere(tmp_path: Path, name: str, suffix: str) -> None:
    folder = tmp_path / "deep" / "deeper"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    y = rng.random(20)
    write_archive(
        folder / "data.npz",
        ("X.npy", array_bytes(rng.random((20, 2)))),
        ("y.npy", array_bytes(y)),
        (name + suffix, array_bytes(rng.random(20))),
    )
    before = files_below(tmp_path)
    result = run("ingest", folder / "data.npz", folder / "out.zarr", "--target", "y")
    assert "Traceback" not in result.output
    assert result.exit_code in (0, 2, 3)
    assert not Path("/tmp/dkgp-escaped" + suffix).exists()
    # Nothing but the store, which is whole or not there.
    assert {path for path in files_below(tmp_path) if not path.startswith(str(folder / "out.zarr"))} == set(before)
    assert (folder / "out.zarr").exists() == (result.exit_code == 0)
    if result.exit_code == 0:
        assert open_dataset(str(folder / "out.zarr")).n_samples == 20


def test_a_link_in_an_archive_is_no_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.arange(20.0))
    link = zipfile.ZipInfo("y.npy")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    write_archive(tmp_path / "data.npz", ("X.npy", array_bytes(np.ones((20, 2)))), (link, str(secret).encode()))
    refused(run("ingest", tmp_path / "data.npz", tmp_path / "out.zarr", "--target", "y"), "not a whole NPY array")
    assert not (tmp_path / "out.zarr").exists()


def test_a_size_that_is_only_declared_takes_no_room(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**14, 2)})
    write_archive(tmp_path / "data.npz", ("X.npy", header.getvalue()), ("y.npy", array_bytes(np.ones(20))))
    result = run("ingest", tmp_path / "data.npz", tmp_path / "out.zarr", "--target", "y")
    refused(result)
    assert "out of memory" not in result.stderr
    assert not (tmp_path / "out.zarr").exists()
