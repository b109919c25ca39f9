"""A record of measured units, one JSON object a line: an interrupted benchmark continues from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dkgp.codec import difference
from dkgp.commands.reporting.outputs import dump, plain
from dkgp.data.remote.storage import translate_write_errors
from dkgp.errors import InputError


class Record:
    """Figures of units by their key; each is appended to a file as soon as it is measured.

    Parameters
    ----------
    path : str or None
        The file; None keeps no record.
    identity : dict
        Settings that all units of a file share; its first line.
    benchmark : str
        Name of the benchmark, which the first line has too.

    Raises
    ------
    InputError
        The file holds something else, or units of another identity.
    """

    def __init__(self, path: str | None, identity: dict[str, Any], benchmark: str = "classify") -> None:
        self._kind = f"bench {benchmark}"
        self.path = None if path is None else Path(path).expanduser()
        self._found: dict[str, dict[str, Any]] = {}
        identity = plain(identity)
        if self.path is None:
            return
        if self.path.is_file() and self.path.stat().st_size:
            self._read(self.path, identity)
        else:
            with translate_write_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"record": self._kind, "identity": identity})

    def get(self, key: str) -> dict[str, Any] | None:
        """Figures of a unit, or None."""
        return self._found.get(key)

    def add(self, key: str, figures: dict[str, Any]) -> None:
        """Keep the figures of a unit."""
        self._found[key] = plain(figures)
        self._append({"key": key, "figures": figures})

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        with translate_write_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(dump(line, indent=None) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path, identity: dict[str, Any]) -> None:
        whole, lines = 0, []
        for raw in path.read_bytes().splitlines(keepends=True):
            try:
                line = json.loads(raw)
            except ValueError:
                break
            if not raw.endswith(b"\n") or not isinstance(line, dict):
                break
            lines.append(line)
            whole += len(raw)
        if not lines or lines[0].get("record") != self._kind:
            raise InputError(f"`record` '{path}' is no record of `dkgp {self._kind}`; name another file")
        if (other := difference(lines[0]["identity"], identity)) is not None:
            raise InputError(f"`record` '{path}' was taken with another {other}; name another file")
        for line in lines[1:]:
            self._found[line["key"]] = line["figures"]
        # A line that was being written when its process was killed.
        with translate_write_errors(path):
            os.truncate(path, whole)
