"""`dkgp bench products`: products with the whole kernel matrix, evaluated or read from kept tiles, by kind of cluster.

Every contender takes its turn within each repeat, in this process: without Dask, on a Dask cluster in this process, on
one worker process and on several of one thread each. All must agree in every bit, or the benchmark fails. The two
baselines, no Dask and one worker, take another turn at the end of each repeat: their ratio to themselves is the noise
of the ratios to them. As many bare processes, without Dask, show the limit of the machine: they hold the vectors
already, share the tasks as workers would, and return nothing. Worker processes also build a block-Vecchia factor, each
time anew.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import numpy as np

from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.threads import limit_blas_threads
from dkgp.commands.reporting.measurements import (
    Column,
    Ratio,
    check_record_file,
    median,
    median_ratio,
    report,
    with_null,
    write_record,
)
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.data import dataset_from_arrays, open_dataset
from dkgp.errors import DkgpError, NumericalError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.full_products import RangeRows, cut_of, matmat_task, scale_of
from dkgp.operators.keeping import kept_bytes_of
from dkgp.operators.vecchia.factor import VecchiaFactor

VECTORS = (1, 4, 8)
# Factors that are built stay in the workers' caches.
FACTORS, LEAF_TO_HALO = 3, 0.5
BARE = "bare"

COLUMNS = (
    Column("cluster", "cluster", text=True),
    Column("workers", "workers", "d"),
    Column("vectors", "vectors", "d"),
    Column("entries", "entries", text=True),
    Column("seconds", "seconds", ".4f"),
    Column("ratio", "time / time evaluated without Dask", ".3f"),
    Column("entry_ns", "core ns per entry of half the matrix", ".3f"),
    Column("read_gb_per_second", "read, GB/s", ".1f"),
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
    halo
        Of the factor, with leaves of half of it; 0 for none.
    """

    samples: int = 30_000
    features: int = 8
    vectors: tuple[int, ...] = VECTORS
    workers: int = 2
    halo: int = 1000
    repeats: int = 7
    seed: int = 0
    out: str | None = None


@dataclass(frozen=True)
class _Contender:
    cluster: str
    workers: int
    kept: bool
    again: bool = False

    def options(self) -> ClusterOptions:
        threads = self.workers if self.cluster == "local" else 1
        workers = 1 if self.cluster == "local" else self.workers
        return ClusterOptions(kind=self.cluster, workers=workers, threads_per_worker=threads)


def run_bench_products(job: BenchProductsJob, reporter: Reporter) -> Document:
    """Measure; return seconds and ratios for each contender and number of vectors."""
    check_record_file(job.out)
    baseline = _Contender("none", job.workers, False)
    contenders = [baseline, _Contender("none", job.workers, True), _Contender("local", job.workers, False)]
    one_worker, workers = (_Contender("processes", count, False) for count in (1, job.workers))
    contenders += dict.fromkeys((one_worker, workers))
    bare = {count: _Contender(BARE, count, False) for count in (1, job.workers)}
    contenders += dict.fromkeys(bare.values())
    seconds, factors, kept_bytes = _measure(job, contenders, (baseline, one_worker), reporter)
    entries = job.samples * (job.samples + 1) / 2
    rows = []
    for (contender, t), times in seconds.items():
        if contender.again:
            continue
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

    def null(contender: _Contender) -> tuple[list[float], list[float]]:
        return seconds[replace(contender, again=True), one], seconds[contender, one]

    def ratio(contender: _Contender, reference: _Contender) -> Ratio:
        return median_ratio(seconds[contender, one], seconds[reference, one], null(baseline))

    def speedup(took: dict[_Contender, list[float]]) -> Ratio:
        return with_null(median_ratio(took[one_worker], took[workers]), *null(one_worker))

    allowed = median_ratio(seconds[bare[1], one], seconds[bare[job.workers], one])
    figures = {
        "read_to_evaluated": ratio(contenders[1], baseline),
        "in_process_dask_to_none": ratio(contenders[2], baseline),
        f"speedup_of_{job.workers}_workers": speedup({each: seconds[each, one] for each in (one_worker, workers)}),
        f"speedup_of_{job.workers}_bare_processes": allowed,
        **({f"factor_speedup_of_{job.workers}_workers": speedup(factors)} if factors else {}),
    }
    most = max(job.vectors)
    if most > one:
        figures[f"{most}_vectors_to_{one}"] = median_ratio(seconds[baseline, most], seconds[baseline, one])
    title = (
        f"Products with K, n = {job.samples:,}, d = {job.features}, float32, the same bits throughout; median of "
        f"{job.repeats}"
    )
    settings = {
        "samples": job.samples,
        "features": job.features,
        "repeats": job.repeats,
        "kept_bytes": kept_bytes,
        "factor_seconds": {str(each.workers): median(times) for each, times in factors.items()},
    }
    return write_record(report("products", title, COLUMNS, rows, figures, **settings), job.out)


