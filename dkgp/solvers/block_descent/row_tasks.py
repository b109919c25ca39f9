"""Blocks of a descent's n-vectors that workers hold between rounds, and the tasks that take block steps in them.

A worker's copy is a shortcut, never the truth. It has a version, the number of steps that it has taken; a task names
the version that it starts from. A task that finds no such copy says so, and the coordinator sends the block's rows as
they were at the last checkpoint, with all steps since (`dkgp.solvers.block_descent.rows`). The bits are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.forks import fork_safe
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, Variances, column_of
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.base import Sums, steepness
from dkgp.solvers.block_descent.conjugate_memory import BlockStep, ConjugateMemory

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
    """Take the steps in some blocks, and report what is asked for; blocks without the right version here are lost."""
    return [_take(context, recipe, {}, each) for each in asked]


def rebuild_rows_task(
    context: BlockContext, recipe: Recipe, values: Mapping[Any, Any], asked: list[Asked]
) -> list[Answer]:
    """Do what `step_rows_task` does, from rows as of the last checkpoint, with all steps since."""
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
