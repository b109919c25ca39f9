"""Entries and their products have the same bits whatever the code was compiled for, and whatever BLAS and NumPy run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dkgp
from tests.kernels.tiles.bits import FEATURES, KERNELS
from tests.targets import (
    blas_architectures,
    code_cache,
    environment,
    inherited,
    other_target,
    require_targets,
    targets,
    vector_code,
)

pytestmark = pytest.mark.portable

SCRIPT = Path(__file__).with_name("bits.py")
REPOSITORY = str(Path(dkgp.__file__).resolve().parents[1])
Report = dict[str, Any]
Run = Callable[[dict[str, str]], Report]


def report(variables: dict[str, str], script: Path = SCRIPT) -> Report:
    """The JSON that a script prints in a process with these variables."""
    done = subprocess.run(
        [sys.executable, "-P", script],
        env={**inherited(), "PYTHONPATH": REPOSITORY, **variables},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found: Report = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def here() -> Report:
    """The bits of this processor's own target and libraries."""
    return report({})


def require_same(found: Report, here: Report) -> None:
    assert len(here["hashes"]) == len(FEATURES) * len(KERNELS) * 2
    different = [name for name in here["hashes"] if found["hashes"].get(name) != here["hashes"][name]]
    assert not different, f"{found['arithmetic']} against {here['arithmetic']}"


def test_other_libraries(here: Report) -> None:
    """Another BLAS, and NumPy's sine and powers by other code than the processor's best."""
    require_targets()
    found = report(environment(Path(), blas="Sandybridge", without=vector_code()[-1]))
    assert any("Sandybridge" in blas for blas in found["arithmetic"]["blas"])
    assert found["arithmetic"]["vectors"] == []
    require_same(found, here)


def test_another_processor(here: Report, request: pytest.FixtureRequest) -> None:
    """Vectors of another width, where the host's are of 512 bits; another scheduling model anyway."""
    require_targets()
    target, cache = other_target(), code_cache(request.config)
    found = report(environment(cache, target=target, blas="Haswell", without=vector_code()[1]))
    assert found["arithmetic"]["processor"] == target != here["arithmetic"]["processor"]
    require_same(found, here)


def every_pair() -> list[tuple[str | None, str, int]]:
    """Each target with each BLAS; each of NumPy's states with each of either."""
    architectures = blas_architectures()
    return [
        (target, blas, (row + column) % 3)
        for row, target in enumerate([None, *targets()])
        for column, blas in enumerate(architectures)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "blas", "state"), every_pair())
def test_every_processor_with_every_library(
    here: Report, request: pytest.FixtureRequest, target: str | None, blas: str, state: int
) -> None:
    cache = code_cache(request.config)
    require_same(report(environment(cache, target=target, blas=blas, without=vector_code()[state])), here)
