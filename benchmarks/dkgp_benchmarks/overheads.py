"""`dkgp bench latency --overheads`: processor time of commands on few rows, and of small fits and predictions.

The least of several repetitions, since other work on the machine only adds time. Fits stand beside the algebra that
they need, written in NumPy, and beside scikit-learn's exact regression and support vector classifier.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

import dkgp
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.measurements import Column, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import DkgpError
from dkgp.kernels import SquaredExponential

FloatArray = NDArray[np.float64]
Fit = tuple[Callable[[], Any], FloatArray, Callable[[FloatArray], Any] | None]
COMMAND_ROWS, FEATURES, BASIS = 320, 5, 50
COLUMNS = (
    Column("by", "by", text=True),
    Column("quantity", "quantity", text=True),
    Column("samples", "samples", ",d"),
    Column("least_ms", "processor ms", ",.2f"),
    Column("algebra_ms", "NumPy's algebra, ms", ",.2f"),
)


def run_overheads(asked: Mapping[str, Any], reporter: Reporter) -> Document:
    """Measure commands, then fits and predictions of one row for each size.

    Parameters
    ----------
    asked
        Settings of `dkgp_benchmarks.latency.BenchLatencyJob` by name.
    reporter : Reporter
    """
    rows = []
    with reporter.work("commands"):
        rows += list(_commands(max(1, asked["calls"] // 50)))
    for n in asked["sizes"]:
        with reporter.work(f"fits of {n:,} samples"):
            rows += list(_fits(n, asked["seed"], asked["calls"]))
    fits = [row for row in rows if row["quantity"] == "fit" and row["by"] == "GPRegressor"]
    figures = {"overhead_ms": fits[-1]["least_ms"] - fits[-1]["algebra_ms"]}
    settings = {name: value for name, value in asked.items() if name != "out"}
    title = "Processor time of commands on 320 rows, and of small fits"
    return write_record(report("latency", title, COLUMNS, rows, figures, **settings), asked["out"])


def _commands(repetitions: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(COMMAND_ROWS, 3))
    table = np.column_stack([X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=len(X))])
    with tempfile.TemporaryDirectory(prefix="dkgp-overheads-") as folder:
        np.savetxt(Path(folder) / "a.csv", table, delimiter=",", header="a,b,c,y", comments="")
        for command in (
            "--help",
            "train --help",
            "ingest a.csv t.zarr --target y --test-fraction 0.1 --test-out e.zarr --overwrite",
            "tune t.zarr --out h.json --overwrite",
            "train t.zarr --hyper h.json --out m.zarr --overwrite",
            "predict m.zarr e.zarr --out p.zarr --variance --overwrite",
            "evaluate p.zarr e.zarr",
        ):
            seconds = min(_child(["-m", "dkgp", *command.split()], folder) for _ in range(repetitions))
            name = command if command.endswith("--help") else command.split()[0]
            yield _row(f"dkgp {name}", "command", COMMAND_ROWS, seconds)
        seconds = min(_child(["-c", "import dkgp"], folder) for _ in range(repetitions))
        yield _row("import dkgp", "command", 0, seconds)


def _child(words: list[str], folder: str) -> float:
    """Run Python in a process of its own; return its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise DkgpError(f"{' '.join(words)} failed: {done.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _fits(n: int, seed: int, calls: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, FEATURES))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)
    with single_threaded_blas():
        for name, (make, targets, algebra) in _estimators(y).items():
            model = make()
            fit = _least(partial(model.fit, X, targets), max(3, calls // 8))
            beside = None if algebra is None else _least(partial(algebra, X), max(3, calls // 8))
            yield _row(name, "fit", n, fit, beside)
            yield _row(name, "one row", n, _least(partial(model.predict, X[:1]), calls))


def _estimators(y: FloatArray) -> dict[str, Fit]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.svm import SVC

    labels = (y > 0.0).astype(np.float64)
    kernel = SquaredExponential((1.0,) * FEATURES)

    def dense(X: FloatArray) -> Any:
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(_kernel(X, X) + 0.01 * np.eye(len(X))), y)

    def few(X: FloatArray) -> Any:
        columns = _kernel(X, X[:BASIS])
        return scipy.linalg.solve(columns.T @ columns + 0.01 * columns[:BASIS], columns.T @ y, assume_a="pos")

    common: dict[str, Any] = {"optimizer": None}
    return {
        "GPRegressor": (lambda: dkgp.GPRegressor(kernel, noise_variance=0.01, **common), y, dense),
        "SparseGPRegressor": (
            lambda: dkgp.SparseGPRegressor(kernel, noise_variance=0.01, basis_size=BASIS, **common), y, few,
        ),
        "ConjugateDirectionsPursuit": (lambda: dkgp.ConjugateDirectionsPursuit(3), y, None),
        "FixedSizeLSSVC": (
            lambda: dkgp.FixedSizeLSSVC(kernel, noise_variance=0.01, search="none", pool=BASIS, probability=False),
            labels, few,
        ),
        "LSSVC": (lambda: dkgp.LSSVC(kernel, noise_variance=0.01, probability=False, **common), labels, dense),
        "KernelLogisticClassifier": (
            lambda: dkgp.KernelLogisticClassifier(kernel, regularisation=1.0, **common), labels, None,
        ),
        "scikit-learn GPR": (lambda: GaussianProcessRegressor(alpha=0.01, optimizer=None), y, dense),
        "scikit-learn SVC": (SVC, labels, None),
    }  # fmt: skip


def _kernel(A: FloatArray, B: FloatArray) -> FloatArray:
    squares = (A**2).sum(axis=1)[:, None] + (B**2).sum(axis=1) - 2.0 * (A @ B.T)
    return np.asarray(np.exp(-squares))


def _least(call: Callable[[], Any], repetitions: int) -> float:
    """Return the least processor seconds of a call; the first is not counted."""
    call()
    seconds = []
    for _ in range(repetitions):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return min(seconds)


def _row(by: str, quantity: str, n: int, seconds: float, algebra: float | None = None) -> dict[str, Any]:
    beside = None if algebra is None else 1e3 * algebra
    return {"by": by, "quantity": quantity, "samples": n, "least_ms": 1e3 * seconds, "algebra_ms": beside}
