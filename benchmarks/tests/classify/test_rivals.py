"""The rivals of `dkgp bench classify` against refits and dense systems."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.errors import UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.labels import stratified_folds
from dkgp_benchmarks.classify.dense import LeastSquaresSVM, fold_errors
from dkgp_benchmarks.classify.problems import Samples, Split
from dkgp_benchmarks.classify.rivals import Boosting, SupportVectors
from dkgp_benchmarks.classify.trial import Trial, median_gamma, refined, trial_of


@pytest.fixture
def trial(rng: np.random.Generator) -> Trial:
    """Two classes inside and outside a circle, in the first two of three features."""
    inputs = 3.0 + 2.0 * rng.standard_normal((260, 3))
    codes = (np.linalg.norm(inputs[:, :2] - 3.0, axis=1) < 2.2).astype(np.int64)
    rows = rng.permutation(260)
    return trial_of(Samples(inputs, codes), Split(0, rows[:120], rows[120:]), 0)


def bordered(K: np.ndarray, y: np.ndarray, noise_variance: float) -> tuple[np.ndarray, float]:
    """Equation 23 as it stands."""
    n = len(y)
    system = np.block([[K + noise_variance * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solution = np.linalg.solve(system, np.append(y, 0.0))
    return solution[:n], float(solution[n])


def test_inputs_are_standardised_by_the_training_samples(trial: Trial) -> None:
    np.testing.assert_allclose(trial.inputs.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(trial.inputs.std(axis=0), 1.0)
    assert np.abs(trial.test_inputs.mean(axis=0)).max() > 1e-6
    few = trial.subset(50)
    assert (few.n, len(few.test_codes)) == (50, 140)
    assert trial.subset(120) is trial


def test_the_least_squares_machine_is_the_bordered_systems(trial: Trial) -> None:
    found = {"gamma": 0.3, "noise_variance": 0.5}
    K = SquaredExponential(gamma=(0.3,) * 3)
    alpha, intercept = bordered(K(trial.inputs, trial.inputs), trial.signs, 0.5)
    decisions = LeastSquaresSVM().fit(trial, found).decide(trial.test_inputs)
    np.testing.assert_allclose(decisions, K(trial.test_inputs, trial.inputs) @ alpha + intercept, atol=1e-10)


def test_fold_errors_are_those_of_refits(trial: Trial) -> None:
    K = SquaredExponential(gamma=(0.4,) * 3)(trial.inputs, trial.inputs)
    parts = stratified_folds(trial.labels, 7, 1)
    expected = []
    for noise_variance in (0.03, 2.0):
        squared = 0.0
        for part in range(7):
            held, kept = parts == part, parts != part
            alpha, intercept = bordered(K[np.ix_(kept, kept)], trial.signs[kept], noise_variance)
            squared += np.sum((K[np.ix_(held, kept)] @ alpha + intercept - trial.signs[held]) ** 2)
        expected.append(squared / trial.n)
    np.testing.assert_allclose(fold_errors(K, trial.signs, parts, (0.03, 2.0)), expected, rtol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("method", [LeastSquaresSVM(), SupportVectors(), Boosting()], ids=lambda m: type(m).__name__)
def test_searches_find_what_classifies(
    method: LeastSquaresSVM | SupportVectors | Boosting, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp_benchmarks.classify.rivals.ROUNDS", (5, 20))
    monkeypatch.setattr("dkgp_benchmarks.classify.rivals.LEAVES", (7,))
    found = method.tune(trial)
    classifier = method.fit(trial, found)
    wrong = (classifier.decide(trial.test_inputs) >= 0.0) != (trial.test_codes == 1)
    # The circle has half of the samples inside; one feature more says nothing.
    assert wrong.mean() < 0.16
    assert found == method.tune(trial)


def test_a_dense_machine_refuses_what_is_too_large(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp_benchmarks.classify.dense.MOST_SAMPLES", 100)
    with pytest.raises(UsageError, match="takes 100 samples at most; got 120"):
        LeastSquaresSVM().tune(trial)


def test_a_search_halves_its_step_about_the_best() -> None:
    seen: list[float] = []

    def evaluate(at: float) -> float:
        seen.append(at)
        return (at - 0.8) ** 2

    assert refined(evaluate, 0.0, (2, 2), 1.0, 2) == 0.75
    assert len(seen) == len(set(seen)) == 5 + 2 + 2


def test_the_median_distance_leaves_out_duplicates() -> None:
    assert median_gamma(np.array([[0.0], [0.0], [2.0], [2.0]]), 0) == pytest.approx(0.25)
    assert median_gamma(np.zeros((5, 2)), 0) == 1.0
