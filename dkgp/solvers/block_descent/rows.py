"""A descent whose n-vectors workers hold by rows: the coordinator reads them at the samples that it looks at.

A step needs no sums over samples but those of the progress record. Each worker takes it in its own rows of alpha, of
the gradient and of the remembered steps. It reports a few numbers a block, and the gradient at the candidates of the
selection after the next. `SelectionPipeline` selects a block while the last one's product is under way, by the gradient
as a selection sees it then. Steps and bits are those of a descent whose coordinator holds the vectors.

A worker's copy is a shortcut, never the truth. It has a version, the number of steps that it has taken; a task names
the version that it starts from. A task that finds no such copy says so. The coordinator keeps the vectors as they were
at the last checkpoint, and all steps since: it sends the block's rows and these steps, and the worker computes the rows
again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import PendingRound, RoundTasks
from dkgp.cluster.executors.homes import Homes
from dkgp.errors import ClusterError
from dkgp.forks import fork_safe
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, PendingColumns, Variances, column_of, noise_at
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.base import Sums, steepness, weight_of
from dkgp.solvers.block_descent.block_size import BlockGrowth, BlockSizes
from dkgp.solvers.block_descent.conjugate_memory import BlockStep, ConjugateMemory, settled
from dkgp.solvers.block_descent.selection import GradientView, Selection, Subproblem, Turn


class SelectionPipeline:
    """The active sets of a run, one after the other.

    Where the operator overlaps, the next set is chosen while the workers compute a round's product; elsewhere when its
    round begins. The sets are the same. `growth` holds the size of the next one; `selection` is that of the first
    size; in `double`, nothing of a block is float32.
    """

    def __init__(
        self,
        operator: KernelOperator,
        selection: Selection,
        sizes: BlockSizes,
        seed: int,
        targets: int,
        double: bool = False,
    ) -> None:
        self.growth = BlockGrowth(sizes, sizes.first)
        self._operator, self._selection, self._seed, self._targets = operator, selection, seed, targets
        self._typical_entry, self._single = operator.typical_entry(), False if double else None
        self._active = self._subproblem()
        self._spare = self._subproblem() if operator.overlaps else None
        self._prepared = False

    def select(self, view: GradientView, iteration: int) -> Subproblem:
        """Return the active set of a round: the one that was prepared for it, or else one chosen now."""
        if not self._prepared:
            self._choose(view, iteration)
        self._prepared = False
        return self._active

    def announce(
        self, gradient_norm: Callable[[], float], columns: int, iteration: int, by_rows: bool = False
    ) -> IndexArray | None:
        """Settle the size of the sets to come; tell an operator out of core whose inputs are to come with this round.

        Before the round's update, which the next selection need not wait for: so that its size does not either.

        - `gradient_norm`: see `BlockGrowth.review`.
        - `by_rows`: whether workers hold the gradient. Then return the samples at which it is to come with this round,
          if they can be known.
        """
        self.growth.review(columns, gradient_norm)
        if self._operator.holds_inputs and not by_rows:
            return None
        # The next selection reads the results of this round once they are back, or, if that runs while
        # the round is under way, by the one after it.
        ahead = 2 if self._operator.overlaps or by_rows else 1
        coming = self._next.announced(self._operator, Turn(self.growth.size, self._seed, iteration + ahead))
        if coming is not None:
            self._operator.announce(coming)
        return coming

    def prepare(self, view: GradientView, iteration: int) -> None:
        """Choose the active set of a coming round, where the operator overlaps; the one taken stays as it is."""
        if self._spare is not None:
            self._active, self._spare = self._spare, self._active
            self._choose(view, iteration)
            self._prepared = True

    def forget(self) -> None:
        """Discard prepared blocks and the measured pace: the gradient has been renewed."""
        self._prepared = False
        self.growth.review_norm = 0.0

    @property
    def _next(self) -> Selection:
        return self._selection.grown(self.growth.sizes.first, self.growth.size)

    def _choose(self, view: GradientView, iteration: int) -> None:
        size = self.growth.size
        if self._active.capacity < size:
            self._active = self._subproblem()
        self._active.reset()
        self._next.fill(self._active, self._operator, view, Turn(size, self._seed, iteration))

    def _subproblem(self) -> Subproblem:
        size, typical_entry = self.growth.size, self._typical_entry
        return Subproblem(self._operator, size, self._targets, single=self._single, typical_entry=typical_entry)


class SettledGradient:
    """The gradient when nothing is under way."""

    def __init__(self, gradient: FloatArray) -> None:
        self._gradient = gradient

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples."""
        return self._gradient[indices]

    def everywhere(self) -> FloatArray:
        """Return g."""
        return self._gradient

    def steepest(self, diagonal: FloatArray) -> int:
        """Return the sample with the largest g_i^2 / Kbar_ii."""
        return int(np.argmax(steepness(self._gradient, diagonal)))


