"""Models whose manifests name training sets that nobody meant, as a stranger would write them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.data.stores.kinds import rewrite_manifest


def point_elsewhere(model: Path, url: object) -> None:
    """Have the model by reference name another training set, in a manifest that is whole."""
    named = {"training_url": url, "by_reference": True}
    rewrite_manifest(model, lambda manifest: manifest["metadata"].update(named))


class Knocks:
    """Counts who connects to a port of this machine."""

    def __init__(self) -> None:
        self.count = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.count += 1
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def knocks() -> Iterator[Knocks]:
    """An inner address that notes who calls."""
    made = Knocks()
    try:
        yield made
    finally:
        made.close()


def shell_reference(folder: Path) -> str:
    """An address that runs a command where file systems may be chained and templates are not confined.

    What it runs leaves `it-ran` in the folder.
    """
    command = "{{ cycler.__init__.__globals__.os.system('touch " + str(folder / "it-ran") + "') }}"
    made = {"key": command, "url": "file:///dev/null", "dimensions": {"i": [1]}}
    content = {"version": 1, "templates": {}, "gen": [made], "refs": {}}
    path = folder / "references.json"
    path.write_text(json.dumps(content))
    return f"reference://dkgp-manifest.json::file://{path}"
