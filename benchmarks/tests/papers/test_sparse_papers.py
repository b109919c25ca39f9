"""Table 4 of the GBCD paper and Smola and Bartlett's on problems too small to mean anything: complete, and in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.errors import InputError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.solvers.greedy_basis import GreedyBasis, GreedyEngine, GreedyProgress, GreedySettings
from dkgp.solvers.stopping import StopReason
from dkgp_benchmarks.papers import smola_bartlett
from dkgp_benchmarks.papers.papers import BenchPapersJob, run_bench_papers
from dkgp_benchmarks.papers.part import PARTS
from dkgp_benchmarks.papers.smola_bartlett import SmolaBartlett
from dkgp_benchmarks.papers.sparse_table import compared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(5)
    X = generator.random((320, 3))
    y = np.sin(9.0 * X[:, 0]) * np.cos(7.0 * X[:, 1]) + 0.02 * generator.standard_normal(320)
    np.savez(path / "kin40k.npz", X=X, y=y)
    np.savez(path / "abalone.npz", X=X, y=10.0 + 3.0 * y)
    return path


@pytest.fixture
def paper(folder: Path) -> SmolaBartlett:
    with np.load(folder / "abalone.npz") as archive:
        return SmolaBartlett(archive["X"], archive["y"], LocalExecutor(1), SilentReporter())


def sections(job: BenchPapersJob) -> dict[str, dict[str, Any]]:
    document = run_bench_papers(job, SilentReporter())
    assert document["complete"]
    for section in document["sections"]:
        assert tables({"command": "bench", **section})
    return {section["section"]: section for section in document["sections"]}


@pytest.mark.long
def test_table_4_has_every_method_over_draws(folder: Path) -> None:
    job = BenchPapersJob(
        data=str(folder), tables=("4",), problems=("kin40k",), n=220, n_test=50, subset=80, basis_size=100, draws=3
    )
    (section,) = sections(job).values()
    assert section["section"] == "table_4:kin40k"
    assert "m = 55" in section["title"]  # a quarter of the samples
    models = {row["model"]: row for row in section["rows"]}
    assert list(models) == ["sd", "sr", "mpgp", "sggp", "exact (gbcd)"]
    exact = models["exact (gbcd)"]
    assert exact["rmse_ratio"] == exact["seconds_ratio"] == 1.0
    for row in section["rows"]:
        assert len(set(row["draws"])) == 3
        assert row["rmse"] == pytest.approx(np.mean(row["draws"]))
        assert row["spread"] == pytest.approx(np.std(row["draws"], ddof=1))
        assert row["rmse_ratio"] == pytest.approx(row["rmse"] / exact["rmse"])
        assert row["variance_ms"] > 0.0
        assert row["seconds"] > 0.0
    assert models["sr"]["paper_rmse_ratio"] == pytest.approx(0.164 / 0.071)
    assert models["mpgp"]["paper_seconds_ratio"] == pytest.approx(815 / 4233)
    assert models["sd"]["rmse"] > models["sr"]["rmse"] > exact["rmse"]
    assert section["figures"]["sd above sr"].startswith("yes")
    assert "sggp above gbcd" in section["figures"]


def test_the_papers_order_is_judged_by_the_same_draws() -> None:
    generator = np.random.default_rng(0)
    draws = 1.0 + 0.2 * generator.standard_normal(10)

    def off(by: float) -> Any:
        return draws * (1.0 + by) + 0.001 * generator.standard_normal(10)

    found = compared(
        {
            "sd": off(0.3),
            "sr": off(0.05),
            "mpgp": off(0.08),
            "sggp,screen=2": off(0.2),
            "sggp": off(0.08),
            "gbcd": draws,
        }
    )
    # The spread of the draws is far above these differences, which are the same in all of them.
    assert found["sd above sr"].startswith("yes: +2")
    assert found["sr above mpgp"].startswith("reversed: -2.")
    assert found["mpgp above sggp"].startswith("tied")
    assert found["sggp above gbcd"].startswith("yes: +8.")
    assert found["random against mpgp"] == found["random against sggp"] == "a random basis is as good"
    better = compared({"sr": off(0.2), "mpgp": off(0.1), "sggp": off(0.05), "gbcd": draws})
    assert not any(name.startswith("random") for name in better)
    assert compared({"sr": draws[:1], "mpgp": draws[:1] + 0.1})["sr above mpgp"].startswith("reversed: -")


@pytest.mark.long
def test_kernels_are_counted_until_the_gap(paper: SmolaBartlett, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smola_bartlett, "POSTERIOR", {1.0: 100, 5.0: 40})
    monkeypatch.setattr(smola_bartlett, "MOST_KERNELS", 200)
    found = paper.table(319, (1.0, 5.0), 3)
    counts = found["judged"]["counts"]
    assert set(counts) == {f"{kind} targets, s2 = {noise}" for kind in ("raw", "standardised") for noise in (0.1, 0.05)}
    rows = {row["what"]: row for row in found["rows"]}
    own = counts["raw targets, s2 = 0.1"]
    assert rows["here, raw targets, s2 = 0.1"]["width_5"] == f"{own[1]:.0f} ({own[1] / 40:.2f})"
    farthest = max(abs(own[0] / 100 - 1), abs(own[1] / 40 - 1))
    assert rows["here, raw targets, s2 = 0.1"]["within"] == ("yes" if farthest <= 0.25 else "no")
    # By dense algebra, for the last number: the bounds of Theorem 1 on one of the choices.
    X, _ = smola_bartlett._split(paper.inputs, len(paper.inputs) - 1)
    y = paper.targets[: len(X)]
    chosen = paper._chosen(X, y, 5.0, 0.1, GreedySettings(200, gap=0.025))
    assert len(chosen.indices) == own[1]
    K = SquaredExponential(gamma=(0.2,) * 3)(X, X)
    S, dual = chosen.indices, chosen.dual
    A = K[S] @ K[:, S] + 0.1 * K[np.ix_(S, S)]
    Q = -0.5 * (K[S] @ y) @ np.linalg.lstsq(A, K[S] @ y, rcond=1e-14)[0]
    least = -0.5 * y[dual] @ np.linalg.solve(K[np.ix_(dual, dual)] + 0.1 * np.eye(len(dual)), y[dual])
    top = 2.0 * (Q + 0.1 * least + 0.5 * y @ y)
    assert top / (-Q + 0.1 * least + 0.5 * y @ y) == pytest.approx(chosen.history[-1].gap, rel=1e-4)
    assert chosen.history[-1].gap <= 0.025 < chosen.history[-2].gap


def test_the_log_posteriors_are_the_papers_forms(paper: SmolaBartlett) -> None:
    inputs, targets = paper.inputs, paper.targets
    sparse, exact, kernels, posterior, least = paper._split_errors(inputs, targets, 200, 0.1, seed=0)
    K = SquaredExponential(gamma=(0.1,) * 3)
    alpha = np.linalg.solve(K(inputs[:200], inputs[:200]) + 0.1 * np.eye(200), targets[:200])
    dense = K(inputs[:200], inputs[:200])
    expected = -targets[:200] @ dense @ alpha + 0.5 * alpha @ (0.1 * dense + dense @ dense) @ alpha
    assert least == pytest.approx(expected, rel=1e-9)
    assert least <= posterior <= least * (1.0 - 0.025)
    assert exact == pytest.approx(np.sqrt(np.mean((K(inputs[200:], inputs[:200]) @ alpha - targets[200:]) ** 2)))
    assert 0 < kernels < 200
    assert sparse == pytest.approx(exact, rel=0.2)


@pytest.mark.long
def test_figure_and_experiments_are_drawn_and_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("NOISES", (0.1,)),
        ("PAPER_MIXTURE", 400),
        ("MIXTURE_KERNELS", 20),
    ):
        monkeypatch.setattr(smola_bartlett, name, value)
    for name, settings in (
        ("sb-figure-1", {"n": 4000, "subsets": [1, 50], "draws": 2, "kernels": 40}),
        ("sb-mixture", {"n": 400, "kernels": 20}),
    ):
        monkeypatch.setitem(PARTS._found, name, replace(PARTS.find(name), quick=settings))
    job = BenchPapersJob(
        data=str(folder),
        tables=("sb-errors", "sb-mixture"),
        figures=("sb",),
        draws=2,
        plots=str(tmp_path / "plots"),
    )
    found = sections(job)
    assert list(found) == ["figure_sb", "table_sb-errors", "table_sb-mixture"]
    assert (tmp_path / "plots" / "figure_sb.png").read_bytes().startswith(b"\x89PNG")
    curves = found["figure_sb"]["curves"]
    assert {len(curve) for curve in curves.values()} == {40}
    # The best of fifty is better than the first that comes, and more kernels are better than few.
    assert curves["50"][-1] < curves["1"][-1] < curves["1"][4]
    (errors,) = found["table_sb-errors"]["rows"]
    assert errors["ratio"] == pytest.approx(errors["sparse"] / errors["exact"])
    assert found["table_sb-mixture"]["rows"][-1]["below"] in ("yes", "no")


def test_gaps_between_rounds_are_those_of_the_last() -> None:
    history = [GreedyProgress(1, 2, 3.0, 1.0, 0.5, 0.0), GreedyProgress(2, 4, 2.0, 1.0, 0.25, 0.0)]
    basis = GreedyBasis(np.arange(4), np.zeros((4, 1)), np.arange(4), StopReason("size", True, ""), history)
    np.testing.assert_array_equal(smola_bartlett._gaps(basis, 5), [np.nan, 0.5, 0.5, 0.25, 0.25])


def test_what_is_missing_is_said_before_any_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GreedyEngine, "__init__", lambda *_: pytest.fail("work has begun"))
    for parts in ({"tables": ("sb",)}, {"figures": ("sb",)}, {"tables": ("2", "sb-errors")}):
        with pytest.raises(UsageError, match=r"give --data DIR with an abalone\.npz"):
            run_bench_papers(BenchPapersJob(**parts), SilentReporter())
    with pytest.raises(UsageError, match="`method` must be one of"):
        run_bench_papers(BenchPapersJob(data=str(folder), tables=("4",), methods=("nystrom",)), SilentReporter())
    with pytest.raises(InputError, match="--draws must be at least 1"):
        run_bench_papers(BenchPapersJob(data=str(folder), tables=("4",), draws=0), SilentReporter())
