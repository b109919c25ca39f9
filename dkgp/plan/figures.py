"""Figures of this machine that a plan is made from, measured in a few seconds or read back.

They are seconds of one thread of an idle machine, by kind of work, taken with the very functions that training runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from timeit import repeat, timeit
from typing import Any

import numpy as np
from scipy.optimize import nnls

from dkgp.cluster import BlockExecutor
from dkgp.cluster.threads import available_cores, single_threaded_blas
from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.block_descent.recursions import advance_gradient, advance_solution
from dkgp.solvers.block_descent.selection import GreedySelection
from dkgp.solvers.block_descent.subproblem import Subproblem
from dkgp.solvers.measures import measures

__all__ = ["MachineFigures", "measure_machine", "measure_speedups"]

UPDATE_SHAPE = (8192, 1000)
PAIR_ROWS = 2048
SELECTION_SIZES = (250, 500, 1000, 2000)
SELECTION_SAMPLES = 16_384
CANDIDATES = 60
# A first solution is refined twice; over a whole run (Friedman1, n = 20,000) two and a half times.
REFINEMENTS_OF_A_RUN = 1.25
VECTOR_SAMPLES = 131_072
STORE_ROWS = 16_384
LEAST_SECONDS = 0.05
REPEATS = 3
# Speed-ups are measured at doubling numbers of threads up to here, and carried on at the last one's rate beyond.
MOST_MEASURED_THREADS = 16


@dataclass(frozen=True)
class MachineFigures:
    """Costs on one machine, for one number of features and targets; in seconds of one thread unless said otherwise.

    Attributes
    ----------
    d, p
        What they hold for.
    entry_seconds, entry_double_seconds
        One kernel entry of an update, float32 and float64.
    pair_seconds
        One pair of samples of a full float64 pass (both products).
    candidate_seconds
        Coefficients of m^2 / 2 and m in the time to score one draw of candidates for a whole block of m.
    dense_seconds
        Coefficients of m, m^2 and m^3 in the time of a block's dense algebra while it is being chosen.
    solve_seconds
        Coefficients of m and m^2 in the time of a block's last, refined solution.
    vector_seconds
        One element of an n-vector, read and written once.
    read_seconds
        One value of X read from the store, standardised and prepared.
    speedups
        Speed of 1, 2, ... threads together, in units of one.
    """

    d: int
    p: int
    entry_seconds: float
    entry_double_seconds: float
    pair_seconds: float
    candidate_seconds: tuple[float, float]
    dense_seconds: tuple[float, float, float]
    solve_seconds: tuple[float, float]
    vector_seconds: float
    read_seconds: float
    speedups: tuple[float, ...]

    def candidates(self, m: int) -> float:
        """Seconds to score one candidate for each variable of a block of m."""
        return self.candidate_seconds[0] * m * m / 2.0 + self.candidate_seconds[1] * m

    def dense(self, m: float) -> float:
        """Seconds of dense algebra until a block has grown to m."""
        return self.dense_seconds[0] * m + self.dense_seconds[1] * m**2 + self.dense_seconds[2] * m**3

    def solve(self, m: int) -> float:
        """Seconds of a block's last solution."""
        return self.solve_seconds[0] * m + self.solve_seconds[1] * m**2

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MachineFigures:
        """Read what `to_json` wrote.

        Raises
        ------
        InputError
            Fields missing, or not numbers above zero.
        """
        try:
            values = {field.name: document[field.name] for field in fields(cls)}
            for name, value in values.items():
                if name in ("d", "p"):
                    continue
                # Of several coefficients some may be nothing; a single figure, or a speed, may not.
                series = isinstance(value, list | tuple)
                numbers = [float(item) for item in value] if series else [float(value)]
                strict = not series or name == "speedups"
                if not numbers or any(not np.isfinite(item) or item < 0 or (strict and item == 0) for item in numbers):
                    raise ValueError(f"{name} is {value!r}")
                values[name] = tuple(numbers) if series else numbers[0]
            return cls(**{**values, "d": int(values["d"]), "p": int(values["p"])})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"these are no figures of a machine ({error}); measure them anew") from None


def measure_machine(dataset: Dataset, kernel: Kernel, noise_variance: float, executor: BlockExecutor) -> MachineFigures:
    """Measure everything but messages, in two or three seconds.

    Parameters
    ----------
    dataset : Dataset
        Gives d, p and the store that is read from.
    executor : BlockExecutor
        Of this process; rounds are not run on it, it only completes an operator.
    """
    d, p = kernel.n_features, max(1, dataset.n_targets)
    X = np.random.default_rng(0).standard_normal((max(sum(UPDATE_SHAPE), 2 * PAIR_ROWS), d))
    # How long a block's algebra takes depends on how alike the samples are: these are the data's own.
    few = min(dataset.n_samples, SELECTION_SAMPLES)
    gradient = -dataset.targets(0, few)
    with single_threaded_blas():
        with BlockedKernelOperator(kernel, noise_variance, ArrayInputs(dataset.inputs(0, few)), executor) as operator:
            candidates, dense, solve = _measure_selection(operator, gradient)
        return MachineFigures(
            d=d,
            p=p,
            entry_seconds=_measure_update(kernel, X, p, "single"),
            entry_double_seconds=_measure_update(kernel, X, p, "double"),
            pair_seconds=_measure_pair(kernel, X, p),
            candidate_seconds=candidates,
            dense_seconds=dense,
            solve_seconds=solve,
            vector_seconds=_measure_vectors(p),
            read_seconds=_measure_store(dataset, kernel),
            speedups=measure_speedups(kernel),
        )


