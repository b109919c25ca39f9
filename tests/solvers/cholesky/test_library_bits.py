"""What BLAS and NumPy compute must be one value on one architecture: wherever arrays lie, whatever threads BLAS has.

Solvers whose workers take factors and products from them promise the same bits for any number of like workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.solvers.cholesky.dense import factor_lower, solve_lower, subtract_product, subtract_square

ROOT = Path(__file__).resolve().parents[3]
PAGE = 4096
Arrays = tuple[np.ndarray, ...]


def placed(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins so many bytes after the beginning of a page."""
    room = np.empty(array.nbytes + 2 * PAGE, np.uint8)
    start = -room.ctypes.data % PAGE + offset
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def in_place(change: Callable[..., Any], which: int = 0) -> Callable[..., np.ndarray]:
    """What a function that changes an argument leaves there."""

    def changed(*arrays: np.ndarray) -> np.ndarray:
        change(*arrays)
        return arrays[which]

    return changed


def solved(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.linalg.solve_triangular(lower, right, lower=True, check_finite=False))


# What marked tasks call, on (tall, wide, few, one, square, lower) of sizes that are no multiples of anything.
CALLS: dict[str, tuple[Callable[..., np.ndarray], tuple[int, ...]]] = {
    "gram": (lambda tall: tall.T @ tall, (0,)),
    "product": (lambda tall, few: tall @ few, (0, 2)),
    "product with a vector": (lambda tall, one: tall @ one, (0, 3)),
    "transposed product with a vector": (lambda square, one: square.T @ one, (4, 3)),
    "cholesky": (lambda square: scipy.linalg.cholesky(square, lower=True, check_finite=False), (4,)),
    "triangle": (solved, (5, 1)),
    "sums of squares": (lambda tall: np.einsum("ri,ri->i", tall, tall), (0,)),
    "exponential": (lambda tall: np.exp(-tall * tall), (0,)),
    "tile less a product": (in_place(subtract_product), (1, 5, 6)),
    "tile less a square": (in_place(subtract_square), (4, 5)),
    "tile factored": (in_place(factor_lower), (4,)),
    "tile solved": (in_place(lambda lower, square: solve_lower(lower, len(lower), square), 1), (5, 4)),
}


def operands(rng: np.random.Generator, dtype: str) -> Arrays:
    tall, wide = rng.standard_normal((517, 203)), rng.standard_normal((203, 301))
    square = tall.T @ tall / 500.0 + np.eye(203)
    arrays = (tall, wide, wide[:, :7], wide[:, :1], square, np.linalg.cholesky(square), tall[:301])
    return tuple(np.ascontiguousarray(array, dtype=dtype) for array in arrays)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CALLS)
def test_where_arrays_lie_changes_nothing(rng: np.random.Generator, name: str, dtype: str) -> None:
    call, chosen = CALLS[name]
    arrays = [operands(rng, dtype)[index] for index in chosen]
    size = np.dtype(dtype).itemsize
    with single_threaded_blas():
        found = {
            call(*(placed(array, offset * (2 * place + 1) % 128) for place, array in enumerate(arrays))).tobytes()
            for offset in range(0, 64 + size, size)
        }
    assert len(found) == 1


TRAIN = """
import hashlib
from dkgp.cluster import LocalExecutor
from dkgp.solvers import *
from tests.solvers.problems import smooth_problem

problem, executor = smooth_problem(1200, 3, noise_variance=0.1), LocalExecutor(2)
pcg = ConjugateGradient(preconditioner=FactorPreconditioning(0, rank=200))
for solver in (GreedyBlockCoordinateDescent(block_size=150), pcg, Cholesky(), TiledCholesky(tile_rows=300)):
    stopping = GradientInfNorm(1e-4) | MaxPasses(20)
    solution = solve(problem.blocked(executor), problem.y, solver=solver, stopping=stopping)
    print(solver.name, hashlib.sha256(solution.alpha.tobytes()).hexdigest()[:8])
"""


@pytest.mark.slow
def test_threads_that_the_blas_begins_with_change_nothing() -> None:
    """A solve gives BLAS one thread; what it would do with several must not be seen."""
    found = []
    for threads in ("1", "2", "4"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRAIN],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    assert len(found[0]) == 4
    assert found[1:] == found[:1] * 2
