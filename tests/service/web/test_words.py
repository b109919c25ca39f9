"""The page's words for a result are those of the command line's tables, and its parts are in a useful order."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import dkgp.commands.reporting as reporting
from dkgp.commands.reporting.progress import MEASURES, PLAIN_MEASURES
from dkgp.service.specification import COMMANDS
from tests.service.stage import Stage


def page_file(name: str) -> str:
    return (files("dkgp.service.web") / name).read_text(encoding="utf-8")


def test_the_words_of_a_result_are_those_of_the_tables() -> None:
    block = re.search(r"const WORDS = \{(.*?)\};", page_file("page.js"), re.DOTALL)
    assert block is not None
    words = re.findall(r'\w+: "([^"]+)"', block[1])
    assert len(words) >= 15
    folder = Path(next(iter(reporting.__path__)))
    printed = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert [word for word in words if f'"{word}"' not in printed and f'"{word}{{' not in printed] == []


def test_the_words_of_convergence_are_those_of_the_terminal() -> None:
    line = re.search(r"const PLAIN_MEASURES = \{(.*?)\};", page_file("page.js"))
    assert line is not None
    shown = {quoted or name: words for quoted, name, words in re.findall(r'(?:"([^"]+)"|(\w+)): "([^"]+)"', line[1])}
    assert shown == {MEASURES[name]: words for name, words in PLAIN_MEASURES.items()}


def test_results_come_before_settings() -> None:
    page = page_file("page.html")
    order = [page.index(f'id="{name}"') for name in ("result", "figures", "curve", "facts", "options", "events")]
    assert order == sorted(order)


def test_options_have_the_flags_of_the_command_line(stage: Stage) -> None:
    flags = stage.anonymous().get("/flags.json").json()
    assert set(flags) == set(COMMANDS)
    assert flags["train"]["solver.tolerance"] == ["--tol"]
    assert flags["train"]["dataset"] == ["DATASET"]
    assert flags["krige map"]["variance"] == ["--variance", "--no-variance"]
