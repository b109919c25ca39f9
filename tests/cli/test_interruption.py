"""Runs that stop short, by limit, signal or kill: exit code, checkpoint, and the bit-same model after resuming."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.data import CheckpointStore, open_model

Command = Callable[..., Any]
Process = tuple[list[str], dict[str, str]]

# Some 600 rounds: long enough for a signal to come in between.
LONG = ("--block-size", 4, "--max-passes", 4, "--json")


def arguments(pipeline: dict[str, Any], out: Path, *more: object) -> list[str]:
    given = ("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", out, *more)
    return [str(argument) for argument in given]


@pytest.fixture(scope="module")
def uninterrupted(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("uninterrupted") / "model.zarr"
    return document(run(*arguments(pipeline, out, *LONG)), 4)  # type: ignore[no-any-return]


def started(process: Process, command: list[str], log: Path, rounds: int) -> subprocess.Popen[str]:
    """Start a command and return once its log tells of so many rounds."""
    program, environment = process
    running = subprocess.Popen(
        [*program, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60.0
    while time.monotonic() < until and running.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= rounds:
            return running
        time.sleep(0.01)
    running.kill()
    raise AssertionError(f"the run did not get to round {rounds}: {running.communicate()}")


def test_not_converged_is_exit_code_4_with_an_honest_record(uninterrupted: dict[str, Any]) -> None:
    assert uninterrupted["converged"] is False
    assert uninterrupted["gradient_inf_norm"] > 1e-4
    assert uninterrupted["column_passes"] == pytest.approx(4.0, abs=0.01)
    assert "--max-passes" in uninterrupted["advice"]
    model = open_model(uninterrupted["out"])
    assert model.summary["converged"] is False
    assert CheckpointStore(uninterrupted["checkpoint"]).load_latest() is not None


def test_resuming_after_a_limit_goes_on_to_convergence(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, log = tmp_path / "model.zarr", tmp_path / "run.jsonl"
    options = ("--block-size", 20, "--json", "--log-json", log)
    first = document(run(*arguments(pipeline, out, *options, "--max-passes", 1)), 4)
    assert run(*arguments(pipeline, out, *options)).exit_code == 3  # a model is there
    reads, load = [], CheckpointStore.load_latest
    monkeypatch.setattr(CheckpointStore, "load_latest", lambda store: reads.append(store.url) or load(store))
    second = document(run(*arguments(pipeline, out, *options, "--resume")))
    assert len(reads) == 1
    assert second["converged"] is True
    assert second["iterations"] > first["iterations"]
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, second["iterations"] + 1))
    assert not (tmp_path / "model.zarr.checkpoint").exists()


@pytest.mark.parametrize("recorded", ["here", "elsewhere", "nothing"])
def test_resuming_where_the_arithmetic_is_another_says_what_holds(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path, recorded: str
) -> None:
    out = tmp_path / "model.zarr"
    options = ("--block-size", 20, "--json")
    stopped = document(run(*arguments(pipeline, out, *options, "--max-passes", 1)), 4)
    store = CheckpointStore(stopped["checkpoint"])
    found = store.load_latest()
    assert found is not None
    metadata = dict(found.metadata)
    own = metadata.pop("arithmetic")
    assert own == own_arithmetic().to_json()
    assert {"processor", "blas", "vectors", "library"} <= set(own)
    if recorded != "nothing":  # as checkpoints were before this was recorded
        metadata["arithmetic"] = (
            own if recorded == "here" else {**own, "processor": "z80", "blas": ["openblas 0.1 Z80"]}
        )
    store.save(found.sequence_number + 1, dict(found.arrays), metadata)
    result = run(*arguments(pipeline, out, *options, "--resume"))
    resumed = document(result)
    assert resumed["converged"] is True
    told = [warning for warning in resumed["warnings"] if "last bits may differ" in warning]
    assert len(told) == (recorded == "elsewhere")
    for warning in told:
        assert "processor z80, here " in warning
        assert "BLAS openblas 0.1 Z80, here " in warning
        assert "will meet its tolerance and its certificate will hold" in warning
        assert "last bits may differ" in result.stderr


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_saves_a_checkpoint_that_resumes_to_the_same_bits(
    pipeline: dict[str, Any],
    process: Process,
    run: Command,
    document: Command,
    uninterrupted: dict[str, Any],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    out, log = tmp_path / "model.zarr", tmp_path / "run.jsonl"
    command = arguments(pipeline, out, *LONG, "--log-json", log)
    running = started(process, command, log, rounds=20)
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    error = json.loads(stdout)["error"]
    assert error["type"] == "InterruptedRunError"
    assert "--resume" in error["message"]
    assert not out.exists()
    stopped_at = CheckpointStore(error["checkpoint"]).load_latest().sequence_number  # type: ignore[union-attr]
    assert 20 <= stopped_at < uninterrupted["iterations"]
    resumed = document(run(*command, "--resume"), 4)
    assert resumed["iterations"] == uninterrupted["iterations"]
    assert open_model(out).alpha.tobytes() == open_model(uninterrupted["out"]).alpha.tobytes()


@pytest.mark.faults
def test_kill_9_resumes_to_the_same_bits(
    pipeline: dict[str, Any],
    process: Process,
    run: Command,
    document: Command,
    uninterrupted: dict[str, Any],
    tmp_path: Path,
) -> None:
    out, log = tmp_path / "model.zarr", tmp_path / "run.jsonl"
    command = arguments(pipeline, out, *LONG, "--log-json", log, "--checkpoint-every", 0.05)
    running = started(process, command, log, rounds=100)
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    resumed = document(run(*command, "--resume"), 4)
    assert open_model(out).alpha.tobytes() == open_model(uninterrupted["out"]).alpha.tobytes()
    # Rounds that were done twice are logged once.
    records = [json.loads(line)["iteration"] for line in log.read_text().splitlines()]
    assert records == list(range(1, resumed["iterations"] + 1))


def test_resume_without_a_checkpoint_starts_from_the_beginning(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    trained = document(run(*arguments(pipeline, tmp_path / "m", "--block-size", 100, "--json", "--resume")))
    assert any("no checkpoint" in message for message in trained["warnings"])
    alpha = open_model(tmp_path / "m").alpha
    np.testing.assert_allclose(alpha, open_model(pipeline["train"]["out"]).alpha, atol=0.05)


def test_starting_afresh_replaces_a_checkpoint_with_a_warning(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    document(run(*arguments(pipeline, out, "--block-size", 20, "--max-passes", 1, "--json")), 4)
    trained = document(run(*arguments(pipeline, out, "--block-size", 50, "--overwrite", "--json")))
    assert any("will be replaced" in message for message in trained["warnings"])
    assert not (tmp_path / "model.zarr.checkpoint").exists()


def test_checkpoints_of_another_run_or_damaged_are_refused(
    pipeline: dict[str, Any], run: Command, document: Command, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    other = tmp_path / "other.zarr"
    data = pipeline["folder"] / "data.csv"
    assert run("ingest", data, other, "--target", "price").exit_code == 0
    checkpoint = ("--checkpoint", uninterrupted["checkpoint"], "--resume", "--out", out)
    hyper = ("--hyper", pipeline["tune"]["out"])
    result = run("train", other, *hyper, *checkpoint, *LONG)
    assert document(result, 3)["error"]["type"] == "CheckpointError"
    assert "another data set" in result.stderr
    result = run("train", pipeline["ingest"]["train"], *hyper, *checkpoint, "--block-size", 5)
    assert result.exit_code == 3
    assert "block size" in result.stderr
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in Path(uninterrupted["checkpoint"]).iterdir():
        (damaged / path.name).write_bytes(path.read_bytes()[:1000])
    result = run("train", pipeline["ingest"]["train"], *hyper, "--out", out, "--checkpoint", damaged, "--resume", *LONG)
    assert document(result, 3)["error"]["type"] == "CheckpointError"
    assert "truncated" in result.stderr
    assert not out.exists()


def test_predictions_resume(pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path) -> None:
    out = tmp_path / "prediction.zarr"
    given = (
        "predict",
        pipeline["train"]["out"],
        pipeline["ingest"]["test"],
        "--out",
        out,
        "--chunk-rows",
        64,
        "--json",
    )
    first = document(run(*given))
    again = document(run(*given, "--resume"))
    assert again["n_samples"] == first["n_samples"] == 200
    refused = run("predict", pipeline["train"]["out"], pipeline["ingest"]["train"], "--out", out, "--resume")
    assert refused.exit_code == 3
    assert "other data" in refused.stderr
