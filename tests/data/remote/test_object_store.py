"""Stores on S3 (moto's server) and on the other protocols (stand-ins for their file systems)."""

from __future__ import annotations

import collections
import errno
import hashlib
import importlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.memory import MemoryFileSystem

from dkgp.data import (
    CheckpointStore,
    Dataset,
    DatasetWriter,
    PredictionWriter,
    dataset_from_arrays,
    ensure_writable,
    ingest,
    open_dataset,
    open_prediction,
)
from dkgp.data.remote import object_store
from dkgp.data.remote.claims import CLAIM_NAME, Claim
from dkgp.data.remote.object_store import Attempts, ConflictError, RetryPolicy, put, tag_of
from dkgp.data.remote.storage import (
    exists,
    expand_glob,
    is_file,
    is_folder,
    join,
    list_object_bytes,
    read_object,
    remove_object,
    remove_tree,
    write_object,
)
from dkgp.data.stores.arrays import StoredArray
from dkgp.data.stores.manifest import MANIFEST_NAME
from dkgp.errors import InputError, MissingExtraError, OutputExistsError, StorageError, StoreError
from tests.s3 import S3Server, use_s3

Place = Callable[[str], str]


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Place:
    """Makes the s3:// address of a name."""
    use_s3(monkeypatch, server)
    return lambda name: server.url(f"{request.node.name}/{name}")


def _arrays(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    X = generator.normal(size=(n, 3))
    return X, X[:, 0] + 0.1 * generator.normal(size=n)


def _dataset(url: str, **options: Any) -> Dataset:
    return dataset_from_arrays(url, *_arrays(), chunk_rows=50, **options)


def test_objects(s3: Place) -> None:
    url = s3("folder/a.bin")
    assert not exists(url)
    assert not exists(s3("folder"))
    with pytest.raises(FileNotFoundError):
        read_object(url)
    write_object(url, [b"one", memoryview(b"two")])
    write_object(s3("folder/b.bin"), b"")
    assert read_object(url) == b"onetwo"
    assert (is_file(url), is_folder(url)) == (True, False)
    assert (is_file(s3("folder")), is_folder(s3("folder"))) == (False, True)
    assert list_object_bytes(s3("folder")) == {"a.bin": 6, "b.bin": 0}
    assert expand_glob(s3("folder/*.bin")) == [url, s3("folder/b.bin")]
    write_object(url, b"three")
    assert read_object(url) == b"three"
    with pytest.raises(OutputExistsError):
        write_object(url, b"four", replace=False)
    write_object(url, b"three", replace=False)
    remove_tree(s3("folder"))
    assert not exists(s3("folder"))
    assert list_object_bytes(s3("folder")) == {}


def test_what_another_process_writes_is_seen_at_once(s3: Place, server: S3Server) -> None:
    # A file system of its own stands for the other process: what this one keeps in memory, it does not know.
    import s3fs

    other = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    folder = s3("folder")
    path = folder.removeprefix("s3://")
    for round_number in range(3):
        other.pipe_file(f"{path}/{round_number}.bin", b"x" * (round_number + 1))
        assert list_object_bytes(folder) == {f"{number}.bin": number + 1 for number in range(round_number + 1)}
        assert exists(f"{folder}/{round_number}.bin")
    other.rm_file(f"{path}/1.bin")
    assert not exists(f"{folder}/1.bin")
    assert "1.bin" not in list_object_bytes(folder)


@pytest.mark.long
def test_dataset_round_trip_and_xarray(s3: Place) -> None:
    X, y = _arrays()
    dataset = _dataset(s3("d.zarr"))
    assert np.array_equal(dataset.inputs(0, 300, standardised=False), X)
    assert np.array_equal(dataset.input_rows(np.array([299, 0, 120]), standardised=False), X[[299, 0, 120]])
    local = dataset_from_arrays("memory://same.zarr", X, y, chunk_rows=50, overwrite=True)
    assert dataset.fingerprint == local.fingerprint
    with xr.open_zarr(s3("d.zarr")) as opened:
        assert np.array_equal(opened["X"].values, X)
        assert sorted(opened.variables) == ["X", "y"]


def test_an_open_is_one_listing_and_a_slice_reads_its_chunks_alone(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    _dataset(s3("d.zarr"))
    calls: list[tuple[str, str]] = []
    original = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        calls.append((method, str(keywords.get("Key", ""))))
        return await original(self, method, *arguments, **keywords)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    dataset = open_dataset(s3("d.zarr"))
    assert [method for method, _ in calls] == ["head_object", "get_object", "list_objects_v2"]
    calls.clear()
    dataset.inputs(60, 140)
    chunks = sorted(key for method, key in calls if "/c/" in key)
    assert [key.rsplit("/X/")[1] for key in chunks] == ["c/1/0", "c/2/0"]
    # The array's description, two chunks, and a look whether the store is still the same.
    assert sorted(method for method, _ in calls) == ["get_object"] * 3 + ["head_object"]
    assert zarr.config.get("async.concurrency") == 4


@pytest.mark.long
def test_reads_from_threads_and_processes(s3: Place) -> None:
    dataset = _dataset(s3("d.zarr"))
    expected = dataset.inputs(0, 300)

    def read(index: int) -> bool:
        start = 50 * (index % 6)
        return np.array_equal(dataset.inputs(start, start + 50), expected[start : start + 50])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(48)))
    # Forked after this process has opened its connections.
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=lambda: queue.put(float(dataset.inputs(0, 300).sum())))
    process.start()
    assert queue.get(timeout=240) == expected.sum()
    process.join(240)
    assert process.exitcode == 0
    assert read(3)


