"""A disk that fills up while predictions or a search are under way: told, nothing lost, resumed to the same bits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import CheckpointStore
from tests.cli.invoke import files_below, refused, run, run_json
from tests.cli.runs import bits
from tests.full_disk import fill, full_for, mounted

PIECES = "--chunk-rows 40 --cluster none"
# Refined variances, averaged probabilities, and variances with neighbours, and an array that each of them writes.
PREDICTIONS = [
    pytest.param("predict {model} {test} --variance", "variance/c/2", id="refined variances"),
    pytest.param("predict {gp} {test_of_two}", "probability_lower/c/2", id="averaged probabilities"),
    pytest.param("predict {near} {test} --variance", "mean/c/2", id="neighbours", marks=pytest.mark.slow),
]


@pytest.fixture
def places(
    stores: dict[str, Any], classifiers: dict[str, Path], labelled: Callable[[int], dict[str, Any]]
) -> dict[str, Any]:
    return {**stores, "gp": classifiers["gp"], "test_of_two": labelled(2)["test"]}


@pytest.mark.parametrize(("command", "part"), PREDICTIONS)
def test_a_disk_that_fills_up_among_predictions(
    command: str, part: str, places: dict[str, Any], tmp_path: Path
) -> None:
    typed = shlex.split(f"{command} {PIECES}".format(**places))
    run_json(*typed, "--out", tmp_path / "whole")
    out = tmp_path / "out"
    # Earlier predictions with other settings, which stay until the new ones are whole.
    run_json(*typed[:3], "--cluster", "none", "--out", out)
    before = {name: Path(name).read_bytes() for name in files_below(out)}
    with full_for(part) as met:
        result = run(*typed, "--out", out, "--overwrite", "--json")
    assert met
    refused(result, "Cannot write", "the disk is full")
    assert {name: Path(name).read_bytes() for name in files_below(out)} == before
    run_json(*typed, "--out", out, "--overwrite", "--resume")
    assert bits(out) == bits(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


@pytest.mark.faults
@pytest.mark.parametrize(("command", "part"), [*PREDICTIONS[:2], pytest.param(*PREDICTIONS[2].values, id="neighbours")])
def test_a_small_disk_fills_up_among_predictions(
    command: str, part: str, places: dict[str, Any], tmp_path: Path
) -> None:
    typed = shlex.split(f"{command} {PIECES}".format(**places))
    run_json(*typed, "--out", tmp_path / "whole")
    with mounted(tmp_path / "disk", "8m") as disk:
        ballast = fill(disk, 64 * 1024)
        refused(run(*typed, "--out", disk / "out", "--json"), "Cannot write", "the disk is full")
        assert not (disk / "out/dkgp-manifest.json").exists()
        ballast.unlink()
        run_json(*typed, "--out", disk / "out", "--resume")
        assert bits(disk / "out") == bits(tmp_path / "whole")


SEARCH = ("--objective", "vif", "--basis-size", 8, "--tol", 0.3, "--cluster", "none", "--workers", 1)


@pytest.fixture(scope="module")
def searched(stores: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a search comes to that nothing ends."""
    return run_json("tune", stores["train"], "--out", tmp_path_factory.mktemp("searched") / "whole.json", *SEARCH)


@pytest.mark.long
@pytest.mark.parametrize("part", ["hyper.json.checkpoint/", "hyper.json$"])
def test_a_disk_that_fills_up_in_a_search_with_neighbours(
    part: str, searched: dict[str, Any], stores: dict[str, Any], tmp_path: Path
) -> None:
    """Where evaluations cannot be written, the search ends; where its result cannot, none is evaluated again."""
    command = ("tune", stores["train"], "--out", tmp_path / "hyper.json", *SEARCH)
    with full_for(part) as met:
        result = run(*command, "--json")
    assert met
    refused(result, "Cannot write", "the disk is full")
    assert not (tmp_path / "hyper.json").exists()
    saved = CheckpointStore(tmp_path / "hyper.json.checkpoint").load_latest()
    assert (saved is not None) == (part == "hyper.json$")
    with pytest.MonkeyPatch.context() as patch:
        if saved is not None:
            evidence = "dkgp.models.sparse.vif.VifObjective.__call__"
            patch.setattr(evidence, lambda *evaluation: pytest.fail("evaluated again"))
        again = run_json(*command, "--resume")
    assert again["sparse"] == searched["sparse"]
    assert again["kernel"] == searched["kernel"]
    assert [path.name for path in tmp_path.iterdir()] == ["hyper.json"]
    assert json.loads((tmp_path / "hyper.json").read_text())["noise_variance"] == searched["noise_variance"]
