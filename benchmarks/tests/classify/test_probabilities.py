"""The table of probabilities: what is measured of them, and the rivals that have them."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import UsageError
from dkgp_benchmarks.classify.job import BenchClassifyJob, run_bench_classify
from dkgp_benchmarks.classify.measure import probability_scores
from dkgp_benchmarks.classify.methods import DEFAULT_METHODS, METHODS, PROBABILITIES, MethodSpec
from dkgp_benchmarks.classify.problems import PROBLEMS, load, splits


def test_scores_are_scikit_learns(rng: np.random.Generator) -> None:
    p = rng.uniform(0.0, 1.0, 400)
    codes = (rng.uniform(0.0, 1.0, 400) < p**2).astype(np.int64)
    found = probability_scores(p, codes)
    assert found["log_loss"] == pytest.approx(log_loss(codes, p))
    assert found["brier"] == pytest.approx(brier_score_loss(codes, p))
    bins = np.minimum((15 * p).astype(int), 14)
    gaps = [abs(p[bins == b].mean() - codes[bins == b].mean()) * (bins == b).mean() for b in range(15)]
    assert found["calibration_error"] == pytest.approx(sum(gaps))


@pytest.mark.long
def test_a_basis_has_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, "made-twonorm", replace(PROBLEMS["made-twonorm"], n=150, n_test=60))
    methods = ("gp", "gp,basis=10,neighbours=150", "gp,basis=10,neighbours=8", "gp,basis=10")
    job = BenchClassifyJob(
        tables=(PROBABILITIES,),
        problems=("made-twonorm",),
        methods=tuple(f"{method},subset=60,isotropic=yes" for method in methods),
        splits=1,
    )
    (section,) = run_bench_classify(job, SilentReporter())["sections"]
    rows = {row["method"].replace(",subset=60,isotropic=yes", ""): row for row in section["rows"]}
    assert [rows[method]["size"] for method in methods] == [None, 10, 10, 10]
    assert all(row[name] >= 0.0 for row in rows.values() for name in ("fit_core_seconds", "probability_core_seconds"))
    # All samples as neighbours are the model of all samples, the kernel being the same; fewer, or none, are others.
    exact, whole, few, none = (rows[method]["log_loss"] for method in methods)
    assert whole == pytest.approx(exact, abs=2e-3)
    assert abs(few - none) > 1e-4
    assert abs(none - exact) > 3e-3


# An interpreter that has "gpboost": its model is a basis' share of the labels, told with what it was given.
FAKE = """#!{python}
import json, sys
if "-c" in sys.argv:
    sys.exit("gpboost" not in sys.argv[-1])
