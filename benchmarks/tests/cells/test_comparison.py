"""`dkgp bench cells`: bounds that hold, a baseline that is scaled where it is not measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError
from dkgp_benchmarks.cells.comparison import BenchCellsJob, Problem, exact_rows, kernel_of, run_bench_cells


@pytest.mark.slow
def test_bounds_hold_and_exact_products_are_scaled_beyond_their_size(tmp_path: Path) -> None:
    job = BenchCellsJob(
        sizes=(500, 900), kernels=("matern32",), tolerances=(1e-5,), exact_up_to=500, fourier_up_to=0, repeats=1,
        plot=str(tmp_path / "cells.png"), out=str(tmp_path / "cells.json"),
    )  # fmt: skip
    document = run_bench_cells(job, SilentReporter())
    rows = {(row["contender"], row["n"]): row for row in document["rows"]}
    assert set(rows) == {(name, n) for name in ("cells", "exact float64", "exact float32") for n in (500, 900)}
    for n in (500, 900):
        assert 0.0 <= rows["cells", n]["error"] <= rows["cells", n]["bound"]
        assert rows["cells", n]["bound"] <= 1e-4
    assert rows["exact float64", 500]["error"] < 1e-15
    assert rows["exact float32", 500]["error"] < 1e-6
    measured, scaled = rows["exact float64", 500], rows["exact float64", 900]
    assert (measured["scaled_from"], scaled["scaled_from"]) == (None, 500)
    assert scaled["cpu_seconds"] == pytest.approx(measured["cpu_seconds"] * 3.24)
    assert scaled["error"] is None
    figures = document["figures"]
    label = "cells_matern32_0.1_at_1e-05"
    assert set(figures) == {f"growth_{label}", f"faster_{label}"}
    assert figures[f"faster_{label}"] == pytest.approx(scaled["cpu_seconds"] / rows["cells", 900]["cpu_seconds"])
    assert (tmp_path / "cells.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "d"), [("matern12", 2), ("spherical", 3), ("rbf", 2)])
def test_sampled_rows_are_those_of_the_kernel(name: str, d: int) -> None:
    problem = Problem("cells", name, 0.3, 700, d, 1e-6, 5, 1, 3)
    X, v, rows = problem.inputs(), problem.weights(), problem.rows()
    kernel = kernel_of(name, 0.3, d)
    assert len(set(rows.tolist())) == 5
    np.testing.assert_allclose(exact_rows(kernel, X, v, rows), kernel(X[rows], X) @ v, atol=1e-13)


def test_other_kernels_are_refused() -> None:
    with pytest.raises(InputError, match=r"`kernels` names kernels of a distance, .*matern12.*; got 'linear'"):
        kernel_of("linear", 0.1, 2)
