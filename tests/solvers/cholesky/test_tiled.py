"""The factor in tiles, and the solver that refines its solutions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import (
    CheckpointError,
    InputError,
    MemoryBudgetError,
    NumericalError,
    StorageError,
    StoreError,
    UsageError,
)
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import GradientInfNorm, MaxIterations, TiledCholesky, solve
from dkgp.solvers.cholesky.tile_factor import TileLayout
from tests.engine.helpers import opened
from tests.resuming import Resuming, require_same_bits
from tests.solvers.cholesky.tiles import N_TILES, PROBLEM, SOLVER, Writes, solved
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
    found = []
    for threads, memory in ((1, 2**30), (3, 2**30), (3, TileLayout(300, 64, "single").task_bytes(1))):
        executor = LocalExecutor(threads)
        found.append(solved(executor, replace(SOLVER, memory_bytes=memory)))
        executor.close()
        require_same_bits(found[-1], found[0])


@pytest.mark.spread(2)
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
    kept = Resuming(partial(solved, executor, solver), tmp_path)
    kept.interrupt(rounds)
    kept.require_same(whole)
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
    kept = Resuming(partial(solved, executor, problem=problem, tolerance=1e-7), tmp_path)
    for rounds in range(1, kept.whole.progress.iteration):
        kept.interrupt(rounds)
        kept.require_same()


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


@pytest.mark.spread(3)
@pytest.mark.parametrize("done", [0, 1, 5, 7, 12, 14])
def test_a_killed_factorisation_goes_on_where_it_stopped(tmp_path: Path, writes: Writes, done: int) -> None:
    one = LocalExecutor(1)
    whole = solved(one)
    writes.names.clear()
    writes.allowed = done
    solver = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles"))
    with pytest.raises(KeyboardInterrupt):
        solved(one, solver)
    assert len(TileStore(tmp_path / "tiles").names()) == done
    (tmp_path / "tiles" / ".dkgp-temporary-x").write_bytes(b"half a tile")
    writes.allowed = 10**9
    require_same_bits(solved(one, solver), whole)
    assert set(writes.names.values()) == {1}  # no tile was computed twice
    assert len(writes.names) == N_TILES
    assert not list((tmp_path / "tiles").glob(".dkgp*"))
    writes.names.clear()
    require_same_bits(solved(one, solver), whole)
    assert not writes.names
    one.close()


def test_a_damaged_tile_alone_is_computed_again(executor: LocalExecutor, tmp_path: Path, writes: Writes) -> None:
    solver = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles"))
    whole = solved(executor, solver)
    for name, content in (("00003-00001", b"short"), ("00002-00002", None)):
        file = tmp_path / "tiles" / f"{name}.tile"
        damaged = bytearray(file.read_bytes())
        damaged[1000] ^= 4
        file.write_bytes(content or damaged)
    writes.names.clear()
    require_same_bits(solved(executor, solver), whole)
    assert writes.names == Counter(["00003-00001", "00002-00002"])


@pytest.mark.parametrize("rounds", [2, 5])
def test_damage_while_it_runs_is_an_error(executor: LocalExecutor, tmp_path: Path, rounds: int) -> None:
    def damage(progress: Any) -> None:
        if progress.iteration == rounds:
            (tmp_path / "tiles" / "00004-00001.tile").write_bytes(b"")

    solver = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles"))
    with pytest.raises(StoreError, match=r"00004-00001\.tile' has 0 bytes; expected .* Run again with the same folder"):
        solved(executor, solver, tolerance=1e-14, callback=damage)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("inputs", {"X": PROBLEM.X + 1e-12}),
        ("kernel", {"kernel": SquaredExponential((0.3, 0.3, 0.31))}),
        ("noise variance", {"noise_variance": 0.06}),
        ("n", {"X": PROBLEM.X[:299], "y": PROBLEM.y[:299]}),
        ("tile rows", {}),
        ("precision", {}),
    ],
)
def test_tiles_of_another_matrix_are_refused(
    executor: LocalExecutor, tmp_path: Path, what: str, change: dict[str, Any]
) -> None:
    solver = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles"))
    solved(executor, solver, stopping=MaxIterations(2))
    held = TileStore(tmp_path / "tiles").names()
    changed = {"tile rows": {"tile_rows": 65}, "precision": {"precision": "double"}}.get(what, {})
    # A changed number of samples changes the inputs, which are compared first.
    with pytest.raises(CheckpointError, match=f"their {'inputs' if what == 'n' else what} is .* Name another folder"):
        solved(executor, replace(solver, **changed), replace(PROBLEM, **change))
    assert TileStore(tmp_path / "tiles").names() == held


def test_too_little_disk_is_refused_with_numbers(
    executor: LocalExecutor, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = TileLayout(300, 64, "single").disk_bytes
    assert 4 * 300 * 301 / 2 < needed < 4 * 300 * 300
    assert solved(executor, replace(SOLVER, disk_budget_bytes=needed)).converged
    writes.names.clear()
    with pytest.raises(StorageError, match=rf"take {needed:,} bytes on disk; disk_budget_bytes allows {needed - 1:,}"):
        solved(executor, replace(SOLVER, disk_budget_bytes=needed - 1))
    monkeypatch.setattr(TileStore, "free_bytes", lambda store: 1234)
    with pytest.raises(StorageError, match=rf"take {needed:,} bytes more on disk; '.*' has 1,234 bytes free.*'gbcd'"):
        solved(executor)
    assert not writes.names


def test_too_little_memory_is_refused_with_numbers(executor: LocalExecutor) -> None:
    least = TileLayout(300, 64, "single").task_bytes(1)
    with pytest.raises(MemoryBudgetError, match=rf"64 rows need {least:,} bytes .* allows {least - 1:,}\. Lower tile_"):
        solved(executor, replace(SOLVER, memory_bytes=least - 1))


@pytest.mark.long
def test_it_holds_few_tiles_at_a_time() -> None:
    problem = smooth_problem(2000, 3)
    executor = LocalExecutor(2)
    solver = TiledCholesky(tile_rows=128, memory_bytes=4_000_000)
    solved(executor, solver, smooth_problem(300, 3), tolerance=1e-4)  # compiled, and imported
    tracemalloc.start()
    try:
        solved(executor, solver, problem, tolerance=1e-4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        executor.close()
    assert peak < 8 * 2000**2 / 4


def test_folders_are_removed_when_they_should_be(executor: LocalExecutor, tmp_path: Path, temporary: Path) -> None:
    seen = []
    solved(executor, callback=lambda progress: seen.append(len(list(temporary.glob("*/*.tile")))))
    assert seen[:2] == [6, 10]  # a panel, and the next one's tile on the diagonal
    assert seen[-1] == N_TILES
    assert not list(temporary.iterdir())
    folder = tmp_path / "tiles"
    for keep in (True, False):
        solver = replace(SOLVER, folder=str(folder), keep=keep)
        operator = PROBLEM.blocked(executor)
        state = solver.start(operator, PROBLEM.y)
        solver.advance(operator, state)
        solver.finish(state)
        assert folder.exists() == keep


KILLED = """
import os, signal, sys
from dkgp.cluster import LocalExecutor
from dataclasses import replace
from tests.solvers.cholesky.tiles import SOLVER, solved

