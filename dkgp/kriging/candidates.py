"""Candidate variograms: fits by weights and by likelihood, compared by blocked cross-validation.

The best fit of an empirical variogram can predict worst: bins at large lags have most pairs and matter least. The table
therefore has, beside the misfit, the restricted likelihood and errors at samples that were left out block by block.

With a drift of columns H, K = C + N, P = K^-1 - K^-1 H (H'K^-1 H)^-1 H'K^-1 and a = P z, the samples b of a block that
are predicted from all others have the errors P_bb^-1 a_b with the covariance P_bb^-1 (Dubrule 1983). The drift is
estimated anew for each block. The restricted log likelihood is that of Patterson and Thompson 1971.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dkgp.data import Standardisation
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.estimators.inputs import numbers_of
from dkgp.kernels import Kernel
from dkgp.kriging.crossvalidation import scores
from dkgp.kriging.empirical import EmpiricalVariogram, drift_columns, empirical_variogram, residuals
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram, form_name
from dkgp.models.trend import Drift
from dkgp.models.tuning.tune import tune_dataset

Fit: TypeAlias = Literal["weights", "likelihood"]
FITS: tuple[Fit, ...] = get_args(Fit)
AUTO = ("exponential", "matern32", "matern52", "spherical", "gaussian")
# Samples of the dense matrices.
MOST_SAMPLES = 2_000
# Blocks along the longer side of the samples' bounding box.
_BLOCKS = 8
# Angles in (0, 90) degrees among which the search for an axis starts.
_ANGLES = 4
_SINGULAR = 1e-13


@dataclass(frozen=True, eq=False)
class Candidates:
    """Samples from which variograms are fitted and compared.

    Attributes
    ----------
    places, values
        (n, k) and (n,), one a place.
    columns : (n, q)
        Of the drift, a constant first.
    degree : int
        Of the drift's polynomial.
    empirical : EmpiricalVariogram
        Of the residuals of least squares, by Cressie's estimator.
    """

    places: FloatArray
    values: FloatArray
    columns: FloatArray
    degree: int
    empirical: EmpiricalVariogram
    noise: FloatArray | None = None
    mean_noise: float = 0.0

    @classmethod
    def of(
        cls,
        places: FloatArray,
        values: ArrayLike,
        *,
        degree: int = 0,
        covariates: Any = None,
        noise: FloatArray | None = None,
        seed: int = 0,
    ) -> Self:
        """Return candidates of places and values; a random part of more than `MOST_SAMPLES` serves dense matrices.

        Raises `InputError`: values that do not vary about the drift, or a drift that the samples do not determine.
        """
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        n_covariates = 0 if covariates is None else np.size(covariates) // max(len(places), 1)
        kept = np.zeros((len(places), 0)) if not n_covariates else np.reshape(covariates, (len(places), -1))
        columns = drift_columns(places, degree, kept if n_covariates else None)
        rest = residuals(flat, columns)
        if not np.ptp(rest) > 1e-12 * np.abs(flat).max():
            raise InputError("the values do not vary about their mean; pass a Variogram instead of a name")
        empirical = empirical_variogram(tuple(places.T), rest, estimator="cressie", metric="plane", seed=seed)
        mean_noise = 0.0 if noise is None else float(np.mean(noise))
        one = Samples(places, flat[:, None], np.ones(len(flat)) if noise is None else noise, 0.0, kept)
        unique = one.once_a_place("mean") if not n_covariates else one.once_a_place("first")
        part = np.arange(len(unique.places))
        if len(part) > MOST_SAMPLES:
            part = np.sort(np.random.default_rng(seed).choice(part, MOST_SAMPLES, replace=False))
        places, flat = unique.places[part], unique.values[part, 0]
        columns = drift_columns(places, degree, unique.covariates[part] if n_covariates else None)
        known = None if noise is None else unique.errors[part]
        return cls(places, flat, columns, degree, empirical, known, mean_noise)

    def fitted(self, model: str, by: Fit = "weights", *, anisotropic: bool = False) -> Variogram:
        """Return the model's best fit by Cressie's weights, or by the restricted likelihood with the drift.

        The likelihood has the noise of each sample; the fit by weights has its mean, which is taken off the nugget.
        """
        start = Variogram.start(model, self.empirical)
        if by not in FITS:
            raise InputError(f"`by` is one of {', '.join(FITS)}; got {by!r}")
        if by == "weights":
            if anisotropic:
                raise InputError("an anisotropy is fitted by likelihood; pass by='likelihood'")
            return Variogram.fitted(model, self.empirical).without_noise(self.mean_noise)
        if start.model == "stable":
            # The likelihood takes the exponent of the weights.
            start = replace(start, alpha=Variogram.fitted(model, self.empirical).alpha)
        if not anisotropic:
            return self._by_likelihood(start)[0]
        if self.places.shape[1] != 2:
            raise InputError(f"an anisotropy is fitted in two dimensions; got {self.places.shape[1]}")
        angles = np.arange(_ANGLES) * 90.0 / _ANGLES
        likelihoods = [self._by_likelihood(start, angle)[1] for angle in angles]
        middle, step = float(angles[int(np.argmax(likelihoods))]), 90.0 / _ANGLES
        best = scipy.optimize.minimize_scalar(
            lambda angle: -self._by_likelihood(start, angle)[1],
            bounds=(middle - step, middle + step),
            method="bounded",
            options={"xatol": 0.5, "maxiter": 12},
        )
        return self._by_likelihood(start, float(best.x))[0]

    def _by_likelihood(self, start: Variogram, angle: float | None = None) -> tuple[Variogram, float]:
        """Return the fit and its restricted log likelihood in the tuned units; with an angle, lengths along two axes.

        The engine's `tune` maximises it in units of the starting length and of the residuals' deviation.
        """
        k, unit = self.places.shape[1], start.range
        turned = self.places - self.places.mean(axis=0)
        if angle is not None:
            turned = turned @ _rotation(angle).T
        scale = float(np.std(residuals(self.values, self.columns)))
        kernel = start.to_kernel(k, unit=unit, variance=1.0)
        if angle is not None:
            kernel = _with_gammas(kernel, (kernel.gamma[0],) * k)  # type: ignore[attr-defined]
        factor = kernel.gamma[0]  # type: ignore[attr-defined]
        noise: dict[str, Any] = {} if self.noise is None else {"sample_noise": self.noise / scale**2}
        result = tune_dataset(
            self._dataset(turned / unit, (self.values - self.values.mean()) / scale),
            kernel=kernel,
            mean=Drift(self.degree),
            learn_variance=True,
            subset=len(self.values),
            **noise,
        )
        tuned: Any = result.kernel
        lengths = unit * np.sqrt(factor / np.maximum(np.asarray(tuned.gamma), 1e-300))
        axes: dict[str, Any] = {}
        if angle is not None:
            at = int(np.argmax(lengths))
            axes = {"ratio": float(lengths.min() / lengths.max()), "angle": (angle + 90.0 * at) % 180.0}
        variogram = Variogram(
            start.model,
            psill=float(tuned.variance) * scale**2,
            range=float(lengths.max()),
            nugget=float(result.noise_variance) * scale**2,
            alpha=start.alpha if start.model != "rational" else float(tuned.alpha),
            **axes,
        )
        return variogram, float(result.log_marginal_likelihood or 0.0)

    def _dataset(self, inputs: FloatArray, values: FloatArray) -> Any:
        k = inputs.shape[1]
        covariates = self.columns[:, Drift(self.degree).count(k) :]
        names = tuple(f"x{column}" for column in range(k))
        extra = tuple(f"covariate{column}" for column in range(covariates.shape[1]))
        rows = np.column_stack([inputs, covariates])
        identity = Standardisation.identity(rows.shape[1], 1)
        dataset = assembled_dataset(rows, values[:, None], identity, (*names, *extra), ("",), "")
        return dataset.with_covariates(extra) if extra else dataset

    # ------------------------------------------------------------------------------------------------------ comparisons

    def precision(self, variogram: Variogram) -> tuple[FloatArray, float]:
        """Return P (n, n), see above, and the restricted log likelihood.

        Raises `InputError`: a covariance matrix that is singular to float64.
        """
        x = variogram.isotropic(self.places)
        matrix = variogram.covariance(scipy.spatial.distance.cdist(x, x))
        matrix[np.diag_indices_from(matrix)] += sum(variogram.nugget) + (0.0 if self.noise is None else self.noise)
        try:
            lower = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError as error:
            raise InputError(
                "the covariance matrix is singular to float64 (condition > 1e15); give a nugget of at least 1e-8 of "
                "the sill"
            ) from error
        inverse = scipy.linalg.cho_solve((lower, True), np.eye(len(matrix)))
        q, r = np.linalg.qr(scipy.linalg.solve_triangular(lower, self.columns, lower=True))
        whole = scipy.linalg.solve_triangular(lower, q, trans="T", lower=True)
        precision = inverse - whole @ whole.T
        free = self.columns.shape[0] - self.columns.shape[1]
        log_determinants = 2.0 * np.log(np.diag(lower)).sum() + 2.0 * np.log(np.abs(np.diag(r))).sum()
        return precision, float(
            -0.5 * (self.values @ precision @ self.values + log_determinants + free * np.log(2.0 * np.pi))
        )

    def blocks(self, size: float | None = None) -> IntArray:
        """Return the block of each sample: cells of a lattice of squares of the given size."""
        extent = np.ptp(self.places, axis=0)
        width = float(extent.max()) / _BLOCKS if size is None else float(size)
        if not (np.isfinite(width) and width > 0.0):
            raise InputError(f"`blocks` is the positive width of the blocks; got {size!r}")
        cells = np.floor((self.places - self.places.min(axis=0)) / width).astype(np.int64)
        return np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)

    def left_out(self, precision: FloatArray, blocks: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return errors and variances of the samples, each block predicted from all others: (n,) each."""
        alpha, errors, variances = precision @ self.values, np.zeros(len(blocks)), np.zeros(len(blocks))
        for block in range(int(blocks.max()) + 1):
            here = np.flatnonzero(blocks == block)
            matrix = precision[np.ix_(here, here)]
            # P is singular along the drift: without these samples nothing determines it.
            if not np.linalg.cond(matrix) < 1.0 / _SINGULAR:
                raise InputError(
                    f"without the {len(here)} samples of a block the others do not determine the drift; give smaller "
                    "`blocks`, or a lower `degree`"
                )
            inverse = np.linalg.inv(matrix)
            errors[here], variances[here] = inverse @ alpha[here], np.diag(inverse)
        return errors, np.maximum(variances, np.finfo(float).tiny)


