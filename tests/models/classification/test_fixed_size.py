"""Training of a fixed-size LS-SVM as a whole: its fit against dense least squares, resume, bits, and hostile data.

Memory of a fixed-size classifier: what is planned, what is refused, and that it does not grow with the samples.

Kernels that a search starts from, and their scale.
"""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError
from dkgp.kernels import Linear, Matern32, SquaredExponential
from dkgp.models.classification.fixed_size import train as of_start
from dkgp.models.classification.fixed_size.plans import (
    AnnealingSearch,
    GridSearch,
    ProfileSearch,
    RecordedSearch,
    acceptances,
)
from dkgp.models.classification.fixed_size.search import scaled
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.train import TrainedFixedSize, median_kernel, start_kernel, train_fixed_size
from dkgp.models.classification.labels import LabelledData, Labels, decided
from dkgp.models.memory import Memory, TrainingSizes
from dkgp.solvers import Checkpointing
from tests.models.classification.letter import annealed, rounded
from tests.watching import in_context
from tests.workers import on_dask


def rings(rng: np.random.Generator, n: int, classes: int = 2) -> tuple[NDArray[np.float64], Labels]:
    """Classes by distance from the origin, with a little noise."""
    X = rng.standard_normal((n, 2))
    radius = np.hypot(X[:, 0], X[:, 1]) + 0.1 * rng.standard_normal(n)
    codes = np.searchsorted(np.quantile(radius, np.arange(1, classes) / classes), radius)
    return X, Labels(tuple(f"ring {number}" for number in range(classes)), codes)


def held(X: NDArray[np.float64], labels: Labels) -> Dataset:
    return memory_dataset(X, labels.codes.astype(float))


def trained(X: Any, labels: Labels, executor: Any, **options: Any) -> TrainedFixedSize:
    kept = {name: options.pop(name) for name in list(options) if name in FixedSizeSettings.__dataclass_fields__}
    data = LabelledData(held(X, labels), labels, options.pop("weights", None))
    return train_fixed_size(data, FixedSizeSettings(**kept), in_context(executor, options), **options)


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_rings_are_told_apart(rng: np.random.Generator, one_thread: LocalExecutor, classes: int) -> None:
    X, labels = rings(rng, 600, classes)
    found = trained(X[:400], labels.subset(np.arange(400)), one_thread)
    dataset = held(X[:400], labels.subset(np.arange(400)))
    decisions = found.model.decisions(dataset.standardisation.inputs(X[400:]))
    assert decisions.shape == (200, 1 if classes == 2 else classes)
    wrong = np.mean(decided(decisions) != labels.codes[400:])
    # The noise of the radius itself costs some per cent.
    assert wrong < 0.06 * (classes - 1) + 0.02
    assert abs(found.summary["misclassification"] - wrong) < 0.08
    assert found.calibration is not None
    probabilities = found.calibration.probabilities(decisions)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert json.loads(json.dumps(found.summary)) == found.summary
    assert found.indices is not None
    np.testing.assert_array_equal(found.model.prototypes, dataset.inputs(0, 400)[found.indices])
    assert len(found.indices) == found.summary["cardinality"]
    assert [record["cardinality"] for record in found.path] == list(range(len(found.path)))


@pytest.mark.covering
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", ["first", "none"])
@pytest.mark.parametrize("s2", [1e-6, 1e-2])
def test_the_fit_is_that_of_a_dense_factorisation(
    rng: np.random.Generator, one_thread: LocalExecutor, weighted: bool, intercept: str, s2: float
) -> None:
    X, labels = rings(rng, 700)
    weights = rng.uniform(0.5, 1.5, 700) if weighted else None
    kernel = SquaredExponential(gamma=(1.0, 1.0))
    settings = {"search": "none", "intercept": intercept, "max_basis": 60, "stop": None, "cardinality": "best"}
    found = trained(X, labels, one_thread, kernel=kernel, noise_variance=s2, weights=weights, **settings)
    model, inputs = found.model, held(X, labels).inputs(0, 700)
    K, K_mm = kernel(inputs, model.prototypes), kernel(model.prototypes, model.prototypes)
    values, vectors = np.linalg.eigh(K_mm)
    root = np.sqrt(s2 * np.maximum(values, 0.0))[:, None] * vectors.T
    ones, scale = np.ones((700, int(intercept == "first"))), np.ones((700, 1))
    if weights is not None:
        scale = np.sqrt(weights)[:, None]
    stacked = np.vstack([scale * np.hstack([K, ones]), np.pad(root, ((0, 0), (0, ones.shape[1])))])
    right = np.vstack([scale * labels.signs(), np.zeros((len(K_mm), 1))])
    q, r = np.linalg.qr(stacked)
    reference = np.hstack([K, ones]) @ np.linalg.solve(r, q.T @ right)
    np.testing.assert_allclose(model.decisions(inputs), reference, rtol=0.0, atol=1e-8)