class StepProduct:
    """Kbar[:, B] delta of a step, evaluated at the coordinator at a few samples.

    The tile loops give the same bits for a row wherever it is evaluated.
    """

    def __init__(self, operator: KernelOperator, step: BlockStep, precision: Precision) -> None:
        self._operator, self._step, self._precision = operator, step, precision
        self._order = np.argsort(step.indices)
        self._sorted = step.indices[self._order]

    @cached_property
    def _columns(self) -> Features:
        return self._operator.features(self._step.indices, self._precision)

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return the product at some samples, (r, p), whose features the caller may have in single precision."""
        operator, step, precision = self._operator, self._step, self._precision
        if features is None or precision == "double":
            features = operator.features(indices, precision)
        product = np.ascontiguousarray(operator.evaluator(precision).matmat(features, self._columns, step.delta))
        place = np.minimum(np.searchsorted(self._sorted, indices), len(self._sorted) - 1)
        inside = self._sorted[place] == indices
        product[inside] += operator.noise_times(step.delta[self._order[place[inside]]], indices[inside])
        return product


class GradientUnderWay:
    """The gradient after a step whose update the workers may still be computing.

    At a few samples it is cheaper to evaluate K(candidates, B) delta here than to wait. The bits are the same.

    `gradient` is the one before the step, which `settle` updates in place; `pending` is Kbar[:, B] delta, by tiles of
    `precision`.
    """

    def __init__(
        self,
        operator: KernelOperator,
        gradient: FloatArray,
        memory: ConjugateMemory,
        step: BlockStep,
        pending: PendingColumns,
        precision: Precision,
    ) -> None:
        self._gradient, self._memory = gradient, memory
        self._step, self._pending = step, pending
        self._product = StepProduct(operator, step, precision)
        self._settled, self._moved = False, np.zeros(gradient.shape[1])
        self._affordable = operator.overlap_evaluations

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples, evaluated here while that is cheaper than waiting."""
        self._affordable -= len(indices) * len(self._step.indices)
        if self._settled or self._affordable < 0 or self._pending.done():
            return self.everywhere()[indices]
        product = self._product.at(indices, features)
        return self._memory.settled_at(indices, self._gradient, self._step, product)

    def everywhere(self) -> FloatArray:
        """Return g, waiting for the update."""
        self.settle()
        return self._gradient

    def steepest(self, diagonal: FloatArray) -> int:
        """Return the sample with the largest g_i^2 / Kbar_ii, waiting for the update."""
        return SettledGradient(self.everywhere()).steepest(diagonal)

    def move(self, alpha: FloatArray) -> None:
        """Take the step in alpha."""
        self._moved = self._memory.move(alpha, self._step)

    def settle(self) -> FloatArray:
        """Wait for the update and add it to g; return the squared length of the step in alpha by target: (p,)."""
        if not self._settled:
            self._memory.settle(self._gradient, self._step, self._pending.result())
            self._settled = True
        return self._moved