def _measure(
    job: BenchProductsJob, contenders: list[_Contender], baselines: tuple[_Contender, ...], reporter: Reporter
) -> tuple[dict[tuple[_Contender, int], list[float]], dict[_Contender, list[float]], int]:
    """Seconds of each turn by contender and number of vectors, of factors by contender, and the bytes that are kept."""
    generator = np.random.default_rng(job.seed)
    X = generator.standard_normal((job.samples, job.features))
    vectors = {t: generator.standard_normal((job.samples, t)) for t in job.vectors}
    kernel = SquaredExponential(gamma=(0.5 / job.features,) * job.features)
    with ExitStack() as stack, reporter.work("bench products") as show:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dkgp-bench-")))
        dataset = dataset_from_arrays(str(folder / "samples.zarr"), X, X[:, :1])
        products: dict[_Contender, Callable[[FloatArray], FloatArray]] = {}
        executors: dict[_Contender, BlockExecutor] = {}
        for contender in (each for each in contenders if each.cluster != BARE):
            executor = executors[contender] = stack.enter_context(open_executor(contender.options(), job.samples))
            executor.tiles = TileBudget(kept_bytes_of(job.samples) if contender.kept else 0)
            operator = stack.enter_context(BlockedKernelOperator(kernel, 0.1, dataset, executor))
            products[contender] = partial(operator.matmat, precision="single")
            products[contender](vectors[job.vectors[0]])
            if contender.kept:
                keeping = operator
        for each in (each for each in contenders if each.cluster == BARE):
            run = stack.enter_context(BareProcesses(each.workers, dataset.url, kernel, vectors[min(job.vectors)]))
            products[each] = partial(_nothing_of, run)
        expected = {t: products[contenders[0]](V) for t, V in vectors.items()}
        seconds: dict[tuple[_Contender, int], list[float]] = {
            (contender, t): []
            for contender in contenders
            for t in job.vectors
            if contender.cluster != BARE or t == min(job.vectors)
        }
        for baseline in baselines:
            seconds[replace(baseline, again=True), min(job.vectors)] = []
            products[replace(baseline, again=True)] = products[baseline]

        def build(contender: _Contender, halo: int) -> float:
            with BlockedKernelOperator(kernel, 0.1, dataset, executors[contender]) as operator:
                began = time.perf_counter()
                VecchiaFactor(operator, halo, max(1, round(LEAF_TO_HALO * halo)))
                return time.perf_counter() - began

        building: dict[_Contender, list[float]] = {
            each: [] for each in contenders if each.cluster == "processes" and job.halo
        }
        for contender in building:
            build(contender, 16)  # compiled code is loaded
        for repeat in range(job.repeats):
            for (contender, t), times in seconds.items():
                began = time.perf_counter()
                product = products[contender](vectors[t])
                times.append(time.perf_counter() - began)
                if contender.cluster != BARE and not np.array_equal(product, expected[t]):
                    raise NumericalError(f"{contender} comes to other bits than {contenders[0]}")
            if repeat < FACTORS:
                for contender, times in building.items():
                    times.append(build(contender, job.halo))
            show(WorkProgress("products", repeat + 1, job.repeats, "repeats"))
        return seconds, building, keeping.kept_bytes


def _nothing_of(run: Callable[[], int], V: FloatArray) -> FloatArray:
    """Run a turn of bare processes, which have the vectors and return nothing."""
    run()
    return V


STOP_SECONDS = 5.0


class BareProcesses(ExitStack):
    """So many processes, started once; each call evaluates K V for the samples of the store at `url`."""

    def __init__(self, count: int, url: str, kernel: Kernel, V: FloatArray) -> None:
        super().__init__()
        self._count, self._work = count, (url, kernel, V)
        self._ends: list[Connection] = []

    def __enter__(self) -> Self:
        start = multiprocessing.get_context("spawn")
        for share in range(self._count):
            near, far = start.Pipe()
            process = start.Process(target=_serve, args=(far, share, self._count, *self._work), daemon=True)
            process.start()
            far.close()
            self.callback(process.join, STOP_SECONDS)
            self.callback(near.close)
            self._ends.append(near)
        self()  # compiled code is loaded, features are there
        return self

    def __call__(self) -> int:
        """Evaluate; return the number of tasks."""
        try:
            for end in self._ends:
                end.send(True)
            return sum(end.recv() for end in self._ends)
        except (EOFError, OSError) as error:
            raise DkgpError(f"a process of the benchmark ended by itself: {error!r}") from error


def _serve(end: Connection, share: int, of: int, url: str, kernel: Kernel, V: FloatArray) -> None:
    limit_blas_threads(1)
    dataset = open_dataset(url)
    context = BlockContext(f"bare-{os.getpid()}", dataset, kernel, dataset.n_samples)
    cut = cut_of(context.n_blocks, of)
    mine = share_of(len(cut.tasks), share, of)
    rows = [(context.bounds(first)[0], context.bounds(last - 1)[1]) for first, last in map(cut.blocks, cut.names)]
    ranges = [RangeRows(cut.blocks(name), np.ascontiguousarray(V[slice(*rows[name])])) for name in cut.names]
    work = [({name: ranges[name] for name in cut.needs[task]}, cut.tasks[task]) for task in mine]
    scale = scale_of(V, np.ones(context.n), "single", context.n_blocks)
    try:
        while end.recv():
            for needed, squares in work:
                matmat_task(context, scale, "single", None, needed, squares)
            end.send(len(work))
    except (EOFError, OSError, KeyboardInterrupt):
        pass


def share_of(tasks: int, share: int, of: int) -> range:
    """Return the tasks of one of so many workers of a thread each."""
    return range(share, tasks, of)
