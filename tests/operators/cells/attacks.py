"""Attacks on the bounds of products by cells, of products at other inputs and of their derivatives.

Weights are chosen to break the bounds. Every entry is compared with long double, whose own errors are counted; what
these leave open, the tightest entry and a random one of each problem are decided in mpmath.

`python -m tests.operators.cells.attacks` prints a row as soon as it is done: kernel, dimension, points and a group of
tolerances; entries that were compared, entries beyond their bounds, and the greatest error relative to its bound. With
`--out` rows go to a file, and a second call goes on after them. Rows come in an order that makes any first part a fair
sample. `--round 1` and `--round 2` draw other problems with the other tolerances of each group.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import mpmath as mp
import numpy as np

import dkgp.kernels as kernels
from dkgp.kernels import Constant, Kernel, Matern12, Matern32, Matern52, RationalQuadratic, SquaredExponential
from dkgp.kernels.terms import terms_of
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.models.rounding import slope_roundings
from dkgp.operators.cells import cross
from dkgp.operators.cells.plan import Plan
from dkgp.operators.cells.products import CellProducts
from dkgp.operators.cells.proof import Expansion
from tests.operators.cells.exact import ENTRY_ROUNDINGS, LD, SLOPE_ROUNDINGS, UNIT, dense, dense_slopes, exact_entry

# From products that are hardly right to ones of which roundings are all of the error.
GROUPS = {
    "1e-2 to 1e-4": (1e-3, 1e-2, 1e-4),
    "1e-5 to 1e-7": (1e-6, 1e-5, 1e-7),
    "1e-8 to 1e-10": (1e-9, 1e-8, 1e-10),
    "1e-11 to 1e-13": (1e-12, 1e-11, 1e-13),
}


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


# -------------------------------------------------------------------------------------------------------------- attacks


@dataclass
class Outcome:
    """Entries that were compared, those beyond their bounds, and the greatest error relative to its bound."""

    entries: int = 0
    broken: int = 0
    tightest: float = 0.0
    bound: float = 0.0  # the greatest bound relative to the weights' magnitudes and the kernel's
    exact: int = 0  # entries that mpmath decided

    def merge(self, other: Outcome) -> None:
        """Add another outcome."""
        self.entries, self.broken = self.entries + other.entries, self.broken + other.broken
        self.tightest, self.bound = max(self.tightest, other.tightest), max(self.bound, other.bound)
        self.exact += other.exact


@dataclass(frozen=True)
class Problem:
    """Sums with weights at rows: of kernel entries, or of derivatives, a row for each target and feature.

    Attributes
    ----------
    compute
        Sums of weights (n, t) and their bounds, (r, t) both.
    matrix : (r, n) longdouble
    roundings, scale : (r,) float64
        Roundings of an entry of `matrix` in units of `UNIT`, and the greatest one.
    exact
        An entry of the matrix in mpmath, by row and column.
    """

    compute: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    matrix: np.ndarray
    roundings: np.ndarray
    scale: np.ndarray
    exact: Callable[[int, int], Any]

    def compare(self, V: np.ndarray, rng: np.random.Generator, outcome: Outcome) -> np.ndarray:
        """Compare all entries for weights (n, t), and return their errors (r, t)."""
        values, bounds = self.compute(V)
        masses = np.abs(V).sum(axis=0)
        error = np.asarray(values.astype(LD) - self.matrix @ V.astype(LD), np.float64)
        size = np.abs(error)
        own = UNIT * (self.roundings + (len(V) + 3.0) * self.scale)[:, None] * masses * 1.01
        ratio = np.divide(size, bounds, out=np.where(size > 0.0, np.inf, 0.0), where=bounds > 0.0)
        outcome.entries += size.size
        outcome.broken += int((size - own > bounds).sum())
        outcome.bound = max(outcome.bound, float((bounds / (masses * self.scale[:, None] + 1e-300)).max()))
        some = {tuple(place) for place in np.argwhere((size + own > bounds) & (size - own <= bounds))[:20]}
        some |= {divmod(int(ratio.argmax()), V.shape[1]), (int(rng.integers(len(size))), int(rng.integers(V.shape[1])))}
        for row, column in some:
            entry = mp.fdot((self.exact(row, j), float(V[j, column])) for j in np.flatnonzero(V[:, column]))
            off = abs(mp.mpf(float(values[row, column])) - entry)
            assert abs(off - mp.mpf(float(size[row, column]))) <= 1.01 * own[row, column] + 1e-15 * size[row, column]
            outcome.exact += 1
            outcome.broken += int(off > bounds[row, column] >= size[row, column] - own[row, column])
            ratio[row, column] = float(off / mp.mpf(float(bounds[row, column]))) if bounds[row, column] > 0.0 else 0.0
        outcome.tightest = max(outcome.tightest, float(ratio.max()))
        return error


def attack_problem(problem: Problem, X: np.ndarray, rng: np.random.Generator, columns: int = 10**6) -> Outcome:
    """Compare every entry of sums with weights that are chosen against it.

    `columns` limits the columns that are looked at one by one, and the rows that signs are chosen against.
    """
    outcome, n = Outcome(), len(X)
    rows = len(problem.matrix)
    chosen = rng.permutation(n)[:columns]
    with mp.workdps(50):
        # One weight at a time; then signs that make the errors of each row add up.
        single = problem.compare(np.eye(n)[:, chosen], rng, outcome)
        signs = np.zeros((n, min(rows, columns)))
        signs[chosen] = np.where(single < 0.0, -1.0, 1.0).T[:, rng.permutation(rows)[: signs.shape[1]]]
        problem.compare(signs, rng, outcome)
        # Weights over twelve decades, of one sign and alternating; of few points; smooth; all equal.
        decades = 10.0 ** rng.uniform(-6.0, 6.0, (n, 3))
        smooth = np.cos(3.0 * X @ rng.standard_normal((X.shape[1], 2)))
        alternating = np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]
        few = np.where(rng.random((n, 2)) < 0.03, rng.standard_normal((n, 2)) * 1e8, 1e-8)
        V = [decades, decades * alternating, smooth, few, np.ones((n, 1)), alternating]
        if rows == n:
            # Weights of a Gaussian process: large, and they cancel.
            V.append(np.linalg.solve(problem.matrix.astype(float) + 1e-7 * np.eye(n), smooth))
        problem.compare(np.concatenate(V, axis=1), rng, outcome)
    return outcome


def entries_of(kernel: Kernel, X: np.ndarray, rows: np.ndarray, compute: Any) -> Problem:
    """Return the problem of products with K(rows, X)."""
    magnitude = np.full(len(rows), terms_of(kernel).magnitude)
    return Problem(
        compute,
        dense(kernel, rows, X),
        ENTRY_ROUNDINGS * magnitude,
        magnitude,
        lambda row, column: exact_entry(kernel, rows[row], X[column]),
    )


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
    """Attack products at the points, or at other targets by a plan of their own, with leaves of few points."""
    defaults: Any = Plan.__init__.__kwdefaults__
    rows = X if targets is None else targets
    with mock.patch.dict(defaults, leaf=leaf):
        products = CellProducts(terms_of(kernel), X, tolerance)
        compute = products.matmat if targets is None else lambda V: products.cross(rows, V)
        return attack_problem(entries_of(kernel, X, rows, compute), X, rng, columns)


def attack_cross(
    kernel: Kernel,
    X: np.ndarray,
    targets: np.ndarray,
    tolerance: float,
    rng: np.random.Generator,
    *,
    leaf: int = 6,
    columns: int = 10**6,
) -> Outcome:
    """Attack products at other inputs, as predictions take them."""
    terms = terms_of(kernel)
    with mock.patch.dict(cross.SOURCE_LEAF, {X.shape[1]: leaf}):
        sources = cross.CrossSums(terms, X, np.zeros((len(X), 1))).within(tolerance).sources

        def compute(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            within = cross.TermSums(sources, [source.moments(V) for source in sources])
            return cross.CrossSums(terms, X, V).at(targets, within)

        return attack_problem(entries_of(kernel, X, targets, compute), X, rng, columns)


def attack_slopes(
    kernel: Kernel,
    X: np.ndarray,
    targets: np.ndarray,
    tolerance: float,
    rng: np.random.Generator,
    *,
    leaf: int = 6,
    columns: int = 10**6,
) -> Outcome:
    """Attack derivatives at other inputs, with the roundings of near entries that certificates add."""
    terms, evaluator, (n, d) = terms_of(kernel), SlopeEvaluator(kernel), X.shape
    at, of = evaluator.sizes(targets), evaluator.sizes(X)
    with mock.patch.dict(cross.SOURCE_LEAF, {d: leaf}):
        share = tolerance / terms.terms[0].amplitude
        sources = cross.Sources(terms.terms[0], X, share, slopes=True)

        def compute(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            with mock.patch.object(cross, "Sources", return_value=sources):
                slopes = cross.CrossSlopes(terms, evaluator, X, V, tolerance)
            values, bounds = slopes.at(targets)
            sizes = np.abs(V) * of.scale[:, None]
            near = (at.errors + slope_roundings(n, evaluator.leaves))[:, None] * sizes.sum(axis=0)
            near += (sizes * of.errors[:, None]).sum(axis=0)
            bounds = bounds + 1.01 * 2.0**-53 * near[:, :, None] * at.terms[:, None]
            return (part.transpose(2, 0, 1).reshape(-1, V.shape[1]) for part in (values, bounds))  # type: ignore[return-value]

        steps = np.repeat(terms.magnitude * np.array(terms.terms[0].scale), len(targets))
        problem = Problem(
            compute,
            dense_slopes(kernel, targets, X).reshape(-1, n),
            SLOPE_ROUNDINGS * steps,
            2.0 * steps,
            lambda row, j: exact_entry(kernel, targets[row % len(targets)], X[j], row // len(targets)),
        )
        return attack_problem(problem, X, rng, columns)


@contextlib.contextmanager
def bounds_times(factor: float) -> Iterator[None]:
    """Make the bounds of expansions smaller than they are, which has to break them."""
    weights = {name: getattr(Expansion, name) for name in ("row_weights", "slope_weights")}

    def smaller(name: str) -> Any:
        def weighted(self: Expansion, *arguments: object) -> tuple[np.ndarray, float]:
            each, remainder = weights[name](self, *arguments)
            return factor * each, factor * remainder

        return weighted

    with contextlib.ExitStack() as stack:
        for name in weights if factor != 1.0 else ():
            stack.enter_context(mock.patch.object(Expansion, name, smaller(name)))
        yield


def scales_of(X: np.ndarray, share: float, anisotropic: bool) -> list[float]:
    """Length scales that are a share of the extent, or differ by feature."""
    extent = float((X.max(axis=0) - X.min(axis=0)).max())
    return [share * extent * (1.0 + 2.0 * f if anisotropic else 1.0) for f in range(X.shape[1])]


def targets_of(X: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Targets at the points, next to them, between them, around them, and far away."""
    low, high, d = X.min(axis=0), X.max(axis=0), X.shape[1]
    extent, quarter, few = float((high - low).max()), count // 4, count // 12

    def off(rows: int, decades: tuple[float, float]) -> np.ndarray:
        return extent * 10.0 ** rng.uniform(*decades, (rows, 1)) * rng.standard_normal((rows, d))

    return np.concatenate(
        [
            X[rng.integers(0, len(X), quarter)],
            X[rng.integers(0, len(X), quarter)] + off(quarter, (-15.0, -1.0)),
            rng.uniform(low, high, (count - 3 * quarter - few, d)),
            rng.uniform(low - extent, high + extent, (quarter, d)),
            low + off(few, (0.5, 6.0)),
        ]
    )


