"""Ladders of bases: the climb and its decisions."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.codec import to_json
from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError
from dkgp.kernels import Kernel, Matern32, SquaredExponential
from dkgp.models.solver_choice import choose_solver_for
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.ladder import (
    ExactModel,
    LadderPlan,
    LadderTarget,
    Rung,
    Step,
    climb,
    passes_seconds,
    product_seconds,
    rung_seconds,
)
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.train import SparseProblem, TrainedSparse
from dkgp.solvers import Choice
from dkgp.solvers.greedy_basis import GreedySettings
from dkgp.solvers.stopping import StopReason
from tests.resuming import Resuming, Wish
from tests.watching import in_context

N, S2 = 900, 0.05
ROUGH: Kernel = Matern32(gamma=(3.0, 4.0))
SMOOTH: Kernel = SquaredExponential(gamma=(0.3, 0.2))


def problem(n: int = N, seed: int = 3) -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    wave = np.sin(2.0 * X[:, 0]) + X[:, 1]
    return memory_dataset(X, np.column_stack([wave, X[:, 1] ** 2]) + 0.2 * rng.standard_normal((n, 2)))


def climbed(
    executor: Any,
    target: LadderTarget,
    kernel: Kernel = ROUGH,
    dataset: Dataset | None = None,
    keywords: dict[str, Any] | None = None,
    **settings: Any,
) -> TrainedSparse:
    data = problem() if dataset is None else dataset
    options = dict(keywords or {})
    context = in_context(executor, options)
    return climb(SparseProblem.of(data, kernel, S2), context, SparseSettings(**settings), target, **options)


def exact_distance(found: TrainedSparse, dataset: Dataset, kernel: Kernel) -> np.ndarray:
    """Root mean square of the means' difference, by dense algebra: (p,)."""
    X, y = dataset.inputs(0, dataset.n_samples), dataset.all_targets()
    K = kernel(X, X)
    exact = K @ np.linalg.solve(K + S2 * np.eye(len(X)), y)
    return np.asarray(np.sqrt(np.mean((found.model.mean(X) - exact) ** 2, axis=0)))


