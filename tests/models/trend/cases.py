"""Small problems with a mean that has coefficients, by the public path, beside dense algebra and 50 digits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.data import (
    ModelRecord,
    memory_dataset,
)
from dkgp.kernels import Kernel
from dkgp.models import RunContext
from dkgp.models.exact import TrainedModel, train
from dkgp.models.mean_option import MeanValue
from dkgp.models.prediction.gradients import MeanGradients
from dkgp.models.prediction.posterior import Columns, forget, standardised
from dkgp.models.trend import Drift
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError
from dkgp.solvers import ConjugateGradient, GradientInfNorm, MaxPasses, Solver
from tests.models.exact_gp import ExactGP, ExactGradients, mp, numbers
from tests.models.posteriors import exact_posterior

_RUNS = itertools.count()


@dataclass(eq=False)
class Case:
    """Raw samples, test inputs, kernel and noise of standardised ones, and how far the solve goes."""

    X: np.ndarray
    Y: np.ndarray
    T: np.ndarray
    kernel: Kernel
    noise_variance: float
    mean: MeanValue = "linear"
    solver: Solver | None = None
    tolerance: float = 1e-4
    sample_noise: np.ndarray | None = None
    product_error: float | None = None
    covariates: tuple[str, ...] = ()  # of the columns of X and T, x0, x1, ...
    share: float | None = None  # of the solution that the solve is handed, to stop where it starts

    @cached_property
    def dataset(self) -> Any:
        return memory_dataset(self.X, self.Y).with_covariates(self.covariates)

    @cached_property
    def drift(self) -> Drift:
        return Drift.parse(self.mean).over(self.dataset)

    @cached_property
    def trained(self) -> TrainedModel:
        executor = LocalExecutor(1)
        trained = train(
            self.dataset,
            self.kernel,
            self.noise_variance,
            RunContext(executor, product_error=ProductError.of(self.product_error)),
            sample_noise=self.sample_noise,
            mean=self.mean,
            solver=self.solver or ConjugateGradient(precision="double"),
            stopping=GradientInfNorm(self.tolerance) | MaxPasses(300.0),
            initial=None if self.share is None else self.share * self.solution(),
        )
        executor.close()
        return trained

    @cached_property
    def model(self) -> ModelRecord:
        return self.trained.model(self.dataset).resident()

    def predicted(self, **settings: Any) -> Columns:
        version = f"trend-{next(_RUNS)}"
        try:
            return exact_posterior(self.model, version, VarianceSettings(latent=True, **settings), n_test=len(self.T))(
                self.T
            )
        finally:
            forget(version)

    @cached_property
    def tests(self) -> np.ndarray:
        return standardised(self.model, self.T)

    def solution(self) -> np.ndarray:
        """Kbar^-1 [y, H]."""
        x = self.dataset.inputs(0, len(self.X))
        right = np.column_stack([self.dataset.all_targets(), self.drift.of(self.dataset)])
        return np.asarray(np.linalg.solve(self.kernel(x, x) + self.noise_variance * np.eye(len(x)), right))

    def dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Means (t, p) and latent variances (t,), standardised: equations 2.41 and 2.42 as they are printed."""
        x, y, t = self.dataset.inputs(0, len(self.X)), self.drift.about(self.dataset).all_targets(), self.tests
        H, H_star = self.drift.of(self.dataset).T, self.drift.columns_at(t).T
        t = self.drift.features(t)
        K_y = self.kernel(x, x) + np.diag(np.broadcast_to(self.model.noise, len(x)))
        K_star = self.kernel(x, t)
        inverse = np.linalg.inv(K_y)
        A = H @ inverse @ H.T
        beta = np.linalg.solve(A, H @ inverse @ y)
        R = H_star - H @ inverse @ K_star
        mean = K_star.T @ inverse @ y + R.T @ beta
        centred = self.kernel.diagonal(t) - np.einsum("ij,ij->j", K_star, inverse @ K_star)
        return mean, centred + np.einsum("ij,ij->j", R, np.linalg.solve(A, R))

    @cached_property
    def solved(self) -> tuple[ExactGP, Any, list[Any]]:
        """In 50 digits: the centred model of [y, H], G, and beta of each target, as standardisation maps targets."""
        to, p = self.model.standardisation, self.dataset.n_targets
        rows = [
            [
                (mp.mpf(float(value)) - mp.mpf(float(mean))) / mp.mpf(float(std))
                for value, mean, std in zip(row, to.target_mean, to.target_std, strict=True)
            ]
            for row in self.Y
        ]
        x = self.dataset.inputs(0, len(self.X))
        H = numbers(self.drift.of(self.dataset))
        q = len(H[0])
        # Means of the right-hand sides h_j are k'Kbar^-1 H; at the samples, with Kbar^-1 = (I - K Kbar^-1) / N, they
        # give A.
        columns = [row + h for row, h in zip(rows, H, strict=True)]
        if q == 0:
            return (
                ExactGP(x, self.drift.features(self.tests), columns, self.kernel, self.model.noise),
                mp.matrix(0),
                [mp.matrix(0)] * p,
            )
        at_samples = ExactGP(x, x, columns, self.kernel, self.model.noise)
        noise = [mp.mpf(float(value)) for value in np.broadcast_to(self.model.noise, len(x))]
        solved = [
            [(value - fit) / s2 for value, fit in zip(right, fits, strict=True)]
            for right, fits, s2 in zip(columns, at_samples.mean, noise, strict=True)
        ]
        products = mp.matrix(
            [[mp.fsum(h[i] * row[j] for h, row in zip(H, solved, strict=True)) for j in range(p + q)] for i in range(q)]
        )
        A = products[:, p:]
        at_tests = ExactGP(x, self.drift.features(self.tests), columns, self.kernel, self.model.noise)
        return at_tests, A, [mp.lu_solve(A, products[:, target]) for target in range(p)]

    def exact(self) -> tuple[list[list[Any]], list[Any]]:
        """Means and latent variances in 50 digits, standardised."""
        at_tests, A, betas = self.solved
        means, variances = [], []
        for x_row, sums, variance in zip(
            numbers(self.drift.columns_at(self.tests)), at_tests.mean, at_tests.variance, strict=True
        ):
            if not x_row:
                means.append(list(sums))
                variances.append(variance)
                continue
            R = mp.matrix([h - s for h, s in zip(x_row, sums[len(betas) :], strict=True)])
            means.append([sums[target] + (R.T * beta)[0] for target, beta in enumerate(betas)])
            variances.append(variance + (R.T * mp.lu_solve(A, R))[0])
        return means, variances

    def slope_violations(self) -> tuple[float, float]:
        """The largest error of a derivative of the mean over its bound, and over the largest of its sample."""
        at_tests, _, betas = self.solved
        to, version = self.model.standardisation, f"trend-{next(_RUNS)}"
        got = MeanGradients(self.model, version)(self.T)
        forget(version)
        ratio = relative = 0.0
        for row, sums in enumerate(ExactGradients(at_tests).means):
            for target, beta in enumerate(betas):
                for feature in range(self.X.shape[1]):
                    columns = self.slopes(row, feature)
                    true = sums[target][feature] + mp.fsum(
                        (h - s[feature]) * b for h, s, b in zip(columns, sums[len(betas) :], beta, strict=True)
                    )
                    true *= mp.mpf(float(to.target_std[target])) / mp.mpf(float(to.input_std[feature]))
                    off = float(abs(mp.mpf(float(got.gradient[row, target, feature])) - true))
                    ratio = max(ratio, off / float(got.error[row, target, feature]))
                    relative = max(relative, off / float(np.abs(got.gradient[row, target]).max()))
        return ratio, relative

    def slopes(self, row: int, feature: int) -> list[Any]:
        """Return dh / dx_l of a test sample, in 50 digits."""
        if not self.drift.is_fitted:
            return []
        x, box = numbers(self.tests)[row], self.drift.box or ((0.0, 1.0),) * self.X.shape[1]
        u = [(value - mp.mpf(centre)) / mp.mpf(width) for value, (centre, width) in zip(x, box, strict=True)]
        slopes = [mp.mpf(0)]
        for k in range(1, 1 + (self.drift.degree or 0)):
            for factors in itertools.combinations_with_replacement(range(len(u)), k):
                others = [[u[b] for place, b in enumerate(factors) if place != at] for at in range(k)]
                parts = [mp.fprod(rest) for at, rest in enumerate(others) if factors[at] == feature]
                slopes.append(mp.fsum(parts) / mp.mpf(box[feature][1]))
        return slopes

    def violations(self) -> tuple[float, float]:
        """The largest error of a mean over its bound, and of a variance beyond its interval, in units of it."""
        predicted, to = self.predicted(), self.model.standardisation
        ratio = wrong = 0.0
        for row, (means, variance) in enumerate(zip(*self.exact(), strict=True)):
            for target, mean in enumerate(means):
                scale = mp.mpf(float(to.target_std[target]))
                error = abs(
                    mp.mpf(float(predicted["mean"][row, target])) - mean * scale - mp.mpf(float(to.target_mean[target]))
                )
                ratio = max(ratio, float(error / mp.mpf(float(predicted["mean_error_bound"][row, target]))))
                exact = variance * scale**2
                for beyond in (
                    mp.mpf(float(predicted["variance_lower"][row, target])) - exact,
                    exact - mp.mpf(float(predicted["variance_upper"][row, target])),
                ):
                    wrong = max(wrong, float(beyond / exact))
        return ratio, wrong


def steep(n: int = 120, d: int = 2, p: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, d)) * 10.0 ** np.arange(d) + 300.0
    Z = (X - 300.0) / 10.0 ** np.arange(d)
    Y = np.column_stack([5.0 + 4.0 * Z[:, 0] + np.sin(3.0 * Z[:, 0]), 1e3 - 1e2 * Z[:, -1] + np.cos(2.0 * Z[:, 0])])
    T = 300.0 + rng.uniform(-8.0, 8.0, (7, d)) * 10.0 ** np.arange(d)
    return {"X": X, "Y": Y[:, :p] + 0.1 * rng.standard_normal((n, p)), "T": T}


def nearly_the_same() -> dict[str, Any]:
    problem = steep(26)
    rng = np.random.default_rng(3)
    for name, n in (("X", 26), ("T", 7)):
        problem[name][:, 1] = problem[name][:, 0] + 1e-5 * rng.standard_normal(n)
    return problem
