"""Fits of every sparse method to a basis that is there: the subset of data by itself, all others by one fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.models.sparse.methods import SparseMethod
from dkgp.models.sparse.model import SparseModel
from dkgp.models.sparse.regressors import RegressorFit, fit_regressors
from dkgp.operators.base import FloatArray, IndexArray, Noise, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.inputs import centre_of
from dkgp.operators.low_rank.landmark_rows import whiten

# Sums of squares and of products of what lies within it are numbers of float64, and so are their quotients.
LARGEST, SMALLEST = 1e100, 1e-100


@dataclass(frozen=True)
class Basis:
    """Basis samples."""

    inputs: FloatArray  # (m, d): standardised
    indices: IndexArray | None = None  # (m,): which samples they are; None where they are none, as centres of k-means

    def noise_of(self, noise: Noise) -> FloatArray | None:
        """Their own noise (m,), where it is by sample, and they are samples."""
        return None if self.indices is None or isinstance(noise, float) else noise[self.indices]


@dataclass(frozen=True)
class SparseFit:
    """A model, and the fit to all samples that it comes from; None of the subset of data."""

    model: SparseModel
    regressors: RegressorFit | None


def require_range(operator: BlockedKernelOperator, targets: FloatArray) -> None:
    """Refuse what a sparse model's sums would overflow with, or lose; one round, no kernel entries.

    Raises `NumericalError`: k(x, x), the noise, the targets, or the first and the last of these over the noise are out
    of range.
    """
    noise, largest = float(np.min(operator.noise)), float(np.max(operator.prior()))
    tops = np.max(np.abs(targets), axis=0, initial=0.0)
    # Python's power raises where a square overflows. A target that is zero throughout is as good as any.
    squares = [top * top for top in tops.tolist() if top > 0.0] or [1.0]
    for what, value in (
        ("the noise variance", noise),
        ("the largest k(x, x)", largest),
        ("k(x, x) over the noise variance", largest / noise),
        ("the largest target's square", max(squares)),
        ("the largest target's square over the noise variance", max(squares) / noise),
        ("the square of the largest number of a target", min(squares)),
        ("the square of the largest number of a target over the noise variance", min(squares) / noise),
    ):
        if not SMALLEST <= value <= LARGEST:
            raise NumericalError(
                f"{what} is {value:.3g}; sums of a sparse model take what is between {SMALLEST:g} and {LARGEST:g}. "
                "Scale the inputs or the targets, or choose another kernel or noise variance"
            )


def fit_sparse(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    basis: Basis,
    method: SparseMethod,
    system: FloatArray | None = None,
) -> SparseFit:
    """Fit a method to standardised targets (n, p).

    `system` is K_mn D K_nm + K_mm, as a choice by the same noise has summed it: see `fit_regressors`.

    Raises `InputError`: the subset of data of a basis that is no samples; `NumericalError`: see `fit_regressors`; the
    subset's matrix is not positive definite in float64.
    """
    centre = centre_of(operator.context.source)
    if method.variance == "subset":
        return SparseFit(_subset(operator, targets, basis, method, centre), None)
    cross = CrossKernel(operator, basis.inputs)
    fit = fit_regressors(cross, targets, fitc=method.fitc, system=None if method.fitc else system)
    model = SparseModel(method, operator.kernel, fit.cross.prototypes, fit.weights, fit.cross.lower, fit.normal, centre)
    return SparseFit(model, fit)


def _subset(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    basis: Basis,
    method: SparseMethod,
    centre: FloatArray | None,
) -> SparseModel:
    indices = basis.indices
    if indices is None:
        raise InputError("the subset of data needs a basis of training samples; this one's are none of them")
    matrix = operator.submatrix(indices, indices)
    with single_threaded_blas():
        try:
            lower = np.asfortranarray(scipy.linalg.cholesky(matrix, lower=True, check_finite=False))
        except np.linalg.LinAlgError as error:
            least = float(np.min(noise_at(operator.noise, indices)))
            raise NumericalError(
                f"the matrix of the subset's {len(indices):,} samples is not positive definite in float64 ({error}): "
                f"rounding exceeds the noise variance {least:.3g}. Raise it, or take fewer samples"
            ) from error
        weights = whiten(lower, whiten(lower, targets[indices], transposed=False), transposed=True)
    return SparseModel(method, operator.kernel, operator.inputs(indices), np.asarray(weights), lower, None, centre)
