"""Every error that dkgp raises on purpose, with its exit code on the command line.

A message states the actual input, the expected input, and the remedy. It names a parameter in backticks, as in
`max_passes`. Each surface spells that name: the command line as a flag (`spelled`), Python without changes. If a
message does not name its field, the error's `parameter` does. The jobs service puts it before the message. Any
exception that is not a `DkgpError` is a bug.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

__all__ = [
    "CheckpointError",
    "ClusterError",
    "DkgpError",
    "DocumentError",
    "ExitCode",
    "InputError",
    "InputTypeError",
    "InterruptedRunError",
    "MemoryBudgetError",
    "MissingExtraError",
    "NotConvergedError",
    "NumericalError",
    "OutputExistsError",
    "ServiceError",
    "StorageError",
    "StoreError",
    "UsageError",
    "WaitTimeoutError",
]

E = TypeVar("E", bound="DkgpError")
# A parameter in a message.
_PARAMETER = re.compile(r"`([a-z][a-z0-9_]*)`")


class ExitCode(IntEnum):
    """Exit codes of the command line (0, 2, 3, 4, 5, 130; 124 only for `dkgp wait --timeout`)."""

    DONE = 0
    USAGE = 2
    BAD_INPUT = 3
    NOT_CONVERGED = 4
    CLUSTER_LOST = 5
    TIMED_OUT = 124
    INTERRUPTED = 130


class DkgpError(Exception):
    """Base of all deliberate errors; `exit_code` is the exit code of the command.

    `parameter` is the refused field if the message does not name it. Dots separate nested fields.
    """

    exit_code: ExitCode = ExitCode.BAD_INPUT
    parameter: str | None = None


class UsageError(DkgpError):
    """Options that contradict each other or cannot be parsed."""

    exit_code = ExitCode.USAGE


class InputError(DkgpError, ValueError):
    """Data or settings that dkgp cannot work with; raised before work starts."""


class DocumentError(InputError):
    """JSON that does not describe a value of its kind."""


class InputTypeError(InputError, TypeError):
    """Values of a type that cannot be converted to numbers."""


class StoreError(InputError):
    """A store that is missing, incomplete, damaged, or of an unexpected kind."""


class CheckpointError(StoreError):
    """A checkpoint that is truncated or belongs to another run."""


class OutputExistsError(InputError):
    """The output already exists, and the user did not ask to overwrite it."""

    @classmethod
    def of(cls, place: str) -> OutputExistsError:
        """Return the error for an output at this place."""
        return cls(f"The output '{place}' already exists. Choose another path, or give `overwrite` to replace it.")


class StorageError(DkgpError, OSError):
    """The storage refused a write, for example because of a full disk or a missing permission."""


class MemoryBudgetError(InputError):
    """The projected memory of a job exceeds the budget; raised before anything is allocated."""


class MissingExtraError(DkgpError, ImportError):
    """An optional dependency is not installed; the message names the extra (of dkgp by default) that installs it."""

    exit_code = ExitCode.USAGE

    def __init__(self, package: str, extra: str, purpose: str, distribution: str = "dkgp") -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"Install it with: pip install '{distribution}[{extra}]'"
        )


class NumericalError(DkgpError, ArithmeticError):
    """A factorisation or recursion broke down; the message names the place and the remedy."""


class NotConvergedError(DkgpError):
    """A solve stopped before it reached its tolerance (passes, seconds or stagnation)."""

    exit_code = ExitCode.NOT_CONVERGED


class ClusterError(DkgpError):
    """The cluster could not be reached, has no workers, or was lost during the run."""

    exit_code = ExitCode.CLUSTER_LOST


class ServiceError(DkgpError):
    """The jobs service could not be reached, or its answer is not that of a dkgp service."""

    exit_code = ExitCode.CLUSTER_LOST


class WaitTimeoutError(DkgpError):
    """A job did not finish within the given waiting time; the job continues."""

    exit_code = ExitCode.TIMED_OUT


class InterruptedRunError(DkgpError):
    """The run was interrupted; its state was saved and can be resumed."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(self, message: str, checkpoint: Path | str | None = None) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


# Exceptions that programming mistakes cause. Libraries also raise these for damaged files.
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
_PACKAGE = Path(__file__).parent


def is_mistake(error: BaseException) -> bool:
    """Return True if a line of dkgp's own code, not of a library that it calls, raised a programming mistake: a bug."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, _MISTAKES) and bool(frames) and _PACKAGE in Path(frames[-1].f_code.co_filename).parents


def spelled(text: str, spelling: Callable[[str], str | None]) -> str:
    """Return the text with its parameters spelled by `spelling`; parameters without a spelling do not change."""
    return _PARAMETER.sub(lambda match: spelling(match[1]) or match[0], text)


def respell(error: E, spelling: Callable[[str], str | None]) -> E:
    """Return the error after spelling the parameters in its message by `spelling`."""
    error.args = (spelled(str(error), spelling), *error.args[1:])
    return error


@contextmanager
def about(parameter: str) -> Iterator[None]:
    """Set the `parameter` of an error raised within the block to this parameter, or to a field of it."""
    try:
        yield
    except DkgpError as error:
        error.parameter = parameter if error.parameter is None else f"{parameter}.{error.parameter}"
        raise
