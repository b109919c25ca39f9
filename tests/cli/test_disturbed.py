"""Runs that are killed (kill -9), get a signal or fill a disk, at any place: resumed they come to the same bits."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import CheckpointStore, PredictionWriter, open_prediction
from tests.cli.invoke import Places, Shell, document_of, files_below, refused, run, run_json
from tests.cli.processes import ENVIRONMENT, PROGRAM, killed, signalled
from tests.cli.runs import CLASSIFY, RUNS, SPARSE, TRAIN, Run, bits
from tests.full_disk import fill, full_for, mounted

REPORT = "dkgp.commands.training:TrainingRun.report"
SAVE = "dkgp.data.stores.checkpoint:CheckpointStore.save"
PASS = "dkgp.models.classification.fixed_size.search:fold_systems"
# A model is being laid out, and about to be whole.
LAYOUT, COMMIT = "dkgp.data.stores.writable:create_array", "dkgp.data.stores.writable:commit"
FRESH, RESUMING, COMPLETE = "there is no checkpoint", "resuming after round", "is already complete"

# Run, place, and what is said when it is resumed; a number: at which call.
KILLS = [
    ("gbcd", LAYOUT, RESUMING),
    ("gbcd", COMMIT, RESUMING),
    ("greedy basis", "dkgp.models.sparse.train:fit_sparse", RESUMING),
    ("greedy basis", LAYOUT, RESUMING),
    ("greedy basis", COMMIT, RESUMING),
    ("greedy basis", REPORT, COMPLETE),
    ("greedy basis, neighbours", "dkgp.models.sparse.vif:Neighbourhood.joint", RESUMING),
    ("greedy basis, neighbours", COMMIT, RESUMING),
    ("predictions with neighbours", "dkgp.data.stores.prediction_store:PredictionWriter.write 3", ""),
    ("variances by neighbours", "dkgp.models.variance.neighbours.run:Tile.ends 3", ""),
    ("variances by neighbours", "dkgp.data.stores.prediction_store:PredictionWriter.write 3", ""),
    ("fixed-size", "dkgp.models.classification.fixed_size.train:fit_fixed_size", RESUMING),
    ("fixed-size", LAYOUT, RESUMING),
    ("fixed-size", COMMIT, RESUMING),
    ("fixed-size", REPORT, COMPLETE),
    ("exact", COMMIT, RESUMING),
    ("exact", REPORT, COMPLETE),
    ("logistic", COMMIT, RESUMING),
    ("gp", REPORT, COMPLETE),
    ("gp on a basis", "dkgp.models.classification.basis:BasisDescent", FRESH),
    ("gp on a basis", LAYOUT, RESUMING),
    ("gp on a basis", REPORT, COMPLETE),
    ("gp with neighbours", "dkgp.models.classification.near:ModeSearch.step 1", FRESH),
    ("gp with neighbours", "dkgp.models.classification.near:ModeSearch.step 6", RESUMING),
    ("gp with neighbours", COMMIT, RESUMING),
    ("logistic on a basis", "dkgp.models.classification.basis:certify_basis", RESUMING),
    ("logistic on a basis", COMMIT, RESUMING),
    ("predictions", "dkgp.models.prediction.predict:PredictSummary", ""),
    ("predictions", LAYOUT, ""),
    ("predictions", f"{LAYOUT} 2", ""),
    # Within a pass of the search.
    ("fixed-size", f"{PASS} 1", FRESH),
    ("fixed-size", f"{PASS} 3", RESUMING),
    ("fixed-size", f"{PASS} 9", RESUMING),
    # Of a grid's, and between all of them and the model.
    ("grid", f"{PASS} 1", FRESH),
    ("grid", f"{PASS} 4", RESUMING),
    ("grid", f"{SAVE} 6", RESUMING),
    ("grid", LAYOUT, RESUMING),
    ("grid", COMMIT, RESUMING),
    ("grid", REPORT, COMPLETE),
    # When a checkpoint was saved.
    *[
        (name, f"{SAVE} {number}", RESUMING)
        for name in ("gbcd", "fixed-size", "exact", "logistic", "gp", "logistic on a basis", "gp on a basis, tuned")
        for number in (1, 4)
    ],
]


@pytest.mark.parametrize("place", sorted({place.partition(" ")[0] for _, place, _ in KILLS}))
def test_every_place_is_there(place: str) -> None:
    module, names = place.split(":")
    assert callable(reduce(getattr, names.split("."), import_module(module)))


@pytest.mark.faults
@pytest.mark.parametrize(("name", "place", "words"), KILLS)
def test_a_run_that_is_killed_resumes_to_the_same_bits(
    name: str, place: str, words: str, stores: Places, whole: Callable[[str | Run], Path], tmp_path: Path
) -> None:
    out, (where, _, number) = tmp_path / "out", place.partition(" ")
    more = ("--checkpoint-every", 0) if RUNS[name].logs else ()
    command = RUNS[name].typed(stores, out, *more)
    killed(where, command, call=int(number or 1), after=where == SAVE)
    if out.exists():
        refused(run(*command), "already exists" if words in (COMPLETE, "") else "unfinished")
    resumed = run(*command, "--resume")
    document_of(resumed)
    assert words in resumed.stderr
    assert bits(out) == bits(whole(name))
    assert list(tmp_path.iterdir()) == [out]


# Rounds enough for a signal to come in between, and the exit code.
LONG = {
    "train": (f"{TRAIN} --block-size 4 --max-passes 4", 4),
    "sparse": (f"{SPARSE} --method sggp --basis-size 120 --per-round 1 --gap 1e-9", 4),
    "classify": (f"{CLASSIFY} --pool 30 --folds 3 --search annealing", 0),
}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("train", signal.SIGINT),
        ("train", signal.SIGTERM),
        ("sparse", signal.SIGINT),
        ("classify", signal.SIGINT),
    ],
)
def test_a_signal_names_the_checkpoint_and_the_run_resumes_to_the_same_bits(
    name: str, number: signal.Signals, stores: Places, tmp_path: Path
) -> None:
    options, exit_code = LONG[name]
    out, whole, log = (tmp_path / part for part in ("out", "whole", "log.jsonl"))
    command = [*Shell(tmp_path, stores).typed(options), "--out", out, "--log-json", log, "--json"]
    stdout, stderr = signalled(command, number, log, 8)
    error = json.loads(stdout)["error"]
    assert error["type"] == "InterruptedRunError"
    assert f"{out}.checkpoint. Continue with the same command and --resume" in stderr
    assert error["checkpoint"] == f"{out}.checkpoint"
    assert not out.exists()
    assert CheckpointStore(error["checkpoint"]).load_latest() is not None
    run_json(*command, "--resume", exit_code=exit_code)
    run_json(*Shell(tmp_path, stores).typed(options), "--out", whole, exit_code=exit_code)
    assert bits(out) == bits(whole)


@pytest.mark.faults
def test_a_run_without_rounds_that_is_killed_begins_again(stores: Places, tmp_path: Path) -> None:
    """A basis that is drawn has no rounds, and so no state: nothing is left of a fit, and nothing is in the way."""
    shell = Shell(tmp_path, stores)
    line = "sparse @train --hyper @hyper --method vif --basis-size 20 --neighbours 30 --out"
    killed("dkgp.models.sparse.vif:Neighbourhood.joint", shell.typed(line, shell["out"]))
    # The system's locks ended with the process; the next writer takes their files over, and removes them.
    assert shell.names == {".dkgp-lock-out", ".dkgp-lock-out.checkpoint"}
    shell.json(f"{line} @out --resume")
    shell.json(f"{line} @whole")
    assert bits(shell["out"]) == bits(shell["whole"])
    assert shell.names == {"out", "whole"}


APPROXIMATE = "predict @model @test --variance --variance-way vif --chunk-rows 5 --variance-batch 5 --cluster none"
# Runs a command that gets a signal a random moment after it has begun so many regions of approximate variances.
ENDED = """
import os, sys, threading, time
from dkgp.cli import main
from dkgp.models.prediction.vif_variances import VifRun
number, regions, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
predicted, calls = VifRun._predicted, []
def counted(*arguments):
    calls.append(None)
    if len(calls) == regions:
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
    time.sleep(0.02)
    return predicted(*arguments)
