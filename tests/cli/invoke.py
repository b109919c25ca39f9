"""Commands in this process, what they print, and what they leave on disk."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
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


class Places(Mapping[str, Any]):
    """Stores and files by name, each made when it is first used."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self.makers, self._made = makers, dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self.makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)

    def __contains__(self, name: object) -> bool:
        return name in self.makers


class Shell:
    """Command lines in which `@name` stands for a place of that name, or else for a file of that name in a folder."""

    def __init__(self, folder: Path, places: Mapping[str, Any] | None = None) -> None:
        self.folder, self.places = folder, places or {}

    def __getitem__(self, name: str) -> Path:
        return Path(self.places[name]) if name in self.places else self.folder / name

    def typed(self, line: str, *more: object) -> list[str]:
        """The arguments of a command line."""
        words = [re.sub(r"@([\w.-]+)", lambda match: str(self[match[1]]), word) for word in shlex.split(line)]
        return [*words, *map(str, more)]

    def run(self, line: str, *more: object) -> Result:
        return run(*self.typed(line, *more))

    def json(self, line: str, *more: object, code: int = 0) -> dict[str, Any]:
        """The document of a command, which is run with `--json`."""
        return document_of(self.run(line, *more, "--json"), code)

    def refuses(self, line: str, *words: str, code: int = 3) -> Result:
        result = self.run(line)
        refused(result, *words, exit_code=code)
        return result

    def told(self, line: str, code: int = 0) -> str:
        """Everything that a command prints, in one line."""
        result = self.run(line)
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    @property
    def names(self) -> set[str]:
        """Names of the folder's files."""
        return {path.name for path in self.folder.iterdir()}


def files_below(folder: Path) -> dict[str, int]:
    """Every file below a folder and its size: what a failed command must leave as it was."""
    return {str(path): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
