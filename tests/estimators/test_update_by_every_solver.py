"""`update` by every solver, of every estimator that has it: as a fit of all samples under the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dkgp
from dkgp import GPRegressor, SparseGPRegressor
from dkgp.errors import InputError
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, TiledCholesky
from dkgp.solvers.registry import solver_names
from tests.estimators.conftest import KERNEL, NOISE, Problem

# Slow to the last digits, and measured for its speed alone.
EVERY = [name for name in ("auto", *solver_names()) if name != "paramcg"]
SETTINGS: list[Any] = [ConjugateGradient(FactorPreconditioning(40, 20, 10)), TiledCholesky(tile_rows=64)]
OLD, ALL = slice(0, 110), slice(0, 130)


def standardised(problem: Problem, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets on the scale of the first samples."""
    X, y = problem.X[:, [0, 2, 3]], problem.y
    inputs = (X[rows] - X[OLD].mean(axis=0)) / X[OLD].std(axis=0)
    return inputs, (y[rows] - y[OLD].mean()) / y[OLD].std()


def updated(gp: Any, problem: Problem, **noise: Any) -> Any:
    old = {name: values[OLD] for name, values in noise.items()}
    new = {name: values[110:130] for name, values in noise.items()}
    return gp.fit(problem.X[OLD], problem.y[OLD], **old).update(problem.X[110:130], problem.y[110:130], **new)


@pytest.mark.long
@pytest.mark.parametrize("solver", [*EVERY, *SETTINGS], ids=str)
def test_an_update_by_every_solver_is_the_dense_solution(solver: Any, problem: Problem) -> None:
    gp = updated(GPRegressor(KERNEL, noise_variance=NOISE, solver=solver, tol=1e-7), problem)
    assert gp.solution_["converged"]
    Z, y = standardised(problem, ALL)
    alpha = np.linalg.solve(KERNEL(Z, Z) + NOISE * np.eye(130), y)
    np.testing.assert_allclose(gp._fitted.record.alpha[:, 0], alpha, atol=1e-4)
    again = gp.update(problem.X[130:140], problem.y[130:140])
    assert again.solution_["converged"]
    assert again._fitted.record.n_samples == 140


SPARSE = {"noise_variance": NOISE, "basis_size": 40}
MODELS: dict[str, Callable[[], Any]] = {
    "linear mean": lambda: GPRegressor(KERNEL, noise_variance=NOISE, mean="linear", tol=1e-9),
    "constant mean, pcg": lambda: GPRegressor(KERNEL, noise_variance=NOISE, mean="constant", solver="pcg", tol=1e-9),
    "with variances": lambda: GPRegressor(KERNEL, noise_variance=NOISE, with_variances=True, tol=1e-9),
    **{name: lambda name=name: SparseGPRegressor(KERNEL, method=name, **SPARSE) for name in ("vfe", "sr", "dtc")},
}


@pytest.mark.filterwarnings("ignore:the subset of regressors' variances")
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_updated_model_predicts_as_one_of_all_samples(name: str, by_sample: bool, problem: Problem) -> None:
    """Both under the standardisation of all samples, which the first ones are rescaled to have."""
    X, y = problem.X[ALL].copy(), problem.y[ALL].copy()
    for part in (OLD, slice(110, 130)):  # of each part mean and deviation are the same, and so are those of all
        X[part] = (X[part] - X[part].mean(axis=0)) / np.where(X[part].std(axis=0) > 0.0, X[part].std(axis=0), 1.0)
        y[part] = (y[part] - y[part].mean()) / y[part].std()
    alike = Problem(X, y, problem.X_new, problem.y_new)
    noise = {"sample_noise": np.linspace(0.01, 0.3, 130)} if by_sample else {}
    gp = MODELS[name]()
    if name in ("vfe", "sr", "dtc"):
        gp.basis = np.arange(0, 80, 2)  # of the first samples, for both
    found, whole = updated(gp, alike, **noise), MODELS[name]()
    whole.basis = gp.basis if hasattr(gp, "basis") else None
    whole.fit(X, y, **noise)
    points = X[::7] + 0.1
    got, expected = (gp.predict(points, return_std=True) for gp in (found, whole))
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], rtol=0.02)  # the width of an exact model's interval


@pytest.mark.parametrize("method", ["sd", "fitc", "vif"])
def test_models_without_an_update_refuse_it(method: str, problem: Problem) -> None:
    gp = SparseGPRegressor(KERNEL, method=method, **SPARSE)
    with pytest.raises(InputError, match=method):
        updated(gp, problem)


def test_no_estimator_with_an_update_is_forgotten() -> None:
    able = {name for name in dkgp.__all__ if hasattr(getattr(dkgp, name), "update")}
    assert able == {"GPRegressor", "SparseGPRegressor"}
