"""Documents: the results of jobs, in plain JSON types."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

from dkgp.codec import finite, to_json
from dkgp.commands.reporting.plots import check_plot_file
from dkgp.data.exports import require_table_format
from dkgp.data.remote.storage import exists, is_local, open_new, read_object, replacing, translate_write_errors
from dkgp.data.stores.writable import require_outside_stores
from dkgp.errors import InputError, OutputExistsError, UsageError, about

Document: TypeAlias = dict[str, Any]


def plain(value: Any) -> Any:
    """Return the value in plain JSON types; NaN and infinities, which JSON lacks, become None."""
    return finite(to_json(value))


def is_document(path: str | os.PathLike[str], command: str) -> bool:
    """Return True if a file contains a document of that command."""
    try:
        return bool(json.loads(read_object(path))["command"] == command)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def dump(document: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return the document as JSON text that every parser accepts."""
    return json.dumps(plain(document), indent=indent, allow_nan=False)


# The first bytes of files that dkgp replaces, by suffix.
_OPENINGS: dict[str, tuple[bytes, ...]] = {
    ".png": (b"\x89PNG",),
    ".pdf": (b"%PDF",),
    ".svg": (b"<?xml", b"<svg", b"<!DOCTYPE svg"),
    ".json": (b"{", b"["),
    ".jsonl": (b"{",),
    ".html": (b"<",),
}


def check_output_file(path: str | os.PathLike[str], *, replace: bool, option: str, local: bool = True) -> None:
    """Check that a file can be written, before the work starts.

    Raises `OutputExistsError`: the file exists, or does not begin as files of its kind do. Raises `InputError`: it is a
    folder, not a local path, or inside a dkgp store. Raises `StorageError`: its folder is not writable.

    Parameters
    ----------
    replace : bool
        Whether an existing file may be replaced.
    option : str
        The name of the path's option in messages: a parameter in backticks, or words.
    local : bool
        Whether the file must be on this machine's file systems.
    """
    if not local and not is_local(path):
        if exists(path) and not replace:
            raise OutputExistsError(
                f"'{os.fspath(path)}' ({option}) already exists; choose another name, or give `overwrite` to replace it"
            )
        return
    _require_local(path, option)
    target = Path(path).expanduser().absolute()
    if target.is_dir():
        raise InputError(f"{option} needs a file; '{target}' is a folder")
    require_outside_stores(target, option)
    if target.exists() and not replace:
        raise OutputExistsError(
            f"the file '{target}' ({option}) already exists; choose another name, or give `overwrite` to replace it"
        )
    _require_same_kind(target, option)
    folder = target.parent
    while not folder.exists():
        folder = folder.parent
    # Permission bits mislead (root, read-only mounts), so try to write.
    with translate_write_errors(target), tempfile.TemporaryFile(dir=folder):
        pass


def _require_local(path: str | os.PathLike[str], option: str) -> None:
    if not is_local(path):
        raise InputError(f"{option} needs a local file; got '{os.fspath(path)}'")


def _require_same_kind(target: Path, option: str) -> None:
    """Refuse to replace a file that does not begin as files of its kind do: the user named it by mistake.

    Raises `OutputExistsError`.
    """
    openings = _OPENINGS.get(".jsonl" if option == "`log_json`" else target.suffix.lower())
    if openings is None or not target.is_file():
        return
    try:
        with target.open("rb") as file:
            beginning = file.read(64).lstrip()
    except OSError:
        return  # the write test reports an unreadable file
    if beginning and not beginning.startswith(openings):
        raise OutputExistsError(
            f"the file '{target}' ({option}) is not a file of this kind and is not replaced. Choose another name, or "
            f"remove the file yourself"
        )


def check_side_files(plot: str | None, log_json: str | None, *, replace: bool | None = None) -> None:
    """Check the paths for a plot and for records; errors as in `check_output_file` and `check_plot_file`.

    If `replace` is None, only the names are checked, without access to the file system.
    """
    if plot is not None:
        with about("plot"):
            check_plot_file(plot)
    for name, path in (("plot", plot), ("log_json", log_json)):
        if path is not None and replace is not None:
            check_output_file(path, replace=replace, option=f"`{name}`")
        elif path is not None:
            _require_local(path, f"`{name}`")
    if plot is not None and log_json is not None and Path(plot).absolute() == Path(log_json).absolute():
        raise UsageError(f"`plot` and `log_json` name the same file, '{plot}'; choose two")


def check_results(job: Any) -> None:
    """Check the paths of a job's `plot`, and of `out` for its document; errors as in `check_side_files`."""
    check_side_files(job.plot, None, replace=job.overwrite)
    if job.out is not None:
        check_output_file(job.out, replace=job.overwrite, option="`out`")


def with_results(document: Document, job: Any) -> Document:
    """Return the document with the paths of `check_results`, and write it to `out`."""
    document = document | {name: path for name in ("out", "plot") if (path := getattr(job, name)) is not None}
    if job.out is not None:
        write_text(job.out, dump(document) + "\n")
    return document


def check_table(path: str, *, replace: bool) -> None:
    """Check the path of a table; errors as in `check_output_file` and `require_table_format`."""
    require_table_format(path)
    check_output_file(path, replace=replace, option="the table")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a small text file; `StorageError` if the storage refuses it. Other errors as in `replacing`."""
    with replacing(Path(path).expanduser()) as place:
        place.write_text(text, encoding="utf-8")


class RecordLog:
    """Append records to a file and flush each one; the first record opens the file.

    Parameters
    ----------
    path : path or None
        The file; None disables the log.
    resume : bool
        Continue an existing file. Repeated rounds replace the earlier record of the same round.
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
        """Add a record; its "iteration" is the number of its round."""
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
            continue  # an incomplete line, written when the run was killed
    return kept
