"""A job's process: how it ends, what it recovers, its full disk, and the secrets that it keeps to itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.commands.recipe import RECIPES
from dkgp.commands.reporting.jobs import job_tables
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import CheckpointStore, dataset_from_arrays, open_classifier, open_dataset, open_model
from dkgp.data.stores.models.regression import open_sparse_model
from dkgp.errors import ClusterError, InterruptedRunError, StorageError
from dkgp.service.queue.events import EventWriter
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import JobRecord
from dkgp.service.running import runner
from dkgp.service.running.processes import last_lines, send_signal, write_process_file
from dkgp.service.running.recovery import Traces, going_on
from dkgp.service.specification import job_from_options, run_job
from tests.cli.runs import bits
from tests.fit.tables import write_messy
from tests.full_disk import full_for
from tests.service.problem import Problem, claim


def attempt(queue: JobQueue, job_id: str) -> JobRecord:
    """Claim the job and run it as its process would, in this one."""
    claimed = claim(queue)
    assert claimed.id == job_id
    under_way = queue.ledger.attempt(job_id, claimed.attempt)
    events = EventWriter(queue.folder_of(job_id) / "events.jsonl")
    outcome = runner._outcome(queue, job_id, claimed.attempt, under_way.generation, events)
    assert runner._record(queue, job_id, claimed.attempt, under_way.generation, outcome)
    return queue.get(job_id)


def lost(queue: JobQueue, job_id: str) -> None:
    """Claim the job, note what lies at its outputs as its process would, and die when the work was done."""
    claimed = claim(queue)
    job: Any = job_from_options(claimed.command, claimed.options)
    generation = queue.ledger.running()[0].generation
    folder = queue.folder_of(job_id)
    under_way = going_on(job, Traces(folder, job, generation), SilentReporter())
    assert not isinstance(under_way, dict)
    run_job(job if claimed.attempt == 1 else under_way, SilentReporter())
    assert queue.ledger.died(job_id, claimed.attempt, "killed") == "queued"


def labelled(problem: Problem, folder: Path) -> str:
    """The problem's inputs, labelled by the signs of its targets."""
    dataset = open_dataset(problem.dataset)
    codes = (dataset.all_targets()[:, 0] > 0).astype(float)
    dataset_from_arrays(folder / "labelled.zarr", dataset.raw_inputs(0, 400), codes, classes=("high", "low"))
    return str(folder / "labelled.zarr")


FIXED_SIZE = {"settings": {"pool": 30, "folds": 3}}
SGGP = {"settings": {"method": "sggp", "basis_size": 20}}
# A job, its options beside its data and output, and the state in which it ends. Three are another's way to a record.
DONE = {
    "train": ("train", {"solver": {"block_size": 50}}, "done"),
    "sparse": ("sparse", SGGP, "done"),
    "neighbours": ("sparse", {"settings": {"method": "vif", "basis_size": 20, "neighbours": 20}}, "done"),
    "sparse, short": ("sparse", {**SGGP, "gap": 1e-9}, "not_converged"),
    "fixed-size": ("classify", {"method": "fixed-size", **FIXED_SIZE}, "done"),
    "exact": ("classify", {"method": "exact", "settings": {"isotropic": True}}, "done"),
    "logistic": ("classify", {"method": "logistic", "settings": {"isotropic": True}, "tolerance": 0.01}, "done"),
    "gp": ("classify", {"method": "gp", "settings": {"isotropic": True}, "basis_size": 20}, "done"),
    "tune": ("tune", {"subset": 60}, "done"),
    "tune, neighbours": ("tune", {"objective": "vif", "basis_size": 10}, "done"),
    "predict": ("predict", {}, "done"),
}
AGAIN = ("neighbours", "exact", "tune, neighbours")


