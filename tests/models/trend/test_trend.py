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
from dkgp.kernels import Kernel, Matern12, Matern32, SquaredExponential, parse_kernel
from dkgp.models import predict
from dkgp.models.exact import save, train, update
from dkgp.models.mean_option import MeanValue
from dkgp.models.noise import Noise, StudentT
from dkgp.models.prediction.gradients import MeanGradients
from dkgp.models.prediction.pathwise import PosteriorFunctions
from dkgp.models.trend import Drift, Trend
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import Cholesky, GradientInfNorm
from tests.covering import few
from tests.models.trend.cases import Case, steep
from tests.solvers.test_every_solver import SOLVERS


@pytest.mark.parametrize("mean", ["constant", "linear", "quadratic", 40.0])
@pytest.mark.parametrize("known", [False, True])
def test_predictions_are_those_of_the_printed_equations(mean: MeanValue, known: bool) -> None:
    noise = np.random.default_rng(2).uniform(0.0, 0.2, 120) if known else None
    case = Case(
        **steep(), kernel=Matern32((1.0, 0.5)), noise_variance=0.02, mean=mean, sample_noise=noise, tolerance=1e-11
    )
    predicted, (means, variances), to = case.predicted(gap=1e-8), case.dense(), case.model.standardisation
    np.testing.assert_allclose(predicted["mean"], means * to.target_std + to.target_mean, rtol=1e-8)
    np.testing.assert_allclose(predicted["variance"], variances[:, None] * to.target_std**2, rtol=1e-6)


# An exponential variogram of partial sill 2, range 1.5 and nugget .25, of PyKrige 1.7.3 and GSTools 1.7.0, which agree.
PLACES = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [2.0, 3.0], [4.0, 4.0]])
VALUES = np.array([1.0, 2.0, 0.5, 3.0, 2.5, 4.0])
CELLS = np.array([[1.0, 1.0], [2.5, 2.0], [0.0, 0.0]])
KRIGED: dict[MeanValue, tuple[list[float], list[float]]] = {
    "constant": (
        [1.7336216642973514, 2.5859651569392383, 1.130652635064538],
        [1.3079316494013618, 1.3286271542762882, 0.216307595600027],
    ),
    2.0: (
        [1.6968260156356807, 2.536838503061036, 1.1131054490557273],
        [1.2975331422071683, 1.3100913071640088, 0.2139428031536126],
    ),
    "linear": (
        [1.6768187729535975, 2.778644236133971, 0.996448284370925],
        [1.3090240998606175, 1.3415248410307838, 0.2231900229023364],
    ),
}


def kriged(mean: MeanValue, X: np.ndarray = PLACES, y: np.ndarray = VALUES) -> Case:
    """An exponential variogram in the places' own units: one range and sill, whatever the standardisation."""
    to = memory_dataset(X, y).standardisation
    kernel = Matern12.from_length_scales(1.5 / to.input_std, 2.0 / float(to.target_std[0]) ** 2)
    noise_variance = 0.25 / float(to.target_std[0]) ** 2
    return Case(X, y, CELLS, kernel, noise_variance, mean, solver=Cholesky(), tolerance=1e-12)


@pytest.mark.parametrize("mean", KRIGED)
def test_kriging_is_that_of_other_tools(mean: MeanValue) -> None:
    """Ordinary, simple and universal kriging."""
    predicted = kriged(mean).predicted(gap=1e-12)
    np.testing.assert_allclose(predicted["mean"][:, 0], KRIGED[mean][0], rtol=1e-13)
    np.testing.assert_allclose(predicted["variance"][:, 0], KRIGED[mean][1], rtol=1e-12)