def same(first: TrainedSparse, second: TrainedSparse) -> None:
    """All but the clock."""
    np.testing.assert_array_equal(first.model.weights, second.model.weights)
    assert first.certificate.to_json() == second.certificate.to_json()
    timeless = [
        [{**rung, "seconds": 0.0, "entries": 0} for rung in found.summary["ladder"]["rungs"]]
        for found in (first, second)
    ]
    assert timeless[0] == timeless[1]
    assert [first.summary[name] for name in ("reason", "advice", "converged")] == [
        second.summary[name] for name in ("reason", "advice", "converged")
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "vfe"},
        {"method": "sr", "basis": "uniform"},
        {"method": "dtc", "basis": "variance"},
        {"method": "sggp", "candidates": 5},
        {"method": "mpgp", "per_round": 16, "candidates": 5},
    ],
)
def test_rungs_are_nested(settings: dict[str, Any], one_thread: LocalExecutor) -> None:
    out_of_reach, few = 1e-7, problem(400)
    found = [
        climbed(one_thread, LadderTarget(out_of_reach, largest=size), dataset=few, certify_passes=1e-9, **settings)
        for size in (128, 256, 300)
    ]
    bases = [each.basis.indices for each in found]
    assert [len(basis) for basis in bases if basis is not None] == [128, 256, 300]
    for smaller, larger in pairwise(bases):
        np.testing.assert_array_equal(larger[: len(smaller)], smaller)
    # So the risk falls from rung to rung.
    risks = [np.asarray(rung["risk"]) for rung in found[-1].summary["ladder"]["rungs"]]
    assert [rung["size"] for rung in found[-1].summary["ladder"]["rungs"]] == [128, 256, 300]
    assert np.all(risks[0] > risks[1])
    assert np.all(risks[1] > risks[2])
    if found[-1].greedy is not None:
        # As many a round as a basis of the rung's size has, or a user says.
        many = [SparseSettings(basis_size=m, **settings).greedy().per_round for m in (128, 256, 300)]
        rounds = [-(-new // each) for new, each in zip((128, 128, 44), many, strict=True)]
        assert found[-1].summary["rounds"] == sum(rounds)


@pytest.mark.spread(1)
@pytest.mark.covering
@pytest.mark.parametrize("method", ["vfe", "fitc", "sggp"])
@pytest.mark.parametrize(("kernel", "distance"), [(SMOOTH, 0.01), (SMOOTH, 0.001), (ROUGH, 0.1)])
def test_a_target_that_is_met_is_true_of_the_dense_exact_model(
    method: str, kernel: Kernel, distance: float, one_thread: LocalExecutor
) -> None:
    dataset = problem()
    found = climbed(one_thread, LadderTarget(distance, largest=N), kernel, dataset, method=method, candidates=10)
    summary = found.summary
    assert json.loads(json.dumps(summary)) == summary
    if method == "fitc" and not found.converged:
        # Its mean is not the exact one's neighbour, whatever the basis.
        assert summary["ladder"]["rungs"][-1]["distance"] > distance
        return
    if method == "sggp" and not found.converged:
        # What the targets' sums can tell apart ends before what the kernel can.
        assert distance == 0.001
        assert "further samples change nothing in float64" in summary["reason"]
        assert "choose a pivoted `basis`" in summary["advice"]
        return
    assert found.converged
    assert summary["ladder"]["rungs"][-1]["distance"] <= distance
    assert np.all(exact_distance(found, dataset, kernel) <= found.certificate.rms_bound)
    assert np.all(found.certificate.rms_bound <= distance)
    assert f"requested: {distance:g}" in summary["reason"]
    assert found.model.m < N


@pytest.mark.long
def test_a_gap_is_met_by_all_targets_together(one_thread: LocalExecutor) -> None:
    found = climbed(one_thread, LadderTarget(gap=0.02), SMOOTH, method="sggp", candidates=10)
    assert found.converged
    assert found.certificate.total_gap <= 0.02
    assert len(found.greedy.dual) == found.model.m
    both = climbed(one_thread, LadderTarget(1e-9, gap=0.02, largest=128), SMOOTH, method="sggp", candidates=10)
    assert not both.converged


def test_bounds_are_kept_from_rung_to_rung(one_thread: LocalExecutor) -> None:
    seen: list[Rung] = []
    found = climbed(one_thread, LadderTarget(0.02, largest=N), keywords={"rung_callback": seen.append})
    assert to_json(seen) == found.summary["ladder"]["rungs"]
    least = np.asarray([rung.least for rung in seen])
    assert np.all(np.diff(least, axis=0) >= 0.0)
    assert seen[-1].passes > 0.0
    # Nothing that was proven is above the truth.
    dataset = problem()
    X, y = dataset.inputs(0, N), dataset.all_targets()
    truth = 0.5 * np.sum(y * np.linalg.solve(ROUGH(X, X) + S2 * np.eye(N), y), axis=0)
    assert np.all(least <= truth)
    assert np.all(np.asarray([rung.risk for rung in seen]) >= truth)


def test_the_exact_model_ends_a_ladder_that_outgrows_it(one_thread: LocalExecutor) -> None:
    dataset = problem()
    found = climbed(one_thread, LadderTarget(1e-6), dataset=dataset)
    summary = found.summary
    assert not found.converged
    assert "times as long as the exact model" in summary["reason"]
    assert "train the exact model" in summary["advice"]
    assert found.model.m < N
    exact = summary["ladder"]["exact"]
    choice = choose_solver_for(SparseProblem.of(dataset, ROUGH, S2))
    assert exact["solver"] == choice.solver
    assert exact["memory_bytes"] > 8 * N * N / 2
    assert exact["distance"] == pytest.approx(float(found.certificate.rms_bound.max()))
    for told in ("would take about", "MiB", f"within {exact['distance']:.3g} of this one's"):
        assert told in exact["words"]
    # Whoever says how far goes there.
    further = climbed(one_thread, LadderTarget(1e-6, largest=600), dataset=dataset)
    assert further.model.m == 600
    assert "the largest basis that was allowed" in further.summary["reason"]
    assert "allow a larger basis" in further.summary["advice"]


def test_memory_ends_a_ladder(one_thread: LocalExecutor) -> None:
    settings = SparseSettings(basis_size=256)
    room = settings.memory(N, 2, 2, one_thread, 2**20, 3).coordinator_bytes
    keywords = {"memory_bytes": room, "cache_bytes": 2**20}
    found = climbed(one_thread, LadderTarget(1e-6, largest=N), keywords=keywords)
    assert not found.converged
    assert found.model.m == 256
    assert "512 are projected to need" in found.summary["reason"]
    assert "more memory" in found.summary["advice"]
    with pytest.raises(MemoryBudgetError, match="a model of 128 basis samples"):
        climbed(one_thread, LadderTarget(1e-6), keywords={"memory_bytes": 2**20})


def test_samples_that_add_nothing_end_a_ladder(one_thread: LocalExecutor) -> None:
    rng = np.random.default_rng(0)
    few = rng.standard_normal((40, 2))
    X = np.tile(few, (10, 1))
    y = np.sin(X[:, :1]) + 0.3 * rng.standard_normal((400, 1))
    dataset = memory_dataset(X, y)
    for settings in ({"method": "vfe"}, {"method": "sggp"}):
        found = climbed(one_thread, LadderTarget(1e-12), SMOOTH, dataset, **settings)
        assert not found.converged
        assert found.model.m <= 40
        assert "further samples change nothing in float64" in found.summary["reason"]
        # The span is all there is: the model is the exact one, as far as the bound can tell.
        assert found.certificate.rms_bound.max() < 2e-3


def test_few_samples_are_a_ladder_of_one_rung(one_thread: LocalExecutor) -> None:
    found = climbed(one_thread, LadderTarget(1e-3), ROUGH, problem(60))
    assert found.converged
    assert [rung["size"] for rung in found.summary["ladder"]["rungs"]] == [60]


@pytest.mark.parametrize("settings", [{"method": "vfe"}, {"method": "sggp", "candidates": 4, "per_round": 32}])
def test_any_number_of_threads_climbs_the_same(settings: dict[str, Any], one_thread: LocalExecutor) -> None:
    two = LocalExecutor(2)
    target = LadderTarget(0.03, largest=300)
    same(climbed(one_thread, target, **settings), climbed(two, target, **settings))
    two.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "kernel", "distance"),
    [
        ({"method": "vfe"}, ROUGH, 0.03),
        pytest.param({"method": "sggp", "candidates": 4, "per_round": 32}, ROUGH, 0.03, marks=pytest.mark.long),
        pytest.param({"method": "vfe", "basis": "uniform"}, SMOOTH, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_a_ladder_that_is_resumed_ends_in_the_same_bits(
    settings: dict[str, Any], kernel: Kernel, distance: float, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    target = LadderTarget(distance, largest=N)

    def run(target: LadderTarget = target, **keywords: Any) -> TrainedSparse:
        return climbed(one_thread, target, kernel, keywords=keywords, **settings)

    kept = Resuming(run, tmp_path, of="this")
    assert kept.whole.summary["ladder"]["rungs"][-1]["passes"] > 0.0
    interruptions, found = 0, None
    while found is None and interruptions < 60:
        try:
            found = kept.resume(every_seconds=0.0, interrupted=Wish(3 * 2**interruptions))
        except InterruptedRunError:
            interruptions += 1
    assert interruptions > 2
    same(found, kept.whole)
    # What is done is found done, and another target is another run.
    same(kept.resume(), kept.whole)
    kept.require_refused("belongs to another run", target=LadderTarget(0.5 * distance, largest=N))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LadderTarget(), "needs a target"),
        (lambda: LadderTarget(-0.1), "`target_distance` must be positive"),
        (lambda: LadderTarget(float("nan")), "`target_distance` must be positive"),
        (lambda: LadderTarget(gap=0.0), "`gap` must be positive"),
        (lambda: LadderTarget(0.1, largest=0), "one sample at least"),
    ],
)
def test_targets_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_gap_is_given_once(one_thread: LocalExecutor) -> None:
    with pytest.raises(InputError, match="given twice"):
        climbed(one_thread, LadderTarget(gap=0.1), method="sggp", gap=0.1)


N_PLAN, D = 1_000_000, 8


def plan_of(distance: float = 0.01, exact_seconds: float | None = None, **more: Any) -> LadderPlan:
    choice = Choice("pcg", "as it is", {}, halo=800, leaf=400, rank=0)
    seconds = passes_seconds(N_PLAN, D, 1, choice, 30.0) if exact_seconds is None else exact_seconds
    target = LadderTarget(distance, largest=more.pop("largest", None))
    exact = ExactModel(choice, seconds, 1)
    return LadderPlan(N_PLAN, D, 1, SparseSettings(**more), target, exact, lambda size: 8 * size**2, None)


def certificate(m: int, risk: float, least: float = 0.0) -> SparseCertificate:
    return SparseCertificate(N_PLAN, m, 0.005, (2.0 * risk,), (risk,), {"subset": (least,)}, (1.0,), (1.0,))


def moves(plan: LadderPlan, risks: list[float], least: float, steps: list[Step]) -> list[Any]:
    """Return the decisions after each rung of the ladder."""
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
    assert "extrapolated, the requested distance" in found[2].message


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
    assert product_seconds(N_PLAN, D, 1) < passes_seconds(N_PLAN, D, 1, plan.exact.choice, 2.0)


def test_a_target_that_is_met_is_told() -> None:
    (found,) = moves(plan_of(0.01), [4.0e6 + 9_990.0], 4.0e6, [])
    assert isinstance(found, StopReason)
    assert found.converged
    assert certificate(128, 4.0e6 + 9_990.0, 4.0e6).rms_bound[0] == pytest.approx(np.sqrt(2 * 9_990 * 0.005 / N_PLAN))


def test_a_step_dearer_than_the_exact_model_is_not_taken() -> None:
    plan = plan_of(exact_seconds=1e-3)
    (found,) = moves(plan, [4.0e6], 0.0, [])
    assert isinstance(found, StopReason)
    assert "256 would take" in found.message


def test_rungs_cost_what_they_count() -> None:
    # Eight times the operations for twice the basis, once these outweigh the entries.
    assert rung_seconds(N_PLAN, D, 40_000) / rung_seconds(N_PLAN, D, 20_000) == pytest.approx(4.0, rel=0.2)
    blind, greedy = (
        rung_seconds(N_PLAN, D, 2000),
        rung_seconds(N_PLAN, D, 2000, 1000, GreedySettings(2000, per_round=20)),
    )
    screened = rung_seconds(N_PLAN, D, 2000, 1000, GreedySettings(2000, per_round=20, screen=2, score_rows=2048))
    assert blind < screened < greedy
    # Scoring all candidates of a draw by refits is what a greedy choice takes: kappa times a fit's product.
    assert greedy / blind > 20.0


def test_products_cost_what_they_count() -> None:
    exact = Choice("pcg", "", {}, halo=0, leaf=None, rank=300)
    few, many = (passes_seconds(N_PLAN, D, 1, exact, count) for count in (2.0, 12.0))
    entry = 1e-9 * (0.30 + 0.012 * D)
    assert many - few == pytest.approx(10.0 * (N_PLAN * N_PLAN / 2.0) * entry, rel=0.2)
    greedy, factor = Choice("gbcd", "", {}), Choice("cholesky", "", {})
    assert passes_seconds(N_PLAN, D, 1, greedy, 2.0) > passes_seconds(N_PLAN, D, 1, greedy, 1.0)
    assert passes_seconds(N_PLAN, D, 1, factor, 2.0) == passes_seconds(N_PLAN, D, 1, factor, 1.0)
