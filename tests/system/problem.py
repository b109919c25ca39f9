"""A small problem on disk, with the models that a run without any cluster gives: what every other run must repeat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dkgp
from dkgp.data import open_model
from tests.problem import Stored, write_hyper

__all__ = ["DKGP", "LONG", "Problem", "environment", "make_problem", "rounds", "wait_until"]

DKGP = (sys.executable, "-m", "dkgp")
# Some 370 short rounds, stopped by their number: long enough for something to happen in between.
LONG = ("--block-size", "8", "--max-passes", "1")
COMMAND_SECONDS = 240.0


def environment(**more: str) -> dict[str, str]:
    """This process's environment for one of its own, with one BLAS thread, and without a cluster configured."""
    package = str(Path(dkgp.__file__).resolve().parents[1])
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_", "SBATCH_"))}
    return {**own, "PYTHONPATH": package, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


@dataclass(frozen=True)
class Problem(Stored):
    """Paths of the problem, and its expected coefficients, by the options that give them."""

    references: dict[tuple[str, ...], bytes]

    def is_reference(self, model: object, *options: str) -> bool:
        """Whether a model has the coefficients of the run without a cluster, bit by bit."""
        return open_model(str(model)).alpha.tobytes() == self.references[options]


def make_problem(folder: Path, n: int = 3000) -> Problem:
    """Write Friedman's first function with noise as a dataset store, and train on it without a cluster."""
    generator = np.random.default_rng(5)
    X = generator.random((n, 6))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    np.savez(folder / "data.npz", X=X, y=y + generator.normal(size=n))
    write_hyper(folder / "hyper.json", [0.2] * 6, 0.05)
    # Several chunks, so that the rounds of two workers are shared between them.
    run(["ingest", str(folder / "data.npz"), str(folder / "train.zarr"), "--target", "y", "--chunk-rows", "512"])
    problem = Problem(folder, {})
    for options, exit_code in (((), 0), (LONG, 4)):
        out = folder / f"reference-{len(options)}.zarr"
        run(problem.train(out, "--cluster", "none", *options), exit_code)
        problem.references[options] = open_model(str(out)).alpha.tobytes()
    return problem


def run(arguments: list[str], exit_code: int = 0, **variables: str) -> dict[str, Any]:
    """Run dkgp in a process of its own; its JSON document."""
    answer = subprocess.run(
        [*DKGP, *arguments, "--json"],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    assert answer.returncode == exit_code, f"exit code {answer.returncode}\n{answer.stdout}\n{answer.stderr}"
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


def rounds(log: Path) -> int:
    """Rounds that a run's `--log-json` tells of."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_until(true: Callable[[], object], what: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for something, or fail with what is known."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"nothing within {seconds:.0f} s: {what()}"
        time.sleep(0.05)
