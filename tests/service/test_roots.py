"""Places that jobs may touch, as texts and as links, and all places of a job."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from fsspec.core import split_protocol
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import ClusterOptions
from dkgp.data import open_dataset, save_model
from dkgp.data.remote.storage import is_local, normalise_url
from dkgp.errors import InputError
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import TERMINAL
from dkgp.service.roots import OutsideRootsError, Roots, _real, resolved
from dkgp.service.running.supervisor import Supervisor
from tests.data.stores.references import knocks, point_elsewhere, shell_reference
from tests.service.problem import Problem, make_problem, until
from tests.service.stage import Stage, staged


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """`root` with links in and out of it, and `root-evil` beside it."""
    base = tmp_path.resolve()
    for folder in ("root/a/b", "root-evil", "outside/deep"):
        (base / folder).mkdir(parents=True)
    (base / "root" / "inward").symlink_to("a/b")
    (base / "root" / "outward").symlink_to(base / "outside")
    (base / "root" / "dangling").symlink_to(base / "outside" / "not-yet")
    (base / "root" / "twice").symlink_to("outward/deep")
    (base / "root" / "loop").symlink_to("loop")
    (base / "outside" / "back").symlink_to(base / "root")
    return base


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("root", True),
        ("root/", True),
        ("root/a/b", True),
        ("root//a/./b", True),
        ("root/new/store.zarr", True),
        ("root/inward/new", True),
        ("root/...", True),
        ("root/%2e%2e/x", True),  # on a disk a percent sign is a letter
        ("outside/back/a", True),
        ("", False),
        ("root-evil", False),
        ("root-evil/x", False),
        ("roo", False),
        ("root/outward", False),
        ("root/outward/new", False),
        ("root/dangling", False),
        ("root/dangling/x", False),
        ("root/twice/x", False),
        ("root/inward/../../../outside", None),
        ("root/../root/a", None),
        ("root/a/..", None),
    ],
)
def test_local_paths(tree: Path, path: str, inside: bool | None) -> None:
    roots = Roots([str(tree / "root")])
    for url in (f"{tree}/{path}", f"file://{tree}/{path}", f"local://{tree}/{path}", f"//{tree}/{path}"):
        if inside is None:
            with pytest.raises(OutsideRootsError, match=r"'\.\.' part"):
                roots.contains(url)
        else:
            assert roots.contains(url) is inside, url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("relative/path", "is a relative path"),
        ("~/data", "is a relative path"),
        ("./x", "is a relative path"),
        ("file:/etc/passwd", "is a relative path"),
        ("file:etc/passwd", "is a relative path"),
        ("file://localhost/etc/passwd", "is a relative path"),
        ("FILE:///etc/passwd", "lower case"),
        ("S3://bucket/root/x", "lower case"),
        ("/root/a\0b", "control character"),
        ("/root/a\nb", "control character"),
        ("s3://bucket/root/a\x7f", "control character"),
        ("simplecache::s3://bucket/root/a", "chains"),
        ("zip://a.txt::s3://bucket/root/b.zip", "chains"),
        ("/root/x::y", "chains"),
        ("s3://bucket/root/%2e%2e/other", "'%'"),
        ("s3://bucket/root%2Fother", "'%'"),
        ("s3://bucket/root/../other", "'..' part"),
        ("s3://bucket/root/./x", "'.'"),
        ("s3://bucket//root/x", "empty"),
        ("s3:///bucket/root", "empty"),
        ("s3://", "empty"),
        ("s3://bucket/root/x?versionId=1", r"'\?'"),
        ("s3://bucket/root/x#part", "'#'"),
        ("s3://bucket\\root/x", r"'\\'"),
        ("s3://bucket/root/*", r"'\*'"),
        ("memory://../x", "'..' part"),
        ("s3://key:secret@bucket/root/x", "must not carry a user"),
        ("/\ud800/x", "is no path"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(url: str, words: str) -> None:
    roots = Roots(["/", "s3://bucket", "memory://"])
    with pytest.raises(OutsideRootsError, match=words) as caught:
        roots.require(url, "out", "write")
    assert "'out'" in str(caught.value)
    assert "secret" not in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("s3://bucket/root", True),
        ("s3://bucket/root/", True),
        ("s3://bucket/root/model.zarr", True),
        ("s3a://bucket/root/model.zarr", True),
        ("gcs://other/x", True),
        ("gs://other", True),
        ("az://container/x", True),
        ("abfss://container/x", True),
        ("memory://x", True),
        ("memory:///x", True),
        ("s3://bucket/root-evil/x", False),
        ("s3://bucket", False),
        ("s3://bucket/other", False),
        ("s3://bucket-root/x", False),
        ("s3://Bucket/root/x", False),
        ("gs://bucket/root", False),
        ("abfs://container@account.host/x", False),
        ("http://bucket/root/x", False),
        ("sftp://host/x", False),
        ("/bucket/root", False),
    ],
)
def test_urls(url: str, inside: bool) -> None:
    roots = Roots(["s3://bucket/root", "gcs://other", "az://container", "memory://"])
    assert roots.contains(url) is inside


def test_a_root_that_names_an_account_is_another_than_one_that_does_not() -> None:
    roots = Roots(["abfs://container@account.dfs.core.windows.net/runs"])
    assert roots.contains("abfs://container@account.dfs.core.windows.net/runs/a")
    assert not roots.contains("abfs://container@evil.example/runs/a")
    assert not roots.contains("abfs://container/runs/a")


def test_excluded_folders_are_outside(tree: Path) -> None:
    roots = Roots([str(tree / "root")], excluded=[str(tree / "root" / "a")])
    assert roots.contains(str(tree / "root" / "x"))
    assert not roots.contains(str(tree / "root" / "a" / "b"))
    assert not roots.contains(str(tree / "root" / "inward"))


def test_no_output_takes_the_place_of_a_root(tree: Path) -> None:
    root = tree / "root"
    (root / "x" / "team").mkdir(parents=True)
    roots = Roots([str(root), str(root / "x" / "team"), "s3://bucket/runs"], excluded=[str(root / "queue" / "own")])
    for place in (root, f"{root}/", f"{root}/.", root / "x" / "team", root / "x", root / "queue", "s3://bucket/runs"):
        roots.require(str(place), "dataset", "read")
        with pytest.raises(OutsideRootsError, match=r"'out': .* Choose a path below a root"):
            roots.require(str(place), "out", "write")
    for place in (root / "y", root / "x" / "other", root / "x" / "team" / "m.zarr", "s3://bucket/runs/m.zarr"):
        roots.require(str(place), "out", "write")


def test_the_refusal_says_what_to_do(tree: Path) -> None:
    roots = Roots([str(tree / "root"), "s3://bucket"])
    with pytest.raises(OutsideRootsError) as caught:
        roots.require("/etc/passwd", "dataset", "read")
    words = str(caught.value)
    for part in ("'dataset'", "may not read '/etc/passwd'", str(tree / "root"), "s3://bucket", "--root"):
        assert part in words
    assert isinstance(caught.value, InputError)


@pytest.fixture(scope="module")
def links() -> Iterator[Path]:
    """A tree whose links go everywhere."""
    with TemporaryDirectory() as name:
        base = Path(name).resolve()
        for folder in ("r", "r/a", "r/a/b", "r2", "o", "o/a"):
            (base / folder).mkdir()
        for place, target in {
            "r/l": "a",
            "r/m": "../o",
            "r/a/l": "..",
            "r/a/b/l": "../../../r2",
            "o/l": str(base / "r"),
            "o/a/l": "../../r/m",
            "r2/l": "../r/l",
        }.items():
            (base / place).symlink_to(target)
        for folder in ("r", "r/a", "r/a/b", "r2", "o", "o/a"):
            (base / folder / "f").write_text("")
        yield base


@given(parts=st.lists(st.sampled_from(["r", "r2", "o", "a", "b", "l", "m", "f", "new", ".", ""]), max_size=8))
def test_inside_is_what_the_system_opens_inside(links: Path, parts: list[str]) -> None:
    path = "/".join([str(links), *parts])
    found = Roots([str(links / "r")]).contains(path)
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        opened = os.readlink(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    assert found == (opened == str(links / "r") or opened.startswith(f"{links}/r/"))


@given(parts=st.lists(st.sampled_from(["r", "o", "a", "l", "m", "new"]), max_size=6))
def test_what_would_be_made_is_made_inside(links: Path, parts: list[str]) -> None:
    path = "/".join([str(links), *parts, "made"])
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    except OSError:
        return
    made = os.readlink(f"/proc/self/fd/{handle}")
    os.close(handle)
    os.unlink(made)
    assert Roots([str(links / "r")]).contains(path) == made.startswith(f"{links}/r/")


@given(text=st.text(max_size=60))
def test_any_text_is_inside_or_refused(text: str) -> None:
    roots = Roots(["s3://bucket/root"])
    for url in (text, f"s3://{text}", f"s3://bucket/root{text}"):
        try:
            inside = roots.contains(url)
        except OutsideRootsError as error:
            str(error).encode()
        else:
            # Taken as it stands, by the key's own first letters.
            assert inside == (url.rstrip("/") == "s3://bucket/root" or url.startswith("s3://bucket/root/"))


HOSTILE = [
    "/ROOT/http://x",
    "/ROOT/s3://bucket/x",
    "file:///ROOT/http://x",
    "local:///ROOT/gs://x",
    "/ROOT/a/://x",
    "/ROOT/1x://y",
    "//ROOT/http:///etc",
    "/ROOT/http:/x",
    "/ROOT/http%3A//x",
    "/ROOT/HTTP://x",
    "s3://bucket/http://x",
    "memory://ROOT/file:///etc/passwd",
    "http+file:///ROOT/x",
    "file+http:///ROOT/x",
    "file:////ROOT/x",
    "/ROOT/x::y",
    "/ROOT/é://x",
    "/ROOT/x.zarr",
    "file:///ROOT/x.zarr",
    "s3a://bucket/x.zarr",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_let_in_is_the_same_place_to_everybody_who_opens_it(tmp_path: Path, text: str) -> None:
    """To the roots, to dkgp's own addresses, and to fsspec, which zarr and readers of tables go by."""
    root = str(tmp_path.resolve())
    url = text.replace("/ROOT", root)
    try:
        is_inside = Roots([root, "s3://bucket", "memory://"]).contains(url)
    except OutsideRootsError:
        return
    if not is_inside:
        return
    protocol, path = split_protocol(normalise_url(url))
    assert is_local(url) == (protocol is None)
    if is_local(url):
        assert os.path.realpath(path).startswith(root)
        assert split_protocol(url)[0] in (None, "file", "local")


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.count("://") > (text[0] != "/")])
def test_a_second_protocol_is_refused_by_all_alike(tmp_path: Path, text: str) -> None:
    url = text.replace("/ROOT", str(tmp_path))
    for refusing in (
        normalise_url,
        is_local,
        lambda place: Roots([str(tmp_path), "s3://bucket"]).require(place, "out"),
    ):
        with pytest.raises(InputError, match="'://' in the middle|holds a control"):
            refusing(url)


