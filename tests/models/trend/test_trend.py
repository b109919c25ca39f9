"""Means with coefficients: against Rasmussen and Williams' equations by dense algebra, kept, updated and drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import (
    append_rows,
    dataset_from_arrays,
    memory_dataset,
    open_model,
    open_prediction,
)
from dkgp.data.stores.manifest import read_manifest
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, Matern32, SquaredExponential, parse_kernel
from dkgp.models import predict
from dkgp.models.exact import save, train, update
from dkgp.models.prediction.pathwise import PosteriorFunctions
from dkgp.models.trend import MeanKind, Trend
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import GradientInfNorm
from tests.covering import few
from tests.models.trend.cases import Case, steep
from tests.solvers.test_every_solver import SOLVERS


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("known", [False, True])
def test_predictions_are_those_of_the_printed_equations(mean: MeanKind, known: bool) -> None:
    noise = np.random.default_rng(2).uniform(0.0, 0.2, 120) if known else None
    case = Case(
        **steep(), kernel=Matern32((1.0, 0.5)), noise_variance=0.02, mean=mean, sample_noise=noise, tolerance=1e-11
    )
    predicted, (means, variances), to = case.predicted(gap=1e-8), case.dense(), case.model.standardisation
    np.testing.assert_allclose(predicted["mean"], means * to.target_std + to.target_mean, rtol=1e-8)
    np.testing.assert_allclose(predicted["variance"], variances[:, None] * to.target_std**2, rtol=1e-6)


def test_a_linear_mean_extrapolates_where_a_centred_one_falls_back() -> None:
    case = Case(**steep(), kernel=SquaredExponential((2.0, 2.0), 0.1), noise_variance=0.005, tolerance=1e-8)
    far = case.T = case.X.mean(axis=0) + np.array([[20.0, 0.0], [-20.0, 100.0]])
    truth = 5.0 + 4.0 * (far[:, 0] - 300.0)
    centred = Case(case.X, case.Y, far, case.kernel, case.noise_variance, "centred", tolerance=1e-8)
    assert np.abs(case.predicted()["mean"][:, 0] - truth).max() < 4.0
    assert np.abs(centred.predicted()["mean"][:, 0] - truth).min() > 50.0
    # Its error bars know of the slope's uncertainty: they grow with the distance, a centred model's do not.
    variance, of_centred = case.predicted()["variance"], centred.predicted()["variance"]
    near = replace(case, T=case.X.mean(axis=0)[None] + 3.0).predicted()["variance"]
    assert (variance[:, 0] > 1.5 * near[0, 0]).all()
    np.testing.assert_allclose(of_centred[:, 0], 0.1 * centred.model.standardisation.target_std[0] ** 2, rtol=1e-6)


@pytest.mark.parametrize("name", few(SOLVERS, "gbcd", "smo", "pcg", "kcg", "cholesky", "tiled-cholesky"))
def test_every_solver_takes_the_columns_beside_the_targets(name: str) -> None:
    case = Case(
        **steep(), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.1, solver=SOLVERS[name], tolerance=1e-6
    )
    (means, _), predicted, to = case.dense(), case.predicted(), case.model.standardisation
    expected = means * to.target_std + to.target_mean
    np.testing.assert_allclose(predicted["mean"], expected, rtol=5e-3)
    assert (np.abs(predicted["mean"] - expected) <= predicted["mean_error_bound"] + 1e-10 * np.abs(expected)).all()


def test_coefficients_are_told_in_the_units_of_the_data() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(0.0, 50.0, (200, 2))
    y = 7.0 + 2.5 * X[:, 0] - 0.3 * X[:, 1] + 0.5 * rng.standard_normal(200)
    kernel = SquaredExponential((1.0, 1.0), 1e-12)  # as good as none: plain least squares
    case = Case(X, y, X, kernel, 0.25 / y.var(), tolerance=1e-12)
    (said,) = case.trained.summary["mean"]["coefficients"].values()
    design = np.column_stack([np.ones(200), X - X.mean(axis=0)])
    expected = np.linalg.lstsq(design, y, rcond=None)[0]
    errors = 0.5 * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_allclose([value["value"] for value in said.values()], expected, rtol=1e-3)
    np.testing.assert_allclose([value["standard_error"] for value in said.values()], errors, rtol=1e-2)


def test_an_update_finds_the_coefficients_anew() -> None:
    problem = steep(140)
    first = memory_dataset(problem["X"][:100], problem["Y"][:100])
    kernel, executor, stopping = SquaredExponential((1.0, 0.5), 0.3), LocalExecutor(1), GradientInfNorm(1e-10)
    before = train(first, kernel, 0.05, executor, mean="linear", stopping=stopping)
    whole = append_rows(first, problem["X"][100:], problem["Y"][100:])
    state = before.solution.alpha, before.solution.gradient
    after = update(whole, kernel, 0.05, executor, state, mean="linear", stopping=stopping)
    again = train(whole, kernel, 0.05, executor, mean="linear", stopping=stopping)
    executor.close()
    assert before.trend is not None
    assert after.trend is not None
    assert again.trend is not None
    np.testing.assert_allclose(after.trend.coefficients, again.trend.coefficients, atol=1e-7)
    assert np.abs(np.subtract(before.trend.coefficients, again.trend.coefficients)).max() > 1e-3


def test_a_store_keeps_the_mean(tmp_path: Path) -> None:
    problem = steep(90)
    dataset = dataset_from_arrays(str(tmp_path / "train"), problem["X"], problem["Y"])
    executor = LocalExecutor(1)
    trained = train(dataset, SquaredExponential((1.0, 0.5), 0.3), 0.05, executor, mean="linear")
    save(trained, str(tmp_path / "model"), dataset)
    stored = open_model(str(tmp_path / "model"))
    assert Trend.held(stored.trend) == trained.trend
    assert stored.alpha.shape == (90, 2 + 3)
    assert read_manifest(str(tmp_path / "model"), "model")["version"] == 4
    state = stored.training_state()
    assert state is not None
    np.testing.assert_array_equal(state[1], trained.solution.gradient)
    test = dataset_from_arrays(str(tmp_path / "test"), problem["T"], np.zeros((len(problem["T"]), 0)))
    predict(stored, test, str(tmp_path / "out"), executor, variance=VarianceSettings(latent=True))
    predict(stored, test, str(tmp_path / "means"), executor)
    executor.close()
    prediction, case = (
        open_prediction(str(tmp_path / "out")),
        Case(**problem, kernel=trained.kernel, noise_variance=0.05),
    )
    (means, variances), to, rows = case.dense(), dataset.standardisation, (0, len(problem["T"]))
    expected = means * to.target_std + to.target_mean
    assert (np.abs(prediction.read("mean", *rows) - expected) <= prediction.read("mean_error_bound", *rows)).all()
    exact = variances[:, None] * to.target_std**2
    assert (prediction.read("variance_lower", *rows) <= exact).all()
    assert (exact <= prediction.read("variance_upper", *rows)).all()
    np.testing.assert_array_equal(
        open_prediction(str(tmp_path / "means")).read("mean", *rows), prediction.read("mean", *rows)
    )


def test_columns_that_are_sums_of_each_other_are_refused_by_name() -> None:
    problem = steep()
    X = np.column_stack([problem["X"], problem["X"] @ [1.0, 0.2]])
    dataset = memory_dataset(X, problem["Y"], feature_names=("a", "b", "both"))
    with pytest.raises(InputError, match="cannot tell a and b and both apart"):
        train(dataset, SquaredExponential((1.0,) * 3), 0.1, LocalExecutor(1), mean="linear")
    few = memory_dataset(problem["X"][:3], problem["Y"][:3])
    with pytest.raises(InputError, match="more than 3 samples; got 3"):
        train(few, SquaredExponential((1.0,) * 2), 0.1, LocalExecutor(1), mean="linear")


def test_a_solve_that_says_nothing_of_the_coefficients_is_no_model() -> None:
    case = Case(**steep(), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=1e-4, tolerance=1e9)
    with pytest.raises(NumericalError, match="too far from a solution to tell the coefficients of a linear mean"):
        _ = case.trained


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(SquaredExponential((1.0, 0.5), 0.3), marks=pytest.mark.slow), parse_kernel("periodic + rbf", 2)],
)
def test_drawn_functions_have_the_mean_and_the_variance(kernel: Kernel) -> None:
    case = Case(**steep(60, p=1), kernel=kernel, noise_variance=0.05, tolerance=1e-8)
    draws = PosteriorFunctions(case.model, f"draws-{kernel.type_name}", count=1500, seed=0, tolerance=1e-6)
    values = draws(case.tests)[:, 0]
    (means, variances), to = case.dense(), case.model.standardisation
    scale = float(to.target_std[0])
    z = (values.mean(axis=1) - means[:, 0] * scale - to.target_mean[0]) / (np.sqrt(variances / 1500) * scale)
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(values.std(axis=1), np.sqrt(variances) * scale, rtol=0.1)
