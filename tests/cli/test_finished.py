"""Runs that are done, whose output is that of another run, or that stopped short: what `--resume` makes of them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.data import CheckpointStore, open_model
from dkgp.errors import InterruptedRunError
from dkgp.models import read_hyperparameters
from dkgp.models.variance.whole_matrix import kept_tiles
from dkgp.service.specification import job_from_options, job_paths
from tests.cli.invoke import Places, Shell, document_of, refused
from tests.cli.processes import ENVIRONMENT, PROGRAM, killed
from tests.cli.runs import bits

# The run of the fixture `stores` that made `@model`, here with a copy of it.
TRAIN = "train @train --hyper @hyper --block-size 50 --out @m.zarr"
# Some 100 rounds, too few for the tolerance.
SHORT = "train @train --hyper @hyper --block-size 12 --max-passes 2 --out @short"
DONE = "already complete"


def copied(shell: Shell) -> bytes:
    """Copy the finished model to where a test may do with it what it likes; its alpha."""
    shutil.copytree(shell["model"], shell["m.zarr"])
    return alpha(shell["m.zarr"])


def alpha(model: Path) -> bytes:
    return open_model(model).alpha.tobytes()


# ----------------------------------------------------------------------------------------------------------------- done


@pytest.mark.faults
def test_train_killed_after_its_model_was_saved_is_done(shell: Shell, pipeline: dict[str, Any]) -> None:
    line = f"{TRAIN} --plot @run.png --log-json @run.jsonl --checkpoint-every 0"
    killed("dkgp.commands.training:TrainingRun.report", shell.typed(line))
    assert {"m.zarr", "m.zarr.checkpoint", "run.jsonl"} <= shell.names
    assert "run.png" not in shell.names
    before = {path: path.stat().st_mtime_ns for path in shell["m.zarr"].rglob("*")}
    for _ in range(2):
        result = shell.run(f"{line} --resume --json")
        done = document_of(result)
        assert DONE in result.stderr
        for name in ("converged", "iterations", "column_passes", "objective", "gradient_inf_norm", "certificate"):
            assert done[name] == pipeline["train"][name]
    # What was left to do is done, and the model is untouched.
    assert shell.names == {"m.zarr", "run.png", "run.jsonl"}
    assert {path: path.stat().st_mtime_ns for path in shell["m.zarr"].rglob("*")} == before
    assert alpha(shell["m.zarr"]) == alpha(shell["model"])
    assert shell.run(line).exit_code == 3  # without --resume it is an output that exists


TILE = "dkgp.data.stores.tile_store:TileStore"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("dkgp.models.variance.whole_matrix:TileFactor", 1),
        (f"{TILE}.create", 1),
        (f"{TILE}.write", 1),
        (f"{TILE}.write", 2),
    ],
)
def test_train_killed_before_its_factor_was_whole_builds_it_when_resumed(shell: Shell, place: str, call: int) -> None:
    line = f"{TRAIN} --with-variances"
    killed(place, shell.typed(line), call=call)
    assert kept_tiles(open_model(shell["m.zarr"])) is None
    before = alpha(shell["m.zarr"])
    for kept in (True, False):
        result = shell.run(f"{line} --resume")
        assert result.exit_code == 0
        assert DONE in result.stderr
        assert ("Cholesky factor of all" in result.stderr) == kept
        assert kept_tiles(open_model(shell["m.zarr"])) is not None
    assert alpha(shell["m.zarr"]) == before
    shell.json(line.replace("@m.zarr", "@whole.zarr"))
    for tile in sorted((shell["whole.zarr"] / "variance_tiles").iterdir()):
        if tile.suffix != ".json":
            assert tile.read_bytes() == (shell["m.zarr"] / "variance_tiles" / tile.name).read_bytes()


def test_train_resumed_when_done_writes_what_is_asked_for_beside_the_model(shell: Shell) -> None:
    copied(shell)
    assert kept_tiles(open_model(shell["m.zarr"])) is None
    line = f"{TRAIN} --resume --log-json @run.jsonl"
    assert shell.json(f"{line} --with-variances --plot @run.png")["warnings"] == []
    model = open_model(shell["m.zarr"])
    assert kept_tiles(model) is not None
    assert shell["run.png"].read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in shell["run.jsonl"].read_text().splitlines()]
    assert [record["iteration"] for record in records] == [entry["iteration"] for entry in model.history]
    shell["run.jsonl"].write_text("")
    shell.json(line)
    assert shell["run.jsonl"].read_text() == ""  # an earlier run's log stays


def test_train_resumed_when_done_changes_nothing(shell: Shell, pipeline: dict[str, Any]) -> None:
    before = copied(shell)
    for more in ("", "--overwrite", "--tol 1e-3", "--cluster local", "--max-passes 0.5"):
        done = shell.json(f"{TRAIN} --resume {more}")
        assert done["converged"]
        assert done["resumed"]
        assert done["kernel_evaluations"] == pipeline["train"]["kernel_evaluations"]
    assert alpha(shell["m.zarr"]) == before


@pytest.mark.faults
def test_tune_killed_after_its_file_was_written_is_done(shell: Shell) -> None:
    line = "tune @train --out @hyper.json --subset 150"
    killed("dkgp.commands.searches:TuneRun.report", shell.typed(line))
    written = shell["hyper.json"].read_bytes()
    result = shell.run(f"{line} --resume --json")
    assert DONE in result.stderr
    done, known = document_of(result), json.loads(written)
    assert {name: done[name] for name in known if name != "warnings"} == {
        name: value for name, value in known.items() if name != "warnings"
    }
    assert shell.run(line).exit_code == 3
    for more, words in (
        ("--seed 1", "another seed (its seed: None; this run's: 1)"),
        ("--start @hyper", "another start"),
    ):
        shell.refuses(f"{line} --resume {more}", words, "already exists")
    assert shell["hyper.json"].read_bytes() == written


def test_tune_resumed_begins_again_where_a_refinement_was_interrupted(shell: Shell) -> None:
    line = "tune @train --out @hyper.json --subset 100 --resume"
    first = shell.json(line)
    found = json.loads(shell["hyper.json"].read_text())
    interrupted = found | {"refinement": {"interrupted": True}, "noise_variance": 0.5}
    shell["hyper.json"].write_text(json.dumps(interrupted))
    assert shell.json(line)["noise_variance"] == first["noise_variance"]
    assert json.loads(shell["hyper.json"].read_text())["noise_variance"] == first["noise_variance"]


# ------------------------------------------------------------------------------------------------------- of another run


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{TRAIN} --block-size 40", "another block size (its block size: 50; this run's: 40)"),
        (f"{TRAIN} --seed 1", "another seed (its seed: 0; this run's: 1)"),
        (f"{TRAIN} --tol 1e-12", "another tolerance (it stopped at max|g| = "),
        (f"{TRAIN} --by-reference", "another by reference"),
        (TRAIN.replace("--block-size 50", "--solver cg"), "another solver"),
        (TRAIN.replace("@train", "@other.zarr"), "another data set"),
        (TRAIN.replace("@hyper", "@other.json"), "another noise variance"),
    ],
)
def test_train_leaves_a_model_of_another_run_alone(
    shell: Shell, pipeline: dict[str, Any], line: str, words: str
) -> None:
    before, found = copied(shell), json.loads(shell["hyper"].read_text())
    if "@other.zarr" in line:
        shell.json("ingest", pipeline["folder"] / "data.csv", shell["other.zarr"], "--target", "price")
    shell["other.json"].write_text(json.dumps(found | {"noise_variance": 2.0 * found["noise_variance"]}))
    shell.refuses(f"{line} --resume", words, "already exists")
    assert alpha(shell["m.zarr"]) == before


# -------------------------------------------------------------------------------------------------------- stopped short


@pytest.fixture(scope="module")
def short(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return Shell(tmp_path_factory.mktemp("short"), stores).json(SHORT, code=4)


def test_not_converged_is_exit_code_4_with_an_honest_record(short: dict[str, Any]) -> None:
    assert short["converged"] is False
    assert short["gradient_inf_norm"] > 1e-4
    assert short["column_passes"] == pytest.approx(2.0, abs=0.02)
    assert "--max-passes" in short["advice"]
    assert open_model(short["out"]).summary["converged"] is False
    assert CheckpointStore(short["checkpoint"]).load_latest() is not None


@pytest.mark.long
def test_resuming_after_a_limit_goes_on_to_convergence(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "train @train --hyper @hyper --block-size 20 --log-json @run.jsonl --out @m.zarr"
    first = shell.json(f"{line} --max-passes 1", code=4)
    assert shell.run(line).exit_code == 3  # a model is there
    reads, load = [], CheckpointStore.load_latest
    monkeypatch.setattr(CheckpointStore, "load_latest", lambda store: reads.append(store.url) or load(store))
    second = shell.json(f"{line} --resume")
    assert len(reads) == 1
    assert second["converged"] is True
    assert second["iterations"] > first["iterations"]
    records = [json.loads(line) for line in shell["run.jsonl"].read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, second["iterations"] + 1))
    assert shell.names == {"m.zarr", "run.jsonl"}


@pytest.fixture(scope="module")
def stopped(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run that stopped short, with its checkpoint beside it."""
    folder = tmp_path_factory.mktemp("stopped")
    Shell(folder, stores).json(f"{TRAIN} --max-passes 1", code=4)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("recorded", ["here", "elsewhere", "nothing"])
