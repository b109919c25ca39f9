"""What a job's models name is held to the roots: in the service that takes the job, and in the process that runs it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions
from dkgp.data import open_dataset, save_model
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import TERMINAL
from dkgp.service.running.supervisor import Supervisor
from tests.data.stores.references import knocks, point_elsewhere, shell_reference
from tests.service.problem import Problem, make_problem, until
from tests.service.stage import Stage, staged

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
            assert record.error is not None
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
