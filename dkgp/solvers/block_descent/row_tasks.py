"""Blocks of a descent's n-vectors that workers hold between rounds, and the tasks that take block steps in them.

A worker's copy is a shortcut, never the truth. It has a version, the number of steps that it has taken; a task names
the version that it starts from. A task that finds no such copy says so, and the coordinator sends the block's rows as
they were at the last checkpoint, with all steps since (`dkgp.solvers.block_descent.rows`). The bits are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.forks import fork_safe
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, Noise
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.block_descent.conjugate_memory import BlockStep, ConjugateMemory
from dkgp.solvers.measures import Sums, steepness

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
    noise: Noise
    remembered: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return self.columns.nbytes + self.step.delta.nbytes + self.step.indices.nbytes


@dataclass(frozen=True)
class BaseRows:
    """A block's rows of all vectors at a version.

    - `alpha`, `gradient`, `rhs` (r, p); `directions`, `images` (k, r, p): of the `remembered` slots.
    - `weight` (r,): see `dkgp.solvers.measures.Sums`; empty where all are one.
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
class Steepest:
    """The first row of a block with the largest g_i^2 / Kbar_ii, its gradient (p,) and remembered images (k, p)."""

    sample: int
    score: float
    gradient: FloatArray
    images: FloatArray


@dataclass(frozen=True)
class BlockReport:
    """Numbers of a block that the coordinator reads after a step.

    - `moved` (p,): the step's squared length in this block.
    - `gradient` (s, p), `images` (k, s, p): at the samples that were asked for; their `inputs` (s, d) if wanted.
    """

    moved: FloatArray
    sums: Sums
    steepest: Steepest
    gradient: FloatArray
    images: FloatArray
    inputs: FloatArray | None


@dataclass(frozen=True)
class WholeRows:
    """All rows of a block: of alpha and the gradient (r, p), and of the remembered steps (k, r, p)."""

    alpha: FloatArray
    gradient: FloatArray
    directions: FloatArray
    images: FloatArray


@dataclass(frozen=True)
class Recipe:
    """Work of the tasks of a round.

    - `name`: identifies the solve.
    - `p`, `memory`: targets, and steps that are remembered.
    - `version`, `steps`: the version that tasks start from, and the steps that they take.
    - `whole`: answer with `WholeRows` instead of a `BlockReport`.
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
        noise = sent.noise if isinstance(sent.noise, float) else sent.noise[inside][:, None]
        product[local.indices] += noise * local.delta
        version, self.version = self.version, NO_VERSION
        self.moved = self.memory.move(self.alpha, local, self.rows)
        self.memory.settle(self.gradient, local, product)
        self.remembered, self.version = list(sent.remembered), version + 1

    def report(self, context: BlockContext, block: int, samples: IndexArray, inputs: bool) -> BlockReport:
        """Return the numbers that the coordinator asked for."""
        start = context.bounds(block)[0]
        sums = Sums.of_block(self.alpha, self.gradient, self.rhs, self.weight)
        scores = steepness(self.gradient, self.diagonal)
        row = int(np.argmax(scores))
        images, places = self.memory.images[self.remembered], samples - start
        return BlockReport(
            self.moved,
            sums,
            Steepest(start + row, float(scores[row]), self.gradient[row].copy(), images[:, row].copy()),
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


def step_rows_task(
    context: BlockContext, recipe: Recipe, asked: list[tuple[int, IndexArray]]
) -> list[BlockReport | WholeRows | int]:
    """Take the steps in each block, and report the gradient at the samples that are asked for beside it.

    A block of which this worker has no copy of the right version is answered by the version that it has.
    """
    return _take(context, recipe, {}, asked)


def rebuild_rows_task(
    context: BlockContext, recipe: Recipe, values: Mapping[Any, Any], asked: list[tuple[int, IndexArray]]
) -> list[BlockReport | WholeRows | int]:
    """Do what `step_rows_task` does, from rows as of the last checkpoint, with all steps since."""
    bases = {block: rows for name, value in values.items() if name != STEPS for block, rows in value.items()}
    return _take(context, replace(recipe, steps=values[STEPS]), bases, asked)


def _take(
    context: BlockContext, recipe: Recipe, bases: Mapping[int, BaseRows], asked: list[tuple[int, IndexArray]]
) -> list[BlockReport | WholeRows | int]:
    answers: list[BlockReport | WholeRows | int] = []
    for block, samples in asked:
        start, stop = context.bounds(block)
        shape = stop - start, recipe.p, recipe.memory
        held = worker_cache().get(
            (context.run_id, "rows", recipe.name, block),
            lambda: HeldBlock(*shape),  # noqa: B023  - called at once
        )
        with held.lock:
            if not recipe.version <= held.version <= recipe.version + len(recipe.steps):
                if block not in bases:
                    answers.append(held.version)
                    continue
                held.begin(bases[block])
            for sent in recipe.steps[held.version - recipe.version :]:
                held.advance(context, block, sent)
            answer = held.whole() if recipe.whole else held.report(context, block, samples, recipe.inputs)
            answers.append(answer)
    return answers
