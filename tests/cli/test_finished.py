"""A run that was killed once its output was complete, or while it was being written: `--resume` says done, exit 0."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import open_model
from dkgp.models.variance.whole_matrix import kept_tiles
from tests.cli.invoke import document_of, refused, run, run_json
from tests.cli.processes import ENVIRONMENT, PROGRAM, killed


def train(pipeline: dict[str, Any], out: Path, *more: object) -> list[object]:
    given = ["train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", out]
    return [*given, "--block-size", 50, "--json", *more]


@pytest.fixture
def model(pipeline: dict[str, Any], tmp_path: Path) -> Path:
    """The pipeline's model, where a test may do with it what it likes."""
    return Path(shutil.copytree(pipeline["train"]["out"], tmp_path / "model.zarr"))


@pytest.mark.faults
def test_train_killed_after_its_model_was_saved_is_done(pipeline: dict[str, Any], tmp_path: Path) -> None:
    out, plot, log = tmp_path / "model.zarr", tmp_path / "run.png", tmp_path / "run.jsonl"
    command = train(pipeline, out, "--plot", plot, "--log-json", log, "--checkpoint-every", 0)
    killed("dkgp.commands.training:TrainingRun.report", command)
    assert (tmp_path / "model.zarr.checkpoint").exists()
    assert not plot.exists()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for _ in range(2):
        result = run(*command, "--resume")
        done = document_of(result)
        assert "was complete when an earlier run ended" in result.stderr
        for name in ("converged", "iterations", "column_passes", "objective", "gradient_inf_norm", "certificate"):
            assert done[name] == pipeline["train"][name]
    # What was left to do is done, and the model is untouched.
    assert plot.exists()
    assert not (tmp_path / "model.zarr.checkpoint").exists()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert open_model(out).alpha.tobytes() == open_model(pipeline["train"]["out"]).alpha.tobytes()
    assert run(*command).exit_code == 3  # without --resume it is an output that exists


TILE = "dkgp.data.stores.tile_store:TileStore.write"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("dkgp.models.variance.whole_matrix:TileFactor", 1),
        ("dkgp.data.stores.tile_store:TileStore.create", 1),
        (TILE, 1),
        (TILE, 2),
    ],
)
def test_train_killed_before_its_factor_was_whole_builds_it_when_resumed(
    pipeline: dict[str, Any], tmp_path: Path, place: str, call: int
) -> None:
    out = tmp_path / "model.zarr"
    command = train(pipeline, out, "--with-variances")
    killed(place, command, call=call)
    assert kept_tiles(open_model(out)) is None
    alpha = open_model(out).alpha.tobytes()
    for kept in ("Cholesky factor of all", ""):
        result = run(*command, "--resume")
        document_of(result)
        assert "was complete when an earlier run ended" in result.stderr
        assert ("Cholesky factor of all" in result.stderr) == bool(kept)
        assert kept_tiles(open_model(out)) is not None
    assert open_model(out).alpha.tobytes() == alpha
    whole = tmp_path / "whole.zarr"
    run_json(*train(pipeline, whole, "--with-variances"))
    for tile in sorted((whole / "variance_tiles").iterdir()):
        if tile.suffix != ".json":
            assert tile.read_bytes() == (out / "variance_tiles" / tile.name).read_bytes()


def test_train_resumed_when_done_writes_what_is_asked_for_beside_the_model(
    pipeline: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    plot, log = tmp_path / "run.png", tmp_path / "run.jsonl"
    assert kept_tiles(open_model(model)) is None
    done = run_json(*train(pipeline, model, "--resume", "--with-variances", "--plot", plot, "--log-json", log))
    assert done["warnings"] == []
    assert kept_tiles(open_model(model)) is not None
    assert plot.read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == [entry["iteration"] for entry in open_model(model).history]
    log.write_text("")
    run_json(*train(pipeline, model, "--resume", "--log-json", log))
    assert log.read_text() == ""  # an earlier run's log stays


def test_train_resumed_when_done_changes_nothing(pipeline: dict[str, Any], model: Path) -> None:
    alpha = open_model(model).alpha.tobytes()
    for more in ((), ("--overwrite",), ("--tol", 1e-3), ("--cluster", "local"), ("--max-passes", 0.5)):
        done = run_json(*train(pipeline, model, "--resume", *more))
        assert done["converged"]
        assert done["resumed"]
        assert done["kernel_evaluations"] == pipeline["train"]["kernel_evaluations"]
    assert open_model(model).alpha.tobytes() == alpha


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--block-size", 40), "another block size (its block size: 50; this run's: 40)"),
        (("--seed", 1), "another seed (its seed: 0; this run's: 1)"),
        (("--solver", "cg"), "another solver"),
        (("--tol", 1e-12), "another tolerance (it stopped at max|g| = "),
        (("--by-reference",), "another by reference"),
    ],
)
def test_train_leaves_a_model_of_another_run_alone(
    pipeline: dict[str, Any], model: Path, more: tuple[object, ...], said: str
) -> None:
    alpha = open_model(model).alpha.tobytes()
    command = train(pipeline, model, "--resume", *more)
    if "cg" in more:
        command = [part for part in command if part not in ("--block-size", 50)]
    refused(run(*command), said, "exists already")
    assert open_model(model).alpha.tobytes() == alpha


