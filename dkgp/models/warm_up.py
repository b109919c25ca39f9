"""Compilation ahead of a run, piece by piece, and helper processes that do it in the background.

A piece is compiled by calling it on a few rows, in arrays of the types that runs give it, and stays in the cache on
disk (`dkgp.kernels.tiles.code_cache`), where the run finds it. Compiling holds one lock of a process, so it takes
several processes to do it in parallel, or during other work.

Files beside the cache remember which pieces are there, so that a process finds out in a moment that it needs no
helpers. Where they are wrong, because part of the cache was deleted, the run compiles for itself.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import numpy as np
import psutil

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.errors import InputError
from dkgp.forks import fork_safe
from dkgp.kernels import Features, Kernel, SquaredExponential, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.kernels.tiles.kept_code import compile_target
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.kernels.tiles.stages import slope_stage_names, stage_address, stage_names
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.low_rank.products import FactorRows
from dkgp.operators.product_error import compile_bounded_products
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.solvers import MaxPasses, solve
from dkgp.solvers.registry import build_solver, declaration_of, solver_names

_MOST_HELPERS = 4
# Measured peak of a helper, which memory plans do not include. All helpers take at most a quarter of the free memory.
_HELPER_BYTES = 320 * 2**20
# Helpers begin with the pieces that a run needs last. The run compiles the others meanwhile, and they meet half-way.
_LOOPS_OF_RUN = ("pair/double", "matmat/double", "tile/double", "take/double", "matmat/single", "tile/single")
_LAST = ("take/single",)
# Measured processor seconds of an idle machine; other pieces take less than half a second.
_COMPILE_SECONDS = {
    "pair/double": 2.5,
    "matmat/double": 2.5,
    "matmat/single": 2.5,
    "vectors": 1.9,
    "factor": 1.4,
    "leaves": 11.0,
    "fixed-size": 8.0,
}
_PRECISIONS: tuple[Precision, ...] = ("double", "single")
_one_at_a_time = fork_safe(threading.Lock())
_KERNEL = SquaredExponential(gamma=(0.5, 0.5))
_ROWS = 48
# Prefix of the pieces of solvers with compiled code of their own.
_SOLVER = "solver "
# Products within a bound, of one to three features.
BOUNDED_PRODUCTS = "bounded products"


def pieces_of_run(kernel: Kernel) -> list[str]:
    """Name the pieces that training with the default solver and predicting with variances compile."""
    stages = [
        f"{name}/{precision}" for precision in _PRECISIONS for name in TileEvaluator(kernel, precision).stage_names
    ]
    return [_LOOPS_OF_RUN[0], "vectors", *_LOOPS_OF_RUN[1:], "factor", "leaves", *_LAST, *stages]


def pieces_of_model(name: str, kernel: Kernel) -> list[str]:
    """Name the pieces that training and predicting compile; `name` is "exact", "sparse", "vif" or "fixed-size"."""
    if name == "exact":
        return pieces_of_run(kernel)
    if name in ("sparse", "vif"):
        stages = [f"{stage}/double" for stage in TileEvaluator(kernel, "double").stage_names]
        neighbours = ["leaves"] if name == "vif" else []
        return [*neighbours, *(f"{loop}/double" for loop in ("matmat", "tile", "take")), *stages]
    return [name] if name == "fixed-size" else []


def compile_seconds(pieces: Iterable[str]) -> float:
    """Return a forecast of the processor seconds to compile the pieces that are not known to be in the cache."""
    return sum(_COMPILE_SECONDS.get(piece, 0.5) for piece in missing(pieces))


def all_pieces() -> list[str]:
    """Name all pieces that can be compiled in advance: everything but users' functions."""
    loops = [f"{name}/{precision}" for name in _LOOPS for precision in ("double", "single")]
    stages = [f"{name}/{precision}" for precision in ("double", "single") for name in stage_names()]
    solvers = [f"{_SOLVER}{name}" for name in solver_names() if declaration_of(name).compiles]
    slopes = [f"{name}/double" for name in slope_stage_names()]
    return [BOUNDED_PRODUCTS, "fixed-size", *solvers, *loops, "slopes", "vectors", "factor", "leaves", *stages, *slopes]


# ----------------------------------------------------------------------------------------------------------- compiling


