"""`dkgp bench sparse`: figures that are what they say, peers by their own interpreters, refusals before any work."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from dkgp.bench.problem import BenchProblem
from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import MissingExtraError, OutputExistsError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp_benchmarks.peers import interpreters, runner
from dkgp_benchmarks.sparse.contenders import bare_blas
from dkgp_benchmarks.sparse.job import BenchSparseJob
from dkgp_benchmarks.sparse.measure import run_bench_sparse, scores
from dkgp_benchmarks.sparse.specs import SparseSpec
from dkgp_benchmarks.sparse.speed import run_bench_sparse_speed

HERE = ClusterOptions(kind="none")
KERNEL, NOISE = SquaredExponential(gamma=(0.05,) * 10), 0.04

# Titsias' model by dense algebra, in place of a library that is not installed.
FAKE = """#!{python}
import json, sys
import numpy as np
if "-c" in sys.argv:
    sys.exit("gpytorch" not in sys.argv[-1] and "gpflow" not in sys.argv[-1] and "gpboost" not in sys.argv[-1])
told = json.load(sys.stdin)
given = np.load(told["problem"])
X, y, Z, T = (given[name] for name in "XyZT")
def k(A, B):
    return given["variance"] * np.exp(-(((A[:, None] - B[None]) ** 2) * given["gamma"]).sum(-1))
A = given["noise"] * k(Z, Z) + k(Z, X) @ k(X, Z)
mean = k(T, Z) @ np.linalg.lstsq(A, k(Z, X) @ y, rcond=None)[0]
inner = k(T, Z) @ np.linalg.pinv(k(Z, Z), rcond=1e-12)
variance = given["variance"] - np.einsum("tm,tm->t", inner, k(T, Z))
variance = variance + given["noise"] * np.einsum("tm,mt->t", k(T, Z), np.linalg.pinv(A, rcond=1e-14) @ k(Z, T))
np.savez(told["predictions"], mean=mean[:, None], variance=variance)
print("a library says something")
print(json.dumps({{"m": len(Z), "seconds": 2.0, "solve_seconds": 1.5, "predict_seconds": 0.5, "import_seconds": 0.1,
                   "peak_memory_bytes": 1, "note": "fake"}}))
