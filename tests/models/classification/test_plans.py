"""Searches: what they find, in how many passes, what they survive; a restored one goes on to the same bits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.models.classification.fixed_size.plans import (
    AnnealingSearch,
    GridSearch,
    ProfileSearch,
    RecordedSearch,
    acceptances,
)
from tests.models.classification.letter import annealed, rounded

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
