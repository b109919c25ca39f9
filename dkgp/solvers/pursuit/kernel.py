"""The system (29) of a kernel, a pool of prototypes and an intercept, by blocks of samples.

    [ K_mn D K_nm + K_mm   K_mn D 1 ] (beta)   (K_mn D y)
    [ 1'D K_nm             1'D 1 + nu ] (b0)   = (1'D y  )

with D the inverse of the noise (s2 = 1 / gamma_K), so that it is (29) over s2. No kernel entry is kept: a pass
evaluates those of the pool, n m of them, for SCDP, and those of candidates and path for SCDPP.
"""

from __future__ import annotations

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.cross.candidates import GrowingBasis
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.pursuit.systems import CandidateProducts

# nu of Theorem 2, which makes (29) positive definite: of 1'D 1.
INTERCEPT_SHARE = 1e-8


class KernelSystem:
    """A fixed-size kernel model's normal equations.

    Parameters
    ----------
    cross : CrossKernel
        Of the samples and the pool; its operator's noise is D's inverse.
    intercept : bool, default True
        Whether there is one: the regressor after the pool's, number m.

    Attributes
    ----------
    size : int
        Regressors: m, and the intercept.
    """

    def __init__(self, cross: CrossKernel, intercept: bool = True) -> None:
        self._cross = cross
        self._pool, self._intercept = cross.m, intercept
        self.size = cross.m + intercept
        noise = cross.operator.noise
        # D of all samples, or by sample.
        self._by_sample = None if isinstance(noise, float) else np.asarray(noise)
        self._scale = 1.0 / noise if isinstance(noise, float) else 1.0
        self._basis = GrowingBasis(cross.operator, self._by_sample)
        self._ones: FloatArray | None = None  # K_mn D 1

    @property
    def _total(self) -> float:
        """1'D 1."""
        return self._cross.n * self._scale if self._by_sample is None else float(np.sum(1.0 / self._by_sample))

    def _weighted(self, rhs: FloatArray) -> FloatArray:
        return self._scale * rhs if self._by_sample is None else rhs / self._by_sample[:, None]

    def project(self, rhs: FloatArray) -> FloatArray:
        """K_mn D y, and 1'D y: one pass, which brings K_mn D 1 as well."""
        if len(rhs) != self._cross.n:
            raise InputError(f"expected targets of shape ({self._cross.n:,}, t); got {rhs.shape}")
        t, weighted = rhs.shape[1], self._weighted(np.column_stack([rhs, np.ones(len(rhs))]))
        projected = self._cross.project(weighted)
        self._ones = projected[:, t]
        if not self._intercept:
            return projected[:, :t]
        return np.vstack([projected[:, :t], weighted[:, :t].sum(axis=0)])

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """y'D y: what is left of it is y - f weighted, and the penalty."""
        return np.asarray(np.einsum("it,it->t", rhs, self._weighted(rhs)))

    def _intercept_products(self) -> FloatArray:
        if self._ones is None:
            self.project(np.zeros((self._cross.n, 1)))
        assert self._ones is not None
        return self._ones

    def diagonal(self) -> FloatArray:
        """A's diagonal: a pass of sums of squares."""
        prior = np.asarray(self._cross.operator.kernel.diagonal(self._cross.prototypes), dtype=np.float64)
        sums = self._basis.sums(self._cross.prototypes, np.zeros((self._cross.n, 1)))
        diagonal = self._scale * sums.squares + prior
        return np.append(diagonal, self._total * (1.0 + INTERCEPT_SHARE)) if self._intercept else diagonal

    def columns(self, which: IndexArray) -> FloatArray:
        """A's columns: one pass over the pool's entries, none for the intercept's."""
        inner, columns = which < self._pool, np.empty((self.size, len(which)))
        prototypes = which[inner]
        if len(prototypes):
            unit_vectors = np.zeros((self._pool, len(prototypes)))
            unit_vectors[prototypes, np.arange(len(prototypes))] = 1.0
            products = self._scale * self._cross.normal(unit_vectors, self._by_sample) + self._cross.inner(unit_vectors)
            columns[: self._pool, inner] = products
        if self._intercept:
            ones = self._intercept_products()
            columns[self._pool, inner] = ones[prototypes]
            columns[: self._pool, ~inner] = ones[:, None]
            columns[self._pool, ~inner] = self._total * (1.0 + INTERCEPT_SHARE)
        return columns

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """One pass over the entries of candidates, and of the path as far as workers do not keep them."""
        Z, k, t = self._cross.prototypes, len(path), rhs.shape[1]
        ones = self._intercept_products()
        is_basis, is_candidate = path < self._pool, which < self._pool
        residual = rhs if is_basis.all() else rhs - weights[~is_basis]
        basis, new = Z[path[is_basis]], Z[which[is_candidate]]
        gradient, between, inner = np.empty((len(which), t)), np.empty((k, len(which))), np.empty((len(which),) * 2)
        beta = weights[is_basis]
        if len(new):
            sums = self._basis.sums(new, residual, basis, beta, between=True, inner=True)
            assert sums.between is not None
            assert sums.inner is not None
            double = self._cross.operator.double
            basis_features, features = double.prepare(basis) if len(basis) else None, double.prepare(new)
            prior = np.zeros((0, len(new))) if basis_features is None else double.tile(basis_features, features)
            gradient[is_candidate] = self._scale * sums.projected - prior.T @ beta
            between[np.ix_(is_basis, is_candidate)] = self._scale * sums.between + prior
            inner[np.ix_(is_candidate, is_candidate)] = self._scale * sums.inner + double.tile(features, features)
        if not is_candidate.all():
            # Its gradient by sums that are known: 1'D y - 1'D K_nS beta - nu b0.
            total = self._weighted(rhs).sum(axis=0)
            of_basis = ones[path[is_basis]] @ beta
            nu = self._total * (1.0 + INTERCEPT_SHARE)
            gradient[~is_candidate] = total - of_basis - nu * weights[~is_basis].sum(axis=0)
            between[np.ix_(is_basis, ~is_candidate)] = ones[path[is_basis], None]
            between[np.ix_(~is_basis, ~is_candidate)] = nu
            inner[np.ix_(is_candidate, ~is_candidate)] = ones[which[is_candidate], None]
            inner[np.ix_(~is_candidate, is_candidate)] = ones[None, which[is_candidate]]
            inner[np.ix_(~is_candidate, ~is_candidate)] = nu
        between[np.ix_(~is_basis, is_candidate)] = ones[None, which[is_candidate]]
        return CandidateProducts(gradient, between, inner)

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """(y - f)'D(y - f) + beta'K beta + nu b0^2, from residuals: one pass over the path's entries."""
        inner = path < self._pool
        intercept = weights[~inner].sum(axis=0)
        nu = INTERCEPT_SHARE * self._total * float(np.sum(intercept**2))
        residual = rhs - intercept
        if not inner.any():
            return float(np.sum(residual * self._weighted(residual))) + nu
        beta = np.ascontiguousarray(weights[inner])
        cross = CrossKernel(self._cross.operator, self._cross.prototypes[path[inner]])
        squares = cross.residual(beta, residual, self._by_sample).squares
        return float(self._scale * squares.sum() + np.sum(beta * cross.inner(beta))) + nu

    def close(self) -> None:
        """Have workers forget the path's columns."""
        self._basis.close()
