"""Figures 7 to 11: what they show against dense algebra and naive loops, and that they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as File

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.plots import drawn
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.models.classification.fixed_size.paths import Path
from dkgp.models.classification.labels import stratified_folds
from dkgp_benchmarks.pursuit import clock as clock_module
from dkgp_benchmarks.pursuit import fronts as fronts_module
from dkgp_benchmarks.pursuit import ripley as ripley_module
from dkgp_benchmarks.pursuit.clock import figure_11
from dkgp_benchmarks.pursuit.fronts import figure_10, front_problems
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure
from dkgp_benchmarks.pursuit.ripley import figure_7, figure_8
from dkgp_benchmarks.pursuit.tuned import TunedProblem, path_errors, problem_samples, ripley, system_of, tuned


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def problem(executor: LocalExecutor) -> TunedProblem:
    return tuned("ripley", None, executor)


def written(figure: PaperFigure, path: File) -> int:
    """Size of the picture; the record is JSON, and every row has what the bench's table shows."""
    pytest.importorskip("matplotlib")
    dump({"rows": figure.rows, "figures": figure.figures, "curves": figure.curves})
    assert all({"data", "method", "what", "value"} <= set(row) for row in figure.rows)
    with drawn(path, figure.width, figure.height, figure.title) as canvas:
        figure.draw(canvas)
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


@pytest.mark.long
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


@pytest.mark.long
def test_figure_7_saturates_at_a_few_prototypes(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripley_module, "SIZES", (1, 4, 12, 30))
    figure = figure_7(BenchPursuitJob(draws=2), SilentReporter())
    one, four, twelve, thirty = figure.curves["mean"]
    assert one > four > twelve > thirty - 2.0
    assert thirty < 16.0
    assert (np.asarray(figure.curves["lower"]) <= figure.curves["upper"]).all()
    assert [row["value"] for row in figure.rows] == figure.curves["mean"]
    assert figure.figures["prototypes that are enough"] in (12, 30)
    assert written(figure, tmp_path / "figure_7.png") > 5_000


@pytest.mark.long
def test_figure_7_is_by_models_that_were_fitted_without_the_fold(
    problem: TunedProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One choice of prototypes, five of them: all folds' errors by dense algebra."""
    monkeypatch.setattr(ripley_module, "SIZES", (5,))
    chosen: list[np.ndarray] = []
    real = ripley_module.choose_prototypes

    def choose(*arguments: object) -> tuple[np.ndarray, np.ndarray]:
        found = real(*arguments)
        chosen.append(found[1])
        return found

    monkeypatch.setattr(ripley_module, "choose_prototypes", choose)
    figure = figure_7(BenchPursuitJob(draws=1), SilentReporter())
    folds = stratified_folds(problem.labels, 10, 0)
    y, errors = problem.labels.signs()[:, 0], []
    columns = np.column_stack([problem.kernel(problem.inputs, chosen[0]), np.ones(len(y))])
    ridge = np.pad(problem.noise_variance * problem.kernel(chosen[0], chosen[0]), (0, 1))
    for fold in range(10):
        left, held = columns[folds != fold], folds == fold
        solved = np.linalg.solve(left.T @ left + ridge, left.T @ y[~held])
        errors.append(100.0 * np.mean(np.where(columns[held] @ solved >= 0.0, 1.0, -1.0) != y[held]))
    assert figure.curves["mean"] == [pytest.approx(np.mean(errors))]


@pytest.mark.long
def test_figure_8_has_prototypes_among_the_samples(tmp_path: File) -> None:
    figure = figure_8(BenchPursuitJob(), SilentReporter())
    _, samples = problem_samples("ripley", None, 0)
    points = figure.curves["prototypes"]
    assert 3 <= len(points) == figure.figures["prototypes"] <= 60
    for point in points:
        assert np.abs(samples.inputs - point).sum(axis=1).min() < 1e-12
    assert figure.figures["test error, %"] < 13.0
    assert written(figure, tmp_path / "figure_8.svg") > 5_000


@pytest.mark.long
def test_fronts_draw_candidates_and_tell_outliers(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts_module, "CARDINALITIES", (2, 6, 12))
    monkeypatch.setattr(fronts_module, "VARIANTS", (("59", 59, "first"), ("59, intercept drawn", 59, "selected")))
    figure = figure_10(BenchPursuitJob(draws=6, problems=("made-ringnorm",)), SilentReporter())
    curve = figure.curves["made-ringnorm"]
    assert curve["cardinalities"] == [2, 6, 12]
    assert {name: np.shape(errors) for name, errors in curve["scdpp"].items()} == {
        "59": (6, 3),
        "59, intercept drawn": (6, 3),
    }
    # The intercept is what the paper's outliers on ringnorm are made of.
    assert figure.figures["made-ringnorm, 59: outlying draws, %"] == 0.0
    assert figure.figures["made-ringnorm, 59, intercept drawn: outlying draws, %"] > 0.0
    assert written(figure, tmp_path / "figure_10.png") > 5_000


def test_problems_of_a_figure_are_those_that_are_here(tmp_path: File) -> None:
    assert front_problems(9, None) == ["made-twonorm"]
    for name in ("heart", "banana", "titanic"):
        (tmp_path / f"{name}.npz").touch()
    assert front_problems(9, tmp_path) == ["banana", "heart"]
    assert front_problems(10, tmp_path) == ["titanic"]


@pytest.mark.long
def test_figure_11_runs_the_clock_on_four_variants(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "LONGEST", 12)
    figure = figure_11(BenchPursuitJob(n=300, pool=60), SilentReporter())
    curves = figure.curves["made-twonorm"]
    assert curves["parameters"]["n"] == 300
    for variant in clock_module.VARIANTS:
        curve = curves[variant.name]
        assert curve["cardinalities"] == [1, 2, 3, 5, 8, 12]
        assert (np.diff(curve["seconds"]) > 0.0).all()
        assert curve["errors"][-1] < 5.0
    # With the whole matrix the first step waits for it.
    assert figure.figures["made-twonorm: seconds of SCDP over those of SCDP, pool"] > 0.0
    monkeypatch.setattr(clock_module, "LARGEST_WHOLE", 200)
    large = figure_11(BenchPursuitJob(n=300, pool=60), SilentReporter())
    assert "SCDP" not in large.curves["made-twonorm"]
    assert written(large, tmp_path / "figure_11.png") > 5_000


def test_both_systems_of_figure_11_are_one(problem: TunedProblem, executor: LocalExecutor) -> None:
    whole = clock_module._run(problem, clock_module.VARIANTS[2], 40, executor, 0, longest=40)
    every = clock_module._Variant("all candidates", True, True)
    drawn_all = clock_module._run(problem, every, 40, executor, 0, longest=40)
    # As many candidates as there are: the same path.
    assert whole["errors"] == drawn_all["errors"]