@pytest.mark.long
def test_a_store_that_is_there_is_not_overwritten(s3: Place) -> None:
    _dataset(s3("d.zarr"))
    with pytest.raises(OutputExistsError, match="`overwrite`"):
        _dataset(s3("d.zarr"))
    X, y = _arrays(120)
    replaced = dataset_from_arrays(s3("d.zarr"), X, y, chunk_rows=50, overwrite=True)
    assert replaced.n_samples == 120
    # Nothing of the larger store before is left.
    assert {name for name in list_object_bytes(s3("d.zarr")) if name.startswith("X/c")} == {
        "X/c/0/0",
        "X/c/1/0",
        "X/c/2/0",
    }
    write_object(s3("other/file"), b"x")
    with pytest.raises(OutputExistsError, match="not a dkgp store"):
        _dataset(s3("other"), overwrite=True)


@pytest.mark.parametrize("where", ["s3", "memory"])
def test_claims(request: pytest.FixtureRequest, where: str) -> None:
    url = request.getfixturevalue("s3")("c.zarr") if where == "s3" else "memory://claims/c.zarr"
    first = Claim.take(url, "dataset", over=False)
    first.require()
    assert json.loads(read_object(f"{url}/{CLAIM_NAME}"))["kind"] == "dataset"
    with pytest.raises(OutputExistsError, match="Another process has just begun"):
        Claim.take(url, "dataset", over=False)
    with pytest.raises(OutputExistsError, match="unfinished"):
        ensure_writable(url, overwrite=False, kind="dataset")
    ensure_writable(url, overwrite=True, kind="dataset")
    second = Claim.take(url, "dataset", over=True)
    assert (first.is_mine(), second.is_mine()) == (False, True)
    with pytest.raises(StorageError, match="taken over"):
        first.require()
    remove_tree(url)
    assert not second.is_mine()


def test_a_local_store_has_no_claim(tmp_path: Path) -> None:
    assert Claim.take(str(tmp_path / "d.zarr"), "dataset", over=False).writer == ""
    _dataset(str(tmp_path / "d.zarr"))
    assert CLAIM_NAME not in list_object_bytes(tmp_path / "d.zarr")


@pytest.mark.long
@pytest.mark.parametrize("where", ["s3", "memory"])
def test_a_failed_writer_leaves_nothing_and_one_taken_over_leaves_all(
    request: pytest.FixtureRequest, where: str
) -> None:
    place = request.getfixturevalue("s3") if where == "s3" else lambda name: f"memory://failed/{name}"
    X, y = _arrays()
    writer = DatasetWriter.create(place("d.zarr"), ("a", "b", "c"), ("y",), chunk_rows=50)
    writer.append(X[:100], y[:100])
    with pytest.raises(InputError, match="holds nan"):
        writer.append(np.full((1, 3), np.nan), y[:1])
    assert list_object_bytes(place("d.zarr")) == {}
    slow = DatasetWriter.create(place("d.zarr"), ("a", "b", "c"), ("y",), chunk_rows=50)
    slow.append(X[:60], y[:60])
    _dataset(place("d.zarr"), overwrite=True)
    with pytest.raises(StorageError, match="taken over"):
        slow.append(X[60:120], y[60:120])
    assert np.array_equal(open_dataset(place("d.zarr")).inputs(0, 300, standardised=False), X)


