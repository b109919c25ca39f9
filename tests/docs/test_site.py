"""The site's own parts: it loads nothing from elsewhere, has every public package, and formulas without a script."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dkgp

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def extension(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "_ext" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example.com/mathjax.js"></script>',
        '<script async defer src="//cdn.example.com/mathjax.js"></script>',
        '<link rel="stylesheet" type="text/css" href="https://fonts.example.com/css2?family=Inter">',
        '<link href="https://fonts.example.com" rel="preconnect">',
        '<img alt="badge" src="https://img.example.com/badge.svg">',
        "@import url('https://fonts.example.com/css');",
        '@import "//fonts.example.com/css";',
        "@font-face { src: url(https://fonts.example.com/inter.woff2) }",
        'import("https://cdn.example.com/module.js")',
        "fetch('https://api.example.com/stars')",
    ],
)
def test_loads_from_elsewhere_are_found(text: str) -> None:
    assert len(extension("self_contained").loads_from_elsewhere(f"<p>before</p>\n{text}\nafter")) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<script src="../_static/searchtools.js"></script>',
        '<link rel="stylesheet" href="_static/styles/furo.css?v=1">',
        '<a class="reference external" href="https://semver.org/">Semantic Versioning</a>',
        '<link rel="canonical" href="https://docs.example.com/">',
        '<svg xmlns="http://www.w3.org/2000/svg"><use href="#arrow"/></svg>',
        'background: url("data:image/svg+xml;charset=utf-8,<svg xmlns=%27http://www.w3.org/2000/svg%27/>")',
        "// see https://developer.mozilla.org/en-US/docs/Web",
    ],
)
def test_what_lies_here_and_what_people_follow_may_stay(text: str) -> None:
    assert extension("self_contained").loads_from_elsewhere(text) == []


def test_every_public_package_has_its_page() -> None:
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^   dkgp\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(dkgp._LAYERS)
    for name in dkgp.__all__:
        assert f"`dkgp.{name}`" in page


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "output" / "html"
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-c",
            "docs",
            "-d",
            str(tmp_path / "trees"),
            ".",
            str(site),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    how = (site / "docs" / "how-it-works.html").read_text(encoding="utf-8")
    assert how.count("<math") > 20
    assert "$" not in re.sub(r"<pre>.*?</pre>|<script.*?</script>", "", how, flags=re.DOTALL)
    assert 'id="dkgp.models.train"' in (site / "docs" / "generated" / "dkgp.models.html").read_text(encoding="utf-8")
    # Drawn by the notebook's own cells.
    assert len(list((site / "_images").glob("*.png"))) >= 4
    assert not (ROOT / "jupyter_execute").exists()
