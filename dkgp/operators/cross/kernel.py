"""K(X, Z) between n samples and m prototypes as an operator: products and Grams; and prototypes that lie apart.

Nothing of size n m is ever held: the executor's tasks evaluate entries piece by piece, whenever they are needed. Sums
over the samples are added up on the workers as digits, so that one matrix comes to the coordinator, with the same bits
for any number of workers (`dkgp.operators.exact_sums`). Whitened products are those with F = K_nm L^-T, L L' = K_mm
with a jitter in proportion to rounding (see `dkgp.operators.low_rank.pivots.jitter`): F F' is never above K.

Prototypes come from farthest-first traversal in two levels, and Lloyd's iterations. The distance is the kernel's own,
k(x, x) + k(z, z) - 2 k(x, z), so that length scales count. For a kernel that is a function of a scaled distance it is
that distance itself, which still grows where the kernel is zero. A traversal of all samples would wait for the workers
once for every prototype. So each run of blocks has its own traversal, and another one goes over the samples that these
chose; the radius stays within four times the best one's (two for one level).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.executors.base import RoundTasks, split_evenly
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Features, Kernel, Linear, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.distance import DistanceKernel
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext, apply_columns_task, centre_of
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, BlockedKernelOperator
from dkgp.operators.cross.tasks import Prototypes, Run, gram_task, piece_rows, project_task, residual_task, runs_of
from dkgp.operators.exact_sums import RunSums, exact_sums, group_units


@dataclass(frozen=True)
class CrossGram:
    """Sums over all samples that a sparse model is fitted to."""

    matrix: NDArray[np.float64]  # K_mn D K_nm or, whitened, F' D F: (m, m), Fortran order, or empty
    projected: FloatArray  # K_mn D V, or F' D V: (m, t)
    squares: FloatArray  # squared length of each sample's row of K_nm or F: (n,)


@dataclass(frozen=True)
class CrossResidual:
    """Residual of right-hand sides, r = V - K_nm W."""

    projected: FloatArray  # K_mn D r: (m, t)
    squares: FloatArray  # r' D r: (t,)
    values: FloatArray | None  # r: (n, t)


class CrossKernel:
    """K(X, Z) for an operator's samples X and prototypes Z (m, d), on the scale of the standardised inputs.

    The operator's executor does the work; the operator counts the entries and reports progress. `InputError` for
    prototypes of another shape, none, or values that are not finite.
    """

    def __init__(self, operator: BlockedKernelOperator, prototypes: ArrayLike) -> None:
        self._operator = operator
        self._prototypes = prototypes_of(operator, prototypes)
        self.n, self.m = operator.n, self._prototypes.count

    @property
    def operator(self) -> BlockedKernelOperator:
        """The operator of all samples."""
        return self._operator

    @property
    def prototypes(self) -> FloatArray:
        """Z: (m, d)."""
        return self._prototypes.inputs

    @property
    def lower(self) -> FloatArray:
        """L: (m, m), Fortran order, with zeros above the diagonal.

        `NumericalError` where the prototypes' kernel matrix is zero, overflows, or is not positive definite in spite of
        the jitter.
        """
        with single_threaded_blas():
            try:
                lower = np.asarray(self._prototypes.triangle().lower)
            except np.linalg.LinAlgError as error:
                if not np.any(self._operator.kernel.diagonal(self.prototypes)):
                    raise NumericalError(
                        f"k(x, x) is zero at all of the {self.m:,} basis samples: they are a basis of nothing. Choose "
                        "others, or another kernel"
                    ) from error
                raise NumericalError(
                    f"the kernel matrix of the {self.m:,} basis samples is not positive definite ({error}), for all "
                    "that is added to its diagonal: the kernel is not a covariance"
                ) from error
        if not np.isfinite(lower).all():
            raise NumericalError(
                f"the kernel matrix of the {self.m:,} basis samples overflows: bring inputs that are far out closer"
            )
        return lower

    def kernel_matrix(self) -> FloatArray:
        """K_mm, without any jitter: (m, m)."""
        features = self._prototypes.features()
        return np.asarray(self._operator.double.tile(features, features))

    def inner(self, weights: FloatArray) -> FloatArray:
        """K_mm W, without any jitter: (m, t)."""
        features = self._prototypes.features()
        return self._operator.double.matmat(features, features, weights)

    def columns(self, weights: FloatArray) -> FloatArray:
        """K_nm W for W (m, t): (n, t)."""
        _require(weights, self.m, "weights")
        operator = self._operator
        context, executor = operator.context, operator.executor
        groups = split_evenly(range(context.n_blocks), executor.parallelism)
        arguments = (context, self._prototypes.features(), weights, "double", None)
        parts = operator.submit("kcross", apply_columns_task, arguments, groups).result()
        return np.concatenate([product for product, _ in parts])

    def project(self, vectors: FloatArray) -> FloatArray:
        """K_mn V for V (n, t): (m, t)."""
        _require(vectors, self.n, "vectors")
        total = self.sums("kcrossproject", "projection", project_task, (), {"right": vectors})
        return np.asarray(total.sums[0][..., 0])

    def normal(self, weights: FloatArray, variances: FloatArray | None = None) -> FloatArray:
        """K_mn D K_nm W for W (m, t), D the inverse of `variances` (n,) or I: (m, t). Each entry is evaluated once."""
        return self.residual(weights, None, variances).projected

    def residual(
        self,
        weights: FloatArray,
        right: FloatArray | None,
        variances: FloatArray | None = None,
        *,
        returned: bool = False,
    ) -> CrossResidual:
        """r = V - K_nm W for W (m, t) and V = `right` (n, t), or K_nm W, and its sums; r itself where `returned`."""
        _require(weights, self.m, "weights")
        vectors = self._vectors(right, variances)
        total = self.sums("kresidual", "residual", residual_task, (weights, returned), vectors)
        projected, squares = total.sums
        return CrossResidual(projected[..., 0], squares, total.rows)

    def gram(self, right: FloatArray | None = None, variances: FloatArray | None = None) -> CrossGram:
        """K_mn D K_nm and K_mn D V, D the inverse of `variances` (n,) or I, V = `right` (n, t)."""
        return self._gram("gram", (False, False, True), self._vectors(right, variances))

    def whitened(
        self,
        right: FloatArray | None = None,
        variances: FloatArray | None = None,
        *,
        fitc: bool = False,
        product: bool = True,
    ) -> CrossGram:
        """F' D F, unless that is known (`product`), and F' D V.

        `fitc` adds the diagonal of K - F F' to the `variances`, which it needs.
        """
        vectors = self._vectors(right, variances)
        if fitc:
            if variances is None:
                raise InputError("FITC needs the noise's variance of each sample")
            vectors["prior"] = self._operator.prior()
        self.lower  # noqa: B018  - refuses here, in words, a matrix that no worker could factor
        return self._gram("factor", (True, fitc, product), vectors)

    def _gram(
        self, phase: str, options: tuple[bool, bool, bool], vectors: Mapping[str, FloatArray | None]
    ) -> CrossGram:
        total = self.sums("kcrossgram", phase, gram_task, options, vectors)
        matrices, projected = total.sums
        assert total.rows is not None
        return CrossGram(matrices[0].T if len(matrices) else np.empty((0, 0)), projected[..., 0], total.rows)

    def _vectors(self, right: FloatArray | None, variances: FloatArray | None) -> dict[str, FloatArray | None]:
        if right is not None:
            _require(right, self.n, "right-hand sides")
        if variances is not None and variances.shape != (self.n,):
            raise InputError(f"expected one variance for each of {self.n:,} samples; got shape {variances.shape}")
        return {"right": right, "variances": variances}

    def sums(
        self,
        name: str,
        phase: str,
        task: Callable[..., list[RunSums]],
        arguments: tuple[Any, ...] = (),
        vectors: Mapping[str, FloatArray | None] = MappingProxyType({}),
    ) -> RunSums:
        """Sum the results of a task of the prototypes, the arguments, and runs with their rows of the vectors."""
        return summed(self._operator, name, phase, task, (self._prototypes, *arguments), vectors)


def summed(
    operator: BlockedKernelOperator,
    name: str,
    phase: str,
    task: Callable[..., list[RunSums]],
    arguments: tuple[Any, ...],
    vectors: Mapping[str, FloatArray | None],
) -> RunSums:
    """Sum the results of a task of the arguments and runs over all samples, with their rows of the vectors."""
    return summed_units(operator, name, phase, task, arguments, runs_of(operator.context, vectors))


def summed_units(
    operator: BlockedKernelOperator,
    name: str,
    phase: str,
    task: Callable[..., list[RunSums]],
    arguments: tuple[Any, ...],
    units: Sequence[Any],
    homes: Homes | None = None,
) -> RunSums:
    """Sum the results of a task of the arguments and units, which go to their `homes`, if any."""
    groups, owners = group_units(units, operator.executor, homes)
    with single_threaded_blas():
        tasks = RoundTasks(task, arguments, groups, owners, name)
        return exact_sums(operator, tasks, lambda done, of: operator.tell(phase, done, of, "tasks"))


def prototypes_of(operator: BlockedKernelOperator, inputs: ArrayLike) -> Prototypes:
    """Prototypes (m, d) as tasks see them; `InputError` where they are none."""
    values = np.ascontiguousarray(inputs, dtype=np.float64)
    d = operator.kernel.n_features
    if values.ndim != 2 or values.shape[1] != d or not len(values):
        raise InputError(f"expected basis samples of shape (m, {d}), one at least; got {values.shape}")
    infinite: IndexArray = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(infinite):
        raise InputError(f"basis samples must be finite; got {values[infinite[0]]} in row {infinite[0]}")
    digest = hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()
    return Prototypes(operator.context, values, f"cross-{len(values)}-{digest}")


def _require(array: FloatArray, rows: int, name: str) -> None:
    if array.ndim != 2 or len(array) != rows:
        raise InputError(f"expected {name} of shape ({rows:,}, t); got {array.shape}")


# Runs of blocks with a traversal of their own, at most: the choice depends on them.
MOST_TRAVERSALS = 64
# Share of k(x, x): nearer points count as the same one.
LEAST_DISTANCE = 1e-12
# Candidates of a traversal: so many, or this share of all; and how many prototypes and samples meet at once.
LEAST_CANDIDATES, CANDIDATES_SHARE = 256, 32
# Samples up to which a traversal evaluates all entries at once.
FEW_SAMPLES = 1000
POINTS_AT_ONCE, ROWS_AT_ONCE = 64, 1024
# Where no k(x, x) is above this, all distances are numbers.
LARGEST_PRIOR = 1e300


def farthest_first(operator: BlockedKernelOperator, size: int, seed: int | None = None) -> IndexArray:
    """Samples, at most `size`, each the farthest from those before; fewer where no others are left but duplicates.

    Every run begins with a sample drawn by the seed; without one with its first, so that data alone decide.
    """
    distance, source = distance_kernel(operator.kernel), operator.context.source
    # Products of inputs that lie far from zero would cancel.
    if distance != operator.kernel and centre_of(source) is None:
        room = DEFAULT_COORDINATOR_INPUT_BYTES if operator.holds_inputs else 0
        with BlockedKernelOperator(
            distance, 1.0, source, operator.executor, coordinator_input_bytes=room
        ) as by_distance:
            return _farthest_first(by_distance, size, seed)
    return _farthest_first(operator, size, seed)


def distance_kernel(kernel: Kernel) -> Kernel:
    """The kernel by whose distance samples are apart: x'Gz, with G the inverse squared length scales.

    Any profile of a scaled distance falls with it, so that the order of distances is the same; but far enough out the
    profile is zero, and all points are equally far.
    """
    if isinstance(kernel, DistanceKernel) and any(kernel.gamma):
        return Linear(kernel.gamma, n_features=kernel.n_features)
    return kernel


def _farthest_first(operator: BlockedKernelOperator, size: int, seed: int | None) -> IndexArray:
    groups = [[run] for run in runs_of(operator.context, {}, most=MOST_TRAVERSALS)]
    pending = operator.submit("kfarthest", farthest_task, (operator.context, size, seed), groups)
    by_run = [np.asarray(part, dtype=np.intp) for part in pending.result()]
    union = np.concatenate(by_run)
    if len(by_run) == 1:
        return union
    evaluator, features = operator.double, operator.features(union, "double")
    prior = np.asarray(operator.kernel.diagonal(operator.inputs(union)), dtype=np.float64)
    return union[_traverse(evaluator, [features], prior, size, 0)]


def farthest_task(context: BlockContext, size: int, seed: int | None, runs: list[Run]) -> list[list[int]]:
    """Samples of each run, in the order of the traversal."""
    evaluator, results = context.evaluator("double"), []
    for run in runs:
        parts = [context.block_features(block, "double") for block in run.blocks]
        rows = [context.source.inputs(*context.bounds(block)) for block in run.blocks]
        prior = np.concatenate([np.asarray(context.kernel.diagonal(some), dtype=np.float64) for some in rows])
        first = context.bounds(run.blocks[0])[0]
        place = 0 if seed is None else int(_draws(seed, first).integers(len(prior)))
        results.append([first + place for place in _traverse(evaluator, parts, prior, size, place)])
    return results


def _draws(seed: int, first: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, first])))


@dataclass
class _Candidates:
    """Samples that the next prototype is among, of `members` (c,) in order: their rows by part, and k(x, x).

    - `values` (c,): squared distances to the nearest prototype.
    - `threshold`: all other samples are nearer than that to one.
    """

    members: IndexArray
    rows: list[Features]
    prior: FloatArray
    values: FloatArray
    threshold: float


# Where k(x, x) overflows no distance is a number, and no sample the farthest.
@np.errstate(over="ignore", invalid="ignore")
def _traverse(evaluator: TileEvaluator, parts: list[Features], prior: FloatArray, size: int, place: int) -> list[int]:
    """Places of the samples of a traversal that begins at `place`, in its order.

    Distances to the nearest prototype only fall. So the farthest of a few candidates, those that were farthest when
    they were picked out, is the farthest of all until it is nearer than they were then; only then are distances of the
    others made up for, to all prototypes since at once: the same samples, in the same order, as looking at all of them
    for every one (Minoux 1978 of greedy choices).
    """
    n, places = len(prior), [place]
    if len(parts) == 1 and n <= FEW_SAMPLES:
        products = np.ascontiguousarray(evaluator.tile(parts[0], parts[0]).T)
        return [int(each) for each in _traverse_all(products, prior, min(size, n), place, LEAST_DISTANCE)]
    starts = np.cumsum([0, *(part.n for part in parts)])
    nearest = np.full(n, np.inf)
    few = max(LEAST_CANDIDATES, n // CANDIDATES_SHARE)
    # A NaN is greater than no number, so comparisons below would miss it.
    lazily = few < n and bool(prior.max() < LARGEST_PRIOR)
    near = _Candidates(np.arange(n, dtype=np.intp), parts, prior, nearest.copy(), np.inf if lazily else -np.inf)
    since = 0
    while len(places) < min(size, n):
        place = places[-1]
        part = int(np.searchsorted(starts, place, side="right")) - 1
        point = parts[part].take(np.asarray([place - starts[part]], dtype=np.intp))
        column = np.concatenate([np.asarray(evaluator.tile(some, point))[:, 0] for some in near.rows])
        np.minimum(near.values, near.prior + prior[place] - 2.0 * column, out=near.values)
        near.values[np.searchsorted(near.members, place)] = 0.0
        best = int(np.argmax(near.values))
        if near.values[best] < near.threshold:
            if len(near.members) < n:
                _make_up(evaluator, parts, prior, nearest, np.asarray(places[since:], dtype=np.intp))
            nearest[near.members], since = near.values, len(places)
            near = _farthest(parts, prior, nearest, few)
            best = int(np.argmax(near.values))
        place = int(near.members[best])
        if not near.values[best] > LEAST_DISTANCE * prior[place]:
            break
        places.append(place)
    return places


@cached_njit(nogil=True)
def _traverse_all(products: FloatArray, prior: FloatArray, size: int, place: int, least: float) -> IndexArray:
    """Return the same places from all products (n, n): row j has those of all samples with sample j."""
    n, count = len(prior), 1
    places, nearest = np.empty(size, np.intp), np.full(n, np.inf)
    places[0] = place
    while count < size:
        column, best = products[place], 0
        for i in range(n):
            # The sum is NaN where k(x, x) overflows, and ends the traversal.
            distance = prior[i] + prior[place] - 2.0 * column[i]
            if not distance >= nearest[i]:
                nearest[i] = distance
        nearest[place] = 0.0
        for i in range(n):
            if not nearest[i] <= nearest[best]:
                best = i
                if np.isnan(nearest[i]):
                    break
        if not nearest[best] > least * prior[best]:
            break
        place = best
        places[count] = place
        count += 1
    return places[:count]


def _make_up(
    evaluator: TileEvaluator, parts: list[Features], prior: FloatArray, nearest: FloatArray, places: IndexArray
) -> None:
    """Lower squared distances (n,) to those to further prototypes, in place."""
    starts = np.cumsum([0, *(part.n for part in parts)])
    owner = np.searchsorted(starts, places, side="right") - 1
    for holder in np.unique(owner):
        here = places[owner == holder]
        for first in range(0, len(here), POINTS_AT_ONCE):
            some = here[first : first + POINTS_AT_ONCE]
            points = parts[holder].take(some - starts[holder])
            for part, start in zip(parts, starts, strict=False):
                for begin in range(0, part.n, ROWS_AT_ONCE):
                    end = min(begin + ROWS_AT_ONCE, part.n)
                    where = slice(start + begin, start + end)
                    squares = np.add.outer(prior[some], prior[where])
                    squares -= 2.0 * np.asarray(evaluator.tile(part.slice(begin, end), points)).T
                    np.minimum(nearest[where], squares.min(axis=0), out=nearest[where])


def _farthest(parts: list[Features], prior: FloatArray, nearest: FloatArray, few: int) -> _Candidates:
    """Samples that are as far as the `few`-th farthest from all prototypes, or farther."""
    threshold = float(np.partition(nearest, len(nearest) - few)[len(nearest) - few])
    members = np.flatnonzero(nearest >= threshold)
    starts = np.cumsum([0, *(part.n for part in parts)])
    by_part = [
        part.take(members[(members >= start) & (members < start + part.n)] - start)
        for part, start in zip(parts, starts, strict=False)
    ]
    return _Candidates(members, [rows for rows in by_part if rows.n], prior[members], nearest[members], threshold)


def moved_centres(cross: CrossKernel) -> FloatArray:
    """Means of the samples that are nearest to each prototype, itself where it has none: (m, d). n m entries."""
    totals, counts = cross.sums("klloyd", "centres", lloyd_task).sums
    empty = counts == 0.0
    return np.where(empty[:, None], cross.prototypes, totals / np.where(empty, 1.0, counts)[:, None])


def lloyd_task(prototypes: Prototypes, runs: list[Run]) -> list[RunSums]:
    """Sums of the inputs that are nearest to each prototype, and their number: (m, d) and (m,)."""
    context, m = prototypes.context, prototypes.count
    evaluator, features = context.evaluator("double"), prototypes.features()
    half = 0.5 * np.asarray(context.kernel.diagonal(prototypes.inputs), dtype=np.float64)
    results = []
    for run in runs:
        inputs = np.concatenate([context.block_rows_cached(block).values for block in run.blocks])
        totals, counts = np.zeros((m, inputs.shape[1])), np.zeros(m)
        for rows, where in run.pieces(context, "double", piece_rows(m)):
            nearest = np.argmax(np.asarray(evaluator.tile(features, rows)).T - half, axis=1)
            counts += np.bincount(nearest, minlength=m)
            for feature in range(inputs.shape[1]):
                totals[:, feature] += np.bincount(nearest, weights=inputs[where, feature], minlength=m)
        results.append(RunSums((totals, counts)))
    return results
