"""What the README shows works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from dkgp.cli import main

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_commands_are_known_with_their_options() -> None:
    lines = re.findall(r"^    dkgp (.+)$", README, flags=re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        name, *arguments = line.split()
        command: click.Command = main.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        if isinstance(command, click.Group):
            command = command.commands[next(argument for argument in arguments if argument in command.commands)]
            known |= {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= known, line


def test_every_command_is_listed() -> None:
    cells = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", README, flags=re.MULTILINE)
    assert set(main.commands) <= set(re.findall(r"[\w-]+", " ".join(cells)))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_python_runs(snippet: str, tmp_path: Path, process: tuple[list[str], dict[str, str]]) -> None:
    X = np.random.default_rng(0).random((200, 3))
    table = np.column_stack([X, X.sum(axis=1)])
    np.savetxt(tmp_path / "DATA.csv", table, delimiter=",", header="a,b,c,price", comments="")
    # Smaller than shown, and otherwise as shown.
    code = snippet.replace("(5000, 3)", "(500, 3)").replace("block_size=500", "block_size=100")
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **process[1]}, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip()
