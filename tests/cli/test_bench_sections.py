"""`dkgp bench` where dkgp-benchmarks is not installed: its sections are named, with what to install."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dkgp.bench.section import SECTIONS
from dkgp.cli.bench import ELSEWHERE


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """dkgp without dkgp-benchmarks."""
    here = {name: section for name, section in SECTIONS.all().items() if name not in ELSEWHERE}
    monkeypatch.setattr(SECTIONS, "_found", here)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("arguments", [(), ("--help",), ("--report", "folder", "--json")], ids=" ".join)
def test_a_section_that_is_not_installed_says_what_to_install(run: Callable[..., Any], arguments: tuple[str]) -> None:
    result = run("bench", "papers", *arguments)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "`dkgp bench papers` is of the package dkgp-benchmarks, which is not installed" in said
    assert "pip install ./benchmarks" in said


@pytest.mark.usefixtures("alone")
def test_help_lists_what_is_there_and_names_the_rest(run: Callable[..., Any]) -> None:
    shown, _, missing = run("bench", "--help").stdout.partition("Not installed:")
    for name in ("tiles", "products", "solve", "overhead", "scaling"):
        assert f"  {name} " in shown
    for name in ELSEWHERE:
        assert name in missing
        assert f"  {name} " not in shown
    assert "pip install ./benchmarks" in " ".join(missing.split())
    result = run("bench", "nonesuch")
    assert result.exit_code == 2
    assert "No such command 'nonesuch'" in result.stderr


def test_nothing_is_missing_where_all_is_installed(run: Callable[..., Any]) -> None:
    assert "Not installed" not in run("bench", "--help").stdout
