"""`dkgp bench messages`: products of more workers than there are cores, against the plan's forecast.

Tasks sleep for as long as their entries would take, and leave as many bytes on their workers as products do. Scheduler,
messages and coordinator are those of a cluster whose workers compute, on a machine of two cores. Links are this
machine's own. A slow link between coordinator and scheduler is a process that passes bytes from one port to another,
delayed and at a limited rate; it takes no turn of the measured process.
"""

from __future__ import annotations

import math
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.connect import start_cluster
from dkgp.cluster.executors.base import RoundTasks
from dkgp.cluster.executors.sums import PendingTotal
from dkgp.commands.reporting.measurements import Column, check_record_file, median, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.errors import UsageError
from dkgp.kernels import SquaredExponential
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import Scale
from dkgp.operators.full_products import COUNTS, FullProducts, RangeRows, Square
from dkgp.operators.keeping import Keeping
from dkgp.plan.fleet import Fleet, product_parts
from dkgp.plan.machine import measure_cluster
from dkgp.solvers.prices import Prices, Sizes

COLUMNS = (
    Column("samples", "samples", ",d"),
    Column("workers", "workers", "d"),
    Column("entry_ns", "ns per entry", ".3g"),
    Column("seconds", "seconds", ".3f"),
    Column("forecast", "forecast, s", ".3f"),
    Column("ratio", "measured / forecast", ".2f"),
    Column("to_computing", "measured / computing", ".2f"),
    Column("computing", "computing, s", ".3f"),
    Column("scheduling", "scheduler, s", ".3f"),
    Column("moving", "transfer, s", ".3f"),
    Column("tasks", "tasks", ",d"),
    Column("moved_gb", "sent by coordinator, GB", ".2f"),
    Column("coordinator", "coordinator, processor s", ".3f"),
    Column("mb_per_second", "MB/s", ".0f"),
)

# Worker processes of one thread that are started at most by default.
MOST_PROCESSES = 16


@dataclass(frozen=True)
class BenchMessagesJob:
    """Products whose tasks sleep; medians of repeats.

    Attributes
    ----------
    samples
        Of the products; each of them takes n²/2 entries.
    workers
        Numbers of workers of a thread each.
    threads
        Workers that share a process, as its threads: 64 processes would take two cores a minute to start. They share
        their vectors too, and the forecast counts that. By default one up to 16 workers, 16 beyond.
    entry_ns
        Nanoseconds that a task sleeps for an entry of half the matrix.
    seconds
        Computing of a product is shortened to so many where it would take longer: its messages stay the same.
    latency_seconds, bytes_per_second
        Of a link between the coordinator and the scheduler, on whose machine the workers are: one way, and in each
        direction. Zero and None for this machine's own.
    """

    samples: tuple[int, ...] = (100_000, 1_000_000)
    workers: tuple[int, ...] = (2, 4, 16)
    threads: int | None = None
    entry_ns: float = 0.2
    seconds: float = 5.0
    latency_seconds: float = 0.0
    bytes_per_second: float | None = None
    repeats: int = 3
    out: str | None = None

    def __post_init__(self) -> None:
        numbers = (*self.samples, *self.workers, self.repeats, self.threads or 1)
        if min(numbers, default=0) < 1 or min(self.entry_ns, self.seconds) <= 0.0:
            raise UsageError(
                "messages need numbers of samples, of workers, threads and repeats of at least 1, and times above 0"
            )
        for count in self.workers:
            if count % self.threads_for(count):
                raise UsageError(
                    f"`threads` must divide the number of workers; got {self.threads_for(count)} and {count}"
                )
        rate = self.bytes_per_second
        if self.latency_seconds < 0.0 or (rate is not None and rate <= 0.0):
            raise UsageError(
                "a link needs a `latency` of at least 0 s and a `bandwidth` above 0 bytes per second; "
                f"got {self.latency_seconds:g} and {'none' if rate is None else f'{rate:g}'}"
            )

    def threads_for(self, count: int) -> int:
        """Return the threads of each process of so many workers."""
        return self.threads or (1 if count <= MOST_PROCESSES else math.gcd(count, MOST_PROCESSES))


