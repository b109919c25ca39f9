"""Means with coefficients: against Rasmussen and Williams' equations by dense algebra, and bounds against 50 digits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import (
    ModelRecord,
    append_rows,
    dataset_from_arrays,
    memory_dataset,
    memory_model,
    open_model,
    open_prediction,
)
from dkgp.data.stores.manifest import read_manifest
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, Matern32, SquaredExponential, parse_kernel
from dkgp.models import RunContext, predict
from dkgp.models.exact import TrainedModel, save, train
from dkgp.models.prediction.gradients.exact import DeviationPredictor, GradientPredictor
from dkgp.models.prediction.pathwise import PosteriorFunctions
from dkgp.models.prediction.predictor import Predicted, Predictor, standardised
from dkgp.models.trend.columns import MeanKind, columns_at
from dkgp.models.trend.trend import Trend
from dkgp.models.update import update
from dkgp.models.variance.variances import VarianceSettings
from dkgp.solvers import Cholesky, ConjugateGradient, GradientInfNorm, MaxPasses, Solver
from tests.models.exact_gp import ExactGP, mp, numbers
from tests.models.exact_gradients import ExactGradients
from tests.solvers.test_every_solver import SOLVERS

_RUNS = itertools.count()


@dataclass(eq=False)
class Case:
    """Raw samples, test inputs, kernel and noise of standardised ones, and how far the solve goes."""

    X: np.ndarray
    Y: np.ndarray
    T: np.ndarray
    kernel: Kernel
    noise_variance: float
    mean: MeanKind = "linear"
    solver: Solver | None = None
    tolerance: float = 1e-4
    sample_noise: np.ndarray | None = None
    tree_error: float | None = None

    @cached_property
    def dataset(self) -> Any:
        return memory_dataset(self.X, self.Y)

    @cached_property
    def trained(self) -> TrainedModel:
        executor = LocalExecutor(1)
        trained = train(
            self.dataset,
            self.kernel,
            self.noise_variance,
            RunContext(executor, tree_error=self.tree_error),
            sample_noise=self.sample_noise,
            mean=self.mean,
            solver=self.solver or ConjugateGradient(precision="double"),
            stopping=GradientInfNorm(self.tolerance) | MaxPasses(300.0),
        )
        executor.close()
        return trained

    @cached_property
    def model(self) -> ModelRecord:
        return memory_model(self.dataset, **self.trained.record())

    def predicted(self, **settings: Any) -> Predicted:
        version = f"trend-{next(_RUNS)}"
        try:
            return Predictor(self.model, version, VarianceSettings(latent=True, **settings), n_test=len(self.T))(self.T)
        finally:
            Predictor.forget(version)

    @cached_property
    def tests(self) -> np.ndarray:
        return standardised(self.model, self.T)

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Means (t, p) and latent variances (t,), standardised: equations 2.41 and 2.42 as they are printed."""
        x, y, t = self.dataset.inputs(0, len(self.X)), self.dataset.all_targets(), self.tests
        H, H_star = columns_at(self.mean, x).T, columns_at(self.mean, t).T
        K_y = self.kernel(x, x) + np.diag(np.broadcast_to(self.model.noise, len(x)))
        K_star = self.kernel(x, t)
        inverse = np.linalg.inv(K_y)
        A = H @ inverse @ H.T
        beta = np.linalg.solve(A, H @ inverse @ y)
        R = H_star - H @ inverse @ K_star
        mean = K_star.T @ inverse @ y + R.T @ beta
        centred = self.kernel.diagonal(t) - np.einsum("ij,ij->j", K_star, inverse @ K_star)
        return mean, centred + np.einsum("ij,ij->j", R, np.linalg.solve(A, R))

    @cached_property
    def solved(self) -> tuple[ExactGP, Any, list[Any]]:
        """In 50 digits: the centred model of [y, H], G, and beta of each target, as standardisation maps targets."""
        to, p = self.model.standardisation, self.dataset.n_targets
        rows = [
            [
                (mp.mpf(float(value)) - mp.mpf(float(mean))) / mp.mpf(float(std))
                for value, mean, std in zip(row, to.target_mean, to.target_std, strict=True)
            ]
            for row in self.Y
        ]
        x = self.dataset.inputs(0, len(self.X))
        H = numbers(columns_at(self.mean, x))
        q = len(H[0])
        # Means of the right-hand sides h_j are k'Kbar^-1 H; at the samples, with Kbar^-1 = (I - K Kbar^-1) / N, they
        # give A.
        columns = [row + h for row, h in zip(rows, H, strict=True)]
        at_samples = ExactGP(x, x, columns, self.kernel, self.model.noise)
        noise = [mp.mpf(float(value)) for value in np.broadcast_to(self.model.noise, len(x))]
        solved = [
            [(value - fit) / s2 for value, fit in zip(right, fits, strict=True)]
            for right, fits, s2 in zip(columns, at_samples.mean, noise, strict=True)
        ]
        products = mp.matrix(
            [[mp.fsum(h[i] * row[j] for h, row in zip(H, solved, strict=True)) for j in range(p + q)] for i in range(q)]
        )
        A = products[:, p:]
        at_tests = ExactGP(x, self.tests, columns, self.kernel, self.model.noise)
        return at_tests, A, [mp.lu_solve(A, products[:, target]) for target in range(p)]

    def exact(self) -> tuple[list[list[Any]], list[Any]]:
        """Means and latent variances in 50 digits, standardised."""
        at_tests, A, betas = self.solved
        means, variances = [], []
        for x_row, sums, variance in zip(
            numbers(columns_at(self.mean, self.tests)), at_tests.mean, at_tests.variance, strict=True
        ):
            R = mp.matrix([h - s for h, s in zip(x_row, sums[len(betas) :], strict=True)])
            means.append([sums[target] + (R.T * beta)[0] for target, beta in enumerate(betas)])
            variances.append(variance + (R.T * mp.lu_solve(A, R))[0])
        return means, variances

    def slope_violations(self) -> tuple[float, float]:
        """The largest error of a derivative of the mean over its bound, and over the largest of its sample."""
        at_tests, _, betas = self.solved
        to, version = self.model.standardisation, f"trend-{next(_RUNS)}"
        got = GradientPredictor(self.model, version)(self.T)
        Predictor.forget(version)
        ratio = relative = 0.0
        for row, sums in enumerate(ExactGradients(at_tests).means):
            for target, beta in enumerate(betas):
                for feature in range(self.X.shape[1]):
                    columns = [mp.mpf(self.mean == "linear" and index == 1 + feature) for index in range(len(beta))]
                    true = sums[target][feature] + mp.fsum(
                        (h - s[feature]) * b for h, s, b in zip(columns, sums[len(betas) :], beta, strict=True)
                    )
                    true *= mp.mpf(float(to.target_std[target])) / mp.mpf(float(to.input_std[feature]))
                    off = float(abs(mp.mpf(float(got.gradient[row, target, feature])) - true))
                    ratio = max(ratio, off / float(got.error[row, target, feature]))
                    relative = max(relative, off / float(np.abs(got.gradient[row, target]).max()))
        return ratio, relative

    def violations(self) -> tuple[float, float]:
        """The largest error of a mean over its bound, and of a variance beyond its interval, in units of it."""
        predicted, to = self.predicted(), self.model.standardisation
        assert predicted.variance_lower is not None
        assert predicted.variance_upper is not None
        ratio = wrong = 0.0
        for row, (means, variance) in enumerate(zip(*self.exact(), strict=True)):
            for target, mean in enumerate(means):
                scale = mp.mpf(float(to.target_std[target]))
                error = abs(
                    mp.mpf(float(predicted.mean[row, target])) - mean * scale - mp.mpf(float(to.target_mean[target]))
                )
                ratio = max(ratio, float(error / mp.mpf(float(predicted.mean_error[row, target]))))
                exact = variance * scale**2
                for beyond in (
                    mp.mpf(float(predicted.variance_lower[row, target])) - exact,
                    exact - mp.mpf(float(predicted.variance_upper[row, target])),
                ):
                    wrong = max(wrong, float(beyond / exact))
        return ratio, wrong


