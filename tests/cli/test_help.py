"""Help: quick, complete, with an example for every command."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator

import click
import pytest

import dkgp
from dkgp.cli import main
from dkgp.cli.bench import ELSEWHERE
from tests.cli.invoke import run
from tests.cli.processes import ENVIRONMENT, PROGRAM


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))


ALL = dict(commands(main))


def test_the_commands_of_this_release() -> None:
    here = {
        "fit",
        "ingest",
        "tune",
        "plan",
        "train",
        "sparse",
        "classify",
        "pursue",
        "predict",
        "evaluate",
        "export",
        "info",
        "demo",
        "bench",
        "warm-up",
    }
    as_jobs = {"serve", "submit", "jobs", "status", "logs", "cancel", "resume", "wait"}
    assert {names[0] for names in ALL} == here | as_jobs
    below = {
        group: {names[1] for names in ALL if names[0] == group and len(names) == 2} for group in ("bench", "submit")
    }
    assert below["bench"] == {"tiles", "products", "solve", "overhead", "scaling", *ELSEWHERE}
    assert below["submit"] == {"train", "sparse", "classify", "tune", "predict", "evaluate", "fit"}


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_help_shows_an_example_and_every_option_is_explained(names: tuple[str, ...]) -> None:
    result = run(*names, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"  dkgp {' '.join(names)}" in result.output
    for parameter in ALL[names].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize("names", [n for n in ALL if n != ("bench",)], ids=" ".join)
def test_every_command_takes_the_common_options(names: tuple[str, ...]) -> None:
    options = {option for parameter in ALL[names].params for option in parameter.opts}
    assert {"--json", "--quiet", "--debug"} <= options


def test_help_comes_at_once() -> None:

    def processor_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = processor_seconds()
    shown = subprocess.run([*PROGRAM, "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    # Not by the clock: other processes may have the cores.
    assert processor_seconds() - before < 1.0
    assert "Exit codes" in shown.stdout


def test_nothing_heavy_is_imported_for_help() -> None:
    heavy = "{'numpy', 'numba', 'zarr', 'distributed', 'scipy', 'rich', 'matplotlib', 'httpx', 'fastapi'}"
    code = f"import sys, dkgp.cli; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([PROGRAM[0], "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_version() -> None:
    assert dkgp.__version__ in run("--version").output