def same(first: TrainedFixedSize, second: TrainedFixedSize) -> None:
    for name in ("prototypes", "weights", "intercept"):
        np.testing.assert_array_equal(getattr(first.model, name), getattr(second.model, name))
    assert first.model.kernel == second.model.kernel
    assert first.model.noise_variance == second.model.noise_variance
    assert first.path == second.path
    assert first.history == second.history
    assert first.summary["misclassification"] == second.summary["misclassification"]


def test_an_interruption_says_what_was_saved(
    rng: np.random.Generator, one_thread: LocalExecutor, tmp_path: Path
) -> None:
    X, labels = rings(rng, 150)
    passes: list[Any] = []
    options = {"callback": passes.append, "interrupted": lambda: len(passes) > 2, "pool": 30}
    with pytest.raises(InterruptedRunError, match="1 passes are saved in"):
        trained(X, labels, one_thread, checkpointing=Checkpointing(CheckpointStore(str(tmp_path))), **options)
    passes.clear()
    with pytest.raises(InterruptedRunError, match="nothing was saved"):
        trained(X, labels, one_thread, **options)


@pytest.mark.long
def test_any_number_of_workers_and_of_kernels_in_a_pass(rng: np.random.Generator) -> None:
    X, labels = rings(rng, 900, 3)
    options = {"pool": 120, "folds": 5, "weights": rng.uniform(0.5, 1.5, 900)}
    found = []
    for threads, together in ((1, 3), (2, 1)):
        executor = LocalExecutor(threads)
        found.append(trained(X, labels, executor, together=together, **options))
        executor.close()
    with on_dask(5, processes=False) as (executor, _):
        found.append(trained(X, labels, executor, together=2, **options))
    for other in found[1:]:
        for record in [*found[0].history, *other.history]:
            record.pop("pass", None)
        same(found[0], other)


