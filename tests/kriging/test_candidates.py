"""Variograms fitted by likelihood and by weights, and their blocked cross-validation, against dense algebra."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from dkgp.errors import InputError
from dkgp.kriging import candidates
from dkgp.kriging.candidates import Candidates, compare_variograms, fitted_variogram
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.variogram import Variogram

TRUTH = Variogram("exponential", psill=2.0, range=15.0, nugget=0.3)


def field_of(variogram: Variogram, n: int, seed: int = 0) -> tuple[Any, Any]:
    """Return places and values of a field with mean 5."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, 2)) * 100.0
    turned = variogram.isotropic(x)
    matrix = variogram.covariance(cdist(turned, turned)) + sum(variogram.nugget) * np.eye(n)
    return x, 5.0 + np.linalg.cholesky(matrix) @ rng.standard_normal(n)


@pytest.fixture(scope="module")
def field() -> tuple[Any, Any]:
    return field_of(TRUTH, 150)


def restricted(variogram: Variogram, x: Any, z: Any, columns: Any, noise: Any = 0.0) -> float:
    """Return the restricted log likelihood by explicit inverses."""
    matrix = variogram.covariance(cdist(x, x)) + (sum(variogram.nugget) + noise) * np.eye(len(x))
    inverse = np.linalg.inv(matrix)
    gram = columns.T @ inverse @ columns
    rest = z - columns @ np.linalg.solve(gram, columns.T @ inverse @ z)
    determinants = np.linalg.slogdet(matrix)[1] + np.linalg.slogdet(gram)[1]
    return float(-0.5 * (rest @ inverse @ rest + determinants + (len(x) - len(gram)) * np.log(2 * np.pi)))


@pytest.mark.parametrize("model", ["exponential", "gaussian", "spherical"])
def test_the_likelihood_fit_is_a_maximum_in_map_units(field: Any, model: str) -> None:
    x, z = field
    samples = Candidates.of(x * 1000.0, z * 7.0)
    best = samples.fitted(model, "likelihood")
    top = restricted(best, x * 1000.0, z * 7.0, np.ones((150, 1)))
    assert samples.precision(best)[1] == pytest.approx(top, rel=1e-10)
    for name in ("psill", "range"):
        for factor in (0.93, 1.07):
            values = {"psill": best.psill, "range": best.range, "nugget": best.nugget}
            values[name] = factor * getattr(best, name)
            other = Variogram(model, **values)
            assert restricted(other, x * 1000.0, z * 7.0, np.ones((150, 1))) < top
    weighted = samples.fitted(model, "weights")
    assert samples.precision(weighted)[1] <= top + 1e-6


def test_a_covariate_and_a_trend_enter_the_likelihood(field: Any) -> None:
    x, z = field
    covariate = np.sin(x[:, 0])
    samples = Candidates.of(x, z + 40.0 * covariate + 3.0 * x[:, 1], degree=1, covariates=covariate)
    plain = Candidates.of(x, z, degree=1, covariates=covariate)
    assert samples.columns.shape == (150, 4)
    one, other = samples.fitted("exponential", "likelihood"), plain.fitted("exponential", "likelihood")
    # Contrasts free of the drift have one likelihood.
    assert one.psill == pytest.approx(other.psill, rel=0.02)
    assert one.range == pytest.approx(other.range, rel=0.02)


def test_an_anisotropy_is_fitted_by_likelihood() -> None:
    truth = Variogram("exponential", psill=2.0, range=40.0, nugget=0.05, ratio=0.25, angle=120.0)
    x, z = field_of(truth, 250, seed=3)
    fitted = fitted_variogram(x, z, "exponential", by="likelihood", anisotropic=True)
    assert fitted.angle == pytest.approx(120.0, abs=8.0)
    assert fitted.ratio[0] == pytest.approx(0.25, rel=0.4)
    with pytest.raises(InputError, match="an anisotropy is fitted by likelihood"):
        Candidates.of(x, z).fitted("exponential", anisotropic=True)


def test_left_out_blocks_are_those_of_refitted_equations(field: Any) -> None:
    x, z = field[0][:60], field[1][:60]
    samples = Candidates.of(x, z, degree=1)
    blocks = samples.blocks(40.0)
    errors, variances = samples.left_out(samples.precision(TRUTH)[0], blocks)
    here = blocks == blocks[0]
    columns, noise = samples.columns, 0.3
    n, q = int((~here).sum()), columns.shape[1]
    system = np.zeros((n + q, n + q))
    system[:n, :n] = TRUTH.covariance(cdist(x[~here], x[~here])) + noise * np.eye(n)
    system[:n, n:], system[n:, :n] = columns[~here], columns[~here].T
    right = np.vstack([TRUTH.covariance(cdist(x[~here], x[here])), columns[here].T])
    weights = np.linalg.solve(system, right)
    np.testing.assert_allclose(errors[here], z[here] - weights[:n].T @ z[~here], rtol=1e-9)
    expected = TRUTH.psill + noise - np.einsum("ij,ij->j", weights, right)
    np.testing.assert_allclose(variances[here], expected, rtol=1e-9)


