"""Figures of a machine and of a cluster: measured, kept in a file, taken from a benchmark's record."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench.tiles import BenchTilesJob, run_bench_tiles
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.plan.machine import (
    MachineFigures,
    measure_cluster,
    measure_machine,
    measure_speedups,
    read_bench,
    read_figures,
    with_bench,
    write_figures,
)
from dkgp.solvers.prices import Prices

MACHINE = MachineFigures(3, Prices.nominal(3), (1.0, 1.5))


def test_measured_figures_are_of_the_right_kind(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.plan.machine.SELECTION_SIZES", (50, 100, 200))
    monkeypatch.setattr("dkgp.plan.machine.TILE_SHAPE", (1024, 512))
    monkeypatch.setattr("dkgp.plan.machine.LEAVES", 2)
    monkeypatch.setattr("dkgp.plan.machine.LEAST_SECONDS", 0.002)
    dataset = dataset_from_arrays(tmp_path / "d.zarr", rng.standard_normal((500, 3)), rng.standard_normal((500, 2)))
    found = measure_machine(dataset, SquaredExponential(gamma=(0.3,) * 3), 0.1)
    assert found.d == 3
    # Whatever runs this takes between a picosecond and a microsecond for any of these.
    units = ("entries", "double_entries", "operations", "double_operations", "bytes", "spilled", "vectors")
    assert all(1e-12 < getattr(found.prices, unit) < 1e-6 for unit in units)
    assert 0.0 < found.prices.read < 1e-3
    assert found.prices.drawn + found.prices.dense > 0.0
    assert MachineFigures.from_json(json.loads(dump(found.to_json()))) == found


def test_speedups_begin_at_one_and_do_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.plan.machine.TILE_SHAPE", (1024, 512))
    monkeypatch.setattr("dkgp.plan.machine.LEAST_SECONDS", 0.002)
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
        {"entries": None},
        {"entries": 0.0},
        {"dense": -1.0},
        {"bytes": float("nan")},
        {"speedups": []},
        {"speedups": [1.0, 0.0]},
        {"d": "three"},
    ],
)
def test_damaged_figures_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="measure them anew"):
        MachineFigures.from_json({**MACHINE.to_json(), **damage})


def dearer(figures: MachineFigures, entries: float) -> MachineFigures:
    return replace(figures, prices=replace(figures.prices, entries=entries))


def test_figures_are_kept_for_each_number_of_features(tmp_path: Path) -> None:
    path, reporter = str(tmp_path / "machine.json"), SilentReporter()
    assert read_figures(path, 3, reporter) is None
    other = replace(MACHINE, d=8)
    for each in (other, MACHINE, dearer(MACHINE, 2e-9)):
        write_figures(path, each)
    assert read_figures(path, 3, reporter) == dearer(MACHINE, 2e-9)
    assert read_figures(path, 8, reporter) == other
    assert read_figures(path, 4, reporter) is None
    assert reporter.warnings == []


def test_another_machines_figures_are_used_with_a_warning(tmp_path: Path) -> None:
    path, reporter = tmp_path / "machine.json", SilentReporter()
    write_figures(str(path), MACHINE)
    document = json.loads(path.read_text())
    document["machine"]["processor"] = "abacus"
    path.write_text(json.dumps(document))
    assert read_figures(str(path), 3, reporter) == MACHINE
    assert "abacus" in reporter.warnings[0]
    write_figures(str(path), replace(MACHINE, d=8))
    assert [row["d"] for row in json.loads(path.read_text())["rows"]] == [8]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"command": "tune"}', '{"command": "bench", "rows": 3}'])
def test_other_files_are_no_figures(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match="`figures`"):
        read_figures(str(path), 3, SilentReporter())
    with pytest.raises(InputError, match="`bench`"):
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
    assert found.prices.entries == pytest.approx(0.6e-9)  # d = 3 lies half way
    assert found.prices.double_entries == pytest.approx(2e-9)
    assert found.prices.dense == MACHINE.prices.dense


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
    assert with_bench(dearer(MACHINE, 1.0), scaling) == MACHINE
    for damaged in ({"benchmark": "tiles", "rows": []}, {"benchmark": "tiles", "rows": [{"d": 1}]}):
        with pytest.raises(InputError, match="damaged"):
            with_bench(MACHINE, damaged)
