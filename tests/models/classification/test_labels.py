"""Labels against naive loops and scikit-learn's own weights and folds.

What every classifier is trained on is checked once; and what its checkpoints belong to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.calibration import _sigmoid_calibration
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.class_weight import compute_sample_weight

from dkgp.cluster import LocalExecutor
from dkgp.codec import from_json, to_json
from dkgp.data import memory_dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models import RunContext
from dkgp.models.classification import calibration as calibrate
from dkgp.models.classification.calibration import Calibration, drawn_by_class, fit_calibration, left_out_decisions
from dkgp.models.classification.labels import LabelledData, Labels, decided, label_weights, labels_of, stratified_folds
from dkgp.solvers import Checkpointing
from tests.models.classification.references import dense_decisions


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


# Probabilities of decisions, against scikit-learn's sigmoid calibration and a minimiser of its own.
# Left-out decisions in closed form against training without the samples.


def drawn(rng: np.random.Generator, n: int, slope: float, offset: float) -> tuple[np.ndarray, np.ndarray]:
    decisions = rng.normal(size=n)
    return decisions, (rng.random(n) < expit(slope * decisions + offset)).astype(np.int64)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes_are_scikit_learns_sigmoid(rng: np.random.Generator, scale: float, weighted: bool) -> None:
    decisions, codes = drawn(rng, 300, 2.5, -0.7)
    decisions *= scale
    weights = rng.random(300) if weighted else None
    found = fit_calibration(decisions[:, None], codes, weights)
    # Its line search stops early where decisions are tiny; the likelihood does not depend on their unit.
    unit = 1.0 if scale < 1.0 else scale
    a, b = _sigmoid_calibration(decisions / scale * unit, codes, weights)
    np.testing.assert_allclose([found.slope[0] * scale, found.offset[0]], [-a * unit, -b], rtol=2e-4)
    np.testing.assert_allclose(
        found.probabilities(decisions[:, None])[:, 1], expit(-(a * decisions / scale * unit + b)), atol=1e-4
    )


def test_the_likelihood_has_its_maximum_there(rng: np.random.Generator) -> None:
    decisions, codes = drawn(rng, 200, 1.5, 0.3)
    plus = codes.sum()
    target = np.where(codes == 1, (plus + 1) / (plus + 2), 1 / (len(codes) - plus + 2))

    def loss(parameters: np.ndarray) -> float:
        z = parameters[0] * decisions + parameters[1]
        return float(np.sum(np.logaddexp(0.0, z) - target * z))

    known = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000})
    found = fit_calibration(decisions, codes)
    np.testing.assert_allclose([found.slope[0], found.offset[0]], known.x, rtol=1e-6)


def test_probabilities_are_those_that_labels_were_drawn_with(rng: np.random.Generator) -> None:
    decisions, codes = drawn(rng, 40_000, 3.0, -1.0)
    found = fit_calibration(decisions, codes)
    assert found.slope[0] == pytest.approx(3.0, rel=0.05)
    assert found.offset[0] == pytest.approx(-1.0, rel=0.05)


def test_several_classes_are_each_against_the_rest_divided_by_their_sum(rng: np.random.Generator) -> None:
    codes = rng.integers(0, 4, size=500)
    decisions = np.where(codes[:, None] == np.arange(4), 0.6, -0.6) + rng.normal(size=(500, 4))
    found = fit_calibration(decisions, codes)
    raw = np.empty((500, 4))
    for column in range(4):
        a, b = _sigmoid_calibration(decisions[:, column], (codes == column).astype(np.int64))
        raw[:, column] = expit(-(a * decisions[:, column] + b))
    probabilities = found.probabilities(decisions)
    np.testing.assert_allclose(probabilities, raw / raw.sum(axis=1, keepdims=True), atol=1e-3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-14)


def test_decisions_that_separate_or_say_nothing(rng: np.random.Generator) -> None:
    codes = np.repeat([0, 1], 20)
    separated = fit_calibration(np.where(codes == 1, 1.0, -1.0), codes)
    # Targets of 21 / 22 and 1 / 22 are met exactly: nothing grows without bound.
    np.testing.assert_allclose(separated.probabilities(np.array([[1.0]]))[0], [1 / 22, 21 / 22], rtol=1e-9)
    for value in (0.0, 3.0):
        nothing = fit_calibration(np.full(40, value), codes)
        np.testing.assert_allclose(nothing.probabilities(np.array([[value]]))[0], [0.5, 0.5], atol=1e-9)


def test_decisions_worse_than_chance_leave_the_shares(rng: np.random.Generator) -> None:
    codes = (np.arange(400) < 120).astype(np.int64)
    weights = rng.uniform(0.5, 2.0, 400)
    # Means of the others' labels, as a machine that is a constant has them.
    signs = 2.0 * codes - 1.0
    opposed = fit_calibration((signs.sum() - signs) / 399.0, codes, weights)
    assert opposed.slope[0] == 0.0
    share = weights[codes == 1].sum() / weights.sum()
    probabilities = opposed.probabilities(np.array([[1e300], [0.0], [-1e300]]))
    np.testing.assert_allclose(probabilities[:, 1], share, atol=0.003)

    # The least of a bounded search over the same likelihood, by scipy.
    f, plus, minus = rng.normal(size=400) - 0.3 * signs, weights[codes == 1].sum(), weights[codes == 0].sum()
    target = np.where(codes == 1, (plus + 1.0) / (plus + 2.0), 1.0 / (minus + 2.0))

    def loss(at: np.ndarray) -> float:
        z = at[0] * f + at[1]
        return float(np.sum(weights * (np.logaddexp(0.0, z) - target * z)))

    known = minimize(loss, [0.5, 0.0], bounds=[(0.0, None), (None, None)], tol=1e-14)
    found = fit_calibration(f, codes, weights)
    np.testing.assert_allclose([found.slope[0], found.offset[0]], known.x, atol=1e-5)


def test_far_decisions_keep_a_sum_of_one_and_an_order() -> None:
    several = Calibration(np.full(3, 1e3), np.zeros(3))
    rows = several.probabilities(np.array([[-5.0, -4.0, -6.0], [1e6, 2e6, -1e6], [-1e9, -1e9, -1e9]]))
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    assert rows[0].argmax() == 1
    np.testing.assert_allclose(rows[1], [0.5, 0.5, 0.0])
    np.testing.assert_allclose(rows[2], 1 / 3)
    two = Calibration(np.array([1.0]), np.array([0.0])).probabilities(np.array([[50.0]]))
    assert 0.0 < two[0, 0] < 1e-20


def test_json_keeps_every_bit(rng: np.random.Generator) -> None:
    found = Calibration(rng.normal(size=3), rng.normal(size=3))
    again = from_json(Calibration, json.loads(json.dumps(to_json(found))))
    np.testing.assert_array_equal(again.slope, found.slope)
    np.testing.assert_array_equal(again.offset, found.offset)


def test_what_cannot_be_calibrated_is_refused() -> None:
    decisions = np.linspace(-1.0, 1.0, 6)
    with pytest.raises(InputError, match=r"one side only of machine 0 \(weights 6 and 0\)"):
        fit_calibration(decisions, np.ones(6, dtype=np.int64))
    with pytest.raises(InputError, match=r"codes have shape \(5,\); expected \(6,\)"):
        fit_calibration(decisions, np.ones(5, dtype=np.int64))
    with pytest.raises(InputError, match="decision of sample 2 is not finite"):
        fit_calibration(np.where(np.arange(6) == 2, np.nan, decisions), np.arange(6) % 2)
    with pytest.raises(InputError, match="codes go from 0 to 2; 1 columns of decisions have 2"):
        fit_calibration(decisions, np.arange(6) % 3)
    with pytest.raises(InputError, match="none below zero"):
        fit_calibration(decisions, np.arange(6) % 2, -np.ones(6))
    with pytest.raises(InputError, match=r"expected \(r, 1\)"):
        fit_calibration(decisions, np.arange(6) % 2).probabilities(np.ones((3, 2)))
    with pytest.raises(InputError, match="one value for each column"):
        Calibration(np.ones(2), np.ones(3))


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
