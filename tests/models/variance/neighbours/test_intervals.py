"""Intervals by neighbours against the exact variance in extended precision and in 50 digits."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import (
    ActiveDimensions,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    SquaredExponential,
    Sum,
)
from dkgp.models.variance.neighbours import run, samples
from dkgp.models.variance.neighbours.run import NeighbourOptions, batch_bounds
from dkgp.models.variance.neighbours.samples import Boxes, Distances, Samples, basis, nodes
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from tests.models.exact_gp import ExactGP, mp

Long = np.longdouble
_RUNS = itertools.count()
KINDS = ("uniform", "clusters", "grid", "duplicates", "collinear", "outliers")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Few samples make many boxes, expansions are rough, and far samples may cost as much as they like."""
    monkeypatch.setattr(samples, "LEAF", {1: 4, 2: 8, 3: 8})
    monkeypatch.setattr(samples, "ORDER", {1: 3, 2: 3, 3: 2})
    monkeypatch.setattr(samples, "SUMMED", 20)
    monkeypatch.setattr(run, "SOURCE_ORDER", {1: 4, 2: 4, 3: 3})
    monkeypatch.setattr(run, "FAR_SHARE", 1e3)
    monkeypatch.setattr(run, "MOST_FITTED", 9)
    monkeypatch.setattr(run, "TILE_POINTS", 6)
    return monkeypatch


