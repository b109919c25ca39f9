"""One contender of a benchmark in a process of its own, so that its peak memory is its own, and NumPy references.

`python -m dkgp.bench.contenders` reads a description from standard input and prints figures, both JSON. The references
are the kernel matrix, its Cholesky factor and its products, in float64 by NumPy and SciPy as a careful user would write
them, with BLAS threads as they come. The squared exponential kernel is written by hand, any other is its own matrix
products. The factor is that of dkgp's own solver "cholesky".
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.measurements import Ratio, median_ratio
from dkgp.commands.reporting.memory import PeakMemory, available_bytes
from dkgp.commands.reporting.outputs import dump
from dkgp.commands.reporting.progress import Reporter, SilentReporter, WorkProgress
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, open_dataset
from dkgp.errors import NotConvergedError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.solvers import Solution

FloatArray = NDArray[np.float64]
# Contender -> the figures of each repeat.
Runs = dict[str, list[dict[str, Any]]]

_HEADROOM = 1.15


def take_turns(
    label: str,
    contenders: Sequence[str],
    repeats: int,
    describe: Callable[[str, int], dict[str, Any]],
    reporter: Reporter,
    module: str = "dkgp.bench.contenders",
    *,
    copied: Sequence[str] = (),
) -> Runs:
    """Run every contender once in every repeat, as `describe(contender, repeat)` says; return the figures of all.

    Those that are `copied`, baselines for the noise of the ratios, run once more at the end of each repeat.
    """
    turns = [(name, name) for name in contenders] + [(copy_of(name), name) for name in copied]
    runs: Runs = {turn: [] for turn, _ in turns}
    total = repeats * len(turns)
    from dkgp.plan.validation import run_contender

    with reporter.work(label) as show:
        for repeat in range(repeats):
            for turn, name in turns:
                show(WorkProgress(turn, sum(map(len, runs.values())), total, "runs"))
                runs[turn].append(run_contender(describe(name, repeat), module, warn=reporter.warn))
        show(WorkProgress("done", total, total, "runs"))
    return runs


def copy_of(baseline: str) -> str:
    """Name of the turns in which a baseline is raced against itself."""
    return f"{baseline}, again"


def ratio(runs: Runs, name: str, baseline: str, figure: str, baseline_figure: str | None = None) -> Ratio:
    """Median ratio of a contender's figure to the baseline's (its `other`, if given), with the noise of the latter."""
    references = [run[baseline_figure or figure] for run in runs[baseline]]
    copies = [run[baseline_figure or figure] for run in runs.get(copy_of(baseline), ())]
    return median_ratio([run[figure] for run in runs[name]], references, (copies, references) if copies else None)


def cholesky_bytes(n: int) -> int:
    """Bytes of the kernel matrix that LAPACK factors in place."""
    return 8 * n * n


def fits_cholesky(n: int) -> bool:
    """True if that matrix fits the memory available now."""
    return cholesky_bytes(n) * _HEADROOM <= available_bytes()


def room_for_cholesky(n: int, warn: Callable[[str], None], data: str = "") -> bool:
    """As `fits_cholesky`, for a benchmark that goes without Cholesky where it does not fit, and says so."""
    fits = fits_cholesky(n)
    if not fits:
        warn(
            f"{data}Cholesky is left out: its matrix takes {cholesky_bytes(n):,} bytes, {available_bytes():,} are "
            "available"
        )
    return fits


def solve(description: dict[str, Any], dataset: Dataset, hyper: Hyperparameters) -> dict[str, Any]:
    """A solver as `dkgp train` runs it, from the store to alpha; `auto` looks at the problem within its time.

    Raises
    ------
    NotConvergedError
        It did not come to the tolerance, and no limit on its passes or seconds was set.
    """
    from dkgp.models.exact import train

    options = SolverOptions(**description.get("solver", {}))
    limited = options.max_passes is not None or options.max_seconds is not None
    cluster = ClusterOptions(**description.get("cluster", {}))
    reporter = SilentReporter()
    began = time.perf_counter()
    with open_executor(cluster, dataset.n_samples, reporter) as executor:
        start_seconds = time.perf_counter() - began

        def run(data: Dataset, options: SolverOptions) -> Any:
            solver = options.build(data.n_samples, data.n_features, data.n_targets, SilentReporter())
            kernel, noise_variance = hyper.kernel, hyper.noise_variance
            return train(data, kernel, noise_variance, executor, solver=solver, stopping=options.stopping())

        # Compiled code is loaded here and in the workers before the clock starts, that of the chosen method too.
        warm, (decided, _) = open_dataset(description["warm"]), options.decided(dataset, hyper)
        run(warm, decided)
        began = time.perf_counter()
        decided, choice = options.decided(dataset, hyper)
        choice_seconds = time.perf_counter() - began
        trained = run(dataset, decided)
        seconds = time.perf_counter() - began
    solution = trained.solution
    if not solution.converged and not limited:
        raise NotConvergedError(solution.reason.message)
    names = ("column_passes", "iterations", "gradient_inf_norm", "kernel_evaluations", "refreshes", "converged")
    return {
        "alpha": solution.alpha,
        "seconds": seconds,
        "start_seconds": start_seconds,
        "seconds_by_part": _parts(solution, seconds, choice_seconds if choice is not None else 0.0),
        "alpha_error_bound": float(max(trained.certificate.alpha_error_bound)),
        "cluster_warnings": reporter.warnings,
        "solver": solution.solver,
        "reason": solution.reason.message,
        "kept_share": trained.summary.get("kept_share", 0.0),
        **{name: trained.summary[name] for name in names},
    }


def _parts(solution: Solution, seconds: float, choice_seconds: float) -> dict[str, float]:
    """Seconds by part of a solve: the choice of a solver, the phases of all rounds, and the rest, such as checks."""
    parts = {**({"choose": choice_seconds} if choice_seconds else {}), **solution.seconds_by_part}
    return {**parts, "rest": seconds - sum(parts.values())}


def cholesky(description: dict[str, Any], dataset: Dataset, hyper: Hyperparameters) -> dict[str, Any]:
    """LAPACK and BLAS: the kernel matrix's lower triangle, factored in place by blocks, and two triangular solves."""
    began = time.perf_counter()
    inputs, targets = _arrays(dataset)
    matrix = assemble(inputs, hyper)
    assembled = time.perf_counter()
    factor_in_place(matrix)
    factored = time.perf_counter()
    alpha = factored_solve(matrix, targets)
    return {
        "alpha": alpha,
        "seconds": time.perf_counter() - began,
        "assembly_seconds": assembled - began,
        "factor_seconds": factored - assembled,
    }


def plain_pass(description: dict[str, Any], dataset: Dataset, hyper: Hyperparameters) -> dict[str, Any]:
    """One float64 pass over the kernel matrix, K @ v, in tiles of 4,096 rows and columns that are thrown away."""
    inputs, targets = _arrays(dataset)
    began = time.perf_counter()
    product = kernel_product(inputs, inputs, targets, hyper)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "checksum": float(np.abs(product).sum())}


CONTENDERS: dict[str, Callable[[dict[str, Any], Dataset, Hyperparameters], dict[str, Any]]] = {
    "solve": solve,
    "cholesky": cholesky,
    "plain_pass": plain_pass,
}


def _arrays(dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    return dataset.inputs(0, dataset.n_samples), dataset.targets(0, dataset.n_samples)


def _rmse(alpha: FloatArray, description: dict[str, Any], dataset: Dataset, hyper: Hyperparameters) -> float | None:
    """Root mean squared error on the standardised test targets, in the same way for every contender."""
    if description.get("test") is None:
        return None
    inputs, truth = _arrays(open_dataset(description["test"]))
    mean = kernel_product(inputs, _arrays(dataset)[0], alpha, hyper)
    return float(np.sqrt(np.mean((mean - truth) ** 2)))


def main() -> None:
    """Read a description, run it, print the figures."""
    description = json.load(sys.stdin)
    dataset = open_dataset(description["train"])
    hyper = read_hyperparameters(description["hyper"], n_features=dataset.n_features)
    with PeakMemory() as memory:
        figures = CONTENDERS[description["contender"]](description, dataset, hyper)
        figures["peak_memory_bytes"] = memory.bytes
    alpha = figures.pop("alpha", None)
    if alpha is not None:
        figures["rmse"] = _rmse(alpha, description, dataset, hyper)
        np.save(description["alpha"], alpha, allow_pickle=False)
    print(dump(figures))


TILE = 4096
FACTOR_BLOCK = 512


def assemble(inputs: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return K + s2 I, its lower triangle and the rest of the tiles on the diagonal: (n, n), row-major."""
    side = _Side(inputs, hyper.kernel)
    n = len(inputs)
    matrix = np.empty((n, n))
    for i in range(0, n, TILE):
        for j in range(0, i + 1, TILE):
            matrix[i : i + TILE, j : j + TILE] = _tile(side, side, i, j) * side.amplitude
    matrix[np.diag_indices(n)] += hyper.noise_variance
    return matrix


def factor_in_place(matrix: FloatArray) -> None:
    """Cholesky's lower factor over the lower triangle of a row-major matrix, block column by block column.

    By blocks, because SciPy 1.17's `dpotrf` (OpenBLAS 0.3.30, two threads) crashes at n = 30,000. Each block is
    LAPACK's or BLAS's, on one thread, and the blocks are shared between all cores.
    """
    from dkgp.solvers.cholesky.dense import factor_strips, strip_bounds

    with single_threaded_blas():
        factor_strips([matrix[start:stop, :stop] for start, stop in strip_bounds(len(matrix), FACTOR_BLOCK)])


def factored_solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Return (L L')^-1 B, for L in the lower triangle of a row-major matrix: (n, t)."""
    # The transposed view is column-major, so that LAPACK solves with it without a copy: L = U', U the view.
    half = scipy.linalg.solve_triangular(matrix.T, right, trans="T", check_finite=False)
    return np.asarray(scipy.linalg.solve_triangular(matrix.T, half, check_finite=False))


def forward_substitute(matrix: FloatArray, right: FloatArray) -> None:
    """Put L^-1 B in the place of B (n, t), for L in the lower triangle of a row-major matrix; by blocks, too."""
    n = len(matrix)
    for k in range(0, n, FACTOR_BLOCK):
        end = min(k + FACTOR_BLOCK, n)
        right[k:end] = scipy.linalg.solve_triangular(matrix[k:end, k:end], right[k:end], lower=True, check_finite=False)
        for i in range(end, n, FACTOR_BLOCK):
            rows = slice(i, min(i + FACTOR_BLOCK, n))
            right[rows] -= matrix[rows, k:end] @ right[k:end]


def kernel_columns(A: FloatArray, B: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return K(A, B), all of it: (a, b)."""
    left, right = _Side(A, hyper.kernel), _Side(B, hyper.kernel)
    columns = np.empty((len(A), len(B)))
    for i in range(0, len(A), TILE):
        for j in range(0, len(B), TILE):
            columns[i : i + TILE, j : j + TILE] = _tile(left, right, i, j)
    columns *= left.amplitude
    return columns


def kernel_product(A: FloatArray, B: FloatArray, V: FloatArray, hyper: Hyperparameters) -> FloatArray:
    """Return K(A, B) @ V in tiles of 4,096 rows and columns that are thrown away: (a, t)."""
    left, right = _Side(A, hyper.kernel), _Side(B, hyper.kernel)
    product = np.zeros((len(A), V.shape[1]))
    for i in range(0, len(A), TILE):
        for j in range(0, len(B), TILE):
            product[i : i + TILE] += _tile(left, right, i, j) @ V[j : j + TILE]
    return product * left.amplitude


class _Side:
    """Rows of one side of a matrix, scaled by the length scales of a squared exponential, as they are for any other."""

    def __init__(self, inputs: FloatArray, kernel: Kernel) -> None:
        self.kernel, self.rows, self.amplitude = kernel, inputs, 1.0
        if isinstance(kernel, SquaredExponential):
            self.rows, self.amplitude = inputs * np.sqrt(kernel.feature_gamma), kernel.variance
        self.squares = np.einsum("ij,ij->i", self.rows, self.rows)


def _tile(A: _Side, B: _Side, i: int, j: int) -> FloatArray:
    """One tile of unit amplitude; exp(-(|x|^2 + |b|^2 - 2xb)) of a squared exponential."""
    left, right = slice(i, i + TILE), slice(j, j + TILE)
    if not isinstance(A.kernel, SquaredExponential):
        return A.kernel.matrix(A.rows[left], B.rows[right])
    tile = A.rows[left] @ B.rows[right].T
    tile *= 2.0
    tile -= A.squares[left, None]
    tile -= B.squares[right]
    np.exp(tile, out=tile)
    return tile


if __name__ == "__main__":
    main()
