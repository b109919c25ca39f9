"""What risk methods decide by: projections of "auto", steps of length zero in float32, doubt, and memory."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.solvers.losses import LogisticLoss
from dkgp.solvers.prices import Prices
from dkgp.solvers.risk import RiskNewton, method, risk_memory
from dkgp.solvers.risk.method import RiskConjugateGradient, RiskParameterConjugateGradient
from dkgp.solvers.risk.newton import LARGEST_RANK, USUAL_GAP, WINDOW, AutoState, RiskAuto, affordable_rank
from dkgp.solvers.risk.problem import Risk
from tests.solvers.problems import smooth_problem

PROBLEM = smooth_problem(40, 2, gamma=10.0)
LABELS = np.where(PROBLEM.y > 0.1, 1.0, -1.0)
RISK = Risk(LogisticLoss(), 0.1)


@pytest.mark.parametrize(
    ("left", "width", "gap", "expected"),
    [
        (3.0, 8.0, 2.0, 9.0 * 4.0),  # the width must come down to the gap, and fall by the rule's share
        (3.0, 3.0, 2.0, 9.0 * 1.5),
        (3.0, 1.0, 2.0, 9.0),  # the gap, by an earlier bound, is what the rule speaks of
        (3.0, 8.0, 0.0, 9.0),
        (math.inf, 8.0, 2.0, 8.0 / (USUAL_GAP * 5.0)),
    ],
)
def test_by_how_much_a_width_must_fall(left: float, width: float, gap: float, expected: float) -> None:
    state: Any = SimpleNamespace(needed_fall=left, risks=np.array([2.0, 3.0]), bound=np.array([2.0, 3.0 - gap]))
    assert AutoState._fall(state, width) == pytest.approx(expected)
    nothing: Any = SimpleNamespace(needed_fall=math.inf, risks=np.zeros(2), bound=np.zeros(2))
    assert AutoState._fall(nothing, width) == 1.0


def projected(widths: list[float], wanted: float) -> float | None:
    """Products by two halves of the window: the fall of the best of each, carried on."""
    last = widths[-WINDOW:]
    if len(last) < WINDOW:
        return None
    early, late = min(last[: WINDOW // 2]), min(last[WINDOW // 2 :])
    if wanted <= 1.0:
        return 0.0
    return math.log(wanted) / math.log(early / late) * (WINDOW / 2) if late < early else math.inf


@pytest.mark.parametrize("rate", [0.5, 0.9, 1.0, 1.1])
def test_products_are_projected_from_the_last_iterations(rate: float, rng: np.random.Generator) -> None:
    widths = [float(rate**k * rng.uniform(0.9, 1.1)) for k in range(WINDOW + 7)]
    state: Any = SimpleNamespace(widths=[], projected=None, _fall=lambda width: 50.0 * width)
    for k, width in enumerate(widths):
        state.width = np.array([0.25 * width, 0.75 * width])
        AutoState.note_width(state)
        late = min(widths[: k + 1][-WINDOW // 2 :])
        expected = projected(widths[: k + 1], 50.0 * late)
        assert (state.projected is None) == (expected is None)
        assert expected is None or state.projected == pytest.approx(expected)
    state.width = np.array([math.nan])
    before = list(state.widths)
    AutoState.note_width(state)
    assert state.widths == before


@pytest.mark.parametrize(("n", "p", "d"), [(3000, 1, 4), (10_000, 3, 8), (10_000, 250, 8)])
def test_newton_says_what_its_factor_holds(n: int, p: int, d: int) -> None:
    rank = affordable_rank(n, d, p)
    pivots = 3 * np.empty((rank, rank)).nbytes + np.empty((rank, samples_drawn_from(rank))).nbytes
    apart, coupled = p * np.empty((rank, rank)).nbytes, np.empty((min(p * rank, LARGEST_RANK),) * 2).nbytes
    whole = np.empty((n, n)).nbytes if p == 1 and n == 3000 else 0
    assert risk_memory("newton", n, p, d).own_bytes == pivots + max(apart, coupled, whole)
    assert risk_memory("auto", n, p, d).own_bytes == pivots + max(apart, coupled, whole)


@pytest.mark.parametrize("kind", [RiskConjugateGradient, RiskParameterConjugateGradient])
@pytest.mark.parametrize(("length", "after"), [(0.0, "double"), (1.0, "single"), (0.3, "single")])
def test_a_step_of_no_length_in_float32_asks_for_float64(
    kind: Any, length: float, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, steps = PROBLEM.dense(), np.full(1, length)
    monkeypatch.setattr(method, "line_minima", lambda *_: steps)
    solver = kind(RISK, "mixed")
    state = solver.start(operator, LABELS)
    assert state.precision == "single"
    solver.advance(operator, state)
    assert state.precision == after
    np.testing.assert_allclose(state.alpha, length * state.direction)


@pytest.mark.parametrize("kind", [RiskConjugateGradient, RiskNewton])
def test_in_float64_a_step_of_no_length_ends_at_the_minimum_along_the_gradient(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What K g has no digits of is taken off alpha: alpha = -l' / lambda, as at the minimum."""
    operator = PROBLEM.dense()
    solver = kind(RISK, "double").resolved(40, 2)
    state = solver.start(operator, LABELS)
    gradient, state.until = state.gradient.copy(), 0  # Newton's first step, without descents before it
    monkeypatch.setattr(method, "line_minima", lambda *_: np.zeros(1))
    while not state.alpha.any():
        solver.advance(operator, state)
    np.testing.assert_allclose(state.alpha, -gradient / RISK.regularisation)


