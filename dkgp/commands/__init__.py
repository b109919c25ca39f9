"""The commands. Each takes plain options, checks them, opens its data, runs on a cluster and reports the result.

A job is a frozen dataclass. A command takes a job and a `Reporter` and returns a document of plain JSON types.
It checks for every foreseeable error before it computes, and writes nothing if a check fails.
"""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations
