"""Figures of a machine and of a cluster: measured, kept in a file, taken from a benchmark's record."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench.scaling.run import TimedExecutor
from dkgp.bench.tiles import BenchTilesJob, run_bench_tiles
from dkgp.cluster import ClusterOptions, LocalExecutor, open_executor
from dkgp.commands.reporting.documents import dump
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.exact import train
from dkgp.plan.figures import MachineFigures, measure_machine, measure_speedups
from dkgp.plan.network import measure_cluster
from dkgp.plan.record import read_bench, read_figures, with_bench, write_figures

MACHINE = MachineFigures(
    d=3,
    p=1,
    entry_seconds=4e-10,
    entry_double_seconds=1e-9,
    pair_seconds=1.4e-9,
    candidate_seconds=(5e-10, 0.0),
    dense_seconds=(1e-6, 0.0, 8e-12),
    solve_seconds=(0.0, 5e-9),
    vector_seconds=1e-9,
    read_seconds=2e-8,
    speedups=(1.0, 1.5),
)


def test_measured_figures_are_of_the_right_kind(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.plan.figures.SELECTION_SIZES", (50, 100, 200))
    monkeypatch.setattr("dkgp.plan.figures.UPDATE_SHAPE", (1024, 512))
    monkeypatch.setattr("dkgp.plan.figures.LEAST_SECONDS", 0.002)
    dataset = dataset_from_arrays(tmp_path / "d.zarr", rng.standard_normal((500, 3)), rng.standard_normal((500, 2)))
    executor = LocalExecutor(1)
    try:
        found = measure_machine(dataset, SquaredExponential(gamma=(0.3,) * 3), 0.1, executor)
    finally:
        executor.close()
    assert (found.d, found.p) == (3, 2)
    # An entry takes between a hundredth of a nanosecond and a microsecond on anything that runs this.
    for seconds in (found.entry_seconds, found.entry_double_seconds, found.pair_seconds, found.vector_seconds):
        assert 1e-11 < seconds < 1e-6
    assert 0.0 < found.read_seconds < 1e-3
    assert found.dense(400) > found.dense(200) > 0.0
    assert found.solve(400) > found.solve(200) > 0.0
    assert MachineFigures.from_json(json.loads(dump(found.to_json()))) == found


def test_speedups_begin_at_one_and_do_not_fall() -> None:
    speedups = measure_speedups(SquaredExponential(gamma=(1.0, 1.0)), cores=3)
    assert len(speedups) == 3
    assert speedups[0] == 1.0
    assert all(1.0 <= earlier <= later <= 3.0 for earlier, later in itertools.pairwise(speedups))


def test_messages_are_measured_on_a_cluster() -> None:
    with open_executor(ClusterOptions(kind="local", workers=1, threads_per_worker=2), 10) as executor:
        found = measure_cluster(executor)
    assert found.threads == 2
    assert found.worker_resident_bytes > 20e6
    assert all(0.0 < value < 5.0 for name, value in asdict(found.network).items() if name != "bytes_per_second")
    assert found.network.bytes_per_second > 1e6


@pytest.mark.parametrize(
    "damage",
    [
        {"entry_seconds": None},
        {"entry_seconds": 0.0},
        {"pair_seconds": -1.0},
        {"speedups": []},
        {"speedups": [1.0, 0.0]},
        {"dense_seconds": [1.0, float("nan"), 1.0]},
        {"d": "three"},
    ],
)
def test_damaged_figures_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="measure them anew"):
        MachineFigures.from_json({**MACHINE.to_json(), **damage})


def test_figures_are_kept_for_each_number_of_features(tmp_path: Path) -> None:
    path, reporter = str(tmp_path / "machine.json"), SilentReporter()
    assert read_figures(path, 3, 1, reporter) is None
    other = replace(MACHINE, d=8, entry_seconds=9e-10)
    for each in (other, MACHINE, replace(MACHINE, pair_seconds=2e-9)):
        write_figures(path, each)
    assert read_figures(path, 3, 1, reporter) == replace(MACHINE, pair_seconds=2e-9)
    assert read_figures(path, 8, 1, reporter) == other
    assert read_figures(path, 3, 2, reporter) is None
    assert reporter.warnings == []


def test_another_machines_figures_are_used_with_a_warning(tmp_path: Path) -> None:
    path, reporter = tmp_path / "machine.json", SilentReporter()
    write_figures(str(path), MACHINE)
    document = json.loads(path.read_text())
    document["machine"]["processor"] = "abacus"
    path.write_text(json.dumps(document))
    assert read_figures(str(path), 3, 1, reporter) == MACHINE
    assert "abacus" in reporter.warnings[0]
    write_figures(str(path), replace(MACHINE, d=8))
    assert [row["d"] for row in json.loads(path.read_text())["rows"]] == [8]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"command": "tune"}', '{"command": "bench", "rows": 3}'])
def test_other_files_are_no_figures(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match="--figures"):
        read_figures(str(path), 3, 1, SilentReporter())
    with pytest.raises(InputError, match="--bench"):
        read_bench(str(path))
    assert path.read_text() == text


def test_a_record_of_tiles_stands_in_for_entries(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    job = BenchTilesJob(features=(2, 4), rows=256, columns=256, repeats=1, pass_seconds=0.001, out=str(path))
    run_bench_tiles(job, SilentReporter())
    document = json.loads(path.read_text())
    nanoseconds = {("single", 2): 0.4, ("single", 4): 0.8, ("double", 2): 1.0, ("double", 4): 3.0}
    for row in document["rows"]:
        row["dkgp_ns"] = nanoseconds[row["precision"], row["d"]]
    path.write_text(json.dumps(document))
    found = with_bench(MACHINE, read_bench(str(path)))
    assert found.entry_seconds == pytest.approx(0.6e-9)  # d = 3 lies half way
    assert found.entry_double_seconds == pytest.approx(2e-9)
    assert found.pair_seconds == pytest.approx(2 * MACHINE.pair_seconds)
    assert found.candidate_seconds[0] == pytest.approx(1.5 * MACHINE.candidate_seconds[0])
    assert found.dense_seconds == MACHINE.dense_seconds


def test_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_bench(str(tmp_path / "none.json"))
    record = {"command": "bench", "benchmark": "overhead", "rows": [], "machine": {"processor": "x"}}
    (tmp_path / "o.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="dkgp bench overhead"):
        read_bench(str(tmp_path / "o.json"))
    scaling = {"benchmark": "scaling", "settings": {"machine_figures": replace(MACHINE, d=9).to_json()}}
    with pytest.raises(InputError, match="for 9 features"):
        with_bench(MACHINE, scaling)
    scaling["settings"] = {"machine_figures": MACHINE.to_json()}
    assert with_bench(replace(MACHINE, entry_seconds=1.0), scaling) == MACHINE
    for damaged in ({"benchmark": "tiles", "rows": []}, {"benchmark": "tiles", "rows": [{"d": 1}]}):
        with pytest.raises(InputError, match="damaged"):
            with_bench(MACHINE, damaged)


def test_a_timed_executor_changes_nothing_and_sees_every_round(rng: np.random.Generator, tmp_path: Path) -> None:
    X = rng.standard_normal((400, 2))
    dataset = dataset_from_arrays(tmp_path / "d.zarr", X, np.sin(X[:, :1]) + 0.1 * rng.standard_normal((400, 1)))
    kernel, inner = SquaredExponential(gamma=(0.5, 0.5)), LocalExecutor(1)
    timed = TimedExecutor(inner)
    try:
        plain = train(dataset, kernel, 0.05, inner)
        watched = train(dataset, kernel, 0.05, timed)
    finally:
        timed.close()
    assert watched.solution.alpha.tobytes() == plain.solution.alpha.tobytes()
    assert len(timed.spans["kblock"]) == watched.summary["iterations"]
    assert 0.0 < timed.seconds("kblock") < watched.summary["seconds"]
    assert timed.seconds("never") == 0.0


def test_rounds_under_way_together_count_once() -> None:
    timed = TimedExecutor(LocalExecutor(1))
    timed.spans["kpass"] = [(0.0, 2.0), (1.0, 3.0), (1.5, 2.5), (5.0, 6.0)]
    assert timed.seconds("kpass") == pytest.approx(4.0)
    timed.close()
