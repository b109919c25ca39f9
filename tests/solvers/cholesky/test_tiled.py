from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import (
    InputError,
    InterruptedRunError,
    NumericalError,
    UsageError,
)
from dkgp.kernels import SquaredExponential
from dkgp.solvers import Checkpointing, MaxIterations, TiledCholesky, solve
from dkgp.solvers.cholesky.tile_factor import TileLayout
from tests.solvers.cholesky.tiles import N_TILES, PROBLEM, SOLVER, Writes, bits, solved
from tests.solvers.problems import Problem, smooth_problem


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("tile_rows", [19, 64, 100, 300, 5000])
def test_the_answer_of_dense_cholesky(executor: LocalExecutor, tile_rows: int, precision: Any) -> None:
    solution = solved(executor, TiledCholesky(tile_rows=tile_rows, precision=precision))
    assert solution.converged
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-6 * np.abs(PROBLEM.solution).max())
    np.testing.assert_allclose(solution.gradient, PROBLEM.gradient(solution.alpha), rtol=0, atol=1e-11)
    panels = -(-300 // min(tile_rows, 300))
    steps = solution.progress.iteration - panels + 1
    assert 1 <= steps <= (1 if precision == "double" else 3)
    assert solution.progress.column_passes == 1 + steps


def test_the_tiles_are_the_factor(executor: LocalExecutor, tmp_path: Path) -> None:
    solved(executor, replace(SOLVER, keep=True, folder=str(tmp_path / "tiles")))
    layout, store = TileLayout(300, 64, "single"), TileStore(tmp_path / "tiles")
    assert len(store.names()) == N_TILES
    found = np.zeros((300, 300))
    for i in range(5):
        for k in range(i + 1):
            tile = store.read(layout.name(i, k), layout.shape(i, k), layout.dtype)
            found[slice(*layout.bounds(i)), slice(*layout.bounds(k))] = tile
    np.testing.assert_allclose(np.tril(found), np.linalg.cholesky(PROBLEM.matrix), rtol=0, atol=2e-5)
    sizes = [path.stat().st_size for path in (tmp_path / "tiles").glob("*.tile")]
    assert sum(sizes) == layout.disk_bytes


def test_steps_of_a_plain_preconditioned_conjugate_gradient(executor: LocalExecutor, tmp_path: Path) -> None:
    """Each is the best of its Krylov space, both targets' together; with another factor, so that it takes some."""
    folder = str(tmp_path / "tiles")
    other = replace(PROBLEM, noise_variance=0.3)
    solved(executor, replace(SOLVER, keep=True, folder=folder), other, stopping=MaxIterations(5))
    # The tiles of Kbar with more noise, passed off as those of PROBLEM.
    description = TileStore(folder).description()
    assert description is not None
    (tmp_path / "tiles" / "tiles.json").write_text(json.dumps({**description, "noise_variance": 0.05}))
    solution = solved(executor, replace(SOLVER, keep=True, folder=folder), stopping=MaxIterations(4 + 4))

    factor = scipy.linalg.cho_factor(other.matrix, lower=True)
    space = np.zeros((300, 0))
    new = scipy.linalg.cho_solve(factor, PROBLEM.y)
    for _ in range(4):
        space = np.linalg.qr(np.hstack([space, new]))[0]
        new = scipy.linalg.cho_solve(factor, PROBLEM.matrix @ space[:, -2:])
    alpha = space @ np.linalg.solve(space.T @ PROBLEM.matrix @ space, space.T @ PROBLEM.y)
    assert np.abs(alpha - PROBLEM.solution).max() > 1e-4  # still on its way
    np.testing.assert_allclose(solution.alpha, alpha, rtol=0, atol=1e-4 * np.abs(alpha).max())


def test_each_target_as_if_it_were_alone(executor: LocalExecutor) -> None:
    y = np.column_stack([PROBLEM.y[:, 0], np.zeros(300), 1e-60 * PROBLEM.y[:, 1]])
    solution = solved(executor, problem=replace(PROBLEM, y=y), stopping=MaxIterations(8))
    assert not solution.alpha[:, 1].any()
    np.testing.assert_allclose(solution.alpha[:, 0], PROBLEM.solution[:, 0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(1e60 * solution.alpha[:, 2], PROBLEM.solution[:, 1], rtol=0, atol=1e-9)


def test_warm_starts(executor: LocalExecutor, rng: np.random.Generator, writes: Writes) -> None:
    assert solved(executor, tolerance=1e-6, initial=PROBLEM.solution).progress.iteration == 0
    assert not writes.names
    solution = solved(executor, initial=rng.standard_normal((300, 2)))
    np.testing.assert_allclose(solution.alpha, PROBLEM.solution, rtol=0, atol=1e-7)


def test_the_same_bits_on_any_number_of_threads_and_in_any_memory() -> None:
    found = set()
    for threads, memory in ((1, 2**30), (3, 2**30), (3, TileLayout(300, 64, "single").task_bytes(1))):
        executor = LocalExecutor(threads)
        found.add(bits(solved(executor, replace(SOLVER, memory_bytes=memory))))
        executor.close()
    assert len(found) == 1


@pytest.mark.covering
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rounds", [0, 2, 4, 5])
def test_interrupted_and_resumed_it_ends_in_the_same_bits(
    executor: LocalExecutor, tmp_path: Path, writes: Writes, named: bool, rounds: int
) -> None:
    """The tiles of a folder that nobody named are gone, and are computed again."""
    solver = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles")) if named else SOLVER
    whole = solved(executor)
    writes.names.clear()
    done: list[int] = []
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(InterruptedRunError):
        solved(
            executor,
            solver,
            callback=lambda progress: done.append(progress.iteration),
            interrupted=lambda: len(done) >= rounds,
            checkpointing=Checkpointing(store, 1e9),
        )
    resumed = solved(executor, solver, checkpointing=Checkpointing(store, 1e9, resume=True))
    assert bits(resumed) == bits(whole)
    assert len(resumed.history) == len(whole.history)
    # The fourth panel's last tile is followed by the fifth panel's only one.
    assert set(writes.names.values()) == ({1} if named or rounds == 0 else {1, 2} if rounds < 4 else {2})


def test_float64_tiles_where_float32_breaks_down(executor: LocalExecutor, tmp_path: Path, writes: Writes) -> None:
    problem = smooth_problem(300, 2, noise_variance=1e-8)
    solver = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles"))
    solution = solved(executor, solver, problem, tolerance=1e-7)
    assert solution.converged
    scale = np.abs(problem.solution).max()
    np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-6 * scale)
    description = TileStore(tmp_path / "tiles").description()
    assert description is not None
    assert description["precision"] == "double"
    assert solution.alpha.tobytes() == solved(executor, solver, problem, tolerance=1e-7).alpha.tobytes()
    with pytest.raises(NumericalError, match=r"float32 tiles break down at sample \d+ of 300, .*disk_budget_bytes"):
        solved(executor, replace(SOLVER, disk_budget_bytes=250_000), problem)


def test_interrupted_after_float32_broke_down(executor: LocalExecutor, tmp_path: Path) -> None:
    problem = smooth_problem(300, 2, noise_variance=1e-8)
    whole = solved(executor, problem=problem, tolerance=1e-7)
    for rounds in range(1, whole.progress.iteration):
        done: list[int] = []
        store = CheckpointStore(tmp_path / f"checkpoints-{rounds}")
        with pytest.raises(InterruptedRunError):
            solved(
                executor,
                problem=problem,
                callback=lambda progress, done=done: done.append(progress.iteration),
                interrupted=lambda done=done, rounds=rounds: len(done) >= rounds,
                checkpointing=Checkpointing(store, 1e9),
            )
        resumed = solved(
            executor, problem=problem, tolerance=1e-7, checkpointing=Checkpointing(store, 1e9, resume=True)
        )
        assert bits(resumed) == bits(whole)


def test_a_matrix_that_is_not_positive_definite_in_float64_either(executor: LocalExecutor, temporary: Path) -> None:
    problem = Problem(SquaredExponential((1.0, 2.0)), 1e-18, np.ones((9, 2)), np.linspace(-1.0, 1.0, 9)[:, None])
    with pytest.raises(NumericalError, match=r"in float64: .* at sample 1 of 9\. Raise the noise variance"):
        solved(executor, TiledCholesky(tile_rows=4), problem)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("n", [1, 2, 64, 65])
def test_few_samples_and_equal_samples(executor: LocalExecutor, n: int) -> None:
    for X in (np.ones((n, 2)), np.arange(2.0 * n).reshape(n, 2)):
        y = np.linspace(-1.0, 2.0, n)[:, None]
        problem = Problem(SquaredExponential((1.0, 0.02), variance=2.5), 0.1, X, y)
        solution = solved(executor, problem=problem, tolerance=1e-8)
        np.testing.assert_allclose(solution.alpha, problem.solution, rtol=0, atol=1e-6)


def test_the_size_of_tiles_is_chosen_from_n_and_the_memory() -> None:
    rows = {n: TiledCholesky().resolved(n, 8).tile_rows for n in (1, 300, 5000, 20_000, 100_000)}
    assert rows == {1: 1, 300: 256, 5000: 320, 20_000: 1280, 100_000: 2048}
    small = TiledCholesky(memory_bytes=50_000_000).resolved(100_000, 8)
    assert TileLayout(100_000, int(small.tile_rows), "double").task_bytes(1) <= 50_000_000
    assert 512 <= int(small.tile_rows) < 2048
    assert TiledCholesky(tile_rows=900).resolved(300, 8).settings() == {
        "solver": "tiled-cholesky",
        "precision": "mixed",
        "tile_rows": 300,
    }


def test_settings_are_checked(executor: LocalExecutor, tmp_path: Path) -> None:
    for options, message in (
        ({"precision": "half"}, "precision must be 'mixed' or 'double'; got 'half'"),
        ({"tile_rows": 0}, "tile_rows must be 'auto' or at least 1; got 0"),
        ({"memory_bytes": 0}, "must be positive; got 0"),
        ({"disk_budget_bytes": 0}, "must be positive"),
    ):
        with pytest.raises(InputError, match=message):
            TiledCholesky(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name the folder"):
        TiledCholesky(keep=True)
    with pytest.raises(UsageError, match="needs a BlockedKernelOperator; got DenseKernelOperator"):
        solve(PROBLEM.dense(), PROBLEM.y, solver=SOLVER)
