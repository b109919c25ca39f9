"""`dkgp train --solver ...`: every method by its name, to one answer; what does not belong to it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands import own_work
from dkgp.data import CheckpointStore, open_model

Command = Callable[..., Any]


def train(pipeline: dict[str, Any], out: Path, *options: object) -> tuple[object, ...]:
    store, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    return ("train", store, "--hyper", hyper, "--out", out, *options, "--json", "--quiet")


@pytest.mark.parametrize("solver", ["bcdc", "bcdg", "smo", "cg", "pcg", "kcg", "cholesky", "tiled-cholesky"])
def test_each_solver_finds_the_same_model(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path, solver: str
) -> None:
    found = document(run(*train(pipeline, tmp_path / "model.zarr", "--solver", solver)))
    assert found["converged"] is True
    assert found["solver"] == solver
    assert found["gradient_inf_norm"] <= 1e-4
    expected = open_model(pipeline["train"]["out"]).alpha
    # Both gradients are below the tolerance: by sqrt(n) times that over s2 at most from one another.
    bound = 2e-4 * np.sqrt(len(expected)) / pipeline["tune"]["noise_variance"]
    assert np.linalg.norm(open_model(tmp_path / "model.zarr").alpha - expected) <= bound


def test_tiles_are_kept_as_far_as_is_said_and_change_nothing(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    def command(said: str) -> tuple[object, ...]:
        out = tmp_path / f"{said}.zarr"
        return train(pipeline, out, "--solver", "cg", "--cluster", "none", "--cache-tiles", said)

    found = {said: document(run(*command(said))) for said in ("none", "300KiB", "1GiB", "auto")}
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
    shown_there = run(*shown, "--overwrite").stdout
    assert "kept of the kernel matrix" in shown_there
    assert "100%" in shown_there
    assert ": as asked for" in shown_there


def test_an_amount_of_tiles_that_is_none_is_refused(pipeline: dict[str, Any], run: Command, tmp_path: Path) -> None:
    command = train(pipeline, tmp_path / "model.zarr", "--solver", "cg", "--cluster", "none")
    wrong = run(*command, "--cache-tiles", "much")
    assert wrong.exit_code == 2
    assert "'much' is no size" in wrong.stderr
    assert not (tmp_path / "model.zarr").exists()


def test_methods_of_the_paper_are_as_they_are_there(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    def trained(name: str, *options: object) -> dict[str, Any]:
        command = train(pipeline, tmp_path / f"{name}.zarr", "--max-passes", 1, "--block-size", 60, *options)
        return document(run(*command), 4)  # type: ignore[no-any-return]

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
    table = run(*train(pipeline, tmp_path / "shown.zarr", "--block-size", 60)[:-2])
    assert "kernel entries evaluated" in table.stdout
    assert "n²" in table.stdout


def test_parameter_cg_is_there_to_be_compared(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    options = ("--solver", "paramcg", "--max-passes", 20)
    found = document(run(*train(pipeline, tmp_path / "model.zarr", *options)), 4)
    assert found["column_passes"] == 20
    assert found["iterations"] == 10


def test_the_duality_gap_stops_sooner(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    options = ("--solver", "kcg", "--duality-gap", 0.01)
    found = document(run(*train(pipeline, tmp_path / "model.zarr", *options)))
    assert found["converged"] is True
    assert "duality gap" in found["reason"]
    assert found["gradient_inf_norm"] > 1e-4


@pytest.mark.parametrize("factor", [("--halo", 0, "--rank", 20), ("--halo", 24, "--leaf", 20, "--rank", 5)])
def test_an_interrupted_solve_of_another_kind_resumes(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path, factor: tuple[object, ...]
) -> None:
    whole, parts = tmp_path / "whole.zarr", tmp_path / "parts.zarr"
    options = ("--solver", "pcg", *factor)
    taken = document(run(*train(pipeline, whole, *options)))
    document(run(*train(pipeline, parts, *options, "--max-passes", 3)), 4)
    assert document(run(*train(pipeline, parts, *options, "--resume")))["resumed"] is True
    assert open_model(parts).alpha.tobytes() == open_model(whole).alpha.tobytes()
    # Where the time went, earlier runs included.
    assert set(taken["seconds_by_part"]) == {"factor", "precondition", "product", "check", "update"}
    assert 0.0 < sum(taken["seconds_by_part"].values()) <= taken["seconds"]


def test_a_checkpoint_of_before_there_was_a_halo_is_resumed_or_refused_in_words(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.zarr", tmp_path / "parts.zarr"
    options = ("--solver", "pcg", "--halo", 0, "--rank", 20)
    document(run(*train(pipeline, whole, *options)))
    stopped = document(run(*train(pipeline, parts, *options, "--max-passes", 3)), 4)
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
    document(run(*train(pipeline, parts, *options, "--resume")))
    assert open_model(parts).alpha.tobytes() == open_model(whole).alpha.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--halo", 0, "--leaf", 30), "a leaf goes with a halo; got --leaf 30 and --halo 0. Leave --leaf out"),
        (("--halo", 0, "--rank", 0), "got --halo 0 and --rank 0. Raise one of them, or"),
        (("--halo", -3), "halo must be 'auto' or at least 0; got -3"),
        (("--rank", 0, "--landmarks", "uniform"), "no landmarks to draw with --rank 0; got --landmarks uniform"),
    ],
)
def test_factors_that_make_no_sense_are_refused(
    pipeline: dict[str, Any], run: Command, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    result = run(*train(pipeline, tmp_path / "model.zarr", "--solver", "pcg", *options)[:-2])
    assert result.exit_code == 3
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_auto_says_what_it_picked_and_why(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hyper = pipeline["ingest"]["train"], pipeline["tune"]["out"]
    result = run("train", store, "--hyper", hyper, "--out", tmp_path / "m.zarr", "--solver", "auto", "--json")
    found = document(result)
    assert (found["solver"], found["auto"]["solver"]) == ("cholesky", "cholesky")
    assert f"the solver is cholesky: {found['auto']['reason']}" in " ".join(result.stderr.split())
    assert open_model(tmp_path / "m.zarr").summary["auto"] == found["auto"]
    # Looked at for the choice, and again for a model that is done: the data are opened once.
    opened: list[str] = []
    for name in ("open_dataset", "read_hyperparameters"):
        function = getattr(own_work, name)
        monkeypatch.setattr(
            own_work, name, lambda *given, f=function, n=name, **named: opened.append(n) or f(*given, **named)
        )
    again = ("--out", tmp_path / "m.zarr", "--solver", "auto", "--resume", "--json")
    assert document(run("train", store, "--hyper", hyper, *again))["certificate"] == found["certificate"]
    assert opened == ["open_dataset", "read_hyperparameters"]


def test_an_automatic_choice_is_made_again_on_resuming(
    run: Command, document: Command, friedman: Callable[[int], Path], tmp_path: Path
) -> None:
    store, hyper = tmp_path / "train.zarr", tmp_path / "hyper.json"
    document(run("ingest", friedman(4200), store, "--target", "price", "--json", "--quiet"))
    document(run("tune", store, "--out", hyper, "--subset", 200, "--json", "--quiet"))
    common = ("train", store, "--hyper", hyper, "--solver", "auto", "--json", "--quiet")
    whole = document(run(*common, "--out", tmp_path / "whole.zarr"))
    assert whole["solver"] == "pcg"
    assert whole["settings"]["preconditioner"]["rank"] == whole["auto"]["rank"] < 2100
    parts = tmp_path / "parts.zarr"
    document(run(*common, "--out", parts, "--max-passes", 2), 4)
    assert document(run(*common, "--out", parts, "--resume"))["resumed"] is True
    assert open_model(parts).alpha.tobytes() == open_model(tmp_path / "whole.zarr").alpha.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--solver", "cg", "--block-size", 50),
            "--block-size belongs to the solvers gbcd, bcdc, bcdg; got --solver cg",
        ),
        (("--solver", "gbcd", "--halo", 50), "--halo belongs to the solver pcg; got --solver gbcd"),
        (("--solver", "cg", "--leaf", 50), "--leaf belongs to the solver pcg; got --solver cg"),
        (("--solver", "gbcd", "--rank", 50), "--rank belongs to the solver pcg; got --solver gbcd"),
        (
            ("--solver", "bcdc", "--variables-per-step", 2),
            "--variables-per-step belongs to the solver gbcd; got --solver bcdc",
        ),
        (("--solver", "smo", "--exhaustive"), "--exhaustive belongs to the solver gbcd; got --solver smo"),
        (
            ("--solver", "cholesky", "--tiles", "t"),
            "--tiles belongs to the solver tiled-cholesky; got --solver cholesky",
        ),
        (("--solver", "kcg", "--memory", 3), "--memory belongs to the solvers gbcd, bcdc, bcdg; got --solver kcg"),
        (("--solver", "pcg", "--landmarks", "best"), "'best' is not one of"),
        (
            ("--rank", 50, "--block-size", 50),
            "--block-size belongs to the solvers gbcd, bcdc, bcdg; got --solver auto",
        ),
    ],
)
def test_options_of_other_solvers_are_refused(
    pipeline: dict[str, Any], run: Command, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    result = run(*train(pipeline, tmp_path / "model.zarr", *options))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_an_interrupted_factorisation_goes_on_from_its_tiles(
    pipeline: dict[str, Any], run: Command, document: Command, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.zarr", tmp_path / "parts.zarr"
    document(run(*train(pipeline, whole, "--solver", "tiled-cholesky")))
    assert not (tmp_path / "whole.zarr.tiles").exists()
    found = document(run(*train(pipeline, parts, "--solver", "tiled-cholesky", "--max-seconds", 1e-9)), 4)
    assert found["converged"] is False
    assert (tmp_path / "parts.zarr.tiles").exists()
    assert document(run(*train(pipeline, parts, "--solver", "tiled-cholesky", "--resume")))["converged"] is True
    assert not (tmp_path / "parts.zarr.tiles").exists()
    assert open_model(parts).alpha.tobytes() == open_model(whole).alpha.tobytes()