def test_one_name_for_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path.resolve()
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    names = [
        f"{base}/real/x",
        f"{base}/link/x",
        f"file://{base}/real/x/",
        f"{base}//real/./x",
        f"local://{base}/link/x",
    ]
    assert {resolved(name) for name in names} == {f"{base}/real/x"}
    assert len({resolved(f"{base}/real/{name}") for name in ("x", "X", "x.zarr")}) == 3
    assert resolved("s3a://bucket/x/") == resolved("s3://bucket/x")
    assert resolved("az://c/x") == resolved("abfss://c@account.dfs.core.windows.net/x")
    assert resolved("s3://bucket/X") != resolved("s3://bucket/x")
    assert resolved("gs://bucket/x") != resolved("s3://bucket/x")
    # As on a disk of macOS.
    real = os.path.samefile
    monkeypatch.setattr(os.path, "samefile", lambda a, b: str(a).lower() == str(b).lower() or real(a, b))
    assert resolved(f"{base}/real/Model.zarr") == resolved(f"{base}/real/model.ZARR")


def test_real_paths_are_those_of_the_standard_library(tmp_path: Path, rng: np.random.Generator) -> None:
    for folder in ("a/b/c", "b/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a" / "f").write_text("")
    for name, target in (("b/up", ".."), ("a/b/over", "../../b"), ("b/loop", "loop"), ("b/gone", "nothing/c")):
        (tmp_path / name).symlink_to(target)
    names = ["a", "b", "c", "f", "up", "over", "loop", "gone", "x" * 300]
    folders: dict[str, str] = {}
    for _ in range(2_000):
        path = "/".join([str(tmp_path), *rng.choice(names, rng.integers(1, 7))])
        assert _real(path, folders) == os.path.realpath(path), path


