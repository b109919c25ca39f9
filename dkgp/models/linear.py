"""Linear regressions with few weights: paths by cardinality, sums over samples, and training.

If the sums of products of all features fit in memory, for each fold, one pass over the samples brings everything that
paths, cross-validation and intercepts need. If they do not, a path of a fixed cardinality takes one pass per feature.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.models.classification.fixed_size.validation import CARDINALITY_RULES, Stop, stop_rule
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import Option
from dkgp.solvers.pursuit.engine import PursuitSettings, pursue
from dkgp.solvers.pursuit.rivals import HomotopyPath, homotopy, matching_pursuit
from dkgp.solvers.pursuit.systems import GramSystem, PursuitSystem, RowSystem

METHODS = {
    "scdp": "sparse conjugate directions pursuit, which adds the feature with the largest gradient and refits all "
    "weights",
    "omp": "orthogonal matching pursuit: another algorithm for the same path",
    "mp": "matching pursuit, which changes one weight per step",
    "lars": "least angle regression",
    "lasso": "least squares with a decreasing penalty on the sum of |weights|",
}
# Steps of matching pursuit, and the share of the first gradient at which it is done: it only ever comes nearer.
MOST_STEPS, SETTLED = 20_000, 1e-6


@dataclass(frozen=True)
class LinearPath:
    """Weights by cardinality."""

    # Features with a weight, by cardinality 0, 1, ...; fewer than that many where two joined, or one left, at once
    supports: list[IndexArray]
    weights: list[FloatArray]
    reason: str  # why it ends, in words

    @property
    def longest(self) -> int:
        """The last cardinality."""
        return len(self.supports) - 1

    def at(self, k: int) -> tuple[IndexArray, FloatArray]:
        """Features and weights of cardinality k; the last of the path where it is shorter."""
        k = min(k, self.longest)
        return self.supports[k], self.weights[k]

    def solution(self, k: int, size: int) -> FloatArray:
        """w of cardinality k with its zeros: (size,)."""
        full = np.zeros(size)
        support, weights = self.at(k)
        full[support] = weights
        return full

    def errors(self, A: FloatArray, b: FloatArray, square: float, of: IndexArray) -> FloatArray:
        """Squared errors y'y - 2 w'b + w'A w by cardinality, of A (q, q) and b (q,) of the features `of`, sorted."""
        errors = np.empty(len(self.supports))
        for k, (support, weights) in enumerate(zip(self.supports, self.weights, strict=True)):
            places = np.searchsorted(of, support)
            quadratic = weights @ A[np.ix_(places, places)] @ weights
            errors[k] = square - 2.0 * (weights @ b[places]) + quadratic
        return np.maximum(errors, 0.0)

    def used(self) -> IndexArray:
        """All features that have a weight somewhere on it, sorted."""
        return np.unique(np.concatenate(self.supports)).astype(np.intp)


def follow(
    method: str, system: PursuitSystem, rhs: FloatArray, most: int, *, candidates: int | None = None, seed: int = 0
) -> LinearPath:
    """Follow a path up to a number of nonzero weights.

    `method` is a key of `METHODS`. `system` and `rhs` are those of `dkgp.solvers.pursue`, with one right-hand side.
    `candidates` and `seed` are for `scdp`; see `PursuitSettings`.

    Raises `InputError` and `MemoryBudgetError`; see `dkgp.solvers.pursue`.
    """
    if method in ("scdp", "omp"):
        path = pursue(system, rhs, PursuitSettings(most, candidates=candidates, seed=seed))
        supports = [path.order[:k] for k in range(len(path) + 1)]
        return LinearPath(supports, [path.weights_at(k)[:, 0] for k in range(len(path) + 1)], path.reason.message)
    if method == "mp":
        least = SETTLED * float(np.abs(system.project(rhs)).max(initial=0.0))
        steps = matching_pursuit(system, rhs, most=most, iterations=MOST_STEPS, tolerance=least)
        count = len(steps.order)
        reason = f"{count:,} features used"
        if steps.iterations and steps.iterations[-1] == MOST_STEPS:
            reason = f"{MOST_STEPS:,} steps taken; the path may end short of its last weights"
        return LinearPath([steps.order[:k] for k in range(count + 1)], [np.empty(0), *steps.weights], reason)
    return _by_cardinality(homotopy(system, rhs, drops=method == "lasso", most=most))