@pytest.fixture(scope="module")
def model(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of the problem."""
    out = tmp_path_factory.mktemp("model") / "model.zarr"
    run_job(job_from_options("train", problem.training(out)), SilentReporter())
    return str(out)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in AGAIN else name for name in DONE]
)
def test_a_job_that_was_done_when_its_process_died_is_recorded_and_not_done_again(
    queue: JobQueue, problem: Problem, model: str, tmp_path: Path, name: str
) -> None:
    command, options, state = DONE[name]
    out = tmp_path / "out"
    places = {"dataset": labelled(problem, tmp_path) if command == "classify" else problem.dataset, "out": str(out)}
    places |= {"hyper": problem.hyper} if command in ("train", "sparse") else {}
    places |= {"model": model} if command == "predict" else {}
    job, _ = queue.submit(command, {**places, **options})
    lost(queue, job.id)
    written = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    record = attempt(queue, job.id)
    assert (record.state, record.attempt, record.error) == (state, 2, None)
    assert {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))} == written
    assert record.document["command"] == command
    if command == "train":
        assert record.document["iterations"] == open_model(out).summary["iterations"]
        assert record.document["certificate"] == open_model(out).certificate
        assert not Path(f"{out}.checkpoint").exists()
    if command == "sparse":
        assert record.document["certificate"] == open_sparse_model(str(out)).certificate
    if command == "classify":
        assert record.document["classes"] == ["high", "low"]
        assert record.document["certificate"] == open_classifier(str(out)).certificate


def test_a_job_of_an_earlier_version_begins_anew_where_its_products_are_gone(
    queue: JobQueue, problem: Problem, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job, _ = queue.submit("train", {**problem.training(out), "tree_error": 1e-6})
    claimed = claim(queue)
    Traces(queue.folder_of(job.id), job_from_options("train", claimed.options), queue.ledger.running()[0].generation)
    CheckpointStore(f"{out}.checkpoint").save(1, {"alpha": np.zeros((400, 1))}, {"identity": {"tree_error": 1e-6}})
    assert queue.ledger.died(job.id, claimed.attempt, "killed") == "queued"
    record = attempt(queue, job.id)
    assert (record.state, record.error) == ("done", None)
    assert record.document["product_error"] == 1e-6
    assert not record.document["resumed"]
    assert not Path(f"{out}.checkpoint").exists()


@pytest.fixture
def fit_options(tmp_path: Path) -> dict[str, Any]:
    """A fit of a table whose columns are words and dates too."""
    table = write_messy(tmp_path / "cars.csv", 60)
    ingestion = {"sources": [str(table)], "targets": ["price"], "table": {"drop": ["kind"]}}
    return {"ingestion": ingestion, "out": str(tmp_path / "fit"), "kernel": "rbf"}


def test_a_fit_runs_and_one_that_was_done_is_not_done_again(
    queue: JobQueue, fit_options: dict[str, Any], tmp_path: Path
) -> None:
    job, _ = queue.submit("fit", fit_options)
    lost(queue, job.id)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "fit").rglob("*")}
    record = attempt(queue, job.id)
    assert (record.state, record.attempt, record.error) == ("done", 2, None)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "fit").rglob("*")} == written
    assert record.document["evaluation"]["rmse_raw"] > 0.0
    assert (tmp_path / "fit" / "report.html").exists()
    # Another one does not write over it.
    second, _ = queue.submit("fit", fit_options)
    refused = attempt(queue, second.id)
    assert refused.state == "failed"
    assert "already exists" in refused.error["message"]


@pytest.mark.long
def test_a_fit_is_written_over_if_that_is_asked_for(queue: JobQueue, fit_options: dict[str, Any]) -> None:
    for options in (fit_options, {**fit_options, "overwrite": True}):
        job, _ = queue.submit("fit", options)
        assert attempt(queue, job.id).state == "done"


def test_a_fit_that_was_killed_goes_on_with_the_step_that_it_was_in(
    queue: JobQueue, fit_options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = queue.submit("fit", fit_options)

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dkgp.commands.predict.run.PredictRun", killed)
        with pytest.raises(InterruptedRunError, match="keeps step ingest.* step train"):
            lost(queue, job.id)
    running = queue.ledger.running()[0]
    assert queue.ledger.died(job.id, running.attempt, "killed") == "queued"
    trained = (tmp_path / "fit" / "model.zarr" / "zarr.json").stat().st_mtime_ns
    record = attempt(queue, job.id)
    assert (record.state, record.error) == ("done", None)
    assert (tmp_path / "fit" / "model.zarr" / "zarr.json").stat().st_mtime_ns == trained


def test_an_evaluation_is_cheap_enough_to_be_done_twice(
    queue: JobQueue, problem: Problem, model: str, tmp_path: Path
) -> None:
    prediction, plot = tmp_path / "prediction.zarr", tmp_path / "fit.png"
    options = {"model": model, "dataset": problem.dataset, "out": str(prediction)}
    run_job(job_from_options("predict", options), SilentReporter())
    job, _ = queue.submit("evaluate", {"prediction": str(prediction), "dataset": problem.dataset, "plot": str(plot)})
    lost(queue, job.id)
    written = plot.stat().st_mtime_ns
    assert attempt(queue, job.id).state == "done"
    assert plot.stat().st_mtime_ns > written


def test_a_training_to_be_resumed_that_another_job_has_finished_is_done(
    queue: JobQueue, problem: Problem, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    run_job(job_from_options("train", problem.training(out)), SilentReporter())
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    first, _ = queue.submit("train", problem.training(out, resume=True))
    record = attempt(queue, first.id)
    assert (record.state, record.exit_code, record.error) == ("done", 0, None)
    assert record.document["iterations"] == open_model(out).summary["iterations"]
    second, _ = queue.submit("train", {**problem.training(out, resume=True), "solver": {"seed": 1}})
    record = attempt(queue, second.id)
    assert (record.state, record.exit_code) == ("failed", 3)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == written


def test_a_training_that_stopped_short_is_recorded_and_can_be_resumed(
    queue: JobQueue, problem: Problem, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    solver = {"block_size": 50, "tolerance": 1e-12, "max_passes": 2}
    job, _ = queue.submit("train", {**problem.training(out), "solver": solver})
    lost(queue, job.id)
    record = attempt(queue, job.id)
    assert (record.state, record.exit_code) == ("not_converged", 4)
    assert record.document["checkpoint"] == f"{out}.checkpoint"
    queue.resume(job.id)
    again = attempt(queue, job.id)
    assert (again.state, again.attempt) == ("not_converged", 3)
    assert again.document["resumed"] is True


def test_what_was_there_before_the_job_is_never_taken_for_its_own(
    queue: JobQueue, problem: Problem, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    run_job(job_from_options("train", problem.training(out)), SilentReporter())
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    job, _ = queue.submit("train", problem.training(out))
    # The first attempt dies when it has only looked.
    claimed = claim(queue)
    Traces(queue.folder_of(job.id), job_from_options("train", claimed.options), 0)
    queue.ledger.died(job.id, 1, "killed")
    record = attempt(queue, job.id)
    assert record.state == "failed"
    assert record.error["type"] == "OutputExistsError"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


STORED = [
    ("train", "alpha"),
    ("sparse", "prototypes"),
    ("sparse", "normal"),
    ("classify", "intercept"),
    ("classify", "ones"),
    ("classify", "curvature"),
    ("classify", "posterior_lower"),
]


@pytest.mark.parametrize(("command", "array"), STORED)
def test_what_a_death_left_of_a_store_is_cleared_away_but_nothing_else(
    queue: JobQueue, problem: Problem, tmp_path: Path, command: str, array: str
) -> None:
    out, job_folder = tmp_path / "model.zarr", tmp_path / "job"
    job_folder.mkdir()
    job: Any = job_from_options(command, {"dataset": problem.dataset, "hyper": problem.hyper, "out": str(out)})
    Traces(job_folder, job, 0)
    (out / array).mkdir(parents=True)
    (out / array / "zarr.json").write_text("{}")
    going_on(job, Traces(job_folder, job, 0), SilentReporter())
    assert not out.exists()
    (out / array).mkdir(parents=True)
    (out / "thesis.tex").write_text("x")
    going_on(job, Traces(job_folder, job, 0), SilentReporter())
    assert (out / "thesis.tex").exists()


def test_a_table_is_gone_on_with_from_the_predictions_beside_it(
    model: str, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, folder = tmp_path / "p.csv", tmp_path / "job"
    folder.mkdir()
    options = {"model": model, "dataset": problem.dataset, "out": str(out)}
    job: Any = job_from_options("predict", options)
    Traces(folder, job, 0)

    def dies(*_: object) -> None:
        raise ClusterError("died before the table was written")

    with monkeypatch.context() as patched:
        patched.setattr("dkgp.commands.predict.run.export", dies)
        with pytest.raises(ClusterError):
            run_job(job, SilentReporter())
    assert (tmp_path / "p.csv.partial.zarr").is_dir()
    under_way: Any = going_on(job, Traces(folder, job, 0), SilentReporter())
    assert under_way == replace(job, resume=True)
    document = run_job(under_way, SilentReporter())
    assert out.read_text().count("\n") == document["n_samples"] + 1
    assert not (tmp_path / "p.csv.partial.zarr").exists()
    # A process that dies before it records that it is done leaves a table that is the job's own.
    assert going_on(job, Traces(folder, job, 0), SilentReporter()) == replace(job, overwrite=True)


def test_side_files_of_somebody_else_stay(queue: JobQueue, problem: Problem, tmp_path: Path) -> None:
    plot, folder = tmp_path / "fit.png", tmp_path / "job"
    folder.mkdir()
    options = {"prediction": "/p.zarr", "dataset": problem.dataset, "plot": str(plot)}
    job: Any = job_from_options("evaluate", options)
    plot.write_text("before")
    Traces(folder, job, 0)
    assert going_on(job, Traces(folder, job, 0), SilentReporter()) == job
    plot.unlink()
    plot.write_text("the job's own")
    assert going_on(job, Traces(folder, job, 0), SilentReporter()) == replace(job, overwrite=True)


@pytest.mark.parametrize(
    ("error", "state", "exit_code", "kind"),
    [
        (ClusterError("lost"), "failed", 5, "ClusterError"),
        (MemoryError("too much"), "failed", 3, "MemoryError"),
        (ZeroDivisionError("a bug"), "failed", 1, "ZeroDivisionError"),
        (SystemExit(7), "failed", 1, "SystemExit"),
        (InterruptedRunError("saved", "/c"), "queued", None, None),
        (KeyboardInterrupt(), "queued", None, None),
    ],
)
def test_every_end_is_recorded(
    queue: JobQueue,
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    state: str,
    exit_code: int | None,
    kind: str | None,
) -> None:
    def end(job: object, reporter: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr("dkgp.service.specification.run_job", end)
    job, _ = queue.submit("evaluate", {"prediction": "/p.zarr", "dataset": problem.dataset})
    record = attempt(queue, job.id)
    assert (record.state, record.exit_code) == (state, exit_code)
    assert (record.error or {}).get("type") == kind


def test_a_signal_while_the_job_runs_interrupts_it_once(
    queue: JobQueue, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def end(job: object, reporter: object) -> dict[str, Any]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # what cleans up is left in peace
            seen.append("cleaned up")
        raise AssertionError("not interrupted")

    monkeypatch.setattr("dkgp.service.specification.run_job", end)
    job, _ = queue.submit("evaluate", {"prediction": "/p.zarr", "dataset": problem.dataset})
    assert attempt(queue, job.id).state == "queued"
    assert seen == ["cleaned up"]


def test_an_end_that_cannot_be_recorded_is_kept_for_the_next_attempt(
    queue: JobQueue, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def end(job: object, reporter: object) -> dict[str, Any]:
        runs.append("run")
        return {"command": "evaluate", "rmse": 0.5}

    def full(*arguments: Any, **more: Any) -> bool:
        raise StorageError("the disk is full")

    monkeypatch.setattr("dkgp.service.specification.run_job", end)
    monkeypatch.setattr("dkgp.service.running.runner.RECORD_ATTEMPTS", 1)
    monkeypatch.setattr("dkgp.service.running.runner.time.sleep", lambda seconds: None)
    job, _ = queue.submit("evaluate", {"prediction": "/p.zarr", "dataset": problem.dataset})
    claim(queue)
    events = EventWriter(queue.folder_of(job.id) / "events.jsonl")
    outcome = runner._outcome(queue, job.id, 1, 0, events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.ledger, "finish", full)
        assert not runner._record(queue, job.id, 1, 0, outcome)
    queue.ledger.died(job.id, 1, "exit code 1")
    record = attempt(queue, job.id)
    assert (record.state, record.document) == ("done", {"command": "evaluate", "rmse": 0.5})
    assert runs == ["run"]


def test_a_process_without_the_lock_or_of_another_attempt_leaves_the_job_alone(
    queue: JobQueue, problem: Problem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = queue.submit("tune", {"dataset": problem.dataset, "out": str(tmp_path / "hyper.json")})
    claim = queue.ledger.claim("service")
    assert runner.main([str(queue.folder), job.id, "1", "99"]) == runner.NOT_MINE
    claim.lock.release()
    assert runner.main([str(queue.folder), job.id, "2"]) == runner.NOT_MINE
    assert "does not run as attempt 2" in capsys.readouterr().err
    assert queue.get(job.id).state == "running"
    assert not (tmp_path / "hyper.json").exists()


def test_everything_printed_becomes_events_and_stays_within_bounds(tmp_path: Path) -> None:
    # In a process of its own: it sends its own standard streams elsewhere.
    script = (
        "import os, pathlib, subprocess, sys\n"
        "from dkgp.service.running import processes\n"
        "processes.LARGEST_LOG_BYTES, processes.MOST_LINES = 3000, 100\n"
        "lines = []\n"
        f"with processes.LogTail(pathlib.Path({str(tmp_path / 'log.txt')!r}), lines.append):\n"
        "    print('from python', file=sys.stderr, flush=True)\n"
        "    os.write(2, b'from C\\n')\n"
        "    subprocess.run([sys.executable, '-c', 'print(\"from a child\")'])\n"
        "    os.write(1, b'no end of line')\n"
        "    os.write(1, b', after all\\n' + b'many\\n' * 1000)\n"
        f"pathlib.Path({str(tmp_path / 'lines')!r}).write_text('\\n'.join(lines))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)
    lines = (tmp_path / "lines").read_text().splitlines()
    assert lines[:4] == ["from python", "from C", "from a child", "no end of line, after all"]
    assert len(lines) == 100
    assert "only in the job's log.txt" in lines[-1]
    assert (tmp_path / "log.txt").stat().st_size == 0
    assert (tmp_path / "log.old.txt").stat().st_size > 3000
    assert last_lines(tmp_path / "log.old.txt", 10) == "many\nmany"


def test_signals_reach_the_process_that_was_named_and_no_other(tmp_path: Path) -> None:
    write_process_file(tmp_path, attempt=2)
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        assert send_signal(tmp_path, 2, signal.SIGUSR2)
        assert not send_signal(tmp_path, 1, signal.SIGUSR2)
        content = json.loads((tmp_path / "process.json").read_text())
        # The same number, but of a process that began at another time.
        (tmp_path / "process.json").write_text(json.dumps({**content, "began": content["began"] - 100.0}))
        assert not send_signal(tmp_path, 2, signal.SIGUSR2)
        (tmp_path / "process.json").write_text(json.dumps({**content, "pid": 2**22 + 1}))
        assert not send_signal(tmp_path, 2, signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_secrets_of_the_cluster_are_not_in_events_or_errors(
    queue: JobQueue, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*arguments: Any) -> Any:
        raise ClusterError("no luck with hunter2-hunter2")

    monkeypatch.setattr(runner, "_work", work)
    monkeypatch.setattr(runner, "LogTail", Tail)
    job, _ = queue.submit("train", problem.training(tmp_path / "model.zarr"))
    claimed = claim(queue)
    cluster = {"kind": "gateway", "settings": {"password": "hunter2-hunter2"}}
    assert runner._run(queue.folder, job.id, claimed.attempt, [], cluster) == 0
    record = queue.get(job.id)
    assert record.error["message"] == "no luck with ***"
    assert "logging in with ***" in (queue.folder_of(job.id) / "events.jsonl").read_text()
    assert "hunter2" not in (queue.folder_of(job.id) / "events.jsonl").read_text()


class Tail:
    """Takes a line at once, where the real one would take this process's standard output away."""

    def __init__(self, path: Path, on_line: Any) -> None:
        self.on_line = on_line

    def __enter__(self) -> None:
        self.on_line("logging in with hunter2-hunter2")

    def __exit__(self, *error: object) -> None:
        pass


# The manifest and the plot are written by the same lines as on the command line.
@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    ["out/alpha/c/", *(pytest.param(part, marks=pytest.mark.slow) for part in ("out/dkgp-manifest.json", "run.png"))],
)
def test_a_job_whose_disk_is_full_at_its_end(queue: JobQueue, problem: Problem, tmp_path: Path, part: str) -> None:
    out, plot, whole = tmp_path / "out", tmp_path / "run.png", tmp_path / "whole"
    options: dict[str, Any] = problem.training(out, overwrite=True, plot=str(plot), checkpoint_seconds=0.0)
    run_job(job_from_options("train", problem.training(whole)), SilentReporter())
    run_job(job_from_options("train", {**options, "solver": {"block_size": 40}}), SilentReporter())
    earlier = bits(out)
    assert earlier != bits(whole)
    job, _ = queue.submit("train", options)
    with full_for(part) as met:
        failed = attempt(queue, job.id)
    assert met
    assert (failed.state, failed.exit_code) == ("failed", 3)
    assert failed.error["type"] == "StorageError"
    assert "the disk is full" in failed.error["message"]
    if part != "run.png":
        assert bits(out) == earlier
        assert CheckpointStore(f"{out}.checkpoint").load_latest() is not None
    queue.resume(job.id)
    done = attempt(queue, job.id)
    assert (done.state, done.error) == ("done", None)
    assert bits(out) == bits(whole)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[:1] == ".") == []


