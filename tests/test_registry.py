"""Packages that are installed, told from what merely lies in the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dkgp.registry import installed_entry_points
from tests.plugin import ROOT, dkgp, install

SECTION = """
    from dkgp.bench import section

    print("a stranger's code")
    section.SECTIONS.add(section.Section("strange", "Somebody else's.", lambda values, reporter: {}, ()))
"""


@pytest.mark.parametrize("path", [f"{ROOT}{os.pathsep}", f"{os.pathsep}{ROOT}", f"{ROOT}{os.pathsep}."])
def test_what_lies_in_the_working_folder_is_not_run(tmp_path: Path, path: str) -> None:
    environment = {**install(tmp_path, "dkgp.benches", "strange", SECTION), "PYTHONPATH": path}
    (ended,) = dkgp(environment, tmp_path, "bench --help")
    assert ended.exit_code == 0
    assert "strange" not in ended.stdout + ended.stderr
    assert "tiles" in ended.stdout


def test_a_folder_that_is_named_counts(tmp_path: Path) -> None:
    package = tmp_path / "packages"
    package.mkdir()
    (ended,) = dkgp(install(package, "dkgp.benches", "strange", SECTION), tmp_path, "bench --help")
    assert "strange" in ended.stdout


def test_of_two_that_are_installed_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        install(tmp_path / folder, "dkgp.benches", "strange", SECTION)
        about = tmp_path / folder / "strange-1.0.dist-info" / "entry_points.txt"
        about.write_text(f"[dkgp.benches]\nstrange = module_{folder}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "two"), str(tmp_path / "one"), *sys.path])
    points = {point.name: point.value for point in installed_entry_points("dkgp.benches")}
    assert points["strange"] == "module_two"