def _by_cardinality(path: HomotopyPath) -> LinearPath:
    """A homotopy by cardinality: of each, the last break before one more feature joins."""
    supports: list[IndexArray] = []
    weights: list[FloatArray] = []
    for at in path:
        some = at.weights != 0.0
        active = len(at.support)  # up to here: a weight that has just come to zero is among them
        while len(supports) < active:  # two joined at once: the last break before them stands for the first
            supports.append(supports[-1])
            weights.append(weights[-1])
        if len(supports) > active:
            del supports[-1], weights[-1]
        supports.append(at.support[some])
        weights.append(at.weights[some])
    return LinearPath(supports, weights, f"{len(supports) - 1:,} features used")


# Share of a feature's sum of squares over all samples: a smaller sum over a part of them is only rounding error.
CONSTANT = 1e-12
# Matrices of the sums' size that the coordinator works with, beside those of the folds.
WORKING = 5
# Copies of a block's rows that a task has at once: as read, standardised, with targets, and a group's.
BLOCKS = 5
# Levels of the summation tree; each level may hold a value.
LEVELS = 7


@dataclass(frozen=True)
class RowSums:
    """Z'Z of rows Z = [1, X, y]."""

    values: FloatArray  # (1 + d + p, 1 + d + p)
    size: int  # features, d
    scale: FloatArray  # (d,): diagonal of X'X over all samples, also where these sums are of a part

    @classmethod
    def of(cls, values: FloatArray, size: int) -> RowSums:
        """Sums over all samples."""
        return cls(values, size, np.diagonal(values)[1 : 1 + size].copy())

    @property
    def n(self) -> int:
        """Samples."""
        return round(float(self.values[0, 0]))

    @property
    def means(self) -> FloatArray:
        """Means of all columns of X and y: (d + p,)."""
        return np.asarray(self.values[0, 1:] / self.values[0, 0])

    def without(self, part: FloatArray) -> RowSums:
        """Sums over the samples that are not in a part, whose sums these are."""
        return RowSums(self.values - part, self.size, self.scale)

    def centred(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """X'X (d, d), X'y (d, p) and the squares y'y (p,) of centred columns.

        A feature that hardly varies here, though it does elsewhere, is left out: its row and column are zero.
        """
        inner = self.values[1:, 1:] - np.outer(self.values[0, 1:], self.means)
        A, b = inner[: self.size, : self.size].copy(), inner[: self.size, self.size :].copy()
        flat = ~(np.diagonal(A) > CONSTANT * self.scale)
        A[flat], A[:, flat], b[flat] = 0.0, 0.0, 0.0
        return A, b, np.maximum(np.diagonal(inner)[self.size :], 0.0)

    def intercept(self, support: IndexArray, weights: FloatArray, target: int) -> float:
        """The intercept that least squares gives to these weights."""
        means = self.means
        return float(means[self.size + target] - weights @ means[support])

    def squared_errors(self, part: FloatArray, path: LinearPath, target: int) -> FloatArray:
        """Sums of squared errors in another part of the samples, by cardinality, of a path fitted to these."""
        errors = np.empty(path.longest + 1)
        for k, (support, weights) in enumerate(zip(path.supports, path.weights, strict=True)):
            # y - w'x - c is a sum of columns of Z, and its square a quadratic form of their sums.
            columns = np.concatenate([[0], 1 + support, [1 + self.size + target]])
            factors = np.concatenate([[-self.intercept(support, weights, target)], -weights, [1.0]])
            errors[k] = factors @ part[np.ix_(columns, columns)] @ factors
        return np.maximum(errors, 0.0)


def sums_bytes(d: int, p: int, groups: int, threads: int) -> int:
    """Bytes in the coordinator's process of sums by group, while `threads` threads add them up and work with them."""
    one = 8 * (1 + d + p) ** 2
    return one * (groups * (threads + LEVELS) + WORKING)


def reading_bytes(chunk_bytes: int, block_bytes: int, threads: int) -> int:
    """Bytes that `threads` threads take to read rows and multiply them."""
    return threads * (2 * chunk_bytes + BLOCKS * block_bytes)


# Features of a path whose end no user has set.
LONGEST = 100

Told = Callable[[str, int, int], None]
"""Called with the phase, how much of it is done, and how much there is"""


RULES = tuple(CARDINALITY_RULES)


def number_or_rule(text: str) -> int | str:
    """Read a number of weights, or a rule that chooses it."""
    if text in RULES:
        return text
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"{text!r} is no number of weights, and not {', '.join(RULES)}.") from None


