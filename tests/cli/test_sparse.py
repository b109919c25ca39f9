"""`dkgp sparse`, and what `predict`, `evaluate` and `info` make of its models: records, warnings, bounds and bases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_dataset, open_prediction, save_sparse_model
from dkgp.data.stores.models.regression import open_sparse_model
from dkgp.kernels import Matern32
from dkgp.models.exact import save, train
from dkgp.models.sparse.stored import sparse_record
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.cli.invoke import Places, Shell, document_of, run
from tests.cli.processes import ENVIRONMENT, PROGRAM
from tests.cli.runs import bits

SPARSE = "sparse @train --hyper @hyper --out @m"
# Rounds enough for a signal to come in between.
LONG = "--method sggp --basis-size 120 --per-round 1 --gap 1e-9"
VIF = f"{SPARSE} --method vif --basis-size 30"


# ------------------------------------------------------------------------------------------------------------ training


def test_the_defaults_just_work_and_say_what_is_proven(shell: Shell) -> None:
    result = shell.run(f"{SPARSE} --json")
    found = document_of(result)
    n = found["n"]
    assert f"the basis may have all {n} samples, because the default of 1,000 is more" in result.stderr
    assert (found["method"], found["basis"], found["settings"]["basis_size"]) == ("vfe", "pivoted", n)
    assert found["converged"]
    assert open_sparse_model(shell["m"]).summary["settings"] == found["settings"]
    # All samples, or as good as all: the exact mean, proven so in the targets' units too.
    assert max(found["rms_bound"]) < 1e-3
    spread = open_dataset(shell["train"]).standardisation.target_std
    np.testing.assert_allclose(found["rms_bound_raw"], found["rms_bound"] * spread, rtol=1e-15)
    assert found["elbo"] <= found["evidence_upper"]
    assert found["memory_plan"]["coordinator_bytes"] > 0
    assert found["peak_memory_bytes"] > 0
    assert found["warnings"] == []


def test_the_record_for_people_names_the_bound_that_won(shell: Shell) -> None:
    shown = shell.told(f"{SPARSE} --basis-size 40 --verbose")
    best = open_sparse_model(shell["m"]).summary["best"][0]
    words = {
        "trace": "a fit with larger noise",
        "residual": "a step along the residual",
        "subset": "the exact model of a",
    }
    for text in (
        f"proven by {words[best]}",
        "vfe, 40 samples (pivoted)",
        "KL divergence from the exact posterior at most",
    ):
        assert text in shown


def test_a_basis_is_read_from_the_one_place_that_is_named(shell: Shell) -> None:
    basis = open_dataset(shell["train"]).raw_inputs(0, 5)
    np.save(shell["b.npy"], basis)
    for place in ("b*.npy", ""):
        shell.refuses(f"{SPARSE} --given-basis {shell.folder}/{place}", "expected one file or store with a basis")
    basis[3, 2] = np.nan
    np.save(shell["b.npy"], basis)
    shell.refuses(f"{SPARSE} --given-basis @b.npy", "has nan in row 4 of")
    assert shell.names == {"b.npy"}


def test_a_given_basis_is_the_one_that_it_was_taken_from(shell: Shell) -> None:
    first = shell.json(f"{SPARSE} --method dtc --basis k-means --basis-size 30")
    second = shell.json(f"{SPARSE.replace('@m', '@again')} --method dtc --given-basis @m")
    assert (first["basis"], second["basis"], second["basis_size"]) == ("k-means", "given", 30)
    assert second["certificate"] == first["certificate"]


def test_a_gap_and_a_distance_that_are_not_met_end_with_code_4_and_a_model(shell: Shell) -> None:
    line = f"{SPARSE} --method sggp --basis-size 20 --gap 1e-6"
    found = shell.json(line, code=4)
    assert not found["converged"]
    assert "20 basis samples chosen; the duality gap is" in found["reason"]
    assert found["checkpoint"] == f"{shell['m']}.checkpoint"
    assert any("the requested distance is not proven" in warning for warning in found["warnings"])
    assert open_sparse_model(shell["m"]).basis_size == 20
    # What was not met may be tried again; with the same settings it ends in the same way.
    assert shell.json(f"{line} --resume", code=4)["certificate"] == found["certificate"]
    assert shell.run(line).exit_code == 3
    wide = shell.json(f"{SPARSE} --basis-size 20 --target-distance 1e-5 --overwrite", code=4)
    assert wide["reason"].startswith(f"proven distance {max(wide['rms_bound']):.3g} > 1e-05")
    assert "--certify-passes" in wide["advice"]
    near = shell.json(f"{SPARSE} --basis-size 20 --target-distance 50 --overwrite")
    assert near["converged"]
    assert "<= 50" in near["reason"]


@pytest.mark.long
def test_a_gap_that_the_certificate_proves_in_the_end_is_met(shell: Shell) -> None:
    line = f"{SPARSE} --method sggp --basis-size 60 --certify-passes 8 --overwrite --gap"
    loose = shell.json(f"{line} 1e-9", code=4)
    chosen, proven = open_sparse_model(shell["m"]).history[-1]["gap"], max(loose["gap"])
    assert proven < chosen  # by another bound than the choice's own
    between = 0.5 * (proven + chosen)
    met = shell.json(f"{line} {between}")
    assert met["gap"] == loose["gap"]
    assert f"duality gap {proven:.3g} <= {between:.3g} is proven" in met["reason"]


def test_overconfidence_and_bounds_that_say_little_are_warned_of(shell: Shell) -> None:
    found = shell.json(f"{SPARSE} --method sr --basis-size 3")
    assert max(found["rms_bound"]) >= 0.5
    overconfident, little = found["warnings"]
    assert "the variances of --method sr are too small" in overconfident
    assert "which says little: a constant prediction has an error of about 1" in little


def test_rounds_are_logged_and_drawn(shell: Shell) -> None:
    line = f"{SPARSE} --method mpgp --basis-size 30 --gap 1e-5 --plot @basis.png --log-json @log.jsonl"
    found = shell.json(line, code=4)
    assert shell["basis.png"].read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in shell["log.jsonl"].read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, found["rounds"] + 1))
    assert records[-1]["size"] == 30
    assert all(record["risk"] >= record["least"] for record in records)


@pytest.mark.long
@pytest.mark.parametrize("method", [pytest.param("vfe", marks=pytest.mark.slow), "sggp"])
def test_a_basis_grows_until_the_distance_is_proven(shell: Shell, method: str) -> None:
    line = f"{SPARSE} --method {method} --basis-size auto --target-distance 0.2 --largest-basis 600"
    result = shell.run(f"{line} --plot @rungs.svg --log-json @log.jsonl --json")
    found = document_of(result)
    assert max(found["rms_bound"]) <= 0.2
    rungs = found["ladder"]["rungs"]
    assert rungs[-1]["size"] == found["basis_size"] == open_sparse_model(shell["m"]).basis_size
    for rung in rungs:
        assert f"{rung['size']} basis samples: proven distance {rung['distance']:.3g}" in result.stderr
    drawn = shell["rungs.svg"].read_bytes()
    assert b"requested: 0.2" in drawn or b"<svg" in drawn
    assert json.loads(shell["log.jsonl"].read_text().splitlines()[-1])["size"] == found["basis_size"]


def test_a_ladder_that_ends_below_its_target_says_what_the_exact_model_would_take(shell: Shell) -> None:
    line = f"{SPARSE} --basis-size auto --gap 1e-12 --largest-basis 64"
    found = shell.json(line, code=4)
    assert found["basis_size"] == 64
    assert "the largest basis that was allowed" in found["reason"]
    assert "the exact model (cholesky) would take about" in found["ladder"]["exact"]["words"]
    shown = shell.told(f"{line} --resume", code=4)
    words = open_sparse_model(shell["m"]).summary["ladder"]["exact"]["words"]  # of seconds that were taken this time
    assert " ".join(words.split()) in shown


@pytest.mark.faults
@pytest.mark.parametrize("more", ["", "--basis-size auto --largest-basis 256"], ids=["choice", "ladder"])
def test_killed_at_random_moments_it_resumes_to_the_same_bits(shell: Shell, more: str) -> None:
    rng = np.random.default_rng(0)
    shell.json(f"{SPARSE.replace('@m', '@whole')} {LONG} {more}", code=4)
    command = [*PROGRAM, *shell.typed(f"{SPARSE} {LONG} {more} --json --checkpoint-every 0 --resume")]
    killed, checkpoint = 0, shell["m.checkpoint"]

    def saved() -> set[str]:
        return set(os.listdir(checkpoint)) if checkpoint.exists() else set()

    for _ in range(40):
        before = saved()
        running = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE)
        until = time.monotonic() + 60.0
        # From when this run has saved something of its own: how long it takes to start says nothing of where it stands.
        while saved() == before and running.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0.0, 0.3)))
        running.kill()
        if running.wait() in (0, 4):
            break
        killed += 1
        if killed == 4:
            break
    assert killed >= 2
    shell.json(f"{SPARSE} {LONG} {more} --resume", code=4)
    assert bits(shell["m"]) == bits(shell["whole"])


def test_every_setting_has_its_flag() -> None:
    shown = run("sparse", "--help").stdout
    flags = {name.replace("_", "-") for name in SparseSettings.__dataclass_fields__}
    assert {flag for flag in flags if f"--{flag}" not in shown} == set()


# ---------------------------------------------------------------------------------------------------------- neighbours


def test_with_neighbours_a_model_predicts_is_evaluated_and_told_of(shell: Shell) -> None:
    found = shell.json(f"{VIF} --neighbours 60")
    assert (found["method"], found["neighbours"], found["settings"]["neighbours"]) == ("vif", 60, 60)
    assert found["elbo"] is None
    assert np.isfinite(found["log_likelihood"])
    assert found["seconds_by_part"]["neighbours"] > 0.0
    assert shell.json("predict @m @test --out @p --variance")["variance"]["method"] == "vif"
    evaluated = shell.json("evaluate @p @test")
    assert evaluated["method"] == "vif"
    assert "rms_bound" not in evaluated
    # The basis alone, and the exact model, on the same data.
    shell.json("sparse @train --hyper @hyper --basis-size 30 --out @vfe")
    shell.json("predict @vfe @test --out @vfe.p")
    exact, mean, alone = (open_prediction(shell[name]).read("mean", 0, 40) for name in ("prediction", "p", "vfe.p"))
    bound = open_prediction(shell["p"]).read("mean_error_bound", 0, 40)
    assert np.sqrt(np.mean((mean - exact) ** 2)) < 0.5 * np.sqrt(np.mean((alone - exact) ** 2))
    assert (np.abs(mean - exact) <= bound + 1e-6).all()
    assert "variances by vif" in shell.told("evaluate @p @test")
    told = shell.json("info @m")
    assert (told["method"], told["basis_size"], told["elbo"]) == ("vif", 30, None)
    assert "mean of the basis certified within" in shell.told("info @m")
    # Without variances the mean is the same, and the bound another.
    assert shell.json("predict @m @test --out @lean")["variance"] is None
    np.testing.assert_array_equal(open_prediction(shell["lean"]).read("mean", 0, 40), mean)


def test_a_search_that_was_limited_is_told_of(shell: Shell) -> None:
    line = f"{VIF} --neighbours 20 --search-samples 45"
    share = shell.json(line)["neighbours_unproven"]
    assert 0.2 < share < 1.0
    words = f"samples whose neighbours may not be the nearest {100.0 * share:.3g} % (each search looked at 45 samples)"
    assert words in shell.told(f"{line} --overwrite")
    words = "each search looked at 45 samples at most, and is exact with more"
    assert words in shell.told("predict @m @test --out @p")


def test_what_is_finished_is_known_and_other_neighbours_are_another_run(shell: Shell) -> None:
    first = shell.json(VIF)
    assert shell.json(f"{VIF} --resume")["log_likelihood"] == first["log_likelihood"]
    shell.refuses(f"{VIF} --neighbours 60 --resume", "neighbours (its neighbours: 128; this run's: 60)")


@pytest.mark.slow
def test_worker_processes_make_and_predict_the_same_bits(shell: Shell) -> None:
    found = []
    for name, cluster in (("here", "--cluster none"), ("by-two", "--workers 2"), ("by-three", "--workers 3")):
        shell.json(f"{VIF.replace('@m', f'@{name}')} {cluster}")
        shell.json(f"predict @{name} @test --out @{name}.p {cluster}")
        record = open_sparse_model(shell[name])
        found.append((record.near_weights, record.near_normal, open_prediction(shell[f"{name}.p"]).read("mean")))
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, another)


# -------------------------------------------------------------------------------------------- predictions and variances


M, NOISE = 12, 0.02


@pytest.fixture(scope="module")
def rough(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Models by method of a function that is far too rough for the basis, a training set, and a test set."""
    folder, rng = tmp_path_factory.mktemp("rough"), np.random.default_rng(0)

    def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, 2))
        return X, 1e3 + 50.0 * (np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(n))

    dataset = dataset_from_arrays(folder / "train", *arrays(900), target_names=("height",))
    dataset_from_arrays(folder / "test", *arrays(1500), target_names=("height",), chunk_rows=400)
    return modelled(folder, dataset, Matern32(gamma=(3.0, 3.0), variance=1.0), NOISE, M, ("vfe", "sr", "sggp"))