def compile_piece(piece: str) -> float:
    """Compile a piece, or read it from the cache, and remember that it is there; return the seconds that it took."""
    began = time.perf_counter()
    name, _, precision = piece.partition("/")
    if name in stage_names() or name in slope_stage_names():
        stage_address(name, np.float32 if precision == "single" else np.float64)
    elif name in _LOOPS:
        evaluator = TileEvaluator(_KERNEL, cast(Precision, precision))
        _LOOPS[name](evaluator, evaluator.prepare(_points()))
    elif name in _OTHERS:
        _OTHERS[name]()
    elif name.startswith(_SOLVER) and piece in all_pieces():
        _solver(name.removeprefix(_SOLVER))
    else:
        raise InputError(f"there is no piece '{piece}' to compile; expected one of {', '.join(all_pieces())}")
    seconds = time.perf_counter() - began
    mark = _mark(piece)
    if mark is not None:
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return seconds


def missing(pieces: Iterable[str]) -> list[str]:
    """Return the pieces that are not known to be in the cache; none if the cache was filled in advance."""
    from dkgp.kernels.tiles import code_cache

    if code_cache.FILLED_FOLDER is not None:
        return []
    return [piece for piece in pieces if (mark := _mark(piece)) is not None and not mark.exists()]


def _mark(piece: str) -> Path | None:
    import numba

    from dkgp.kernels.tiles.code_cache import SOURCES_STAMP, cache_folder

    folder = cache_folder()
    if folder is None:
        return None
    name = hashlib.sha256(
        "\n".join((SOURCES_STAMP, *compile_target(), sys.version, numba.__version__, piece)).encode()
    ).hexdigest()
    return folder / "dkgp-pieces" / name[:24]


def _points(rows: int = _ROWS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 2))


def _vectors() -> None:
    from dkgp.solvers.base import measures
    from dkgp.solvers.block_descent.conjugate_memory import advance_gradient, advance_solution

    vector, memory = np.ones((_ROWS, 1)), np.ones((2, _ROWS, 1))
    few = np.ones((2, 1))
    used, step = np.arange(2, dtype=np.intp), np.ones(1)
    advance_gradient(vector, vector, memory, used, few, step, memory[1])
    advance_solution(vector, memory[1], memory, used, few, step, _ROWS)
    measures(vector, vector, vector, vector[:0, 0], _ROWS)


def _factor() -> None:
    from dkgp.solvers.block_descent.selection import Draws, best_in_groups
    from dkgp.solvers.cholesky.dense import solve_lower_transposed

    Draws(4, 1, 2, 0, 0).take(1, np.zeros(4, np.bool_), 4)
    best_in_groups(np.ones(4), np.arange(4, dtype=np.intp), 2, np.zeros(4, np.bool_))
    solve_lower_transposed(np.eye(4, dtype=np.float32), 4, np.ones((1, 4), np.float32))
    rows = FactorRows(np.ones((_ROWS, 32), np.float32))
    rows.project(rows.expand(np.ones((32, 1))))


def _slopes() -> None:
    points, evaluator = _points(), SlopeEvaluator(_KERNEL)
    evaluator.sums(points, evaluator.coordinates(points), points[:, :1])


def _leaves() -> None:
    points = _points()
    with BlockedKernelOperator(_KERNEL, 0.1, ArrayInputs(points), LocalExecutor(1)) as operator:
        for landmarks in (None, np.arange(2, dtype=np.intp)):
            VecchiaFactor(operator, 4, 4, landmarks).apply(points[:, :1])


def _solver(name: str) -> None:
    points = _points()
    with BlockedKernelOperator(_KERNEL, 0.1, ArrayInputs(points), LocalExecutor(1)) as operator:
        solve(operator, points[:, 0], solver=build_solver(name), stopping=MaxPasses(1))


def _fixed_size() -> None:
    from dkgp.data.stores.memory_dataset import memory_dataset
    from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
    from dkgp.models.classification.fixed_size.train import train_fixed_size
    from dkgp.models.classification.labels import LabelledData, Labels

    points, codes = _points(), np.arange(_ROWS) % 2
    settings = FixedSizeSettings(pool=8, folds=2, search="shared", noise_variances=(1.0,), probability=False)
    data = LabelledData(memory_dataset(points, codes), Labels(("0", "1"), codes))
    train_fixed_size(data, settings, LocalExecutor(1), kernel=_KERNEL)


