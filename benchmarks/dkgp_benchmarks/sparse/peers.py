"""Sparse models of other libraries on the same problem, each in a process of an interpreter that has it.

They are given the kernel, the noise variance, and where they take them the inducing points; nothing is trained but what
these determine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.data import Dataset, open_dataset
from dkgp.errors import DkgpError, MissingExtraError, UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.sparse.bases import blind_basis
from dkgp.operators import BlockedKernelOperator
from dkgp_benchmarks.sparse import peer_runner
from dkgp_benchmarks.sparse.peer_runner import PEERS

__all__ = ["PEERS", "find_interpreters", "peer_model"]

# Of the samples that peers are given as inducing points, drawn as `basis=uniform` draws them.
BASIS = "uniform"


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


def peer_model(description: dict[str, Any], dataset: Dataset, found: Hyperparameters) -> dict[str, Any]:
    """A peer's model and predictions, by its own interpreter."""
    if not isinstance(found.kernel, SquaredExponential) or dataset.n_targets != 1:
        raise UsageError("peers are given a squared exponential kernel and one target; this problem has others")
    place = Path(description["predictions"])
    test = open_dataset(description["test"])
    inputs = dataset.inputs(0, dataset.n_samples)
    with BlockedKernelOperator(found.kernel, found.noise_variance, dataset, LocalExecutor(1)) as operator:
        basis = blind_basis(operator, BASIS, description["basis_size"], description["seed"])
    problem = place.with_suffix(".problem.npz")
    np.savez(
        problem,
        X=inputs,
        y=dataset.all_targets()[:, 0],
        Z=basis.inputs,
        T=test.inputs(0, test.n_samples),
        gamma=found.kernel.feature_gamma,
        variance=found.kernel.variance,
        noise=found.noise_variance,
    )
    return run_peer(description["peer"], description["python"], problem, place)


def run_peer(peer: str, python: str, problem: Path, predictions: Path) -> dict[str, Any]:
    """Run a peer by an interpreter on a problem (.npz), which leaves predictions (.npz); its figures."""
    told = {"peer": peer, "problem": str(problem), "predictions": str(predictions), "threads": available_cores()}
    finished = subprocess.run(
        [python, "-I", peer_runner.__file__], input=json.dumps(told), capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        reason = finished.stderr.strip().splitlines()[-1:] or [f"exit code {finished.returncode}"]
        raise DkgpError(f"{peer} failed: {reason[0]}")
    figures: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures


def _has(python: str, package: str) -> bool:
    """True if an interpreter has a package; it is not imported for the answer."""
    look = f"import sys, importlib.util; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-I", "-c", look], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise UsageError(f"the interpreter '{python}' does not run: {error}") from error
