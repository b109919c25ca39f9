"""Measures of classes, against scikit-learn and naive loops.

Prediction stores of classes against true labels: by names, chunk by chunk, with curves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

from dkgp.codec import to_json
from dkgp.data import Dataset, Prediction, PredictionWriter, dataset_from_arrays
from dkgp.errors import InputError
from dkgp.models.classification import metrics as evaluation
from dkgp.models.classification.metrics import (
    BINS,
    ClassTally,
    area_under_curve,
    evaluate_classes,
    holds_classes,
    mean_area,
    operating_curve,
)
from tests.models.classification.problems import class_metrics


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
    found, known = to_json(tally.metrics()), to_json(whole)
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


class Stores:
    """A test set and what was predicted for it, in several chunks."""

    def __init__(self, rng: np.random.Generator, folder: Path, names: tuple[str, ...], n: int = 100) -> None:
        self.names, count = names, len(names)
        self.codes = rng.permutation(np.arange(n) % count)
        signal = np.where(self.codes[:, None] == np.arange(count), 1.0, 0.0) + rng.normal(size=(n, count))
        self.decisions = signal if count > 2 else signal[:, 1:] - signal[:, :1]
        self.predicted = signal.argmax(axis=1)
        self.probabilities = np.exp(signal) / np.exp(signal).sum(axis=1, keepdims=True)
        self.certified = rng.random(n) < 0.7
        self.folder, self.X = folder, rng.normal(size=(n, 2))

    def dataset(self, names: tuple[str, ...] | None = None, codes: Any = None, to: str = "test.zarr") -> Dataset:
        own = self.names if names is None else names
        values = self.codes if codes is None else codes
        return dataset_from_arrays(self.folder / to, self.X, values, target_names=["kind"], classes=own)

    def prediction(self, without: tuple[str, ...] = (), attributes: Any = None) -> Prediction:
        values = {
            "decision": self.decisions,
            "probability": self.probabilities,
            "class": self.predicted,
            "certified": self.certified.astype(np.int64),
        }
        kept = {name: value for name, value in values.items() if name not in without}
        writer = PredictionWriter.create(
            self.folder / f"pred-{'-'.join(without)}.zarr",
            len(self.X),
            ["kind"],
            tuple(kept),
            chunk_rows=30,
            classes=self.names,
            attributes=attributes,
        )
        for start in range(0, len(self.X), 30):
            writer.write(start, **{name: value[start : start + 30] for name, value in kept.items()})
        return writer.commit()


@pytest.mark.parametrize("names", [("no", "yes"), ("ape", "bee", "cat", "dog")])
@pytest.mark.parametrize("abstain", [False, True])
def test_stores_give_what_arrays_give(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], abstain: bool
) -> None:
    s = Stores(rng, tmp_path, names)
    # Decisions of two machines at a time.
    monkeypatch.setattr(evaluation, "MOST_DECISIONS", 200)
    found = evaluate_classes(s.prediction(), s.dataset(), abstain=abstain, curves=True)
    known = class_metrics(
        names,
        s.codes,
        s.predicted,
        decisions=s.decisions,
        probabilities=s.probabilities,
        certified=s.certified,
        abstain=abstain,
    )
    document, expected = to_json(found.metrics), to_json(known)
    assert document.pop("reliability") == {
        name: pytest.approx(values) for name, values in expected.pop("reliability").items()
    }
    assert {name: document[name] for name in ("classes", "confusion")} == {
        name: expected.pop(name) for name in ("classes", "confusion")
    }
    assert {name: document[name] for name in expected} == pytest.approx(expected)
    kept = s.certified if abstain else np.ones(len(s.X), dtype=bool)
    shown = names[1:] if len(names) == 2 else names
    assert [curve.name for curve in found.curves] == list(shown)
    for column, curve in enumerate(found.curves):
        positive = s.codes[kept] == (1 if len(names) == 2 else column)
        area = np.trapezoid(curve.true, curve.false)
        assert area == pytest.approx(roc_auc_score(positive, s.decisions[kept, column]))


def test_labels_are_matched_by_name(rng: np.random.Generator, tmp_path: Path) -> None:
    s = Stores(rng, tmp_path, ("ape", "bee", "cat"))
    prediction = s.prediction()
    known = evaluate_classes(prediction, s.dataset()).metrics
    # The same labels under other codes, with a class that has no sample.
    other = ("dog", "cat", "bee", "ape")
    renamed = np.array([other.index(name) for name in s.names])[s.codes]
    found = evaluate_classes(prediction, s.dataset(other, renamed, "renamed.zarr")).metrics
    assert to_json(found) == to_json(known)
    new = np.where(np.arange(len(s.X)) == 7, 0, renamed)
    with pytest.raises(InputError, match=r"'dog'.*'ape', 'bee', 'cat'"):
        evaluate_classes(prediction, s.dataset(other, new, "new.zarr"))


def test_features_that_are_constant_make_no_difference(rng: np.random.Generator, tmp_path: Path) -> None:
    s = Stores(rng, tmp_path, ("no", "yes"))
    known = evaluate_classes(s.prediction(), s.dataset()).metrics
    s.X[:, 0] = 3.0
    with pytest.warns(UserWarning, match="constant"):
        test = s.dataset(("yes", "no"), 1 - s.codes, "constant.zarr")
    assert evaluate_classes(s.prediction(("certified",)), test).metrics.confusion.tolist() == known.confusion.tolist()


def test_numbers_are_labels_by_their_names(rng: np.random.Generator, tmp_path: Path) -> None:
    s = Stores(rng, tmp_path, ("-1", "1"))
    known = evaluate_classes(s.prediction(), s.dataset()).metrics
    numbers = dataset_from_arrays(tmp_path / "numbers.zarr", s.X, 2.0 * s.codes - 1.0, target_names=["kind"])
    assert evaluate_classes(s.prediction(("certified",)), numbers).metrics.error_rate == known.error_rate


def test_curves_are_thinned_and_keep_their_ends(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = Stores(rng, tmp_path, ("no", "yes"))
    monkeypatch.setattr(evaluation, "MOST_POINTS", 10)
    (curve,) = evaluate_classes(s.prediction(), s.dataset(), curves=True).curves
    assert len(curve.true) == len(curve.false) == 10
    assert (curve.true[0], curve.false[0], curve.true[-1], curve.false[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_less_is_there_and_less_is_said(rng: np.random.Generator, tmp_path: Path) -> None:
    s = Stores(rng, tmp_path, ("no", "yes"))
    found = evaluate_classes(s.prediction(("probability", "certified", "decision")), s.dataset(), curves=True)
    assert found.metrics.error_rate == pytest.approx(np.mean(s.codes != s.predicted))
    assert found.metrics.auc is found.metrics.log_loss is found.metrics.certified_share is None
    assert found.curves == ()
    with pytest.raises(InputError, match=r"`abstain` leaves out.*no certificates"):
        evaluate_classes(s.prediction(("certified",)), s.dataset(to="again.zarr"), abstain=True)


def test_what_does_not_belong_together_is_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    s = Stores(rng, tmp_path, ("no", "yes"))
    other = s.prediction(attributes={"data_fingerprint": "of other data"})
    with pytest.raises(InputError, match="made for other data"):
        evaluate_classes(other, s.dataset())
    short = dataset_from_arrays(tmp_path / "short.zarr", s.X[:50], s.codes[:50], classes=s.names)
    with pytest.raises(InputError, match="has 100 samples, .* has 50"):
        evaluate_classes(other, short)
    writer = PredictionWriter.create(tmp_path / "numbers.zarr", 3, ["y"], ("mean",))
    writer.write(0, mean=np.zeros(3))
    numbers = writer.commit()
    assert not holds_classes(numbers)
    with pytest.raises(InputError, match="holds no classes; it has mean"):
        evaluate_classes(numbers, s.dataset(to="third.zarr"))
