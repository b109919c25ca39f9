"""Scheduler and workers on hosts of their own, which talk TLS, with the data on an S3 server that all of them reach."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.s3 import S3Server
from tests.system.hosts import Certificates, Host, certificates, missing, network
from tests.system.problem import COMMAND_SECONDS, DKGP, LONG, Problem, environment, rounds, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEDULER_PORT, S3_PORT = 8786, 9000
# How long a connection may be silent; dask takes no less than 11 s, and its default of 30 s would test nothing more.
SILENCE_SECONDS = 12
START_SECONDS = 90.0


@dataclass(frozen=True)
class World:
    """The hosts, what runs on them, and the way there."""

    hosts: dict[str, Host]
    certificates: Certificates
    s3: S3Server

    @property
    def scheduler(self) -> str:
        return f"tls://{self.hosts['scheduler'].address}:{SCHEDULER_PORT}"

    def start_worker(self, host: str) -> None:
        """A worker needs this package and the scheduler's address, and finds the data by itself."""
        self.hosts[host].start(
            host, sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler, *self.certificates.dask,
            "--nthreads", 1, "--no-dashboard", "--name", host,
        )  # fmt: skip

    def dkgp(self, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
        """Run dkgp on the user's host; its document."""
        answer = self.hosts["user"].run(*DKGP, *arguments, "--json")
        assert answer.returncode == exit_code, f"exit code {answer.returncode}\n{answer.stdout}\n{answer.stderr}{self}"
        document: dict[str, Any] = json.loads(answer.stdout)
        return document

    def __str__(self) -> str:
        names = [path.stem for path in sorted(self.hosts["user"].folder.glob("*.log"))]
        return "".join(f"\n--- {name}\n{self.hosts['user'].log(name)[-2000:]}" for name in names)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    absent = missing()
    if absent is not None:
        pytest.skip(absent)
    pytest.importorskip("s3fs", reason="needs s3fs (pip install 'dkgp[s3]')")
    pytest.importorskip("moto.server", reason="needs moto's server")
    names = ("scheduler", "worker-1", "worker-2", "user", "store")
    addresses = [f"10.213.7.{number}" for number in range(1, len(names) + 1)]
    s3 = S3Server(f"http://{addresses[-1]}:{S3_PORT}")
    timeouts = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{SILENCE_SECONDS}s"}
    # The way to the outside of the machine this runs on leads nowhere from these hosts.
    no_proxy = {"NO_PROXY": "*", "no_proxy": "*"}
    variables = environment(**{**s3.settings, **timeouts, **no_proxy})
    with network(*names, folder=tmp_path, environment=variables) as hosts:
        assert [host.address for host in hosts.values()] == addresses
        world = World(hosts, certificates(tmp_path, addresses), s3)
        store = f"from moto.server import main; main(['-H', '{addresses[-1]}', '-p', '{S3_PORT}'])"
        hosts["store"].start("store", sys.executable, "-c", store)
        hosts["scheduler"].start(
            "scheduler", sys.executable, "-m", "distributed.cli.dask_scheduler", *world.certificates.dask,
            "--protocol", "tls", "--port", SCHEDULER_PORT, "--no-dashboard",
        )  # fmt: skip
        for worker in ("worker-1", "worker-2"):
            world.start_worker(worker)
        started = "Registered to:"
        for worker in ("worker-1", "worker-2"):
            wait_until(lambda worker=worker: started in hosts[worker].log(worker), lambda: world, START_SECONDS)
        wait_until(lambda: "Running on" in hosts["store"].log("store"), lambda: world, START_SECONDS)
        make_bucket = f"import s3fs; s3fs.S3FileSystem().mkdir('{s3.bucket}')"
        made = hosts["user"].run(sys.executable, "-c", make_bucket)
        assert made.returncode == 0, made.stderr
        yield world


@pytest.fixture
def dataset(world: World, problem: Problem) -> str:
    url = world.s3.url("train.zarr")
    world.dkgp("ingest", problem.folder / "data.npz", url, "--target", "y", "--chunk-rows", 512)
    return url


def is_reference(world: World, problem: Problem, model: str, *options: str) -> bool:
    """Whether the model, which only the hosts can reach, is the one of the run without a cluster, bit by bit."""
    digest = "import hashlib, sys; from dkgp.data import open_model; "
    digest += "print(hashlib.sha256(open_model(sys.argv[1]).alpha.tobytes()).hexdigest())"
    answer = world.hosts["user"].run(sys.executable, "-c", digest, model)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip() == hashlib.sha256(problem.references[options]).hexdigest()


def test_workers_on_other_hosts_give_the_same_bits(world: World, problem: Problem, dataset: str) -> None:
    model = world.s3.url("model.zarr")
    options = ("--scheduler", world.scheduler, *world.certificates.dkgp, "--workers", 2)
    document = world.dkgp(*problem.train(model, *options, dataset=dataset))
    assert document["converged"] is True
    assert not [text for text in document["warnings"] if "encrypted" in text]
    assert is_reference(world, problem, model)
    # Without a certificate there is no way in.
    refused = world.hosts["user"].run(
        *DKGP, *problem.train(world.s3.url("other.zarr"), "--scheduler", world.scheduler, dataset=dataset)
    )
    assert refused.returncode == 2, refused.stderr
    assert "takes encrypted connections" in refused.stderr


def test_a_host_that_goes_silent_on_the_way_does_no_harm(world: World, problem: Problem, dataset: str) -> None:
    model, log = world.s3.url("model.zarr"), world.hosts["user"].folder / "run.jsonl"
    options = (*LONG, "--scheduler", world.scheduler, *world.certificates.dkgp, "--log-json", log, "--json")
    user, silent = world.hosts["user"], world.hosts["worker-2"]
    running = user.start("train", *DKGP, *problem.train(model, *options, dataset=dataset))
    wait_until(lambda: rounds(log) >= 30 or running.poll() is not None, lambda: world)
    silent.unplug()
    unplugged_after = rounds(log)
    running.wait(COMMAND_SECONDS)
    assert running.returncode == 4, str(world)
    assert unplugged_after < rounds(log)
    assert f"Remove worker addr: tls://{silent.address}" in user.log("scheduler")
    assert is_reference(world, problem, model, *LONG)
