"""Rounds of block tasks on any number of workers, simulated event by event.

Threads of one machine share it: with k of them busy each runs at the measured speed-up of k threads over k. Messages
pass the scheduler one after another and take half a round trip each way. The coordinator does what
`GreedyBlockCoordinateDescent.advance` does, in that order: solve, send, advance its vectors, select the next block
while the workers update, wait, take the results in.

By hand, not by SimPy: threads that share a machine's speed are none of its resources, and without them there is little
left for it to do.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Fleet", "Network", "RoundTimes", "RoundWork", "SelectionStep", "simulate_pass", "simulate_round"]

# What a simulated process asks for: given what to call when it has it.
_Wish: TypeAlias = Callable[[Callable[[], None]], None]
_Process: TypeAlias = Generator[_Wish, None, None]


@dataclass(frozen=True)
class Network:
    """Costs of messages.

    Attributes
    ----------
    round_trip_seconds
        Of one empty task: from its submission to its result at the coordinator.
    task_seconds
        What each further task of the same round adds to that, at the scheduler.
    submit_seconds
        What submitting a task costs the coordinator itself.
    bytes_per_second
        Of what tasks carry, either way.
    """

    round_trip_seconds: float
    task_seconds: float
    submit_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Fleet:
    """The workers and the coordinator of a run.

    Attributes
    ----------
    workers, threads_per_worker
        Worker processes, and tasks that each runs at once.
    speedups
        Speed of 1, 2, ... busy threads of a machine together, in units of one thread alone; further threads add
        nothing.
    coordinator_threads
        Threads that the coordinator's parallel stages use.
    one_machine
        Whether the workers share the coordinator's machine. Each has a machine to itself otherwise.
    """

    workers: int
    threads_per_worker: int
    speedups: tuple[float, ...]
    coordinator_threads: int
    network: Network
    one_machine: bool = False

    @property
    def threads(self) -> int:
        """Tasks that run at once."""
        return self.workers * self.threads_per_worker

    def speed(self, threads: int) -> float:
        """Speed of so many threads of a machine together."""
        return self.speedups[min(threads, len(self.speedups)) - 1]


@dataclass(frozen=True)
class SelectionStep:
    """One step of a selection at the coordinator, in seconds of one thread.

    Attributes
    ----------
    parallel_seconds
        Scoring candidates, shared between the coordinator's threads.
    serial_seconds
        Dense algebra.
    pending_seconds
        What is added where the last round is still under way: gradients that would otherwise be at hand.
    """

    parallel_seconds: float
    serial_seconds: float
    pending_seconds: float


@dataclass(frozen=True)
class RoundWork:
    """Work that one round asks of everyone, in seconds of one thread and in bytes.

    Attributes
    ----------
    solve_seconds
        From the last round's end to the step that is sent out.
    vectors_seconds
        The coordinator's n-vectors while the workers update; `arrival_seconds` those once the update is in.
    selection
        The selection of the next block, step by step.
    task_seconds
        Of every task of the round.
    payload_bytes, result_bytes
        What travels to and from a task; results by task.
    """

    solve_seconds: float
    vectors_seconds: float
    arrival_seconds: float
    selection: tuple[SelectionStep, ...]
    task_seconds: tuple[float, ...]
    payload_bytes: float
    result_bytes: tuple[float, ...]

    def selection_seconds(self, speed: float) -> float:
        """The selection of a block while nothing is under way, at that speed of all threads together."""
        return sum(step.parallel_seconds / speed + step.serial_seconds for step in self.selection)


@dataclass(frozen=True)
class RoundTimes:
    """Times of a simulated round, in seconds.

    Attributes
    ----------
    seconds
        The round as a whole.
    update_seconds
        From the first task's submission to the last result at the coordinator.
    compute_seconds
        From the first task's start to the last task's end.
    wait_seconds
        The coordinator idle for results: nothing where it is the limit.
    """

    seconds: float
    update_seconds: float
    compute_seconds: float
    wait_seconds: float


class _Simulation:
    """Simulated time, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(moment, self.now), next(self._order), act))

    def start(self, process: _Process) -> None:
        """Run a process to its next wish, and on from there each time one is granted."""

        def go_on() -> None:
            wish = next(process, None)
            if wish is not None:
                wish(go_on)

        go_on()

    def until(self, moment: float) -> _Wish:
        return lambda granted: self.at(moment, granted)

    def run(self) -> None:
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()


