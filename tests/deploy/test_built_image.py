"""The image is built, and a scheduler, two workers, a store and the service from it do what Compose would have them."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.built_image import BUILT, Image, ImageWiring, build, require_builders
from tests.deploy.deployment import IMAGE
from tests.deploy.test_wiring import BUCKET, exact, metrics, store
from tests.s3 import s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    require_builders()
    # Not below /tmp, where containers have their own.
    storage = Path(BUILT) if BUILT else Path(tempfile.mkdtemp(prefix="dkgp-image-", dir="/var/tmp"))
    try:
        began = time.monotonic()
        yield build(storage)
        print(f"image test: {time.monotonic() - began:.0f} s in all")
    finally:
        if not BUILT:
            shutil.rmtree(storage, ignore_errors=True)


@pytest.fixture
def wiring(image: Image) -> Iterator[ImageWiring]:
    settings = {"DKGP_WORKER_THREADS": "1", "DKGP_WORKER_MEMORY": "1gb", "DKGP_BUCKET": BUCKET}
    folder = Path(tempfile.mkdtemp(prefix="dkgp-wiring-", dir="/var/tmp"))
    container = image.buildah("from", "--pull-never", f"localhost/{IMAGE}")
    try:
        with (
            s3_server() as server,
            ImageWiring(folder, server, 2, settings, image=image, container=container) as wiring,
        ):
            yield wiring
    finally:
        image.buildah("rm", container)
        shutil.rmtree(folder, ignore_errors=True)


def test_jobs_complete_though_a_worker_is_killed(wiring: ImageWiring, rng: np.random.Generator) -> None:
    X = rng.random((3300, 3))
    y = np.sin(5 * X[:, 0]) + X[:, 1] ** 2 - X[:, 2] * X[:, 0] + 0.1 * rng.standard_normal(3300)
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
    began = time.monotonic()
    job = wiring.run(
        *("submit", "train", f"{url}/train.zarr", "--hyper", f"{url}/hyper.json", "--out", f"{url}/model.zarr"),
        *("--solver", "gbcd", "--block-size", "30", "--tol", "1e-7"),
    ).strip()

    def rounds_run() -> bool:
        text = metrics(f"http://127.0.0.1:{wiring.ports[8787]}/metrics")
        return 'task_prefix_name="kblock"' in text

    wiring.wait_until(rounds_run, "the workers have tasks of the training")
    # The container as a whole, as the kernel would for want of memory.
    for process in wiring.of_container("worker-1"):
        process.kill()
    wiring.processes.pop("worker-1").wait()
    assert json.loads(wiring.run("status", job, "--json"))["state"] == "running", "it was over before the worker died"
    wiring.run("wait", job)
    training_seconds = time.monotonic() - began
    wiring.run(
        *("submit", "--follow", "predict", f"{url}/model.zarr", f"{url}/test.zarr", "--out", f"{url}/pred.zarr"),
        "--variance",
    )
    prediction, train, test = (store(wiring, f"{name}.zarr") for name in ("pred", "train", "test"))
    with wiring.reading():
        import s3fs

        hyper = json.loads(s3fs.S3FileSystem().cat(f"{url}/hyper.json"))
    mean, variance = exact(train, test, hyper)
    rounding = 1e-9
    assert np.all(np.abs(prediction["mean"].values - mean) <= prediction.mean_error_bound.values + rounding)
    assert np.all(prediction.variance_lower.values <= variance + rounding)
    assert np.all(variance <= prediction.variance_upper.values + rounding)

    # Everything that they ran came with the image: nobody has compiled anything.
    assert list(wiring.folder.rglob("*.nbc")) == []
    logs = "".join(wiring.log(label) for label in ("scheduler", "worker-0", "service"))
    assert "cannot be used" not in logs
    print(f"training in the image, a worker killed: {training_seconds:.1f} s")
