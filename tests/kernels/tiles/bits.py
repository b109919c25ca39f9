"""Prints, as JSON, hashes of all that must have the same bits on every processor.

`test_portable.py` runs it under other `NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES`, `OPENBLAS_CORETYPE` and
`NPY_DISABLE_CPU_FEATURES`.
"""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np

from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.kernels import (
    Constant,
    Cubic,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    Spherical,
    SquaredExponential,
    TileEvaluator,
    Wendland,
)

FEATURES = (3, 8, 9, 10, 12, 21, 90)
KERNELS = (
    "rbf", "matern12", "matern32", "matern52", "rq", "spherical", "cubic", "wendland",
    "periodic", "linear", "polynomial", "sum", "product",
)  # fmt: skip
ROWS, COLUMNS = 200, 150


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Uniform numbers from Python's own generator: no vector code, so the same everywhere."""
    draw = random.Random(seed)
    return np.array([draw.uniform(-1.7, 1.7) for _ in range(int(np.prod(shape)))]).reshape(shape)


def kernel_of(name: str, d: int) -> Kernel:
    """A kernel whose parameters are no powers of two, and differ from feature to feature."""
    gamma = tuple((0.31 + 0.07 * (l % 5)) / d for l in range(d))
    periods = tuple(1.1 + 0.3 * (l % 4) for l in range(d))
    rbf, line = SquaredExponential(gamma, variance=0.83), Linear(weight=gamma)
    periodic = Periodic(gamma=gamma, period=periods, variance=1.3)
    kernels = {
        "rbf": rbf,
        "matern12": Matern12(gamma, variance=0.83),
        "matern32": Matern32(gamma, variance=0.83),
        "matern52": Matern52(gamma, variance=0.83),
        "rq": RationalQuadratic(gamma, variance=0.83, alpha=0.7),
        # Valid in three dimensions: of three of the features.
        "spherical": Spherical(gamma[:3], variance=0.83).on((0, 1, 2), d),
        "cubic": Cubic(gamma[:3], variance=0.83).on((0, 1, 2), d),
        "wendland": Wendland(gamma[:3], variance=0.83).on((0, 1, 2), d),
        "periodic": periodic,
        "linear": line,
        "polynomial": Polynomial(weight=gamma, offset=0.9, degree=3),
        "sum": 0.7 * rbf + 0.2 * line + Constant(0.1),
        "product": rbf * periodic,
    }
    return kernels[name]


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
    print(json.dumps({"arithmetic": process_arithmetic().to_json(), "hashes": found}))


if __name__ == "__main__":
    main()