class _Machine:
    """Threads that share a machine's speed evenly."""

    def __init__(self, simulation: _Simulation, speedups: Sequence[float]) -> None:
        self._simulation, self._speedups = simulation, speedups
        self._busy: list[tuple[float, int, int, Callable[[], None]]] = []
        self._threads = 0
        # Work that each busy thread has done by `_known_at`: threads run at one speed, so a job ends when this reaches
        # what it was at the job's start plus the job's work.
        self._done = self._known_at = 0.0
        self._version = 0
        self._order = itertools.count()

    def compute(self, seconds: float, threads: int = 1) -> _Wish:
        """Wish for work of so many seconds of one thread, shared between `threads`."""

        def begin(granted: Callable[[], None]) -> None:
            self._catch_up()
            heapq.heappush(self._busy, (self._done + seconds / threads, next(self._order), threads, granted))
            self._threads += threads
            self._await_next()

        return begin

    def _speed(self) -> float:
        return self._speedups[min(self._threads, len(self._speedups)) - 1] / self._threads

    def _catch_up(self) -> None:
        if self._threads:
            self._done += (self._simulation.now - self._known_at) * self._speed()
        self._known_at = self._simulation.now

    def _await_next(self) -> None:
        self._version += 1
        if self._busy:
            version = self._version
            ends = self._simulation.now + max(0.0, self._busy[0][0] - self._done) / self._speed()
            self._simulation.at(ends, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version:  # somebody came or went since: another end is awaited
            return
        self._catch_up()
        ends, _, threads, granted = heapq.heappop(self._busy)
        self._done = ends
        self._threads -= threads
        self._await_next()
        granted()


class _Scheduler:
    """Messages one after another."""

    def __init__(self, simulation: _Simulation, network: Network) -> None:
        self._simulation, self._network = simulation, network
        self._free_at = 0.0

    def passes(self, count_bytes: float) -> _Wish:
        """Wish for a message to be on the other side: half a task's share of the scheduler, and half a round trip."""

        def send(granted: Callable[[], None]) -> None:
            seconds = self._network.task_seconds / 2.0 + count_bytes / self._network.bytes_per_second
            self._free_at = max(self._free_at, self._simulation.now) + seconds
            self._simulation.at(self._free_at + self._network.round_trip_seconds / 2.0, granted)

        return send


class _Tasks:
    """Tasks on their way: sent, computed on the thread that is theirs, returned."""

    def __init__(
        self,
        simulation: _Simulation,
        fleet: Fleet,
        machines: Sequence[_Machine],
        task_seconds: Sequence[float],
        result_bytes: Sequence[float],
    ) -> None:
        self._simulation, self._fleet, self._machines = simulation, fleet, machines
        self._seconds, self._bytes = task_seconds, result_bytes
        self._scheduler = _Scheduler(simulation, fleet.network)
        self._free: list[int] = [fleet.threads_per_worker] * fleet.workers
        self._queues: list[list[int]] = [[] for _ in range(fleet.workers)]
        self._missing = len(task_seconds)
        self._awaited: Callable[[], None] | None = None
        self.first_start = self.last_end = self.arrived_at = 0.0
        self._begun = False

    @property
    def done(self) -> bool:
        return self._missing == 0

    def all_in(self, granted: Callable[[], None]) -> None:
        """Wish for every result to be at the coordinator."""
        if self.done:
            self._simulation.at(self._simulation.now, granted)
        else:
            self._awaited = granted

    def send(self, task: int, payload_bytes: float) -> None:
        """Hand a task to the scheduler; tasks go round the workers."""
        self._simulation.start(self._journey(task, task % self._fleet.workers, payload_bytes))

    def _journey(self, task: int, worker: int, payload_bytes: float) -> _Process:
        yield self._scheduler.passes(payload_bytes)
        if self._free[worker]:
            self._free[worker] -= 1
        else:
            self._queues[worker].append(task)
            return  # whoever ends next on this worker takes it over
        while True:
            if not self._begun:
                self._begun, self.first_start = True, self._simulation.now
            yield self._machines[worker].compute(self._seconds[task])
            self.last_end = self._simulation.now
            self._simulation.start(self._return(task))
            if not self._queues[worker]:
                break
            task = self._queues[worker].pop(0)
        self._free[worker] += 1

    def _return(self, task: int) -> _Process:
        yield self._scheduler.passes(self._bytes[task])
        self._missing -= 1
        if self.done:
            self.arrived_at = self._simulation.now
            if self._awaited is not None:
                self._awaited()


def _machines(simulation: _Simulation, fleet: Fleet) -> tuple[_Machine, list[_Machine]]:
    """Return the coordinator's machine and each worker's."""
    own = _Machine(simulation, fleet.speedups)
    if fleet.one_machine:
        return own, [own] * fleet.workers
    return own, [_Machine(simulation, fleet.speedups) for _ in range(fleet.workers)]


def simulate_round(work: RoundWork, fleet: Fleet) -> RoundTimes:
    """Simulate one round amid many alike.

    Returns
    -------
    RoundTimes
    """
    simulation = _Simulation()
    own, machines = _machines(simulation, fleet)
    tasks = _Tasks(simulation, fleet, machines, work.task_seconds, work.result_bytes)
    sent_at = waited = ended = 0.0

    def coordinator() -> _Process:
        nonlocal sent_at, waited, ended
        yield own.compute(work.solve_seconds)
        sent_at = simulation.now
        for task in range(len(work.task_seconds)):
            yield own.compute(fleet.network.submit_seconds)
            tasks.send(task, work.payload_bytes)
        yield own.compute(work.vectors_seconds)
        for step in work.selection:
            if not tasks.done:
                yield own.compute(step.pending_seconds)
            yield own.compute(step.parallel_seconds, fleet.coordinator_threads)
            yield own.compute(step.serial_seconds)
        before = simulation.now
        yield tasks.all_in
        waited = simulation.now - before
        yield own.compute(work.arrival_seconds)
        ended = simulation.now

    simulation.start(coordinator())
    simulation.run()
    return RoundTimes(ended, tasks.arrived_at - sent_at, tasks.last_end - tasks.first_start, waited)


def simulate_pass(
    task_seconds: Sequence[float], payload_bytes: Sequence[float], result_bytes: Sequence[float], fleet: Fleet
) -> float:
    """Simulate one round of tasks that the coordinator does nothing but wait for; return its seconds.

    Parameters
    ----------
    task_seconds, payload_bytes, result_bytes : sequences
        By task.
    """
    simulation = _Simulation()
    own, machines = _machines(simulation, fleet)
    tasks = _Tasks(simulation, fleet, machines, task_seconds, result_bytes)

    def coordinator() -> _Process:
        for task, count in enumerate(payload_bytes):
            yield own.compute(fleet.network.submit_seconds)
            tasks.send(task, count)
        yield tasks.all_in

    simulation.start(coordinator())
    simulation.run()
    return simulation.now
