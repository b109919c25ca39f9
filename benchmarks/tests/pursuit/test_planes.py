"""Best subsets by a Gray code against all least squares, and the figures that need no data."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError
from dkgp_benchmarks.pursuit import planes
from dkgp_benchmarks.pursuit.job import BenchPursuitJob


@pytest.mark.parametrize("d", [1, 5, 8])
def test_best_subsets_are_the_best(d: int, rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((14, d)), rng.standard_normal(14)
    expected = [
        min(
            float(np.sum((y - X[:, S] @ np.linalg.lstsq(X[:, S], y, rcond=None)[0]) ** 2))
            for S in map(list, combinations(range(d), size))
        )
        for size in range(d + 1)
    ]
    np.testing.assert_allclose(planes.best_subsets(X.T @ X, X.T @ y, float(y @ y)), expected, rtol=1e-10)


def test_no_path_is_below_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "COLUMNS", 9)
    found = planes.figure_4(BenchPursuitJob(draws=6), SilentReporter())
    front = np.asarray(found.curves["Pareto front"])
    assert np.all(np.diff(front) <= 1e-12)
    for name, values in found.curves.items():
        assert np.all(np.asarray(values) >= front - 1e-9), name
        assert values[0] == pytest.approx(front[0])
        assert values[-1] == pytest.approx(front[-1], rel=1e-6)
    # One regressor: the best one by a refit is the best there is, and one that is de-biased is better than before.
    assert found.curves["OLS"][1] == pytest.approx(front[1])
    assert np.all(np.asarray(found.curves["LASSO, de-biased"]) <= np.asarray(found.curves["LASSO"]) + 1e-9)
    by_method = {row["method"]: row["value"] for row in found.rows}
    assert by_method["SCDP"] >= 1.0
    assert by_method["LASSO"] > by_method["LASSO, de-biased"]


def test_directions_in_the_plane() -> None:
    found = planes.figure_3(BenchPursuitJob(), SilentReporter())
    assert found.figures["SCDP steps"] == found.figures["conjugate gradient steps"] == 2
    assert found.figures["steepest descent steps"] > 5
    assert found.figures["first direction of SCDP has nonzero numbers"] == 1


def test_least_squares_on_a_support(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((50, 12)), rng.standard_normal(50)
    X = np.hstack([X, X[:, :1]])
    weights = planes.debiased(X.T @ X, X.T @ y, [4, 0, 7])
    np.testing.assert_allclose(weights[:, 0], np.linalg.lstsq(X[:, [4, 0, 7]], y, rcond=None)[0], rtol=1e-9)
    twice = planes.debiased(X.T @ X, X.T @ y, [4, 0, 12])
    assert twice[2, 0] == 0.0
    np.testing.assert_allclose(twice[:2, 0], np.linalg.lstsq(X[:, [4, 0]], y, rcond=None)[0], rtol=1e-9)
    assert planes.debiased(X.T @ X, X.T @ y, []).shape == (0, 1)
    for wrong in (-1, 3):
        with pytest.raises(InputError, match=f"from 0 to 2; got {wrong}"):
            planes.debiased(np.eye(3), np.ones(3), [0, wrong])
