"""Variances under noise by sample: intervals that hold the dense formula's, whatever the noise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, parse_kernel
from dkgp.models.variance.iterative import IterativeRun
from dkgp.models.variance.run import Request
from dkgp.models.variance.scaled import ScaledInputs, ScaledSupport, Subject, scaled_kernel
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.block_tasks import ArrayInputs, BlockContext

FloatArray = NDArray[np.float64]
RUNS = count()


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples in memory, and the precision of their noise."""

    X: FloatArray
    W: FloatArray
    centre: FloatArray | None = None

    @property
    def n_samples(self) -> int:
        return len(self.X)

    @property
    def n_features(self) -> int:
        return self.X.shape[1]

    def inputs(self, start: int, stop: int) -> FloatArray:
        return self.X[start:stop]

    def precision_roots(self, column: int, start: int, stop: int) -> FloatArray:
        return np.sqrt(self.W[start:stop, column])


def intervals(
    rows: Rows, kernel: Kernel, test: FloatArray, threads: int = 2, **settings: object
) -> tuple[FloatArray, FloatArray]:
    source = ScaledInputs(rows, 0)
    context = BlockContext(f"scaled-{next(RUNS)}", source, scaled_kernel(kernel, rows.n_features), rows.n_samples)
    subject, queries = Subject(ScaledSupport(source), context.kernel, context), ArrayInputs(test)
    executor = LocalExecutor(threads)
    try:
        chosen = VarianceSettings(latent=True, **settings)  # type: ignore[arg-type]
        run = IterativeRun(Request(subject, None, queries, executor, chosen))
        run.prepare()
        mean, _, lower, upper = run.collect(run.submit(queries, 0, len(test)).result())
    finally:
        executor.close()
    assert mean.shape == (len(test), 0)
    return lower, upper


def dense(rows: Rows, kernel: Kernel, test: FloatArray) -> FloatArray:
    roots = np.sqrt(rows.W[:, 0])
    B = np.eye(rows.n_samples) + roots[:, None] * kernel(rows.X, rows.X) * roots
    half = np.linalg.solve(np.linalg.cholesky(B), roots[:, None] * kernel(rows.X, test))
    return np.asarray(kernel.diagonal(test) - (half**2).sum(axis=0))


def noisy(rng: np.random.Generator, n: int) -> Rows:
    """Curvatures of all sizes: zeros, ones that underflow when squared, and some that are usual."""
    W = rng.uniform(0.0, 0.25, (n, 1)) ** 3
    W[:20], W[20:40], W[40:60] = 0.0, 1e-300, 1e-12
    W[60:70] = 1e6
    return Rows(rng.standard_normal((n, 3)), W)


@pytest.mark.parametrize("expression", ["rbf", "matern32 + 0.3 * linear", "rbf[0, 1] * matern52[2]"])
@pytest.mark.parametrize("settings", [{}, {"max_passes": 0.0}, {"gap": 1e-5, "rank": 40, "halo": 32}])
def test_intervals_hold_the_dense_variance(
    expression: str, settings: dict[str, float], rng: np.random.Generator
) -> None:
    rows, kernel = noisy(rng, 300), parse_kernel(expression, 3)
    test = 1.5 * rng.standard_normal((40, 3))
    lower, upper = intervals(rows, kernel, test, **settings)
    exact = dense(rows, kernel, test)
    slack = 1e-9 * kernel.diagonal(test)  # of the dense formula, which cancels
    assert (lower <= exact + slack).all()
    assert (exact <= upper + slack).all()
    if "max_passes" not in settings:
        assert ((upper - lower) <= 0.021 * upper).all()


def test_no_bit_depends_on_the_number_of_threads(rng: np.random.Generator) -> None:
    rows, kernel = noisy(rng, 300), parse_kernel("rbf", 3)
    test = rng.standard_normal((20, 3))
    first, second = (intervals(rows, kernel, test, threads, batch_size=10) for threads in (1, 5))
    np.testing.assert_array_equal(first, second)


def test_with_hardly_any_curvature_the_variance_is_the_priors(rng: np.random.Generator) -> None:
    rows = Rows(rng.standard_normal((100, 3)), np.full((100, 1), 1e-30))
    lower, upper = intervals(rows, parse_kernel("2.0 * rbf", 3), rng.standard_normal((5, 3)))
    np.testing.assert_allclose([lower, upper], 2.0, rtol=1e-12)


def test_rows_are_read_in_their_order_and_the_centre_has_none_for_the_scale(rng: np.random.Generator) -> None:
    rows = noisy(rng, 500)
    support = ScaledSupport(ScaledInputs(dataclasses.replace(rows, centre=np.ones(3)), 0))
    chosen = rng.permutation(500)[:60]
    np.testing.assert_array_equal(support.input_rows(chosen), support.source.inputs(0, 500)[chosen])
    assert support.source.centre is not None
    np.testing.assert_array_equal(support.source.centre, [1.0, 1.0, 1.0, 0.0])


def test_a_factor_is_not_kept(rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match="keep_factor"):
        intervals(noisy(rng, 100), parse_kernel("rbf", 3), np.zeros((1, 3)), keep_factor=True)
