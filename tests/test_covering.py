"""The cases of a product that `make test` runs hold all that they are to hold, and are few."""

from __future__ import annotations

from itertools import product

import pytest

from tests.covering import Axes, covering


def cases(*sizes: int) -> list[Axes]:
    return [{(str(axis),): value for axis, value in enumerate(values)} for values in product(*map(range, sizes))]


@pytest.mark.parametrize("sizes", [(7,), (5, 3), (4, 3, 2), (2, 2, 2, 5)])
def test_each_value_comes_and_all_of_an_axis_about_as_often(sizes: tuple[int, ...]) -> None:
    every = cases(*sizes)
    chosen = [every[place] for place in covering(every, 1)]
    assert len(chosen) == max(sizes)
    for axis, size in enumerate(sizes):
        counts = [sum(case[str(axis),] == value for case in chosen) for value in range(size)]
        assert min(counts) >= 1
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("sizes", [(4, 3, 2), (2, 2, 2, 5), (3, 3, 3)])
def test_each_pair_comes(sizes: tuple[int, ...]) -> None:
    every = cases(*sizes)
    chosen = [every[place] for place in covering(every, 2)]
    for one in range(len(sizes)):
        for two in range(one):
            pairs = {(case[str(one),], case[str(two),]) for case in chosen}
            assert len(pairs) == sizes[one] * sizes[two]
    assert len(chosen) < len(every)