def modelled(
    folder: Path, dataset: Dataset, kernel: Matern32, noise: float, m: int, methods: tuple[str, ...]
) -> Places:
    """An exact model and sparse ones, without the commands."""
    with closing(LocalExecutor(1)) as executor:
        for method in methods:
            trained = train_sparse(dataset, kernel, noise, executor, SparseSettings(method, m))
            save_sparse_model(folder / method, sparse_record(trained, dataset))
        save(train(dataset, kernel, noise, executor), str(folder / "exact"), dataset)
    return Places({name: lambda name=name: folder / name for name in ("train", "test", "exact", *methods)})


@contextmanager
def moved(shell: Shell) -> Iterator[None]:
    """The training set is elsewhere."""
    shutil.move(shell["train"], shell["elsewhere"])
    try:
        yield
    finally:
        shutil.move(shell["elsewhere"], shell["train"])


def test_subset_of_regressors_is_overconfident_and_said_to_be(rough: Places, tmp_path: Path) -> None:
    shell, told, found = Shell(tmp_path, rough), {}, {}
    with moved(shell):  # a sparse model needs no training set
        for method in ("vfe", "sr"):
            told[method] = shell.json(f"predict @{method} @test --out @{method}.p --cluster none --variance")
            found[method] = shell.json(f"evaluate @{method}.p @test")
            assert told[method]["n_support"] == M
            assert found[method]["method"] == method
            # Nobody's variance is wrong by what is proven: the subset of regressors' is the proven lower end itself.
            assert told[method]["variance"]["outside"] == found[method]["variance_outside"] == 0.0
        # Means alone mislead nobody.
        assert shell.json("predict @sr @test --out @means --cluster none")["warnings"] == []
    assert found["vfe"]["coverage_95"] > 0.9
    assert found["sr"]["coverage_95"] < found["vfe"]["coverage_95"] - 0.3
    assert found["sr"]["nlpd"] > found["vfe"]["nlpd"]
    for said in (told, found):
        assert said["vfe"]["warnings"] == []
        assert any(
            "variances by sr are too small: they are the lower ends" in warning for warning in said["sr"]["warnings"]
        )
    stored = open_prediction(shell["sr.p"])
    own, lower, upper = (stored.read(f"variance{end}") for end in ("", "_lower", "_upper"))
    np.testing.assert_allclose(own, lower, rtol=1e-6)
    assert np.mean(upper / own) > 2.0
    shown = shell.run("evaluate @sr.p @test")
    assert "sr (sparse model); all within the certified intervals of the exact variances" in shown.stdout
    assert "variances by sr" in shown.stderr


