"""The manifest by itself: what it says of a store, whatever order it is written in, and what it finds missing."""

from __future__ import annotations

import json
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dkgp.data import (
    CheckpointStore,
    dataset_from_arrays,
    open_any_model,
    open_dataset,
    open_linear_model,
    open_prediction,
)
from dkgp.data.remote.claims import Claim, TakenOverError
from dkgp.data.stores import manifest as module
from dkgp.data.stores.arrays import create_array, create_group, open_arrays
from dkgp.data.stores.manifest import (
    FORMAT_VERSIONS,
    MANIFEST_NAME,
    check_complete,
    checksum,
    chunk_keys,
    chunk_rows_of_key,
    commit,
    is_committed,
    json_bytes,
    read_manifest,
    recognise,
    store_attributes,
)
from dkgp.errors import OutputExistsError, StoreError
from tests.cli.invoke import run_json


def written(folder: Path, kind: str = "model") -> str:
    """A store of 20 rows in chunks of 6, and of a vector."""
    url = str(folder)
    create_group(url, kind, {"note": "x"})
    arrays = []
    for name, shape in (("values", (20, 3)), ("weights", (20,))):
        array = create_array(url, name, shape, 6, ("sample", "feature")[: len(shape)])
        array.write(0, np.ones(shape))
        arrays.append(array)
    commit(url, kind, {"seed": np.int64(5), "names": ("a", "b"), "scale": np.array([0.1, 2.0])}, arrays)
    return url


def test_what_is_read_is_what_was_committed(tmp_path: Path) -> None:
    url = written(tmp_path / "a.zarr")
    assert is_committed(url)
    manifest = read_manifest(url, "model")
    assert (manifest["kind"], manifest["version"]) == ("model", 4)
    assert manifest["metadata"] == {"seed": 5, "names": ["a", "b"], "scale": [0.1, 2.0]}
    values = manifest["arrays"]["values"]
    assert (values["shape"], values["chunk_rows"]) == ([20, 3], 6)
    sizes = [(tmp_path / "a.zarr" / "values" / key).stat().st_size for key in chunk_keys((20, 3), 6)]
    assert values["chunk_bytes"] == sizes
    _, opened, arrays = open_arrays(url, "model")
    assert opened == manifest
    assert {name: (array.shape, array.chunk_rows) for name, array in arrays.items()} == {
        "values": ((20, 3), 6),
        "weights": ((20,), 6),
    }


def test_versions_are_of_each_kind() -> None:
    versions = {
        kind: store_attributes(kind)["dkgp_format_version"]
        for kind in ("dataset", "model", "prediction", "classifier", "variance factor")
    }
    assert versions == {"dataset": 5, "model": 4, "prediction": 5, "classifier": 3, "variance factor": 1}


def test_chunks_and_their_rows() -> None:
    assert chunk_keys((20,), 6) == ["c/0", "c/1", "c/2", "c/3"]
    assert chunk_keys((18, 2, 2), 9) == ["c/0/0/0", "c/1/0/0"]
    assert [chunk_rows_of_key(key, 20, 6) for key in chunk_keys((20,), 6)] == [(0, 6), (6, 12), (12, 18), (18, 20)]


def test_the_order_of_names_changes_neither_bytes_nor_checksum() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert json_bytes(one) == json_bytes(other)
    assert checksum(one) == checksum(other) != checksum({**one, "a": 2})
    with pytest.raises(TypeError, match="object cannot be stored as JSON"):
        json_bytes({"a": object()})


