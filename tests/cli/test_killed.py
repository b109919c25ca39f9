"""Runs that are killed (kill -9) or get a signal, at any place: resumed they come to the same bits."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import CheckpointStore
from tests.cli.invoke import document_of, refused, run, run_json
from tests.cli.processes import killed, signalled
from tests.cli.runs import CLASSIFY, RUNS, SPARSE, TRAIN, bits

REPORT = "dkgp.commands.training:TrainingRun.report"
SAVE = "dkgp.data.stores.checkpoint:CheckpointStore.save"
PASS = "dkgp.models.classification.fixed_size.search:fold_systems"
# A model is being laid out, and about to be whole.
LAYOUT, COMMIT = "dkgp.data.stores.writable:create_array", "dkgp.data.stores.writable:commit"
FRESH, RESUMING, COMPLETE = "there is no checkpoint", "resuming after round", "was complete when an earlier run ended"

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
    name: str, place: str, words: str, stores: dict[str, Any], whole: Callable[[str], Path], tmp_path: Path
) -> None:
    out, (where, _, number) = tmp_path / "out", place.partition(" ")
    more = ("--checkpoint-every", 0) if RUNS[name].logs else ()
    command = RUNS[name].typed(stores, out, *more)
    killed(where, command, call=int(number or 1), after=where == SAVE)
    if out.exists():
        refused(run(*command), "exists already" if words in (COMPLETE, "") else "unfinished")
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
    name: str, number: signal.Signals, stores: dict[str, Any], tmp_path: Path
) -> None:
    options, exit_code = LONG[name]
    out, whole, log = (tmp_path / part for part in ("out", "whole", "log.jsonl"))
    command = [*options.format(**stores).split(), "--out", out, "--log-json", log, "--json"]
    stdout, stderr = signalled(command, number, log, 8)
    error = json.loads(stdout)["error"]
    assert error["type"] == "InterruptedRunError"
    assert f"{out}.checkpoint. Go on with the same command and --resume" in stderr
    assert error["checkpoint"] == f"{out}.checkpoint"
    assert not out.exists()
    assert CheckpointStore(error["checkpoint"]).load_latest() is not None
    run_json(*command, "--resume", exit_code=exit_code)
    run_json(*options.format(**stores).split(), "--out", whole, exit_code=exit_code)
    assert bits(out) == bits(whole)