METHOD = Option(help="; ".join(f"{name}: {text}" for name, text in METHODS.items()) + ".", choices=tuple(METHODS))
CARDINALITY = Option(
    help="Nonzero weights of each target. best: those of the least error on samples that were left out; tenth: the "
    "fewest within a tenth of the folds' standard deviation of it; one-standard-error: the fewest within that.",
    type=number_or_rule,
    metavar="K|" + "|".join(RULES),
    least=1,
)
FOLDS = Option(help="Of cross-validation.", least=2)
HELD_OUT = Option(
    help="Hold out this share of the samples once, instead of folds, and take the smallest error.", metavar="SHARE"
)
LONGEST_PATH = Option(
    help="Largest number of features of a path.  [default: all, or 100 of more]", metavar="K", least=1
)
STOP = Option(
    help="End a path if the last STEPS steps improved the error on held-out samples by less than SHARE of it.",
    type=stop_rule,
    metavar="STEPS,SHARE|none",
    shown="10,0.001",
)
CANDIDATES = Option(
    help="With scdp: number of features, drawn at random, that each step examines; 59 in the paper.  [default: all]",
    metavar="RHO",
    least=1,
)


@documented
@dataclass(frozen=True)
class LinearSettings:
    """Settings of a linear regression with few weights: the method, and how many weights.

    A rule chooses the cardinality by scores on samples that were left out (section 4.5 of the paper); `stop` is its
    rule (38), `candidates` are SCDPP's.
    """

    method: Annotated[str, METHOD] = "scdp"
    cardinality: Annotated[int | str, CARDINALITY] = "tenth"
    folds: Annotated[int, FOLDS] = 10
    held_out: Annotated[float | None, HELD_OUT] = None
    longest: Annotated[int | None, LONGEST_PATH] = None
    stop: Annotated[tuple[int, float] | None, STOP] = (10, 1e-3)
    candidates: Annotated[int | None, CANDIDATES] = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.cardinality, str) and self.cardinality not in CARDINALITY_RULES:
            known = ", ".join(CARDINALITY_RULES)
            raise InputError(f"`cardinality` must be a number or one of {known}; got {self.cardinality!r}")
        if self.held_out is not None and not 0.0 < self.held_out < 1.0:
            raise InputError(f"`held_out` is a share between 0 and 1; got {self.held_out}")
        if self.candidates is not None and self.method != "scdp":
            raise InputError(f"`candidates` are drawn by `method` scdp alone; got {self.method!r}")
        if self.stop is not None:
            Stop(*self.stop)

    @property
    def validates(self) -> bool:
        """True if samples are left out to choose by."""
        return isinstance(self.cardinality, str)

    @property
    def groups(self) -> int:
        """Groups of samples whose sums are taken by themselves."""
        return (2 if self.held_out is not None else self.folds) if self.validates else 1

    def group_of(self, n: int) -> IndexArray:
        """Assign a group to each sample, (n,) int; of two groups the first is the held-out one.

        Raises `InputError`: fewer samples than groups.
        """
        if not self.validates:
            return np.zeros(n, dtype=np.intp)
        order = np.random.default_rng(self.seed).permutation(n)
        groups = np.empty(n, dtype=np.intp)
        if self.held_out is None:
            if n < self.folds:
                raise InputError(f"there are {n} samples for {self.folds} folds; give fewer `folds`")
            groups[order] = np.arange(n) % self.folds
            return groups
        count = round(self.held_out * n)
        if not 1 <= count < n:
            raise InputError(f"`held_out` {self.held_out:g} leaves out {count} of {n} samples; expected some, not all")
        groups[order] = np.arange(n) >= count
        return groups

    def most(self, features: int) -> int:
        """Features of a path at most; `InputError` where more were asked for than there are."""
        name = "longest" if self.validates else "cardinality"
        limit = self.longest if self.validates else self.cardinality
        if limit is None:
            return min(features, LONGEST)
        if int(limit) > features:
            raise InputError(f"there are {features:,} features that vary; got `{name}` {limit}")
        return int(limit)


