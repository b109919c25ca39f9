"""Tests of many combinations: `make test` runs as many as hold every value or pair, and `make test-slow` all others.

`@pytest.mark.covering` stands above the `parametrize` marks of a test whose cases are a product. A case that brings no
value of a mark, with `covering(2)` no pair of values of two marks, that the others do not bring is marked slow; in the
rooms of `make test-portable` it is marked portable, and run there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

# Rooms all of whose tests `make test-portable` runs.
PORTABLE = ("tests/kernels/", "tests/operators/", "tests/engine/")

Axes = dict[tuple[str, ...], Hashable]


def covering(cases: Sequence[Axes], strength: int) -> list[int]:
    """Places of cases that hold each combination of `strength` axes' values that there is, the greediest first."""
    axes = [sorted(case.items()) for case in cases]
    wanted = [set(combinations(case, min(strength, len(case)))) for case in axes]
    missing: set[Any] = set().union(*wanted)
    times: Counter[Any] = Counter()
    chosen = []
    while missing:
        # Of those that bring as much, one whose values have come the least often: all of an axis have their turn.
        most = max(
            range(len(axes)),
            key=lambda place: (len(wanted[place] & missing), -sum(times[value] for value in axes[place])),
        )
        chosen.append(most)
        times.update(axes[most])
        missing -= wanted[most]
    return chosen


def axes_of(item: pytest.Function) -> Axes:
    """One value of each `parametrize` mark and of each fixture that has parameters."""
    params = {name: id(value) for name, value in item.callspec.params.items()}
    axes: Axes = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.split(",") if isinstance(names, str) else names
        names = tuple(name.strip() for name in names)
        axes[names] = tuple(params.pop(name) for name in names)
    return axes | {(name,): (value,) for name, value in params.items()}


def thin_out(items: list[pytest.Item]) -> None:
    """Mark as slow, or as portable, what of the tests marked `covering` adds nothing; what is slow covers nothing."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        covers = item.get_closest_marker("covering") is not None and item.get_closest_marker("slow") is None
        if covers and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        mark = cases[0].get_closest_marker("covering")
        assert mark is not None
        chosen = set(covering([axes_of(case) for case in cases], *(mark.args or (1,))))
        rest = pytest.mark.portable if name.startswith(PORTABLE) else pytest.mark.slow
        for place, case in enumerate(cases):
            if place not in chosen:
                case.add_marker(rest)


def few(names: Iterable[str], *quick: str) -> list[Any]:
    """Names as parameters, of which all but the quick ones are marked slow: the others are seen by other tests."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
