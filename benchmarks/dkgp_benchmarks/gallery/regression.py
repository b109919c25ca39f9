"""Regressions of the gallery: six examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from dkgp_benchmarks.gallery.example import Example, FloatArray, Part, Room
from dkgp_benchmarks.gallery.pictures import bars, curves


def noisy_targets() -> Example:
    """Six samples of x sin x, without noise, and with noise of a known variance."""
    grid = np.linspace(0.0, 10.0, 1000)[:, None]
    truth = np.squeeze(grid * np.sin(grid))
    rng = np.random.RandomState(1)
    rows = rng.choice(np.arange(truth.size), size=6, replace=False)
    X, y = grid[rows], truth[rows]
    noisy = y + rng.normal(0.0, 0.75, 6)
    kernel = 1.0 * sk.RBF(1.0, (1e-2, 1e2))

    def solve(room: Room) -> list[Part]:
        clear = room.GaussianProcessRegressor(kernel, n_restarts_optimizer=9, random_state=0).fit(X, y)
        known = room.GaussianProcessRegressor(kernel, alpha=0.75**2, n_restarts_optimizer=9, random_state=0)
        known.fit(X, noisy)
        return [Part.regression("without noise", clear, grid), Part.regression("known noise", known, grid)]

    def draw(figure: Any, parts: list[Part]) -> None:
        for axes, part, targets in zip(figure.subplots(1, 2), parts, (y, noisy), strict=True):
            curves(axes, grid[:, 0], [part], (X[:, 0], targets), deviations=1.96)

    return Example("noisy-targets", "Noise of samples", 6, solve, draw, float(np.std(y)))


def noise_level() -> Example:
    """The level of noise, from two starting points: all is noise, or little is."""
    rng = np.random.RandomState(0)
    X = rng.uniform(0.0, 5.0, (20, 1))
    y = 0.5 * np.sin(3.0 * X[:, 0]) + rng.normal(0.0, 0.5, 20)
    grid = np.linspace(0.0, 5.0, 100)[:, None]
    starts = {"from a long scale": (100.0, 1.0), "from a short scale": (1.0, 1e-5)}

    def solve(room: Room) -> list[Part]:
        parts = []
        for name, (scale, noise) in starts.items():
            kernel = 1.0 * sk.RBF(scale, (1e-2, 1e3)) + sk.WhiteKernel(noise, (1e-10, 1e1))
            model = room.GaussianProcessRegressor(kernel, alpha=0.0).fit(X, y)
            parts.append(Part.regression(name, model, grid))
        return parts

    def draw(figure: Any, parts: list[Part]) -> None:
        curves(figure.subplots(), grid[:, 0], parts, (X[:, 0], y), deviations=1.0)

    return Example("noise-level", "Noise that is estimated", 20, solve, draw, float(np.std(y)))


def prior_and_posterior() -> Example:
    """Five kernels before and after five samples."""
    rng = np.random.RandomState(4)
    X = rng.uniform(0.0, 5.0, 5)[:, None]
    y = np.sin((X[:, 0] - 2.5) ** 2)
    grid = np.linspace(0.0, 5.0, 100)[:, None]
    kernels = {
        "RBF": 1.0 * sk.RBF(1.0, (1e-1, 10.0)),
        "rational quadratic": 1.0 * sk.RationalQuadratic(0.1, 1.0, alpha_bounds=(1e-5, 1e15)),
        "periodic": 1.0 * sk.ExpSineSquared(1.0, 3.0, (0.1, 10.0), (1.0, 10.0)),
        "squared dot product": sk.ConstantKernel(0.1, (0.01, 10.0)) * sk.DotProduct(1.0, (0.1, 10.0)) ** 2,
        "Matern 3/2": 1.0 * sk.Matern(1.0, (1e-1, 10.0), nu=1.5),
    }

    def solve(room: Room) -> list[Part]:
        parts = []
        for name, kernel in kernels.items():
            # A quadratic of three coefficients through five samples: what is left is of `alpha`'s making.
            alpha = 1e-4 if "dot" in name else 1e-10
            model = room.GaussianProcessRegressor(kernel, alpha=alpha, random_state=0)
            parts.append(Part.regression(f"{name}, prior", model, grid))
            parts.append(Part.regression(name, model.fit(X, y), grid))
        return parts

    def draw(figure: Any, parts: list[Part]) -> None:
        for axes, first in zip(figure.subplots(5, 1, sharex=True), range(0, 10, 2), strict=True):
            curves(axes, grid[:, 0], parts[first : first + 2], (X[:, 0], y), deviations=1.0)
            axes.set_ylim(-3.0, 3.0)

    return Example("prior-posterior", "Prior and posterior of five kernels", 5, solve, draw, float(np.std(y)), 11.0)


def kernel_ridge() -> Example:
    """A periodic function under strong noise; a picture with kernel ridge regression, which is of neither side."""
    rng = np.random.RandomState(0)
    X = 15.0 * rng.rand(100, 1)
    y = np.sin(X).ravel() + 3.0 * (0.5 - rng.rand(100))
    grid = np.linspace(0.0, 20.0, 1000)[:, None]

    def solve(room: Room) -> list[Part]:
        kernel = sk.ExpSineSquared(1.0, 5.0, periodicity_bounds=(1e-2, 1e1)) + sk.WhiteKernel(1e-1)
        return [Part.regression("Gaussian process", room.GaussianProcessRegressor(kernel).fit(X, y), grid)]

    def draw(figure: Any, parts: list[Part]) -> None:
        from sklearn.kernel_ridge import KernelRidge
        from sklearn.model_selection import GridSearchCV

        choices = {
            "alpha": [1.0, 0.1, 0.01],
            "kernel": [sk.ExpSineSquared(l, p) for l in (0.3, 1.0, 3.0) for p in (3.0, 2.0 * np.pi, 10.0)],
        }
        ridge = GridSearchCV(KernelRidge(), choices, cv=5).fit(X, y)
        axes = figure.subplots()
        axes.plot(grid, ridge.predict(grid), color="grey", lw=1.0, label="kernel ridge")
        curves(axes, grid[:, 0], parts, (X[:, 0], y), deviations=1.0)

    return Example("kernel-ridge", "Beside kernel ridge regression", 100, solve, draw, float(np.std(y)))


def co2(months: tuple[FloatArray, FloatArray] | None = None) -> Example:
    """Monthly means of CO2 on Mauna Loa, or made ones of their form, by a kernel of eleven numbers; 20 years ahead.

    `months` are years (n,) and ppm (n,); by default they are made: a rise, a season that changes, weather and noise.
    """
    t, ppm = made_months() if months is None else months
    X, centre = t[:, None], float(ppm.mean())
    grid = np.linspace(1958.0, 2021.0, 1000)[:, None]
    trend = 50.0**2 * sk.RBF(50.0)
    season = 2.0**2 * sk.RBF(100.0) * sk.ExpSineSquared(1.0, 1.0, periodicity_bounds="fixed")
    irregular = 0.5**2 * sk.RationalQuadratic(1.0, 1.0)
    noise = 0.1**2 * sk.RBF(0.1) + sk.WhiteKernel(0.1**2, (1e-5, 1e5))
    kernel = trend + season + irregular + noise

    def solve(room: Room) -> list[Part]:
        model = room.GaussianProcessRegressor(clone(kernel)).fit(X, ppm - centre)
        return [Part.regression("eleven numbers", model, grid)]

    def draw(figure: Any, parts: list[Part]) -> None:
        curves(figure.subplots(), grid[:, 0], parts, (t, ppm - centre), deviations=1.0)

    return Example("co2", "CO2 on Mauna Loa", len(t), solve, draw, float(np.std(ppm)))


def made_months(n: int = 521) -> tuple[FloatArray, FloatArray]:
    """Years (n,) from March 1958 on and ppm (n,) in the manner of Mauna Loa's."""
    rng = np.random.RandomState(7)
    t = 1958.25 + np.arange(n) / 12.0
    years = t - 1958.0
    rise = 315.0 + 0.75 * years + 0.012 * years**2
    season = (2.6 + 0.01 * years) * np.sin(2.0 * np.pi * t) + 0.8 * np.sin(4.0 * np.pi * t + 0.6)
    slow = np.convolve(rng.normal(size=n + 24), np.hanning(25), mode="valid") / 6.0
    # Weather that lasts some months, beside what is measured wrongly: as one, neither could be told from the other.
    weather = np.convolve(rng.normal(size=n + 4), (0.1, 0.6, 1.0, 0.6, 0.1), mode="valid") / 6.0
    return t, rise + season + slow + weather + rng.normal(0.0, 0.2, n)


