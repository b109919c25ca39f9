"""Samples, kernels and noise of hostile magnitudes: predictions and bounds hold, or the error says why."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dkgp import (
    LSSVC,
    ConjugateDirectionsPursuit,
    FixedSizeLSSVC,
    GPClassifier,
    GPRegressor,
    KernelLogisticClassifier,
    SparseGPRegressor,
)
from dkgp.errors import DkgpError, InputError
from dkgp.estimators import outputs
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.estimators.sparse import OverconfidenceWarning
from dkgp.kernels import Kernel, Linear, Matern12, Matern32, Periodic, Polynomial, RationalQuadratic, SquaredExponential
from dkgp.models.classification.calibration import Calibration
from dkgp.models.prediction.posterior import standardised
from tests.estimators.attack import attacked
from tests.models.variance.variance_problems import VarianceProblem, exact_in_50_digits

N = 14
KERNELS: dict[str, Kernel] = {
    "gamma 1e300": SquaredExponential((1e300,), n_features=2),
    "gamma 1e-300": SquaredExponential((1e-300,), n_features=2),
    "amplitude 1e300": SquaredExponential((0.5,), variance=1e300, n_features=2),
    "amplitude 1e150": SquaredExponential((0.5,), variance=1e150, n_features=2),
    "amplitude 1e-90": SquaredExponential((0.5,), variance=1e-90, n_features=2),
    "linear": Linear(n_features=2),
    "linear 1e150": Linear(weight=(1e150,), n_features=2),
    "polynomial": Polynomial(weight=(1.0,), degree=9, n_features=2),
    "polynomial 1e100": Polynomial(weight=(1e100,), degree=4, n_features=2),
    "period 1e-6": Periodic((0.5,), period=(1e-6,), n_features=2),
    "period 1e-300": Periodic((0.5,), period=(1e-300,), n_features=2),
    "matern 1e200": Matern12((1e200,), n_features=2),
    "quadratic 1e300": RationalQuadratic((1e300,), alpha=1e-5, n_features=2),
    "product 1e400": SquaredExponential((0.5,), variance=1e200, n_features=2)
    * Matern32((0.5,), variance=1e200, n_features=2),
    "linear 1e-100 of 1e100": Linear(weight=(1e-100,), n_features=2)
    * SquaredExponential((0.5,), variance=1e100, n_features=2),
}
NOISES = {"gamma 1e-300": 1e-12, "amplitude 1e150": 1e12, "amplitude 1e-90": 1e-12, "matern 1e200": 1e12}
INPUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ordinary": lambda X: X,
    "1e150": lambda X: 1e150 * X,
    "1e300": lambda X: 1e300 * X,
    "1e-130": lambda X: 1e-130 * X,
    "1e-200": lambda X: 1e-200 * X,
    "equal rows": lambda X: np.ones_like(X),
    "an outlier": lambda X: np.concatenate([X[:-1], [[1e12, -1e12]]]),
    "equal columns": lambda X: X[:, [0, 0]],
}
TARGETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "1e150": lambda y: 1e150 * y,
    "1e300": lambda y: 1e300 * y,
    "1e-130": lambda y: 1e-130 * y,
    "1e-165": lambda y: 1e-165 * y,
    "zero": lambda y: 0.0 * y,
    "1.7e308": lambda y: 0.0 * y + 1.7e308,
    "one tiny": lambda y: np.column_stack([y, 1e-170 * y]),
}
FAR = np.array(
    [[0.3, -0.2], [1e12, 1e11], [3e154, -2e154], [1e200, 1e200], [-1e300, 1e300], [1.7e308, 1.7e308], [0.0, 0.0]]
)


@pytest.fixture
def samples(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(N, 2))
    return X, np.sin(2.0 * X[:, 0])


def finite_or_refused(estimator: Any, X: np.ndarray, y: np.ndarray, *asked: str) -> int:
    """Return the number of finite answers. A warning, or an error that is not dkgp's, fails the test."""
    answers = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", OverconfidenceWarning)  # of the subset of regressors, at every input
        try:
            model = estimator.fit(X, y)
        except DkgpError:
            return answers
        for row in FAR:
            for name in asked:
                options = {"return_std": True, "return_bounds": True} if name == "bounds" else {}
                try:
                    found = getattr(model, "predict" if options else name)(row[None], **options)
                except DkgpError:
                    continue
                if not options:
                    assert np.isfinite(found).all(), (name, row)
                else:
                    mean, std, bounds = found
                    assert np.isfinite(mean).all()
                    assert not np.isnan([std, bounds.mean_error]).any()
                    assert (bounds.variance_lower <= bounds.variance_upper).all()
                answers += 1
    return answers


