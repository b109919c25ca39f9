"""Proven bounds of an exact LS-SVM's decisions, from float64 residuals alone.

With S = diag(s2_i), Kbar = K + S and E* = Kbar^-1 1, the exact decision is f*(x) = k_x'alpha* + b*, where Kbar alpha* +
b* 1 = y and 1'alpha* = 0 (Karsmakers, Pelckmans, De Brabanter, Van Hamme and Suykens, *Sparse conjugate directions
pursuit*, 2011, equations 21 to 23). For any alpha and b, with r = y - b 1 - Kbar alpha and c = 1'alpha,

    |f(x) - f*(x)| <= sqrt(r'S^-1 r) sqrt(V_b(x)) + |c| |1 - k_x'E*| / (1'E*),
    V_b(x) = k(x, x) - k_x'Kbar^-1 k_x + (1 - k_x'E*)^2 / (1'E*) <= k(x, x) + (1 - 2 k_x'E*) / (1'E*),

the last by (k_x'E*)^2 <= (k_x'Kbar^-1 k_x) (1'E*). Of E* an approximation E is known, with rho = 1 - Kbar E:

    |k_x'E - k_x'E*| <= sqrt(k(x, x)) sqrt(rho'S^-1 rho),
    1'E + E'rho <= 1'E* <= 1'E + E'rho + rho'S^-1 rho.

`docs/proofs.md` has the proofs (theorems 10 and 11), and where each rounding is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data.stores.manifest import columns_of
from dkgp.html import ProofShown
from dkgp.models.classification.bounds import FEW, SampleSizes, sum_roundings, upward
from dkgp.models.rounding import (
    EPS,
    EVALUATION,
    UNIT,
    bounding,
    certified_row_errors,
    mean_roundings,
    product_roundings,
    step_roundings,
)
from dkgp.models.sums import EVERY_ENTRY, Sums
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import Solution


@dataclass(frozen=True)
class DecisionCertificate(ProofShown):
    """Bounds on decisions k_x'alpha + b: all of it proven, roundings included."""

    n: int  # samples
    # Of each column of decisions, at most: sqrt(r'S^-1 r), r the exact one of the stored alpha and b; |1'alpha|
    residual: tuple[float, ...]
    imbalance: tuple[float, ...]
    # sum_j sqrt(k(x_j, x_j)) |alpha_jt|, and the same with each term times its row's error: what the roundings of a
    # decision's sum are in proportion to
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    intercept: bool = True  # whether there is one; without, b is zero and nothing of the following counts
    ones_residual: float = 0.0  # sqrt(rho'S^-1 rho), at most
    ones_sum: tuple[float, float] = (math.inf, math.inf)  # between which 1'E* lies
    # As `magnitude` and `spread`, of E
    ones_magnitude: float = 0.0
    ones_spread: float = 0.0
    assumes: str | None = None  # what had to be taken on trust; None where everything is proven

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # what comes to no number bounds nothing: see `bounding`
    def of(
        cls,
        alpha: FloatArray,
        intercept: FloatArray,
        solution: Solution,
        noise: Variances,
        kernel_diagonal: float | FloatArray,
        row_errors: FloatArray,
        assumes: str | None = None,
    ) -> DecisionCertificate:
        """Certify alpha (n, t) and b (t,), made of the solution E (n, t + 1) of Kbar E = [Y, 1].

        Parameters
        ----------
        alpha : (n, t) float64
            E_1 - E_2 b', rounded; E itself where there is no intercept.
        intercept : (t,) float64
            b.
        solution : Solution
            E, of t columns without an intercept. Labels in Y are -1 and 1.
        noise : float or (n,) float64
            s2, or that of each sample.
        kernel_diagonal : float or (n,) float64
            k(x, x): one number where it is the same everywhere, one for each sample elsewhere.
        row_errors : (n,) float64
            Of the samples; see `TileEvaluator.row_errors`.
        assumes : str, optional
            See `dkgp.models.rounding.assumptions`.
        """
        n, t = alpha.shape
        solved, gradient, stepped = solution.alpha, solution.gradient, solution.stepped
        noise = np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,))
        sizes = _Sizes.of(n, solved.shape[1], kernel_diagonal, row_errors, noise)

        def off(column: int) -> FloatArray:
            step = stepped[:, column] if stepped.size else None
            rounded = sizes.product_errors(solved[:, column], gradient[:, column], step)
            return rounded + solution.product_errors[:, column] if solution.product_errors.size else rounded

        common: dict[str, Any] = {
            "n": n,
            "magnitude": tuple(sizes.magnitude(column) for column in alpha.T),
            "spread": tuple(sizes.spread(column) for column in alpha.T),
            "assumes": assumes,
        }
        if solved.shape[1] == t:
            residual = tuple(sizes.length(gradient[:, column], off(column)) for column in range(t))
            return cls(residual=residual, imbalance=(0.0,) * t, intercept=False, **common)
        ones, ones_gradient, ones_off = solved[:, t], gradient[:, t], off(t)
        residuals = []
        for column, share in enumerate(intercept.tolist()):
            # r = r_1 - b rho - Kbar eta: eta, the roundings of alpha; and those of the difference of the gradients.
            moved = UNIT * (2.0 * np.abs(alpha[:, column]) + abs(share) * np.abs(ones))
            residual_of = gradient[:, column] - share * ones_gradient
            more = UNIT * (2.0 * np.abs(residual_of) + abs(share) * np.abs(ones_gradient))
            more += sizes.scale * float(sizes.scale @ moved) + noise * moved
            residuals.append(sizes.length(residual_of, off(column) + abs(share) * ones_off + EVALUATION * more))
        ones_residual = sizes.length(ones_gradient, ones_off)
        return cls(
            residual=tuple(residuals),
            imbalance=tuple(abs(math.fsum(column.tolist())) * FEW for column in alpha.T),
            ones_residual=ones_residual,
            ones_sum=_ones_sum(ones, ones_gradient, ones_off, sizes, ones_residual),
            ones_magnitude=sizes.magnitude(ones),
            ones_spread=sizes.spread(ones),
            **common,
        )

    @property
    def n_columns(self) -> int:
        """Columns of decisions, t."""
        return len(self.residual)

    @bounding
    def decision_error_bound(
        self,
        decisions: FloatArray,
        ones: FloatArray | None,
        prior_variance: FloatArray,
        row_errors: FloatArray,
        product_error: FloatArray | None = None,
    ) -> FloatArray:
        """Bound on |f(x) - f*(x)| at test samples: (r, t).

        Parameters
        ----------
        decisions : (r, t) float64
            k_x'alpha + b, as computed.
        ones : (r,) float64 or None
            k_x'E, as computed; None without an intercept.
        prior_variance : (r,) float64
            k(x, x), as computed.
        row_errors : (r,) float64
            Of the test samples.
        product_error : (r, t + 1) float64, optional
            By how much k_x'alpha and k_x'E, as computed, may miss the exact sums, rounding apart; (r, t) without an
            intercept. Nothing where every entry was added up.
        """
        scale = upward(prior_variance, row_errors)
        length, imbalance = np.asarray(self.residual), np.asarray(self.imbalance)
        unit = mean_roundings(self.n) * UNIT + EPS * row_errors
        rounding = sum_roundings(self.n, row_errors, self.magnitude, self.spread)
        bound: FloatArray = EVALUATION * (scale[:, None] * rounding + UNIT * np.abs(decisions))
        if product_error is not None:
            bound += product_error[:, : self.n_columns]
        if not self.intercept:
            bound += scale[:, None] * length
            return bound * FEW
        if ones is None:
            raise ValueError("a model with an intercept takes k_x'E, `ones`, for its bound; got None")
        ones_rounding = EVALUATION * (unit * self.ones_magnitude + EPS * self.ones_spread)
        slack = scale * (ones_rounding + self.ones_residual)
        if product_error is not None:
            slack += product_error[:, self.n_columns]
        low, high = self.ones_sum
        # 1 - 2 p at most, divided by the end of 1'E* that leaves more; terms of both signs, each rounded a few times.
        rest = 1.0 - 2.0 * (ones - slack)
        rounded = 8.0 * EPS * (1.0 + 2.0 * np.abs(ones) + 2.0 * slack)
        with np.errstate(divide="ignore", over="ignore"):
            rest = np.where(rest > 0.0, rest / low, rest / high)
            variance = scale * scale * FEW + rest + (rounded + 8.0 * EPS * np.abs(rest)) / low
            away = (np.abs(1.0 - ones) * FEW + slack) / low
        bound += np.sqrt(np.maximum(variance, 0.0))[:, None] * length + away[:, None] * imbalance
        return bound * FEW

    def _proven(self) -> str:
        return f"decisions of {self.n:,} samples within bounds of the exact machine's"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return plain if self.intercept else {**plain, "ones_sum": None}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> DecisionCertificate:
        """Rebuild from `to_json`."""
        columns = columns_of(document, "residual", "imbalance", "magnitude", "spread")
        low, high = document["ones_sum"] or (math.inf, math.inf)
        return cls(
            n=int(document["n"]),
            **columns,
            intercept=bool(document["intercept"]),
            ones_residual=float(document["ones_residual"]),
            ones_sum=(float(low), float(high)),
            ones_magnitude=float(document["ones_magnitude"]),
            ones_spread=float(document["ones_spread"]),
            assumes=document.get("assumes"),
        )


