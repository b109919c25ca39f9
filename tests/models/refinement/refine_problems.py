"""Small problems for refinements, with the dense log likelihood's gradient written out apart from dkgp's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.kernels import Kernel
from dkgp.models import RunContext
from dkgp.operators import ArrayInputs, BlockedKernelOperator

FloatArray = np.ndarray


@dataclass
class ArrayDataset:
    """Arrays as a dataset store offers them."""

    X: FloatArray
    y: FloatArray
    chunk_rows: int = 97
    noise: FloatArray | None = None

    def __post_init__(self) -> None:
        self._source = ArrayInputs(self.X)

    @property
    def n_samples(self) -> int:
        return len(self.X)

    @property
    def n_features(self) -> int:
        return self.X.shape[1]

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"x{index}" for index in range(self.n_features))

    def inputs(self, start: int, stop: int) -> FloatArray:
        return self._source.inputs(start, stop)

    def input_rows(self, indices: FloatArray) -> FloatArray:
        return self.X[indices]

    def all_targets(self) -> FloatArray:
        return self.y

    def all_sample_noise(self) -> FloatArray | None:
        return self.noise

    def __reduce__(self) -> tuple[object, ...]:
        raise AssertionError("arrays do not travel")


def draw(rng: np.random.Generator, kernel: Kernel, noise_variance: float, n: int, p: int = 1) -> ArrayDataset:
    """Targets drawn from the kernel's own prior."""
    X = rng.normal(size=(n, kernel.n_features))
    half = np.linalg.cholesky(kernel(X, X) + noise_variance * np.eye(n))
    return ArrayDataset(X, half @ rng.normal(size=(n, p)))


def log_likelihood(kernel: Kernel, noise: float | FloatArray, X: FloatArray, y: FloatArray) -> float:
    """Return the log likelihood of p targets, by dense algebra."""
    matrix = kernel(X, X) + np.diag(np.broadcast_to(noise, len(X)))
    sign, determinant = np.linalg.slogdet(matrix)
    assert sign > 0
    fit = float(np.sum(y * np.linalg.solve(matrix, y)))
    return -0.5 * (fit + y.shape[1] * (determinant + len(X) * np.log(2.0 * np.pi)))


def dense_gradient(
    kernel: Kernel, noise_variance: float, X: FloatArray, y: FloatArray, own: FloatArray | None = None
) -> FloatArray:
    """With respect to log parameters, the noise last, by central differences of `log_likelihood`.

    `own` (n,) is what samples have beside the noise.
    """
    known = 0.0 if own is None else own
    logs = np.log([*(parameter.value for parameter in kernel.parameters()), noise_variance])
    step = 1e-4

    def value(at: FloatArray) -> float:
        return log_likelihood(kernel.with_parameters(np.exp(at[:-1])), known + np.exp(at[-1]), X, y)

    steps = step * np.eye(len(logs))
    return np.array([(value(logs + s) - value(logs - s)) / (2.0 * step) for s in steps])


class ApproximateOperator(BlockedKernelOperator):
    """Products that claim to be approximate; they evaluate every entry."""

    approximate = True


@dataclass(frozen=True)
class ApproximateContext(RunContext):
    """Surroundings whose operators are approximate, with errors of this size in their products."""

    size: float = 0.0

    def operator(self, kernel: Any, noise: Any, source: Any, *, tolerance: float | None = None) -> Any:
        operator = ApproximateOperator(kernel, noise, source, self.executor)
        rng, exact = np.random.default_rng(0), operator.matmat
        operator.matmat = lambda V, precision="double": exact(V, precision) + self.size * rng.normal(size=V.shape)
        return operator