@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_all_magnitudes(kernel: str, samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = samples
    options: dict[str, Any] = {"kernel": KERNELS[kernel], "noise_variance": NOISES.get(kernel, 0.1)}
    finite_or_refused(GPRegressor(**options), X, y, "bounds")
    finite_or_refused(SparseGPRegressor(basis_size=5, **options), X, y, "bounds")
    labels = (X[:, 0] > 0.0).astype(int)
    asked = ("predict", "predict_proba", "decision_function")
    finite_or_refused(LSSVC(**options), X, labels, *asked)
    finite_or_refused(FixedSizeLSSVC(**options), X, labels, *asked)
    finite_or_refused(GPClassifier(kernel=KERNELS[kernel]), X, labels, *asked)
    regularisation = options["noise_variance"]
    finite_or_refused(KernelLogisticClassifier(KERNELS[kernel], regularisation=regularisation), X, labels, *asked)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "polynomial"])
def test_bases_and_neighbours_far_out(kernel: str, samples: tuple[np.ndarray, np.ndarray]) -> None:
    (X, y), labels = samples, (samples[1] > 0.0).astype(int)
    options = {"kernel": KERNELS.get(kernel, SquaredExponential((0.5,), n_features=2))}
    for method in ("vfe", "dtc", "fitc", "sr", "sd", "vif"):
        sparse = SparseGPRegressor(method=method, basis_size=5, noise_variance=0.1, **options)
        assert finite_or_refused(sparse, X, y, "bounds") >= 2
    assert finite_or_refused(GPRegressor(noise_variance=0.1, **options), X, y, "sample_y") >= 2
    asked = ("predict", "predict_proba", "decision_function")
    for basis in ({"n_basis": 5}, {"n_basis": 5, "neighbours": 4}):
        assert finite_or_refused(GPClassifier(**basis, **options), X, labels, *asked) >= 6
    for several in ({"multi_class": "ovr"}, {"multi_class": "softmax"}):
        three = np.digitize(y, [-0.4, 0.4])
        assert finite_or_refused(GPClassifier(n_basis=5, **several, **options), X, three, *asked) >= 6
        assert finite_or_refused(KernelLogisticClassifier(n_basis=5, **several, **options), X, three, *asked) >= 6


