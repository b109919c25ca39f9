"""Any kernel in the marginal likelihood: its parameters in log space, its matrix and its derivatives, block by block.

A bare squared exponential with a length scale for each feature keeps its own, fused form; see `family_of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models.tuning.marginal_likelihood import ArdSquaredExponential, KernelFamily

FloatArray: TypeAlias = NDArray[np.float64]


_BLOCK_ENTRIES = 2**18


def family_of(kernel: Kernel, inputs: FloatArray, learn_variance: bool, feature_names: Sequence[str]) -> KernelFamily:
    """The family of a kernel, as the marginal likelihood needs it.

    A search starts at the values of `kernel`; `inputs` (n, d) are standardised, `feature_names` are for messages.
    `learn_variance` makes the amplitude of a stationary kernel a parameter; otherwise it stays, at 1 for the targets'
    variance after standardisation. Amplitudes within a sum, and of kernels that are not stationary, always are one.

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

    Only the lower triangle is evaluated, some columns at a time, so that what is held besides K does not grow with the
    number of the kernel's parts times n^2.

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
        """The starting point: logarithms of the kernel's own values."""
        logarithms: FloatArray = np.log(self._values[self._free])
        return logarithms

    def kernel(self, parameters: FloatArray) -> Kernel:
        """The kernel that the log parameters stand for."""
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
        """sum_ij weights_ij dK_ij / dparameter for each parameter: (parameters,); uses the lower triangle alone."""
        kernel = self.kernel(parameters)
        rows_of_weights = weights.T
        gradient = np.zeros(len(kernel.parameters()))
        for start, stop in self._blocks():
            rows, below = self._inputs[start:stop], self._inputs[stop:]
            square = np.triu(rows_of_weights[start:stop, start:stop])
            # Both triangles of a symmetric sum at once, the diagonal as it is.
            square += np.triu(square, 1)
            gradient += kernel.contract(rows, rows, square)
            if stop < len(self._inputs):
                gradient += 2.0 * kernel.contract(rows, below, rows_of_weights[start:stop, stop:])
        whole = np.zeros(len(self._values))
        # Those that are switched off, at minus infinity, the kernel does not have any more.
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
    """Bytes that a composed kernel holds for a while in each evaluation, besides the likelihood's own arrays.

    For each of its parts a few arrays of a block of columns, and of the inputs' size.
    """
    if isinstance(kernel, SquaredExponential):
        return 0
    plain = sum(1 for part in kernel.walk() if not part.children)
    block = 8 * n_samples * min(_block_columns(n_samples), n_samples)
    return (4 + 4 * plain) * block + 48 * n_samples * plain * (kernel.n_features + 1)


def _block_columns(n_samples: int) -> int:
    return min(max(_BLOCK_ENTRIES // max(n_samples, 1), 64), 512)
