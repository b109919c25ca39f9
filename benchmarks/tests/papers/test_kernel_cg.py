"""The kernel CG paper's Figure 1 on labels, Table 2 and trees, on problems too small to mean anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.plots import drawn
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.errors import InputError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs
from dkgp.solvers.losses import SquaredLoss
from dkgp_benchmarks.classify.trial import median_gamma
from dkgp_benchmarks.library import Library
from dkgp_benchmarks.papers.kernel_cg.counts import count_row, counted_problems, counts_section
from dkgp_benchmarks.papers.kernel_cg.hold_out import GAMMA_STEPS, LAMBDAS, held_out
from dkgp_benchmarks.papers.kernel_cg.losses import loss_figure
from dkgp_benchmarks.papers.kernel_cg.plots import draw_counts, draw_losses, draw_trees
from dkgp_benchmarks.papers.kernel_cg.pruned_sums import TreeKernelOperator
from dkgp_benchmarks.papers.kernel_cg.trees import Elevation, elevation, generated_terrain, tree_figure, tree_row
from dkgp_benchmarks.papers.papers import BenchPapersJob, run_bench_papers
from dkgp_benchmarks.risk.problems import read_problem

SILENT = SilentReporter()
LIMITS: dict[str, Any] = {"max_iterations": 400, "max_seconds": 20.0}


def shown(document: Document, draw: Any, path: Path) -> Document:
    """The section as it comes out of a record, its table made and its picture drawn."""
    read: Document = json.loads(json.dumps(document))
    assert tables({"command": "bench", **read})
    with drawn(path, 8.0, 3.0, read["title"]) as figure:
        draw(figure, read)
    assert path.read_bytes().startswith(b"\x89PNG")
    return read


@pytest.mark.long
def test_losses_come_to_the_least_risk(tmp_path: Path) -> None:
    problem = read_problem("made-twonorm", None, 150, 0).with_gamma(0.02)
    document = shown(loss_figure(problem, "rls", 0.5, reporter=SILENT, **LIMITS), draw_losses, tmp_path / "losses.png")
    K = problem.found(problem.inputs, problem.inputs)
    # min R = lambda y' (K + lambda I)^-1 y / 2
    y = problem.targets[:, 0]
    least = 0.25 * y @ np.linalg.solve(K + 0.5 * np.eye(150), y)
    figures = document["figures"]
    assert figures["least_risk_known"] == pytest.approx(least, rel=1e-7)
    assert figures["bound_from_below"] <= least * (1.0 + 1e-12)
    assert figures["risk_of_zero"] == pytest.approx(75.0)
    assert figures["kcg_test_error"] < 0.1
    runs = document["curves"]["runs"]
    for run in runs.values():
        assert (np.diff(run["upper"]) <= 1e-9).all()
        assert max(value for value in run["lower"] if value is not None) <= least * (1.0 + 1e-12)
    for row in document["rows"]:
        assert row["kcg"] <= row["gradient"] or row["gradient"] is None
        if row["paramcg"] is not None:
            assert row["factor"] == pytest.approx(row["kcg"] / row["paramcg"] ** 0.5)


@pytest.mark.long
def test_no_least_risk_without_regularisation(tmp_path: Path) -> None:
    """Nearly: of labels that can be told apart it is far below what few iterations come to."""
    problem = read_problem("made-twonorm", None, 60, 0).with_gamma(0.02)
    limits = {**LIMITS, "max_iterations": 20}
    document = loss_figure(problem, "klr", 1e-6, reporter=SILENT, **limits)
    shown(document, draw_losses, tmp_path / "klr.png")
    assert document["figures"]["kcg_stopped"].startswith("after 20 iterations: the limit of 20 iterations")
    assert document["figures"]["risk_of_zero"] == pytest.approx(60.0 * np.log(2.0))


def test_kernel_and_lambda_are_the_best_on_what_was_held_out() -> None:
    problem = read_problem("made-ringnorm", None, 90, 0)
    found, regularisation, left = held_out(problem, SquaredLoss(), 0)
    rows = np.random.default_rng([0, 31]).permutation(90)
    out, kept = rows[:30], rows[30:]
    losses = {}
    start = median_gamma(problem.inputs[rows], 0)
    for step in GAMMA_STEPS:
        tried = problem.with_gamma(start * float(np.exp(step)))
        for value in LAMBDAS:
            K = tried.found(problem.inputs[kept], problem.inputs[kept]) + value * np.eye(60)
            mean = tried.found(problem.inputs[out], problem.inputs[kept]) @ np.linalg.solve(K, problem.targets[kept])
            losses[step, value] = 0.5 * float(np.mean((mean - problem.targets[out]) ** 2))
    step, value = min(losses, key=lambda place: losses[place])
    assert regularisation == value
    assert left == pytest.approx(losses[step, value], rel=0.02)
    np.testing.assert_allclose(found.found.feature_gamma, start * np.exp(step))  # type: ignore[attr-defined]


@pytest.mark.long
def test_table_2(tmp_path: Path) -> None:
    names = counted_problems(None)
    assert names == ("made-twonorm", "made-ringnorm")
    rows = [
        count_row(name, loss, None, n=80, seed=0, reporter=SILENT, **LIMITS)
        for name in names
        for loss in ("klr", "rls")
    ]
    document = shown(counts_section(rows), draw_counts, tmp_path / "counts.png")
    assert document["figures"]["paper_mean_times_fewer"] == 54.0
    times = [row["times"] for row in rows]
    said = document["figures"]["mean_times_fewer_to_the_gap"]
    assert float(said.removeprefix("> ")) == pytest.approx(np.mean(times), abs=0.06)
    assert said.startswith(">") == any(row["cut_off"] for row in rows)
    for row in rows:
        assert 0 < row["kcg"] <= row["same_kcg"] + 5
        assert row["same_times"] == pytest.approx((row["same_paramcg"] or 400) / row["same_kcg"])


@pytest.mark.long
def test_trees_come_to_the_same_risk(tmp_path: Path) -> None:
    terrain = Elevation("made", generated_terrain(3, 60))
    rows = [
        tree_row(terrain, n, iterations=6, plain_up_to=500, error=1e-4, seed=0, reporter=SILENT)
        for n in (200, 500, 900)
    ]
    document = shown(tree_figure(rows, terrain.name, error=1e-4, single=200), draw_trees, tmp_path / "trees.png")
    assert [row["plain_seconds"] is None for row in rows] == [False, False, True]
    for row in rows[:2]:
        assert row["risk_difference"] < 1e-4
        assert row["iterations"] == 6
        assert row["tree_entries"] > 0.0
    assert rows[0]["sigma"] == pytest.approx(np.sqrt(15.0 * 3600 / (200 * np.pi)))
    single = document["curves"]["single"]
    assert single["n"] == 200
    np.testing.assert_allclose(single["tree"]["risk"], single["plain"]["risk"], rtol=1e-2)
    assert len(single["tree"]["seconds"]) == 6


@pytest.mark.parametrize("kind", ["spread", "clustered", "equal", "far"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_pruned_sums_keep_to_their_bound(kind: str, precision: Any, rng: np.random.Generator) -> None:
    X = rng.standard_normal((700, 2))
    if kind == "clustered":
        X = rng.standard_normal((8, 2))[rng.integers(0, 8, 700)] + 1e-4 * X
    elif kind == "equal":
        X[:] = X[0]
    elif kind == "far":
        X += 300.0
    V = rng.standard_normal((700, 2)) * np.array([1e-6, 3.0])
    V[::3] = 0.0
    kernel = SquaredExponential((80.0, 300.0), variance=1.7)
    with TreeKernelOperator(kernel, 0.05, ArrayInputs(X), LocalExecutor(2), error=1e-5) as operator:
        product = operator.matmat(V, precision)
        off = np.abs(product - kernel(X, X) @ V - 0.05 * V)
        assert off.max() <= operator.error_bound + 1e-12
        assert operator.error_bound < (1.1e-5 if precision == "double" else 0.1)
        assert kind != "spread" or operator.kernel_evaluations < 0.5 * 700**2
        some = np.array([3, 5, 699])
        columns = operator.submit_columns(some, V[some], precision).result()
        expected = kernel(X, X[some]) @ V[some]
        expected[some] += 0.05 * V[some]
        assert np.abs(columns - expected).max() <= operator.error_bound + 1e-12


def test_a_terrain_is_rough_at_all_scales() -> None:
    heights = generated_terrain(0, 128)
    assert heights.shape == (128, 128)
    np.testing.assert_array_equal(heights, generated_terrain(0, 128))
    near = np.mean((heights[1:] - heights[:-1]) ** 2)
    far = np.mean((heights[16:] - heights[:-16]) ** 2)
    assert 4.0 * near < far < 256.0 * near
    inputs, targets = Elevation("made", heights).samples(1000, 0)
    assert len(np.unique(inputs, axis=0)) == 1000
    at = inputs.astype(int)
    assert np.corrcoef(heights[at[:, 0], at[:, 1]], targets[:, 0])[0, 1] == pytest.approx(1.0)
    assert targets.std() == pytest.approx(1.0)
    with pytest.raises(InputError, match=r"a map of 128 x 128 points has no 20,000 samples"):
        Elevation("made", heights).samples(20_000, 0)


def test_an_elevation_model_is_read_from_its_corner(tmp_path: Path, rng: np.random.Generator) -> None:
    heights = rng.integers(300, 2000, (510, 505)).astype(np.float32)
    file = tmp_path / "dem_bigtujunga.npz"
    np.savez(file, y=heights.reshape(-1), X=np.zeros((510 * 505, 2)), grid_shape=np.array(heights.shape))
    found = elevation(Library(tmp_path), 0)
    assert found.name == "Big Tujunga"
    np.testing.assert_array_equal(found.heights, heights[:500, :500])
    assert elevation(Library(None), 0).name == "generated terrain"
    np.savez(file, y=heights.reshape(-1), grid_shape=np.array((510, 500)))
    with pytest.raises(InputError, match="expected 500 x 500 at least"):
        elevation(Library(tmp_path), 0)
    np.savez(file, y=heights.reshape(-1))
    with pytest.raises(InputError, match="has no array 'grid_shape'"):
        elevation(Library(tmp_path), 0)


@pytest.mark.long
def test_parts_of_the_papers(tmp_path: Path) -> None:
    job = BenchPapersJob(
        parts=("kcg-losses", "kcg-counts", "kcg-trees"),
        n=60,
        max_seconds=1.0,
        sizes=(100, 300),
        plots=str(tmp_path / "plots"),
    )
    document = run_bench_papers(job, SILENT)
    names = [section["section"] for section in document["sections"]]
    losses = [f"figure_kcg-losses:made-twonorm-{case}" for case in ("klr-1", "klr-1e-06", "rls-1")]
    assert names == [*losses, "table_kcg", "figure_kcg-trees"]
    assert len(document["plots"]) == 5
    assert "COVTYPE" in document["figures"]["absent"]
    with pytest.raises(UsageError, match="usps.npz alone is one for kcg-losses"):
        run_bench_papers(
            BenchPapersJob(data=str(data_of(tmp_path)), problems=("kin40k",), figures=("kcg-losses",)), SILENT
        )


def data_of(folder: Path) -> Path:
    """A folder with a file that no part of this paper takes."""
    rng = np.random.default_rng(0)
    np.savez(folder / "kin40k.npz", X=rng.standard_normal((20, 2)), y=rng.standard_normal(20))
    return folder
