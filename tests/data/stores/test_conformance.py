"""Properties of every kind of store: what is written comes back, and nothing else is taken for it or lost."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr.storage

from dkgp.data import Dataset, dataset_from_arrays, recognise
from dkgp.data.stores import writable
from dkgp.data.stores.manifest import FORMAT_VERSIONS, MANIFEST_NAME
from dkgp.errors import OutputExistsError, StorageError, StoreError
from tests.data.stores.kinds import DISTINCT, FACTS, KINDS, StoreKind, rewrite_manifest

Place = Callable[[str], str]
Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """1,000 samples, three features of very different scale, one target."""
    generator = np.random.default_rng(7)
    X = generator.normal([0.0, 1e6, -3.0], [1.0, 50.0, 1e-4], size=(1000, 3))
    return dataset_from_arrays(tmp_path_factory.mktemp("training") / "train.zarr", X, X[:, 0], chunk_rows=300)


Written = Callable[[StoreKind], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def masters(training: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[StoreKind], Any]:
    """Return the path and the written content of a store of the kind; each is written once."""
    made: dict[int, tuple[Path, dict[str, np.ndarray]]] = {}

    def of(store: StoreKind) -> tuple[Path, dict[str, np.ndarray]]:
        if id(store) not in made:
            place = tmp_path_factory.mktemp("masters") / "a.zarr"
            made[id(store)] = place, store.write(str(place), training)
        return made[id(store)]

    return of


@pytest.fixture
def written(masters: Callable[[StoreKind], Any], tmp_path: Path) -> Written:
    """Puts a store of a kind at `a.zarr` of the test's folder; returns what is in it."""

    def put(store: StoreKind) -> dict[str, np.ndarray]:
        place, arrays = masters(store)
        shutil.copytree(place, tmp_path / "a.zarr")
        return dict(arrays)

    return put


MODELS = {name: store for name, store in KINDS.items() if "model" in store.kind or store.kind == "classifier"}
SHOWN = {name: store for name, store in KINDS.items() if store.dimensions}
every_form = pytest.mark.parametrize("store", KINDS.values(), ids=KINDS)
every_kind = pytest.mark.parametrize("store", DISTINCT.values(), ids=DISTINCT)


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.spread(8)
@pytest.mark.covering
@every_form
def test_what_was_written_comes_back_also_in_another_process(place: Place, training: Dataset, store: StoreKind) -> None:
    written = store.write(place("a.zarr"), training)
    opened = pickle.loads(pickle.dumps(store.open(place("a.zarr"))))
    same(store.arrays(opened), written)
    assert (opened.url, recognise(place("a.zarr"))) == (place("a.zarr"), store.kind)


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(store, id=name)
        for name, store in KINDS.items()
        if "model" in store.kind or "classifier" in store.kind
    ],
)
def test_a_model_says_what_it_was_trained_on_and_how(
    tmp_path: Path, training: Dataset, store: StoreKind, written: Written
) -> None:
    written(store)
    model = store.open(str(tmp_path / "a.zarr"))
    for name in ("feature_names", "target_names", "fingerprint", "standardisation"):
        assert getattr(model, name) == getattr(training, name)
    assert (model.training_url, model.n_features, model.n_targets) == (training.url, 3, 1)
    assert {"python", "numpy", "zarr"} <= set(model.versions)
    if store.kind == "linear model":
        assert model.summary == {"path": [1]}
    else:
        assert {name: getattr(model, name) for name in FACTS} == FACTS