def test_hundreds_of_deep_paths_are_looked_up_at_once(tmp_path: Path) -> None:
    deep = str(tmp_path) + "/d" * 500
    os.makedirs(deep)
    roots = Roots([str(tmp_path)])
    folders: dict[str, str] = {}
    began = time.thread_time()
    for number in range(600):
        for path in (f"{deep}/{number}.csv", f"{tmp_path}/{number}" + "/d" * 500):
            roots.require(path, "sources", "read", folders)
    assert time.thread_time() - began < 3.0


NO_DASK = ClusterOptions(kind="none")


def model_by_reference(problem: Problem, path: Path, training_url: object) -> Path:
    """A model whose manifest names another training set than its own."""
    dataset = open_dataset(problem.dataset)
    alpha = dataset.targets(0, dataset.n_samples)
    kernel = {"type": "rbf", "variance": 1.0, "gamma": [0.3, 0.3, 0.3]}
    save_model(path, kernel=kernel, noise_variance=0.1, alpha=alpha, dataset=dataset, by_reference=True)
    point_elsewhere(path, training_url)
    return path


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as made:
        yield made


def jobs(root: Path, model: Path) -> list[dict[str, Any]]:
    """Both ways by which a job opens a model."""
    dataset = str(root / "train.zarr")
    return [
        {"command": "predict", "options": {"model": str(model), "dataset": dataset, "out": str(root / "p.zarr")}},
        {
            "command": "train",
            "options": {
                "dataset": dataset,
                "hyper": str(root / "hyper.json"),
                "out": str(root / "m.zarr"),
                "warm_start": str(model),
            },
        },
    ]


