"""`dkgp bench certify`: certified labels counted against dense solutions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError
from dkgp.solvers import GreedyBlockCoordinateDescent
from dkgp_benchmarks.certify import equality, likelihood
from dkgp_benchmarks.certify import exact as certify
from dkgp_benchmarks.certify.dense import averaged_logit, latent_variances, logit_mode, softmax_mode
from dkgp_benchmarks.certify.job import run_bench_certify
from dkgp_benchmarks.certify.problems import BenchCertifyJob, Judged, spirals


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    X = rng.standard_normal((260, 3))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(260) > 0.0, 1, -1)
    np.savez(tmp_path / "plain.npz", X=X, y=y)
    np.savez(tmp_path / "masked.npz", X=X, y=y, test_mask=np.arange(260) >= 200)
    np.savez(tmp_path / "odd.npz", X=X, y=y[:100])
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    return tmp_path


def test_no_certified_label_is_wrong(folder: Path, tmp_path: Path) -> None:
    job = BenchCertifyJob(
        str(folder), ("plain", "masked"), subset=100, own_units=True, svm=True, out=str(tmp_path / "certify.json")
    )
    document = run_bench_certify(job, SilentReporter())
    rows = {row["data"]: row for row in document["rows"]}
    assert (rows["plain"]["n_test"], rows["masked"]["n_test"]) == (86, 60)
    for row in rows.values():
        assert row["converged"]
        assert row["judged"] == 2 * row["n_test"]
        assert row["n_test"] < row["judged_certified"] <= row["judged"]
        assert row["wrong"] == row["beyond"] == 0
        assert row["certified"] > 0.9
        assert row["error"] < 0.3
        assert abs(row["error"] - row["svc_error"]) < 0.15
    assert document["figures"] == {
        name: sum(row[name] for row in rows.values()) for name in ("judged", "judged_certified", "wrong", "beyond")
    }
    assert json.loads((tmp_path / "certify.json").read_text())["benchmark"] == "certify"


def test_a_feature_that_hardly_ever_varies(
    folder: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by fewer samples than have it."""
    X = np.column_stack([rng.standard_normal((90, 2)), np.arange(90) == 5])
    np.savez(folder / "rare.npz", X=X, y=np.where(X[:, 0] > 0.0, 1, -1), test_mask=np.arange(90) >= 60)
    monkeypatch.setattr(certify, "JUDGED", 10)
    job = BenchCertifyJob(str(folder), ("rare",), isotropic=True)
    figures = run_bench_certify(job, SilentReporter())["figures"]
    assert (figures["judged"], figures["wrong"], figures["beyond"]) == (60, 0, 0)


def test_a_wrong_certificate_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are a thousandth of the proven ones are found out."""
    true = certify.certified_decisions

    def narrow(*given: object) -> tuple[np.ndarray, np.ndarray]:
        decisions, bounds = true(*given)  # type: ignore[arg-type]
        return decisions, 1e-3 * bounds

    monkeypatch.setattr(certify, "certified_decisions", narrow)
    # A block of all of so few samples would leave no error that a bound is needed for.
    monkeypatch.setattr(certify, "GreedyBlockCoordinateDescent", lambda: GreedyBlockCoordinateDescent(block_size=40))
    job = BenchCertifyJob(str(folder), ("plain",), subset=100, isotropic=True)
    figures = run_bench_certify(job, SilentReporter())["figures"]
    assert figures["beyond"] > 0


def test_arms_of_the_spirals(rng: np.random.Generator) -> None:
    inputs, codes = spirals(3000, rng)
    assert inputs.shape == (3000, 2)
    assert np.bincount(codes).min() > 900


def test_counts_add_up() -> None:
    assert Judged(1, 2, 3, 4) + Judged(10, 20, 30, 40) == Judged(11, 22, 33, 44)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("odd", r"X of shape \(260, 3\) and y of shape \(100,\); expected"),
        ("broken", "is no NPZ file with X and y"),
        ("missing", "is no NPZ file with X and y"),
    ],
)
def test_files_that_are_refused(folder: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_bench_certify(BenchCertifyJob(str(folder), (name,)), SilentReporter())


def test_a_name_without_a_folder_is_refused() -> None:
    with pytest.raises(InputError, match="'adult' is a file in a folder of data sets; give `data`, or take 'spirals'"):
        run_bench_certify(BenchCertifyJob(problems=("adult",)), SilentReporter())


@pytest.mark.long
@pytest.mark.parametrize("method", ["logistic", "gp"])
def test_proofs_of_likelihoods_hold(folder: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "MOST", 120)
    monkeypatch.setattr(likelihood, "MOST_TESTS", 50)
    monkeypatch.setattr(equality, "SAMPLES", 100)
    monkeypatch.setattr(equality, "TESTS", 20)
    job = BenchCertifyJob(str(folder), ("masked",), method=method, subset=80, isotropic=True)
    document = run_bench_certify(job, SilentReporter())
    tight, loose, early = document["rows"]
    assert [row["stopped"] for row in (tight, loose, early)] == ["tightly", "loosely", "early"]
    assert tight["judged"] == 50
    assert tight["judged_certified"] > 45
    # By which method differs, and so passes say little of how far one came.
    assert early["column_passes"] <= min(tight["column_passes"], loose["column_passes"])
    assert tight["width"] < loose["width"]
    assert all(row[name] == 0 for row in document["rows"] for name in ("wrong", "beyond", "outside"))
    assert document["figures"]["judged"] == 150
    if method == "gp":
        (section,) = document["sections"]
        assert (section["figures"]["holds"], section["figures"]["of"]) == (4, 4)
        assert all(row["difference"] > 0.0 for row in section["rows"][:1])

    exact = likelihood.exact_solution

    def shifted(*given: Any) -> likelihood.Exact:
        found = exact(*given)
        return likelihood.Exact(
            found.decisions + 0.01, np.clip(found.probabilities + np.array([-0.01, 0.01]), 0.0, 1.0), 0.0
        )

    monkeypatch.setattr(likelihood, "exact_solution", shifted)
    figures = run_bench_certify(job, SilentReporter())["figures"]
    assert figures["beyond"] >= 50
    assert figures["outside"] >= 45


def test_dense_references_against_scikit_learn(rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 2))
    codes = (X[:, 0] * X[:, 1] + 0.5 * rng.standard_normal(80) > 0.0).astype(np.int64)
    kernel = RBF(0.8)
    K = kernel(X)
    theirs = GaussianProcessClassifier(kernel, optimizer=None).fit(X, codes)
    mode = logit_mode(K, 2.0 * codes[:, None] - 1.0, 1.0)
    np.testing.assert_allclose(mode.values[:, 0], theirs.base_estimator_.f_cached, rtol=1e-9)
    tests = rng.standard_normal((20, 2))
    across, p = kernel(tests, X), expit(mode.values[:, 0])
    variance = latent_variances(K, across, np.ones(20), p * (1.0 - p))
    averaged = averaged_logit((across @ mode.alpha)[:, 0], variance)
    # Theirs is a mixture of five error functions.
    np.testing.assert_allclose(averaged, theirs.predict_proba(tests)[:, 1], atol=1e-3)
    hot = np.eye(3)[rng.integers(0, 3, 80)]
    several = softmax_mode(K, hot, 0.5)
    np.testing.assert_allclose(softmax(several.values, axis=1) - hot + 0.5 * several.alpha, 0.0, atol=1e-12)