def steep(n: int = 120, d: int = 2, p: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, d)) * 10.0 ** np.arange(d) + 300.0
    Z = (X - 300.0) / 10.0 ** np.arange(d)
    Y = np.column_stack([5.0 + 4.0 * Z[:, 0] + np.sin(3.0 * Z[:, 0]), 1e3 - 1e2 * Z[:, -1] + np.cos(2.0 * Z[:, 0])])
    T = 300.0 + rng.uniform(-8.0, 8.0, (7, d)) * 10.0 ** np.arange(d)
    return {"X": X, "Y": Y[:, :p] + 0.1 * rng.standard_normal((n, p)), "T": T}


def nearly_the_same() -> dict[str, Any]:
    problem = steep(40)
    rng = np.random.default_rng(3)
    for name, n in (("X", 40), ("T", 7)):
        problem[name][:, 1] = problem[name][:, 0] + 1e-5 * rng.standard_normal(n)
    return problem


KNOWN = np.random.default_rng(1).uniform(0.0, 0.3, 40)
ATTACKS = {
    "solved": Case(**steep(40), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.05, tolerance=1e-10),
    "solved roughly": Case(
        **steep(40), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.05, tolerance=0.03
    ),
    "by Cholesky": Case(**steep(40), kernel=Matern32((2.0, 1.0)), noise_variance=1e-6, solver=Cholesky()),
    "constant, roughly": Case(
        **steep(40), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.05, mean="constant", tolerance=0.1
    ),
    "noise by sample": Case(
        **steep(40), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.02, sample_noise=KNOWN, tolerance=0.02
    ),
    "a kernel with the trend in it": Case(
        **steep(40), kernel=parse_kernel("linear + rbf", 2), noise_variance=0.05, tolerance=1e-3
    ),
    "features that are nearly the same": Case(
        **nearly_the_same(), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.05, tolerance=1e-3
    ),
    "hardly any noise": Case(
        **steep(25), kernel=SquaredExponential((3.0, 3.0), 0.3), noise_variance=1e-8, solver=Cholesky()
    ),
    "few samples": Case(**steep(5), kernel=SquaredExponential((3.0, 3.0)), noise_variance=0.5, tolerance=0.3),
    "by trees": Case(
        **steep(40), kernel=SquaredExponential((3.0, 3.0), 0.3), noise_variance=0.05, tolerance=0.01, tree_error=1e-3
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_bounds_hold(name: str) -> None:
    ratio, wrong = ATTACKS[name].violations()
    assert 0.0 < ratio <= 1.0
    assert wrong <= 0.0


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "by trees"])
def test_bounds_of_gradients_hold(name: str) -> None:
    ratio, relative = ATTACKS[name].slope_violations()
    assert 0.0 < ratio <= 1.0
    # Those of a rough solve are off, and what is proven is not far from it.
    if name == "solved":
        assert relative < 1e-7
    if name == "solved roughly":
        assert relative > 1e-4
        assert ratio > 1e-3


