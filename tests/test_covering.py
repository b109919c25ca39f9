"""The cases of a product that `make test` runs hold all that they are to hold, and are few."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.covering import Axes, covering, spread, thin_out


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


@pytest.mark.parametrize(
    ("cases", "number", "places"),
    [(9, 3, [0, 4, 8]), (7, 2, [0, 6]), (5, 1, [0]), (3, 3, [0, 1, 2]), (2, 4, [0, 1]), (10, 4, [0, 3, 6, 9])],
)
def test_a_few_of_many_cases_lie_at_equal_distances(cases: int, number: int, places: list[int]) -> None:
    assert spread(cases, number) == places


ROOM = """
import pytest

@pytest.mark.spread(2)
@pytest.mark.parametrize("value", [pytest.param(0, marks=pytest.mark.slow), 1, 2, 3, 4, 5])
def test_cases(value):
    pass

@pytest.mark.parametrize("value", range(15))
def test_many(value):
    pass
"""


@pytest.mark.parametrize(("room", "target"), [("models", "long"), ("kernels", "portable")])
def test_other_cases_are_left_to_another_target(tmp_path: Path, room: str, target: str) -> None:
    file = tmp_path / "tests" / room / "test_room.py"
    file.parent.mkdir(parents=True)
    file.write_text(ROOM)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  long\n  portable\n  spread\n")
    marked = {}

    class Recorder:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            thin_out(items)
            marked.update({item.name: {mark.name for mark in item.iter_markers()} for item in items})

    ini, mode = str(tmp_path / "pytest.ini"), "--import-mode=importlib"
    options = ["-q", "--collect-only", mode, "-p", "no:cacheprovider", "-c", ini, str(file)]
    assert pytest.main(options, plugins=[Recorder()]) == 0
    expected = {f"test_cases[{number}]" for number in (2, 3, 4)}
    if target == "portable":
        expected |= {f"test_many[{number}]" for number in range(1, 15, 2)}
    assert {name for name, marks in marked.items() if target in marks} == expected
    assert "slow" in marked["test_cases[0]"]
