"""Leave-one-out and folds against the oracle, refits by dense algebra, and verde's folds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from dkgp.errors import InputError
from dkgp.kriging import BlockKFold, Field, Kriging, Samples, Space, Variogram, crossvalidation, scores
from dkgp.kriging.crossvalidation import folds_errors, leave_one_out, random_folds
from dkgp.kriging.field import Solving

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
ERRORS = [-0.9694517012909, 0.305446063977, -1.7574216616838, 0.7572043667195, 0.124626448026, 1.9460160694852]
VARIANCES = [1.8550175065585, 1.7861893812943, 2.2278302726832, 2.2972003145711, 2.1656403032449, 2.583364174907]


def columns(places: Any, degree: int) -> Any:
    x, y = places.T
    parts = [np.ones(len(x)), x, y, x * x, x * y, y * y]
    return np.column_stack(parts[: (0, 1, 3, 6)[degree + 1]]) if degree >= 0 else np.zeros((len(x), 0))


def refit(case: Any, rest: Any, test: Any) -> tuple[Any, Any]:
    """Errors of a fold and their variances, by dense kriging of the other samples."""
    variogram, places, values, noise, degree = case
    A = variogram.anisotropy(2)

    def cov(a: Any, b: Any) -> Any:
        return variogram.covariance(cdist(a @ A.T, b @ A.T))

    K = cov(places[rest], places[rest]) + np.diag(noise[rest])
    k, H, h = cov(places[rest], places[test]), columns(places[rest], degree), columns(places[test], degree)
    S = np.linalg.inv(K)
    mean, variance = k.T @ S @ values[rest], variogram.field_variance - np.einsum("ij,ij->j", k, S @ k)
    if degree >= 0:
        G, R = H.T @ S @ H, h - k.T @ S @ H
        mean = mean + R @ np.linalg.solve(G, H.T @ S @ values[rest])
        variance = variance + np.einsum("ij,ij->i", R, np.linalg.solve(G, R.T).T)
    return values[test] - mean, variance + noise[test]


def random_case(number: int) -> tuple[Any, Field]:
    """A small random set, one of ten: models, anisotropy, noise by sample and means differ."""
    rng = np.random.default_rng(number)
    model = ("exponential", "matern32", "spherical", "gaussian", "matern52")[number % 5]
    shape: dict[str, Any] = {"angle": 25.0, "ratio": 0.5} if number % 2 else {}
    variogram = Variogram(model, psill=1.7, range=1.5, nugget=0.1, **shape)
    places = rng.uniform(0.0, 5.0, (24, 2))
    values = places[:, 0] + np.sin(places[:, 1]) + 0.3 * rng.standard_normal(24)
    noise = 0.1 + (rng.uniform(0.0, 0.3, 24) if number % 3 else np.zeros(24))
    degree = number % 4 - 1
    samples = Samples(places, values[:, None], noise, 0.0, np.zeros((24, 0)))
    mean: Any = (0.0, "constant", "linear", "quadratic")[degree + 1]
    field = Field.fit(samples, Space(2), variogram, Solving(tolerance=1e-9), mean=mean)
    return (variogram, places, values, noise, degree), field


def test_the_oracle_of_leave_one_out() -> None:
    kriging = Kriging(Variogram("exponential", psill=2, range=1.5, nugget=0.25)).fit(tuple(X.T), Z)
    table = kriging.leave_one_out()
    assert table["error"].to_numpy() == pytest.approx(ERRORS, abs=1e-9)
    assert table["variance"].to_numpy() == pytest.approx(VARIANCES, abs=1e-9)
    assert list(table["easting"]) == pytest.approx(list(X[:, 0]))
    assert (table["prediction"] + table["error"]).to_numpy() == pytest.approx(Z)
    assert table.attrs["scores"]["ME"] == pytest.approx(np.mean(ERRORS))
    # Folds of single samples are the same.
    single = kriging.cross_validate(folds=6)
    assert single["error"].to_numpy() == pytest.approx(ERRORS, abs=1e-9)
    assert single["variance"].to_numpy() == pytest.approx(VARIANCES, abs=1e-9)
    assert sorted(single["fold"]) == list(range(6))


@pytest.mark.parametrize("number", range(10))
def test_intervals_hold_the_errors_of_refits(number: int) -> None:
    case, field = random_case(number)
    n = field.n_samples
    exact = [refit(case, np.delete(np.arange(n), i), np.array([i])) for i in range(n)]
    error, variance = (np.concatenate(parts) for parts in zip(*exact, strict=True))
    for most in (n, 0):
        result = leave_one_out(field, most_inverted=most)
        # Dense algebra has roundings of its own.
        assert (result.error_lower[:, 0] <= error + 1e-11).all()
        assert (error <= result.error_upper[:, 0] + 1e-11).all()
        assert (result.variance_lower[:, 0] <= variance + 1e-11).all()
        assert (variance <= result.variance_upper[:, 0] + 1e-11).all()
        width = (result.variance_upper - result.variance_lower)[:, 0] / variance
        assert width.max() < (1e-9 if most else 0.2)
        assert result.error[:, 0] == pytest.approx(error, abs=1e-6 if most else 0.1)


@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_folds_are_predicted_as_by_refits(number: int) -> None:
    case, field = random_case(number)
    folds = random_folds(field.n_samples, 4, seed=3)
    few, many = folds_errors(field, folds), folds_errors(field, folds, most_inverted=0)
    for rows in folds:
        error, variance = refit(case, np.setdiff1d(np.arange(field.n_samples), rows), rows)
        assert few[0][rows, 0] == pytest.approx(error, abs=1e-6)
        assert few[1][rows, 0] == pytest.approx(variance, abs=1e-9)
        assert many[0][rows, 0] == pytest.approx(error, abs=1e-5)
        assert many[1][rows, 0] == pytest.approx(variance, rel=0.05)


def test_a_fold_that_the_mean_needs_is_refused() -> None:
    _, field = random_case(2)
    with pytest.raises(InputError, match="the samples without fold 0 do not determine the mean"):
        folds_errors(field, [np.arange(22)])
    with pytest.raises(InputError, match="2 to 24 folds, the number of samples; got 25"):
        random_folds(24, 25)


@pytest.mark.parametrize("settings", [{}, {"shuffle": True, "random_state": 5}, {"balance": False}, {"spacing": 2.0}])
def test_folds_by_blocks_are_those_of_verde(settings: dict[str, Any], rng: np.random.Generator) -> None:
    verde = pytest.importorskip("verde")
    places = rng.uniform(-3.0, 9.0, (300, 2))
    settings = {"n_splits": 4, **({} if "spacing" in settings else {"shape": (5, 4)}), **settings}
    ours, theirs = BlockKFold(**settings).split(places), verde.BlockKFold(**settings).split(places)
    for (train, test), (their_train, their_test) in zip(ours, theirs, strict=True):
        assert np.array_equal(test, their_test)
        assert np.array_equal(train, their_train)


def test_blocks_keep_their_samples_together(rng: np.random.Generator) -> None:
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import cross_val_score

    places = rng.uniform(0.0, 10.0, (80, 2))
    values = places[:, 0] + np.sin(places[:, 1])
    kriging = Kriging(Variogram("matern32", psill=1.0, range=2.0, nugget=0.01)).fit(tuple(places.T), values)
    blocked, single = kriging.cross_validate(blocks=2.5, folds=5), kriging.cross_validate(folds=5)
    assert blocked.attrs["scores"]["RMSE"] > single.attrs["scores"]["RMSE"]
    step = (places.max(axis=0) - places.min(axis=0)) / 4.0
    block = np.minimum(np.floor((places - places.min(axis=0)) / step), 3)
    for one in np.unique(block, axis=0):
        assert len(set(blocked["fold"][(block == one).all(axis=1)])) == 1
    assert kriging.cross_validate(blocks=2.5, folds=5, seed=1)["fold"].tolist() != blocked["fold"].tolist()
    assert len(cross_val_score(LinearRegression(), places, values, cv=BlockKFold(spacing=2.5, n_splits=3))) == 3
    for settings, words in (
        ({}, "give either `spacing` or `shape`"),
        ({"spacing": 1.0, "n_splits": 1}, "at least 2 folds; got 1"),
        ({"shape": (1, 2), "n_splits": 3}, "the samples lie in 2 blocks, fewer than the 3 folds"),
    ):
        with pytest.raises(InputError, match=words):
            next(BlockKFold(**settings).split(places))


def test_a_tiny_nugget_of_many_samples_proves_nothing(rng: np.random.Generator, monkeypatch: Any) -> None:
    places = rng.uniform(0.0, 5.0, (30, 2))
    kriging = Kriging(Variogram("exponential", psill=1.0, range=1.5, nugget=1e-6))
    kriging.fit(tuple(places.T), np.sin(places[:, 0]))
    exact, result = leave_one_out(kriging.field_), leave_one_out(kriging.field_, most_inverted=0)
    open_ended = np.isinf(result.variance_upper)
    assert open_ended.any()
    assert np.isnan(result.error[open_ended]).all()
    assert (result.variance_lower <= exact.variance_upper).all()
    assert (result.variance_upper >= exact.variance_lower).all()
    assert (result.error_lower <= exact.error_upper).all()
    assert (result.error_upper >= exact.error_lower).all()
    nothing = replace(result, error=np.full_like(result.error, np.nan))
    monkeypatch.setattr(crossvalidation, "leave_one_out", lambda field: nothing)
    with pytest.raises(InputError, match=r"leave-one-out of 30 samples needs a larger nugget.*`cross_validate`"):
        kriging.leave_one_out()


def test_figures_of_known_errors(rng: np.random.Generator) -> None:
    value, error, variance = rng.normal(5.0, 2.0, 20_000), rng.normal(0.1, 0.5, 20_000), np.full(20_000, 0.25)
    figures = scores(value, error, variance)
    assert figures["ME"] == pytest.approx(0.1, abs=0.02)
    assert figures["RMSE"] == pytest.approx(0.51, abs=0.01)
    assert figures["SRMSE"] == pytest.approx(1.02, abs=0.02)
    assert figures["LE68"] == pytest.approx(0.51, abs=0.02)
    assert figures["LE90"] == pytest.approx(0.84, abs=0.03)
    assert figures["coverage95"] == pytest.approx(0.945, abs=0.01)
    assert figures["log_score"] == pytest.approx(-0.5 * (1.04 + np.log(2.0 * np.pi * 0.25)), abs=0.01)
    assert figures["R2"] == pytest.approx(1.0 - 0.26 / 4.0, abs=0.01)
    assert scores([1.0, np.nan, 3.0], [0.5, 1.0, -0.5])["n"] == 2.0
    with pytest.raises(InputError, match="nothing can be scored"):
        scores([1.0], [np.nan])
    with pytest.raises(InputError, match="each of 2 values; got 1 errors"):
        scores([1.0, 2.0], [0.5])


def test_several_values_and_places_on_the_globe(rng: np.random.Generator) -> None:
    longitude, latitude = rng.uniform(10.0, 14.0, 30), rng.uniform(48.0, 52.0, 30)
    data = (np.sin(longitude), np.cos(latitude))
    for earth in ("sphere", "wgs84"):
        kriging = Kriging(Variogram("exponential", psill=1.0, range=150.0, nugget=0.1), crs=4326, earth=earth)
        table = kriging.fit((longitude, latitude), data).leave_one_out()
        assert table["longitude"].to_numpy() == pytest.approx(longitude)
        assert table["latitude"].to_numpy() == pytest.approx(latitude)
        targets = list(table.attrs["scores"])
        assert len(targets) == 2
        for target, values in zip(targets, data, strict=True):
            assert table[f"{target}_value"].to_numpy() == pytest.approx(values)
