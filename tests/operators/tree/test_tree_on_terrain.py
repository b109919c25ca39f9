"""Tree sums on an elevation model: the error is within what was asked; how much faster they are is printed."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.kernels import Kernel, Matern52, SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.tree.operator import TreeKernelOperator
from tests.benchmark_data import benchmark_folder

SAMPLES = 200_000
NEIGHBOURS = 15  # in a circle of one length scale
ASKED = 1e-6


def terrain() -> np.ndarray:
    with np.load(benchmark_folder() / "dem_bigtujunga.npz") as source:
        places = source["X"].astype(np.float64)
    places = places[np.random.default_rng(0).permutation(len(places))[:SAMPLES]]
    return (places - places.mean(axis=0)) / places.std(axis=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", [SquaredExponential, Matern52])
def test_two_hundred_thousand_samples(family: type[Kernel], capsys: pytest.CaptureFixture[str]) -> None:
    X = terrain()
    area = float(np.prod(X.max(axis=0) - X.min(axis=0)))
    gamma = len(X) * math.pi / (2.0 * NEIGHBOURS * area)
    kernel = family(gamma=(gamma, gamma))  # type: ignore[call-arg]  # both take it
    V = np.random.default_rng(1).standard_normal((len(X), 1))
    executor = LocalExecutor()
    seconds, products = [], []
    with (
        TreeKernelOperator(kernel, 0.01, ArrayInputs(X), executor, error=ASKED) as tree,
        BlockedKernelOperator(kernel, 0.01, ArrayInputs(X), executor) as dense,
    ):
        tree.matmat(V)  # builds the tree
        for operator in (tree, dense):
            began = time.perf_counter()
            products.append(operator.matmat(V))
            seconds.append(time.perf_counter() - began)
        bound = tree.error_bound
    executor.close()
    error = float(np.abs(products[0] - products[1]).max())
    allowed = ASKED * max(1.0, float(np.abs(V).max()))
    with capsys.disabled():
        print(
            f"\n{kernel.type_name}, n = {len(X):,}: error {error:.2g}, bound {bound:.2g}, asked {allowed:.2g}; tree "
            f"{seconds[0]:.2f} s, dense {seconds[1]:.2f} s, ratio {seconds[1] / seconds[0]:.0f}"
        )
    assert error <= bound <= allowed
    assert np.abs(products[0]).max() > 1.0
