"""The commands, given plain options: open, check, wire progress and checkpoints, run, describe.

A job takes a frozen dataclass and a `Reporter` and returns a document of plain JSON types. It looks for every error
that can be found beforehand before it computes anything, and writes nothing where it fails.
"""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations
