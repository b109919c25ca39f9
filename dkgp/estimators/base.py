"""Base of estimators: hyperparameters, predictions in the inputs' own form, keeping, scikit-learn's protocol."""

from __future__ import annotations

import os
import warnings
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from dkgp.data import Dataset
from dkgp.errors import InputError
from dkgp.estimators.fitted import Fitted, Workspace
from dkgp.estimators.gradients import PredictionGradients, prediction_gradients
from dkgp.estimators.inputs import Table, computed, is_plain, numeric_samples, read_inputs, weights_of_score
from dkgp.estimators.outputs import frame_index, predictions
from dkgp.estimators.parameters import (
    Client,
    Place,
    PositiveOrNone,
    RandomState,
    Restarts,
    SubsetSize,
    Takes,
    address,
    check_value,
)
from dkgp.estimators.scikit_learn import BaseEstimator, ConvergenceWarning, RegressorMixin, TakesSparse, check_is_fitted
from dkgp.estimators.settings import (
    OBJECTIVES,
    about_fit,
    executor_for,
    hyperparameters_for,
    settings_of,
    shortfall_of_tuning,
)
from dkgp.estimators.targets import EstimatorMean, drift_of, of_groups, require_centred
from dkgp.estimators.training_set import (
    SampleNoise,
    feature_names_of,
    new_samples,
    outer_client,
    plain_inputs,
    true_targets,
)
from dkgp.html import panel
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models import Hyperparameters, tune_dataset
from dkgp.models.sparse.search import BASIS_SIZES, EVIDENCES, tune_by_bound
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.variance.settings import VarianceSettings

KERNELS = Takes(
    "an expression such as 'rbf', a dkgp.kernels.Kernel or dkgp.models.Hyperparameters",
    lambda value: isinstance(value, str | Kernel | Hyperparameters),
)