def test_gradients_are_the_slopes_of_predictions() -> None:
    """Far from the samples, where the mean's own slope is all there is; deviations have none that is known."""
    X, Y = steep()["X"], steep()["Y"][:, :1]
    model = Case(X, Y, np.array([[3000.0, 9000.0]]), Matern32((1.0, 0.5)), 0.02).model
    version = f"trend-{next(_RUNS)}"
    got = GradientPredictor(model, version)(np.array([[3000.0, 9000.0]]))
    coefficients = np.array(Trend.from_json(dict(model.trend or {})).coefficients)[1:, 0]
    to = model.standardisation
    np.testing.assert_allclose(got.gradient[0, 0], coefficients * to.target_std / to.input_std, rtol=1e-12)
    with pytest.raises(InputError, match="the deviation of this model holds that of its mean's coefficients"):
        DeviationPredictor(model, version, latent=True)
    Predictor.forget(version)


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_at_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(4, 16)), int(rng.integers(1, 3))
    case = Case(
        X=rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4, d) + 10.0 ** rng.integers(0, 4),
        Y=rng.standard_normal((n, 2)) * [1.0, 1e4],
        T=10.0 ** rng.integers(0, 4) * rng.standard_normal((3, d)),
        kernel=[SquaredExponential((0.5,) * d), Matern32((1.0,) * d, 4.0), parse_kernel("rq + linear", d)][seed % 3],
        noise_variance=float(10.0 ** rng.integers(-6, 1)),
        mean=("constant", "linear")[seed % 2] if n > d + 1 else "constant",
        solver=Cholesky() if seed % 4 == 0 else None,
        tolerance=float(10.0 ** rng.integers(-9, -1)),
        sample_noise=rng.uniform(0.0, 1.0, n) if seed % 5 == 0 else None,
    )
    ratio, wrong = case.violations()
    assert 0.0 < ratio <= 1.0
    assert wrong <= 0.0


