"""`dkgp train --solver ...`: every method by its name, to one answer; what does not belong to it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands import run as run_module
from dkgp.commands import training
from dkgp.data import CheckpointStore, open_model
from tests.cli.invoke import document_of, run, run_json


def train(pipeline: dict[str, Any], out: Path, *options: object) -> tuple[object, ...]:
    store, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    return ("train", store, "--hyper", hyper, "--out", out, *options, "--json", "--quiet")


@pytest.mark.parametrize("solver", ["bcdc", "bcdg", "smo", "cg", "pcg", "kcg", "cholesky", "tiled-cholesky"])
def test_each_solver_finds_the_same_model(pipeline: dict[str, Any], tmp_path: Path, solver: str) -> None:
    found = run_json(*train(pipeline, tmp_path / "model.zarr", "--solver", solver))
    assert found["converged"] is True
    assert found["solver"] == solver
    assert found["gradient_inf_norm"] <= 1e-4
    if solver == "pcg":
        parts = found["seconds_by_part"]
        assert set(parts) == {"factor", "precondition", "product", "check", "update"}
        assert 0.0 < sum(parts.values()) <= found["seconds"]
    expected = open_model(pipeline["train"]["out"]).alpha
    # Both gradients are below the tolerance: by sqrt(n) times that over s2 at most from one another.
    bound = 2e-4 * np.sqrt(len(expected)) / pipeline["tune"]["noise_variance"]
    assert np.linalg.norm(open_model(tmp_path / "model.zarr").alpha - expected) <= bound


def test_tiles_are_kept_as_far_as_is_said_and_change_nothing(pipeline: dict[str, Any], tmp_path: Path) -> None:
    def command(said: str) -> tuple[object, ...]:
        out = tmp_path / f"{said}.zarr"
        return train(pipeline, out, "--solver", "cg", "--cluster", "none", "--cache-tiles", said)

    found = {said: run_json(*command(said)) for said in ("none", "300KiB", "1GiB", "auto")}
    for said in found:
        alpha = open_model(tmp_path / f"{said}.zarr").alpha
        np.testing.assert_array_equal(alpha, open_model(tmp_path / "none.zarr").alpha)
    n = found["none"]["n"]
    planned = {said: result["memory_plan"]["tiles_bytes"] for said, result in found.items()}
    assert (planned["none"], planned["300KiB"]) == (0, 300 * 1024)
    # No more than is of use, and of use it is to solvers of products alone.
    assert 2 * n**2 < planned["1GiB"] < 2**30
    assert pipeline["train"]["memory_plan"]["tiles_bytes"] == 0
    shares = [found[said]["kept_share"] for said in ("none", "300KiB", "1GiB")]
    assert shares[0] == 0.0 < shares[1] < shares[2] == 1.0
    assert found["1GiB"]["kernel_evaluations"] < found["none"]["kernel_evaluations"]
    shown = [argument for argument in command("1GiB") if argument not in ("--json", "--quiet")]
    kept = {said: result["kept_tiles"] for said, result in found.items()}
    assert kept["none"] == {"bytes": 0, "reason": ""}
    assert kept["300KiB"] == {"bytes": kept["300KiB"]["bytes"], "reason": "as asked for"}
    assert 0 < kept["300KiB"]["bytes"] <= 300 * 1024 < kept["1GiB"]["bytes"] == 4 * round(kept["1GiB"]["bytes"] / 4)
    assert kept["auto"]["reason"]
    shown_there = run(*shown, "--overwrite", "--verbose").stdout
    assert "kept of the kernel matrix" in shown_there
    assert "100%" in shown_there
    assert ": as asked for" in shown_there


def test_methods_of_the_paper_are_as_they_are_there(pipeline: dict[str, Any], tmp_path: Path) -> None:
    def trained(name: str, *options: object) -> dict[str, Any]:
        command = train(pipeline, tmp_path / f"{name}.zarr", "--max-passes", 1, "--block-size", 60, *options)
        return run_json(*command, exit_code=4)  # type: ignore[no-any-return]

    assert trained("cyclic", "--solver", "bcdc")["settings"]["memory"] == 0
    assert trained("gradient", "--solver", "bcdg")["settings"]["memory"] == 0
    assert trained("remembering", "--solver", "bcdc", "--memory", 2)["settings"]["memory"] == 2
    several, one = trained("default"), trained("one", "--variables-per-step", 1)
    assert (several["settings"]["memory"], several["settings"]["variables_per_step"]) == (5, None)
    assert one["settings"]["variables_per_step"] == 1
    assert trained("exhaustive", "--exhaustive")["settings"]["variables_per_step"] == 1
    # A block of a tenth, once around: three squares for candidates beside the one of its columns.
    n = one["n"]
    assert 3.5 < one["kernel_evaluations"] / n**2 < 5.5
    table = run(*train(pipeline, tmp_path / "shown.zarr", "--block-size", 60)[:-2], "--verbose")
    assert "kernel entries evaluated" in table.stdout
    assert "n²" in table.stdout


def test_parameter_cg_is_there_to_be_compared(pipeline: dict[str, Any], tmp_path: Path) -> None:
    options = ("--solver", "paramcg", "--max-passes", 20)
    found = run_json(*train(pipeline, tmp_path / "model.zarr", *options), exit_code=4)
    assert found["column_passes"] == 20
    assert found["iterations"] == 10


def test_the_duality_gap_stops_sooner(pipeline: dict[str, Any], tmp_path: Path) -> None:
    options = ("--solver", "kcg", "--duality-gap", 0.01)
    found = run_json(*train(pipeline, tmp_path / "model.zarr", *options))
    assert found["converged"] is True
    assert "duality gap" in found["reason"]
    assert found["gradient_inf_norm"] > 1e-4


def test_a_checkpoint_of_before_there_was_a_halo_is_resumed_or_refused_in_words(
    pipeline: dict[str, Any], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.zarr", tmp_path / "parts.zarr"
    options = ("--solver", "pcg", "--halo", 0, "--rank", 20)
    run_json(*train(pipeline, whole, *options))
    stopped = run_json(*train(pipeline, parts, *options, "--max-passes", 3), exit_code=4)
    store = CheckpointStore(stopped["checkpoint"])
    latest = store.load_latest()
    assert latest is not None
    metadata = latest.metadata
    # As such a version wrote it.
    factor = {"rank": 20, "landmarks": "pivoted", "memory_bytes": 1024**3, "seed": 0}
    assert metadata["solver"] == {"solver": "pcg", "precision": "mixed", "preconditioner": factor}
    del metadata["state"]["level"], metadata["state"]["norms"], metadata["loop"]["foresight"]
    store.clear()
    store.save(latest.sequence_number, latest.arrays, metadata)
    for other in (("--rank", 20), ("--halo", 24), ("--halo", 0, "--rank", 30)):
        refused = run(*train(pipeline, parts, "--solver", "pcg", *other, "--resume")[:-2])
        assert refused.exit_code == 3
        said = " ".join(refused.stderr.split())
        assert "belongs to another preconditioner" in said
        assert "Resume with what it was written with (--solver pcg, --halo 0, --rank 20)" in said
    refused = run(*train(pipeline, parts, "--solver", "gbcd", "--resume")[:-2])
    assert "another solver" in " ".join(refused.stderr.split())
    assert "(--solver pcg, --halo 0, --rank 20)" in " ".join(refused.stderr.split())
    run_json(*train(pipeline, parts, *options, "--resume"))
    assert open_model(parts).alpha.tobytes() == open_model(whole).alpha.tobytes()


def test_auto_says_what_it_picked_and_why(
    pipeline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    result = run("train", store, "--hyper", hyper, "--out", tmp_path / "m.zarr", "--solver", "auto", "--json", "-v")
    found = document_of(result)
    assert (found["solver"], found["auto"]["solver"]) == ("cholesky", "cholesky")
    assert f"the solver is cholesky: {found['auto']['reason']}" in " ".join(result.stderr.split())
    assert open_model(tmp_path / "m.zarr").summary["auto"] == found["auto"]
    # Looked at for the choice, and again for a model that is done: the data are opened once.
    opened: list[str] = []
    for module, name in ((run_module, "open_dataset"), (training, "read_hyperparameters")):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, f=function, n=name, **named: opened.append(n) or f(*given, **named)
        )
    again = ("--out", tmp_path / "m.zarr", "--solver", "auto", "--resume", "--json")
    assert run_json("train", store, "--hyper", hyper, *again)["certificate"] == found["certificate"]
    assert opened == ["open_dataset", "read_hyperparameters"]


def test_an_automatic_choice_is_made_again_on_resuming(friedman: Callable[[int], Path], tmp_path: Path) -> None:
    store, hyper = tmp_path / "train.zarr", tmp_path / "hyper.json"
    run_json("ingest", friedman(4200), store, "--target", "price", "--quiet")
    run_json("tune", store, "--out", hyper, "--subset", 200, "--quiet")
    common = ("train", store, "--hyper", hyper, "--solver", "auto", "--json", "--quiet")
    whole = run_json(*common, "--out", tmp_path / "whole.zarr")
    assert whole["solver"] == "pcg"
    assert whole["settings"]["preconditioner"]["rank"] == whole["auto"]["rank"] < 2100
    parts = tmp_path / "parts.zarr"
    run_json(*common, "--out", parts, "--max-passes", 2, exit_code=4)
    assert run_json(*common, "--out", parts, "--resume")["resumed"] is True
    assert open_model(parts).alpha.tobytes() == open_model(tmp_path / "whole.zarr").alpha.tobytes()
