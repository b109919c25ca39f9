"""Prices of this machine and of its cluster's messages, measured in a few seconds or read from files.

Prices are seconds of one core, measured with the functions that training itself runs. The timer counts only the CPU
time of this process, so other load on the machine has little effect.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from timeit import repeat, timeit
from typing import Any

import numpy as np
import psutil
import scipy

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.threads import available_cores, single_threaded_blas
from dkgp.commands.reporting.measurements import Column, median, report
from dkgp.commands.reporting.outputs import Document, dump, write_text
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import KeptTiles, Precision
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia.leaves import Leaf, values_held
from dkgp.operators.vecchia.products import sweep
from dkgp.solvers.block_descent.rows import SettledGradient
from dkgp.solvers.block_descent.selection import GreedySelection, Subproblem, Turn
from dkgp.solvers.conjugate.preconditioner import ONE_SWEEP
from dkgp.solvers.prices import Prices

TILE_SHAPE = (8192, 1000)
PAIR_ROWS = 4096
SELECTION_SIZES = (250, 500, 1000, 2000)
SELECTION_SAMPLES = 16_384
CANDIDATES = 60
MATRIX_ORDER = 1024
VECTOR_SAMPLES = 131_072
LEAF_SHAPE, LEAVES = (1500, 750), 16
STORE_ROWS = 16_384
LEAST_SECONDS = 0.05
REPEATS = 3
# Speed-ups are measured at doubling numbers of threads up to this limit, and extrapolated linearly beyond.
MOST_MEASURED_THREADS = 16


@dataclass(frozen=True)
class MachineFigures:
    """Costs on one machine, for one number of features."""

    d: int  # number of features to which the prices apply
    prices: Prices  # seconds of one thread
    speedups: tuple[float, ...]  # combined speed of 1, 2, ... threads, in units of one thread

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"d": self.d, **asdict(self.prices), "speedups": self.speedups}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MachineFigures:
        """Read the result of `to_json`.

        Raises
        ------
        InputError
            If fields are missing, or are not positive numbers.
        """
        try:
            prices = {each.name: _number(document[each.name], least=0.0) for each in fields(Prices)}
            speedups = tuple(_number(value, least=1e-9) for value in document["speedups"])
            if not speedups or not prices["entries"] or not prices["double_entries"]:
                raise ValueError("an entry, or a thread, that costs nothing")
            return cls(int(document["d"]), Prices(**prices), speedups)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"these are no figures of a machine ({error}); measure them again") from None


def _number(value: Any, *, least: float) -> float:
    number = float(value)
    if not (np.isfinite(number) and number >= least):
        raise ValueError(f"{value!r}")
    return number


def measure_machine(dataset: Dataset, kernel: Kernel, noise_variance: float) -> MachineFigures:
    """Measure all prices except those of messages, in two or three seconds.

    Parameters
    ----------
    dataset : Dataset
        Determines d and the store whose reading speed is measured.
    """
    with single_threaded_blas():
        operations, double_operations = (_measure_matrices(dtype) for dtype in (np.float32, np.float64))
        entries = _measure_tiles(kernel, "single", operations)
        filled, kept = _measure_kept(kernel, operations)
        used, read = _measure_leaves()
        drawn, dense = _measure_selection(dataset, kernel, noise_variance, entries)
        prices = Prices(
            entries=entries,
            double_entries=_measure_tiles(kernel, "double", double_operations),
            filled=filled,
            kept=kept,
            operations=operations,
            double_operations=double_operations,
            bytes=used,
            spilled=read,
            vectors=_measure_vectors(),
            drawn=drawn,
            dense=dense,
            read=_measure_store(dataset, kernel),
        )
        return MachineFigures(kernel.n_features, prices, measure_speedups(kernel))


def _seconds(run: Callable[[], Any]) -> float:
    """Return the core seconds of a call: the minimum of a few repeats, each long enough for the timer."""
    run()  # compile, load, and fill the caches
    loops = max(1, round(LEAST_SECONDS / max(timeit(run, number=1), 1e-9)))
    return min(repeat(run, number=loops, repeat=REPEATS, timer=time.process_time)) / loops


def _measure_tiles(kernel: Kernel, precision: Precision, operation: float) -> float:
    """Return the seconds per kernel entry: those of a product with one vector, minus its two operations."""
    evaluator, (rows, columns) = TileEvaluator(kernel, precision), TILE_SHAPE
    X = np.random.default_rng(0).standard_normal((rows + columns, kernel.n_features))
    left, right, weights = evaluator.prepare(X[:rows]), evaluator.prepare(X[rows:]), np.ones((columns, 1))
    seconds = _seconds(lambda: evaluator.matmat(left, right, weights)) / (rows * columns)
    return max(seconds - 2.0 * operation, seconds / 2.0)


def _measure_kept(kernel: Kernel, operation: float) -> tuple[float, float]:
    """Return the seconds per entry that is kept in newly allocated memory, and per entry that is read back.

    Both come from products with a pair of blocks, minus the operations of the products.
    """
    evaluator = TileEvaluator(kernel, "single")
    X = np.random.default_rng(3).standard_normal((2 * PAIR_ROWS, kernel.n_features))
    left, right, weights = evaluator.prepare(X[:PAIR_ROWS]), evaluator.prepare(X[PAIR_ROWS:]), np.ones((PAIR_ROWS, 1))

    def multiply(tiles: KeptTiles) -> None:
        evaluator.pair(left, right, weights, weights, tiles)

    tiles = evaluator.room(left, right)
    filling = _seconds(lambda: multiply(evaluator.room(left, right)))
    found = [each / evaluator.entries_of(left, right) for each in (filling, _seconds(lambda: multiply(tiles)))]
    filled, kept = (max(seconds - 4.0 * operation, seconds / 2.0) for seconds in found)
    return filled, kept


def _measure_matrices(dtype: type[np.floating[Any]]) -> float:
    left = np.ones((MATRIX_ORDER, MATRIX_ORDER), dtype)
    right, out = left.copy(), left.copy()
    return _seconds(lambda: np.matmul(left, right, out=out)) / (2.0 * MATRIX_ORDER**3)


def _measure_leaves() -> tuple[float, float]:
    """Return the seconds per byte of a leaf for using it once, and for reading it from disk before."""
    halo, rows = LEAF_SHAPE
    # Several leaves are used in turn, so that none stays in a CPU cache.
    values = np.ones((LEAVES, values_held(halo, rows)), np.float32)
    leaves = [Leaf(halo, rows, 0, each, np.zeros((0, 0), np.float32)) for each in values]
    vector = np.ones((halo + rows, 1))
    used = _seconds(lambda: [sweep(leaf, vector) for leaf in leaves]) / (ONE_SWEEP * values.nbytes)
    with tempfile.TemporaryFile() as file:
        values.tofile(file)

        def read() -> None:
            file.seek(0)
            np.fromfile(file, np.float32, values.size)

        return used, _seconds(read) / values.nbytes


def _measure_vectors() -> float:
    left, right = np.ones(VECTOR_SAMPLES), np.ones(VECTOR_SAMPLES)
    return _seconds(lambda: np.add(left, right, out=right)) / VECTOR_SAMPLES


def _measure_selection(
    dataset: Dataset, kernel: Kernel, noise_variance: float, entry_seconds: float
) -> tuple[float, float]:
    """Select blocks of a few sizes; fit costs per variable and a block's algebra, without candidates' entries."""
    # The duration of a block's algebra depends on the similarity of the samples, so the dataset's own samples are used.
    few = min(dataset.n_samples, SELECTION_SAMPLES)
    gradient = -dataset.targets(0, few)
    view, selection = SettledGradient(gradient), GreedySelection(candidates=CANDIDATES, threads=1)
    executor, inputs = LocalExecutor(1), ArrayInputs(dataset.inputs(0, few))
    with BlockedKernelOperator(kernel, noise_variance, inputs, executor) as operator:

        def choose(iteration: int) -> float:
            subproblem.reset()
            began = time.process_time()
            selection.fill(subproblem, operator, view, Turn(size, 0, iteration))
            return time.process_time() - began

        sizes = sorted({min(size, max(1, few // 2)) for size in SELECTION_SIZES})
        seconds = []
        for size in sizes:
            subproblem = Subproblem(operator, size, gradient.shape[1])
            choose(0)  # load compiled code, and allocate memory
            scored = CANDIDATES * size * size / 2.0 * entry_seconds
            seconds.append(max(0.0, min(choose(iteration) for iteration in range(REPEATS)) - scored))
    executor.close()
    columns = np.asarray(sizes, dtype=np.float64)[:, None] ** np.array([1.0, 3.0])
    # A block's cost grows at least as its square. This weighting gives all sizes about the same influence.
    scale = columns[:, 0] ** 2
    (drawn, dense), _ = scipy.optimize.nnls(columns / scale[:, None], np.asarray(seconds) / scale)
    return float(drawn), float(dense)


def _measure_store(dataset: Dataset, kernel: Kernel) -> float:
    stop = min(dataset.n_samples, STORE_ROWS)
    evaluator = TileEvaluator(kernel, "single")
    times = repeat(lambda: evaluator.prepare(dataset.inputs(0, stop)), number=1, repeat=REPEATS)
    return min(times) / (stop * kernel.n_features)


def measure_speedups(kernel: Kernel, cores: int | None = None) -> tuple[float, ...]:
    """Return the combined speed of 1, 2, ... threads that evaluate tiles, in units of a single thread.

    Parameters
    ----------
    cores : int, optional
        Largest number of threads; by default the number of cores that this process may use.
    """
    cores = cores or available_cores()
    generator = np.random.default_rng(2)
    evaluator = TileEvaluator(kernel, "single")
    rows = evaluator.prepare(generator.standard_normal((4096, kernel.n_features)))
    weights = np.ones((4096, 1))
    loops = max(1, round(LEAST_SECONDS / _seconds(lambda: evaluator.matmat(rows, rows, weights))))

    def together(threads: int) -> float:
        def work(_: int) -> None:
            for _ in range(loops):
                evaluator.matmat(rows, rows, weights)

        with ThreadPoolExecutor(threads) as pool:
            return min(repeat(lambda: list(pool.map(work, range(threads))), number=1, repeat=REPEATS))

    counts = sorted({1, *(2**power for power in range(1, 5) if 2**power < cores), min(cores, MOST_MEASURED_THREADS)})
    alone = together(1)
    speeds = [1.0, *(max(1.0, min(float(count), count * alone / together(count))) for count in counts[1:])]
    speeds = [float(value) for value in np.maximum.accumulate(speeds)]
    found = np.interp(np.arange(1, min(cores, counts[-1]) + 1), counts, speeds).tolist()
    found += [found[-1] * count / len(found) for count in range(len(found) + 1, cores + 1)]
    return tuple(float(value) for value in found)


ROUND_TRIPS = 15
MANY_TASKS = 24
PAYLOAD_BYTES = 4 * 1024**2
MESSAGE_REPEATS = 5
# Assumed bandwidth if the payload's transfer time is too short to measure. It exceeds that of any network.
MOST_BYTES_PER_SECOND = 2e10
LEAST_MESSAGE_SECONDS = 1e-5


@dataclass(frozen=True)
class Network:
    """Costs of messages."""

    round_trip_seconds: float  # of one empty task: from its submission until its result reaches the coordinator
    task_seconds: float  # additional time at the scheduler per further task of a round
    submit_seconds: float  # time of the coordinator to submit one task
    bytes_per_second: float  # payload of tasks, in either direction


@dataclass(frozen=True)
class ClusterFigures:
    """Measured properties of a cluster."""

    network: Network  # costs of its messages
    threads: int  # number of tasks that it runs concurrently now
    # Memory of an idle worker process, or of the coordinator if they share a process.
    worker_resident_bytes: int
    least_task_evaluations: int  # a task with fewer kernel entries costs less than its messages
    tiles: TileBudget = field(default_factory=TileBudget)  # each worker's limit for kept tiles of K


def echo_task(payload: Any, blocks: list[int]) -> list[Any]:
    """Return the payload for each block."""
    return [payload for _ in blocks]


def resident_task(blocks: list[int]) -> list[int]:
    """Return the resident bytes of the process that runs this task, for each block."""
    return [int(psutil.Process().memory_info().rss) for _ in blocks]


def measure_cluster(executor: BlockExecutor) -> ClusterFigures:
    """Measure a cluster with rounds of empty tasks, in a second or two."""

    def timed(payload: Any, tasks: int) -> tuple[float, float]:
        began = time.perf_counter()
        pending = executor.submit("kprobe", echo_task, (payload,), [[index] for index in range(tasks)])
        submitted = time.perf_counter()
        pending.result()
        return time.perf_counter() - began, submitted - began

    resident_bytes = int(max(executor.submit("kprobe", resident_task, (), [[0]]).result()))
    for tasks in (1, MANY_TASKS):
        timed(None, tasks)  # open the connections
    single = [timed(None, 1) for _ in range(ROUND_TRIPS)]
    many = [timed(None, MANY_TASKS) for _ in range(MESSAGE_REPEATS)]
    # The payload is random and every page is written, so that it cannot be compressed or shared.
    payload = np.random.default_rng(0).integers(0, 256, PAYLOAD_BYTES, dtype=np.uint8)
    heavy = [timed(payload, 1)[0] for _ in range(MESSAGE_REPEATS)]
    round_trip = median([seconds for seconds, _ in single])
    submit = median([seconds for _, seconds in many]) / MANY_TASKS
    task = (median([seconds for seconds, _ in many]) - round_trip) / (MANY_TASKS - 1)
    wire = max(median(heavy) - round_trip, 2 * PAYLOAD_BYTES / MOST_BYTES_PER_SECOND)
    network = Network(
        round_trip_seconds=max(round_trip - submit, LEAST_MESSAGE_SECONDS),
        # The coordinator's share is counted in `submit_seconds`.
        task_seconds=max(task - submit, LEAST_MESSAGE_SECONDS),
        submit_seconds=max(submit, LEAST_MESSAGE_SECONDS / 10.0),
        bytes_per_second=2 * PAYLOAD_BYTES / wire,
    )
    return ClusterFigures(
        network, executor.parallelism, resident_bytes, executor.least_task_evaluations, executor.tiles
    )


BENCHMARK = "machine"
COLUMNS = (
    Column("d", "features", "d"),
    Column("entries", "entry, s", ".3e"),
    Column("double_entries", "float64 entry, s", ".3e"),
    Column("filled", "kept entry, s", ".3e"),
    Column("kept", "read entry, s", ".3e"),
    Column("operations", "operation, s", ".3e"),
    Column("double_operations", "float64 operation, s", ".3e"),
    Column("bytes", "byte, s", ".3e"),
)


def read_figures(path: str, d: int, reporter: Reporter) -> MachineFigures | None:
    """Return the figures for d features from a file; None if they or the file do not exist.

    Figures from another processor are used, with a warning.

    Raises
    ------
    InputError
        If the file has another content.
    """
    document = _read(path, "figures")
    if document is None:
        return None
    if document.get("benchmark") != BENCHMARK:
        raise InputError(f"'{path}' (`figures`) holds no figures of a machine; expected a file that `dkgp plan` wrote")
    for row in document["rows"]:
        machine = MachineFigures.from_json(row)
        if machine.d == d:
            taken_on, here = document["machine"]["processor"], _machine()["processor"]
            if taken_on != here:
                reporter.warn(f"the figures in '{path}' were taken on another processor ({taken_on}; this is {here})")
            return machine
    return None


def write_figures(path: str, machine: MachineFigures) -> None:
    """Add figures to a file, or create the file. Figures of another machine are dropped."""
    document = _read(path, "figures")
    rows: list[dict[str, Any]] = []
    if document is not None and document["machine"]["processor"] == _machine()["processor"]:
        rows = [row for row in document["rows"] if row["d"] != machine.d]
    rows = sorted([*rows, machine.to_json()], key=lambda row: row["d"])
    figures = {"speedups": rows[-1]["speedups"]}
    write_text(path, dump(report(BENCHMARK, "Figures of this machine", COLUMNS, rows, figures)) + "\n")


def read_bench(path: str) -> Document:
    """Read a record of `dkgp bench tiles` or `dkgp bench scaling`, which a plan can use.

    Raises
    ------
    InputError
        If the file contains no such record.
    """
    document = _read(path, "bench")
    if document is None:
        raise InputError(f"the file '{path}' (`bench`) does not exist; write one with `dkgp bench tiles --out {path}`")
    if document.get("benchmark") not in ("tiles", "scaling"):
        raise InputError(
            f"'{path}' (`bench`) is a record of `dkgp bench {document.get('benchmark')}`, which does not "
            "contain the cost of a kernel entry; expected a record of `dkgp bench tiles` or `dkgp bench "
            "scaling`"
        )
    return document


def with_bench(figures: MachineFigures, document: Mapping[str, Any]) -> MachineFigures:
    """Replace measured figures by those of a benchmark's record.

    A `scaling` record contains the figures of a machine in the form that a plan uses. A `tiles` record contains
    nanoseconds per entry by number of features and precision; other numbers of features are interpolated linearly.
    """
    try:
        if document["benchmark"] == "scaling":
            machine = MachineFigures.from_json(document["settings"]["machine_figures"])
            if machine.d != figures.d:
                raise InputError(
                    f"the record of `dkgp bench scaling` is for {machine.d} features; the data set has {figures.d}"
                )
            return machine
        entries = {}
        for precision in ("single", "double"):
            rows = sorted((row["d"], row["dkgp_ns"]) for row in document["rows"] if row["precision"] == precision)
            entries[precision] = 1e-9 * float(np.interp(figures.d, [row[0] for row in rows], [row[1] for row in rows]))
            if not entries[precision] > 0.0:
                raise ValueError(f"{entries[precision]} seconds for an entry")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the record of a benchmark (`bench`) is damaged: {error}") from None
    prices = replace(figures.prices, entries=entries["single"], double_entries=entries["double"])
    return replace(figures, prices=prices)


def _machine() -> dict[str, Any]:
    machine: dict[str, Any] = report("", "", (), (), {})["machine"]
    return machine


def _read(path: str, option: str) -> Document | None:
    """Return a benchmark's record, or None if the file does not exist."""
    try:
        document = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' (`{option}`) cannot be read as JSON: {error}") from None
    if (
        not isinstance(document, dict)
        or document.get("command") != "bench"
        or not isinstance(document.get("rows"), list)
        or not isinstance(document.get("machine"), dict)
        or not document["machine"].get("processor")
    ):
        raise InputError(
            f"'{path}' (`{option}`) is no record of dkgp's benchmarks; nothing was changed. Name another file"
        )
    return document
