"""Runs a job for a command: its document to standard output, all else to standard error, errors to exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from dkgp.cli.declared import OUTPUT, Headed
from dkgp.cli.flags import wording
from dkgp.errors import DkgpError, ExitCode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

UNEXPECTED = 1


@dataclass(frozen=True)
class Output:
    """Values of the options that every command has: in what form it talks, and how much (`output_parameters`)."""

    as_json: bool
    quiet: bool
    verbose: bool
    debug: bool

    @classmethod
    def taken(cls, options: dict[str, Any]) -> Output:
        """Take them out of a command's options; click's `UsageError` where two of them contradict each other."""
        output = cls(*(bool(options.pop(name)) for name in OUTPUT_NAMES))
        output.check()
        return output

    def check(self) -> None:
        """Refuse to say less and more at once."""
        if self.quiet and self.verbose:
            raise click.UsageError("--quiet and --verbose contradict each other; give one of them.")

    def __or__(self, other: Output) -> Output:
        """The flags that either has."""
        both = Output(*(getattr(self, name) or getattr(other, name) for name in OUTPUT_NAMES))
        both.check()
        return both


OUTPUT_NAMES = ("as_json", "quiet", "verbose", "debug")


def execute(
    command: str,
    job: Callable[[Reporter], Document | None],
    output: Output,
    *,
    must_converge: bool = False,
    show: Callable[[Document, Output], None] | None = None,
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
        from dkgp.commands.signals import terminate_as_interrupt

        with terminate_as_interrupt():
            from dkgp.commands.reporting.terminal import TerminalReporter

            document = job(TerminalReporter(quiet=output.quiet, verbose=output.verbose, wording=worded))
    except DkgpError as error:
        checkpoint = getattr(error, "checkpoint", None)
        failure = (
            type(error).__name__,
            worded(str(error)),
            int(error.exit_code),
            None if checkpoint is None else str(checkpoint),
        )
        _show_traceback(output.debug)
    except KeyboardInterrupt as interrupt:
        failure = ("KeyboardInterrupt", str(interrupt) or "interrupted", int(ExitCode.INTERRUPTED), None)
        _show_traceback(output.debug)
    except MemoryError as error:
        failure = ("MemoryError", f"out of memory: {error}", int(ExitCode.BAD_INPUT), None)
        _show_traceback(output.debug)
    except click.exceptions.ClickException:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if not output.debug:
            message += (
                "\nThis is a bug in dkgp or something it did not foresee; run again with --debug for the traceback"
            )
        failure = (type(error).__name__, message, UNEXPECTED, None)
        _show_traceback(output.debug)
    else:
        if document is None:
            sys.exit(int(ExitCode.DONE))
        words = {name: worded(text) for name, text in document.items() if isinstance(text, str)}
        try:
            _print_document({**document, **words}, output, show)
        except DkgpError as error:
            _show_traceback(output.debug)
            _print_failure(command, (type(error).__name__, worded(str(error)), int(error.exit_code), None), False)
            sys.exit(int(error.exit_code))
        if exit_code is not None:
            sys.exit(exit_code(document))
        unconverged = must_converge and not document["converged"]
        sys.exit(int(ExitCode.NOT_CONVERGED) if unconverged else int(ExitCode.DONE))
    _print_failure(command, failure, output.as_json)
    sys.exit(failure[2])


def output_parameters() -> list[click.Parameter]:
    """Return `--json`, `--quiet`, `--verbose`, `--debug`: what every command has."""
    return [
        Headed(list(names), is_flag=True, help=text, group=OUTPUT)
        for names, text in (
            (("--json", "as_json"), "Print one JSON document on standard output."),
            (("-q", "--quiet"), "No progress; warnings and errors only."),
            (("-v", "--verbose"), "Solvers' figures too: rounds, passes, residuals, rates."),
            (("--debug",), "Show the traceback of an error."),
        )
    ]


def output_options(run: Callable[..., None]) -> Callable[..., None]:
    """Add what every command has to a command's callback."""
    vars(run).setdefault("__click_params__", []).extend(reversed(output_parameters()))
    return run


def runs(
    *,
    must_converge: bool = False,
    show: Callable[[Document, Output], None] | None = None,
    exit_code: Callable[[Document], int] | None = None,
) -> Callable[[Callable[..., Document]], Callable[..., None]]:
    """Return a decorator that makes a command's callback of a job: a function of a `Reporter` and the options.

    It adds the options that every command has, and runs the job by `execute`, which the arguments are of; the command's
    name is the function's.
    """

    def decorate(job: Callable[..., Document]) -> Callable[..., None]:
        @wraps(job)
        def run(**options: Any) -> None:
            output = Output.taken(options)
            execute(
                job.__name__.replace("_", "-"),
                lambda reporter: job(reporter, **options),
                output,
                must_converge=must_converge,
                show=show,
                exit_code=exit_code,
            )

        return output_options(run)

    return decorate


@contextmanager
def until_unread() -> Iterator[None]:
    """End quietly what prints lines where whoever reads them, such as `head`, has seen enough."""
    try:
        yield
    except BrokenPipeError:
        # What is left must not be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print tables and the like on standard output."""
    from rich.console import Console

    # A file or pipe has no width: leave room for the widest table.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for part in parts:
        console.print(part)


def _print_document(document: Document, output: Output, show: Callable[[Document, Output], None] | None) -> None:
    if output.as_json:
        from dkgp.commands.reporting.documents import dump

        click.echo(dump(document))
    elif show is not None:
        show(document, output)
    else:
        from dkgp.commands.reporting.tables import tables

        print_parts(tables(document, verbose=output.verbose))


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
