"""Prices of this machine and of its cluster's messages, measured in a few seconds or read from files.

They are seconds of one core, taken with the very functions that training runs: of this process's own time, so that
others on the machine count for little.
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
from scipy.optimize import nnls

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
from dkgp.solvers.block_descent.selection import GreedySelection, Subproblem
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
# Speed-ups are measured at doubling numbers of threads up to here, and carried on at the last one's rate beyond.
MOST_MEASURED_THREADS = 16


@dataclass(frozen=True)
class MachineFigures:
    """Costs on one machine, for one number of features."""

    d: int  # what they hold for
    prices: Prices  # seconds of one thread
    speedups: tuple[float, ...]  # speed of 1, 2, ... threads together, in units of one.

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"d": self.d, **asdict(self.prices), "speedups": self.speedups}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MachineFigures:
        """Read what `to_json` wrote.

        Raises
        ------
        InputError
            Fields missing, or not numbers above zero.
        """
        try:
            prices = {each.name: _number(document[each.name], least=0.0) for each in fields(Prices)}
            speedups = tuple(_number(value, least=1e-9) for value in document["speedups"])
            if not speedups or not prices["entries"] or not prices["double_entries"]:
                raise ValueError("an entry, or a thread, that costs nothing")
            return cls(int(document["d"]), Prices(**prices), speedups)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"these are no figures of a machine ({error}); measure them anew") from None


def _number(value: Any, *, least: float) -> float:
    number = float(value)
    if not (np.isfinite(number) and number >= least):
        raise ValueError(f"{value!r}")
    return number


def measure_machine(dataset: Dataset, kernel: Kernel, noise_variance: float) -> MachineFigures:
    """Measure everything but messages, in two or three seconds.

    Parameters
    ----------
    dataset : Dataset
        Gives d and the store that is read from.
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
    """Seconds of one core for a call: the least of a few repeats, each long enough to be timed."""
    run()  # compiled, loaded, in the cache
    loops = max(1, round(LEAST_SECONDS / max(timeit(run, number=1), 1e-9)))
    return min(repeat(run, number=loops, repeat=REPEATS, timer=time.process_time)) / loops


def _measure_tiles(kernel: Kernel, precision: Precision, operation: float) -> float:
    """Seconds of an entry: of a product with one vector, less its two operations."""
    evaluator, (rows, columns) = TileEvaluator(kernel, precision), TILE_SHAPE
    X = np.random.default_rng(0).standard_normal((rows + columns, kernel.n_features))
    left, right, weights = evaluator.prepare(X[:rows]), evaluator.prepare(X[rows:]), np.ones((columns, 1))
    seconds = _seconds(lambda: evaluator.matmat(left, right, weights)) / (rows * columns)
    return max(seconds - 2.0 * operation, seconds / 2.0)


