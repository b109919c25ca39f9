""""""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import DatasetWriter, dataset_from_arrays, ensure_writable, ingest, open_dataset
from dkgp.data.remote.addresses import scrubbed, shown
from dkgp.data.remote.claims import PlaceLock, beside, locked
from dkgp.data.remote.storage import (
    exists,
    is_local,
    join,
    list_object_bytes,
    normalise_url,
    read_object,
    remove_object,
    remove_tree,
    translate_write_errors,
    write_object,
)
from dkgp.errors import DkgpError, InputError, MissingExtraError, OutputExistsError, StorageError

Place = Callable[[str], str]


def test_objects_round_trip(place: Place) -> None:
    assert not exists(place("a"))
    write_object(place("a/b/c"), b"one")
    write_object(place("a/d"), iter([b"tw", memoryview(b"o")]))
    assert exists(place("a"))
    assert read_object(place("a/d")) == b"two"
    assert list_object_bytes(place("a")) == {"b/c": 3, "d": 3}
    remove_object(place("a/d"))
    remove_object(place("a/never"))
    assert list_object_bytes(place("a")) == {"b/c": 3}
    remove_tree(place("a"))
    remove_tree(place("a"))
    assert not exists(place("a"))
    assert list_object_bytes(place("a")) == {}


def test_local_spellings_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise_url("x.zarr/") == normalise_url(tmp_path / "x.zarr") == normalise_url(f"file://{tmp_path}/x.zarr")
    assert normalise_url("s3://bucket/x.zarr/") == "s3://bucket/x.zarr"
    assert is_local("x.zarr")
    assert not is_local("memory://x")
    assert join("memory://x/", "y", "z") == "memory://x/y/z"


def test_a_failed_write_leaves_the_old_object_and_no_temporary(tmp_path: Path) -> None:
    write_object(tmp_path / "object", b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new, but"
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_object(tmp_path / "object", pieces())
    assert (tmp_path / "object").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["object"]


def test_written_objects_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_object(tmp_path / "object", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "object").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permission denied"), (errno.EROFS, "read-only"), (errno.EIO, "")],
)
def test_refusals_become_storage_errors(code: int, advice: str) -> None:
    with (
        pytest.raises(StorageError, match=rf"Cannot write '/there/x\.zarr': .*{advice}"),
        translate_write_errors("/there/x.zarr"),
    ):
        raise OSError(code, os.strerror(code))


def test_addresses_that_cannot_be_used() -> None:
    with pytest.raises(InputError, match="Protocol not known"):
        exists("nonsense://bucket/x.zarr")
    with pytest.raises(InputError, match="empty path"):
        normalise_url("")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"dkgp\[s3\]"):
            exists("s3://bucket/x.zarr")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="permission denied"):
        ensure_writable(tmp_path / "locked" / "x.zarr", overwrite=False)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc as a place where nothing can be created")
def test_a_place_where_nothing_can_be_created() -> None:
    with pytest.raises(StorageError, match="Cannot write"):
        ensure_writable("/proc/self/x.zarr", overwrite=False)


