"""A descent whose n-vectors workers hold by rows: the coordinator reads them at the samples that it looks at.

A step needs no sums over samples but those of the progress record. Each worker takes it in its own rows of alpha, of
the gradient and of the remembered steps, and reports a few numbers a block, and the gradient at the candidates of the
selection after the next. The coordinator keeps the vectors as they were at the last checkpoint, and all steps since:
rows that are lost with their worker are computed again from these (`dkgp.solvers.block_descent.row_tasks`). Steps and
bits are those of a descent whose coordinator holds the vectors.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dkgp.cluster.executors.base import PendingRound, RoundTasks
from dkgp.cluster.executors.homes import Homes
from dkgp.errors import ClusterError
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.base import Sums, weight_of
from dkgp.solvers.block_descent.conjugate_memory import BlockStep, ConjugateMemory, settled
from dkgp.solvers.block_descent.pipeline import StepProduct
from dkgp.solvers.block_descent.row_tasks import (
    STEPS,
    Answer,
    Asked,
    BaseRows,
    Recipe,
    Report,
    SentStep,
    added,
    rebuild_rows_task,
    step_rows_task,
)

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
