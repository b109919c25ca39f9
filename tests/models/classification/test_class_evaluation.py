"""Prediction stores of classes against true labels: by names, chunk by chunk, with curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dkgp.data import Dataset, Prediction, PredictionWriter, dataset_from_arrays
from dkgp.errors import InputError
from dkgp.models.classification import metrics as evaluation
from dkgp.models.classification.metrics import evaluate_classes, holds_classes
from tests.models.classification.measured import class_metrics


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
    document, expected = found.metrics.to_json(), known.to_json()
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
    assert found.to_json() == known.to_json()
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
