# ruff: noqa
"""Proven expansions of a kernel between two cells of one level: Chebyshev coefficients and bounds on all that is dropped.

Points are mapped to y in [0, 1)^d; a cell of level l is (i + [0, 1)^d) / 2^l with its own coordinate
t = y 2^(l+1) - (2 i + 1) in [-1, 1]^d. Two cells of one level at the integer offset o have x - y = side (o + w) with
w = (t - u) / 2 in [-1, 1]^d: the kernel between them is one function G(w) = f(|side (o + w)|^2), the same for all pairs
of that level and offset. All lengths are in the units of the profile (`dkgp.kernels.program.Profile`).

1. b_K: Chebyshev coefficients of the interpolant I_P G on P^d points, in long double.
2. delta >= sup |G - I_P G| by Bernstein ellipses: G is analytic in w_j within E_rho for all real other w, and
   |G| <= M_j there, so |G - I_P G| <= sum_j Lambda_P^(j-1) 4 M_j rho_j^-(P-1) / (rho_j - 1), Lambda_P <= 1 + (2/pi)
   log(P + 1).
3. T_K((t - u) / 2) = sum_ab W^K_ab T_a(t) T_b(u) is finite, with known numbers. Terms with a, b < p are kept; the sum
   of the magnitudes of those that are dropped, and delta, are `eps[p]`.
4. Where the source's moments mu_b are known to a higher order than p, dropped terms cost |mu_b| and only the terms
   beyond that order cost the sum of the magnitudes of the cell's weights.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dkgp.kernels.program import Profile

LD = np.longdouble
LN2 = math.log(2.0)
UNIT = 2.0**-53
# Points of the interpolant in each direction, and the highest order of known coefficients, by dimension.
POINTS = {1: 48, 2: 48, 3: 32}
WIDEST = {1: 26, 2: 26, 3: 12}

# ---------------------------------------------------------------------------------------------------------- profiles


def _matern_polynomial(name: str, u: Any) -> Any:
    v = u * LD(2).dtype.type(np.log(LD(2))) if isinstance(u, np.ndarray) and u.dtype == LD else u * LN2
    return {"matern12": 1 + 0 * v, "matern32": 1 + v, "matern52": 1 + v + v * v / 3}[name]


def profile_values(profile: Profile, parameter: float, s: Any) -> Any:
    """f(s) in the type of s."""
    name = profile.name
    if name == "power_of_two":
        return np.exp2(-s)
    if name == "rational_quadratic":
        return np.exp(-parameter * np.log1p(s))
    u = np.sqrt(s)
    return _matern_polynomial(name, u) * np.exp2(-u)


def has_modulus(profile: Profile) -> bool:
    """Return True if a bound of the profile over complex numbers is known."""
    return profile.name in ("power_of_two", "matern12", "matern32", "matern52", "rational_quadratic")


def reach(profile: Profile) -> float:
    """Return the least distance from which on the profile is zero."""
    return math.inf


def modulus(profile: Profile, parameter: float, re_s: Any, re_u: Any, R: Any) -> Any:
    """Upper bound of |f| over complex s with Re s >= re_s, Re sqrt(s) >= re_u and |sqrt(s)| <= R."""
    if profile.name == "power_of_two":
        return np.exp2(-re_s)
    if profile.name == "rational_quadratic":
        return (1 + re_s) ** -parameter
    return _matern_polynomial(profile.name, R) * np.exp2(-re_u)


def _analytic(profile: Profile, right: Any, re_s: Any) -> Any:
    """Where f(zeta^2 + q) is analytic: for which ellipses."""
    if profile.name == "power_of_two":
        return np.ones(len(re_s), bool)
    if profile.name == "rational_quadratic":
        return re_s > -1 + 1e-9
    return right | (re_s > 0)


# ---------------------------------------------------------------------------------------------------- Chebyshev tables
@lru_cache(None)
def nodes(P):
    return np.cos((2 * np.arange(P).astype(LD) + 1) * (4 * np.arctan(LD(1))) / (2 * P))


@lru_cache(None)
def dct(P):
    """C with coefficients = C @ values at the P nodes, T_k(tau_m) exact in long double."""
    k, m = np.arange(P).astype(LD)[:, None], np.arange(P).astype(LD)[None]
    C = np.cos(k * (2 * m + 1) * (4 * np.arctan(LD(1))) / (2 * P)) * (LD(2) / P)
    C[0] /= 2
    return C


def cheb(x, p):
    out = np.empty((p,) + x.shape, x.dtype)
    out[0] = 1
    if p > 1:
        out[1] = x
    for k in range(2, p):
        out[k] = 2 * x * out[k - 1] - out[k - 2]
    return out


@lru_cache(None)
def split_table(P):
    """W[K, a, b]: T_K((t - u) / 2) = sum W[K, a, b] T_a(t) T_b(u); zero where a + b > K or of another parity."""
    tau, C = nodes(P), dct(P)
    V = cheb((tau[:, None] - tau[None]) / 2, P)
    W = np.einsum("am,kmn->kan", C, V)
    W = np.einsum("kan,bn->kab", W, C)
    K, a, b = np.ogrid[:P, :P, :P]
    W[(a + b > K) | ((a + b - K) % 2 != 0)] = 0
    return W


@lru_cache(None)
def split_sums(P, cap):
    """Wtot[K], Wkept[p, K] for p = 0..cap, in long double."""
    A = np.abs(split_table(P))
    kept = np.zeros((cap + 1, P), LD)
    for p in range(1, cap + 1):
        kept[p] = A[:, :p, :p].sum((1, 2))
    return A.sum((1, 2)), kept


@lru_cache(None)
def half_table(p):
    """B[side, k, j]: T_k((t + s) / 2) = sum_j B T_j(t), s = -1, +1, t the child's coordinate."""
    tau, C = nodes(p), dct(p)
    out = []
    for s in (-1, 1):
        B = cheb((tau + s) / 2, p) @ C.T
        B[np.triu_indices(p, 1)] = 0
        out.append(B)
    return np.array(out)


