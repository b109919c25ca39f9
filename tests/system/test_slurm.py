"""dkgp on a real SLURM site of two nodes: as a batch job on one node and on both, and with workers that are jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import dkgp
from dkgp.commands.batch import batch_script, submit_batch_script
from dkgp.data import CheckpointStore
from dkgp.errors import UsageError
from tests.system.hosts import certificates
from tests.system.problem import COMMAND_SECONDS, DKGP, LONG, Problem, environment, rounds, wait_until
from tests.system.slurm_on_one_machine import SlurmSite, missing, slurm_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEPLOY = Path(dkgp.__file__).resolve().parents[1] / "deploy" / "slurm"
# The nodes are this machine, twice.
SMALL = {"cpus-per-task": "1", "mem": "1500M", "time": "10"}
WORKER_NAME = "dkgp-test-worker"
WORKERS = (
    "--cluster", "slurm", "--workers", "2", "--threads-per-worker", "1", "--worker-memory", "1500MiB",
    "--cluster-option", "walltime=00:10:00", "--cluster-option", f"job_name={WORKER_NAME}",
)  # fmt: skip
NOT_CONVERGED = "4:0"

Submit = Callable[..., str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    absent = missing()
    if absent is not None:
        pytest.skip(absent)
    with slurm_site(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def variables(site: SlurmSite) -> dict[str, str]:
    return environment(SLURM_CONF=site.environment["SLURM_CONF"])


@pytest.fixture
def submit(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submit:
    """Submits a command as dkgp does; returns the job's id."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def submit(command: list[str], resume: bool = False, **settings: str) -> str:
        chosen = {**SMALL, **{name.replace("_", "-"): value for name, value in settings.items()}}
        script = batch_script(["dkgp", *command], name="train", settings=chosen, resume=resume)
        return submit_batch_script(script, tmp_path)

    return submit


def output(folder: Path, job: str) -> str:
    path = folder / f"train-{job}.out"
    return path.read_text() if path.exists() else "(no output)"


# ------------------------------------------------------------------------------------------------------------ as a job


def test_a_job_on_one_node_gives_the_same_bits(
    site: SlurmSite, submit: Submit, problem: Problem, tmp_path: Path
) -> None:
    job = submit(problem.train(tmp_path / "model.zarr"))
    assert site.wait(job, ("COMPLETED", "FAILED")) == "COMPLETED", output(tmp_path, job)
    assert problem.is_reference(tmp_path / "model.zarr")
    assert "Dask cluster in this process, 1 threads" in output(tmp_path, job)


def test_a_job_on_two_nodes_gives_the_same_bits(
    site: SlurmSite, submit: Submit, problem: Problem, tmp_path: Path
) -> None:
    job = submit(problem.train(tmp_path / "model.zarr"), nodes="2", interface="lo")
    assert site.wait(job, ("COMPLETED", "FAILED")) == "COMPLETED", output(tmp_path, job)
    assert problem.is_reference(tmp_path / "model.zarr")
    said = output(tmp_path, job)
    assert "on a Dask cluster," in said
    assert "neither encrypted" not in said
    assert list(tmp_path.glob(".dkgp-*")) == []  # certificates and keys are gone


