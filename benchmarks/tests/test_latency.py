"""`dkgp bench latency`: quantiles of a small model, and what they are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import DkgpError
from dkgp_benchmarks import latency, overheads
from dkgp_benchmarks.latency import BenchLatencyJob, run_bench_latency


@pytest.mark.long
def test_every_quantity_is_timed(tmp_path: Path) -> None:
    job = BenchLatencyJob((300, 400), features=3, calls=7, deviation_seconds=0.5, null=True, out=str(tmp_path / "l"))
    document = run_bench_latency(job, SilentReporter())
    rows = document["rows"]
    kinds = [(row["by"], row["quantity"]) for row in rows if row["samples"] == 400]
    assert len(rows) == 2 * len(kinds) == 2 * len(set(kinds)) == 20
    assert all(0.0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
    of_numpy = [row for row in rows if row["by"] == "NumPy"]
    assert [row["to_numpy"] for row in of_numpy] == [1.0] * 4
    assert all(row["null"]["to_numpy"][0] <= row["null"]["to_numpy"][1] for row in of_numpy)
    assert {row["to_numpy"] for row in rows if row["quantity"] == "mean with std"} == {None}
    assert document["figures"].keys() == {"mean_to_numpy", "gradient_to_numpy"}
    assert (tmp_path / "l").read_text().startswith("{")


def test_what_is_compared_is_the_same(tmp_path: Path) -> None:
    """NumPy's sums are those that the others take."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(120, 3))
    kernel = latency.SquaredExponential((latency.GAMMA,) * 3)
    gp = latency.GPRegressor(kernel, noise_variance=latency.NOISE).fit(X, np.sin(X[:, 0]))
    gp.save(str(tmp_path / "m.zarr"))
    sample = X[:1] + 0.1
    values = {}
    for contender in latency._contenders(str(tmp_path / "m.zarr"), 120, null=False):
        values[contender.by, contender.quantity] = contender.predict(sample)
    mean, gradient = values["NumPy", "mean"], values["NumPy", "mean's gradient"]
    np.testing.assert_allclose(values["Predictor", "mean"]["mean"][0, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(values["GPRegressor", "mean"], [mean], rtol=1e-9)
    np.testing.assert_allclose(values["Predictor", "mean's gradient"].gradient[0, 0], gradient, rtol=1e-7, atol=1e-10)
    by_regressor = values["GPRegressor", "mean's gradient"].mean_gradient[0]
    np.testing.assert_allclose(by_regressor, gradient, rtol=1e-7, atol=1e-10)


def test_small_fits_stand_beside_their_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    command = {"by": "dkgp --help", "quantity": "command", "samples": 320, "least_ms": 1.0, "algebra_ms": None}
    monkeypatch.setattr(overheads, "_commands", lambda repetitions: iter([command]))
    document = run_bench_latency(BenchLatencyJob((60,), calls=2, overheads=True), SilentReporter())
    rows = document["rows"]
    assert rows[0] == command
    by = {row["by"]: row for row in rows if row["quantity"] == "fit"}
    assert {"GPRegressor", "SparseGPRegressor", "FixedSizeLSSVC", "scikit-learn SVC"} <= by.keys()
    assert all(row["least_ms"] > 0.0 for row in rows)
    assert by["GPRegressor"]["algebra_ms"] > 0.0
    assert by["ConjugateDirectionsPursuit"]["algebra_ms"] is None
    assert len(rows) == 1 + 2 * len(by)


def test_a_command_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(DkgpError, match="(?s)nonsense failed: .*No such command"):
        overheads._child(["-m", "dkgp", "nonsense"], str(tmp_path))