def certified_decisions(
    context: BlockContext,
    certificate: DecisionCertificate,
    alpha: FloatArray,
    ones: FloatArray,
    intercept: FloatArray,
    inputs: FloatArray,
    sums: Sums = EVERY_ENTRY,
) -> tuple[FloatArray, FloatArray]:
    """k_x'alpha + b at standardised inputs, and by how much each may miss the exact decision: (r, t) both.

    One product with all columns, so that each kernel entry is evaluated once; `context` is of the support inputs.
    `ones` is E, which is not looked at where the certificate is of a model without intercept.
    """
    t = alpha.shape[1]
    weights = np.column_stack([alpha, ones]) if certificate.intercept else alpha
    products, off = sums.products(context, inputs, weights)
    decisions = products[:, :t] + intercept
    bounds = certificate.decision_error_bound(
        decisions,
        products[:, t] if certificate.intercept else None,
        context.kernel.diagonal(inputs),
        certified_row_errors(context.kernel, context.source, inputs),
        off,
    )
    return decisions, bounds


@dataclass(frozen=True)
class _Sizes(SampleSizes):
    """Of samples with noise (n,), and of a solution of so many columns."""

    noise: FloatArray
    columns: int

    @classmethod
    def of(
        cls, n: int, columns: int, kernel_diagonal: float | FloatArray, row_errors: FloatArray, noise: FloatArray
    ) -> _Sizes:
        scale = np.sqrt(np.broadcast_to(np.asarray(kernel_diagonal), (n,))) * (1.0 + 2.0 * EPS * row_errors)
        return cls(scale, row_errors, noise, columns)

    def product_errors(self, solved: FloatArray, gradient: FloatArray, stepped: FloatArray | None) -> FloatArray:
        """Bounds on the entries of what a gradient (n,) is off by; `Certificate.of` has their length."""
        terms, roundings = np.abs(solved), product_roundings(len(solved)) * UNIT
        if stepped is not None:
            terms, roundings = terms + 2.0 * stepped, roundings + step_roundings(self.columns) * UNIT
        scale = self.scale
        off: FloatArray = scale * (roundings + EPS * self.row_errors) * float(scale @ terms)
        off += EPS * scale * float((scale * self.row_errors) @ terms)
        off += roundings * self.noise * terms + 2.0 * UNIT * np.abs(gradient)
        return EVALUATION * off

    def length(self, residual: FloatArray, off: FloatArray) -> float:
        """sqrt(r'S^-1 r) at most, for r (n,) that is off by `off`."""
        largest = (np.abs(residual) + off) / np.sqrt(self.noise)
        return float(np.linalg.norm(largest)) * (1.0 + (len(residual) + 16.0) * UNIT)


def _ones_sum(
    ones: FloatArray, gradient: FloatArray, off: FloatArray, sizes: _Sizes, residual: float
) -> tuple[float, float]:
    """Numbers between which 1'Kbar^-1 1 lies: 1'E + E'rho and that plus rho'S^-1 rho, and (1'1)^2 / (1'Kbar 1)."""
    products, total = ones * gradient, math.fsum(ones.tolist())
    less = math.fsum(products.tolist())
    unsure = float(EVALUATION * (np.abs(ones) @ off + UNIT * np.abs(products).sum()))
    unsure += 4.0 * EPS * (abs(total) + abs(less))
    n = float(len(ones))
    # Cauchy's inequality in Kbar for v = 1, whose every k(x, x') is at most the geometric mean of the diagonal's.
    least = n * n / (float(sizes.scale.sum()) ** 2 + float(sizes.noise.sum())) * (1.0 - (4.0 * n + 16.0) * EPS)
    low = max(total - less - unsure, least)
    return low, max(total - less + unsure + residual * residual * FEW, low)
