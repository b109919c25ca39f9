"""`--null` and `--repeat` of `dkgp bench` as they are typed."""

from __future__ import annotations

import pytest

from tests.cli.invoke import run


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("selection", "compared by rounds and passes, which are the same in every run"),
        ("papers", "that the papers print"),
        ("growth", "each size runs once"),
    ],
)
def test_sections_without_a_race_refuse_it_in_words(section: str, reason: str) -> None:
    result = run("bench", section, "--null")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert f"--null cannot be used with {section}: " in said
    assert reason in said
    assert "--null" not in run("bench", section, "--help").stdout