def _rotation(angle: float) -> FloatArray:
    """Return the rotation by minus an angle in degrees: (2, 2)."""
    turn = np.radians(angle)
    return np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])


def _with_gammas(kernel: Kernel, gamma: tuple[float, ...]) -> Kernel:
    """Return the kernel with one gamma for each feature."""
    extra = {"alpha": kernel.alpha} if hasattr(kernel, "alpha") else {}
    return type(kernel)(gamma=gamma, variance=kernel.variance, n_features=len(gamma), **extra)  # type: ignore[attr-defined, call-arg]


def compare_variograms(
    coordinates: Sequence[ArrayLike],
    data: ArrayLike,
    models: Sequence[str] = AUTO,
    *,
    fits: Sequence[str] = FITS,
    degree: int = 0,
    covariates: Any = None,
    noise: ArrayLike | None = None,
    blocks: float | None = None,
    crs: Any = None,
    seed: int = 0,
) -> Any:
    """Fit models by weights and by likelihood, and score each by blocked cross-validation.

    Parameters
    ----------
    coordinates, data, degree, covariates, crs
        As for `empirical_variogram`. The empirical variogram is that of residuals of least squares.
    models : sequence of str
        Names of models.
    fits : sequence of {"weights", "likelihood"}
        Cressie's weights of the empirical variogram; the restricted likelihood, whose drift is generalised least
        squares.
    noise : (n,) array_like, optional
        Known variances of the samples' measurement errors, beside the nugget. The likelihood has that of each sample;
        fits by weights take the mean off the nugget.
    blocks : float, optional
        Width of the square blocks that are left out, in map units (km on the globe); by default an eighth of the
        longer side. A block is predicted from all other samples.
    seed : int, default 0
        Of the random 2,000 samples that likelihood and cross-validation take where there are more.

    Returns
    -------
    pandas.DataFrame
        A row for each candidate, best first by `log_score`: model, fit, psill, range, nugget, misfit (see
        `Variogram.misfit`), log_likelihood (restricted), RMSE, SRMSE, coverage95 (see `scores`), log_score (mean log
        predictive density), and variogram.

    Raises
    ------
    InputError
        Unknown names, or samples that determine no variogram.
    """
    space = Space.of(coordinates, crs)
    values = numbers_of(data, "data").reshape(-1)
    places = space.places(coordinates)
    if len(values) != len(places):
        raise InputError(f"data has {len(values)} values; expected {len(places)}, one for each sample")
    known = None if noise is None else numbers_of(noise, "noise").reshape(-1)
    samples = Candidates.of(places, values, degree=degree, covariates=covariates, noise=known, seed=seed)
    return candidates_table(samples, models, fits, blocks)


