"""Options that cannot be: an exit code, a message that says what to do, no traceback, no work, and nothing written."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import dkgp.commands
from tests.cli.invoke import document_of, files_below, refused, run
from tests.cli.refusals import COMMANDS, REFUSALS

# Refused once a cluster is there: what depends on its memory or address, and on what these commands read by it.
READING = ("predict", "pursue")
ON_THE_CLUSTER = ("--product-error 1e-4", "--memory-limit", "--refine-memory", "--scheduler-file", "--cluster")
ROWS = [(command, *row) for command, rows in REFUSALS.items() for row in rows]


def typed(command: str, options: str, stores: dict[str, Any], out: Path) -> list[str]:
    return shlex.split(f"{COMMANDS[command]} {options}".format(**stores, out=out))


def forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no cluster be started, and no machine be measured."""

    def begun(*_: Any, **__: Any) -> None:
        raise AssertionError("work was begun")

    for found in walk_packages(dkgp.commands.__path__, "dkgp.commands."):
        module = import_module(found.name)
        if hasattr(module, "open_executor"):
            monkeypatch.setattr(module, "open_executor", begun)
    for function in ("measure_machine", "measure_cluster", "tune_dataset"):
        monkeypatch.setattr(f"dkgp.plan.plan.{function}", begun)


@pytest.mark.parametrize(
    ("command", "options", "exit_code", "words"), ROWS, ids=[f"{command} {options}" for command, options, *_ in ROWS]
)
def test_what_cannot_be_is_refused_before_any_work(
    command: str,
    options: str,
    exit_code: int,
    words: str | tuple[str, ...],
    stores: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if not (command.startswith(READING) or any(option in options for option in ON_THE_CLUSTER)):
        forbid_work(monkeypatch)
    words = (words,) if isinstance(words, str) else words
    refused(run(*typed(command, options, stores, tmp_path / "out")), *words, exit_code=exit_code)
    assert files_below(tmp_path) == {}


@pytest.mark.parametrize("command", [name for name, rows in REFUSALS.items() if any(code == 3 for _, code, _ in rows)])
def test_a_refusal_is_one_document_as_json(command: str, stores: dict[str, Any], tmp_path: Path) -> None:
    options, exit_code, words = next(row for row in REFUSALS[command] if row[1] == 3)
    error = document_of(run(*typed(command, options, stores, tmp_path / "out"), "--json"), exit_code)["error"]
    assert error["exit_code"] == exit_code
    assert error["type"].endswith("Error")
    for word in (words,) if isinstance(words, str) else words:
        assert word in error["message"]