VifRun._predicted = counted
main(sys.argv[4:])
"""


@pytest.mark.faults
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_approximate_variances_that_end_at_random_moments_resume_to_the_same_bits(
    number: signal.Signals, code: int, stores: Places, tmp_path: Path
) -> None:
    shell, moments = Shell(tmp_path, stores), random.Random(int(number))
    shell.json(f"{APPROXIMATE} --out @whole")
    line = f"{APPROXIMATE} --out @out --resume"
    for _ in range(3):
        moment = moments.randint(1, 4), moments.uniform(0.0, 0.08)
        command = [PROGRAM[0], "-c", ENDED, int(number), *moment, *shell.typed(line)]
        ended = subprocess.run([str(word) for word in command], env=ENVIRONMENT, capture_output=True, check=False)
        assert ended.returncode == code, ended.stderr.decode()
        shell.refuses(f"{APPROXIMATE} --out @out", "unfinished")
    found = shell.json(line)["variance"]
    assert 0 < found["computed"] < open_prediction(str(shell["out"])).n_samples
    assert bits(shell["out"]) == bits(shell["whole"])
    assert shell.names == {"out", "whole"}


AVERAGED = Run("predict @gp @labels --chunk-rows 50 --cluster none", "--plug-in", "")
BOUNDED = Run("predict @exact @labels --product-error 1e-4 --chunk-rows 50 --cluster none", "--product-error none", "")


@dataclass(frozen=True)
class Full:
    """A run whose disk has no room for a part of what it writes, from its so-manieth checkpoint on.

    With `earlier`, the output of another run is there, and a plot where runs draw one. `held` checkpoints are whole
    (-1: some), and `regions` are left to predict.
    """

    run: str | Run
    part: str
    earlier: bool = False
    held: int = -1
    since: int = 1
    regions: int | None = None


SLOW, LONG_ONE, FAULTS = pytest.mark.slow, pytest.mark.long, pytest.mark.faults
NEIGHBOURS = ("out/near_inputs/", "out/near_normal/c/", "out/dkgp-manifest.json")
FULL = [
    # As a run writes what it came to.
    pytest.param(Full("gbcd", "out/alpha/c/", earlier=True), marks=LONG_ONE),
    pytest.param(Full("gbcd", "out/zarr.json", earlier=True), marks=(LONG_ONE, SLOW)),
    pytest.param(Full("gbcd", "out/dkgp-manifest.json", earlier=True), marks=(LONG_ONE, SLOW)),
    pytest.param(Full("gbcd", "run.png", earlier=True), marks=LONG_ONE),
    pytest.param(Full("gbcd", "out/gradient/c/"), marks=LONG_ONE),
    # In a checkpoint. A grid: five passes of two widths, and one of the best.
    pytest.param(Full("grid", "out.checkpoint", held=0), marks=FAULTS),
    pytest.param(Full("grid", "out.checkpoint", held=3, since=4), marks=FAULTS),
    pytest.param(Full("grid", "out/weights/c/", held=6), marks=FAULTS),
    *[
        pytest.param(Full(name, part, held=0 if part == "out.checkpoint/" else -1), marks=FAULTS)
        for name, parts in (("greedy basis, neighbours", ()), ("gp with neighbours", ("out/near_noise/c/",)))
        for part in ("out.checkpoint/", *NEIGHBOURS, *parts)
    ],
    # Among predictions.
    Full("predictions", "variance/c/2", earlier=True),
    Full(AVERAGED, "probability_lower/c/2", earlier=True),
    Full(BOUNDED, "decision/c/2"),
    pytest.param(Full("predictions with neighbours", "mean/c/2", earlier=True), marks=SLOW),
    pytest.param(Full("predictions with neighbours", "out/mean/c/0", regions=4), marks=FAULTS),
    pytest.param(Full("predictions with neighbours", "out/variance/c/2", regions=2), marks=FAULTS),
]


@pytest.mark.parametrize("case", FULL, ids=lambda case: f"{getattr(case.run, 'command', case.run)}: {case.part}")
def test_a_full_disk_is_told_loses_nothing_and_the_run_resumes_to_the_same_bits(
    case: Full, stores: Places, whole: Callable[[str | Run], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = RUNS[case.run] if isinstance(case.run, str) else case.run
    out, plot = tmp_path / "out", tmp_path / "run.png"
    drawn = ["--plot", plot] if case.run == "gbcd" else []
    if case.earlier:
        run_json(*kind.typed(stores, out, *drawn, *kind.other.split()))
        assert bits(out) != bits(whole(case.run))
    more = [*drawn, *(["--checkpoint-every", 0] if kind.logs else []), *(["--overwrite"] if case.earlier else [])]
    command = kind.typed(stores, out, *more)
    before = {name: Path(name).read_bytes() for name in files_below(tmp_path)}
    saves, save, met = list[int](), CheckpointStore.save, list[list[str]]()
    with ExitStack() as stack, monkeypatch.context() as patch:

        def counted(self: CheckpointStore, *args: Any, **options: Any) -> Any:
            saves.append(1)
            if len(saves) == case.since > 1:
                met.append(stack.enter_context(full_for(case.part)))
            return save(self, *args, **options)

        patch.setattr(CheckpointStore, "save", counted)
        if case.since == 1:
            met.append(stack.enter_context(full_for(case.part)))
        refused(run(*command), "Cannot write", "the disk is full")
    assert met[0]
    # What was there is as it was, to the byte, but for a model before its plot.
    if kind.logs:
        assert out.exists() == (case.earlier or case.part == "run.png")
    for name, content in before.items():
        assert name != str(plot) or plot.read_bytes() == content
        assert case.part == "run.png" or Path(name).read_bytes() == content
    assert plot.exists() == (case.earlier and bool(drawn))
    if kind.logs and case.part != "run.png":
        assert (CheckpointStore(f"{out}.checkpoint").load_latest() is not None) == (case.held != 0)
    if case.held >= 0:
        assert len(saves) - case.part.startswith("out.checkpoint") == case.held
    write, written = PredictionWriter.write, list[object]()
    monkeypatch.setattr(
        PredictionWriter, "write", lambda self, *args, **arrays: written.append(args) or write(self, *args, **arrays)
    )
    resumed = run(*command, "--resume")
    document_of(resumed)
    if case.run not in ("gbcd", "predictions") and kind.logs:
        assert (RESUMING if case.held else FRESH) in resumed.stderr
    assert case.regions in (None, len(written))
    assert bits(out) == bits(whole(case.run))
    assert not drawn or plot.read_bytes().startswith(b"\x89PNG")
    # Nothing set aside and nothing half written remains.
    assert {path.name for path in tmp_path.iterdir()} == {"out", *(["run.png"] if drawn else [])}


@pytest.mark.faults
@pytest.mark.parametrize("name", ["predictions", AVERAGED, "predictions with neighbours"], ids=range(3))
def test_a_small_disk_fills_up_among_predictions(
    name: str | Run, stores: Places, whole: Callable[[str | Run], Path], tmp_path: Path
) -> None:
    kind = RUNS[name] if isinstance(name, str) else name
    with mounted(tmp_path / "disk", "8m") as disk:
        ballast = fill(disk, 64 * 1024)
        command = kind.typed(stores, disk / "out")
        refused(run(*command), "Cannot write", "the disk is full")
        assert not (disk / "out/dkgp-manifest.json").exists()
        ballast.unlink()
        run_json(*command, "--resume")
        assert bits(disk / "out") == bits(whole(name))


@pytest.mark.long
def test_a_disk_that_fills_up_in_a_search_with_neighbours(shell: Shell) -> None:
    """The search ends if evaluations cannot be written. If its result cannot, no evaluation is repeated."""
    line = "tune @train --objective vif --basis-size 8 --tol 0.3 --cluster none --workers 1 --out"
    searched = shell.json(f"{line} @whole.json")
    for part in ("hyper.json.checkpoint/", "hyper.json$"):
        with full_for(part) as met:
            shell.refuses(f"{line} @hyper.json", "Cannot write", "the disk is full")
        assert met
        assert not shell["hyper.json"].exists()
        saved = CheckpointStore(shell["hyper.json.checkpoint"]).load_latest()
        assert (saved is not None) == (part == "hyper.json$")
        with pytest.MonkeyPatch.context() as patch:
            if saved is not None:
                evidence = "dkgp.models.sparse.vif.VifObjective.__call__"
                patch.setattr(evidence, lambda *evaluation: pytest.fail("evaluated again"))
            again = shell.json(f"{line} @hyper.json --resume")
        assert again["sparse"] == searched["sparse"]
        assert again["kernel"] == searched["kernel"]
        assert shell.names == {"whole.json", "hyper.json"}
        assert json.loads(shell["hyper.json"].read_text())["noise_variance"] == searched["noise_variance"]
        shell["hyper.json"].unlink()
