"""Factors that grow: when it should pay, that it helps a hard problem, and that a broken-off run comes to its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import CheckpointStore
from dkgp.errors import InterruptedRunError
from dkgp.solvers import Checkpointing, ConjugateGradient, FactorPreconditioning, GradientInfNorm, Solution, solve
from dkgp.solvers.conjugate.preconditioner import MOST_LEVELS, WINDOW, Growth, Price
from dkgp.solvers.driver import Watch
from tests.solvers.problems import arm_problem

NOW, LARGER = Price(10.0, 1.0), Price(40.0, 1.1)


def falling(by: float, rounds: int = WINDOW + 1) -> Growth:
    growth = Growth()
    for norm in by ** np.arange(rounds):
        growth.note(float(norm))
    return growth


class TestWhenItPays:
    def test_where_what_is_left_costs_more_than_a_larger_factor(self) -> None:
        # At .9 an iteration 88 are left until 1e-4, and 54 with twice the halo: 34 saved do not pay 60.
        assert not falling(0.9).is_worth(1e4, NOW, LARGER)
        # At .97 it is 302 and 180.
        assert falling(0.97).is_worth(1e4, NOW, LARGER)
        assert falling(1.0).is_worth(1.5, NOW, LARGER)
        assert falling(1.01).is_worth(1.5, NOW, LARGER)

    def test_not_before_the_rate_is_known_nor_without_an_end(self) -> None:
        assert not falling(1.0, WINDOW).is_worth(1e4, NOW, LARGER)
        assert not falling(1.0).is_worth(np.inf, NOW, LARGER)
        assert not falling(1.0).is_worth(1.0, NOW, LARGER)
        assert not Growth(0, [1.0] * WINDOW + [0.0]).is_worth(2.0, NOW, LARGER)

    @pytest.mark.parametrize("share", [0.99, 1.01])
    def test_what_it_may_cost_is_two_thirds_of_what_the_iterations_saved_take(self, share: float) -> None:
        """By the fall over twelve iterations, however the norms went up and down, and with two of zero on the way."""
        rng = np.random.default_rng(7)
        for last in (0.5, 1e-3, 3.0):  # where nothing fell, as if it took a billion iterations to fall by e
            norms = [7.0, *rng.uniform(0.1, 9.0, 11), 7.0 * last]
            norms[1] = norms[-2] = 0.0
            for left in (1.2, 1e5):
                iterations, reached = 1e9 * np.log(left), 1.0
                if last < 1.0:
                    iterations = 0.0
                    while reached * last ** (1 / 12) > 1.0 / left:
                        iterations, reached = iterations + 1.0, reached * last ** (1 / 12)
                    iterations += np.log(left * reached) * 12 / np.log(1.0 / last)
                saved = iterations * (2.0 - 2.1 * 0.5**0.75)
                larger = Price(share * saved / 1.5, 2.1)
                assert bool(Growth(2, norms).is_worth(left, Price(10.0, 2.0), larger)) is (share < 1.0)

    def test_only_the_last_rounds_count_and_only_so_often(self) -> None:
        growth = falling(0.5, 20)
        for _ in range(WINDOW + 1):
            growth.note(1e-3)
        assert growth.is_worth(2.0, NOW, LARGER)
        for level in range(1, MOST_LEVELS + 1):
            growth.grow()
            assert (growth.level, growth.norms) == (level, [])
        for _ in range(WINDOW + 1):
            growth.note(1e-3)
        assert not growth.is_worth(2.0, NOW, LARGER)
        assert Growth.of(growth.metadata()) == growth
        assert Growth.of({"iteration": 3}) == Growth()


PROBLEM = arm_problem(1200)
PROBLEM.noise_variance = 1e-4
SOLVER = ConjugateGradient(FactorPreconditioning(16, 16, 0))
STOPPING = GradientInfNorm(1e-4)


def solved(executor: LocalExecutor, solver: Any = SOLVER, stopping: Any = STOPPING, **watch: Any) -> Solution:
    return solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=stopping, watch=Watch(**watch))


@pytest.fixture(scope="module")
def whole(executor: LocalExecutor) -> Solution:
    return solved(executor)


@pytest.mark.slow
def test_a_hard_problem_is_gone_on_with_by_larger_factors(executor: LocalExecutor, whole: Solution) -> None:
    sizes: list[tuple[int, int]] = []
    solver = ConjugateGradient(
        SOLVER.preconditioner, observe=lambda state: sizes.append((state.growth.level, state.iteration))
    )
    again = solved(executor, solver=solver)
    np.testing.assert_array_equal(again.alpha, whole.alpha)
    assert whole.converged
    assert max(level for level, _ in sizes) >= 2
    # As many rounds as it would take without are not needed.
    limited = FactorPreconditioning(16, 16, 0, memory_bytes=4 * 1200 * 40)
    assert limited.grown(1200) == limited
    without = solved(executor, solver=ConjugateGradient(limited))
    assert whole.progress.iteration < 0.6 * without.progress.iteration


class Killed(BaseException):
    pass


@pytest.mark.parametrize("build", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_while_a_larger_factor_is_built_it_resumes_to_the_same_bits(
    executor: LocalExecutor, whole: Solution, tmp_path: Path, build: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    operator = PROBLEM.blocked(executor)
    submit, count = operator.submit, [0, 0]

    def dying(name: str, *arguments: Any) -> Any:
        count[0] += name == "kvorder"
        count[1] += name == "kvbuild" and count[0] == build + 1
        if count[1] == 3:
            raise Killed
        return submit(name, *arguments)

    monkeypatch.setattr(operator, "submit", dying)
    with pytest.raises(Killed):
        solve(
            operator, PROBLEM.y, solver=SOLVER, stopping=STOPPING, watch=Watch(checkpointing=Checkpointing(store, 0.0))
        )
    latest = store.load_latest()
    assert latest is not None
    assert latest.metadata["state"]["level"] == build - 1
    assert latest.sequence_number >= WINDOW * build
    resumed = solved(executor, checkpointing=Checkpointing(store, 1e9, resume=True))
    np.testing.assert_array_equal(resumed.alpha, whole.alpha)
    np.testing.assert_array_equal(resumed.gradient, whole.gradient)
    assert [each.gradient_norm for each in resumed.history] == [each.gradient_norm for each in whole.history]


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_broken_off_anywhere_it_resumes_to_the_same_bits(
    executor: LocalExecutor, whole: Solution, tmp_path: Path, share: float
) -> None:
    store, done = CheckpointStore(tmp_path / "checkpoints"), [0]
    last = round(share * (len(whole.history) - 1))
    with pytest.raises(InterruptedRunError):
        solved(
            executor,
            checkpointing=Checkpointing(store, 1e9),
            callback=lambda progress: done.__setitem__(0, progress.iteration),
            interrupted=lambda: done[0] >= last,
        )
    resumed = solved(executor, checkpointing=Checkpointing(store, 1e9, resume=True))
    np.testing.assert_array_equal(resumed.alpha, whole.alpha)
    np.testing.assert_array_equal(resumed.gradient, whole.gradient)
    assert resumed.refreshes == whole.refreshes
