"""Small problems by the public path, from raw numbers to predictions in their units, beside the exact solution."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.data import ModelRecord
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.data.stores.models.regression import memory_model
from dkgp.kernels import Kernel
from dkgp.models.exact import TrainedModel, train
from dkgp.models.prediction.posterior import Columns, forget, standardised
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import Cholesky, GradientInfNorm, MaxIterations, Solver
from tests.models.exact_gp import ExactGP, mp
from tests.models.posteriors import exact_posterior

_RUNS = itertools.count()


@dataclass(eq=False)
class Problem:
    """Raw inputs (n, d) and targets (n, p), raw test inputs (t, d), kernel and noise of the standardised ones.

    `sample_noise` (n,): known noise variances of the samples, standardised.
    """

    X: np.ndarray
    y: np.ndarray
    T: np.ndarray
    kernel: Kernel
    noise_variance: float
    solver: Solver | None = None
    tolerance: float = 1e-8
    sample_noise: np.ndarray | None = None

    @cached_property
    def trained(self) -> TrainedModel:
        executor = LocalExecutor(1)
        self.dataset: Any = memory_dataset(self.X, self.y)
        return train(
            self.dataset,
            self.kernel,
            self.noise_variance,
            executor,
            sample_noise=self.sample_noise,
            solver=self.solver or Cholesky(),
            stopping=GradientInfNorm(self.tolerance) | MaxIterations(1 if self.solver is None else 400),
        )

    @cached_property
    def model(self) -> ModelRecord:
        trained = self.trained
        return memory_model(
            self.dataset,
            kernel=trained.kernel.to_json(),
            noise_variance=trained.noise_variance,
            alpha=trained.solution.alpha,
            sample_noise=trained.sample_noise,
            certificate=trained.certificate.to_json(),
        )

    def predicted(self, **settings: Any) -> Columns:
        version = f"proof-{next(_RUNS)}"
        try:
            return exact_posterior(self.model, version, VarianceSettings(**settings), n_test=len(self.T))(self.T)
        finally:
            forget(version)

    @cached_property
    def exact(self) -> ExactGP:
        to = self.model.standardisation
        rows = [
            [
                (mp.mpf(float(value)) - mp.mpf(float(mean))) / mp.mpf(float(std))
                for value, mean, std in zip(row, to.target_mean, to.target_std, strict=True)
            ]
            for row in self.y
        ]
        return ExactGP(
            self.dataset.inputs(0, len(self.X)),
            standardised(self.model, self.T),
            rows,
            self.trained.kernel,
            self.model.noise,
        )

    def mean_ratios(self, predicted: Columns) -> np.ndarray:
        """Error over bound of each mean, in the targets' units: (t, p)."""
        to = self.model.standardisation
        ratios = np.empty(predicted["mean"].shape)
        for row, means in enumerate(self.exact.mean):
            for target, mean in enumerate(means):
                exact = mean * mp.mpf(float(to.target_std[target])) + mp.mpf(float(to.target_mean[target]))
                error = abs(mp.mpf(float(predicted["mean"][row, target])) - exact)
                ratios[row, target] = float(error / mp.mpf(float(predicted["mean_error_bound"][row, target])))
        return ratios

    def variance_violations(self, predicted: Columns, latent: bool) -> tuple[np.ndarray, np.ndarray]:
        """By how much each end of the intervals is on the wrong side, and the upper one above: (t, p), in units of it.

        The first is negative, or zero, where the interval is right.
        """
        to = self.model.standardisation
        wrong, above = np.empty((2, *predicted["mean"].shape))
        for row, variance in enumerate(self.exact.variance):
            for target in range(predicted["mean"].shape[1]):
                exact = variance + (0 if latent else mp.mpf(self.trained.noise_variance))
                exact *= mp.mpf(float(to.target_std[target])) ** 2
                lower = mp.mpf(float(predicted["variance_lower"][row, target]))
                upper = mp.mpf(float(predicted["variance_upper"][row, target]))
                scale = abs(exact) + mp.mpf(1e-300)
                wrong[row, target] = float(max(lower - exact, exact - upper) / scale)
                above[row, target] = float((upper - exact) / scale)
        return wrong, above
