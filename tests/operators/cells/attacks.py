"""Attacks on the bounds of products by cells: every entry against long double, with weights chosen to break it.

`python -m tests.operators.cells.attacks [--rounds N] [--every K]` prints a table: entries that were compared, entries
beyond their bound (none), and the greatest error relative to its bound.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import mpmath as mp
import numpy as np

import dkgp.kernels as kernels
from dkgp.kernels import Constant, Kernel, Matern12, Matern32, Matern52, RationalQuadratic, SquaredExponential
from dkgp.kernels.terms import terms_of
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.products import CellProducts

LD = np.longdouble
# From products that are hardly right to ones of which roundings are all of the error.
TOLERANCES = tuple(float(f"1e-{digits}") for digits in range(2, 14))


# --------------------------------------------------------------------------------------------------------------- points


def uniform(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Points in a box."""
    return rng.uniform(-1.0, 1.0, (n, d))


def clustered(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Distances to the origin over twelve decades."""
    return rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-12.0, 0.0, (n, 1))


def clusters(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Few places, many points next to each."""
    centres = rng.uniform(-1.0, 1.0, (7, d))
    return centres[rng.integers(0, 7, n)] + 10.0 ** rng.uniform(-10.0, -1.0, (n, 1)) * rng.standard_normal((n, d))


def gridded(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """A grid whose points lie on the edges of cells."""
    side = round(n ** (1.0 / d))
    return np.stack(np.meshgrid(*[np.arange(side) / 8.0] * d), axis=-1).reshape(-1, d)


def collinear(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Points next to a line, some on it."""
    places = rng.uniform(-1.0, 1.0, (n, 1)) * np.linspace(1.0, 0.3, d)
    return places + 10.0 ** rng.uniform(-16.0, -3.0, (n, 1)) * rng.standard_normal((n, d))


def duplicated(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Points many times each, some with the last bit changed."""
    places = rng.uniform(-1.0, 1.0, (n // 6, d))
    X = places[rng.integers(0, len(places), n)]
    changed = rng.random((n, d)) < 0.2
    return np.where(changed, np.nextafter(X, 2.0), X)


def far_away(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Points far from the origin compared with their distances, and one far from all others."""
    X = 3.0 + 1e-3 * rng.standard_normal((n, d))
    X[0] = -40.0
    return X


SHAPES = (uniform, clustered, clusters, gridded, collinear, duplicated, far_away)

# -------------------------------------------------------------------------------------------------------------- kernels


def _compact(name: str, scales: list[float]) -> Kernel:
    kernel: Kernel = getattr(kernels, name).from_length_scales(scales)
    return kernel


KERNELS: dict[str, Callable[[list[float]], Kernel]] = {
    "squared exponential": lambda scales: SquaredExponential.from_length_scales(scales),
    "Matern 1/2": lambda scales: Matern12.from_length_scales(scales),
    "Matern 3/2": lambda scales: Matern32.from_length_scales(scales),
    "Matern 5/2": lambda scales: Matern52.from_length_scales(scales),
    "rational quadratic 0.3": lambda scales: RationalQuadratic.from_length_scales(scales, alpha=0.3),
    "rational quadratic 30": lambda scales: RationalQuadratic.from_length_scales(scales, alpha=30.0),
    "sum and constant": lambda scales: (
        3.0 * Matern32.from_length_scales(scales)
        + SquaredExponential.from_length_scales([2.0 * scale for scale in scales], variance=0.1)
        + Constant(0.7)
    ),
    **{
        name.lower(): lambda scales, name=name: _compact(name, scales)  # type: ignore[misc]
        for name in ("Spherical", "Cubic", "Wendland")
        if hasattr(kernels, name)
    },
}


def formula(kernel: Any, s: Any, functions: Any) -> Any:
    """f of s = sum_l gamma_l (x_l - x'_l)^2 by the kernel's definition, in any arithmetic."""
    name = kernel.type_name
    if name == "rbf":
        return functions.exp(-s)
    if name == "rq":
        return functions.exp(-kernel.alpha * functions.log1p(s / kernel.alpha))
    if name.startswith("matern"):
        u = functions.sqrt({"matern12": 2, "matern32": 6, "matern52": 10}[name] * s)
        return {"matern12": 1, "matern32": 1 + u, "matern52": 1 + u + u * u / 3}[name] * functions.exp(-u)
    u = functions.sqrt(2 * s)
    # Zero beyond the range, in every arithmetic.
    u = np.minimum(u, 1) if isinstance(u, np.ndarray) else min(u, mp.mpf(1))
    return {
        "spherical": (1 - u) ** 2 * (1 + u / 2),
        "cubic": (1 - u) ** 4 * (1 + u * (4 + u * (3 + 3 * u / 4))),
        "wendland": (1 - u) ** 4 * (1 + 4 * u),
    }[name]


def leaves(kernel: Any) -> Iterator[tuple[Any, Any]]:
    """Factor and kernel of each part of a sum."""
    if kernel.type_name == "constant":
        yield kernel, None
    elif hasattr(kernel, "parts"):
        for part in kernel.parts:
            yield from leaves(part)
    elif hasattr(kernel, "scale"):
        for part, factor in leaves(kernel.kernel):
            yield part, kernel.scale * (1.0 if factor is None else factor)
    else:
        yield kernel, 1.0


def dense(kernel: Kernel, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """K(targets, sources) in long double, by the kernels' definitions."""
    K = np.zeros((len(targets), len(sources)), LD)
    for part, factor in leaves(kernel):
        if factor is None:
            K += LD(part.variance)
            continue
        s = np.zeros_like(K)
        for feature, gamma in enumerate(part.feature_gamma):
            s += LD(gamma) * (targets[:, None, feature].astype(LD) - sources[None, :, feature].astype(LD)) ** 2
        K += LD(factor) * LD(part.variance) * formula(part, s, np)
    return K


def exact_entry(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> Any:
    """k(x, y) in the working precision of mpmath."""
    total = mp.mpf(0)
    for part, factor in leaves(kernel):
        if factor is None:
            total += mp.mpf(part.variance)
            continue
        s = mp.fsum(
            mp.mpf(gamma) * (mp.mpf(float(a)) - mp.mpf(float(b))) ** 2
            for gamma, a, b in zip(part.feature_gamma, x, y, strict=True)
        )
        total += mp.mpf(factor) * mp.mpf(part.variance) * formula(part, s, mp)
    return total


# -------------------------------------------------------------------------------------------------------------- attacks


@dataclass
class Outcome:
    """Entries that were compared, those beyond their bounds, and the greatest error relative to its bound."""

    entries: int = 0
    broken: int = 0
    tightest: float = 0.0
    bound: float = 0.0  # the greatest bound relative to the weights' magnitudes and the kernel's

    def add(self, error: np.ndarray, bounds: np.ndarray) -> None:
        """Compare errors with bounds."""
        self.entries += error.size
        self.broken += int((error > bounds).sum())
        positive = bounds > 0.0
        self.tightest = max(self.tightest, float((error[positive] / bounds[positive]).max(initial=0.0)))

    def merge(self, other: Outcome) -> None:
        """Add another outcome."""
        self.entries, self.broken = self.entries + other.entries, self.broken + other.broken
        self.tightest, self.bound = max(self.tightest, other.tightest), max(self.bound, other.bound)


def small_leaves(leaf: int) -> Any:
    """Leaves of few points, so that small problems have many levels."""
    defaults: Any = Plan.__init__.__kwdefaults__
    return mock.patch.dict(defaults, leaf=leaf)


def attack(
    kernel: Kernel,
    X: np.ndarray,
    tolerance: float,
    rng: np.random.Generator,
    *,
    targets: np.ndarray | None = None,
    leaf: int = 6,
    columns: int = 10**6,
) -> Outcome:
    """Compare every entry of products with weights that are chosen against it.

    `columns` limits the kernel columns that are looked at one by one, and the rows that signs are chosen against.
    """
    outcome = Outcome()
    rows = X if targets is None else targets
    n, K = len(X), dense(kernel, rows, X)
    chosen = rng.permutation(n)[:columns]
    with small_leaves(leaf):
        products = CellProducts(terms_of(kernel), X, tolerance)

        def product(V: np.ndarray) -> np.ndarray:
            result, bounds = products.matmat(V) if targets is None else products.cross(rows, V)
            error = result.astype(LD) - K @ V.astype(LD)
            outcome.add(np.abs(error).astype(float), bounds)
            share = bounds / (np.abs(V).sum(axis=0) * terms_of(kernel).magnitude)
            outcome.bound = max(outcome.bound, float(share.max()))
            return error

        # One weight at a time; then signs that make the errors of each row add up.
        single = product(np.eye(n)[:, chosen])
        signs = np.zeros((n, min(len(rows), columns)))
        signs[chosen] = np.where(single < 0.0, -1.0, 1.0).T[:, rng.permutation(len(rows))[: signs.shape[1]]]
        product(signs)
        # Weights over twelve decades, of one sign and alternating; of few points; smooth; all equal.
        decades = 10.0 ** rng.uniform(-6.0, 6.0, (n, 3))
        smooth = np.cos(3.0 * X @ rng.standard_normal((X.shape[1], 2)))
        alternating = np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]
        few = np.where(rng.random((n, 2)) < 0.03, rng.standard_normal((n, 2)) * 1e8, 1e-8)
        product(np.concatenate([decades, decades * alternating, smooth, few, np.ones((n, 1)), alternating], axis=1))
        if targets is None:
            # Weights of a Gaussian process: large, and they cancel.
            A = K.astype(float) + 1e-7 * np.eye(n)
            product(np.linalg.solve(A, smooth))
    return outcome


def scales_of(X: np.ndarray, share: float, anisotropic: bool) -> list[float]:
    """Length scales that are a share of the extent, or differ by feature."""
    extent = float((X.max(axis=0) - X.min(axis=0)).max())
    return [share * extent * (1.0 + 2.0 * f if anisotropic else 1.0) for f in range(X.shape[1])]


def cases(rng: np.random.Generator, n: int, every: int) -> Iterator[tuple[int, str, str, float, Kernel, np.ndarray]]:
    """Dimension, shape, kernel's name, tolerance, kernel and points, of one combination of so many, drawn at random."""
    combinations = list(itertools.product((1, 2, 3), SHAPES, KERNELS.items(), TOLERANCES))
    for place in np.sort(rng.permutation(len(combinations))[: -(-len(combinations) // every)]):
        d, shape, (name, make), tolerance = combinations[place]
        X = shape(n, d, rng)
        share = float(rng.choice([0.03, 0.2, 1.0, 5.0]))
        yield d, shape.__name__, name, tolerance, make(scales_of(X, share, bool(rng.integers(2)))), X


def main() -> None:
    """Attack every combination, and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="take one combination of so many")
    parser.add_argument("--points", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    tables: dict[str, dict[str, Outcome]] = defaultdict(lambda: defaultdict(Outcome))
    began = time.time()
    for _ in range(options.rounds):
        for d, shape, name, tolerance, kernel, X in cases(rng, options.points, options.every):
            leaf = int(rng.choice([1, 4, 16] if d < 3 else [8, 16]))
            outcome = attack(kernel, X, tolerance, rng, leaf=leaf, columns=10**6 if d < 3 else 24)
            for table, key in (
                ("kernel", name), ("points", shape), ("features", str(d)), ("tolerance", f"{tolerance:g}"), ("all", ""),
            ):  # fmt: skip
                tables[table][key].merge(outcome)
            if outcome.broken:
                print(f"BROKEN: d={d} {shape} {name} {tolerance:g}: {outcome}", flush=True)
    for table, rows in tables.items():
        print(f"\n{table:<24} {'entries':>12} {'broken':>7} {'error / bound':>14} {'bound / (|v| k)':>16}")
        for key, outcome in rows.items():
            print(
                f"{key:<24} {outcome.entries:>12,} {outcome.broken:>7} {outcome.tightest:>14.3f} {outcome.bound:>16.1e}"
            )
    print(f"\n{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