replace_file, left = os.replace, [8]

def dies(*arguments):
    left[0] -= str(arguments[1]).startswith(sys.argv[1])  # and not where compiled code is kept
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace_file(*arguments)

os.replace = dies
solved(LocalExecutor(1), replace(SOLVER, keep=True, folder=sys.argv[1]))
"""


@pytest.mark.faults
def test_a_process_killed_while_it_writes_a_tile(tmp_path: Path, writes: Writes) -> None:
    solver, folder = replace(SOLVER, keep=True, folder=str(tmp_path / "tiles")), tmp_path / "tiles"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    child = subprocess.run([sys.executable, "-c", KILLED, str(folder)], env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    assert len(list(folder.glob(".dkgp-temporary-*"))) == 1
    # Eight files were renamed or about to be, the description among them.
    held = TileStore(folder).names()
    assert len(held) == 6
    one = LocalExecutor(1)
    resumed = solved(one, solver)
    assert writes.names.keys().isdisjoint(held)
    assert writes.names.total() == N_TILES - 6
    require_same_bits(resumed, solved(one))
    assert not list(folder.glob(".dkgp-temporary-*"))
    one.close()


@pytest.mark.parametrize("kind", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_on_a_dask_cluster(executor: LocalExecutor, tmp_path: Path, kind: str) -> None:
    dataset = dataset_from_arrays(str(tmp_path / "train.zarr"), PROBLEM.X, PROBLEM.y, chunk_rows=70)
    with opened(kind, 2) as cluster:
        found = []
        for where in (executor, cluster):
            operator = BlockedKernelOperator(PROBLEM.kernel, PROBLEM.noise_variance, dataset, where)
            found.append(solve(operator, PROBLEM.y, solver=SOLVER, stopping=GradientInfNorm(1e-9)))
    require_same_bits(*found)


def test_a_remote_folder(executor: LocalExecutor, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/tiles"
    require_same_bits(solved(executor, replace(SOLVER, keep=True, folder=url)), solved(executor))
    assert len(TileStore(url).names()) == N_TILES
