"""Figures 12 and 13 on a generated problem: the same system for all, least squares on each support."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.solvers.pursuit.systems import GramSystem
from dkgp_benchmarks.pursuit import homotopies
from dkgp_benchmarks.pursuit.job import BenchPursuitJob


def test_all_methods_learn_and_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homotopies, "LONGEST", 25)
    found = homotopies.figure_12(BenchPursuitJob(n=300, pool=60, draws=2), SilentReporter())
    assert found is not None
    assert "generated" in found.remarks[0]
    errors, seconds = found.curves["errors"], found.curves["seconds"]
    for method in homotopies.METHODS:
        # Two classes of twonorm err on 2.3 % at best; a single prototype is no better than guessing at some of them.
        assert min(errors[method]) < 6.0
        assert len(errors[method]) == len(seconds[method]) >= 20
        assert all(later >= before for before, later in zip(seconds[method], seconds[method][1:], strict=False))
    assert {row["method"] for row in found.rows} == set(homotopies.METHODS)


def test_data_that_are_absent_leave_a_figure_out(tmp_path: object) -> None:
    assert homotopies.figure_13(BenchPursuitJob(data=str(tmp_path)), SilentReporter()) is None


def test_rivals_are_debiased_by_least_squares_on_their_support(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((60, 12)), rng.standard_normal(60)
    A, b = X.T @ X, (X.T @ y)[:, None]
    system = homotopies._Centred(A, b, np.zeros(12), 0.0, X)
    for found in (
        homotopies._breaks(GramSystem(A), b, 8, drops=True),
        homotopies._breaks(GramSystem(A), b, 8, drops=False),
        homotopies._mp(GramSystem(A), b, 8),
    ):
        times, weights = homotopies._debiased(system, found)
        assert [len(S) for S in found.supports] == list(range(1, len(found.supports) + 1))
        for S, w in zip(found.supports, weights, strict=True):
            np.testing.assert_allclose(w, np.linalg.lstsq(X[:, S], y, rcond=None)[0], rtol=1e-9)
        assert all(mended > own for mended, own in zip(times, found.seconds, strict=True))
    pursued = homotopies._scdp(GramSystem(A), b, 8)
    np.testing.assert_allclose(
        pursued.weights[-1], np.linalg.lstsq(X[:, pursued.supports[-1]], y, rcond=None)[0], rtol=1e-9
    )