@dataclass(frozen=True)
class PathOfTarget:
    """A target's path, and the choice of its cardinality."""

    path: LinearPath  # on all samples, standardised
    cardinality: int
    errors: FloatArray  # (k + 1,): mean squared error on the training samples by cardinality
    # (k + 1,): mean squared error on samples that were left out, and its standard deviation over folds; None where the
    # cardinality was given
    scores: FloatArray | None
    spread: FloatArray | None
    reason: str  # why the path ends where it does


@dataclass(frozen=True)
class TrainedLinear:
    """A linear regression with few weights, on the standardised scale."""

    # (d, p), (p,)
    coefficients: FloatArray
    intercept: FloatArray
    targets: list[PathOfTarget]
    passes: int  # times that all samples were gone through
    seconds: float


def train_linear(
    dataset: Dataset,
    settings: LinearSettings,
    executor: BlockExecutor,
    *,
    memory_bytes: int,
    told: Told | None = None,
) -> TrainedLinear:
    """Find the path of each target, and the cardinality to stop at.

    Raises `InputError`: settings that do not fit the data, or data that are not finite; `MemoryBudgetError`: the
    choice does not fit into memory.

    Parameters
    ----------
    dataset : Dataset
        With targets.
    executor : BlockExecutor
        Reads the rows and adds up.
    memory_bytes : int
        Memory limit of sums and columns in one process.
    told : callable, optional
        An error that it raises ends the run.
    """
    began = time.perf_counter()
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    group_of, most = settings.group_of(n), settings.most(d)
    y = dataset.all_targets()
    gathering, following = (_part(told, phase) for phase in ("sums over samples", "passes"))
    system = RowSystem(dataset, executor, told=gathering)
    threads, chunk = executor.threads_per_process, 8 * dataset.chunk_rows * len(dataset.raw_feature_names)
    reading = reading_bytes(chunk, system.block_bytes, threads)
    needed = sums_bytes(d, p, settings.groups, threads) + reading
    if needed > memory_bytes:
        if settings.validates:
            raise MemoryBudgetError(
                f"{_megabytes(needed, memory_bytes)} for sums of products of {d:,} features for "
                f"{'held-out samples' if settings.held_out is not None else f'{settings.folds} folds'}, "
                f"{reading / 2**20:,.0f} MiB of it to read rows. Give fewer `folds` or `held_out`, or a number for "
                "`cardinality`, which takes a pass over the samples a feature instead"
            )
        needed = 2 * 8 * most * (d + most) + reading
        if needed > memory_bytes:
            raise MemoryBudgetError(
                f"{_megabytes(needed, memory_bytes)} for {most:,} columns of {d:,} numbers, {reading / 2**20:,.0f} MiB "
                "of it to read rows. Ask for a smaller `cardinality`, use fewer threads, or ingest with smaller chunks"
            )
        return _by_passes(dataset, y, settings, most, executor, following, began)
    by_group = system.sums_by_group(y, group_of, settings.groups)
    sums = RowSums.of(by_group.sum(axis=0) if len(by_group) > 1 else by_group[0], d)
    scored = _validated(sums, by_group, settings, most, _part(told, "paths of folds"))
    A, b, squares = sums.centred()
    paths = []
    for target in range(p):
        path = _follow(settings, GramSystem(A), b[:, target], most)
        used = path.used()
        errors = path.errors(A[np.ix_(used, used)], b[used, target], float(squares[target]), used) / n
        paths.append(_cut(path, errors, None if scored is None else scored[target], settings))
    return _trained(paths, d, sums.intercept, system.passes, began)


