"""Left-out decisions in closed form against training without the samples."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.calibration import Calibration, fit_calibration
from dkgp.models.classification.exact import calibrate
from dkgp.models.classification.exact.calibrate import drawn_by_class, left_out_decisions
from dkgp.models.classification.labels import Labels
from tests.models.classification.exact.dense_lssvm import dense_decisions


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_folds", [None, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_as_by_training_without_them(
    fit_intercept: bool, n_folds: int | None, weighted: bool, rng: np.random.Generator
) -> None:
    n = 40
    X, signs = rng.normal(size=(n, 2)), np.where(rng.uniform(size=(n, 3)) < 0.4, 1.0, -1.0)
    kernel, noise = SquaredExponential((0.5, 0.5)), 0.3 / (rng.uniform(0.2, 2.0, n) if weighted else np.ones(n))
    matrix = np.asfortranarray(kernel(X, X) + np.diag(noise))
    folds = [np.array([i]) for i in range(n)] if n_folds is None else np.array_split(rng.permutation(n), n_folds)
    found = left_out_decisions(matrix, signs, fit_intercept=fit_intercept, folds=None if n_folds is None else folds)
    for fold in folds:
        rest = np.delete(np.arange(n), fold)
        expected = dense_decisions(X[rest], signs[rest], X[fold], kernel, noise[rest], fit_intercept)
        np.testing.assert_allclose(found[fold], expected, atol=1e-11)


def test_one_sample_left_out_by_itself_as_a_fold_of_one(rng: np.random.Generator) -> None:
    X, signs = rng.normal(size=(9, 2)), np.where(np.arange(9)[:, None] % 2, 1.0, -1.0)
    matrix = SquaredExponential((1.0, 1.0))(X, X) + 0.1 * np.eye(9)
    alone = left_out_decisions(np.asfortranarray(matrix), signs)
    folds = left_out_decisions(np.asfortranarray(matrix), signs, folds=[np.array([i]) for i in range(9)])
    np.testing.assert_allclose(alone, folds, atol=1e-13)


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