# Version of a copy that has no rows, or was interrupted while it took a step.
NO_VERSION = -1
# Name of the shared value that holds the steps since the last checkpoint.
STEPS = "steps"


@dataclass(frozen=True)
class SentStep:
    """A block step as workers take it.

    - `columns`: features of the active set, in `precision`.
    - `noise`: on the diagonal at the active set.
    - `remembered`: slots of the conjugate memory that are in use after the step.
    """

    step: BlockStep
    columns: Features
    precision: Precision
    noise: Variances
    remembered: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return self.columns.nbytes + self.step.delta.nbytes + self.step.indices.nbytes


@dataclass(frozen=True)
class BaseRows:
    """A block's rows of all vectors at a version.

    - `alpha`, `gradient`, `rhs` (r, p); `directions`, `images` (k, r, p): of the `remembered` slots.
    - `weight` (r,): see `dkgp.solvers.base.Sums`; empty where all are one.
    - `diagonal` (r,): Kbar's.
    """

    version: int
    alpha: FloatArray
    gradient: FloatArray
    rhs: FloatArray
    directions: FloatArray
    images: FloatArray
    remembered: tuple[int, ...]
    weight: FloatArray
    diagonal: FloatArray


@dataclass(frozen=True)
class Asked:
    """Blocks that a task works on, and sorted samples of each: the first `counts[0]` lie in the first block."""

    blocks: tuple[int, ...]
    counts: tuple[int, ...]
    samples: IndexArray


@dataclass(frozen=True)
class Report:
    """Numbers that the coordinator reads after a step, of b blocks in one array each: a message of few parts.

    - `counts` (b,): samples that were asked for in each block.
    - `moved` (b, p): the step's squared length in each block.
    - `largest` (b,), `squares`, `weighed`, `objective` (b, p): see `dkgp.solvers.base.Sums`.
    - `steepest`, `scores` (b,): the first row of each block with the largest g_i^2 / Kbar_ii, and that number; its
      gradient and remembered images, (b, p) and (k, b, p).
    - `gradient` (s, p), `images` (k, s, p): at the samples that were asked for; their `inputs` (s, d) if wanted.
    """

    blocks: IndexArray
    counts: IndexArray
    moved: FloatArray
    largest: FloatArray
    squares: FloatArray
    weighed: FloatArray
    objective: FloatArray
    steepest: IndexArray
    scores: FloatArray
    steepest_gradient: FloatArray
    steepest_images: FloatArray
    gradient: FloatArray
    images: FloatArray
    inputs: FloatArray | None

    @classmethod
    def join(cls, reports: Sequence[Report]) -> Report:
        """Return one report of the blocks of several, in order."""
        blocks = np.argsort(np.concatenate([each.blocks for each in reports]), kind="stable")
        block_of = np.concatenate([np.repeat(each.blocks, each.counts) for each in reports])
        samples = np.argsort(block_of, kind="stable")
        joined: dict[str, Any] = {}
        for part in fields(cls):
            values = [getattr(each, part.name) for each in reports]
            if part.name == "inputs" and any(value is None for value in values):
                joined[part.name] = None
                continue
            order = samples if part.name in ("gradient", "images", "inputs") else blocks
            axis = 1 if part.name in ("images", "steepest_images") else 0
            joined[part.name] = np.take(np.concatenate(values, axis), order, axis)
        return cls(**joined)

    def sums(self) -> Sums:
        """Return the sums over all blocks, added up in their order."""
        largest = float(np.max(self.largest))
        return Sums(largest, added(self.squares), added(self.weighed), added(self.objective))


def added(parts: FloatArray) -> FloatArray:
    """Return the sum of the rows of (b, p), one after the other: NumPy's `sum` has another order."""
    return np.asarray(np.cumsum(parts, axis=0)[-1])


@dataclass(frozen=True)
class WholeRows:
    """All rows of a block: of alpha and the gradient (r, p), and of the remembered steps (k, r, p)."""

    alpha: FloatArray
    gradient: FloatArray
    directions: FloatArray
    images: FloatArray


