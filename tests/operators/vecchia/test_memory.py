"""Foreseen bytes against those that factors take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia.factor import VecchiaFactor, vecchia_bytes


@pytest.mark.parametrize(("halo", "leaf", "rank"), [(200, 100, 0), (0, 130, 40), (150, 75, 64), (5000, 500, 0)])
def test_bytes_kept_are_foreseen(one_thread: LocalExecutor, halo: int, leaf: int, rank: int) -> None:
    n = 1500
    X = np.random.default_rng(0).standard_normal((n, 3))
    operator = BlockedKernelOperator(SquaredExponential(gamma=(0.5,) * 3), 0.01, ArrayInputs(X), one_thread)
    foreseen = vecchia_bytes(n, halo, leaf, rank, width=3)
    marks = np.arange(rank, dtype=np.intp)
    worker_cache().clear()
    VecchiaFactor(operator, min(10, halo), 10, marks)  # compiles
    tracemalloc.start()
    try:
        factor = VecchiaFactor(operator, halo, leaf, marks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.8 * foreseen.kept <= factor.nbytes <= 1.1 * foreseen.kept + 4096
    assert peak <= 1.1 * foreseen.in_process(1) + 1_000_000