def test_a_model_that_names_what_is_outside_is_refused_with_its_job(stage: Stage, tmp_path: Path) -> None:
    problem = make_problem(stage.root)
    outside = tmp_path / "outside.zarr"
    shutil.copytree(problem.dataset, outside)
    (stage.root / "link.zarr").symlink_to(outside)
    with knocks() as inner:
        named = {
            str(outside): 403,
            f"file://{outside}": 403,
            str(stage.root / "link.zarr"): 403,
            f"{stage.root}/../outside.zarr": 403,
            "s3://another-bucket/train.zarr": 403,
            "memory://train.zarr": 403,
            f"http://127.0.0.1:{inner.port}/train.zarr": 422,
            f"simplecache::http://127.0.0.1:{inner.port}/train.zarr": 422,
            shell_reference(tmp_path): 422,
        }
        for number, (url, status) in enumerate(named.items()):
            model = model_by_reference(problem, stage.root / f"model-{number}.zarr", url)
            for job in jobs(stage.root, model):
                response = stage.client.post("/v1/jobs", json=job)
                assert response.status_code == status, (url, response.text)
                assert "training set" in response.json()["error"]["message"]
        assert inner.count == 0
    assert not (tmp_path / "it-ran").exists()
    assert stage.queue.counts()["queued"] == 0