def _measure_kept(kernel: Kernel, operation: float) -> tuple[float, float]:
    """Seconds of an entry that is kept, in memory that is new, and that is read back: of a pair's product, likewise."""
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
    """Seconds for a byte of a leaf that is used, once, and that is read from disk before."""
    halo, rows = LEAF_SHAPE
    # Leaves in turn, so that none is left in a cache.
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
    """Choose blocks of a few sizes; fit what each variable and a block's algebra cost besides candidates' entries."""
    # How long a block's algebra takes depends on how alike the samples are: these are the data's own.
    few = min(dataset.n_samples, SELECTION_SAMPLES)
    gradient = -dataset.targets(0, few)
    view, selection = SettledGradient(gradient), GreedySelection(candidates=CANDIDATES, threads=1)
    executor, inputs = LocalExecutor(1), ArrayInputs(dataset.inputs(0, few))
    with BlockedKernelOperator(kernel, noise_variance, inputs, executor) as operator:

        def choose(iteration: int) -> float:
            subproblem.reset()
            began = time.process_time()
            selection.fill(subproblem, operator, view, size, seed=0, iteration=iteration)
            return time.process_time() - began

        sizes = sorted({min(size, max(1, few // 2)) for size in SELECTION_SIZES})
        seconds = []
        for size in sizes:
            subproblem = Subproblem(operator, size, gradient.shape[1])
            choose(0)  # compiled code is loaded, memory is there
            scored = CANDIDATES * size * size / 2.0 * entry_seconds
            seconds.append(max(0.0, min(choose(iteration) for iteration in range(REPEATS)) - scored))
    executor.close()
    columns = np.asarray(sizes, dtype=np.float64)[:, None] ** np.array([1.0, 3.0])
    # A block's cost grows as its square at least: so weighed, all sizes count about alike.
    scale = columns[:, 0] ** 2
    (drawn, dense), _ = nnls(columns / scale[:, None], np.asarray(seconds) / scale)
    return float(drawn), float(dense)


def _measure_store(dataset: Dataset, kernel: Kernel) -> float:
    stop = min(dataset.n_samples, STORE_ROWS)
    evaluator = TileEvaluator(kernel, "single")
    times = repeat(lambda: evaluator.prepare(dataset.inputs(0, stop)), number=1, repeat=REPEATS)
    return min(times) / (stop * kernel.n_features)


def measure_speedups(kernel: Kernel, cores: int | None = None) -> tuple[float, ...]:
    """Speed of 1, 2, ... threads that evaluate tiles at once, in units of one thread alone.

    Parameters
    ----------
    cores : int, optional
        Up to how many; what this process may use by default.
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
# Faster than any wire: what is assumed where the payload's own time is lost in the round trip's.
MOST_BYTES_PER_SECOND = 2e10
LEAST_MESSAGE_SECONDS = 1e-5


@dataclass(frozen=True)
class Network:
    """Costs of messages."""

    round_trip_seconds: float  # of one empty task: from its submission to its result at the coordinator
    task_seconds: float  # what each further task of the same round adds to that, at the scheduler
    submit_seconds: float  # what submitting a task costs the coordinator itself
    bytes_per_second: float  # of what tasks carry, either way


@dataclass(frozen=True)
class ClusterFigures:
    """Figures of a cluster."""

    network: Network  # what messages cost on it
    threads: int  # tasks that it runs at once, now
    # What a worker process holds before it has any work; the coordinator's where they share a process.
    worker_resident_bytes: int
    least_task_evaluations: int  # kernel entries below which a task is not worth its messages
    tiles: TileBudget = field(default_factory=TileBudget)  # what each worker may keep of a kernel matrix


def echo_task(payload: Any, blocks: list[int]) -> list[Any]:
    """Return the payload for each block."""
    return [payload for _ in blocks]


def resident_task(blocks: list[int]) -> list[int]:
    """Return the resident bytes of the process that runs this, for each block."""
    return [int(psutil.Process().memory_info().rss) for _ in blocks]


def measure_cluster(executor: BlockExecutor) -> ClusterFigures:
    """Measure a cluster by rounds of empty tasks, in a second or two."""

    def timed(payload: Any, tasks: int) -> tuple[float, float]:
        began = time.perf_counter()
        pending = executor.submit("kprobe", echo_task, (payload,), [[index] for index in range(tasks)])
        submitted = time.perf_counter()
        pending.result()
        return time.perf_counter() - began, submitted - began

    resident_bytes = int(max(executor.submit("kprobe", resident_task, (), [[0]]).result()))
    for tasks in (1, MANY_TASKS):
        timed(None, tasks)  # connections are made
    single = [timed(None, 1) for _ in range(ROUND_TRIPS)]
    many = [timed(None, MANY_TASKS) for _ in range(MESSAGE_REPEATS)]
    # Noise, and pages never written, would compress or be shared.
    payload = np.random.default_rng(0).integers(0, 256, PAYLOAD_BYTES, dtype=np.uint8)
    heavy = [timed(payload, 1)[0] for _ in range(MESSAGE_REPEATS)]
    round_trip = median([seconds for seconds, _ in single])
    submit = median([seconds for _, seconds in many]) / MANY_TASKS
    task = (median([seconds for seconds, _ in many]) - round_trip) / (MANY_TASKS - 1)
    wire = max(median(heavy) - round_trip, 2 * PAYLOAD_BYTES / MOST_BYTES_PER_SECOND)
    network = Network(
        round_trip_seconds=max(round_trip - submit, LEAST_MESSAGE_SECONDS),
        # The coordinator's own part is counted where it submits.
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
    """Return the figures that a file holds for d features; None where it has none or is not there.

    Figures that another processor took are used, and that is said.

    Raises
    ------
    InputError
        The file is something else.
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
    """Add figures to a file, or begin one; those of another machine are dropped."""
    document = _read(path, "figures")
    rows: list[dict[str, Any]] = []
    if document is not None and document["machine"]["processor"] == _machine()["processor"]:
        rows = [row for row in document["rows"] if row["d"] != machine.d]
    rows = sorted([*rows, machine.to_json()], key=lambda row: row["d"])
    figures = {"speedups": rows[-1]["speedups"]}
    write_text(path, dump(report(BENCHMARK, "Figures of this machine", COLUMNS, rows, figures)) + "\n")


def read_bench(path: str) -> Document:
    """Read a record of `dkgp bench` that a plan can use: of `tiles`, or of `scaling`.

    Raises
    ------
    InputError
        No such record.
    """
    document = _read(path, "bench")
    if document is None:
        raise InputError(f"the file '{path}' (`bench`) does not exist; write one with `dkgp bench tiles --out {path}`")
    if document.get("benchmark") not in ("tiles", "scaling"):
        raise InputError(
            f"'{path}' (`bench`) is a record of `dkgp bench {document.get('benchmark')}`, which says nothing about the "
            "cost of a kernel entry; expected one of `dkgp bench tiles` or `dkgp bench scaling`"
        )
    return document


def with_bench(figures: MachineFigures, document: Mapping[str, Any]) -> MachineFigures:
    """Replace measured figures by those of a benchmark's record.

    `scaling` holds a machine's figures as a plan takes them. `tiles` holds nanoseconds of an entry by number of
    features and precision: between two numbers of features they lie on a line.
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
    """Return a benchmark's record, None where there is no file."""
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