@pytest.mark.long
def test_the_distance_that_is_reported_is_no_less_than_that_of_the_exact_model(rough: Places, tmp_path: Path) -> None:
    shell = Shell(tmp_path, rough)
    exact = shell.json("predict @exact @test --out @exact.p --cluster none --variance")
    assert "method" not in shell.json("evaluate @exact.p @test")
    shell.json("predict @vfe @test --out @p --cluster none --variance")
    found, proven = shell.json("evaluate @p @test"), shell.json("info @vfe")
    sparse, whole = (open_prediction(shell[name]) for name in ("p", "exact.p"))
    std = float(open_dataset(shell["train"]).standardisation.target_std[0])
    off, slack = np.abs(sparse.read("mean") - whole.read("mean")) / std, exact["largest_mean_error_bound"] / std
    assert np.sqrt(np.mean(off**2)) <= found["mean_error_bound_rms"] + slack
    assert off.max() <= found["mean_error_bound"] + slack
    assert found["mean_error_bound_rms"] <= found["mean_error_bound"]
    assert found["rms_bound"] == pytest.approx(proven["rms_bound"][0])
    assert sparse.attributes["rms_bound_raw"] == proven["rms_bound_raw"]
    assert (sparse.read("variance_lower") <= whole.read("variance_upper")).all()
    assert (whole.read("variance_lower") <= sparse.read("variance_upper")).all()


