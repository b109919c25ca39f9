"""Samples of the tuning: disjoint if the data suffice, the same for the same seed, never held-out ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.data import dataset_from_arrays, memory_dataset
from dkgp.errors import ClusterError, InputError
from dkgp.models.tuning.subsets import Subsets, draw_subset, plan_subsets


def test_one_subset_is_a_plain_draw_without_repeats() -> None:
    expected = np.sort(np.random.default_rng(7).choice(500, size=60, replace=False))
    np.testing.assert_array_equal(plan_subsets(500, 60, seed=7).subset(0), expected)
    np.testing.assert_array_equal(draw_subset(500, 60, 7), expected)


@given(
    n=st.integers(4, 300),
    subset=st.integers(2, 80),
    subsets=st.integers(1, 6),
    holdout=st.one_of(st.none(), st.floats(0.05, 0.9)),
    seed=st.integers(0, 5),
)
def test_subsets_and_held_out_rows(n: int, subset: int, subsets: int, holdout: float | None, seed: int) -> None:
    held = 0 if holdout is None else max(1, round(holdout * min(subset, n)))
    size = min(subset, n - held)
    if size < 2 or (subsets > 1 and size == n - held):
        with pytest.raises(InputError, match="would all be the same|too few to hold"):
            plan_subsets(n, subset, subsets=subsets, seed=seed, holdout=holdout)
        return
    plan = plan_subsets(n, subset, subsets=subsets, seed=seed, holdout=holdout)
    drawn = [plan.subset(index) for index in range(subsets)]
    for indices in drawn:
        assert len(indices) == plan.size <= subset
        assert np.all(np.diff(indices) > 0)
        assert indices[0] >= 0
        assert indices[-1] < n
    together = np.concatenate(drawn)
    disjoint = len(np.unique(together)) == len(together)
    assert disjoint or plan.overlaps
    if subsets * plan.size <= n - plan.holdout:
        assert disjoint
        assert not plan.overlaps
    if holdout is not None:
        held_out = plan.held_out()
        assert len(np.unique(held_out)) == plan.holdout == held
        assert not np.isin(held_out, together).any()
    again = plan_subsets(n, subset, subsets=subsets, seed=seed, holdout=holdout)
    np.testing.assert_array_equal(again.subset(subsets - 1), drawn[-1])


def test_other_seeds_draw_others_and_overlapping_subsets_differ() -> None:
    assert not np.array_equal(plan_subsets(100, 50, seed=1).subset(0), plan_subsets(100, 50, seed=2).subset(0))
    plan = plan_subsets(100, 60, subsets=3)
    assert plan.overlaps
    assert len({tuple(plan.subset(index)) for index in range(3)}) == 3


def test_holding_rows_out_leaves_the_subset_as_it_was_where_there_are_enough() -> None:
    with_holdout, without = plan_subsets(500, 60, seed=7, holdout=0.5), plan_subsets(500, 60, seed=7)
    np.testing.assert_array_equal(with_holdout.subset(0), without.subset(0))
    few = plan_subsets(50, 2000, holdout=0.2)
    assert (few.size, few.holdout) == (40, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"subset": 1}, "`subset` must be at least 2; got 1"),
        ({"subset": 10, "subsets": 0}, "`subsets` must be at least 1; got 0"),
        ({"subset": 100, "subsets": 2}, "would all be the same 100 samples"),
        ({"subset": 10, "holdout": 0.0}, "fraction between 0 and 1"),
        ({"subset": 10, "holdout": 1.0}, "fraction between 0 and 1"),
        ({"subset": 10, "holdout": float("nan")}, "fraction between 0 and 1"),
    ],
)
def test_impossible_plans_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_subsets(100, **arguments)  # type: ignore[arg-type]


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 samples; got 1"):
        plan_subsets(1, 10)
    with pytest.raises(InputError, match="too few to hold 3 of them out"):
        plan_subsets(4, 4, holdout=0.7)


def test_stores_and_memory_hold_the_same_rows(rng: np.random.Generator, tmp_path: Path) -> None:
    inputs, targets = rng.standard_normal((70, 3)), rng.standard_normal((70, 2))
    dataset = dataset_from_arrays(tmp_path / "data.zarr", inputs, targets)
    plan = plan_subsets(70, 20, subsets=2, holdout=0.5, seed=5)
    all_inputs, all_targets = dataset.inputs(0, 70), dataset.targets(0, 70)
    arrays = Subsets(memory_dataset(inputs, targets), plan)
    stored: Subsets = pickle.loads(pickle.dumps(Subsets(dataset, plan)))
    for index in range(2):
        for held, expected in zip(stored.rows(index), arrays.rows(index), strict=True):
            np.testing.assert_array_equal(held, expected)
        np.testing.assert_array_equal(stored.rows(index)[0], all_inputs[plan.subset(index)])
    np.testing.assert_array_equal(stored.held_out()[1], all_targets[plan.held_out()])
    np.testing.assert_array_equal(arrays.held_out()[0], all_inputs[plan.held_out()])


def test_arrays_do_not_travel(rng: np.random.Generator) -> None:
    arrays = Subsets(memory_dataset(rng.standard_normal((300, 5)), rng.standard_normal(300)), plan_subsets(300, 250))
    message = pickle.dumps(arrays)
    assert len(message) < 2000
    rows = arrays.rows(0)[0]
    np.testing.assert_array_equal(pickle.loads(message).rows(0)[0], rows)
    del arrays
    with pytest.raises(ClusterError, match="in another process's memory"):
        pickle.loads(message).rows(0)
