"""Modules that a command imports, counted in a process of its own."""

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


# Modules that the help of a command loads, in all and of dkgp. A limit may only fall.
MOST_MODULES = {
    "": (250, 20),
    "warm-up": (460, 45),
    "ingest": (540, 75),
    "info": (600, 105),
    "evaluate": (390, 35),
    "predict": (440, 52),
    "train": (550, 132),
    "tune": (640, 215),
    "sparse": (630, 205),
    "fit": (510, 75),
    "audit": (420, 46),
    "krige variogram": (435, 48),
    "krige fit": (445, 56),
    "krige map": (445, 56),
    "krige simulate": (445, 56),
}
UNUSED = {
    "numba",
    "llvmlite",
    "dask",
    "jinja2",
    "zarr",
    "xarray",
    "pandas",
    "sklearn",
    "scipy.stats",
    "scipy.optimize",
    "scipy.linalg",
    "scipy.spatial",
    "distributed",
    "matplotlib",
    "rich",
}


@pytest.mark.parametrize("command", MOST_MODULES)
def test_help_loads_few_modules(command: str) -> None:
    code = (
        "import sys; from dkgp.cli import main; main([*sys.argv[1:], '--help'], standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )
    run = [PROGRAM[0], "-c", code, *command.split()]
    shown = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    modules = shown.stderr.split()
    assert shown.stdout.startswith("Usage:")
    assert UNUSED & set(modules) == set()
    ours = [name for name in modules if name.split(".")[0] == "dkgp"]
    in_all, of_dkgp = MOST_MODULES[command]
    assert len(modules) <= in_all
    assert len(ours) <= of_dkgp


def test_a_command_that_evaluates_no_kernel_imports_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i * i}\n" for i in range(20)))
    code = (
        "import sys; from dkgp.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    words = f"ingest {tmp_path / 'a.csv'} {tmp_path / 'a.zarr'} --target y".split()
    shown = subprocess.run(
        [PROGRAM[0], "-c", code, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "samples" in shown.stdout
    assert {"numba", "llvmlite", "dkgp.kernels", "distributed"} & set(shown.stderr.split()) == set()


def test_a_compiled_function_is_built_at_its_first_call_and_pickled_by_name() -> None:
    code = (
        "import pickle, sys\nimport numpy as np\nfrom dkgp.solvers import base\n"
        "assert 'numba' not in sys.modules\n"
        "one = np.ones((3, 1))\n"
        "assert pickle.loads(pickle.dumps(base.measures)) is base.measures\n"
        "assert 'numba' not in sys.modules\n"
        "base.measures(one, one, one, one[:0, 0], 3)\n"
        "assert 'numba' in sys.modules\n"
        "assert type(base.measures.built()).__name__ == 'CPUDispatcher', base.measures\n"
    )
    subprocess.run([PROGRAM[0], "-c", code], env=ENVIRONMENT, check=True)
