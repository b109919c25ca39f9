"""Signals and memory: what a job knows of its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import dkgp
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.signals import interruptible, terminate_as_interrupt

MEBIBYTE = 2**20


def test_the_first_signal_asks_and_the_second_ends() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with interruptible(said.append) as interruption:
        assert not interruption()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption()
        assert said == ["interrupted by SIGTERM: finishing this round and saving a checkpoint; once more ends at once"]
        with pytest.raises(KeyboardInterrupt, match="^interrupted by SIGINT$"):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert memory.bytes >= psutil.Process().memory_info().rss + 140 * MEBIBYTE
        child.communicate("\n")
    assert child.returncode == 0
