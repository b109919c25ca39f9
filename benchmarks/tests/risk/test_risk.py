"""`dkgp bench risk`: problems, the race to one risk, and the root, on problems too small to mean anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.errors import InputError, NumericalError, UsageError
from dkgp.operators import DenseKernelOperator
from dkgp.solvers.losses import LogisticLoss
from dkgp_benchmarks.risk import penalties
from dkgp_benchmarks.risk.job import BenchRiskJob, compared, run_bench_risk
from dkgp_benchmarks.risk.problems import PIXEL_GAMMA, read_problem, with_tuned_kernel
from dkgp_benchmarks.risk.runs import RiskWithin, iterations_to, minimise


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    X = rng.normal(3.0, 2.0, (5300, 2))
    y = np.where(X[:, 0] * X[:, 1] + rng.standard_normal(5300) > 9.0, 1, -1)
    np.savez(tmp_path / "banana.npz", X=X, y=y, test_mask=np.arange(5300) >= 400)
    digits = rng.integers(0, 10, 9298)
    pixels = rng.random((9298, 4)).astype(np.float32)
    np.savez(tmp_path / "usps.npz", X=pixels, y=digits, test_mask=np.arange(9298) >= 7291)
    return tmp_path


def test_both_tables(tmp_path: Path) -> None:
    job = BenchRiskJob(
        problems=("made-ringnorm",),
        methods=("kcg", "paramcg", "auto"),
        n=120,
        gap=1e-6,
        lambdas=(10.0, 0.1),
        max_iterations=300,
        subset=120,
        out=str(tmp_path / "risk.json"),
    )
    document = run_bench_risk(job, SilentReporter())
    assert json.loads((tmp_path / "risk.json").read_text()) == json.loads(json.dumps(document))
    assert tables(document)
    rows = {row["method"]: row for row in document["rows"]}
    assert list(rows) == ["kcg", "paramcg", "auto"]
    assert rows["kcg"]["reached"] == rows["auto"]["reached"] == "yes"
    for row in rows.values():
        if row["converged"]:
            assert 0.0 <= row["above"] <= 1e-6
            assert row["to_best"] >= 1.0
            assert row["products"] > 0.0
            assert row["entries"] > 0.0
    assert rows["auto"]["note"].startswith("chose ")
    (section,) = document["sections"]
    for row in section["rows"]:
        assert row["kcg"] < row["paramcg"]
        assert row["factor"] == pytest.approx(row["kcg"] / row["paramcg"] ** 0.5)
    assert document["complete"]


def test_all_methods_come_to_the_risk_that_l_bfgs_finds() -> None:
    problem = with_tuned_kernel(read_problem("made-twonorm", None, 80, 0, whole=True), 80, 0)
    job = BenchRiskJob(problems=("made-twonorm",), parts=("methods",), n=80, subset=80, max_iterations=3000)
    rows = run_bench_risk(job, SilentReporter())["rows"]
    K, y = problem.found(problem.inputs, problem.inputs), problem.targets[:, 0]
    L = np.linalg.cholesky(K + 1e-10 * np.eye(80))

    def risk(v: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        z = y * (L @ v)
        return float(np.logaddexp(0.0, -z).sum() + 0.5 * v @ v), v - L.T @ (y / (1.0 + np.exp(z)))

    least = minimize(risk, np.zeros(80), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10}).fun
    for row in rows:
        if row["method"] != "paramcg":
            assert row["converged"], row["method"]
        if row["converged"]:
            assert row["risk"] == pytest.approx(least, rel=2e-7)


def test_problems_are_read_as_the_kernel_takes_them(folder: Path) -> None:
    banana = read_problem("banana", folder, 300, 0)
    assert banana.inputs.shape == (300, 2)
    assert banana.test_inputs.shape == (4900, 2)
    np.testing.assert_allclose(banana.inputs.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(banana.inputs.std(axis=0), 1.0)
    assert set(np.unique(banana.targets)) == {-1.0, 1.0}
    assert read_problem("banana", folder, 10_000, 0, whole=True).n == 5300
    digits = read_problem("usps-4", folder, 10_000, 0, whole=True)
    assert digits.n == 7291
    with np.load(folder / "usps.npz") as archive:
        np.testing.assert_array_equal(digits.inputs, archive["X"][:7291])
        np.testing.assert_array_equal(digits.targets[:, 0] > 0.0, archive["y"][:7291] == 4)
    pair = digits.inputs[:2]
    # sigma = 5 on pixels in [-1, 1], which are twice as far apart.
    expected = np.exp(-np.sum((2.0 * (pair[0] - pair[1])) ** 2) / (2.0 * 5.0**2))
    assert digits.found(pair[:1], pair[1:])[0, 0] == pytest.approx(expected)
    assert PIXEL_GAMMA["usps-4"] == 0.08


def test_what_breaks_down_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = read_problem("made-twonorm", None, 30, 0, whole=True).with_gamma(0.1)

    def broken(*_: Any, **__: Any) -> None:
        raise NumericalError("no way down")

    monkeypatch.setattr("dkgp_benchmarks.risk.runs.minimise_by", broken)
    operator = DenseKernelOperator(problem.found, 1.0, problem.inputs)
    run = minimise(operator, problem.targets, LogisticLoss(), 1.0, "kcg", SilentReporter(), gap=1e-3)
    assert run.reason == "no way down"
    assert run.solution is None
    assert run.iterations == 0
    assert iterations_to(run, run.gap <= 1.0) is None
    job = BenchRiskJob(problems=("made-twonorm",), methods=("kcg",), parts=("methods",), n=40, subset=40)
    document = run_bench_risk(job, SilentReporter())
    assert document["figures"]["reached_the_gap"] == "0 of 1"
    assert document["rows"][0]["note"] == "no way down"


def test_where_a_run_is_cut_off_the_root_is_a_bound() -> None:
    assert compared(6, 25, cut_off=25)["factor"] == pytest.approx(1.2)
    late = compared(6, None, cut_off=100)
    assert (late["paramcg_shown"], late["factor_shown"], late["times_shown"]) == ("> 100", "< 0.60", "> 16.7")
    assert late["holds"] == "yes"
    assert compared(50, None, cut_off=100)["holds"] == "unknown"
    assert compared(50, 100, cut_off=100)["holds"] == "no"
    assert compared(None, 100, cut_off=100)["factor"] is None


def test_risk_within_a_share() -> None:
    problem = read_problem("made-twonorm", None, 60, 0, whole=True).with_gamma(0.05)
    operator = DenseKernelOperator(problem.found, 1.0, problem.inputs)
    given = operator, problem.targets, LogisticLoss(), 1.0, "kcg", SilentReporter()
    least = minimise(*given, gap=1e-10).least[1]
    run = minimise(*given, gap=1e-3, stopping=RiskWithin(least, 1e-4))
    assert run.risk[-1] <= least * (1.0 + 1e-4) < run.risk[-2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("smo",)}, "unknown method 'smo'"),
        ({"problems": ("iris",)}, "unknown problem 'iris'"),
        ({"n": 1}, "`n` must be at least 2; got 1"),
        ({"gap": 0.0}, "`gap` must be finite and positive; got 0"),
        ({"lambdas": ()}, "`lambdas` is empty"),
        ({"lambdas": (1.0, -1.0)}, "a number of `lambdas` must be finite and positive; got -1"),
        ({"regularisation": float("inf")}, "`regularisation` must be finite and positive; got inf"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_bench_risk(BenchRiskJob(**changes), SilentReporter())


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        run_bench_risk(BenchRiskJob(data=str(tmp_path / "none")), SilentReporter())


@pytest.mark.long
def test_small_penalties_are_raced_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two of the twelve, of few samples.
    monkeypatch.setattr(penalties, "KERNELS", {"rough": penalties.KERNELS["rough"]})
    monkeypatch.setattr(penalties, "LOSSES", {"logit": penalties.LOSSES["logit"]})
    monkeypatch.setattr(penalties, "REPEATS", 1)
    (section,) = run_bench_risk(BenchRiskJob(parts=("penalties",), n=100), SilentReporter())["sections"]
    assert [(row["labels"], row["kernel"], row["loss"]) for row in section["rows"]] == [
        ("clean", "rough", "logit"), ("noisy", "rough", "logit")
    ]  # fmt: skip
    for row in section["rows"]:
        named = [row[method] for method in penalties.METHODS if row[method] is not None]
        assert row["to_best"] == pytest.approx(row["auto"] / min(named))
        assert row["note"].startswith("chose ")
    largest = max(row["to_best"] for row in section["rows"])
    assert section["figures"]["largest_time_of_auto_over_the_fastest"] == pytest.approx(largest)
    assert section["figures"]["auto_reached"] == "2 of 2"
    within = sum(row["to_best"] <= 1.5 for row in section["rows"])
    assert section["figures"]["auto_at_most_1.5_times_the_fastest"] == f"{within} of 2"


def test_problems_of_small_penalties_are_as_described() -> None:
    problems = list(penalties.penalty_problems(300, 0))
    assert len({(problem.labels, problem.kernel, problem.loss) for problem in problems}) == 12
    for problem in problems:
        values = np.sin(problem.inputs[:, 0]) * problem.inputs[:, 1]
        if problem.loss == "softmax":
            np.testing.assert_array_equal(problem.targets.sum(axis=1), 1.0)
            assert problem.targets.sum(axis=0).min() > 90
        else:
            right = np.mean((problem.targets[:, 0] > 0.0) == (values > 0.0))
            assert right == 1.0 if problem.labels == "clean" else 0.6 < right < 0.95
