"""Random subsets of those that are not chosen: no sample twice, none that is out, and every subset as likely."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from dkgp.solvers.block_descent.selection import Draws
from tests.solvers.paper import dealt


@pytest.mark.parametrize(("n", "choices", "kappa"), [(5000, 40, 60), (200, 150, 9), (64, 64, 1), (50, 50, 20)])
def test_subsets_are_those_that_are_dealt_one_number_at_a_time(n: int, choices: int, kappa: int) -> None:
    """Until nobody is left: as many are out as were taken, and the sequence that was foreseen does not suffice."""
    draws, letter, out = Draws(n, choices, kappa, 3, 4), dealt(n, kappa, 3, 4), np.zeros(n, dtype=bool)
    for _ in range(choices):
        left = np.flatnonzero(~out).tolist()
        drawn = draws.take(1, out, len(left)).tolist()
        assert drawn == letter(left)
        assert len(set(drawn)) == len(drawn) == min(kappa, len(left))
        assert not out[drawn].any()
        out[drawn[0]] = True
    assert out.sum() == choices


def test_subsets_of_one_step_are_drawn_apart() -> None:
    draws, letter, out = Draws(300, 6, 50, 0, 1), dealt(300, 50, 0, 1), np.zeros(300, dtype=bool)
    out[::7] = True
    left = np.flatnonzero(~out).tolist()
    runs = draws.take(6, out, len(left)).reshape(6, 50)
    assert runs.tolist() == [letter(left) for _ in range(6)]
    # Six runs of 50 out of 257: some samples are in several of them, and none is twice in one.
    assert len(np.unique(runs)) < runs.size
    assert all(len(set(run)) == 50 for run in runs.tolist())


def test_all_subsets_are_as_likely() -> None:
    """20 subsets of three out of six, two more out: 12,000 draws, chi squared below its 99.9th percentile."""
    out, trials = np.array([False, True, False, False, False, True, False, False]), 12_000
    counts = Counter(tuple(sorted(Draws(8, 1, 3, 0, seed).take(1, out, 6).tolist())) for seed in range(trials))
    subsets = list(combinations(np.flatnonzero(~out).tolist(), 3))
    assert set(counts) == set(subsets)
    expected = trials / len(subsets)
    assert sum((counts[subset] - expected) ** 2 / expected for subset in subsets) < 43.8  # 19 degrees of freedom


def test_sequence_depends_on_seed_and_round_alone_and_is_looked_at_first() -> None:
    def sequence(seed: int, iteration: int) -> np.ndarray:
        return Draws(1000, 50, 7, seed, iteration).sequence

    assert sequence(3, 4).min() >= 0
    assert sequence(3, 4).max() < 1000
    np.testing.assert_array_equal(sequence(3, 4), sequence(3, 4))
    assert not np.array_equal(sequence(3, 4), sequence(3, 5))
    assert not np.array_equal(sequence(3, 4), sequence(4, 4))
    # What is foreseen suffices where few are chosen, and is not much more than what is taken.
    draws, out = Draws(1000, 50, 7, 3, 4), np.zeros(1000, dtype=bool)
    foreseen = set(draws.sequence.tolist())
    for choice in range(50):
        drawn = draws.take(1, out, 1000 - choice)
        assert set(drawn.tolist()) <= foreseen
        out[drawn[0]] = True
    # Half of the choices and half of the subset are there on average, of those drawn at one end and at the other.
    assert len(draws.sequence) == 350 + 350 * (50 + 7) // 1000 + 64
