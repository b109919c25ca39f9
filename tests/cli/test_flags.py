"""Flags are the command line's: the layers below name parameters, and here they get the flags that users type."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dkgp
from dkgp.cli import main
from dkgp.cli.parameters import in_flags

PACKAGE = Path(dkgp.__file__).parent
BELOW = ("data", "kernels", "cluster", "operators", "solvers", "models", "estimators")
# Options of programs that dkgp starts, or advises to start.
OTHERS = {
    "--lifetime",
    "--lifetime-stagger",
    "--nthreads",
    "--me",
    "--scheduler-file",
    "--dashboard-address",
    "--preload",
    "--resources",
}


def texts(path: Path) -> Iterator[ast.Constant]:
    """String literals of a module that are no docstrings and no spellings of options."""
    tree = ast.parse(path.read_text())
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "spellings":
            left_out |= {each for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node


@pytest.mark.parametrize("layer", BELOW)
def test_no_layer_below_the_commands_names_a_flag(layer: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {flag}"
        for path in sorted((PACKAGE / layer).rglob("*.py"))
        for node in texts(path)
        for flag in re.findall(r"(?<![-\w])--[a-z][-a-z]*", str(node.value))
        if flag not in OTHERS
    ]
    assert found == []


def test_parameters_in_backticks_become_flags() -> None:
    parameters: list[click.Parameter] = [
        click.Option(["--samples", "--n", "n"]),
        click.Option(["-q", "--quiet"]),
        click.Option(["--tol", "tolerance"]),
        click.Argument(["dataset"]),
    ]
    text = "raise `tolerance` or `n`, be `quiet`, read `dataset`, see `dkgp tune` and `rank`"
    assert (
        in_flags(text, parameters) == "raise --tol or --samples, be --quiet, read `dataset`, see `dkgp tune` and `rank`"
    )


def test_every_flag_named_in_a_help_exists() -> None:
    train = main.commands["train"]
    flags = {option for parameter in train.params for option in (*parameter.opts, *parameter.secondary_opts)}
    told = " ".join(parameter.help or "" for parameter in train.params if isinstance(parameter, click.Option))
    assert set(re.findall(r"(?<![-\w])--[a-z][-a-z]*", told)) <= flags
    assert "`block_size`" not in told


def test_a_run_without_hyperparameters_is_told_how_to_find_some() -> None:
    result = CliRunner().invoke(main, ["train", "train.zarr", "--out", "model.zarr"])
    assert result.exit_code == 2
    assert "dkgp tune DATASET --out hyper.json" in result.output + result.stderr
