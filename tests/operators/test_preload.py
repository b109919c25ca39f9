"""The preload module of workers: after it, a first task neither imports anything nor loads Numba's tables."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.operators.block_tasks import BlockContext

PROGRAM = """
import json, pickle, sys
import numpy as np
if sys.argv[1] == "preloaded":
    from dkgp.operators import preload
    preload.dask_setup(None)
before = set(sys.modules)
context, V = pickle.loads(bytes.fromhex(sys.stdin.read()))
from dkgp.operators.full_products import RangeRows, cut_of, matmat_task, scale_of
cut = cut_of(context.n_blocks, 1, 1)
ranges = {name: RangeRows(cut.blocks(name), V) for name in cut.names}
scale = scale_of(V, np.ones(context.n), "single", context.n_blocks)
(totals,) = matmat_task(context, scale, "single", None, ranges, cut.tasks[0])
print(json.dumps([sorted(set(sys.modules) - before), totals[0].tolist()]))
"""


def first_task(how: str, pickled: str) -> list[list[object]]:
    run = [sys.executable, "-c", PROGRAM, how]
    result: list[list[object]] = json.loads(
        subprocess.run(run, input=pickled, capture_output=True, text=True, check=True).stdout
    )
    return result


@pytest.mark.long
def test_a_preloaded_worker_loads_nothing_with_its_first_task(tmp_path: Path) -> None:
    X = np.linspace(0.0, 1.0, 60).reshape(30, 2)
    dataset = dataset_from_arrays(str(tmp_path / "samples.zarr"), X, X[:, :1])
    context = BlockContext("preload", dataset, SquaredExponential(gamma=(1.0, 2.0)), 30)
    pickled = pickle.dumps((context, np.ones((30, 1)))).hex()
    (preloaded, totals), (plain, same) = (first_task(how, pickled) for how in ("preloaded", "plain"))
    assert [name for name in preloaded if str(name).startswith(("dkgp", "numba", "zarr", "scipy"))] == []
    assert len(plain) > 500
    assert totals == same
