"""A falling profile one value at a time in compiled code: what tree sums and their bounds are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dkgp.kernels.program import Profile
from dkgp.kernels.tiles.code_cache import c_function

__all__ = ["BULGE", "STEEPEST", "VALUE", "falling_functions", "profile_at"]

# Where `falling_functions` holds the address of which of a `Profile`'s functions.
VALUE, STEEPEST, BULGE = range(3)
_COMPILED: dict[Any, Any] = {}


def falling_functions(profile: Profile) -> NDArray[np.int64]:
    """Addresses of a profile's value and slopes in this process, for `profile_at`: (3,)."""
    functions = profile.value, profile.steepest, profile.bulge
    for function in functions:
        assert function is not None
        if function not in _COMPILED:
            # Where two threads were at it, the first one's stays: an address lives as long as what it belongs to.
            _COMPILED.setdefault(function, c_function(function, types.float64(types.float64, types.float64)))
    return np.array([_COMPILED[function].address for function in functions], np.int64)


@intrinsic
def profile_at(typing_context: Any, address: Any, where: Any, parameter: Any) -> Any:
    """Call one of the `falling_functions` of a profile with this parameter, from compiled code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()] * 2)
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])

    return types.float64(types.int64, types.float64, types.float64), generate
