"""Contents of dkgp's wheel and source distribution: `python -m tests.distribution dist/*`, as in `make dist`."""

from __future__ import annotations

import email
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a wheel has beside modules.
DATA = {"dkgp/py.typed", *(f"dkgp/service/web/{name}" for name in ("icon.svg", "page.css", "page.html", "page.js"))}
# Folders of the repository that a source distribution has, and what of the top level.
FOLDERS = {"benchmarks", "deploy", "dkgp", "docs", "notebooks", "tests"}
FILES = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md"}
LARGEST_WHEEL_BYTES = 4 * 2**20


def names_of(path: Path) -> set[str]:
    """Names of the files in a distribution; of a source distribution below its folder."""
    if path.suffix == ".whl":
        return set(zipfile.ZipFile(path).namelist())
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def wrong_with_wheel(path: Path) -> list[str]:
    """Return the files that a wheel lacks or should not have, and metadata that differ from `pyproject.toml`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version, names = project["version"], names_of(path)
    info = f"dkgp-{version}.dist-info"
    files = (path for path in (ROOT / "dkgp").rglob("*.py*") if path.suffix in (".py", ".pyi"))
    modules = {str(module.relative_to(ROOT)) for module in files}
    about = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    found = _differences("wheel", names, modules | DATA | about)
    if path.name != f"dkgp-{version}-py3-none-any.whl":
        found.append(f"the wheel is called {path.name}")
    if path.stat().st_size > LARGEST_WHEEL_BYTES:
        found.append(f"the wheel has {path.stat().st_size:,} bytes; at most {LARGEST_WHEEL_BYTES:,} are expected")
    archive = zipfile.ZipFile(path)
    metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    core = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    if sorted(map(_bare, core)) != sorted(map(_bare, project["dependencies"])):
        found.append(f"the wheel requires {core}")
    if metadata["Version"] != version or metadata["License-Expression"] != project["license"]:
        found.append(f"the metadata say version {metadata['Version']}, licence {metadata['License-Expression']}")
    if "dkgp = dkgp.__main__:main" not in archive.read(f"{info}/entry_points.txt").decode():
        found.append("the wheel has no command dkgp")
    return found


def wrong_with_source(path: Path) -> list[str]:
    """Return the files that a source distribution lacks or should not have; it must build, test and document dkgp."""
    names = names_of(path)
    top = {name.partition("/")[0] for name in names if "/" in name}
    found = [f"the source distribution has the folder {name}" for name in sorted(top - FOLDERS)]
    wanted = FILES | DATA | {str(each.relative_to(ROOT)) for each in (ROOT / "tests").rglob("*.py")}
    found += [f"the source distribution lacks {name}" for name in sorted(wanted - names)]
    found += [f"the source distribution has {name}" for name in sorted(names) if _is_litter(name)]
    return found


def _differences(what: str, names: set[str], expected: set[str]) -> list[str]:
    found = [f"the {what} lacks {name}" for name in sorted(expected - names)]
    return found + [f"the {what} has {name}" for name in sorted(names - expected)]


def _is_litter(name: str) -> bool:
    """True of what is made, not written."""
    parts: Iterable[str] = name.split("/")
    return name.endswith((".pyc", ".nbi", ".nbc", ".zarr")) or not {"__pycache__", ".venv", "dist"}.isdisjoint(parts)


def _bare(requirement: str) -> str:
    """A requirement in one order of its bounds."""
    name, bounds = requirement[: len(requirement.rstrip("<>=.,0123456789"))], requirement
    return name + ",".join(sorted(bounds[len(name) :].split(",")))


def main(paths: Sequence[str]) -> int:
    """Print what is wrong with distributions; 1 if anything is."""
    found = [
        fault
        for path in map(Path, paths)
        for fault in (wrong_with_wheel if path.suffix == ".whl" else wrong_with_source)(path)
    ]
    for path in map(Path, paths):
        print(f"{path}: {len(names_of(path)):,} files, {path.stat().st_size:,} bytes")
    for fault in found:
        print(fault)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
