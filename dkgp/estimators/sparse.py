"""`SparseGPRegressor`: sparse Gaussian processes on scikit-learn's conventions, with proofs of their distance."""

from __future__ import annotations

import operator
import warnings
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np

from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.estimators.base import GPEstimator
from dkgp.estimators.fitted import Fitted, FittedSparse, Workspace
from dkgp.estimators.inputs import numeric, numeric_samples
from dkgp.estimators.parameters import CheckedElsewhere, CountOrNone, PositiveOrNone, check_parameters
from dkgp.estimators.scikit_learn import check_is_fitted, seed_of
from dkgp.estimators.settings import executor_for
from dkgp.estimators.training_set import SampleNoise, training_set
from dkgp.models.noise import Noise, check_relative
from dkgp.models.sparse.ladder import LadderTarget, climb
from dkgp.models.sparse.settings import (
    CANDIDATE_COUNT,
    CERTIFY_PASSES,
    EXHAUSTIVE,
    METHOD,
    NEAR_SETTINGS,
    NEIGHBOURS,
    PER_ROUND,
    SCORE_ROWS,
    SCREENED,
    SEARCH_SAMPLES,
    SparseSettings,
)
from dkgp.models.sparse.stored import sparse_record
from dkgp.models.sparse.train import SparseProblem, train_sparse
from dkgp.models.sparse.vif import HALO, LEAF, SEARCHED
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.registry import Option

# Basis samples where nothing is said, and there are as many.
DEFAULT_BASIS_SIZE, AUTO = 1000, "auto"
# Parameters that are settings of the same name below.
_GREEDY_SETTINGS = ("candidates", "per_round", "exhaustive", "screen", "score_rows")
_SETTINGS = ("method", *_GREEDY_SETTINGS, "certify_passes", *NEAR_SETTINGS)


class OverconfidenceWarning(UserWarning):
    """Variances were asked for that are proven to be too small."""


