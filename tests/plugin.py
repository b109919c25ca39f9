"""A package of somebody else's, of one module, as an installer would leave it in a folder on Python's path."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent


def install(folder: Path, group: str, module: str, content: str) -> dict[str, str]:
    """Write the module and what says that it belongs to an entry point group; return an environment that has both."""
    (folder / f"{module}.py").write_text(dedent(content))
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str


_RUN = """
import json, sys
from click.testing import CliRunner
from dkgp.cli import main

results = [CliRunner().invoke(main, command) for command in json.load(sys.stdin)]
print(json.dumps([(result.exit_code, result.stdout, result.stderr) for result in results]))
"""


def dkgp(environment: dict[str, str], folder: Path, *commands: str) -> list[Ended]:
    """Run commands, one after the other, in a folder and in one process that is not this one."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps([shlex.split(command) for command in commands]),
        env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Ended(*result) for result in json.loads(done.stdout.splitlines()[-1])]