def test_info_tells_what_is_proven(rough: Places, tmp_path: Path) -> None:
    shell = Shell(tmp_path, rough)
    found = shell.json("info @sggp")
    assert (found["kind"], found["method"], found["basis"]) == ("sparse model", "sggp", "greedy")
    assert (found["basis_size"], found["n"], found["d"], found["p"], found["targets"]) == (M, 900, 2, 1, ["height"])
    std = open_dataset(shell["train"]).standardisation.target_std
    np.testing.assert_allclose(found["rms_bound_raw"], np.asarray(found["rms_bound"]) * std, rtol=1e-12)
    assert found["rms_bound"] == found["summary"]["rms_bound"] == found["certificate"]["rms_bound"]
    assert found["gap"] == found["summary"]["gap"]
    assert found["elbo"] <= found["evidence_upper"] <= found["elbo"] + found["divergence"] + 1e-6
    assert found["best"][0] in found["certificate"]["least_risk"]
    assert found["rounds"] == M == found["last_round"]["round"]
    assert 8 * (2 * M**2 + M * 3) < found["stored_bytes"] < 40_000
    shown = shell.run("info @sggp --verbose").stdout
    for words in (
        "sggp, 12 samples (greedy)",
        "mean certified within",
        "duality gap",
        "KL divergence from the exact",
    ):
        assert words in shown
    shell.refuses("predict @test @test --out @p", "dataset store")
    assert shell.names == set()