def fitted_variogram(
    places: FloatArray,
    values: ArrayLike,
    model: Any,
    *,
    by: Fit = "weights",
    anisotropic: bool = False,
    **options: Any,
) -> Variogram:
    """Return a fitted variogram of samples at places.

    Parameters
    ----------
    places : (n, k)
        See `Space.places`.
    values : (n,)
    model : str or sequence of str
        A name is fitted by Cressie's weights to the residuals of least squares. Of a sequence, or "auto" for the
        common models, the best candidate by blocked cross-validation is taken; see `compare_variograms`.
    by : {"weights", "likelihood"}, default "weights"
        The fit of a single name. The likelihood takes at most 2,000 random samples.
    anisotropic : bool, default False
        Fit a ratio and an angle too, by likelihood, in two dimensions: lengths along two axes for each angle of a
        one-dimensional search.
    **options
        `degree`, `covariates`, `noise` and `seed`, as for `compare_variograms`.

    Raises
    ------
    InputError
        As for `compare_variograms`.
    """
    samples = Candidates.of(places, values, **options)
    if isinstance(model, str) and model != "auto":
        return samples.fitted(model, by, anisotropic=anisotropic)
    if anisotropic:
        raise InputError(f"an anisotropy is fitted to one model; got {model!r}")
    table = candidates_table(samples, AUTO if isinstance(model, str) else tuple(model), FITS, None)
    variogram: Variogram = table["variogram"].iloc[0]
    return variogram


