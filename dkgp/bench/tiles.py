"""`dkgp bench tiles`: the cost of one kernel entry on one core, against its unavoidable parts.

An entry is a distance, an exponential and a multiply-add. It stands beside the BLAS's product of the same shapes plus
dkgp's own exponential, beside both ways to take the distance, and beside NumPy. All contenders take turns within each
repeat, so that a ratio compares moments that lie close together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from timeit import timeit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.contenders import copy_of
from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.measurements import Column, check_record_file, median, median_ratio, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.kernels.vector_math import FAST_MATH, exp2, prefer_full_vectors

Pass = Callable[[], Any]

FEATURES = (2, 8, 10, 21, 90)
PRECISIONS: tuple[Precision, ...] = ("single", "double")
REFERENCE = "exp"
# Two float32 arrays of this length (16 KiB) leave half of the smallest level-1 data cache free.
REFERENCE_ENTRIES = 2048
CALLS = 16
GEMM_TILE = (256, 512)
BROADCAST_TILE = (64, 256)

# Whom dkgp is compared with: a contender, the quicker of two, or two together.
RIVALS: dict[str, tuple[Any, ...]] = {
    REFERENCE: (sum, REFERENCE),
    "gemm": (sum, "gemm"),
    "broadcast": (sum, "broadcast"),
    "quickest": (min, "differences", "expanded"),
    "parts": (sum, "product", "exponential"),
}

COLUMNS = (
    Column("d", "d"),
    Column("precision", "precision", text=True),
    Column("dkgp_ns", "dkgp", ".3f"),
    Column("differences_ns", "differences", ".3f"),
    Column("expanded_ns", "expanded", ".3f"),
    Column("product_ns", "BLAS product", ".3f"),
    Column("exponential_ns", "own exponential", ".3f"),
    Column("gemm_ns", "NumPy by GEMM", ".3f"),
    Column("exp_ns", "NumPy exp", ".3f"),
    Column("dkgp_to_quickest", "dkgp / fastest form", ".2f"),
    Column("dkgp_to_parts", "dkgp / parts", ".2f"),
    Column("dkgp_to_exp", "dkgp / exp", ".2f"),
)


@dataclass(frozen=True)
class BenchTilesJob:
    """A measurement of the cost of a kernel entry, against several contenders.

    Attributes
    ----------
    rows, columns
        Size of the product K(A, B) @ w that is timed.
    repeats
        Turns that every contender takes.
    null
        Whether those that dkgp is compared with take another turn each, for the noise of the ratios.
    pass_seconds
        How long one turn lasts at least.
    """

    features: tuple[int, ...] = FEATURES
    rows: int = 2048
    columns: int = 2048
    repeats: int = 7
    null: bool = False
    pass_seconds: float = 0.03
    seed: int = 0
    out: str | None = None


def run_bench_tiles(job: BenchTilesJob, reporter: Reporter) -> Document:
    """Measure; return nanoseconds per entry and ratios for each number of features and precision."""
    check_record_file(job.out)
    cases = [(d, precision) for d in job.features for precision in PRECISIONS]
    rows = []
    with single_threaded_blas(), reporter.work("bench tiles") as show:
        for number, (d, precision) in enumerate(cases, start=1):
            rows.append(_measure(job, d, precision))
            show(WorkProgress(f"d = {d}, {precision}", number, len(cases), "cases"))
    figures = {f"worst_{ratio}": max(row[ratio] for row in rows) for ratio in ("dkgp_to_parts", "dkgp_to_quickest")}
    figures |= {f"dkgp_to_exp_d{row['d']}_single": row["dkgp_to_exp"] for row in rows if row["precision"] == "single"}
    title = (
        "Nanoseconds for one kernel entry (distance, exponential, multiply-add), one core, median; its parts are the "
        "BLAS's product of the same shapes and dkgp's own exponential"
    )
    document = report("tiles", title, COLUMNS, rows, figures, shape=(job.rows, job.columns), repeats=job.repeats)
    return write_record(document, job.out)


def _measure(job: BenchTilesJob, d: int, precision: Precision) -> dict[str, Any]:
    contenders = _contenders(job, d, precision)
    turns = dict(contenders)
    if job.null:
        turns |= {copy_of(name): contender for name, contender in contenders.items() if name != "dkgp"}
    loops = {name: _loops(run, job.pass_seconds) for name, (run, _) in turns.items()}
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(job.repeats):
        for name, (run, entries) in turns.items():
            times[name].append(1e9 * timeit(run, number=loops[name]) / (loops[name] * entries))
    row: dict[str, Any] = {"d": d, "precision": precision}
    row |= {f"{name}_ns": median(times[name]) for name in contenders}
    for rival, (joined, *names) in RIVALS.items():
        rival_times, copies = (
            [joined(taken) for taken in zip(*(times[each] for each in found), strict=True)]
            for found in (names, [copy_of(name) for name in names] if job.null else names)
        )
        row[f"dkgp_to_{rival}"] = median_ratio(times["dkgp"], rival_times, (copies, rival_times) if job.null else None)
    return row


def _loops(run: Pass, seconds: float) -> int:
    run()  # compiled, loaded, and in the cache
    return max(1, round(seconds / max(timeit(run, number=1), 1e-9)))


def _contenders(job: BenchTilesJob, d: int, precision: Precision) -> dict[str, tuple[Pass, int]]:
    """Return by name the function to run, and its number of entries."""
    generator = np.random.default_rng(job.seed)
    A, B = generator.standard_normal((job.rows, d)), generator.standard_normal((job.columns, d))
    weights = generator.standard_normal((job.columns, 1))
    gamma = 0.5 / d  # an expected exponent of one for standardised inputs
    kernel = SquaredExponential(gamma=(gamma,) * d)
    dtype = np.float32 if precision == "single" else np.float64
    a, b, w = (np.ascontiguousarray(values, dtype) for values in (A * gamma**0.5, B * gamma**0.5, weights[:, 0]))
    reference = generator.uniform(-4.0, 0.0, REFERENCE_ENTRIES).astype(np.float32)
    target = np.empty_like(reference)
    entries = job.rows * job.columns
    product = np.empty((job.rows, job.columns), dtype)
    powers, out, floor = reference.astype(dtype), np.empty(REFERENCE_ENTRIES, dtype), dtype(-100.0)

    def compiled(expanded: bool | None) -> Pass:
        evaluator = TileEvaluator(kernel, precision, expanded=expanded)
        left, right = evaluator.prepare(A), evaluator.prepare(B)
        return lambda: evaluator.matmat(left, right, weights)

    return {
        "dkgp": (compiled(None), entries),
        "differences": (compiled(False), entries),
        "expanded": (compiled(True), entries),
        "product": (lambda: np.dot(a, b.T, out=product), entries),
        "exponential": (lambda: _exponentials(powers, floor, out), CALLS * REFERENCE_ENTRIES),
        "gemm": (lambda: gemm_product(a, b, w), entries),
        "broadcast": (lambda: broadcast_product(a, b, w), entries),
        REFERENCE: (lambda: np.exp(reference, out=target), REFERENCE_ENTRIES),
    }


@cached_njit(fastmath=FAST_MATH, nogil=True)
def _exponentials(powers, floor, out):  # type: ignore[no-untyped-def]
    """`out = 2**powers`, by a loop that the compiler turns into vectors, so often that the call counts for nothing."""
    prefer_full_vectors()
    for _ in range(CALLS):
        for i in range(len(powers)):
            out[i] = exp2(powers[i], floor)


def gemm_product(A: NDArray[Any], B: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """exp(-|a - b|^2) @ w by NumPy, distances from |a|^2 + |b|^2 - 2ab, in tiles that stay in the level-2 cache."""
    height, width = GEMM_TILE
    left, right = np.einsum("ij,ij->i", A, A), np.einsum("ij,ij->i", B, B)
    total = np.zeros(len(A), A.dtype)
    for i in range(0, len(A), height):
        for j in range(0, len(B), width):
            tile = A[i : i + height] @ B[j : j + width].T
            tile *= 2
            tile -= left[i : i + height, None]
            tile -= right[j : j + width]
            np.exp(tile, out=tile)
            total[i : i + height] += tile @ w[j : j + width]
    return total


def broadcast_product(A: NDArray[Any], B: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """exp(-|a - b|^2) @ w by NumPy as it is written down: squared differences by broadcasting, feature by feature."""
    height, width = BROADCAST_TILE
    total = np.zeros(len(A), A.dtype)
    for i in range(0, len(A), height):
        for j in range(0, len(B), width):
            distances = np.zeros((len(A[i : i + height]), len(B[j : j + width])), A.dtype)
            for a, b in zip(A[i : i + height].T, B[j : j + width].T, strict=True):
                distances += (a[:, None] - b) ** 2
            total[i : i + height] += np.exp(-distances) @ w[j : j + width]
    return total