@lru_cache(None)
def composed(p, depth=10):
    """Largest sum_j |coefficient| of T_k on a dyadic cell of up to `depth` levels below (bound on how errors pass)."""
    tau, C = nodes(p).astype(float), dct(p).astype(float)
    worst = 1.0
    for l in range(1, depth + 1):
        c = (np.arange(2**l) * 2 + 1) / 2**l - 1
        x = c[:, None] + tau[None] / 2**l
        T = cheb(x, p)
        worst = max(worst, float(np.abs(np.einsum("kcm,jm->kcj", T, C)).sum(2).max()))
    return worst


# ------------------------------------------------------------------------------------------------ the proof of a class
def bernstein(profile, parameter, side, o, P):
    """delta >= sup over w of |G - I_P G|, G(w) = f(|side (o + w)|^2); inf where nothing is proven. o sorted, >= 0."""
    d = len(o)
    lo, hi = np.maximum(np.abs(o) - 1, 0) * side, (np.abs(o) + 1) * side
    lam = 1 + 2 / math.pi * math.log(P + 1)
    total = 0.0
    for j in range(d):
        others = [l for l in range(d) if l != j]
        qmin, qmax = float((lo[others] ** 2).sum()), float((hi[others] ** 2).sum())
        # candidates of rho
        rho = 1 + np.geomspace(1e-2, 60, 400)
        edge = []
        if abs(o[j]) >= 2:
            edge.append(abs(o[j]) + math.sqrt(o[j] ** 2 - 1))
        gap = qmin + (1.0 if profile.name == "rational_quadratic" else 0.0)
        if gap > 0:
            B = math.sqrt(gap) / side
            edge.append(B + math.sqrt(B * B + 1))
        rho = np.concatenate([rho, np.array(edge) * (1 - 1e-9)])
        A, B = (rho + 1 / rho) / 2, (rho - 1 / rho) / 2
        a = np.maximum(abs(o[j]) - A, 0.0) * side  # least |Re zeta|
        b = B * side  # greatest |Im zeta|
        R = np.sqrt(((abs(o[j]) + A) * side) ** 2 + b**2 + qmax)
        re_s = a**2 - b**2 + qmin
        right = abs(o[j]) >= A  # Re zeta >= 0 throughout: Re sqrt(zeta^2 + q) >= Re zeta
        ok = _analytic(profile, right, re_s)
        re_u = np.maximum(np.where(right, a, 0.0), np.sqrt(np.maximum(re_s, 0.0)))
        with np.errstate(over="ignore", invalid="ignore"):
            M = modulus(profile, parameter, re_s, re_u, R)
            E = np.where(ok, np.exp(np.log(4 * M) - (P - 1) * np.log(rho)) / (rho - 1), np.inf)
        total += lam**j * float(np.nanmin(E))
    return total * (1 + 1e-10)


