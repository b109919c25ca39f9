"""Hostile problems, drawn at random, against the exact model in hundreds of digits: what is said holds, or is refused.

Run by itself it attacks for as long as is wished: `python -m tests.estimators.attack SEED SECONDS`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np

from dkgp import GPRegressor, SparseGPRegressor
from dkgp.errors import DkgpError
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.kernels import (
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    SquaredExponential,
)
from tests.models.exact_gp import mp, numbers
from tests.models.sparse.judge import Problem

# Amplitudes over noise of 1e312, squared, and digits to tell them apart by.
DIGITS = 700


def attacked(rng: np.random.Generator) -> tuple[str, str]:
    """Draw a problem, fit and predict, warnings as errors; return what it was, and how it ended."""
    drawn = _Drawn(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)  # of solves that stop short, whose bounds hold all the same
        try:
            model = drawn.estimator.fit(drawn.X, drawn.y)
        except DkgpError as error:
            return str(drawn), f"refused: {error}"
        try:
            mean, bounds = model.predict(drawn.T, return_bounds=True, latent=True)
        except DkgpError as error:
            return str(drawn), f"refused to predict: {error}"
    return str(drawn), _judged(model, drawn, mean, bounds)


class _Drawn:
    def __init__(self, rng: np.random.Generator) -> None:
        n, d = int(rng.integers(2, 7)), int(rng.integers(1, 3))
        X, y, T = rng.normal(size=(n, d)), rng.normal(size=n), 2.0 * rng.normal(size=(3, d))
        T[0] = X[0]
        self.words = []
        for change in rng.choice(["equal rows", "twins", "columns", "far", "offset", "zeros", "none", "none"], size=2):
            if change == "equal rows":
                X[:] = X[0]
            elif change == "twins":
                X[n // 2 :] = X[0]
            elif change == "columns":
                X[:, -1], T[:, -1] = X[:, 0], T[:, 0]
            elif change == "far":
                X[-1] *= 10.0 ** rng.uniform(0.0, 14.0)
                T[-1] = rng.normal(size=d) * 10.0 ** rng.uniform(0.0, 250.0)
            elif change == "offset":
                X, T = X + 1e9, T + 1e9
            elif change == "zeros":
                y[1:] = 0.0  # all of them would be refused
            self.words.append(str(change))
        scales = [10.0 ** (rng.uniform(-300.0, 300.0) if rng.random() < 0.2 else rng.uniform(-8.0, 8.0)) for _ in "Xy"]
        with np.errstate(over="ignore"):
            self.X, self.T, self.y = (np.clip(a, -1e308, 1e308) for a in (X * scales[0], T * scales[0], y * scales[1]))
        self.scales = scales
        size = 10.0 ** (rng.uniform(-150.0, 150.0) if rng.random() < 0.2 else rng.uniform(-6.0, 6.0))
        width = 10.0 ** (rng.uniform(-150.0, 150.0) if rng.random() < 0.2 else rng.uniform(-6.0, 4.0))
        self.kernel: Kernel = {
            0: lambda: SquaredExponential((width,), variance=size, n_features=d),
            1: lambda: Matern12((width,), variance=size, n_features=d),
            2: lambda: Matern32((width,), variance=size, n_features=d),
            3: lambda: Matern52((width,), variance=size, n_features=d),
            4: lambda: RationalQuadratic((width,), alpha=float(10.0 ** rng.uniform(-3.0, 3.0)), n_features=d),
            5: lambda: Periodic((1.0,), period=(width,), variance=size, n_features=d),
            6: lambda: Linear(weight=(width,), variance=size, n_features=d),
            7: lambda: Polynomial(weight=(min(width, 1e50),), degree=3, n_features=d),
            8: lambda: (
                SquaredExponential((width,), n_features=d) * Linear(n_features=d) + Matern32((1.0,), n_features=d)
            ),
        }[int(rng.integers(9))]()
        self.noise = float(10.0 ** rng.uniform(-12.0, 12.0))
        options: dict[str, Any] = {"noise_variance": self.noise}
        self.sparse = bool(rng.random() < 0.4)
        self.estimator: Any = (
            SparseGPRegressor(self.kernel, basis_size=int(rng.integers(1, n + 1)), **options)
            if self.sparse
            else GPRegressor(self.kernel, **options)
        )

    def __str__(self) -> str:
        return f"{self.words} X, y of {self.scales} {self.kernel!r} noise {self.noise:.3g} sparse {self.sparse}"


def _judged(model: Any, drawn: _Drawn, mean: np.ndarray, bounds: Any) -> str:
    """Words on the first statement that is untrue, or "holds"."""
    parts = (mean, bounds.mean_error, bounds.variance_lower, bounds.variance_upper)
    if any(np.isnan(part).any() for part in parts):
        return "BROKEN: not a number"
    to = model._fitted.record.standardisation
    X, T = to.inputs(drawn.X), to.inputs(drawn.T)
    with mp.workdps(DIGITS):
        offset, scale = mp.mpf(float(to.target_mean[0])), mp.mpf(float(to.target_std[0]))
        problem = Problem(drawn.kernel, drawn.noise, X, drawn.y[:, None], T)
        # As the stored map has them, unrounded.
        problem.__dict__["targets"] = [[(value - offset) / scale for (value,) in numbers(drawn.y[:, None])]]
        for row, ((exact,), variance) in enumerate(problem.exact(T)):
            away = abs(mp.mpf(float(mean[row])) - (exact * scale + offset))
            if not away <= mp.mpf(float(bounds.mean_error[row])):
                return f"BROKEN: mean off by {mp.nstr(away)}, bound {bounds.mean_error[row]}"
            raw = variance * scale**2
            ends = bounds.variance_lower[row], bounds.variance_upper[row]
            slack = abs(raw) * mp.mpf(10) ** (20 - DIGITS)
            if not mp.mpf(float(ends[0])) <= raw + slack or not raw - slack <= mp.mpf(float(ends[1])):
                return f"BROKEN: variance {mp.nstr(raw)} is not in {ends}"
    return "holds"


def main(seed: int, seconds: float) -> None:
    """Attack, and print what broke."""
    start, ended = time.perf_counter(), Counter[str]()
    while time.perf_counter() - start < seconds:
        try:
            words, end = attacked(np.random.default_rng(seed))
        except Exception as error:  # what is raw is found
            words, end = str(seed), f"RAW: {type(error).__name__}: {error}"
        if end.startswith(("BROKEN", "RAW")):
            print(seed, end, words, flush=True)
        ended[end.split(":")[0]] += 1
        seed += 1
    print(dict(ended))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