DISTANCES, AT_CELLS = np.array([0.0, 1.0, 0.3, 2.0, 1.7, 2.9]), np.array([0.8, 1.6, 0.0])
WITH_EXTERNAL_DRIFT = (
    [1.5625351903103937, 2.4569804624684513, 0.948316891805075],
    [1.316661080943181, 1.3335888596294292, 0.2262227215498304],
)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_kriging_with_external_drift_is_that_of_other_tools(place: int, tmp_path: Path) -> None:
    """The covariate is a column anywhere among the features, of arrays, of a store, and of a model with its inputs."""
    X, T = (np.insert(Z, place, z, axis=1) for Z, z in ((PLACES, DISTANCES), (CELLS, AT_CELLS)))
    plain = kriged("constant")
    case = Case(X, VALUES, T, plain.kernel, plain.noise_variance, "constant", solver=Cholesky(), tolerance=1e-12)
    case.covariates = (f"x{place}",)
    assert case.dataset.feature_names == tuple(f"x{l}" for l in range(3) if l != place)
    dataset = dataset_from_arrays(str(tmp_path / "train"), X, VALUES).with_covariates(case.covariates)
    executor = LocalExecutor(1)
    trained = train(dataset, case.kernel, case.noise_variance, executor, mean="constant", solver=Cholesky())
    save(trained, str(tmp_path / "model"), dataset)
    stored = open_model(str(tmp_path / "model"))
    assert stored.feature_names == case.dataset.feature_names
    assert Drift.from_model(stored) == Drift(0, columns=case.covariates)
    test = dataset_from_arrays(str(tmp_path / "test"), T, None)
    predict(stored, test, str(tmp_path / "out"), executor, variance=VarianceSettings(latent=True, gap=1e-12))
    executor.close()
    prediction, predicted = open_prediction(str(tmp_path / "out")), case.predicted(gap=1e-12)
    for mean, variance in (
        (predicted["mean"], predicted["variance"]),
        (
            prediction.read("mean", 0, 3),
            0.5 * (prediction.read("variance_lower", 0, 3) + prediction.read("variance_upper", 0, 3)),
        ),
    ):
        np.testing.assert_allclose(mean[:, 0], WITH_EXTERNAL_DRIFT[0], rtol=1e-13)
        np.testing.assert_allclose(variance[:, 0], WITH_EXTERNAL_DRIFT[1], rtol=1e-12)
    # Narrow rows hold the features, then the covariates; a state of training goes on from all of them.
    state = stored.training_state()
    assert state is not None
    np.testing.assert_array_equal(Drift.from_model(stored).of(state[0]), case.drift.of(case.dataset))
    (told,) = trained.summary["mean"]["coefficients"].values()
    assert list(told) == ["constant", f"x{place}"]
    lacking = dataset_from_arrays(str(tmp_path / "lacking"), CELLS, None, feature_names=stored.feature_names)
    with pytest.raises(InputError, match=f"lacks the column 'x{place}'"):
        predict(stored, lacking, str(tmp_path / "none"), LocalExecutor(1))


def test_covariates_are_updated_drawn_and_refused() -> None:
    problem = steep(140, d=3, p=1)
    first = memory_dataset(problem["X"][:100], problem["Y"][:100]).with_covariates(["x2"])
    kernel, executor, stopping = SquaredExponential((1.0, 0.5), 0.3), LocalExecutor(1), GradientInfNorm(1e-10)
    before = train(first, kernel, 0.05, executor, mean="linear", stopping=stopping)
    whole = append_rows(first, problem["X"][100:], problem["Y"][100:])
    state = before.solution.alpha, before.solution.gradient
    after = update(whole, kernel, 0.05, executor, state, mean="linear", stopping=stopping)
    again = train(whole, kernel, 0.05, executor, mean="linear", stopping=stopping)
    assert after.trend is not None
    assert again.trend is not None
    assert after.trend.count == 4
    np.testing.assert_allclose(after.trend.coefficients, again.trend.coefficients, atol=1e-7)
    with pytest.raises(InputError, match="has the covariates x2, which enter a mean with coefficients"):
        train(first, kernel, 0.05, executor)
    with pytest.raises(InputError, match="has the covariates x2.* `mean` is 3"):
        train(first, kernel, 0.05, executor, mean=3.0)
    executor.close()
    with pytest.raises(InputError, match="no column 'x9' for `covariates`; expected some of 'x0', 'x1'"):
        memory_dataset(problem["X"], problem["Y"]).with_covariates(["x9"])
    with pytest.raises(InputError, match="all features are among `covariates`"):
        memory_dataset(problem["X"], problem["Y"]).with_covariates(["x0", "x1", "x2"])
    constant = np.column_stack([problem["X"], np.ones(140)])
    with pytest.raises(InputError, match="the covariate 'x3' is constant on the training set"):
        memory_dataset(constant, problem["Y"]).with_covariates(["x3"])
    twice = np.column_stack([problem["X"], 2.0 * problem["X"][:, 1]])
    dependent = memory_dataset(twice, problem["Y"]).with_covariates(["x3"])
    with pytest.raises(InputError, match="cannot tell x1 and x3 apart"):
        train(dependent, SquaredExponential((1.0,) * 3), 0.1, LocalExecutor(1), mean="linear")
    model = before.model(first).resident()
    with pytest.raises(InputError, match="the mean of this model has the covariates x2"):
        MeanGradients(model, "covariates")


