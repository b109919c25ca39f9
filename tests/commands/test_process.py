"""Signals and memory: what a job knows of its own process."""

from __future__ import annotations

import _thread
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dkgp
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.signals import first_signal_only, interruptible, stop_requested, terminate_as_interrupt
from dkgp.errors import StorageError

MEBIBYTE = 2**20


def test_the_first_signal_asks_and_the_second_ends() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with interruptible(said.append) as interruption:
        assert not interruption()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption()
        with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGINT$"):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == [
        "interrupted by SIGTERM: stopping; a command with checkpoints saves its rounds first; a second signal ends "
        "the command at once"
    ]
    assert signal.getsignal(signal.SIGINT) is before


class Signalling(io.RawIOBase):
    """A stream at whose first write a signal comes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.written.append(bytes(content))
        if len(self.written) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return len(content)


def test_an_announcement_may_write_where_the_signal_interrupts_a_write() -> None:
    """A handler that wrote there itself would raise a `RuntimeError` in the middle of the work."""
    stream = Signalling()
    writer = io.BufferedWriter(stream)

    def announce(message: str) -> None:
        writer.write(message.encode())
        writer.flush()

    with interruptible(announce) as interruption:
        writer.write(b"work")
        writer.flush()
        assert interruption()
    assert stream.written[0] == b"work"
    assert stream.written[1].startswith(b"interrupted by SIGTERM: stopping; a command")


def in_callback(phase: str, info: object) -> None:
    """Send a signal in a callback of the collector, where Python drops the exception of its handler."""
    if phase == "start":
        gc.callbacks.remove(in_callback)
        os.kill(os.getpid(), signal.SIGTERM)


class Finaliser:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize("place", ["callback", "finaliser"])
def test_a_signal_whose_exception_python_drops_is_not_lost(place: str, supervised: bool) -> None:
    slept: list[bool] = []

    def interrupted() -> None:
        if place == "callback":
            gc.callbacks.append(in_callback)
            gc.collect()
        else:
            Finaliser()
        time.sleep(240.0)
        slept.append(True)

    with (
        first_signal_only() if supervised else nullcontext(),
        pytest.raises(KeyboardInterrupt, match="^interrupted by SIGTERM$"),
        terminate_as_interrupt(),
    ):
        interrupted()
    assert not slept


def test_a_dropped_signal_is_sent_until_it_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that arrives between the interpreter's last check and a system call does not interrupt that call."""
    send, sent = signal.pthread_kill, list[int]()

    def late_at_first(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            send(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", late_at_first)
    monkeypatch.setattr("dkgp.commands.signals._NEXT_RESEND_SECONDS", 0.05)

    def interrupted() -> None:
        Finaliser()
        time.sleep(240.0)

    with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGTERM$"), terminate_as_interrupt():
        interrupted()
    assert sent[:2] == [signal.SIGTERM] * 2


def test_a_signal_is_sent_again_when_the_main_thread_is_slow_to_note_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is raised while Python tells of a dropped one would be lost for good."""
    start = _thread.start_new_thread

    def slowly(*arguments: Any) -> int:
        thread = start(*arguments)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass
        return thread

    def interrupted() -> None:
        Finaliser()
        for _ in range(5000):
            time.sleep(0.05)

    monkeypatch.setattr(_thread, "start_new_thread", slowly)
    with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGTERM$"), terminate_as_interrupt():
        interrupted()


def test_whether_the_innermost_rounds_were_asked_to_end() -> None:
    assert not stop_requested()
    with interruptible(lambda message: None):
        assert not stop_requested()
        with interruptible(lambda message: None):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop_requested()
        assert not stop_requested()
    assert not stop_requested()


def test_the_second_signal_of_rounds_is_not_lost_either() -> None:
    def collect() -> None:
        gc.callbacks.append(in_callback)
        gc.collect()
        time.sleep(240.0)

    with interruptible(lambda message: None) as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption()
        with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGTERM$"):
            collect()


def test_rounds_that_begin_after_a_dropped_signal_are_asked_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.commands.signals._RESEND_SECONDS", 0.2)
    with terminate_as_interrupt():
        gc.callbacks.append(in_callback)
        gc.collect()
        with interruptible(lambda message: None) as interruption:
            assert interruption()
            time.sleep(0.3)  # it is not sent again: that would be a second signal


def test_an_error_that_a_signal_causes_is_the_signals() -> None:
    def failing(error: Exception) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise error from None

    with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGTERM$"), terminate_as_interrupt():
        failing(ImportError("numpy failed to import"))  # as extension modules do
    with pytest.raises(StorageError, match="disk full"), terminate_as_interrupt():
        failing(StorageError("disk full"))
    with pytest.raises(ImportError, match="no such module"), terminate_as_interrupt():
        raise ImportError("no such module")


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("click", signal.SIGTERM),
        ("numpy", signal.SIGTERM),
        pytest.param("rich.console", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_signal_during_imports_ends_a_command_as_interrupted(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    code = f"""
import os, runpy, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Finder)
sys.argv = ["dkgp", "info", {str(tmp_path / "nothing.zarr")!r}]
runpy.run_module("dkgp", run_name="__main__", alter_sys=False)
"""
    done = run_python(code)
    assert done.returncode == 130, done.stderr
    assert f"interrupted by {number.name}" in done.stderr
    assert "Traceback" not in done.stderr


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(dkgp.__file__).resolve().parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_sigterm_as_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGTERM$"), terminate_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_signals_alone() -> None:
    found = []

    def work() -> None:
        with interruptible(found.append) as interruption:
            found.append(interruption())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_process_has_a_peak_of_its_own_which_grows_with_what_it_holds() -> None:
    # In a process of its own: this one's peak may be that of any test before; and is not handed down.
    held = np.ones(200 * MEBIBYTE // 8)
    code = (
        "import numpy as np; from dkgp.commands.reporting.memory import available_bytes, own_peak_bytes as peak; "
        "before = peak(); held = np.ones(before // 8 + 2**20); grown = peak(); "
        "assert grown - before >= 2**22, (before, grown); "
        "assert held.nbytes < grown < available_bytes() + before + held.nbytes, (before, grown); print(before)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(dkgp.__file__).resolve().parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 5 * MEBIBYTE < int(done.stdout) < held.nbytes


def test_children_count() -> None:
    code = "held = bytearray(150 * 2**20); print('ready', flush=True); input()"
    with PeakMemory() as memory:
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "ready\n"
        assert memory.bytes >= psutil.Process().memory_info().rss + 140 * MEBIBYTE
        child.communicate("\n")
    assert child.returncode == 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the files of Linux")
def test_children_of_children_count_and_no_other_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = "held = bytearray(100 * 2**20); print('ready', flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    # A walk over all processes of the machine asks for the list of them.
    monkeypatch.setattr(psutil, "pids", lambda: pytest.fail("all processes were listed"))
    with PeakMemory() as memory:
        child = subprocess.Popen(
            [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "ready\n"
        assert memory.bytes >= psutil.Process().memory_info().rss + 95 * MEBIBYTE
        child.communicate("\n")
    assert child.returncode == 0
