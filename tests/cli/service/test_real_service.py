"""The commands against the real HTTP service and queue; no job runs, and nothing but sockets is in between."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.settings import ServiceSettings
from dkgp.service.web.app import Service, create_app
from tests.cli.invoke import document_of, run, run_json

TOKEN = "a-token-that-is-long-enough"


class Idle:
    """A supervisor that runs nothing."""

    is_alive = True

    def wake(self) -> None:
        pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def queue(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobQueue]:
    """The queue of a service that answers; the environment says where."""
    queue = JobQueue(tmp_path / "queue")
    settings = ServiceSettings(folder=str(tmp_path / "queue"), token=TOKEN, roots=(str(root),), port=0)
    config = uvicorn.Config(create_app(Service(settings, queue, Idle())), port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    end = time.monotonic() + 60.0
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv("DKGP_SERVICE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("DKGP_SERVICE_TOKEN", TOKEN)
    monkeypatch.chdir(root)
    try:
        yield queue
    finally:
        server.should_exit = True
        thread.join(60)
        queue.close()


def test_a_job_from_submission_to_resumption(queue: JobQueue, root: Path) -> None:
    job_id = run("submit", "--name", "n", "tune", "d.zarr", "--out", "h.json", "--subset", 50).stdout.strip()
    record = queue.get(job_id)
    assert record.options == {"dataset": f"{root}/d.zarr", "out": f"{root}/h.json", "subset": 50}
    assert run_json("status", job_id[:5]) == record.to_json()
    listed = run_json("jobs", "--state", "queued")
    assert [found["id"] for found in listed["jobs"]] == [job_id]
    assert listed["counts"]["queued"] == 1
    assert job_id in run("jobs").stdout
    assert run("cancel", job_id).stdout == f"{job_id} cancelled\n"
    assert run("cancel", job_id).exit_code == 3
    assert run("wait", job_id).exit_code == 130
    events = [json.loads(line) for line in run("logs", "-f", job_id, "--json").stdout.splitlines()]
    assert [event["state"] for event in events] == ["queued", "cancelled"]
    assert run("logs", job_id).stdout.splitlines()[-1].endswith("-- cancelled")
    assert run_json("resume", job_id)["state"] == "queued"


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("tune", "/etc/d.zarr", "--out", "h.json"), 3, "works below"),
        (("tune", "d.zarr", "--out", "../h.json"), 3, "works below"),
        (("tune", "d.zarr", "--out", "h.json", "--restarts", "0"), 3, "restarts"),
        (("train", "d.zarr", "--out", "m", "--hyper", "h", "--solver", "bcdc", "--exhaustive"), 2, "--exhaustive"),
    ],
)
def test_what_the_service_refuses(queue: JobQueue, arguments: tuple[str, ...], exit_code: int, said: str) -> None:
    result = run("submit", *arguments)
    assert result.exit_code == exit_code, result.stderr
    assert said in result.stderr
    assert sum(queue.counts().values()) == 0


def test_two_jobs_that_write_one_output(queue: JobQueue) -> None:
    assert run("submit", "tune", "d.zarr", "--out", "h.json").exit_code == 0
    result = run("submit", "--json", "tune", "other.zarr", "--out", "h.json")
    assert document_of(result, 3)["error"]["type"] == "JobStateError"


def test_a_wrong_token_and_none(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("another-token-of-some-length", None):
        if token is None:
            monkeypatch.delenv("DKGP_SERVICE_TOKEN")
        else:
            monkeypatch.setenv("DKGP_SERVICE_TOKEN", token)
        for command in (("jobs",), ("status", "0123456789ab"), ("submit", "tune", "d", "--out", "h")):
            result = run(*command, "--json")
            assert document_of(result, 2)["error"]["type"] == "UsageError"
            assert "--token-file" in result.stderr
    assert sum(queue.counts().values()) == 0
