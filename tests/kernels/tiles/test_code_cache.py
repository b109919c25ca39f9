"""Compiled code on disk is used while its sources stand, and never after one of them has changed."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.ccallback import CFunc

import dkgp
from dkgp.kernels import stationary
from dkgp.kernels.compiler import Deferred
from dkgp.kernels.stationary import EXP2
from dkgp.kernels.tiles import code_cache, loops, stages

CALLER = """
import numpy as np
from package.code_cache import c_function, kept_njit
from package.part import part
from numba import types

def whole(x):
    return part(x)

whole = kept_njit(whole, nogil=True)

def stage(x):
    return part(x)

value = whole(1.0)
callback = c_function(stage, types.float64(types.float64))
print(value, callback.ctypes(1.0), sum(whole.stats.cache_hits.values()), callback.cache_hits)
"""


def run(folder: Path) -> list[float]:
    # Python's own bytecode is known by time and length alone; it would hide a change of neither.
    variables = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, folder / "caller.py"], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    return [float(word) for word in done.stdout.split()]


@pytest.mark.portable
def test_a_change_in_an_inlined_file_is_noticed_by_callers_elsewhere(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(code_cache.__file__, package)
    part = "from numba import njit\n\n@njit(forceinline=True)\ndef part(x):\n    return x + {}\n"
    (package / "part.py").write_text(part.format("1.0"))
    (tmp_path / "caller.py").write_text(CALLER)
    assert run(tmp_path) == [2.0, 2.0, 0, 0]
    assert run(tmp_path) == [2.0, 2.0, 1, 1]
    # The same bytes in length, and no newer to the second: what counts is what they say.
    before = (package / "part.py").stat()
    (package / "part.py").write_text(part.format("2.0"))
    os.utime(package / "part.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run(tmp_path) == [3.0, 3.0, 0, 0]


COMPILED = re.compile(r"^from dkgp\.kernels\.(vector_math|tiles\.(blocks|features|loops|stages)) import", re.MULTILINE)


def modules_that_call_kernels() -> list[str]:
    """Modules outside the room of the tiles that import a compiled function from it, and that room's own."""
    root, names = Path(dkgp.__file__).parent, []
    for path in sorted(root.rglob("*.py")):
        if COMPILED.search(path.read_text()) or path.parent.name == "tiles":
            names.append(".".join(path.relative_to(root.parent).with_suffix("").parts))
    return names


@pytest.mark.parametrize("name", modules_that_call_kernels())
def test_what_is_kept_on_disk_bears_the_stamp_of_all_kernels(name: str) -> None:
    module = importlib.import_module(name)
    kept = [
        function
        for function in vars(module).values()
        if isinstance(function, Deferred) and getattr(getattr(function.built(), "_cache", None), "cache_path", None)
    ]
    unstamped = [function.__name__ for function in kept if not code_cache.is_stamped(function)]
    assert unstamped == []


def test_loops_and_stages_are_kept_on_disk() -> None:
    assert code_cache.is_stamped(loops.tile_matmat)
    stages.stage_address("power_of_two", "f4")
    stage = stages._COMPILED[EXP2.entries, np.dtype("f4")]
    assert isinstance(stage, CFunc)
    assert code_cache.is_stamped(stage)
    # As the kernel's own: its file counts, and others that go through the same loop are told apart.
    assert Path(inspect.getfile(stage._cache._py_func)) == Path(stationary.__file__)
    called = set(modules_that_call_kernels())
    assert {"dkgp.solvers.smo", "dkgp.kernels.tiles.loops"} <= called
