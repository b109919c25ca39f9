"""Tiles that worker processes keep: found again product after product, freed with the run, and lost without a trace."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.keeping import kept_bytes_of, worker_tiles
from tests.engine.helpers import Problem, client_of, opened, worker_pids

VECTORS = np.random.default_rng(3).standard_normal((2000, 2))


def kept_bytes() -> int:
    return worker_tiles().nbytes


@pytest.fixture(scope="module")
def expected(problem: Problem) -> np.ndarray:
    executor = LocalExecutor(1)
    with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
        product = operator.matmat(VECTORS, "single")
    executor.close()
    return product


@pytest.mark.slow
def test_each_worker_keeps_its_own_and_frees_it(problem: Problem, expected: np.ndarray) -> None:
    budget = kept_bytes_of(2000)
    with opened("processes", 2, cache_tiles=budget) as executor:
        client = client_of(executor)
        with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
            for _ in range(3):
                np.testing.assert_array_equal(operator.matmat(VECTORS, "single"), expected)
            # Work that is stolen by an idle worker is evaluated there, the first time.
            assert operator.kept_share > 0.5
            held = client.run(kept_bytes)
            assert len(held) == 2
            assert all(0 < count <= budget for count in held.values())
            assert kept_bytes() == 0
        assert set(client.run(kept_bytes).values()) == {0}
    with opened("local", 2, cache_tiles=budget) as executor:
        with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
            for _ in range(2):
                np.testing.assert_array_equal(operator.matmat(VECTORS, "single"), expected)
            assert operator.kept_share == 1.0
        assert kept_bytes() == 0


@pytest.mark.faults
@pytest.mark.usefixtures("quiet_dask")
def test_a_worker_that_is_killed_takes_its_tiles_and_no_bits(problem: Problem, expected: np.ndarray) -> None:
    with opened("processes", 2, cache_tiles=kept_bytes_of(2000)) as executor:
        executor.tiles = TileBudget(kept_bytes_of(2000))
        with BlockedKernelOperator(problem.kernel, problem.noise_variance, problem.dataset, executor) as operator:
            for turn in range(6):
                if turn in (2, 4):
                    os.kill(worker_pids(client_of(executor))[turn % 4 // 2], signal.SIGKILL)
                    time.sleep(0.2 if turn == 4 else 0.0)
                np.testing.assert_array_equal(operator.matmat(VECTORS, "single"), expected)
            for _ in range(4):  # whoever came back has its share again
                operator.matmat(VECTORS, "single")
            assert operator.kept_share > 0.4
