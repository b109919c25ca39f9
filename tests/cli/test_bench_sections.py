"""`dkgp bench` where dkgp-benchmarks is not installed: its sections are named, with what to install."""

from __future__ import annotations

import pytest

from dkgp.bench.section import SECTIONS
from dkgp.cli.bench import ELSEWHERE
from tests.cli.invoke import refused, run


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """dkgp without dkgp-benchmarks."""
    here = {name: section for name, section in SECTIONS.all().items() if name not in ELSEWHERE}
    monkeypatch.setattr(SECTIONS, "_found", here)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("arguments", [(), ("--help",), ("--report", "folder", "--json")], ids=" ".join)
def test_a_section_that_is_not_installed_says_what_to_install(arguments: tuple[str]) -> None:
    result = run("bench", "papers", *arguments)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "`dkgp bench papers` needs the package dkgp-benchmarks, which is not installed" in said
    assert "pip install ./benchmarks" in said


@pytest.mark.usefixtures("alone")
def test_help_lists_what_is_there_and_names_the_rest() -> None:
    shown, _, missing = run("bench", "--help").stdout.partition("Not installed:")
    for name in ("tiles", "products", "solve", "overhead", "scaling", "messages"):
        assert f"  {name} " in shown
    for name in ELSEWHERE:
        assert name in missing
        assert f"  {name} " not in shown
    assert "pip install ./benchmarks" in " ".join(missing.split())
    refused(run("bench", "nonesuch"), "No such command 'nonesuch'", exit_code=2)


def test_nothing_is_missing_where_all_is_installed() -> None:
    assert "Not installed" not in run("bench", "--help").stdout


def test_sections_without_a_race_refuse_it_in_words() -> None:
    result = run("bench", "products", "--null")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "--null cannot be used with products: its baselines run twice in every repeat in any case" in said
    assert "--null" not in run("bench", "products", "--help").stdout
