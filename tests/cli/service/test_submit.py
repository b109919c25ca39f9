"""`dkgp submit`: the command's own options as a job, for the service and for SLURM."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from dkgp.cli.service import OF_SUBMISSION, SUBMITTABLE, of_cluster, submit
from dkgp.commands.ingest import IngestJob
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob
from dkgp.data import TableOptions
from dkgp.fit.job import FitJob
from dkgp.service import specification
from dkgp.service.specification import job_from_options, job_paths
from tests.cli.invoke import document_of, files_below, refused, run, run_json
from tests.cli.service.fake_service import FakeService

TRAIN = ("train", "d.zarr", "--hyper", "h.json", "--out", "m.zarr")
EVENTS = (
    {"kind": "state", "state": "running", "attempt": 1},
    {"kind": "note", "message": "a note"},
    {"kind": "state", "state": "done"},
)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeService:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DKGP_SERVICE_TOKEN", raising=False)
    monkeypatch.delenv("DKGP_SERVICE_URL", raising=False)
    return FakeService(monkeypatch)


# ------------------------------------------------------------------------------------------------------- what is a job


ORIGINALS = SUBMITTABLE


def _submitted(name: str) -> click.Command:
    """Return the command that submits a command, which may lie in a group."""
    command: Any = submit
    for word in name.split():
        command = command.commands[word]
    return command  # type: ignore[no-any-return]


def test_lists_are_typed_again_in_a_batch_script(tmp_path: Path) -> None:
    line = (
        "krige",
        "grid",
        tmp_path / "f.zarr",
        "--region",
        "0,900,0,600",
        "--shape",
        "3,4",
        "--covariates",
        "d=/d.tif",
    )
    script = tmp_path / "job.sbatch"
    run_json("submit", "--slurm", "--write-only", script, *line, "--out", tmp_path / "m.tif")
    for words in ("dkgp krige grid", "--region 0,900,0,600", "--shape 3,4", "--covariates d=/d.tif"):
        assert words in script.read_text()


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_options_are_the_commands_own_but_for_the_clusters(name: str) -> None:
    original, jobs = ORIGINALS[name], _submitted(name)
    names = {parameter.name for parameter in original.params}
    # Nor is there a standard input where jobs run.
    without = set(of_cluster(original)) | ({"stdin"} & names)
    assert names - {parameter.name for parameter in jobs.params} == without
    own = [parameter for parameter in jobs.params if getattr(parameter, "group", None) is not OF_SUBMISSION]
    assert [parameter for parameter in original.params if parameter.name not in without] == own
    present = {flag for parameter in own for flag in parameter.opts}
    of_submission = {flag for parameter in submit.params for flag in parameter.opts}
    assert {"--name", "--follow", "--service"} <= of_submission - present
    assert {flag for each in jobs.params for flag in each.opts} == present | of_submission
    flags = {flag for parameter in jobs.params for flag in parameter.opts}
    assert not flags & {"--scheduler", "--cluster", "--workers", "--worker-memory", "--cluster-option"}


@pytest.mark.parametrize("place", [0, 1])
def test_options_of_the_submission_stand_before_or_after_the_command(service: FakeService, place: int) -> None:
    options = ("--name", "nightly", "--deadline", "60")
    words = ("submit", *options, *TRAIN) if place == 0 else ("submit", *TRAIN, *options)
    run_json(*words, "--json")
    sent = service.submitted[-1]
    assert (sent["name"], sent["deadline_seconds"], sent["command"]) == ("nightly", 60.0, "train")


def test_an_option_after_the_command_replaces_the_one_before_it(service: FakeService) -> None:
    run_json("submit", "--name", "first", *TRAIN, "--name", "second", "--json")
    assert service.submitted[-1]["name"] == "second"


def test_every_command_that_the_service_knows_can_be_submitted() -> None:
    assert set(ORIGINALS) == set(specification.COMMANDS)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", "dataset hyper out warm_start checkpoint plot log_json tiles"),
        ("tune", "dataset out start plot"),
        ("predict", "model dataset out"),
        ("evaluate", "prediction dataset plot"),
    ],
)
def test_every_path_is_made_absolute(command: str, options: str) -> None:
    given: dict[str, Any] = {name: f"/folder/{name}.png" for name in options.split()}
    if "tiles" in given:
        given["solver"] = {"solver": "tiled-cholesky"}
    assert {path.field for path in job_paths(command, given)} == set(options.split())
    places = {name for name, each in ORIGINALS[command].declared().items() if each.option.place is not None}
    assert set(options.split()) == places


def test_what_is_sent_is_the_job_that_the_command_runs(service: FakeService, tmp_path: Path) -> None:
    options = ("--tol", "1e-3", "--block-size", 50, "--solver", "bcdc", "--memory-limit", "2GiB", "--by-reference")
    result = run("submit", "--name", "nightly", "--deadline", 60, *TRAIN, *options, "--plot", "s/p.png")
    assert result.exit_code == 0, result.stderr
    (sent,) = service.submitted
    assert sent["command"] == "train"
    assert sent["name"] == "nightly"
    assert sent["deadline_seconds"] == 60
    here = str(tmp_path)
    assert job_from_options("train", sent["options"]) == TrainJob(
        dataset=f"{here}/d.zarr",
        hyper=f"{here}/h.json",
        out=f"{here}/m.zarr",
        plot=f"{here}/s/p.png",
        solver=SolverOptions(tolerance=1e-3, block_size=50, solver="bcdc"),
        memory_limit_bytes=2 * 1024**3,
        by_reference=True,
    )


def test_urls_stay_as_they_are(service: FakeService) -> None:
    assert run("submit", "evaluate", "s3://b/p.zarr", "/data/t.zarr").exit_code == 0
    assert service.submitted[0]["options"] == {"prediction": "s3://b/p.zarr", "dataset": "/data/t.zarr"}


def test_variances_and_hyperparameters(service: FakeService) -> None:
    given = ("predict", "/m", "/d", "--out", "/p", "--variance", "--variance-gap", 0.05, "--seed", 3)
    assert run("submit", *given).exit_code == 0
    assert run("submit", "tune", "/d", "--out", "/h.json", "--subset", 50).exit_code == 0
    predicted, tuned = service.submitted
    assert predicted["options"]["variance"] == {"gap": 0.05, "seed": 3}
    assert tuned["options"] == {"dataset": "/d", "out": "/h.json", "subset": 50}


def test_a_fit_is_of_the_files_that_a_pattern_matches_now(service: FakeService, tmp_path: Path) -> None:
    for name in ("part-2.csv", "part-1.csv", "other.csv"):
        (tmp_path / name).write_text("a,price\n1,2\n")
    options = ("--target", "price", "--time", "5min", "--memory", "2GiB", "--drop", "b", "--ordinal", "s=x,y")
    result = run("submit", "fit", "part-*.csv", "--out", "f", *options, "--no-auto-columns", "--transform", "none")
    assert result.exit_code == 0, result.stderr
    (sent,) = service.submitted
    job = job_from_options("fit", sent["options"])
    assert job == FitJob(
        IngestJob(
            (str(tmp_path / "part-1.csv"), str(tmp_path / "part-2.csv")),
            targets=("price",),
            table=TableOptions(drop=("b",), ordinal={"s": ("x", "y")}),
            options=job.ingestion.options,
        ),
        out=str(tmp_path / "f"),
        seconds=300.0,
        memory_bytes=2 * 1024**3,
        auto_columns=False,
        auto_transform=False,
    )
    refused(run("submit", "fit", "none-*.csv", "--target", "price"), "No file matches")


# --------------------------------------------------------------------------------------------------- what is said of it


def test_the_id_alone_is_printed(service: FakeService) -> None:
    assert run("submit", *TRAIN).stdout == "000000000001\n"


@pytest.mark.parametrize("arguments", [("submit", "--json", *TRAIN), ("submit", *TRAIN, "--json")])
def test_json_prints_the_record(service: FakeService, arguments: Any) -> None:
    assert run_json(*arguments) == service.jobs["000000000001"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "d", "--out", "m"), "Missing option '--hyper'"),
        ((*TRAIN, "--block-size", "some"), "neither a whole number nor 'auto'"),
        ((*TRAIN, "--workers", "2"), "No such option"),
        (("predict", "m", "d", "--out", "p", "--variance-gap", "0.1"), "add --variance"),
        (("--deadline", "0", *TRAIN), "--deadline"),
        (("--service", "here", *TRAIN), "no address of a service"),
        (("--slurm-option", "time=1", *TRAIN), "--slurm"),
        (("--write-only", "x", *TRAIN), "--slurm"),
        (("--slurm", "--follow", *TRAIN), "--follow"),
        (("--slurm", "--slurm-option", "=3", *TRAIN), "KEY=VALUE"),
        (("--slurm", "--slurm-option", "time=1", "--slurm-option", "time=2", *TRAIN), "given before"),
    ],
)
def test_bad_options_never_reach_the_service(
    service: FakeService, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    refused(run("submit", *arguments), said, exit_code=2)
    assert not service.requests
    assert files_below(tmp_path) == {}


def test_following_shows_events_and_ends_like_the_job(service: FakeService) -> None:
    service.outcome = {"state": "not_converged", "exit_code": 4, "events": EVENTS}
    result = run("submit", "--follow", "--json", *TRAIN)
    assert document_of(result, 4)["state"] == "not_converged"
    assert "job 000000000001" in result.stderr
    assert "a note" in result.stderr
    shown = run("submit", "-f", *TRAIN)
    assert shown.exit_code == 4
    assert "Job 000000000002" in shown.stdout
    assert "not converged" in shown.stdout


@pytest.mark.parametrize(
    ("refusal", "exit_code", "kind"),
    [
        ((403, "OutsideRootsError", "outside the roots"), 3, "InputError"),
        ((401, "Unauthorised", "this service needs its token"), 2, "UsageError"),
        ((409, "JobStateError", "another job writes there"), 3, "JobStateError"),
        ((422, "InputError", "the tolerance must be positive"), 3, "InputError"),
    ],
)
def test_refusals_in_the_services_own_words(
    service: FakeService, refusal: tuple[int, str, str], exit_code: int, kind: str
) -> None:
    service.refusal = refusal
    result = run("submit", "--json", *TRAIN)
    error = document_of(result, exit_code)["error"]
    assert error["type"] == kind
    assert refusal[2] in error["message"]
    assert refusal[2] in result.stderr


def test_nobody_there_is_exit_code_5() -> None:
    result = run("submit", "--service", "http://127.0.0.1:9", "--retry", 0, "--json", *TRAIN)
    assert document_of(result, 5)["error"]["type"] == "ServiceError"
    assert "dkgp serve" in result.stderr


def test_the_token_comes_from_a_file_or_the_environment(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("the-token-in-the-file\n")
    file.chmod(0o600)
    monkeypatch.setenv("DKGP_SERVICE_TOKEN", "the-token-in-the-environment")
    assert run("submit", "--token-file", file, *TRAIN).exit_code == 0
    assert run("submit", *TRAIN).exit_code == 0
    assert run("submit", "--token-file", tmp_path / "missing", *TRAIN).exit_code == 3
    assert [request.headers["authorization"] for request in service.requests] == [
        "Bearer the-token-in-the-file",
        "Bearer the-token-in-the-environment",
    ]


def test_the_address_comes_from_the_environment(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DKGP_SERVICE_URL", "https://jobs.example/dkgp")
    run("submit", *TRAIN)
    run("submit", "--service", "http://127.0.0.1:1", *TRAIN)
    assert [str(request.url) for request in service.requests] == [
        "https://jobs.example/dkgp/v1/jobs",
        "http://127.0.0.1:1/v1/jobs",
    ]


# --------------------------------------------------------------------------------------------------------------- SLURM


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sbatch that keeps what it is given; returns where."""
    folder = tmp_path / "bin"
    folder.mkdir()
    kept = tmp_path / "given.sh"
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\ncat > {shlex.quote(str(kept))}\necho 4711\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return kept


