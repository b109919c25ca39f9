"""A folder of compiled code that was filled beforehand, for one kind of processor, and is only read.

An image is built on one machine and runs on another, whose processor may know more instructions or fewer. So its code
is compiled for a fixed target, which the folder's description names, and a process that is to use it compiles all else
for the same target: entries have the same bits for any. Where the folder does not fit (another processor, another
version of Numba or of dkgp's loops) a process says so and compiles for itself, as it does without one.

`DKGP_COMPILED` names the folder; `dkgp warm-up --into` fills it.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from dkgp.errors import InputError

logger = logging.getLogger("dkgp.kernels")

VARIABLE = "DKGP_COMPILED"
DESCRIPTION = "target.json"

# The levels of x86-64 as its psABI defines them, in LLVM's names. A name alone would keep the host's instructions.
_V3 = (
    "64bit cmov cx8 cx16 fxsr mmx sse sse2 sahf popcnt sse3 ssse3 sse4.1 sse4.2 crc32 "
    "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
)
TARGETS = {"x86-64-v3": _V3.split()}
# LLVM reports these of no processor, or under other names: they mean nothing beyond the level's other instructions.
_UNREPORTED = {"64bit", "crc32"}


def target_environment(target: str) -> dict[str, str]:
    """The variables that make Numba compile for a target of `TARGETS`; none for "host"."""
    if target == "host":
        return {}
    return {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in TARGETS[target])}


def require_target(target: str) -> None:
    """Refuse a target that this machine cannot compile and run; `InputError`."""
    if target != "host" and (reason := _unsuited(target, "x86_64", TARGETS[target])):
        raise InputError(f"cannot compile for {target}: {reason}")


def _unsuited(target: str, machine: str, features: Iterable[str]) -> str | None:
    if machine != platform.machine():
        return f"it is for {machine} and this machine is {platform.machine()}"
    import llvmlite.binding as llvm

    host = {name for name, known in llvm.get_host_cpu_features().items() if known}
    missing = sorted(set(features) - host - _UNREPORTED)
    return f"it is for {target} and this processor has no {', '.join(missing)}" if missing else None


def describe(target: str, sources: str) -> dict[str, Any]:
    """Description of a folder filled by this process, for `target`."""
    import llvmlite
    import numba

    name, features = compile_target()
    return {
        "target": target if target != "host" else name,
        "machine": platform.machine(),
        "cpu_name": name,
        "cpu_features": features,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "sources": sources,
    }


def why_unusable(description: dict[str, Any], sources: str) -> str | None:
    """Say why this process, whose loops have the stamp `sources`, cannot run code described so; None where it can."""
    import llvmlite
    import numba

    features = [feature[1:] for feature in description["cpu_features"].split(",") if feature.startswith("+")]
    if reason := _unsuited(description["target"], description["machine"], features):
        return reason
    for package, version in (
        ("python", f"{sys.version_info[0]}.{sys.version_info[1]}"),
        ("numba", numba.__version__),
        ("llvmlite", llvmlite.__version__),
    ):
        if description[package] != version:
            return f"it was made by {package} {description[package]} and this is {version}"
    if description["sources"] != sources:
        return "it was made from other loops than this dkgp's"
    target = description["cpu_name"], description["cpu_features"]
    if compile_target() != target and _is_settled():
        return (
            f"it is for {description['target']} and Numba compiles for {compile_target()[0]} in this process already, "
            "by NUMBA_CPU_NAME or because it has compiled something"
        )
    return None


@cache
def kept_folder(sources: str) -> Path | None:
    """The folder to read compiled code from; None without one, or, with a warning, where it does not fit.

    From here on Numba compiles for the folder's target in this process. `sources` is the stamp on the loops.
    """
    place = os.environ.get(VARIABLE)
    if not place:
        return None
    folder = Path(place)
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        reason = why_unusable(description, sources)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"its {DESCRIPTION} cannot be read ({type(error).__name__})"
    if reason is not None:
        logger.warning(
            "the compiled code in '%s' cannot be used: %s. This process compiles its own, once, which takes up to half "
            "a minute; %s= (empty) says that this is meant",
            folder,
            reason,
            VARIABLE,
        )
        return None
    from numba.core import config

    config.CPU_NAME, config.CPU_FEATURES = description["cpu_name"], description["cpu_features"]
    return folder


def compile_target() -> tuple[str, str]:
    """Name and features of the processor that Numba compiles for in this process."""
    from numba.core import config

    name, features = _host()
    return config.CPU_NAME or name, features if config.CPU_FEATURES is None else config.CPU_FEATURES


@cache
def _host() -> tuple[str, str]:
    import llvmlite.binding as llvm
    from numba.core.codegen import get_host_cpu_features

    # Once: every piece that a run needs is looked for by it, and LLVM takes a quarter of a millisecond to tell.
    return llvm.get_host_cpu_name(), get_host_cpu_features()


def _is_settled() -> bool:
    """True if this process compiles for some processor already, and cannot change it."""
    from numba.core import config
    from numba.core.registry import cpu_target

    return config.CPU_NAME is not None or "_toplevel_target_context" in vars(cpu_target)
