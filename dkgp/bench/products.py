"""`dkgp bench products`: products with the whole kernel matrix, evaluated or read from tiles that are kept, by cluster.

Every contender takes its turn within each repeat, in this process: without Dask, on a Dask cluster in this process, on
one worker process and on several of one thread each. All come to the same bits, or the benchmark fails.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.tile_budget import TileBudget
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import Column, check_record_file, median, median_ratio, report, write_record
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.data import dataset_from_arrays
from dkgp.errors import NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.kept_tiles import kept_bytes_of

__all__ = ["BenchProductsJob", "run_bench_products"]

VECTORS = (1, 4, 8)

COLUMNS = (
    Column("cluster", "cluster", text=True),
    Column("workers", "workers", "d"),
    Column("vectors", "vectors", "d"),
    Column("entries", "entries", text=True),
    Column("seconds", "seconds", ".4f"),
    Column("ratio", "ratio to evaluated, no Dask", ".3f"),
    Column("entry_ns", "core ns / entry of half", ".3f"),
    Column("read_gb_per_second", "GB/s read", ".1f"),
)


@dataclass(frozen=True)
class BenchProductsJob:
    """A measurement of products with the whole matrix, medians of interleaved repeats.

    Attributes
    ----------
    samples, features
        Size of the problem: standard normal inputs, a squared exponential kernel.
    vectors
        Numbers of vectors at a time.
    workers
        Threads here, and worker processes.
    """

    samples: int = 30_000
    features: int = 8
    vectors: tuple[int, ...] = VECTORS
    workers: int = 2
    repeats: int = 7
    seed: int = 0
    out: str | None = None


@dataclass(frozen=True)
class _Contender:
    cluster: str
    workers: int
    kept: bool

    def options(self) -> ClusterOptions:
        threads = self.workers if self.cluster == "local" else 1
        workers = 1 if self.cluster == "local" else self.workers
        return ClusterOptions(kind=self.cluster, workers=workers, threads_per_worker=threads)


def run_bench_products(job: BenchProductsJob, reporter: Reporter) -> Document:
    """Measure; return seconds and ratios for each contender and number of vectors."""
    check_record_file(job.out)
    baseline = _Contender("none", job.workers, False)
    contenders = [baseline, _Contender("none", job.workers, True), _Contender("local", job.workers, False)]
    contenders += [_Contender("processes", count, False) for count in sorted({1, job.workers})]
    seconds, kept_bytes = _measure(job, contenders, reporter)
    entries = job.samples * (job.samples + 1) / 2
    rows = []
    for (contender, t), times in seconds.items():
        took = median(times)
        rows.append(
            {
                "cluster": contender.cluster,
                "workers": contender.workers,
                "vectors": t,
                "entries": "read" if contender.kept else "evaluated",
                "seconds": took,
                "ratio": median_ratio(times, seconds[baseline, t]),
                "entry_ns": 1e9 * took * contender.workers / entries,
                "read_gb_per_second": kept_bytes / took / 1e9 if contender.kept else None,
            }
        )
    one = min(job.vectors)

    def ratio(first: _Contender, second: _Contender) -> float:
        return median_ratio(seconds[first, one], seconds[second, one])

    figures = {
        "read_to_evaluated": ratio(contenders[1], baseline),
        "in_process_dask_to_none": ratio(contenders[2], baseline),
        f"speedup_of_{job.workers}_workers": ratio(contenders[3], contenders[-1]),
        f"{max(job.vectors)}_vectors_to_{one}": median_ratio(
            seconds[baseline, max(job.vectors)], seconds[baseline, one]
        ),
    }
    title = (
        f"Products with K, n = {job.samples:,}, d = {job.features}, float32, the same bits throughout; median of "
        f"{job.repeats}"
    )
    settings = {"samples": job.samples, "features": job.features, "repeats": job.repeats, "kept_bytes": kept_bytes}
    return write_record(report("products", title, COLUMNS, rows, figures, **settings), job.out)


def _measure(
    job: BenchProductsJob, contenders: list[_Contender], reporter: Reporter
) -> tuple[dict[tuple[_Contender, int], list[float]], int]:
    """Seconds of each turn by contender and number of vectors, and the bytes that are kept."""
    generator = np.random.default_rng(job.seed)
    X = generator.standard_normal((job.samples, job.features))
    vectors = {t: generator.standard_normal((job.samples, t)) for t in job.vectors}
    kernel = SquaredExponential(gamma=(0.5 / job.features,) * job.features)
    with ExitStack() as stack, reporter.work("bench products") as show:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dkgp-bench-")))
        dataset = dataset_from_arrays(str(folder / "samples.zarr"), X, X[:, :1])
        products: dict[_Contender, Callable[[FloatArray], FloatArray]] = {}
        for contender in contenders:
            executor = stack.enter_context(open_executor(contender.options(), job.samples))
            executor.tiles = TileBudget(kept_bytes_of(job.samples) if contender.kept else 0)
            operator = stack.enter_context(BlockedKernelOperator(kernel, 0.1, dataset, executor))
            products[contender] = partial(operator.matmat, precision="single")
            products[contender](vectors[job.vectors[0]])
            if contender.kept:
                keeping = operator
        expected = {t: products[contenders[0]](V) for t, V in vectors.items()}
        seconds: dict[tuple[_Contender, int], list[float]] = {
            (contender, t): [] for contender in contenders for t in job.vectors
        }
        for repeat in range(job.repeats):
            for (contender, t), times in seconds.items():
                began = time.perf_counter()
                product = products[contender](vectors[t])
                times.append(time.perf_counter() - began)
                if not np.array_equal(product, expected[t]):
                    raise NumericalError(f"{contender} comes to other bits than {contenders[0]}")
            show(WorkProgress("products", repeat + 1, job.repeats, "repeats"))
        return seconds, keeping.kept_bytes
