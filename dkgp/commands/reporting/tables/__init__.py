"""Documents as tables for people: the few figures that matter, in words, with units."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from dkgp.commands.reporting.tables.document import tables

__all__ = ["tables"]
