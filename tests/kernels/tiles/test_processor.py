"""A processor without fused multiply-adds is refused, in words, before anything is computed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

import dkgp
from dkgp.kernels.tiles.processor import compilation_target, fuses_multiply_add, require_fused_multiply_add
from tests.targets import require_targets

EVALUATE = "from dkgp.kernels import TileEvaluator, parse_kernel; TileEvaluator(parse_kernel('rbf', 2)); print('made')"


def evaluate(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(dkgp.__file__).resolve().parents[1]), **variables}
    return subprocess.run(
        [sys.executable, "-P", "-c", EVALUATE], env=environment, capture_output=True, text=True, timeout=120
    )


def test_this_processor_does() -> None:
    assert fuses_multiply_add()
    require_fused_multiply_add()
    assert all(compilation_target()[:2])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "features"), [("nehalem", ""), ("haswell", "-fma")], ids=["an old one", "one whose guest is not shown it"]
)
def test_without_it_nothing_runs(name: str, features: str) -> None:
    require_targets()
    refused = evaluate(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features)
    assert refused.returncode != 0
    assert "made" not in refused.stdout
    (message,) = (line for line in refused.stderr.splitlines() if line.startswith("dkgp.errors.InputError"))
    assert f"the processor, {name} to the compiler, has no fused multiply-add" in message
    assert "QEMU: -cpu host" in message


@pytest.mark.portable
def test_a_name_alone_keeps_the_features_of_the_host() -> None:
    """Numba reads `NUMBA_CPU_NAME` alone: the check must use the compiled features, not those of the name."""
    require_targets()
    host = binding.get_host_cpu_features().flatten()
    assert evaluate(NUMBA_CPU_NAME="nehalem", NUMBA_CPU_FEATURES=host).stdout == "made\n"
