"""The command line: argument parsing only; `dkgp.commands` does the work.

Nothing heavy is imported before a command runs, so that help comes at once.
"""

# Hangs on dkgp/options.py.

from __future__ import annotations

from dkgp.cli.group import main

__all__ = ["main"]
