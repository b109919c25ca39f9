"""Everything at once, as a user has it: a scheduler, two workers, an S3 store, the service; and a worker dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dkgp.data import open_model
from dkgp.data.sources.synthetic import friedman1
from tests.faults.service_process import JOB_SECONDS, dkgp_environment, service_on, until
from tests.s3 import s3_server, use_s3

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

LONG_ARGUMENTS = ("--block-size", "20", "--checkpoint-every", "0.2")


@pytest.fixture
def start() -> Any:
    """Start Python modules as processes; whatever still runs afterwards is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *map(str, arguments)]
        started.append(
            subprocess.Popen(command, env=dkgp_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def command(*arguments: object, expect: int = 0) -> str:
    """Run a dkgp command; return what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", "dkgp", *map(str, arguments)],
        env=dkgp_environment(),
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert result.returncode == expect, f"{arguments}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_a_worker_killed_under_a_job_of_the_service_on_s3(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = friedman1(1500, n_features=6, seed=3)
    source = tmp_path / "data.npz"
    np.savez(source, X=X, y=y)
    with s3_server() as server:
        use_s3(monkeypatch, server)
        for name, value in server.settings.items():
            monkeypatch.setenv(name, value)
        bucket = f"s3://{server.bucket}"
        data, test, hyper = f"{bucket}/train.zarr", f"{bucket}/test.zarr", f"{bucket}/hyper.json"
        command("ingest", source, data, "--target", "y", "--test-fraction", "0.1", "--test-out", test, "--quiet")
        command("tune", data, "--out", hyper, "--subset", "300", "--quiet")
        direct = tmp_path / "direct.zarr"
        train = ("train", data, "--hyper", hyper, *LONG_ARGUMENTS)
        command(*train, "--out", direct, "--cluster", "none", "--quiet")

        file = tmp_path / "scheduler.json"
        start("dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file)
        until(file.exists, "the scheduler writes its address", 60.0)
        joining = ("dask", "worker", "--scheduler-file", file, "--nthreads", "1", "--no-dashboard", "--no-nanny")
        workers = [start(*joining, "--local-directory", tmp_path / str(number)) for number in range(2)]
        cluster = ("--cluster", "auto", "--scheduler-file", file, "--root", bucket)
        with service_on(tmp_path / "queue", tmp_path, *cluster) as service:
            monkeypatch.setenv("DKGP_SERVICE_URL", service.url)
            job = command("submit", *train, "--out", f"{bucket}/model.zarr").strip()
            until(lambda: service.kinds(job).count("progress") >= 2, "the job is under way")
            os.kill(workers[0].pid, signal.SIGKILL)
            assert json.loads(command("wait", job, "--json"))["jobs"][0]["state"] == "done"
            options = ("--variance", "--variance-gap", "0.05", "--variance-batch", "50")
            predicting = command(
                "submit", "predict", f"{bucket}/model.zarr", test, "--out", f"{bucket}/p.zarr", *options
            )
            command("wait", predicting.strip())
            assert "document" in service.kinds(predicting.strip())
        assert open_model(f"{bucket}/model.zarr").alpha.tobytes() == open_model(direct).alpha.tobytes()
        found = xr.open_zarr(f"{bucket}/p.zarr")
        assert found.sizes["sample"] == 150
        assert bool((found.variance_lower <= found.variance).all())
        assert bool((found.variance_upper - found.variance_lower <= 0.05 * found.variance_upper).all())
        true = xr.open_zarr(test)
        assert float(np.sqrt(((found["mean"] - true["y"]) ** 2).mean())) < 2.0
