"""Problems of many classes, or of a rare one.

Three are generated, of the sizes of three of UCI's: "letter-like" of 26 classes, each of some clusters on a curved
sheet of whole numbers from 0 to 15, "htru2-like" of two, of which one has a twelfth of the samples and half of the
features are skewed, and "covtype-like" of two with an uneven boundary in ten smooth features and 44 that are 0 or 1,
which "covtype-large" has more samples of. Beside these USPS' ten digits and adult's own split where their files are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dkgp.models.classification.labels import Labels

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Letter-like: classes, clusters of each, dimensions of the sheet, features; spreads of classes, clusters and noise.
LETTERS, CLUSTERS, SHEET, LETTER_FEATURES = 26, 6, 8, 16
AMONG_CLUSTERS, WITHIN, OFF_SHEET = 0.9, 0.192, 0.072
RARE_SHARE, PULSAR_FEATURES = 0.0916, 8
# Covtype-like: features that vary smoothly, areas, soils; waves of the boundary, how fast they are, and noise.
SMOOTH, AREAS, SOILS = 10, 4, 40
WAVES, FREQUENCY, BLUR = 60, 0.2, 0.25


def letter_like(n: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Draw n samples of 26 classes in 16 whole numbers; a tuned support vector machine errs on some 2.5 %."""
    fixed = np.random.default_rng(26)
    sheet = fixed.standard_normal((SHEET, LETTER_FEATURES)) / np.sqrt(SHEET)
    centres = fixed.standard_normal((LETTERS, 1, SHEET))
    centres = centres + AMONG_CLUSTERS * fixed.standard_normal((LETTERS, CLUSTERS, SHEET))
    shapes = WITHIN * fixed.standard_normal((LETTERS, CLUSTERS, SHEET, SHEET))
    codes, cluster = rng.integers(0, LETTERS, n), rng.integers(0, CLUSTERS, n)
    drawn = np.einsum("nij,nj->ni", shapes[codes, cluster], rng.standard_normal((n, SHEET)))
    values = (centres[codes, cluster] + drawn) @ sheet + OFF_SHEET * rng.standard_normal((n, LETTER_FEATURES))
    return np.clip(np.round(7.5 + 3.0 * values), 0.0, 15.0), codes


def htru2_like(n: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Draw n samples of a common class and one that has 9 % of them, in eight features."""
    fixed = np.random.default_rng(9)
    codes = (rng.random(n) < RARE_SHARE).astype(np.int64)
    mixing = 0.35 * fixed.standard_normal((2, PULSAR_FEATURES, PULSAR_FEATURES)) + np.eye(PULSAR_FEATURES)
    towards = 1.35 * np.sign(fixed.standard_normal(PULSAR_FEATURES))
    drawn = rng.standard_normal((n, PULSAR_FEATURES))
    values = np.where(codes[:, None] == 1, 1.3 * drawn @ mixing[1] + towards, drawn @ mixing[0])
    values[:, :4] = np.exp(0.45 * values[:, :4])
    return values, codes


def covtype_like(n: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Draw n samples of two classes in ten smooth features and two that are coded by 4 and by 40 zeros and ones."""
    fixed = np.random.default_rng(54)
    smooth = rng.standard_normal((n, SMOOTH)) @ (np.eye(SMOOTH) + 0.3 * fixed.standard_normal((SMOOTH, SMOOTH)))
    towards = 1.5 * fixed.standard_normal((SMOOTH, AREAS + SOILS))
    noise = rng.gumbel(size=(n, AREAS + SOILS))
    drawn = smooth @ towards / np.sqrt(SMOOTH) + noise
    areas, soils = np.argmax(drawn[:, :AREAS], axis=1), np.argmax(drawn[:, AREAS:], axis=1)
    directions = FREQUENCY * fixed.standard_normal((SMOOTH, WAVES))
    waves = np.sin(smooth @ directions + fixed.uniform(0.0, 2.0 * np.pi, WAVES)) @ fixed.standard_normal(WAVES)
    steps = 0.5 * fixed.standard_normal(AREAS)[areas] + 0.5 * fixed.standard_normal(SOILS)[soils]
    values = 2.0 * waves / np.sqrt(WAVES) + steps + BLUR * rng.standard_normal(n)
    inputs = np.concatenate([smooth, np.eye(AREAS)[areas], np.eye(SOILS)[soils]], axis=1)
    return inputs, (values > 0.0).astype(np.int64)


@dataclass(frozen=True)
class ManyProblem:
    """Training and test samples of a problem; `draw` makes it, or a `file` has it with a split of its own.

    One that is `large` is run where it is named. Methods that would not end in hours are `beyond` it.
    """

    name: str
    n: int
    n_test: int
    draw: Callable[[int, np.random.Generator], tuple[FloatArray, IntArray]] | None = None
    file: str | None = None
    large: bool = False
    beyond: tuple[str, ...] = ()


MANY: dict[str, ManyProblem] = {
    problem.name: problem
    for problem in (
        ManyProblem("letter-like", 16_000, 4_000, letter_like),
        ManyProblem("htru2-like", 17_000, 9_000, htru2_like),
        ManyProblem("covtype-like", 10_000, 10_000, covtype_like),
        ManyProblem("covtype-large", 460_000, 100_000, covtype_like, large=True, beyond=("svm with its grid",)),
        ManyProblem("usps", 7291, 2007, file="usps"),
        ManyProblem("adult-official", 30_162, 15_060, file="adult", large=True),
    )
}


@dataclass(frozen=True)
class Classes:
    """Inputs standardised by the training samples, (n, d) and (n_test, d), and their classes."""

    inputs: FloatArray
    labels: Labels
    test_inputs: FloatArray
    test_codes: IntArray


def many_problems(folder: Path | None) -> list[str]:
    """Return the names of the problems whose data are present."""
    return [
        name
        for name, problem in MANY.items()
        if problem.file is None or (folder is not None and (folder / f"{problem.file}.npz").is_file())
    ]


def classes_of(problem: ManyProblem, folder: Path | None, seed: int) -> Classes:
    """Draw or read a problem."""
    if problem.draw is not None:
        rng = np.random.default_rng([seed, zlib.crc32(problem.name.encode())])
        X, codes = problem.draw(problem.n + problem.n_test, rng)
        train = np.arange(len(X)) < problem.n
    else:
        assert folder is not None
        with np.load(folder / f"{problem.file}.npz", allow_pickle=False) as archive:
            X, codes = archive["X"].astype(np.float64), np.unique(archive["y"], return_inverse=True)[1]
            train = ~archive["test_mask"]
    mean, std = X[train].mean(axis=0), X[train].std(axis=0)
    X = (X - mean) / np.where(std > 0.0, std, 1.0)
    names = tuple(f"{code:02d}" for code in range(codes.max() + 1))
    return Classes(X[train], Labels(names, codes[train].astype(np.int64)), X[~train], codes[~train])
