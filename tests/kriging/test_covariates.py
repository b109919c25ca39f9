"""External drift: covariates enter the mean of a kriged field."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.variogram import Variogram

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
P = np.array([(1, 1), (2.5, 2), (0, 0)], dtype=float)
EXPONENTIAL = Variogram("exponential", psill=2, range=1.5, nugget=0.25)
DISTANCE, AT_POINTS = np.array([0, 1, 0.3, 2, 1.7, 2.9]), np.array([0.8, 1.6, 0.0])
MEANS = (1.5625351903103937, 2.4569804624684513, 0.948316891805075)
VARIANCES = (1.316661080943181, 1.3335888596294292, 0.2262227215498304)


def kriging(**settings: Any) -> Kriging:
    return Kriging(EXPONENTIAL, kind="universal", tolerance=1e-13, **settings)


def test_external_drift_is_that_of_other_programs(tmp_path: Path) -> None:
    fitted = kriging(covariates=("dist",)).fit(tuple(X.T), Z, covariates={"dist": DISTANCE})
    assert list(fitted.drift_["z"]) == ["constant", "dist"]
    fitted.save(tmp_path / "z.zarr")
    for one in (fitted, Kriging.load(tmp_path / "z.zarr")):
        mean, bound, variance, lower, upper = one.predict(
            tuple(P.T), covariates={"dist": AT_POINTS}, return_bounds=True, return_variance=True
        )
        np.testing.assert_allclose(mean, MEANS, rtol=3e-13)
        np.testing.assert_allclose(variance, VARIANCES, rtol=3e-12)
        assert (np.abs(mean - MEANS) <= bound + 1e-13).all()
        assert (lower <= np.array(VARIANCES) * (1 + 1e-12)).all()
        assert (upper >= np.array(VARIANCES) * (1 - 1e-12)).all()


def dense(columns: Any, at: Any) -> Any:
    """Universal kriging by dense algebra, with the columns of the mean at samples and at points."""
    K = 2 * np.exp(-np.linalg.norm(X[:, None] - X[None], axis=2) / 1.5) + 0.25 * np.eye(6)
    k = 2 * np.exp(-np.linalg.norm(X[:, None] - P[None], axis=2) / 1.5)
    S = np.linalg.solve(K, np.column_stack([Z, columns, k]))
    q = columns.shape[1]
    beta = np.linalg.solve(columns.T @ S[:, 1 : 1 + q], columns.T @ S[:, 0])
    rest = at - k.T @ S[:, 1 : 1 + q]
    mean = k.T @ S[:, 0] + rest @ beta
    variance = 2 - np.einsum("ij,ij->j", k, S[:, 1 + q :])
    variance += np.einsum("ij,ij->i", rest, np.linalg.solve(columns.T @ S[:, 1 : 1 + q], rest.T).T)
    return mean, variance


def test_covariates_are_matched_by_name_beside_a_polynomial(tmp_path: Path) -> None:
    slope, slope_at = np.array([0.5, -1, 2, 0, 1, 3]), np.array([1.0, 0.0, 2.0])
    fitted = kriging(degree=1, covariates=("slope", "dist"))
    fitted.fit(tuple(X.T), Z, covariates={"dist": DISTANCE, "other": Z, "slope": slope})
    ones = np.ones((6, 1)), np.ones((3, 1))
    mean, variance = dense(
        np.hstack([ones[0], X, slope[:, None], DISTANCE[:, None]]),
        np.hstack([ones[1], P, slope_at[:, None], AT_POINTS[:, None]]),
    )
    for given in ({"dist": AT_POINTS, "slope": slope_at}, (slope_at, AT_POINTS)):
        got = fitted.predict(tuple(P.T), covariates=given, return_variance=True)
        np.testing.assert_allclose(got[0], mean, rtol=1e-11)
        np.testing.assert_allclose(got[1], variance, rtol=1e-11)


REFUSED = {
    "none at samples": (("dist",), None, None, "`covariates` has values of dist at every sample"),
    "another name": (("dist",), {"slope": DISTANCE}, None, "there is no dist among `covariates`; got slope"),
    "none at points": (("dist",), {"dist": DISTANCE}, None, "`covariates` has values of dist at every point"),
    "too few": (("dist",), {"dist": DISTANCE[:5]}, None, "the covariate dist has 5 values; expected 6"),
    "missing values": (
        ("dist",),
        {"dist": np.where(DISTANCE > 1, np.nan, DISTANCE)},
        None,
        "the covariate dist is missing at 3 of 6 samples, first in row 3",
    ),
    "constant": (("dist",), {"dist": np.ones(6)}, None, "the covariate dist is 1 at all samples"),
    "dependent": (("a", "b"), {"a": DISTANCE, "b": 2 * DISTANCE + 1}, None, "cannot tell .*a and b apart"),
    "names of coordinates": (("northing",), {"northing": DISTANCE}, None, "northing has the name of another column"),
    "without names": ((), {"dist": DISTANCE}, None, "name them: Kriging\\(kind='universal', covariates="),
    "two columns": (("a", "b"), (DISTANCE,), None, "`covariates` has 2 columns, a, b; got 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_covariates_that_do_not_fit_are_refused(case: str) -> None:
    names, at_samples, at_points, words = REFUSED[case]
    degree = 0 if names else 1
    with pytest.raises(InputError, match=words):
        kriging(covariates=names, degree=degree).fit(tuple(X.T), Z, covariates=at_samples).predict(
            tuple(P.T), covariates=at_points
        )


def test_replicates_with_other_covariates_are_refused() -> None:
    places, values = np.vstack([X, X[:1]]), np.append(Z, 1.1)
    with pytest.raises(InputError, match=r"samples at \(0, 0\) have different covariates"):
        kriging(covariates=("d",)).fit(tuple(places.T), values, covariates={"d": np.append(DISTANCE, 7.0)})


def test_a_variogram_is_fitted_to_residuals_of_the_drift(rng: np.random.Generator) -> None:
    x, y = rng.uniform(0, 10, (2, 300))
    covariate = rng.standard_normal(300)
    noise = 0.3 * rng.standard_normal(300)
    fitted = Kriging("exponential", kind="universal", covariates=("c",)).fit(
        (x, y), 5 * covariate + noise, covariates={"c": covariate}
    )
    assert fitted.variogram_.total_sill < 0.2
    assert fitted.drift_["z"]["c"]["value"] == pytest.approx(5.0, abs=0.1)
    assert Variogram.from_dict(fitted.variogram_.to_dict()) == fitted.variogram_


def test_a_training_set_in_a_store_gives_the_same_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    for reads_memory in (True, False):
        monkeypatch.setattr("dkgp.kriging.field.reads_memory", lambda client, answer=reads_memory: answer)
        folder = tmp_path / str(reads_memory)
        fitted = kriging(degree=1, covariates=("dist",), store=str(folder)).fit(
            tuple(X.T), Z, covariates={"dist": DISTANCE}, noise=[0.0, 0.1, 0.0, 0.3, 0.0, 1.0]
        )
        assert folder.exists() != reads_memory
        fits.append(fitted)
    one, other = (
        fitted.predict(tuple(P.T), covariates=(AT_POINTS,), return_bounds=True, return_variance=True) for fitted in fits
    )
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    copy = pickle.loads(pickle.dumps(fits[1]))
    np.testing.assert_array_equal(copy.predict(tuple(P.T), covariates=(AT_POINTS,)), other[0])
