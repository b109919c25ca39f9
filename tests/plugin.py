"""A package of somebody else's, of one module, as an installer would leave it in a folder on Python's path."""

from __future__ import annotations

import os
import subprocess
import sys
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


def dkgp(environment: dict[str, str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "dkgp.cli", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
