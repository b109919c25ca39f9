"""A block-Vecchia factor of Kbar with a low-rank part, spread over the workers; applied, it preconditions.

Samples lie in kd order, cut into leaves; a leaf G is conditioned on its halo J, the samples of lower order that are
nearest to any of its own. With F the partial Cholesky factor on R landmarks (none where R = 0), I = (J, G) and L L' =
(Kbar - F F')_II, the leaf's rows of T are [-L22^-1 L21 L11^-1, L22^-1], and with V = T F

    M^-1 = T' (I - V (I + V'V)^-1 V') T.

T'T is the inverse of a Gaussian process in which a leaf depends on its halo alone among all samples before it
(Vecchia), so M is Kbar where halos hold all earlier samples. T and V are rounded to float32, and with these M is
symmetric positive definite; I + V'V is float64, at the coordinator, which otherwise holds n-vectors only.

Tasks on bundles of leaves are stateless functions of the recipe, the arrays sent for each bundle, and the bundles.
Vectors come by bundle, its samples' rows alone, or whole where the task runs in the coordinator's process.

References ---------- A. Vecchia, Estimation and model identification for continuous spatial processes (1988). J.
Guinness, Permutation and grouping methods for sharpening Gaussian process approximations (2018): by blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockTask, HereExecutor, Rounds
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray, Variances
from dkgp.operators.blas import lapack
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.pivots import regularised_factor
from dkgp.operators.vecchia.halos import leaf_count
from dkgp.operators.vecchia.leaves import STRIP_ROWS, Bundle, Leaves, OpenBundle, embedding_landmarks
from dkgp.operators.vecchia.products import backward, forward, sweep

Rows: TypeAlias = FloatArray | Mapping[int, FloatArray]
"""Rows of an n-vector: whole, or by bundle those that it needs"""


@needs_one_arithmetic
def order_task(leaves: Leaves, bundles: list[int]) -> list[None]:
    """Bring the samples into kd order."""
    leaves.points()
    return [None for _ in bundles]


@needs_one_arithmetic
def halo_task(leaves: Leaves, bundles: list[int]) -> list[tuple[NDArray[np.int32], int]]:
    """Samples that each bundle needs, and of how many of its own the halo may not be the nearest."""
    return [(bundle.samples, bundle.unproven) for bundle in map(leaves.bundle, bundles)]


@needs_one_arithmetic
def build_task(leaves: Leaves, noise: Variances | Rows, bundles: list[int]) -> list[tuple[int, int, FloatArray, float]]:
    """Make the leaves of each bundle: bytes in memory, bytes on disk, V'V (R, R), and the part of log det T."""
    results = []
    for number in bundles:
        opened = _opened(leaves, number, noise)
        gram = np.zeros((leaves.rank, leaves.rank))
        memory = disk = 0
        log_determinant = 0.0
        for place in range(len(opened.bundle.places)):
            leaf = opened.leaf(place)
            memory, disk = memory + leaf.nbytes * (not leaf.spilled), disk + leaf.nbytes * leaf.spilled
            projected = leaf.projected[:, : leaf.rank].astype(np.float64)
            gram += projected.T @ projected
            log_determinant += leaf.log_determinant
        results.append((memory, disk, gram, log_determinant))
    return results


@needs_one_arithmetic
def sweep_task(leaves: Leaves, vectors: Rows, noise: Variances | Rows, bundles: list[int]) -> list[FloatArray]:
    """T' T r of the leaves of each bundle: rows for its samples (u, t)."""
    results = []
    for number in bundles:
        opened = _opened(leaves, number, noise)
        rows = _rows_of(vectors, number, opened.bundle)
        out = np.zeros(rows.shape, rows.dtype)
        for place, places in enumerate(opened.bundle.places):
            out[places] += sweep(opened.leaf(place), rows[places])
        results.append(out)
    return results


@needs_one_arithmetic
def forward_task(
    leaves: Leaves, vectors: Rows, noise: Variances | Rows, bundles: list[int]
) -> list[tuple[FloatArray, FloatArray]]:
    """q = T r for the own samples of each bundle, and V' q: (own, t) and (R, t)."""
    results = []
    for number in bundles:
        opened = _opened(leaves, number, noise)
        rows = _rows_of(vectors, number, opened.bundle)
        images, total = [], np.zeros((leaves.rank, rows.shape[1]))
        for place, places in enumerate(opened.bundle.places):
            image, projected = forward(opened.leaf(place), rows[places])
            images.append(image)
            total += projected
        results.append((np.concatenate(images), total))
    return results


