"""Tables of the GBCD paper over several draws: means, spreads and ratios from given figures; kernels in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.commands.reporting.outputs import Document
from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models import Hyperparameters
from dkgp_benchmarks.papers.figures import convergence_figure, growth_figure
from dkgp_benchmarks.papers.tables import said, table_2


def test_several_draws_are_averaged() -> None:
    """Means, standard deviations and medians of ratios against NumPy's, and no mean where a draw has no figure."""

    def draw(seconds: float, rival: float, converged: bool) -> Document:
        def run(key: str, seconds: float, converged: bool) -> Document:
            names = ("iteration", "column_passes", "kernel_evaluations", "entries", "rmse", "gradient_inf_norm")
            figures: Document = dict.fromkeys(names, seconds) | {"relative_residual": 0.1, "mean_difference": None}
            reached = {"gradient_0.1": seconds / 2.0, "objective": None, "last": seconds}
            figures |= {"reached": {"seconds": reached, "iteration": reached}, "history": [], "curve": []}
            return (
                figures
                | {"solver": key, "key": key, "converged": converged, "reason": "cut", "settings": {}}
                | {"seconds": seconds}
            )

        problem = {"name": "kin40k", "n": 5, "n_test": 2, "d": 1, "targets": 1}
        problem["hyperparameters"] = Hyperparameters(SquaredExponential(gamma=(1.0,)), 0.5).to_json()
        return {
            "problem": problem,
            "tolerance": 1e-4,
            "exact": {"seconds": 3.0, "rmse": 0.5},
            "minimum": -1.0,
            "runs": [run("gbcd", seconds, True), run("cg", rival, converged)],
        }

    draws = [draw(1.0, 4.0, True), draw(2.0, 6.0, False), draw(4.0, 40.0, True)]
    table = table_2(draws)
    cholesky, gbcd, cg = table["rows"]
    assert gbcd["seconds"] == pytest.approx(7.0 / 3.0)
    assert gbcd["seconds_spread"] == pytest.approx(np.std([1.0, 2.0, 4.0], ddof=1))
    assert gbcd["gradient_inf_norm"] == 4.0
    assert cg["seconds_ratio"] == 4.0  # of 4, 3 and 10
    assert cg["seconds_shown"] == "> 4.0"
    assert (cg["converged"], cg["converged_shown"], gbcd["converged_shown"]) == (False, "2 of 3", "3 of 3")
    assert cholesky["seconds_ratio"] == 1.5  # of 3, 1.5 and 0.75
    assert (gbcd["paper_seconds"], cg["paper_ratio"], gbcd["paper_rmse"]) == ("975", "15.34", 0.098)
    assert table["figures"]["cg_stopped"] == "cut"
    figure = convergence_figure(draws, 2)
    assert figure["rows"][0]["gradient_0.1"] == pytest.approx(7.0 / 6.0)
    assert figure["rows"][0]["objective"] is None
    assert len(figure["curves"]["draws"]) == 3
    alone = table_2(draws[:1])
    assert alone["rows"][1]["seconds_spread"] is None
    assert "draws" not in alone["title"]


def test_growth_over_draws() -> None:
    def rows(factor: float) -> list[dict[str, Any]]:
        return [
            {"n": n, "solver": key, "key": key, "converged": True, "seconds": factor * n * (1 + (key == "bcdc"))}
            for n in (100, 200)
            for key in ("gbcd", "bcdc")
        ]

    found = Hyperparameters(SquaredExponential(gamma=(1.0,)), 0.5)
    table = growth_figure([rows(1.0), rows(3.0)], 1e-4, found)
    assert [row["seconds"] for row in table["rows"]] == [200.0, 400.0, 400.0, 800.0]
    assert table["rows"][1]["seconds_ratio"] == 2.0
    assert table["rows"][0]["seconds_spread"] == pytest.approx(np.std([100.0, 300.0], ddof=1))


def test_a_benchmarks_line_says_any_kernel() -> None:
    assert said(Hyperparameters(SquaredExponential((1.0, 2.0)), 0.5)) == "noise variance 0.5, gamma 1, 2"
    line = said(Hyperparameters(parse_kernel("matern32 + constant", 1), 0.5))
    assert line.startswith("noise variance 0.5, matern32 + constant; matern32: ")
