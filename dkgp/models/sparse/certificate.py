"""A sparse mean's proven distance from the exact one.

With w at least R(f) - min R, for the mean f of a sparse model and the exact one f* of the same kernel and noise,

    (f - f*)(X)' D (f - f*)(X) / 2 + |f - f*|_H^2 / 2 = R(f) - min R <= w,

an identity for squared loss: the left side is half the squared length of f - f* in the Hilbert space whose kernel is
the exact model's posterior covariance. So

    root mean square of f - f* over the samples <= sqrt(2 w max s2 / n),
    |f(x) - f*(x)| <= sqrt(2 w V(x)),        V the exact variance of the function, or anything that is never below it.

It holds for means of any kernel columns, however they were chosen and fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import finite, infinite, rule
from dkgp.errors import InputError, NumericalError
from dkgp.models.certificate import Proof
from dkgp.models.rounding import EPS, EVALUATION, UNIT, assumptions, bounding
from dkgp.models.sparse.bounds import (
    Directions,
    Evidence,
    SampleErrors,
    direction_bound,
    highest_misfit,
    highest_penalty,
    highest_whitened_penalty,
    largest_residual_diagonal,
    log_determinant,
    normal_error,
    subset_bound,
)
from dkgp.models.sparse.model import RegressorFit, SparseFit, normal_factor
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, IndexArray, column_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.low_rank.pivots import solve_by_factor, whiten


@dataclass(frozen=True)
class SparseCertificate(Proof):
    """Bounds on the distance of a sparse mean from the exact one, on the standardised scale."""

    by_target: ClassVar = ("target_square", "risk", "magnitude", "spread")
    derived: ClassVar = ("best", "excess", "rms_bound", "gap")

    # Samples, basis samples
    n: int
    m: int
    largest_noise: float  # the largest s2
    # Of each of p targets: y' D y; R of its mean, at most; min R, at least, by the bound's name
    target_square: tuple[float, ...]
    risk: tuple[float, ...]
    least_risk: Mapping[str, tuple[float, ...]]
    # sum s |beta| and sum s e |beta| over the basis: a mean's own roundings are in proportion to them
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    # Where the basis was fitted to all samples, and L and C are well enough conditioned to prove something
    evidence: Evidence | None = None
    # Largest difference of C C' from the exact I + F'DF, in norm; infinite if it is not known
    normal_share: float = field(default=math.inf, metadata=rule(write=finite, read=infinite))
    assumes: str | None = None  # see `dkgp.models.rounding.assumptions`

    @property
    def best(self) -> tuple[str, ...]:
        """The bound that won, by target."""
        names = list(self.least_risk)
        return tuple(max(names, key=lambda name: self.least_risk[name][t]) for t in range(len(self.risk)))

    @property
    def least(self) -> FloatArray:
        """min R, at least: (p,)."""
        return np.asarray(np.max([self.least_risk[name] for name in self.least_risk], axis=0))

    @property
    def excess(self) -> FloatArray:
        """w: (p,)."""
        return np.asarray(np.maximum((np.asarray(self.risk) - self.least) * (1.0 + 4.0 * EPS), 0.0))

    @property
    def rms_bound(self) -> FloatArray:
        """Bound on the root mean square of the mean's distance over the training samples: (p,)."""
        return np.asarray(np.sqrt(2.0 * self.excess * self.largest_noise / self.n) * (1.0 + 8.0 * EPS))

    @property
    def gap(self) -> FloatArray:
        """Smola and Bartlett's: the difference of the bounds on the log posterior, over their mean's size, (p,).

        2 (Q + s2 Q* + |y|^2 / 2) / (-Q + s2 Q* + |y|^2 / 2), where Q = s2 R - |y|^2 / 2 and Q* bounds -min R. Infinite
        where the bounds leave it open whether the posterior is above that of no function at all.
        """
        return self._gap(np.asarray(self.target_square), np.asarray(self.risk), self.least, self.excess)

    @property
    def total_gap(self) -> float:
        """The gap of all targets together, as a greedy choice stops by it."""
        return float(self._gap(*(np.sum(v) for v in (self.target_square, self.risk, self.least, self.excess))))

    def _gap(self, square: Any, risk: Any, least: Any, excess: Any) -> FloatArray:
        # y' D y as summed is off by (n + 4) u of itself; the differences round no more than a few.
        size = square * (1.0 - (self.n + 16) * UNIT) - risk - least
        gap = np.where(size > 0.0, 2.0 * excess / np.where(size > 0.0, size, 1.0) * (1.0 + 8.0 * EPS), np.inf)
        return np.asarray(np.where(excess > 0.0, gap, 0.0))

    @property
    def evidence_upper(self) -> float | None:
        """Upper bound on log p(y)."""
        return None if self.evidence is None else self.evidence.upper(2.0 * self.least)

    @property
    def divergence(self) -> float | None:
        """KL of the sparse posterior from the exact one, at most, in nats."""
        upper = self.evidence_upper
        if upper is None or self.evidence is None:
            return None
        return float(np.nextafter(max(upper - self.evidence.lower, 0.0), np.inf))

    @bounding
    def mean_error_bound(self, highest_variance: FloatArray, prior: FloatArray, row_errors: FloatArray) -> FloatArray:
        """Bound on |f(x) - f*(x)| at test samples, with f as computed: (r, p).

        Parameters
        ----------
        highest_variance : (r,) float64
            V, at most.
        prior, row_errors : (r,) float64
            k(x, x) as computed, and the samples' roundings.
        """
        scale = np.sqrt(prior * (1.0 + EVALUATION * 2.0 * EPS * row_errors)) * (1.0 + EPS)
        magnitude, spread = np.asarray(self.magnitude), np.asarray(self.spread)
        roundings = scale[:, None] * (((self.m + 4) * UNIT + EPS * row_errors[:, None]) * magnitude + EPS * spread)
        distance = np.sqrt(2.0 * self.excess * highest_variance[:, None])
        return np.asarray((distance + EVALUATION * roundings) * (1.0 + 8.0 * EPS))

    def with_bound(self, name: str, least_quadratic: FloatArray) -> SparseCertificate:
        """Return the certificate with one more lower bound, on y' Kbar^-1 y: (p,)."""
        before = np.asarray(self.least_risk.get(name, np.zeros(len(self.risk))))
        known = {**self.least_risk, name: tuple(np.maximum(before, 0.5 * least_quadratic).tolist())}
        return replace(self, least_risk=known)

    def summary(self) -> dict[str, Any]:
        """The proofs as a model's summary tells them, in plain JSON types."""
        return {
            "excess": self.excess.tolist(),
            "rms_bound": self.rms_bound.tolist(),
            "best": list(self.best),
            "gap": [value if math.isfinite(value) else None for value in self.gap.tolist()],
            "elbo": None if self.evidence is None else self.evidence.lower,
            "evidence_upper": self.evidence_upper,
            "divergence": self.divergence,
            **({} if self.assumes is None else {"assumes": self.assumes}),
        }

    @property
    def statement(self) -> str:
        """The proven statement, in one line."""
        bound = float(self.rms_bound.max())
        return f"the mean within {bound:.2g} deviations of the targets of the exact one (root mean square)"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with the derived bounds for readers."""
        document = super().to_json()
        if self.evidence is not None:
            document["evidence"] |= {"upper": self.evidence_upper, "divergence": self.divergence}
        return {**document, "gap": finite(document["gap"])}

    def _check(self) -> None:
        super()._check()
        if any(len(values) != len(self.risk) for values in self.least_risk.values()):
            raise InputError(f"a certificate has lower bounds for other targets than its {len(self.risk)} risks")


def certify(
    operator: BlockedKernelOperator,
    fit: SparseFit,
    targets: FloatArray,
    *,
    subset: IndexArray | None = None,
) -> SparseCertificate:
    """Certify a sparse fit to standardised targets (n, p).

    One pass over the entries of K_nm; nothing quadratic in n. Of the subset of data, bounds from below are the
    `subset`'s alone.

    `targets` (n, p). `subset` (s,): samples whose own exact model bounds the least risk from below, the basis samples
    for instance; takes s^2 entries and s^3 / 3 multiply-adds here.
    """
    with single_threaded_blas():
        return _certify(operator, fit, targets, subset)


def _certify(
    operator: BlockedKernelOperator, fit: SparseFit, targets: FloatArray, subset: IndexArray | None
) -> SparseCertificate:
    model, noise, p = fit.model, operator.noise, targets.shape[1]
    cross = CrossKernel(operator, model.prototypes)
    errors = SampleErrors.of(operator, cross.prototypes)
    proof = None if fit.regressors is None else _Whitened.of(operator, fit.regressors, errors)
    weights = [model.weights] if proof is None else [model.weights, *proof.with_more_noise()]
    variances = None if isinstance(noise, float) else noise
    tiled = np.tile(targets, (1, len(weights)))
    residual = cross.residual(np.concatenate(weights, axis=1), tiled, variances, returned=proof is not None)
    squares = residual.squares[:p] / noise if isinstance(noise, float) else residual.squares[:p]
    misfit = highest_misfit(errors, model.weights, squares, targets, noise)
    risk = 0.5 * (misfit + highest_penalty(errors, model.weights, cross.inner(model.weights))) * (1.0 + 8.0 * EPS)
    if not np.isfinite(risk).all():
        raise NumericalError("the risk of the sparse mean overflows: raise the noise variance, or scale the targets")
    least = {"none": np.zeros(p)}
    if subset is not None:
        least["subset"] = subset_bound(operator, subset, targets)
    evidence = None
    if proof is not None:
        assert residual.values is not None
        # A direction's length is of no consequence: with one noise for all, the residual itself.
        vectors = residual.values if variances is None else residual.values / variances[:, None]
        for number in range(len(weights)):
            name = "trace" if number else "residual"
            where = slice(number * p, (number + 1) * p)
            bound = proof.bound(Directions(vectors[:, where], residual.projected[:, where]), targets)
            least[name] = np.maximum(least.get(name, bound), bound)
        if model.method.is_bound:
            evidence = proof.evidence(misfit + highest_whitened_penalty(cross.lower, model.weights))
    weighted = targets**2 / column_of(noise)
    return SparseCertificate(
        operator.n,
        cross.m,
        float(np.max(noise)),
        tuple(weighted.sum(axis=0).tolist()),
        tuple(risk.tolist()),
        {name: tuple((0.5 * values).tolist()) for name, values in least.items()},
        tuple((EVALUATION * errors.prototypes.size(model.weights)).tolist()),
        tuple((EVALUATION * errors.prototypes.spread(model.weights)).tolist()),
        evidence,
        math.inf if proof is None else proof.normal_share,
        assumptions(operator.kernel),
    )


@dataclass(frozen=True)
class _Whitened:
    """Proofs that need F = K_nm L^-T, for an L that is conditioned well enough."""

    operator: BlockedKernelOperator
    fit: RegressorFit
    errors: SampleErrors
    whitening: Whitening
    residual_diagonal: FloatArray
    row_errors: FloatArray

    @classmethod
    def of(cls, operator: BlockedKernelOperator, fit: RegressorFit, errors: SampleErrors) -> _Whitened | None:
        whitening = Whitening.of(fit.cross.lower, errors.prototypes.scale)
        if whitening is None:
            return None
        return cls(operator, fit, errors, whitening, *largest_residual_diagonal(errors, whitening, fit.squares))

    def with_more_noise(self) -> list[FloatArray]:
        """Weights of fits with more noise: by the trace of E, and by the geometric mean of that and the noise.

        (I / theta + F'DF)^-1 F'D y, theta the noise's share of the larger one, with F'D y = C C' z.
        """
        fit, noise = self.fit, float(np.mean(self.operator.noise))
        trace = float(np.sum(np.maximum(self.errors.samples.prior - fit.squares, 0.0)))
        gram = fit.normal @ fit.normal.T
        right, weights = gram @ fit.whitened, []
        for more in (np.sqrt(noise * trace), trace):
            matrix = np.array(gram, order="F")
            matrix[np.diag_indices(len(matrix))] += more / noise - 1.0
            try:
                lower = normal_factor(matrix, noise)
            except NumericalError:  # so ill-conditioned that C C' as rounded has no factor: one direction less
                continue
            z = solve_by_factor(lower, right)
            weights.append(whiten(fit.cross.lower, z, transposed=True))
        return weights

    def bound(self, directions: Directions, targets: FloatArray) -> FloatArray:
        lower, noise = self.fit.cross.lower, self.operator.noise
        return direction_bound(self.errors, lower, self.whitening, self.residual_diagonal, directions, targets, noise)

    @property
    def row_error(self) -> float:
        """(sum D_i g_i^2)^(1/2), g_i the errors of the rows of F."""
        noise = np.broadcast_to(np.asarray(self.fit.variances, dtype=np.float64), (self.operator.n,))
        return float(np.sqrt(np.sum(self.row_errors**2 / noise)) * (1.0 + (self.operator.n + 8) * UNIT))

    @property
    def normal_share(self) -> float:
        """Bound on the distance of C C' from I + F'DF: by its sum, its factor and the errors of the rows of F."""
        off = self.row_error
        normal_off = normal_error(self.fit.normal, self.operator.n) + self.fit.off
        length = float(np.linalg.norm(self.fit.normal)) * (1.0 + normal_off)
        return float(EVALUATION * (normal_off + 2.0 * length * off + off**2))

    def evidence(self, highest_quadratic: FloatArray) -> Evidence | None:
        n, noise = self.operator.n, self.operator.noise
        variances = np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,))
        trace = float(np.sum(self.residual_diagonal / variances) * (1.0 + (n + 8) * UNIT))
        determinant = log_determinant(self.fit.normal, noise, n, self.row_error, self.fit.off)
        return None if determinant is None else Evidence.of(n, determinant, highest_quadratic, trace)
