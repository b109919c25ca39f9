"""Stopping rules: each alone, and together."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace

import pytest

from dkgp.errors import InputError
from dkgp.solvers import (
    DualityGap,
    GradientInfNorm,
    MaxIterations,
    MaxPasses,
    MaxSeconds,
    ObjectiveGap,
    Progress,
    RelativeResidual,
)

PROGRESS = Progress(
    iteration=7,
    column_passes=2.5,
    kernel_evaluations=1000,
    seconds=12.0,
    gradient_inf_norm=1e-3,
    gradient_norm=0.02,
    relative_residual=1e-2,
    objective=-50.0,
    objective_gap_bound=0.05,
    timings={"select": 0.1234567891},
    duality_gap=0.02,
)


@pytest.mark.parametrize(
    ("make", "value", "name", "converged"),
    [
        (GradientInfNorm, 1e-3, "gradient_inf_norm", True),
        (RelativeResidual, 1e-2, "relative_residual", True),
        (ObjectiveGap, 1e-3, "objective_gap", True),
        (DualityGap, 0.02, "duality_gap", True),
        (MaxIterations, 7, "max_iterations", False),
        (MaxPasses, 2.5, "max_passes", False),
        (MaxSeconds, 12.0, "max_seconds", False),
    ],
)
class TestOneRule:
    def test_stops_at_its_value_and_not_before(self, make, value, name: str, converged: bool) -> None:
        reason = make(value).check(PROGRESS)
        assert reason is not None
        assert (reason.rule, reason.converged) == (name, converged)
        assert bool(reason.advice) is not converged
        strictest = 0.99 * value if converged else 1.01 * value
        assert make(strictest).check(PROGRESS) is None

    def test_stops_far_beyond_its_value_too(self, make, value, name: str, converged: bool) -> None:
        reason = make(100 * value if converged else value / 7).check(PROGRESS)
        assert reason is not None
        assert (reason.rule, reason.converged) == (name, converged)
        assert make(value / 100 if converged else 100 * value).check(PROGRESS) is None

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_values_that_make_no_sense_are_refused(self, make, value, name: str, converged: bool, bad: float) -> None:
        with pytest.raises(InputError, match=f"must be finite and above 0; got {bad}"):
            make(bad)

    def test_pickles(self, make, value, name: str, converged: bool) -> None:
        rule = make(value) | MaxPasses(9)
        assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize("rule", [GradientInfNorm(1e-4), RelativeResidual(1e-4), ObjectiveGap(1e-4), DualityGap(1e-4)])
def test_nothing_has_converged_where_the_numbers_are_not_finite(rule) -> None:
    for bad in (math.nan, math.inf):
        progress = replace(
            PROGRESS,
            gradient_inf_norm=bad,
            gradient_norm=bad,
            relative_residual=bad,
            objective=bad,
            objective_gap_bound=bad,
            duality_gap=bad,
        )
        reason = rule.check(progress)
        assert reason is None or not reason.converged


def test_tolerances_that_are_not_told_are_the_papers() -> None:
    assert GradientInfNorm() == GradientInfNorm(1e-4)
    assert RelativeResidual() == RelativeResidual(1e-4)
    assert ObjectiveGap() == ObjectiveGap(1e-6)
    assert DualityGap() == DualityGap(0.025)


def test_objective_gap_is_relative_to_the_objective() -> None:
    assert ObjectiveGap(1e-3).check(replace(PROGRESS, objective=-49.0)) is None
    assert ObjectiveGap(1e-3).check(replace(PROGRESS, objective=50.0)) is not None


MET, ALSO_MET, UNMET = GradientInfNorm(1.0), RelativeResidual(1.0), GradientInfNorm(1e-9)
SPENT, UNSPENT = MaxPasses(1), MaxPasses(100)


@pytest.mark.parametrize(
    ("rule", "name", "converged"),
    [
        (MET | UNSPENT, "gradient_inf_norm", True),
        (UNMET | SPENT, "max_passes", False),
        (SPENT | MET, "gradient_inf_norm", True),
        (SPENT | MaxIterations(1), "max_passes", False),
        (UNMET | UNSPENT | ALSO_MET, "relative_residual", True),
        (MET & ALSO_MET, "gradient_inf_norm & relative_residual", True),
        (MET & SPENT, "gradient_inf_norm & max_passes", False),
        ((UNMET & SPENT) | MaxIterations(7), "max_iterations", False),
    ],
)
def test_combinations(rule, name: str, converged: bool) -> None:
    reason = rule.check(PROGRESS)
    assert (reason.rule, reason.converged) == (name, converged)


@pytest.mark.parametrize("rule", [UNMET | UNSPENT, MET & UNMET, MET & UNSPENT, (MET & UNMET) | UNSPENT])
def test_combinations_that_do_not_stop(rule) -> None:
    assert rule.check(PROGRESS) is None


def test_joint_reason_tells_all_of_it() -> None:
    reason = (MaxPasses(1) & MaxSeconds(1)).check(PROGRESS)
    assert "passes over the kernel matrix was reached; the limit of" in reason.message
    assert "`max_passes`" in reason.advice
    assert "`max_seconds`" in reason.advice


def test_progress_survives_json() -> None:
    document = json.loads(json.dumps(PROGRESS.to_json()))
    assert Progress(**document) == replace(PROGRESS, timings={"select": 0.123457})


def test_what_is_left_is_by_how_much_the_gradient_must_fall() -> None:
    at = replace(PROGRESS, gradient_inf_norm=3e-3, relative_residual=5e-3, duality_gap=4.0, objective=-2.0)
    norm, residual, effort = GradientInfNorm(1e-3), RelativeResidual(1e-3), MaxPasses(1.0)
    assert norm.needed_fall(at) == pytest.approx(3.0)
    assert residual.needed_fall(at) == pytest.approx(5.0)
    assert DualityGap(0.25).needed_fall(at) == pytest.approx(4.0)  # it falls with the gradient's square
    assert DualityGap(0.25).needed_fall(replace(at, duality_gap=-1e-20)) == 0.0
    gap = replace(at, objective_gap_bound=1.8)
    assert ObjectiveGap(0.1).needed_fall(gap) == pytest.approx(3.0)
    assert ObjectiveGap(0.1).needed_fall(replace(gap, objective=0.0)) == math.inf
    assert effort.needed_fall(at) == math.inf
    assert (norm | residual | effort).needed_fall(at) == norm.needed_fall(at)
    assert (norm & residual).needed_fall(at) == residual.needed_fall(at)
    assert (norm & effort).needed_fall(at) == math.inf


def test_rules_about_effort_limit_it_alone_and_together() -> None:
    effort, solved = MaxPasses(3.0), GradientInfNorm(1e-4)
    assert effort.limits_effort
    assert MaxIterations(3).limits_effort
    assert MaxSeconds(3.0).limits_effort
    assert not solved.limits_effort
    assert (effort | solved).limits_effort
    assert not (effort & solved).limits_effort
