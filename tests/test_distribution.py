"""Releases of dkgp: the wheel as it is built, how dkgp is cited, the conda recipe, and one version in all of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import dkgp
from tests.distribution import ROOT, names_of, wrong_with_source, wrong_with_wheel

# Of packages that conda-forge has under another name.
CONDA = {"dask": "dask-core", "lazy-loader": "lazy_loader", "matplotlib": "matplotlib-base"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def built(what: str, out: Path) -> Path:
    """A distribution of this working tree, by the backend that `pyproject.toml` names, in a process of its own."""
    code = f"import sys; from hatchling.build import build_{what}; print(build_{what}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, capture_output=True, text=True, check=True)
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wrong_with_wheel(wheel) == []


@pytest.mark.long
def test_the_source_distribution_holds_what_tests_and_docs_take(tmp_path: Path) -> None:
    assert wrong_with_source(built("sdist", tmp_path)) == []


def test_a_wheel_with_too_much_or_too_little_is_seen(wheel: Path, tmp_path: Path) -> None:
    bad = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as good, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(names_of(wheel) - {"dkgp/py.typed"}):
            archive.writestr(name, good.read(name))
        archive.writestr("tests/test_x.py", "")
    assert wrong_with_wheel(bad) == ["the wheel lacks dkgp/py.typed", "the wheel has tests/test_x.py"]


def test_the_wheel_runs_outside_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Its own files, on this environment's dependencies; a release is tried in an empty environment."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = "import dkgp, dkgp.cli, dkgp.service.web; print(dkgp.__file__, dkgp.__version__)"
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(site / "dkgp" / "__init__.py"), dkgp.__version__]


def _title(text: str) -> str:
    """Text without capitals and line breaks, and with the README's abbreviation."""
    return " ".join(text.lower().split()).replace("gaussian process", "gp")


def test_how_to_cite_it_is_as_the_schema_wants_and_up_to_date() -> None:
    program = shutil.which("check-jsonschema", path=str(Path(sys.executable).parent))
    assert program is not None
    citation = ROOT / "CITATION.cff"
    command = [program, "--builtin-schema", "vendor.citation-file-format", str(citation)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    content = yaml.safe_load(citation.read_text())
    assert content["version"] == dkgp.__version__
    assert content["license"] == "BSD-3-Clause"
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[([\d.]+)\] – ([\d-]+)$", changes, flags=re.MULTILINE)
    assert newest is not None
    assert newest.groups() == (dkgp.__version__, str(content["date-released"]))
    # The papers that the README names, under the titles that they have there.
    readme = _title((ROOT / "README.md").read_text())
    for reference in content["references"]:
        assert _title(reference["title"]).partition(" with ")[0] in readme


def test_the_conda_recipe_has_the_dependencies_of_the_project(project: dict[str, Any]) -> None:
    recipe = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == dkgp.__version__
    assert SpecifierSet(f">={recipe['context']['python_min']}") == SpecifierSet(project["requires-python"])
    (script,) = recipe["build"]["python"]["entry_points"]
    assert script == f"dkgp = {project['scripts']['dkgp']}"

    def bounds(texts: list[str]) -> dict[str, SpecifierSet]:
        requirements = [Requirement(text) for text in texts]
        return {CONDA.get(each.name, each.name): each.specifier for each in requirements}

    requirements, extras = recipe["requirements"], project["optional-dependencies"]
    python, *run = requirements["run"]
    assert python == "python >=${{ python_min }}"
    assert bounds(run) == bounds(project["dependencies"])
    assert bounds(requirements["run_constraints"]) == bounds([*extras["sklearn"], *extras["plot"]])
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert bounds(requirements["host"][2:]) == bounds(backend)