FULL_DISK = """
import numpy as np, resource, signal, sys
from dkgp.data import CheckpointStore, dataset_from_arrays
from dkgp.errors import StorageError
X = np.random.default_rng(0).normal(size=(20000, 4))
dataset_from_arrays(sys.argv[1] + "/before.zarr", X[:50], X[:50, 0])
store = CheckpointStore(sys.argv[1] + "/checkpoints")
store.save(1, {"a": X[:10]}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for attempt in (
    lambda: dataset_from_arrays(sys.argv[1] + "/d.zarr", X, X[:, 0], chunk_rows=20000),
    lambda: store.save(2, {"a": X}, {}),
):
    try:
        attempt()
    except StorageError as error:
        print("refused:", error)
print("still there:", store.load_latest().sequence_number)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_write_that_fails_for_real_leaves_nothing(tmp_path: Path, importable: dict[str, str]) -> None:
    """The kernel refuses large files to this process, as a full disk would."""
    found = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=importable,
    )
    assert found.stdout.count("refused: Cannot write") == 2, found
    assert "still there: 1" in found.stdout
    assert sorted(os.listdir(tmp_path)) == ["before.zarr", "checkpoints"]
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint-0000000001.dkgp"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to tell what is synced")
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what a power cut leaves has the name, and nothing in it."""
    done: list[tuple[str, str]] = []
    replace = os.replace

    def named(source: str, target: str | Path) -> None:
        done.append(("named", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda handle: done.append(("synced", os.readlink(f"/proc/self/fd/{handle}"))))
    monkeypatch.setattr(os, "replace", named)
    write_object(tmp_path / "a.json", b"{}")
    assert [what for what, _ in done] == ["synced", "named", "synced"]
    (_, written), (_, name), (_, folder) = done
    assert Path(written).parent == tmp_path.resolve()
    assert name == str(tmp_path / "a.json") != written
    assert folder == str(tmp_path.resolve())


# Addresses: no secret in one gets into a message, an exception or a store.


SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA:{SECRET}@bucket/x.zarr",
        f"s3://AKIA:{SECRET}/K7@bucket/x.zarr",
        f"s3://{SECRET}@bucket/x.zarr",
        f"gs://user:{SECRET}@bucket/x.zarr",
        f"https://user:{SECRET}@host/x.csv",
        f"https://{SECRET}@host/x.csv",
        f"abfs://container:{SECRET}@account/x.zarr",
        f"ftp://user:{SECRET}@host/x.csv",
        f"simplecache::s3://AKIA:{SECRET}@bucket/x.csv",
        f"s3://bucket/x.zarr?X-Amz-Signature={SECRET}",
        f"az://container/x.zarr?sig={SECRET}&se=2027",
        f"s3://bucket/x.zarr?aws_secret_access_key={SECRET}",
    ],
)
@pytest.mark.parametrize("action", [normalise_url, exists, open_dataset, is_local, lambda url: join(url, "a")])
def test_a_url_with_credentials_is_refused_without_repeating_them(url: str, action: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match=r"Got an address .* with credentials in it") as caught:
        action(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/x.zarr",
        "s3://bucket/a@b/x:y.zarr",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/x.zarr",
        "s3://bucket/part-?.csv",
        "abfs://container@account.dfs.core.windows.net/x.zarr",
        "http://host:8080/x.csv",
        "http://[::1]:8080/x.csv",
        "ssh://user@host/x.csv",
        "memory://x.zarr",
    ],
)
def test_a_url_without_credentials_stays_as_it_is(url: str) -> None:
    assert normalise_url(url) == url
    assert shown(url) == url


def test_what_is_shown_of_a_presigned_address() -> None:
    url = f"https://host/x.csv?X-Amz-Signature={SECRET}"
    assert shown(url) == "https://host/x.csv?..."
    assert SECRET not in scrubbed(f"403 for url '{url}' and https://u:{SECRET}@host/")


