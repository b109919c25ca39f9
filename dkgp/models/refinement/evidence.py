"""The log marginal likelihood of all samples: an estimate and its standard error, by stochastic Lanczos quadrature.

With M^-1 = T' T, a block-Vecchia factor without landmarks, whose determinant is known,

    log det Kbar = log det M + tr log A,    A = T Kbar T',    tr log A = E z' log(A) z,

z random signs. M is near Kbar, so log A is small, and its estimate varies little. Lanczos' tridiagonal matrix of A and
z gives z' log(A) z by Gauss quadrature. Its vectors q are never needed: with u = T' q a step takes y = Kbar u and
w = M^-1 y = T' A q, and has q' A q = u' y and |A q|^2 = y' w.

With g = Kbar alpha - y for any alpha near the solution,

    y' Kbar^-1 y = y' alpha - alpha' g + g' Kbar^-1 g,

of which the last term is of second order, and taken with M in the place of Kbar.

References
----------
S. Ubaru, J. Chen, Y. Saad, Fast estimation of tr(f(A)) via stochastic Lanczos quadrature (2017).
J. Wenger, G. Pleiss, P. Hennig, J. Cunningham, J. Gardner, Preconditioning for scalable Gaussian process
hyperparameter optimization (2022): the preconditioner's determinant reduces the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.vecchia.factor import VecchiaFactor

# Steps at most; the estimate has come to rest when a step changes it by less than this share of its standard error.
MOST_STEPS, LARGEST_CHANGE = 40, 0.05
# Smaller squares of an off-diagonal element are rounding: the Krylov space ends.
LEAST_SQUARE = 1e-12


@dataclass(frozen=True)
class LogLikelihood:
    """An estimate of the log marginal likelihood.

    Attributes
    ----------
    value, standard_error : float
        In nats, of all targets together.
    log_determinant : float
        Estimate of log det Kbar.
    of_factor : float
        log det M, the part that is known.
    steps : int
        Lanczos steps, a product with all probes each.
    """

    value: float
    standard_error: float
    log_determinant: float
    of_factor: float
    steps: int


def estimate_log_likelihood(
    operator: BlockedKernelOperator,
    factor: VecchiaFactor,
    targets: FloatArray,
    alpha: FloatArray,
    gradient: FloatArray,
    *,
    probes: int,
    seed: int,
) -> LogLikelihood:
    """Estimate the log marginal likelihood of targets (n, p).

    `factor` has no landmarks; `alpha` (n, p) are coefficients near Kbar^-1 targets, `gradient` (n, p) what Kbar alpha
    is more than the targets.
    """
    n, p = targets.shape
    fit = float(np.sum(targets * alpha) - np.sum(alpha * gradient) + np.sum(gradient * factor.apply(gradient)))
    values, steps = quadratures(operator, factor, probes=probes, seed=seed)
    log_determinant = factor.log_determinant + float(values.mean())
    standard_error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return LogLikelihood(
        value=-0.5 * (fit + p * log_determinant + n * p * math.log(2.0 * math.pi)),
        standard_error=0.5 * p * standard_error,
        log_determinant=log_determinant,
        of_factor=factor.log_determinant,
        steps=steps,
    )


def quadratures(
    operator: BlockedKernelOperator, factor: VecchiaFactor, *, probes: int, seed: int
) -> tuple[FloatArray, int]:
    """z' log(A) z for each probe (S,), and the steps that it took."""
    n = operator.n
    vectors = factor.probes(probes, seed) / math.sqrt(n)
    before, off = np.zeros_like(vectors), np.zeros(probes)
    diagonals: list[FloatArray] = []
    offs: list[FloatArray] = []
    values = np.full(probes, np.inf)
    while len(diagonals) < MOST_STEPS:
        images = operator.matmat(vectors)
        preconditioned = factor.apply(images)
        diagonal = np.einsum("is,is->s", vectors, images)
        diagonals.append(diagonal)
        last, values = values, n * _log_quadratures(np.array(diagonals), np.array(offs))
        change, error = float(np.abs(values - last).mean()), float(values.std()) / math.sqrt(probes)
        squares = np.einsum("is,is->s", images, preconditioned) - diagonal**2 - off**2
        if change <= LARGEST_CHANGE * error or not np.any(squares > LEAST_SQUARE):
            break
        # A probe whose Krylov space has ended goes on with a vector of zero.
        goes_on = squares > LEAST_SQUARE
        preconditioned -= diagonal * vectors + off * before
        off = np.where(goes_on, np.sqrt(np.maximum(squares, LEAST_SQUARE)), 0.0)
        offs.append(off)
        before, vectors = vectors, np.where(goes_on, preconditioned / np.where(goes_on, off, 1.0), 0.0)
    return values, len(diagonals)


def _log_quadratures(diagonals: FloatArray, offs: FloatArray) -> FloatArray:
    """e_1' log(T) e_1 for tridiagonal matrices T of diagonals (k, S) and off-diagonals (k - 1, S): (S,)."""
    results = np.empty(diagonals.shape[1])
    for s in range(len(results)):
        # Where a Krylov space has ended, its matrix ends.
        second = offs[:, s] if len(offs) else np.zeros(0)
        ended = np.flatnonzero(second == 0.0)
        size = int(ended[0]) + 1 if len(ended) else len(diagonals)
        nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonals[:size, s], second[: size - 1])
        results[s] = float(np.sum(vectors[0] ** 2 * np.log(np.maximum(nodes, np.finfo(np.float64).tiny))))
    return results
