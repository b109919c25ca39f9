"""`dkgp predict --overwrite` on a disk: earlier predictions are there until the new ones are whole, however it ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import PredictionWriter, open_prediction
from dkgp.data.remote.storage import remove_tree
from dkgp.data.stores import writable
from dkgp.errors import ClusterError, NumericalError
from tests.cli.invoke import refused, run, run_json
from tests.cli.processes import ENVIRONMENT

# Regions: 200 samples in chunks of 50.
CHUNKS = ("--chunk-rows", 50, "--cluster", "none")


def bits(place: Path) -> bytes:
    prediction = open_prediction(str(place))
    return b"".join(prediction.read(name).tobytes() for name in sorted(prediction.variables))


VARIANCES = (*CHUNKS, "--variance")


@pytest.fixture(scope="module")
def command(pipeline: dict[str, Any]) -> tuple[object, ...]:
    return ("predict", pipeline["train"]["out"], pipeline["ingest"]["test"], "--out")


@pytest.fixture(scope="module")
def made(command: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of predictions with variances, and without."""
    folder = tmp_path_factory.mktemp("made")
    run_json(*command, folder / "whole.zarr", *VARIANCES)
    run_json(*command, folder / "pred.zarr", *CHUNKS)
    return folder


@pytest.fixture
def arguments(command: tuple[object, ...], made: Path, tmp_path: Path) -> dict[str, Any]:
    """A command that predicts with variances over earlier predictions without, and what either comes to."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "pred.zarr"
    return {
        "command": (*command, folder, *VARIANCES),
        "earlier": bits(folder),
        "whole": bits(tmp_path / "whole.zarr"),
        "out": folder,
        "beside": tmp_path / "pred.zarr.partial.zarr",
    }


def only_the_new(case: dict[str, Any]) -> None:
    assert bits(case["out"]) == case["whole"] != case["earlier"]
    assert {path.name for path in case["out"].parent.iterdir()} == {"pred.zarr", "whole.zarr"}


def stop_after(patched: pytest.MonkeyPatch, regions: int, error: BaseException) -> None:
    write, written = PredictionWriter.write, list[Any]()

    def counted(self: PredictionWriter, *args: Any, **arrays: Any) -> None:
        if len(written) == regions:
            raise error
        write(self, *args, **arrays)
        written.append(args)

    patched.setattr(PredictionWriter, "write", counted)


def test_the_earlier_are_read_while_the_new_are_made(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, read = PredictionWriter.write, []

    def watched(self: PredictionWriter, *args: Any, **arrays: Any) -> None:
        read.append(bits(arguments["out"]))
        write(self, *args, **arrays)

    monkeypatch.setattr(PredictionWriter, "write", watched)
    document = run_json(*arguments["command"], "--overwrite")
    assert len(read) >= 2
    assert set(read) == {arguments["earlier"]}
    assert document["out"] == document["url"] == str(arguments["out"])
    only_the_new(arguments)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("error", "exit_code"), [(NumericalError("none"), 3), (ClusterError("lost"), 5), (ZeroDivisionError("none"), 1)]
)
@pytest.mark.parametrize("regions", [0, 2])
def test_what_stops_midway_leaves_the_earlier_and_goes_on(
    arguments: dict[str, Any], error: Exception, exit_code: int, regions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, regions, error)
        assert run(*arguments["command"], "--overwrite").exit_code == exit_code
    assert bits(arguments["out"]) == arguments["earlier"]
    refused(run(*arguments["command"]), "exists already", "--overwrite")
    if not regions:
        assert not arguments["beside"].exists(), "there is nothing to go on from"
        refused(run(*arguments["command"], "--resume"), "or with other settings", "--overwrite")
        return
    resumed = run_json(*arguments["command"], "--resume")
    assert resumed["variance"]["computed"] == 200 - 50 * regions
    only_the_new(arguments)


def test_an_interrupted_one_starts_afresh_where_that_is_asked_for(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 2, KeyboardInterrupt())
        assert run(*arguments["command"], "--overwrite").exit_code == 130
    assert bits(arguments["out"]) == arguments["earlier"]
    assert run_json(*arguments["command"], "--overwrite")["variance"]["computed"] == 200
    only_the_new(arguments)


def test_others_are_not_gone_on_with(
    arguments: dict[str, Any], pipeline: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 2, ClusterError("lost"))
        run(*arguments["command"], "--overwrite")
    # Means alone are other predictions than those that were begun.
    means = [word for word in arguments["command"] if word != "--variance"]
    refused(run(*means, "--resume"), "or with other settings", "--overwrite")
    assert bits(arguments["out"]) == arguments["earlier"]


@pytest.mark.long
@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_a_kill_while_places_are_exchanged_is_made_up_for(
    arguments: dict[str, Any], renamed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead after so many of the two renamings: nothing is done any more from there on."""
    move, moved = writable._move, list[Path]()

    def moves(store: Path, place: Path) -> None:
        if len(moved) == renamed:
            raise SystemExit(137)
        moved.append(store)
        move(store, place)

    def removes(place: str) -> None:
        if len(moved) == 2:
            raise SystemExit(137)
        remove_tree(place)

    with monkeypatch.context() as patched:
        patched.setattr(writable, "_move", moves)
        patched.setattr(writable, "remove_tree", removes)
        assert run(*arguments["command"], "--overwrite").exit_code == 137
    present = {path.name for path in arguments["out"].parent.iterdir()} - {"whole.zarr"}
    out, beside, aside = "pred.zarr", "pred.zarr.partial.zarr", ".dkgp-replaced-pred.zarr"
    assert present == [{out, beside}, {aside, beside}, {aside, out}][renamed]
    refused(run(*arguments["command"]), ("exists already", "were interrupted", "exists already")[renamed])
    assert run_json(*arguments["command"], "--resume")["variance"]["computed"] == 0
    assert bits(arguments["out"]) == arguments["whole"]
    run_json(*arguments["command"], "--overwrite")
    only_the_new(arguments)


def test_where_the_new_cannot_take_the_place_both_stay(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    move = writable._move

    def full(store: Path, place: Path) -> None:
        if store == arguments["beside"]:
            raise OSError(28, "No space left on device")
        move(store, place)

    with monkeypatch.context() as patched:
        patched.setattr(writable, "_move", full)
        refused(run(*arguments["command"], "--overwrite"), "disk is full")
    assert bits(arguments["out"]) == arguments["earlier"]
    run_json(*arguments["command"], "--resume")
    only_the_new(arguments)


@pytest.mark.faults
def test_killed_midway(arguments: dict[str, Any]) -> None:
    code = (
        "import os, signal\nfrom dkgp.cli import main\nfrom dkgp.data import PredictionWriter\n"
        "write, written = PredictionWriter.write, []\n"
        "def killing(self, *args, **arrays):\n"
        "    write(self, *args, **arrays); written.append(1)\n"
        "    len(written) == 2 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "PredictionWriter.write = killing\nmain()"
    )
    words = [str(word) for word in (*arguments["command"], "--overwrite")]
    killed = subprocess.run([sys.executable, "-c", code, *words], env=ENVIRONMENT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert bits(arguments["out"]) == arguments["earlier"]
    assert run_json(*arguments["command"], "--resume")["variance"]["computed"] == 100
    only_the_new(arguments)
