"""What work brings into its process, and what it leaves out; a process of its own, since others share this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.processes import ENVIRONMENT, PROGRAM

# scipy.stats alone takes as long as all of dkgp: half a second of every command and of every worker.
HEAVY = {"scipy.stats", "scipy.optimize", "pandas", "xarray", "distributed", "dask.array", "matplotlib", "rich"}
CODE = """
import os, sys
if not os.fork():
    # Whoever asks a service computes nothing.
    import dkgp.cli.service, dkgp.commands.reporting.jobs, dkgp.commands.reporting.terminal
    import dkgp.service.announcements, dkgp.service.client
    print(sorted({{"dkgp.models", "dkgp.solvers", "numba", "scipy.linalg", "pandas"}} & set(sys.modules)))
    sys.exit()
os.wait()
import dkgp.models, dkgp.cluster, dkgp.data
print(sorted({heavy} & set(sys.modules)))
from dkgp.commands.reporting.terminal import notebook_display
print(notebook_display(), "IPython" in sys.modules)
from dkgp.commands.reporting import plots
print("matplotlib" in sys.modules)
with plots.drawn({plot!r}, 4, 3, "figure"):
    print("matplotlib.pyplot" in sys.modules)
"""


def test_only_what_a_run_takes_is_imported(tmp_path: Path) -> None:
    """Looking for a notebook imports none of it, and drawing chooses no backend for the whole process."""
    pytest.importorskip("matplotlib")
    code = CODE.format(heavy=HEAVY, plot=str(tmp_path / "plot.png"))
    shown = subprocess.run([PROGRAM[0], "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == ["[]", "[]", "None False", "False", "False"]
