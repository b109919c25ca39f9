"""kill -9 at every stage of a run with a block-Vecchia factor: `--resume` ends in the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dkgp.cli import main
from dkgp.data import Dataset, PredictionWriter, dataset_from_arrays, open_model
from dkgp.kernels import SquaredExponential
from dkgp.models.variance.batch import _Batch, _Single
from dkgp.models.variance.nystrom import FactorSource
from dkgp.operators import BlockedKernelOperator
from tests.engine.conftest import REPOSITORY
from tests.engine.helpers import Problem, content, hyperparameters
from tests.solvers.problems import arm_problem

# A process that is killed just after it has sent out so many rounds of tasks, or called a method so often.
KILLED = """
import importlib, os, signal, sys
from dkgp.cli import main

module, owner, name, left, *command = sys.argv[1:]
owner, left = getattr(importlib.import_module(module), owner), [int(left)]
method = getattr(owner, name)

def dying(*given, **named):
    result = method(*given, **named)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, dying)
main(command)
"""


def killed_in(owner: type, name: str, left: int, command: list[str]) -> None:
    """Run a command that is killed (kill -9) in the `left`-th call of a class's method.

    The class is named, not taken from the method: an inherited one is other classes' too, whose calls do not count.
    """
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, owner.__module__, owner.__name__, name, str(left), *command],
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def ran(command: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Undisturbed:
    """A run whose factor grows twice: what it ended in, and the rounds of tasks that it sent out, in order."""

    problem: Problem
    alpha: bytes
    document: dict[str, Any]
    sent: tuple[str, ...]

    def place(self, stage: str, number: int, after: str, times: int) -> int:
        """Return the number of task rounds until `number` rounds of one stage followed as many of another."""
        left = number
        for index, name in enumerate(self.sent):
            times -= times > 0 and name == after
            left -= not times and name == stage
            if not left:
                return index + 1
        raise AssertionError(f"the run sent out no such {stage}: {self.sent}")


def train_command(problem: Problem, folder: Path, *more: str) -> list[str]:
    given = ["train", problem.dataset.url, "--hyper", hyperparameters(problem, folder), "--out", folder / "model.zarr"]
    given += ["--solver", "pcg", "--halo", 16, "--leaf", 16, "--rank", 10, "--tol", 1e-4, "--checkpoint-every", 0]
    return [str(word) for word in (*given, "--cluster", "none", "--workers", 2, "--quiet", "--json", *more)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder, arm = tmp_path_factory.mktemp("arm"), arm_problem(1200)
    dataset = dataset_from_arrays(str(folder / "train.zarr"), arm.X, arm.y[:, 0])
    problem, sent = Problem(dataset, SquaredExponential((0.1,) * 8), 1e-4), []
    submit, multiply, precision = BlockedKernelOperator.submit, BlockedKernelOperator.matmat, ["single"]
    total = BlockedKernelOperator.start_total

    def sending(self: BlockedKernelOperator, name: str, *given: Any) -> Any:
        sent.append(name)
        return submit(self, name, *given)

    def totalling(self: BlockedKernelOperator, tasks: Any) -> Any:
        sent.append(f"{tasks.name} {precision[0]}")
        return total(self, tasks)

    def multiplying(self: BlockedKernelOperator, V: np.ndarray, wanted: Any = "double") -> np.ndarray:
        precision[0] = wanted
        return multiply(self, V, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockedKernelOperator, "submit", sending)
        patch.setattr(BlockedKernelOperator, "start_total", totalling)
        patch.setattr(BlockedKernelOperator, "matmat", multiplying)
        document = ran(train_command(problem, folder))
    assert document["converged"]
    return Undisturbed(problem, open_model(folder / "model.zarr").alpha.tobytes(), document, tuple(sent))


STAGES = {
    "the first build": ("kvbuild", 3, "kvorder", 1),
    "a float32 product": ("kpass single", 3, "kvorder", 1),
    "an application": ("kvbackward", 5, "kvorder", 1),
    "a larger factor's order": ("kvorder", 2, "", 0),
    "a larger factor's build": ("kvbuild", 3, "kvorder", 2),
    "a product after it": ("kpass single", 2, "kvorder", 2),
    "the largest factor's build": ("kvbuild", 3, "kvorder", 3),
    "a float64 product after it": ("kpass double", 1, "kvorder", 3),
}


@pytest.mark.faults
@pytest.mark.parametrize("stage", STAGES)
def test_training_killed(undisturbed: Undisturbed, tmp_path: Path, stage: str) -> None:
    problem = undisturbed.problem
    place = undisturbed.place(*STAGES[stage])
    products = sum(name.startswith("kpass") for name in undisturbed.sent[:place])
    is_product = STAGES[stage][0].startswith("kpass")
    method, calls = ("start_total", products) if is_product else ("submit", place - products)
    killed_in(BlockedKernelOperator, method, calls, train_command(problem, tmp_path))
    assert not (tmp_path / "model.zarr").exists()
    # Nothing is there to resume before the first round is done.
    assert (tmp_path / "model.zarr.checkpoint").exists() is (stage != "the first build")
    resumed = ran(train_command(problem, tmp_path, "--resume"))
    assert resumed["iterations"] == undisturbed.document["iterations"]
    assert open_model(tmp_path / "model.zarr").alpha.tobytes() == undisturbed.alpha


# -------------------------------------------------------------------------------------------------------- variances


@dataclass(frozen=True)
class Predicted:
    """Variances that nobody disturbed, and the methods of `PHASES` that were called for them, in order."""

    model: str
    tests: Dataset
    content: dict[str, bytes]
    called: tuple[str, ...]


def predict_command(model: str, tests: Dataset, out: Path, *more: str) -> list[str]:
    given = ["predict", model, tests.url, "--out", out, "--variance", "--variance-gap", 1e-3, "--variance-rank", 60]
    given += ["--variance-halo", 90, "--variance-batch", 30, "--cluster", "none", "--workers", 2, "--json", *more]
    return [str(word) for word in given]


PHASES: dict[str, tuple[type, str]] = {
    "the factors": (FactorSource, "make_leaves"),
    "a search": (_Single, "product"),
    "a proof": (_Batch, "_certify"),
}


@pytest.fixture(scope="module")
def predicted(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Predicted:
    folder = tmp_path_factory.mktemp("predicted")
    command = [
        "train",
        problem.dataset.url,
        "--hyper",
        hyperparameters(problem, folder),
        "--out",
        folder / "model.zarr",
    ]
    ran([str(word) for word in (*command, "--cluster", "none", "--tol", 1e-2, "--quiet", "--json")])
    X = np.random.default_rng(8).uniform(size=(100, 6))
    tests = dataset_from_arrays(str(folder / "test.zarr"), X, None)
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (*PHASES.values(), (PredictionWriter, "write")):
            patch.setattr(owner, name, noting(getattr(owner, name), f"{owner.__name__}.{name}", called))
        found = ran(predict_command(str(folder / "model.zarr"), tests, folder / "whole.zarr"))
    assert found["variance"]["unmet"] == 0
    assert found["variance"]["products_float32"] > 1.0
    assert called.count("PredictionWriter.write") == 4
    return Predicted(str(folder / "model.zarr"), tests, content(folder / "whole.zarr"), tuple(called))


def noting(method: Callable[..., Any], name: str, called: list[str]) -> Callable[..., Any]:
    def noted(*given: Any, **named: Any) -> Any:
        called.append(name)
        return method(*given, **named)

    return noted


@pytest.mark.faults
@pytest.mark.parametrize("phase", PHASES)
def test_variances_killed(predicted: Predicted, tmp_path: Path, phase: str) -> None:
    """In the first call after two of four batches were written, or when the factors were made."""
    (owner, name), out = PHASES[phase], tmp_path / "p.zarr"
    written = np.cumsum([name == "PredictionWriter.write" for name in predicted.called])
    before = [
        call for call, count in zip(predicted.called, written, strict=True) if count < 2 or phase == "the factors"
    ]
    left = before.count(f"{owner.__name__}.{name}") + (phase != "the factors")
    killed_in(owner, name, left, predict_command(predicted.model, predicted.tests, out))
    resumed = ran(predict_command(predicted.model, predicted.tests, out, "--resume"))
    assert resumed["variance"]["computed"] == (100 if phase == "the factors" else 40)
    assert content(out) == predicted.content
