"""Processes that are measured: started with a description, loaded with compiled code on a few samples first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import DkgpError

WARM_UP_SAMPLES = 1024


def run_contender(
    description: dict[str, Any], module: str, *, warn: Callable[[str], None] = lambda message: None
) -> dict[str, Any]:
    """Run one contender of a module in a new process; return its figures, and pass on what it warns of.

    Raises
    ------
    DkgpError
        It failed; the end of what it wrote to standard error is in the message.
    """
    finished = subprocess.run(
        [sys.executable, "-P", "-m", module],
        input=json.dumps(description),
        capture_output=True,
        text=True,
        env=found_environment(module),
        check=False,
    )
    if finished.returncode != 0:
        reason = finished.stderr.strip().splitlines()[-1:] or [f"exit code {finished.returncode}"]
        raise DkgpError(f"the contender {description['contender']} failed: {reason[0]}")
    figures: dict[str, Any] = json.loads(finished.stdout)
    for message in figures.pop("cluster_warnings", ()):
        warn(message)
    return figures


def found_environment(module: str) -> dict[str, str]:
    """Return the environment in which a child finds dkgp and a module's package, wherever they were imported from."""
    specs = (find_spec(package) for package in ("dkgp", module.partition(".")[0]))
    folders = [str(Path(spec.origin).resolve().parents[1]) for spec in specs if spec is not None and spec.origin]
    path = [*dict.fromkeys(folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def write_warm_up(train: Dataset, url: str) -> None:
    """Write the first training samples to a store of their own, to load compiled code with."""
    rows = min(WARM_UP_SAMPLES, train.n_samples)
    dataset_from_arrays(
        url,
        train.raw_inputs(0, rows),
        train.targets(0, rows, standardised=False),
        feature_names=train.raw_feature_names,
        target_names=train.target_names,
        standardisation=train.standardisation,
    )
