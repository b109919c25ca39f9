"""Fits and predictions with neighbours that are killed, or whose disk fills up: resumed to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import PredictionWriter
from dkgp.data.stores.checkpoint import CheckpointStore
from tests.cli.invoke import document_of, refused, run, run_json
from tests.cli.processes import killed
from tests.cli.runs import RUNS, bits
from tests.full_disk import full_for

pytestmark = pytest.mark.faults

JOINT = "dkgp.models.sparse.vif:Neighbourhood.joint"
PREDICTIONS = RUNS["predictions with neighbours"]


def test_a_fit_with_neighbours_that_is_killed_without_a_checkpoint_begins_again(
    stores: dict[str, Any], tmp_path: Path
) -> None:
    """A basis that is drawn has no rounds, and so no state: nothing is left of a fit, and nothing is in the way."""
    options = ("--hyper", stores["hyper"], "--method", "vif", "--basis-size", 20, "--neighbours", 30, "--json")
    out, whole = tmp_path / "out", tmp_path / "whole"
    command = ["sparse", stores["train"], "--out", out, *options]
    killed(JOINT, command)
    # The system's locks ended with the process; the next writer takes their files over, and removes them.
    assert {path.name for path in tmp_path.iterdir()} == {".dkgp-lock-out", ".dkgp-lock-out.checkpoint"}
    resumed = run(*command, "--resume")
    document_of(resumed)
    run_json("sparse", stores["train"], "--out", whole, *options)
    assert bits(out) == bits(whole)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


PARTS = ("out.checkpoint/", "out/near_inputs/", "out/near_normal/c/", "out/dkgp-manifest.json")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(pytest.param("greedy basis, neighbours", part, id=part) for part in PARTS),
        *(pytest.param("gp with neighbours", part, id=f"labels-{part}") for part in (*PARTS, "out/near_noise/c/")),
    ],
)
def test_a_disk_that_fills_up_under_a_fit_with_neighbours(
    name: str, part: str, stores: dict[str, Any], whole: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = RUNS[name].typed(stores, out, "--checkpoint-every", 0)
    with full_for(part) as met:
        refused(run(*command), "Cannot write", "the disk is full")
    assert met
    assert not out.exists()
    checkpoint = CheckpointStore(f"{out}.checkpoint").load_latest()
    assert (checkpoint is None) == part.startswith("out.checkpoint")
    resumed = run(*command, "--resume")
    document_of(resumed)
    assert ("resuming after round" in resumed.stderr) == (checkpoint is not None)
    assert bits(out) == bits(whole(name))
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("part", "left"), [("out/mean/c/0", 4), ("out/variance/c/2", 2)])
def test_a_disk_that_fills_up_under_predictions_with_neighbours(
    part: str,
    left: int,
    stores: dict[str, Any],
    whole: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was written before stays, and is not predicted again: of four regions those that are left."""
    out = tmp_path / "out"
    command = PREDICTIONS.typed(stores, out)
    with full_for(part) as met:
        refused(run(*command), "Cannot write", "the disk is full")
    assert met
    write, written = PredictionWriter.write, list[object]()

    def counted(self: PredictionWriter, *args: Any, **arrays: Any) -> None:
        written.append(args)
        write(self, *args, **arrays)

    monkeypatch.setattr(PredictionWriter, "write", counted)
    document_of(run(*command, "--resume"))
    assert len(written) == left
    assert bits(out) == bits(whole("predictions with neighbours"))
    assert list(tmp_path.iterdir()) == [out]