def command_in(script: str) -> list[str]:
    """The dkgp command in a batch script, from the subcommand on."""
    (line,) = [line for line in script.splitlines() if "-m dkgp" in line]
    return shlex.split(line.split("-m dkgp", 1)[1].rstrip(")"))


def test_slurm_gets_the_script_that_lies_beside_the_output(service: FakeService, sbatch: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    options = ("--tol", "1e-3", "--exhaustive", "--memory-limit", "2GiB", "--overwrite")
    given = ("train", "d.zarr", "--hyper", "h.json", "--out", "out/m.zarr", *options)
    result = run("submit", "--slurm", "--slurm-option", "time=08:00:00", "--name", "big", *given, "--quiet")
    assert (result.exit_code, result.stdout) == (0, "4711\n"), result.stderr
    script = (tmp_path / "out" / "m.zarr.train.sbatch").read_text()
    assert sbatch.read_text() == script
    assert "#SBATCH --time=08:00:00" in script
    assert "#SBATCH --job-name=big" in script
    here = str(tmp_path)
    command = command_in(script)
    assert command[:2] == ["train", f"{here}/d.zarr"]
    original = ORIGINALS["train"]
    wanted = original.make_context("train", [str(part).replace("out/", f"{here}/out/") for part in given[1:]]).params
    wanted.update(dataset=f"{here}/d.zarr", hyper=f"{here}/h.json")
    assert original.make_context("train", command[1:]).params == wanted
    assert not service.requests


def test_a_fit_in_a_script_is_the_same_fit(sbatch: Path, tmp_path: Path, service: FakeService) -> None:
    (tmp_path / "t.csv").write_text("a,price\n1,2\n")
    options = ("--target", "price", "--time", "2h", "--no-auto-columns", "--no-stratify", "--drop", "b,c")
    given = ("fit", "t.csv", "--out", "f", *options)
    assert run("submit", "--slurm", *given).exit_code == 0
    command = command_in((tmp_path / "f.fit.sbatch").read_text())
    original = ORIGINALS["fit"]
    wanted = original.make_context("fit", list(given[1:])).params
    wanted.update(sources=(str(tmp_path / "t.csv"),), out=str(tmp_path / "f"))
    assert original.make_context("fit", command[1:]).params == wanted
    several = run("submit", "--slurm", "--slurm-option", "nodes=2", *given)
    refused(several, "dkgp fit runs on one node", exit_code=2)


def test_write_only_submits_nothing(sbatch: Path, tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "job.sh"
    given = ("submit", "--slurm", "--write-only", script, "--json", "tune", "/d", "--out", "/h.json")
    assert run_json(*given)["script"] == str(script)
    assert command_in(script.read_text()) == ["tune", "/d", "--out", "/h.json"]
    assert not sbatch.exists()
    script.write_text("mine")
    assert run(*given).exit_code == 3
    assert script.read_text() == "mine"
    assert run(*given, "--overwrite").exit_code == 0
    assert script.read_text() != "mine"


def test_of_an_output_elsewhere_the_script_lies_here(sbatch: Path, tmp_path: Path, service: Any) -> None:
    assert run("submit", "--slurm", "predict", "/m", "/d", "--out", "s3://b/x/p.zarr", "--resume").exit_code == 0
    assert (tmp_path / "p.zarr.predict.sbatch").exists()


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(run("submit", "--slurm", "tune", "/d", "--out", tmp_path / "h.json"), "no `sbatch`", exit_code=2)
    assert not list(tmp_path.iterdir())


def test_help_keeps_the_commands_own_words() -> None:
    for name, original in ORIGINALS.items():
        shown = _submitted(name).get_help(click.Context(_submitted(name)))
        first = (original.help or "").strip().splitlines()[0]
        assert " ".join(first.split())[:40] in " ".join(shown.split())
        assert "--scheduler" not in shown
