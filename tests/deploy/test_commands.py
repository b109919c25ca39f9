"""Every command line in deploy/ and docker-compose.yml is one that the program takes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

from dkgp.cli import main as dkgp_main
from tests.deploy.deployment import DEPLOY, Line, command_lines, mentions, text_files

LINES = command_lines()
MENTIONS = mentions()
DASK = {"scheduler": dask_scheduler, "worker": dask_worker}


def parse(arguments: list[str]) -> None:
    """Let click read the arguments, without running anything."""
    program, command = arguments[0], dkgp_main
    rest = arguments[1:]
    if program == "dask":
        command, rest = DASK[rest[0]], rest[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click.Command, "invoke", lambda self, context: None)
        # The certificates that the pages speak of are not here.
        patch.setattr(click.Path, "convert", lambda self, value, parameter, context: value)
        command.main(rest, prog_name=program, standalone_mode=False)


def ids(lines: list[Line]) -> list[str]:
    return [f"{line.place}: {' '.join(line.arguments)}"[:110] for line in lines]


@pytest.mark.parametrize("line", LINES, ids=ids(LINES))
def test_command_line_is_taken(line: Line) -> None:
    parse(line.arguments)


@pytest.mark.parametrize("line", MENTIONS, ids=ids(MENTIONS))
def test_command_in_the_text_exists_with_its_options(line: Line) -> None:
    program, *rest = line.arguments
    command: click.Command = dkgp_main
    if program == "dask":
        assert rest[0] in (*DASK, "ssh", "spec"), line
        command, rest = DASK.get(rest[0], dask_worker), rest[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, f"{line.place}: there is no `dkgp {rest[0]}`"
        command, rest = found, rest[1:]
        known |= {option for parameter in command.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, line


def test_what_is_no_command_line_of_dkgp_is_refused() -> None:
    # The checks above would see an option that does not exist, and one that is missing.
    with pytest.raises(click.UsageError, match="No such option"):
        parse(["dkgp", "serve", "--folder", "x", "--no-such-option"])
    with pytest.raises(click.UsageError, match="Tune hyperparameters first"):
        parse(["dkgp", "submit", "train", "x.zarr", "--out", "y.zarr"])
    with pytest.raises(click.UsageError, match="No such option"):
        parse(["dask", "worker", "tcp://scheduler:8786", "--threads", "2"])


def test_commands_were_found_where_there_are_some() -> None:
    places = {line.place.split()[0] for line in LINES}
    assert {"docker-compose.yml", "cluster.yaml", "job.yaml", "service.yaml", "helm", "deploy/README.md"} <= places
    assert sum(line.arguments[:2] == ["dkgp", "serve"] for line in LINES) >= 2
    assert {line.arguments[1] for line in LINES if line.arguments[0] == "dask"} == {"scheduler", "worker"}


@pytest.mark.parametrize("path", text_files(), ids=lambda path: path.name)
def test_files_are_tidy(path: Path) -> None:
    text = path.read_text()
    assert text.endswith("\n")
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert "\t" not in text
    assert "TODO" not in text


def test_links_lead_somewhere() -> None:
    import re

    links = [
        (page, target) for page in DEPLOY.rglob("*.md") for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    ]
    assert links
    for page, target in links:
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