@dataclass(frozen=True)
class Problem:
    """Samples with their noise variances (n,), test points, a kernel."""

    X: np.ndarray
    T: np.ndarray
    kernel: Any
    noise: np.ndarray

    @classmethod
    def draw(cls, seed: int, n: int, d: int, kind: str, kernel: type[Any], noise: float, **shape: float) -> Problem:
        """Draw samples; the noise of every second problem goes over four decades."""
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1.7, 1.7, (n, d))
        if kind == "clusters":
            X = rng.normal(size=(4, d))[rng.integers(0, 4, n)] + 1e-2 * X
        elif kind == "grid":
            X = np.round(4.0 * X) / 4.0
        elif kind == "duplicates":
            X = X[rng.integers(0, n // 3, n)]
        elif kind == "collinear":
            X = X[:, :1] * rng.normal(size=(1, d))
        elif kind == "outliers":
            X[::7] *= 50.0
        kernel_drawn = kernel(tuple(0.5 / 10.0 ** rng.uniform(-2.0, 1.0, d)), 10.0 ** rng.uniform(-1.0, 1.0), **shape)
        s2 = noise * kernel_drawn.variance
        noises = np.full(n, s2) if seed % 2 else s2 * 10.0 ** rng.uniform(0.0, 4.0, n)
        T = np.concatenate([X[:3], X[3:5] + 1e-6, rng.uniform(-2.0, 2.0, (6, d)), np.full((1, d), 30.0)])
        return cls(X, T, kernel_drawn, noises)

    def samples(self, monkeypatch: pytest.MonkeyPatch) -> Samples:
        context = BlockContext(f"neighbours {next(_RUNS)}", ArrayInputs(self.X), self.kernel, len(self.X))
        monkeypatch.setattr(samples, "noise_variances", lambda *arguments: self.noise.copy())
        return Samples.of(context, float(self.noise.min()))

    def exact(self) -> np.ndarray:
        """Variances of the function, by elimination in extended precision: (t,)."""
        K, R = self._entries(self.X, self.X), self._entries(self.X, self.T)
        K[np.diag_indices(len(K))] += self.noise
        explained = np.zeros(len(self.T), Long)
        for j in range(len(K)):
            explained += R[j] ** 2 / K[j, j]
            share = K[j + 1 :, j] / K[j, j]
            K[j + 1 :, j + 1 :] -= np.outer(share, K[j, j + 1 :])
            R[j + 1 :] -= np.outer(share, R[j])
        return Long(self.kernel.variance) - explained

    def _entries(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        kernel = self.kernel
        s = np.zeros((len(A), len(B)), Long)
        for feature, gamma in enumerate(kernel.gamma):
            s += Long(gamma) * (A.astype(Long)[:, None, feature] - B.astype(Long)[None, :, feature]) ** 2
        if isinstance(kernel, SquaredExponential):
            f = np.exp(-s)
        elif isinstance(kernel, RationalQuadratic):
            f = (1 + s / Long(kernel.alpha)) ** -Long(kernel.alpha)
        else:
            twice_nu = {Matern12: 1, Matern32: 3, Matern52: 5}[type(kernel)]
            u = np.sqrt(2 * twice_nu * s)
            f = np.exp(-u) * {1: 1, 3: 1 + u, 5: 1 + u + u * u / 3}[twice_nu]
        return np.asarray(Long(kernel.variance) * f)


def bounds_of(problem: Problem, monkeypatch: pytest.MonkeyPatch, count: int, gap: float = 0.02) -> Any:
    with np.errstate(all="ignore"):
        return batch_bounds(problem.samples(monkeypatch), problem.T, 0.0, NeighbourOptions(gap, True, count))


KERNELS: tuple[tuple[type[Any], dict[str, float]], ...] = (
    (SquaredExponential, {}),
    (Matern12, {}),
    (Matern32, {}),
    (Matern52, {}),
    (RationalQuadratic, {"alpha": 0.7}),
)


@pytest.mark.covering(2)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_contain_the_exact_variance(
    kind: str, kernel: tuple[type[Any], dict[str, float]], d: int, small: pytest.MonkeyPatch
) -> None:
    seed = KINDS.index(kind) * 15 + KERNELS.index(kernel) * 3 + d
    problem = Problem.draw(seed, 60, d, kind, kernel[0], 10.0 ** -(seed % 5), **kernel[1])
    exact = problem.exact()
    for count in (3, 25):
        small.setattr(run, "ATTEMPTS", 0)
        bounds = bounds_of(problem, small, count)
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper).all()


@pytest.mark.parametrize("seed", range(6))
def test_intervals_hold_in_50_digits(seed: int, small: pytest.MonkeyPatch) -> None:
    kernel, shape = KERNELS[seed % len(KERNELS)]
    problem = Problem.draw(seed, 30, 1 + seed % 3, KINDS[seed], kernel, 10.0**-seed, **shape)
    gp = ExactGP(problem.X, problem.T, [[mp.mpf(0)]] * 30, problem.kernel, problem.noise)
    _, exact = gp._solved
    for count in (4, 15, 30):
        bounds = bounds_of(problem, small, count)
        for lower, upper, variance in zip(bounds.lower, bounds.upper, exact, strict=True):
            assert mp.mpf(float(lower)) <= variance <= mp.mpf(float(upper))


@pytest.mark.parametrize(("kernel", "count", "widest"), [(Matern12, 60, 0.02), (Matern32, 200, 0.02)])
def test_a_part_of_the_samples_gives_narrow_intervals(
    kernel: type[Any], count: int, widest: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 1200
    X, T = rng.uniform(0.0, 1.0, (n, 2)), rng.uniform(0.45, 0.55, (12, 2))
    problem = Problem(X, T, kernel((50.0, 50.0)), np.full(n, 0.01))
    monkeypatch.setattr(run, "ATTEMPTS", 0)
    bounds = bounds_of(problem, monkeypatch, count)
    assert bounds.gaps(np.arange(12)).max() < widest
    K = problem.kernel(X, X) + 0.01 * np.eye(n)
    columns = problem.kernel(X, T)
    exact = 1.0 - np.einsum("it,it->t", columns, np.linalg.solve(K, columns))
    assert (bounds.lower <= exact + 1e-12).all()
    assert (exact - 1e-12 <= bounds.upper).all()


# ------------------------------------------------------------------------------------------------------- mutations


@pytest.mark.parametrize("mutation", ["nothing", "far samples", "error of far samples"])
def test_a_proof_without_one_of_its_terms_breaks(mutation: str, small: pytest.MonkeyPatch) -> None:
    """The tests above see each term: without it some interval no longer contains the exact variance."""
    small.setattr(run, "ATTEMPTS", 0)
    plain = run.Tile._far
    if mutation == "far samples":
        small.setattr(run.Tile, "_far", lambda *arguments: None)
    elif mutation == "error of far samples":
        small.setattr(run, "SOURCE_ORDER", {1: 2, 2: 2})
        small.setattr(run.Tile, "_far", lambda self, *rest: _without_error(plain(self, *rest)))
    broken = 0
    for seed in range(12):
        problem = Problem.draw(seed, 80, 1 + seed % 2, ("uniform", "clusters", "duplicates")[seed % 3], Matern52, 0.1)
        broken += int((bounds_of(problem, small, 6).lower > problem.exact()).sum())
    assert (broken > 0) == (mutation != "nothing")


def test_boxes_that_only_their_points_are_far_from_count_by_these(small: pytest.MonkeyPatch) -> None:
    """Without expansions of a tile, boxes apart from it are taken by their points; they and their error count."""
    small.setattr(run, "ATTEMPTS", 0)
    small.setattr(run, "SOURCE_ORDER", {1: 7, 2: 7})
    errors, plain = Distances.errors, run.Tile._split

    def none_of_tiles(self: Distances, centres: Any, halves: Any, others: Boxes, order: int) -> Any:
        made = errors(self, centres, halves, others, order)
        return np.full(len(made), np.inf) if order == 7 else made

    def without(change: dict[str, Any], taken: list[int]) -> Any:
        def split(self: Any, box: Boxes, tolerance: float) -> Any:
            made = plain(self, box, tolerance)
            taken.append(len(made.near))
            return replace(made, **change)

        return split

    small.setattr(Distances, "errors", none_of_tiles)
    for kind in ("uniform", "clusters", "duplicates"):
        problem, lower = Problem.draw(2, 80, 2, kind, Matern52, 0.1), []
        taken: list[int] = []
        for change in ({}, {"near_error": 0.0}, {"near": np.zeros(0, dtype=np.intp), "near_error": 0.0}):
            small.setattr(run.Tile, "_split", without(change, taken))
            lower.append(bounds_of(problem, small, 6).lower)
        assert sum(taken) > 0
        assert (lower[0] <= problem.exact()).all()
        assert (lower[0] <= lower[1]).all()
        assert (lower[0] < lower[1]).any()
        assert (lower[1] != lower[2]).any()


def test_more_samples_than_are_taken_one_by_one_have_rougher_expansions_or_no_lower_end(
    small: pytest.MonkeyPatch,
) -> None:
    small.setattr(run, "ATTEMPTS", 0)
    small.setattr(run, "FAR_SHARE", 1e-12)
    problem = Problem.draw(1, 80, 2, "uniform", Matern12, 0.1)
    exact, plain = problem.exact(), bounds_of(problem, small, 12)
    small.setattr(run, "MOST_BESIDE", {2: 40})
    rough = bounds_of(problem, small, 12)
    small.setattr(run, "LOOSENED", 0)
    none = bounds_of(problem, small, 12)
    for bounds in (plain, rough, none):
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper).all()
    assert (rough.lower < plain.lower).any()
    assert (none.lower == 0.0).any()
    assert (rough.upper == none.upper).all()


def test_samples_that_are_added_up_in_pieces_count_as_those_that_are_held(small: pytest.MonkeyPatch) -> None:
    """Weights from a few of them are no better than weights from all: lower ends may only fall."""
    small.setattr(run, "ATTEMPTS", 0)
    small.setattr(run, "FAR_SHARE", 1e-12)
    small.setattr(run, "PIECE", 16)
    fell = 0
    for seed in range(4):
        problem = Problem.draw(seed, 80, 2, ("uniform", "clusters")[seed % 2], Matern12, 0.1)
        small.setattr(run, "MOST_FITTED", 80)
        held = bounds_of(problem, small, 12)
        small.setattr(run, "MOST_FITTED", 7)
        added = bounds_of(problem, small, 12)
        assert (added.lower <= held.lower * (1.0 + 1e-6) + 1e-9).all()
        assert (added.lower <= problem.exact()).all()
        assert (added.upper == held.upper).all()
        fell += int((added.lower < held.lower).sum())
    assert fell > 0


def _without_error(far: Any) -> Any:
    return None if far is None else replace(far, error=0.0)


# ---------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("d", "n", "count"), [(1, 3000, 96), (2, 6000, 300), (3, 4000, 300)])
def test_memory_is_what_is_counted(
    d: int, n: int, count: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, T = rng.uniform(0.0, 1.0, (n, d)), rng.uniform(0.4, 0.5, (100, d))
    made = Problem(X, T, Matern12((30.0,) * d), np.full(n, 0.01)).samples(monkeypatch)
    assert 0.4 < made.nbytes / samples.held_bytes(n, d) <= 1.0
    some = run.Tile.of(made, T)
    some.ends(count, 0.05)
    tracemalloc.start()
    some.ends(count, 0.05)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.1 < peak / run.working_bytes(100, count, d) <= 1.0


def test_the_number_of_samples_keeps_within_the_memory() -> None:
    for memory in (100_000_000, 300_000_000):
        most = run.largest_count(memory, 100_000, 2, 2)
        sizes = [samples.held_bytes(100_000, 2) + 2 * run.working_bytes(256, each, 2) for each in (most, most + 1)]
        assert sizes[0] <= memory < sizes[1]
    with pytest.raises(MemoryBudgetError, match=r"take .* MB at least in a process of 16 threads; .* is 100 MB"):
        run.largest_count(100_000_000, 100_000, 2, 16)


# ------------------------------------------------------------------------------------------------------ expansions


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
def test_interpolation_errors_are_bounds(
    kernel: tuple[type[Any], dict[str, float]], d: int, rng: np.random.Generator
) -> None:
    tightest = np.inf
    for _ in range(60):
        made: Any = kernel[0](tuple(10.0 ** rng.uniform(-2.0, 1.0, d)), 1.7, **kernel[1])
        order, half = int(rng.integers(2, 8)), rng.uniform(0.01, 1.0, d)
        other = Boxes(rng.uniform(-4.0, 4.0, d), rng.uniform(0.0, 0.5, d))
        (bound,) = Distances.of(made).errors(np.zeros((1, d)), half, other, order)
        box = Boxes(np.zeros(d), half)
        x = np.concatenate([rng.uniform(-1.0, 1.0, (60, d)) * half, half * np.ones((1, d))])
        y = other.centre + rng.uniform(-1.0, 1.0, (40, d)) * other.half
        y = np.concatenate([y, other.centre - np.sign(other.centre) * other.half * np.ones((1, d))])
        off = np.abs(basis(x, box, order) @ made(nodes(box, order), y) - made(x, y)).max()
        assert off <= bound * (1.0 + 1e-9) + 1e-12
        if np.isfinite(bound):
            tightest = min(tightest, bound / max(off, 1e-300))
    assert tightest < 1e3


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_weighted_points_of_a_box_bound_sums_of_squares(
    kind: str, d: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For polynomials of the degree that counts, from the eigenvectors that come closest among others."""
    monkeypatch.setattr(samples, "LEAF", {1: 4, 2: 8, 3: 8})
    monkeypatch.setattr(samples, "ORDER", {1: 4, 2: 3, 3: 2})
    monkeypatch.setattr(samples, "SUMMED", 40)
    made = Problem.draw(2 * d, 150, d, kind, Matern12, 0.1).samples(monkeypatch)
    assert (made.child >= 0).any()
    for box in np.flatnonzero(made.child >= 0):
        rows = slice(made.start[box], made.stop[box])
        values = basis(made.points[rows], Boxes(made.box.centre[box], made.box.half[box]), made.order)
        exact = values.T @ (values / made.noise[rows, None])
        weights = made.weights[box]
        vectors = np.linalg.eigh(exact / np.sqrt(np.outer(weights, weights)))[1] / np.sqrt(weights)[:, None]
        h = np.concatenate([vectors, rng.normal(size=(len(weights), 8))], axis=1)
        assert (np.einsum("at,ab,bt->t", h, exact, h) <= (weights @ h**2) * (1.0 + 1e-9)).all()
        assert made.mass[box] >= (1.0 / made.noise[rows]).sum() * (1.0 - 1e-12)


# --------------------------------------------------------------------------------------------------------- kernels


def test_a_sum_of_kernels_of_different_features_is_bounded(small: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    kernel = Sum(
        (
            ActiveDimensions(Matern12((2.0,), 0.7), (0,), 3),
            ActiveDimensions(Matern52((0.5, 3.0), 0.4), (0, 2), 3),
            Constant(0.3, 3),
        )
    )
    X, T = rng.uniform(-1.0, 1.0, (40, 3)), rng.uniform(-1.2, 1.2, (8, 3))
    context = BlockContext(f"neighbours {next(_RUNS)}", ArrayInputs(X), kernel, 40)
    made = Samples.of(context, 0.01)
    assert made.distances.features == (0, 2)
    with np.errstate(all="ignore"):
        bounds = batch_bounds(made, T, 0.0, NeighbourOptions(0.02, True, 12))
    gp = ExactGP(X, T, [[mp.mpf(0)]] * 40, kernel, 0.01)
    for lower, upper, variance in zip(bounds.lower, bounds.upper, gp._solved[1], strict=True):
        assert mp.mpf(float(lower)) <= variance <= mp.mpf(float(upper))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Matern12((1.0,) * 4), "at most 3 features"),
        (Linear((1.0, 1.0)), "one scaled distance"),
        (Periodic((1.0, 1.0), (1.0, 1.0)), "periodic"),
    ],
)
def test_other_kernels_are_refused(kernel: Kernel, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Distances.of(kernel)
