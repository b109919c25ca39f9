"""Options that a refused table is told: beside those that were given, and with them one line that works."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import pytest

from dkgp.data import open_dataset
from tests.cli.invoke import run
from tests.covering import Axes, covering

TABLE = """sample_id,cut,grade,sold,size,price
a1,good,low,2021-01-01,1.5,10
b2,fair,high,2021-01-02,,12
c3,good,low,2021-01-03,2.5,11
d4,ideal,high,2021-01-04,2.0,?
e5,ideal,low,2021-01-05,2.1,14
"""
GIVEN = (
    ("--categorical", "cut"),
    ("--ordinal", "grade=low,high"),
    ("--date", "sold:%Y-%m-%d"),
    ("--drop", "size"),
    ("--id", "sample_id"),
    ("--missing", "?"),
    ("--drop-missing",),
    ("--impute", "median"),
)


def asked_of(words: list[str]) -> list[tuple[str, str]]:
    """Pairs of an option and each of the names or texts that it is given."""
    pairs = []
    for position, word in enumerate(words):
        if word.startswith("--"):
            values = words[position + 1].split(",") if position + 1 < len(words) else [""]
            pairs += [(word, value) for value in values] if word != "--drop-missing" else [(word, "")]
    return pairs


CHOICES = [chosen for count in range(len(GIVEN) + 1) for chosen in itertools.combinations(GIVEN, count)]


def any_three() -> list[tuple[tuple[str, ...], ...]]:
    """Choices that hold each three of the options together, each without the others, and all ways between."""
    cases: list[Axes] = [{option: option in chosen for option in GIVEN} for chosen in CHOICES]
    return [CHOICES[place] for place in covering(cases, 3)]


def test_what_is_suggested_works_beside_what_was_given_and_repeats_none_of_it(tmp_path: Path) -> None:
    suggests_what_works(any_three(), tmp_path)


@pytest.mark.slow
def test_what_is_suggested_works_beside_all_that_can_be_given(tmp_path: Path) -> None:
    suggests_what_works(CHOICES, tmp_path)


def suggests_what_works(choices: list[tuple[tuple[str, ...], ...]], tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(TABLE)
    told = 0
    for number, chosen in enumerate(choices):
        given = [word for option in chosen for word in option]
        command = ("ingest", table, tmp_path / f"{number}.zarr", "--target", "price", *given)
        first = run(*command)
        suggested: list[str] = []
        if first.exit_code:
            beside = " beside those that you gave" if given else ""
            _, _, line = first.stderr.rstrip().rpartition(f"\nAdd these options{beside} to read it all the same: ")
            suggested = shlex.split(line)
            assert suggested[0].startswith("--"), first.stderr
            told += 1
            second = run(*command, *suggested)
            assert second.exit_code == 0, (given, suggested, second.stderr)
        once = asked_of([*given, *suggested])
        assert len(set(once)) == len(once), (given, suggested)
        columns = [name.partition("=")[0].partition(":")[0] for option, name in once if option in _OF_COLUMNS]
        assert len(set(columns)) == len(columns), (given, suggested)
        for option, column in (("--categorical", "cut"), ("--ordinal", "grade"), ("--date", "sold")):
            if option in given:
                report = first.stderr.partition("All columns with")[2]
                assert f"  '{column}'" not in report
        if "--impute" in given and "--drop-missing" not in given:
            # The row whose target is missing is left out; gaps of features are filled in.
            assert open_dataset(str(tmp_path / f"{number}.zarr")).n_samples == 4
    assert told > len(choices) // 2


_OF_COLUMNS = ("--categorical", "--ordinal", "--date", "--drop", "--id")
