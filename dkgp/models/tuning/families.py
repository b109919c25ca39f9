"""Kernels with free parameters in log space on fixed inputs: their matrix, and its derivatives times given weights.

A squared exponential with a length scale for each feature has a fused form of its own. Any other kernel is evaluated
block by block; see `family_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.tuning.dense_algebra import symmetric_product

# On standardised inputs a gamma of 1e-8 moves no exponent that matters, and one of 1e4 makes every sample an island.
GAMMA_BOUNDS = (1e-8, 1e4)
VARIANCE_BOUNDS = (1e-4, 1e4)


class KernelFamily(Protocol):
    """A kernel with free parameters, all in log space, on fixed inputs of shape (n, d)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in messages."""

    @property
    def bounds(self) -> FloatArray:
        """Lower and upper bound of each log parameter: (parameters, 2)."""

    def initial(self) -> FloatArray:
        """Return the starting point: (parameters,) log values."""

    def kernel(self, parameters: FloatArray) -> Kernel:
        """Return the kernel at log parameters."""

    def matrix(self, parameters: FloatArray, out: FloatArray) -> None:
        """Write K into `out`, (n, n) in Fortran order, both triangles."""

    def contract(self, parameters: FloatArray, matrix: FloatArray, weights: FloatArray) -> FloatArray:
        """Return sum_ij weights_ij dK_ij / dparameter for each parameter: (parameters,).

        `matrix` is the result of the method `matrix`. Only the lower triangle of the symmetric `weights` is read, and
        `weights` may be overwritten.
        """


class ArdSquaredExponential:
    """k(x, x') = v exp(-sum_l gamma_l (x_l - x'_l)^2); parameters log gamma_1 .. log gamma_d and, by choice, log v.

    Inputs (n, d) are standardised, `feature_names` are for messages. Without `learn_variance` v stays where it starts.
    Every gamma of the start is positive; by default gamma_l = 1 / (2 d) and v = 1, as in the GBCD paper.
    """

    def __init__(
        self,
        inputs: FloatArray,
        *,
        learn_variance: bool,
        feature_names: tuple[str, ...],
        start: SquaredExponential | None = None,
    ) -> None:
        n_samples, self._n_features = inputs.shape
        self._inputs = np.ascontiguousarray(inputs)
        self._squares = inputs * inputs
        # A column of ones beside the inputs makes the row sums of W part of the one product that the gradient needs.
        self._inputs_and_one = np.asfortranarray(np.column_stack([inputs, np.ones(n_samples)]))
        self._learn_variance = learn_variance
        self._start = start
        self._held_variance = 1.0 if start is None else start.variance
        self.names = tuple(f"gamma of '{name}'" for name in feature_names) + ("the amplitude v",) * learn_variance

    @property
    def bounds(self) -> FloatArray:
        """Lower and upper bound of each log parameter: (parameters, 2)."""
        pairs = [GAMMA_BOUNDS] * self._n_features + [VARIANCE_BOUNDS] * self._learn_variance
        return cast(FloatArray, np.log(np.array(pairs)))

    def initial(self) -> FloatArray:
        """Return the start, by default gamma_l = 1 / (2 d): samples are 2 d apart in mean square, the exponent is 1."""
        start = np.zeros(len(self.names))
        default = 1.0 / (2.0 * self._n_features)
        if self._start is None or self._start.gamma == (default,) * self._n_features:
            start[: self._n_features] = -math.log(2.0 * self._n_features)
        else:
            start[: self._n_features] = np.log(self._start.gamma)
        if self._learn_variance:
            start[-1] = math.log(self._held_variance)
        return start

    def kernel(self, parameters: FloatArray) -> SquaredExponential:
        """Return the kernel at log parameters."""
        gamma = np.exp(parameters[: self._n_features])
        return SquaredExponential(gamma=tuple(gamma.tolist()), variance=self._variance(parameters))

    def matrix(self, parameters: FloatArray, out: FloatArray) -> None:
        """Write K into `out`, (n, n) in Fortran order, both triangles."""
        scaled = self._inputs * np.exp(0.5 * parameters[: self._n_features])
        squared_norm = np.einsum("ij,ij->i", scaled, scaled)
        # NumPy sends a product with its own transpose to a symmetric rank-k update: half the work, exactly symmetric.
        np.dot(scaled, scaled.T, out=out.T)
        out *= 2.0
        out -= squared_norm
        out -= squared_norm[:, None]
        np.minimum(out, 0.0, out=out)
        np.fill_diagonal(out, 0.0)
        np.exp(out, out=out)
        if self._learn_variance or self._held_variance != 1.0:
            out *= self._variance(parameters)

    def contract(self, parameters: FloatArray, matrix: FloatArray, weights: FloatArray) -> FloatArray:
        """Return sum_ij weights_ij dK_ij / dparameter, all d + 1 of them from one symmetric product.

        With W = weights * K elementwise, sum_ij W_ij (x_il - x_jl)^2 = 2 (sum_i x_il^2 (W 1)_i - x_l' W x_l).
        """
        weights *= matrix
        product = symmetric_product(weights, self._inputs_and_one)
        row_sums = product[:, -1]
        spread = self._squares.T @ row_sums - np.einsum("ij,ij->j", self._inputs, product[:, :-1])
        gradient = np.empty(len(self.names))
        gradient[: self._n_features] = -2.0 * np.exp(parameters[: self._n_features]) * spread
        if self._learn_variance:
            gradient[-1] = row_sums.sum()
        return gradient

    def _variance(self, parameters: FloatArray) -> float:
        return math.exp(parameters[-1]) if self._learn_variance else self._held_variance


_BLOCK_ENTRIES = 2**18


def family_of(kernel: Kernel, inputs: FloatArray, learn_variance: bool, feature_names: Sequence[str]) -> KernelFamily:
    """Return the family of a kernel on standardised `inputs` (n, d); `feature_names` are for messages.

    A search starts at the values of `kernel`. `learn_variance` makes the amplitude of a stationary kernel a parameter;
    otherwise it stays, at 1 for the targets' variance after standardisation. Amplitudes within a sum, and those of
    kernels that are not stationary, are always parameters.

    Raises `InputError`: a kernel for another number of features, with white noise in it, or without any parameter.
    """
    names = tuple(feature_names)
    if kernel.n_features not in (0, inputs.shape[1]):
        raise InputError(f"the kernel has {kernel.n_features} features, but the inputs have {inputs.shape[1]}")
    if isinstance(kernel, SquaredExponential) and not kernel.isotropic and all(kernel.gamma):
        return ArdSquaredExponential(inputs, learn_variance=learn_variance, feature_names=names, start=kernel)
    return ComposedFamily(kernel, inputs, learn_variance=learn_variance, feature_names=names)


class ComposedFamily:
    """A kernel's parameters in log space, in the order of `Kernel.parameters`, on fixed inputs.

    Only the lower triangle is evaluated, some columns at a time, so that memory besides K does not grow with the number
    of the kernel's parts times n^2.

    `kernel`: its parameters' values are the starting point. `inputs` (n, d): standardised inputs. `learn_variance`: see
    `family_of`. `feature_names`: for messages.
    """

    def __init__(
        self, kernel: Kernel, inputs: FloatArray, *, learn_variance: bool, feature_names: tuple[str, ...]
    ) -> None:
        if not kernel.pairwise:
            raise InputError(
                "white noise inside a kernel is noise that is learnt anyway; take it out with "
                "dkgp.kernels.fold_white(kernel, noise_variance)"
            )
        parameters = kernel.parameters()
        held = None if learn_variance or not kernel.stationary else kernel.amplitude_index
        self._free = np.array([index for index in range(len(parameters)) if index != held], dtype=np.intp)
        self._kernel = kernel
        self._values = np.array([parameter.value for parameter in parameters])
        self._parameters = [parameters[index] for index in self._free]
        self._feature_names = feature_names
        self._inputs = np.ascontiguousarray(inputs)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in messages."""
        return tuple(
            ("the amplitude v" if parameter.name == "variance" else parameter.name)
            + ("" if parameter.feature is None else f" of '{self._feature_names[parameter.feature]}'")
            for parameter in self._parameters
        )

    @property
    def bounds(self) -> FloatArray:
        """Lower and upper bound of each log parameter: (parameters, 2)."""
        pairs = [(parameter.lower, parameter.upper) for parameter in self._parameters]
        logarithms: FloatArray = np.log(np.array(pairs).reshape(-1, 2))
        return logarithms

    def initial(self) -> FloatArray:
        """Return the starting point: logarithms of the kernel's own values."""
        logarithms: FloatArray = np.log(self._values[self._free])
        return logarithms

    def kernel(self, parameters: FloatArray) -> Kernel:
        """Return the kernel at log parameters."""
        values = self._values.copy()
        values[self._free] = np.exp(parameters)
        return self._kernel.with_parameters(values)

    def matrix(self, parameters: FloatArray, out: FloatArray) -> None:
        """Write K into `out`, (n, n) in Fortran order, both triangles."""
        kernel = self.kernel(parameters)
        rows_of_out = out.T
        for start, stop in self._blocks():
            rows, below = self._inputs[start:stop], self._inputs[stop:]
            upper = np.triu(kernel.matrix(rows, rows))
            out[start:stop, start:stop] = upper + np.triu(upper, 1).T
            if stop < len(self._inputs):
                block = kernel.matrix(rows, below)
                rows_of_out[start:stop, stop:] = block
                out[start:stop, stop:] = block

    def contract(self, parameters: FloatArray, matrix: FloatArray, weights: FloatArray) -> FloatArray:
        """Return sum_ij weights_ij dK_ij / dparameter for each parameter: (parameters,); reads the lower triangle."""
        kernel = self.kernel(parameters)
        rows_of_weights = weights.T
        gradient = np.zeros(len(kernel.parameters()))
        for start, stop in self._blocks():
            rows, below = self._inputs[start:stop], self._inputs[stop:]
            square = np.triu(rows_of_weights[start:stop, start:stop])
            # Both triangles of a symmetric sum at once, the diagonal once.
            square += np.triu(square, 1)
            gradient += kernel.contract(rows, rows, square)
            if stop < len(self._inputs):
                gradient += 2.0 * kernel.contract(rows, below, rows_of_weights[start:stop, stop:])
        whole = np.zeros(len(self._values))
        # The kernel has no parameters that are switched off, at minus infinity.
        whole[self._in_use(parameters)] = gradient
        return whole[self._free]

    def _in_use(self, parameters: FloatArray) -> NDArray[np.bool_]:
        in_use = np.ones(len(self._values), dtype=bool)
        in_use[self._free] = np.exp(parameters) > 0.0
        return in_use

    def _blocks(self) -> Iterator[tuple[int, int]]:
        n_samples = len(self._inputs)
        step = _block_columns(n_samples)
        for start in range(0, n_samples, step):
            yield start, min(start + step, n_samples)


def family_bytes(kernel: Kernel, n_samples: int) -> int:
    """Return the bytes of a composed kernel during an evaluation, besides the likelihood's own arrays.

    Each part takes a few arrays of a block of columns, and of the inputs' size.
    """
    if isinstance(kernel, SquaredExponential):
        return 0
    plain = sum(1 for part in kernel.walk() if not part.children)
    block = 8 * n_samples * min(_block_columns(n_samples), n_samples)
    return (4 + 4 * plain) * block + 48 * n_samples * plain * (kernel.n_features + 1)


def _block_columns(n_samples: int) -> int:
    return min(max(_BLOCK_ENTRIES // max(n_samples, 1), 64), 512)