_LOOPS: dict[str, Callable[[TileEvaluator, Features], object]] = {
    "matmat": lambda evaluator, rows: [
        evaluator.matmat(some, rows, np.ones((_ROWS, 1))) for some in (rows, rows.first(2))
    ],
    "pair": lambda evaluator, rows: evaluator.pair(rows, rows, np.ones((_ROWS, 1)), np.ones((_ROWS, 1))),
    "tile": lambda evaluator, rows: evaluator.tile(rows, rows),
    "take": lambda evaluator, rows: rows.take(np.arange(3, dtype=np.intp)),
}
_OTHERS: dict[str, Callable[[], None]] = {
    "vectors": _vectors,
    "factor": _factor,
    "leaves": _leaves,
    "slopes": _slopes,
    BOUNDED_PRODUCTS: compile_bounded_products,
    "fixed-size": _fixed_size,
}


# ------------------------------------------------------------------------------------------------------------- helpers


class _Helpers:
    """Processes that compile pieces; each takes the next piece that none of them has."""

    def __init__(self, pieces: Sequence[str], count: int, environment: Mapping[str, str] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self._pieces = iter(pieces)
        self._environment = environment
        self._processes: list[subprocess.Popen[str]] = []
        self._ended = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._feed, daemon=True) for _ in range(min(count, len(pieces)))]
        for thread in self._threads:
            thread.start()

    def _feed(self) -> None:
        with self._lock:
            if self._ended:
                return
            # A session of its own: Ctrl-C is the run's. It ends with the pipe, even if this process is killed.
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from dkgp.models.warm_up import _serve; _serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
            self._processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # of a pipe that `stop` has broken
            for piece in self._pieces:
                process.stdin.write(f"{piece}\n")
                process.stdin.flush()
                answer = process.stdout.readline().strip()
                try:
                    self.seconds[piece] = float(answer)
                except ValueError:
                    self.failures[piece] = answer or "the process that compiled it ended"
                    if not answer:
                        break
        with suppress(OSError):
            process.stdin.close()

    def join(self) -> None:
        """Wait until all is compiled."""
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """End the processes. Pieces that they did not finish are not in the cache."""
        with self._lock:
            self._ended = True
        for process in self._processes:
            process.kill()
            process.wait()
        self.join()


def _serve() -> None:
    """Compile the pieces that are named on standard input, and answer each with the seconds that it took."""
    for line in sys.stdin:
        try:
            answer = str(compile_piece(line.strip()))
        except Exception as error:  # the run will meet it itself, and say so
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        print(answer, flush=True)


def compile_first_run() -> None:
    """Compile the pieces that a run with the squared exponential needs and the cache lacks."""
    for piece in missing(pieces_of_run(_KERNEL)):
        compile_piece(piece)


def compile_pieces(
    pieces: Sequence[str], processes: int | None = None, environment: Mapping[str, str] | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """Compile pieces in several processes; return the seconds of each, and the errors of the others.

    The processes have `environment` instead of this one's.
    """
    helpers = _Helpers(pieces, processes or available_cores(), environment)
    try:
        helpers.join()
    finally:
        helpers.stop()
    return helpers.seconds, helpers.failures


@contextmanager
def helped(kernel: Kernel | None = None, also: Sequence[str] = (), *, enabled: bool = True) -> Iterator[None]:
    """Compile, while the context is open, the pieces that a run with this kernel needs and the cache lacks.

    The kernel is by default the squared exponential, with which most runs begin; `also` names other pieces. Of nested
    contexts only the outermost has helpers, and only if it is `enabled`.
    """
    if not _one_at_a_time.acquire(blocking=False):
        yield
        return
    helpers = None
    try:
        wanted = missing([*also, *pieces_of_run(_KERNEL if kernel is None else kernel)])
        if wanted and enabled:
            within = int(psutil.virtual_memory().available) // (4 * _HELPER_BYTES)
            helpers = _Helpers(wanted, min(_MOST_HELPERS, within, max(1, available_cores() - 1)))
        yield
    finally:
        if helpers is not None:
            helpers.stop()
        _one_at_a_time.release()
