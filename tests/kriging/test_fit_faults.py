"""Fits and maps of runs that end early: they resume to the answer of a run that nothing ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_model
from dkgp.kriging.field import Equations, Solving
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.trend import Drift
from tests.cli.invoke import run_json
from tests.resuming import Resuming
from tests.watching import in_context

# Runs a command, and sends its process a signal after so many checkpoints, or windows of the map.
STOPPED = """
import os, signal, sys
from dkgp.cli import main
from dkgp.data import CheckpointStore, PredictionWriter
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.rasters import CellMap

name, owner, last = sys.argv[1:4]
owners = {"save": CheckpointStore, "solved": Kriging, "write": PredictionWriter, "values": CellMap}
method, owner, calls = owner, owners[owner], []
original = getattr(owner, method)

def counted(*arguments, **options):
    calls.append(1)
    if len(calls) == int(last):
        os.kill(os.getpid(), getattr(signal, name))
    return original(*arguments, **options)

setattr(owner, method, counted)
main(sys.argv[4:])
"""


def _equations(rng: Any, n: int = 200, solver: str = "cg") -> Equations:
    places = rng.random((n, 2)) * 100.0
    values, covariates = np.sin(places[:, :1] / 10.0), rng.standard_normal((n, 1))
    samples = Samples(places, values, np.full(n, 0.01), 0.0, covariates)
    solving = Solving(1e-8, solver=solver)
    variogram = Variogram("matern32", psill=1.0, range=20.0, nugget=0.01)
    return Equations.of(samples, Space(2), variogram, solving, mean=Drift(1, columns=("dist",)))


def test_an_interrupted_fit_ends_in_the_same_bits(rng: Any, tmp_path: Path) -> None:
    equations = _equations(rng)

    def run(**options: Any) -> tuple[Any, Any]:
        record = equations.solve(in_context(LocalExecutor(1), options)).record
        return record.alpha, record.certificate

    runs = Resuming(run, tmp_path, **equations.problem.identity())
    runs.interrupt(3)
    runs.require_same()
    runs.require_refused("fingerprint", identity={"fingerprint": "of other samples"})


def test_the_fingerprint_of_samples_in_memory_is_that_of_their_store(rng: Any, tmp_path: Path) -> None:
    equations = _equations(rng)
    stored = equations._dataset(None, in_memory=False, url=str(tmp_path / "d.zarr"))  # type: ignore[arg-type]
    assert stored.fingerprint == equations.problem.dataset.fingerprint
    other = dataset_from_arrays(str(tmp_path / "o.zarr"), rng.random((9, 2)), rng.random(9))
    assert other.fingerprint != stored.fingerprint


def _soil(folder: Path, n: int) -> Path:
    draws = np.random.default_rng(3)
    x, y = draws.random((2, n)) * 1000.0
    zinc = np.sin(x / 15.0) + np.cos(y / 20.0) + 0.1 * draws.standard_normal(n)
    pd.DataFrame({"x": x, "y": y, "zinc": zinc}).to_csv(folder / "soil.csv", index=False)
    return folder / "soil.csv"


def _stopped(name: str, owner: str, last: int, *arguments: object) -> Any:
    command = [sys.executable, "-c", STOPPED, name, owner, str(last), *map(str, arguments)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": "."}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False, timeout=300)


@pytest.mark.faults
def test_a_fit_that_is_stopped_or_killed_resumes_to_the_same_bits(tmp_path: Path) -> None:
    line = ("krige", "fit", _soil(tmp_path, 6000), "--target", "zinc", "--range", 300, "--psill", 1, "--nugget", 0.01)
    line = (*line, "--checkpoint-every", 0)
    whole = run_json(*line, "--out", tmp_path / "whole.zarr")
    for name, code in (("SIGKILL", -signal.SIGKILL), ("SIGTERM", 130), ("SIGINT", 130)):
        out = tmp_path / f"{name}.zarr"
        died = _stopped(name, "save", 3, *line, "--out", out)
        assert died.returncode == code, died.stderr.decode()
        assert not out.exists()
        resumed = run_json(*line, "--out", out, "--resume")
        assert resumed["resumed"]
        assert resumed["certificate"] == whole["certificate"]
        assert_array_equal(open_model(str(out)).alpha, open_model(str(tmp_path / "whole.zarr")).alpha)
        again = run_json(*line, "--out", out, "--resume")
        assert again["certificate"] == whole["certificate"]
        assert not list(tmp_path.glob(f"{name}.zarr.*")), "checkpoints of a finished run"


@pytest.mark.faults
def test_a_whole_map_that_is_killed_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    line = ("krige", _soil(tmp_path, 300), "--target", "zinc", "--fit", "exponential", "--shape", "20,30")
    run_json(*line, "--out", tmp_path / "whole.tif")
    # In the fit, in the cells, and in the writing of the map.
    for owner, done in (("solved", ["variogram"]), ("write", ["variogram", "fit"]), ("values", ["variogram", "fit"])):
        out = tmp_path / f"{owner}.tif"
        died = _stopped("SIGKILL", owner, 1, *line, "--out", out)
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        assert not out.exists()
        record = json.loads((tmp_path / f"{owner}.krige.json").read_text())
        assert list(record["phases"]) == done
        document = run_json(*line, "--out", out, "--resume")
        assert document["finished"]
        assert out.read_bytes() == (tmp_path / "whole.tif").read_bytes()
        assert not list(tmp_path.glob(f".{owner}*")), "temporary files of the killed run"
