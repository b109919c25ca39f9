"""Tables of several kinds, some made for Gaussian processes and some against them, and users' own files beside them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.data.sources.synthetic import friedman1_function
from dkgp.errors import InputError
from dkgp_benchmarks.library import Library

FloatArray = NDArray[np.float64]
Drawn = tuple[FloatArray, FloatArray]

# Of the table of categories: columns and levels of each. Of steps: boxes, and sides that each is bounded on.
COLUMNS, LEVELS = 5, 12
BOXES, SIDES = 40, 3
# Of the rough surface: waves, and their shortest period as a share of the square's side.
WAVES, SHORTEST = 400, 0.02


def smooth(n: int, rng: np.random.Generator) -> Drawn:
    """Draw from Friedman's first problem: ten features, five of which count, noise of variance one."""
    X = rng.random((n, 10))
    return X, friedman1_function(X) + rng.standard_normal(n)


def many_features(n: int, rng: np.random.Generator) -> Drawn:
    """Draw the same among sixty features."""
    X = rng.random((n, 60))
    return X, friedman1_function(X) + rng.standard_normal(n)


def outliers(n: int, rng: np.random.Generator) -> Drawn:
    """Draw the same with noise of Student's t with two degrees of freedom."""
    X = rng.random((n, 10))
    return X, friedman1_function(X) + rng.standard_t(2.0, n)


def surface(n: int, rng: np.random.Generator) -> Drawn:
    """Draw a rough surface over a square, heights of noise .05: waves of periods down to a fiftieth of its side."""
    fixed = np.random.default_rng(2)
    periods = SHORTEST ** fixed.random(WAVES)
    angles, phases = 2.0 * np.pi * fixed.random((2, WAVES))
    directions = 2.0 * np.pi / periods * np.stack([np.cos(angles), np.sin(angles)])
    X = rng.random((n, 2))
    heights = np.cos(X @ directions + phases) @ (periods * np.sqrt(2.0 / WAVES)) * 4.0
    return X, heights + 0.05 * rng.standard_normal(n)


def steps(n: int, rng: np.random.Generator) -> Drawn:
    """Draw a sum of boxes, what trees are made of: ten features, noise of variance .25."""
    fixed = np.random.default_rng(3)
    X, y = rng.random((n, 10)), 0.5 * rng.standard_normal(n)
    for _ in range(BOXES):
        sides, cuts = fixed.choice(10, SIDES, replace=False), fixed.uniform(0.2, 0.6, SIDES)
        y += 2.0 * fixed.standard_normal() * np.all(X[:, sides] > cuts, axis=1)
    return X, y


def categories(n: int, rng: np.random.Generator) -> Drawn:
    """Draw five columns of twelve levels each, one-hot, and three numbers: effects of levels, of pairs, and mixed."""
    fixed = np.random.default_rng(4)
    codes = rng.integers(0, LEVELS, (n, COLUMNS))
    numbers = rng.standard_normal((n, 3))
    y = fixed.standard_normal((COLUMNS, LEVELS))[np.arange(COLUMNS), codes].sum(axis=1)
    y += fixed.standard_normal((LEVELS, LEVELS))[codes[:, 0], codes[:, 1]]
    y += fixed.standard_normal(LEVELS)[codes[:, 2]] * numbers[:, 0] + np.abs(numbers[:, 1])
    one_hot = (codes[:, :, None] == np.arange(LEVELS)).reshape(n, -1)
    return np.column_stack([numbers, one_hot]), y + 0.5 * rng.standard_normal(n)


@dataclass(frozen=True)
class TableProblem:
    """A problem that is drawn: training and test samples, and in a few words what kind it is."""

    name: str
    kind: str
    n: int
    draw: Callable[[int, np.random.Generator], Drawn]


PROBLEMS: dict[str, TableProblem] = {
    problem.name: problem
    for problem in (
        TableProblem("few", "smooth, few samples", 300, smooth),
        TableProblem("smooth", "smooth, noisy", 10_000, smooth),
        TableProblem("many-features", "5 of 60 features count", 5000, many_features),
        TableProblem("surface", "a rough surface", 10_000, surface),
        TableProblem("outliers", "noise of heavy tails", 5000, outliers),
        TableProblem("steps", "steps, as of trees", 10_000, steps),
        TableProblem("categories", "categories, one-hot", 10_000, categories),
    )
}


@dataclass(frozen=True)
class TableSamples:
    """Training and test samples of a problem: (n, d), (n,), (t, d), (t,), in the table's own units."""

    kind: str
    inputs: FloatArray
    targets: FloatArray
    test_inputs: FloatArray
    test_targets: FloatArray

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Content of a file of both: X, y and test_mask."""
        n, t = len(self.inputs), len(self.test_inputs)
        return {
            "X": np.concatenate([self.inputs, self.test_inputs]),
            "y": np.concatenate([self.targets, self.test_targets]),
            "test_mask": np.arange(n + t) >= n,
        }


def samples_of(name: str, library: Library, n: int | None, n_test: int, seed: int) -> TableSamples:
    """Draw a problem, or rows of a file of numbers: of its own test samples where it has a `test_mask`.

    A file with several masks, such as the folds of a cross-validation, is split by one of them; the seed chooses it.

    Parameters
    ----------
    name
        Of `PROBLEMS`, or of a file of the library.
    n, n_test
        Samples at most; by default the problem's own number, or all of a file's.

    Raises
    ------
    InputError
        A file with several targets, or of too few samples.
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    problem = PROBLEMS.get(name)
    if problem is not None:
        n = n or problem.n
        X, y = problem.draw(n + n_test, rng)
        return TableSamples(problem.kind, X[:n], y[:n], X[n:], y[n:])
    with np.load(library.path(name), allow_pickle=False) as archive:
        X, y = archive["X"].astype(np.float64), archive["y"].astype(np.float64)
        mask = archive["test_mask"] if "test_mask" in archive.files else None
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or len(y) < 50:
        raise InputError(f"'{name}' has targets of shape {y.shape}; this comparison needs one, of 50 samples or more")
    if mask is not None:
        masks = np.asarray(mask, dtype=bool).reshape(len(y), -1)
        mask = masks[:, seed % masks.shape[1]]
        test, train = rng.permutation(np.flatnonzero(mask)), rng.permutation(np.flatnonzero(~mask))
    else:
        order = rng.permutation(len(y))
        held_out = min(n_test, len(y) // 4)
        test, train = order[:held_out], order[held_out:]
    test, train = test[:n_test], train[:n]
    return TableSamples("", X[train], y[train], X[test], y[test])
