"""Documents as tables for people: the few figures that matter, in words, with units."""

# Hangs on dkgp/commands/run.py.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dkgp.commands.reporting.outputs import Document

__all__ = ["tables"]


def tables(document: Document, *, verbose: bool = False) -> list[RenderableType]:
    """Return a document's tables; see `dkgp.commands.reporting.tables.document`.

    Which knows of models: tables of jobs, which need none, do without it.
    """
    from dkgp.commands.reporting.tables.document import tables as tables_of

    return tables_of(document, verbose=verbose)