def _by_passes(
    dataset: Dataset,
    y: FloatArray,
    settings: LinearSettings,
    most: int,
    executor: BlockExecutor,
    progress: Callable[[int, int], None] | None,
    began: float,
) -> TrainedLinear:
    """A path of a given cardinality whose columns come one by one."""
    means, offset = RowSystem(dataset, executor, told=progress).means(), y.mean(axis=0)
    system = RowSystem(dataset, executor, shift=means, told=progress)
    paths = []
    try:
        for target in range(y.shape[1]):
            rhs = y[:, [target]] - offset[target]
            path = _follow(settings, system, rhs, most)
            used = path.used()
            A, b = system.columns(used)[used], system.project(rhs)[used, 0]
            errors = path.errors(A, b, float(np.sum(rhs**2)), used) / dataset.n_samples
            paths.append(_cut(path, errors, None, settings))
    finally:
        system.close()

    def intercept(support: IndexArray, weights: FloatArray, target: int) -> float:
        return float(offset[target] - weights @ means[support])

    return _trained(paths, dataset.n_features, intercept, 1 + system.passes, began)


def _follow(settings: LinearSettings, system: Any, rhs: FloatArray, most: int) -> LinearPath:
    return follow(settings.method, system, rhs, most, candidates=settings.candidates, seed=settings.seed)


def _validated(
    sums: RowSums,
    by_group: FloatArray,
    settings: LinearSettings,
    most: int,
    progress: Callable[[int, int], None] | None,
) -> list[tuple[FloatArray, FloatArray]] | None:
    """Mean squared errors of samples left out by cardinality, and their deviation over folds, for each target."""
    if not settings.validates:
        return None
    parts = by_group[:1] if settings.held_out is not None else by_group
    p = sums.values.shape[0] - 1 - sums.size
    squared = np.empty((p, len(parts), most + 1))
    for number, part in enumerate(parts):
        rest = sums.without(part)
        A, b, _ = rest.centred()
        for target in range(p):
            path = _follow(settings, GramSystem(A), b[:, target], most)
            errors = rest.squared_errors(part, path, target)
            # A path that has ended keeps its last error.
            squared[target, number] = errors[np.minimum(np.arange(most + 1), path.longest)]
        if progress is not None:
            progress(number + 1, len(parts))
    counts = parts[:, 0, 0]
    spread = (squared / counts[:, None]).std(axis=1, ddof=min(1, len(parts) - 1))
    scores = squared.sum(axis=1) / counts.sum()
    return [(scores[target], spread[target]) for target in range(p)]


def _cut(
    path: LinearPath, errors: FloatArray, scored: tuple[FloatArray, FloatArray] | None, settings: LinearSettings
) -> PathOfTarget:
    """Cut a path where rule (38) ends it, and choose the cardinality."""
    if scored is None:
        return PathOfTarget(path, path.longest, errors, None, None, path.reason)
    last, reason = path.longest, path.reason
    scores, spread = (values[: last + 1] for values in scored)
    end = None if settings.stop is None else Stop(*settings.stop).first(scores)
    if settings.stop is not None and end is not None and end < last:
        last = end
        reason = f"the score hardly changes, or only rises: rule (38) with {settings.stop[0]} steps"
    scores, spread = scores[: last + 1], spread[: last + 1]
    path = LinearPath(path.supports[: last + 1], path.weights[: last + 1], reason)
    best = int(np.argmin(scores))
    share = CARDINALITY_RULES[str(settings.cardinality)](settings.folds)
    cardinality = int(np.argmax(scores[: best + 1] <= scores[best] + share * spread[best]))
    return PathOfTarget(path, cardinality, errors[: last + 1], scores, spread, reason)


def _trained(
    paths: list[PathOfTarget],
    d: int,
    intercept_of: Callable[[IndexArray, FloatArray, int], float],
    passes: int,
    began: float,
) -> TrainedLinear:
    coefficients = np.column_stack([cut.path.solution(cut.cardinality, d) for cut in paths])
    intercept = [intercept_of(*cut.path.at(cut.cardinality), target) for target, cut in enumerate(paths)]
    return TrainedLinear(coefficients, np.asarray(intercept), paths, passes, time.perf_counter() - began)


def _megabytes(needed: int, budget: int) -> str:
    return f"{needed / 2**20:,.0f} MiB, more than the {budget / 2**20:,.0f} MiB that there may be, are needed"


def _part(told: Told | None, phase: str) -> Callable[[int, int], None] | None:
    return None if told is None else lambda done, of: told(phase, done, of)