@needs_one_arithmetic
def probe_task(leaves: Leaves, count: int, seed: int, noise: Variances | Rows, bundles: list[int]) -> list[FloatArray]:
    """T' z of the leaves of each bundle, for `count` columns z of random signs: rows for its samples (u, count)."""
    results = []
    for number in bundles:
        opened, rng = _opened(leaves, number, noise), np.random.default_rng([seed, 6, number])
        out = np.zeros((len(opened.bundle.samples), count))
        for place, places in enumerate(opened.bundle.places):
            signs = rng.choice(np.array([-1.0, 1.0]), (len(places) - opened.bundle.halos[place], count))
            out[places] += backward(opened.leaf(place), signs, np.zeros((leaves.rank, count)))
        results.append(out)
    return results


@needs_one_arithmetic
def backward_task(
    leaves: Leaves,
    images: Mapping[int, FloatArray],
    weights: FloatArray,
    noise: Variances | Rows,
    bundles: list[int],
) -> list[FloatArray]:
    """T' (q - V w) of the leaves of each bundle: rows for its samples (u, t)."""
    results = []
    for number in bundles:
        opened, image = _opened(leaves, number, noise), images[number]
        out, start = np.zeros((len(opened.bundle.samples), image.shape[1])), 0
        for place, places in enumerate(opened.bundle.places):
            stop = start + len(places) - opened.bundle.halos[place]
            out[places] += backward(opened.leaf(place), image[start:stop], weights)
            start = stop
        results.append(out)
    return results


def _opened(leaves: Leaves, number: int, noise: Variances | Rows) -> OpenBundle:
    return leaves.opened(number, noise if isinstance(noise, float) else _rows_of(noise, number, leaves.bundle(number)))


def _rows_of(vectors: Rows, number: int, bundle: Bundle) -> FloatArray:
    return vectors[number] if isinstance(vectors, Mapping) else vectors[bundle.samples]


# Vectors that are multiplied at once: enough for BLAS to be quick; fewer where results on their way would take more.
VECTORS_AT_ONCE = 128
BYTES_AT_ONCE = 2**28
# Bundles of a task that builds, at most; fewer where those take more operations, a second or two, or where all tasks
# together bring more bytes of matrices.
MOST_BUNDLES, TASK_OPERATIONS, LOT_BYTES = 4, 4e10, 2**26


@dataclass(frozen=True)
class VecchiaRecipe:
    """Everything that M^-1 can be made of again, anywhere; picklable."""

    leaves: Leaves
    noise: Variances
    lower: FloatArray  # Cholesky factor of I + V'V: (R, R)

    def local(self, threads: int) -> VecchiaProduct:
        """M^-1 in this process, to the same bits; leaves that the cache lacks are made at the first application."""
        return VecchiaProduct(self, HereExecutor(threads), lambda: {"": threads}, shares_memory=True)


