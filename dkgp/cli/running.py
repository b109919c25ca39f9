"""Run a command's job: document to standard output, all other output to standard error, errors to exit codes."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, TextIO

import click

from dkgp.cli.parameters import OUTPUT, Headed, wording
from dkgp.errors import DkgpError, ExitCode, StorageError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter

UNEXPECTED = 1


@dataclass(frozen=True)
class Output:
    """Values of the output options that every command has: format and amount of output (`output_parameters`)."""

    as_json: bool
    quiet: bool
    verbose: bool
    debug: bool

    @classmethod
    def taken(cls, options: dict[str, Any]) -> Output:
        """Take these values out of a command's options; raise click's `UsageError` if two contradict each other."""
        output = cls(*(bool(options.pop(name)) for name in OUTPUT_NAMES))
        output.check()
        return output

    def check(self) -> None:
        """Refuse `--quiet` together with `--verbose`."""
        if self.quiet and self.verbose:
            raise click.UsageError("Got both --quiet and --verbose; give one of them.")

    def __or__(self, other: Output) -> Output:
        """Return the flags that are set in either operand."""
        both = Output(*(getattr(self, name) or getattr(other, name) for name in OUTPUT_NAMES))
        both.check()
        return both


# Fields of the documents of commands that write an output; an ingestion's store is its `train`.
WRITTEN = frozenset({"out", "train"})
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
    """Run a job and exit with its exit code.

    The job imports its dependencies, runs, and returns the document, or None if it has already printed all its output.
    With `must_converge`, a document with `converged` false leads to exit code 4. `show` prints the document for people;
    by default it is printed as tables. `exit_code` returns the exit code for the document.
    """
    failure: tuple[str, str, int, str | None]
    worded = wording()
    try:
        from dkgp.commands.signals import terminate_as_interrupt

        with terminate_as_interrupt():
            from dkgp.commands.reporting.terminal import TerminalReporter

            reporter = TerminalReporter(quiet=output.quiet, verbose=output.verbose, wording=worded)
            with _reported_warnings(reporter):
                document = job(reporter)
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
                "\nThis is a bug in dkgp, or a case that it does not handle. Run again with --debug for the traceback"
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


@contextmanager
def _reported_warnings(reporter: Reporter) -> Iterator[None]:
    """Report warnings to users as the command's own, without the line of code that issued them."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if category is UserWarning:
                reporter.warn(str(message))
            else:
                others(message, category, *place, **options)

        warnings.showwarning = show
        yield


def output_parameters() -> list[click.Parameter]:
    """Return the options that every command has: `--json`, `--quiet`, `--verbose`, `--debug`."""
    return [
        Headed(list(names), is_flag=True, help=text, group=OUTPUT)
        for names, text in (
            (("--json", "as_json"), "Print the result as one JSON document on standard output."),
            (
                ("-q", "--quiet"),
                "Print only warnings and errors: no progress, and no tables if --out is written.",
            ),
            (("-v", "--verbose"), "Also print details, such as the solver's rounds, passes, residuals and rates."),
            (("--debug",), "Print the traceback of an error."),
        )
    ]


