"""Refining on all samples: steps on functions of known maxima, the space of a search, and whole refinements."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.codec import to_json
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.refinement import estimates as refine_gradient
from dkgp.models.refinement import refine as refine_module
from dkgp.models.refinement.record import Refinement, RefineSettings, RefineStep, plan_refinement, product_bytes
from dkgp.models.refinement.refine import RADIUS, Point, QuasiNewton, RefineSpace, estimated_gain, gain_error, refine
from dkgp.operators.product_error import ProductMemory
from tests.models.refinement.refine_problems import ArrayDataset, dense_gradient, draw, log_likelihood
from tests.watching import in_context

Gradient = Callable[[np.ndarray], np.ndarray]
FREE = np.array([True, True, True])
WIDE = np.array([[-10.0, 10.0]] * 3)


def climb(gradient: Gradient, start: np.ndarray, search: QuasiNewton, steps: int) -> list[Point]:
    point = Point(start, gradient(start), np.full(start.shape, 1e-3))
    points = [point]
    for _ in range(steps):
        there = search.propose(point)
        new = Point(there, gradient(there), point.error)
        if search.learn(point, new):
            point = new
            points.append(point)
    return points


def quadratic(hessian: np.ndarray, top: np.ndarray) -> Gradient:
    return lambda at: -hessian @ (at - top)


def test_it_reaches_the_top_of_a_quadratic_in_few_steps(rng: np.random.Generator) -> None:
    half = rng.normal(size=(3, 3))
    hessian, top = half @ half.T + np.diag([100.0, 10.0, 1.0]), np.array([0.6, -0.4, 0.3])
    # The curvature to start with is off by factors, as an estimate's is.
    search = QuasiNewton(WIDE, 3.0 * hessian.diagonal(), FREE)
    points = climb(quadratic(hessian, top), np.zeros(3), search, 12)
    np.testing.assert_allclose(points[-1].parameters, top, atol=1e-3)


def test_no_step_is_longer_than_the_radius() -> None:
    search = QuasiNewton(WIDE, np.full(3, 1e-6), FREE)
    points = climb(quadratic(np.eye(3), np.full(3, 5.0)), np.zeros(3), search, 15)
    steps = np.diff([point.parameters for point in points], axis=0)
    assert np.abs(steps).max() == pytest.approx(RADIUS)
    np.testing.assert_allclose(points[-1].parameters, 5.0, atol=0.05)


def test_bounds_hold_and_a_bound_that_is_pushed_against_ends_the_matter() -> None:
    bounds = np.array([[-10.0, 10.0], [-0.2, 0.2], [-10.0, 10.0]])
    search = QuasiNewton(bounds, np.ones(3), FREE)
    points = climb(quadratic(np.eye(3), np.array([0.5, 3.0, -0.5])), np.zeros(3), search, 10)
    last = points[-1]
    np.testing.assert_allclose(last.parameters, [0.5, 0.2, -0.5], atol=1e-3)
    assert last.gradient[1] > 1.0
    assert search.free(last).tolist() == [True, False, True]
    assert last.significance(search.free(last)) < 1.0 < last.significance(FREE)


def test_what_is_held_fixed_stays() -> None:
    search = QuasiNewton(WIDE, np.ones(3), np.array([True, False, True]))
    points = climb(quadratic(np.eye(3) + 0.3, np.full(3, 1.0)), np.zeros(3), search, 10)
    assert all(point.parameters[1] == 0.0 for point in points)
    assert abs(points[-1].gradient[[0, 2]]).max() < 1e-2


def test_a_step_far_past_the_top_is_taken_back() -> None:
    # Flat where it starts, steep behind the top: Newton's step from a small curvature leads far beyond.
    def gradient(at: np.ndarray) -> np.ndarray:
        return np.where(at < 0.1, 1.0, 1.0 - 200.0 * (at - 0.1))

    search = QuasiNewton(WIDE, np.full(3, 1e-3), FREE)
    points = climb(gradient, np.zeros(3), search, 25)
    assert len(points) < 26  # some were taken back
    np.testing.assert_allclose(points[-1].parameters, 0.105, atol=2e-3)


def test_retreats_end_the_search() -> None:
    search = QuasiNewton(WIDE, np.ones(3), FREE)
    for _ in range(5):
        assert not search.stuck
        search.retreat()
    assert search.stuck


def test_gain_and_its_error(rng: np.random.Generator) -> None:
    hessian, top = np.diag([4.0, 2.0, 1.0]), np.array([0.3, 0.2, 0.1])
    gradient = quadratic(hessian, top)
    start, end = np.zeros(3), np.array([0.2, 0.2, 0.3])
    old, new = (Point(at, gradient(at), np.array([0.1, 0.2, 0.4])) for at in (start, end))

    def value(at: np.ndarray) -> float:
        return -0.5 * float((at - top) @ hessian @ (at - top))

    assert estimated_gain(old, new) == pytest.approx(value(end) - value(start))  # exact for a quadratic
    assert gain_error(old, new) == pytest.approx(np.linalg.norm([0.02, 0.04, 0.12]))


def test_a_component_that_is_negligible_is_not_significant() -> None:
    point = Point(np.zeros(3), np.array([5.0, 1e-3, 0.0]), np.array([5.0, 1e-9, 0.0]))
    assert point.significance(FREE) == pytest.approx(np.sqrt(1.0 / 3.0), rel=1e-3)
    assert point.significance(np.zeros(3, dtype=bool)) == 0.0


NAMES = ("lat", "lon")
ARD = SquaredExponential((0.4, 0.7), 1.7)
SUM = parse_kernel("rbf['lat'] * periodic['lon'] + 0.5 * matern32 + linear", 2, NAMES)


def space_of(kernel: Kernel, **options: object) -> RefineSpace:
    return RefineSpace.of_start(Hyperparameters(kernel, 0.3), NAMES, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", [ARD, SUM, parse_kernel("matern52", 2)], ids=["ard", "sum", "matern"])
@pytest.mark.parametrize("learn_variance", [False, True])
def test_its_first_point_stands_for_the_start(kernel: Kernel, learn_variance: bool) -> None:
    found = space_of(kernel, learn_variance=learn_variance)
    same = found.point(found.first)[0]
    X = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(same(X, X), kernel(X, X), rtol=1e-12)
    assert found.point(found.first)[1] == pytest.approx(0.3)
    assert found.space.names[-1] == "noise_variance"
    assert found.space.named(found.first)["noise_variance"] == pytest.approx(0.3)


def test_an_amplitude_moves_only_where_it_is_learnt() -> None:
    held, learnt = space_of(ARD), space_of(ARD, learn_variance=True)
    assert held.space.names == ("gamma.lat", "gamma.lon", "noise_variance")
    assert learnt.space.names == ("gamma.lat", "gamma.lon", "variance", "noise_variance")
    up = held.point(held.first + 1.0)[0]
    assert isinstance(up, SquaredExponential)
    assert up.variance == 1.7
    np.testing.assert_allclose(up.gamma, np.e * np.array(ARD.gamma))
    # Of all four of the kernel's derivatives and the noise's, those of what moves.
    np.testing.assert_array_equal(held.space.select(np.array([1.0, 2.0, 3.0, 4.0])), [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(learnt.space.select(np.array([1.0, 2.0, 3.0, 4.0])), [1.0, 2.0, 3.0, 4.0])


def test_each_parameter_of_a_composite_is_its_own() -> None:
    found = space_of(SUM)
    assert len(found.space.names) == len(SUM.parameters()) + 1 == len(set(found.space.names))
    for index in range(len(SUM.parameters())):
        moved = found.first.copy()
        moved[index] += 0.1
        before, after = ([parameter.value for parameter in k.parameters()] for k in (SUM, found.point(moved)[0]))
        changed = np.flatnonzero(~np.isclose(before, after, rtol=1e-9))
        assert changed.tolist() == [index]


def test_the_start_is_returned_as_it_was_unless_it_breaks_a_bound() -> None:
    found = space_of(ARD)
    unmoved = found.unmoved()
    assert unmoved.kernel == ARD
    assert [parameter.feature for parameter in unmoved.parameters] == ["lat", "lon", None]
    limited = space_of(ARD, bounds={"gamma.*": (0.5, 2.0)}, fixed={"noise_variance": 0.1}).unmoved()
    np.testing.assert_allclose(limited.gamma, [0.5, 0.7])
    assert limited.noise_variance == pytest.approx(0.1)
    assert [parameter.fixed for parameter in limited.parameters] == [False, False, True]


def test_a_length_scale_that_is_switched_off_stays_so() -> None:
    found = space_of(SquaredExponential((0.5, 0.0)))
    assert found.space.names == ("gamma.lat", "noise_variance")
    moved = found.point(found.first + 0.5)[0]
    assert isinstance(moved, SquaredExponential)
    assert moved.gamma[1] == 0.0


TRUTH, NOISE, N = SquaredExponential((0.8, 0.1), 1.0), 0.1, 400
BAD = Hyperparameters(SquaredExponential((0.1, 1.0)), 0.5)
QUICK = RefineSettings(steps=12, probes=4, rank=30, tolerance=1e-3)
SHORT = replace(QUICK, steps=2)


@pytest.fixture(scope="module")
def data() -> ArrayDataset:
    return draw(np.random.default_rng(5), TRUTH, NOISE, N)


@dataclass
class Run:
    """A refinement, and what it said on its way."""

    found: Refinement
    steps: list[RefineStep]
    said: list[str]


@pytest.fixture(scope="module")
def whole(data: ArrayDataset) -> Run:
    """From a bad start until the gradient is within its error."""
    executor, steps, said = LocalExecutor(2), [], []
    found = run(data, executor, callback=steps.append, note=said.append)
    executor.close()
    return Run(found, steps, said)


def space(data: ArrayDataset, start: Hyperparameters = BAD, **options: Any) -> RefineSpace:
    return RefineSpace.of_start(start, data.feature_names, **options)


def run(data: ArrayDataset, executor: Any, start: Hyperparameters = BAD, **options: Any) -> Refinement:
    options.setdefault("settings", QUICK)
    context = in_context(executor, options)
    return refine(data, space(data, start), context, **options)


def test_bad_hyperparameters_become_good_ones(data: ArrayDataset, whole: Run) -> None:
    found, steps = whole.found, whole.steps
    assert found.kept == "refined"
    assert "kept" in found.verdict
    assert not found.interrupted
    assert found.reason == "the gradient is within its standard error"
    assert found.after.nlpd < found.before.nlpd - 0.1
    assert found.n_held_out == N // 10
    assert len(whole.said) == 1
    better = found.hyperparameters
    np.testing.assert_allclose(better.gamma, TRUTH.gamma, rtol=0.7)
    assert better.noise_variance == pytest.approx(NOISE, rel=0.3)
    # Near the exact optimum of the samples that took part: what is left to gain is small.
    rows = refine_module.held_out_rows(N, QUICK.held_out, QUICK.seed)
    X, y = np.delete(data.X, rows, axis=0), np.delete(data.y, rows, axis=0)
    slope = dense_gradient(better.kernel, better.noise_variance, X, y)[[0, 1, 3]]  # the amplitude does not move
    assert (np.abs(slope) < 6.0 * np.array(list(steps[-1].error.values()))).all()
    old, new = (log_likelihood(each.kernel, each.noise_variance, X, y) for each in (BAD, better))
    assert steps[-1].gain == pytest.approx(new - old, rel=0.1)


def test_every_step_is_on_record(whole: Run) -> None:
    found, steps = whole.found, whole.steps
    assert steps == found.history
    assert [step.step for step in steps] == list(range(len(steps)))
    assert all(0.0 < step.error_norm < np.inf and step.column_passes >= 1.0 for step in steps)
    assert found.column_passes >= sum(step.column_passes for step in steps)
    last = found.hyperparameters.noise_variance
    assert f"s2 {last:.4g}" in str(steps[-1])
    document = to_json(found)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["history"][-1]["values"]["noise_variance"] == last


def test_solves_are_as_tight_as_the_error_of_the_gradient_needs(whole: Run) -> None:
    """Looser than the settings' where the solver's error is a small part, and never at the end where it is not."""
    steps, tolerances = whole.steps, [step.tolerance for step in whole.steps]
    assert tolerances[0] == QUICK.tolerance < max(tolerances) <= refine_module.LOOSEST
    assert all(step.relative_residual <= step.tolerance for step in steps)
    assert steps[-1].solver_share <= refine_module.ROUGH or steps[-1].tolerance == QUICK.tolerance
    for step, after in itertools.pairwise(steps):
        change = min(max(refine_module.SOLVER_PART / step.solver_share, 0.25), 4.0)
        aim = min(max(change * step.tolerance, QUICK.tolerance), refine_module.LOOSEST)
        assert after.tolerance == pytest.approx(aim)


def test_a_rough_gradient_is_no_reason_to_stop(data: ArrayDataset, whole: Run, executor: LocalExecutor) -> None:
    """With systems solved to a tenth at first, the end is that of tight ones."""
    loose = run(data, executor, settings=replace(QUICK, tolerance=0.1)).history[-1]
    assert loose.solver_share > 0.0
    assert loose.tolerance == 0.1
    last = whole.found.history[-1]
    assert last.gain == pytest.approx(loose.gain, abs=6.0 * (last.gain_error + loose.gain_error))


def test_what_is_left_to_gain_is_not_followed_where_no_prediction_shows_it(
    data: ArrayDataset, whole: Run, executor: LocalExecutor, monkeypatch: Any
) -> None:
    monkeypatch.setattr(refine_module, "LEFT", 0.01)
    found = run(data, executor)
    assert found.reason == "at most 3.6 nats are left to gain"
    steps = len(found.history)
    assert steps < len(whole.steps)
    assert found.history == [
        replace(step, seconds=ours.seconds) for step, ours in zip(whole.steps, found.history, strict=False)
    ]
    assert whole.steps[-1].gain - found.history[-1].gain < 2.0 * 3.6


def test_what_predicts_worse_is_not_kept(data: ArrayDataset, executor: LocalExecutor, monkeypatch: Any) -> None:
    scored = refine_module.score_held_out
    calls: list[int] = []

    def reversed_score(*arguments: Any, **options: Any) -> Any:
        found = scored(*arguments, **options)
        calls.append(1)
        return replace(found, losses=found.losses + (len(calls) - 1) * 10.0)

    monkeypatch.setattr(refine_module, "score_held_out", reversed_score)
    found = run(data, executor, settings=SHORT)
    assert found.kept == "start"
    assert "did not improve" in found.verdict
    assert "worse" in found.verdict
    assert found.hyperparameters.kernel == BAD.kernel
    assert found.hyperparameters.noise_variance == BAD.noise_variance
    assert found.history[-1].noise_variance != BAD.noise_variance


def test_where_there_is_nothing_to_gain_nothing_moves(data: ArrayDataset, whole: Run, executor: LocalExecutor) -> None:
    first = whole.found.hyperparameters
    again = run(data, executor, first)
    assert again.kept == "start"
    assert len(again.history) == 1
    assert "nothing was gained" in again.verdict
    assert again.hyperparameters.kernel == first.kernel


def test_steps_are_limited_and_validation_can_be_left_out(data: ArrayDataset, executor: LocalExecutor) -> None:
    found = run(data, executor, settings=replace(QUICK, steps=1, held_out=0))
    assert found.kept == "refined"
    assert "not validated" in found.verdict
    assert found.reason == "1 steps were taken"
    assert len(found.history) == 2
    assert found.before is None
    assert found.n_held_out == 0


@pytest.mark.parametrize("after", [0, 3])
def test_an_interruption_returns_the_best_so_far(after: int, data: ArrayDataset, executor: LocalExecutor) -> None:
    steps: list[object] = []
    found = run(data, executor, callback=steps.append, interrupted=lambda: len(steps) >= after)
    assert found.interrupted
    assert found.before is None
    if after:
        assert found.kept == "refined"
        assert "not validated" in found.verdict
        last = [step for step in found.history if step.accepted][-1]
        assert found.hyperparameters.noise_variance == last.noise_variance != BAD.noise_variance
    else:
        assert found.kept == "start"
        assert found.hyperparameters.kernel == BAD.kernel


def test_the_bits_do_not_depend_on_the_executor(data: ArrayDataset) -> None:
    results = []
    for threads in (1, 3):
        executor = LocalExecutor(threads)
        found = run(data, executor, settings=SHORT)
        results.append((found.hyperparameters.gamma.tobytes(), found.after and found.after.losses.tobytes()))
        executor.close()
    assert results[0] == results[1]


def test_breakdowns_are_retreated_from(data: ArrayDataset, executor: LocalExecutor, monkeypatch: Any) -> None:
    estimate = refine_gradient.GradientEstimator.__call__
    calls: list[float] = []

    def failing(self: Any, kernel: Any, noise_variance: float, *rest: Any) -> Any:
        calls.append(noise_variance)
        if len(calls) == 2:
            raise NumericalError("on purpose")
        return estimate(self, kernel, noise_variance, *rest)

    monkeypatch.setattr(refine_gradient.GradientEstimator, "__call__", failing)
    found = run(data, executor, settings=replace(SHORT, held_out=0))
    assert len(found.history) == 3
    assert abs(np.log(calls[2] / calls[0])) < abs(np.log(calls[1] / calls[0]))


def test_several_targets_and_a_learnt_amplitude(executor: LocalExecutor, rng: np.random.Generator) -> None:
    data = draw(rng, SquaredExponential((0.8, 0.1), 4.0), NOISE, 300, 2)
    found = refine(data, space(data, learn_variance=True), executor, replace(QUICK, held_out=0, steps=15))
    kernel = found.hyperparameters.kernel
    assert isinstance(kernel, SquaredExponential)
    assert kernel.variance > 1.5
    assert found.hyperparameters.noise_variance == pytest.approx(NOISE, rel=0.4)


def test_what_is_fixed_bounded_or_known_beforehand(data: ArrayDataset, executor: LocalExecutor) -> None:
    limited = space(
        data,
        fixed={"gamma.x0": 0.3},
        bounds={"noise_variance": (0.3, 0.6)},
        priors={"gamma.x1": "lognormal(0.9, 0.01)"},
    )
    found = refine(data, limited, executor, replace(QUICK, held_out=0)).hyperparameters
    assert found.gamma[0] == pytest.approx(0.3)
    assert found.noise_variance == pytest.approx(0.3)
    assert found.gamma[1] == pytest.approx(0.9, rel=0.05)


def test_where_refining_does_not_help_bounds_and_fixed_values_hold_all_the_same(
    data: ArrayDataset, executor: LocalExecutor
) -> None:
    everything = {"gamma.x0": 0.3, "gamma.x1": 0.2, "noise_variance": 0.25}
    found = refine(data, space(data, fixed=everything), executor, SHORT)
    assert found.kept == "start"
    np.testing.assert_allclose(found.hyperparameters.gamma, [0.3, 0.2])
    assert found.hyperparameters.noise_variance == pytest.approx(0.25)


def test_many_samples_are_climbed_on_by_shares(
    data: ArrayDataset, whole: Run, executor: LocalExecutor, monkeypatch: Any
) -> None:
    monkeypatch.setattr(refine_module, "STAGED_FROM", 300)
    monkeypatch.setattr(refine_module, "STAGE_FACTOR", 2)
    monkeypatch.setattr(refine_module, "LEAST_STAGE", 80)
    said: list[str] = []
    found = run(data, executor, note=said.append)
    assert said[:2] == ["refining first on 90 of 360 samples", "refining first on 180 of 360 samples"]
    sizes = [step.samples for step in found.history]
    assert sizes == sorted(sizes)
    assert set(sizes) == {90, 180, 360}
    assert [step.step for step in found.history if step.samples == 360] == list(range(sizes.count(360)))
    assert sizes.count(360) < len(whole.found.history)
    assert found.kept == "refined"
    # The same optimum, as far as the gradient's error tells.
    np.testing.assert_allclose(found.hyperparameters.gamma, whole.found.hyperparameters.gamma, rtol=0.2)
    assert found.hyperparameters.noise_variance == pytest.approx(whole.found.hyperparameters.noise_variance, rel=0.1)
    assert found.before.nlpd == pytest.approx(whole.found.before.nlpd, abs=1e-3)


def test_an_interruption_on_a_share_keeps_its_values(
    data: ArrayDataset, executor: LocalExecutor, monkeypatch: Any
) -> None:
    monkeypatch.setattr(refine_module, "STAGED_FROM", 300)
    monkeypatch.setattr(refine_module, "LEAST_STAGE", 20)
    steps: list[object] = []
    found = run(data, executor, callback=steps.append, interrupted=lambda: len(steps) >= 3)
    assert found.interrupted
    assert "likelier on 45 samples by" in found.verdict
    assert found.hyperparameters.noise_variance == found.history[-1].noise_variance


def test_the_evidence_of_what_is_kept_is_estimated(
    data: ArrayDataset, whole: Run, executor: LocalExecutor, rng: np.random.Generator
) -> None:
    assert whole.found.evidence is None
    found = run(data, executor, settings=replace(SHORT, evidence=True, held_out=100))
    rows = refine_module.held_out_rows(N, 100, SHORT.seed)
    kept, evidence = found.hyperparameters, found.evidence
    exact = log_likelihood(
        kept.kernel, kept.noise_variance, np.delete(data.X, rows, axis=0), np.delete(data.y, rows, axis=0)
    )
    assert evidence.value == pytest.approx(exact, abs=4.0 * evidence.standard_error + 0.01)
    assert 0.0 < evidence.standard_error < 3.0
    document = to_json(found)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["evidence"]["value"] == evidence.value


def test_parameters_are_listed_by_name(data: ArrayDataset, executor: LocalExecutor) -> None:
    found = run(data, executor, settings=replace(SHORT, held_out=0)).hyperparameters
    assert [parameter.name for parameter in found.parameters] == ["gamma.x0", "gamma.x1", "noise_variance"]
    first, last = found.parameters[0], found.parameters[-1]
    assert (first.value, first.start, first.feature) == (found.gamma[0], pytest.approx(0.1), "x0")
    assert last.value == pytest.approx(found.noise_variance, rel=1e-12)
    assert last.lower < last.value < last.upper


def test_what_no_longer_holds_is_not_carried_over(data: ArrayDataset, executor: LocalExecutor) -> None:
    start = replace(BAD, log_marginal_likelihood=-100.0, scores={"folds": {"rmse": 1.0}}, evaluations=7, seed=3)
    found = run(data, executor, start, settings=replace(SHORT, held_out=0)).hyperparameters
    assert found.log_marginal_likelihood is None
    assert found.scores is None
    assert (found.evaluations, found.seed, found.n_samples) == (7, 3, N)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"probes": 1},
        {"tolerance": 0.0},
        {"tolerance": 1.0},
        {"max_passes": np.nan},
        {"rank": -1},
        {"halo": -1},
        {"held_out": -1},
        {"seed": -1},
        {"memory_bytes": 0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`{next(iter(wrong))}`"):
        RefineSettings(**wrong)


def test_a_preconditioner_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="`halo` 0 and `rank` 0"):
        RefineSettings(halo=0, rank=0)


def test_no_targets_is_an_error(executor: LocalExecutor) -> None:
    with pytest.raises(InputError, match="no targets"):
        run(ArrayDataset(np.zeros((50, 2)), np.zeros((50, 0))), executor)


def test_memory_is_planned() -> None:
    options: dict[str, Any] = {"resident_bytes": 0, "holds_inputs": True, "cache_bytes": 2**31}
    near, far = LocalExecutor(2), SimpleNamespace(threads_per_process=2, shares_memory=False)
    plan = plan_refinement(100_000, 8, 1, RefineSettings(rank=500), near, **options)
    elsewhere = plan_refinement(100_000, 8, 1, RefineSettings(rank=500), far, **options)  # type: ignore[arg-type]
    assert elsewhere.coordinator_bytes < plan.coordinator_bytes - elsewhere["factor_bytes"]
    with_products = plan.plus(products_bytes=product_bytes(ProductMemory(1000, 300)))
    assert with_products.coordinator_bytes == plan.coordinator_bytes + 2300
    fewer = plan_refinement(100_000, 8, 1, RefineSettings(rank=500, probes=2), near, **options)
    assert fewer["vectors_bytes"] < 0.5 * plan["vectors_bytes"]


@pytest.mark.long
def test_memory_is_what_was_planned(executor: LocalExecutor, rng: np.random.Generator) -> None:
    n, d = 2000, 2
    X = 0.5 * rng.normal(size=(n, d))
    data = ArrayDataset(X, np.sin(X[:, :1]) + 0.3 * rng.normal(size=(n, 1)), chunk_rows=500)
    settings = RefineSettings(steps=1, probes=8, rank=30, held_out=4)
    plan = plan_refinement(n, d, 1, settings, executor, resident_bytes=0, holds_inputs=True, cache_bytes=2**31)
    tracemalloc.start()
    run(data, executor, settings=settings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    projected = plan.coordinator_bytes - RUNTIME_BYTES
    assert peak < projected < 12 * peak


def test_fewer_probes_stand_behind_gradients_of_many_samples() -> None:
    assert [RefineSettings().probes_for(n) for n in (1_000, 199_999, 200_000, 10**7)] == [8, 8, 4, 4]
    assert RefineSettings(probes=6).probes_for(10**7) == 6
