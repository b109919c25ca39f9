"""`dkgp bench cells`: compare products by cells with exact products and Fourier methods.

Points are uniform in the unit square or cube, weights are standard normal. Every measurement is a process of its own,
on one thread, so that processor seconds and peak memory are those of one contender. The exact product is measured up to
a size and scaled by n^2 beyond. The Fourier methods need finufft; nothing is proven of them.
Errors are taken at sampled rows, against sums of the kernel's formula in long double, relative to ||v||_1.

`python -m dkgp_benchmarks.cells.comparison` reads a description from standard input and prints figures, both JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.measurements import Column, check_record_file, median, report, write_record
from dkgp.commands.reporting.memory import own_peak_bytes
from dkgp.commands.reporting.outputs import Document, dump
from dkgp.commands.reporting.plots import check_plot_file, drawn
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.errors import InputError
from dkgp.kernels import Kernel, kernel_names
from dkgp.kernels.base import kernel_types
from dkgp.kernels.distance import DistanceKernel
from dkgp.kernels.program import numpy_functions
from dkgp.kernels.terms import terms_of
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cells.products import CellProducts
from dkgp.plan.validation import run_contender

THIS, FOURIER = "dkgp_benchmarks.cells.comparison", "dkgp_benchmarks.cells.fourier"
# Contender -> the module that runs it.
CONTENDERS = {"cells": THIS, "exact float64": THIS, "exact float32": THIS, "nfft": FOURIER, "efgp": FOURIER}
# Those whose result does not depend on a tolerance.
EXACT = {"exact float64": "double", "exact float32": "single"}
_MIB = 2.0**20
# Too little to change a product.
_NO_NOISE = 1e-200

COLUMNS = (
    Column("contender", "method", text=True),
    Column("kernel", "kernel", text=True),
    Column("length_scale", "length scale", "g"),
    Column("n", "n", ",d"),
    Column("tolerance", "tolerance", ".0e"),
    Column("plan_seconds", "plan, s", ",.2f"),
    Column("seconds", "product, s", ",.3f"),
    Column("cpu_seconds", "processor s", ",.3f"),
    Column("plan_mib", "memory of plan, MiB", ",.0f"),
    Column("peak_mib", "peak memory, MiB", ",.0f"),
    Column("bound", "proven bound / |v|", ".1e"),
    Column("error", "error / |v|", ".1e"),
    Column("scaled_from", "scaled by n² from n =", ",d"),
)


@dataclass(frozen=True)
class BenchCellsJob:
    """A comparison of products by cells.

    Attributes
    ----------
    dimension
        2 or 3 features.
    sizes, kernels, length_scales, tolerances
        All combinations are measured. Length scales are in sides of the square or cube; tolerances relative to ||v||_1.
    exact_up_to
        Points up to which the exact product is measured; beyond, it is scaled by n^2.
    fourier_up_to
        Points up to which the Fourier methods are measured.
    check_rows
        Rows at which errors are taken.
    """

    dimension: int = 2
    sizes: tuple[int, ...] = (100_000, 300_000)
    kernels: tuple[str, ...] = ("matern12",)
    length_scales: tuple[float, ...] = (0.1,)
    tolerances: tuple[float, ...] = (1e-6, 1e-10)
    exact_up_to: int = 30_000
    fourier_up_to: int = 1_000_000
    check_rows: int = 24
    repeats: int = 3
    seed: int = 0
    plot: str | None = None
    out: str | None = None


@dataclass(frozen=True)
class Problem:
    """One product, as a process reads it from JSON."""

    contender: str
    kernel: str
    length_scale: float
    n: int
    dimension: int
    tolerance: float
    check_rows: int
    repeats: int
    seed: int

    def inputs(self) -> FloatArray:
        """Uniform points: (n, d)."""
        return np.random.default_rng([self.seed, 41]).random((self.n, self.dimension))

    def weights(self) -> FloatArray:
        """Standard normal weights: (n,)."""
        return np.random.default_rng([self.seed, 43]).standard_normal(self.n)

    def rows(self) -> IndexArray:
        """Rows at which errors are taken."""
        count = min(self.check_rows, self.n)
        return np.random.default_rng([self.seed, 47]).choice(self.n, count, replace=False)


def kernel_of(name: str, length_scale: float, dimension: int) -> Kernel:
    """Return the kernel of this name with one length scale; `InputError` where it is not taken."""
    kind = kernel_types().get(name)
    if kind is None or not issubclass(kind, DistanceKernel):
        distances = [each for each in kernel_names() if issubclass(kernel_types()[each], DistanceKernel)]
        raise InputError(f"`kernels` names kernels of a distance, {', '.join(distances)}; got {name!r}")
    kernel = kind.from_length_scales((length_scale,) * dimension)
    terms_of(kernel)
    return kernel


def exact_rows(kernel: Kernel, X: FloatArray, v: FloatArray, rows: IndexArray) -> FloatArray:
    """Return (K v) at some rows, by the kernel's formula and sums in long double, rounded to float64."""
    terms, total = terms_of(kernel), np.zeros(len(rows), np.longdouble)
    functions, weights = numpy_functions(np.longdouble), v.astype(np.longdouble)
    for start in range(0, len(X), 2**17):
        piece = slice(start, start + 2**17)
        for place, row in enumerate(rows):
            for term in terms.terms:
                s = np.zeros(len(X[piece]), np.longdouble)
                for feature, scale in zip(term.features, term.scale, strict=True):
                    s += ((X[piece, feature] - np.longdouble(X[row, feature])) * np.longdouble(scale)) ** 2
                assert term.profile.formula is not None
                values = term.profile.formula(s, term.parameter, functions)
                values[s >= term.profile.support**2] = 0.0
                total[place] += term.amplitude * (values @ weights[piece])
    return total.astype(np.float64)


