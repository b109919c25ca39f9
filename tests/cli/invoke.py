"""Commands in this process, what they print, and what they leave on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dkgp.cli import main


def run(*arguments: object) -> Result:
    """Run a command.

    A command takes SIGTERM for its own while it runs. No test here sends it: it is meant for all of them.
    """
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if "interrupted by SIGTERM" in result.output:
        pytest.exit("SIGTERM, which a command took for its own")
    return result


def document_of(result: Result, exit_code: int = 0) -> dict[str, Any]:
    """The one JSON document on standard output."""
    assert result.exit_code == exit_code, f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def run_json(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """Run a command with `--json`; its document."""
    return document_of(run(*arguments, "--json"), exit_code)


def refused(result: Any, *words: str, exit_code: int = 3) -> None:
    """A command said what is wrong, and no more."""
    assert result.exit_code == exit_code, f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    assert "Traceback" not in result.output


def files_below(folder: Path) -> dict[str, int]:
    """Every file below a folder and its size: what a failed command must leave as it was."""
    return {str(path): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