@dataclass(frozen=True)
class Answer:
    """A task's answer: a report of its blocks, or all rows of each; `lost` names blocks that it has no rows of."""

    lost: tuple[int, ...]
    report: Report | None
    whole: Mapping[int, WholeRows]


@dataclass(frozen=True)
class Recipe:
    """Work of the tasks of a round.

    - `name`: identifies the solve.
    - `p`, `memory`: targets, and steps that are remembered.
    - `version`, `steps`: the version that tasks start from, and the steps that they take.
    - `whole`: answer with `WholeRows` instead of a `Report`.
    - `inputs`: report the asked samples' inputs.
    """

    name: str
    p: int
    memory: int
    version: int
    steps: tuple[SentStep, ...]
    whole: bool = False
    inputs: bool = False


@dataclass
class HeldBlock:
    """A worker's copy of a block's rows."""

    rows: int
    p: int
    steps: int
    version: int = NO_VERSION
    lock: threading.Lock = field(default_factory=lambda: fork_safe(threading.Lock()))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return held_bytes(self.rows, self.p, self.steps)

    def begin(self, base: BaseRows) -> None:
        """Take over rows as they were at a version."""
        self.version = NO_VERSION
        self.memory = ConjugateMemory(self.rows, self.p, self.steps)
        for place, slot in enumerate(base.remembered):
            self.memory.directions[slot], self.memory.images[slot] = base.directions[place], base.images[place]
        self.alpha, self.gradient, self.rhs = (np.array(rows) for rows in (base.alpha, base.gradient, base.rhs))
        self.weight, self.diagonal = np.array(base.weight), np.array(base.diagonal)
        self.remembered, self.moved = list(base.remembered), np.zeros(self.p)
        self.version = base.version

    def advance(self, context: BlockContext, block: int, sent: SentStep) -> None:
        """Take one step."""
        (start, stop), step = context.bounds(block), sent.step
        # The compiled loops know writable arrays alone, and those of messages may be read-only.
        inside = np.flatnonzero((start <= step.indices) & (step.indices < stop))
        used, coefficients, length = np.array(step.used), np.array(step.coefficients), np.array(step.step)
        local = BlockStep(step.indices[inside] - start, step.delta[inside], used, coefficients, length, step.slot)
        features = context.block_features(block, sent.precision)
        product = np.ascontiguousarray(context.evaluator(sent.precision).matmat(features, sent.columns, step.delta))
        noise = column_of(sent.noise, inside)
        product[local.indices] += noise * local.delta
        version, self.version = self.version, NO_VERSION
        self.moved = self.memory.move(self.alpha, local, self.rows)
        self.memory.settle(self.gradient, local, product)
        self.remembered, self.version = list(sent.remembered), version + 1

    def report(self, context: BlockContext, block: int, samples: IndexArray, inputs: bool) -> Report:
        """Return the numbers that the coordinator asked for."""
        start = context.bounds(block)[0]
        sums = Sums.of_block(self.alpha, self.gradient, self.rhs, self.weight)
        scores = steepness(self.gradient, self.diagonal)
        row = [int(np.argmax(scores))]
        images, places = self.memory.images[self.remembered], samples - start
        return Report(
            np.array([block]),
            np.array([len(samples)]),
            self.moved[None],
            np.array([sums.largest]),
            sums.squares[None],
            sums.weighed[None],
            sums.objective[None],
            start + np.array(row),
            scores[row],
            self.gradient[row],
            images[:, row],
            self.gradient[places],
            images[:, places],
            context.block_rows_cached(block).values[places] if inputs else None,
        )

    def whole(self) -> WholeRows:
        """Return copies of all rows."""
        slots = self.remembered
        return WholeRows(
            self.alpha.copy(), self.gradient.copy(), self.memory.directions[slots], self.memory.images[slots]
        )