def test_resuming_where_the_arithmetic_is_another_says_what_holds(shell: Shell, stopped: Path, recorded: str) -> None:
    shutil.copytree(stopped, shell.folder, dirs_exist_ok=True)
    store = CheckpointStore(shell["m.zarr.checkpoint"])
    found = store.load_latest()
    metadata = dict(found.metadata)
    own = metadata.pop("arithmetic")
    assert own == process_arithmetic().to_json()
    assert {"processor", "blas", "vectors", "library"} <= set(own)
    if recorded == "here":
        metadata["arithmetic"] = own
    elif recorded == "elsewhere":  # otherwise as checkpoints were before this was recorded
        metadata["arithmetic"] = {**own, "processor": "z80", "blas": ["openblas 0.1 Z80"]}
    store.save(found.sequence_number + 1, dict(found.arrays), metadata)
    result = shell.run(f"{TRAIN} --json --resume")
    resumed = document_of(result)
    assert resumed["converged"] is True
    told = [warning for warning in resumed["warnings"] if "last bits may differ" in warning]
    assert len(told) == (recorded == "elsewhere")
    for warning in told:
        assert "processor z80, here " in warning
        assert "BLAS openblas 0.1 Z80, here " in warning
        assert "will meet its tolerance and its certificate will hold" in warning
        assert "last bits may differ" in result.stderr


