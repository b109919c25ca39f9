"""`dkgp bench scikit`: scikit-learn's Gaussian process classes against dkgp's of the same names, in memory."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dkgp.commands.reporting.measurements import Column, median_ratio, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress

N_TEST = 1000
D = 4

# What is timed, and what it is called in the table.
TASKS = {
    "fit": "fit, no search",
    "search": "fit",
    "gradient": "likelihood, gradient",
    "mean": "predict",
    "std": "predict, std",
    "classify": "classify: fit, predict",
}

COLUMNS = (
    Column("n", "samples", ",d"),
    Column("kernel", "kernel", text=True),
    *(Column(name, title, ".2f") for name, title in TASKS.items()),
    Column("seconds", "seconds of all, dkgp", ".3f"),
)


def kernels() -> dict[str, Any]:
    """Kernels of the race, by name."""
    from sklearn.gaussian_process import kernels as sk

    noise = sk.WhiteKernel(0.1)
    return {
        "RBF": sk.ConstantKernel() * sk.RBF() + noise,
        "RBF, one length scale per feature": sk.ConstantKernel() * sk.RBF([1.0] * D) + noise,
        "Matern 3/2": sk.ConstantKernel() * sk.Matern(nu=1.5) + noise,
    }


def run_bench_scikit(
    reporter: Reporter, *, sizes: Sequence[int], repeats: int, seed: int, null: bool, out: str | None
) -> Document:
    """Race both in processor time at each size and kernel, on one BLAS thread; a ratio below one is dkgp's lead."""
    rows: list[dict[str, Any]] = []
    worst: dict[str, float] = {}
    total = len(sizes) * len(kernels())
    with reporter.work("scikit") as show, threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in sizes:
            for name, kernel in kernels().items():
                show(WorkProgress(f"{n:,} samples, {name}", len(rows), total, "problems"))
                rows.append({"n": n, "kernel": name, **_race(n, kernel, repeats, seed, null=null)})
            worst[f"worst_{n}"] = max(row[task] for row in rows if row["n"] == n for task in TASKS if task in row)
        show(WorkProgress("done", total, total, "problems"))
    title = "Processor time of dkgp's classes divided by that of scikit-learn's classes of the same names"
    settings = {"sizes": list(sizes), "repeats": repeats, "seed": seed, "n_test": N_TEST, "d": D}
    document = report("scikit", title, COLUMNS, rows, worst, **settings)
    return write_record(document, out)


def _race(n: int, kernel: Any, repeats: int, seed: int, *, null: bool) -> dict[str, Any]:
    """Ratios by task, each the median over turns in which one follows the other, and dkgp's seconds in all."""
    import sklearn.gaussian_process as theirs

    import dkgp

    rng = np.random.default_rng(seed)
    X, X_new = rng.uniform(-2.0, 2.0, (n, D)), rng.uniform(-2.0, 2.0, (N_TEST, D))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=n)
    rooms: tuple[Any, ...] = (dkgp, theirs, *((theirs,) if null else ()))

    def tasks(room: Any) -> dict[str, Callable[[], Any]]:
        regressor, classifier = room.GaussianProcessRegressor, room.GaussianProcessClassifier
        model = regressor(kernel, optimizer=None).fit(X, y)
        return {
            "fit": lambda: regressor(kernel, optimizer=None).fit(X, y),
            "search": lambda: regressor(kernel).fit(X, y),
            "gradient": lambda: model.log_marginal_likelihood(kernel.theta, eval_gradient=True),
            "mean": lambda: model.predict(X_new),
            "std": lambda: model.predict(X_new, return_std=True),
            "classify": lambda: classifier(kernel, optimizer=None).fit(X, y > 0.0).predict_proba(X_new),
        }

    contenders = [tasks(room) for room in rooms]
    figures: dict[str, Any] = {}
    spent = 0.0
    for task in TASKS:
        seconds: list[list[float]] = [[] for _ in rooms]
        # Short tasks run several times a turn, and the first run of all, which fills caches, does not count.
        several = int(np.clip(0.1 / max(_seconds(contenders[0][task], 1), 1e-6), 1, 30))
        for _ in range(repeats):
            for taken, contender in zip(seconds, contenders, strict=True):
                taken.append(_seconds(contender[task], several))
        noise = (seconds[2], seconds[1]) if null else None
        figures[task] = median_ratio(seconds[0], seconds[1], noise)
        spent += float(np.median(seconds[0]))
    return {**figures, "seconds": spent}


def _seconds(run: Callable[[], Any], several: int) -> float:
    """Processor time of one run, the least of several: other work on the machine adds to it by the caches it takes."""
    least = math.inf
    for _ in range(several):
        began = time.process_time()
        run()
        least = min(least, time.process_time() - began)
    return least
