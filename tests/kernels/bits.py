"""Prints, as JSON, hashes of all that must have the same bits on every processor.

`test_portable.py` runs it under other `NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES`, `OPENBLAS_CORETYPE` and
`NPY_DISABLE_CPU_FEATURES`.
"""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np

from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.kernels import Kernel, TileEvaluator, parse_kernel

FEATURES = (3, 8, 9, 10, 12, 21, 90)
KERNELS = {
    "rbf": "rbf",
    "matern12": "matern12",
    "matern32": "matern32",
    "matern52": "matern52",
    "rq": "rq",
    "periodic": "periodic",
    "linear": "linear",
    "polynomial": "polynomial(degree=3)",
    "sum": "0.7 * rbf + 0.2 * linear + 0.1 * constant",
    "product": "rbf * periodic",
}
ROWS, COLUMNS = 200, 150


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Uniform numbers from Python's own generator: no vector code, so the same everywhere."""
    draw = random.Random(seed)
    return np.array([draw.uniform(-1.7, 1.7) for _ in range(int(np.prod(shape)))]).reshape(shape)


def kernel_of(name: str, d: int) -> Kernel:
    """A kernel whose parameters are no powers of two, and differ from feature to feature."""
    kernel = parse_kernel(KERNELS[name], d)
    return kernel.with_parameters(
        [parameter.value * (0.71 + 0.07 * (index % 5)) for index, parameter in enumerate(kernel.parameters())]
    )


def hashed(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    found = {}
    for d in FEATURES:
        X, Z = numbers(d, ROWS, d), numbers(d + 1000, COLUMNS, d)
        right, left = numbers(1, COLUMNS, 2), numbers(2, ROWS, 2)
        for name in KERNELS:
            kernel = kernel_of(name, d)
            for precision in ("single", "double"):
                evaluator = TileEvaluator(kernel, precision)
                A, B = evaluator.prepare(X), evaluator.prepare(Z)
                found[f"{name} {precision} d={d}"] = [
                    hashed(evaluator.tile(A, B)),
                    hashed(evaluator.matmat(A, B, right)),
                    hashed(*evaluator.pair(A, B, right, left)),
                    hashed(kernel.diagonal(X)),
                ]
    print(json.dumps({"arithmetic": own_arithmetic().to_json(), "hashes": found}))


if __name__ == "__main__":
    main()
