"""Commands in processes of their own, that are killed or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import dkgp

PROGRAM = [sys.executable, "-m", "dkgp"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(dkgp.__file__).resolve().parents[1]),
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def killed(
    place: str,
    command: list[object],
    *,
    call: int = 1,
    after: bool = False,
    environment: Mapping[str, str] | None = None,
    may_end: bool = False,
) -> bool:
    """Run a command that is killed (kill -9) when it calls `place`, MODULE:NAME, so many times, or after that call.

    With `may_end` it may come to its end before: False then. It has the test's time, however busy the machine is.
    """
    module, name = place.split(":")
    *holders, function = name.split(".")
    # The module by its full name: a package may export a function named like one of its modules.
    code = f"""
import functools, os, signal, sys
import {module}
holder = functools.reduce(getattr, {holders!r}, sys.modules[{module!r}])
real, calls = getattr(holder, {function!r}), []
def dying(*arguments, **options):
    calls.append(None)
    result = real(*arguments, **options) if {after} or len(calls) < {call} else None
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(holder, {function!r}, dying)
from dkgp.cli import main
main(sys.argv[1:])
"""
    ended = subprocess.run(
        [PROGRAM[0], "-c", code, *map(str, command)],
        env={**ENVIRONMENT, **(environment or {})},
        capture_output=True,
        check=False,
    )
    if may_end and ended.returncode == 0:
        return False
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    return True


def signalled(command: list[object], number: signal.Signals, log: Path, lines: int) -> tuple[str, str]:
    """Run a command that gets a signal once its log has so many lines; what it wrote to its streams, ended by that."""
    with subprocess.Popen(
        [*PROGRAM, *map(str, command)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            while running.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= lines):
                time.sleep(0.01)
            running.send_signal(number)
            stdout, stderr = running.communicate()
        finally:
            running.kill()
    assert running.returncode == 130, stderr
    return stdout, stderr
