"""Classifiers of the gallery: four examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process import kernels as sk

from dkgp_benchmarks.gallery.example import Example, Part, Room
from dkgp_benchmarks.gallery.pictures import plane, probabilities, square


def threshold() -> Example:
    """Labels that change at a threshold, by a kernel as it is set and by the likeliest one."""
    rng = np.random.RandomState(0)
    X = rng.uniform(0.0, 5.0, 100)[:50, None]
    y = np.array(X[:, 0] > 2.5, dtype=int)
    grid = np.linspace(0.0, 5.0, 100)[:, None]

    def solve(room: Room) -> list[Part]:
        kernel = 1.0 * sk.RBF(1.0)
        as_set = room.GaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
        likeliest = room.GaussianProcessClassifier(kernel).fit(X, y)
        return [Part.classification("as set", as_set, grid), Part.classification("likeliest", likeliest, grid)]

    def draw(figure: Any, parts: list[Part]) -> None:
        probabilities(figure.subplots(), grid[:, 0], parts, (X[:, 0], y))

    return Example("threshold", "Probabilities at a threshold", 50, solve, draw)


def iris() -> Example:
    """Three kinds of iris by two features, with one length scale and with one for each."""
    from sklearn.datasets import load_iris

    loaded = load_iris()
    X, y = loaded.data[:, :2], loaded.target.astype(int)
    side, points = square(1.0, 9.0, 60)

    def solve(room: Room) -> list[Part]:
        return [
            Part.classification(name, room.GaussianProcessClassifier(1.0 * sk.RBF(scales)).fit(X, y), points)
            for name, scales in (("one scale", [1.0]), ("a scale a feature", [1.0, 1.0]))
        ]

    def draw(figure: Any, parts: list[Part]) -> None:
        for axes, part in zip(figure.subplots(1, 2), parts, strict=True):
            plane(axes, side, part, X, y, ())

    return Example("iris", "Iris", len(y), solve, draw)


def equal_probabilities() -> Example:
    """Lines of equal probability, of eight samples and a quadratic kernel."""
    X = np.array(
        [
            [-4.61611719, -6.00099547],
            [4.10469096, 5.32782448],
            [0.0, -0.5],
            [-6.17289014, -4.6984743],
            [1.3109306, -6.93271427],
            [-5.03823144, 3.10584743],
            [-2.87600388, 6.74310541],
            [5.21301203, 4.26386883],
        ]
    )
    y = np.array(5.0 - X[:, 1] - 0.5 * X[:, 0] ** 2 > 0.0, dtype=int)
    side, points = square(-8.0, 8.0, 50)

    def solve(room: Room) -> list[Part]:
        kernel = sk.ConstantKernel(0.1, (1e-5, np.inf)) * sk.DotProduct(0.1) ** 2
        return [Part.classification("quadratic", room.GaussianProcessClassifier(kernel).fit(X, y), points)]

    def draw(figure: Any, parts: list[Part]) -> None:
        plane(figure.subplots(), side, parts[0], X, y, (0.334, 0.5, 0.666))

    return Example("equal-probabilities", "Lines of equal probability", len(y), solve, draw)


def exclusive_or() -> Example:
    """The exclusive or of two signs, by a stationary kernel and by one that is not."""
    rng = np.random.RandomState(0)
    X = rng.randn(200, 2)
    y = np.logical_xor(X[:, 0] > 0.0, X[:, 1] > 0.0)
    side, points = square(-3.0, 3.0, 50)

    def solve(room: Room) -> list[Part]:
        kernels = {"RBF": 1.0 * sk.RBF(1.15), "squared dot product": 1.0 * sk.DotProduct(1.0) ** 2}
        return [
            Part.classification(name, room.GaussianProcessClassifier(kernel, warm_start=True).fit(X, y), points)
            for name, kernel in kernels.items()
        ]

    def draw(figure: Any, parts: list[Part]) -> None:
        for axes, part in zip(figure.subplots(1, 2), parts, strict=True):
            plane(axes, side, part, X, y, (0.5,))

    return Example("exclusive-or", "Exclusive or", len(y), solve, draw)
