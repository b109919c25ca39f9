"""`dkgp plan` and `dkgp bench scaling` as commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_dataset, write_friedman1
from dkgp.plan.machine import ClusterFigures, Network
from dkgp.solvers.prices import Prices
from tests.cli.invoke import Places, Shell
from tests.cli.measuring import measure_little
from tests.problem import write_hyper

LOCAL = "--hyper @hyper --cluster local"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A data set, the same one labelled, and hyperparameters."""
    folder = tmp_path_factory.mktemp("plan")
    write_friedman1(folder / "train", None, 300)
    write_hyper(folder / "hyper.json", [0.05] * 10, 0.04)

    def labelled() -> Path:
        data = open_dataset(folder / "train")
        codes, names = (data.all_targets()[:, 0] > 0).astype(float), data.feature_names
        X = data.raw_inputs(0, data.n_samples)
        dataset_from_arrays(folder / "labelled", X, codes, feature_names=names, classes=("high", "low"))
        return folder / "labelled"

    return Places({"train": lambda: folder / "train", "hyper": lambda: folder / "hyper.json", "labelled": labelled})


@pytest.fixture
def shell(places: Places, tmp_path: Path) -> Shell:
    return Shell(tmp_path, places)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_little(monkeypatch)


@pytest.mark.usefixtures("quick")
def test_a_plan_for_1_to_256_workers(shell: Shell) -> None:
    line = f"plan @train {LOCAL} --solver gbcd --block-size 30 --figures @machine.json"
    found = shell.json(f"{line} --plot @plan.png")
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
    assert "more than 1 worker would save" in found["limit"]
    assert shell["plan.png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(shell["machine.json"].read_text())["benchmark"] == "machine"
    # The same figures give the same plan again; other networks another one.
    slow = "--round-trip 0.5 --bandwidth 1MiB --passes 4 --workers 1,3 --threads-per-worker 2"
    again = shell.json(f"{line} {slow}")
    assert again["machine"] == found["machine"]
    assert again["network"]["bytes_per_second"] == 2**20
    assert [row["threads"] for row in again["workers"]] == [2, 6]
    assert again["counts"]["low"] == again["counts"]["expected"] == again["counts"]["high"] == 4.0
    # 4 passes of 300 samples by blocks of 30, and two float64 products, each a round trip at least.
    assert again["workers"][0]["seconds"] > 42 * 0.5
    assert again["workers"][0]["limit"] == "messages"


def test_few_samples_need_no_measurement_of_the_machine(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dkgp.plan.plan.measure_cluster", lambda _: ClusterFigures(Network(1e-3, 1e-3, 1e-4, 5e8), 1, 1, 0)
    )
    monkeypatch.setattr("dkgp.plan.plan.measure_machine", lambda *_: pytest.fail("measured the machine"))
    machine = shell.json(f"plan @train {LOCAL} --workers 1")["machine"]
    assert machine["entries"] == Prices.nominal(10).entries
    assert machine["speedups"][0] == 1.0


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_no_link_is_faster_than_what_the_coordinator_moves(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(1e-3, 1e-3, 1e-4, 5e8)
    monkeypatch.setattr("dkgp.plan.plan.measure_cluster", lambda _: ClusterFigures(network, 1, 2**27, 0))
    line = f"plan @train {LOCAL} --solver gbcd --block-size 30 --workers 1 --bandwidth"
    for bandwidth, expected in (("1GiB", 5e8), ("100MiB", 100 * 2**20)):
        assert shell.json(f"{line} {bandwidth}")["network"]["bytes_per_second"] == expected


FORESEEN = [
    # What is planned besides the exact model, its figures, phases, and words of the table.
    (
        "sparse",
        "train --sparse sggp --basis-size 100",
        {"method": "sggp", "basis": "greedy", "basis_size": 100, "model_bytes": 8 * 100 * (200 + 10 + 1)},
        "reading choice fit algebra",
        "",
    ),
    (
        "sparse",
        "train --sparse sggp --sparse vif --basis-size 20 --neighbours 40",  # the last one counts
        {"method": "vif", "neighbours": 40},
        "reading fit algebra neighbours leaves sums",
        "",
    ),
    (
        "sparse",
        "train --sparse sggp --basis uniform",  # the default is more than there are
        {"basis_size": 300},
        "",
        "sggp, 300 samples (uniform)",
    ),
    (
        "classify",
        "labelled --classify profile --pool 50",
        {"pool": 50, "passes": 4},
        "reading prototypes search paths fit",
        "",
    ),
    ("classify", "labelled --classify profile", {"pool": 300}, "", "300 candidates (k-centre)"),
    (
        "classify",
        "labelled --classify gp --basis-size 20 --neighbours 40",
        {"method": "gp", "basis_size": 20, "neighbours": 40},
        "reading choice neighbours leaves steps",
        "a basis of 20 samples (pivoted), 40 neighbours",
    ),
]


@pytest.mark.usefixtures("quick")
def test_other_models_are_foreseen_beside_the_exact_one(shell: Shell) -> None:
    more = f"{LOCAL} --solver cholesky --figures @machine.json --workers 1,4"
    for kind, options, figures, phases, words in FORESEEN:
        line = f"plan @{options} {more}"
        found = shell.json(line)
        assert found[kind] | figures == found[kind]
        for row in found["workers"]:
            own = row[kind]
            assert not phases or list(own["phases"]) == phases.split()
            assert sum(own["phases"].values()) == pytest.approx(own["seconds"])
        assert not words or words in shell.told(line)
    for options, words in (
        ("train --sparse sggp --memory-limit 1MiB", "is projected to need"),
        ("labelled --classify profile --memory-limit 1MiB", "is projected to need"),
        ("labelled --classify profile --pool 0", "--pool must be at least 1"),
    ):
        shell.refuses(f"plan @{options} {more}", words)


@pytest.mark.spread(2)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("options", "solver", "phases"),
    [
        ("auto", "cholesky", "matrix factor check"),
        ("pcg --halo 0 --rank 40", "pcg", "landmarks factor products application check"),
        ("pcg --rank 0", "pcg", "order factor products application check"),
        ("gbcd", "gbcd", "solve products selection check"),
    ],
)
def test_the_solver_is_the_one_that_train_would_take(shell: Shell, options: str, solver: str, phases: str) -> None:
    found = shell.json(f"plan @train {LOCAL} --workers 1 --solver {options} --cache-tiles none")
    assert found["solver"] == solver
    assert (found["auto"] is not None) == (options == "auto")
    assert set(found["workers"][0]["phases"]) == {"reading", *phases.split()}


@pytest.mark.usefixtures("quick")
def test_tables_say_what_the_document_says(shell: Shell) -> None:
    result = shell.run(f"plan @train {LOCAL} --workers 1,16 --passes 4 --solver gbcd")
    assert result.exit_code == 0, result.stderr
    for words in ("passes", "4.0", "worker", "More than 1 worker would save less than a tenth of the time"):
        assert words in result.stdout
    assert "A product with" not in result.stdout


@pytest.mark.usefixtures("quick")
def test_one_process_may_hold_a_whole_factor_for_variances(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.plan.foreseen.whole_memory_bytes", lambda *sizes: 2**40)
    line = f"plan @train {LOCAL} --workers 1,2 --passes 4 --variance --test-samples 50"
    apart, together = (
        [row["variance"]["worker_memory_bytes"] for row in shell.json(f"{line}{flag}")["workers"]]
        for flag in ("", " --one-machine")
    )
    assert together[0] > 2**40 > together[1]
    assert max(apart) < 2**40


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_variances_and_kept_tiles_are_foreseen(shell: Shell) -> None:
    solver = f"plan @train {LOCAL} --workers 1,2 --solver pcg --halo 0 --rank 40 --passes 9"
    line = f"{solver} --cache-tiles 100KiB --variance --test-samples 50 --variance-rank 30 --max-passes 4"
    found = shell.json(line)
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
    shown = shell.run(line)
    assert shown.exit_code == 0, shown.stderr
    words = "A product with|Kept in memory between products|saved|Variances|in float64|sample in a batch"
    for word in (*words.split("|"), "30, 0"):
        assert word in shown.stdout
    none = shell.run(f"{solver} --cache-tiles none").stdout
    assert "Kept in memory" not in none
    assert "Variances" not in none


def test_data_and_figures_that_cannot_be_planned_with(shell: Shell, rng: np.random.Generator) -> None:
    assert shell.run("plan @none").exit_code == 3
    dataset_from_arrays(shell["d"], rng.standard_normal((30, 2)), None)
    shell.refuses("plan @d", "no targets")
    shell["mine.json"].write_text('{"mine": 1}')
    shell.refuses("plan @train --hyper @hyper --figures @mine.json", "no record")
    assert shell["mine.json"].read_text() == '{"mine": 1}'


@pytest.mark.slow
def test_a_plan_is_compared_with_real_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.plan.validation.WORKERS", (1,))
    line = "plan @train --hyper @hyper --solver gbcd --block-size 50 --workers 1,2 --validate"
    found = shell.json(line)["validation"]
    assert [row["workers"] for row in found["rows"]] == [1]
    assert found["taken"] > 1.0
    for row in found["rows"]:
        assert row["product_seconds"] > 0.0
        assert row["ceiling"] > 0.3
        assert 50e6 < row["worker_peak_bytes"] < 1.2 * row["worker_memory_bytes"]


@pytest.mark.slow
def test_scaling_measures_workers_beside_the_ceiling(shell: Shell) -> None:
    found = shell.json("bench scaling --data @train --samples 200 --hyper @hyper --repeats 1 --out @scaling.json")
    assert [row["workers"] for row in found["rows"]] == [1, 2]
    assert found["rows"][0]["product_speedup"] == 1.0
    assert found["figures"]["ceiling"] > 0.3
    assert json.loads(shell["scaling.json"].read_text())["settings"]["machine_figures"]["d"] == 10
    # What was measured for scaling serves a plan.
    plan = shell.json("plan @train --hyper @hyper --bench @scaling.json --workers 1")
    assert plan["machine"] == found["settings"]["machine_figures"]
