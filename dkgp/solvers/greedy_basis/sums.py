"""A's entries for candidates of a growing basis, and their gradient, by passes over the samples.

Kernel entries between candidates and basis are the coordinator's, all else comes from the workers. The residual r of
the weights at hand is found by the first pass that goes through all samples, and good until the basis grows; it also
says what the weights predict of every sample, K_CS beta and K_SS beta among that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.candidates import CandidateSums, GrowingBasis


@dataclass(frozen=True)
class SystemSums:
    """Of q candidates C, and a basis S with weights beta; A = K_mn D K_nm + K_mm.

    - `gradient` (q, p): c = b_C - A_CS beta.
    - `residual` (q, p): y_C - K_CS beta.
    - `diagonal` (q,): A_ii.
    - `between` (k, q): A_SC.
    - `inner` (q, q): A_CC.
    """

    gradient: FloatArray
    residual: FloatArray
    diagonal: FloatArray
    between: FloatArray | None
    inner: FloatArray | None

    @classmethod
    def joined(cls, parts: list[SystemSums]) -> SystemSums:
        """Of candidates in several parts; what they have to do with each other is not known."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.between for part in parts if part.between is not None]
        return cls(
            np.concatenate([part.gradient for part in parts]),
            np.concatenate([part.residual for part in parts]),
            np.concatenate([part.diagonal for part in parts]),
            np.concatenate(columns, axis=1) if columns else None,
            None,
        )


class Sums:
    """Passes over the samples for a basis that grows.

    - `targets` (n, p).
    - `square`: y' D y.
    - `risk`: R of the weights of the last pass over all samples, by residuals; of none before.
    """

    def __init__(self, operator: BlockedKernelOperator, targets: FloatArray, capacity: int) -> None:
        self._operator, self._targets = operator, targets
        noise = operator.noise
        self._variances = None if isinstance(noise, float) else np.asarray(noise)
        self._scale = 1.0 / noise if isinstance(noise, float) else 1.0
        weighted = targets**2 * (self._scale if self._variances is None else 1.0 / self._variances[:, None])
        self.square = float(weighted.sum())
        self.risk = 0.5 * self.square
        self._columns = GrowingBasis(operator, self._variances)
        self._left: FloatArray | None = None
        self._chosen: list[int] = []
        # Of the basis: fetched once where the coordinator does not hold all inputs.
        self._inputs = np.empty((capacity, operator.kernel.n_features))

    @property
    def indices(self) -> IndexArray:
        """The basis so far, in the order of choice."""
        return np.asarray(self._chosen, dtype=np.intp)

    def take(self, joined: IndexArray) -> None:
        """Note samples that joined the basis."""
        before = len(self._chosen)
        self._chosen += joined.tolist()
        if len(joined):
            self._left = None
            self._inputs[before : len(self._chosen)] = self._operator.inputs(joined)

    def of(
        self,
        which: IndexArray,
        weights: FloatArray,
        *,
        between: bool = False,
        inner: bool = False,
        single: bool = False,
        samples: IndexArray | None = None,
    ) -> SystemSums:
        """Sums that candidates are scored by; of `samples` an estimate, but for the candidates' own rows.

        `between` and `inner` are found where they are asked for; `single` has float32 do where they are not.
        """
        operator, basis, inputs = self._operator, self._inputs[: len(self._chosen)], self._operator.inputs(which)
        features, basis_features = operator.double.prepare(inputs), operator.double.prepare(basis)
        sums = self._pass(inputs, weights, between, inner, single, samples)
        if samples is None:
            assert self._left is not None
            image = self._targets[which] - self._left[which]
        else:
            image = (
                operator.double.matmat(features, basis_features, weights) if len(basis) else np.zeros((len(which), 1))
            )
        residual, prior = self._targets[which] - image, np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
        scale, products = self._scale, None
        if sums.between is not None:
            products = np.zeros((0, len(which)))
            if len(basis):
                products = scale * sums.between + operator.double.tile(basis_features, features)
        projected, squares = scale * sums.projected, scale * sums.squares
        if samples is not None:
            # A candidate's own row is the largest term of its sums: known, and the others' are estimated.
            own_scale = scale if self._variances is None else 1.0 / self._variances[which]
            term, square = (own_scale * prior)[:, None] * residual, own_scale * prior**2
            sampled = np.isin(which, samples)
            share = (operator.n - 1.0) / (len(samples) - sampled)
            projected = share[:, None] * (projected - np.where(sampled[:, None], term, 0.0)) + term
            squares = share * (squares - np.where(sampled, square, 0.0)) + square
        return SystemSums(
            projected - image,
            residual,
            squares + prior,
            products,
            None if sums.inner is None else scale * sums.inner + operator.double.tile(features, features),
        )

    def _pass(
        self,
        inputs: FloatArray,
        weights: FloatArray,
        between: bool,
        inner: bool,
        single: bool,
        samples: IndexArray | None,
    ) -> CandidateSums:
        """A pass over the samples, which finds r where it is not known, or over some of them, which always does."""
        known = None if samples is not None else self._left
        sums = self._columns.sums(
            inputs,
            self._targets if known is None else known,
            self._inputs[: len(self._chosen)],
            weights if known is None else None,
            between=between,
            inner=inner,
            single=single,
            samples=samples,
        )
        if samples is None and known is None:
            self._left = sums.residual
            penalty = float(np.sum(weights * (self._targets[self.indices] - self._left[self.indices])))
            self.risk = 0.5 * (self._scale * float(sums.misfit.sum()) + penalty)
        return sums

    def close(self) -> None:
        """Have workers forget the basis' columns."""
        self._columns.close()
