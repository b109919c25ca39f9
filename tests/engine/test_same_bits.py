"""Products and sums of operators: the same bits on any threads, workers and processes. New work is a line in `WORK`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget, worker_cache
from dkgp.cluster.executors.base import HereExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.kernels import Kernel, Linear, SquaredExponential, parse_kernel
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.cells.operator import CellKernelOperator
from dkgp.operators.contract_tasks import contract
from dkgp.operators.cross.candidates import GrowingBasis
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.vecchia.factor import VecchiaFactor
from tests.engine.helpers import opened

N, D, T = 2100, 3, 2
KERNEL = SquaredExponential(gamma=(0.5, 0.8, 1.1), variance=1.3)
NOISE = np.random.default_rng(1).uniform(0.05, 0.3, N)
V = np.random.default_rng(2).standard_normal((N, T))
CHOSEN = np.random.default_rng(3).permutation(N)[:100]

Arrays = list[np.ndarray]
Work = Callable[[Dataset, Any], Arrays]


@contextmanager
def operator_of(
    dataset: Dataset, executor: Any, kernel: Kernel = KERNEL, **options: Any
) -> Iterator[BlockedKernelOperator]:
    with BlockedKernelOperator(kernel, NOISE, dataset, executor, **options) as operator:
        yield operator


def products(operator: BlockedKernelOperator) -> Arrays:
    columns = [operator.apply_columns(CHOSEN, V[CHOSEN], precision) for precision in ("single", "double")]
    return [*columns, operator.matmat(V, "single"), operator.matmat(V), operator.diagonal(), operator.row_errors()]


def blocked(dataset: Dataset, executor: Any, **options: Any) -> Arrays:
    with operator_of(dataset, executor, **options) as operator:
        return products(operator)


def varying_diagonal(dataset: Dataset, executor: Any) -> Arrays:
    kernels = (Linear((1.0, 0.4, 2.0)), parse_kernel("polynomial(degree=3)", D), KERNEL + Linear((1.0, 0.4, 2.0)))
    found = []
    for kernel in kernels:
        with operator_of(dataset, executor, kernel) as operator:
            found.append(operator.diagonal())
    return found


def contraction(dataset: Dataset, executor: Any) -> Arrays:
    with operator_of(dataset, executor) as operator:
        return [contract(operator, V, [np.array([[1.0, 0.3], [0.3, -2.0]]), np.eye(T)])]


def cells(dataset: Dataset, executor: Any) -> Arrays:
    rough = SquaredExponential((30.0, 40.0)).on((0, 2), D)
    with CellKernelOperator(rough, NOISE, dataset, executor, coordinator_input_bytes=0) as operator:
        found = [operator.matmat(V, "single"), operator.matmat(V)]
        return [*found, operator.apply_columns(CHOSEN, V[CHOSEN]), np.array(operator.error_bound)]


def factor(dataset: Dataset, executor: Any, rank: int = 0) -> Arrays:
    with operator_of(dataset, executor) as operator:
        return [VecchiaFactor(operator, 60, 45, CHOSEN[:rank]).apply(V)]


def cross(dataset: Dataset, executor: Any) -> Arrays:
    prototypes = np.random.default_rng(4).standard_normal((70, D))
    with operator_of(dataset, executor) as operator:
        kernel, W = CrossKernel(operator, prototypes), V[:70]
        gram, residual = kernel.whitened(V, NOISE, fitc=True), kernel.residual(W, V, NOISE, returned=True)
        arrays = [kernel.columns(W), kernel.project(V), gram.matrix, gram.projected, gram.squares, kernel.lower]
        return [np.array(array) for array in (*arrays, residual.projected, residual.squares, residual.values)]


def growing_basis(dataset: Dataset, executor: Any) -> Arrays:
    """Three passes, whose columns workers keep where they may."""
    inputs, found = np.random.default_rng(5).standard_normal((60, D)), []
    with operator_of(dataset, executor) as operator:
        basis = GrowingBasis(operator, NOISE)
        for k in (0, 20, 40):
            one = basis.sums(inputs[:9], V, inputs[:k], V[:k], single=True)
            two = basis.sums(inputs[9:20], one.residual, inputs[:k], between=True, inner=True)
            for sums in (one, two):
                found += [np.array(value) for value in vars(sums).values() if value is not None]
        basis.close()
    return found


WORK: dict[str, Work] = {
    "blocked": blocked,
    "blocked, out of core": lambda dataset, executor: blocked(dataset, executor, coordinator_input_bytes=1),
    "varying diagonal": varying_diagonal,
    "contraction": contraction,
    "cells": cells,
    "factor": factor,
    "factor with landmarks": lambda dataset, executor: factor(dataset, executor, 40),
    "cross": cross,
    "growing basis": growing_basis,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A store, which worker processes read too; several blocks, the last of them short."""
    X = np.random.default_rng(0).standard_normal((N, D))
    return dataset_from_arrays(str(tmp_path_factory.mktemp("same") / "data.zarr"), X, X[:, 0], chunk_rows=700)


# What is the same in other processes is the same on other processors: `make test-portable` asks both.
EXECUTORS = [("none", 3), ("here", 3), ("local", 5), pytest.param(("processes", 2), marks=pytest.mark.portable)]


@pytest.fixture(scope="module")
def of_one_thread(dataset: Dataset) -> Callable[[str], Arrays]:
    @cache
    def computed(name: str) -> Arrays:
        executor = LocalExecutor(1)
        found = WORK[name](dataset, executor)
        executor.close()
        worker_cache().clear()
        return found

    return computed


@pytest.fixture(scope="module", params=EXECUTORS, ids=str)
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind, workers = request.param
    if kind == "here":
        yield HereExecutor(workers)
        return
    with opened(kind, workers) as executor:
        executor.tiles = TileBudget(2**30)
        yield executor


@pytest.mark.spread(3)
@pytest.mark.covering
@pytest.mark.parametrize("name", WORK)
def test_it_has_the_bits_of_one_thread(
    name: str, dataset: Dataset, executor: Any, of_one_thread: Callable[[str], Arrays]
) -> None:
    expected = of_one_thread(name)
    found = WORK[name](dataset, executor)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
