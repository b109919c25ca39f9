"""A file to predictions by the commands alone, each with its document; every solver; and the demo."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.commands import chained as demo
from dkgp.commands import run as run_module
from dkgp.commands import training
from dkgp.commands.chained import DemoJob
from dkgp.data import CheckpointStore, open_dataset, open_model, open_prediction
from dkgp.models import read_hyperparameters
from tests.cli.invoke import Shell, document_of, files_below, run, run_json

ROOT = Path(__file__).parents[2]
TRAIN = "train @train --hyper @hyper --out @m"


def test_ingest_splits(pipeline: dict[str, Any]) -> None:
    document = pipeline["ingest"]
    assert (document["n_train"], document["n_test"], document["d"], document["p"]) == (600, 200, 6, 1)
    assert open_dataset(document["train"]).fingerprint == document["fingerprint"]
    assert document["targets"] == ["price"]


def test_tune_writes_what_it_prints(pipeline: dict[str, Any]) -> None:
    document = pipeline["tune"]
    found = read_hyperparameters(document["out"], n_features=6)
    assert found.noise_variance == document["noise_variance"]
    assert found.subset_size == 200
    # The sixth feature plays no part.
    assert document["kernel"]["gamma"][5] < 0.1 * min(document["kernel"]["gamma"][:3])


def test_train_document_is_complete_and_true(pipeline: dict[str, Any]) -> None:
    document = pipeline["train"]
    expected = {"n", "d", "solver", "converged", "iterations", "column_passes", "kernel_evaluations", "seconds"}
    expected |= {"gradient_inf_norm", "relative_residual", "objective", "peak_memory_bytes"}
    assert expected <= document.keys()
    assert document["converged"] is True
    assert document["solver"] == "gbcd"
    assert document["peak_memory_bytes"] > 50e6
    # The gradient by an independent dense computation.
    model, found = open_model(document["out"]), read_hyperparameters(pipeline["tune"]["out"])
    dataset = open_dataset(pipeline["ingest"]["train"])
    X, y = dataset.inputs(0, 600), dataset.targets(0, 600)
    K = found.kernel(X, X) + found.noise_variance * np.eye(600)
    gradient = K @ model.alpha - y
    assert document["gradient_inf_norm"] == pytest.approx(np.abs(gradient).max(), rel=1e-6)
    assert document["gradient_inf_norm"] <= 1e-4
    exact = scipy.linalg.cho_solve(scipy.linalg.cho_factor(K), y)
    assert np.linalg.norm(model.alpha - exact) <= document["certificate"]["alpha_error_bound"][0]


def test_train_logs_every_round(pipeline: dict[str, Any]) -> None:
    document = pipeline["train"]
    records = [json.loads(line) for line in Path(document["log_json"]).read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, document["iterations"] + 1))
    assert records[-1]["gradient_inf_norm"] < records[0]["gradient_inf_norm"]


def test_train_leaves_no_checkpoint_behind(pipeline: dict[str, Any]) -> None:
    assert pipeline["train"]["checkpoint"] is None
    assert not list(pipeline["folder"].glob("*.checkpoint"))


def test_plots_are_images(pipeline: dict[str, Any]) -> None:
    for document in (pipeline["train"], pipeline["evaluate"]):
        assert Path(document["plot"]).read_bytes().startswith(b"\x89PNG")


def test_evaluate_agrees_with_the_definition(pipeline: dict[str, Any]) -> None:
    test = open_dataset(pipeline["ingest"]["test"])
    prediction = open_prediction(pipeline["predict"]["out"])
    error = prediction.read("mean") - test.targets(0, 200, standardised=False)
    rmse = np.sqrt(np.mean(error**2)) / test.standardisation.target_std[0]
    assert pipeline["evaluate"]["rmse"] == pytest.approx(rmse)
    assert pipeline["evaluate"]["rmse"] < 0.4


def test_tables_go_to_standard_output_and_progress_does_not(shell: Shell) -> None:
    result = shell.run(f"{TRAIN} --block-size 100")
    assert result.exit_code == 0
    assert "largest residual" in result.stdout
    assert "relative residual" not in result.stdout
    assert "running without Dask" not in result.stdout
    assert "running without Dask" in result.stderr


@pytest.mark.slow
def test_several_targets_and_separate_test_data(shell: Shell, rng: np.random.Generator) -> None:
    for name, n in (("a", 300), ("b", 80)):
        X = rng.random((n, 3))
        # Noise of the same share of both deviations, since targets share their hyperparameters.
        Y = np.column_stack([np.sin(4 * X[:, 0]), 10 * X[:, 1] * X[:, 2]])
        Y += [0.05, 0.22] * rng.standard_normal((n, 2))
        np.savetxt(shell[f"{name}.csv"], np.column_stack([X, Y]), delimiter=",", header="a,b,c,u,v", comments="")
        shell.json(f"ingest @{name}.csv @{name} --target u --target v")
    shell.json("tune @a --out @h.json")
    assert shell.json("train @a --out @m --hyper @h.json")["p"] == 2
    shell.json("predict @m @b --out @p --variance")
    evaluated = shell.json("evaluate @p @b --plot @fit.png")
    assert set(evaluated["per_target"]) == {"u", "v"}
    assert all(errors["rmse"] < 0.3 and errors["coverage_95"] > 0.88 for errors in evaluated["per_target"].values())
    shown = shell.run("evaluate @p @b")
    assert shown.exit_code == 0
    assert re.search(r"^target +RMSE +MAE +R² +NLPD\b.* coverage", shown.stdout, re.MULTILINE)


def test_warm_start_from_the_solution_needs_no_round(pipeline: dict[str, Any], shell: Shell) -> None:
    line = "train @train --warm-start @model --hyper"
    trained = shell.json(f"{line} @hyper --out @m --by-reference")
    # The gradient that the model knows is taken at its word to go on from, and confirmed where that is the end.
    assert (trained["iterations"], trained["refreshes"]) == (0, 1)
    assert trained["kernel_evaluations"] < 600 * 600
    assert trained["gradient_inf_norm"] == pytest.approx(pipeline["train"]["gradient_inf_norm"], rel=1e-6)
    # That of another kernel it does not know.
    other = json.loads(shell["hyper"].read_text())
    shell["h.json"].write_text(json.dumps({**other, "noise_variance": 1.001 * other["noise_variance"]}))
    moved = shell.json(f"{line} @h.json --out @other")
    assert moved["iterations"] > 0
    assert moved["kernel_evaluations"] > 600 * 600
    assert open_model(shell["m"]).by_reference
    np.testing.assert_array_equal(open_model(shell["m"]).alpha, open_model(shell["model"]).alpha)


@pytest.mark.parametrize(
    ("name", "kind", "n"), [("train", "dataset", 600), ("model", "model", 600), ("prediction", "prediction", 200)]
)
def test_info_tells_what_a_store_is(shell: Shell, name: str, kind: str, n: int) -> None:
    described = shell.json(f"info @{name}")
    assert (described["kind"], described["n"]) == (kind, n)
    assert shell.run(f"info @{name}").exit_code == 0


def test_info_of_a_hyperparameter_file_and_of_the_installation(shell: Shell) -> None:
    assert shell.json("info @hyper")["kind"] == "hyperparameters"
    installation = run_json("info")
    assert installation["kind"] == "installation"
    assert installation["packages"]["numpy"] == np.__version__
    assert run("info").exit_code == 0


# ------------------------------------------------------------------------------------------------------------- solvers


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "options",
    [
        *("bcdc", "bcdg", "smo", "cg", "pcg", "kcg", "cholesky", "tiled-cholesky"),
        "bcdc --block-size 300 --memory 5",
        "bcdg --block-size 300 --memory 5",
        # Exhaustive selection is that of tests/solvers, and takes as long as all others.
        pytest.param("gbcd --block-size 60 --exhaustive", marks=pytest.mark.slow),
        "gbcd --block-size 60 --prefitting --memory 0",
        "gbcd --block-size 60 --precision double",
    ],
)
def test_every_solver_and_setting_comes_to_the_same_model(pipeline: dict[str, Any], shell: Shell, options: str) -> None:
    found, solver = shell.json(f"{TRAIN} --quiet --solver {options}"), options.split()[0]
    assert found["converged"] is True
    assert found["solver"] == solver
    assert found["gradient_inf_norm"] <= 1e-4
    assert found["objective"] == pytest.approx(pipeline["train"]["objective"], rel=1e-6)
    if solver == "pcg":
        parts = found["seconds_by_part"]
        assert set(parts) == {"factor", "precondition", "product", "check", "update"}
        assert 0.0 < sum(parts.values()) <= found["seconds"]
    expected = open_model(shell["model"]).alpha
    # Both gradients are below the tolerance: by sqrt(n) times that over s2 at most from one another.
    bound = 2e-4 * np.sqrt(len(expected)) / pipeline["tune"]["noise_variance"]
    assert np.linalg.norm(open_model(shell["m"]).alpha - expected) <= bound


@pytest.mark.long
def test_tiles_are_kept_as_far_as_is_said_and_change_nothing(pipeline: dict[str, Any], shell: Shell) -> None:
    line = "train @train --hyper @hyper --solver cg --cluster none --cache-tiles"
    found = {said: shell.json(f"{line} {said} --out @{said} --quiet") for said in ("none", "300KiB", "1GiB", "auto")}
    for said in found:
        np.testing.assert_array_equal(open_model(shell[said]).alpha, open_model(shell["none"]).alpha)
    n = found["none"]["n"]
    planned = {said: result["memory_plan"]["tiles_bytes"] for said, result in found.items()}
    assert (planned["none"], planned["300KiB"]) == (0, 300 * 1024)
    # No more than is of use, and of use it is to solvers of products alone.
    assert 2 * n**2 < planned["1GiB"] < 2**30
    assert pipeline["train"]["memory_plan"]["tiles_bytes"] == 0
    shares = [found[said]["kept_share"] for said in ("none", "300KiB", "1GiB")]
    assert shares[0] == 0.0 < shares[1] < shares[2] == 1.0
    assert found["1GiB"]["kernel_evaluations"] < found["none"]["kernel_evaluations"]
    kept = {said: result["kept_tiles"] for said, result in found.items()}
    assert kept["none"] == {"bytes": 0, "reason": ""}
    assert kept["300KiB"] == {"bytes": kept["300KiB"]["bytes"], "reason": "as requested"}
    assert 0 < kept["300KiB"]["bytes"] <= 300 * 1024 < kept["1GiB"]["bytes"] == 4 * round(kept["1GiB"]["bytes"] / 4)
    assert kept["auto"]["reason"]
    shown = shell.run(f"{line} 1GiB --out @1GiB --overwrite --verbose").stdout
    for words in ("share of the kernel matrix kept in memory", "100%", ": as requested"):
        assert words in shown


@pytest.mark.long
def test_methods_of_the_paper_are_as_they_are_there(shell: Shell) -> None:
    def settings(options: str, name: str) -> Any:
        found = shell.json(f"{TRAIN} --max-passes 1 --block-size 60 --overwrite {options}", code=4)
        # A block of a tenth, once around: three squares for candidates beside the one of its columns.
        assert "--variables-per-step" not in options or 3.5 < found["kernel_evaluations"] / found["n"] ** 2 < 5.5
        return found["settings"][name]

    for options, name, value in (
        ("--solver bcdc", "memory", 0),
        ("--solver bcdg", "memory", 0),
        ("--solver bcdc --memory 2", "memory", 2),
        ("", "memory", 5),
        ("", "variables_per_step", None),
        ("--variables-per-step 1", "variables_per_step", 1),
        ("--exhaustive", "variables_per_step", 1),
    ):
        assert settings(options, name) == value
    table = shell.run(f"{TRAIN} --block-size 60 --overwrite --verbose").stdout
    assert "kernel entries evaluated" in table
    assert "times the whole matrix" in table


def test_solvers_that_are_compared_and_stopped_otherwise(shell: Shell) -> None:
    found = shell.json(f"{TRAIN} --solver paramcg --max-passes 20", code=4)
    assert (found["column_passes"], found["iterations"]) == (20, 10)
    found = shell.json(f"{TRAIN} --solver kcg --duality-gap 0.01 --overwrite")
    assert found["converged"] is True
    assert "duality gap" in found["reason"]
    assert found["gradient_inf_norm"] > 1e-4


def test_a_checkpoint_of_before_there_was_a_halo_is_resumed_or_refused_in_words(shell: Shell) -> None:
    line = f"{TRAIN} --solver pcg --halo 0 --rank 20"
    shell.json(line.replace("@m", "@whole"))
    store = CheckpointStore(shell.json(f"{line} --max-passes 3", code=4)["checkpoint"])
    latest = store.load_latest()
    metadata = latest.metadata
    # As such a version wrote it.
    factor = {"rank": 20, "landmarks": "pivoted", "memory_bytes": 1024**3, "seed": 0}
    assert metadata["solver"] == {"solver": "pcg", "precision": "mixed", "preconditioner": factor}
    del metadata["state"]["level"], metadata["state"]["norms"], metadata["loop"]["foresight"]
    store.clear()
    store.save(latest.sequence_number, latest.arrays, metadata)
    written = "(--solver pcg, --halo 0, --rank 20)"
    for other in ("--rank 20", "--halo 24", "--halo 0 --rank 30"):
        words = ("belongs to another preconditioner", f"Resume with the options that it was written with {written}")
        shell.refuses(f"{TRAIN} --solver pcg {other} --resume", *words)
    shell.refuses(f"{TRAIN} --solver gbcd --resume", "another solver", written)
    shell.json(f"{line} --resume")
    assert open_model(shell["m"]).alpha.tobytes() == open_model(shell["whole"]).alpha.tobytes()


def test_auto_says_what_it_picked_and_why(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    result = shell.run(f"{TRAIN} --solver auto --json -v")
    found = document_of(result)
    assert (found["solver"], found["auto"]["solver"]) == ("cholesky", "cholesky")
    assert f"the solver is cholesky: {found['auto']['reason']}" in " ".join(result.stderr.split())
    assert open_model(shell["m"]).summary["auto"] == found["auto"]
    # Looked at for the choice, and again for a model that is done: the data are opened once.
    opened: list[str] = []
    for module, name in ((run_module, "open_dataset"), (training, "read_hyperparameters")):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, f=function, n=name, **named: opened.append(n) or f(*given, **named)
        )
    assert shell.json(f"{TRAIN} --solver auto --resume")["certificate"] == found["certificate"]
    assert opened == ["open_dataset", "read_hyperparameters"]


def test_an_automatic_choice_is_made_again_on_resuming(friedman: Callable[[int], Path], shell: Shell) -> None:
    shell.json(f"ingest {friedman(4200)} @d --target price --quiet")
    shell.json("tune @d --out @h.json --subset 200 --quiet")
    line = "train @d --hyper @h.json --solver auto --quiet --out"
    whole = shell.json(f"{line} @whole")
    assert whole["solver"] == "pcg"
    assert whole["settings"]["preconditioner"]["rank"] == whole["auto"]["rank"] < 2100
    shell.json(f"{line} @parts --max-passes 2", code=4)
    assert shell.json(f"{line} @parts --resume")["resumed"] is True
    assert open_model(shell["parts"]).alpha.tobytes() == open_model(shell["whole"]).alpha.tobytes()


# ---------------------------------------------------------------------------------------------------------------- demo


@pytest.mark.long
def test_demo_from_nothing_and_again(shell: Shell) -> None:
    line, folder = "demo --out @demo --samples 300 --test-samples 100", shell["demo"]
    first = shell.json(line)
    assert first["converged"] is True
    assert first["rmse"] < 0.3
    assert first["kernel_matrix_bytes"] == 8 * 300 * 300
    # The test targets are noise-free: what has to cover them is the function's own variance.
    assert first["evaluation"]["noise_free"] is True
    assert open_prediction(str(folder / "prediction.zarr")).attributes["variance"]["latent"] is True
    assert 0.8 < first["coverage_95"] <= 1.0
    assert first["nlpd"] < 0.0
    assert 0.0 <= first["variance_gap_mean"] <= first["variance_gap_max"] < 1.0
    assert first["variance_unmet"] == first["predict"]["variance"]["unmet"]
    assert json.loads((folder / "demo.json").read_text())["nlpd"] == first["nlpd"]
    assert Path(first["plot"]).read_bytes().startswith(b"\x89PNG")
    assert set(first["seconds_by_phase"]) == {"generate", "tune", "train", "predict", "evaluate", "plot"}
    second = shell.json(line)
    assert (second["rmse"], second["nlpd"]) == (first["rmse"], first["nlpd"])


def test_a_demo_without_matplotlib_has_all_but_its_picture(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    monkeypatch.setattr("dkgp.commands.reporting.plots.importlib.util.find_spec", lambda name: None)
    result = shell.run("demo --out @demo --samples 200 --test-samples 50")
    assert result.exit_code == 0, result.stderr
    assert "pip install 'dkgp[plot]'. The demo continues without a plot" in " ".join(result.stderr.split())
    assert "RMSE" in result.stdout
    assert not (shell["demo"] / "demo.png").exists()
    assert json.loads((shell["demo"] / "demo.json").read_text())["plot"] is None


@pytest.mark.slow
def test_a_demo_that_was_killed_goes_on(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    line, out = "demo --samples 400 --test-samples 100 --solver cg --out", shell["demo"]
    whole = shell.json(f"{line} @whole")
    with monkeypatch.context() as patch:
        patch.setattr(
            "dkgp.commands.predict.run.PredictRun", lambda job, reporter: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert shell.run(f"{line} @demo").exit_code == 130
    begun = json.loads((out / "demo.json").read_text())
    assert begun["finished"] is False
    assert set(begun["phases"]) == {"generate", "tune", "train"}
    # As if it had been killed in the middle of training: the model is not there, and its checkpoint is.
    del begun["phases"]["train"]
    (out / "demo.json").write_text(json.dumps(begun))
    written = (out / "train.zarr" / "zarr.json").stat().st_mtime_ns
    shell.refuses(f"{line} @demo --seed 1 --resume", "has another seed (its seed: 0; this run's: 1)")
    found = shell.json(f"{line} @demo --resume")
    assert (out / "train.zarr" / "zarr.json").stat().st_mtime_ns == written
    assert (found["rmse"], found["nlpd"], found["iterations"]) == (whole["rmse"], whole["nlpd"], whole["iterations"])
    assert found["seconds_by_phase"]["generate"] == begun["seconds_by_phase"]["generate"]
    assert found["seconds_by_phase"]["predict"] > begun["seconds_by_phase"]["predict"] > 0.0
    # Once more, there is nothing left to do; and nothing to go on with elsewhere.
    assert shell.json(f"{line} @demo --resume") == found
    assert "there is no demo in" in shell.run(f"{line} @new --resume").stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_passes_its_arguments_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[DemoJob] = []
    monkeypatch.setattr(
        demo, "run_demo", lambda job, reporter: jobs.append(job) or {"command": "demo", "converged": True}
    )
    wanted = "--solver gbcd --samples 400 --test-samples 50 --json"
    variables = [f"DEMO_OUTPUT={tmp_path / 'made'}", f"DEMO_ARGS={wanted}"]
    printed = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "--directory", ROOT, "demo", *variables],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    program, *arguments = shlex.split(printed.strip().splitlines()[-1])
    assert program.endswith("/bin/dkgp")
    assert " ".join(arguments).endswith(wanted)
    run_json(*arguments)
    (job,) = jobs
    assert (job.solver.solver, job.n, job.n_test, job.out) == ("gbcd", 400, 50, str(tmp_path / "made"))


def test_demo_leaves_the_stores_of_others_alone(shell: Shell) -> None:
    shutil.copytree(shell["train"], shell["train.zarr"])
    before = files_below(shell.folder)
    shell.refuses(f"demo --out {shell.folder} --samples 400", "already exists")
    assert files_below(shell.folder) == before