@pytest.mark.parametrize(
    ("removed", "words"),
    [
        (["c/1/0"], r"Chunk values/c/1/0 \(rows 6 to 11\) of '.*' is missing\. Write"),
        (
            ["c/1/0", "c/2/0", "c/3/0"],
            r"\(rows 6 to 11\) of '.*' is missing \(2 more chunks of this array too\)\. Write",
        ),
        (["zarr.json"], r"The array 'values' of '.*' is missing \(no values/zarr.json\)"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, removed: list[str], words: str) -> None:
    url = written(tmp_path / "a.zarr")
    manifest = read_manifest(url, "model")
    check_complete(url, manifest)
    for key in removed:
        (tmp_path / "a.zarr" / "values" / key).unlink()
    with pytest.raises(StoreError, match=words):
        check_complete(url, manifest)


def test_another_size_is_told(tmp_path: Path) -> None:
    url = written(tmp_path / "a.zarr")
    chunk = tmp_path / "a.zarr" / "weights" / "c" / "3"
    size = chunk.stat().st_size
    chunk.write_bytes(chunk.read_bytes() + b"x")
    with pytest.raises(StoreError, match=rf"rows 18 to 19\).*it has {size + 1} bytes, {size} were written"):
        check_complete(url, read_manifest(url, "model"))


def test_an_array_whose_chunks_are_not_all_there_is_not_committed(tmp_path: Path) -> None:
    url = str(tmp_path / "a.zarr")
    create_group(url, "model", {})
    array = create_array(url, "values", (20,), 6, ("sample",))
    array.write(0, np.ones(12))
    with pytest.raises(StoreError, match=r"rows 12 to 17\).*was never written \(1 more chunks"):
        commit(url, "model", {}, [array])
    assert not is_committed(url)
    assert recognise(url) == "model"
    with pytest.raises(StoreError, match="incomplete: its writing was interrupted"):
        read_manifest(url, "model")
    with pytest.raises(StoreError, match="holds an unfinished dkgp model store; expected a dataset store"):
        read_manifest(url, "dataset")


@pytest.mark.parametrize("without", ["checksum", "kind", "version", "metadata", "arrays"])
def test_a_manifest_without_one_of_its_parts_is_damaged(tmp_path: Path, without: str) -> None:
    url = written(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr" / MANIFEST_NAME
    content = json.loads(path.read_text())
    del content[without]
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="is damaged; write the store again"):
        read_manifest(url, "model")


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"checksum": 5, "kind": 3, "version": "new"}'])
def test_a_manifest_that_is_none_is_damaged(tmp_path: Path, content: str) -> None:
    url = written(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / MANIFEST_NAME).write_text(content)
    with pytest.raises(StoreError, match="is damaged; write the store again"):
        read_manifest(url, "model")


def test_what_is_no_store_is_not_recognised(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no model store"):
        read_manifest(str(tmp_path / "nothing"), "model")
    (tmp_path / "zarr.json").write_text('{"attributes": {"dkgp_store": 5}}')
    assert recognise(str(tmp_path)) is None
    with pytest.raises(StoreError, match=f"is not a dkgp model store: it has no {MANIFEST_NAME}"):
        read_manifest(str(tmp_path), "model")


class Held(Claim):
    """A claim that is asked for so many times before another writer has taken it."""

    asked: ClassVar[list[int]] = []
    holds = 2

    def require(self) -> None:
        self.asked.append(1)
        if len(self.asked) > self.holds:
            raise TakenOverError("taken over")


@pytest.mark.parametrize(("holds", "written_anyway"), [(None, True), (2, True), (1, False), (0, False)])
def test_of_two_manifests_that_of_the_claims_holder_counts(
    tmp_path: Path, holds: int | None, written_anyway: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one is there when this one comes: it is replaced, by a writer that has not been taken over."""
    url, puts, write = str(tmp_path / "a.zarr"), list[dict[str, Any]](), module.write_object

    def put(address: str, content: bytes, **options: Any) -> None:
        puts.append(options)
        if len(puts) == 1:
            raise OutputExistsError("there")
        write(address, content)

    create_group(url, "model", {})
    array = create_array(url, "values", (5,), 6, ("sample",))
    array.write(0, np.ones(5))
    monkeypatch.setattr(module, "write_object", put)
    claim = None
    if holds is not None:
        monkeypatch.setattr(Held, "asked", [])
        monkeypatch.setattr(Held, "holds", holds)
        claim = Held(url, "")
    if written_anyway:
        commit(url, "model", {}, [array], claim)
        assert len(puts) == 2
    else:
        with pytest.raises(TakenOverError):
            commit(url, "model", {}, [array], claim)
        assert len(puts) == holds
    assert is_committed(url) is written_anyway
    assert [options for options in puts if options] == [{"replace": True}] * min(len(puts), 1)


def _forged(store: Path, **entry: Any) -> None:
    """A manifest that is whole by its own checksum, and says something else of the inputs X."""
    manifest = json.loads((store / MANIFEST_NAME).read_text())
    del manifest["checksum"]
    manifest["arrays"]["X"].update(entry)
    manifest["checksum"] = checksum(manifest)
    (store / MANIFEST_NAME).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"shape": [40_000_000, 1], "chunk_rows": 1}, "does not match"),
        ({"shape": [10**15, 1], "chunk_rows": 10**15}, "takes 8,000,000,000,000,000 bytes; at most"),
        ({"chunk_rows": 0}, "does not match"),
        ({"shape": [-5, 2]}, "does not match"),
    ],
)
def test_a_manifest_that_promises_much_costs_little(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    dataset_from_arrays(tmp_path / "d.zarr", np.zeros((20, 2)) + np.arange(20.0)[:, None], np.arange(20.0))
    _forged(tmp_path / "d.zarr", **entry)
    tracemalloc.start()
    with pytest.raises(StoreError, match=words):
        open_dataset(tmp_path / "d.zarr")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize("name", [MANIFEST_NAME, "zarr.json"])
def test_a_huge_description_is_not_read(tmp_path: Path, name: str) -> None:
    dataset_from_arrays(tmp_path / "d.zarr", np.arange(40.0).reshape(20, 2), np.arange(20.0))
    if name != MANIFEST_NAME:
        (tmp_path / "d.zarr" / MANIFEST_NAME).unlink()
    with (tmp_path / "d.zarr" / name).open("r+b") as file:
        file.truncate(1_500_000_000)
    tracemalloc.start()
    for look in (recognise, lambda url: open_dataset(url)):
        with pytest.raises(StoreError, match="1,500,000,000 bytes"):
            look(str(tmp_path / "d.zarr"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_chunks_too_large_to_read_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="smaller `chunk_rows`"):
        create_array(str(tmp_path / "a.zarr"), "inputs", (10**9, 4), 10**9, ("sample", "feature"))
    assert not (tmp_path / "a.zarr").exists()


# Stores as each version of dkgp wrote them, kept in `tests/data/formats`: read for ever, to the bit.
# `tests/data/formats/write.py` wrote them, with the dkgp of their time. Expected are the arrays that Zarr read then and
# the predictions of that dkgp.


FOLDER = Path(__file__).parents[1] / "formats"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.zip"))}


def unpacked(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    with zipfile.ZipFile(FILES[name]) as archive:
        archive.extractall(folder)
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return folder / "store", expected


def of_kind(words: str) -> Any:
    return pytest.mark.parametrize("name", [name for name in FILES if re.match(words, name)])


def test_every_format_is_there(tmp_path: Path) -> None:
    """A format that is new needs a store of its own, written by the script and committed with it."""
    seen = {("variance factor", 1)} if any("factor" in name for name in FILES) else set()
    for name in FILES:
        if not name.startswith("checkpoint"):
            store, expected = unpacked(name, tmp_path / name)
            seen.add((str(recognise(str(store))), expected["version"]))
    wanted = {(kind, version) for kind, newest in FORMAT_VERSIONS.items() for version in range(1, newest + 1)}
    assert seen >= wanted | {("variance factor", 1)}
    assert "checkpoint-1" in FILES


@of_kind("dataset|labels")
def test_data_sets(name: str, tmp_path: Path) -> None:
    store, expected = unpacked(name, tmp_path)
    dataset, arrays = open_dataset(store), expected["arrays"]
    n = dataset.n_samples
    assert list(dataset.raw_feature_names) == expected["names"]
    np.testing.assert_array_equal(dataset.raw_inputs(0, n), arrays["X"])
    np.testing.assert_array_equal(dataset.targets(0, n, standardised=False)[:, 0], arrays["y"])
    noise = dataset.all_sample_noise(standardised=False)
    assert (noise is None) == ("noise" not in arrays)
    if noise is not None:
        np.testing.assert_array_equal(noise, arrays["noise"])
    assert (dataset.classes is None) == name.startswith("dataset")
    assert dataset.covariate_names == (("b",) if "covariates" in name else ())


@of_kind("prediction")
def test_predictions(name: str, tmp_path: Path) -> None:
    store, expected = unpacked(name, tmp_path)
    prediction = open_prediction(store)
    assert set(prediction.variables) == set(expected["arrays"]) - {"class_name"}
    for variable in prediction.variables:
        values = np.array(expected["arrays"][variable])
        np.testing.assert_array_equal(prediction.read(variable), values.reshape(len(values), -1))


@pytest.mark.long
@of_kind(r"(?!prediction|dataset|labels|checkpoint)")
def test_models(name: str, tmp_path: Path) -> None:
    """They hold the same bits, and predict the same up to roundings of a newer arithmetic."""
    store, expected = unpacked(name, tmp_path)
    opens = open_linear_model if "linear" in name else open_any_model
    model, arrays = opens(str(store)), expected["arrays"]
    for field in {"alpha", "weights", "coefficients", "intercept", "prototypes", "lower", "normal"} & arrays.keys():
        values = np.array(arrays[field])
        np.testing.assert_array_equal(np.reshape(getattr(model, field), values.shape), values, err_msg=field)
    names = list(model.feature_names)
    dataset_from_arrays(tmp_path / "at.zarr", np.array(expected["inputs"]), None, feature_names=names)
    out, predicted = tmp_path / "prediction.zarr", expected["predicted"]
    # Variances of known noise need the noise at the samples, which `variance_lower` and the like hold.
    variance = ("--variance",) if "variance" in predicted and "noise" not in predicted else ()
    run_json("predict", store, tmp_path / "at.zarr", "--out", out, *variance, "--cluster", "none")
    found = open_prediction(out)
    compared = set(found.variables) & predicted.keys() & {"mean", "variance", "decision", "probability", "class"}
    assert compared & {"mean", "decision"}
    for variable in compared:
        values = np.array(predicted[variable])
        # Bounds on means are proven; the interval of a variance may be another, its middle within it.
        close = {"rtol": 2e-2} if variable == "variance" else {"rtol": 1e-6, "atol": 1e-9}
        np.testing.assert_allclose(found.read(variable), values.reshape(len(values), -1), **close, err_msg=variable)


@of_kind("checkpoint")
def test_checkpoints(name: str, tmp_path: Path) -> None:
    """Gone on with to the solution."""
    store, expected = unpacked(name, tmp_path)
    checkpoint = CheckpointStore(str(store)).load_latest()
    assert checkpoint is not None
    assert not checkpoint.skipped
    X, y = open_dataset(tmp_path / "data").inputs(0, 14), open_dataset(tmp_path / "data").all_targets()[:, 0]
    distances = ((X[:, None] - X[None]) ** 2 * expected["kernel"]["gamma"]).sum(axis=2)
    solution = np.linalg.solve(np.exp(-distances) + 0.1 * np.eye(len(X)), y)
    np.testing.assert_allclose(np.array(expected["alpha"]).ravel(), solution, atol=1e-7)
    alpha = checkpoint.arrays["alpha"]
    # It is on the way: nearer than the start, in the norm that the solve descends in.
    gram = np.exp(-distances) + 0.1 * np.eye(len(X))
    step = np.reshape(alpha, -1) - solution
    assert step @ gram @ step < solution @ gram @ solution
