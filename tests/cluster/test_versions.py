"""Software that differs between coordinator, scheduler and workers: explained at the start, kept out later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dkgp
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.client_executor import Software, compare_versions, fetch_versions
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.errors import ClusterError, ExitCode
from tests.cluster.helpers import Listener, StartProcess, no_dkgp, other_dkgp, start_scheduler

HERE: dict[str, str | None] = {
    "dkgp": "1.2.0",
    "python": "3.11",
    "dask": "2026.8.0",
    "distributed": "2026.8.0",
    "numpy": "2.4.6",
    "scipy": "1.17.1",
    "numba": "0.68.1",
    "llvmlite": "0.48.0",
    "zarr": "3.1.6",
    "cloudpickle": "3.1.2",
    "msgpack": "1.2.4",
}


def software(*workers: dict[str, str | None], scheduler: dict[str, str | None] | None = None) -> Software:
    named = {f"tcp://10.0.0.{number}:1": {**HERE, **worker} for number, worker in enumerate(workers, 1)}
    return Software(HERE, {**HERE, **(scheduler or {})}, named)


def test_equal_software_is_not_spoken_of() -> None:
    assert compare_versions(software({}, {})) == []


@pytest.mark.parametrize("package", ["dkgp", "python", "dask", "distributed"])
def test_a_decisive_difference_is_an_error_with_a_table(package: str) -> None:
    with pytest.raises(ClusterError) as caught:
        compare_versions(software({}, {package: "0.9"}, {package: "0.9"}, {package: None}))
    lines = str(caught.value).splitlines()
    row = next(line for line in lines if line.split()[0] == package)
    assert row.split()[1:3] == [HERE[package], HERE[package]]
    assert "0.9 (tcp://10.0.0.2:1, tcp://10.0.0.3:1)" in row
    assert "missing (tcp://10.0.0.4:1)" in row
    assert f"{HERE[package]} (1 of 4)" in row
    assert len(lines) == 4  # nothing is said of what is equal
    assert "same image or environment" in lines[-1]
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST


def test_the_scheduler_counts_too() -> None:
    """It unpacks the tasks that it is sent, which needs the package that they are of."""
    with pytest.raises(ClusterError, match=r"dkgp +1\.2\.0 +missing +1\.2\.0 \(1 of 1\)"):
        compare_versions(software({}, scheduler={"dkgp": None}))


def test_many_workers_are_counted_rather_than_named() -> None:
    with pytest.raises(ClusterError, match=r"0\.9 \(tcp://10\.0\.0\.1:1, .* and 5 more\)"):
        compare_versions(software(*[{"dkgp": "0.9"}] * 8))


@pytest.mark.parametrize("package", ["numpy", "scipy", "numba", "llvmlite", "zarr", "cloudpickle", "msgpack"])
def test_other_differences_are_a_warning(package: str) -> None:
    (warning,) = compare_versions(software({}, {package: "0.9"}))
    assert f"  {package}" in warning
    assert "0.9 (tcp://10.0.0.2:1)" in warning


def test_versions_of_a_real_cluster(client: Client) -> None:
    found = fetch_versions(client)
    assert found.client == found.scheduler == next(iter(found.workers.values()))
    assert len(found.workers) == 2
    assert found.client["dkgp"] == dkgp.__version__
    assert str(found.client["python"]).count(".") == 1
    assert compare_versions(found) == []


def test_a_worker_that_does_not_answer_is_an_error_in_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(**message: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("dkgp.cluster.client_executor._ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(client, "scheduler", Silent(client.scheduler, silence))
    with pytest.raises(ClusterError, match="did not all answer within"):
        fetch_versions(client)


class Silent:
    def __init__(self, scheduler: Any, broadcast: Callable[..., Any]) -> None:
        self._scheduler, self.broadcast = scheduler, broadcast

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def setups(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.worker_plugins if name.startswith("dkgp")]


def test_what_keeps_others_out_goes_with_the_run(client: Client) -> None:
    before = set(client.run_on_scheduler(setups))
    first, second = DaskExecutor(client), DaskExecutor(client)
    assert len(set(client.run_on_scheduler(setups)) - before) == 2
    first.close()
    assert len(set(client.run_on_scheduler(setups)) - before) == 1
    second.close()
    assert set(client.run_on_scheduler(setups)) == before


def test_what_a_killed_run_has_left_is_forgotten_by_the_next(start_cluster: Callable[..., Client]) -> None:
    own = start_cluster(processes=False, protocol="tcp")
    with Client(own.scheduler.address, set_as_default=False) as killed:
        DaskExecutor(killed)
    alive = DaskExecutor(own)
    assert len(own.run_on_scheduler(setups)) == 2
    with open_executor(ClusterOptions(scheduler=own.scheduler.address), 1):
        assert len(own.run_on_scheduler(setups)) == 2
    (left,) = own.run_on_scheduler(setups)
    assert own.id in left
    alive.close()


def squares(group: list[int]) -> list[int]:
    return [item * item for item in group]


@pytest.mark.faults
@pytest.mark.parametrize("nanny", ["--nanny", "--no-nanny"])
def test_workers_of_another_version_never_compute(start_process: StartProcess, tmp_path: Path, nanny: str) -> None:
    """There at the start they end the job; later they cannot join it. The right ones join and compute."""
    address = start_scheduler(start_process, tmp_path)
    worker = ("dask", "worker", address, "--nthreads", "1", "--no-dashboard", nanny, "--local-directory", tmp_path)
    older, without = other_dkgp(tmp_path / "older", "0.0.1"), no_dkgp(tmp_path / "without")

    start_process(*worker)
    wrong = start_process(*worker, environment=older)
    with pytest.raises(ClusterError, match=rf"dkgp +{dkgp.__version__} +{dkgp.__version__} +0\.0\.1 \(tcp://"):
        open_executor(ClusterOptions(scheduler=address, workers=2), 1).__enter__()
    wrong.terminate()
    wrong.wait()

    with open_executor(ClusterOptions(scheduler=address, round_deadline_seconds=60.0), 1) as executor:
        client: Client = executor._client  # type: ignore[attr-defined]
        late = {
            "dkgp 0.0.1": start_process(*worker, log=tmp_path / "older.log", environment=older),
            "no dkgp": start_process(*worker, log=tmp_path / "without.log", environment=without),
        }
        until = time.monotonic() + 120.0
        while any(process.poll() is None for process in late.values()):
            assert time.monotonic() < until, "a worker of another version stayed"
            assert executor.submit("t", squares, (), [[1], [2], [3], [4]]).result() == [1, 4, 9, 16]
            time.sleep(0.1)  # the workers' start needs the processor too
        assert all(process.returncode != 0 for process in late.values())
        for version, log in zip(late, ("older.log", "without.log"), strict=True):
            said = (tmp_path / log).read_text()
            assert f"this worker has {version} and the run's coordinator has dkgp {dkgp.__version__}" in said
        assert len(client.nthreads()) == 1
        start_process(*worker)
        client.wait_for_workers(2, timeout=240)
        assert executor.submit("t", squares, (), [[1], [2], [3], [4]]).result() == [1, 4, 9, 16]
    # The job is over: the cluster is anybody's again.
    log = tmp_path / "after.log"
    start_process(*worker, log=log, environment=older)
    until = time.monotonic() + 60.0
    while "Registered to" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


@pytest.mark.slow
def test_another_numpy_is_warned_of(start_process: StartProcess, tmp_path: Path) -> None:
    address = start_scheduler(start_process, tmp_path)
    metadata = tmp_path / "shim" / "numpy-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.0\n")
    environment = {"PYTHONPATH": str(tmp_path / "shim")}
    start_process("dask", "worker", address, "--no-dashboard", "--no-nanny", environment=environment)
    listener = Listener()
    with open_executor(ClusterOptions(scheduler=address), 1, listener) as executor:
        assert executor.submit("t", squares, (), [[2]]).result() == [4]
    (warning,) = listener.warnings
    assert "numpy" in warning
    assert "1.0 (tcp://" in warning