class ClientEstimator(TakesSparse, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Base of all estimators: the client stays in this process, and notebooks show a fitted model."""

    def _panels(self) -> str:
        """Return the panel of a fitted model, which notebooks show below scikit-learn's diagram."""
        fitted = getattr(self, "_fitted", None)
        return "" if fitted is None else panel(type(self).__name__, *fitted.record._panel())

    def _repr_html_inner(self) -> str:
        return str(super()._repr_html_inner()) + self._panels()

    def _repr_mimebundle_(self, **how: Any) -> dict[str, Any]:
        """Add the panel to the HTML, which is absent if scikit-learn's `display` setting asks for text."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**how)
        return {kind: text + self._panels() if kind == "text/html" else text for kind, text in bundle.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client out: it belongs to this process."""
        return {**super().__getstate__(), "client": None}

    def __sklearn_clone__(self) -> Self:
        """Return a new estimator with the same parameters and the same client, which is not copied."""
        from sklearn.base import clone

        parameters = {
            name: value if name == "client" else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**parameters)


class TargetsRegressor(RegressorMixin, ClientEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Base of regressors, of one or several targets."""

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of the predicted mean; lazy inputs are computed.

        Parameters
        ----------
        sample_weight : (r,) array_like, optional
        """
        from sklearn.metrics import r2_score

        check_is_fitted(self)
        targets = true_targets(X, y)
        mean = self.predict(X)
        weights = weights_of_score(X, sample_weight)
        return float(r2_score(targets, np.asarray(computed(mean)), sample_weight=weights))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


@dataclass(eq=False, repr=False)
class KernelEstimator(ClientEstimator):
    """Base of regressors and classifiers; attributes as of `GPRegressor`.

    A field is a parameter of the constructor: of it and its default there is one declaration.
    """

    kernel: Annotated[str | Kernel | Hyperparameters, KERNELS] = "rbf"
    _: KW_ONLY
    client: Client = None
    store: Place = None
    random_state: RandomState = 0

    _state: ClassVar[type[Fitted]]
    _fitted: Fitted = field(init=False)

    # ------------------------------------------------------------------------------------------------------- training

    def _take(self, fitted: Any) -> None:
        """Set scikit-learn's attributes from a model."""
        record, hyperparameters = fitted.record, fitted.about.get("hyperparameters")
        if record.standardisation.transforms:
            raise InputError(
                f"the targets {list(record.target_names)} were ingested with a transform, and estimators predict in "
                "the targets' own units; use dkgp train, predict and evaluate, or ingest without it and transform y in "
                "Python"
            )
        self._fitted = fitted
        self.kernel_ = kernel_from_json(record.kernel)
        self.noise_variance_ = record.noise_variance
        self.hyperparameters_ = (
            Hyperparameters(self.kernel_, self.noise_variance_)
            if hyperparameters is None
            else Hyperparameters.from_json(hyperparameters)
        )
        self.solution_ = {name: value for name, value in record.summary.items() if name != "estimator"}
        self.history_ = record.history
        self.target_names_ = record.target_names

    def _inputs(self, X: Any) -> Table:
        if is_plain(X):
            return Table(plain_inputs(self, X), None, index=frame_index(X))
        names = feature_names_of(self)
        if names is not None:
            # Those that were constant are not asked for.
            to = self._fitted.record.standardisation
            names = tuple(name for name, kept in zip(names, to.kept, strict=True) if kept or name in to.covariate_names)
        return read_inputs(X, names)

    def _keep(
        self,
        model: Any,
        training_set: tuple[Dataset, Workspace],
        hyperparameters: Hyperparameters,
        *,
        several: bool = False,
        stacklevel: int = 4,
        **more: Any,
    ) -> None:
        """Keep a trained model with this estimator's parameters; warn if tuning or training did not converge.

        `several`: predictions have a dimension for targets. `more` joins the description that the model keeps.
        """
        dataset, workspace = training_set
        about = about_fit(self, dataset, hyperparameters, several=several)
        self._take(self._state.of(model, workspace, {**about, **more}))
        self._warn(shortfall_of_tuning(hyperparameters), self._shortfall(), stacklevel=stacklevel + 1)

    def _shortfall(self) -> str | None:
        """Return the warning of a solution that stopped short; None for one that converged."""
        summary = self.solution_
        if summary["converged"]:
            return None if (beyond := summary.get("beyond_tolerance")) is None else str(beyond)
        return f"not converged: {summary['reason']}; {summary['advice']}. {self._holds()}"

    def _holds(self) -> str:
        """Name the proofs that hold for a solution that stopped short."""
        return "Its error bounds are valid"

    def _warn(self, *shortfalls: str | None, stacklevel: int) -> None:
        for shortfall in filter(None, shortfalls):
            warnings.warn(shortfall, ConvergenceWarning, stacklevel=stacklevel)

    # -------------------------------------------------------------------------------------------------------- keeping

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a store, with all that it can do; `dkgp predict` reads it too.

        Raises
        ------
        OutputExistsError, StorageError
            The place is taken, or cannot be written to.
        """
        check_is_fitted(self)
        saved = self._fitted.save(address(url), overwrite=overwrite)
        if saved is not self._fitted:
            self._take(saved)

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, client: Any = None) -> Self:
        """Open a model that was saved here or by the command line, without its training set.

        Parameters
        ----------
        url
            Local path or fsspec URL.
        client : distributed.Client, optional

        Raises
        ------
        StoreError
            Nothing there, or not a model of this kind that is whole.
        """
        check_value("client", Client, client)
        fitted = cls._opened(address(url))
        record, about = fitted.record, fitted.about
        saved = about.get("settings")
        estimator = cls(**(settings_of(saved) if saved else cls._settings_from(fitted)), client=client)
        estimator._take(fitted)
        estimator.n_features_in_ = record.standardisation.n_raw_features
        names = about.get("raw_feature_names", record.feature_names)
        if about.get("has_names", len(names) == estimator.n_features_in_):
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        return estimator

    @classmethod
    def _opened(cls, url: str) -> Fitted:
        return cls._state.load(url, Workspace(None))

    @classmethod
    def _settings_from(cls, fitted: Any) -> dict[str, Any]:
        """Return the parameters of an estimator for a model that no estimator saved."""
        return {"kernel": kernel_from_json(fitted.record.kernel), "noise_variance": fitted.record.noise_variance}


@dataclass(eq=False, repr=False, kw_only=True)
class GPEstimator(TargetsRegressor, KernelEstimator):
    """Base of Gaussian processes; parameters and attributes as of `GPRegressor`."""

    noise_variance: PositiveOrNone = None
    optimizer: str | None = "marginal_likelihood"
    subset_size: SubsetSize = 2000
    n_restarts_optimizer: Restarts = 0

    _mean = EstimatorMean()

    def _hyperparameters(self, dataset: Dataset, seed: int, noise: SampleNoise) -> Hyperparameters:
        def tune(kernel: Kernel | None, fixed: dict[str, float] | None) -> Hyperparameters:
            return self._tuned(dataset, kernel, fixed, seed, noise)

        return hyperparameters_for(
            self.kernel,
            dataset,
            noise_variance=self.noise_variance,
            optimizer=self.optimizer,
            tune=tune,
        )

    def _tuned(
        self, dataset: Dataset, kernel: Kernel | None, fixed: dict[str, float] | None, seed: int, noise: SampleNoise
    ) -> Hyperparameters:
        """Tune on a subset of the samples, or by the evidence of them all."""
        assert self.optimizer is not None
        if self.optimizer in EVIDENCES:
            require_centred(self, f"values by the evidence {self.optimizer!r}")
            if noise.variances is not None:
                raise InputError(
                    f'optimizer="{self.optimizer}" takes one noise variance for all samples; leave sample_noise out, '
                    'or take "marginal_likelihood" or "loo"'
                )
            choices, size = Choices(kernel, fixed=fixed), self._evidence_size(dataset.n_samples, seed)
            settings = SearchSettings(seed, restarts=1 + self.n_restarts_optimizer)
            with executor_for(self.client, dataset) as executor:
                return tune_by_bound(dataset, executor, choices, settings, objective=self.optimizer, basis_size=size)
        return tune_dataset(
            dataset,
            kernel=kernel,
            subset=self.subset_size,
            objective=OBJECTIVES[self.optimizer],
            restarts=1 + self.n_restarts_optimizer,
            seed=seed,
            fixed=fixed,
            sample_noise=noise.known(dataset.standardisation.target_std),
            relative_noise=noise.multiples,
            mean=drift_of(self),
        )

    def _evidence_size(self, n: int, seed: int) -> int:
        """Number of basis samples for tuning by evidence."""
        return min(BASIS_SIZES["vif"], n)

    def _new_samples(self, X: Any, y: Any, p: int, **by_sample: Any) -> tuple[Any, Any, SampleNoise]:
        """Read samples to add to a model of p targets: raw inputs, targets and noise; arguments as of `update`."""
        X, y = numeric_samples(X, y, **by_sample)
        X, y, noise = SampleNoise.of(**by_sample).without_weightless(X, y)
        inputs, targets = new_samples(self, X, self._mean.taken_off(X, y), p)
        noise.require(len(inputs))
        noise.require_one_target(p)
        return inputs, targets, noise

    def partial_fit(self, X: Any, y: Any = None, **noise: Any) -> Self:
        """`fit` the first time, `update` from then on; `noise` are keywords of both."""
        fitted = hasattr(self, "_fitted") or hasattr(self, "parts_")
        trained: Self = self.update(X, y, **noise) if fitted else self.fit(X, y, **noise)
        return trained

    # ----------------------------------------------------------------------------------------------------- predictions

    def _predictions(self, X: Any, settings: VarianceSettings, **asked: bool) -> Any:
        """Predict the mean and the other requested quantities: std, variance, bounds."""
        check_is_fitted(self)
        client = outer_client(self)
        names = ("mean", *(name for name, wanted in asked.items() if wanted))
        return predictions(self._fitted, self._inputs(X), names, settings, several=self._several, client=client)

    @of_groups
    def predict_gradients(self, X: Any, return_std: bool = False, *, latent: bool = False) -> PredictionGradients:
        """Differentiate the mean in the inputs, with proven bounds, and on request the standard deviation.

        Parameters
        ----------
        X
            As for `predict`; computed at once, in this process, so many rows at a time that memory stays small.
        return_std : bool
            Also the standard deviation and its derivatives. An exact model takes a Cholesky factor of all samples for
            them, 4 n^2 bytes, which the first call builds; a sparse model needs none.
        latent : bool
            Of the function itself; by default of a new observation, noise included.

        Returns
        -------
        PredictionGradients
            Gradients (r, d) in the targets' units per unit of each input, or (r, p, d) where the targets were
            two-dimensional; a feature that was constant has derivatives of zero.

        Raises
        ------
        InputError
            A kernel that is not differentiable, as matern12; a user's function without `derivative`; too large a
            factor, or noise that depends on the inputs (without `latent`); a regressor of another's as the mean.
        """
        check_is_fitted(self)
        self._mean.require_differentiable()
        rows = computed(self._inputs(X).inputs)
        return prediction_gradients(
            self._fitted, rows, deviations=return_std, latent=bool(latent), several=self._several
        )

    @property
    def _several(self) -> bool:
        return bool(self._fitted.about.get("several_targets", len(self._fitted.record.target_names) > 1))