def test_train_leaves_models_of_other_data_and_hyperparameters_alone(
    pipeline: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    other, hyper = tmp_path / "other.zarr", tmp_path / "hyper.json"
    assert run("ingest", pipeline["folder"] / "data.csv", other, "--target", "price").exit_code == 0
    found = json.loads(Path(pipeline["tune"]["out"]).read_text())
    hyper.write_text(json.dumps(found | {"noise_variance": 2.0 * found["noise_variance"]}))
    for dataset, chosen, said in (
        (other, pipeline["tune"]["out"], "another data set"),
        (pipeline["ingest"]["train"], hyper, "another noise variance"),
    ):
        refused(run("train", dataset, "--hyper", chosen, "--out", model, "--block-size", 50, "--resume"), said)


@pytest.mark.faults
def test_tune_killed_after_its_file_was_written_is_done(pipeline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "hyper.json"
    command = ["tune", pipeline["ingest"]["train"], "--out", out, "--subset", 150, "--json"]
    killed("dkgp.commands.tune:TuneRun.report", command)
    written = out.read_bytes()
    result = run(*command, "--resume")
    assert "were complete when an earlier run ended" in result.stderr
    done = document_of(result)
    assert {name: done[name] for name in json.loads(written) if name != "warnings"} == {
        name: value for name, value in json.loads(written).items() if name != "warnings"
    }
    assert out.read_bytes() == written
    assert run(*command).exit_code == 3
    for more, said in (
        (("--seed", 1), "another seed (its seed: None; this run's: 1)"),
        (("--start", pipeline["tune"]["out"]), "another start"),
    ):
        refused(run(*command, "--resume", *more), said, "exists already")
    assert out.read_bytes() == written


def test_tune_resumed_begins_again_where_a_refinement_was_interrupted(pipeline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "hyper.json"
    command = ["tune", pipeline["ingest"]["train"], "--out", out, "--subset", 100, "--json", "--resume"]
    first = run_json(*command)
    found = json.loads(out.read_text())
    out.write_text(json.dumps(found | {"refinement": {"interrupted": True}, "noise_variance": 0.5}))
    assert run_json(*command)["noise_variance"] == first["noise_variance"]
    assert json.loads(out.read_text())["noise_variance"] == first["noise_variance"]


def moments(count: int, seconds: float) -> Iterator[float]:
    drawn = random.Random(6)
    return (drawn.uniform(0.0, seconds) for _ in range(count))


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_train_on_worker_processes_killed_at_ten_random_moments(pipeline: dict[str, Any], tmp_path: Path) -> None:
    """Whenever it dies, `--resume` comes to the same bits with exit code 0, and so it does when there is nothing left.

    The moments lie between the start of the process and its end, the cluster's start and the model's writing included.
    """

    def command(out: Path) -> list[str]:
        cluster = ("--cluster", "processes", "--workers", 2, "--checkpoint-every", 0.05)
        given = train(pipeline, out, "--log-json", f"{out}.jsonl", *cluster)
        return [*PROGRAM, *map(str, given)]

    def finished(out: Path, *more: str) -> dict[str, Any]:
        ended = subprocess.run([*command(out), *more], env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, f"{out.name} {more}: exit code {ended.returncode}\n{ended.stderr}"
        return json.loads(ended.stdout)  # type: ignore[no-any-return]

    whole = tmp_path / "whole.zarr"
    began = time.monotonic()
    expected = finished(whole)
    took = time.monotonic() - began
    rounds = []
    for number, moment in enumerate(moments(10, took)):
        out = tmp_path / f"{number}.zarr"
        with open(tmp_path / "err", "w") as stderr:
            running = subprocess.Popen(command(out), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                running.wait(moment)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
        log = Path(f"{out}.jsonl")
        rounds.append(log.read_bytes().count(b"\n") if log.exists() else 0)
        for _ in range(2):
            resumed = finished(out, "--resume")
            assert resumed["iterations"] == expected["iterations"]
            assert open_model(out).alpha.tobytes() == open_model(whole).alpha.tobytes()
            assert not Path(f"{out}.checkpoint").exists()
    print(f"killed after rounds {rounds} of {expected['iterations']}")
    assert any(0 < count < expected["iterations"] for count in rounds)
