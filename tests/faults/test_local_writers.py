"""Several commands that write one local place at once: each store there is whole, and one that ended well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_dataset, open_model, open_prediction
from tests.cli.processes import ENVIRONMENT, PROGRAM
from tests.problem import store

pytestmark = pytest.mark.faults

SECONDS = 200
WRITER = """
import sys
import numpy as np
from dkgp.data import dataset_from_arrays
from dkgp.errors import DkgpError
X = float(sys.argv[2]) * np.random.default_rng(0).normal(size=(1000, 3))
sys.stdin.readline()
try:
    for _ in range(3):
        dataset_from_arrays(sys.argv[1], X, X[:, 0], chunk_rows=25, overwrite=True)
    print("done")
except DkgpError as error:
    print(type(error).__name__, error)
"""


def _start(*command: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *map(str, command)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A folder with training and test data, and hyperparameters."""
    X = np.random.default_rng(3).normal(size=(400, 2))
    store(tmp_path, X, np.sin(X[:, 0]), [1.0, 1.0], 0.1)
    dataset_from_arrays(tmp_path / "test.zarr", X[:50] + 0.1, X[:50, 0])
    return tmp_path


@pytest.mark.parametrize("attempt", range(4))
def test_of_several_local_writers_one_at_a_time_writes(tmp_path: Path, attempt: int) -> None:
    url, factors = str(tmp_path / "d.zarr"), ("1", "2", "3")
    dataset_from_arrays(url, np.random.default_rng(0).normal(size=(1000, 3)), np.arange(1000.0))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, factor], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for factor in factors
    ]
    time.sleep(3.0)
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    outcomes = [writer.communicate(timeout=SECONDS)[0].strip() for writer in writers]
    done = [factor for factor, outcome in zip(factors, outcomes, strict=True) if outcome == "done"]
    refused = [outcome for outcome in outcomes if outcome != "done"]
    assert done, outcomes
    assert all(outcome.startswith("OutputExistsError Another process") for outcome in refused), outcomes
    stored = open_dataset(url).inputs(0, 1000, standardised=False)
    X = np.random.default_rng(0).normal(size=(1000, 3))
    # A writer that was refused in its second or third turn had written a whole store, too.
    assert any(np.array_equal(stored, float(factor) * X) for factor in factors)
    assert os.listdir(tmp_path) == ["d.zarr"]


@pytest.mark.parametrize("command", ["ingest", "train", "predict", "table"])
def test_of_several_local_commands_that_overwrite_one_commits(problem: Path, command: str) -> None:
    train, test, hyper, out = (problem / name for name in ("train.zarr", "test.zarr", "hyper.json", "out.zarr"))
    model, source = problem / "model.zarr", problem / "source.csv"
    if command in ("predict", "table"):
        assert _start("train", train, "--hyper", hyper, "--out", model).wait(SECONDS) == 0
    source.write_text("a,b\n" + "".join(f"{i},{(i * 7) % 13}\n" for i in range(5000)))
    if command == "table":
        out = problem / "out.csv"
    line = {
        "ingest": ["ingest", source, out, "--target", "b"],
        "train": ["train", train, "--hyper", hyper, "--out", out],
        "predict": ["predict", model, test, "--out", out],
        "table": ["predict", model, test, "--out", out],
    }[command]
    before = set(os.listdir(problem))
    commands = [_start(*line, "--overwrite") for _ in range(3)]
    results = [(process.communicate(timeout=SECONDS)[1], process.returncode) for process in commands]
    assert sum(code == 0 for _, code in results) >= 1, results
    for message, code in results:
        assert code == 0 or (code == 3 and "Another process (" in message), results
    opened: dict[str, Callable[[Path], object]] = {
        "ingest": open_dataset,
        "train": open_model,
        "predict": open_prediction,
    }
    if command == "table":
        assert len(out.read_text().splitlines()) == 51
    else:
        opened[command](out)
    assert set(os.listdir(problem)) == before | {out.name}


def test_a_run_that_is_resumed_beside_a_live_one_is_refused_until_that_one_is_killed(problem: Path) -> None:
    train, hyper, out = problem / "train.zarr", problem / "hyper.json", problem / "out.zarr"
    line = ["train", train, "--hyper", hyper, "--out", out, "--solver", "gbcd", "--block-size", 2]
    line += ["--checkpoint-every", "0", "--tol", "1e-13"]
    live = _start(*line)
    try:
        deadline = time.monotonic() + SECONDS
        while not list(problem.glob("out.zarr.checkpoint/checkpoint-*")):
            assert time.monotonic() < deadline
            assert live.poll() is None
            time.sleep(0.05)
        for option in ("--resume", "--overwrite"):
            second = _start(*line, option)
            message = second.communicate(timeout=SECONDS)[1]
            assert second.returncode == 3, message
            assert f"Another process ({live.pid} on " in message
            assert live.poll() is None
    finally:
        live.send_signal(signal.SIGKILL)
        live.communicate()
    last = _start(*line, "--resume")
    try:
        assert "resuming after round" in last.stderr.readline()
        last.send_signal(signal.SIGINT)
        last.communicate(timeout=SECONDS)
    finally:
        last.kill()
    assert not list(problem.glob(".dkgp-lock-*"))
