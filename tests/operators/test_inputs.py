"""Arrays in memory as inputs: what they admit, and how they travel."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest

from dkgp.errors import ClusterError, InputError
from dkgp.operators import ArrayInputs


def test_rows_by_range(rng: np.random.Generator) -> None:
    X = rng.standard_normal((20, 3)).astype(np.float32)
    source = ArrayInputs(X)
    assert (source.n_samples, source.n_features) == (20, 3)
    rows = source.inputs(5, 9)
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows, X[5:9])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_located(bad: float) -> None:
    X = np.zeros((10, 4))
    X[7, 2] = X[8, 0] = bad
    with pytest.raises(InputError, match=f"inputs must be finite; got {bad} in row 7, column 2"):
        ArrayInputs(X)


@pytest.mark.parametrize("shape", [(5,), (0, 3), (3, 0), (2, 2, 2)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected|must be an array of shape \(n, d\) with n, d >= 1"):
        ArrayInputs(np.zeros(shape))


def test_pickles_to_a_token_that_this_process_redeems() -> None:
    source = ArrayInputs(np.zeros((10_000, 3)))
    sent = pickle.dumps(source)
    assert len(sent) < 200
    assert pickle.loads(sent) is source
    assert pickle.loads(sent).read(2, 4).shape == source.rows(np.array([7, 5])).shape == (2, 3)


def test_token_of_a_forgotten_array_says_so() -> None:
    sent = pickle.dumps(ArrayInputs(np.zeros((4, 1))))
    gc.collect()
    stray = pickle.loads(sent)
    with pytest.raises(ClusterError, match="store that they can read: ingest the data first"):
        stray.inputs(0, 1)


def test_token_in_another_process_says_so() -> None:
    source = ArrayInputs(np.zeros((4, 1)))
    script = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])).inputs(0, 1)"
    result = subprocess.run(
        [sys.executable, "-c", script, pickle.dumps(source).hex()], capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert "ClusterError: A task asked for rows that are in another process's memory" in result.stderr
