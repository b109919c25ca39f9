"""Figures 7 to 10: what they show against dense algebra and naive loops, and that they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as File

import numpy as np
import pytest

from dkgp.bench.pursuit import fronts as fronts_module
from dkgp.bench.pursuit import ripley as ripley_module
from dkgp.bench.pursuit.fronts import front_problems, fronts
from dkgp.bench.pursuit.ripley import figure_7, figure_8
from dkgp.bench.pursuit.tuned import Drawing, TunedProblem, path_errors, problem_samples, ripley, system_of, tuned
from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.plots import drawn
from dkgp.models.classification.fixed_size.paths import Path


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def problem(executor: LocalExecutor) -> TunedProblem:
    return tuned("ripley", None, executor)


def written(drawing: Drawing, path: File) -> int:
    pytest.importorskip("matplotlib")
    with drawn(path, drawing.width, drawing.height, drawing.document["title"]) as figure:
        drawing.draw(figure)
    return path.stat().st_size


def test_ripleys_problem_is_his(rng: np.random.Generator) -> None:
    X, codes = ripley(200_000, rng)
    assert codes.mean() == 0.5
    centres = {0: ((-0.7, 0.3), (0.3, 0.3)), 1: ((-0.3, 0.7), (0.4, 0.7))}

    def density(code: int) -> np.ndarray:
        return sum(np.exp(-np.sum((X - centre) ** 2, axis=1) / 0.06) for centre in centres[code])

    assert np.mean((density(1) > density(0)) != (codes == 1)) == pytest.approx(0.088, abs=0.003)
    _, drawn_anew = problem_samples("ripley", None, 0)
    assert drawn_anew.inputs.shape == (1250, 2)
    assert drawn_anew.realisation is not None
    assert drawn_anew.realisation.sum() == 1000


def test_path_errors_are_those_of_dense_solutions(problem: TunedProblem, executor: LocalExecutor) -> None:
    Z, s2 = problem.inputs[::9], problem.noise_variance
    system = system_of(problem, Z, executor)
    path = Path(system, s2)
    path.advance(12)
    K, y = problem.kernel(problem.inputs, Z), problem.labels.signs()[:, 0]
    test = problem.kernel(problem.test_inputs, Z)
    found = path_errors(path, test, problem.test_codes, [3, 12])
    for cardinality, share in zip((3, 12), found, strict=True):
        S = path.order[:cardinality]
        columns = np.column_stack([K[:, S], np.ones(len(K))])
        matrix = columns.T @ columns
        matrix[:-1, :-1] += s2 * problem.kernel(Z[S], Z[S])
        solved = np.linalg.solve(matrix, columns.T @ y)
        decisions = test[:, S] @ solved[:-1] + solved[-1]
        assert share == np.mean((decisions >= 0.0) != (problem.test_codes == 1))


def test_figure_7_saturates_at_a_few_prototypes(
    executor: LocalExecutor, tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ripley_module, "SIZES", (1, 4, 12, 30))
    drawing = figure_7(None, executor, repeats=2)
    rows = drawing.document["rows"]
    assert [row["prototypes"] for row in rows] == [1, 4, 12, 30]
    assert rows[0]["mean"] > rows[1]["mean"] > rows[2]["mean"] > rows[3]["mean"] - 2.0
    assert rows[-1]["mean"] < 16.0
    assert all(row["lower"] <= row["median"] <= row["upper"] for row in rows)
    assert drawing.document["figures"]["enough"] in (12, 30)
    assert written(drawing, tmp_path / "figure_7.png") > 5_000


def test_figure_8_has_prototypes_among_the_samples(executor: LocalExecutor, tmp_path: File) -> None:
    drawing = figure_8(None, executor)
    _, samples = problem_samples("ripley", None, 0)
    rows, figures = drawing.document["rows"], drawing.document["figures"]
    assert 3 <= len(rows) == figures["prototypes"] <= 60
    for row in rows:
        assert np.abs(samples.inputs - (row["x1"], row["x2"])).sum(axis=1).min() < 1e-12
    assert figures["test_error"] < 13.0
    assert written(drawing, tmp_path / "figure_8.svg") > 5_000


def test_fronts_draw_candidates_and_tell_outliers(
    executor: LocalExecutor, tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fronts_module, "CARDINALITIES", (2, 6, 12))
    monkeypatch.setattr(fronts_module, "VARIANTS", (("59", 59, "first"), ("59, intercept drawn", 59, "selected")))
    drawing = fronts(10, None, executor, repeats=6, problems=("made-ringnorm",))
    rows, figures = drawing.document["rows"], drawing.document["figures"]
    assert [(row["variant"], row["cardinality"]) for row in rows] == [
        (name, k) for name in ("59", "59, intercept drawn") for k in (2, 6, 12)
    ]
    assert all(row["lower"] <= row["median"] <= row["upper"] <= row["worst"] for row in rows)
    # The intercept is what the paper's outliers on ringnorm are made of.
    assert figures["made-ringnorm_outliers: 59"] == 0.0
    assert figures["made-ringnorm_outliers: 59, intercept drawn"] > 0.0
    assert written(drawing, tmp_path / "figure_10.png") > 5_000


def test_problems_of_a_figure_are_those_that_are_here(tmp_path: File) -> None:
    assert front_problems(9, None) == ["made-twonorm"]
    for name in ("heart", "banana", "titanic"):
        (tmp_path / f"{name}.npz").touch()
    assert front_problems(9, tmp_path) == ["banana", "heart"]
    assert front_problems(10, tmp_path) == ["titanic"]
