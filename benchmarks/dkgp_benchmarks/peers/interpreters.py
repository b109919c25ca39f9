"""Interpreters of environments that have other libraries, and a peer that one of them runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dkgp.cluster.threads import available_cores
from dkgp.errors import DkgpError, MissingExtraError, UsageError
from dkgp_benchmarks.peers import runner


class PeerError(DkgpError):
    """A peer broke down."""


def find_interpreters(peers: Sequence[str], candidates: Sequence[str]) -> dict[str, str]:
    """For each peer the first interpreter that has its package: one of the candidates, or dkgp's own.

    Raises
    ------
    UsageError
        An interpreter that does not run.
    MissingExtraError
        No interpreter has it; the message names the extra.
    """
    found = {}
    for peer in peers:
        package = peer.partition("-")[0]
        place = next((python for python in candidates if _has(python, package)), None)
        if place is None and find_spec(package) is None:
            purpose = f"The peer {peer} (`peer_python` names an interpreter of an environment of its own)"
            raise MissingExtraError(package, "peers", purpose, "dkgp-benchmarks")
        found[peer] = place or sys.executable
    return found


def run_peer(peer: str, python: str, problem: Path, predictions: Path) -> dict[str, Any]:
    """Run a peer by an interpreter on a problem (.npz), which leaves predictions (.npz); its figures.

    Raises `PeerError` with its last words where it fails.
    """
    told = {"peer": peer, "problem": str(problem), "predictions": str(predictions), "threads": available_cores()}
    finished = subprocess.run(
        [python, "-I", runner.__file__], input=json.dumps(told), capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        reason = finished.stderr.strip().splitlines()[-1:] or [f"exit code {finished.returncode}"]
        raise PeerError(f"{peer} failed: {reason[0]}")
    figures: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures


def _has(python: str, package: str) -> bool:
    """True if an interpreter has a package; it is not imported for the answer."""
    look = f"import sys, importlib.util; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-I", "-c", look], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise UsageError(f"the interpreter '{python}' does not run: {error}") from error
