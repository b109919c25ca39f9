"""The fixtures that look for leaks see one of each kind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.leaks import Held, complaints


def test_nothing_is_told_of_nothing() -> None:
    before = Held.now()
    assert complaints(before, Held.now()) == []


def test_each_kind_of_leak_is_told(tmp_path: Path) -> None:
    before = Held.now()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left behind")
    thread.start()
    files = [os.open(tmp_path, os.O_RDONLY) for _ in range(30)]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        words = complaints(before, Held.now())
        port = server.getsockname()[1]
    release.set()
    thread.join()
    for descriptor in files:
        os.close(descriptor)
    assert f"processes [({process.pid}, " in words[0]
    assert words[1:] == [
        "threads ['left behind']",
        f"listening ports [('127.0.0.1', {port})]",
        words[-1],
    ]
    assert "open files more" in words[-1]
    assert complaints(before, Held.now()) == []
