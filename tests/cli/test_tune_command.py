"""`dkgp tune` from the command line: its options, its document and table, its picture, and what it refuses."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.data import open_dataset
from dkgp.models import read_hyperparameters
from tests.cli.invoke import run, run_json


@pytest.fixture(scope="module")
def train(pipeline: dict[str, Any]) -> str:
    return str(pipeline["ingest"]["train"])


@pytest.fixture
def tuned(train: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the command with small subsets; its document."""

    def tune(*options: object, out: str = "hyper.json") -> dict[str, Any]:
        return run_json("tune", train, "--out", tmp_path / out, "--subset", 60, *options)

    return tune


def without_time(found: dict[str, Any]) -> dict[str, Any]:
    left_out = ("seconds", "peak_memory_bytes", "out")
    return {name: value for name, value in found.items() if name not in left_out}


def test_subsets_on_any_cluster_give_the_same_file(tuned: Callable[..., dict[str, Any]]) -> None:
    options = ("--subsets", 3, "--folds", 4, "--holdout", 0.5)
    reference = tuned(*options, "--cluster", "none", "--workers", 1)
    assert (reference["subsets"], reference["subset_size"]) == (3, 60)
    assert reference["scores"]["folds"]["predictions"] == 180
    assert reference["scores"]["holdout"]["rows"] == 30
    other = tuned(*options, "--cluster", "local", "--workers", 2, out="other.json")
    assert without_time(other) == without_time(reference)


def test_what_is_printed_is_what_is_written(tuned: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    found = tuned("--kernel", "matern32 + linear", "--objective", "loo", "--prior", "*gamma*=lognormal(0.1, 1)")
    written = json.loads((tmp_path / "hyper.json").read_text())
    assert {name: found[name] for name in written if name != "warnings"} == {
        name: value for name, value in written.items() if name != "warnings"
    }
    assert (found["objective"], found["kernel"]["type"]) == ("loo", "sum")
    assert {"leave_one_out_log_likelihood", "log_prior"} <= set(written)
    assert "log_marginal_likelihood" not in written
    hyper = read_hyperparameters(tmp_path / "hyper.json", n_features=6)
    assert hyper.parameters is not None
    assert [parameter.name for parameter in hyper.parameters] == [item["name"] for item in written["parameters"]]


def test_bounds_fixed_values_and_a_start(tuned: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    first = tuned("--bounds", "gamma*=0.01:0.5", "--fix", "noise_variance=0.05", "--bounds", "gamma.f=0.2:0.3")
    told = {item["name"]: item for item in first["parameters"]}
    assert first["noise_variance"] == pytest.approx(0.05)
    assert told["noise_variance"]["fixed"] is True
    assert (told["gamma.f"]["lower"], told["gamma.f"]["upper"]) == pytest.approx((0.2, 0.3))
    assert all(0.0099 <= told[f"gamma.{name}"]["value"] <= 0.51 for name in "abcde")
    second = tuned("--start", tmp_path / "hyper.json", out="second.json")
    started = {item["name"]: item["start"] for item in second["parameters"]}
    assert started == pytest.approx({name: item["value"] for name, item in told.items()})


def test_the_table_shows_names_scales_and_scores(train: str, tmp_path: Path) -> None:
    options = ("--subset", 60, "--subsets", 2, "--folds", 3, "--kernel", "rbf['a', 'd'] + linear")
    result = run("tune", train, "--out", tmp_path / "hyper.json", *options)
    assert result.exit_code == 0, result.stderr
    for text in ("2 of 60 samples", "log marginal likelihood", "gamma", "length scale", "3 folds", "RMSE", "NLPD"):
        assert text in result.stdout
    assert "2 subsets of 60 of 600 samples" in result.stderr


@pytest.mark.parametrize("kernel", ["rbf", "linear + constant", "rbf(isotropic=True) * periodic['a']"])
def test_a_picture_is_drawn_of_any_kernel(tuned: Callable[..., dict[str, Any]], tmp_path: Path, kernel: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sub" / "scales.svg"
    options = ("--kernel", kernel, "--plot", picture, "--folds", 2, "--fix", "noise_variance=0.1")
    assert tuned(*options, out="a.json")["plot"] == str(picture)
    drawn = picture.read_text()
    assert drawn.startswith("<?xml")
    assert len(drawn) > 5000


def test_options_given_several_times_stand_in_a_batch_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    given = ("--bounds", "gamma*=0.1:1", "--bounds", "variance=1:2", "--prior", "gamma*=lognormal(0.1, 1)")
    result = run(
        *("submit", "--slurm", "--write-only", script, "tune", "/d", "--out", "/h.json", "--start", "/s.json"), *given
    )
    assert result.exit_code == 0, result.stderr
    words = shlex.split(next(line for line in script.read_text().splitlines() if line.startswith("command=(")))
    for option, value in zip(given[::2], given[1::2], strict=True):
        assert any(pair == (option, value) for pair in pairwise(words))


def test_more_memory_than_there_is_is_refused_with_numbers(
    train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.commands.tune.available_bytes", lambda: 2_500_000)
    given = ("tune", train, "--out", tmp_path / "hyper.json", "--subset", 200)
    assert run(*given).exit_code == 0  # two matrices of 200 x 200 and three block columns are 1,600,000 bytes
    result = run(*given, "--overwrite", "--subsets", 3, "--workers", 2)
    assert result.exit_code != 0
    for text in ("200 samples, 2 of 3 subsets at a time", "2,500,000 bytes are available", "--subset", "--workers"):
        assert text in " ".join(result.stderr.split())


def test_the_job_runs_as_the_command_does(train: str, tuned: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    job = TuneJob(
        train,
        str(tmp_path / "job.json"),
        kernel="matern52",
        subset=60,
        subsets=2,
        bounds=("gamma*=0.001:100",),
        priors=("noise_variance=lognormal(0.1, 1)",),
    )
    options = ("--kernel", "matern52", "--subsets", 2, "--bounds", "gamma*=0.001:100")
    command = tuned(*options, "--prior", "noise_variance=lognormal(0.1, 1)")
    assert without_time(run_tune(job, SilentReporter())) == without_time(command)
    assert open_dataset(train).n_samples == command["n_samples"]


def test_a_bound_that_stopped_the_search_is_named_where_it_ends(tmp_path: Path) -> None:
    """Each row twice: in the table, in the warning on the terminal and in the document."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (80, 2))
    y = np.sin(3.0 * X[:, 0]) + 0.3 * rng.standard_normal(80)
    np.savez(tmp_path / "twice.npz", X=np.repeat(X, 2, axis=0), y=np.repeat(y, 2))
    train, out = tmp_path / "train.zarr", tmp_path / "hyper.json"
    assert run("ingest", tmp_path / "twice.npz", train, "--target", "y").exit_code == 0
    shown = run("tune", train, "--out", out)
    assert shown.exit_code == 0
    printed = " ".join(shown.stdout.split())
    assert "converged no: noise_variance stopped at its lower bound, 1e-06" in printed
    assert "80 of the 160 samples repeat another one, target included" in " ".join(shown.stderr.split())
    document = json.loads(out.read_text())
    assert document["converged"] is False
    assert document["projected_gradient"] < 0.1
    told = {item["name"]: item for item in document["parameters"]}
    assert (told["noise_variance"]["bound"], told["noise_variance"]["pressed"]) == ("lower", True)
    wider = run("tune", train, "--out", out, "--overwrite", "--fix", "noise_variance=0.1")
    assert "converged yes" in " ".join(wider.stdout.split())
