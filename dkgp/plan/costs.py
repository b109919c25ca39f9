"""From a problem and a machine's figures to what a run costs: its rounds, its float64 passes, its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dkgp.cluster.executors.base import split_evenly
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.plan.figures import MachineFigures
from dkgp.plan.simulation import Fleet, RoundTimes, RoundWork, SelectionStep, simulate_pass, simulate_round
from dkgp.solvers.block_descent.selection import GreedySelection

__all__ = [
    "Effort",
    "Problem",
    "Projection",
    "most_useful_workers",
    "pass_seconds",
    "project",
    "round_work",
    "update_alone_seconds",
]

# What a task says of itself besides arrays: the context, with the store's handle and the kernel.
TASK_BYTES = 4096
# The coordinator waits for less than this share of a round: it is the limit itself.
IDLE_SHARE = 0.05
# More workers are worth having while they save this share of the time.
WORTHWHILE_SHARE = 0.1


@dataclass(frozen=True)
class Problem:
    """The problem, and how it is solved.

    Attributes
    ----------
    n, d, p
        Samples, features, targets.
    block_size, candidates, memory, precision
        Of the solver.
    largest_block_size, least_candidates
        What its blocks may grow to, and the candidates they have then, where they may.
    block_rows
        Rows of a block of the samples.
    least_task_evaluations
        Kernel entries below which a task is not worth its messages.
    width
        The kernel's `feature_width`; d by default.
    """

    n: int
    d: int
    p: int
    block_size: int
    candidates: int
    memory: int
    precision: str
    block_rows: int
    least_task_evaluations: int
    width: int | None = None
    largest_block_size: int = 0
    least_candidates: int = 0

    @property
    def blocks(self) -> list[int]:
        """Rows of each block."""
        full, rest = divmod(self.n, self.block_rows)
        return [self.block_rows] * full + ([rest] if rest else [])

    def tasks(self, threads: int) -> list[list[int]]:
        """Rows of the blocks of each task of an update, for so many worker threads."""
        parts = threads
        if self.least_task_evaluations:
            parts = min(parts, max(1, round(self.n * self.block_size / self.least_task_evaluations)))
        return split_evenly(self.blocks, parts)


@dataclass(frozen=True)
class Effort:
    """Column passes in all, those of them in float64, and full float64 passes."""

    passes: float
    double_passes: float
    refreshes: int


@dataclass(frozen=True)
class Projection:
    """Costs of a run on a fleet.

    Attributes
    ----------
    seconds
        The solve as a whole.
    start_seconds, refresh_seconds
        Of that, before the first round, and in full float64 passes.
    round
        A float32 round.
    tasks
        Tasks of a round.
    update_seconds
        All rounds' updates, from submission to the last result; overlaps the selection.
    limit
        What a round would be shorter without: "workers", "tasks", "messages", or of the coordinator's work
        "selection", "solve" or "vectors".
    """

    seconds: float
    start_seconds: float
    refresh_seconds: float
    round: RoundTimes
    tasks: int
    update_seconds: float
    limit: str


def round_work(problem: Problem, figures: MachineFigures, threads: int, precision: Precision = "single") -> RoundWork:
    """Return what a round asks of everyone, for so many worker threads.

    Parameters
    ----------
    precision : {"single", "double"}
        Of the round's tiles; the selection scores in float32 always.
    """
    n, m, p = problem.n, problem.block_size, problem.p
    entry = figures.entry_seconds if precision == "single" else figures.entry_double_seconds
    itemsize = 4 if precision == "single" else 8
    groups = problem.tasks(threads)
    per_entry, per_candidate = figures.candidate_seconds
    at_candidates = per_entry * entry / figures.entry_seconds
    steps, size = [], 0
    for count in GreedySelection(candidates=problem.candidates).steps(m):
        drawn = problem.candidates * count
        steps.append(
            SelectionStep(
                parallel_seconds=drawn * (size * per_entry + per_candidate),
                serial_seconds=max(0.0, figures.dense(size + count) - figures.dense(size)),
                pending_seconds=(drawn + count) * m * at_candidates,
            )
        )
        size += count
    vectors = (problem.memory + 3) * n * p * figures.vector_seconds
    return RoundWork(
        solve_seconds=figures.solve(m),
        vectors_seconds=vectors,
        arrival_seconds=vectors,
        selection=tuple(steps),
        task_seconds=tuple(sum(group) * m * entry for group in groups),
        payload_bytes=m * (itemsize * ((problem.width or problem.d) + 1) + 8 * p) + TASK_BYTES,
        result_bytes=tuple(8.0 * sum(group) * p for group in groups),
    )


def update_alone_seconds(problem: Problem, figures: MachineFigures, fleet: Fleet) -> float:
    """Simulate a float32 update that the coordinator does nothing but wait for; return its seconds."""
    work = round_work(problem, figures, fleet.threads)
    return simulate_pass(work.task_seconds, [work.payload_bytes] * len(work.task_seconds), work.result_bytes, fleet)


def pass_seconds(problem: Problem, figures: MachineFigures, fleet: Fleet) -> float:
    """Simulate a full float64 pass, round of pairs of blocks by round; return its seconds."""
    blocks = len(problem.blocks)
    pairs = blocks * (blocks + 1) // 2
    # The few pairs on the diagonal cost about half; nothing is lost by calling all alike.
    rows = problem.n / blocks
    per_round = max(8 * fleet.threads, blocks)

    def round_of(count: int) -> float:
        groups = [len(group) for group in split_evenly(range(count), 2 * fleet.threads)]
        seconds = problem.n**2 / 2.0 / pairs * figures.pair_seconds
        vector = 8.0 * rows * problem.p
        return simulate_pass(
            [count * seconds for count in groups],
            [min(count + 1, blocks) * vector + TASK_BYTES for count in groups],
            [2 * count * vector for count in groups],
            fleet,
        )

    whole, rest = divmod(pairs, per_round)
    return whole * (round_of(per_round) if whole else 0.0) + (round_of(rest) if rest else 0.0)


def project(problem: Problem, figures: MachineFigures, fleet: Fleet, effort: Effort) -> Projection:
    """Project a whole run."""
    rounds = effort.passes * problem.n / problem.block_size
    double_rounds = rounds if problem.precision == "double" else effort.double_passes * problem.n / problem.block_size
    double_rounds = min(double_rounds, rounds)
    work = round_work(problem, figures, fleet.threads)
    single = simulate_round(work, fleet)
    double = single
    if double_rounds:
        double = simulate_round(round_work(problem, figures, fleet.threads, "double"), fleet)
    refresh = effort.refreshes * pass_seconds(problem, figures, fleet) if effort.refreshes else 0.0
    start = _start_seconds(problem, figures, fleet, work, both=bool(double_rounds or effort.refreshes))
    return Projection(
        seconds=start + (rounds - double_rounds) * single.seconds + double_rounds * double.seconds + refresh,
        start_seconds=start,
        refresh_seconds=refresh,
        round=single,
        tasks=len(work.task_seconds),
        update_seconds=(rounds - double_rounds) * single.update_seconds + double_rounds * double.update_seconds,
        limit=_limit(single, work, fleet),
    )


def _start_seconds(problem: Problem, figures: MachineFigures, fleet: Fleet, work: RoundWork, *, both: bool) -> float:
    """Everyone reads X, and the first block is chosen with nothing else to do.

    The scheduler sends a block's task wherever there is room, so that in time each worker reads every block, once for
    each precision.
    """
    reading = problem.n * problem.d * figures.read_seconds
    speed = fleet.speed(fleet.threads) / fleet.workers if fleet.one_machine else fleet.speed(fleet.threads_per_worker)
    selection = work.selection_seconds(fleet.speed(fleet.coordinator_threads))
    return reading + (2.0 if both else 1.0) * reading / speed + selection


def _limit(times: RoundTimes, work: RoundWork, fleet: Fleet) -> str:
    if times.wait_seconds > IDLE_SHARE * times.seconds:
        if times.compute_seconds < 0.5 * times.update_seconds:
            return "messages"
        return "tasks" if len(work.task_seconds) < fleet.threads else "workers"
    parts = {
        "selection": work.selection_seconds(fleet.speed(fleet.coordinator_threads)),
        "solve": work.solve_seconds,
        "vectors": work.vectors_seconds + work.arrival_seconds,
        "messages": fleet.network.submit_seconds * len(work.task_seconds),
    }
    return max(parts, key=lambda name: parts[name])


def most_useful_workers(workers: Sequence[int], seconds: Sequence[float]) -> int:
    """Return the fewest workers beyond which none of the larger numbers saves a tenth of the time.

    Parameters
    ----------
    workers, seconds : sequences
        Rising numbers of workers, and what each takes.
    """
    for number, count in enumerate(workers):
        if min(seconds[number:]) > (1.0 - WORTHWHILE_SHARE) * seconds[number]:
            return count
    return workers[-1]