def test_a_quadratic_mean_is_universal_kriging_with_plain_monomials() -> None:
    rng = np.random.default_rng(5)
    X, T = rng.uniform(100.0, 104.0, (30, 2)), rng.uniform(98.0, 106.0, (5, 2))
    y = 3.0 - X[:, 0] + 0.5 * (X[:, 1] - 100.0) ** 2 + rng.standard_normal(30)
    case = kriged("quadratic", X, y)
    case.T = T
    H, h = (
        np.column_stack([np.ones(len(Z)), Z, Z[:, 0] ** 2, Z[:, 0] * Z[:, 1], Z[:, 1] ** 2])
        for Z in (X - 102.0, T - 102.0)
    )
    distances = (np.linalg.norm(A[:, None] - X[None], axis=2) for A in (X, T))
    K, k = (2.0 * np.exp(-each / 1.5) for each in distances)
    solved, weights = (
        np.linalg.solve(K + 0.25 * np.eye(30), np.column_stack([y, H])),
        np.linalg.inv(K + 0.25 * np.eye(30)),
    )
    G = H.T @ solved[:, 1:]
    beta = np.linalg.solve(G, H.T @ solved[:, 0])
    R = h - k @ solved[:, 1:]
    variance = 2.0 - np.einsum("ij,ij->i", k @ weights, k) + np.einsum("ij,ij->i", R, np.linalg.solve(G, R.T).T)
    predicted = case.predicted(gap=1e-12)
    np.testing.assert_allclose(
        predicted["mean"][:, 0], h @ beta + k @ (solved[:, 0] - solved[:, 1:] @ beta), rtol=1e-12
    )
    np.testing.assert_allclose(predicted["variance"][:, 0], variance, rtol=1e-11)
    # Coefficients are those of products of deviations from the averages of the features.
    (told,) = case.trained.summary["mean"]["coefficients"].values()
    assert list(told) == ["constant", "x0", "x1", "x0^2", "x0*x1", "x1^2"]
    np.testing.assert_allclose([told[name]["value"] for name in ("x0^2", "x0*x1", "x1^2")], beta[3:], rtol=1e-9)
    errors = np.sqrt(np.diag(np.linalg.inv(G)))
    np.testing.assert_allclose([told[name]["standard_error"] for name in ("x0*x1", "x1^2")], errors[4:], rtol=1e-9)
    off = X.mean(axis=0) - 102.0
    np.testing.assert_allclose(told["x0"]["value"], beta[1] + 2.0 * beta[3] * off[0] + beta[4] * off[1], rtol=1e-9)


def test_a_known_mean_is_kept_in_the_store_and_shared_by_updates(tmp_path: Path) -> None:
    problem, executor = steep(140), LocalExecutor(1)
    first = memory_dataset(problem["X"][:100], problem["Y"][:100])
    kernel, stopping = SquaredExponential((1.0, 0.5), 0.3), GradientInfNorm(1e-10)
    before = train(first, kernel, 0.05, executor, mean=-7.0, stopping=stopping)
    save(before, str(tmp_path / "model"), first)
    stored = open_model(str(tmp_path / "model"))
    assert Drift.from_model(stored) == Drift(value=-7.0)
    np.testing.assert_array_equal(stored.standardisation.target_mean, [-7.0, -7.0])
    assert stored.trend is None
    whole = append_rows(first, problem["X"][100:], problem["Y"][100:])
    state = before.solution.alpha, before.solution.gradient
    mean = Drift.from_model(stored)
    after = update(whole, kernel, 0.05, executor, state, mean=mean, stopping=stopping)
    again = train(whole, kernel, 0.05, executor, mean=mean, stopping=stopping)
    np.testing.assert_allclose(after.solution.alpha, again.solution.alpha, atol=1e-7)
    executor.close()