def test_the_table_has_all_candidates_best_first(field: Any) -> None:
    x, z = field
    table = compare_variograms(tuple(x.T), z, ["exponential", "gaussian"], blocks=20.0)
    assert sorted(zip(table["model"], table["fit"], strict=True)) == [
        ("exponential", "likelihood"),
        ("exponential", "weights"),
        ("gaussian", "likelihood"),
        ("gaussian", "weights"),
    ]
    assert (np.diff(table["log_score"]) <= 0.0).all()
    assert table["coverage95"].between(0.8, 1.0).all()
    assert (table["RMSE"] > 0.3**0.5).all()
    by_fit = table.set_index(["model", "fit"])["log_likelihood"]
    assert by_fit["exponential", "likelihood"] >= by_fit["exponential", "weights"] - 1e-6
    best = fitted_variogram(x, z, ["exponential", "gaussian"])
    scored = compare_variograms(tuple(x.T), z, ["exponential", "gaussian"])
    assert best == scored["variogram"].iloc[0]


def test_a_name_is_fitted_by_weights(field: Any) -> None:
    x, z = field
    assert fitted_variogram(x, z, "spherical") == Candidates.of(x, z).fitted("spherical", "weights")


def test_many_samples_are_a_random_part_with_one_a_place(monkeypatch: Any, field: Any) -> None:
    x, z = field
    monkeypatch.setattr(candidates, "MOST_SAMPLES", 50)
    samples = Candidates.of(np.repeat(x, 2, axis=0), np.repeat(z, 2) + np.tile([-1.0, 1.0], 150), seed=1)
    assert len(samples.values) == 50
    assert len(np.unique(samples.places, axis=0)) == 50
    # The mean of two replicates.
    assert np.isin(samples.values.round(9), z.round(9)).all()


def test_refusals(field: Any) -> None:
    x, z = field
    with pytest.raises(InputError, match="the values do not vary about their mean; pass a Variogram"):
        fitted_variogram(x, np.full(150, 3.0), "auto")
    with pytest.raises(InputError, match="the values do not vary about their mean"):
        compare_variograms(tuple(x.T), 2.0 * x[:, 0] + 1.0, degree=1)
    with pytest.raises(InputError, match="`fits` has some of weights, likelihood"):
        compare_variograms(tuple(x.T), z, fits=["bayes"])
    with pytest.raises(InputError, match="a power variogram has no sill"):
        compare_variograms(tuple(x.T), z, ["power"])
    with pytest.raises(InputError, match="all samples lie in one block"):
        compare_variograms(tuple(x.T), z, ["exponential"], blocks=1e6)
    with pytest.raises(InputError, match="an anisotropy is fitted to one model; got 'auto'"):
        fitted_variogram(x, z, "auto", anisotropic=True)
    with pytest.raises(InputError, match="`by` is one of weights, likelihood; got 'bayes'"):
        fitted_variogram(x, z, "spherical", by="bayes")  # type: ignore[arg-type]
    line = np.column_stack([np.where(np.arange(150) < 75, 1.0, 99.0), 0.5 * x[:, 1]])
    with pytest.raises(InputError, match="the others do not determine the drift; give smaller `blocks`"):
        compare_variograms(tuple(line.T), z, ["exponential"], degree=1, blocks=97.0)
    with pytest.raises(InputError, match="the covariance matrix is singular to float64"):
        Candidates.of(x, z).precision(Variogram("gaussian", psill=1.0, range=1e5))


def test_kriging_takes_the_best_of_names(field: Any) -> None:
    x, z = field
    kriging = Kriging(["exponential", "gaussian"]).fit(tuple(x.T), z)
    assert kriging.variogram_ == fitted_variogram(x, z, ["exponential", "gaussian"])
    with pytest.raises(InputError, match="a name, a dict or a model of GSTools; got 3.0"):
        Kriging(3.0).fit(tuple(x.T), z)
    with pytest.raises(InputError, match="a power variogram has no sill"):
        Kriging(["exponential", "power"]).fit(tuple(x.T), z)


def test_known_noise_of_samples_is_no_nugget(rng: np.random.Generator) -> None:
    n = 150
    places, truth = rng.random((n, 2)) * 10.0, Variogram("exponential", psill=1.0, range=2.0, nugget=0.05)
    noise = np.where(rng.random(n) < 0.5, 0.02, 1.5)
    lags = cdist(places, places)
    values = np.linalg.cholesky(truth.covariance(lags) + np.diag(0.05 + noise)) @ rng.standard_normal(n)
    plain = Candidates.of(places, values)
    samples = Candidates.of(places, values, noise=noise)
    one, other = plain.fitted("exponential"), samples.fitted("exponential")
    assert (one.psill, one.range) == (other.psill, other.range)
    assert sum(other.nugget) == max(sum(one.nugget) - noise.mean(), 0.0)

    def likelihood(variogram: Variogram) -> float:
        return restricted(variogram, places, values, np.ones((n, 1)), noise)

    best = samples.fitted("exponential", "likelihood")
    assert abs(samples.precision(best)[1] - likelihood(best)) < 1e-8 * abs(likelihood(best))
    for name in ("psill", "range"):
        for factor in (0.97, 1.03):
            assert likelihood(replace(best, **{name: factor * getattr(best, name)})) < likelihood(best)
    # The noise explains the values: without it, it would be a nugget.
    assert sum(best.nugget) < 0.3 < sum(plain.fitted("exponential", "likelihood").nugget)
