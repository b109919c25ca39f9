from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.outputs import dump, plain


def test_numpy_values_become_plain() -> None:
    document = {"a": np.float64(1.5), "b": np.arange(3), "c": (np.bool_(True), None), "d": Path("x") / "y"}
    assert plain(document) == {"a": 1.5, "b": [0, 1, 2], "c": [True, None], "d": "x/y"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_json_has_no_word_for_becomes_null(value: float) -> None:
    assert json.loads(dump({"value": [value]})) == {"value": [None]}


def test_floats_survive_to_the_last_bit() -> None:
    values = np.random.default_rng(0).standard_normal(100)
    assert np.array(json.loads(dump({"v": values}))["v"]).tobytes() == values.tobytes()


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        plain({"a": object()})
