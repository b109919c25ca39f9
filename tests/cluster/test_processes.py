"""Worker processes import nothing from the folder in which they are started: it may be one of data; and they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dkgp.cluster import ClusterOptions, open_executor

# What Python itself imports on the way to a worker, and what dask and dkgp do.
NAMES = ("struct", "selectors", "signal", "psutil", "numpy", "distributed")


def doubled(group: list[int]) -> list[int]:
    return [2 * item for item in group]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules in it that leave a trace when they are run."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "it-ran"


def workers() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())}


@pytest.mark.long
def test_processes_import_nothing_from_where_they_are_started_and_are_gone_afterwards(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = workers()
    options = ClusterOptions(kind="processes", workers=1, threads_per_worker=2, plain_text=True)
    with open_executor(options, 1) as executor:
        assert (executor.shares_memory, executor.overlaps, executor.parallelism) == (False, True, 2)
        assert executor._client.scheduler.address.startswith("tcp://127.0.0.1:")  # type: ignore[attr-defined]
        started = workers() - before
        assert len(started) == 1
        assert executor.submit("t", doubled, (), [[1]]).result() == [2]
    assert not psutil.wait_procs(started, timeout=240)[1]
    assert not planted.exists()
    # What the caller starts besides is the caller's own business again.
    assert "PYTHONSAFEPATH" not in os.environ
    # The attack is one: without all that, the command line by which a worker is started runs what lies there.
    command = [sys.executable, "-c", "from multiprocessing.spawn import spawn_main"]
    subprocess.run(command, check=False, capture_output=True, timeout=240)
    assert planted.exists()
