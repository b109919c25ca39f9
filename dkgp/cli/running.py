"""Runs a job for a command: its document to standard output, all else to standard error, errors to exit codes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.flags import wording
from dkgp.errors import DkgpError, ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

UNEXPECTED = 1


def execute(
    command: str,
    job: Callable[[Reporter], Document | None],
    *,
    as_json: bool,
    quiet: bool,
    debug: bool,
    must_converge: bool = False,
    show: Callable[[Document], None] | None = None,
    exit_code: Callable[[Document], int] | None = None,
) -> None:
    """Run a job and leave with its exit code.

    The job imports what it needs, runs, and returns the document; or None, where it has printed all there is to print.
    With `must_converge`, a document with `converged` false means exit code 4. `show` prints the document for people
    (default: as tables), `exit_code` says which exit code the document means.
    """
    failure: tuple[str, str, int, str | None]
    worded = wording()
    try:
        from dkgp.commands.reporting.terminal import TerminalReporter
        from dkgp.commands.signals import terminate_as_interrupt

        with terminate_as_interrupt():
            document = job(TerminalReporter(quiet=quiet, wording=worded))
    except DkgpError as error:
        checkpoint = getattr(error, "checkpoint", None)
        failure = (
            type(error).__name__,
            worded(str(error)),
            int(error.exit_code),
            None if checkpoint is None else str(checkpoint),
        )
        _show_traceback(debug)
    except KeyboardInterrupt:
        failure = ("KeyboardInterrupt", "interrupted", int(ExitCode.INTERRUPTED), None)
        _show_traceback(debug)
    except MemoryError as error:
        failure = ("MemoryError", f"out of memory: {error}", int(ExitCode.BAD_INPUT), None)
        _show_traceback(debug)
    except click.exceptions.ClickException:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if not debug:
            message += (
                "\nThis is a bug in dkgp or something it did not foresee; run again with --debug for the traceback"
            )
        failure = (type(error).__name__, message, UNEXPECTED, None)
        _show_traceback(debug)
    else:
        if document is None:
            sys.exit(int(ExitCode.DONE))
        words = {name: worded(text) for name, text in document.items() if isinstance(text, str)}
        _print_document({**document, **words}, as_json, show)
        if exit_code is not None:
            sys.exit(exit_code(document))
        unconverged = must_converge and not document["converged"]
        sys.exit(int(ExitCode.NOT_CONVERGED) if unconverged else int(ExitCode.DONE))
    _print_failure(command, failure, as_json)
    sys.exit(failure[2])


def output_parameters() -> list[click.Parameter]:
    """Return `--json`, `--quiet`, `--debug`: what every command has."""
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document on standard output."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No progress; warnings and errors only."),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
    ]


def output_options(run: Callable[..., None]) -> Callable[..., None]:
    """Add what every command has to a command's callback."""
    vars(run).setdefault("__click_params__", []).extend(reversed(output_parameters()))
    return run


def runs(
    *,
    must_converge: bool = False,
    show: Callable[[Document], None] | None = None,
    exit_code: Callable[[Document], int] | None = None,
) -> Callable[[Callable[..., Document]], Callable[..., None]]:
    """Return a decorator that makes a command's callback of a job: a function of a `Reporter` and the options.

    It adds the options that every command has, and runs the job by `execute`, which the arguments are of; the command's
    name is the function's.
    """

    def decorate(job: Callable[..., Document]) -> Callable[..., None]:
        @wraps(job)
        def run(as_json: bool, quiet: bool, debug: bool, **options: Any) -> None:
            execute(
                job.__name__.replace("_", "-"),
                lambda reporter: job(reporter, **options),
                as_json=as_json,
                quiet=quiet,
                debug=debug,
                must_converge=must_converge,
                show=show,
                exit_code=exit_code,
            )

        return output_options(run)

    return decorate


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print tables and the like on standard output."""
    from rich.console import Console

    # A file or pipe has no width: leave room for the widest table.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for part in parts:
        console.print(part)


def _print_document(document: Document, as_json: bool, show: Callable[[Document], None] | None) -> None:
    if as_json:
        from dkgp.commands.reporting.documents import dump

        click.echo(dump(document))
    elif show is not None:
        show(document)
    else:
        from dkgp.commands.reporting.tables import tables

        print_parts(tables(document))


def _print_failure(command: str, failure: tuple[str, str, int, str | None], as_json: bool) -> None:
    kind, message, exit_code, checkpoint = failure
    click.echo(f"dkgp {command}: {message}", err=True)
    if as_json:
        from dkgp.commands.reporting.documents import dump

        error: dict[str, Any] = {"type": kind, "message": message, "exit_code": exit_code}
        if checkpoint is not None:
            error["checkpoint"] = checkpoint
        click.echo(dump({"command": command, "error": error}))


def _show_traceback(debug: bool) -> None:
    if debug:
        traceback.print_exc()
