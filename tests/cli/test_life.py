"""The life of a model in any order: data that grow, runs that are cut short and resumed, predictions, on disk and S3.

A model in NumPy, dense, says after each step what must have come of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import dkgp
from dkgp.data import CheckpointStore, open_model, open_prediction
from dkgp.data.remote.storage import TEMPORARY_PREFIX, exists, list_object_bytes
from dkgp.models import read_hyperparameters
from tests.cli.invoke import run
from tests.cli.processes import killed
from tests.problem import write_hyper
from tests.s3 import s3_server, use_s3

GAMMA, NOISE, TOLERANCE = np.array([0.6, 0.3]), 0.05, 1e-7
SOLVERS = {
    "gbcd": ("--solver", "gbcd", "--block-size", 6),
    "cg": ("--solver", "cg"),
    "tiled-cholesky": ("--solver", "tiled-cholesky"),
}
# A kill leaves the files of its locks, too; the next run at these places takes them over, and removes them.
LEFT_BY_A_KILL = ("model.zarr.checkpoint", ".dkgp-lock-model.zarr", ".dkgp-lock-model.zarr.checkpoint")
SAVE = "dkgp.data.stores.checkpoint:CheckpointStore.save"


def kernel(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.exp(-(((A[:, None] - B[None]) ** 2) * GAMMA).sum(axis=2))


class Dense:
    """The exact Gaussian process of some rows (x1, x2, y), by NumPy alone; scaled by those of `scale`."""

    def __init__(self, rows: np.ndarray, scale: np.ndarray | None = None) -> None:
        by = rows if scale is None else scale
        self.mean, self.std = by.mean(axis=0), by.std(axis=0)
        standard = (rows - self.mean) / self.std
        self.X = standard[:, :2]
        self.K = kernel(self.X, self.X) + NOISE * np.eye(len(rows))
        self.alpha = np.linalg.solve(self.K, standard[:, 2])

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return kernel((inputs - self.mean[:2]) / self.std[:2], self.X) @ self.alpha * self.std[2] + self.mean[2]


def some_rows(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (count, 2))
    return np.column_stack([X, np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(count)])


@dataclass
class World:
    """Paths of the stores, and the interruption of a run after a number of checkpoints."""

    folder: Path
    place: Callable[[str], str]
    cut: Callable[[list[object], int], bool]
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def interrupted(command: list[object], saves: int) -> bool:
    """Run a command until a signal comes at its so-manieth checkpoint; True if one came."""
    save, calls = CheckpointStore.save, []

    def stop(store: CheckpointStore, *arguments: Any) -> str:
        address = save(store, *arguments)
        calls.append(address)
        if len(calls) == saves:
            raise KeyboardInterrupt
        return address

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "save", stop)
        result = run(*command)
    assert result.exit_code == (130 if len(calls) >= saves else 0), result.stderr
    return len(calls) >= saves


class Life(RuleBasedStateMachine):
    """One life; `World` is given to the class that a test makes of it."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.world.folder / f"life-{self.world.counts.get('lives', 0)}"
        self.folder.mkdir()
        self.world.count("lives")
        self.hyper = self.folder / "hyper.json"
        write_hyper(self.hyper, GAMMA.tolist(), NOISE)
        self.data, self.model, self.test, self.predictions = (
            self.world.place(f"{self.folder.name}/{name}.zarr") for name in ("data", "model", "test", "predictions")
        )
        self.rows = np.empty((0, 3))
        # Of the model that is there, and of the run that was cut short: rows and solver.
        self.trained: np.ndarray | None = None
        self.pending: tuple[np.ndarray, str] | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def ingest(self, rows: np.ndarray, store: str) -> None:
        np.save(self.folder / "rows.npy", rows)
        self.done("ingest", self.folder / "rows.npy", store, "--target", "2", "--overwrite", "--chunk-rows", 16)

    def done(self, *command: object) -> dict[str, Any]:
        result = run(*command, "--json")
        assert result.exit_code == 0, (command, result.stderr)
        return json.loads(result.stdout)  # type: ignore[no-any-return]

    def training(self, solver: str, *more: object) -> list[object]:
        command = ["train", self.data, "--hyper", self.hyper, "--out", self.model, "--tol", TOLERANCE]
        return [*command, "--cluster", "none", "--overwrite", "--checkpoint-every", 0, *SOLVERS[solver], *more]

    def is_the_model_of(self, rows: np.ndarray) -> None:
        dense, stored = Dense(rows), open_model(self.model)
        worst = np.abs(dense.K @ stored.alpha[:, 0] - (rows[:, 2] - dense.mean[2]) / dense.std[2]).max()
        assert worst <= 1.1 * TOLERANCE
        self.trained = rows

    @initialize(count=st.integers(12, 40), seed=st.integers(0, 99))
    def begin(self, count: int, seed: int) -> None:
        self.rows = some_rows(count, seed)
        self.ingest(self.rows, self.data)
        self.ingest(some_rows(9, 1000), self.test)

    @rule(count=st.integers(1, 25), seed=st.integers(0, 99))
    def append(self, count: int, seed: int) -> None:
        self.rows = np.concatenate([self.rows, some_rows(count, seed)])
        self.ingest(self.rows, self.data)

    @rule(solver=st.sampled_from(sorted(SOLVERS)))
    def train(self, solver: str) -> None:
        self.done(*self.training(solver))
        self.is_the_model_of(self.rows)
        self.pending = None
        self.world.count("trained")

    @rule(solver=st.sampled_from(["gbcd", "cg"]), saves=st.integers(1, 4))
    def cut_short(self, solver: str, saves: int) -> None:
        before = None if self.trained is None else open_model(self.model).alpha.tobytes()
        if self.world.cut(self.training(solver), saves):
            self.pending = self.rows, solver
            self.world.count("cut short")
            # The model that was there is there, to the bit.
            assert exists(self.model) == (before is not None)
            assert before is None or open_model(self.model).alpha.tobytes() == before
        else:
            self.pending = None
            self.is_the_model_of(self.rows)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def resume(self) -> None:
        assert self.pending is not None
        rows, solver = self.pending
        result = run(*self.training(solver, "--resume"))
        if len(rows) != len(self.rows):
            assert result.exit_code == 3, result.stderr
            assert "another data set" in result.stderr
            self.world.count("resumed on other data, refused")
            return
        assert result.exit_code == 0, result.stderr
        self.is_the_model_of(rows)
        resumed = open_model(self.model).alpha.tobytes()
        self.done(*self.training(solver))
        assert open_model(self.model).alpha.tobytes() == resumed
        self.pending = None
        self.world.count("resumed")

    @precondition(lambda self: self.trained is not None)
    @rule()
    def start_from_the_model(self) -> None:
        assert self.trained is not None
        result = run(*self.training("gbcd", "--warm-start", self.model))
        if len(self.trained) != len(self.rows):
            assert result.exit_code == 3, result.stderr
            assert "other data" in result.stderr
            self.is_the_model_of(self.trained)
            return
        assert result.exit_code == 0, result.stderr
        self.is_the_model_of(self.rows)
        self.pending = None
        self.world.count("warm starts")

    @precondition(lambda self: self.trained is not None)
    @rule()
    def predict(self) -> None:
        assert self.trained is not None
        self.done("predict", self.model, self.test, "--out", self.predictions, "--overwrite", "--cluster", "none")
        stored = open_prediction(self.predictions)
        error = np.abs(stored.read("mean")[:, 0] - Dense(self.trained).predict(some_rows(9, 1000)[:, :2]))
        assert (error <= 1.000001 * stored.read("mean_error_bound")[:, 0] + 1e-12).all()
        self.world.count("predicted")

    @rule(count=st.integers(1, 10), seed=st.integers(0, 99))
    def update(self, count: int, seed: int) -> None:
        new = some_rows(count, seed)
        gp = dkgp.GPRegressor(read_hyperparameters(self.hyper))
        gp.fit(self.rows[:, :2], self.rows[:, 2]).update(new[:, :2], new[:, 2])
        dense = Dense(np.concatenate([self.rows, new]), scale=self.rows)
        inputs = some_rows(9, 1000)[:, :2]
        mean, bounds = gp.predict(inputs, return_bounds=True)
        assert (np.abs(mean - dense.predict(inputs)) <= 1.000001 * bounds.mean_error + 1e-12).all()
        self.world.count("updated")

    @invariant()
    def nothing_is_left_behind(self) -> None:
        names = list_object_bytes(self.world.place(self.folder.name))
        assert not [name for name in names if TEMPORARY_PREFIX in name]
        assert {name.split("/")[0] for name in names} <= {
            "hyper.json", "rows.npy", "data.zarr", "test.zarr", "model.zarr", "predictions.zarr",
            *(LEFT_BY_A_KILL if self.pending else []),
        }  # fmt: skip


