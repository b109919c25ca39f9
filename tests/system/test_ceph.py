"""dkgp on a real object store, Ceph's: stores are written, replaced, trained on and read, and requests are counted."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_dataset, open_model
from dkgp.data.remote.object_store import ConflictError, put, tag_of
from dkgp.data.remote.storage import list_object_bytes, read_object, remove_tree, write_object
from dkgp.data.types import block_rows
from dkgp.errors import OutputExistsError
from tests.s3 import use_s3
from tests.system.ceph_on_one_machine import CephStore, ceph_store, missing
from tests.system.problem import COMMAND_SECONDS, DKGP, Problem, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephStore]:
    absent = missing()
    if absent is not None:
        pytest.skip(absent)
    with ceph_store(tmp_path_factory.mktemp("ceph")) as started:
        yield started


@pytest.fixture
def ceph(running: CephStore, monkeypatch: pytest.MonkeyPatch) -> CephStore:
    use_s3(monkeypatch, running.server)
    import s3fs

    s3fs.S3FileSystem().mkdirs(running.server.bucket, exist_ok=True)
    return running


def test_objects_are_written_and_replaced_under_conditions(ceph: CephStore) -> None:
    url = ceph.server.url("objects/a")
    write_object(url, [b"one"])
    with pytest.raises(OutputExistsError, match="already exists"):
        write_object(url, [b"two"], replace=False)
    before, earlier = tag_of(url), len(ceph.requests())
    write_object(url, [b"two"])
    assert read_object(url) == b"two"
    # Refused with If-None-Match; then with the quoted ETag, which is what other stores want; taken with the bare one.
    answers = [(method, status) for method, _, status in ceph.requests()[earlier:] if method == "PUT"]
    assert answers == [("PUT", 412), ("PUT", 412), ("PUT", 200)]
    assert before is not None
    with pytest.raises(ConflictError, match="changed by another process"):
        put(url, b"three", exactly=before)
    put(url, b"three", exactly=tag_of(url))
    assert read_object(url) == b"three"
    remove_tree(ceph.server.url("objects"))
    assert list_object_bytes(ceph.server.url("objects")) == {}


def test_a_pass_over_the_blocks_reads_each_chunk_once(ceph: CephStore) -> None:
    n, url = 20_000, ceph.server.url("pass.zarr")
    X = np.random.default_rng(3).normal(size=(n, 3))
    dataset_from_arrays(url, X[:999], X[:999, 0])
    dataset_from_arrays(url, X, X[:, 0], overwrite=True)
    for chunk_rows in (None, 1999):
        if chunk_rows is not None:
            dataset_from_arrays(url, X, X[:, 0], chunk_rows=chunk_rows, overwrite=True)
        data, earlier, rows = open_dataset(url), len(ceph.requests()), block_rows(n)
        got = [data.inputs(start, min(start + rows, n), standardised=False) for start in range(0, n, rows)]
        np.testing.assert_array_equal(np.concatenate(got), X)
        reads = Counter(path for method, path, _ in ceph.requests()[earlier:] if method == "GET" and "/X/c/" in path)
        assert len(reads) == -(-n // data.chunk_rows)
        assert set(reads.values()) == {1}


def test_commands_train_from_and_to_the_store(ceph: CephStore, problem: Problem, tmp_path: Path) -> None:
    variables = environment(**ceph.server.settings)
    dataset, model = ceph.server.url("train.zarr"), ceph.server.url("model.zarr")
    commands = [
        ["ingest", str(problem.folder / "data.npz"), dataset, "--target", "y", "--chunk-rows", "512"],
        problem.train(model, "--cluster", "none", dataset=dataset),
        # A model that is there is replaced.
        problem.train(model, "--cluster", "none", "--overwrite", dataset=dataset),
    ]
    for command in commands:
        done = subprocess.run(
            [*DKGP, *command], env=variables, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert problem.is_reference(model)
    assert open_model(model).alpha.shape[0] == 3000
    assert not [path for path in list_object_bytes(ceph.server.url("")) if "temporary" in path]
