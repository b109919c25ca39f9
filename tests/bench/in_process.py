"""Contenders of benchmarks in the tests' own process, for tests of what becomes of their figures.

A process for each contender is there for its peak memory, and takes longer to start than problems this small to solve.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest


@pytest.fixture
def contenders_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let contenders run here, by the same lines of text as between processes."""

    def run(command: Sequence[str], *, input: str, **_: object) -> subprocess.CompletedProcess[str]:
        module, written = importlib.import_module(command[-1]), io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(written):
            patch.setattr(sys, "stdin", io.StringIO(input))
            module.main()
        return subprocess.CompletedProcess(command, 0, written.getvalue(), "")

    monkeypatch.setattr("dkgp.plan.validation.subprocess", SimpleNamespace(run=run))