def test_hostile_data(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    codes = (np.arange(120) % 3 == 0).astype(int)
    labels = Labels(("no", "yes"), codes)
    # One distinct input: the mean is all that can be said.
    found = trained(np.zeros((120, 2)), labels, one_thread)
    assert len(found.model.prototypes) == 1
    np.testing.assert_allclose(found.model.decisions(np.zeros((2, 2)))[:, 0], 2.0 * codes.mean() - 1.0, atol=1e-9)
    # Four distinct inputs, a pool that is larger, and a column that is constant.
    X = np.column_stack([codes ^ (rng.uniform(size=120) < 0.1), rng.integers(0, 2, 120), np.ones(120)]).astype(float)
    found = trained(X, labels, one_thread, pool=500)
    assert found.summary["pool"] == 4
    assert found.summary["misclassification"] < 0.2


def test_what_is_refused(rng: np.random.Generator, one_thread: LocalExecutor) -> None:
    X, labels = rings(rng, 60)
    with pytest.raises(InputError, match="fewer than the"):
        trained(X, Labels(("a", "b"), np.arange(60) // 56), one_thread)
    with pytest.raises(InputError, match="`noise_variance` must be positive and finite; got 0.0"):
        trained(X, labels, one_thread, noise_variance=0.0)
    with pytest.raises(InputError, match=r"`search` must be one of shared, grid, profile, annealing, none; got 'best'"):
        FixedSizeSettings(search="best")
    with pytest.raises(InputError, match="`folds` must be at least 2; got 1"):
        FixedSizeSettings(folds=1)
    with pytest.raises(InputError, match="`noise_variances` must be positive and finite"):
        FixedSizeSettings(noise_variances=(1.0, -1.0))


MEBIBYTE = 2**20


def plan(n: int = 100_000, **changed: Any) -> Memory:
    settings = FixedSizeSettings(pool=changed.pop("pool", 1000))
    executor: Any = SimpleNamespace(threads_per_process=2, shares_memory=changed.pop("shares_memory", True))
    return settings.memory(TrainingSizes(n, 20, 1, executor, 2**20), **changed)


def test_fewer_kernels_go_together_where_all_would_not_fit() -> None:
    most, one = plan(), plan(together=1)
    assert (most.about["together"], one.about["together"]) == (3, 1)
    assert one.coordinator_bytes < most.coordinator_bytes
    assert plan(budget_bytes=most.coordinator_bytes).about["together"] == 3
    assert plan(budget_bytes=most.coordinator_bytes - 1).about["together"] == 2
    assert plan(budget_bytes=1).about["together"] == 1
    # Elsewhere a worker takes nothing here.
    assert plan(shares_memory=False).coordinator_bytes < most.coordinator_bytes


def test_a_refusal_names_the_pool_and_a_smaller_one_takes_less() -> None:
    found = plan(together=1)
    with pytest.raises(MemoryBudgetError, match=r"a pool of 1,000 prototypes and 5 folds .* budget is 100 MiB.*`pool`"):
        found.require(100 * MEBIBYTE)
    assert plan(pool=100).coordinator_bytes < found.coordinator_bytes


def test_more_samples_take_n_vectors_and_no_more() -> None:
    few, many = plan(200_000, pool=200), plan(3_200_000, pool=200)
    assert many.coordinator_bytes - few.coordinator_bytes < 3_000_000 * 300


def test_what_is_taken_is_less_than_what_was_planned(rng: np.random.Generator) -> None:
    n, pool = 6000, 500
    X = rng.standard_normal((n, 3))
    codes = (np.sin(X[:, 0]) + X[:, 1] > 0.0).astype(int)
    dataset, labels = memory_dataset(X, codes.astype(float)), Labels(("a", "b"), codes)
    settings = FixedSizeSettings(pool=pool, search="none", prototypes="uniform", noise_variances=(0.1,), stop=None)
    executor = LocalExecutor(2)
    kernel = SquaredExponential(gamma=(0.5, 0.5, 0.5))
    tracemalloc.start()
    train_fixed_size(LabelledData(dataset, labels), settings, executor, kernel=kernel)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    executor.close()
    planned = settings.memory(TrainingSizes(n, 3, 1, executor, 2**20)).coordinator_bytes - 256 * MEBIBYTE
    assert 0.3 * planned < taken < 1.1 * planned


def test_the_median_distance(rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 3)) * np.array([1.0, 30.0, 0.01])
    dataset = memory_dataset(X, X[:, 0])
    inputs = dataset.inputs(0, 60)
    squares = [np.sum((inputs[i] - inputs[j]) ** 2) for i in range(60) for j in range(i)]
    kernel = median_kernel(dataset)
    assert isinstance(kernel, SquaredExponential)
    assert kernel.isotropic
    np.testing.assert_allclose(kernel.gamma, [1.0 / np.median(squares)], rtol=1e-10)
    # Samples that are all the same have none.
    assert median_kernel(memory_dataset(np.ones((9, 2)), np.arange(9.0))).parameters()[0].value == 1.0


@pytest.mark.long
def test_the_labels_tell_length_scales_where_there_is_something_to_tell(rng: np.random.Generator) -> None:
    X = rng.standard_normal((1100, 4))
    codes = (np.sin(2.0 * X[:, 1]) > 0.0).astype(int)
    dataset, labels = memory_dataset(X, codes.astype(float)), Labels(("a", "b"), codes)
    kernel, how = start_kernel(LabelledData(dataset, labels), isotropic=False)
    assert how == "likelihood"
    assert isinstance(kernel, SquaredExponential)
    assert kernel.gamma[1] > 10.0 * max(kernel.gamma[0], *kernel.gamma[2:])
    assert start_kernel(LabelledData(dataset, labels), isotropic=True) == (median_kernel(dataset), "median")
    few = memory_dataset(X[:300], codes[:300].astype(float))
    assert start_kernel(LabelledData(few, labels.subset(np.arange(300))), isotropic=False)[1] == "median"


def test_a_scale_is_of_inverse_squared_lengths_alone() -> None:
    kernel = Matern32(gamma=(1.0, 0.5), variance=2.0) + SquaredExponential(gamma=(0.1,), n_features=2)
    found = scaled(kernel, 4.0)
    assert found == Matern32(gamma=(4.0, 2.0), variance=2.0) + SquaredExponential(gamma=(0.4,), n_features=2)
    assert scaled(kernel, 1.0) is kernel
    with pytest.raises(InputError, match="the kernel linear has no length scale to search for; choose `search` none"):
        scaled(Linear((1.0, 1.0)), 2.0)


# Searches: what they find, in how many passes, what they survive; a restored one goes on to the same bits.


Score = Callable[..., float]

# Scores over the logarithm of the scale, with the place of the least within the search's reach.
CURVES: dict[str, tuple[Score, float]] = {
    "at the start": (lambda u: 1.0 + u**2, 0.0),
    "near": (lambda u: 0.2 + 0.05 * (u - 1.0) ** 2, 1.0),
    "far up": (lambda u: 0.3 + 0.02 * (u - 5.0) ** 2, 5.0),
    "far down": (lambda u: 0.3 + 0.02 * (u + 4.4) ** 2, -4.4),
    "lopsided": (lambda u: 0.3 + 0.1 * (math.exp(u - 1.0) - u), 1.0),
    "with a kink": (lambda u: abs(u - 0.77), 0.77),
    "beyond reach": (lambda u: 1.0 - u / 100.0, 5.0 * math.log(4.0)),
}


def run(search: RecordedSearch, score: Score) -> RecordedSearch:
    while points := search.ask():
        search.tell([score(*point) for point in points])
    return search


def rastrigin(*point: float) -> float:
    return 10.0 * len(point) + sum(x * x - 10.0 * math.cos(2.0 * math.pi * x) for x in point)


def sphere(*point: float) -> float:
    return 0.3 + sum(x * x for x in point)


class TestProfile:
    @pytest.mark.parametrize("together", [1, 2])
    @pytest.mark.parametrize("curve", CURVES)
    def test_finds_the_least_within_its_passes(self, curve: str, together: int) -> None:
        score, least = CURVES[curve]
        search = run(ProfileSearch(together=together), score)
        (place,), value = search.best
        assert abs(place - least) <= 0.12
        assert value == score(place)
        assert len(search.trail) <= 12
        assert search.passes <= 7

    @pytest.mark.parametrize("most", [3, 4, 7])
    def test_asks_for_no_more_scores_than_it_may(self, most: int) -> None:
        search = run(ProfileSearch(evaluations=most), CURVES["far up"][0])
        assert len(search.trail) == most

    def test_a_flat_score_ends_it_at_the_start(self) -> None:
        search = run(ProfileSearch(), lambda u: 0.25)
        assert search.best == ((0.0,), 0.25)
        assert search.passes == 1

    def test_what_is_not_finite_is_the_worst(self) -> None:
        search = run(ProfileSearch(), lambda u: math.nan if u > 0.5 else 1.0 + (u + 1.0) ** 2)
        assert search.best == ((pytest.approx(-1.0, abs=0.12),), pytest.approx(1.0, abs=0.01))
        nothing = run(ProfileSearch(), lambda u: -math.inf)
        assert nothing.best == ((0.0,), math.inf)
        assert nothing.passes == 1

    def test_a_start_elsewhere_moves_all_of_it(self) -> None:
        here = run(ProfileSearch(), CURVES["lopsided"][0])
        there = run(ProfileSearch(8.0), lambda u: CURVES["lopsided"][0](u - 8.0))
        assert there.best[0][0] - 8.0 == pytest.approx(here.best[0][0], abs=1e-9)

    @pytest.mark.parametrize(
        "wrong", [{"tolerance": 0.0}, {"tolerance": 2.0}, {"evaluations": 2}, {"together": 3}, {"reach": 0.5}]
    )
    def test_settings_that_make_no_search(self, wrong: dict[str, float]) -> None:
        with pytest.raises(InputError, match="needs 0 < tolerance < step <= reach, 3 evaluations"):
            ProfileSearch(**wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="finite coordinates"):
            ProfileSearch(math.nan)


class TestGrid:
    @pytest.mark.parametrize("count", [1, 2, 9, 10])
    def test_places_are_even_about_the_start_whatever_their_scores(self, count: int) -> None:
        search = run(GridSearch(count, 1.0), lambda u: math.nan if u > 1.0 else -u)
        places = [point[0] for point, _ in search.trail]
        assert len(places) == count
        np.testing.assert_allclose(np.diff(places), math.log(2.0), rtol=1e-12)
        assert np.mean(places) == pytest.approx(1.0)
        assert search.passes == (count + 1) // 2
        assert search.best[0] == (min(places, key=lambda u: math.inf if u > 1.0 else -u),)

    def test_settings_that_make_no_grid(self) -> None:
        with pytest.raises(InputError, match="one place at least, and a step above 0; got 0"):
            GridSearch(0)
        with pytest.raises(InputError, match="got 3 and -1"):
            GridSearch(3, step=-1.0)


class TestAnnealing:
    def test_finds_the_least_of_a_sphere(self) -> None:
        search = run(AnnealingSearch((1.0, 2.0)), sphere)
        assert np.abs(search.best[0]).max() < 0.05
        # Five probes at a time, then two corners of the simplex, then one point after the other.
        sizes = [len(points) for points, _ in search._told]
        assert sizes[:22] == [5] * 21 + [2]
        assert set(sizes[22:]) == {1}
        assert len(search.trail) <= 21 * 5 + 45

    @pytest.mark.covering
    @pytest.mark.parametrize("score", [sphere, rastrigin, lambda *point: abs(point[0]) + 0.1 * max(point)])
    @pytest.mark.parametrize("start", [(1.0, 2.0), (-6.0, 3.0), (0.5,), (1.0, -1.0, 0.5)])
    def test_walk_and_simplex_are_the_papers_point_by_point(self, start: tuple[float, ...], score: Score) -> None:
        for seed in range(3):
            asked = list[tuple[float, ...]]()

            def told(*point: float, asked: list[tuple[float, ...]] = asked) -> float:
                asked.append(point)
                return score(*point)

            annealed(told, start, seed=seed)
            trail = [point for point, _ in run(AnnealingSearch(start, seed=seed), score).trail]
            # What it comes back to but for rounding is scored again, and counts.
            points = list({rounded(point): point for point in trail}.values())
            assert len(points) > 21 * 5 + 5
            assert len(points) <= len(asked) <= len(trail)
            np.testing.assert_allclose(points, asked[: len(points)], rtol=1e-9, atol=1e-9)

    def test_better_than_random_search_of_equal_budget(self) -> None:
        found, drawn = [], []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            search = run(AnnealingSearch(tuple(rng.uniform(-3.0, 3.0, 2)), seed=seed), rastrigin)
            found.append(search.best[1])
            drawn.append(min(rastrigin(*point) for point in rng.uniform(-5.12, 5.12, (len(search.trail), 2))))
        assert np.median(found) < 0.5 * np.median(drawn)
        assert np.mean(np.less(found, drawn)) >= 0.75

    def test_the_first_probe_stands_at_the_start_and_none_walks_beyond_reach(self) -> None:
        search = run(AnnealingSearch((3.0, -7.0), seed=5), lambda *point: -abs(point[0]))
        assert search.trail[0][0] == (3.0, -7.0)
        walked = np.asarray([point for point, _ in search.trail[: 21 * 5]])
        assert np.abs(walked - (3.0, -7.0)).max() <= 10.0

    def test_steps_of_a_later_temperature_are_shorter(self) -> None:
        # Every step is taken, so probes walk by their draws alone.
        def widths(temperatures: int) -> float:
            falling = iter(range(0, -10_000, -1))
            search = run(
                AnnealingSearch((0.0, 0.0), temperatures=temperatures, steps=1, polish=0), lambda *_: next(falling)
            )
            last = [np.asarray(points) for points, _ in search._told[-2:]]
            return float(np.median(np.abs(last[1] - last[0])))

        assert widths(40) < 0.2 * widths(1)

    def test_one_coordinate_or_three(self) -> None:
        assert abs(run(AnnealingSearch((1.0,)), sphere).best[0][0]) < 0.05
        assert np.abs(run(AnnealingSearch((1.0, -1.0, 0.5), polish=90), sphere).best[0]).max() < 0.1

    def test_scores_that_are_not_finite(self) -> None:
        half = run(AnnealingSearch((1.0, 1.0)), lambda x, y: math.nan if x + y < 0.5 else sphere(x, y))
        assert half.best[1] < 0.3 + 0.125 + 0.05
        nothing = run(AnnealingSearch((1.0, 1.0)), lambda *_: math.inf)
        assert nothing.best == ((1.0, 1.0), math.inf)
        assert len(nothing.trail) == 21 * 5

    def test_acceptances_are_those_of_the_paper(self) -> None:
        values = np.asarray([1.0, 3.0, 2.0])
        raw = np.exp((values - 3.0) / 0.7)
        np.testing.assert_allclose(acceptances(values, 0.7), raw / raw.sum(), rtol=1e-14)
        # The limit, as some scores go to infinity.
        near = acceptances(np.asarray([1.0, 1e6, 1e6]), 0.7)
        np.testing.assert_allclose(acceptances(np.asarray([1.0, np.inf, np.inf]), 0.7), near, atol=1e-12)

    def test_settings_that_make_no_search(self) -> None:
        with pytest.raises(InputError, match="0 < spread <= 10"):
            AnnealingSearch((0.0, 0.0), spread=11.0)
        with pytest.raises(InputError, match="one at least"):
            AnnealingSearch(())


SEARCHES: dict[str, tuple[Callable[[], RecordedSearch], Score]] = {
    "profile": (lambda: ProfileSearch(together=2), CURVES["with a kink"][0]),
    "grid": (lambda: GridSearch(7, 0.3), CURVES["with a kink"][0]),
    "annealing": (lambda: AnnealingSearch((0.5, -0.5), seed=3), rastrigin),
    "annealing, holes": (
        lambda: AnnealingSearch((0.5, -0.5), seed=4, steps=6),
        lambda x, y: math.nan if math.sin(5.0 * x) > 0.3 else rastrigin(x, y),
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
class TestEvery:
    @pytest.mark.spread(2)
    def test_resumed_at_any_pass_it_goes_on_to_the_same_bits(self, name: str) -> None:
        make, score = SEARCHES[name]
        whole = run(make(), score)
        going, states = make(), []
        while points := going.ask():
            states.append(json.dumps(going.state(), allow_nan=False))
            going.tell([score(*point) for point in points])
        for state in states[:: max(1, len(states) // 8)]:
            other = make()
            other.restore(json.loads(state))
            assert run(other, score).trail == whole.trail
        ended = make()
        ended.restore(json.loads(json.dumps(whole.state(), allow_nan=False)))
        assert ended.ask() == []
        assert ended.best == whole.best

    def test_asked_twice_it_says_the_same(self, name: str) -> None:
        make, _ = SEARCHES[name]
        search = make()
        assert search.ask() == search.ask() != []

    def test_scores_that_are_too_few_or_too_many(self, name: str) -> None:
        make, score = SEARCHES[name]
        search = make()
        with pytest.raises(InputError, match=r"asked for \d points; it was told 1 scores"):
            search.tell([1.0])
        run(search, score)
        with pytest.raises(InputError, match="asked for 0 points; it was told 0 scores"):
            search.tell([])

    def test_the_state_of_another_search(self, name: str) -> None:
        make, _ = SEARCHES[name]
        with pytest.raises(InputError, match="cannot go on from the state"):
            make().restore(AnnealingSearch((0.5, -0.5), seed=77).state())


@pytest.mark.parametrize(
    ("gamma", "origin"),
    [((0.3, 0.3, 0.0, 0.0, 0.0, 0.0), "likelihood"), ((0.0, 0.0, 1.0, 1.0, 1.0, 1.0), "median")],
)
def test_a_start_is_judged_at_samples_that_the_likelihood_did_not_use(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, gamma: tuple[float, ...], origin: str
) -> None:
    """Length scales of the features that decide are taken; those of other features lose against one for all."""
    X = rng.standard_normal((420, 6))
    codes = (X[:, 0] + X[:, 1] > 0.0).astype(int)
    data = LabelledData(memory_dataset(X, codes.astype(float)), Labels(("a", "b"), codes))
    tuned = SquaredExponential(gamma=gamma)
    monkeypatch.setattr(of_start, "tune_labels", lambda data, settings: SimpleNamespace(kernel=tuned))
    monkeypatch.setattr(of_start, "FEW_SAMPLES", 100)
    monkeypatch.setattr(of_start, "TUNED_SAMPLES", 100)
    kernel, how = start_kernel(data, isotropic=False)
    assert how == origin
    assert kernel == (tuned if origin == "likelihood" else median_kernel(data.dataset))
    # Too few other samples judge nothing.
    monkeypatch.setattr(of_start, "TUNED_SAMPLES", 300)
    assert start_kernel(data, isotropic=False) == (tuned, "likelihood")
