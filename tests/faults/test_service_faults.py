"""The jobs service killed, stopped, restarted, doubled: no job is lost, none runs twice, models are the same bits."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from dkgp.data import open_model
from dkgp.service.client import ServiceClient
from tests.faults.service_process import (
    JOB_SECONDS,
    TOKEN,
    ServiceProcess,
    dkgp_command,
    dkgp_process,
    service_on,
    until,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

Document = dict[str, Any]

# Some 2,400 rounds of four variables: seconds in which to kill.
LONG = {"solver": {"block_size": 4, "max_passes": 16.0}, "checkpoint_seconds": 0.1}
LONG_ARGUMENTS = ("--block-size", 4, "--max-passes", 16)


class World:
    """A small problem on the disk, and the model that a train command makes of it when nothing happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        generator = np.random.default_rng(4)
        X = generator.random((600, 6))
        y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
        source = folder / "data.csv"
        table = np.column_stack([X, y + generator.normal(size=len(y))])
        np.savetxt(source, table, delimiter=",", header="a,b,c,d,e,f,y", comments="", fmt="%.9g")
        self.data, self.hyper = str(folder / "data.zarr"), str(folder / "hyper.json")
        dkgp_command("ingest", source, self.data, "--target", "y")
        dkgp_command("tune", self.data, "--out", self.hyper, "--subset", 50)
        model = folder / "direct.zarr"
        options = ("--hyper", self.hyper, "--out", model, "--cluster", "none", *LONG_ARGUMENTS)
        self.direct = dkgp_command("train", self.data, *options)
        self.bits = open_model(model).alpha.tobytes()

    def train(self, out: Path) -> Document:
        return {"dataset": self.data, "hyper": self.hyper, "out": str(out), **LONG}

    def tune(self, out: Path) -> Document:
        """A short job that fails where it is run a second time: its output is there already."""
        return {"dataset": self.data, "out": str(out), "subset": 20}

    def check(self, record: Document, out: Path) -> None:
        """The job has ended as the direct run did, to the bit."""
        assert record["state"] == ("done" if self.direct["converged"] else "not_converged"), record
        assert record["document"]["iterations"] == self.direct["iterations"]
        assert open_model(out).alpha.tobytes() == self.bits


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def root(world: World) -> Path:
    """A folder for one test's outputs, beside the data, which the service may read."""
    folder = world.folder / f"test-{time.monotonic_ns()}"
    folder.mkdir()
    return folder


@pytest.fixture
def service(world: World, root: Path) -> Iterator[ServiceProcess]:
    with service_on(root / "queue", world.folder) as started:
        yield started


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[ServiceClient]:
    with service.client() as opened:
        yield opened


def wait(client: ServiceClient, job_id: str) -> Document:
    return client.wait(job_id, until=time.monotonic() + JOB_SECONDS)


def rounds_reached(service: ServiceProcess, job_id: str) -> int:
    progress = [event for event in service.events(job_id) if event["kind"] == "progress"]
    return int(progress[-1].get("iteration", 0)) if progress else 0


def in_the_middle(service: ServiceProcess, job_id: str, out: Path) -> None:
    """Wait until the job has rounds behind it and a checkpoint, and most of its rounds before it."""
    until(lambda: rounds_reached(service, job_id) > 50, "the job has got to round 50")
    until(lambda: any(Path(f"{out}.checkpoint").glob("*")), "the job has saved a checkpoint")


def attempts(service: ServiceProcess, job_id: str) -> list[int]:
    """The attempts that really began, in order."""
    states = [event for event in service.events(job_id) if event["kind"] == "state" and event["state"] == "running"]
    return [event["attempt"] for event in states]


def assert_sequence_is_whole(service: ServiceProcess, job_id: str) -> None:
    numbers = [event["sequence"] for event in service.events(job_id)]
    assert numbers == list(range(len(numbers)))


@pytest.fixture
def long_job(world: World, service: ServiceProcess, client: ServiceClient, root: Path) -> tuple[str, Path]:
    """A job in the middle of its training: its id, and where its model goes."""
    out = root / "model.zarr"
    job_id = client.submit("train", world.train(out))["id"]
    in_the_middle(service, job_id, out)
    return job_id, out


