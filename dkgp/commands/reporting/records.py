"""The structured log of a run: one JSON line a round (`--log-json FILE`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from dkgp.commands.reporting.documents import dump
from dkgp.data.remote.storage import open_new, read_object, translate_write_errors


class RecordLog:
    """Appends records to a file, each one flushed; opened by the first record.

    Parameters
    ----------
    path : path or None
        None logs nothing.
    resume : bool
        Go on with the file that is there. Rounds that are done again replace the earlier record of the same round.
    """

    def __init__(self, path: str | Path | None, *, resume: bool = False) -> None:
        self._path = None if path is None else Path(path)
        self._resume = resume
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one record; its "iteration" is the round it tells of."""
        if self._path is None:
            return
        with translate_write_errors(self._path):
            if self._file is None:
                self._file = self._open(self._path, int(record.get("iteration", 0)))
            self._file.write(dump(record, indent=None) + "\n")
            self._file.flush()

    def _open(self, path: Path, iteration: int) -> IO[str]:
        kept = _records_before(path, iteration) if self._resume and path.exists() else []
        file = open_new(path)
        file.writelines(line + "\n" for line in kept)
        return file


def _records_before(path: Path, iteration: int) -> list[str]:
    kept = []
    for line in read_object(path).decode("utf-8").splitlines():
        try:
            if int(json.loads(line)["iteration"]) < iteration:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # a line cut short when the run was killed
    return kept
