"""Decisions of a ladder from numbers alone: a rough problem is told early, and the cheaper step is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.ladder import (
    ExactModel,
    LadderPlan,
    LadderTarget,
    Rung,
    Step,
    passes_seconds,
    product_seconds,
    rung_seconds,
)
from dkgp.models.sparse.settings import SparseSettings
from dkgp.solvers import Choice
from dkgp.solvers.greedy_basis import GreedySettings
from dkgp.solvers.stopping import StopReason

N, D = 1_000_000, 8


def plan_of(distance: float = 0.01, exact_seconds: float | None = None, **more: Any) -> LadderPlan:
    choice = Choice("pcg", "as it is", {}, halo=800, leaf=400, rank=0)
    seconds = passes_seconds(N, D, 1, choice, 30.0) if exact_seconds is None else exact_seconds
    target = LadderTarget(distance, largest=more.pop("largest", None))
    exact = ExactModel(choice, seconds, 1)
    return LadderPlan(N, D, 1, SparseSettings(**more), target, exact, lambda size: 8 * size**2, None)


def certificate(m: int, risk: float, least: float = 0.0) -> SparseCertificate:
    return SparseCertificate(N, m, 0.005, (2.0 * risk,), (risk,), {"subset": (least,)}, (1.0,), (1.0,))


def moves(plan: LadderPlan, risks: list[float], least: float, steps: list[Step]) -> list[Any]:
    """What comes after each rung, the ladder having been there before."""
    rungs: list[Rung] = []
    found: list[Any] = []
    for number, risk in enumerate(risks):
        here = certificate(128 * 2**number, risk, least)
        found.append(plan.move(rungs, here, steps, False))
        rungs.append(Rung.of(here, 0.0, 0, 0.0))
    return found


def test_a_rough_problem_is_told_early() -> None:
    """kin40k's falls: by a half each time, and five powers of ten to go."""
    found = moves(plan_of(), [9.3e7, 5.1e7, 2.8e7], 0.0, [])
    assert found[:2] == ["grow", "grow"]
    assert isinstance(found[2], StopReason)
    assert not found[2].converged
    assert found[2].rule == "exact"
    assert "as the last ones fell" in found[2].message


def test_a_smooth_problem_goes_on() -> None:
    found = moves(plan_of(), [4.0e6, 8.0e5, 8.0e4], 0.0, [])
    assert found == ["grow", "grow", "grow"]


def test_a_user_who_says_how_far_is_not_told() -> None:
    assert moves(plan_of(largest=10_000), [9.3e7, 5.1e7, 2.8e7], 0.0, []) == ["grow"] * 3


def test_the_bound_is_raised_where_growing_moves_little() -> None:
    # Growing took off a hundredth of what is left: it is not the basis.
    stuck = [4.10e6, 4.06e6, 4.05e6, 4.049e6, 4.0489e6, 4.0488e6]
    found = moves(plan_of(largest=10_000), stuck, 0.0, [])
    assert "solve" in found[3:]
    # Once products have gained next to nothing, more of them would not either.
    told = moves(plan_of(largest=10_000), stuck, 0.0, [Step("solve", 128, 2.0, 4.0e6), Step("solve", 128, 4.0, 1.0)])
    assert told == ["grow"] * 6
    # Nor where a user will have none.
    assert moves(plan_of(largest=10_000, certify_passes=1.0), stuck, 0.0, []) == ["grow"] * 6


def test_a_product_comes_first_where_the_residual_is_near_the_solution() -> None:
    plan, here, below = plan_of(largest=10_000), certificate(256, 4.05e6), Rung.of(certificate(128, 4.1e6), 0.0, 0, 0.0)
    assert plan.move([below], here, [], False, remaining_excess=2.0e4) == "product"
    assert plan.move([below], here, [], False, remaining_excess=4.0e6) != "product"
    assert plan.move([below], here, [Step("product", 256, 1.0, 4.0e6)], False, remaining_excess=2.0e4) != "product"
    assert plan.move([below], here, [Step("product", 128, 1.0, 4.0e6)], False, remaining_excess=2.0e4) == "product"
    # It is cheaper than a part of the solve, which verifies its gradient by a product, too.
    assert product_seconds(N, D, 1) < passes_seconds(N, D, 1, plan.exact.choice, 2.0)


def test_a_target_that_is_met_is_told() -> None:
    (found,) = moves(plan_of(0.01), [4.0e6 + 9_990.0], 4.0e6, [])
    assert isinstance(found, StopReason)
    assert found.converged
    assert certificate(128, 4.0e6 + 9_990.0, 4.0e6).rms_bound[0] == pytest.approx(np.sqrt(2 * 9_990 * 0.005 / N))


def test_a_step_dearer_than_the_exact_model_is_not_taken() -> None:
    plan = plan_of(exact_seconds=1e-3)
    (found,) = moves(plan, [4.0e6], 0.0, [])
    assert isinstance(found, StopReason)
    assert "256 would take" in found.message


def test_rungs_cost_what_they_count() -> None:
    # Eight times the operations for twice the basis, once these outweigh the entries.
    assert rung_seconds(N, D, 40_000) / rung_seconds(N, D, 20_000) == pytest.approx(4.0, rel=0.2)
    blind, greedy = rung_seconds(N, D, 2000), rung_seconds(N, D, 2000, 1000, GreedySettings(2000, per_round=20))
    screened = rung_seconds(N, D, 2000, 1000, GreedySettings(2000, per_round=20, screen=2, score_rows=2048))
    assert blind < screened < greedy
    # Scoring all candidates of a draw by refits is what a greedy choice takes: kappa times a fit's product.
    assert greedy / blind > 20.0


def test_products_cost_what_they_count() -> None:
    exact = Choice("pcg", "", {}, halo=0, leaf=None, rank=300)
    few, many = (passes_seconds(N, D, 1, exact, count) for count in (2.0, 12.0))
    entry = 1e-9 * (0.30 + 0.012 * D)
    assert many - few == pytest.approx(10.0 * (N * N / 2.0) * entry, rel=0.2)
    greedy, factor = Choice("gbcd", "", {}), Choice("cholesky", "", {})
    assert passes_seconds(N, D, 1, greedy, 2.0) > passes_seconds(N, D, 1, greedy, 1.0)
    assert passes_seconds(N, D, 1, factor, 2.0) == passes_seconds(N, D, 1, factor, 1.0)