def timed(product: Callable[[], FloatArray], repeats: int) -> tuple[FloatArray, dict[str, float]]:
    """Run a product some times after a first one; return its result, and medians of seconds."""
    result = product()
    seconds, cpu = [], []
    for _ in range(repeats):
        began, began_cpu = time.perf_counter(), time.process_time()
        result = product()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    return result, {"seconds": median(seconds), "cpu_seconds": median(cpu)}


def checked(problem: Problem, X: FloatArray, v: FloatArray, result: FloatArray, figures: dict[str, Any]) -> Document:
    """Add peak memory and the largest error at the sampled rows, relative to ||v||_1."""
    peak = own_peak_bytes()
    rows = problem.rows()
    kernel = kernel_of(problem.kernel, problem.length_scale, problem.dimension)
    off = np.abs(result[rows] - exact_rows(kernel, X, v, rows))
    return {"peak_bytes": peak, **figures, "error": float(off.max() / np.abs(v).sum())}


def read_problem() -> Problem:
    """Read the description of a contender's process."""
    return Problem(**json.load(sys.stdin))


def _by_cells(problem: Problem, kernel: Kernel, X: FloatArray, v: FloatArray) -> tuple[FloatArray, dict[str, Any]]:
    bounds: list[float] = []
    # Compiled code is loaded before the clock starts.
    CellProducts(terms_of(kernel), X[:5000], problem.tolerance).matmat(v[:5000, None])
    began = time.perf_counter()
    products = CellProducts(terms_of(kernel), X, problem.tolerance)
    cost = products.cost()
    plan_seconds = time.perf_counter() - began

    def product() -> FloatArray:
        result, rows = products.matmat(v[:, None])
        bounds.append(float(rows.max()))
        return result[:, 0]

    result, figures = timed(product, problem.repeats)
    figures |= {
        "plan_seconds": plan_seconds,
        "plan_bytes": float(cost.nbytes),
        "near_entries": float(cost.near_entries),
    }
    return result, {**figures, "bound": max(bounds) / float(np.abs(v).sum())}


def _exact(problem: Problem, kernel: Kernel, X: FloatArray, v: FloatArray) -> tuple[FloatArray, dict[str, Any]]:
    precision: Any = EXACT[problem.contender]
    with BlockedKernelOperator(kernel, _NO_NOISE, ArrayInputs(X), LocalExecutor(1)) as operator:
        result, figures = timed(lambda: operator.matmat(v[:, None], precision)[:, 0], 1)
    return result, figures


def main() -> None:
    """Read a description, run it, print the figures."""
    problem = read_problem()
    X, v = problem.inputs(), problem.weights()
    kernel = kernel_of(problem.kernel, problem.length_scale, problem.dimension)
    with single_threaded_blas():
        run = _by_cells if problem.contender == "cells" else _exact
        result, figures = run(problem, kernel, X, v)
        print(dump(checked(problem, X, v, result, figures)))


# ---------------------------------------------------------------------------------------------------------- comparison


def run_bench_cells(job: BenchCellsJob, reporter: Reporter) -> Document:
    """Measure all combinations; return the table, and exponents of growth of processor seconds."""
    check_record_file(job.out)
    if job.plot is not None:
        check_plot_file(job.plot)
    if job.dimension not in (2, 3):
        raise InputError(f"`dimension` must be 2 or 3; got {job.dimension}")
    for name in job.kernels:
        for length_scale in job.length_scales:
            kernel_of(name, length_scale, job.dimension)
    contenders = _contenders(reporter)
    problems = [problem for contender in contenders for problem in _problems(job, contender)]
    rows: list[dict[str, Any]] = []
    with reporter.work("bench cells") as show:
        for number, problem in enumerate(problems):
            label = f"{problem.contender}, {problem.kernel}, n = {problem.n:,}"
            show(WorkProgress(label, number, len(problems), "runs"))
            figures = run_contender(asdict(problem), CONTENDERS[problem.contender], warn=reporter.warn)
            rows.append(_row(problem, figures))
        show(WorkProgress("done", len(problems), len(problems), "runs"))
    rows += _scaled(job, rows)
    rows.sort(key=lambda row: (row["kernel"], row["length_scale"], row["n"], -(row["tolerance"] or 1.0)))
    title = (
        f"Products with K of uniform points in {job.dimension} dimensions, one thread, median of {job.repeats}; errors "
        f"at {job.check_rows} rows"
    )
    document = report("products by cells", title, COLUMNS, rows, _growth(rows), **asdict(job))
    if job.plot is not None:
        _plot(job.plot, rows, title)
    return write_record(document, job.out)


