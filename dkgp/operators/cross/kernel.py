"""K(X, Z) between n samples and m prototypes as an operator: products and Grams.

Nothing of size n m is ever held: entries are evaluated by the executor's tasks, piece by piece, as often as they are
needed. Sums over the samples are added up on the workers as digits, so that one matrix comes to the coordinator, with
the same bits for any number of workers (`dkgp.operators.exact_sums`). Whitened products are those with F = K_nm L^-T,
L L' = K_mm with a jitter that is in proportion to rounding (see `dkgp.operators.low_rank.pivots.jitter`): F F' is never
above K.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.executors.base import RoundTasks, split_evenly
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import apply_columns_task
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.runs import runs_of
from dkgp.operators.cross.tasks import Prototypes, gram_task, project_task, residual_task
from dkgp.operators.exact_sums import RunSums, exact_sums, group_units


@dataclass(frozen=True)
class CrossGram:
    """Sums over all samples that a sparse model is fitted to."""

    matrix: NDArray[np.float64]  # K_mn D K_nm or, whitened, F' D F: (m, m), Fortran order, or empty
    projected: FloatArray  # K_mn D V, or F' D V: (m, t)
    squares: FloatArray  # squared length of each sample's row of K_nm or F: (n,)


@dataclass(frozen=True)
class CrossResidual:
    """Residual of right-hand sides, r = V - K_nm W."""

    projected: FloatArray  # K_mn D r: (m, t)
    squares: FloatArray  # r' D r: (t,)
    values: FloatArray | None  # r: (n, t)


class CrossKernel:
    """K(X, Z) for an operator's samples X and prototypes Z (m, d), on the scale of the standardised inputs.

    The operator's executor does the work; the operator counts the entries and reports progress. `InputError` for
    prototypes of another shape, none, or values that are not finite.
    """

    def __init__(self, operator: BlockedKernelOperator, prototypes: ArrayLike) -> None:
        self._operator = operator
        self._prototypes = prototypes_of(operator, prototypes)
        self.n, self.m = operator.n, self._prototypes.count

    @property
    def operator(self) -> BlockedKernelOperator:
        """The operator of all samples."""
        return self._operator

    @property
    def prototypes(self) -> FloatArray:
        """Z: (m, d)."""
        return self._prototypes.inputs

    @property
    def lower(self) -> FloatArray:
        """L: (m, m), Fortran order, with zeros above the diagonal.

        `NumericalError` where the prototypes' kernel matrix is zero, overflows, or is not positive definite in spite of
        the jitter.
        """
        with single_threaded_blas():
            try:
                lower = np.asarray(self._prototypes.triangle().lower)
            except np.linalg.LinAlgError as error:
                if not np.any(self._operator.kernel.diagonal(self.prototypes)):
                    raise NumericalError(
                        f"k(x, x) is zero at all of the {self.m:,} basis samples: they are a basis of nothing. Choose "
                        "others, or another kernel"
                    ) from error
                raise NumericalError(
                    f"the kernel matrix of the {self.m:,} basis samples is not positive definite ({error}), for all "
                    "that is added to its diagonal: the kernel is not a covariance"
                ) from error
        if not np.isfinite(lower).all():
            raise NumericalError(
                f"the kernel matrix of the {self.m:,} basis samples overflows: bring inputs that are far out closer"
            )
        return lower

    def kernel_matrix(self) -> FloatArray:
        """K_mm, without any jitter: (m, m)."""
        features = self._prototypes.features()
        return np.asarray(self._operator.double.tile(features, features))

    def inner(self, weights: FloatArray) -> FloatArray:
        """K_mm W, without any jitter: (m, t)."""
        features = self._prototypes.features()
        return self._operator.double.matmat(features, features, weights)

    def columns(self, weights: FloatArray) -> FloatArray:
        """K_nm W for W (m, t): (n, t)."""
        _require(weights, self.m, "weights")
        operator = self._operator
        context, executor = operator.context, operator.executor
        groups = split_evenly(range(context.n_blocks), executor.parallelism)
        arguments = (context, self._prototypes.features(), weights, "double", None)
        parts = operator.submit("kcross", apply_columns_task, arguments, groups).result()
        return np.concatenate([product for product, _ in parts])

    def project(self, vectors: FloatArray) -> FloatArray:
        """K_mn V for V (n, t): (m, t)."""
        _require(vectors, self.n, "vectors")
        total = self.sums("kcrossproject", "projection", project_task, (), {"right": vectors})
        return np.asarray(total.sums[0][..., 0])

    def normal(self, weights: FloatArray, variances: FloatArray | None = None) -> FloatArray:
        """K_mn D K_nm W for W (m, t), D the inverse of `variances` (n,) or I: (m, t). Each entry is evaluated once."""
        return self.residual(weights, None, variances).projected

    def residual(
        self,
        weights: FloatArray,
        right: FloatArray | None,
        variances: FloatArray | None = None,
        *,
        returned: bool = False,
    ) -> CrossResidual:
        """r = V - K_nm W for W (m, t) and V = `right` (n, t), or K_nm W, and its sums; r itself where `returned`."""
        _require(weights, self.m, "weights")
        vectors = self._vectors(right, variances)
        total = self.sums("kresidual", "residual", residual_task, (weights, returned), vectors)
        projected, squares = total.sums
        return CrossResidual(projected[..., 0], squares, total.rows)

    def gram(self, right: FloatArray | None = None, variances: FloatArray | None = None) -> CrossGram:
        """K_mn D K_nm and K_mn D V, D the inverse of `variances` (n,) or I, V = `right` (n, t)."""
        return self._gram("gram", (False, False, True), self._vectors(right, variances))

    def whitened(
        self,
        right: FloatArray | None = None,
        variances: FloatArray | None = None,
        *,
        fitc: bool = False,
        product: bool = True,
    ) -> CrossGram:
        """F' D F, unless that is known (`product`), and F' D V.

        `fitc` adds what F F' leaves of k(x, x) to the `variances`, which it needs.
        """
        vectors = self._vectors(right, variances)
        if fitc:
            if variances is None:
                raise InputError("FITC needs the noise's variance of each sample")
            vectors["prior"] = self._operator.prior()
        self.lower  # noqa: B018  - refuses here, in words, a matrix that no worker could factor
        return self._gram("factor", (True, fitc, product), vectors)

    def _gram(
        self, phase: str, options: tuple[bool, bool, bool], vectors: Mapping[str, FloatArray | None]
    ) -> CrossGram:
        total = self.sums("kcrossgram", phase, gram_task, options, vectors)
        matrices, projected = total.sums
        assert total.rows is not None
        return CrossGram(matrices[0].T if len(matrices) else np.empty((0, 0)), projected[..., 0], total.rows)

    def _vectors(self, right: FloatArray | None, variances: FloatArray | None) -> dict[str, FloatArray | None]:
        if right is not None:
            _require(right, self.n, "right-hand sides")
        if variances is not None and variances.shape != (self.n,):
            raise InputError(f"expected one variance for each of {self.n:,} samples; got shape {variances.shape}")
        return {"right": right, "variances": variances}

    def sums(
        self,
        name: str,
        phase: str,
        task: Callable[..., list[RunSums]],
        arguments: tuple[Any, ...] = (),
        vectors: Mapping[str, FloatArray | None] = MappingProxyType({}),
    ) -> RunSums:
        """Sum the results of a task of the prototypes, the arguments, and runs with their rows of the vectors."""
        return summed(self._operator, name, phase, task, (self._prototypes, *arguments), vectors)


def summed(
    operator: BlockedKernelOperator,
    name: str,
    phase: str,
    task: Callable[..., list[RunSums]],
    arguments: tuple[Any, ...],
    vectors: Mapping[str, FloatArray | None],
) -> RunSums:
    """Sum the results of a task of the arguments and runs over all samples, with their rows of the vectors."""
    return summed_units(operator, name, phase, task, arguments, runs_of(operator.context, vectors))


def summed_units(
    operator: BlockedKernelOperator,
    name: str,
    phase: str,
    task: Callable[..., list[RunSums]],
    arguments: tuple[Any, ...],
    units: Sequence[Any],
    homes: Homes | None = None,
) -> RunSums:
    """Sum the results of a task of the arguments and units, which go to their `homes`, if any."""
    groups, owners = group_units(units, operator.executor, homes)
    with single_threaded_blas():
        tasks = RoundTasks(task, arguments, groups, owners, name)
        return exact_sums(operator, tasks, lambda done, of: operator.tell(phase, done, of, "tasks"))


def prototypes_of(operator: BlockedKernelOperator, inputs: ArrayLike) -> Prototypes:
    """Prototypes (m, d) as tasks see them; `InputError` where they are none."""
    values = np.ascontiguousarray(inputs, dtype=np.float64)
    d = operator.kernel.n_features
    if values.ndim != 2 or values.shape[1] != d or not len(values):
        raise InputError(f"expected basis samples of shape (m, {d}), one at least; got {values.shape}")
    infinite: IndexArray = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(infinite):
        raise InputError(f"basis samples must be finite; got {values[infinite[0]]} in row {infinite[0]}")
    digest = hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()
    return Prototypes(operator.context, values, f"cross-{len(values)}-{digest}")


def _require(array: FloatArray, rows: int, name: str) -> None:
    if array.ndim != 2 or len(array) != rows:
        raise InputError(f"expected {name} of shape ({rows:,}, t); got {array.shape}")