@dataclass(frozen=True)
class NoInputs:
    """Stands for inputs that nobody reads."""

    n_samples: int
    n_features: int = 1

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Zeros: (stop - start, 1)."""
        return np.zeros((stop - start, 1))


def sleeping_task(
    context: BlockContext,
    entry_seconds: float,
    scale: Scale,
    precision: Precision,
    keeping: Keeping | None,
    ranges: dict[int, RangeRows],
    squares: list[Square],
) -> list[dict[Any, NDArray[np.int64]]]:
    """Return as much as `matmat_task` does, after as long as its entries take."""
    rows = {
        name: sum(last - first for first, last in map(context.bounds, range(*each.blocks)))
        for name, each in ranges.items()
    }
    time.sleep(entry_seconds * sum(rows[a] * rows[b] * (0.5 if a == b else 1.0) for a, b in squares))
    words = {name: scale.zeros(count).swapaxes(1, 2) for name, count in rows.items()}
    return [{**words, COUNTS: np.zeros(2 + len(scale.exponents), np.int64)}]


def run_bench_messages(job: BenchMessagesJob, reporter: Reporter) -> Document:
    """Measure; return seconds and the plan's forecast, for each number of workers and samples."""
    check_record_file(job.out)
    rows: list[dict[str, Any]] = []
    networks: dict[str, Any] = {}
    total = len(job.workers) * len(job.samples) * job.repeats
    with reporter.work("bench messages") as show:
        for count in job.workers:
            with workers(job, count, reporter) as executor:
                executor.tiles = TileBudget()
                network = measure_cluster(executor).network
                networks[str(count)] = asdict(network)
                for n in job.samples:
                    sizes = Sizes(n, 1, blocks=_context(n).n_blocks)
                    prices = replace(Prices(), entries=1e-9 * job.entry_ns)
                    threads = job.threads_for(count)
                    # Threads that sleep do not slow each other down.
                    fleet = Fleet(count // threads, threads, tuple(map(float, range(1, threads + 1))), network)
                    parts = product_parts(sizes, prices, fleet)
                    entry_ns = job.entry_ns * min(1.0, job.seconds / parts.computing)
                    parts = product_parts(sizes, replace(prices, entries=1e-9 * entry_ns), fleet)
                    runs = []
                    for _ in range(job.repeats):
                        runs.append(measure(executor, n, 1e-9 * entry_ns))
                        show(WorkProgress(f"{count} workers", len(rows) * job.repeats + len(runs), total, "products"))
                    seconds, coordinator = (median([run[at] for run in runs]) for at in (0, 1))
                    alone = 0.5e-9 * n**2 / count  # seconds of computing side by side, by nanoseconds an entry
                    rows.append(
                        {
                            "samples": n,
                            "workers": count,
                            "entry_ns": entry_ns,
                            "seconds": seconds,
                            "forecast": parts.total,
                            "ratio": seconds / parts.total,
                            "to_computing": 1.0 + (seconds - alone * entry_ns) / (alone * job.entry_ns),
                            "computing": parts.computing,
                            "scheduling": parts.scheduling,
                            "moving": parts.moving,
                            "tasks": parts.tasks,
                            "moved_gb": parts.moved_bytes / 1e9,
                            "coordinator": coordinator,
                            "coordinator_ms": 1e3 * coordinator / parts.tasks,
                            "task_ms": 1e3 * (network.task_seconds + network.submit_seconds),
                            "mb_per_second": network.bytes_per_second / 1e6,
                        }
                    )
    figures = {f"worst_of_{count}_workers": _worst(rows, count) for count in job.workers}
    title = f"Products whose tasks sleep {job.entry_ns:g} ns an entry, against the plan; median of {job.repeats}"
    names = ("entry_ns", "threads", "latency_seconds", "bytes_per_second", "repeats")
    settings = {**{name: getattr(job, name) for name in names}, "network": networks}
    return write_record(report("messages", title, COLUMNS, rows, figures, **settings), job.out)


@contextmanager
def workers(job: BenchMessagesJob, count: int, reporter: Reporter) -> Iterator[BlockExecutor]:
    """Start processes for so many workers, behind the job's link if it has one."""
    with ExitStack() as stack:
        threads = job.threads_for(count)
        processes = count // threads
        options = ClusterOptions(kind="processes", workers=processes, threads_per_worker=threads)
        if job.latency_seconds or job.bytes_per_second is not None:
            address = urlsplit(start_cluster(options, None, stack).scheduler_address)
            target = (str(address.hostname), int(address.port or 0))
            rate = job.bytes_per_second or float("inf")
            link = stack.enter_context(SlowLink(target, job.latency_seconds, rate))
            options = ClusterOptions(scheduler=f"tcp://127.0.0.1:{link.port}", workers=processes)
        yield stack.enter_context(open_executor(options, max(job.samples), reporter))


def _worst(rows: list[dict[str, Any]], count: int) -> float:
    """The ratio that is farthest from 1."""
    return float(max((row["ratio"] for row in rows if row["workers"] == count), key=lambda ratio: abs(np.log(ratio))))


def _context(n: int) -> BlockContext:
    return BlockContext("messages", NoInputs(n), SquaredExponential(gamma=(1.0,)), n)


def measure(executor: BlockExecutor, n: int, entry_seconds: float) -> tuple[float, float]:
    """Time a product whose tasks sleep.

    Returns seconds, and processor seconds of this process, the scheduler's included where it is in it.
    """
    context = _context(n)

    def start_total(tasks: RoundTasks) -> PendingTotal:
        asleep = (context, entry_seconds, *tasks.arguments[1:])
        return executor.start_total(replace(tasks, task=sleeping_task, arguments=asleep))

    V, result = np.ones((n, 1)), np.ones((n, 1))
    wall_start, processor_start = time.perf_counter(), time.process_time()
    FullProducts(context, executor, start_total, lambda: np.ones(n)).add(V, "single", result)
    return time.perf_counter() - wall_start, time.process_time() - processor_start


PIECE_BYTES = 1 << 16
# Pieces of a connection on their way, at most: more than a link's bandwidth times its latency.
MOST_PIECES = 64
STOP_SECONDS = 5.0

Address: TypeAlias = tuple[str, int]


class SlowLink(ExitStack):
    """Passes bytes between `port` of this machine and `target`; a context manager.

    `latency_seconds` is the delay one way, `bytes_per_second` the rate of all connections together in each direction.
    """

    def __init__(self, target: Address, latency_seconds: float, bytes_per_second: float) -> None:
        super().__init__()
        self._arguments = (target, latency_seconds, bytes_per_second)
        self.port = 0

    def __enter__(self) -> Self:
        start = multiprocessing.get_context("spawn")
        near, far = start.Pipe()
        process = start.Process(target=_serve, args=(far, *self._arguments), daemon=True)
        process.start()
        far.close()
        self.callback(process.join, STOP_SECONDS)
        self.callback(near.close)
        self.port = int(near.recv())
        return self


class Lane:
    """One direction of a link, which its connections share."""

    def __init__(self, latency_seconds: float, bytes_per_second: float) -> None:
        self._latency, self._rate = latency_seconds, bytes_per_second
        self._free_at, self._lock = 0.0, threading.Lock()

    def arrival(self, count: int) -> float:
        """Moment at which so many bytes, sent now, will have arrived, by `time.perf_counter`."""
        with self._lock:
            self._free_at = max(time.perf_counter(), self._free_at) + count / self._rate
            return self._free_at + self._latency


def _serve(end: Connection, target: Address, latency_seconds: float, bytes_per_second: float) -> None:
    out, back = (Lane(latency_seconds, bytes_per_second) for _ in range(2))
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=_accept, args=(door, target, out, back), daemon=True).start()
        end.send(door.getsockname()[1])
        with suppress(EOFError, OSError, KeyboardInterrupt):
            end.recv()  # until nobody holds the other end


def _accept(door: socket.socket, target: Address, out: Lane, back: Lane) -> None:
    with suppress(OSError):
        while True:
            near, _ = door.accept()
            far = socket.create_connection(target)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink, lane in ((near, far, out), (far, near, back)):
                waiting: Queue[tuple[float, bytes]] = Queue(MOST_PIECES)
                threading.Thread(target=_take, args=(source, lane, waiting), daemon=True).start()
                threading.Thread(target=_hand_over, args=(sink, waiting), daemon=True).start()


def _take(source: socket.socket, lane: Lane, waiting: Queue[tuple[float, bytes]]) -> None:
    piece = b"-"
    while piece:
        try:
            piece = source.recv(PIECE_BYTES)
        except OSError:
            piece = b""
        waiting.put((lane.arrival(len(piece)), piece))


def _hand_over(sink: socket.socket, waiting: Queue[tuple[float, bytes]]) -> None:
    piece, is_open = b"-", True
    while piece:
        arrival, piece = waiting.get()
        time.sleep(max(0.0, arrival - time.perf_counter()))
        try:
            if is_open and piece:
                sink.sendall(piece)
        except OSError:  # the rest is taken off the queue all the same
            is_open = False
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