@dataclass(eq=False, repr=False, kw_only=True)
class SparseGPRegressor(GPEstimator):
    """Gaussian process regression with a few basis samples, at a proven distance from the exact model.

    Time grows with n m^2 and memory with m^2, for m basis samples. For every method and basis, a bound limits the
    distance of the mean from that of `GPRegressor` with the same hyperparameters, and an interval contains the exact
    variance.

    Parameters
    ----------
    kernel, noise_variance, subset_size, n_restarts_optimizer
        See `GPRegressor`.
    optimizer : {"marginal_likelihood", "loo", "bound", "fitc", "vif"} or None, default "marginal_likelihood"
        Objective that tunes a kernel given as an expression. The first two use a subset of the samples. The
        variational bound, FITC's likelihood and that of a model with neighbours ("vif") use all samples, with
        `basis_size` basis samples that are chosen again during the search (`dkgp.models.sparse.bound`).
    method : {"vfe", "sr", "dtc", "fitc", "sd", "vif", "sggp", "mpgp"}, default "vfe"
        "vfe": variational free energy; "sr": subset of regressors (Nystrom), whose variances are too small; "dtc": the
        means of "sr" with corrected variances; "fitc": fully independent training conditional; "sd": the exact model
        on a subset; "vif": a basis and the `neighbours` nearest samples, for which the model stores all samples;
        "sggp", "mpgp": greedy choice of the basis by the targets.
    basis_size : int or "auto", optional
        Largest number of basis samples. By default 1,000, or all samples if there are fewer. "auto": as many as
        `target_distance` or `gap` requires, up to `largest_basis`.
    basis : str or array_like, optional
        Method that chooses the basis: "uniform", "pivoted", "variance", "k-centre", "k-means", "entropy" or "greedy";
        the default depends on `method`. Or the basis itself: sample numbers (m,) or inputs (m, d).
    gap : float, optional
        Duality gap at which a greedy choice ends.
    target_distance : float, optional
        Target for `distance_`, in standard deviations of the targets. A `ConvergenceWarning` says if `basis_size` is
        too small for it, or for `gap`.
    largest_basis : int, optional
        For `basis_size` "auto": largest number of basis samples. By default the largest that is faster than the exact
        model.
    candidates, per_round, exhaustive, screen, score_rows
        For a greedy basis; see `dkgp.solvers.greedy_basis.GreedySettings`.
    certify_passes : float, default 0
        Passes of block coordinate descent over the kernel matrix that tighten the bounds on the mean.
    neighbours : int, default 128
        For "vif": number of nearest samples that each prediction uses.
    search_samples : int, default 32768
        For "vif": largest number of samples that a search for neighbours examines. The number of all makes it exact.
    client, store, random_state
        See `GPRegressor`. The model itself is small, and is stored only if other processes have to read it.

    Attributes
    ----------
    kernel_, noise_variance_, hyperparameters_, history_, target_names_, n_features_in_, feature_names_in_
        See `GPRegressor`; `history_` has the rounds of a greedy choice.
    method_ : str
    basis_indices_ : (m,) ndarray of int or None
        Numbers of the basis samples; None if the basis has other points, such as centres of k-means.
    basis_inputs_ : (m, d) ndarray
        Basis in the inputs' units, without constant features.
    distance_ : float or (p,) ndarray, or None
        Bound on the root mean square distance of the mean from the exact model's over the training samples, in the
        targets' units. None for "vif", whose bound depends on the place (`return_bounds`).
    gap_ : float or (p,) ndarray
        Duality gap: distance between the bounds on the log posterior, relative to its size.
    elbo_ : float or None
        Evidence lower bound for standardised targets; None for "sd", "fitc" and "vif".
    log_evidence_bounds_ : tuple of two floats, or None
        Lower and upper bound of the exact model's log marginal likelihood; the first is `elbo_`.
    certificate_ : dkgp.models.sparse.certificate.SparseCertificate
        All proven bounds, on the standardised scale.
    solution_ : dict
        Record of the fit: converged, reason, basis_size, seconds_by_part, kernel_evaluations and others.

    Examples
    --------
    >>> X = np.linspace(0.0, 6.0, 400)[:, None]
    >>> gp = SparseGPRegressor(basis_size=20).fit(X, np.sin(X[:, 0]))
    >>> mean, std = gp.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.01)
    True
    >>> bool(gp.distance_ < 0.01)
    True
    """

    optimizer: Literal["marginal_likelihood", "loo", "bound", "fitc", "vif"] | None = "marginal_likelihood"
    method: Annotated[str, METHOD] = "vfe"
    basis_size: Annotated[int | Literal["auto"] | None, Option(least=1)] = None
    basis: CheckedElsewhere = None
    gap: PositiveOrNone = None
    target_distance: PositiveOrNone = None
    largest_basis: CountOrNone = None
    candidates: Annotated[int, CANDIDATE_COUNT] = 59
    per_round: Annotated[int | None, PER_ROUND] = None
    exhaustive: Annotated[bool, EXHAUSTIVE] = False
    screen: Annotated[int | None, SCREENED] = None
    score_rows: Annotated[int | None, SCORE_ROWS] = None
    certify_passes: Annotated[float, CERTIFY_PASSES] = 0.0
    neighbours: Annotated[int, NEIGHBOURS] = LEAF + HALO
    search_samples: Annotated[int, SEARCH_SAMPLES] = SEARCHED

    _state: ClassVar[type[Fitted]] = FittedSparse
    _fitted: FittedSparse = field(init=False)

    # ------------------------------------------------------------------------------------------------------- training

    def fit(
        self, X: Any, y: Any = None, relative_noise: Any = None, sample_noise: Any = None, sample_weight: Any = None
    ) -> Self:
        """Tune the hyperparameters, unless they are set; choose the basis, fit and certify.

        Parameters
        ----------
        X, y
            As for `GPRegressor.fit`.
        relative_noise : (n,) array_like, optional
            Noise variance of each sample relative to `noise_variance`, the noise of new observations; the reciprocal of
            `sample_weight`.
        sample_noise, sample_weight
            As for `GPRegressor.fit`. Set at most one of these three. The sparse model's own likelihoods ("elbo",
            "fitc") assume equal noise of all samples.

        Returns
        -------
        SparseGPRegressor
            The fitted estimator itself.

        Raises
        ------
        InputError
            A `ValueError`: invalid data or settings; the message names them.
        NumericalError
            Rounding errors exceed the noise variance. dkgp does not add noise by itself.
        """
        check_parameters(self)
        seed = seed_of(self.random_state)
        self._settings(DEFAULT_BASIS_SIZE, seed)  # Contradictions are refused before anything is stored.
        target = self._target()
        workspace = Workspace(self.store)  # A temporary folder goes with this, when all is read.
        by_sample = {"relative_noise": relative_noise, "sample_noise": sample_noise, "sample_weight": sample_weight}
        X, y = numeric_samples(X, y, **by_sample)
        X, y, told = SampleNoise.of(**by_sample).without_weightless(X, y)
        dataset, several = training_set(self, X, y, workspace)
        n, user_basis = dataset.n_samples, self._user_basis(dataset)
        settings = self._settings(n, seed)
        if user_basis is None and not 1 <= settings.basis_size <= n:
            raise InputError(f"a basis has 1 to {n:,} samples here; got {settings.basis_size:,}")
        if relative_noise is not None:
            assert told.relative is not None
            check_relative(told.relative, n)
        told.of_dataset(dataset)
        known = told.known(dataset.standardisation.target_std)
        hyperparameters = self._hyperparameters(dataset, seed, told)
        noise = Noise.of(hyperparameters.noise_variance, known, told.multiples)
        problem = SparseProblem.of(dataset, hyperparameters.kernel, noise)
        with executor_for(self.client, dataset) as executor:
            if self.basis_size == AUTO:
                assert target is not None
                trained = climb(problem, executor, settings, target)
            else:
                trained = train_sparse(dataset, problem.kernel, problem.noise, executor, settings, given=user_basis)
        kept = dataset, Workspace(self.store)
        self._keep(sparse_record(trained, dataset), kept, hyperparameters, several=several, stacklevel=3)
        return self

    def update(
        self, X: Any, y: Any, relative_noise: Any = None, sample_noise: Any = None, sample_weight: Any = None
    ) -> Self:
        """Take in further samples, with basis, hyperparameters and standardisation as they are.

        The old samples need not be there: the weights are those of a fit to all, and proofs are carried on, less
        tightly. Evidence is not. Of "sd", "fitc" and "vif" there is no update.

        Parameters
        ----------
        X, y, relative_noise, sample_noise, sample_weight
            As for `fit`. They are brought into memory.

        Returns
        -------
        SparseGPRegressor
            The fitted estimator itself.

        Raises
        ------
        InputError
            Other features or targets than the training set's, or a model that cannot be updated.
        """
        check_is_fitted(self)
        by_sample = {"relative_noise": relative_noise, "sample_noise": sample_noise, "sample_weight": sample_weight}
        inputs, targets, told = self._new_samples(X, y, self._fitted.record.n_targets, **by_sample)
        known = told.known(self._fitted.record.standardisation.target_std)
        self._take(self._fitted.updated(inputs, np.asarray(targets).reshape(len(inputs), -1), told.multiples, known))
        return self

    def _shortfall(self) -> str | None:
        target, certificate = self._target(), self.certificate_
        far = self.target_distance is not None and certificate.rms_bound.max() > self.target_distance
        if not self.solution_["converged"] or target is None or not far:
            return super()._shortfall()
        advice = (
            "a larger `basis_size` brings the mean closer to the exact one; more `certify_passes` tighten the proof"
        )
        return f"not converged: {target.status(certificate)} with {self.solution_['reason']}; {advice}. {self._holds()}"

    def _holds(self) -> str:
        return "Its error bounds are valid."

    def _evidence_size(self, n: int, seed: int) -> int:
        return self._settings(n, seed).basis_size

    def _settings(self, n: int, seed: int) -> SparseSettings:
        """Settings for n samples; `gap` only for a basis of a given size."""
        auto, size = self.basis_size == AUTO, cast(Any, self.basis_size)
        if auto or size is None:
            size = min(DEFAULT_BASIS_SIZE, n)
        settings = SparseSettings(
            basis_size=operator.index(size),
            basis=self.basis if isinstance(self.basis, str) else None,
            gap=None if auto else self.gap,
            seed=seed,
            **{name: value for name in _SETTINGS if (value := getattr(self, name)) is not None},
        )
        if settings.basis_name == "greedy":
            settings.greedy()
        return settings

    def _target(self) -> LadderTarget | None:
        """The requested proofs, or None."""
        if not (self.basis is None or isinstance(self.basis, str)) and (
            self.basis_size == AUTO or self.gap is not None
        ):
            raise InputError("a basis that is given does not grow; leave out basis=, or gap= and basis_size=")
        if self.basis_size != AUTO and self.gap is None and self.target_distance is None:
            return None
        if self.basis_size == AUTO or self.target_distance is not None:
            self._settings(DEFAULT_BASIS_SIZE, 0).refuse_target()
        return LadderTarget(self.target_distance, self.gap, self.largest_basis)

    def _user_basis(self, dataset: Dataset) -> IndexArray | FloatArray | None:
        """The user's basis: numbers of samples, or standardised inputs; None if it is named."""
        if self.basis is None or isinstance(self.basis, str):
            return None
        values = np.asarray(numeric(self.basis, "basis"))
        if values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
            return values
        raw, kept = dataset.standardisation.n_raw_features, dataset.n_features
        if values.ndim != 2 or values.shape[1] not in (raw, kept) or not np.issubdtype(values.dtype, np.number):
            raise InputError(
                f"basis= takes a name, numbers of samples (m,), or inputs (m, {raw}); got an array of "
                f"{values.dtype} and shape {values.shape}"
            )
        values = values.astype(np.float64)
        to = dataset.standardisation
        return to.inputs(values) if values.shape[1] == raw else (values - to.input_mean) / to.input_std

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        record, certificate = fitted.record, fitted.opened.certificate
        to = record.standardisation
        self.certificate_ = certificate
        self.method_ = record.method
        self.basis_indices_ = record.indices
        self.basis_inputs_ = record.prototypes * to.input_std + to.input_mean
        distance = certificate.rms_bound * to.target_std
        self.distance_ = None if fitted.opened.near is not None else self._by_target(distance)
        self.gap_ = self._by_target(certificate.gap)
        evidence, upper = certificate.evidence, certificate.evidence_upper
        self.elbo_ = None if evidence is None else float(evidence.lower)
        self.log_evidence_bounds_ = None if self.elbo_ is None or upper is None else (self.elbo_, float(upper))
        self._warned = False

    def _by_target(self, values: FloatArray) -> float | FloatArray:
        return values if self._several else float(values[0])

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_var: bool = False,
        return_bounds: bool = False,
        *,
        latent: bool = False,
    ) -> Any:
        """Predict the mean, and on request standard deviations, variances and bounds.

        Parameters
        ----------
        X
            As for `GPRegressor.predict`.
        return_std, return_var : bool
            Also return the sparse method's own standard deviation, or variance.
        return_bounds : bool
            Also return `PredictionBounds`: mean_error, a bound on the distance from the exact model's mean, and an
            interval that contains the exact model's variance.
        latent : bool
            Return variances of the function itself; by default those of a new observation, noise included.

        Returns
        -------
        mean, or the requested ones of (mean, std, variance, bounds)
            As for `GPRegressor.predict`.

        Warns
        -----
        OverconfidenceWarning
            Once, if variances of the subset of regressors are requested.
        """
        settings = VarianceSettings(latent=bool(latent))
        result = self._predictions(X, settings, std=return_std, variance=return_var, bounds=return_bounds)
        if (return_std or return_var) and self.method_ == "sr" and not self._warned:
            self._warned = True
            warnings.warn(
                "the subset of regressors' variances go to nothing far from the basis, and are never above the exact "
                'model\'s: intervals made of them are too narrow. Take method="vfe" or "dtc", or the upper end that '
                "return_bounds=True gives",
                OverconfidenceWarning,
                stacklevel=2,
            )
        return result

    # -------------------------------------------------------------------------------------------------------- keeping

    @classmethod
    def _settings_from(cls, fitted: Any) -> dict[str, Any]:
        settings = super()._settings_from(fitted)
        record = fitted.record
        near = {name: value for name in NEAR_SETTINGS if (value := getattr(record, name)) is not None}
        return {**settings, "method": record.method, "basis_size": record.basis_size, **near}
