"""Training sets that have little to tell: refused in words, or a finite answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp import LSSVC, FixedSizeLSSVC
from dkgp.errors import InputError

ODD: dict[str, Any] = {
    "four samples": (np.arange(4.0)[:, None], [0, 1, 1, 0]),
    "inputs all the same": (np.ones((10, 2)), np.arange(10) % 2),
    "repeated, consistent": (np.repeat(np.arange(4.0)[:, None], 10, axis=0), np.repeat([0, 1, 0, 1], 10)),
    "repeated, contradicting": (np.repeat(np.arange(4.0)[:, None], 10, axis=0), np.arange(40) % 2),
    "tiny inputs": (1e-130 * np.sin(np.arange(40.0)).reshape(20, 2), np.arange(20) % 2),
    "more features than samples": (np.sin(np.arange(2000.0)).reshape(20, 100), np.arange(20) % 2),
    "far apart": (
        np.concatenate([np.sin(np.arange(20.0)), 100.0 + np.sin(np.arange(20.0))])[:, None],
        [0] * 20 + [1] * 20,
    ),
    "two of a class": (np.sin(np.arange(80.0)).reshape(40, 2), np.arange(40) < 2),
    "many classes": (np.sin(np.arange(200.0)).reshape(100, 2), np.arange(100) % 20),
}


@pytest.mark.covering
@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
@pytest.mark.parametrize("name", ODD)
def test_answers_are_finite_and_of_the_classes(kind: Any, name: str) -> None:
    X, y = ODD[name][0], np.asarray(ODD[name][1])
    model = kind().fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert (probabilities >= 0.0).all()
    labels = model.predict(X)
    assert set(labels.tolist()) <= set(y.tolist())
    if name in ("repeated, consistent", "far apart"):
        np.testing.assert_array_equal(labels, y)


def test_weights_of_all_magnitudes(rng: np.random.Generator) -> None:
    X, y, weight = rng.normal(size=(60, 2)), np.arange(60) % 2, 10.0 ** rng.uniform(-8.0, 8.0, size=60)
    for kind in (LSSVC, FixedSizeLSSVC):
        model = kind().fit(X, y, sample_weight=weight)
        assert np.isfinite(model.predict_proba(X)).all()
        heavy = int(np.argmax(weight))
        assert model.predict(X[heavy : heavy + 1])[0] == y[heavy]


@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
def test_values_that_overflow_or_underflow_are_refused(kind: Any, rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match="too large to be standardised"):
        kind().fit(1e200 * rng.normal(size=(20, 2)), np.arange(20) % 2)
    with pytest.raises(InputError, match="too near to each other to be standardised"):
        kind().fit(1e-200 * rng.normal(size=(20, 2)), np.arange(20) % 2)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("row", [[0.0], [3.0, -2.0]])
def test_a_kernel_that_is_zero_everywhere_says_zero(row: list[float], fit_intercept: bool) -> None:
    # Equal rows are all zero once they are standardised, and so are all products of them.
    X = np.tile(row, (6, 1))
    model = LSSVC(kernel="linear", fit_intercept=fit_intercept).fit(X, [0, 1, 0, 1, 0, 1])
    decisions, bounds = model.decision_function(X, return_bounds=True)
    assert (np.abs(decisions) <= bounds).all()