@pytest.fixture
def web() -> Iterator[tuple[str, dict[str, Any]]]:
    """A web server that gives one file to whoever has the token, and what it is to answer."""
    answer: dict[str, Any] = {"status": 200, "content": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = f"X-Amz-Signature={SECRET}" in self.path
            content = answer["content"] if allowed and answer["status"] == 200 else b"no"
            self.send_response(answer["status"] if allowed else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/data.csv?X-Amz-Signature={SECRET}", answer
    server.shutdown()
    server.server_close()


def test_a_presigned_source_is_read_and_not_remembered(web: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    url, answer = web
    answer["content"] = b"a,y\n1,2\n3,5\n4,7\n"
    report = ingest(url, tmp_path / "d.zarr", target="y")
    assert report.train.n_samples == 3
    assert SECRET not in json.dumps(report.to_json())
    for path in (tmp_path / "d.zarr").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("status", "content"),
    [(403, b""), (404, b""), (200, b""), (200, b"a,y\n1,2\n3\n"), (200, b"a,y\n1,2\nx,3\n"), (200, b"PK\x03\x04junk")],
)
def test_no_error_about_a_presigned_source_shows_its_token(
    web: tuple[str, dict[str, Any]], tmp_path: Path, status: int, content: bytes
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    url, answer = web
    answer.update(status=status, content=content)
    with pytest.raises(DkgpError) as caught:
        ingest(url, tmp_path / "d.zarr", target="y")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    link: BaseException | None = caught.value
    while link is not None:
        assert SECRET not in str(link)
        link = link.__cause__ or link.__context__
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.parametrize(
    "url", ["reference://?fo=refs.json", "reference::s3://bucket/refs.json", "simplecache::reference://a"]
)
def test_references_to_other_places_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of the kind 'reference', whose file names other places"):
        ingest(url, tmp_path / "d.zarr", target="y")
    assert normalise_url(tmp_path / "reference") == str(tmp_path / "reference")


# Of several writers of one local place one writes, and the others are refused; a lock ends with its process.


X = np.random.default_rng(5).normal(size=(60, 2))
HOLDER = """
import sys, time
from dkgp.data import DatasetWriter
writer = DatasetWriter.create(sys.argv[1], ("a", "b"), ("y",), overwrite=True)
print("writes", flush=True)
time.sleep(600)
"""


def _holder(url: str) -> subprocess.Popen[str]:
    """A process that has begun to write a store and goes on for minutes."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writes\n"
    return process


def _begun(url: str) -> DatasetWriter:
    return DatasetWriter.create(url, ("a", "b"), ("y",), overwrite=True)


def test_a_second_writer_is_refused_and_the_first_one_commits(tmp_path: Path) -> None:
    url = str(tmp_path / "d.zarr")
    dataset_from_arrays(url, X, X[:, 0])
    first = _begun(url)
    first.append(-X, X[:, 0])
    for overwrite in (True, False):
        with pytest.raises(OutputExistsError) as refused:
            dataset_from_arrays(url, 2.0 * X, X[:, 0], overwrite=overwrite)
        if overwrite:
            assert f"Another process ({os.getpid()} on " in str(refused.value)
            assert f"is writing '{url}'. Wait for it, or choose another path." in str(refused.value)
    first.finish()
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), -X)
    dataset_from_arrays(url, 2.0 * X, X[:, 0], overwrite=True)
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), 2.0 * X)
    assert os.listdir(tmp_path) == ["d.zarr"]


def test_a_writer_that_gave_up_does_not_remove_its_successors_store(tmp_path: Path) -> None:
    url = str(tmp_path / "d.zarr")
    first = _begun(url)
    first.abort()
    second = _begun(url)
    second.append(X, X[:, 0])
    first.abort()
    second.finish()
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), X)


def test_a_lock_ends_with_the_process_that_is_killed(tmp_path: Path) -> None:
    url = str(tmp_path / "new" / "d.zarr")
    holder = _holder(url)
    try:
        with pytest.raises(OutputExistsError, match=rf"Another process \({holder.pid} on "):
            dataset_from_arrays(url, X, X[:, 0], overwrite=True)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert ".dkgp-lock-d.zarr" in os.listdir(tmp_path / "new")
    dataset_from_arrays(url, X, X[:, 0], overwrite=True)
    assert os.listdir(tmp_path / "new") == ["d.zarr"]


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
from dkgp.data.remote.claims import PlaceLock
lock = PlaceLock.take(sys.argv[1])
if not os.fork():
    os.close(1)
    time.sleep(600)
print("forked", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    place = str(tmp_path / "d.zarr")
    process = subprocess.Popen(
        [sys.executable, "-c", script, place], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.communicate(timeout=240)[0] == "forked\n"
        PlaceLock.take(place).release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_one_of_many_threads_has_a_place_at_a_time(tmp_path: Path) -> None:
    # The file goes with each release, and is made anew: no two writers may lock two files of one name.
    place, inside, most, turns = str(tmp_path / "d.zarr"), 0, 0, [0] * 6

    def take_turns(index: int) -> None:
        nonlocal inside, most
        # How often a thread is refused before its turn is up to the scheduler.
        while turns[index] < 25:
            try:
                lock = PlaceLock.take(place)
            except OutputExistsError:
                time.sleep(0)
                continue
            inside += 1
            most = max(most, inside)
            turns[index] += 1
            inside -= 1
            lock.release()

    threads = [threading.Thread(target=take_turns, args=(index,)) for index in range(len(turns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert turns == [25] * 6
    assert os.listdir(tmp_path) == []


def test_code_within_a_lock_has_it_already_and_other_threads_do_not(tmp_path: Path) -> None:
    place = str(tmp_path / "d.zarr")
    refused: list[BaseException] = []

    def other() -> None:
        try:
            dataset_from_arrays(place, X, X[:, 0], overwrite=True)
        except OutputExistsError as error:
            refused.append(error)

    with locked(place, f"{tmp_path}/./d.zarr", "memory://elsewhere/d.zarr"):
        dataset_from_arrays(place, X, X[:, 0])
        with locked(str(tmp_path / "." / "d.zarr")):
            dataset_from_arrays(place, X, X[:, 0], overwrite=True)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    other()
    assert len(refused) == 1


def test_folders_that_were_made_for_a_lock_go_with_it_unless_something_lies_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(str(tmp_path / "a" / "b" / "d.zarr")):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    with locked(str(tmp_path / "a" / "b" / "d.zarr")):
        (tmp_path / "a" / "kept").touch()
    assert sorted(os.listdir(tmp_path / "a")) == ["kept"]


def test_a_place_without_locks_is_written_to_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    dataset_from_arrays(str(tmp_path / "d.zarr"), X, X[:, 0])
    assert os.listdir(tmp_path) == ["d.zarr"]


@pytest.mark.parametrize("length", [200, 240, 255])
def test_hidden_names_beside_a_place_are_no_longer_than_a_file_system_takes(tmp_path: Path, length: int) -> None:
    url = str(tmp_path / ("é" * 20 + "x" * (length - 40)))
    for sign in (1.0, -1.0):
        dataset_from_arrays(url, sign * X, X[:, 0], overwrite=True)
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), -X)
    assert os.listdir(tmp_path) == [os.path.basename(url)]
    names = {beside(Path(url[:-1] + end), ".dkgp-lock-").name for end in "abc"}
    assert len(names) == 3
    assert all(len(name.encode()) <= 255 for name in names)
