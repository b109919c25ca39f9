"""Faults of object storage: each ends in the bit-same result or in a clear error within a deadline."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import CheckpointStore, Dataset, DatasetWriter, dataset_from_arrays, open_dataset, open_model
from dkgp.data.remote.storage import list_object_bytes, write_object
from dkgp.errors import DkgpError, StorageError, StoreError
from tests.faults.s3_proxy import Fault, S3Proxy, s3_proxy
from tests.s3 import S3Server, s3_server, use_s3

pytestmark = pytest.mark.faults

HYPER = {"kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.5, 0.5, 0.5]}, "noise_variance": 0.05}
COMMAND_SECONDS = 240


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    """A proxy that this process works through, with short limits."""
    monkeypatch.setenv("DKGP_STORAGE_TIMEOUT_SECONDS", "2")
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "20")
    with s3_proxy(server) as running:
        use_s3(monkeypatch, running.server)
        yield running


def _place(proxy: S3Proxy, request: pytest.FixtureRequest, name: str) -> str:
    return proxy.server.url(f"{request.node.name}/{name}")


def _problem() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    X = generator.normal(size=(600, 3))
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.1 * generator.normal(size=600)


def _dataset(url: str) -> Dataset:
    X, y = _problem()
    return dataset_from_arrays(url, X, y, chunk_rows=100)


def _start(proxy: S3Proxy, *arguments: str, deadline_seconds: int = 120) -> subprocess.Popen[str]:
    limits = {"DKGP_STORAGE_TIMEOUT_SECONDS": "20", "DKGP_STORAGE_DEADLINE_SECONDS": str(deadline_seconds)}
    return subprocess.Popen(
        [sys.executable, "-c", "from dkgp.cli import main; main()", *arguments],
        env={**proxy.server.environment, **limits},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _dkgp(proxy: S3Proxy, *arguments: str, deadline_seconds: int = 120) -> tuple[int, str]:
    process = _start(proxy, *arguments, deadline_seconds=deadline_seconds)
    out, err = process.communicate(timeout=COMMAND_SECONDS)
    return process.returncode, out + err


def _trained(proxy: S3Proxy, data: str, hyper: str, out: str, *options: str) -> Any:
    code, output = _dkgp(proxy, "train", data, "--out", out, "--hyper", hyper, "--block-size", "100", *options)
    assert code == 0, output
    return open_model(out).alpha


def test_a_fifth_of_the_answers_503_changes_no_bit(
    proxy: S3Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "120")
    data, hyper = _place(proxy, request, "train.zarr"), _place(proxy, request, "hyper.json")
    _dataset(data)
    write_object(hyper, json.dumps(HYPER).encode())
    expected = _trained(proxy, data, hyper, _place(proxy, request, "calm.zarr"))
    proxy.add(Fault("error", fraction=0.2))
    found = _trained(proxy, data, hyper, _place(proxy, request, "rough.zarr"), "--checkpoint-every", "0")
    assert proxy.faults_done["error"] >= 10
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", ["reset", "lose answer", "truncate"])
def test_cut_connections_change_no_bit(
    proxy: S3Proxy, request: pytest.FixtureRequest, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "120")
    proxy.add(Fault(kind, method="GET" if kind == "truncate" else ".*", fraction=0.2))
    dataset = _dataset(_place(proxy, request, "d.zarr"))
    X, y = _problem()
    assert np.array_equal(dataset.inputs(0, 600, standardised=False), X)
    assert np.array_equal(dataset.targets(0, 600, standardised=False)[:, 0], y)
    assert proxy.faults_done[kind] >= 5


def test_a_store_that_never_answers_is_given_up_within_the_deadline(
    proxy: S3Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _place(proxy, request, "d.zarr")
    dataset = _dataset(url)
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "5")
    proxy.add(Fault("hang"))
    for action in (lambda: open_dataset(url), lambda: dataset.inputs(0, 100), lambda: _dataset(url + ".2")):
        with pytest.raises(StorageError, match=r"(?s)Cannot .* \(tried \d+ times in \d+ s\).*does not answer"):
            action()


def test_a_store_that_always_fails_is_given_up_with_the_count(
    proxy: S3Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _place(proxy, request, "d.zarr")
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "5")
    proxy.add(Fault("error", status=500, content=b"<Error><Code>InternalError</Code><Message>Sorry.</Message></Error>"))
    with pytest.raises(StorageError, match=r"tried \d+ times in .*overloaded or down") as caught:
        open_dataset(url)
    assert 3 <= len(proxy.requests) <= 8
    assert f"tried {len(proxy.requests)} times" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [(403, "AccessDenied", "Access is denied"), (403, "InvalidAccessKeyId", "check the credentials")],
)
def test_what_does_not_pass_by_itself_is_not_tried_again(
    proxy: S3Proxy, request: pytest.FixtureRequest, status: int, code: str, advice: str
) -> None:
    content = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
    proxy.add(Fault("error", status=status, content=content))
    with pytest.raises(StorageError, match=advice):
        _dataset(_place(proxy, request, "d.zarr"))
    assert len(proxy.requests) <= 2


def test_a_lost_chunk_is_found_before_the_commit(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    url = _place(proxy, request, "d.zarr")
    proxy.add(Fault("swallow", method="PUT", path="/X/c/2/0", count=1))
    with pytest.raises(StoreError, match=r"Chunk X/c/2/0 \(rows 200 to 299\) .* was never written"):
        _dataset(url)
    assert proxy.faults_done["swallow"] == 1
    assert list_object_bytes(url) == {}
    assert _dataset(url).n_samples == 600


def test_a_lost_manifest_is_written_again(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    url = _place(proxy, request, "d.zarr")
    proxy.add(Fault("swallow", method="PUT", path="dkgp-manifest", count=1))
    _dataset(url)
    assert proxy.faults_done["swallow"] == 1
    assert np.array_equal(open_dataset(url).inputs(0, 600, standardised=False), _problem()[0])


def test_a_manifest_that_is_always_lost_is_an_error(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    url = _place(proxy, request, "d.zarr")
    proxy.add(Fault("swallow", method="PUT", path="dkgp-manifest"))
    with pytest.raises(StorageError, match="accepted it .* times and does not have it"):
        _dataset(url)
    assert list_object_bytes(url) == {}


def test_a_lost_checkpoint_is_written_again_or_the_one_before_is_used(
    proxy: S3Proxy, request: pytest.FixtureRequest
) -> None:
    store = CheckpointStore(_place(proxy, request, "c"))
    for number in (1, 2):
        store.save(number, {"alpha": np.full(50, float(number))}, {})
    proxy.add(Fault("swallow", method="PUT", path="checkpoint-0000000003", count=1))
    store.save(3, {"alpha": np.full(50, 3.0)}, {})
    latest = store.load_latest()
    assert latest.sequence_number == 3
    proxy.add(Fault("swallow", method="PUT", path="checkpoint-0000000004"))
    with pytest.raises(StorageError, match="does not have it"):
        store.save(4, {"alpha": np.full(50, 4.0)}, {})
    latest = store.load_latest()
    assert latest.sequence_number == 3
    assert latest.skipped == ()


def test_a_torn_checkpoint_is_never_read_as_whole(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    store = CheckpointStore(_place(proxy, request, "c"))
    for number in (1, 2):
        store.save(number, {"alpha": np.full(50, float(number))}, {})
    address = f"{store.url}/checkpoint-0000000002.dkgp"
    content = store_content(address)
    for torn in (content[:-1], content[: len(content) // 2], b"", content[:100] + b"\x00" + content[101:]):
        write_object(address, torn)
        latest = store.load_latest()
        assert latest.sequence_number == 1
        assert latest.skipped == ("checkpoint-0000000002.dkgp",)


def store_content(address: str) -> bytes:
    from dkgp.data.remote.storage import read_object

    return read_object(address)


def test_an_outage_is_not_taken_for_a_damaged_checkpoint(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    store = CheckpointStore(_place(proxy, request, "c"))
    store.save(1, {"alpha": np.ones(5)}, {})
    store.save(2, {"alpha": np.ones(5)}, {})
    proxy.add(Fault("error", method="GET", path="checkpoint-0000000002"))
    with pytest.raises(StorageError, match=r"checkpoint-0000000002.*tried \d times"):
        store.load_latest()


def test_no_endpoint_is_a_clear_error_soon(proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.close()
    with pytest.raises(StorageError, match=r"Could not connect.*AWS_ENDPOINT_URL"):
        open_dataset(proxy.server.url("d.zarr"))


def test_kill_in_mid_write_then_overwrite(proxy: S3Proxy, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    X, y = _problem()
    np.savez(tmp_path / "d.npz", X=X, y=y)
    url = _place(proxy, request, "d.zarr")
    arguments = ("ingest", str(tmp_path / "d.npz"), url, "--target", "y", "--chunk-rows", "100")
    in_the_middle = proxy.seen("PUT .*/X/c/3/0")
    proxy.add(Fault("hang", method="PUT", path="/X/c/3/0", count=1))
    process = _start(proxy, *arguments)
    try:
        assert in_the_middle.wait(COMMAND_SECONDS)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with pytest.raises(StoreError, match="incomplete"):
        open_dataset(url)
    code, output = _dkgp(proxy, *arguments)
    assert code == 3
    assert "unfinished" in output
    code, output = _dkgp(proxy, *arguments, "--overwrite")
    assert code == 0, output
    assert np.array_equal(open_dataset(url).inputs(0, 600, standardised=False), X)


def test_kill_in_mid_training_then_resume(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    data, hyper = _place(proxy, request, "train.zarr"), _place(proxy, request, "hyper.json")
    _dataset(data)
    write_object(hyper, json.dumps(HYPER).encode())
    expected = _trained(proxy, data, hyper, _place(proxy, request, "calm.zarr"), "--checkpoint-every", "0")
    out = _place(proxy, request, "model.zarr")
    options = ("--block-size", "100", "--checkpoint-every", "0")
    third = proxy.seen("PUT .*checkpoint-0000000003")
    proxy.add(Fault("hang", method="PUT", path="checkpoint-0000000003", count=1))
    process = _start(proxy, "train", data, "--out", out, "--hyper", hyper, *options)
    try:
        assert third.wait(COMMAND_SECONDS)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    latest = CheckpointStore(f"{out}.checkpoint").load_latest()
    assert latest.sequence_number == 2
    assert np.array_equal(_trained(proxy, data, hyper, out, "--checkpoint-every", "0", "--resume"), expected)


def test_a_writer_that_was_taken_over_cannot_harm_its_successor(proxy: S3Proxy, request: pytest.FixtureRequest) -> None:
    url = _place(proxy, request, "d.zarr")
    X, y = _problem()
    sleeper = DatasetWriter.create(url, ("a", "b", "c"), ("y",), chunk_rows=100, n_samples=600)
    sleeper.append(-X[:300], y[:300])
    winner = dataset_from_arrays(url, X, y, chunk_rows=100, overwrite=True)
    with pytest.raises(StorageError, match="taken over"):
        sleeper.append(-X[300:], y[300:])
    sleeper.abort()
    assert np.array_equal(open_dataset(url).inputs(0, 600, standardised=False), X)
    assert winner.fingerprint == open_dataset(url).fingerprint


def test_a_writer_that_is_overtaken_within_its_last_steps_does_not_commit(
    proxy: S3Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _place(proxy, request, "d.zarr")
    X, y = _problem()
    slow = DatasetWriter.create(url, ("x0", "x1", "x2"), ("y",), chunk_rows=100, n_samples=600)
    slow.append(-X, y)
    dataset_from_arrays(url, X, y, chunk_rows=100, overwrite=True)
    with pytest.raises(DkgpError, match="taken over"):
        slow.finish()
    assert np.array_equal(open_dataset(url).inputs(0, 600, standardised=False), X)


_WRITER = """
import faulthandler, sys
faulthandler.dump_traceback_later(200, exit=True)
import numpy as np
from dkgp.data import dataset_from_arrays
from dkgp.errors import DkgpError
sign = float(sys.argv[2])
generator = np.random.default_rng(0)
X = sign * generator.normal(size=(1000, 3)); y = X[:, 0]
sys.stdin.readline()
try:
    dataset_from_arrays(sys.argv[1], X, y, chunk_rows=50, overwrite=sys.argv[3] == "overwrite")
    print("done")