# ----------------------------------------------------------------------------------------------- bases for each sample


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """An exact model and sparse ones, with the variances of nine new observations by dense algebra."""
    folder, rng = tmp_path_factory.mktemp("bases"), np.random.default_rng(0)

    def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, 2))
        return X, 50.0 * np.sin(2.0 * X[:, 0]) + rng.standard_normal(n)

    data, kernel, noise = dataset_from_arrays(folder / "train", *arrays(300)), Matern32((2.0, 2.0), 1.0), 0.05
    test = dataset_from_arrays(folder / "test", *arrays(9)).with_standardisation(data.standardisation)
    X, T = data.inputs(0, 300), test.inputs(0, 9)
    k = kernel(X, T)
    explained = np.sum(k * np.linalg.solve(kernel(X, X) + noise * np.eye(300), k), axis=0)
    dense = (1.0 + noise - explained) * float(data.standardisation.target_std[0]) ** 2
    return Places({**modelled(folder, data, kernel, noise, 15, ("vfe", "sr")).makers, "dense": lambda: dense})


WITH_BASES = "--cluster none --variance --variance-basis"


@pytest.mark.parametrize("model", ["exact", "vfe"])
def test_intervals_by_bases_hold_the_exact_variance(model: str, bases: Places, tmp_path: Path) -> None:
    shell, dense = Shell(tmp_path, bases), bases["dense"]
    told = shell.json(f"predict @{model} @test --out @p {WITH_BASES} 200 --variance-gap 0.01")
    figures = told["variance"]
    assert (figures["basis"], figures["basis_gap"], figures["met"], figures["unmet"]) == (200, 0.01, 9, 0)
    assert 1.0 < figures["kernels_mean"] <= figures["kernels_max"] < 200
    stored = open_prediction(shell["p"])
    lower, upper, variance = (stored.read(f"variance{end}")[:, 0] for end in ("_lower", "_upper", ""))
    assert (lower <= dense * (1.0 + 1e-12)).all()
    assert (dense <= upper * (1.0 + 1e-12)).all()
    if model == "exact":
        assert np.array_equal(variance, lower + 0.5 * (upper - lower))
        assert told["warnings"] == []
        return
    shell.json("predict @vfe @test --out @plain --cluster none --variance")
    before = open_prediction(shell["plain"])
    was = (before.read("variance_upper") - before.read("variance_lower"))[:, 0]
    assert (upper - lower <= was).all()
    assert np.sum(upper - lower) < 0.5 * np.sum(was)
    assert np.array_equal(before.read("variance")[:, 0], variance)
    judged = shell.json("evaluate @p @test")
    assert judged["variance_gap_max"] == pytest.approx(np.max((upper - lower) / upper))


def test_tables_and_warnings_of_bases(bases: Places, tmp_path: Path) -> None:
    shell = Shell(tmp_path, bases)
    told = shell.told(f"predict @exact @test --out @p {WITH_BASES} 2")
    for words in (
        "basis of each variance",
        "a basis of its own, up to 2 of 300 samples",
        "raise --variance-basis (now 2)",
    ):
        assert words in told
    # Its own variances are too small, of which narrow intervals are proof.
    told = shell.told(f"predict @sr @test --out @s {WITH_BASES} 200 --variance-gap 0.002")
    assert "basis of each variance" in told
    assert "proven to be wrong" in told
    with moved(shell):  # a sparse model does not have its own
        shell.refuses(f"predict @vfe @test --out @q {WITH_BASES} 5", "refers to its training set at")
    assert shell.names == {"p", "s"}
