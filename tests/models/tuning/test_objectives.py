"""Every objective of tuning: its value by independent algebra, its gradient by differences, and where it has none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models import tune
from dkgp.models.noise import SAME_NOISE, Noise
from dkgp.models.trend import Drift
from dkgp.models.tuning.families import ArdSquaredExponential, KernelFamily, family_of
from dkgp.models.tuning.laplace import LABEL_OBJECTIVES
from dkgp.models.tuning.objectives import BY_DESIGN, OBJECTIVES, LogMarginalLikelihood, Objective, ObjectiveName

N, NAMES, S2 = 36, ("a", "b"), 0.07
RNG = np.random.default_rng(17)
X = RNG.normal(size=(N, 2))
Y = np.column_stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2 - 1.0, RNG.normal(size=N)])
H, DESIGN, SLOPES = Drift(1).columns_at(X), RNG.normal(size=(N, 3)), np.array([0.4, -0.7, 0.1])
WEIGHTS = RNG.uniform(0.0, 3.0, N)
CODES = np.argmax(2.0 * X[:, :1] * np.arange(4) + RNG.gumbel(size=(N, 4)), axis=1)
SIGNS = np.where(X[:, 1:2] + RNG.normal(size=(N, 2)) > 0.0, 1.0, -1.0)
ONE_OF_FOUR = np.where(CODES[:, None] == np.arange(4), 1.0, -1.0)
KERNELS = {
    "fused": ("rbf", True),
    "fused, amplitude held": ("rbf", False),
    "sum": ("matern52 + 0.5 * linear", True),
    "rational": ("rq + constant", True),
    "product": ("periodic['a'](period=1.7) * rbf['b'] + linear(isotropic=True)", True),
    "sums in a product": ("(rbf(isotropic=True) + 0.3 * constant) * (matern12 + polynomial(degree=2))", True),
}
NOISES = {
    "plain": SAME_NOISE,
    "known": Noise(1.0, RNG.uniform(0.0, 0.5, N)),
    "relative": Noise(1.0, relative=RNG.uniform(0.1, 9.0, N)),
    "both": Noise(1.0, np.where(np.arange(N) % 4 == 0, 1e4, 0.0), RNG.uniform(0.1, 9.0, N)),
}


def density(matrix: FloatArray) -> float:
    return float(sum(scipy.stats.multivariate_normal(np.zeros(N), matrix).logpdf(y) for y in Y.T))


def density_given_others(matrix: FloatArray) -> float:
    value = 0.0
    for i in range(N):
        others = np.arange(N) != i
        weights = np.linalg.solve(matrix[np.ix_(others, others)], matrix[others, i])
        deviation = math.sqrt(matrix[i, i] - matrix[i, others] @ weights)
        value += float(scipy.stats.norm(weights @ Y[others], deviation).logpdf(Y[i]).sum())
    return value


def restricted(K_y: FloatArray, columns: FloatArray = H, targets: FloatArray = Y) -> float:
    """Equation 2.45 of Rasmussen and Williams as printed, with H (m, n)."""
    inverse, (n, m) = np.linalg.inv(K_y), columns.shape
    A = columns.T @ inverse @ columns
    C = inverse @ columns @ np.linalg.inv(A) @ columns.T @ inverse
    logs = np.linalg.slogdet(K_y)[1] + np.linalg.slogdet(A)[1] + (n - m) * math.log(2 * math.pi)
    return float(sum(-0.5 * y @ inverse @ y + 0.5 * y @ C @ y - 0.5 * logs for y in targets.T))


REFERENCES: dict[ObjectiveName, Callable[[FloatArray], float]] = {"likelihood": density, "loo": density_given_others}


@dataclass(frozen=True)
class Case:
    """An objective at a point, and its value by dense algebra, if there is a formula of few lines."""

    objective: Objective
    point: FloatArray
    expected: float | None = None


def of_noise(name: ObjectiveName, noise: Noise) -> Callable[[KernelFamily, FloatArray], Case]:
    def build(family: KernelFamily, at: FloatArray) -> Case:
        matrix = family.kernel(at)(X, X) + np.diag(np.broadcast_to(noise.with_common(S2).diagonal, N))
        return Case(OBJECTIVES[name](family, Y, noise=noise), np.append(at, math.log(S2)), REFERENCES[name](matrix))

    return build


def of_mean(noise: Noise) -> Callable[[KernelFamily, FloatArray], Case]:
    def build(family: KernelFamily, at: FloatArray) -> Case:
        matrix = family.kernel(at)(X, X) + np.diag(np.broadcast_to(noise.with_common(S2).diagonal, N))
        objective = LogMarginalLikelihood(family, Y, noise=noise, columns=H)
        return Case(objective, np.append(at, math.log(S2)), restricted(matrix))

    return build


def of_design(name: ObjectiveName, design: FloatArray) -> Callable[[KernelFamily, FloatArray], Case]:
    def build(family: KernelFamily, at: FloatArray) -> Case:
        slopes = SLOPES[: design.shape[1]]
        matrix = family.kernel(at)(X, X) + np.diag(S2 * np.exp(design @ slopes))
        point = np.concatenate([at, slopes, [math.log(S2)]])
        return Case(BY_DESIGN[name](family, Y, design), point, REFERENCES[name](matrix))

    return build


def of_labels(name: str, weights: FloatArray | None) -> Callable[[KernelFamily, FloatArray], Case]:
    def build(family: KernelFamily, at: FloatArray) -> Case:
        labels = ONE_OF_FOUR if name == "softmax" else SIGNS
        objective = LABEL_OBJECTIVES[name](family, labels, None, weights)  # type: ignore[index]
        return Case(objective, np.append(at, 0.0))

    return build


CASES: dict[str, Callable[[KernelFamily, FloatArray], Case]] = {
    **{f"{name}, {noise}": of_noise(name, NOISES[noise]) for name in OBJECTIVES for noise in NOISES},
    **{f"restricted likelihood, {noise}": of_mean(NOISES[noise]) for noise in ("plain", "known")},
    **{f"{name}, noise by a design": of_design(name, DESIGN) for name in BY_DESIGN},
    **{f"{name}, a design of nothing": of_design(name, DESIGN[:, :0]) for name in BY_DESIGN},
    **{name: of_labels(name, None) for name in LABEL_OBJECTIVES},
    **{f"{name}, weighted": of_labels(name, WEIGHTS) for name in LABEL_OBJECTIVES},
}


def case_of(name: str, kernel: str) -> Case:
    expression, learn_variance = KERNELS[kernel]
    family = family_of(parse_kernel(expression, 2, NAMES), X, learn_variance, NAMES)
    shift = np.random.default_rng(len(name)).uniform(-0.3, 0.3, len(family.names))
    return CASES[name](family, family.initial() + shift)


@pytest.mark.parametrize("kernel", ["fused", "sum"])
@pytest.mark.parametrize("name", [name for name in CASES if name.split(",")[0] not in LABEL_OBJECTIVES])
def test_value_is_that_of_dense_algebra(name: str, kernel: str) -> None:
    case = case_of(name, kernel)
    outcome = case.objective(case.point)
    assert outcome is not None
    assert outcome[0] == pytest.approx(case.expected, rel=1e-9)


@pytest.mark.spread(8)
@pytest.mark.covering
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_differences(name: str, kernel: str) -> None:
    case = case_of(name, kernel)
    outcome = case.objective(case.point)
    assert outcome is not None

    def value(point: FloatArray) -> float:
        at_point = case.objective(point)
        assert at_point is not None
        return at_point[0]

    step = 1e-4 if case.expected is None else 1e-5
    differences = [
        (value(case.point + e) - value(case.point - e)) / (2.0 * step) for e in step * np.eye(len(case.point))
    ]
    np.testing.assert_allclose(outcome[1], differences, rtol=1e-4, atol=2e-5)
    assert case.expected is not None or outcome[1][-1] == 0.0  # labels have no noise


@pytest.mark.parametrize("name", OBJECTIVES)
def test_there_is_no_value_where_the_matrix_is_not_positive_definite(name: ObjectiveName) -> None:
    # Two equal samples, an amplitude and no noise to speak of: singular to the last bit.
    family = ArdSquaredExponential(np.zeros((2, 1)), learn_variance=True, feature_names=("a",))
    assert OBJECTIVES[name](family, np.ones((2, 1)))(np.array([0.0, 40.0, -40.0])) is None
    if name == "likelihood":
        overflowing = BY_DESIGN[name](family, np.ones((2, 1)), np.ones((2, 1)))
        assert overflowing(np.array([0.0, 0.0, 800.0, 0.0])) is None


def scikit_learns(inputs: FloatArray, y: FloatArray, gamma: FloatArray) -> GaussianProcessRegressor:
    kernel = ConstantKernel(0.6) * RBF(1.0 / np.sqrt(2.0 * gamma)) + WhiteKernel(0.15)
    return GaussianProcessRegressor(kernel=kernel, optimizer=None, alpha=0.0).fit(inputs, y)


def test_value_and_gradient_agree_with_scikit_learn(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((80, 3)), rng.standard_normal((80, 1))
    gamma = np.array([0.4, 0.02, 3.0])
    reference = scikit_learns(inputs, targets[:, 0], gamma)
    expected, in_their_logs = reference.log_marginal_likelihood(reference.kernel_.theta, eval_gradient=True)
    family = family_of(SquaredExponential(tuple(gamma)), inputs, True, ("a", "b", "c"))
    outcome = LogMarginalLikelihood(family, targets)(np.log([*gamma, 0.6, 0.15]))
    assert outcome is not None
    assert outcome[0] == pytest.approx(expected, rel=1e-10)
    # Theirs: log v, log lengthscale_1..3, log s2, and log lengthscale = -(log gamma + log 2) / 2.
    of_gamma = -0.5 * in_their_logs[1:4]
    np.testing.assert_allclose(outcome[1], [*of_gamma, in_their_logs[0], in_their_logs[4]], rtol=1e-8)


def test_leave_one_out_agrees_with_scikit_learn_refitted_for_each_sample(rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((18, 2)), rng.standard_normal((18, 1))
    gamma, expected = np.array([0.4, 1.5]), 0.0
    for left_out in range(18):
        others = np.delete(np.arange(18), left_out)
        reference = scikit_learns(inputs[others], targets[others, 0], gamma)
        # Their deviation is that of a new observation: the kernel holds the noise.
        mean, deviation = reference.predict(inputs[[left_out]], return_std=True)
        expected += float(scipy.stats.norm(mean[0], deviation[0]).logpdf(targets[left_out, 0]))
    family = family_of(SquaredExponential(tuple(gamma)), inputs, True, NAMES)
    outcome = OBJECTIVES["loo"](family, targets)(np.log([*gamma, 0.6, 0.15]))
    assert outcome is not None
    assert outcome[0] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", LABEL_OBJECTIVES)
def test_labels_of_huge_amplitudes_and_equal_samples_have_a_value(name: str) -> None:
    labels = ONE_OF_FOUR if name == "softmax" else np.where(X[:, :1] > 0.0, 1.0, -1.0)
    for variance in (1e-4, 1e4, 1e8):
        family = family_of(SquaredExponential((0.1, 1e-6), variance), X, True, NAMES)
        outcome = LABEL_OBJECTIVES[name](family, labels)(np.append(family.initial(), 0.0))  # type: ignore[index]
        assert outcome is not None
        assert np.isfinite(outcome[0])
        assert outcome[0] < 0.0
        assert np.isfinite(outcome[1]).all()
        if name == "softmax" and variance == 1e4:
            break
    same = family_of(SquaredExponential((0.1, 1e-6)), np.zeros((N, 2)), True, NAMES)
    at_one_place = LABEL_OBJECTIVES[name](same, labels)(np.append(same.initial(), 0.0))  # type: ignore[index]
    assert at_one_place is not None
    assert np.isfinite(at_one_place[0])


@pytest.mark.parametrize("name", LABEL_OBJECTIVES)
def test_whole_weights_are_repeated_samples(name: str, rng: np.random.Generator) -> None:
    labels = ONE_OF_FOUR if name == "softmax" else SIGNS
    counts = rng.integers(0, 4, N)
    again = np.repeat(np.arange(N), counts)
    values = []
    for rows, weights in ((np.arange(N), counts.astype(np.float64)), (again, None)):
        family = family_of(SquaredExponential((0.5, 0.2), 3.0), X[rows], True, NAMES)
        objective = LABEL_OBJECTIVES[name](family, labels[rows], None, weights)  # type: ignore[index]
        values.append(objective(np.append(family.initial(), 0.0)))
    weighted, repeated = values
    assert weighted is not None
    assert repeated is not None
    assert weighted[0] == pytest.approx(repeated[0], rel=1e-8)
    np.testing.assert_allclose(weighted[1], repeated[1], rtol=1e-5, atol=1e-7)


def test_samples_of_noise_about_a_mean_are_told_from_structure() -> None:
    rng = np.random.default_rng(1)
    inputs, e = rng.standard_normal((250, 2)), rng.standard_normal((250, 1))
    columns = Drift(1).columns_at(inputs)
    best = LogMarginalLikelihood.independent_about(e + columns @ [[3.0], [2.0], [1.0]], columns)
    rest = e - columns @ np.linalg.lstsq(columns, e, rcond=None)[0]
    s2 = float((rest**2).sum()) / 247
    assert best == pytest.approx(restricted(s2 * np.eye(250), columns, e), rel=1e-12)
    found = tune(inputs, e + columns @ [[3.0], [2.0], [1.0]], mean="linear")
    assert any("no structure found" in message for message in found.warnings)
    assert found.noise_variance == pytest.approx(s2, rel=0.1)


def test_a_trend_does_not_make_the_amplitude() -> None:
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(-1.7, 1.7, (300, 1)), axis=0)
    y = x + 0.1 * np.sin(12.0 * x) + 0.02 * rng.standard_normal((300, 1))
    about, centred = tune(x, y, mean="linear"), tune(x, y, learn_variance=True)
    assert about.kernel.diagonal(x[:1])[0] < 0.05
    assert about.noise_variance == pytest.approx(0.02**2, rel=0.3)
    assert centred.kernel.diagonal(x[:1])[0] > 10.0 * about.kernel.diagonal(x[:1])[0]


def test_targets_vary_about_a_known_mean() -> None:
    """A shift of the targets and of their mean may change nothing, and the amplitude is tuned."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-2.0, 2.0, (80, 1))
    y = np.sin(3.0 * x) + 0.1 * rng.standard_normal((80, 1))
    about, shifted = tune(x, y, learn_variance=True), tune(x, y + 4.0, mean=4.0)
    np.testing.assert_allclose(shifted.gamma, about.gamma, rtol=1e-3)
    assert shifted.noise_variance == pytest.approx(about.noise_variance, rel=1e-3)
    wide = tune(x, y + 4.0, learn_variance=True).kernel.diagonal(x[:1])[0]
    assert wide > 3.0 * shifted.kernel.diagonal(x[:1])[0]


def test_what_knows_no_mean_says_so() -> None:
    x = np.linspace(-1.0, 1.0, 30)[:, None]
    for options, words in (
        ({"objective": "loo"}, "the objective loo knows no `mean` linear"),
        ({"folds": 3}, "a score by folds knows no `mean` linear"),
        ({"holdout": 0.2}, "a score on a holdout knows no `mean` linear"),
        ({"mean": "cubic"}, "`mean` is one of 'centred', .* the known mean; got 'cubic'"),
    ):
        with pytest.raises(InputError, match=words):
            tune(x, np.sin(x), **{"mean": "linear", **options})  # type: ignore[arg-type]