except DkgpError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("mode", ["fresh", "overwrite"])
def test_of_two_writers_exactly_one_commits(
    proxy: S3Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("DKGP_STORAGE_TIMEOUT_SECONDS", "30")
    monkeypatch.setenv("DKGP_STORAGE_DEADLINE_SECONDS", "120")
    for attempt in range(2):
        url = _place(proxy, request, f"{attempt}.zarr")
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _WRITER, url, sign, mode],
                env=proxy.server.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for sign in ("1", "-1")
        ]
        try:
            for writer in writers:
                writer.stdin.write("go\n")
                writer.stdin.flush()
            outcomes = [writer.communicate(timeout=COMMAND_SECONDS)[0].strip() for writer in writers]
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        done = [index for index, outcome in enumerate(outcomes) if outcome == "done"]
        # With --overwrite the second may also come when the first has finished, and replace it whole.
        assert len(done) == 1 or (mode == "overwrite" and len(done) == 2), outcomes
        for index in {0, 1} - set(done):
            assert outcomes[index].startswith(("OutputExistsError", "StorageError", "TakenOverError")), outcomes
        dataset = open_dataset(url)
        X = np.random.default_rng(0).normal(size=(1000, 3))
        found = dataset.inputs(0, 1000, standardised=False)
        signs = [(1.0, -1.0)[index] for index in done]
        assert any(np.array_equal(found, sign * X) for sign in signs)