@pytest.mark.spread(6)
@pytest.mark.parametrize("store", SHOWN.values(), ids=SHOWN)
def test_xarray_shows_it(tmp_path: Path, store: StoreKind, written: Written) -> None:
    arrays = written(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = xr.open_zarr(tmp_path / "a.zarr")
    assert shown.attrs["dkgp_store"] == store.kind
    for name, dimensions in store.dimensions.items():
        assert shown[name].dims == dimensions
        if name in arrays:
            np.testing.assert_array_equal(shown[name].values.reshape(arrays[name].shape), arrays[name])


@every_kind
def test_a_store_can_be_moved(tmp_path: Path, training: Dataset, store: StoreKind) -> None:
    written = store.write(str(tmp_path / "a.zarr"), training)
    shutil.move(tmp_path / "a.zarr", tmp_path / "below" / "b.zarr")
    same(store.arrays(store.open(str(tmp_path / "below" / "b.zarr"))), written)


@every_kind
def test_it_is_a_kind_of_its_own(tmp_path: Path, training: Dataset, store: StoreKind, written: Written) -> None:
    url = str(tmp_path / "a.zarr")
    written(store)
    for other in DISTINCT.values():
        if other.kind != store.kind:
            with pytest.raises(StoreError, match=f"holds a dkgp {store.kind} store; expected a {other.kind} store"):
                other.open(url)
            with pytest.raises(OutputExistsError, match=f"holds a dkgp {store.kind} store, but a {other.kind} store"):
                other.write(url, training, overwrite=True)
    store.open(url)


@pytest.mark.covering
@every_kind
def test_only_what_is_to_be_replaced_is_replaced(place: Place, training: Dataset, store: StoreKind) -> None:
    store.write(place("a.zarr"), training)
    with pytest.raises(OutputExistsError, match="already exists.*`overwrite`"):
        store.write(place("a.zarr"), training)
    file_system, path = fsspec.core.url_to_fs(place("a.zarr"))
    file_system.pipe_file(f"{path}/of-before", b"x")
    written = store.write(place("a.zarr"), training, overwrite=True)
    same(store.arrays(store.open(place("a.zarr"))), written)
    assert not file_system.exists(f"{path}/of-before")


@every_kind
def test_a_store_is_read_until_another_takes_its_place(
    tmp_path: Path, training: Dataset, store: StoreKind, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.kind == "prediction":
        pytest.skip("new predictions are written in their final place, to go on from")
    expected, place, commit, read = written(store), str(tmp_path / "a.zarr"), writable.commit, []
    earlier = store.open(place)

    def reading(*arguments: Any) -> None:
        read.extend([store.arrays(earlier), store.arrays(store.open(place))])
        commit(*arguments)

    monkeypatch.setattr(writable, "commit", reading)
    store.write(place, training, overwrite=True)
    assert len(read) == 2
    for found in read:
        same(found, expected)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.covering
@pytest.mark.parametrize("store", MODELS.values(), ids=MODELS)
def test_a_model_is_saved_over_the_store_that_it_reads(place: Place, training: Dataset, store: StoreKind) -> None:
    expected = store.write(place("a.zarr"), training)
    by_reference = getattr(store.open(place("a.zarr")), "by_reference", False)
    for _ in range(2):
        store.open(place("a.zarr")).save(place("a.zarr"), overwrite=True, by_reference=by_reference)
        same(store.arrays(store.open(place("a.zarr"))), expected)


@every_kind
def test_what_is_no_store_is_neither_opened_nor_replaced(tmp_path: Path, training: Dataset, store: StoreKind) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    xr.Dataset({"X": ("sample", [1.0, 2.0])}).to_zarr(tmp_path / "foreign.zarr", consolidated=False)
    for name in ("thesis", "file", "foreign.zarr"):
        with pytest.raises(OutputExistsError, match="not a dkgp store"):
            store.write(str(tmp_path / name), training, overwrite=True)
        with pytest.raises(StoreError, match=f"is not a dkgp {store.kind} store"):
            store.open(str(tmp_path / name))
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == (tmp_path / "file").read_text() == "precious"
    assert (tmp_path / "foreign.zarr" / "X").is_dir()
    with pytest.raises(StoreError, match=f"There is no {store.kind} store"):
        store.open(str(tmp_path / "nothing"))
    with pytest.raises(StorageError, match="not a folder"):
        store.write(str(tmp_path / "file" / "below.zarr"), training)


@every_kind
def test_an_unfinished_store_is_not_opened_and_may_be_replaced(
    tmp_path: Path, training: Dataset, store: StoreKind
) -> None:
    (tmp_path / "a.zarr").mkdir()  # an empty folder may be written to
    store.write(str(tmp_path / "a.zarr"), training)
    (tmp_path / "a.zarr" / MANIFEST_NAME).unlink()
    with pytest.raises(StoreError, match="incomplete: its writing was interrupted"):
        store.open(str(tmp_path / "a.zarr"))
    with pytest.raises(OutputExistsError, match="unfinished"):
        store.write(str(tmp_path / "a.zarr"), training)
    written = store.write(str(tmp_path / "a.zarr"), training, overwrite=True)
    same(store.arrays(store.open(str(tmp_path / "a.zarr"))), written)


@pytest.mark.covering
@every_kind
def test_a_missing_chunk_is_found_when_it_is_opened(place: Place, training: Dataset, store: StoreKind) -> None:
    store.write(place("a.zarr"), training)
    file_system, path = fsspec.core.url_to_fs(place("a.zarr"))
    file_system.rm_file(f"{path}/{store.chunk}")
    with pytest.raises(StoreError, match=rf"Chunk {store.chunk} \(rows \d+ to \d+\).*is missing"):
        store.open(place("a.zarr"))


@every_kind
def test_a_damaged_chunk_is_found(tmp_path: Path, store: StoreKind, written: Written) -> None:
    url = str(tmp_path / "a.zarr")
    written(store)
    chunk = tmp_path / "a.zarr" / store.chunk
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 4
    chunk.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=rf"Chunk {store.chunk} .* is damaged"):
        store.arrays(store.open(url))
    chunk.write_bytes(bytes(content[:-5]))
    with pytest.raises(StoreError, match=rf"Chunk {store.chunk} .* is damaged: it has {len(content) - 5} bytes"):
        store.open(url)


@every_kind
def test_a_damaged_manifest_is_told(tmp_path: Path, store: StoreKind, written: Written) -> None:
    written(store)
    manifest = tmp_path / "a.zarr" / MANIFEST_NAME
    content = manifest.read_text()
    for damaged in (content[:-20], content.replace('"chunk_rows": ', '"chunk_rows": 1', 1)):
        manifest.write_text(damaged)
        with pytest.raises(StoreError, match=r"manifest .* is damaged"):
            store.open(str(tmp_path / "a.zarr"))


@every_kind
def test_a_manifest_that_lacks_something_is_told(tmp_path: Path, store: StoreKind, written: Written) -> None:
    written(store)
    name = "n_samples" if store.kind in ("dataset", "prediction") else "training_url"
    rewrite_manifest(tmp_path / "a.zarr", lambda manifest: manifest["metadata"].pop(name))
    with pytest.raises(StoreError, match=f"The manifest of .* lacks '{name}'"):
        store.open(str(tmp_path / "a.zarr"))


@every_kind
def test_a_newer_format_is_refused(tmp_path: Path, store: StoreKind, written: Written) -> None:
    written(store)
    newest = FORMAT_VERSIONS.get(store.kind, 1)
    rewrite_manifest(tmp_path / "a.zarr", lambda manifest: manifest.update(version=newest + 1))
    with pytest.raises(StoreError, match=f"store format {newest + 1}; this dkgp reads up to {newest}"):
        store.open(str(tmp_path / "a.zarr"))


OLDER = [
    pytest.param(store, version, absent, id=f"{store.kind} {version}")
    for store in KINDS.values()
    for version, absent in store.older
]


@pytest.mark.parametrize(("store", "version", "absent"), OLDER)
def test_older_formats_are_read(
    tmp_path: Path, store: StoreKind, written: Written, version: int, absent: tuple[str, ...]
) -> None:
    """As dkgp wrote them before there were the entries that are `absent`."""
    arrays = written(store)

    def make_older(manifest: dict[str, Any]) -> None:
        assert manifest["version"] >= version
        manifest["version"] = version
        for name in absent:
            assert manifest["metadata"].pop(name, None) is None

    rewrite_manifest(tmp_path / "a.zarr", make_older)
    opened = store.open(str(tmp_path / "a.zarr"))
    same(store.arrays(opened), arrays)
    assert all(getattr(opened, name) is None for name in absent)


def test_every_kind_with_a_history_has_its_older_formats_read() -> None:
    # Data sets of format 4 have noise by sample: tests/data/formats has a stored one.
    tested = {("dataset", 4)} | {(store.kind, version) for store in KINDS.values() for version, _ in store.older}
    assert tested == {(kind, version) for kind, newest in FORMAT_VERSIONS.items() for version in range(1, newest)}


@every_kind
def test_a_full_disk_or_an_interruption_leaves_nothing(
    tmp_path: Path, training: Dataset, store: StoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.kind == "prediction":
        pytest.skip("what is written of predictions is kept, to go on from")
    put = zarr.storage.LocalStore.set

    async def full(self: zarr.storage.LocalStore, key: str, value: Any) -> None:
        if "/c/" in f"{self.root}/{key}":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await put(self, key, value)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zarr.storage.LocalStore, "set", full)
        with pytest.raises(StorageError, match="disk is full"):
            store.write(str(tmp_path / "a.zarr"), training)
    monkeypatch.setattr(writable, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(str(tmp_path / "a.zarr"), training)
    assert not list(tmp_path.iterdir())