def test_the_service_is_killed_and_its_job_goes_on(
    world: World, service: ServiceProcess, client: ServiceClient, long_job: tuple[str, Path]
) -> None:
    job_id, out = long_job
    (runner,) = service.runners(job_id)
    service.end(signal.SIGKILL)
    assert runner.is_running()
    service.start()
    record = wait(client, job_id)
    world.check(record, out)
    assert record["attempt"] == 1
    assert attempts(service, job_id) == [1]
    assert_sequence_is_whole(service, job_id)


def test_the_service_and_the_jobs_process_are_killed(
    world: World, service: ServiceProcess, client: ServiceClient, long_job: tuple[str, Path]
) -> None:
    job_id, out = long_job
    (runner,) = service.runners(job_id)
    service.end(signal.SIGKILL)
    runner.kill()
    until(lambda: not runner.is_running() or runner.status() == psutil.STATUS_ZOMBIE, "the process has gone")
    reached = rounds_reached(service, job_id)
    assert reached < world.direct["iterations"]
    service.start()
    record = wait(client, job_id)
    world.check(record, out)
    assert record["attempt"] == 2
    assert record["document"]["resumed"] is True
    assert attempts(service, job_id) == [1, 2]
    assert_sequence_is_whole(service, job_id)


def test_the_jobs_process_alone_is_killed(
    world: World, service: ServiceProcess, client: ServiceClient, long_job: tuple[str, Path]
) -> None:
    job_id, out = long_job
    service.runners(job_id)[0].kill()
    record = wait(client, job_id)
    world.check(record, out)
    assert record["attempt"] == 2


def test_the_service_is_stopped_in_good_order(
    world: World, service: ServiceProcess, client: ServiceClient, long_job: tuple[str, Path]
) -> None:
    job_id, out = long_job
    assert service.end(signal.SIGTERM) == 0
    assert not service.runners(job_id)
    assert not out.exists()
    service.start()
    record = wait(client, job_id)
    world.check(record, out)
    assert record["document"]["resumed"] is True
    assert attempts(service, job_id) == [1, 2]


def test_a_running_job_is_cancelled_and_resumed(
    world: World, service: ServiceProcess, client: ServiceClient, long_job: tuple[str, Path]
) -> None:
    job_id, out = long_job
    began = time.monotonic()
    client.cancel(job_id)
    record = client.wait(job_id, until=began + 60.0)
    assert record["state"] == "cancelled"
    until(lambda: not service.runners(job_id), "its process has gone")
    assert not out.exists()
    client.resume(job_id)
    world.check(wait(client, job_id), out)


def test_the_command_line_follows_over_a_kill_of_the_service(
    world: World, service: ServiceProcess, client: ServiceClient, root: Path
) -> None:
    out = root / "model.zarr"
    given = ("--follow", "--json", "train", world.data, "--hyper", world.hyper, "--out", out, *LONG_ARGUMENTS)
    command = dkgp_process("submit", "--service", service.url, *given, "--checkpoint-every", 0.1)
    (record,) = until(lambda: client.jobs()["jobs"], "the job is submitted")
    job_id = record["id"]
    in_the_middle(service, job_id, out)
    service.end(signal.SIGKILL)
    service.start()
    printed, said = command.communicate(timeout=JOB_SECONDS)
    assert command.returncode == (0 if world.direct["converged"] else 4), said
    assert "trying again" in said
    world.check(json.loads(printed), out)
    logs = dkgp_process("logs", "-f", "--json", "--service", service.url, job_id[:6]).communicate(timeout=JOB_SECONDS)
    assert [json.loads(line) for line in logs[0].splitlines()] == service.events(job_id)


def test_two_services_on_one_queue(world: World, root: Path) -> None:
    queue = root / "queue"
    with (
        service_on(queue, world.folder, "--concurrent-jobs", 2, name="first") as first,
        service_on(queue, world.folder, "--concurrent-jobs", 2, name="second") as second,
        first.client() as one,
        second.client() as other,
    ):
        outs = [root / f"hyper-{index}.json" for index in range(12)]
        clients = [one, other] * 6
        ids = [client.submit("tune", world.tune(out))["id"] for client, out in zip(clients, outs, strict=True)]
        records = [wait(one, job_id) for job_id in ids]
        assert [record["state"] for record in records] == ["done"] * 12
        assert [attempts(first, job_id) for job_id in ids] == [[1]] * 12
        assert all(first.kinds(job_id).count("document") == 1 for job_id in ids)
        assert all(out.exists() for out in outs)
        assert [other.job(job_id)["state"] for job_id in ids] == ["done"] * 12