def _contenders(reporter: Reporter) -> list[str]:
    if find_spec("finufft") is not None:
        return list(CONTENDERS)
    reporter.note("sums by NFFT and EFGP are left out: finufft is not installed")
    return [name for name, module in CONTENDERS.items() if module == THIS]


def _problems(job: BenchCellsJob, contender: str) -> list[Problem]:
    """All measurements of a contender; of the exact one those up to a size, and one at that size to scale from."""
    sizes: Sequence[int] = job.sizes
    tolerances: Sequence[float] = job.tolerances
    if contender in EXACT:
        sizes = sorted({min(n, job.exact_up_to) for n in sizes})
        tolerances = (0.0,)
    elif CONTENDERS[contender] == FOURIER:
        sizes = [n for n in sizes if n <= job.fourier_up_to]
    base = Problem(contender, "", 0.0, 0, job.dimension, 0.0, job.check_rows, job.repeats, job.seed)
    return [
        replace(base, kernel=kernel, length_scale=length_scale, n=n, tolerance=tolerance)
        for kernel in job.kernels
        for length_scale in job.length_scales
        for n in sizes
        for tolerance in tolerances
    ]


def _row(problem: Problem, figures: dict[str, Any]) -> dict[str, Any]:
    exact = problem.contender in EXACT
    return {
        "contender": problem.contender,
        "kernel": problem.kernel,
        "length_scale": problem.length_scale,
        "n": problem.n,
        "tolerance": None if exact else problem.tolerance,
        "plan_seconds": figures.get("plan_seconds"),
        "seconds": figures["seconds"],
        "cpu_seconds": figures["cpu_seconds"],
        "plan_mib": figures["plan_bytes"] / _MIB if "plan_bytes" in figures else None,
        "peak_mib": figures["peak_bytes"] / _MIB,
        "bound": figures.get("bound"),
        "error": figures["error"],
        "near_share": figures["near_entries"] / problem.n**2 if "near_entries" in figures else None,
        "scaled_from": None,
    }


def _scaled(job: BenchCellsJob, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of exact products beyond the size up to which they are measured, from the largest one by n^2."""
    result = []
    for row in rows:
        if row["contender"] in EXACT and row["n"] == job.exact_up_to:
            for n in (each for each in job.sizes if each > job.exact_up_to):
                factor = (n / row["n"]) ** 2
                seconds = {name: factor * row[name] for name in ("seconds", "cpu_seconds")}
                result.append({**row, **seconds, "n": n, "peak_mib": None, "error": None, "scaled_from": row["n"]})
    return result


def _growth(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fitted exponents of n in processor seconds, and times faster than float64 at the largest n."""
    series: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["contender"] not in EXACT:
            key = row["contender"], row["kernel"], row["length_scale"], row["tolerance"]
            series.setdefault(key, []).append(row)
    figures: dict[str, Any] = {}
    for (contender, kernel, length_scale, tolerance), measured in series.items():
        label = f"{contender}_{kernel}_{length_scale:g}_at_{tolerance:.0e}"
        if len(measured) > 1:
            n, seconds = (np.log([row[name] for row in measured]) for name in ("n", "cpu_seconds"))
            figures[f"growth_{label}"] = float(np.polyfit(n, seconds, 1)[0])
        last = max(measured, key=lambda row: row["n"])
        exact = [
            row
            for row in rows
            if row["contender"] == "exact float64"
            and (row["kernel"], row["length_scale"], row["n"]) == (kernel, length_scale, last["n"])
        ]
        if exact:
            figures[f"faster_{label}"] = exact[0]["cpu_seconds"] / last["cpu_seconds"]
    return figures


def _plot(path: str, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Draw processor seconds against points, one line for each series; dashed where scaled."""
    series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        label = f"{row['contender']}, {row['kernel']}, {row['length_scale']:g}"
        series.setdefault(label + (f", {row['tolerance']:.0e}" if row["tolerance"] else ""), []).append(row)
    with drawn(path, 8.0, 6.0, title) as figure:
        axis = figure.subplots()
        for label, each in series.items():
            n, seconds = [row["n"] for row in each], [row["cpu_seconds"] for row in each]
            style = "--" if label.startswith("exact") else "-"
            axis.loglog(n, seconds, marker="o", linestyle=style, label=label)
        axis.set(xlabel="points", ylabel="processor seconds of one product")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize="small")


if __name__ == "__main__":
    main()