def candidates_table(samples: Candidates, models: Sequence[str], fits: Sequence[str], size: float | None) -> Any:
    """Return the table of `compare_variograms`."""
    import pandas as pd

    if not models or not fits or not set(fits) <= set(FITS):
        raise InputError(f"`fits` has some of {', '.join(FITS)}, and `models` at least one name; got {fits!r}")
    for model in models:
        form_name(model)
    blocks, rows = samples.blocks(size), []
    singular: Exception | None = None
    if blocks.max() == 0:
        raise InputError("all samples lie in one block; give a smaller `blocks`")
    for model in models:
        for by in FITS:
            if by not in fits:
                continue
            try:
                variogram = samples.fitted(model, by)
            except NumericalError as error:
                singular = error
                continue
            try:
                precision, likelihood = samples.precision(variogram)
            except InputError as error:
                singular = error
                continue
            figures = scores(samples.values, *samples.left_out(precision, blocks))
            rows.append(
                {
                    "model": variogram.model,
                    "fit": by,
                    "psill": variogram.psill,
                    "range": variogram.range,
                    "nugget": sum(variogram.nugget),
                    "misfit": variogram.without_noise(-samples.mean_noise).misfit(samples.empirical),
                    "log_likelihood": likelihood,
                    **{name: figures[name] for name in ("RMSE", "SRMSE", "coverage95", "log_score")},
                    "variogram": variogram,
                }
            )
    if not rows:
        raise singular or InputError("no candidate has a score")
    return pd.DataFrame(rows).sort_values("log_score", ascending=False, kind="stable").reset_index(drop=True)