# ---------------------------------------------------------------------------------------------------------------- table

KINDS = ("products", "cross", "slopes")
NOT_DIFFERENTIABLE = ("Matern 1/2", "spherical", "sum and constant")  # of the sum one term only is taken


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    kind: str
    kernel: str
    d: int
    points: str
    group: str
    round: int

    def attack(self, seed: int) -> Outcome:
        """Attack a problem that the row's name and the seed draw."""
        rng = np.random.default_rng([seed, zlib.crc32(json.dumps(asdict(self)).encode())])
        shape = next(shape for shape in SHAPES if shape.__name__ == self.points)
        tolerance = GROUPS[self.group][self.round % len(GROUPS[self.group])]
        X = shape(120 if self.d < 3 else 100, self.d, rng)
        share = float(rng.choice([0.03, 0.2, 1.0, 5.0]))
        kernel = KERNELS[self.kernel](scales_of(X, share, bool(rng.integers(2))))
        leaf = int(rng.choice([1, 4, 16] if self.d < 3 else [8, 16]))
        if self.kind == "products":
            return attack(kernel, X, tolerance, rng, leaf=leaf, columns=10**6 if self.d < 3 else 40)
        # Trees of sources are deep in points that lie far from others: leaves of one would make too many.
        targets = targets_of(X, 60, rng)
        function = attack_cross if self.kind == "cross" else attack_slopes
        return function(kernel, X, targets, tolerance, rng, leaf=max(4, leaf), columns=60 if self.d < 3 else 24)