def test_bounds_say_something_of_a_solution_that_is_rough() -> None:
    """They come within a factor of what is wrong, so that none of them is true by being huge."""
    ratio, _ = ATTACKS["solved roughly"].violations()
    assert ratio > 0.02
    predicted = replace(ATTACKS["solved"]).predicted(gap=1e-6)
    assert predicted.variance_lower is not None
    assert predicted.variance_upper is not None
    np.testing.assert_allclose(predicted.variance_upper, predicted.variance_lower, rtol=1e-5)


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("known", [False, True])
def test_predictions_are_those_of_the_printed_equations(mean: MeanKind, known: bool) -> None:
    noise = np.random.default_rng(2).uniform(0.0, 0.2, 120) if known else None
    case = Case(
        **steep(), kernel=Matern32((1.0, 0.5)), noise_variance=0.02, mean=mean, sample_noise=noise, tolerance=1e-11
    )
    predicted, (means, variances), to = case.predicted(gap=1e-8), case.dense(), case.model.standardisation
    np.testing.assert_allclose(predicted.mean, means * to.target_std + to.target_mean, rtol=1e-8)
    assert predicted.variance is not None
    np.testing.assert_allclose(predicted.variance, variances[:, None] * to.target_std**2, rtol=1e-6)


def test_a_linear_mean_extrapolates_where_a_centred_one_falls_back() -> None:
    case = Case(**steep(), kernel=SquaredExponential((2.0, 2.0), 0.1), noise_variance=0.005, tolerance=1e-8)
    far = case.T = case.X.mean(axis=0) + np.array([[20.0, 0.0], [-20.0, 100.0]])
    truth = 5.0 + 4.0 * (far[:, 0] - 300.0)
    centred = Case(case.X, case.Y, far, case.kernel, case.noise_variance, "centred", tolerance=1e-8)
    assert np.abs(case.predicted().mean[:, 0] - truth).max() < 4.0
    assert np.abs(centred.predicted().mean[:, 0] - truth).min() > 50.0
    # Its error bars know of the slope's uncertainty: they grow with the distance, a centred model's do not.
    variance, of_centred = case.predicted().variance, centred.predicted().variance
    assert variance is not None
    assert of_centred is not None
    near = replace(case, T=case.X.mean(axis=0)[None] + 3.0).predicted().variance
    assert near is not None
    assert (variance[:, 0] > 1.5 * near[0, 0]).all()
    np.testing.assert_allclose(of_centred[:, 0], 0.1 * centred.model.standardisation.target_std[0] ** 2, rtol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_every_solver_takes_the_columns_beside_the_targets(solver: Solver) -> None:
    case = Case(
        **steep(), kernel=SquaredExponential((1.0, 0.5), 0.3), noise_variance=0.1, solver=solver, tolerance=1e-6
    )
    (means, _), predicted, to = case.dense(), case.predicted(), case.model.standardisation
    expected = means * to.target_std + to.target_mean
    np.testing.assert_allclose(predicted.mean, expected, rtol=5e-3)
    assert (np.abs(predicted.mean - expected) <= predicted.mean_error + 1e-10 * np.abs(expected)).all()


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


@pytest.mark.parametrize("kernel", [SquaredExponential((1.0, 0.5), 0.3), parse_kernel("periodic + rbf", 2)])
def test_drawn_functions_have_the_mean_and_the_variance(kernel: Kernel) -> None:
    case = Case(**steep(60, p=1), kernel=kernel, noise_variance=0.05, tolerance=1e-8)
    draws = PosteriorFunctions(case.model, f"draws-{next(_RUNS)}", count=4000, seed=0, tolerance=1e-6)
    values = draws(case.tests)[:, 0]
    (means, variances), to = case.dense(), case.model.standardisation
    scale = float(to.target_std[0])
    z = (values.mean(axis=1) - means[:, 0] * scale - to.target_mean[0]) / (np.sqrt(variances / 4000) * scale)
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(values.std(axis=1), np.sqrt(variances) * scale, rtol=0.1)
