"""Kernels with all length scales multiplied by one factor."""

from __future__ import annotations

from dkgp.errors import InputError
from dkgp.kernels import Kernel


def scaled(kernel: Kernel, factor: float) -> Kernel:
    """The kernel with all inverse squared length scales multiplied by one factor; `InputError` where it has none."""
    if factor == 1.0:
        return kernel
    parameters = kernel.parameters()
    scales = [item.name.split(".")[-1] == "gamma" for item in parameters]
    if not any(scales):
        raise InputError(
            f"the kernel {kernel.type_name} has no length scale to search for; choose `search` none, or another kernel"
        )
    return kernel.with_parameters(
        [item.value * factor if is_scale else item.value for item, is_scale in zip(parameters, scales, strict=True)]
    )
