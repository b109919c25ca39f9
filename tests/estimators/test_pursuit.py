"""`ConjugateDirectionsPursuit` beside scikit-learn's `OrthogonalMatchingPursuit`, in memory and out of core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray
from distributed import Client
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import OrthogonalMatchingPursuit
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from dkgp import ConjugateDirectionsPursuit
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError
from tests.workers import on_dask


def problem(rng: np.random.Generator, p: int = 1, n: int = 120, d: int = 30) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) * np.exp(0.4 * rng.standard_normal(d)) + 3.0
    y = X @ (rng.standard_normal((d, p)) * (rng.random((d, p)) < 0.3)) + 0.5 * rng.standard_normal((n, p)) + 7.0
    return X, y[:, 0] if p == 1 else y


@pytest.mark.covering
@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("how", [{"n_nonzero_coefs": 7}, {"tol": 120.0}, {}])
def test_it_is_orthogonal_matching_pursuit(
    how: dict[str, Any], fit_intercept: bool, p: int, rng: np.random.Generator
) -> None:
    X, y = problem(rng, p)
    expected = OrthogonalMatchingPursuit(**how, fit_intercept=fit_intercept).fit(X, y)
    found = ConjugateDirectionsPursuit(**how, fit_intercept=fit_intercept).fit(X, y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(found.n_iter_, np.sum(expected.coef_ != 0.0, axis=-1))
    np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-9)
    assert found.score(X, y) == pytest.approx(expected.score(X, y), abs=1e-10)
    assert found.coef_.shape == expected.coef_.shape
    assert np.shape(found.intercept_) == np.shape(expected.intercept_)


def test_any_cardinality_of_the_path_without_refitting(rng: np.random.Generator) -> None:
    X, y = problem(rng)
    found = ConjugateDirectionsPursuit(9).fit(X, y)
    for k in (1, 4, 9):
        expected = OrthogonalMatchingPursuit(n_nonzero_coefs=k).fit(X, y)
        np.testing.assert_allclose(found.coef_at(k), expected.coef_, rtol=1e-8, atol=1e-10)
    assert not found.coef_at(0).any()
    np.testing.assert_array_equal(found.coef_at(50), found.coef_)
    with pytest.raises(InputError, match="k= takes a whole number from 0; got -1"):
        found.coef_at(-1)


def test_targets_may_share_their_features(rng: np.random.Generator) -> None:
    X, y = problem(rng, 3)
    joint = ConjugateDirectionsPursuit(5, joint=True).fit(X, y)
    assert len(joint.paths_) == 1
    assert {tuple(np.flatnonzero(row)) for row in joint.coef_} == {tuple(sorted(joint.paths_[0].order))}
    assert joint.n_iter_.tolist() == [5, 5, 5]


def test_draws_and_other_choices(rng: np.random.Generator) -> None:
    X, y = problem(rng)
    one, other = (ConjugateDirectionsPursuit(6, candidates=5, random_state=seed).fit(X, y) for seed in (0, 1))
    assert np.count_nonzero(one.coef_) == 6
    assert set(np.flatnonzero(one.coef_)) != set(np.flatnonzero(other.coef_))
    again = clone(one).fit(X, y)
    np.testing.assert_array_equal(again.coef_, one.coef_)
    refit, gradient = (ConjugateDirectionsPursuit(2, choice=kind).fit(X, y) for kind in ("refit", "gradient"))
    assert refit.score(X, y) >= gradient.score(X, y) - 1e-12


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The feature")
def test_lazy_inputs_and_stores(tmp_path: Path, rng: np.random.Generator) -> None:
    X, y = problem(rng)
    X[:, 3] = 2.5  # constant: nothing to learn from it, but with an intercept of its own making
    names = [f"f{column}" for column in range(30)]
    for fit_intercept in (True, False):
        expected = ConjugateDirectionsPursuit(8, fit_intercept=fit_intercept).fit(X, y)
        lazy, store = (
            dask.array.from_array(X, chunks=(50, 10)),
            dataset_from_arrays(tmp_path / str(fit_intercept), X, y),
        )
        table = xarray.Dataset({name: ("row", X[:, column]) for column, name in enumerate(names)} | {"y": ("row", y)})
        lazily = (lazy, dask.array.from_array(y, chunks=40))
        for given in (lazily, (store.url, None), (table, "y"), (table.chunk(), "y")):
            found = ConjugateDirectionsPursuit(8, fit_intercept=fit_intercept).fit(*given)
            np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-11)
            assert found.intercept_ == pytest.approx(expected.intercept_, rel=1e-9, abs=1e-9)
        predicted = found.predict(table)
        assert predicted.dims == ("row",)
        assert predicted.name == "y"
        np.testing.assert_allclose(predicted, expected.predict(X), rtol=1e-9)
        predicted = expected.predict(lazy)
        assert isinstance(predicted, dask.array.Array)
        np.testing.assert_allclose(predicted.compute(), expected.predict(X), rtol=1e-12)
        assert found.score(table, "y") == pytest.approx(expected.score(X, y))
    assert not list(tmp_path.glob("dkgp-*"))


def test_workers_in_other_processes_have_their_own_copy(tmp_path: Path, rng: np.random.Generator) -> None:
    X, y = problem(rng)
    expected = ConjugateDirectionsPursuit(5).fit(X, y)
    with on_dask(2, processes=False) as (_, client):
        assert isinstance(client, Client)
        found = ConjugateDirectionsPursuit(5, client=client, store=str(tmp_path)).fit(X, y)
        np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9)


def test_pipelines_and_searches(rng: np.random.Generator) -> None:
    X, _ = problem(rng, d=6)
    y = X @ [1.0, 0.0, 0.7, 0.0, 0.0, -1.5] + 0.2 * rng.standard_normal(len(X))
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), ConjugateDirectionsPursuit(5))
    assert pipeline.fit(X, y).score(X, y) > 0.5
    search = GridSearchCV(ConjugateDirectionsPursuit(), {"n_nonzero_coefs": [1, 2, 5]}, cv=4).fit(X, y)
    assert search.best_params_["n_nonzero_coefs"] in (2, 5)


def test_what_cannot_be_fitted_is_refused(rng: np.random.Generator) -> None:
    X, y = problem(rng)
    with pytest.raises(InputError, match="1 to 30"):
        ConjugateDirectionsPursuit(31).fit(X, y)
    with pytest.raises(InputError, match="choice= takes 'gradient', 'refit' or 'single'; got 'best'"):
        ConjugateDirectionsPursuit(3, choice="best").fit(X, y)
    with pytest.raises(InputError, match="expected"):
        ConjugateDirectionsPursuit(3).fit(X, y).predict(dask.array.zeros((5, 4)))
    with pytest.raises(ValueError, match="NaN"):
        ConjugateDirectionsPursuit(3).fit(np.where(X > 5.0, np.nan, X), y)
    for wrong in (2.5, True, 0):
        with pytest.raises(InputError, match=f"n_nonzero_coefs= takes a whole number from 1 or None; got {wrong}"):
            ConjugateDirectionsPursuit(wrong).fit(X, y)
    with pytest.raises(InputError, match="tol=.*got nan"):
        ConjugateDirectionsPursuit(tol=float("nan")).fit(X, y)
    with pytest.raises(InputError, match="squares"):
        ConjugateDirectionsPursuit(3).fit(X, 1e160 * y)
    with pytest.warns(ConvergenceWarning, match="not reached by 2 coefficients; allow more"):
        ConjugateDirectionsPursuit(2, tol=1e-9).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="not reached by 30 coefficients; the other features"):
        ConjugateDirectionsPursuit(tol=1e-9).fit(X, y)


@pytest.mark.parametrize("choice", ["gradient", "single", "refit"])
def test_constants_and_twins_get_no_coefficient(choice: str, rng: np.random.Generator) -> None:
    """Nor do constant targets get any: neither is what rounding leaves of it once its mean is gone."""
    X, y = rng.standard_normal((997, 6)), rng.standard_normal(997)
    X[:, 1], X[:, 3], X[:, 5] = 0.1, -7.3e5, X[:, 4]
    found = ConjugateDirectionsPursuit(6, choice=choice).fit(X, y)
    assert np.flatnonzero(found.coef_).tolist() == [0, 2, 4]
    design = np.column_stack([X[:, [0, 2, 4]], np.ones(997)])
    expected = np.linalg.lstsq(design, y, rcond=None)[0]
    np.testing.assert_allclose(found.coef_[[0, 2, 4]], expected[:3], rtol=1e-9)
    assert found.intercept_ == pytest.approx(expected[3], rel=1e-9)
    flat = ConjugateDirectionsPursuit(3, choice=choice).fit(X, np.full(997, 0.1))
    assert flat.n_iter_ == 0
    assert flat.intercept_ == 0.1
