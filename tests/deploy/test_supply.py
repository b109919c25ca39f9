"""Supply of the image: packages by hash, a base by digest, and bills of materials for both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.deployment import DEPLOY, ROOT, text_files

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.txt", "requirements-build.txt")


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Package -> its version and hashes, of a lock; whatever else is in it fails."""
    found = {}
    for entry in re.sub(r" \\\n\s+", " ", (DEPLOY / name).read_text()).splitlines():
        if not entry.startswith("#"):
            match = re.fullmatch(r"([\w.-]+)==(\S+)(?: ; .*?)?((?: --hash=sha256:[0-9a-f]{64})+)", entry)
            assert match is not None, f"{name}: {entry[:100]}"
            found[str(canonicalize_name(match[1]))] = (match[2], match[3].split())
    return found


def extras() -> list[str]:
    return re.search(r"^IMAGE_EXTRAS \?= (\S+)$", MAKEFILE, flags=re.MULTILINE)[1].split(",")


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes_and_the_version_that_was_tested(name: str) -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
    tested = {canonicalize_name(package): version for package, version in pins.items()}
    packages = locked(name)
    for package, (version, hashes) in packages.items():
        assert hashes, package
        # Those of other systems and of the build are in no environment of the tests.
        assert tested.get(package, version) == version, f"{package}: run make lock"
    assert len(packages.keys() & tested.keys()) > (60 if name == "requirements.txt" else 1)
    assert "://" not in (DEPLOY / name).read_text()


def test_what_the_image_needs_is_in_its_lock() -> None:
    project = METADATA["project"]
    assert set(extras()) <= set(project["optional-dependencies"])
    assert {"s3", "service"} <= set(extras())
    needs = [*project["dependencies"], *(n for extra in extras() for n in project["optional-dependencies"][extra])]
    packages = locked("requirements.txt")
    for need in map(Requirement, needs):
        version, _ = packages[canonicalize_name(need.name)]
        assert Version(version) in need.specifier, f"{need}: run make image-lock"
    backends = locked("requirements-build.txt")
    for need in map(Requirement, METADATA["build-system"]["requires"]):
        assert Version(backends[canonicalize_name(need.name)][0]) in need.specifier


def test_the_image_takes_nothing_by_name_alone() -> None:
    installs = [
        command
        for command in re.split(r"&&|^RUN ", DOCKERFILE, flags=re.MULTILINE)
        if re.search(r"bin/pip (install|wheel)", command)
    ]
    assert len(installs) == 4
    for command in installs:
        by_hash = "--require-hashes --only-binary :all: --requirement" in command
        # dkgp itself, from the files beside, with what is there.
        own = "--no-deps" in command and ("--no-build-isolation" in command or "--no-index" in command)
        assert by_hash != own, command
    python = re.search(r"^ARG PYTHON_IMAGE=python:3\.(\d+)-", DOCKERFILE, flags=re.MULTILINE)[1]
    assert f"--python-version 3.{python} " in MAKEFILE
    assert f"Programming Language :: Python :: 3.{python}" in METADATA["project"]["classifiers"]


DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("base", "required", "is_taken"),
    [
        ("python:3.11-slim-bookworm", "", True),
        ("python:3.11-slim-bookworm", "required", False),
        (f"python@sha256:{DIGEST}", "required", True),
        (f"registry.example.com/python:3.11@sha256:{DIGEST}", "required", True),
        (f"python@sha256:{DIGEST[:-1]}", "required", False),
        ("python@sha256:", "required", False),
        (f"python@sha256:{DIGEST}", "yes", False),
    ],
)
def test_a_base_without_a_digest_is_refused_where_one_is_required(base: str, required: str, is_taken: bool) -> None:
    """The Dockerfile's own line, by the shell that runs it."""
    lines = re.search(r"^RUN (case \"\$\{BASE_BY_DIGEST\}.*?esac)$", DOCKERFILE, flags=re.DOTALL | re.MULTILINE)[1]
    script = lines.replace("\\\n", "\n")
    environment = {**os.environ, "PYTHON_IMAGE": base, "BASE_BY_DIGEST": required}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == is_taken, done.stderr
    assert is_taken or f"the base '{base}' is no digest" in done.stderr
    froms = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert froms == ["${PYTHON_IMAGE}"] * 2


def test_digests_that_are_written_down_are_whole() -> None:
    for path in [*text_files(), ROOT / "Makefile"]:
        for digest in re.findall(r"@sha256:([^\s\"'`}?*]+)", path.read_text()):
            assert digest.startswith("...") or re.fullmatch(r"[0-9a-f]{64}\W*", digest), f"{path}: {digest}"


def test_make_image_demands_a_digest() -> None:
    shown = subprocess.run(["make", "-n", "image"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--build-arg BASE_BY_DIGEST=required" in shown
    assert "--build-arg LOCK=deploy/requirements.txt" in shown


def test_an_audit_that_could_not_ask_is_a_failure() -> None:
    shown = subprocess.run(["make", "-n", "audit"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in shown.splitlines() if "pip-audit" in line and "install" not in line]
    assert {"--strict", "--require-hashes", "deploy/requirements.txt"} <= set(line.split())


def test_the_bill_names_every_package_with_its_hashes(tmp_path: Path) -> None:
    program = shutil.which("cyclonedx-py", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("cyclonedx-bom is not installed (make sbom installs it)")
    made = tmp_path / "sbom.json"
    subprocess.run(
        [
            *(program, "requirements", "--pyproject", ROOT / "pyproject.toml", "--output-reproducible"),
            *("--of", "JSON", "-o", made, DEPLOY / "requirements.txt"),
        ],
        check=True,
        capture_output=True,
    )
    bill = json.loads(made.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "dkgp"
    named = {str(canonicalize_name(part["name"])): part for part in bill["components"]}
    packages = locked("requirements.txt")
    assert named.keys() == packages.keys()
    for package, (version, hashes) in packages.items():
        assert named[package]["version"] == version
        listed = {
            entry["content"]
            for reference in named[package].get("externalReferences", [])
            for entry in reference.get("hashes", [])
        }
        assert listed == {text.removeprefix("--hash=sha256:") for text in hashes}, package