def test_models_within_the_roots_and_models_that_are_not_there_yet_are_taken(stage: Stage) -> None:
    problem = make_problem(stage.root)
    within = model_by_reference(problem, stage.root / "within.zarr", problem.dataset)
    stage.submit("later.zarr")
    for model in (within, stage.root / "later.zarr"):
        job = jobs(stage.root, model)[0]
        response = stage.client.post("/v1/jobs", json=job)
        assert response.status_code == 201, response.text
        stage.client.post(f"/v1/jobs/{response.json()['id']}/cancel")


# ---------------------------------------------------------------------------------------------------- the job's process


@pytest.mark.long
def test_the_jobs_process_checks_again_and_imports_nothing_from_where_the_service_works(
    queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the service has taken the jobs: what they name was changed in between."""
    root = tmp_path / "data"
    root.mkdir()
    problem = make_problem(root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    for name in ("psutil", "struct", "numpy"):
        (root / f"{name}.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'a').write({name!r})\n")
    outside = tmp_path / "outside.zarr"
    shutil.copytree(problem.dataset, outside)
    with knocks() as inner:
        stores = {
            "OutsideRootsError": model_by_reference(problem, root / "outside.zarr", str(outside)),
            "StoreError": model_by_reference(problem, root / "inner.zarr", f"http://127.0.0.1:{inner.port}/train.zarr"),
        }
        expected = {}
        for name, model in stores.items():
            options = jobs(root, model)[0]["options"] | {"out": str(root / f"{name}.zarr")}
            expected[queue.submit("predict", options)[0].id] = name
        supervisor = Supervisor(queue, cluster=NO_DASK, roots=[str(root)], concurrent_jobs=2)
        supervisor.start()
        until(lambda: all(queue.get(job_id).state in TERMINAL for job_id in expected), "both jobs")
        supervisor.stop()
        for job_id, name in expected.items():
            record = queue.get(job_id)
            assert (record.state, record.exit_code) == ("failed", 3), record.error
            assert record.error["type"] == name
        assert inner.count == 0
    assert not (tmp_path / "it-ran").exists()


def test_a_jobs_process_works_in_the_jobs_folder(
    queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the service was told by relative paths means to it what it meant to the service."""
    from dkgp.service.settings import ServiceSettings

    stand_in = tmp_path / "stand-in"
    script = """
        import json, os, sys
        told = json.load(sys.stdin)
        with open("seen.json", "w") as file:
            seen = {"argv": sys.argv, "safe": sys.flags.safe_path, "path": os.environ["PYTHONPATH"]}
            json.dump({"told": told, **seen}, file)
    """
    stand_in.write_text(f"#!{sys.executable} -S\n{textwrap.dedent(script)}")
    stand_in.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"lib{os.pathsep}{os.pathsep}/absolute")
    cluster = ClusterOptions(
        kind="slurm",
        config_file="dask.yaml",
        settings={"log_directory": "logs", "local_directory": "~/scratch", "queue": "short"},
    )
    settings = ServiceSettings("queue", no_token=True, roots=(str(tmp_path),), cluster=cluster)
    job, _ = queue.submit("train", {"dataset": "/d", "hyper": "/h", "out": "/o"})
    supervisor = Supervisor(queue, cluster=settings.cluster, roots=settings.roots, python=str(stand_in))
    supervisor.start()
    seen = queue.folder_of(job.id) / "seen.json"
    until(lambda: seen.exists() and seen.read_text().endswith("}"), "the job's process")
    supervisor.stop(grace_seconds=0.0)
    found = json.loads(seen.read_text())
    assert found["safe"] is True
    assert found["path"] == f"{tmp_path / 'lib'}{os.pathsep}/absolute"
    assert found["argv"][-1] == str(tmp_path)
    told = found["told"]
    assert told["config_file"] == str(tmp_path / "dask.yaml")
    assert told["settings"] == {**cluster.settings, "log_directory": str(tmp_path / "logs")}
