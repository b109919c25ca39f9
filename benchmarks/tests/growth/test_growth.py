"""`dkgp bench growth` on sizes too small to mean anything: complete, resumable, true where truth is not of time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench.problem import BenchProblem
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import open_dataset, open_model
from dkgp.errors import DkgpError, InputError, InterruptedRunError, UsageError
from dkgp_benchmarks.growth.study import BenchGrowthJob, run_bench_growth


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> BenchProblem:
    path = tmp_path_factory.mktemp("growth") / "hyper.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    return BenchProblem(hyper=str(path))


class Notes(SilentReporter):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, message: str, figures: str | None = None) -> None:
        """Remember it."""
        self.notes.append(message)


@pytest.mark.slow
def test_every_size_is_measured_once(problem: BenchProblem, tmp_path: Path) -> None:
    job = BenchGrowthJob(
        problem,
        SolverOptions("cg"),
        out=str(tmp_path / "growth.json"),
        sizes=(500, 300),
        folder=str(tmp_path / "kept"),
        plot=str(tmp_path / "growth.png"),
    )
    document = run_bench_growth(job, SilentReporter())
    assert (tmp_path / "growth.png").stat().st_size > 5000
    assert json.loads((tmp_path / "growth.json").read_text()) == document
    assert len(tables(document)) == 2
    for row, n in zip(document["rows"], (300, 500), strict=True):
        model = open_model(str(tmp_path / f"kept/n-{n}/model.zarr"))
        assert row["n"] == model.n_samples == n
        assert row["gradient_inf_norm"] <= 1e-4
        # What was evaluated, and what that takes at the least.
        assert row["kernel_evaluations"] == model.summary["kernel_evaluations"]
        double = min(row["kernel_evaluations"], row["refreshes"] * n**2 / 2)
        ns = (row["kernel_evaluations"] - double) * row["entry_ns"] + double * row["entry_double_ns"]
        assert row["limit_seconds"] == pytest.approx(1e-9 * ns / row["cores"])
        parts = ("product_seconds", "check_seconds", "factor_seconds", "apply_seconds", "other_seconds")
        assert sum(row[part] for part in parts) == pytest.approx(row["seconds"])
        assert row["product_seconds"] > 0.0
        assert row["check_seconds"] > 0.0

    # Another size joins those on record; its samples begin with theirs.
    told = Notes()
    more = run_bench_growth(replace(job, sizes=(500, 300, 400)), told)
    assert [row["n"] for row in more["rows"]] == [300, 400, 500]
    assert [more["rows"][0], more["rows"][2]] == document["rows"]
    assert [note for note in told.notes if "on record" in note] == ["n = 300: on record", "n = 500: on record"]
    small, large = (open_dataset(str(tmp_path / f"kept/n-{n}/train.zarr")) for n in (300, 400))
    np.testing.assert_array_equal(small.raw_inputs(0, 300), large.raw_inputs(0, 300))

    with pytest.raises(InputError, match="another solver .*'cg'.*; name another `folder`"):
        run_bench_growth(replace(job, solver=SolverOptions("pcg")), SilentReporter())
    with pytest.raises(InputError, match="holds something else"):
        run_bench_growth(replace(job, folder=str(tmp_path)), SilentReporter())


class Impatient(Notes):
    """Presses Ctrl-C after some rounds."""

    @contextmanager
    def solve(self, label: str, tolerance: float) -> Iterator[Callable[[Any], None]]:
        """Raise what the key raises."""

        def show(progress: Any) -> None:
            if getattr(progress, "iteration", 0) == 5:
                raise KeyboardInterrupt

        yield show


@pytest.mark.slow
def test_interrupted_it_goes_on_to_the_same_bits(problem: BenchProblem, tmp_path: Path) -> None:
    job = BenchGrowthJob(problem, SolverOptions("cg", tolerance=1e-6), sizes=(4000,), folder=str(tmp_path / "kept"))
    with pytest.raises(InterruptedRunError, match="n = 4,000: interrupted .*; state saved in") as caught:
        run_bench_growth(job, Impatient())
    assert Path(str(caught.value.checkpoint)).is_dir()
    told = Notes()
    run_bench_growth(job, told)
    assert any(note.startswith("n = 4,000: resuming after round") for note in told.notes)
    run_bench_growth(replace(job, folder=str(tmp_path / "whole")), SilentReporter())
    resumed, whole = (open_model(str(tmp_path / name / "n-4000/model.zarr")) for name in ("kept", "whole"))
    np.testing.assert_array_equal(resumed.alpha, whole.alpha)


@pytest.mark.parametrize("sizes", [(), (1,), (300, 300)])
def test_sizes_that_make_no_study_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="`sizes` must be different"):
        BenchGrowthJob(sizes=sizes)


@pytest.mark.slow
def test_what_a_size_fails_of_is_said(problem: BenchProblem, tmp_path: Path) -> None:
    job = BenchGrowthJob(problem, SolverOptions("cg", tolerance=-1.0), sizes=(300,))
    with pytest.raises(DkgpError, match="n = 300: .*tolerance"):
        run_bench_growth(job, SilentReporter())
