"""The processor that the tile loops are compiled for, which must have fused multiply-adds.

The loops' bits are defined by them. Without the instruction each would be a call into the C library: the same bits, at
a tenth of the speed or less.
"""

from __future__ import annotations

import re
from functools import cache

from dkgp.errors import InputError

_PROBE = """
target triple = "{triple}"
declare double @llvm.fma.f64(double, double, double)
define double @probe(double %a, double %b, double %c) {{
  %r = call double @llvm.fma.f64(double %a, double %b, double %c)
  ret double %r
}}
"""


@cache
def compilation_target() -> tuple[str, str, str]:
    """LLVM's triple, the processor's name and its features, as Numba compiles for them in this process."""
    from numba.core.registry import cpu_target

    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return str(triple), str(name), str(features)


@cache
def fuses_multiply_add() -> bool:
    """True if the compiler turns a fused multiply-add into an instruction."""
    from llvmlite import binding

    triple, name, features = compilation_target()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=name, features=features, opt=3)
    code = machine.emit_assembly(binding.parse_assembly(_PROBE.format(triple=triple)))
    return re.search(r"\b_?fma\b", code) is None


def no_fused_multiply_add(processor: str) -> str:
    """Message about a processor without fused multiply-add, with advice."""
    return (
        f"the processor, {processor} to the compiler, has no fused multiply-add: an instruction that dkgp's loops are "
        "made of, found in Intel's since Haswell (2013), AMD's since Piledriver (2012) and every 64-bit ARM. Use "
        "another machine; in a virtual machine, show the guest the host's processor (QEMU: -cpu host); and unset "
        "NUMBA_CPU_NAME and NUMBA_CPU_FEATURES where they are set"
    )


def require_fused_multiply_add() -> None:
    """Refuse a processor without fused multiply-adds, by an `InputError` with its name and advice."""
    if not fuses_multiply_add():
        raise InputError(f"dkgp cannot run here: {no_fused_multiply_add(compilation_target()[1])}")