class SequenceKernel(sk.GenericKernelMixin, sk.Kernel):  # type: ignore[misc]  # scikit-learn ships no types
    """k(s, t): over all pairs of a letter of s and one of t, 1 where they agree and a parameter where not."""

    def __init__(self, other: float = 0.5, other_bounds: tuple[float, float] = (1e-5, 1.0)) -> None:
        self.other, self.other_bounds = other, other_bounds

    @property
    def hyperparameter_other(self) -> Any:
        """The parameter, for scikit-learn's search."""
        return sk.Hyperparameter("other", "numeric", self.other_bounds)

    def __call__(self, X: Sequence[str], Y: Sequence[str] | None = None, eval_gradient: bool = False) -> Any:
        """The matrix, and its derivative by the parameter's logarithm."""
        same = np.array([[sum(a == b for a in s for b in t) for t in (X if Y is None else Y)] for s in X], float)
        pairs = np.array([[len(s) * len(t) for t in (X if Y is None else Y)] for s in X], float)
        matrix = same + self.other * (pairs - same)
        return (matrix, (self.other * (pairs - same))[:, :, None]) if eval_gradient else matrix

    def diag(self, X: Sequence[str]) -> FloatArray:
        """k(s, s)."""
        return np.array([self([s])[0, 0] for s in X])

    def is_stationary(self) -> bool:
        """It is not."""
        return False


def sequences() -> Example:
    """Strings: a regression of six, and a classifier of six more, by a kernel that counts pairs of letters."""
    words = np.array(["AGCT", "AGC", "AACT", "TAA", "AAA", "GAACA"])
    values = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    known = [0, 1, 3, 4]
    labelled = np.array(["AGCT", "CGA", "TAAC", "TCG", "CTTT", "TGCT"])
    has_a = np.array([True, True, True, False, False, False])
    asked = np.array(["AAA", "ATAG", "CTC", "CT", "C"])

    def solve(room: Room) -> list[Part]:
        regression = room.GaussianProcessRegressor(SequenceKernel()).fit(words[known], values[known])
        classifier = room.GaussianProcessClassifier(SequenceKernel()).fit(labelled, has_a)
        return [
            Part.regression("regression", regression, words),
            Part.classification("has an A", classifier, asked),
        ]

    def draw(figure: Any, parts: list[Part]) -> None:
        left, right = figure.subplots(1, 2)
        assert parts[0].mean is not None
        assert parts[1].probability is not None
        bars(left, words.tolist(), parts[0].mean, {row: values[row] for row in known})
        bars(right, asked.tolist(), parts[1].probability[:, 1], {})

    return Example("sequences", "Strings, by a kernel of one's own", 10, solve, draw, float(np.std(values)))