import numpy as np
told = json.load(sys.stdin)
assert told["peer"] == "gpboost-labels"
given = np.load(told["problem"])
assert set(np.unique(given["y"])) == {{0.0, 1.0}} and given["X"].shape[1] == len(given["gamma"]) == given["T"].shape[1]
said = [int(given["m"]), int(given["neighbours"]), str(given["inversion"])]
assert said == [7, 30, "iterative"] and given["variance"] > 0.0, said
np.savez(told["predictions"], mean=np.full((len(given["T"]), 1), 0.25), variance=np.zeros(len(given["T"])))
print(json.dumps({{"seconds": 3.0, "processor_seconds": 5.0}}))
"""


@pytest.mark.long
def test_another_librarys_model_is_run_by_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBLEMS, "made-twonorm", replace(PROBLEMS["made-twonorm"], n=60, n_test=40))
    fake = tmp_path / "python"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    method = f"gpboost,basis=7,inversion=iterative,isotropic=yes,subset=50,python={fake}"
    job = BenchClassifyJob(tables=(PROBABILITIES,), problems=("made-twonorm",), methods=(method,), splits=1)
    ((row,),) = [section["rows"] for section in run_bench_classify(job, SilentReporter())["sections"]]
    assert (row["size"], row["fit_seconds"], row["fit_core_seconds"]) == (7, 3.0, 5.0)
    share = row["error"] / 100.0  # of class 1
    assert row["log_loss"] == pytest.approx(-share * np.log(0.25) - (1.0 - share) * np.log(0.75))
    # One that breaks down, here for a basis of another size, leaves the others their rows, and its last words.
    methods, reporter = (method.replace("basis=7", "basis=8"), method), SilentReporter()
    ((row,),) = [section["rows"] for section in run_bench_classify(replace(job, methods=methods), reporter)["sections"]]
    assert row["size"] == 7
    assert any("gpboost-labels failed: AssertionError: [8, 30, 'iterative']" in line for line in reporter.warnings)


@pytest.mark.long
def test_the_table_of_probabilities(tmp_path: Path) -> None:
    methods = ("logistic,basis=150,subset=120,isotropic=yes", "svc-calibrated", "hist-boosting", "sklearn-gp,most=60")
    job = BenchClassifyJob(
        tables=(PROBABILITIES,), methods=methods, splits=1, seed=1, out=str(tmp_path / "probabilities.json")
    )
    document = run_bench_classify(job, SilentReporter())
    assert json.loads((tmp_path / "probabilities.json").read_text()) == json.loads(json.dumps(document))
    (section,) = document["sections"]
    rows = {row["method"].partition(",")[0]: row for row in section["rows"]}
    assert list(rows) == ["logistic", "svc-calibrated", "hist-boosting", "sklearn-gp"]
    for row in rows.values():
        assert row["problem"] == "made-ringnorm"
        assert 0.0 < row["error"] < 40.0
        assert 0.0 < row["log_loss"] < 0.7
        assert 0.0 < row["brier"] < 0.25
        assert 0.0 <= row["calibration_error"] < 50.0
    assert (rows["logistic"]["size"], rows["sklearn-gp"]["size"]) == (150, 60)
    assert rows["svc-calibrated"]["size"] > 2
    least = min(rows.values(), key=lambda row: row["log_loss"])["method"]
    assert section["figures"]["least_log_loss"] == f"made-ringnorm: {least}"


def test_methods_of_the_table_have_probabilities() -> None:
    assert all(MethodSpec.read(name).is_probable for name in DEFAULT_METHODS[PROBABILITIES])
    # GPBoost's is in an environment of its own, and run where it is named.
    assert {name for name, known in METHODS.items() if known.probable} == {
        "gpboost",
        *(MethodSpec.read(name).name for name in DEFAULT_METHODS[PROBABILITIES]),
    }
    assert not {MethodSpec.read(name).name for name in DEFAULT_METHODS["3"]} & {"logistic", "gp", "lightgbm"}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (("scdp",), "none of scdp has probabilities"),
        (("logistic,basis=0",), "basis cannot be '0'"),
        (("svc-calibrated,tuned=maybe",), "tuned cannot be 'maybe'"),
        (("gp,pool=3",), "gp takes the settings basis, chosen"),
        (("gp,neighbours=128",), "'gp,neighbours=128': neighbours are of a basis"),
        (("gp,basis=20,neighbours=0",), "neighbours cannot be '0'"),
        (("logistic,basis=20,neighbours=8",), "logistic takes the settings basis"),
        (("gpboost,inversion=lu",), "inversion cannot be 'lu'"),
    ],
)
def test_what_is_refused(methods: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_bench_classify(BenchClassifyJob(tables=(PROBABILITIES,), methods=methods), SilentReporter())


def test_adults_own_split(tmp_path: Path, rng: np.random.Generator) -> None:
    mask = np.zeros(45_222, dtype=bool)
    mask[rng.permutation(45_222)[:15_060]] = True
    X, y = rng.standard_normal((45_222, 1)), np.where(np.arange(45_222) % 4 == 0, 1, -1)
    file: Any = tmp_path / "adult.npz"
    np.savez(file, X=X, y=y, test_mask=mask)
    problem = PROBLEMS["adult-official"]
    samples = load(problem, tmp_path, 0)
    (split,) = splits(problem, samples, [0], 0)
    np.testing.assert_array_equal(split.test, np.flatnonzero(mask))
    assert len(split.train) == 30_162
