"""`dkgp token add`, `list`, `revoke`: who else is let in by a service, and to do what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.meant import Commands
from dkgp.cli.options import examples
from dkgp.cli.running import Output, print_parts, runs

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

# As in `dkgp.service.access`, which is not imported before a command runs.
SCOPES = ("read", "submit", "admin")

folder_option = click.option("--folder", required=True, metavar="DIR", help="The service's --folder.")


@click.group(
    cls=Commands,
    epilog=examples(
        "dkgp token add alice --scope submit --folder ~/dkgp-jobs",
        "dkgp token list --folder ~/dkgp-jobs",
        "dkgp token revoke alice --folder ~/dkgp-jobs",
    ),
)
def token() -> None:
    """Let others in, each by a token of their own; whoever can write to the service's folder does this.

    It takes effect at once, whether the service runs or not.
    """


@token.command(
    epilog=examples(
        "dkgp token add alice --scope submit --folder ~/dkgp-jobs",
        "dkgp token add prometheus --scope read --days 365 --folder /var/lib/dkgp > prometheus.token",
    )
)
@click.argument("name", metavar="NAME")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    required=True,
    help="read: metrics, and the states of all jobs; submit: its own jobs, whole; admin: every job.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="Refuse it after so long.  [default: when it is revoked]",
)
@folder_option
@runs(show=lambda document, output: _show_token(document, output))
def add(reporter: Reporter, name: str, scope: Any, days: float | None, folder: str) -> Document:
    """Make a token for NAME and print it, once: the folder keeps only a hash. Jobs that it submits are NAME's."""
    from dkgp.service.access import add_token

    place = _folder(folder)
    secret, made = add_token(place, name, scope, days)
    _record(place, "token add", name, scope)
    reporter.note(f"the token of '{name}' ({scope}); it is not shown again:")
    return {"command": "token add", "name": name, "scope": scope, "expires": made.expires, "token": secret}


@token.command(name="list", epilog=examples("dkgp token list --folder ~/dkgp-jobs"))
@folder_option
@runs(show=lambda document, output: _show_tokens(document, output))
def list_tokens(reporter: Reporter, folder: str) -> Document:
    """List the tokens by name, with their scopes, beside the service's own, which is its user's."""
    from dkgp.service.access import read_tokens

    tokens = [
        {"name": known.name, "scope": known.scope, "created": known.created, "expires": known.expires}
        for known in read_tokens(_folder(folder))
    ]
    return {"command": "token list", "tokens": tokens}


@token.command(epilog=examples("dkgp token revoke alice --folder ~/dkgp-jobs"))
@click.argument("name", metavar="NAME")
@folder_option
@runs(show=lambda document, output: click.echo(f"{document['name']} revoked"))
def revoke(reporter: Reporter, name: str, folder: str) -> Document:
    """Refuse the token of NAME from now on, by a service that runs too. Its jobs go on."""
    from dkgp.service.access import revoke_token

    place = _folder(folder)
    revoked = revoke_token(place, name)
    _record(place, "token revoke", name, revoked.scope)
    return {"command": "token revoke", "name": name, "scope": revoked.scope}


def _folder(text: str) -> Path:
    """The service's folder, made where it is missing, and this user's alone."""
    from dkgp.service.announcements import require_private_folder

    folder = Path(text).expanduser().absolute()
    require_private_folder(folder)
    return folder


def _record(folder: Path, what: str, name: str, scope: str) -> None:
    from dkgp.service.access import AuditLog

    # By number: in a container it has no name, and what the environment says anybody may set.
    AuditLog(folder).write(what, who=f"uid {os.getuid()}", scope="admin", token=name, token_scope=scope)


def _show_token(document: Document, _: Output) -> None:
    click.echo(document["token"])


def _show_tokens(document: Document, _: Output) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("name", "scope", "created", "expires"):
        table.add_column(title, no_wrap=True)
    for known in document["tokens"]:
        table.add_row(known["name"], known["scope"], known["created"], known["expires"] or "never")
    if document["tokens"]:
        print_parts([table])
    else:
        click.echo("no tokens but the service's own")
