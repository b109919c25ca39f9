"""docker-compose.yml's services, as processes in the same wiring, complete jobs on data in S3."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deploy.deployment import DEPLOY, from_yaml
from tests.deploy.wiring import Wiring
from tests.s3 import s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUCKET = "experiments"


@pytest.fixture
def wiring(tmp_path: Path) -> Iterator[Wiring]:
    settings = {"DKGP_WORKER_THREADS": "1", "DKGP_WORKER_MEMORY": "1gb", "DKGP_BUCKET": BUCKET}
    with s3_server() as server, Wiring(tmp_path, server, workers=2, settings=settings) as wiring:
        yield wiring


def store(wiring: Wiring, name: str) -> Any:
    import s3fs
    import xarray as xr

    s3fs.S3FileSystem.clear_instance_cache()
    with wiring.reading():
        return xr.open_zarr(f"s3://{BUCKET}/{name}", consolidated=False).load()


def exact(train: Any, test: Any, hyper: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of a new observation, in the targets' units: the textbook's formulas, by NumPy."""
    gamma, noise = np.array(hyper["kernel"]["gamma"]), hyper["noise_variance"]
    amplitude = hyper["kernel"]["variance"]

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return amplitude * np.exp(-(gamma * (a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1))

    scale = {name: np.array(value) for name, value in train.attrs["standardisation"].items()}
    X, new = ((one.X.values - scale["input_mean"]) / scale["input_std"] for one in (train, test))
    y = (train.y.values - scale["target_mean"]) / scale["target_std"]
    solved = np.linalg.solve(kernel(X, X) + noise * np.eye(len(X)), np.column_stack([y, kernel(X, new)]))
    mean = kernel(new, X) @ solved[:, 0]
    variance = amplitude + noise - (kernel(X, new) * solved[:, 1:]).sum(axis=0)
    return mean * scale["target_std"] + scale["target_mean"], variance * scale["target_std"] ** 2


def metrics(url: str, token: str | None = None) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_jobs_complete(wiring: Wiring, rng: np.random.Generator) -> None:
    X = rng.random((600, 3))
    y = np.sin(5 * X[:, 0]) + X[:, 1] ** 2 - X[:, 2] * X[:, 0] + 0.1 * rng.standard_normal(600)
    np.savetxt(
        wiring.folder / "data" / "points.csv", np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments=""
    )
    wiring.start()

    url = f"s3://{BUCKET}"
    wiring.run(
        *("ingest", "/data/points.csv", f"{url}/train.zarr", "--target", "y"),
        *("--test-fraction", "0.1", "--test-out", f"{url}/test.zarr"),
    )
    wiring.run("submit", "--follow", "tune", f"{url}/train.zarr", "--out", f"{url}/hyper.json", "--subset", "300")
    job = wiring.run(
        *("submit", "train", f"{url}/train.zarr", "--hyper", f"{url}/hyper.json", "--out", f"{url}/model.zarr"),
        *("--block-size", "100"),
    ).strip()
    wiring.run("wait", job)
    wiring.run(
        *("submit", "--follow", "predict", f"{url}/model.zarr", f"{url}/test.zarr", "--out", f"{url}/pred.zarr"),
        "--variance",
    )

    listed = json.loads(wiring.run("jobs", "--json"))
    assert {(record["command"], record["state"]) for record in listed["jobs"]} == {
        ("tune", "done"),
        ("train", "done"),
        ("predict", "done"),
    }
    check_certificates(wiring)
    # The workers did it: a solve's rounds are tasks, and the scheduler has seen some.
    scheduler = metrics(f"http://127.0.0.1:{wiring.ports[8787]}/metrics")
    assert 'dask_scheduler_prefix_state_totals_total{state="memory",task_prefix_name="kblock"}' in scheduler

    prediction, train, test = (store(wiring, f"{name}.zarr") for name in ("pred", "train", "test"))
    with wiring.reading():
        import s3fs

        hyper = json.loads(s3fs.S3FileSystem().cat(f"{url}/hyper.json"))
    mean, variance = exact(train, test, hyper)
    rounding = 1e-9
    assert np.all(np.abs(prediction["mean"].values - mean) <= prediction.mean_error_bound.values + rounding)
    assert prediction.mean_error_bound.max() < 1e-2
    assert np.all(prediction.variance_lower.values <= variance + rounding)
    assert np.all(variance <= prediction.variance_upper.values + rounding)

    check_monitoring(wiring)
    codes = wiring.stop()
    assert codes.pop("service") == 0, wiring.log("service")
    assert set(codes) == {"scheduler", "worker-0", "worker-1"}


def check_certificates(wiring: Wiring) -> None:
    """Neither plain text nor another authority's certificate gets to the scheduler's code, which ran jobs by TLS."""
    from distributed import Client, Security

    port = wiring.ports[8786]
    with pytest.raises(OSError, match=r"[Tt]imed out|[Ss]tream|closed"):
        Client(f"tcp://127.0.0.1:{port}", timeout="5s")
    with pytest.raises(OSError, match=r"TLS|[Tt]imed out|certificate"):
        Client(f"tls://127.0.0.1:{port}", security=Security.temporary(), timeout="5s")


def check_monitoring(wiring: Wiring) -> None:
    """Request each target of prometheus.yml: the service with its token, the scheduler, each worker."""
    config = from_yaml(DEPLOY / "prometheus" / "prometheus.yml")[0]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    token_file = wiring.here(jobs["dkgp-service"]["authorization"]["credentials_file"], "prometheus")
    token = Path(token_file).read_text().strip()
    (target,) = jobs["dkgp-service"]["static_configs"][0]["targets"]
    service = wiring.here(f"http://{target}", "prometheus") + "/metrics"
    text = metrics(service, token)
    assert 'dkgp_jobs{state="done"} 3.0' in text
    assert 'dkgp_jobs_finished_total{command="train",outcome="done"} 1.0' in text
    with pytest.raises(urllib.error.HTTPError, match="401"):
        metrics(service)
    for replica in range(wiring.workers):
        port = jobs["dask-worker"]["dns_sd_configs"][0]["port"]
        worker = wiring.here(f"http://worker:{port}", "prometheus", replica) + "/metrics"
        assert "dask_worker_threads 1.0" in metrics(worker)
