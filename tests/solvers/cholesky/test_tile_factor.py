from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import (
    CheckpointError,
    MemoryBudgetError,
    StorageError,
    StoreError,
)
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import GradientInfNorm, MaxIterations, TiledCholesky, solve
from dkgp.solvers.cholesky.tile_factor import TileLayout
from tests.engine.helpers import opened
from tests.solvers.cholesky.tiles import N_TILES, PROBLEM, SOLVER, Writes, bits, solved
from tests.solvers.problems import smooth_problem


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
    assert bits(solved(one, solver)) == bits(whole)
    assert set(writes.names.values()) == {1}  # no tile was computed twice
    assert len(writes.names) == N_TILES
    assert not list((tmp_path / "tiles").glob(".dkgp*"))
    writes.names.clear()
    assert bits(solved(one, solver)) == bits(whole)
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
    assert bits(solved(executor, solver)) == bits(whole)
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
    assert bits(resumed) == bits(solved(one))
    assert not list(folder.glob(".dkgp-temporary-*"))
    one.close()


@pytest.mark.parametrize("kind", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_on_a_dask_cluster(executor: LocalExecutor, tmp_path: Path, kind: str) -> None:
    dataset = dataset_from_arrays(str(tmp_path / "train.zarr"), PROBLEM.X, PROBLEM.y, chunk_rows=70)
    with opened(kind, 2) as cluster:
        found = []
        for where in (executor, cluster):
            operator = BlockedKernelOperator(PROBLEM.kernel, PROBLEM.noise_variance, dataset, where)
            found.append(bits(solve(operator, PROBLEM.y, solver=SOLVER, stopping=GradientInfNorm(1e-9))))
    assert found[0] == found[1]


def test_a_remote_folder(executor: LocalExecutor, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/tiles"
    assert bits(solved(executor, replace(SOLVER, keep=True, folder=url))) == bits(solved(executor))
    assert len(TileStore(url).names()) == N_TILES