class Expansion:
    """What is proven of one class: eps[p], p = 0..cap (eps[0]: leaving it out), and the coefficients b."""

    def __init__(self, profile, parameter, side, offset, P, cap):
        o = np.array(offset, float)
        near = math.sqrt(float((np.maximum(o - 1, 0) ** 2).sum())) * side
        far = math.sqrt(float(((o + 1) ** 2).sum())) * side
        self.eps = np.full(cap + 1, np.inf)
        self.size = np.zeros(cap + 1)
        self.eps[0] = float(profile_values(profile, parameter, np.array(near**2))) * (1 + 1e-12)
        self.b = None
        if near >= reach(profile):
            self.eps[0] = 0.0
            return
        if near < reach(profile) < far:
            return
        d = len(o)
        delta = bernstein(profile, parameter, side, o, P)
        if not np.isfinite(delta) or delta > 1e-2:
            return
        tau, C = nodes(P), dct(P)
        s = LD(0)
        for j in range(d):
            z = (tau + LD(o[j])) * LD(side)
            s = s + (z * z).reshape([-1 if l == j else 1 for l in range(d)])
        b = profile_values(profile, parameter, s)
        for j in range(d):
            b = np.moveaxis(np.tensordot(C, b, (1, j)), 0, j)
        self.b = b
        # b is what long double gives: a polynomial off I_P G by at most sum |b - exact b|, each within 4 P units a direction.
        delta += P**d * d * 4 * P * 2.0**-64
        wide = WIDEST[d]
        tot, kept = split_sums(P, wide)
        size = np.abs(b)
        full = _contract(size, tot)
        beyond = float(full - _contract(size, kept[wide])) * (1 + 1e-12)  # no sign used
        A = coefficients(b, P, wide)  # signs used: the dropped coefficients themselves
        hist = np.bincount(highest(wide, d), weights=np.abs(A).ravel(), minlength=wide)
        dropped = np.append(np.cumsum(hist[::-1])[::-1], 0.0)  # [p]: of all coefficients with an index >= p
        self.size[1:] = np.cumsum(hist)[:cap]
        # The same with the source's moments known up to `wide`: |sum_dropped A_ab T_a mu_b| <= sum_s w[p, s] sum_{b in shell s} |mu_b|,
        # shell s: indices b whose largest is s; w[p, s] = max_{b in s} sum_{a dropped with b} |A_ab|.
        Q = wide**d
        C = np.abs(A).transpose([2 * j for j in range(d)] + [2 * j + 1 for j in range(d)]).reshape(Q, Q)
        sh = shells(wide, d)
        H = np.zeros((wide, Q))
        for k in range(wide):
            H[k] = C[sh == k].sum(0)
        G = np.cumsum(H[::-1], 0)[::-1]
        self.w = np.zeros((cap + 1, wide))
        for k in range(wide):
            cols = G[:, sh == k].max(1)
            self.w[:, k] = np.where(np.arange(cap + 1) > k, cols[: cap + 1], cols[0]) * (1 + 1e-9)
        self.kept_w = np.array(
            [
                [C[sh < p][:, sh == k].sum(0).max(initial=0) if k < p else 0.0 for k in range(wide)]
                for p in range(cap + 1)
            ]
        )
        self.beyond = dropped  # dropped[m]: with an index >= m, per unit of |v|_1
        self.rest = beyond + delta + 4 * P * UNIT * float(full)
        self.eps[1:] = dropped[1 : cap + 1] * (1 + 1e-9) + beyond + delta + 4 * P * UNIT * float(full)


@lru_cache(None)
def shells(p, d):
    return np.indices((p,) * d).reshape(d, -1).max(0)


@lru_cache(None)
def highest(p, d):
    """Largest of the 2 d indices of each coefficient."""
    out = np.zeros((p,) * (2 * d), np.int64)
    for axis in range(2 * d):
        out = np.maximum(out, np.arange(p).reshape([-1 if l == axis else 1 for l in range(2 * d)]))
    return out.ravel()


def coefficients(b, P, p):
    """A[a1, b1, a2, b2, ...] of T_a(t) T_b(u), a, b < p, from b: float64."""
    W = split_table(P)[:, :p, :p].astype(float)
    out = np.tensordot(b.astype(float), W, (0, 0))
    for _ in range(b.ndim - 1):
        out = np.tensordot(out, W, (0, 0))
    return out


def _contract(size, weights):
    out = size
    while np.ndim(out):
        out = np.tensordot(weights, out, (0, 0))
    return out