def test_one_of_two_services_on_a_queue_is_killed(world: World, root: Path) -> None:
    queue = root / "queue"
    with (
        service_on(queue, world.folder, "--concurrent-jobs", 2, name="first") as first,
        service_on(queue, world.folder, "--concurrent-jobs", 2, name="second") as second,
        second.client() as client,
    ):
        outs = [root / f"hyper-{index}.json" for index in range(4)]
        ids = [client.submit("tune", world.tune(out))["id"] for out in outs]
        until(lambda: first.runners() or second.runners(), "a job has begun")
        first.end(signal.SIGKILL)
        records = [wait(client, job_id) for job_id in ids]
        assert [record["state"] for record in records] == ["done"] * 4
        assert all(first.kinds(job_id).count("document") == 1 for job_id in ids)


def refusals(service: ServiceProcess, world: World, root: Path) -> Counter[str]:
    """Send what is to be refused; count what came back as expected, and what did not."""
    good = {"command": "tune", "options": world.tune(root / "never.json")}
    outside = {"command": "tune", "options": {**good["options"], "out": "/etc/never.json"}}
    unknown = {"command": "tune", "options": {**good["options"], "no_such_option": 3}}
    signed = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    requests: list[tuple[int, dict[str, Any]]] = [
        (401, {"json": good}),
        (401, {"json": good, "headers": {"Authorization": "Bearer not-the-token-at-all"}}),
        (413, {"content": b" " * (2**20 + 1), "headers": signed}),
        (413, {"content": iter([b" " * 2**16] * 17), "headers": signed}),
        (400, {"content": b'{"command": "tune", ', "headers": signed}),
        (403, {"json": outside, "headers": signed}),
        (422, {"json": unknown, "headers": signed}),
    ]
    found: Counter[str] = Counter()
    with httpx.Client(base_url=service.url, timeout=120.0, trust_env=False) as connection:
        for expected, request in requests:
            # While the service is down there is nobody to refuse.
            with contextlib.suppress(httpx.TransportError):
                status = connection.post("/v1/jobs", **request).status_code
                found["as expected" if status == expected else f"{status} instead of {expected}"] += 1
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_200_jobs_of_20_clients_over_two_kills(world: World, root: Path) -> None:
    with service_on(root / "queue", world.folder, "--concurrent-jobs", 3) as service:
        outs = [root / f"hyper-{index}.json" for index in range(200)]
        ids: dict[Path, str] = {}
        refused: Counter[str] = Counter()
        halfway = threading.Event()

        def submit_ten(number: int) -> None:
            with service.client(600.0) as client:
                for out in outs[number::20]:
                    ids[out] = client.submit("tune", world.tune(out), name=out.name)["id"]
                    if len(ids) >= 60:
                        halfway.set()
            refused.update(refusals(service, world, root))

        with ThreadPoolExecutor(20) as pool:
            clients = [pool.submit(submit_ten, number) for number in range(20)]
            assert halfway.wait(600)
            service.end(signal.SIGKILL)  # while jobs are being submitted
            service.start()
            for client in clients:
                client.result(timeout=600)
        assert len(set(ids.values())) == 200
        with service.client() as client:
            until(lambda: client.jobs(limit=1)["counts"]["done"] >= 20, "20 jobs are done", 1200.0)
            service.end(signal.SIGKILL)  # while jobs are being run
            service.start()
            until(lambda: client.jobs(limit=1)["counts"]["queued"] == 0, "all jobs have begun", 2400.0)
            records = [wait(client, job_id) for job_id in ids.values()]
            assert Counter(record["state"] for record in records) == {"done": 200}
            assert client.jobs(limit=1)["counts"] == {**dict.fromkeys(client.jobs()["counts"], 0), "done": 200}
        assert all(out.exists() for out in outs)
        assert not (root / "never.json").exists()
        # A job of whose process something was ever heard has been heard of once, to its end.
        assert Counter(len(attempts(service, job_id)) for job_id in ids.values()) == {1: 200}
        assert Counter(service.kinds(job_id).count("document") for job_id in ids.values()) == {1: 200}
        assert set(refused) == {"as expected"}
        assert refused["as expected"] >= 20
