"""BLAS and LAPACK by their own interface: right letters, counts and numbers, and the GIL let go."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from dkgp.cluster.threads import single_threaded_blas
from dkgp.operators.blas import blas, lapack

both_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@both_types
def test_a_product_in_the_arrays_type(rng: np.random.Generator, dtype: type) -> None:
    left, right = (np.asfortranarray(rng.normal(size=shape), dtype) for shape in ((5, 3), (3, 4)))
    total = np.asfortranarray(rng.normal(size=(5, 4)), dtype)
    expected = 2.0 * left @ right - 0.5 * total
    # A count may be NumPy's, as lengths and strides often are; other numbers are never taken for one.
    blas("gemm", b"N", b"N", 5, np.int64(4), 3, 2.0, left, 5, right, 3, np.float64(-0.5), total, 5)
    np.testing.assert_allclose(total, expected, atol=100 * np.finfo(dtype).eps)


@both_types
def test_a_factor_and_what_is_wrong_with_one(dtype: type) -> None:
    matrix = np.asfortranarray([[4.0, 2.0], [2.0, 5.0]], dtype)
    assert lapack("potrf", b"L", 2, matrix, 2) == 0
    np.testing.assert_allclose(np.tril(matrix), [[2.0, 0.0], [1.0, 2.0]])
    assert lapack("potrf", b"L", 2, np.asfortranarray([[4.0, 0.0], [2.0, 1.5]], dtype), 2) == 0
    assert lapack("potrf", b"L", 2, np.asfortranarray([[4.0, 0.0], [2.0, 0.5]], dtype), 2) == 2


def test_a_routine_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="dgemmm"):
        blas("gemmm", np.zeros(1))


def test_other_threads_run_meanwhile() -> None:
    """Held, the GIL would not let the counter go on before the product is done."""
    n, counted = 1000, 0
    matrix, total = np.zeros((n, n), order="F"), np.zeros((n, n), order="F")
    ended = threading.Event()

    def count() -> None:
        nonlocal counted
        while not ended.is_set():
            time.sleep(1e-4)
            counted += 1

    with single_threaded_blas():
        thread = threading.Thread(target=count)
        thread.start()
        time.sleep(0.01)
        before = counted
        for _ in range(3):
            blas("gemm", b"N", b"N", n, n, n, 1.0, matrix, n, matrix, n, 0.0, total, n)
        after = counted
        ended.set()
        thread.join()
    # Three turns would come between three calls; a product takes tens of milliseconds.
    assert after - before > 10
