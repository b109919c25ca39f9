"""The sections that are declared here are those that dkgp names, and finds where this package is installed."""

from __future__ import annotations

import importlib
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from dkgp.bench.section import SECTIONS
from dkgp.cli.bench import ELSEWHERE

PROJECT = Path(__file__).resolve().parents[2]


def test_every_section_has_its_entry_point_and_its_place_in_dkgps_help() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"]["dkgp.benches"]
    files = {path.stem for path in (PROJECT / "dkgp_benchmarks" / "sections").glob("*.py")} - {"__init__"}
    # A file may declare two that belong together.
    assert set(declared.values()) == {f"dkgp_benchmarks.sections.{name}" for name in files}
    assert tuple(declared) == ELSEWHERE == tuple(sorted(ELSEWHERE))
    for name, module in declared.items():
        importlib.import_module(module)
        assert SECTIONS.find(name).run.__module__ == module
    installed = {point.name: point.value for point in entry_points(group="dkgp.benches")}
    assert declared.items() <= installed.items()