"""


@pytest.fixture
def problem(tmp_path: Path) -> BenchProblem:
    path = tmp_path / "hyper.json"
    path.write_text(json.dumps({"kernel": KERNEL.to_json(), "noise_variance": NOISE}))
    return BenchProblem(n=300, n_test=60, hyper=str(path))


def row(document: dict[str, Any], model: str, m: int) -> dict[str, Any]:
    return next(each for each in document["rows"] if each["model"] == model and each["m"] == m)


def test_scores_are_of_the_normal_distribution(rng: np.random.Generator) -> None:
    mean, targets, variance = rng.standard_normal((40, 1)), rng.standard_normal((40, 1)), rng.random(40)
    found = scores(mean, variance, targets, 0.3)
    normal = scipy.stats.norm(mean[:, 0], np.sqrt(variance + 0.3))
    assert found["nlpd"] == pytest.approx(-normal.logpdf(targets[:, 0]).mean())
    low, high = normal.interval(0.95)
    assert found["coverage"] == np.mean((low <= targets[:, 0]) & (targets[:, 0] <= high))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((mean - targets) ** 2)))
    certain = scores(mean, np.zeros(40), targets, 0.0)
    assert np.isfinite(certain["nlpd"])
    assert certain["coverage"] == 0.0


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_models_stand_beside_the_exact_one(problem: BenchProblem, tmp_path: Path) -> None:
    plot, out = tmp_path / "sparse.png", tmp_path / "sparse.json"
    job = BenchSparseJob(
        problem=problem,
        methods=("sr", "vfe", "sggp,per_round=5"),
        bases=("uniform", "pivoted"),
        sizes=(5, 80),
        cluster=HERE,
        null=True,
        plot=str(plot),
        out=str(out),
    )
    reporter = SilentReporter()
    document = run_bench_sparse(job, reporter)
    assert json.loads(out.read_text()) == json.loads(json.dumps(document))
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert tables(document)
    # A greedy choice is its own basis; others are put on each.
    named = ["sr,basis=uniform", "sr,basis=pivoted", "vfe,basis=uniform", "vfe,basis=pivoted", "sggp,per_round=5"]
    assert [each["model"] for each in document["rows"]] == [*named, *named, "exact"]
    assert document["rows"][-1]["m"] == 300
    assert document["rows"][-1]["distance"] == 0.0
    assert "to_exact" in row(document, "vfe,basis=uniform", 80)["null"]
    for model in named:
        few, many = row(document, model, 5), row(document, model, 80)
        assert many["rmse"] < few["rmse"]
        assert many["distance"] < few["distance"]
        assert many["rms_bound"] < few["rms_bound"]
    # The same weights, and variances that the basis leaves nothing of: too narrow, and that is said.
    few = row(document, "sr,basis=uniform", 5)
    assert few["rmse"] == row(document, "vfe,basis=uniform", 5)["rmse"]
    assert few["coverage"] < 0.5 < 0.8 < row(document, "vfe,basis=uniform", 5)["coverage"]
    warned = [message for message in reporter.warnings if message.startswith("sr,basis=uniform, m = 5")]
    assert len(warned) == 1
    assert "vanish far from the basis" in warned[0]
    assert document["figures"]["least_rmse_at_5"] == "sggp,per_round=5"


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_speed_is_taken_against_blas(problem: BenchProblem) -> None:
    job = BenchSparseJob(
        problem=problem, methods=("sr", "sggp,screen=2", "mpgp"), sizes=(40,), cluster=HERE, repeats=2, null=True
    )
    document = run_bench_sparse_speed(job, SilentReporter())
    assert [each["contender"] for each in document["rows"][1:]] == ["sr", "sggp,screen=2", "mpgp"]
    runs = document["settings"]["runs"]
    assert set(runs) == {"bare", "sr", "sggp,screen=2", "mpgp", "bare, again", "sr, again"}
    ratios = [mine["seconds"] / theirs["seconds"] for mine, theirs in zip(runs["mpgp"], runs["sr"], strict=True)]
    assert document["rows"][3]["to_sr"] == pytest.approx(np.median(ratios))
    own = [run["gemm_seconds"] + run["score_seconds"]["sggp,screen=2"] for run in runs["bare"]]
    ratios = [run["seconds"] / blas for run, blas in zip(runs["sggp,screen=2"], own, strict=True)]
    assert document["figures"]["sggp,screen=2_to_own_blas"] == pytest.approx(np.median(ratios))
    assert set(document["rows"][2]["null"]) == {"to_blas", "to_sr", "to_own_blas"}
    assert "to_own_blas" not in document["rows"][3]
    assert [each["m"] for each in document["rows"]] == [40, 40, 40, 40]
    assert not document["settings"]["warnings"]


@pytest.mark.usefixtures("contenders_in_process")
def test_a_smaller_basis_has_no_ratios(problem: BenchProblem, tmp_path: Path) -> None:
    """A kernel whose columns float64 cannot tell apart: that choice ends early, its seconds are of other work."""
    path = tmp_path / "smooth.json"
    smooth = SquaredExponential(gamma=(1e-6,) * 10)
    path.write_text(json.dumps({"kernel": smooth.to_json(), "noise_variance": NOISE}))
    job = BenchSparseJob(
        problem=replace(problem, hyper=str(path)), methods=("sr", "mpgp"), sizes=(60,), cluster=HERE, repeats=1
    )
    reporter = SilentReporter()
    document = run_bench_sparse_speed(job, reporter)
    sr, pursuit = document["rows"][1:]
    assert sr["m"] == 60
    assert "to_blas" in sr
    assert pursuit["m"] < 60
    assert not {"to_blas", "to_sr", "to_own_blas"} & set(pursuit)
    assert "mpgp_to_sr" not in document["figures"]
    assert [message.split(";")[0] for message in reporter.warnings] == [
        f"mpgp: {pursuit['m']} basis samples instead of 60, as float64 could tell no more apart"
    ]


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_speed_needs_no_search_and_its_kernel_is_rough() -> None:
    job = BenchSparseJob(
        problem=BenchProblem(n=1500, n_test=10), methods=("sggp", "mpgp"), sizes=(700,), cluster=HERE, repeats=1
    )
    document = run_bench_sparse_speed(job, SilentReporter())
    assert [each["m"] for each in document["rows"]] == [700, 700, 700]


def test_bare_products_are_those_of_the_fit_and_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timed products, scaled to the full size, have 2 n m^2 and 2 n k q operations."""
    counted: list[float] = []

    def blas(routine: str, *arguments: Any) -> None:
        m, q, rows = arguments[2:5]
        counted.append(2.0 * m * q * rows)

    dataset = memory_dataset(np.random.default_rng(0).standard_normal((8192, 10)), np.zeros((8192, 1)))
    clock = iter(range(10**6))
    with monkeypatch.context() as patch:
        patch.setattr("dkgp_benchmarks.sparse.contenders.blas", blas)
        patch.setattr("dkgp_benchmarks.sparse.contenders.available_cores", lambda: 1)
        patch.setattr("dkgp_benchmarks.sparse.contenders.time.perf_counter", lambda: float(next(clock)))
        found = bare_blas({"basis_size": 20, "scores": {"s": [4, 8]}}, dataset, Hyperparameters(KERNEL, NOISE))
    # One eighth of the pieces of the fit, and for the scores of five sizes each; a tick is the time of each.
    assert counted == [2.0 * 20 * 20 * 1024] + [2.0 * size * 8 * 1024 for size in (4, 7, 10, 13, 16)]
    assert found["gemm_seconds"] == 8.0
    assert found["score_seconds"] == {"s": 5 * 8.0}