def _only_bare_tags(monkeypatch: pytest.MonkeyPatch, *, accepts_bare: bool = True) -> list[str]:
    """Let the server answer 412 to quoted tags, as Ceph does; return the list of tags that were sent."""
    import s3fs
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    original, tags = s3fs.S3FileSystem._call_s3, []

    async def strict(self: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        tag = keywords.get("IfMatch")
        if tag is not None:
            tags.append(tag)
            if tag.startswith('"') or not accepts_bare:
                answer = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}
                raise translate_boto_error(ClientError(answer, "PutObject"))
            # The server behind this knows quoted tags alone.
            keywords["IfMatch"] = f'"{tag}"'
        return await original(self, method, *arguments, **keywords)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", strict)
    return tags


def test_a_store_that_takes_bare_tags_alone_is_written_to(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = _only_bare_tags(monkeypatch)
    write_object(s3("a"), b"one")
    assert tags == []
    write_object(s3("a"), b"two")
    quoted = f'"{hashlib.md5(b"one").hexdigest()}"'
    assert tags == [quoted, quoted.strip('"')]
    assert read_object(s3("a")) == b"two"
    # A dataset in the place of another one, whose claim is replaced under the tag that was read.
    _dataset(s3("d.zarr"))
    X, y = _arrays(120)
    assert dataset_from_arrays(s3("d.zarr"), X, y, chunk_rows=50, overwrite=True).n_samples == 120


def test_an_object_that_changed_is_not_replaced_under_a_bare_tag(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_object(s3("a"), b"one")
    before = tag_of(s3("a"))
    tags = _only_bare_tags(monkeypatch)
    original = object_store._info

    async def changed_after(file_system: Any, path: str, url: str) -> Any:
        info = await original(file_system, path, url)
        if not tags and info is not None:
            await file_system._pipe_file(path, b"of another process")
        return info

    monkeypatch.setattr(object_store, "_info", changed_after)
    with pytest.raises(ConflictError, match="changed by another process"):
        put(s3("a"), b"two", exactly=before)
    assert [tag[0] for tag in tags] == ['"']
    assert read_object(s3("a")) == b"of another process"


def test_a_store_without_conditional_replacements_is_named(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_object(s3("a"), b"one")
    tags = _only_bare_tags(monkeypatch, accepts_bare=False)
    with pytest.raises(StorageError, match=r"Cannot replace 's3://.*412.*If-Match.*with and without quotation marks"):
        write_object(s3("a"), b"two")
    with pytest.raises(StorageError, match=r"Nothing was written\. Use a store that has conditional writes"):
        put(s3("a"), b"two", exactly=tag_of(s3("a")))
    assert len(tags) == 4
    assert read_object(s3("a")) == b"one"


def test_predictions_resume_and_cut_off_whoever_wrote_before(s3: Place) -> None:
    url = s3("p.zarr")
    values = np.arange(200.0)
    first = PredictionWriter.create(url, 200, ["y"], variables=("mean",), chunk_rows=50)
    first.write(0, mean=values[:50])
    resumed = PredictionWriter.open_to_resume(url)
    assert resumed.pending_regions() == [(50, 200)]
    resumed.write(0, mean=values[:50])
    resumed.write(50, mean=values[50:100])
    with pytest.raises(StorageError, match="taken over"):
        first.write(50, mean=-values[50:100])
    with pytest.raises(StorageError, match="taken over"):
        first.write(150, mean=-values[150:])
    resumed.write(100, mean=values[100:])
    resumed.commit()
    assert np.array_equal(open_prediction(url).read("mean")[:, 0], values)


@pytest.mark.long
def test_checkpoints(s3: Place) -> None:
    store = CheckpointStore(s3("c"))
    assert store.load_latest() is None
    for number in range(4):
        store.save(number, {"alpha": np.full(10, float(number))}, {"number": number})
    assert sorted(list_object_bytes(s3("c"))) == ["checkpoint-0000000002.dkgp", "checkpoint-0000000003.dkgp"]
    latest = store.load_latest()
    assert latest is not None
    assert latest.metadata == {"number": 3}
    torn = read_object(f"{store.url}/checkpoint-0000000003.dkgp")[:-5]
    write_object(f"{store.url}/checkpoint-0000000003.dkgp", torn)
    latest = store.load_latest()
    assert latest is not None
    assert (latest.sequence_number, latest.skipped) == (2, ("checkpoint-0000000003.dkgp",))
    store.clear()
    assert store.load_latest() is None


@pytest.mark.long
def test_sources_on_s3(s3: Place, tmp_path: Path) -> None:
    X, y = _arrays()
    np.savez(tmp_path / "d.npz", X=X, y=y)
    np.save(tmp_path / "d.npy", np.column_stack([X, y]))
    text = "a,b,c,y\n" + "\n".join(",".join(map(repr, map(float, row))) for row in np.column_stack([X, y]))
    write_object(s3("raw/d.npz"), (tmp_path / "d.npz").read_bytes())
    write_object(s3("raw/d.npy"), (tmp_path / "d.npy").read_bytes())
    write_object(s3("text/1.csv"), text.encode())
    for source, target in ((s3("raw/d.npz"), "y"), (s3("raw/d.npy"), "-1"), (s3("text"), "y"), (s3("text/*.csv"), "y")):
        dataset = ingest(source, s3("out.zarr"), target=target, overwrite=True).train
        assert np.array_equal(dataset.inputs(0, 300, standardised=False), X)
    again = ingest(s3("out.zarr"), s3("again.zarr"), target="y").train
    assert again.fingerprint == dataset.fingerprint
    with pytest.raises(InputError, match="no file or folder"):
        ingest(s3("nothing.csv"), s3("x.zarr"), target="y")


def test_wrong_bucket_is_refused_before_any_work(s3: Place) -> None:
    with pytest.raises(StorageError, match=r"'s3://no-such-bucket/x.zarr': there is no such bucket"):
        ensure_writable("s3://no-such-bucket/x.zarr", overwrite=False)
    with pytest.raises(StoreError, match="There is no dataset store"):
        open_dataset("s3://no-such-bucket/x.zarr")


def test_no_credentials_at_all(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match=r"no credentials.*AWS_ACCESS_KEY_ID.*AWS_PROFILE"):
        open_dataset(s3("d.zarr"))


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://b/x", "s3fs", "s3"),
        ("gs://b/x", "gcsfs", "gcs"),
        ("gcs://b/x", "gcsfs", "gcs"),
        ("az://b/x", "adlfs", "azure"),
        ("abfs://b/x", "adlfs", "azure"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for protocol in ("s3", "gs", "gcs", "az", "abfs"):
        monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, protocol, raising=False)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*dkgp\[{extra}\]"):
        exists(url)


class _Flaky(MemoryFileSystem):
    """A stand-in for another protocol's file system: fails in that protocol's own way, then works."""

    failures: ClassVar[list[Exception]] = []
    cachable = False

    def _fail(self) -> None:
        if type(self).failures:
            raise type(self).failures.pop(0)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._fail()
        super().pipe_file(path, value, mode=mode)

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> bytes:
        self._fail()
        return bytes(super().cat_file(path, *arguments, **options))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol("memory://" + path.split("://", 1)[-1]))


def _answered(status: int) -> Exception:
    error = RuntimeError(f"the server said {status}")
    error.status_code = status  # type: ignore[attr-defined]
    return error


def _coded(code: int) -> Exception:
    error = RuntimeError(f"the server said {code}")
    error.code = code  # type: ignore[attr-defined]
    return error


@pytest.fixture(params=["gs", "az", "abfs"])
def stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A protocol that is not reachable here, with fsspec's memory behind it."""
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, request.param, _Flaky)
    policy = RetryPolicy(8, 0.001, 0.01, 30, 30)
    monkeypatch.setattr("dkgp.data.remote.object_store.RetryPolicy.from_environment", lambda: policy)
    _Flaky.failures = []
    yield f"{request.param}://stand-in-{request.param}"
    _Flaky.failures = []
    fsspec.filesystem("memory").store.clear()


def test_other_protocols_hold_stores_and_are_tried_again(stand_in: str) -> None:
    _Flaky.failures = [_answered(503), TimeoutError(), ConnectionResetError(errno.ECONNRESET, "reset"), _coded(429)]
    dataset = _dataset(f"{stand_in}/d.zarr")
    assert _Flaky.failures == []
    _Flaky.failures = [_answered(500), _coded(502)]
    assert np.array_equal(dataset.inputs(0, 300, standardised=False), _arrays()[0])
    assert _Flaky.failures == []
    with pytest.raises(OutputExistsError):
        _dataset(f"{stand_in}/d.zarr")


@pytest.mark.parametrize(
    ("failure", "message", "left"),
    [
        (_answered(403), "Access is denied", 8),
        (_coded(401), "Access is denied", 8),
        (PermissionError("no"), "Access is denied", 8),
        (_answered(501), "If-None-Match", 8),
        (_answered(503), r"tried 8 times.*overloaded", 1),
    ],
)
def test_errors_of_other_protocols_are_told_apart(stand_in: str, failure: Exception, message: str, left: int) -> None:
    _Flaky.failures = [failure] * 9
    with pytest.raises(StorageError, match=message):
        write_object(f"{stand_in}/a", b"x")
    assert len(_Flaky.failures) == left


def test_the_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DKGP_STORAGE_TIMEOUT_SECONDS", "7")
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "11")
    policy = RetryPolicy.from_environment()
    assert (policy.answer_seconds, policy.deadline_seconds) == (7, 11)
    for text in ("-1", "0", "soon", "inf", "nan"):
        monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", text)
        with pytest.raises(InputError, match="DKGP_STORAGE_DEADLINE_SECONDS"):
            RetryPolicy.from_environment()


