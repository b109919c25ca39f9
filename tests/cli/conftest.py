from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from threadpoolctl import threadpool_limits

import dkgp
from dkgp.cli import main

Command = Callable[..., Result]


def dkgp_command(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def document_of(result: Result, exit_code: int = 0) -> dict[str, Any]:
    """The one JSON document on standard output."""
    assert result.exit_code == exit_code, f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def refused(result: Any, *words: str, exit_code: int = 3) -> None:
    """A command said what is wrong, and no more."""
    assert result.exit_code == exit_code, f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    assert "Traceback" not in result.output


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """On matrices this small a second BLAS thread gains nothing, and beside other busy processes it costs minutes."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def friedman(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A CSV file of so many samples; its target is called price."""
    return lambda n: friedman_csv(tmp_path_factory.mktemp("friedman") / "data.csv", n, seed=0)


@pytest.fixture(scope="session")
def run() -> Command:
    return dkgp_command


@pytest.fixture(scope="session")
def document() -> Callable[..., dict[str, Any]]:
    return document_of


@pytest.fixture(scope="session")
def process() -> tuple[list[str], dict[str, str]]:
    """How to run `dkgp` in a process of its own: command and environment."""
    package = str(Path(dkgp.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return [sys.executable, "-m", "dkgp.cli"], environment


def friedman_csv(path: Path, n: int, seed: int) -> Path:
    generator = np.random.default_rng(seed)
    X = generator.random((n, 6))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    table = np.column_stack([X, y + generator.normal(size=n)])
    np.savetxt(path, table, delimiter=",", header="a,b,c,d,e,f,price", comments="", fmt="%.9g")
    return path


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small problem through all the commands: where everything lies, and every command's document."""
    folder = tmp_path_factory.mktemp("pipeline")
    data = friedman_csv(folder / "data.csv", 800, seed=0)
    train, test, hyper = folder / "train.zarr", folder / "test.zarr", folder / "hyper.json"
    model, prediction = folder / "model.zarr", folder / "prediction.zarr"
    split = ("--test-fraction", 0.25, "--test-out", test)
    records = ("--plot", folder / "run.png", "--log-json", folder / "run.jsonl")
    commands = {
        "ingest": ("ingest", data, train, "--target", "price", *split),
        "tune": ("tune", train, "--out", hyper, "--subset", 200),
        "train": ("train", train, "--out", model, "--hyper", hyper, "--solver", "gbcd", "--block-size", 50, *records),
        "predict": ("predict", model, test, "--out", prediction),
        "evaluate": ("evaluate", prediction, test, "--plot", folder / "fit.png"),
    }
    documents = {name: document_of(dkgp_command(*command, "--json")) for name, command in commands.items()}
    return {"folder": folder, **documents}


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[], dict[str, int]]:
    """Every file below the test's folder and its size: what a failed command must leave as it was."""

    def take() -> dict[str, int]:
        return {str(path): path.stat().st_size for path in sorted(tmp_path.rglob("*")) if path.is_file()}

    return take


@pytest.fixture
def refuses(run: Command, snapshot: Callable[[], dict[str, int]]) -> Callable[..., None]:
    """Runs a command that must be refused with some words, and leave everything as it was."""

    def check(*arguments: object, words: str, exit_code: int) -> None:
        before = snapshot()
        refused(run(*arguments), words, exit_code=exit_code)
        assert snapshot() == before

    return check


@pytest.fixture
def log(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The records of a command that was given `--log-json tmp_path / "log.jsonl"`."""
    return lambda: [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
