"""Runs that stop short, by limit, signal or kill: exit code, checkpoint, and the bit-same model after resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.data import CheckpointStore, open_model
from tests.cli.invoke import document_of, refused, run, run_json

# Some 100 rounds, too few for the tolerance.
LONG = ("--block-size", 12, "--max-passes", 2, "--json")


def arguments(pipeline: dict[str, Any], out: Path, *more: object) -> list[str]:
    given = ("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", out, *more)
    return [str(argument) for argument in given]


@pytest.fixture(scope="module")
def uninterrupted(pipeline: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("uninterrupted") / "model.zarr"
    return run_json(*arguments(pipeline, out, *LONG), exit_code=4)  # type: ignore[no-any-return]


def test_not_converged_is_exit_code_4_with_an_honest_record(uninterrupted: dict[str, Any]) -> None:
    assert uninterrupted["converged"] is False
    assert uninterrupted["gradient_inf_norm"] > 1e-4
    assert uninterrupted["column_passes"] == pytest.approx(2.0, abs=0.02)
    assert "--max-passes" in uninterrupted["advice"]
    model = open_model(uninterrupted["out"])
    assert model.summary["converged"] is False
    assert CheckpointStore(uninterrupted["checkpoint"]).load_latest() is not None


@pytest.mark.long
def test_resuming_after_a_limit_goes_on_to_convergence(
    pipeline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, log = tmp_path / "model.zarr", tmp_path / "run.jsonl"
    options = ("--block-size", 20, "--json", "--log-json", log)
    first = run_json(*arguments(pipeline, out, *options, "--max-passes", 1), exit_code=4)
    assert run(*arguments(pipeline, out, *options)).exit_code == 3  # a model is there
    reads, load = [], CheckpointStore.load_latest
    monkeypatch.setattr(CheckpointStore, "load_latest", lambda store: reads.append(store.url) or load(store))
    second = run_json(*arguments(pipeline, out, *options, "--resume"))
    assert len(reads) == 1
    assert second["converged"] is True
    assert second["iterations"] > first["iterations"]
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, second["iterations"] + 1))
    assert not (tmp_path / "model.zarr.checkpoint").exists()


@pytest.fixture(scope="module")
def stopped(pipeline: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run that stopped short, with its checkpoint beside it."""
    out = tmp_path_factory.mktemp("stopped") / "model.zarr"
    run_json(*arguments(pipeline, out, "--block-size", 50, "--max-passes", 1), exit_code=4)
    return out


@pytest.mark.long
@pytest.mark.parametrize("recorded", ["here", "elsewhere", "nothing"])
def test_resuming_where_the_arithmetic_is_another_says_what_holds(
    pipeline: dict[str, Any], stopped: Path, tmp_path: Path, recorded: str
) -> None:
    shutil.copytree(stopped.parent, tmp_path, dirs_exist_ok=True)
    store = CheckpointStore(str(tmp_path / f"{stopped.name}.checkpoint"))
    found = store.load_latest()
    assert found is not None
    metadata = dict(found.metadata)
    own = metadata.pop("arithmetic")
    assert own == process_arithmetic().to_json()
    assert {"processor", "blas", "vectors", "library"} <= set(own)
    if recorded != "nothing":  # as checkpoints were before this was recorded
        metadata["arithmetic"] = (
            own if recorded == "here" else {**own, "processor": "z80", "blas": ["openblas 0.1 Z80"]}
        )
    store.save(found.sequence_number + 1, dict(found.arrays), metadata)
    result = run(*arguments(pipeline, tmp_path / stopped.name, "--block-size", 50, "--json", "--resume"))
    resumed = document_of(result)
    assert resumed["converged"] is True
    told = [warning for warning in resumed["warnings"] if "last bits may differ" in warning]
    assert len(told) == (recorded == "elsewhere")
    for warning in told:
        assert "processor z80, here " in warning
        assert "BLAS openblas 0.1 Z80, here " in warning
        assert "will meet its tolerance and its certificate will hold" in warning
        assert "last bits may differ" in result.stderr


def test_resume_without_a_checkpoint_starts_from_the_beginning(pipeline: dict[str, Any], tmp_path: Path) -> None:
    trained = run_json(*arguments(pipeline, tmp_path / "m", "--block-size", 100, "--json", "--resume"))
    assert any("no checkpoint" in message for message in trained["warnings"])
    alpha = open_model(tmp_path / "m").alpha
    np.testing.assert_allclose(alpha, open_model(pipeline["train"]["out"]).alpha, atol=0.05)


def test_starting_afresh_replaces_a_checkpoint_with_a_warning(pipeline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "model.zarr"
    run_json(*arguments(pipeline, out, "--block-size", 20, "--max-passes", 1, "--json"), exit_code=4)
    trained = run_json(*arguments(pipeline, out, "--block-size", 50, "--overwrite", "--json"))
    assert any("will be replaced" in message for message in trained["warnings"])
    assert not (tmp_path / "model.zarr.checkpoint").exists()


def test_checkpoints_of_another_run_or_damaged_are_refused(
    pipeline: dict[str, Any], uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "model.zarr"
    other = tmp_path / "other.zarr"
    data = pipeline["folder"] / "data.csv"
    assert run("ingest", data, other, "--target", "price").exit_code == 0
    checkpoint = ("--checkpoint", uninterrupted["checkpoint"], "--resume", "--out", out)
    hyper = ("--hyper", pipeline["tune"]["out"])
    result = run("train", other, *hyper, *checkpoint, *LONG)
    assert document_of(result, 3)["error"]["type"] == "CheckpointError"
    assert "another data set" in result.stderr
    refused(run("train", pipeline["ingest"]["train"], *hyper, *checkpoint, "--block-size", 5), "block size")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in Path(uninterrupted["checkpoint"]).iterdir():
        (damaged / path.name).write_bytes(path.read_bytes()[:1000])
    result = run("train", pipeline["ingest"]["train"], *hyper, "--out", out, "--checkpoint", damaged, "--resume", *LONG)
    assert document_of(result, 3)["error"]["type"] == "CheckpointError"
    assert "truncated" in result.stderr
    assert not out.exists()