class VecchiaProduct:
    """M^-1; `rounds`, an operator or threads of this process, runs its tasks.

    `workers` returns threads by worker, now; where the process `shares_memory`, tasks take references.
    """

    second_step = math.inf  # of conjugate gradients, beside the first: nothing tells its length

    def __init__(
        self, recipe: VecchiaRecipe, rounds: Rounds, workers: Callable[[], Mapping[str, int]], *, shares_memory: bool
    ) -> None:
        self.recipe = recipe
        self._rounds, self._workers, self._shares_memory = rounds, workers, shares_memory
        self._homes = Homes(recipe.leaves.n_bundles)
        self._samples: list[NDArray[np.int32]] = []

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return self.recipe.leaves.rank

    def apply(self, residual: NDArray[Any]) -> NDArray[Any]:
        """M^-1 r for r (n, t), a new array; in float32 for such an r, where there are no landmarks."""
        out = np.zeros(residual.shape, np.float64 if self.rank else residual.dtype)
        with single_threaded_blas():
            self._find_halos()
            united = sum(len(samples) for samples in self._samples)
            step = max(1, min(VECTORS_AT_ONCE, BYTES_AT_ONCE // (out.itemsize * united)))
            for first in range(0, residual.shape[1], step):
                columns = slice(first, first + step)
                self._apply(np.ascontiguousarray(residual[:, columns], dtype=out.dtype), out[:, columns])
        return out

    def _apply(self, residual: NDArray[Any], out: NDArray[Any]) -> None:
        leaves, noise = self.recipe.leaves, self.recipe.noise

        def arguments(bundles: list[int]) -> tuple[Any, ...]:
            return leaves, self._rows(residual, bundles), self._rows(noise, bundles)

        if not self.rank:
            parts = self._results("kvsweep", sweep_task, arguments)
        else:
            forward = self._results("kvforward", forward_task, arguments)
            weights = np.zeros((self.rank, residual.shape[1]), order="F")
            for _, projected in forward:
                weights += projected
            lapack("potrs", b"L", self.rank, weights.shape[1], self.recipe.lower, self.rank, weights, self.rank)
            images = {number: image for number, (image, _) in enumerate(forward)}
            parts = self._results(
                "kvbackward",
                backward_task,
                lambda bundles: (leaves, {k: images[k] for k in bundles}, weights, self._rows(noise, bundles)),
            )
        for samples, part in zip(self._samples, parts, strict=True):
            out[samples] += part

    def _results(self, name: str, task: BlockTask, arguments: Callable[[list[int]], tuple[Any, ...]]) -> list[Any]:
        """One result of each bundle, in their order."""
        return self._begin(name, task, arguments, range(self.recipe.leaves.n_bundles))()

    def _begin(
        self, name: str, task: BlockTask, arguments: Callable[[list[int]], tuple[Any, ...]], bundles: Sequence[int]
    ) -> Callable[[], list[Any]]:
        """Start tasks on bundles, each on the worker that has its leaves; the function returned waits for results."""
        groups, owners = self._homes.groups(self._workers(), bundles)
        if self._shares_memory:
            pending = [self._rounds.submit(name, task, arguments(list(bundles)), groups, owners)]
        else:
            pending = [
                self._rounds.submit(name, task, arguments(group), [group], [owner])
                for group, owner in zip(groups, owners, strict=True)
            ]

        def results() -> list[Any]:
            results = [result for round_ in pending for result in round_.result()]
            by_bundle = dict(zip((bundle for group in groups for bundle in group), results, strict=True))
            return [by_bundle[bundle] for bundle in bundles]

        return results

    def _rows(self, values: Any, bundles: list[int]) -> Any:
        """Rows of an n-vector for tasks on some bundles: their samples', or all where that costs nothing."""
        if self._shares_memory or isinstance(values, float):
            return values
        return {number: values[self._samples[number]] for number in bundles}

    def _find_halos(self) -> None:
        if not self._samples:
            results = self._results("kvhalo", halo_task, lambda bundles: (self.recipe.leaves,))
            self._samples = [samples for samples, _ in results]


class VecchiaFactor(VecchiaProduct):
    """The factor of an operator's Kbar, built by its executor's workers, a few bundles of leaves a task.

    At most `halo` samples condition a leaf, and at most `leaf` are in it; F is built on the samples `landmarks` (R,),
    none by default. `memory_bytes` and `disk_bytes` are the leaves', of all workers together.
    """

    def __init__(
        self, operator: BlockedKernelOperator, halo: int, leaf: int, landmarks: IndexArray | None = None
    ) -> None:
        if halo < 0 or leaf < 1:
            raise InputError(f"a factor needs a halo of at least 0 and a leaf of at least 1; got {halo} and {leaf}")
        executor = operator.executor
        executor.require_one_arithmetic()
        with single_threaded_blas():
            leaves = _leaves(operator, min(halo, operator.n), min(leaf, operator.n), landmarks)
            self.memory_bytes = self.disk_bytes = 0
            self._log_determinant = 0.0  # of T
            recipe = VecchiaRecipe(leaves, operator.noise, np.zeros((leaves.rank, leaves.rank), order="F"))
            super().__init__(recipe, operator, lambda: executor.workers, shares_memory=executor.shares_memory)
            self._build(operator.tell)

    @property
    def nbytes(self) -> int:
        """Bytes that the leaves take in memory and on disk, in all workers together."""
        return self.memory_bytes + self.disk_bytes

    @property
    def log_determinant(self) -> float:
        """Return log det M."""
        return 2.0 * (float(np.log(self.recipe.lower.diagonal()).sum()) - self._log_determinant)

    def probes(self, count: int, seed: int) -> FloatArray:
        """T' z for columns z of independent random signs, (n, count), the same for the same seed.

        Without landmarks M^-1 = T' T, so that these are M^-1/2 z for one root of M^-1.
        """
        out = np.zeros((self.recipe.leaves.context.n, count))
        with single_threaded_blas():
            self._find_halos()
            parts = self._results(
                "kvprobe",
                probe_task,
                lambda bundles: (self.recipe.leaves, count, seed, self._rows(self.recipe.noise, bundles)),
            )
            for samples, part in zip(self._samples, parts, strict=True):
                out[samples] += part
        return out

    def _build(self, tell: Callable[[str, int, int, str], None]) -> None:
        leaves, lower = self.recipe.leaves, self.recipe.lower
        tell("order", 0, leaves.context.n, "samples")
        # Each worker brings them into order for itself, and all do at once: none is waited for by the others later.
        workers = list(self._workers())
        self._rounds.submit("kvorder", order_task, (leaves,), [[0] for _ in workers], workers).result()
        tell("halos", 0, leaves.n_leaves, "leaves")
        self._find_halos()

        def arguments(bundles: list[int]) -> tuple[Any, ...]:
            return leaves, self._rows(self.recipe.noise, bundles)

        # Bundles in two lots: workers are busy with one while the other comes back, a matrix of each.
        waiting: deque[Callable[[], list[Any]]] = deque()
        start = done = 0
        while start < leaves.n_bundles or waiting:
            while start < leaves.n_bundles and len(waiting) < 2:
                lot = range(start, min(start + self._bundles_at_once(), leaves.n_bundles))
                waiting.append(self._begin("kvbuild", build_task, arguments, lot))
                start = lot.stop
            for memory, disk, gram, log_determinant in waiting.popleft()():
                self._log_determinant += log_determinant
                self.memory_bytes += memory
                self.disk_bytes += disk
                lower += gram
                done += leaves.leaves_by_bundle
            tell("factor", min(done, leaves.n_leaves), leaves.n_leaves, "leaves")
        if leaves.rank:
            lower[...] = regularised_factor(lower, 1.0)

    def _bundles_at_once(self) -> int:
        """Bundles of a lot: one for each thread, of worker processes a few where they are done soon and bring little.

        A task costs the coordinator 4 ms of Python, on cores that workers may share.
        """
        leaves, threads = self.recipe.leaves, sum(self._workers().values())
        if self._shares_memory:
            return threads
        operations = leaves.leaves_by_bundle * (leaves.halo + leaves.leaf) ** 3 / 3
        matrices = LOT_BYTES / (8 * threads * max(1, leaves.rank) ** 2)
        return threads * max(1, int(min(MOST_BUNDLES, TASK_OPERATIONS / operations, matrices)))


def _leaves(operator: BlockedKernelOperator, halo: int, leaf: int, landmarks: IndexArray | None) -> Leaves:
    context = operator.context
    inputs = np.zeros((0, context.kernel.n_features))
    if landmarks is not None and len(landmarks):
        inputs = operator.inputs(landmarks)
    # One run may have factors of several noises.
    digest = hashlib.sha256(inputs.tobytes() + np.asarray(operator.noise).tobytes()).hexdigest()[:12]
    return Leaves(context, halo, leaf, inputs, embedding_landmarks(operator), f"{halo}-{leaf}-{len(inputs)}-{digest}")


@dataclass(frozen=True)
class VecchiaBytes:
    """Projected bytes of a factor."""

    kept: int  # leaves, of all workers together; on disk as far as their memory does not suffice
    making: int  # of each thread of a worker: a task that makes a leaf, at its peak
    points: int  # points of all samples and their order, in each worker's process while leaves are made
    coordinator: int  # vectors in pieces on their way, lists of samples, and I + V'V

    def in_process(self, threads: int) -> int:
        """Bytes of one process that does everything itself, with so many threads."""
        return self.kept + self.points + self.coordinator + threads * self.making


def vecchia_bytes(
    n: int, halo: int, leaf: int, rank: int = 0, *, width: int = 0, vectors: int = 1, double: bool = False
) -> VecchiaBytes:
    """Project the memory of a factor of n samples, with at most `halo` of a halo and `leaf` of a leaf, and R landmarks.

    `width` is the kernel's `feature_width`; t `vectors` are multiplied at a time; leaves are factored in `double`
    precision where there is little noise.
    """
    halo, leaf = min(halo, n), min(leaf, n)
    leaves = leaf_count(n, leaf)
    rows = -(-n // leaves)
    # The first leaves have fewer samples before them than a halo holds.
    short = min(leaves, -(-halo // rows))
    halos = (leaves - short) * halo + sum(min(halo, k * rows) for k in range(short))
    kept = 4 * (rows * halos + leaves * rows * (rows + STRIP_ROWS) // 2 + leaves * rows * rank) + 4 * (halos + n)
    columns = halo + rows
    number = 8 if double else 4
    making = number * columns * (columns + 256 + rank) + 8 * columns * rank + 4 * rows * (columns + rank)
    united = halos + n
    at_once = max(1, min(vectors, VECTORS_AT_ONCE, BYTES_AT_ONCE // (8 * united)))
    coordinator = 4 * united + 8 * (united + n) * at_once + 3 * 8 * rank * rank
    return VecchiaBytes(kept, making, n * (12 * width + 16), coordinator)
