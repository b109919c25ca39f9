"""The log likelihood of a sparse model with neighbours on all samples, and its gradient, out of core.

With Q = F F' = K_nm (L L')^-1 K_mn, samples in kd order in leaves, and T as in `leaf`, the samples' covariance is

    Sigma = T^-1 T^-T + F F',     |Sigma| = |L22|^2 of all leaves times |B|,     B = I + V'V,  V = T F:

what the basis leaves of a leaf, noise included, depends on its halo alone among all samples before it. Without a basis
this is Vecchia's likelihood, with one sample a leaf and no halos FITC's, and where halos are everything the exact one.
For p targets that share the hyperparameters, with q = T Y and z = B^-1 V'q,

    2 log p(Y) = -p n log 2 pi - p log|Sigma| - tr(q'q - z'V'q),

which moves by <H, d(W'W)> / 2 - p d log|L22|, W = [V, q], for

    H = [-p B^-1 - z z',  z;  z',  -I];

and where the trace is weighted, tr(M (q'q - z'V'q)) for a symmetric M, and the determinant counts c in place of p,

    H = [-c B^-1 - z M z',  z M;  M z',  -M].

One evaluation is two passes over the leaves. The order and the halos are those of the kernel that they were made with
(`hold`) until another is held: so the likelihood is a smooth function of the hyperparameters.

References
----------
T. Gyger, R. Furrer, F. Sigrist, Vecchia-inducing-points full-scale approximations for Gaussian processes (2025).
J. Guinness, Permutation and grouping methods for sharpening Gaussian process approximations (2018): by leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.sparse.bound.objective import BoundValue
from dkgp.models.sparse.vif.leaf import Moved
from dkgp.models.sparse.vif.tasks import (
    BundleRows,
    Described,
    vif_noise_slopes_task,
    vif_slopes_task,
    vif_sums_task,
    vif_weights_task,
)
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel, prototypes_of, summed_units
from dkgp.operators.exact_sums import RunSums
from dkgp.operators.inputs import InputSource
from dkgp.operators.low_rank.pivots import jitter, regularised_factor, whiten
from dkgp.operators.vecchia.factor import halo_task, order_task
from dkgp.operators.vecchia.halos import leaf_count
from dkgp.operators.vecchia.leaf_tree import search_bytes, tree_bytes
from dkgp.operators.vecchia.leaves import Leaves, bundle_leaves, embedding_landmarks

# Samples of a leaf, and of its halo: see `docs/experiments.md`.
LEAF, HALO = 32, 96
# Samples that a search for neighbours looks at, at most.
SEARCHED = 32_768
# Of a leaf's size squared, while its slopes are taken: C, G, X, and those of a kernel's derivatives.
ARRAYS_OF_LEAF = 16


@dataclass(frozen=True)
class Neighbours:
    """Sizes of leaves and of their halos, at most, and how many samples a search for a halo looks at, at most."""

    leaf: int = LEAF
    halo: int = HALO
    searched: int = SEARCHED

    def __post_init__(self) -> None:
        if self.halo < 0 or self.leaf < 1:
            raise InputError(
                "a model with neighbours needs a halo of at least 0 samples, and leaves of at least 1; got "
                f"{self.halo} and {self.leaf}"
            )

    @classmethod
    def of(cls, count: int, searched: int = SEARCHED) -> Neighbours:
        """A leaf and its halo of so many samples together, a quarter of them the leaf's."""
        leaf = max(1, count // 4)
        return cls(leaf, count - leaf, searched)


def vif_bytes(n: int, d: int, m: int, p: int, threads: int, neighbours: Neighbours) -> int:
    """Bytes of a worker's process beside those of a whitened Gram: points, bundles, rows, its tasks' F, Phi and W."""
    leaf, halo = min(neighbours.leaf, n), min(neighbours.halo, n)
    bundle = _bundle_samples(n, leaf, halo)
    task = 8 * bundle * (4 * (m + p) + 2 * d) + 8 * (m + p) ** 2 * 3 + ARRAYS_OF_LEAF * 8 * (leaf + halo) ** 2
    leaves = leaf_count(n, leaf)
    task += search_bytes(leaves, d, leaf_count(neighbours.searched, leaf)) + 16 * min(n, neighbours.searched)
    order = n * (12 * d + 16) + 12 * leaves * (leaf + halo) + tree_bytes(leaves, d)
    return order + 8 * n * d + threads * task


def kept_bytes(n: int, m: int, neighbours: Neighbours) -> int:
    """Bytes of all that workers can keep of a basis' leaves (`dkgp.models.sparse.vif.kept`), at most."""
    leaf, halo = min(neighbours.leaf, n), min(neighbours.halo, n)
    leaves = leaf_count(n, leaf)
    samples = -(-leaves // bundle_leaves(n, leaf)) * _bundle_samples(n, leaf, halo)
    count = leaf + halo
    return 8 * (n * count + samples * m + leaves * count * (count + 1) // 2)


def _bundle_samples(n: int, leaf: int, halo: int) -> int:
    """Samples of a bundle with those of its halos, at most."""
    return min(n, bundle_leaves(n, leaf) * (leaf + halo))


@dataclass(frozen=True)
class Joint:
    """All leaves of a model of some samples, together."""

    normal: FloatArray  # lower Cholesky factor of B: (m, m), Fortran order
    whitened: FloatArray  # z: (m, p)
    value: float  # log p(Y), summed over targets, in nats
    explained: float  # of the samples' k(x, x), by the basis

    def moved(self, between: FloatArray | None = None, determinants: float | None = None) -> Moved:
        """H, by M = `between` (p, p) and c = `determinants`; by default I and p."""
        m, p = self.whitened.shape
        c = float(p) if determinants is None else determinants
        weighted = self.whitened if between is None else self.whitened @ between
        H = np.empty((m + p, m + p))
        inverse = scipy.linalg.cho_solve((self.normal, True), np.eye(m), check_finite=False) if m else np.empty((0, 0))
        H[:m, :m] = -c * inverse - weighted @ self.whitened.T
        H[:m, m:], H[m:, :m], H[m:, m:] = weighted, weighted.T, -np.eye(p) if between is None else -between
        return Moved(H, c)


class Neighbourhood:
    """Samples in kd order, their leaves and halos, by an operator's kernel; tasks on them go by other kernels, too."""

    def __init__(self, operator: BlockedKernelOperator, neighbours: Neighbours) -> None:
        executor = operator.executor
        executor.require_one_arithmetic()
        context, n = operator.context, operator.n
        halo, leaf = min(neighbours.halo, n), min(neighbours.leaf, n)
        none = np.empty((0, context.kernel.n_features))
        searched = leaf_count(neighbours.searched, leaf)
        label = f"vif-{halo}-{leaf}-{searched}"
        self.leaves = Leaves(context, halo, leaf, none, embedding_landmarks(operator), label, searched)
        self._homes = Homes(self.leaves.n_bundles)
        with single_threaded_blas():
            operator.tell("order", 0, n, "samples")
            operator.submit("kvorder", order_task, (self.leaves,), [[0]]).result()
            groups = [[number] for number in range(self.leaves.n_bundles)]
            found = operator.submit("kvhalo", halo_task, (self.leaves,), groups).result()
        self.samples: list[IndexArray] = [samples for samples, _ in found]
        self.unproven = (
            sum(unproven for _, unproven in found) / n
        )  # share of samples; others' neighbours are the nearest

    def described(self, operator: BlockedKernelOperator, basis: FloatArray | None) -> Described:
        """The model of an operator's kernel and a basis (m, d)."""
        prototypes = None
        if basis is not None and len(basis):
            CrossKernel(operator, basis).lower  # noqa: B018  - refuses here, in words, what no worker could factor
            prototypes = prototypes_of(operator, basis)
        return Described(self.leaves, operator.context, prototypes)

    def runs(self, targets: FloatArray, noise: Variances) -> list[list[BundleRows]]:
        """Each bundle with its rows of the targets (n, p) and of the noise."""
        return [
            [BundleRows(number, targets[samples], noise_at(noise, samples))]
            for number, samples in enumerate(self.samples)
        ]

    def _owners(self, operator: BlockedKernelOperator, model: Described) -> list[str] | None:
        """The worker that keeps what is kept of each bundle."""
        workers = operator.executor.workers
        return None if model.kept is None or len(workers) < 2 else self._homes.owners(workers)

    def summed(
        self,
        operator: BlockedKernelOperator,
        name: str,
        phase: str,
        task: Callable[..., list[RunSums]],
        model: Described,
        arguments: tuple[Any, ...],
        targets: FloatArray,
    ) -> RunSums:
        """Sum the results of a task of the model, further arguments and bundles."""
        runs = [run for (run,) in self.runs(targets, operator.noise)]
        homes = None if model.kept is None else self._homes
        return summed_units(operator, name, phase, task, (model, *arguments), runs, homes)

    def weights(
        self, operator: BlockedKernelOperator, model: Described, joint: Joint, targets: FloatArray
    ) -> FloatArray:
        """Sigma^-1 Y: (n, p)."""
        return self._by_sample(operator, "kvifweights", vif_weights_task, model, joint.whitened, targets)

    def noise_slopes(
        self, operator: BlockedKernelOperator, model: Described, moved: Moved, targets: FloatArray
    ) -> FloatArray:
        """Slopes of the log likelihood by each sample's noise: (n,)."""
        return self._by_sample(operator, "kvifnoise", vif_noise_slopes_task, model, moved, targets)[:, 0]

    def _by_sample(
        self,
        operator: BlockedKernelOperator,
        name: str,
        task: Callable[..., list[FloatArray]],
        model: Described,
        argument: FloatArray | Moved,
        targets: FloatArray,
    ) -> FloatArray:
        """Add up rows that a task makes of bundles: (n, any)."""
        with single_threaded_blas():
            runs, owners = self.runs(targets, operator.noise), self._owners(operator, model)
            parts = operator.submit(name, task, (model, argument), runs, owners).result()
        out = np.zeros((len(targets), parts[0].shape[1]))
        for samples, part in zip(self.samples, parts, strict=True):
            out[samples] += part
        return out

    def slopes(
        self, operator: BlockedKernelOperator, model: Described, moved: Moved, targets: FloatArray
    ) -> tuple[FloatArray, float]:
        """Slopes of the log likelihood: by the logarithms of the kernel's parameters (q,), and by the noise."""
        total, (noise,), inner = self.summed(
            operator, "kvifslopes", "slopes", vif_slopes_task, model, (moved,), targets
        ).sums
        if model.prototypes is not None:
            # F = K_nm L^-T goes with L, whose own slopes by K_mm are those of a Cholesky factor.
            lower, basis, m = model.prototypes.triangle().lower, model.prototypes.inputs, model.rank
            with single_threaded_blas():
                half = whiten(lower, -0.25 * (inner + inner.T), transposed=True)
                matrix = whiten(lower, np.asfortranarray(half.T), transposed=True)
                share = jitter(m, 1.0, 2.0 * float(operator.double.row_errors(basis).max()))
                matrix[np.diag_indices(m)] *= 1.0 + share
                total = total + operator.kernel.contract(basis, basis, np.ascontiguousarray(matrix))
        return total, float(noise)

    def joint(self, operator: BlockedKernelOperator, model: Described, targets: FloatArray) -> Joint:
        """B, z and the log likelihood; `NumericalError` where rounding exceeds the noise, or sums overflow."""
        (n, p), m = targets.shape, model.rank
        sums = self.summed(operator, "kvifsums", "factor", vif_sums_task, model, (), targets).sums
        (gram,), (determinant, explained) = sums
        if not np.isfinite(gram).all():
            raise NumericalError("the model with neighbours overflows: bring inputs that are far out closer")
        quadratic = float(np.trace(gram[m:, m:]))
        z, normal = np.empty((0, p)), np.empty((0, 0), order="F")
        if m:
            with single_threaded_blas():
                normal = regularised_factor(np.asfortranarray(gram[:m, :m]), 1.0)
                z = np.asarray(scipy.linalg.cho_solve((normal, True), gram[:m, m:], check_finite=False))
            determinant += 2.0 * float(np.log(normal.diagonal()).sum())
            quadratic -= float(np.sum(z * gram[:m, m:]))
        value = -0.5 * (p * (n * math.log(2.0 * math.pi) + float(determinant)) + quadratic)
        return Joint(normal, z, value, float(explained))


class NearEvidence:
    """Evidence of a model with neighbours of some samples, as one point after another is evaluated.

    `source` has standardised inputs. The context's `within` is told of the progress of each pass; what it raises ends
    the evaluation. `start` is where an evaluation that iterates begins, and is left where the next one may.
    """

    start: NDArray[np.float32] | None = None

    def __init__(
        self, source: InputSource, context: RunContext | BlockExecutor, neighbours: Neighbours | None = None
    ) -> None:
        self._source, self._context = source, RunContext.of(context)
        self._neighbours = neighbours or Neighbours()
        self._held: Neighbourhood | None = None
        self._operator_held: BlockedKernelOperator | None = None

    @contextmanager
    def operator(self, kernel: Kernel, noise_variance: float) -> Iterator[BlockedKernelOperator]:
        """Kbar of the samples, watched by the context."""
        context = self._context
        with context.operator(kernel, noise_variance, self._source) as operator, operator.watched(context.within):
            yield operator

    def hold(self, kernel: Kernel) -> None:
        """Order the samples by a kernel, from now on; `NumericalError` as of an operator's."""
        self.close()
        operator = self._context.operator(kernel, 1.0, self._source)
        with operator.watched(self._context.within):
            self._held, self._operator_held = Neighbourhood(operator, self._neighbours), operator

    @property
    def unproven(self) -> float:
        """Share of samples whose neighbours may not be the nearest, of the order that is held."""
        return 0.0 if self._held is None else self._held.unproven

    def close(self) -> None:
        """Forget the order."""
        if self._operator_held is not None:
            self._operator_held.close()
        self._held = self._operator_held = None

    def __call__(self, kernel: Kernel, noise_variance: float, basis: FloatArray) -> BoundValue:
        """The evidence and its gradient for a basis (m, d), which is held; by the order that is.

        Raises `NumericalError`: rounding exceeds the noise variance, or the value overflows.
        """
        if self._held is None:
            self.hold(kernel)
        held = self._held
        assert held is not None
        with self.operator(kernel, noise_variance) as operator:
            value, gradient, explained = self._evaluated(held, operator, held.described(operator, basis))
            unexplained = 1.0 - explained / float(operator.prior().sum())
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            raise NumericalError("the likelihood with neighbours overflows: bring inputs that are far out closer")
        return BoundValue(value, gradient, unexplained)

    def _evaluated(
        self, held: Neighbourhood, operator: BlockedKernelOperator, model: Described
    ) -> tuple[float, FloatArray, float]:
        """The evidence, its gradient, and what the basis explains of the samples' k(x, x)."""
        raise NotImplementedError


class VifObjective(NearEvidence):
    """Log likelihood of targets (n, p)."""

    def __init__(
        self,
        source: InputSource,
        targets: FloatArray,
        context: RunContext | BlockExecutor,
        neighbours: Neighbours | None = None,
    ) -> None:
        if targets.ndim != 2 or len(targets) != source.n_samples or not targets.shape[1]:
            raise InputError(f"expected targets of shape ({source.n_samples:,}, p); got {targets.shape}")
        super().__init__(source, context, neighbours)
        self._targets = targets

    def _evaluated(
        self, held: Neighbourhood, operator: BlockedKernelOperator, model: Described
    ) -> tuple[float, FloatArray, float]:
        joint = held.joint(operator, model, self._targets)
        with single_threaded_blas():
            moved = joint.moved()
        total, noise = held.slopes(operator, model, moved, self._targets)
        return joint.value, np.append(total, operator.noise_variance * noise), joint.explained
