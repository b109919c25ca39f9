"""`--null` and `--repeat` of `dkgp bench` as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_sections_without_a_race_refuse_it_in_words(run: Callable[..., Any]) -> None:
    result = run("bench", "products", "--null")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "--null makes no sense for products: its baselines run twice in every repeat in any case" in said
    assert "--null" not in run("bench", "products", "--help").stdout


def test_repeat_and_repeats_are_one_option(run: Callable[..., Any]) -> None:
    sizes = ("--features", 2, "--json")
    for spelling in ("--repeat", "--repeats"):
        result = run("bench", "tiles", *sizes, spelling, 0)
        assert result.exit_code == 2
        assert "0 is not in the range x>=1" in result.stderr