@pytest.mark.parametrize(("share", "settles"), [(1e-14, True), (1e-12, False)])
def test_where_the_image_of_the_gradient_vanishes_alpha_settles(
    share: float, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the search along the line comes to."""
    state = RiskConjugateGradient(RISK, "double").start(PROBLEM.dense(), LABELS)
    gradient, line = state.gradient.copy(), (np.ones((40, 1)), np.full((40, 1), 2.0))
    monkeypatch.setattr(method, "line_minima", lambda *_: np.full(1, 0.25))
    taken = method.descend_or_settle(state, line, share * gradient, (-3.0 * gradient, gradient), 0.5)
    np.testing.assert_allclose(state.alpha, -1.5 * gradient if settles else np.full((40, 1), 0.25))
    np.testing.assert_array_equal(taken[0], -3.0 * gradient if settles else line[0])
    np.testing.assert_allclose(state.values, 0.5 * gradient if settles else np.full((40, 1), 0.5))


def test_doubt_doubles_where_float64_did_not_confirm() -> None:
    operator = PROBLEM.dense()
    solver = RiskConjugateGradient(RISK, "double")
    state = solver.start(operator, LABELS)
    assert state.doubt == 1.0
    for expected in (2.0, 4.0):
        solver.advance(operator, state)
        state.renew_gradient(operator)
        assert state.doubt == expected
    # What is exact already is confirmed, not doubted.
    state.renew_gradient(operator)
    assert state.doubt == 4.0
    single = RiskConjugateGradient(RISK, "mixed")
    state = single.start(operator, LABELS)
    single.advance(operator, state)
    state.renew_gradient(operator)
    assert state.doubt == 1.0


def test_a_step_that_is_given_up_leaves_nothing(rng: np.random.Generator) -> None:
    operator = PROBLEM.dense()
    state = RiskAuto(RISK).start(operator, LABELS)
    state.inner, state.refreshed, state.energy = 3, True, rng.uniform(size=1)
    for name in ("newton_image", "along", "along_image", "residual", "search"):
        setattr(state, name, rng.standard_normal((40, 1)))
    state.give_up_the_step()
    held = (state.newton_image, state.along, state.along_image, state.residual, state.search, state.energy)
    assert [array.size for array in held] == [0] * 6
    assert (state.inner, state.root, state.refreshed) == (0, None, False)


@pytest.mark.parametrize(("n", "d", "p"), [(1000, 2, 1), (1000, 2, 3), (30_000, 104, 1)])
def test_a_steps_algebra_takes_as_long_as_a_few_products(n: int, d: int, p: int) -> None:
    rank, prices = affordable_rank(n, d, p), Prices.nominal(d)
    # A product evaluates half of the entries, and meets a fraction of a round's nominal seconds.
    product = n * n * (0.5 * prices.entries + 2.0 * p * prices.operations) + 5e-4
    assert n * rank**2 * p * prices.double_operations == pytest.approx(4.0 * product, rel=0.02)
    # The wait for a round does not pay for an algebra that grows with a cube, where there are few samples.
    assert rank < n / 3
