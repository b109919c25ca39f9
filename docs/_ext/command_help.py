"""Every command's help from click itself, for docs/reference/options.md: what `dkgp COMMAND --help` prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from sphinx.application import Sphinx

from dkgp.cli import main

WIDTH = 92


def every_command(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """The contexts of a command's subcommands, and of theirs, in the order of its help."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None and not subcommand.hidden:
                inner = click.Context(subcommand, parent=context, info_name=name)
                yield inner
                yield from every_command(subcommand, inner)


def write_help(app: Sphinx) -> None:
    """Write them before Sphinx reads the page that includes them."""
    folder = Path(app.srcdir, "docs", "generated")
    folder.mkdir(exist_ok=True)
    root = click.Context(main, info_name="dkgp", **{**main.context_settings, "terminal_width": WIDTH})
    parts = []
    for context in every_command(main, root):
        level = "##" if context.parent is root else "###"
        parts.append(f"{level} {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    (folder / "commands.txt").write_text("\n".join(parts), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write it at the start of every build."""
    app.connect("builder-inited", write_help)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
