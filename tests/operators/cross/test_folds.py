"""Fold Grams of several kernels, triangles of columns, and images of folds, against dense arrays."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import split_evenly
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import Linear, Matern32, SquaredExponential
from dkgp.models.classification.fixed_size.train import fit_triangle
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.cross.folds import (
    fold_columns_task,
    fold_sums,
    triangle_numbers,
    unpacked,
)

# Blocks of 256 rows at least: several of them, the last one short.
N, M, FOLDS = 2700, 37, 4
KERNELS = (SquaredExponential(gamma=(0.5, 1.5)), Matern32(gamma=(1.0, 0.2), variance=2.0), Linear((0.3, 1.0)))


class Data:
    def __init__(self, rng: np.random.Generator) -> None:
        X = rng.standard_normal((N, 2))
        self.dataset = memory_dataset(X, X[:, 0])
        self.X = self.dataset.inputs(0, N)
        self.Z = rng.standard_normal((M, 2))
        self.V = rng.standard_normal((N, 3))
        # Fold 3 lies in the last rows alone: most blocks have none of it.
        self.folds = rng.integers(0, FOLDS - 1, N)
        self.folds[-5:] = FOLDS - 1
        self.weights = rng.uniform(0.0, 2.0, N)


@pytest.mark.parametrize("weighted", [False, True])
def test_fold_grams_are_those_of_dense_columns(
    rng: np.random.Generator, one_thread: LocalExecutor, weighted: bool
) -> None:
    data = Data(rng)
    vectors = data.V, data.weights if weighted else None
    with BlockedKernelOperator(KERNELS[0], 1.0, data.dataset, one_thread) as operator:
        grams, projected = fold_sums(operator, data.Z, KERNELS, (data.folds, FOLDS), vectors, "fold Grams")
        assert operator.kernel_evaluations >= 3 * N * M
    assert grams.shape == (3, FOLDS, triangle_numbers(M))
    each = data.weights if weighted else np.ones(N)
    for number, kernel in enumerate(KERNELS):
        K = kernel(data.X, data.Z)
        for fold in range(FOLDS):
            own = data.folds == fold
            expected = K[own].T @ (each[own, None] * K[own])
            scale = np.abs(expected).max()
            np.testing.assert_allclose(unpacked(grams[number, fold], M), expected, rtol=0.0, atol=1e-12 * scale)
            right = K[own].T @ (each[own, None] * data.V[own])
            np.testing.assert_allclose(projected[number, fold], right, rtol=0.0, atol=1e-11 * scale)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_triangle_is_that_of_all_rows(
    rng: np.random.Generator, one_thread: LocalExecutor, weighted: bool, intercept: bool
) -> None:
    data = Data(rng)
    with BlockedKernelOperator(KERNELS[1], 1.0, data.dataset, one_thread) as operator:
        found = fit_triangle(operator, data.Z, data.V, data.weights if weighted else None, intercept)
    columns = [KERNELS[1](data.X, data.Z), np.ones((N, int(intercept))), data.V]
    rows: NDArray[np.float64] = np.hstack(columns)
    if weighted:
        rows *= np.sqrt(data.weights)[:, None]
    np.testing.assert_array_equal(found, np.triu(found))
    expected = np.linalg.qr(rows, mode="r")
    signs = np.sign(expected.diagonal() * found.diagonal())
    np.testing.assert_allclose(found, signs[:, None] * expected, rtol=0.0, atol=1e-10 * np.abs(expected).max())


def test_images_of_folds_are_by_their_own_prototypes(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    data = Data(rng)
    parts = ((0, 10), (10, 12), (12, 12), (12, 37))  # one of them has no prototypes
    bases = tuple(data.Z[start:stop] for start, stop in parts)
    weights = tuple(rng.standard_normal((stop - start, 2)) for start, stop in parts)
    with BlockedKernelOperator(KERNELS[0], 1.0, data.dataset, one_thread) as operator:
        groups = split_evenly(range(operator.context.n_blocks), 3)
        arguments = (operator.context, bases, weights, data.folds)
        found = np.concatenate(operator.submit("kfoldcolumns", fold_columns_task, arguments, groups).result())
    for fold in range(FOLDS):
        own = data.folds == fold
        expected = KERNELS[0](data.X[own], bases[fold]) @ weights[fold]
        np.testing.assert_allclose(found[own], expected, rtol=0.0, atol=1e-12)
