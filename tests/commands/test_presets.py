"""The table of `--as-in-the-paper`: what it sets, what of it gives way, what it refuses, and who knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from dkgp.cli import main
from dkgp.commands.classify import ClassifyJob
from dkgp.commands.presets import PRESETS, announce_preset, left_open, preset_record, settled
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.sparse import SparseJob
from dkgp.commands.train import TrainJob
from dkgp.errors import UsageError
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.sparse.train import SparseSettings
from dkgp.service.specification import job_from_options, options_from_job
from dkgp.solvers.registry import build_solver, declaration_of

TRAIN = TrainJob("/d.zarr", "/h.json", "/m.zarr", as_in_the_paper=True)
SPARSE = SparseJob("/d.zarr", "/h.json", "/m.zarr", as_in_the_paper=True)
CLASSIFY = ClassifyJob("/d.zarr", "/m.zarr", as_in_the_paper=True)
JOBS: dict[str, Any] = {"train": TRAIN, "sparse": SPARSE, "classify": CLASSIFY}


def test_commands_take_the_settings_that_their_papers_print() -> None:
    assert settled("train", TRAIN).solver == SolverOptions(
        "gbcd", block_size=500, candidates=60, variables_per_step=1, memory=0, tolerance=1e-4, precision="double"
    )
    sparse = settled("sparse", SPARSE)
    assert sparse.settings == SparseSettings("sggp", candidates=59, per_round=1, screen=0)
    assert (sparse.gap, sparse.basis_size) == (0.025, None)
    assert settled("classify", CLASSIFY).settings == FixedSizeSettings(
        pool=2000, prototypes="k-centre", folds=10, search="annealing", cardinality="tenth", isotropic=True,
        intercept="selected", stop=None,
    )  # fmt: skip
    greedy = replace(sparse.settings, basis_size=500, gap=0.025).greedy()
    assert (greedy.score, greedy.per_round, greedy.screen, greedy.kept) == ("refit", 1, 0, 0)


@pytest.mark.parametrize("name", ["gbcd", "bcdc", "bcdg", "smo", "cg"])
def test_solvers_of_the_gbcd_paper_are_what_benchmarks_compare(name: str) -> None:
    """But for what options have no word for: the columns that smo keeps, which change none of its steps."""
    job = settled("train", replace(TRAIN, solver=SolverOptions(name)))
    solver = build_solver(name, dict(job.solver.own), precision="double", seed=0)
    of_paper = {field: value for field, value in (declaration_of(name).paper or {}).items() if field != "cache_bytes"}
    assert replace(solver, **of_paper) == solver  # type: ignore[type-var]
    # Nothing grows: as large as the paper's in every round.
    resolved = solver.resolved(100_000, 10)
    assert getattr(resolved, "largest_block_size", 500) == getattr(resolved, "block_size", 500) == 500


@pytest.mark.parametrize("command", PRESETS)
def test_every_setting_is_an_option_with_a_source(command: str) -> None:
    listed = main.get_command(click.Context(main), command)
    names = {parameter.name for parameter in listed.params}
    assert "as_in_the_paper" in names
    for method, preset in PRESETS[command].methods.items():
        options = [setting.option for setting in preset.settings]
        assert len(set(options)) == len(options)
        assert {*options, PRESETS[command].chooser} <= names, method
        assert all(setting.source for setting in preset.settings)


@pytest.mark.parametrize("command", PRESETS)
def test_help_has_the_table(command: str) -> None:
    listed = main.get_command(click.Context(main), command)
    text = " ".join(listed.get_help(click.Context(listed, info_name=command)).split())
    for preset in PRESETS[command].methods.values():
        assert preset.paper in text
        for setting in preset.settings:
            assert setting.source in text
    assert {"train": "--block-size 500", "sparse": "--per-round 1", "classify": "--isotropic section 5.2"}[
        command
    ] in text


@pytest.mark.parametrize("command", PRESETS)
def test_a_settled_job_stays_as_it_is_and_says_what_was_set(command: str) -> None:
    job = settled(command, JOBS[command])
    assert settled(command, job) == job
    assert job.as_in_the_paper
    record = preset_record(command, job)["as_in_the_paper"]
    preset = PRESETS[command].methods[record[PRESETS[command].chooser]]
    assert record["set"] == {setting.option: setting.value for setting in preset.settings}
    assert record["otherwise"] == {}
    assert preset_record(command, replace(JOBS[command], as_in_the_paper=False)) == {}
    assert settled(command, replace(JOBS[command], as_in_the_paper=False)).as_in_the_paper is False


def test_what_is_given_wins(capsys: pytest.CaptureFixture[str]) -> None:
    job = settled("train", replace(TRAIN, solver=SolverOptions("gbcd", memory=5, block_size=1000)))
    assert (job.solver.memory, job.solver.block_size, job.solver.variables_per_step) == (5, 1000, 1)
    record = preset_record("train", job)["as_in_the_paper"]
    assert record["otherwise"] == {"block_size": 1000, "memory": 5}
    assert "block_size" not in record["set"]
    told: list[str] = []

    class Notes(SilentReporter):
        def note(self, message: str, figures: str | None = None) -> None:
            told.append(message)

    announce_preset("train", job, Notes())
    assert told == [
        "gbcd as in the paper (Bo and Sminchisescu 2008): `candidates` 60, `variables_per_step` 1, `tolerance` 0.0001, "
        "`precision` double; except `block_size` 1000, `memory` 5"
    ]
    # What is given is known by name where it is the default: mixed precision stays mixed.
    names = left_open("train", {"precision", "tolerance", "dataset"})
    job = settled("train", replace(TRAIN, as_in_the_paper=names))
    assert (job.solver.precision, job.solver.memory) == ("mixed", 0)
    assert preset_record("train", job)["as_in_the_paper"]["otherwise"] == {"tolerance": 1e-4, "precision": "mixed"}
    assert settled("train", job) == job


@pytest.mark.parametrize(
    ("command", "job", "words"),
    [
        ("train", replace(TRAIN, solver=SolverOptions("cholesky")), "no settings for `solver` cholesky: .* gbcd, bcdc"),
        ("train", replace(TRAIN, solver=SolverOptions("pcg")), "no settings for `solver` pcg"),
        ("train", replace(TRAIN, as_in_the_paper=left_open("train", {"solver"})), "no settings for `solver` auto"),
        ("sparse", replace(SPARSE, settings=SparseSettings("fitc")), "no settings for `method` fitc: .* sggp, mpgp"),
        (
            "classify",
            replace(CLASSIFY, method="gp"),
            "no settings for `method` gp: the papers print only those of fixed-size",
        ),
        ("train", replace(TRAIN, as_in_the_paper=("memory", "colour")), "`colour` is none of solver, block_size"),
    ],
)
def test_what_no_paper_has_is_refused(command: str, job: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settled(command, job)


@pytest.mark.parametrize("command", PRESETS)
def test_the_service_takes_it_and_gives_it_again(command: str) -> None:
    options = {"dataset": "/d.zarr", "out": "/m.zarr", "as_in_the_paper": True}
    options |= {} if command == "classify" else {"hyper": "/h.json"}
    job = job_from_options(command, options)
    assert job == settled(command, JOBS[command])
    assert job_from_options(command, options_from_job(job)) == job


def test_the_service_refuses_in_words() -> None:
    options = {"dataset": "/d.zarr", "out": "/m.zarr", "hyper": "/h.json", "solver": {"solver": "cholesky"}}
    with pytest.raises(UsageError, match="has no settings for `solver` cholesky"):
        job_from_options("train", {**options, "as_in_the_paper": True})
    with pytest.raises(UsageError, match="as_in_the_paper"):
        job_from_options("train", {**options, "as_in_the_paper": "yes"})