def held_bytes(rows: int, p: int, memory: int) -> int:
    """Bytes of a copy of so many rows."""
    return 8 * rows * (p * (3 + 2 * (memory + 1)) + 2)


def step_rows_task(context: BlockContext, recipe: Recipe, asked: list[Asked]) -> list[Answer]:
    """Take the steps in some blocks and report the requested numbers; blocks of another version are lost."""
    return [_take(context, recipe, {}, each) for each in asked]


def rebuild_rows_task(
    context: BlockContext, recipe: Recipe, values: Mapping[Any, Any], asked: list[Asked]
) -> list[Answer]:
    """Do the work of `step_rows_task` from the rows of the last checkpoint, with all steps since."""
    bases = {block: rows for name, value in values.items() if name != STEPS for block, rows in value.items()}
    return [_take(context, replace(recipe, steps=values[STEPS]), bases, each) for each in asked]


def _take(context: BlockContext, recipe: Recipe, bases: Mapping[int, BaseRows], asked: Asked) -> Answer:
    lost, reports, whole, cuts = list[int](), list[Report](), dict[int, WholeRows](), np.cumsum(asked.counts)
    for block, samples in zip(asked.blocks, np.split(asked.samples, cuts[:-1]), strict=True):
        start, stop = context.bounds(block)
        shape = stop - start, recipe.p, recipe.memory
        held = worker_cache().get(
            (context.run_id, "rows", recipe.name, block),
            lambda: HeldBlock(*shape),  # noqa: B023  - called at once
        )
        with held.lock:
            if not recipe.version <= held.version <= recipe.version + len(recipe.steps):
                if block not in bases:
                    lost.append(block)
                    continue
                held.begin(bases[block])
            for sent in recipe.steps[held.version - recipe.version :]:
                held.advance(context, block, sent)
            if recipe.whole:
                whole[block] = held.whole()
            else:
                reports.append(held.report(context, block, samples, recipe.inputs))
    return Answer(tuple(lost), Report.join(reports) if reports else None, whole)


NO_SAMPLES = np.zeros(0, np.intp)
# Steps since the last checkpoint may take this share of the vectors' bytes; then the vectors are fetched.
LARGEST_LOG_SHARE = 0.25
# Least seconds between two fetches of the vectors so that joining workers get rows.
JOIN_SECONDS = 60.0
# Rebuilding a block succeeds at once unless workers keep dying. Rounds that rebuild are few unless caches are small.
MOST_ATTEMPTS, MOST_REBUILT_ROUNDS = 8, 20
# Each round takes so much off the number of those that rebuilt: workers come and go in long runs.
FORGIVEN = 0.1
# Tasks for each thread that rebuild lost rows.
REBUILDING_TASKS = 4


class Before(Protocol):
    """The gradient and the remembered images before a step, at the samples that the coordinator knows them of."""

    def find(self, indices: IndexArray) -> tuple[np.ndarray, FloatArray, FloatArray]:
        """Return a mask of the known ones, their gradient (r, p), and their images (steps + 1, r, p)."""


@dataclass(frozen=True)
class WholeBefore:
    """All samples, as the coordinator's own vectors have them."""

    gradient: FloatArray
    images: FloatArray

    def find(self, indices: IndexArray) -> tuple[np.ndarray, FloatArray, FloatArray]:
        """See `Before`."""
        return np.ones(len(indices), bool), self.gradient[indices], np.ascontiguousarray(self.images[:, indices])


@dataclass(frozen=True)
class ReportedBefore:
    """Samples that were asked for, sorted: (s,); `gradient` (s, p) and `images` (steps + 1, s, p) there."""

    samples: IndexArray
    gradient: FloatArray
    images: FloatArray

    def find(self, indices: IndexArray) -> tuple[np.ndarray, FloatArray, FloatArray]:
        """See `Before`."""
        if not len(self.samples):
            return np.zeros(len(indices), bool), self.gradient, self.images
        place = np.minimum(np.searchsorted(self.samples, indices), len(self.samples) - 1)
        known = self.samples[place] == indices
        place = place[known]
        return known, self.gradient[place], np.ascontiguousarray(self.images[:, place])