def test_resume_without_a_checkpoint_starts_from_the_beginning(shell: Shell) -> None:
    trained = shell.json("train @train --hyper @hyper --block-size 100 --resume --out @m")
    assert any("no checkpoint" in message for message in trained["warnings"])
    np.testing.assert_allclose(open_model(shell["m"]).alpha, open_model(shell["model"]).alpha, atol=0.05)


def test_starting_afresh_replaces_a_checkpoint_with_a_warning(shell: Shell) -> None:
    shell.json(f"{TRAIN} --block-size 20 --max-passes 1", code=4)
    trained = shell.json(f"{TRAIN} --overwrite")
    assert any("will be replaced" in message for message in trained["warnings"])
    assert shell.names == {"m.zarr"}


def test_checkpoints_of_another_run_or_damaged_are_refused(
    shell: Shell, pipeline: dict[str, Any], short: dict[str, Any]
) -> None:
    shell.json("ingest", pipeline["folder"] / "data.csv", shell["other.zarr"], "--target", "price")
    shell["damaged"].mkdir()
    for path in Path(short["checkpoint"]).iterdir():
        (shell["damaged"] / path.name).write_bytes(path.read_bytes()[:1000])
    for line, words in (
        (SHORT.replace("@train", "@other.zarr"), "another data set"),
        (f"{SHORT} --block-size 5", "block size"),
        (f"{SHORT} --checkpoint @damaged", "truncated"),
    ):
        checkpoint = () if "--checkpoint" in line else ("--checkpoint", short["checkpoint"])
        result = shell.run(line, "--resume", "--json", *checkpoint)
        assert document_of(result, 3)["error"]["type"] == "CheckpointError"
        refused(result, words)
    assert shell.names == {"other.zarr", "damaged"}


# ---------------------------------------------------------------------------------------------------------- warm starts


GBCD = "--solver gbcd --block-size 60 --tol 1e-6"
WARM = f"train @train {GBCD} --warm-start @start --out @warm"


def test_a_good_sparse_model_saves_passes(shell: Shell) -> None:
    shell.json("sparse @train --hyper @hyper --basis-size 400 --out @start")
    cold = shell.json(f"train @train --hyper @hyper {GBCD} --out @cold")
    result = shell.run(f"{WARM} --hyper @hyper --json")
    warm = document_of(result)
    assert "starts from the sparse model" in " ".join(result.stderr.split())
    assert cold["converged"]
    assert warm["converged"]
    assert warm["column_passes"] < 0.8 * cold["column_passes"]
    assert warm["objective"] == pytest.approx(cold["objective"], rel=1e-9)


@pytest.mark.long
def test_a_start_that_is_farther_off_than_zero_is_not_taken(shell: Shell) -> None:
    """The kernel is large, the noise small, and the basis cannot follow the function."""
    shell["h.json"].write_text(json.dumps({**json.loads(shell["hyper"].read_text()), "noise_variance": 1e-3}))
    shell.json("sparse @train --hyper @h.json --basis-size 5 --out @start")
    cold = shell.json(f"train @train --hyper @h.json {GBCD} --max-passes 2 --out @cold", code=4)
    result = shell.run(f"{WARM} --hyper @h.json --max-passes 2 --json")
    warm = document_of(result, 4)
    assert "would not help" in " ".join(result.stderr.split())
    for name in ("objective", "column_passes"):
        assert warm[name] == cold[name]


