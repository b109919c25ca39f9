"""`FixedSizeLSSVC(class_weight="auto")`: the command's choice of class weights, by the same mechanism, and told."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from dkgp import FixedSizeLSSVC
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError
from tests.cli.invoke import run_json

SETTINGS = {"pool": 50, "probability": False, "random_state": 0}


@pytest.fixture(scope="module")
def rare() -> tuple[np.ndarray, np.ndarray]:
    """Two classes that overlap, one of 6 % of the samples."""
    rng = np.random.default_rng(0)
    codes = (rng.uniform(size=700) < 0.06).astype(np.int64)
    return rng.standard_normal((700, 2)) + 1.6 * codes[:, None], np.array(["common", "rare"])[codes]


@pytest.fixture(scope="module")
def automatic(rare: tuple[np.ndarray, np.ndarray]) -> FixedSizeLSSVC:
    with pytest.warns(UserWarning, match=r"considered, and taken: balanced. Balanced error .*class_weight=None or"):
        return FixedSizeLSSVC(**SETTINGS).fit(*rare)


def test_a_rare_class_is_found_more_often_and_what_was_taken_is_told(
    rare: tuple[np.ndarray, np.ndarray], automatic: FixedSizeLSSVC
) -> None:
    X, y = rare
    assert automatic.class_weight == "auto"
    weights, count = automatic.class_weight_, int((y == "rare").sum())
    assert weights["rare"] / weights["common"] == pytest.approx((700 - count) / count)
    plain, balanced = automatic.solution_["weighings"]
    assert balanced["balanced_error"] < plain["balanced_error"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        without = FixedSizeLSSVC(**SETTINGS, class_weight=None).fit(X, y)
    assert without.class_weight_ is None
    assert without.solution_["weighings"] is None
    recalls = [float(np.mean(model.predict(X)[y == "rare"] == "rare")) for model in (automatic, without)]
    assert recalls[0] > recalls[1] + 0.1


def test_the_command_takes_the_same(
    rare: tuple[np.ndarray, np.ndarray], automatic: FixedSizeLSSVC, tmp_path: Path
) -> None:
    X, y = rare
    names = ("common", "rare")
    dataset_from_arrays(tmp_path / "t.zarr", X, np.searchsorted(names, y).astype(float), classes=names)
    command = ("classify", tmp_path / "t.zarr", "--out", tmp_path / "m.zarr", "--pool", 50, "--no-probability")
    document = run_json(*command, "--cluster", "none")
    assert document["weighings"] == automatic.solution_["weighings"]
    assert document["weighted"] is automatic.solution_["weighted"] is True
    assert document["class_weights"] == automatic.class_weight_
    assert document["misclassification"] == automatic.solution_["misclassification"]


def test_where_no_class_is_rare_nothing_is_considered(rng: np.random.Generator) -> None:
    X = rng.standard_normal((120, 2))
    y = X[:, 0] + 0.5 * rng.standard_normal(120) > 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        automatic = FixedSizeLSSVC(**SETTINGS).fit(X, y)
        without = FixedSizeLSSVC(**SETTINGS, class_weight=None).fit(X, y)
    assert automatic.solution_["weighings"] is None
    np.testing.assert_array_equal(automatic.decision_function(X), without.decision_function(X))


def test_samples_weigh_on_both_sides(rare: tuple[np.ndarray, np.ndarray]) -> None:
    """Weights of samples are in the balanced ones too: what weighs nothing is not there."""
    X, y = rare
    weight = np.ones(len(y))
    weight[::7] = 0.0
    kept = weight > 0.0
    with pytest.warns(UserWarning, match="taken: balanced"):
        weighted = FixedSizeLSSVC(**SETTINGS).fit(X, y, sample_weight=weight)
    with pytest.warns(UserWarning, match="taken: balanced"):
        left_out = FixedSizeLSSVC(**SETTINGS).fit(X[kept], y[kept])
    np.testing.assert_allclose(weighted.decision_function(X), left_out.decision_function(X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("value", ["equal", 2.0])
def test_other_words_are_refused(rare: tuple[np.ndarray, np.ndarray], value: object) -> None:
    with pytest.raises(InputError, match=r'class_weight= takes "auto", "balanced" or weights by class'):
        FixedSizeLSSVC(**SETTINGS, class_weight=value).fit(*rare)