def rows_of(options: argparse.Namespace) -> list[Row]:
    """Return the rows that are asked for, in an order that makes any first part a fair sample."""
    axes = (KINDS, KERNELS, (1, 2, 3), [shape.__name__ for shape in SHAPES], GROUPS)
    rows = [Row(*values, round=options.round) for values in itertools.product(*axes)]  # type: ignore[arg-type]
    rows = [row for row in rows if row.kind != "slopes" or row.kernel not in NOT_DIFFERENTIABLE]
    order = np.random.default_rng(0).permutation(len(rows))
    asked = {name: getattr(options, name).split(",") for name in ("kind", "kernel", "d", "points", "group")}
    return [
        rows[place]
        for place in order
        if all(any(part in str(getattr(rows[place], name)) for part in parts) for name, parts in asked.items())
    ]


def main() -> None:
    """Attack the rows that are not done, and print a summary of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kind", "kernel", "d", "points", "group"):
        parser.add_argument(f"--{name}", default="", help=f"only rows whose {name} has one of these parts: a,b")
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many processor seconds")
    parser.add_argument("--out", type=Path, help="file of rows, a line each; rows that it has are not done again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bounds-times", type=float, default=1.0, help="shrink bounds, to see that attacks break them")
    options = parser.parse_args()
    done: dict[Row, Outcome] = {}
    if options.out is not None and options.out.exists():
        for line in options.out.read_text().splitlines():
            record = json.loads(line)
            done[Row(**record["row"])] = Outcome(**record["outcome"])
    print(f"{'kind':<9}{'kernel':<24}{'d':<3}{'points':<12}{'tolerance':<16}{'entries':>8}{'broken':>8}"
          f"{'error / bound':>15}{'seconds':>9}")  # fmt: skip
    for row in rows_of(options):
        if row in done:
            continue
        if time.process_time() > options.seconds:
            break
        began = time.process_time()
        with bounds_times(options.bounds_times):
            outcome = row.attack(options.seed)
        seconds = time.process_time() - began
        done[row] = outcome
        print(f"{row.kind:<9}{row.kernel:<24}{row.d:<3}{row.points:<12}{row.group:<16}{outcome.entries:>8,}"
              f"{outcome.broken:>8}{outcome.tightest:>15.3f}{seconds:>9.2f}", flush=True)  # fmt: skip
        if options.out is not None:
            with options.out.open("a") as file:
                print(json.dumps({"row": asdict(row), "outcome": asdict(outcome), "seconds": seconds}), file=file)
    summarise(done)
    sys.exit(any(outcome.broken for outcome in done.values()) and options.bounds_times == 1.0)


def summarise(done: dict[Row, Outcome]) -> None:
    """Print sums over rows, by one of their properties at a time."""
    for kind in KINDS:
        tables: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for row, outcome in done.items():
            if row.kind == kind:
                for name in ("kernel", "points", "d", "group", "kind"):
                    tables[name, str(getattr(row, name))].append(outcome)
        if tables:
            print(f"\n{kind:<26}{'rows':>6}{'broken':>8}{'entries':>14}{'broken':>8}{'error / bound':>15}"
                  f"{'bound / (|v| k)':>17}{'in mpmath':>11}")  # fmt: skip
        for (_, value), outcomes in sorted(tables.items()):
            total = Outcome()
            for outcome in outcomes:
                total.merge(outcome)
            rows = sum(outcome.broken > 0 for outcome in outcomes)
            print(f"{value:<26}{len(outcomes):>6}{rows:>8}{total.entries:>14,}{total.broken:>8,}{total.tightest:>15.3f}"
                  f"{total.bound:>17.1e}{total.exact:>11,}")  # fmt: skip


if __name__ == "__main__":
    main()