def output_options(run: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command has to a command's callback."""
    vars(run).setdefault("__click_params__", []).extend(reversed(output_parameters()))
    return run


def runs(
    *,
    must_converge: bool = False,
    show: Callable[[Document, Output], None] | None = None,
    exit_code: Callable[[Document], int] | None = None,
) -> Callable[[Callable[..., Document]], Callable[..., None]]:
    """Return a decorator that turns a job, a function of a `Reporter` and the options, into a command's callback.

    The decorator adds the options that every command has. It passes its arguments to `execute`, which runs the job.
    """

    def decorate(job: Callable[..., Document]) -> Callable[..., None]:
        @wraps(job)
        def run(**options: Any) -> None:
            output = Output.taken(options)
            execute(
                click.get_current_context().command_path.partition(" ")[2] or job.__name__.replace("_", "-"),
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
    """End the block without an error if the reader of the output, such as `head`, closes the pipe."""
    try:
        yield
    except BrokenPipeError:
        # The remaining output must not be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print tables and similar objects on standard output."""
    from rich.console import Console

    # A file or pipe has no width, so use the width of the widest table.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for part in parts:
        console.print(part)


def _print_document(document: Document, output: Output, show: Callable[[Document, Output], None] | None) -> None:
    if output.as_json:
        from dkgp.commands.reporting.outputs import dump

        click.echo(dump(document))
    elif output.quiet and WRITTEN & document.keys():
        return
    elif show is not None:
        show(document, output)
    else:
        from dkgp.commands.reporting.tables import tables

        print_parts(tables(document, verbose=output.verbose))


def _print_failure(command: str, failure: tuple[str, str, int, str | None], as_json: bool) -> None:
    kind, message, exit_code, checkpoint = failure
    click.echo(f"dkgp {command}: {message}", err=True)
    if as_json:
        from dkgp.commands.reporting.outputs import dump

        error: dict[str, Any] = {"type": kind, "message": message, "exit_code": exit_code}
        if checkpoint is not None:
            error["checkpoint"] = checkpoint
        click.echo(dump({"command": command, "error": error}))


def _show_traceback(debug: bool) -> None:
    if debug:
        traceback.print_exc()


# ------------------------------------------------------------------------------------------- groups and streams


def meant(name: str, known: Sequence[str]) -> str:
    """Return "Did you mean ...?" with the most similar name, or a list of all names."""
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."


_LONGEST_SUMMARY = 1000


class Commands(click.Group):
    """Commands; a wrong name gets a suggestion of the most similar one. Click does the same for options."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; handle closed or full output, and refuse an environment in which no command can run."""
        with guarded_streams():
            try:
                _require_threads()
                return super().main(*arguments, **options)
            except DkgpError as error:  # errors of output before a command starts, such as its help
                print(f"dkgp: {error}", file=sys.stderr)
                sys.exit(int(error.exit_code))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their whole summaries, which click would cut at the width of the terminal."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_LONGEST_SUMMARY))
            for name, command in named
            if command and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the called command; raise click's `UsageError` if there is no command of that name."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command '{name}'. {meant(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


def _require_threads() -> None:
    """Refuse a number of Numba threads with which Numba cannot be imported. dkgp's own loops do not use this number."""
    threads = os.environ.get("NUMBA_NUM_THREADS", "")
    with suppress(ValueError):
        if int(threads) < 1:
            raise UsageError(
                f"NUMBA_NUM_THREADS is {threads}; expected a number above zero. Set such a number, or "
                f"unset the variable"
            )


class _Stream:
    """A standard stream: a failed write of output raises a readable error, and lost progress lines are ignored."""

    def __init__(self, stream: TextIO, *, may_lose: bool) -> None:
        self._stream, self._may_lose = stream, may_lose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        if text == "":  # click tests a stream with this; a full device would refuse it
            return 0
        with self._in_words():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write the buffer out."""
        with self._in_words():
            self._stream.flush()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise  # the reader closed the pipe: click and rich end without an error
        except OSError as error:
            # The buffered output must not be written again when the process ends.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not self._may_lose:
                raise StorageError(
                    f"cannot write to standard output: {(error.strerror or str(error)).lower()}. Redirect it to "
                    f"another file. All other outputs of the command are complete"
                ) from None


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Run a command with standard streams that may be closed or full; raise `StorageError` if its output has no space.

    The null device replaces a closed stream. Otherwise the next opened file would become standard output.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    output, errors = sys.stdout, sys.stderr
    try:
        if sys.stdout is None:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if sys.stderr is None:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if output is None:
            print("dkgp: standard output is closed; results are not printed", file=sys.stderr)
        sys.stdout = _Stream(sys.stdout, may_lose=False)
        sys.stderr = _Stream(sys.stderr, may_lose=True)
        yield
    finally:
        sys.stdout, sys.stderr = output, errors
