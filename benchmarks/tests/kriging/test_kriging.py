"""The benchmark of kriging, on a problem too small to mean anything, with a program that stands in for others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp_benchmarks.kriging.contender import PEERS
from dkgp_benchmarks.kriging.problem import NUGGET, in_gap, problem
from dkgp_benchmarks.kriging.run import run_bench_kriging


def test_the_problem_has_gaps_and_points_in_them() -> None:
    made = problem(300, 50, seed=1)
    assert made.places.shape == (300, 2)
    assert not in_gap(made.places).any()
    assert in_gap(made.points[:5]).all()
    assert 0.2 < made.truth.std() < 5.0
    again = problem(300, 50, seed=1)
    np.testing.assert_array_equal(made.values, again.values)


def test_dkgp_runs_alone(tmp_path: Path) -> None:
    pytest.importorskip("shapely")
    out = tmp_path / "kriging.json"
    document = run_bench_kriging(
        SilentReporter(),
        n=60,
        n_points=10,
        cells=8,
        areas=3,
        peers=[],
        peer_memory=8.0,
        tolerance=1e-6,
        means=False,
        seed=0,
        out=str(out),
    )
    exact, drawn, blocks = json.loads(out.read_text())["rows"]
    assert (exact["program"], drawn["program"]) == ("dkgp", "dkgp map")
    # The lattice of points misses some of the polygon along its outline, and the bound holds none of that.
    assert blocks["program"] == "dkgp blocks"
    assert blocks["bound"] < 1e-4 < blocks["difference"] < 0.02
    assert exact["off_most"] < 1e-4 < exact["rmse"]
    assert exact["nlpd"] > 0.5 * np.log(2.0 * np.pi * NUGGET)
    assert document["figures"]["seconds_dkgp"] > 0.0


@pytest.mark.long
@pytest.mark.parametrize("name", ["pykrige", "gstools"])
def test_other_programs_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    document = run_bench_kriging(
        SilentReporter(),
        n=80,
        n_points=10,
        cells=0,
        areas=0,
        peers=[name],
        peer_memory=8.0,
        tolerance=1e-10,
        means=False,
        seed=0,
        out=None,
    )
    row = document["rows"][-1]
    assert row["difference"] < 1e-8
    assert row["off_most"] < 1e-7


def test_a_program_that_stops_says_why(tmp_path: Path) -> None:
    made = problem(20, 5)
    np.savez(tmp_path / "p.npz", places=made.places, values=made.values[:-1], points=made.points)
    command = [sys.executable, "-m", "dkgp_benchmarks.kriging.contender", next(iter(PEERS)), str(tmp_path / "p.npz")]
    done = subprocess.run([*command, str(tmp_path / "out.npz"), "8"], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert "Error: " in figures["stopped"]
    assert figures["peak_bytes"] > 10e6
