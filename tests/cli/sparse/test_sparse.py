"""`dkgp sparse` from the command line: records, refusals before any work, exit codes, plots, resuming."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_dataset
from dkgp.data.stores.sparse.sparse_store import SparseRecord, open_sparse_model
from dkgp.models.sparse.train import SparseSettings
from tests.cli.conftest import refused
from tests.cli.test_finished import killed_at

Command = Callable[..., Any]
Process = tuple[list[str], dict[str, str]]

# Rounds enough for a signal to come in between.
LONG = ("--method", "sggp", "--basis-size", 120, "--per-round", 1, "--gap", 1e-9)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "sparse.zarr"


def sparse(pipeline: dict[str, Any], out: Path, *more: object) -> list[object]:
    return ["sparse", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", out, "--json", *more]


def same_model(found: SparseRecord, expected: SparseRecord) -> None:
    """To the last bit, and with the same certificate."""
    for name in ("prototypes", "weights", "lower", "normal", "indices"):
        assert np.asarray(getattr(found, name)).tobytes() == np.asarray(getattr(expected, name)).tobytes(), name
    assert found.certificate == expected.certificate
    assert [{**record, "seconds": 0} for record in found.history] == [
        {**record, "seconds": 0} for record in expected.history
    ]


def test_the_defaults_just_work_and_say_what_is_proven(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    result = run(*sparse(pipeline, out))
    found = document(result)
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


def test_the_record_for_people_names_the_bound_that_won(pipeline: dict[str, Any], run: Command, out: Path) -> None:
    command = [part for part in sparse(pipeline, out, "--basis-size", 40, "--quiet") if part != "--json"]
    shown = " ".join(run(*command).stdout.split())
    best = open_sparse_model(out).summary["best"][0]
    words = {"trace": "fits with more noise", "residual": "the residual's direction", "subset": "the exact model of a"}
    assert f"(by {words[best]}" in shown
    assert "vfe, 40 samples (pivoted)" in shown
    assert "KL from the exact posterior at most" in shown


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (
            ("--basis-size", 601),
            "a basis of 601 samples was asked for; there are 600. Give --basis-size 600 at most",
            3,
        ),
        (("--basis-size", 1000), "a basis of 1,000 samples was asked for; there are 600", 3),
        (("--basis-size", 0), "--basis-size must be at least 1; got 0", 3),
        (("--basis-size", "some"), "'some' is no number of basis samples", 2),
        (("--basis-size", "auto"), "auto grows until --target-distance or --gap is met", 2),
        (("--largest-basis", 300), "--largest-basis belongs to a basis that grows; give --basis-size auto", 2),
        (("--basis-size", "auto", "--gap", -1), "--gap must be positive; got -1", 3),
        (("--basis-size", "auto", "--gap", 0.1, "--largest-basis", 0), "the largest basis has one sample at least", 3),
        (("--gap", 0.1), "a duality gap is reached by a greedy basis; this one is pivoted. Choose --basis greedy", 3),
        (("--method", "sggp", "--gap", -1), "the duality gap must be positive; got -1", 3),
        (("--target-distance", 0), "--target-distance must be positive and finite; got 0", 3),
        (("--per-round", 2), "--per-round belongs to a greedy basis", 2),
        (("--score-rows", 50), "--score-rows belongs to a greedy basis", 2),
        (("--plot", "p.png"), "--plot shows a basis as it grows", 2),
        (("--given-basis", "b.npy", "--basis", "uniform"), "leave out --basis, or --given-basis", 2),
        (("--given-basis", "nowhere.npy"), "no file or folder at", 3),
        (("--method", "sggp", "--plot", "p.jpeg"), ".png", 3),
        (("--certify-passes", -1), "--certify-passes must not be negative", 3),
        (("--basis-size", 100, "--memory-limit", "1MiB"), "100 basis samples is projected to need", 3),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    pipeline: dict[str, Any], run: Command, out: Path, options: tuple[object, ...], words: str, code: int
) -> None:
    refused(run(*sparse(pipeline, out, *options)), words, exit_code=code)
    assert not list(out.parent.iterdir())


def test_a_basis_with_nan_is_refused_by_its_row(pipeline: dict[str, Any], run: Command, out: Path) -> None:
    basis = open_dataset(pipeline["ingest"]["train"]).raw_inputs(0, 5)
    basis[3, 2] = np.nan
    np.save(out.parent / "b.npy", basis)
    refused(run(*sparse(pipeline, out, "--given-basis", out.parent / "b.npy")), "has nan in row 4 of")
    assert not out.exists()


@pytest.mark.parametrize("place", ["b*.npy", ""])
def test_a_basis_is_read_from_the_one_place_that_is_named(
    pipeline: dict[str, Any], run: Command, out: Path, place: str
) -> None:
    np.save(out.parent / "b.npy", open_dataset(pipeline["ingest"]["train"]).raw_inputs(0, 5))
    refused(run(*sparse(pipeline, out, "--given-basis", out.parent / place)), "a basis is one file or store")
    assert not out.exists()


def test_a_given_basis_is_the_one_that_it_was_taken_from(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    first = document(run(*sparse(pipeline, out, "--method", "dtc", "--basis", "k-means", "--basis-size", 30)))
    again = out.parent / "again.zarr"
    second = document(run(*sparse(pipeline, again, "--method", "dtc", "--given-basis", out)))
    assert (first["basis"], second["basis"], second["basis_size"]) == ("k-means", "given", 30)
    assert second["certificate"] == first["certificate"]


def test_a_gap_and_a_distance_that_are_not_met_end_with_code_4_and_a_model(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    command = sparse(pipeline, out, "--method", "sggp", "--basis-size", 20, "--gap", 1e-6)
    found = document(run(*command), 4)
    assert not found["converged"]
    assert "20 basis samples chosen; the duality gap is" in found["reason"]
    assert found["checkpoint"] == f"{out}.checkpoint"
    assert any("not proven to be as near as was asked for" in warning for warning in found["warnings"])
    assert open_sparse_model(out).basis_size == 20
    # What was not met may be tried again; with the same settings it ends in the same way.
    same = document(run(*command, "--resume"), 4)
    assert same["certificate"] == found["certificate"]
    assert run(*command).exit_code == 3
    wide = document(run(*sparse(pipeline, out, "--basis-size", 20, "--target-distance", 1e-5, "--overwrite")), 4)
    assert wide["reason"].startswith(f"proven distance {max(wide['rms_bound']):.3g} > 1e-05")
    assert "--certify-passes" in wide["advice"]
    near = document(run(*sparse(pipeline, out, "--basis-size", 20, "--target-distance", 50, "--overwrite")))
    assert near["converged"]
    assert "<= 50" in near["reason"]


def test_a_gap_that_the_certificate_proves_in_the_end_is_met(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    loose = document(
        run(*sparse(pipeline, out, "--method", "sggp", "--basis-size", 60, "--certify-passes", 8, "--gap", 1e-9)), 4
    )
    chosen, proven = open_sparse_model(out).history[-1]["gap"], max(loose["gap"])
    assert proven < chosen  # by another bound than the choice's own
    between = 0.5 * (proven + chosen)
    options = ("--method", "sggp", "--basis-size", 60, "--certify-passes", 8, "--gap", between, "--overwrite")
    met = document(run(*sparse(pipeline, out, *options)))
    assert met["gap"] == loose["gap"]
    assert f"duality gap {proven:.3g} <= {between:.3g} is proven" in met["reason"]


def test_overconfidence_and_bounds_that_say_little_are_warned_of(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    found = document(run(*sparse(pipeline, out, "--method", "sr", "--basis-size", 3)))
    assert max(found["rms_bound"]) >= 0.5
    overconfident, little = found["warnings"]
    assert "the variances of --method sr are overconfident" in overconfident
    assert "says little: the targets' own mean is about as near" in little


def test_rounds_are_logged_and_drawn(pipeline: dict[str, Any], run: Command, document: Command, out: Path) -> None:
    plot, log = out.parent / "basis.png", out.parent / "basis.jsonl"
    options = ("--method", "mpgp", "--basis-size", 30, "--gap", 1e-5, "--plot", plot, "--log-json", log)
    found = document(run(*sparse(pipeline, out, *options)), 4)
    assert plot.read_bytes().startswith(b"\x89PNG")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, found["rounds"] + 1))
    assert records[-1]["size"] == 30
    assert all(record["risk"] >= record["least"] for record in records)


@pytest.mark.parametrize("method", ["vfe", "sggp"])
def test_a_basis_grows_until_the_distance_is_proven(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path, method: str
) -> None:
    plot, log = out.parent / "rungs.svg", out.parent / "rungs.jsonl"
    options = ("--method", method, "--basis-size", "auto", "--target-distance", 0.2, "--plot", plot, "--log-json", log)
    result = run(*sparse(pipeline, out, *options, "--largest-basis", 600))
    found = document(result)
    assert max(found["rms_bound"]) <= 0.2
    rungs = found["ladder"]["rungs"]
    assert rungs[-1]["size"] == found["basis_size"] == open_sparse_model(out).basis_size
    for rung in rungs:
        assert f"{rung['size']} basis samples: proven distance {rung['distance']:.3g}" in result.stderr
    assert b"asked for: 0.2" in plot.read_bytes() or b"<svg" in plot.read_bytes()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert records[-1]["size"] == found["basis_size"]
    assert not Path(f"{out}.checkpoint").exists()
    done = run(*sparse(pipeline, out, *options[:-2], "--largest-basis", 600, "--resume"))
    assert "was complete when an earlier run ended" in done.stderr
    assert document(done)["ladder"] == found["ladder"]
    again = run(*sparse(pipeline, out, *options[:5], 0.1, "--largest-basis", 600, "--resume"))
    refused(again, "is of a run with another target distance")


def test_a_ladder_that_ends_below_its_target_says_what_the_exact_model_would_take(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    command = sparse(pipeline, out, "--basis-size", "auto", "--gap", 1e-12, "--largest-basis", 64)
    found = document(run(*command), 4)
    assert found["basis_size"] == 64
    assert "the largest basis that was allowed" in found["reason"]
    words = found["ladder"]["exact"]["words"]
    assert "the exact model (cholesky) would take about" in words
    shown = run(*(part for part in command if part != "--json"), "--resume", "--quiet")
    assert shown.exit_code == 4
    words = open_sparse_model(out).summary["ladder"]["exact"]["words"]  # of seconds that were taken this time
    assert " ".join(words.split()) in " ".join(shown.stdout.split())


def test_a_finished_model_is_recognised_and_another_is_not(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    options = ("--method", "sggp", "--basis-size", 25)
    first = document(run(*sparse(pipeline, out, *options)))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    result = run(*sparse(pipeline, out, *options, "--resume"))
    done = document(result)
    assert "was complete when an earlier run ended" in result.stderr
    assert done["certificate"] == first["certificate"]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    for other, word in ((("--seed", 1), "seed"), (("--candidates", 9), "candidates")):
        result = run(*sparse(pipeline, out, *options, *other, "--resume"))
        refused(result, f"is of a run with another {word}", "exists")
    assert open_sparse_model(out).certificate == first["certificate"]


@pytest.mark.faults
@pytest.mark.parametrize("more", [(), ("--basis-size", "auto", "--largest-basis", 256)], ids=["choice", "ladder"])
def test_killed_at_random_moments_it_resumes_to_the_same_bits(
    pipeline: dict[str, Any], process: Process, run: Command, document: Command, out: Path, more: tuple[object, ...]
) -> None:
    long = (*LONG, *more)
    rng = np.random.default_rng(0)
    whole = out.parent / "whole.zarr"
    document(run(*sparse(pipeline, whole, *long)), 4)
    program, environment = process
    command = [*program, *map(str, sparse(pipeline, out, *long, "--checkpoint-every", 0))]
    killed, checkpoint = 0, Path(f"{out}.checkpoint")

    def saved() -> set[str]:
        return set(os.listdir(checkpoint)) if checkpoint.exists() else set()

    for _ in range(40):
        before = saved()
        running = subprocess.Popen([*command, "--resume"], env=environment, stderr=subprocess.PIPE)
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
    document(run(*sparse(pipeline, out, *long, "--resume")), 4)
    same_model(open_sparse_model(out), open_sparse_model(whole))


@pytest.mark.faults
@pytest.mark.parametrize(
    "place",
    [
        "dkgp.models.sparse.train:fit_sparse",
        "dkgp.data.stores.sparse.sparse_store:create_array",
        "dkgp.data.stores.sparse.sparse_store:commit",
        "dkgp.commands.sparse.run:_conclude",
    ],
)
def test_killed_after_the_choice_it_resumes_to_the_same_bits(
    pipeline: dict[str, Any], process: Process, run: Command, document: Command, out: Path, place: str
) -> None:
    options = ("--method", "sggp", "--basis-size", 40)
    document(run(*sparse(pipeline, out.parent / "whole.zarr", *options)))
    killed_at(process, place, sparse(pipeline, out, *options))
    result = run(*sparse(pipeline, out, *options, "--resume"))
    document(result)
    assert ("was complete" in result.stderr) == (place.endswith("_conclude"))
    assert not Path(f"{out}.checkpoint").exists()
    same_model(open_sparse_model(out), open_sparse_model(out.parent / "whole.zarr"))


@pytest.mark.faults
def test_ctrl_c_names_the_checkpoint_and_resumes_to_the_same_bits(
    pipeline: dict[str, Any], process: Process, run: Command, document: Command, out: Path
) -> None:
    log = out.parent / "log.jsonl"
    program, environment = process
    command = [*program, *map(str, sparse(pipeline, out, *LONG, "--log-json", log))]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60.0
    while time.monotonic() < until and not (log.exists() and log.read_bytes().count(b"\n") >= 5):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert f"state saved in {out}.checkpoint. Go on with the same command and --resume" in stderr
    assert json.loads(stdout)["error"]["checkpoint"] == f"{out}.checkpoint"
    assert not out.exists()
    document(run(*sparse(pipeline, out, *LONG, "--resume")), 4)
    whole = out.parent / "whole.zarr"
    document(run(*sparse(pipeline, whole, *LONG)), 4)
    same_model(open_sparse_model(out), open_sparse_model(whole))


def test_a_checkpoint_of_other_settings_is_refused(
    pipeline: dict[str, Any], run: Command, document: Command, out: Path
) -> None:
    options = ("--method", "sggp", "--basis-size", 10, "--gap", 1e-9)
    document(run(*sparse(pipeline, out, *options)), 4)
    shutil.rmtree(out)
    refused(run(*sparse(pipeline, out, *options, "--seed", 5, "--resume")), "belongs to another seed")
    assert not out.exists()


def test_every_setting_has_its_flag(run: Command) -> None:
    shown = run("sparse", "--help").stdout
    flags = {name.replace("_", "-") for name in SparseSettings.__dataclass_fields__}
    assert {flag for flag in flags if f"--{flag}" not in shown} == set()
