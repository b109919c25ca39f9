"""The simulated round against closed forms, and against a naive loop that moves time on in small steps."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.plan.simulation import Fleet, Network, RoundWork, SelectionStep, simulate_pass, simulate_round

FREE = Network(0.0, 0.0, 0.0, 1e30)
COSTLY = Network(0.010, 0.002, 0.001, 1e6)


def fleet(workers: int, *, threads: int = 1, network: Network = FREE, **others: Any) -> Fleet:
    given = {"speedups": (1.0,), "coordinator_threads": 1, **others}
    return Fleet(workers, threads, network=network, **given)


def work(tasks: tuple[float, ...], steps: tuple[SelectionStep, ...] = ()) -> RoundWork:
    return RoundWork(0.05, 0.02, 0.03, steps, tasks, 1000.0, (500.0,) * len(tasks))


STEPS = tuple(SelectionStep(0.004, 0.006, 0.02) for _ in range(10))


def test_one_worker_without_anything_to_overlap_is_the_sum_of_its_parts() -> None:
    times = simulate_round(replace(work((0.7, 0.3)), vectors_seconds=0.0), fleet(1, network=COSTLY))
    # Two tasks queue on one thread: the first's way there, both computed, the last one's way back.
    sent = 0.001 + 0.001 + 0.001 + 0.005  # submitted; the scheduler's half, 1,000 bytes, half a round trip
    back = 0.001 + 0.0005 + 0.005
    assert times.seconds == pytest.approx(0.05 + sent + 1.0 + back + 0.03)
    assert times.update_seconds == pytest.approx(sent + 1.0 + back)
    assert times.compute_seconds == pytest.approx(1.0)


def test_a_long_update_hides_the_selection_and_costs_its_gradients() -> None:
    times = simulate_round(work((2.0,), STEPS), fleet(1))
    assert times.seconds == pytest.approx(0.05 + 2.0 + 0.03)
    assert times.wait_seconds == pytest.approx(2.0 - 0.02 - 10 * 0.030)


def test_with_enough_workers_the_serial_part_is_left() -> None:
    many = work((1e-9,) * 64, STEPS)
    times = simulate_round(many, fleet(64))
    by_itself = many.solve_seconds + many.vectors_seconds + many.arrival_seconds + many.selection_seconds(1.0)
    assert times.seconds == pytest.approx(by_itself, rel=1e-6)
    assert times.wait_seconds == 0.0


def test_gradients_of_candidates_cost_the_coordinator_only_until_the_update_is_in() -> None:
    # Each step takes 0.03 while the update is under way, 0.01 afterwards; the first begins at 0.02.
    times = simulate_round(work((0.1,), STEPS), fleet(1))
    begun_before = 3  # at 0.02, 0.05, 0.08; the fourth begins at 0.11
    assert times.seconds == pytest.approx(0.05 + 0.02 + begun_before * 0.03 + 7 * 0.01 + 0.03)


def test_parallel_steps_take_the_speed_of_their_threads() -> None:
    steps = (SelectionStep(0.9, 0.0, 0.0),)
    times = simulate_round(work((1e-9,), steps), fleet(1, speedups=(1.0, 1.8), coordinator_threads=2))
    assert times.seconds == pytest.approx(0.05 + 0.02 + 0.5 + 0.03, rel=1e-6)


def test_workers_on_one_machine_share_its_speed() -> None:
    shared = fleet(2, speedups=(1.0, 1.2), one_machine=True)
    apart = fleet(2, speedups=(1.0, 1.2))
    assert simulate_pass((1.0, 1.0), (0, 0), (0, 0), shared) == pytest.approx(2.0 / 1.2)
    assert simulate_pass((1.0, 1.0), (0, 0), (0, 0), apart) == pytest.approx(1.0)
    # A third worker finds no third core.
    assert simulate_pass((1.0,) * 3, (0,) * 3, (0,) * 3, replace(shared, workers=3)) == pytest.approx(3.0 / 1.2)


def test_tasks_queue_for_threads() -> None:
    assert simulate_pass((1.0,) * 8, (0,) * 8, (0,) * 8, fleet(2, threads=2, speedups=(1.0, 2.0))) == pytest.approx(2.0)
    uneven = simulate_pass((3.0, 1.0, 1.0, 1.0), (0,) * 4, (0,) * 4, fleet(2))
    assert uneven == pytest.approx(4.0)  # 3 and its successor on the first worker


def test_messages_pass_the_scheduler_one_after_another() -> None:
    seconds = simulate_pass((0.0,) * 100, (1e4,) * 100, (1e4,) * 100, fleet(100, network=Network(0, 0.002, 0, 1e6)))
    assert seconds == pytest.approx(100 * 2 * (0.001 + 0.01))


@given(
    tasks=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12),
    step=st.tuples(st.floats(0.0, 0.1), st.floats(0.0, 0.1), st.floats(0.0, 0.1)),
)
def test_another_worker_never_makes_the_update_longer(tasks: list[float], step: tuple[float, float, float]) -> None:
    # Equal tasks: with unequal ones, going round the workers may put two long ones together.
    chosen = work((max(tasks),) * len(tasks), (SelectionStep(*step),) * 5)
    times = [simulate_round(chosen, fleet(workers, network=COSTLY)).update_seconds for workers in range(1, 14)]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(times))
    assert times[11] == pytest.approx(times[12])  # no task is left for it


def naive_round(chosen: RoundWork, given: Fleet, step: float) -> float:
    """Move time on by `step`: everybody who has something to do gets their share of their machine."""
    network = given.network
    stages: list[list[float]] = [[chosen.solve_seconds, 1.0]]
    submit = [[network.submit_seconds, 1.0] for _ in chosen.task_seconds]
    stages += submit
    submitted_from = 1
    stages.append([chosen.vectors_seconds, 1.0])
    first_selection = len(stages)
    for each in chosen.selection:
        stages += [
            [each.pending_seconds, 1.0],
            [each.parallel_seconds, float(given.coordinator_threads)],
            [each.serial_seconds, 1.0],
        ]
    arrival = [chosen.arrival_seconds, 1.0]
    now, stage, link_free = 0.0, 0, 0.0
    arrives: dict[int, float] = {}  # at a worker
    remaining = list(chosen.task_seconds)
    running: dict[int, int] = {}  # worker thread -> task
    queues: list[list[int]] = [[] for _ in range(given.workers)]
    returned: dict[int, float] = {}
    arrival_left = arrival[0]
    while True:
        # The coordinator's own stages that are finished, or need nothing.
        while stage < len(stages) and stages[stage][0] <= 1e-12:
            if submitted_from <= stage < submitted_from + len(submit):
                task = stage - submitted_from
                link_free = (
                    max(link_free, now) + network.task_seconds / 2 + chosen.payload_bytes / network.bytes_per_second
                )
                arrives[task] = link_free + network.round_trip_seconds / 2
            stage += 1
        done = len(returned) == len(remaining) and all(moment <= now for moment in returned.values())
        if stage < len(stages) and stage >= first_selection and (stage - first_selection) % 3 == 0 and done:
            stages[stage][0] = 0.0  # gradients are at hand
            continue
        for task, moment in list(arrives.items()):
            if moment <= now:
                queues[task % given.workers].append(task)
                del arrives[task]
        for worker, queue in enumerate(queues):
            for thread in range(worker * given.threads_per_worker, (worker + 1) * given.threads_per_worker):
                if thread not in running and queue:
                    running[thread] = queue.pop(0)
        if stage == len(stages) and done:
            if arrival_left <= 1e-12:
                return now
            arrival_left -= step
            now += step
            continue
        busy = int(stages[stage][1]) if stage < len(stages) else 0
        if given.one_machine:
            threads = busy + len(running)
            share = given.speedups[min(max(threads, 1), len(given.speedups)) - 1] / max(threads, 1)
            shares = dict.fromkeys(running, share)
            own = share
        else:
            own = given.speedups[min(max(busy, 1), len(given.speedups)) - 1] / max(busy, 1)
            shares = {}
            for thread in running:
                worker = thread // given.threads_per_worker
                count = sum(other // given.threads_per_worker == worker for other in running)
                shares[thread] = given.speedups[min(count, len(given.speedups)) - 1] / count
        if stage < len(stages):
            stages[stage][0] -= step * own * stages[stage][1]
        now += step
        for thread, task in list(running.items()):
            remaining[task] -= step * shares[thread]
            if remaining[task] <= 1e-12:
                del running[thread]
                link_free = max(link_free, now) + network.task_seconds / 2
                link_free += chosen.result_bytes[task] / network.bytes_per_second
                returned[task] = link_free + network.round_trip_seconds / 2


@pytest.mark.parametrize("one_machine", [False, True])
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (3, 1), (2, 2)])
def test_a_naive_loop_finds_the_same(workers: int, threads: int, one_machine: bool, rng: np.random.Generator) -> None:
    given_fleet = fleet(
        workers,
        threads=threads,
        network=COSTLY,
        speedups=(1.0, 1.7, 2.1),
        coordinator_threads=2,
        one_machine=one_machine,
    )
    steps = tuple(SelectionStep(*rng.uniform(0.005, 0.03, 3)) for _ in range(6))
    chosen = work(tuple(rng.uniform(0.02, 0.2, 5)), steps)
    expected = naive_round(chosen, given_fleet, 2e-5)
    # A step may begin just before or after the update is in; that one decision apart, both agree to the time step.
    found = simulate_round(chosen, given_fleet).seconds
    assert found == pytest.approx(expected, abs=2e-3)
