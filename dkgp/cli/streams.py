"""Standard output and standard error that are closed, or lie on a full device."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from dkgp.errors import StorageError


class _Stream:
    """A standard stream: output that cannot be written is an error in words, and lost progress lines are none."""

    def __init__(self, stream: TextIO, *, may_lose: bool) -> None:
        self._stream, self._may_lose = stream, may_lose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        if text == "":  # as click tries a stream: a full device refuses that, too
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
            raise  # a reader that has seen enough: click and rich end quietly
        except OSError as error:
            # What is buffered must not be written again when the process ends.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not self._may_lose:
                raise StorageError(
                    f"standard output cannot be written to: {(error.strerror or str(error)).lower()}. Send it to "
                    "another file; everything else that the command wrote is in place"
                ) from None


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Run a command whose standard streams may be closed, or full; `StorageError` where its output has no room.

    The null device takes the place of a closed stream: the next file that is opened must not become standard output.
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
