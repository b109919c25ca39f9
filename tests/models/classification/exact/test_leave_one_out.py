"""Left-out decisions in closed form against training without the samples."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification import calibration as calibrate
from dkgp.models.classification.calibration import Calibration, drawn_by_class, fit_calibration, left_out_decisions
from dkgp.models.classification.labels import Labels
from tests.models.classification.exact.dense_lssvm import dense_decisions


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_by_training_without_them(fit_intercept: bool, weighted: bool, rng: np.random.Generator) -> None:
    n = 40
    X, signs = rng.normal(size=(n, 2)), np.where(rng.uniform(size=(n, 3)) < 0.4, 1.0, -1.0)
    kernel, noise = SquaredExponential((0.5, 0.5)), 0.3 / (rng.uniform(0.2, 2.0, n) if weighted else np.ones(n))
    matrix = np.asfortranarray(kernel(X, X) + np.diag(noise))
    found = left_out_decisions(matrix, signs, fit_intercept=fit_intercept)
    for i in range(n):
        rest = np.delete(np.arange(n), i)
        expected = dense_decisions(X[rest], signs[rest], X[[i]], kernel, noise[rest], fit_intercept)
        np.testing.assert_allclose(found[[i]], expected, atol=1e-11)


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(NumericalError, match="Raise the noise variance"):
        left_out_decisions(np.asfortranarray(-np.eye(4)), np.ones((4, 1)))


def test_classes_keep_their_shares_and_a_few_samples_each() -> None:
    labels = Labels(("a", "b", "c"), np.repeat([0, 1, 2], [900, 97, 3]))
    chosen = drawn_by_class(labels, 200, 0)
    assert labels.subset(chosen).counts().tolist() == [180, 19, 3]
    assert (np.diff(chosen) > 0).all()
    assert (drawn_by_class(labels, 200, 0) == chosen).all()
    assert (drawn_by_class(labels, 200, 1) != chosen).any()
    assert len(drawn_by_class(labels, 5000, 0)) == 1000
    with pytest.raises(InputError, match="too small"):
        drawn_by_class(labels, 2, 0)
    with pytest.raises(InputError, match="seed must not be negative"):
        drawn_by_class(labels, 200, -1)


def test_a_class_of_which_more_are_drawn_keeps_its_share_in_probabilities(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, rare = 3000, 12
    codes = np.zeros(n, dtype=np.int64)
    codes[rng.choice(n, rare, replace=False)] = 1
    data, labels = memory_dataset(rng.standard_normal((n, 2)), codes.astype(np.float64)), Labels(("no", "yes"), codes)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def noted(decisions: np.ndarray, drawn: np.ndarray, weights: np.ndarray) -> Calibration:
        seen.append((drawn, weights))
        return fit_calibration(decisions, drawn, weights)

    monkeypatch.setattr(calibrate, "fit_calibration", noted)
    calibrate.calibrated(data, labels, SquaredExponential((0.1, 0.1)), 10.0, subset=200)
    drawn, weights = seen[0]
    assert np.count_nonzero(drawn) == 5
    assert weights[drawn == 1].sum() / weights.sum() == pytest.approx(rare / n)
    assert weights.mean() == pytest.approx(1.0)