def test_delays_grow_and_end() -> None:
    attempts = Attempts("read", "s3://b/x", policy=RetryPolicy(attempts=6, longest_delay_seconds=2.0))
    delays = [attempts.delay_after(TimeoutError()) for _ in range(5)]
    longest = [0.25, 0.5, 1.0, 2.0, 2.0]
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, longest, strict=True))
    with pytest.raises(StorageError, match="Cannot read 's3://b/x' .tried 6 times"):
        attempts.delay_after(TimeoutError())
    with pytest.raises(ConflictError):
        Attempts("write", "s3://b/x").delay_after(_answered(412))
    with pytest.raises(FileNotFoundError):
        Attempts("read", "s3://b/x").delay_after(FileNotFoundError("x"))


# Labels and predicted classes on S3 (moto's server): names, regions and the coordinate of the classes.


@pytest.mark.long
def test_labels_and_predicted_classes(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    use_s3(monkeypatch, server)
    names, codes = ("blau", "größer, „viel“", "rot"), np.arange(60) % 3
    source, train, test = (server.url(f"classes/{name}") for name in ("d.csv", "train.zarr", "test.zarr"))
    lines = ["a,kind", *(f'{a!r},"{names[code]}"' for a, code in zip(rng.normal(size=60).tolist(), codes, strict=True))]
    with fsspec.open(source, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    ingest(source, train, labels="kind", test_fraction=0.2, test_out=test)
    assert open_dataset(train).classes == open_dataset(test).classes == names
    assert open_dataset(test).class_counts == (4, 4, 4)

    url = server.url("classes/p.zarr")
    probability = rng.dirichlet(np.ones(3), 60)
    values = {
        "decision": rng.normal(size=(60, 3)),
        "decision_error_bound": np.ones((60, 3)),
        "probability": probability,
        "class": codes,
        "certified": codes > 0,
    }
    first = PredictionWriter.create(url, 60, ["kind"], tuple(values), 20, classes=names)
    first.write(0, **{name: block[:20] for name, block in values.items()})
    resumed = PredictionWriter.open_to_resume(url)
    with pytest.raises(StorageError, match="taken over"):
        first.write(20, **{name: block[20:40] for name, block in values.items()})
    for start, stop in resumed.pending_regions():
        resumed.write(start, **{name: block[start:stop] for name, block in values.items()})
    resumed.commit()
    found = open_prediction(url)
    np.testing.assert_array_equal(found.read("probability"), probability)
    np.testing.assert_array_equal(found.labels(), codes)
    with xr.open_zarr(url) as shown:
        assert shown["class_name"].values.tolist() == list(names)


# Stores on S3 that are overwritten or removed while they are read: told, never some of each; what looking costs.


ROWS, CHUNK = 240, 40
TOLD = "was overwritten or removed while it was read"


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of each test's own, on the server and in fsspec's memory file system."""
    use_s3(monkeypatch, server)
    name = f"{abs(hash(request.node.name))}/data.zarr"
    return server.url(name) if request.param == "s3" else f"memory://{name}"


def write(place: str, seed: int) -> np.ndarray:
    """One of two data sets that differ in every number, in nothing that describes them; its inputs."""
    rng = np.random.default_rng(seed)
    X, y = rng.random((ROWS, 3)), rng.random(ROWS)
    dataset_from_arrays(place, X, y, chunk_rows=CHUNK, overwrite=True)
    return X


def by_pieces(dataset: Dataset, rows: int) -> np.ndarray:
    return np.concatenate([dataset.inputs(at, at + rows, standardised=False) for at in range(0, ROWS, rows)])


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("number", [1, 4, ROWS // CHUNK])
def test_one_that_is_replaced_between_two_chunks_is_told(
    place: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = write(place, 0)
    dataset, read, reads = open_dataset(place), StoredArray._get, []

    def swapping(self: StoredArray, selection: Any) -> Any:
        reads.append(selection)
        if len(reads) == number:
            write(place, 1)
        return read(self, selection)

    monkeypatch.setattr(StoredArray, "_get", swapping)
    with pytest.raises(StoreError, match=f"'{place}' {TOLD}"):
        by_pieces(dataset, CHUNK)
    assert len(reads) == number
    # What is opened now is the other one.
    assert (by_pieces(open_dataset(place), CHUNK) != X).all()


def test_one_that_is_removed_is_told_of_as_that(place: str) -> None:
    write(place, 0)
    dataset = open_dataset(place)
    remove_tree(place)
    with pytest.raises(StoreError, match=TOLD):
        dataset.inputs(0, ROWS)


def test_a_damaged_one_is_told_of_as_that(place: str) -> None:
    write(place, 0)
    dataset = open_dataset(place)
    remove_object(join(place, "X/c/3/0"))
    with pytest.raises(StoreError, match=r"Chunk X/c/3/0 .* is missing"):
        dataset.inputs(0, ROWS)


def test_a_copy_is_the_same_store(place: str) -> None:
    X = write(place, 0)
    dataset, manifest = open_dataset(place), join(place, MANIFEST_NAME)
    content = read_object(manifest)
    remove_object(manifest)
    with pytest.raises(StoreError, match=TOLD):
        by_pieces(dataset, CHUNK)
    write_object(manifest, content)
    np.testing.assert_array_equal(by_pieces(dataset, CHUNK), X)


def counted(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> collections.Counter[str]:
    """Requests to the server, by kind."""
    s3fs = pytest.importorskip("s3fs")
    ask, requests = s3fs.S3FileSystem._call_s3, collections.Counter[str]()

    async def counting(self: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        requests[method] += 1
        return await ask(self, method, *arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(s3fs.S3FileSystem, "_call_s3", counting)
        work()
    return requests


def test_a_look_is_one_request_whatever_is_read_at_once(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use_s3(monkeypatch, server)
    place = server.url("counted/data.zarr")
    write(place, 0)
    opening = counted(monkeypatch, lambda: open_dataset(place))
    print(f"\nopen: {dict(opening)}")
    dataset = open_dataset(place)
    dataset.inputs(0, CHUNK)
    for rows in (CHUNK, 3 * CHUNK, ROWS):
        requests = counted(monkeypatch, lambda rows=rows: by_pieces(dataset, rows))
        print(f"{ROWS // CHUNK} chunks, {rows // CHUNK} at once: {dict(requests)}")
        assert requests == {"get_object": ROWS // CHUNK, "head_object": ROWS // rows}
    assert opening["head_object"] == 1
