"""`dkgp sparse` from the command line: records, refusals before any work, exit codes, plots, resuming."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_dataset
from dkgp.data.stores.models.regression import open_sparse_model
from dkgp.models.sparse.train import SparseSettings
from tests.cli.invoke import document_of, refused, run, run_json
from tests.cli.processes import ENVIRONMENT, PROGRAM
from tests.cli.runs import bits

# Rounds enough for a signal to come in between.
LONG = ("--method", "sggp", "--basis-size", 120, "--per-round", 1, "--gap", 1e-9)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "sparse.zarr"


def sparse(pipeline: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["sparse", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", out, "--json", *more]


def test_the_defaults_just_work_and_say_what_is_proven(pipeline: dict[str, Any], out: Path) -> None:
    result = run(*sparse(pipeline, out))
    found = document_of(result)
    n = found["n"]
    assert f"the basis is all {n} samples: the default of 1,000 is more than there are" in result.stderr
    assert (found["method"], found["basis"], found["settings"]["basis_size"]) == ("vfe", "pivoted", n)
    assert found["converged"]
    record = open_sparse_model(out)
    assert record.summary["settings"] == found["settings"]
    # All samples, or as good as all: the exact mean, proven so in the targets' units too.
    assert max(found["rms_bound"]) < 1e-3
    spread = open_dataset(pipeline["ingest"]["train"]).standardisation.target_std
    np.testing.assert_allclose(found["rms_bound_raw"], found["rms_bound"] * spread, rtol=1e-15)
    assert found["elbo"] <= found["evidence_upper"]
    assert found["memory_plan"]["coordinator_bytes"] > 0
    assert found["peak_memory_bytes"] > 0
    assert found["warnings"] == []


def test_the_record_for_people_names_the_bound_that_won(pipeline: dict[str, Any], out: Path) -> None:
    command = [part for part in sparse(pipeline, out, "--basis-size", 40, "--verbose") if part != "--json"]
    shown = " ".join(run(*command).stdout.split())
    best = open_sparse_model(out).summary["best"][0]
    words = {"trace": "fits with more noise", "residual": "the residual's direction", "subset": "the exact model of a"}
    assert f"(proven by {words[best]}" in shown
    assert "vfe, 40 samples (pivoted)" in shown
    assert "KL from the exact posterior at most" in shown


def test_a_basis_with_nan_is_refused_by_its_row(pipeline: dict[str, Any], out: Path) -> None:
    basis = open_dataset(pipeline["ingest"]["train"]).raw_inputs(0, 5)
    basis[3, 2] = np.nan
    np.save(out.parent / "b.npy", basis)
    refused(run(*sparse(pipeline, out, "--given-basis", out.parent / "b.npy")), "has nan in row 4 of")
    assert not out.exists()


@pytest.mark.parametrize("place", ["b*.npy", ""])
def test_a_basis_is_read_from_the_one_place_that_is_named(pipeline: dict[str, Any], out: Path, place: str) -> None:
    np.save(out.parent / "b.npy", open_dataset(pipeline["ingest"]["train"]).raw_inputs(0, 5))
    refused(run(*sparse(pipeline, out, "--given-basis", out.parent / place)), "a basis is one file or store")
    assert not out.exists()


def test_a_given_basis_is_the_one_that_it_was_taken_from(pipeline: dict[str, Any], out: Path) -> None:
    first = run_json(*sparse(pipeline, out, "--method", "dtc", "--basis", "k-means", "--basis-size", 30))
    again = out.parent / "again.zarr"
    second = run_json(*sparse(pipeline, again, "--method", "dtc", "--given-basis", out))
    assert (first["basis"], second["basis"], second["basis_size"]) == ("k-means", "given", 30)
    assert second["certificate"] == first["certificate"]


def test_a_gap_and_a_distance_that_are_not_met_end_with_code_4_and_a_model(pipeline: dict[str, Any], out: Path) -> None:
    command = sparse(pipeline, out, "--method", "sggp", "--basis-size", 20, "--gap", 1e-6)
    found = run_json(*command, exit_code=4)
    assert not found["converged"]
    assert "20 basis samples chosen; the duality gap is" in found["reason"]
    assert found["checkpoint"] == f"{out}.checkpoint"
    assert any("not proven to be as near as was asked for" in warning for warning in found["warnings"])
    assert open_sparse_model(out).basis_size == 20
    # What was not met may be tried again; with the same settings it ends in the same way.
    same = run_json(*command, "--resume", exit_code=4)
    assert same["certificate"] == found["certificate"]
    assert run(*command).exit_code == 3
    wide = run_json(*sparse(pipeline, out, "--basis-size", 20, "--target-distance", 1e-5, "--overwrite"), exit_code=4)
    assert wide["reason"].startswith(f"proven distance {max(wide['rms_bound']):.3g} > 1e-05")
    assert "--certify-passes" in wide["advice"]
    near = run_json(*sparse(pipeline, out, "--basis-size", 20, "--target-distance", 50, "--overwrite"))
    assert near["converged"]
    assert "<= 50" in near["reason"]


def test_a_gap_that_the_certificate_proves_in_the_end_is_met(pipeline: dict[str, Any], out: Path) -> None:
    loose = run_json(
        *sparse(pipeline, out, "--method", "sggp", "--basis-size", 60, "--certify-passes", 8, "--gap", 1e-9),
        exit_code=4,
    )
    chosen, proven = open_sparse_model(out).history[-1]["gap"], max(loose["gap"])
    assert proven < chosen  # by another bound than the choice's own
    between = 0.5 * (proven + chosen)
    options = ("--method", "sggp", "--basis-size", 60, "--certify-passes", 8, "--gap", between, "--overwrite")
    met = run_json(*sparse(pipeline, out, *options))
    assert met["gap"] == loose["gap"]
    assert f"duality gap {proven:.3g} <= {between:.3g} is proven" in met["reason"]


def test_overconfidence_and_bounds_that_say_little_are_warned_of(pipeline: dict[str, Any], out: Path) -> None:
    found = run_json(*sparse(pipeline, out, "--method", "sr", "--basis-size", 3))
    assert max(found["rms_bound"]) >= 0.5
    overconfident, little = found["warnings"]
    assert "the variances of --method sr are overconfident" in overconfident
    assert "says little: the targets' own mean is about as near" in little


def test_rounds_are_logged_and_drawn(pipeline: dict[str, Any], out: Path) -> None:
    plot, log = out.parent / "basis.png", out.parent / "basis.jsonl"
    options = ("--method", "mpgp", "--basis-size", 30, "--gap", 1e-5, "--plot", plot, "--log-json", log)
    found = run_json(*sparse(pipeline, out, *options), exit_code=4)
    assert plot.read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, found["rounds"] + 1))
    assert records[-1]["size"] == 30
    assert all(record["risk"] >= record["least"] for record in records)


@pytest.mark.parametrize("method", [pytest.param("vfe", marks=pytest.mark.slow), "sggp"])
def test_a_basis_grows_until_the_distance_is_proven(pipeline: dict[str, Any], out: Path, method: str) -> None:
    plot, log = out.parent / "rungs.svg", out.parent / "rungs.jsonl"
    options = ("--method", method, "--basis-size", "auto", "--target-distance", 0.2, "--plot", plot, "--log-json", log)
    result = run(*sparse(pipeline, out, *options, "--largest-basis", 600))
    found = document_of(result)
    assert max(found["rms_bound"]) <= 0.2
    rungs = found["ladder"]["rungs"]
    assert rungs[-1]["size"] == found["basis_size"] == open_sparse_model(out).basis_size
    for rung in rungs:
        assert f"{rung['size']} basis samples: proven distance {rung['distance']:.3g}" in result.stderr
    assert b"asked for: 0.2" in plot.read_bytes() or b"<svg" in plot.read_bytes()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert records[-1]["size"] == found["basis_size"]


def test_a_ladder_that_ends_below_its_target_says_what_the_exact_model_would_take(
    pipeline: dict[str, Any], out: Path
) -> None:
    command = sparse(pipeline, out, "--basis-size", "auto", "--gap", 1e-12, "--largest-basis", 64)
    found = run_json(*command, exit_code=4)
    assert found["basis_size"] == 64
    assert "the largest basis that was allowed" in found["reason"]
    words = found["ladder"]["exact"]["words"]
    assert "the exact model (cholesky) would take about" in words
    shown = run(*(part for part in command if part != "--json"), "--resume", "--quiet")
    assert shown.exit_code == 4
    words = open_sparse_model(out).summary["ladder"]["exact"]["words"]  # of seconds that were taken this time
    assert " ".join(words.split()) in " ".join(shown.stdout.split())


@pytest.mark.faults
@pytest.mark.parametrize("more", [(), ("--basis-size", "auto", "--largest-basis", 256)], ids=["choice", "ladder"])
def test_killed_at_random_moments_it_resumes_to_the_same_bits(
    pipeline: dict[str, Any], out: Path, more: tuple[object, ...]
) -> None:
    long = (*LONG, *more)
    rng = np.random.default_rng(0)
    whole = out.parent / "whole.zarr"
    run_json(*sparse(pipeline, whole, *long), exit_code=4)
    command = [*PROGRAM, *map(str, sparse(pipeline, out, *long, "--checkpoint-every", 0))]
    killed, checkpoint = 0, Path(f"{out}.checkpoint")

    def saved() -> set[str]:
        return set(os.listdir(checkpoint)) if checkpoint.exists() else set()

    for _ in range(40):
        before = saved()
        running = subprocess.Popen([*command, "--resume"], env=ENVIRONMENT, stderr=subprocess.PIPE)
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
    run_json(*sparse(pipeline, out, *long, "--resume"), exit_code=4)
    assert bits(out) == bits(whole)


def test_every_setting_has_its_flag() -> None:
    shown = run("sparse", "--help").stdout
    flags = {name.replace("_", "-") for name in SparseSettings.__dataclass_fields__}
    assert {flag for flag in flags if f"--{flag}" not in shown} == set()
