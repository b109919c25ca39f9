"""Cokriging of targets that are missing at some samples: one system of all known values.

Value a at place x is the sample (x, l_a) of one field with the covariance c(x - y) l_a'l_b, where T = L L' and l_a is
row a of L: the product of c and a linear kernel. Values and rows are in units of the target's deviation, so that all
prior variances are 1. The errors of values are independent. Each target has its own mean: columns h(x) beside e_a.

A sample (x, (l_a + l_b) / 2) with the columns (e_a + e_b) / 2 is the average of both targets, whose variance gives
their covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.fitted import FittedModel
from dkgp.kernels import Linear
from dkgp.kriging.field import SURE_NOISE, Equations, Kriged, Solving, samples_in_memory
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.trend import Drift
from dkgp.models.variance.settings import VarianceSettings


class JointField:
    """The field of all known values of p targets.

    Parameters
    ----------
    kriging : Kriging
        Settings; of its variogram the correlation counts.
    space : Space
    places : (n, k)
    values : (n, p)
        NaN where a target is missing.
    covariates : (n, c)
    sills : (p, p)
        T.
    errors : (p,)
        Variances of the measurement errors.

    Raises
    ------
    InputError
        Fewer values of a target than its mean has coefficients, or a target without measurement errors.
    """

    def __init__(
        self,
        kriging: Kriging,
        space: Space,
        places: FloatArray,
        values: FloatArray,
        covariates: FloatArray,
        *,
        sills: FloatArray,
        errors: FloatArray,
    ) -> None:
        if (errors < SURE_NOISE * np.diag(sills)).any():
            target = int(np.argmin(errors / np.diag(sills)))
            raise InputError(
                f"cokriging with missing values needs measurement errors: `nuggets` of at least {SURE_NOISE:g} of the "
                f"sills; got {errors[target]:g} for data {target}"
            )
        model = kriging.variogram
        assert isinstance(model, Variogram)
        self._kriging, self.space, self._variogram, p = kriging, space, model, values.shape[1]
        self.unit, self._errors = np.sqrt(np.diag(sills)), errors
        self._lower = np.linalg.cholesky(sills) / self.unit[:, None]
        self._drift = kriging.drift
        known = np.isfinite(values)
        total = np.where(known, values, 0.0).sum(axis=0)
        # Means with a constant do not depend on the origin.
        self.middle = total / np.maximum(known.sum(axis=0), 1) if self._drift.is_fitted else np.zeros(p)
        samples = self._samples(places, values, covariates, known)
        here = samples.places[:, : space.n_columns]
        self._origin = here.mean(axis=0)
        inputs = model.isotropic(here, self._origin)
        self._centre, low, high = inputs.mean(axis=0), inputs.min(axis=0), inputs.max(axis=0)
        self._box = 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-300)
        self.fitted = self._solved(samples, known.sum(axis=0))

    def _samples(self, places: FloatArray, values: FloatArray, covariates: FloatArray, known: Any) -> Samples:
        """Return the known values as samples of places and targets, one a place."""
        row, target = np.nonzero(known)
        scaled = (values[row, target] - self.middle[target]) / self.unit[target]
        return Samples(
            np.column_stack([places[row], np.eye(len(self.unit))[target]]),
            scaled[:, None],
            self._errors[target] / self.unit[target] ** 2,
            0.0,
            covariates[row],
        ).once_a_place(self._kriging.duplicates)  # type: ignore[arg-type]

    def _rows(self, places: FloatArray, shares: FloatArray, covariates: FloatArray) -> FloatArray:
        """Return the engine's inputs of places (r, k) with the shares of targets (r, p) and covariates (r, c)."""
        inputs = self._variogram.isotropic(places, self._origin)
        moved = (inputs - self._box[0]) / self._box[1]
        columns = self._drift.columns_at(np.column_stack([moved, covariates]))
        # The constant of the mean is the sum of the targets' constants, so the first of these is left out.
        columns = (columns[:, :, None] * shares[:, None, :]).reshape(len(places), -1)[:, 1:]
        scaled = (inputs - self._centre) / self._variogram.range
        return np.column_stack([scaled, shares @ self._lower, columns])

    def _solved(self, samples: Samples, counts: Any) -> FittedModel:
        k, p, how = self.space.n_columns, len(self.unit), self._kriging
        needed = self._drift.count(k)
        if (counts < max(needed, 1)).any():
            target = int(np.argmax(counts < max(needed, 1)))
            raise InputError(
                f"data {target} has {counts[target]} values; its mean needs {max(needed, 1)} at least. Leave it out"
            )
        rows = self._rows(samples.places[:, :k], samples.places[:, k:], samples.covariates)
        d = k + p
        names = [f"x{index}" for index in range(k)] + [f"target{index}" for index in range(p)]
        drifts = [f"mean{index}" for index in range(rows.shape[1] - d)]
        standardisation = Standardisation.identity(rows.shape[1], 1).with_covariates(drifts, (*names, *drifts))
        dataset = samples_in_memory((rows, samples.values), standardisation, (*names, *drifts), ("z",))
        correlation = self._variogram.to_kernel(k, unit=self._variogram.range, variance=1.0)
        kernel = correlation.on(range(k), d) * Linear(n_features=p).on(range(k, d), d)
        noise = samples.errors
        common = float(noise.min())
        mean = Drift(0, columns=tuple(drifts)) if self._drift.is_fitted else Drift(value=0.0)
        problem = Problem.of(dataset, kernel, Noise(common, noise - common), mean)
        solving = Solving(how.tolerance, how.product_error, "auto", how.client, how.store, int(how.random_state))
        description = {"space": asdict(self.space), "variogram": self._variogram.to_dict()}
        return Equations(problem, (rows, samples.values), solving, description).solve().fitted

    def at(self, places: FloatArray, shares: Sequence[FloatArray], covariates: FloatArray, *, variance: bool) -> Kriged:
        """Predict sums of the scaled targets with these shares, which add up to one: (r, shares) each."""
        r, m = len(places), len(shares)
        repeated = np.repeat(places, m, axis=0), np.tile(np.array(shares), (r, 1)), np.repeat(covariates, m, axis=0)
        settings = VarianceSettings(gap=self._kriging.variance_gap, latent=True) if variance else None
        columns = self.fitted.posterior(settings, r * m)(self._rows(*repeated))
        names = ["mean", "mean_error_bound", *(("variance", "variance_lower", "variance_upper") if variance else ())]
        parts: dict[str, Any] = {name: columns[name].reshape(r, m) for name in names}
        return Kriged(**parts)