def test_an_update_of_a_quadratic_mean_keeps_its_columns() -> None:
    """New samples lie outside the first ones' box; other columns would not be those of the gradient it starts from."""
    problem, executor = steep(140), LocalExecutor(1)
    problem["X"][100:] += 3.0
    first = memory_dataset(problem["X"][:100], problem["Y"][:100])
    kernel, stopping = SquaredExponential((1.0, 0.5), 0.3), GradientInfNorm(1e-10)
    before = train(first, kernel, 0.05, executor, mean="quadratic", stopping=stopping)
    drift = Drift.from_model(before.model(first))
    assert drift.box
    whole = append_rows(first, problem["X"][100:], problem["Y"][100:])
    state = before.solution.alpha, before.solution.gradient
    after = update(whole, kernel, 0.05, executor, state, mean=drift, stopping=stopping)
    again = train(whole, kernel, 0.05, executor, mean=drift, stopping=stopping)
    executor.close()
    assert after.trend is not None
    assert again.trend is not None
    assert after.trend.kind == again.trend.kind == drift
    np.testing.assert_allclose(after.trend.coefficients, again.trend.coefficients, atol=1e-7)


@pytest.mark.parametrize(
    ("drift", "document"),
    [
        (Drift(), "centred"),
        (Drift(0), "constant"),
        (Drift(1), "linear"),
        (Drift(value=2.5), 2.5),
        (Drift(2, box=((0.5, 2.0),)), {"degree": 2, "box": [[0.5, 2.0]]}),
        (Drift(3), {"degree": 3, "box": []}),
    ],
)
def test_a_drift_is_stored_as_earlier_versions_stored_it(drift: Drift, document: object) -> None:
    assert drift.to_json() == document
    assert Drift.from_json(document) == drift


def test_other_means_are_refused() -> None:
    outliers = Noise(0.1, law=StudentT(4.0, 0.1))
    with pytest.raises(InputError, match="Student's t is of a centred mean; got `mean` linear"):
        train(memory_dataset(PLACES, VALUES), Matern12((1.0, 1.0)), outliers, LocalExecutor(1), mean="linear")
    for mean in ("cubic", True, float("nan"), None):
        with pytest.raises(InputError, match="`mean` (is one of 'centred', 'constant', .* or a number|must be finite)"):
            Drift.parse(mean)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="degree of at least 0, or a known value"):
        Drift(1, 2.0)
    with pytest.raises(InputError, match="has no degree"):
        Drift.from_json({"box": []})
    assert Drift(2).count(3) == 10


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


@pytest.mark.long
@pytest.mark.parametrize(
    "kernel",
    [pytest.param(SquaredExponential((1.0, 0.5), 0.3), marks=pytest.mark.slow), parse_kernel("periodic + rbf", 2)],
)
def test_drawn_functions_have_the_mean_and_the_variance(kernel: Kernel) -> None:
    case = Case(**steep(60, d=3, p=1), kernel=kernel, noise_variance=0.05, tolerance=1e-8, covariates=("x1",))
    draws = PosteriorFunctions(case.model, f"draws-{kernel.type_name}", count=1500, seed=0, tolerance=1e-6)
    values = draws(case.tests)[:, 0]
    (means, variances), to = case.dense(), case.model.standardisation
    scale = float(to.target_std[0])
    z = (values.mean(axis=1) - means[:, 0] * scale - to.target_mean[0]) / (np.sqrt(variances / 1500) * scale)
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(values.std(axis=1), np.sqrt(variances) * scale, rtol=0.1)
