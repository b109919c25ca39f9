"""The folder of a report: what lies in it, whose it is, and what of an earlier run is taken over.

    index.html          the page
    report.json         that the folder is a report's, and what was last asked for
    records/NAME.json   what a part came to, with all that determined it
    pictures/NAME.png
    partial/NAME/...    what a part that is under way has so far; gone when it is done, unless that are draws, which
                        more draws go on with

Everything is written whole or not at all, so a process that is killed leaves a folder that the next one goes on with.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dkgp import __version__
from dkgp.commands.reporting.outputs import Document, dump, plain
from dkgp.data.remote.storage import TEMPORARY_PREFIX, is_local, remove_tree, translate_write_errors, write_object
from dkgp.errors import InputError
from dkgp_benchmarks.papers.plots import file_name

DONE, FAILED, MISSING = "done", "failed", "missing"
FORMAT = 1
MANIFEST, PAGE, LOCK = "report.json", "index.html", ".lock"
DRAWS = "draws"  # the setting that says how many; none of them depends on it
OWN_FOLDERS = ("records", "pictures", "partial")
# Of files that are being written when a process is killed: see `write_object`.
_TEMPORARY = TEMPORARY_PREFIX


def digest_of(settings: Mapping[str, Any]) -> str:
    """SHA-256 of what was asked for, of this version of dkgp."""
    text = json.dumps(plain({"asked": settings, "dkgp": __version__, "format": FORMAT}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class ReportFolder:
    """A report's folder, which one process at a time works in.

    Parameters
    ----------
    path : str
        The folder; made where it is missing.
    anew : bool
        Whether what an earlier run left is removed.

    Raises
    ------
    InputError
        A file, a folder with something else in it, or one that another process works in.
    StorageError
        It cannot be written to.
    """

    def __init__(self, path: str, *, anew: bool = False) -> None:
        if not is_local(path):
            raise InputError(f"`report` needs a folder on this machine; got '{path}'")
        self.path = Path(path).expanduser()
        self._check()
        with translate_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise InputError(f"another process is making the report '{path}'; wait for its end") from None
        if anew:
            for name in OWN_FOLDERS:
                remove_tree(str(self.path / name))

    def close(self) -> None:
        """Let others work in it."""
        os.close(self._lock)

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write that the folder is a report's, before anything else is in it."""
        manifest = {"command": "bench", "benchmark": "papers", "report": FORMAT, "dkgp": __version__, "asked": settings}
        self._write(MANIFEST, dump(manifest) + "\n")

    def record(self, name: str) -> Document | None:
        """Return the record of a part; None where there is nothing that can be read."""
        try:
            record = json.loads(self._record_path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_record = isinstance(record, dict) and record.get("name") == name and record.get("format") == FORMAT
        return record if is_record and record.get("status") in (DONE, FAILED, MISSING) else None

    def recorded(self) -> list[Document]:
        """All records that can be read, by name."""
        records = []
        for path in sorted((self.path / "records").glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                record = self.record(json.loads(path.read_text(encoding="utf-8"))["name"])
                records += [] if record is None else [record]
        return records

    def whole(self, record: Document) -> bool:
        """True if all pictures of a record are there."""
        return all((self.path / picture["file"]).is_file() for picture in record["pictures"])

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Keep what a part came to."""
        self._write(f"records/{file_name(record['name'])}.json", dump({"format": FORMAT, **record}) + "\n")

    def finish(self, record: Mapping[str, Any]) -> None:
        """Keep what a part came to now; what it had kept on the way goes, unless more draws may be asked for."""
        self.write_record(record)
        if DRAWS not in record["asked"]["settings"]:
            remove_tree(str(self._partial(record["name"])))

    def write_page(self, html: str) -> Path:
        """Write the page; return its file."""
        self._write(PAGE, html)
        return self.path / PAGE

    @property
    def pictures(self) -> Path:
        """The folder of pictures."""
        return self.path / "pictures"

    @contextmanager
    def partial(
        self, name: str, asked: Mapping[str, Any]
    ) -> Iterator[tuple[Callable[[str, Callable[[], Document]], Document], Path]]:
        """Open what a part has kept on its way, which counts for the same question alone, of any number of draws.

        Yields
        ------
        keep, record
            As of `dkgp_benchmarks.papers.part.Work`.
        """
        settings = {key: value for key, value in asked["settings"].items() if key != DRAWS}
        folder, digest = self._partial(name), digest_of({**asked, "settings": settings})
        if folder.is_dir() and not (folder / digest).is_file():
            remove_tree(str(folder))
        self._write(f"partial/{file_name(name)}/{digest}", "")

        def keep(key: str, make: Callable[[], Document]) -> Document:
            path = folder / f"{file_name(key)}.json"
            with contextlib.suppress(OSError, ValueError):
                found: Document = json.loads(path.read_text(encoding="utf-8"))
                return found
            made: Document = plain(make())
            write_object(str(path), dump(made).encode())
            return made

        yield keep, folder / "record.jsonl"

    def _check(self) -> None:
        if self.path.is_file():
            raise InputError(f"`report` needs a folder; '{self.path}' is a file")
        if not self.path.is_dir():
            return
        others = [name for name in os.listdir(self.path) if name != LOCK and not name.startswith(_TEMPORARY)]
        if others and not self._is_report():
            raise InputError(
                f"the folder '{self.path}' holds something else than a report ({min(others)}); name an empty or a new "
                "one"
            )

    def _is_report(self) -> bool:
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(manifest, dict) and manifest.get("benchmark") == "papers" and "report" in manifest

    def _record_path(self, name: str) -> Path:
        return self.path / "records" / f"{file_name(name)}.json"

    def _partial(self, name: str) -> Path:
        return self.path / "partial" / file_name(name)

    def _write(self, name: str, text: str) -> None:
        write_object(str(self.path / name), text.encode())