def test_a_job_whose_document_finds_no_room_is_done_all_the_same(
    queue: JobQueue, problem: Problem, tmp_path: Path
) -> None:
    job, _ = queue.submit("train", problem.training(tmp_path / "out"))
    with full_for("document.json") as met:
        done = attempt(queue, job.id)
    assert met
    assert (done.state, done.error) == ("done", None)
    assert done.document is not None


def test_kriging_runs_as_jobs_and_is_gone_on_with(queue: JobQueue, tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.random((2, 60)) * 100.0
    table = pd.DataFrame({"x": x, "y": y, "zinc": np.sin(x / 20.0) + np.cos(y / 30.0)})
    table.to_csv(tmp_path / "soil.csv", index=False)
    samples = {"source": str(tmp_path / "soil.csv"), "samples": {"target": "zinc"}}
    fitted, mapped = str(tmp_path / "f.zarr"), str(tmp_path / "map.zarr")
    variogram = {"range": 50.0, "psill": 1.0, "nugget": 0.01}
    for command, options in {
        "krige fit": {**samples, "out": fitted, "variogram": variogram},
        "krige grid": {"model": fitted, "out": mapped, "cells": {"shape": [4, 5]}},
    }.items():
        job, _ = queue.submit(command, options)
        lost(queue, job.id)
        record = attempt(queue, job.id)
        assert (record.state, record.attempt, record.error) == ("done", 2, None)
        assert record.document["command"] == command
        assert job_tables(record.to_json(), layout=RECIPES[command].layout)
    assert record.document["cells"] == 20
    # A second one does not write over it.
    refused = attempt(queue, queue.submit("krige grid", options)[0].id)
    assert "exists" in refused.error["message"]
