"""`dkgp plan` and `dkgp bench scaling` as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_dataset, write_friedman1
from dkgp.plan.machine import ClusterFigures, Network
from tests.cli.invoke import document_of, refused, run, run_json
from tests.cli.measuring import measure_little


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset store and hyperparameters."""
    folder = tmp_path_factory.mktemp("plan")
    write_friedman1(folder / "train.zarr", None, 300)
    hyper = {"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}
    (folder / "hyper.json").write_text(json.dumps(hyper))
    return folder / "train.zarr", folder / "hyper.json"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_little(monkeypatch)


@pytest.mark.usefixtures("quick")
def test_a_plan_for_1_to_256_workers(problem: tuple[Path, Path], tmp_path: Path) -> None:
    train, hyper = problem
    figures, plot = tmp_path / "machine.json", tmp_path / "plan.png"
    options = ("--hyper", hyper, "--cluster", "local", "--solver", "gbcd", "--block-size", 30, "--figures", figures)
    result = run("plan", train, *options, "--plot", plot, "--json")
    found = document_of(result)
    assert [row["workers"] for row in found["workers"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert (found["n"], found["d"], found["p"], found["solver"]) == (300, 10, 1, "gbcd")
    assert found["settings"]["block_size"] == 30
    counts = found["counts"]
    assert counts["unit"] == "column passes"
    assert 0.0 < counts["low"] < counts["expected"] < counts["high"]
    for row in found["workers"]:
        assert 0.0 < row["seconds_low"] < row["seconds"] < row["seconds_high"]
        assert sum(row["phases"].values()) == pytest.approx(row["seconds"])
        assert row["worker_hours"] == pytest.approx(row["workers"] * row["seconds"] / 3600)
        assert row["worker_memory_bytes"] > found["memory_plan"]["worker_bytes"]
        assert row["coordinator_memory_bytes"] == found["memory_plan"]["coordinator_bytes"]
    assert found["most_useful_workers"] == 1
    assert "beyond 1 worker " in found["limit"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert json.loads(figures.read_text())["benchmark"] == "machine"
    # The same figures give the same plan again; other networks another one.
    slow = ("--round-trip", 0.5, "--bandwidth", "1MiB", "--passes", 4, "--workers", "1,3", "--threads-per-worker", 2)
    again = run_json("plan", train, *options, *slow)
    assert again["machine"] == found["machine"]
    assert again["network"]["bytes_per_second"] == 2**20
    assert [row["threads"] for row in again["workers"]] == [2, 6]
    assert again["counts"]["low"] == again["counts"]["expected"] == again["counts"]["high"] == 4.0
    # 4 passes of 300 samples by blocks of 30, and two float64 products, each a round trip at least.
    assert again["workers"][0]["seconds"] > 42 * 0.5
    assert again["workers"][0]["limit"] == "messages"


@pytest.mark.usefixtures("quick")
def test_no_link_is_faster_than_what_the_coordinator_moves(
    problem: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, hyper = problem
    network = Network(1e-3, 1e-3, 1e-4, 5e8)
    monkeypatch.setattr("dkgp.plan.plan.measure_cluster", lambda _: ClusterFigures(network, 1, 2**27, 0))
    options = ("--hyper", hyper, "--cluster", "local", "--solver", "gbcd", "--block-size", 30, "--workers", 1)
    for bandwidth, expected in (("1GiB", 5e8), ("100MiB", 100 * 2**20)):
        found = run_json("plan", train, *options, "--bandwidth", bandwidth)
        assert found["network"]["bytes_per_second"] == expected


@pytest.mark.usefixtures("quick")
def test_a_sparse_model_is_foreseen_beside_the_exact_one(problem: tuple[Path, Path], tmp_path: Path) -> None:
    train, hyper = problem
    options = ("--hyper", hyper, "--cluster", "local", "--solver", "cholesky", "--figures", tmp_path / "machine.json")
    options += ("--workers", "1,4", "--sparse", "sggp")
    found = run_json("plan", train, *options, "--basis-size", 100)
    assert (found["sparse"]["method"], found["sparse"]["basis"], found["sparse"]["basis_size"]) == (
        "sggp",
        "greedy",
        100,
    )
    assert found["sparse"]["model_bytes"] == 8 * 100 * (200 + 10 + 1)
    for row in found["workers"]:
        own = row["sparse"]
        assert list(own["phases"]) == ["reading", "choice", "fit", "algebra"]
        assert sum(own["phases"].values()) == pytest.approx(own["seconds"])
    # The last one counts.
    near = run_json("plan", train, *options, "--sparse", "vif", "--basis-size", 20, "--neighbours", 40)
    assert near["sparse"]["neighbours"] == 40
    assert list(near["workers"][0]["sparse"]["phases"]) == ["reading", "fit", "algebra", "neighbours", "leaves", "sums"]
    shown = run("plan", train, *options, "--basis", "uniform")
    assert "sggp, 300 samples (uniform)" in " ".join(shown.stdout.split())  # the default is more than there are
    refused(run("plan", train, *options, "--memory-limit", "1MiB"), "is projected to need")


@pytest.mark.usefixtures("quick")
def test_a_classifier_is_foreseen_beside_the_exact_model(problem: tuple[Path, Path], tmp_path: Path) -> None:
    train, hyper = problem
    labelled, dataset = tmp_path / "labelled.zarr", open_dataset(train)
    names = dataset.feature_names
    codes = (dataset.all_targets()[:, 0] > 0).astype(float)
    X = dataset.raw_inputs(0, dataset.n_samples)
    dataset_from_arrays(labelled, X, codes, feature_names=names, classes=("high", "low"))
    options = ("--hyper", hyper, "--cluster", "local", "--solver", "cholesky", "--figures", tmp_path / "machine.json")
    options += ("--workers", "1,4", "--classify", "profile")
    found = run_json("plan", labelled, *options, "--pool", 50)
    assert (found["classify"]["pool"], found["classify"]["passes"]) == (50, 4)
    for row in found["workers"]:
        own = row["classify"]
        assert list(own["phases"]) == ["reading", "prototypes", "search", "paths", "fit"]
        assert sum(own["phases"].values()) == pytest.approx(own["seconds"])
    shown = " ".join(run("plan", labelled, *options).stdout.split())
    assert f"{dataset.n_samples} to choose among (k-centre)" in shown  # the default is more than there are
    near = ("--classify", "gp", "--basis-size", 20, "--neighbours", 40)
    found = run_json("plan", labelled, *options, *near)
    assert (found["classify"]["method"], found["classify"]["basis_size"], found["classify"]["neighbours"]) == (
        "gp",
        20,
        40,
    )
    assert list(found["workers"][0]["classify"]["phases"]) == ["reading", "choice", "neighbours", "leaves", "steps"]
    shown = run("plan", labelled, *options, *near)
    assert "a basis of 20 samples (pivoted), 40 neighbours" in " ".join(shown.stdout.split())
    refused(run("plan", labelled, *options, "--pool", 0), "--pool must be at least 1")
    refused(run("plan", labelled, *options, "--memory-limit", "1MiB"), "is projected to need")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("options", "solver", "phases"),
    [
        ((), "cholesky", {"matrix", "factor", "check"}),
        (
            ("--solver", "pcg", "--halo", 0, "--rank", 40),
            "pcg",
            {"landmarks", "factor", "products", "application", "check"},
        ),
        (("--solver", "pcg", "--rank", 0), "pcg", {"order", "factor", "products", "application", "check"}),
        (("--solver", "gbcd"), "gbcd", {"solve", "products", "selection", "check"}),
    ],
)
def test_the_solver_is_the_one_that_train_would_take(
    options: tuple[Any, ...], solver: str, phases: set[str], problem: tuple[Path, Path]
) -> None:
    train, hyper = problem
    given = (*(options or ("--solver", "auto")), "--cache-tiles", "none")
    found = run_json("plan", train, "--hyper", hyper, "--cluster", "local", "--workers", 1, *given)
    assert found["solver"] == solver
    assert (found["auto"] is not None) == (not options)
    assert set(found["workers"][0]["phases"]) == {"reading"} | phases


@pytest.mark.usefixtures("quick")
def test_tables_say_what_the_document_says(problem: tuple[Path, Path]) -> None:
    train, hyper = problem
    result = run(
        "plan", train, "--hyper", hyper, "--cluster", "local", "--workers", "1,16", "--passes", 4, "--solver", "gbcd"
    )
    assert result.exit_code == 0, result.stderr
    for words in ("passes", "4.0", "worker-hours", "Beyond 1 worker less than a tenth is saved"):
        assert words in result.stdout
    assert "A product with" not in result.stdout


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_variances_and_kept_tiles_are_foreseen(problem: tuple[Path, Path]) -> None:
    train, hyper = problem
    solver = ("--hyper", hyper, "--cluster", "local", "--workers", "1,2", "--solver", "pcg", "--halo", 0, "--rank", 40)
    options = ("--cache-tiles", "100KiB", "--variance", "--test-samples", 50, "--variance-rank", 30, "--max-passes", 4)
    result = run("plan", train, *solver, *options, "--passes", 9, "--json")
    found = document_of(result)
    variance = found["variance"]
    assert (variance["tests"], variance["rank"], variance["max_passes"]) == (50, 30, 4.0)
    assert found["settings"]["preconditioner"]["rank"] == 40  # the solver's
    assert variance["products_float64"]["high"] <= 4.0
    for row in found["workers"]:
        tiles, own = row["tiles"], row["variance"]
        assert tiles["bytes"] <= 100 * 2**10
        assert tiles["product_seconds"] > 0.0
        assert 0.0 < own["seconds_low"] <= own["seconds"] <= own["seconds_high"]
        assert sum(own["phases"].values()) == pytest.approx(own["seconds"])
        assert own["worker_memory_bytes"] > variance["factor_bytes"]
        product = row["product"]
        assert product["seconds"] == pytest.approx(tiles["product_seconds"])
        longer = max(product["computing_seconds"], product["scheduling_seconds"] + product["moving_seconds"])
        assert product["seconds"] == pytest.approx(longer + product["ends_seconds"] + product["adding_seconds"])
        assert product["tasks"] >= row["workers"]
        assert product["moved_bytes"] >= 2 * 300 * 8  # out once, back once
    one, two = (row["tiles"]["share"] for row in found["workers"])
    assert 0.0 < one < two <= 1.0
    assert "first product" in found["workers"][0]["phases"]
    shown = run("plan", train, *solver, *options, "--passes", 9)
    assert shown.exit_code == 0, shown.stderr
    assert "A product with the matrix" in shown.stdout
    for words in (
        "Kept between products",
        "saved",
        "Variances",
        "products in float64",
        "samples a",
        "a batch on",
        "30, 0",
    ):
        assert words in shown.stdout
    none = run("plan", train, *solver, "--cache-tiles", "none", "--passes", 9)
    assert "Kept between" not in none.stdout
    assert "Variances" not in none.stdout


def test_data_that_cannot_be_planned_for(tmp_path: Path, rng: np.random.Generator) -> None:
    assert run("plan", tmp_path / "none.zarr").exit_code == 3
    dataset_from_arrays(tmp_path / "d.zarr", rng.standard_normal((30, 2)), None)
    refused(run("plan", tmp_path / "d.zarr"), "no targets")


def test_a_figures_file_that_is_something_else_is_left_alone(problem: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"mine": 1}')
    refused(run("plan", problem[0], "--hyper", problem[1], "--figures", tmp_path / "mine.json"), "no record")
    assert (tmp_path / "mine.json").read_text() == '{"mine": 1}'


@pytest.mark.slow
def test_a_plan_is_compared_with_real_runs(problem: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    train, hyper = problem
    monkeypatch.setattr("dkgp.plan.validation.WORKERS", (1,))
    options = ("--hyper", hyper, "--solver", "gbcd", "--block-size", 50, "--workers", "1,2", "--validate")
    found = run_json("plan", train, *options)["validation"]
    assert [row["workers"] for row in found["rows"]] == [1]
    assert found["taken"] > 1.0
    for row in found["rows"]:
        assert row["product_seconds"] > 0.0
        assert row["ceiling"] > 0.3
        assert 50e6 < row["worker_peak_bytes"] < 1.2 * row["worker_memory_bytes"]


@pytest.mark.slow
def test_scaling_measures_workers_beside_the_ceiling(problem: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "scaling.json"
    options = ("--data", problem[0], "--samples", 200, "--hyper", problem[1], "--repeats", 1, "--out", out)
    found = run_json("bench", "scaling", *options)
    assert [row["workers"] for row in found["rows"]] == [1, 2]
    assert found["rows"][0]["product_speedup"] == 1.0
    assert found["figures"]["ceiling"] > 0.3
    assert json.loads(out.read_text())["settings"]["machine_figures"]["d"] == 10
    # What was measured for scaling serves a plan.
    plan = run("plan", problem[0], "--hyper", problem[1], "--bench", out, "--workers", 1, "--json")
    assert document_of(plan)["machine"] == found["settings"]["machine_figures"]