@pytest.mark.long
def test_a_sparse_model_of_other_hyperparameters_or_data_is_no_start(shell: Shell) -> None:
    shell.json("sparse @train --hyper @hyper --basis-size 50 --out @start")
    noise = read_hyperparameters(shell["hyper"]).noise_variance
    changed = {**json.loads(shell["hyper"].read_text()), "noise_variance": 1.5 * noise}
    shell["h.json"].write_text(json.dumps(changed))
    found = shell.json(f"{WARM} --hyper @h.json --max-passes 1", code=4)
    assert any("other hyperparameters" in warning for warning in found["warnings"])
    line = "train @test --hyper @hyper --out @no --warm-start @start"
    shell.refuses(line, "was trained on other data", "--warm-start")
    assert "no" not in shell.names


# ----------------------------------------------------------------------------------------------------- tuned beforehand


@pytest.fixture(scope="module")
def tuned(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained after tuning."""
    shell = Shell(tmp_path_factory.mktemp("tuned"), stores)
    shell.json("train @train --out @model.zarr --tune")
    return shell["model.zarr"]


def test_training_after_tuning_is_both_commands(tuned: Path, shell: Shell) -> None:
    shell.json("tune @train --out @h.json")
    shell.json("train @train --hyper @h.json --out @m.zarr")
    beside, alone = (json.loads(path.read_text()) for path in (Path(f"{tuned}.hyper.json"), shell["h.json"]))
    for name in ("kernel", "noise_variance"):
        assert beside[name] == alone[name]
    assert bits(tuned) == bits(shell["m.zarr"])


def test_training_goes_on_after_tuning(tuned: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "train @train --out @m.zarr --hyper @h.json --tune"

    def stopping(*_: Any) -> None:
        raise InterruptedRunError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr("dkgp.commands.tuned.run_training", stopping)
        assert shell.run(line).exit_code == 130
    written = shell["h.json"].read_bytes()
    assert shell.names == {"h.json"}
    shell.refuses(line, "h.json", "already exists")
    resumed = shell.json(f"{line} --resume")
    assert shell["h.json"].read_bytes() == written
    assert resumed["tuned"]["out"] == str(shell["h.json"])
    assert bits(shell["m.zarr"]) == bits(tuned)


def test_the_model_s_place_is_refused_before_the_search(tuned: Path, shell: Shell) -> None:
    hyper = Path(f"{tuned}.hyper.json")
    before = hyper.stat().st_mtime_ns
    shell.refuses(f"train @train --tune --out {tuned}", "model.zarr' already exists")
    assert hyper.stat().st_mtime_ns == before


def test_without_hyperparameters_both_ways_are_named(shell: Shell) -> None:
    told = shell.told("train @train --out @m.zarr", code=2)
    assert "Tune hyperparameters first with dkgp tune DATASET --out hyper.json" in told
    assert "give --tune" in told


def test_a_job_of_the_service_writes_the_hyperparameters() -> None:
    options = {"dataset": "/d/train.zarr", "hyper": "/d/h.json", "out": "/d/m.zarr"}
    for tune in (True, False):
        accesses = {(path.field, path.access) for path in job_paths("train", {**options, "tune": tune})}
        assert (("hyper", "write") in accesses) == tune
    assert job_from_options("train", {**options, "tune": True}).tune  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------- random moments


def moments(count: int, seconds: float) -> Iterator[float]:
    drawn = random.Random(6)
    return (drawn.uniform(0.0, seconds) for _ in range(count))


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_train_on_worker_processes_killed_at_ten_random_moments(shell: Shell, tmp_path: Path) -> None:
    """Whenever it dies, `--resume` comes to the same bits with exit code 0, and so it does when there is nothing left.

    The moments lie between the start of the process and its end, the cluster's start and the model's writing included.
    """

    def command(out: Path) -> list[str]:
        line = f"{TRAIN} --json --log-json {out}.jsonl --cluster processes --workers 2 --checkpoint-every 0.05"
        return [*PROGRAM, *shell.typed(line.replace("@m.zarr", str(out)))]

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
            assert alpha(out) == alpha(whole)
            assert not Path(f"{out}.checkpoint").exists()
    print(f"killed after rounds {rounds} of {expected['iterations']}")
    assert any(0 < count < expected["iterations"] for count in rounds)
