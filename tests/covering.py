"""Choose the cases of a test that `make test` runs; the marks of the other cases leave them to other targets.

- `@pytest.mark.covering` selects, from a product of cases, enough that each value occurs. `covering(2)` does so for
  each pair of values. The other cases are marked slow, or long if the mark says `rest="long"`.
- `@pytest.mark.spread(3)` selects three cases from a list whose cases take the same path through the code. The other
  cases are marked long, so continuous integration runs them.

In the rooms of `make test-portable`, the other cases are marked portable instead, and run there. A test of these rooms
without a mark is spread over `NATIVE_CASES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

# Rooms all of whose tests `make test-portable` runs.
PORTABLE = ("tests/kernels/", "tests/operators/", "tests/engine/")
# Cases of a test of these rooms that `make test` runs, compiled for this machine's processor.
NATIVE_CASES = 8

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
        gains = [len(combined & missing) for combined in wanted]
        largest = max(gains)
        most = min(
            (place for place, gain in enumerate(gains) if gain == largest),
            key=lambda place: sum(times[value] for value in axes[place]),
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


def spread(cases: int, number: int) -> list[int]:
    """Return the places of at most `number` cases at equal distances, the first and the last included."""
    if number >= cases:
        return list(range(cases))
    return [place * (cases - 1) // max(1, number - 1) for place in range(number)]


def thin_out(items: list[pytest.Item]) -> None:
    """Mark the cases of `covering` tests, then those of `spread` tests, that were not selected.

    A case that another mark leaves out of `make test` is not counted.
    """
    for kind, elsewhere in (("covering", ("slow",)), ("spread", ("slow", "portable", "long"))):
        tests: dict[str, list[pytest.Function]] = {}
        for item in items:
            portable = kind == "spread" and item.nodeid.startswith(PORTABLE)
            counts = (portable or item.get_closest_marker(kind)) and not any(map(item.get_closest_marker, elsewhere))
            if counts and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
                tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
        for name, cases in tests.items():
            mark = cases[0].get_closest_marker(kind) or pytest.mark.spread(NATIVE_CASES).mark
            if kind == "covering":
                chosen = covering([axes_of(case) for case in cases], *(mark.args or (1,)))
            else:
                chosen = spread(len(cases), *mark.args)
            rest = mark.kwargs.get("rest", "slow" if kind == "covering" else "long")
            for place in set(range(len(cases))).difference(chosen):
                cases[place].add_marker("portable" if name.startswith(PORTABLE) else rest)


def few(names: Iterable[str], *quick: str) -> list[Any]:
    """Names as parameters, of which all but the quick ones are marked slow: the others are seen by other tests."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
