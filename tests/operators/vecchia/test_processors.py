"""The factor on other processors: its order and halos are everywhere the same, its values those of one BLAS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kernels.tiles.test_portable import report as script_report
from tests.targets import code_cache, environment, other_target, require_targets, vector_code

pytestmark = pytest.mark.portable

SCRIPT = Path(__file__).with_name("factor_bits.py")


def report(variables: dict[str, str]) -> dict[str, Any]:
    found = script_report(variables, SCRIPT)
    assert found["gradient"] <= 1.01e-4
    return found


@pytest.fixture(scope="module")
def haswell() -> dict[str, Any]:
    """Code compiled for the processor at hand, and the BLAS of any x86 processor of the last ten years."""
    require_targets()
    return report(environment(Path(), blas="Haswell"))


def test_compiled_for_another_processor(haswell: dict[str, Any], request: pytest.FixtureRequest) -> None:
    target = other_target()
    variables = environment(code_cache(request.config), target=target, blas="Haswell", without=vector_code()[1])
    found = report(variables)
    assert found["arithmetic"]["processor"] == target != haswell["arithmetic"]["processor"]
    assert found["hashes"] == haswell["hashes"]


def test_of_another_blas_its_order_is_the_same(haswell: dict[str, Any]) -> None:
    found = report(environment(Path(), blas="Sandybridge"))
    assert any("Sandybridge" in blas for blas in found["arithmetic"]["blas"])
    same = {name for name, value in haswell["hashes"].items() if found["hashes"][name] == value}
    # Values differ in their last bits, which is why workers that differ are refused.
    assert same == {f"{what} {noise}" for what in ("order", "halos", "limited") for noise in (0.05, 1e-06)}
