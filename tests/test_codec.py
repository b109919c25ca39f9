"""Values to JSON and back: the same value, the same document, and errors that name the place."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from dkgp.codec import difference, finite, from_json, identity, infinite, register, rule, to_json
from dkgp.data.types import FloatArray
from dkgp.errors import InputError


class Colour:
    """A type with a form of its own."""

    def __init__(self, name: str) -> None:
        self.name = name


register(Colour, lambda colour: colour.name, lambda name: Colour(str(name)))


@dataclass(frozen=True)
class Part:
    """A nested dataclass whose number may be infinite."""

    length: float = field(default=math.inf, metadata=rule(write=finite, read=infinite))


@dataclass(frozen=True, eq=False, kw_only=True)
class Whole:
    """Every sort of field."""

    derived: ClassVar = ("twice",)

    count: int
    kind: Literal["a", "b"] = "a"
    rows: tuple[tuple[float, ...], ...] = ()
    weights: FloatArray | None = None
    colour: Colour | None = None
    part: Part = Part()
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = field(default_factory=dict)
    note: str | None = field(default=None, metadata=rule(omit_default=True))
    cache: Any = field(default=None, metadata=rule(stored=False))
    size: int = field(default=0, metadata=rule(decides=False))
    _private: int = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError("a whole needs a count that is not negative")

    @property
    def twice(self) -> int:
        return 2 * self.count


WHOLE = {
    "count": 3,
    "kind": "b",
    "rows": [[1.0, 2.0], [0.1]],
    "weights": [0.1, -0.0],
    "colour": "red",
    "part": {"length": None},
    "parts": [{"length": 2.5}, {"length": None}],
    "named": {"x": {"length": None}},
    "size": 7,
    "twice": 6,
}


def test_a_value_survives_as_json_and_is_written_in_the_order_of_its_fields() -> None:
    whole = Whole(
        count=3,
        kind="b",
        rows=((1.0, 2.0), (0.1,)),
        weights=np.array([0.1, -0.0]),
        colour=Colour("red"),
        parts=(Part(2.5), Part()),
        named={"x": Part()},
        cache=object(),
        size=7,
    )
    document = to_json(whole)
    assert json.dumps(document) == json.dumps(WHOLE)
    again = from_json(Whole, json.loads(json.dumps(document)))
    assert to_json(again) == document
    assert again.rows == whole.rows
    assert again.parts == whole.parts
    assert again.named == {"x": Part()}
    assert again.weights is not None
    assert again.weights.dtype == np.float64
    assert isinstance(again.colour, Colour)


def test_a_field_with_its_default_is_left_out_where_a_rule_says_so_and_read_as_the_default() -> None:
    assert "note" not in to_json(Whole(count=1))
    assert to_json(Whole(count=1, note="n"))["note"] == "n"
    assert from_json(Whole, {"count": 1}).note is None


def test_an_identity_has_only_what_decides() -> None:
    shared = identity(Whole(count=1, size=9))
    assert "size" not in shared
    assert "twice" not in shared
    assert shared == identity(Whole(count=1, size=3))
    assert identity({"a": (1, 2)}) == {"a": [1, 2]}
    assert finite(to_json({"a": (math.inf, 1.0)})) == {"a": [None, 1.0]}


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (np.float64(0.1), 0.1),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, np.nan]]), [[1.0, math.nan]]),
        ({"a": (1, np.float64(2.0))}, {"a": [1, 2.0]}),
        (frozenset({2, 1}), [1, 2]),
        (Path("/a/b"), "/a/b"),
        ({1: None}, {"1": None}),
    ],
)
def test_plain_values_become_plain_types(value: Any, document: Any) -> None:
    written = to_json(value)
    assert json.dumps(written) == json.dumps(document)
    assert type(written) is type(document)


def test_what_has_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="A object cannot be stored as JSON; expected numbers, text, lists and dicts"):
        to_json({"a": object()})
    with pytest.raises(InputError, match="has no form in JSON; `dkgp.codec.register` gives it one"):
        from_json(type("Odd", (), {"__annotations__": {}}), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": None}, "^a whole: `count` must be a whole number; got None$"),
        ({"count": True}, "`count` must be a whole number; got True"),
        ({"rows": [[1.0], ["x"]]}, r"`rows\[1\]\[0\]` must be a number; got 'x'"),
        ({"kind": "c"}, "`kind` is 'c': invalid enum value 'c'"),
        ({"weights": ["x"]}, "could not convert string to float"),
        ({"count": -1}, "^a whole needs a count that is not negative$"),
    ],
)
def test_a_fault_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_json(Whole, {**WHOLE, **change})


def test_a_document_that_lacks_a_field_or_is_none_is_refused_by_the_name_given() -> None:
    with pytest.raises(InputError, match="^a thing: 'count' is missing; got nothing$"):
        from_json(Whole, {}, called="a thing")
    with pytest.raises(InputError, match="^a whole: it must be a JSON object; got 5$"):
        from_json(Whole, 5)


def test_an_older_document_is_brought_up_to_date_first() -> None:
    def older(document: dict[str, Any]) -> dict[str, Any]:
        return {"count": document["n"]} if "n" in document else document

    assert from_json(Whole, {"n": 4}, older=older).count == 4
    assert from_json(Whole, {"count": 5}, older=older).count == 5
    with pytest.raises(InputError, match="^a whole: it lacks `n`$"):
        from_json(Whole, {}, older=lambda document: {"count": document["n"]})


def test_a_difference_names_the_first_field_with_both_values() -> None:
    made = {"fingerprint": "f", "kernel_family": "rbf", "old": 1}
    assert difference(made, dict(made)) is None
    assert difference(made, {**made, "fingerprint": "g"}) == "data set"
    assert difference({**made, "rows": [1, 2]}, {**made, "rows": (1, 2)}) is None
    assert difference(made, {**made, "kernel_family": "matern"}) == (
        "kernel family (its kernel family: 'rbf'; this run's: 'matern')"
    )
    assert difference(made, {"fingerprint": "f", "kernel_family": "rbf"}) == "old (its old: 1; this run's: None)"
