"""Bounds on the evidence log p(y) of the exact model, from a sparse fit: the variational one below, and one above.

With Q = F F' <= K and E = K - Q,

    log N(y; 0, Q + S) - tr(S^-1 E) / 2  <=  log p(y)  <=  -n log(2 pi) / 2 - log|Q + S| / 2 - q_low / 2,

S the noise and q_low <= y' Kbar^-1 y. Their difference bounds the divergence of the sparse posterior from the exact
one. y' (Q + S)^-1 y is twice the least risk on the columns' span, with L L' for K_mm, so it is bounded by the risk of
the fitted weights; log|Q + S| = log|S| + log|I + F'DF| by the factor as computed, and how far that may be off:

- a symmetric error of norm at most h < 1 moves log|I + F'DF| by at most -m log(1 - h), since no eigenvalue is below 1;
- rows of F that are off by g_i in length move it by at most sqrt(m) (sum D_i g_i^2)^(1/2): the derivative along the way
  is 2 tr(A^-1 F'D dF), and |D^(1/2) F A^-1| <= sqrt(m) / 2 in Frobenius' norm for A = I + F'DF.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.models.rounding import EVALUATION, UNIT
from dkgp.models.sparse.errors import sample_sum_roundings
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.exact_sums import DEPTH


@dataclass(frozen=True)
class LogDeterminant:
    """Bounds on log|Q + S|."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Evidence:
    """Bounds on log p(y), summed over targets, in nats of the standardised targets."""

    lower: float  # the ELBO, at most
    ceiling: float  # what log p(y) would be at most if y' Kbar^-1 y were nothing
    trace: float  # tr(S^-1 E), at most: what the basis leaves of the samples' variances, in units of their noise

    @classmethod
    def of(cls, n: int, determinant: LogDeterminant, highest_quadratic: FloatArray, trace: float) -> Evidence:
        """From upper bounds on y'(Q + S)^-1 y, (p,)."""
        p = len(highest_quadratic)
        constant = p * n * float(np.log(2.0 * np.pi))
        lower = -0.5 * (constant + p * determinant.upper + float(highest_quadratic.sum()) + p * trace)
        ceiling = -0.5 * (constant + p * determinant.lower)
        off = 16.0 * UNIT * (constant + abs(lower) + abs(ceiling))
        return cls(lower - off, ceiling + off, trace)

    def upper(self, least_quadratic: FloatArray) -> float:
        """The upper bound, from lower bounds on y' Kbar^-1 y: (p,)."""
        total = 0.5 * float(least_quadratic.sum())
        return self.ceiling - total + 8.0 * UNIT * (total + abs(self.ceiling))


def normal_error(normal: FloatArray, n: int) -> float:
    """Bound on the distance in norm of C C' from I + F^'DF^, of the rows F^ as computed: (m, m) C.

    C C' is off by (m + 2) u |C||C|' (Higham 2002, theorem 10.3), of norm at most (m + 2) u tr(C C'); F^'DF^ was summed
    over n samples, with a few roundings of each row's scale. The digits of a row that are cut off come to at most
    2^-61 of its units' largest numbers (Lemma 2b), in norm to 2^-61 m of the trace.
    """
    trace, cut = float(np.sum(normal**2)), 2.0 ** (1 - DEPTH) * len(normal)
    return float(EVALUATION * ((len(normal) + sample_sum_roundings(n) + 12.0) * UNIT + cut) * trace)


def log_determinant(
    normal: FloatArray, noise: Variances, n: int, row_error: float, further: float = 0.0
) -> LogDeterminant | None:
    """Bounds on log|Q + S| by C C' = I + F'DF as computed; None where it may be singular for all that is known.

    `normal` (m, m): C. `row_error`: (sum D_i g_i^2)^(1/2), g_i bounds on how far the computed rows of F are off.
    `further`: what F'DF is off by, in norm, beside its sums' roundings; see `RegressorFit.off`.
    """
    m = len(normal)
    logs = np.log(normal.diagonal())
    noise_logs = np.log(np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,)))
    # A logarithm as computed is taken to be within four units in the last place; sums are in any order.
    least = float(noise_logs.sum()) - EVALUATION * (n + 10) * UNIT * float(np.abs(noise_logs).sum())
    most = float(noise_logs.sum()) + EVALUATION * (n + 10) * UNIT * float(np.abs(noise_logs).sum())
    share = normal_error(normal, n) + further
    if share >= 1.0:
        return None
    value = 2.0 * float(logs.sum())
    off = EVALUATION * (
        2.0 * (m + 10) * UNIT * float(np.abs(logs).sum()) - m * float(np.log1p(-share)) + np.sqrt(m) * row_error
    )
    # No eigenvalue of I + F'DF is below one.
    return LogDeterminant(least + max(value - off, 0.0), most + value + off)
