"""Measures of classes, against scikit-learn and naive loops."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    roc_auc_score,
    roc_curve,
)

from dkgp.errors import InputError
from dkgp.models.classification.metrics import (
    BINS,
    ClassTally,
    area_under_curve,
    mean_area,
    operating_curve,
)
from tests.models.classification.measured import class_metrics


class Sample:
    """Labels of C classes with decisions that know something of them."""

    def __init__(self, rng: np.random.Generator, n: int, count: int) -> None:
        self.classes = tuple(f"class {number}" for number in range(count))
        self.codes = rng.integers(0, count, size=n)
        signal = np.where(self.codes[:, None] == np.arange(count), 1.0, 0.0) + rng.normal(size=(n, count))
        self.probabilities = np.exp(signal) / np.exp(signal).sum(axis=1, keepdims=True)
        self.predicted = self.probabilities.argmax(axis=1)
        # Rounded: ties are there.
        self.decisions = np.round(signal if count > 2 else signal[:, 1:] - signal[:, :1], 1)
        self.certified = rng.random(n) < 0.8


def naive_ece(sample: Sample) -> float:
    total, n = 0.0, len(sample.codes)
    for number in range(BINS):
        chosen = []
        for i in range(n):
            if len(sample.classes) == 2:
                claimed, event = sample.probabilities[i, 1], sample.codes[i] == 1
            else:
                claimed, event = sample.probabilities[i].max(), sample.codes[i] == sample.predicted[i]
            if number / BINS <= claimed < (number + 1) / BINS:
                chosen.append((claimed, event))
        if chosen:
            values = np.array(chosen, dtype=float)
            total += len(chosen) / n * abs(values[:, 0].mean() - values[:, 1].mean())
    return total


@pytest.mark.parametrize("count", [2, 3, 7])
def test_figures_are_scikit_learns(rng: np.random.Generator, count: int) -> None:
    s = Sample(rng, 400, count)
    found = class_metrics(
        s.classes,
        s.codes,
        s.predicted,
        decisions=s.decisions,
        probabilities=s.probabilities,
        certified=s.certified,
    )
    assert found.n == 400
    assert found.accuracy == pytest.approx(accuracy_score(s.codes, s.predicted))
    assert found.error_rate == pytest.approx(1.0 - accuracy_score(s.codes, s.predicted))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(s.codes, s.predicted))
    np.testing.assert_array_equal(found.confusion, confusion_matrix(s.codes, s.predicted))
    assert found.log_loss == pytest.approx(log_loss(s.codes, s.probabilities))
    probabilities = s.probabilities if count > 2 else s.probabilities[:, 1]
    assert found.brier == pytest.approx(brier_score_loss(s.codes, probabilities))
    columns = [(s.codes == (c if count > 2 else 1), s.decisions[:, c]) for c in range(s.decisions.shape[1])]
    assert found.auc == pytest.approx(np.mean([roc_auc_score(*column) for column in columns]))
    assert found.ece == pytest.approx(naive_ece(s))
    wrong = s.codes != s.predicted
    assert found.certified_share == pytest.approx(s.certified.mean())
    assert found.certified_errors == (wrong & s.certified).sum()
    assert found.certified_error_rate == pytest.approx(wrong[s.certified].mean())
    assert found.uncertified_error_rate == pytest.approx(wrong[~s.certified].mean())
    assert found.abstained is None


@pytest.mark.parametrize("count", [2, 4])
def test_abstaining_is_measuring_the_rest(rng: np.random.Generator, count: int) -> None:
    s = Sample(rng, 300, count)
    k = s.certified
    given = {"decisions": s.decisions, "probabilities": s.probabilities, "certified": s.certified}
    found = class_metrics(s.classes, s.codes, s.predicted, **given, abstain=True)
    rest = class_metrics(
        s.classes, s.codes[k], s.predicted[k], decisions=s.decisions[k], probabilities=s.probabilities[k]
    )
    assert found.abstained == pytest.approx(1.0 - k.mean())
    assert found.n == k.sum()
    for name in ("error_rate", "balanced_error", "log_loss", "brier", "ece", "auc"):
        assert getattr(found, name) == pytest.approx(getattr(rest, name)), name
    np.testing.assert_array_equal(found.confusion, rest.confusion)
    assert found.certified_share == pytest.approx(k.mean())


def test_chunks_add_up_to_the_whole(rng: np.random.Generator) -> None:
    s = Sample(rng, 250, 3)
    whole = class_metrics(s.classes, s.codes, s.predicted, probabilities=s.probabilities, certified=s.certified)
    tally = ClassTally(s.classes)
    for start in range(0, 250, 70):
        rows = slice(start, start + 70)
        tally.add(s.codes[rows], s.predicted[rows], probabilities=s.probabilities[rows], certified=s.certified[rows])
    found, known = tally.metrics().to_json(), whole.to_json()
    bins = known.pop("reliability")
    assert found.pop("reliability") == {name: pytest.approx(values) for name, values in bins.items()}
    for name in ("classes", "confusion"):
        assert found.pop(name) == known.pop(name)
    assert found == pytest.approx(known)


def test_a_class_that_does_not_occur_counts_nowhere(rng: np.random.Generator) -> None:
    codes, predicted = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1])
    found = class_metrics(("a", "b", "c"), codes, predicted, decisions=rng.normal(size=(4, 3)))
    assert found.balanced_accuracy == pytest.approx(0.75)
    assert found.log_loss is found.brier is found.ece is found.certified_share is None
    assert mean_area(np.zeros(5, dtype=np.int64), lambda column: np.arange(5.0), 1) is None


def test_certain_and_wrong_is_finite() -> None:
    found = class_metrics(("a", "b"), np.array([0, 1]), np.array([1, 1]), probabilities=np.array([[0.0, 1.0]] * 2))
    assert found.log_loss == pytest.approx(log_loss([0, 1], [[0.0, 1.0]] * 2))
    assert found.brier == 0.5
    assert found.ece == 0.5


def test_curve_is_scikit_learns(rng: np.random.Generator) -> None:
    positive, scores = rng.random(200) < 0.3, np.round(rng.normal(size=200), 1)
    false, true = operating_curve(scores, positive)
    known_false, known_true, _ = roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose(false, known_false)
    np.testing.assert_allclose(true, known_true)
    assert np.trapezoid(true, false) == pytest.approx(area_under_curve(scores, positive))


def test_what_does_not_fit_is_refused() -> None:
    two, codes = ("a", "b"), np.array([0, 1, 1])
    with pytest.raises(InputError, match="two classes at least"):
        ClassTally(("a",))
    with pytest.raises(InputError, match="3 true labels and 2 predicted"):
        class_metrics(two, codes, codes[:2])
    with pytest.raises(InputError, match="predicted labels have codes from 0 to 2; there are 2"):
        class_metrics(two, codes, np.array([0, 2, 1]))
    with pytest.raises(InputError, match="true labels are an array of float64"):
        class_metrics(two, codes.astype(float), codes)
    with pytest.raises(InputError, match=r"probabilities have shape \(3, 3\); expected \(3, 2\)"):
        class_metrics(two, codes, codes, probabilities=np.ones((3, 3)))
    with pytest.raises(InputError, match="no certificates to abstain by"):
        class_metrics(two, codes, codes, abstain=True)
    with pytest.raises(InputError, match="no label of 3 is certified"):
        class_metrics(two, codes, codes, certified=np.zeros(3, dtype=bool), abstain=True)
    with pytest.raises(InputError, match="no sample"):
        class_metrics(two, codes[:0], codes[:0])
    with pytest.raises(InputError, match="3 positive and 0 negative"):
        area_under_curve(np.arange(3.0), np.ones(3, dtype=bool))
    with pytest.raises(InputError, match="0 positive and 3 negative"):
        operating_curve(np.arange(3.0), np.zeros(3, dtype=bool))
