"""Labels against naive loops and scikit-learn's own weights and folds.

What every classifier is trained on is checked once; and what its checkpoints belong to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.class_weight import compute_sample_weight

from dkgp.cluster import LocalExecutor
from dkgp.data import memory_dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import InputError
from dkgp.models import RunContext
from dkgp.models.classification.labels import LabelledData, Labels, decided, label_weights, labels_of, stratified_folds
from dkgp.solvers import Checkpointing


@pytest.fixture
def three(rng: np.random.Generator) -> Labels:
    return Labels(("a", "b", "c"), rng.choice(3, 101, p=[0.2, 0.5, 0.3]))


def test_signs_and_decisions_are_of_the_same_class(three: Labels) -> None:
    assert (three.n_outputs, three.n_classes, three.n_samples) == (3, 3, 101)
    for code, row in zip(three.codes, three.signs(), strict=True):
        assert row.tolist() == [1.0 if column == code else -1.0 for column in range(3)]
    np.testing.assert_array_equal(decided(three.signs()), three.codes)
    two = Labels(("no", "yes"), np.array([0, 1, 1]))
    assert two.signs().tolist() == [[-1.0], [1.0], [1.0]]
    np.testing.assert_array_equal(decided(two.signs()), two.codes)
    assert two.counts().tolist() == [1, 2]


def test_ties() -> None:
    assert decided(np.array([[0.0], [-0.0], [-1e-300]])).tolist() == [1, 1, 0]
    assert decided(np.array([[0.5, 0.5, 0.2], [-1.0, -0.5, -0.5]])).tolist() == [0, 1]


@pytest.mark.parametrize("codes", [[0, 1, 3], [-1, 1, 2], [0.0, 1.0], [[0], [1]], []])
def test_codes_that_are_none(codes: list[object]) -> None:
    with pytest.raises(InputError, match="Codes"):
        Labels(("a", "b", "c"), np.array(codes))


def test_labels_of_whole_numbers(rng: np.random.Generator) -> None:
    X, y = rng.normal(size=(60, 2)), rng.choice([-1.0, 7.0, 10.0], 60)
    labels = labels_of(memory_dataset(X, y))
    assert labels.classes == ("-1", "7", "10")
    np.testing.assert_array_equal(np.array([-1.0, 7.0, 10.0])[labels.codes], y)
    named = labels_of(memory_dataset(X, labels.codes, classes=("x", "z", "y")))
    assert named.classes == ("x", "z", "y")
    np.testing.assert_array_equal(named.codes, labels.codes)


def test_what_is_no_label(rng: np.random.Generator) -> None:
    X = rng.normal(size=(120, 2))
    with pytest.raises(InputError, match="is a number such as"):
        labels_of(memory_dataset(X, rng.normal(size=120)))
    with pytest.raises(InputError, match=r"120 different values; up to 100 .* `labels`"):
        labels_of(memory_dataset(X, np.arange(120.0)))
    with pytest.raises(InputError, match="one class only, '3'"):
        labels_of(memory_dataset(X, np.full(120, 3.0)))
    with pytest.raises(InputError, match="2 targets, 'y0', 'y1'"):
        labels_of(memory_dataset(X, np.ones((120, 2))))
    with pytest.raises(InputError, match="one class only, 'b'"):
        labels_of(memory_dataset(X, np.ones(120), classes=("a", "b")))
    with pytest.raises(InputError, match="no sample of the class 'c'"):
        labels_of(memory_dataset(X, np.arange(120) % 2, classes=("a", "b", "c")))


def test_weights_are_those_of_scikit_learn_with_mean_one(three: Labels, rng: np.random.Generator) -> None:
    assert label_weights(three, None) is None
    given = rng.uniform(size=101)
    for mine, theirs in (
        ("balanced", "balanced"),
        ({"b": 4.0}, {1: 4.0}),
        ({"a": 2.0, "b": 4.0, "c": 0.5}, {0: 2.0, 1: 4.0, 2: 0.5}),
    ):
        expected = compute_sample_weight(theirs, three.codes)
        np.testing.assert_allclose(label_weights(three, mine), expected / expected.mean(), rtol=1e-13)
        both = expected * given
        np.testing.assert_allclose(label_weights(three, mine, given), both / both.mean(), rtol=1e-13)
    np.testing.assert_allclose(label_weights(three, None, given), given / given.mean(), rtol=1e-13)


@pytest.mark.parametrize(
    ("class_weight", "sample_weight", "message"),
    [
        ("even", None, "'even'; expected 'balanced'"),
        ({"d": 1.0}, None, "weight for the class 'd'; the classes are 'a', 'b', 'c'"),
        ({"a": -1.0}, None, "the class 'a' is -1"),
        ({"a": float("nan")}, None, "the class 'a' is nan"),
        (None, [1.0, -2.0, 1.0], "sample 1 is -2"),
        (None, [1.0, 1.0, float("inf")], "sample 2 is inf"),
        (None, [1.0, 1.0], r"shape \(2,\); expected \(3,\)"),
        (None, [1.0, 1.0, 0.0], "class 'c' have weight 0"),
    ],
)
def test_weights_that_are_refused(class_weight: object, sample_weight: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        label_weights(Labels(("a", "b", "c"), np.array([0, 1, 2])), class_weight, sample_weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("folds", [2, 3, 10])
def test_folds_are_as_even_as_can_be(three: Labels, folds: int) -> None:
    found = stratified_folds(three, folds, seed=3)
    by_class = np.array([np.bincount(found[three.codes == code], minlength=folds) for code in range(3)])
    assert by_class.max(axis=1).tolist() == (-(-three.counts() // folds)).tolist()
    assert (np.ptp(by_class, axis=1) <= 1).all()
    assert np.ptp(by_class.sum(axis=0)) <= 1
    splits = StratifiedKFold(folds, shuffle=True, random_state=0).split(np.zeros(101), three.codes)
    theirs = np.array([np.bincount(three.codes[test], minlength=3) for _, test in splits]).T
    np.testing.assert_array_equal(np.sort(by_class, axis=1), np.sort(theirs, axis=1))


def test_folds_are_drawn_by_the_seed(three: Labels) -> None:
    first = stratified_folds(three, 5, seed=1)
    np.testing.assert_array_equal(first, stratified_folds(three, 5, seed=1))
    assert (first != stratified_folds(three, 5, seed=2)).any()


def test_a_class_rarer_than_the_folds() -> None:
    labels = Labels(("common", "rare"), np.array([0] * 20 + [1] * 3))
    with pytest.raises(InputError, match=r"'rare' has 3 samples, fewer than the 10 folds.* at most 3 folds"):
        stratified_folds(labels, 10, seed=0)
    with pytest.raises(InputError, match=r"'rare' has 1 sample, fewer than the 2 folds.* Leave the class out"):
        stratified_folds(Labels(("common", "rare"), np.array([0, 0, 1])), 2, seed=0)
    with pytest.raises(InputError, match="expected at least 2"):
        stratified_folds(labels, 1, seed=0)
    with pytest.raises(InputError, match="negative"):
        stratified_folds(labels, 3, seed=-1)


N = 30


def labelled(weights: Any = None, n_labels: int = N, n_classes: int = 2) -> LabelledData:
    codes = np.arange(N) % 2
    dataset = memory_dataset(np.arange(2.0 * N).reshape(N, 2), codes.astype(np.float64))
    return LabelledData(dataset, Labels(tuple("abc"[:n_classes]), np.arange(n_labels) % 2), weights)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_labels": 7}, "labels of 7 samples; .* has 30"),
        ({"weights": np.ones(3)}, r"`weights` have shape \(3,\); expected \(30,\), one for each sample"),
        ({"weights": np.where(np.arange(N) == 7, -1.0, 1.0)}, "finite and not negative; got -1.0 for sample 7"),
        ({"weights": np.where(np.arange(N) == 7, np.nan, 1.0)}, "finite and not negative; got nan for sample 7"),
        ({"weights": np.where(np.arange(N) == 7, np.inf, 1.0)}, "finite and not negative; got inf for sample 7"),
        ({"weights": np.arange(N) % 2}, "the samples of the class 'a' have weight 0 in all"),
        ({"weights": 1 - np.arange(N) % 2}, "the samples of the class 'b' have weight 0 in all"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        labelled(**given)


def test_weights_are_summed_up_by_class() -> None:
    assert labelled().class_weights() is None
    # One of three classes has no sample, and no weight either.
    weights = labelled([1, 5] * 14 + [3, 7], n_classes=3).class_weights()
    assert weights == pytest.approx({"a": (14 + 3) / 15, "b": (14 * 5 + 7) / 15})


def test_checkpoints_belong_to_labels_weights_and_settings(tmp_path: Path) -> None:
    with_weights, plain, several = labelled(np.full(N, 2.0)), labelled(), labelled(n_classes=3)
    checkpointing = Checkpointing(CheckpointStore(str(tmp_path)), 0.0, identity={"run": 1})
    context = RunContext(LocalExecutor(1), checkpointing=checkpointing)
    identities = []
    for data, settings in ((plain, {}), (plain, {"seed": 1}), (with_weights, {}), (several, {})):
        owned = data.identified(context, **settings).checkpointing
        assert owned is not None
        assert owned.identity["run"] == 1
        identities.append(owned.identity)
    assert all(first != second for i, first in enumerate(identities) for second in identities[:i])
    assert labelled().identity == plain.identity
    assert RunContext(context.executor) == plain.identified(RunContext(context.executor))
