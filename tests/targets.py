"""Environments in which a process computes as on another processor: compiled for it, with its BLAS and vector code.

What the processor at hand cannot run is left out. There are such environments for x86-64 alone. `python -m
tests.targets` prints one as `make test-portable` takes it; `python -m tests.targets common` the one of `make bits`,
the same on every processor with AVX2.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

from dkgp.cluster.arithmetic import process_arithmetic

_AVX2 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# LLVM's names, and what the processor at hand must have to run code compiled for them.
_TARGETS = {"haswell": _AVX2, "skylake-avx512": _AVX512, "x86-64-v3": _AVX2, "znver3": _AVX2}
# OpenBLAS's. A name that the build has no code for stands for the nearest: "Zen" may be Haswell.
_BLAS = {"Haswell": _AVX2, "Sandybridge": ("avx",), "SkylakeX": _AVX512, "Zen": _AVX2}


def _runnable(table: dict[str, tuple[str, ...]]) -> list[str]:
    held = binding.get_host_cpu_features()
    return [name for name, needed in table.items() if all(held.get(feature) for feature in needed)]


def targets() -> list[str]:
    """Processors that code can be compiled for and run here."""
    return _runnable(_TARGETS)


def blas_architectures() -> list[str]:
    """OpenBLAS's architectures that run here."""
    return _runnable(_BLAS)


def other_target() -> str:
    """A processor to compile for that is not the one at hand."""
    return next(name for name in targets() if name != binding.get_host_cpu_name())


def vector_code() -> list[tuple[str, ...]]:
    """Features to keep NumPy from using: none, all but the least, all that it has code of its own for."""
    configuration: Any = np.show_config(mode="dicts")
    found = tuple(configuration["SIMD Extensions"]["found"])
    return [(), found[1:], found]


def environment(
    cache: Path, *, target: str | None = None, blas: str | None = None, without: Sequence[str] = ()
) -> dict[str, str]:
    """Variables of a process; `cache` is a folder for compiled code, one for all targets."""
    variables = {"NUMBA_CACHE_DIR": str(cache)} if target else {}
    if target:
        # No features beside the name: those that LLVM knows it to have. Left out, the host's would be used.
        variables |= {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": ""}
    if blas:
        variables["OPENBLAS_CORETYPE"] = blas
    if without:
        variables["NPY_DISABLE_CPU_FEATURES"] = ",".join(without)
    return variables


def inherited() -> dict[str, str]:
    """This process's variables, without what would make a process that gets them another processor's."""
    ours = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES")
    return {name: value for name, value in os.environ.items() if name not in ours}


def code_cache(config: pytest.Config) -> Path:
    """Folder for other targets' compiled code, kept from one run to the next unless pytest keeps no cache."""
    cache = getattr(config, "cache", None)
    return Path(cache.mkdir("dkgp-targets") if cache else _temporary_cache().name)


@functools.cache
def _temporary_cache() -> tempfile.TemporaryDirectory[str]:
    """Return one folder a process, which is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="dkgp-targets-")


def require_targets() -> None:
    """Skip where this machine has no other target to compile for."""
    if not targets():
        pytest.skip("needs an x86-64 processor with AVX2: there are no other targets to compile for here")


def common(cache: Path) -> dict[str, str]:
    """Variables of one arithmetic on every processor with AVX2: NumPy without dispatch, one BLAS, one thread."""
    variables = environment(cache, target="x86-64-v3", blas="Haswell", without=vector_code()[-1])
    return variables | {"OPENBLAS_NUM_THREADS": "1"}


def main() -> None:
    """Print variables under which target and BLAS are others than here, or those in common, for `env`."""
    if not targets():
        print("no other target is known for this processor: the tests run as they are", file=sys.stderr)
        return
    if sys.argv[1:] == ["common"]:
        print(*(f"{name}={value}" for name, value in common(Path()).items() if name != "NUMBA_CACHE_DIR"), sep="\n")
        return
    # The widest first: beside a processor that has it, the host's own BLAS may be Haswell's.
    held = " ".join(process_arithmetic().blas)
    blas = next(
        name for name in ("SkylakeX", "Haswell", "Sandybridge") if name in blas_architectures() and name not in held
    )
    for name, value in environment(Path(), target=other_target(), blas=blas).items():
        if name != "NUMBA_CACHE_DIR":
            print(f"{name}={value}")


if __name__ == "__main__":
    main()