def live(world: World, lives: int, steps: int) -> None:
    machine = type("LifeHere", (Life,), {"world": world})
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=lives, stateful_step_count=steps, deadline=None, suppress_health_check=checks),
    )
    print(f"\n{world.counts}")
    assert {"trained", "cut short", "resumed", "predicted", "updated"} <= world.counts.keys()


@pytest.mark.long
def test_a_life_in_any_order(tmp_path: Path) -> None:
    live(World(tmp_path, lambda name: str(tmp_path / name), interrupted), lives=6, steps=10)


def killing(environment: dict[str, str]) -> Callable[[list[object], int], bool]:
    def kill(command: list[object], saves: int) -> bool:
        return killed(SAVE, command, call=saves, after=True, environment=environment, may_end=True)

    return kill


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_life_of_processes_that_are_killed(tmp_path: Path) -> None:
    live(World(tmp_path, lambda name: str(tmp_path / name), killing({})), lives=10, steps=14)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Callable[[str], str], dict[str, str]]]:
    with s3_server() as server:
        use_s3(monkeypatch, server)
        yield server.url, server.settings


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_life_on_s3_of_processes_that_are_killed(
    tmp_path: Path, environment: tuple[Callable[[str], str], dict[str, str]]
) -> None:
    url, variables = environment
    live(World(tmp_path, url, killing(variables)), lives=6, steps=12)