@pytest.mark.parametrize("solver", ["gbcd", "cg", "smo"])
def test_parts_beyond_float32_are_no_trouble(solver: str, samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = samples
    kernel = KERNELS["linear 1e-100 of 1e100"]
    plain = Linear(n_features=2) * SquaredExponential((0.5,), n_features=2)
    mean, bounds = GPRegressor(kernel, noise_variance=1e-3, solver=solver).fit(X, y).predict(X, return_bounds=True)
    exact, more = GPRegressor(plain, noise_variance=1e-3, solver="cholesky").fit(X, y).predict(X, return_bounds=True)
    assert (np.abs(mean - exact) <= bounds.mean_error + more.mean_error).all()
    assert (bounds.mean_error < 0.01).all()


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("kernel", ["rbf", "linear + periodic"])
def test_inputs_of_all_magnitudes_tuned(kernel: str, inputs: str, samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = INPUTS[inputs](samples[0]), samples[1]
    answers = finite_or_refused(GPRegressor(kernel), X, y, "bounds")
    finite_or_refused(GPRegressor(kernel, optimizer="loo"), X, y, "bounds")
    finite_or_refused(SparseGPRegressor(kernel, basis_size=5), X, y, "bounds")
    labels, asked = (y > 0.0).astype(int), ("predict", "predict_proba", "decision_function")
    for classifier in (LSSVC, GPClassifier, KernelLogisticClassifier):
        finite_or_refused(classifier(kernel), X, labels, *asked)
    assert (answers > 0) == (inputs not in ("1e300", "1e-200"))


@pytest.mark.parametrize("targets", TARGETS)
def test_targets_of_all_magnitudes(targets: str, samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = samples[0], TARGETS[targets](samples[1])
    for estimator in (GPRegressor(), SparseGPRegressor(basis_size=5)):
        answers = finite_or_refused(estimator, X, y, "bounds")
        # What does not vary is refused, as is what has no scale in float64.
        assert (answers > 0) == (targets not in ("1e300", "1e-165", "one tiny", "zero", "1.7e308"))


@pytest.mark.parametrize("scale", [1e-130, 1e-60, 1e100])
def test_units_change_nothing(scale: float, samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = samples
    options: dict[str, Any] = {"kernel": SquaredExponential((0.5,), n_features=2), "noise_variance": 0.1}
    plain, scaled = GPRegressor(**options).fit(X, y), GPRegressor(**options).fit(X, scale * y)
    mean, bounds = plain.predict(X, return_bounds=True)
    found, proven = scaled.predict(X, return_bounds=True)
    np.testing.assert_allclose(found / scale, mean, rtol=1e-9)
    np.testing.assert_allclose(proven.mean_error / scale, bounds.mean_error, rtol=0.01)


@pytest.mark.parametrize("kind", [GPRegressor, SparseGPRegressor])
@pytest.mark.parametrize(("factor", "words"), [(1e-165, "too near to each other"), (1e200, "too large")])
def test_what_cannot_be_standardised_is_refused_by_name(
    kind: Any, factor: float, words: str, samples: tuple[np.ndarray, np.ndarray]
) -> None:
    X, y = samples
    for inputs, targets, name in ((X, factor * y, "y"), (X * [1.0, factor], y, "x1")):
        with pytest.raises(InputError, match=f"The values of '{name}' are {words} to be standardised"):
            kind().fit(inputs, targets)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (30, 60))])
def test_problems_drawn_at_random_hold_in_digits_or_are_refused(first: int) -> None:
    _attack(range(first, first + 30))


@pytest.mark.slow
def test_a_thousand_problems_drawn_at_random_hold_in_digits_or_are_refused() -> None:
    assert _attack(range(1000, 2000)) > 600


def _attack(seeds: range) -> int:
    held = 0
    for seed in seeds:
        words, end = attacked(np.random.default_rng(seed))
        assert not end.startswith("BROKEN"), (seed, end, words)
        held += end == "holds"
    assert held > len(seeds) // 2
    return held


@pytest.mark.parametrize("likelihood", [{"noise_model": "gp"}, {"noise_model": "linear"}, {"likelihood": "student-t"}])
def test_noise_far_out_is_a_number_and_leaves_other_rows_alone(
    samples: tuple[np.ndarray, np.ndarray], likelihood: dict[str, str]
) -> None:
    X, y = samples
    far = np.concatenate([FAR[:4], [[-5e307, 5e307], [1e307, 1e307]]])  # as standardised still finite
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GPRegressor(**likelihood).fit(np.concatenate([X, -X]), np.concatenate([y, 0.5 * y]))
        mean, std, (_, lower, upper) = model.predict(far, return_std=True, return_bounds=True)
        alone = model.predict(FAR[:1], return_std=True)[1]
    assert np.isfinite([mean, std, lower, upper]).all()
    assert (lower <= std**2).all()
    assert std[0] == pytest.approx(alone[0], rel=1e-12)


@pytest.mark.parametrize("kernel", ["rbf + linear", "rbf"])
def test_probabilities_of_machines_far_out_sum_to_one(samples: tuple[np.ndarray, np.ndarray], kernel: str) -> None:
    X, _ = samples
    labels = np.arange(N) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FixedSizeLSSVC(kernel).fit(X, labels)
        np.testing.assert_allclose(model.predict_proba(FAR[2:5]).sum(axis=1), 1.0, rtol=1e-12)
    # Of classes that are all beyond float64 none is nearer.
    calibration = Calibration(np.full(3, 10.0), np.zeros(3))
    np.testing.assert_array_equal(calibration.probabilities(np.full((1, 3), -1e308)), np.full((1, 3), 1.0 / 3.0))


@pytest.mark.parametrize("size", [1e155, 1e300])
@pytest.mark.filterwarnings("error")
def test_pursuit_refuses_columns_whose_squares_overflow_in_words_alone(
    samples: tuple[np.ndarray, np.ndarray], size: float
) -> None:
    X, y = samples
    with pytest.raises(InputError, match="column 0 of X is not finite, or overflows"):
        ConjugateDirectionsPursuit().fit(size * X, y)


KERNEL = SquaredExponential(gamma=(0.5,))


def small(noise_variance: float) -> tuple[GPRegressor, np.ndarray, np.ndarray]:
    """A model of 40 samples, test inputs among them, and the exact deviations."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (40, 1))
    T = X[:4] + 0.05
    model = GPRegressor(KERNEL, noise_variance=noise_variance).fit(X, np.sin(X[:, 0]))
    record = model._fitted.record
    problem = VarianceProblem(standardised(record, X), standardised(record, T), KERNEL, noise_variance)
    latent = np.array([float(value) for value in exact_in_50_digits(problem)])
    return model, T, np.sqrt(latent + noise_variance) * record.standardisation.target_std[0]


@pytest.mark.parametrize(("noise_variance", "rtol"), [(1e-12, 0.02), (1e-10, 2e-3), (1e-8, 1e-3), (1e-4, 1e-3)])
def test_deviations_are_the_exact_ones(noise_variance: float, rtol: float) -> None:
    model, T, exact = small(noise_variance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, std, bounds = model.predict(T, return_std=True, return_bounds=True)
    np.testing.assert_allclose(std, exact, rtol=rtol)
    assert (bounds.variance_lower <= exact**2 * (1.0 + 1e-12)).all()
    assert (exact**2 <= bounds.variance_upper * (1.0 + 1e-12)).all()


def test_intervals_that_are_wider_than_asked_are_told_with_their_share() -> None:
    model, T, _ = small(1e-12)
    with pytest.warns(
        ConvergenceWarning, match=r"100% of the variances are known less closely than variance_gap=0\.02"
    ):
        model.predict(T, return_std=True)
    model, T, _ = small(1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(T, return_std=True)
        model.set_params(variance_gap=0.5).predict(T, return_std=True)


def test_the_share_counts_variances() -> None:
    lower, upper = np.array([[1.0], [0.5], [0.9], [1.0]]), np.array([[1.0], [1.0], [1.0], [1.0]])
    with pytest.warns(ConvergenceWarning, match=r"^25% .* the widest interval is 50% of its upper end"):
        outputs._warn_of_wide_intervals(lower, upper, 0.1)
    with pytest.warns(ConvergenceWarning, match=r"^25% .* the widest interval is 0\.0012% of its upper end"):
        outputs._warn_of_wide_intervals(upper - np.array([[0.0], [1.2e-5], [0.0], [0.0]]), upper, 1e-6)