class DescentRows:
    """The rows of a descent's n-vectors on the workers.

    - `alpha`, `gradient` (n, p): as they were at the last checkpoint; `memory` has the remembered steps of that time.
    - `last`: the last step since then; None where there is none.
    """

    def __init__(
        self,
        operator: BlockedKernelOperator,
        rhs: FloatArray,
        vectors: tuple[FloatArray, FloatArray],
        memory: ConjugateMemory,
    ) -> None:
        self.operator, self.memory, self._rhs = operator, memory, rhs
        self._name = uuid.uuid4().hex[:12]
        self._homes, self._workers = Homes(operator.context.n_blocks), dict[str, int]()
        self._weight = weight_of(operator.noise, operator.noise_variance)
        self._version, self._rebuilt_rounds, self._fetched_at = 0, 0.0, -JOIN_SECONDS
        self.renew(*vectors)

    def renew(self, alpha: FloatArray, gradient: FloatArray) -> None:
        """Go on from vectors of the coordinator, which no worker has."""
        self._version += 1
        self._held = False
        self._begin(alpha, gradient)

    def _begin(self, alpha: FloatArray, gradient: FloatArray) -> None:
        self.alpha, self.gradient = alpha, gradient
        self._first, self._log, self._remembered = self._version, list[SentStep](), tuple(self.memory.held)
        self.last: StepOfRows | None = None

    @property
    def is_failing(self) -> bool:
        """True if workers lose their rows again and again, as where their caches are too small."""
        return self._rebuilt_rounds > MOST_REBUILT_ROUNDS

    def take(self, step: BlockStep, precision: Precision, samples: IndexArray | None) -> StepOfRows:
        """Start a step; the gradient at the `samples` comes back with it."""
        operator, before = self.operator, self._before()
        self._rebuilt_rounds = max(0.0, self._rebuilt_rounds - FORGIVEN)
        noise = noise_at(operator.noise, step.indices)
        columns = operator.features(step.indices, precision)
        sent = SentStep(step, columns, precision, noise, tuple(self.memory.held))
        inputs = operator.take_announced() is not None
        version, self._version = self._version, self._version + 1
        self._log.append(sent)
        samples = NO_SAMPLES if samples is None else np.unique(samples)
        asked = self._asked(samples, everywhere=True)
        recipe = Recipe(self._name, self._rhs.shape[1], self.memory.steps, version, (sent,), inputs=inputs)
        self.last = StepOfRows(
            self, step, StepProduct(operator, step, precision), before, samples, Answers(self, recipe, asked)
        )
        return self.last

    def _before(self) -> Before:
        if self.last is None:
            return WholeBefore(self.gradient, self.memory.images)
        return self.last.reported

    def values(self, indices: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Fetch the gradient, (r, p), and the remembered images, (steps + 1, r, p), at a few samples."""
        samples, inverse = np.unique(indices, return_inverse=True)
        asked = self._asked(samples, everywhere=False)
        found = self.reported(samples, Answers(self, self._recipe(), asked).report())
        return found.gradient[inverse], np.ascontiguousarray(found.images[:, inverse])

    def _recipe(self, whole: bool = False) -> Recipe:
        return Recipe(self._name, self._rhs.shape[1], self.memory.steps, self._version, (), whole)

    def collect(self) -> tuple[FloatArray, FloatArray]:
        """Fetch all rows into the coordinator's vectors; return alpha and the gradient."""
        if self.last is None:
            return self.alpha, self.gradient
        self.last.settle()
        context, memory = self.operator.context, self.memory
        parts = Answers(self, self._recipe(whole=True), self._asked(NO_SAMPLES, everywhere=True)).result()
        for block, part in (item for answer in parts for item in answer.whole.items()):
            rows = slice(*context.bounds(block))
            self.alpha[rows], self.gradient[rows] = part.alpha, part.gradient
            for place, slot in enumerate(memory.held):
                memory.directions[slot, rows], memory.images[slot, rows] = part.directions[place], part.images[place]
        self._begin(self.alpha, self.gradient)
        self._fetched_at = time.monotonic()
        return self.alpha, self.gradient

    def collect_if_due(self) -> None:
        """Fetch the rows where the steps since the last time take much memory, or workers wait for rows."""
        vectors = 16.0 * self._rhs.size * (1 + len(self.memory.held))
        long = sum(sent.nbytes for sent in self._log) > LARGEST_LOG_SHARE * vectors
        joined = self.operator.executor.workers.keys() - self._workers.keys()
        if long or (joined and self._workers and time.monotonic() - self._fetched_at > JOIN_SECONDS):
            self.collect()

    def start(self, recipe: Recipe, asked: Mapping[int, IndexArray], rebuild: bool) -> PendingRound:
        """Start a round for some blocks: one answer for each of its tasks."""
        parts = REBUILDING_TASKS if rebuild and self._held else 1
        groups, owners = self._homes.groups(self._present_workers(), list(asked), parts)
        items = [
            [Asked(tuple(group), tuple(len(asked[b]) for b in group), np.concatenate([asked[b] for b in group]))]
            for group in groups
        ]
        arguments: tuple[Any, ...] = (self.operator.context, recipe)
        if rebuild:
            values: dict[Any, Any] = {STEPS: tuple(self._log)}
            values |= {number: {block: self._base(block) for block in group} for number, group in enumerate(groups)}
            needs = [[STEPS, number] for number in range(len(groups))]
            tasks = RoundTasks(rebuild_rows_task, arguments, items, owners, "krebuild", values, needs)
        else:
            tasks = RoundTasks(step_rows_task, arguments, items, owners, "kstep")
        return self.operator.start(tasks)

    def needs_base(self) -> bool:
        """True if no worker has rows of the coordinator's vectors yet; from now on some do."""
        held, self._held = self._held, True
        return not held

    def first(self, recipe: Recipe) -> Recipe:
        """Return a recipe for workers that take all steps since the last checkpoint."""
        return Recipe(recipe.name, recipe.p, recipe.memory, self._first, (), recipe.whole, recipe.inputs)

    def note_rebuilt(self) -> None:
        """Count a round in which rows were computed again, and look for workers that are gone."""
        self._rebuilt_rounds += 1.0
        self.operator.executor.look_for_workers()

    def _present_workers(self) -> dict[str, int]:
        """Workers that have rows, as far as they are there; all of them where rows can be handed out anew."""
        workers = dict(self.operator.executor.workers)
        kept = {name: threads for name, threads in workers.items() if name in self._workers}
        self._workers = kept if self._log[:-1] and kept else workers
        return self._workers

    def _base(self, block: int) -> BaseRows:
        rows, slots = slice(*self.operator.context.bounds(block)), list(self._remembered)
        return BaseRows(
            self._first,
            self.alpha[rows],
            self.gradient[rows],
            self._rhs[rows],
            self.memory.directions[slots, rows],
            self.memory.images[slots, rows],
            self._remembered,
            self._weight[rows],
            self.operator.diagonal()[rows],
        )

    def _asked(self, samples: IndexArray, everywhere: bool) -> dict[int, IndexArray]:
        """Cut sorted samples by blocks; `everywhere` names blocks without any, too."""
        context = self.operator.context
        cuts = np.searchsorted(samples, context.block_rows * np.arange(context.n_blocks + 1))
        blocks = range(context.n_blocks) if everywhere else np.flatnonzero(np.diff(cuts)).tolist()
        return {block: samples[cuts[block] : cuts[block + 1]] for block in blocks}

    def reported(self, samples: IndexArray, report: Report) -> ReportedBefore:
        """Return the reported gradient and images, by the memory's slots."""
        images = np.zeros((self.memory.steps + 1, *report.gradient.shape))
        images[self.memory.held] = report.images
        return ReportedBefore(samples, report.gradient, images)


class Answers:
    """Reports of blocks that were asked for; blocks whose rows are lost are rebuilt."""

    def __init__(self, rows: DescentRows, recipe: Recipe, asked: dict[int, IndexArray]) -> None:
        self._rows, self._recipe, self._asked = rows, recipe, asked
        self._started = self._start(asked, rows.needs_base())

    def _start(self, asked: Mapping[int, IndexArray], rebuild: bool) -> PendingRound:
        return self._rows.start(self._rows.first(self._recipe) if rebuild else self._recipe, asked, rebuild)

    def result(self) -> list[Answer]:
        """Wait for all blocks; return the answers that have them."""
        answers: list[Answer] = []
        for _ in range(MOST_ATTEMPTS):
            fresh: list[Answer] = self._started.result()
            answers += fresh
            lost = {block: self._asked[block] for answer in fresh for block in answer.lost}
            if not lost:
                return answers
            self._rows.note_rebuilt()
            self._started = self._start(lost, rebuild=True)
        raise ClusterError(f"workers lost their rows of the gradient {MOST_ATTEMPTS} times in one round")

    def report(self) -> Report:
        """Wait for all blocks; return the report of all."""
        return Report.join([answer.report for answer in self.result() if answer.report is not None])


class StepOfRows:
    """The gradient after a step that workers take in their rows; see `GradientView`.

    - `reported`: the gradient after the step, at the samples that were asked for, once it is settled.
    """

    def __init__(
        self,
        rows: DescentRows,
        step: BlockStep,
        product: StepProduct,
        before: Before,
        samples: IndexArray,
        answers: Answers,
    ) -> None:
        self._rows, self._step, self._product, self._before = rows, step, product, before
        self._samples, self._answers = samples, answers
        self._moved: FloatArray | None = None
        self.sums: Sums
        self.reported: ReportedBefore
        self._steepest: int

    def settle(self) -> FloatArray:
        """Wait for the workers; return the step's squared length by target: (p,)."""
        if self._moved is None:
            report = self._answers.report()
            self.sums, self._moved = report.sums(), added(report.moved)
            place = int(np.argmax(report.scores))
            self._steepest = int(report.steepest[place])
            self._steepest_gradient = report.steepest_gradient[place]
            self._steepest_images = report.steepest_images[:, place]
            self.reported = self._rows.reported(self._samples, report)
            if report.inputs is not None:
                self._rows.operator.receive(self._samples, [report.inputs])
        return self._moved

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """Return g at some samples, evaluated here from its values before the step where these are known."""
        return self.values(indices, features)[0]

    def values(self, indices: IndexArray, features: Features | None = None) -> tuple[FloatArray, FloatArray]:
        """Return g, (r, p), and the remembered images, (steps + 1, r, p), at some samples after the step."""
        known, gradient, images = self._before.find(indices)
        if known.all():
            there, image = settled(self._step, self._product.at(indices, features), gradient, images)
            images[self._step.slot] = image
            return there, images
        result = np.empty((len(indices), self._step.delta.shape[1]))
        whole = np.zeros((self._rows.memory.steps + 1, *result.shape))
        if known.any():
            result[known], whole[:, known] = self.values(indices[known])
        self.settle()
        missing = ~known
        if (indices[missing] == self._steepest).all():
            result[missing] = self._steepest_gradient
            for place, slot in enumerate(self._rows.memory.held):
                whole[slot, missing] = self._steepest_images[place]
        else:
            result[missing], whole[:, missing] = self._rows.values(indices[missing])
        return result, whole

    def everywhere(self) -> FloatArray:
        """Return g, fetched from the workers."""
        return self._rows.collect()[1]

    def steepest(self, diagonal: FloatArray) -> int:
        """Return the sample with the largest g_i^2 / Kbar_ii, waiting for the step."""
        self.settle()
        return self._steepest