def fake_python(folder: Path) -> Path:
    """An interpreter that has every peer."""
    fake = folder / "python"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    return fake


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_a_peer_runs_by_an_interpreter_that_has_it(problem: BenchProblem, tmp_path: Path) -> None:
    fake = fake_python(tmp_path)
    job = BenchSparseJob(
        problem=problem,
        methods=("vfe,basis=uniform", "vif,basis=uniform,neighbours=40"),
        sizes=(30,),
        cluster=HERE,
        peers=True,
        peer_pythons=(str(fake),),
        with_exact=False,
    )
    document = run_bench_sparse(job, SilentReporter())
    ours = row(document, "vfe,basis=uniform", 30)
    for peer in runner.PEERS:
        theirs = row(document, peer, 30)
        # The same kernel, noise, inducing points and scale.
        for name in ("rmse", "nlpd", "coverage"):
            assert theirs[name] == pytest.approx(ours[name], rel=1e-5)
        assert (theirs["solve_seconds"], theirs["peak_memory_bytes"]) == (1.5, 1)
        assert document["figures"][peer] == "fake"


@pytest.mark.long
@pytest.mark.usefixtures("contenders_in_process")
def test_peers_that_are_named_run_alone_and_others_are_refused(problem: BenchProblem, tmp_path: Path) -> None:
    job = BenchSparseJob(problem=problem, sizes=(20,), methods=("vfe",), cluster=HERE, with_exact=False)
    with pytest.raises(UsageError, match=r"there is no peer 'gpboost'; there are gpytorch-sgpr, .*gpboost-vif"):
        run_bench_sparse(replace(job, peer_names=("gpboost",)), SilentReporter())
    named = replace(job, peer_names=("gpboost-vif",), peer_pythons=(str(fake_python(tmp_path)),))
    document = run_bench_sparse(named, SilentReporter())
    assert [each["model"] for each in document["rows"]] == ["vfe", "gpboost-vif"]


def test_a_missing_peer_is_named_with_its_extra(problem: BenchProblem, tmp_path: Path) -> None:
    job = BenchSparseJob(problem=problem, sizes=(30,), peers=True)
    if any(interpreters.find_spec(peer.partition("-")[0]) is None for peer in runner.PEERS):
        with pytest.raises(MissingExtraError, match=r"pip install 'dkgp-benchmarks\[peers\]'"):
            run_bench_sparse(job, SilentReporter())
    with pytest.raises(UsageError, match="does not run"):
        run_bench_sparse(replace(job, peer_pythons=(str(tmp_path / "no-python"),)), SilentReporter())


def test_what_makes_no_sense_is_refused_before_any_work(problem: BenchProblem, tmp_path: Path) -> None:
    for text, said in (
        ("wrong", "`method` must be one of"),
        ("sggp,rank=3", "expected settings of basis"),
        ("sggp,screen=two", "screen is a number; got 'two'"),
        ("vfe,gap=0.1", "reached by a greedy basis"),
        ("sggp,per_round=-1", "at least 1"),
        ("vfe,basis=best", "`basis` must be one of"),
        ("sd,basis=k-means", "no samples"),
    ):
        with pytest.raises(UsageError, match=said):
            SparseSpec.read(text)
    taken = tmp_path / "taken.png"
    taken.write_text("mine")
    job = BenchSparseJob(problem=problem, cluster=HERE)
    with pytest.raises(OutputExistsError):
        run_bench_sparse(replace(job, plot=str(taken)), SilentReporter())
    for sizes in ((10, 301), (0,)):
        with pytest.raises(UsageError, match="1 to 300 samples"):
            run_bench_sparse(replace(job, sizes=sizes), SilentReporter())
        with pytest.raises(UsageError, match="1 to 300 samples"):
            run_bench_sparse_speed(replace(job, sizes=sizes[-1:]), SilentReporter())
    with pytest.raises(UsageError, match="there is no 'best'"):
        run_bench_sparse(replace(job, methods=("vfe",), bases=("best",)), SilentReporter())
    assert [spec.text for spec in replace(job, bases=("uniform", "k-means")).specs(("sd", "mpgp"))] == [
        "sd,basis=uniform",
        "mpgp",
    ]
    with pytest.raises(UsageError, match="different methods"):
        run_bench_sparse(replace(job, methods=("sr", "sr")), SilentReporter())
    with pytest.raises(UsageError, match="one size"):
        run_bench_sparse_speed(replace(job, sizes=(10, 20)), SilentReporter())
