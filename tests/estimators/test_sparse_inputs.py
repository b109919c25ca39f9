"""Sparse matrices are read as the dense arrays that they stand for, in pipelines and alone."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import psutil
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import dkgp
from dkgp import ConjugateDirectionsPursuit, GPClassifier, GPRegressor, KernelLogisticClassifier, SparseGPRegressor
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential

KERNEL = SquaredExponential(gamma=(0.5, 0.5, 0.5, 0.5))
N = 80
ESTIMATORS = {
    "exact": lambda: GPRegressor(KERNEL, noise_variance=0.01),
    "sparse": lambda: SparseGPRegressor(KERNEL, noise_variance=0.01, basis_size=20),
    "pursuit": lambda: ConjugateDirectionsPursuit(n_nonzero_coefs=2),
    "gp": lambda: GPClassifier(KERNEL),
    "logistic": lambda: KernelLogisticClassifier(KERNEL),
    "fixed size": lambda: dkgp.FixedSizeLSSVC(KERNEL, max_basis=10),
    "drop-in": lambda: dkgp.GaussianProcessRegressor(alpha=0.01, optimizer=None),
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    cut = rng.choice(["fair", "good", "ideal"], N)
    size = rng.normal(size=N)
    price = size + (cut == "ideal") * 2.0 + 0.05 * rng.normal(size=N)
    return pd.DataFrame({"cut": cut, "size": size, "price": price})


def encoder(**options: Any) -> Any:
    return make_column_transformer((OneHotEncoder(**options), ["cut"]), remainder="passthrough", sparse_threshold=1.0)


def targets_of(table: pd.DataFrame, name: str) -> np.ndarray:
    price = table["price"].to_numpy()
    return np.where(price > 1.0, "dear", "cheap") if name in ("gp", "logistic", "fixed size") else price


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_recipe_of_the_questions_works(table: pd.DataFrame, name: str) -> None:
    rows, targets = table[["cut", "size"]], targets_of(table, name)
    assert sparse.issparse(encoder().fit_transform(rows))
    lazily = make_pipeline(encoder(), ESTIMATORS[name]()).fit(rows, targets)
    known = make_pipeline(encoder(sparse_output=False), ESTIMATORS[name]()).fit(rows, targets)
    np.testing.assert_array_equal(np.asarray(lazily.predict(rows)), np.asarray(known.predict(rows)))
    assert lazily.score(rows, targets) > 0.8


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_array", "lil_matrix", "dask"])
def test_every_form_is_the_dense_array(table: pd.DataFrame, form: str) -> None:
    X, y = encoder(sparse_output=False).fit_transform(table[["cut", "size"]]), table["price"].to_numpy()
    if form == "dask":
        given: Any = da.from_array(np.asarray(X), chunks=(30, -1)).map_blocks(sparse.csr_matrix)
        given._meta = sparse.csr_matrix((0, 0))
    else:
        given = getattr(sparse, form)(X)
    model = GPRegressor(KERNEL, noise_variance=0.01).fit(given, y)
    expected = GPRegressor(KERNEL, noise_variance=0.01).fit(X, y)
    np.testing.assert_allclose(np.asarray(model.predict(given)), expected.predict(X), atol=1e-6)
    np.testing.assert_allclose(model.predict_gradients(given).mean, expected.predict_gradients(X).mean, atol=1e-6)


def test_weights_of_zero_leave_out_rows_of_sparse_matrices(table: pd.DataFrame) -> None:
    X, y = encoder(sparse_output=False).fit_transform(table[["cut", "size"]]), table["price"].to_numpy()
    weights = np.where(np.arange(N) % 5 == 0, 0.0, 1.0)
    model = GPRegressor(KERNEL, noise_variance=0.01).fit(sparse.coo_array(X), y, sample_weight=weights)
    assert model.solution_["converged"]
    expected = GPRegressor(KERNEL, noise_variance=0.01).fit(X[weights > 0.0], y[weights > 0.0])
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


def test_a_matrix_that_does_not_fit_in_memory_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = sparse.csr_matrix(([1.0], ([0], [0])), shape=(2**20, 2**30))
    with pytest.raises(InputError, match=r"X is a sparse matrix of shape \(1048576, .*GiB.*TruncatedSVD"):
        GPRegressor().fit(huge, np.zeros(3))
    small = sparse.csr_matrix(np.eye(100))

    class Free:
        available = 100_000

    monkeypatch.setattr(psutil, "virtual_memory", Free)
    with pytest.raises(InputError, match="more than half of the"):
        GPRegressor().fit(small, np.arange(100.0))


def test_targets_with_gaps_take_rows_of_sparse_matrices(table: pd.DataFrame) -> None:
    X, y = encoder(sparse_output=False).fit_transform(table[["cut", "size"]]), table["price"].to_numpy()
    both = np.column_stack([y, np.where(np.arange(N) % 3 == 0, np.nan, 2.0 * y)])
    model = GPRegressor(KERNEL, noise_variance=0.01).fit(sparse.csr_matrix(X), both)
    expected = GPRegressor(KERNEL, noise_variance=0.01).fit(X, both)
    np.testing.assert_array_equal(model.predict(sparse.csr_matrix(X)), expected.predict(X))


@pytest.mark.parametrize("name", ["exact", "sparse", "gp", "fixed size", "drop-in"])
@pytest.mark.parametrize("columns", [["cut"], ["cut", "size"]], ids=["all sparse", "some sparse"])
@pytest.mark.filterwarnings("error:pandas.DataFrame with sparse columns")
def test_frames_with_sparse_columns_are_read_as_dense_ones(table: pd.DataFrame, name: str, columns: list[str]) -> None:
    rows, targets = pd.get_dummies(table[columns], dtype=float), targets_of(table, name)
    encoded = [column for column in rows if column != "size"]
    frame = rows.astype(dict.fromkeys(encoded, pd.SparseDtype(float, 0.0)))
    unfitted = ESTIMATORS[name]() if len(columns) == 2 else ESTIMATORS[name]().set_params(kernel=None)
    if len(columns) == 1 and name != "drop-in":
        unfitted.set_params(kernel=SquaredExponential(gamma=(0.5,) * 3))
    predicted = [np.asarray(unfitted.fit(form, targets).predict(form)) for form in (frame, rows)]
    np.testing.assert_array_equal(*predicted)


def test_frames_with_sparse_columns_that_do_not_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame.sparse.from_spmatrix(sparse.eye_array(200, format="csr"))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 600_000})())
    with pytest.raises(InputError, match=r"X is a sparse matrix of shape \(200, 200\); as a dense one it takes"):
        GPRegressor().fit(frame, np.arange(200.0))
