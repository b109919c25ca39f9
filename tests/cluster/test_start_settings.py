"""Settings that are held while a cluster runs take nothing away when they go."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from contextlib import ExitStack

import dask

from dkgp.cluster.connect import start_cluster
from dkgp.cluster.options import ClusterOptions

if __name__ == "__main__":
    assert "distributed" not in sys.modules
    with ExitStack() as stack:
        start_cluster(ClusterOptions(kind="local"), None, stack)
    print("comm" in dask.config.get("distributed", {}))
"""


def test_distributeds_defaults_outlive_the_first_cluster() -> None:
    """They come with its import; where that is made while a setting of its own is held, they go with that."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (run.stdout.split(), run.returncode) == (["True"], 0), run.stderr