def test_a_warned_job_is_requeued_and_goes_on_to_the_same_bits(
    site: SlurmSite, submit: Submit, problem: Problem, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    job = submit(problem.train(tmp_path / "model.zarr", *LONG, "--log-json", log))
    wait_until(lambda: rounds(log) >= 30, lambda: output(tmp_path, job))
    site.run("scancel", "--batch", "--signal=USR1", job)  # as SLURM does ahead of the walltime
    assert site.wait(job, ("FAILED",)) == "FAILED"
    said = output(tmp_path, job)
    assert site.field(job, "ExitCode") == NOT_CONVERGED, said
    assert site.field(job, "Restarts") == "1"
    assert "requeueing to go on" in said
    assert "resuming after round" in said
    assert problem.is_reference(tmp_path / "model.zarr", *LONG)


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_preempted_job_saves_within_its_grace_time_and_goes_on_to_the_same_bits(
    nodes: str, site: SlurmSite, submit: Submit, problem: Problem, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    settings = {"nodes": nodes, "exclusive": ""}
    job = submit(problem.train(tmp_path / "model.zarr", *LONG, "--log-json", log), **settings)
    wait_until(lambda: rounds(log) >= 5, lambda: output(tmp_path, job))
    with paused(f"{tmp_path}/model.zarr") as process:  # it would be done before SLURM sends the warning
        urgent = site.run(
            *("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive"),
            *("--output=/dev/null", "--chdir=/", "--wrap=sleep 1"),
        ).strip()
        wait_until(process.is_asked_to_end, lambda: output(tmp_path, job))
    assert site.wait(urgent, ("COMPLETED",)) == "COMPLETED"
    assert site.wait(job, ("FAILED",)) == "FAILED"
    said = output(tmp_path, job)
    assert site.field(job, "ExitCode") == NOT_CONVERGED, said
    assert site.field(job, "Restarts") == "1"
    assert "saving a checkpoint" in said
    # On one node SLURM's signal reaches dkgp at the end of the grace time, and SLURM requeues the job itself.
    assert ("requeueing to go on" in said) == (nodes == "2")
    assert "resuming after round" in said
    assert problem.is_reference(tmp_path / "model.zarr", *LONG)


def test_a_job_out_of_time_is_warned_by_slurm_and_goes_on_to_the_same_bits(
    site: SlurmSite, submit: Submit, problem: Problem, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    command = problem.train(tmp_path / "model.zarr", *LONG, "--log-json", log)
    # SLURM looks twice a minute, and warns up to half a minute too early.
    job = submit(command, time="2", signal="B:USR1@80")
    wait_until(lambda: rounds(log) >= 5, lambda: output(tmp_path, job))
    with paused(f"{tmp_path}/model.zarr") as process:
        wait_until(process.is_asked_to_end, lambda: output(tmp_path, job))
    assert site.wait(job, ("FAILED",)) == "FAILED"
    said = output(tmp_path, job)
    assert site.field(job, "ExitCode") == NOT_CONVERGED, said
    assert site.field(job, "Restarts") != "0"
    assert "out of time; requeueing to go on" in said
    assert "resuming after round" in said
    assert problem.is_reference(tmp_path / "model.zarr", *LONG)


class Process:
    """A process by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def is_asked_to_end(self) -> bool:
        """True if SIGTERM waits for the stopped process."""
        status = Path(f"/proc/{self.number}/status").read_text()
        pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
        return bool(int(pending.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@contextmanager
def paused(argument: str) -> Iterator[Process]:
    """Stop the process of dkgp that has this argument, until the block ends."""
    numbers = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if argument in (line := process.info["cmdline"] or []) and "dkgp" in line
    ]
    assert len(numbers) == 1, numbers
    os.kill(numbers[0], signal.SIGSTOP)
    try:
        yield Process(numbers[0])
    finally:
        with suppress(ProcessLookupError):
            os.kill(numbers[0], signal.SIGCONT)


def test_a_cancelled_job_stays_cancelled_and_its_checkpoint_can_be_gone_on_from(
    site: SlurmSite, submit: Submit, problem: Problem, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    command = problem.train(tmp_path / "model.zarr", *LONG, "--log-json", log)
    job = submit(command)
    wait_until(lambda: rounds(log) >= 30, lambda: output(tmp_path, job))
    site.run("scancel", job)
    site.wait(job, ("CANCELLED",))
    wait_until(lambda: job not in site.run("squeue", "--noheader", "--format=%A").split(), site.logs)
    assert site.field(job, "Restarts") == "0"
    assert "state saved in" in output(tmp_path, job)  # SLURM's own signal has reached dkgp, once
    assert CheckpointStore(str(tmp_path / "model.zarr.checkpoint")).load_latest() is not None
    again = submit(command, resume=True)
    assert site.wait(again, ("FAILED",)) == "FAILED"
    assert site.field(again, "ExitCode") == NOT_CONVERGED, output(tmp_path, again)
    assert problem.is_reference(tmp_path / "model.zarr", *LONG)


def test_what_slurm_has_against_a_job_is_said(submit: Submit, problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid partition"):
        submit(problem.train(tmp_path / "model.zarr"), partition="nowhere")
    with pytest.raises(UsageError, match="sbatch says"):
        submit(problem.train(tmp_path / "model.zarr"), time="never")


def test_the_command_line_submits(site: SlurmSite, variables: dict[str, str], problem: Problem, tmp_path: Path) -> None:
    options = [part for key, value in SMALL.items() for part in ("--slurm-option", f"{key}={value}")]
    answer = subprocess.run(
        [*DKGP, "submit", "--slurm", "--name", "train", *options, *problem.train("model.zarr"), "--json"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert answer.returncode == 0, answer.stderr
    job = json.loads(answer.stdout)["slurm_job"]
    assert site.wait(job, ("COMPLETED", "FAILED")) == "COMPLETED", output(tmp_path, job)
    assert problem.is_reference(tmp_path / "model.zarr")


# ------------------------------------------------------------------------------------------- with workers that are jobs


def no_worker_is_left(site: SlurmSite) -> None:
    wait_until(lambda: not site.run("squeue", "--noheader", f"--name={WORKER_NAME}").strip(), site.logs)


def test_workers_of_slurm_give_the_same_bits(
    site: SlurmSite, variables: dict[str, str], problem: Problem, tmp_path: Path
) -> None:
    given = certificates(tmp_path, ["127.0.0.1"])
    logs = ("--cluster-option", f"log_directory={tmp_path}")
    command = problem.train(tmp_path / "model.zarr", *WORKERS, *logs, *given.dkgp, "--json")
    answer = subprocess.run(
        [*DKGP, *command], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=COMMAND_SECONDS
    )
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}\n{worker_logs(tmp_path)}"
    assert problem.is_reference(tmp_path / "model.zarr")
    assert "on a Dask cluster, " in answer.stderr
    assert "neither encrypted" not in answer.stderr
    assert "tls://" in worker_logs(tmp_path)
    assert "tcp://" not in worker_logs(tmp_path)
    no_worker_is_left(site)


def test_the_configuration_files_of_deploy_are_all_that_it_takes(
    site: SlurmSite, variables: dict[str, str], problem: Problem, tmp_path: Path
) -> None:
    small = {
        "DASK_CONFIG": str(DEPLOY),
        "DASK_JOBQUEUE__SLURM__NAME": WORKER_NAME,
        "DASK_JOBQUEUE__SLURM__CORES": "1",
        "DASK_JOBQUEUE__SLURM__MEMORY": "1500MB",
        "DASK_DKGP__CLUSTER__WORKERS": "1",
    }
    answer = subprocess.run(
        [*DKGP, *problem.train(tmp_path / "model.zarr")],
        env={**variables, **small},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}"
    assert problem.is_reference(tmp_path / "model.zarr")
    # Certificates of the run: nobody gave any.
    assert "tls://" in worker_logs(tmp_path / "dkgp-worker-logs")
    assert "tcp://" not in worker_logs(tmp_path / "dkgp-worker-logs")
    no_worker_is_left(site)


def test_a_workers_job_cancelled_on_the_way_does_no_harm(
    site: SlurmSite, variables: dict[str, str], problem: Problem, tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    logs = ("--cluster-option", f"log_directory={tmp_path}")
    command = problem.train(tmp_path / "model.zarr", *LONG, *WORKERS, *logs, "--log-json", log, "--json")
    running = subprocess.Popen(
        [*DKGP, *command], env=variables, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: rounds(log) >= 30 and len(site.jobs(WORKER_NAME)) == 2, lambda: worker_logs(tmp_path))
        lost = site.jobs(WORKER_NAME)[0]
        site.run("scancel", lost)
        stdout, stderr = running.communicate(timeout=COMMAND_SECONDS)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 4, f"{stdout}\n{stderr}\n{worker_logs(tmp_path)}"
    assert rounds(log) == json.loads(stdout)["iterations"]
    assert site.state(lost) == "CANCELLED"
    assert problem.is_reference(tmp_path / "model.zarr", *LONG)
    no_worker_is_left(site)


def worker_logs(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob(f"{WORKER_NAME}-*.err")))