def _seconds(run: Callable[[], Any]) -> float:
    """Seconds of a call on an idle machine: the least of a few repeats, each long enough to be timed."""
    run()  # compiled, loaded, in the cache
    loops = max(1, round(LEAST_SECONDS / max(timeit(run, number=1), 1e-9)))
    return min(repeat(run, number=loops, repeat=REPEATS)) / loops


def _measure_update(kernel: Kernel, X: FloatArray, p: int, precision: Precision) -> float:
    evaluator, (rows, columns) = TileEvaluator(kernel, precision), UPDATE_SHAPE
    left, right = evaluator.prepare(X[:rows]), evaluator.prepare(X[-columns:])
    weights = np.ones((columns, p))
    return _seconds(lambda: evaluator.matmat(left, right, weights)) / (rows * columns)


def _measure_pair(kernel: Kernel, X: FloatArray, p: int) -> float:
    evaluator = TileEvaluator(kernel, "double")
    left, right = evaluator.prepare(X[:PAIR_ROWS]), evaluator.prepare(X[-PAIR_ROWS:])
    weights = np.ones((PAIR_ROWS, p))
    return _seconds(lambda: evaluator.pair(left, right, weights, weights)) / PAIR_ROWS**2


class _Known:
    """A gradient that is at hand."""

    def __init__(self, gradient: FloatArray) -> None:
        self._gradient = gradient

    def at(self, indices: IndexArray, features: object) -> FloatArray:
        return self._gradient[indices]

    def everywhere(self) -> FloatArray:
        return self._gradient


def _measure_selection(
    operator: BlockedKernelOperator, gradient: FloatArray
) -> tuple[tuple[float, float], tuple[float, float, float], tuple[float, float]]:
    """Choose blocks of a few sizes with many candidates and with one, and solve for them; fit how each grows."""
    view, p = _Known(gradient), gradient.shape[1]
    chosen = sorted({min(size, max(1, operator.n // 2)) for size in SELECTION_SIZES})
    times: dict[str, list[float]] = {"candidates": [], "dense": [], "solve": []}

    def choose(size: int, candidates: int, iteration: int) -> float:
        subproblem.reset()
        began = time.perf_counter()
        selection = GreedySelection(candidates=candidates, threads=1)
        selection.fill(subproblem, operator, view, size, seed=0, iteration=iteration)
        return time.perf_counter() - began

    for size in chosen:
        subproblem = Subproblem(operator, size, p)
        choose(size, CANDIDATES, 0)  # compiled code is loaded, memory is there
        one, many = (
            min(choose(size, candidates, iteration) for iteration in range(REPEATS)) for candidates in (1, CANDIDATES)
        )
        each = max(many - one, 0.0) / (CANDIDATES - 1)
        times["candidates"].append(each)
        times["dense"].append(max(one - each, 0.0))
        times["solve"].append(REFINEMENTS_OF_A_RUN * _seconds(subproblem.solve))
    sizes = np.asarray(chosen, dtype=np.float64)
    # A block's cost grows as its square at least: so weighed, all sizes count about alike and none can be nothing.
    (c1, c2), (d1, d2, d3), (s1, s2) = (
        _fit(columns, np.asarray(times[name]), sizes**2)
        for name, columns in (
            ("candidates", [sizes**2 / 2.0, sizes]),
            ("dense", [sizes, sizes**2, sizes**3]),
            ("solve", [sizes, sizes**2]),
        )
    )
    return (c1, c2), (d1, d2, d3), (s1, s2)


def _fit(columns: Sequence[FloatArray], seconds: FloatArray, scale: FloatArray) -> list[float]:
    """Fit coefficients, none negative, to seconds in units of `scale`."""
    coefficients, _ = nnls(np.stack(columns, axis=1) / scale[:, None], seconds / scale)
    return [float(value) for value in coefficients]


def _measure_vectors(p: int) -> float:
    """Seconds of a round's n-vectors at the coordinator, per vector and element, with a memory of five."""
    memory, n = 5, VECTOR_SAMPLES
    alpha, gradient, rhs = (np.zeros((n, p)) for _ in range(3))
    directions, images = np.zeros((memory + 1, n, p)), np.zeros((memory + 1, n, p))
    indices, delta = np.arange(1000, dtype=np.intp), np.ones((1000, p))
    used, coefficients, step = np.arange(memory, dtype=np.intp), np.full((memory, p), 0.1), np.ones(p)

    def run() -> None:
        advance_solution(alpha, indices, delta, directions, used, coefficients, step, directions[memory])
        advance_gradient(gradient, gradient, images, used, coefficients, step, images[memory])
        measures(alpha, gradient, rhs)

    return _seconds(run) / (2 * (memory + 3) * n * p)


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
    alone = _seconds(lambda: evaluator.matmat(rows, rows, weights))
    loops = max(1, round(LEAST_SECONDS / alone))

    def together(threads: int) -> float:
        def work(_: int) -> None:
            for _ in range(loops):
                evaluator.matmat(rows, rows, weights)

        with ThreadPoolExecutor(threads) as pool:
            times = repeat(lambda: list(pool.map(work, range(threads))), number=1, repeat=REPEATS)
        return threads * loops * alone / min(times)

    counts = sorted({1, *(2**power for power in range(1, 5) if 2**power < cores), min(cores, MOST_MEASURED_THREADS)})
    speeds = [1.0, *(max(1.0, min(float(count), together(count))) for count in counts[1:])]
    speeds = [float(value) for value in np.maximum.accumulate(speeds)]
    found = np.interp(np.arange(1, min(cores, counts[-1]) + 1), counts, speeds).tolist()
    found += [found[-1] * count / len(found) for count in range(len(found) + 1, cores + 1)]
    return tuple(float(value) for value in found)
