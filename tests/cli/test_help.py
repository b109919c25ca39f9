"""Help: quick, complete, with an example for every command."""

from __future__ import annotations

import re
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
    as_jobs = {"serve", "submit", "jobs", "status", "logs", "cancel", "resume", "wait", "token"}
    assert {names[0] for names in ALL} == here | as_jobs
    below = {
        group: {names[1] for names in ALL if names[0] == group and len(names) == 2}
        for group in ("bench", "submit", "token")
    }
    assert below["bench"] == {"tiles", "products", "solve", "overhead", "scaling", "messages", *ELSEWHERE}
    assert below["token"] == {"add", "list", "revoke"}
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


@pytest.mark.parametrize("names", [n for n in ALL if n not in (("bench",), ("token",))], ids=" ".join)
def test_every_command_takes_the_common_options(names: tuple[str, ...]) -> None:
    options = {option for parameter in ALL[names].params for option in parameter.opts}
    assert {"--json", "--quiet", "--verbose", "--debug"} <= options


GROUPED = ("train", "predict", "tune", "fit", "sparse", "classify", "ingest")
LAST = ("Further options", "Checkpoints, records and limits", "Output on the terminal", "Where the work runs")


@pytest.mark.parametrize("name", GROUPED)
def test_common_options_come_first_and_the_cluster_last(name: str) -> None:
    lines = run(name, "--help").output.splitlines()
    headings = [line[:-1] for line in lines if re.fullmatch(r"[A-Z].*:", line) and not line.startswith("As in")]
    assert headings[0] == "Options"
    assert [heading for heading in headings if heading in LAST] == [each for each in LAST if each in headings]
    assert headings[-1] == ("Output on the terminal" if name in ("fit", "ingest") else "Where the work runs")
    shown = lines.index("Output on the terminal:")
    flags = [line.split()[0].rstrip(",") for line in lines[shown + 1 : shown + 6]]
    assert flags[:4] == ["--json", "-q", "-v", "--debug"]
    assert flags[4] in ("-h", "--help")  # click keeps the first that a command was shown with
    common = lines[lines.index("Options:") : lines.index(f"{headings[1]}:")]
    assert any(line.split()[:1] == ["--overwrite"] for line in common)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trian train.zarr", "No such command 'trian'. Did you mean train?"),
        ("zzz", "There are bench, cancel, classify"),
        ("bench tile", "Did you mean tiles?"),
        ("submit trian", "Did you mean train?"),
        ("train x.zarr --hypr h.json", "--hyper"),
        ("ingest a.csv b.zarr --tarqet y", "--target"),
        ("train x.zarr --hyper h.json --out m.zarr --solver gbdc", "Did you mean gbcd?"),
        ("tune x.zarr --out h.json --objective likelyhood", "Did you mean likelihood?"),
    ],
)
def test_a_slip_is_told_what_was_meant(typed: str, meant: str) -> None:
    result = run(*typed.split())
    assert result.exit_code == 2
    assert meant in result.stderr


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
