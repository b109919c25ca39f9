"""Base of classifiers: from labels in any form and container to a training set, and from decisions back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import BlockExecutor
from dkgp.data import ClassifierRecord, Dataset
from dkgp.data.classes import check_classes, class_name
from dkgp.data.sources.labelled import is_labelled, labelled_targets
from dkgp.errors import InputError
from dkgp.estimators.base import KernelEstimator
from dkgp.estimators.fitted import FittedClassifier, Workspace
from dkgp.estimators.inputs import (
    Table,
    computed,
    is_dask,
    is_plain,
    label_values,
    numbers_of,
    read_samples,
    require_same_order,
    weights_of_score,
)
from dkgp.estimators.outputs import Form, present, quantities
from dkgp.estimators.parameters import (
    AllowedError,
    CheckedElsewhere,
    Positive,
    PositiveOrNone,
    SubsetSize,
    check_parameters,
    check_value,
)
from dkgp.estimators.scikit_learn import (
    ClassifierMixin,
    check_is_fitted,
    seed_of,
    validate_data,
)
from dkgp.estimators.settings import executor_for, hyperparameters_for
from dkgp.estimators.training_set import feature_names_of, kept_samples, note_features, outer_client, target_names_of
from dkgp.kernels import Kernel
from dkgp.models import Hyperparameters
from dkgp.models.classification.exact import DECISION_TOLERANCE
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels, label_weights, labels_of
from dkgp.models.classification.near import tune_labels_by_neighbours
from dkgp.models.classification.trained import TrainedClassifier
from dkgp.models.context import RunContext
from dkgp.models.sparse.search import BASIS_SIZES
from dkgp.models.tuning.laplace import LabelLikelihood
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import ProductError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Base of classifiers; parameters and attributes as of `LSSVC`."""

    class_weight: CheckedElsewhere = None

    _form: ClassVar[str]  # of the models that it trains and loads
    _state = FittedClassifier
    _fitted: FittedClassifier = field(init=False)

    # ------------------------------------------------------------------------------------------------------- training

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Read the training set, tune, train and keep the model: `fit` of every classifier."""
        check_parameters(self)
        seed = seed_of(self.random_state)
        self._check_settings(seed)
        workspace = Workspace(self.store)
        training_set = labelled_set(self, X, y, sample_weight, workspace)
        data = LabelledData(training_set.dataset, training_set.labels, self._weights(training_set))
        hyperparameters = self._kernel_and_noise(training_set, seed)
        with executor_for(self.client, data.dataset) as executor:
            trained = self._trained(data, hyperparameters, self._context(executor), seed)
        if hyperparameters is None:
            hyperparameters = Hyperparameters(trained.kernel, trained.noise_variance)
        record = trained.record(data)
        if record.is_sparse:  # It needs no training set: a temporary folder can go, now that all is read.
            workspace = Workspace(self.store)
        kept, classes = (training_set.dataset, workspace), classes_to_json(training_set.classes)
        self._keep(record.supported_by(training_set.dataset), kept, hyperparameters, classes=classes)
        return self

    @abstractmethod
    def _check_settings(self, seed: int) -> None:
        """Refuse contradictory settings before anything is stored."""

    @abstractmethod
    def _trained(
        self, data: LabelledData, hyperparameters: Hyperparameters | None, context: RunContext, seed: int
    ) -> TrainedClassifier: ...

    def _context(self, executor: BlockExecutor) -> RunContext:
        return RunContext(executor)

    def _weights(self, training_set: LabelledSet) -> FloatArray | None:
        """Weights of the samples by class and by sample, of mean one; None if all are equal."""
        by_class = self.class_weight
        if isinstance(by_class, Mapping):
            for label, weight in by_class.items():
                check_value(f"class_weight[{label!r}]", Positive, weight)
            by_class = {class_name(label): weight for label, weight in by_class.items()}
        elif by_class is not None and by_class != "balanced":
            raise InputError(f'class_weight= takes "balanced" or weights by class; got {by_class!r}')
        return label_weights(training_set.labels, by_class, training_set.sample_weight)

    @abstractmethod
    def _kernel_and_noise(self, training_set: LabelledSet, seed: int) -> Hyperparameters | None:
        """The given or tuned hyperparameters; None if training finds them itself."""

    def _take(self, fitted: Any) -> None:
        super()._take(fitted)
        self.classes_ = classes_from_json(fitted.about.get("classes"), fitted.record.classes)

    @classmethod
    def _opened(cls, url: str) -> FittedClassifier:
        return FittedClassifier.load(url, Workspace(None), cls._form)

    # ----------------------------------------------------------------------------------------------------- predictions

    def _predicted(self, X: Any, *names: str) -> tuple[Any, ...]:
        """Predictions by the names of `class_predictions`."""
        check_is_fitted(self)
        predictions = class_predictions(self._fitted, self._inputs(X), names, self.classes_, outer_client(self))
        return tuple(predictions[name] for name in names)

    def decision_function(self, X: Any) -> Any:
        """Return decisions: for two classes one that is positive for the second, otherwise one for each class.

        Parameters
        ----------
        X
            As for `fit`. The result of a dask array or xarray Dataset is lazy.

        Returns
        -------
        (r,) or (r, C)
        """
        return self._predicted(X, "decision")[0]

    def predict(self, X: Any) -> Any:
        """Return labels (r,), in the form of the training labels: the class with the largest decision.

        For a pandas DataFrame they are a Series with the same index.
        """
        return self._predicted(X, "label")[0]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of correct labels; lazy inputs are computed.

        Parameters
        ----------
        X, y
            As for `fit`; labels of a dataset store are matched by the classes' names.
        sample_weight : (r,) array_like, optional
        """
        from sklearn.metrics import accuracy_score

        check_is_fitted(self)
        truth = true_labels(X, y, self.classes_, self._fitted.record.classes)
        weights = weights_of_score(X, sample_weight)
        return float(accuracy_score(truth, np.asarray(computed(self.predict(X))), sample_weight=weights))


@dataclass(eq=False, repr=False, kw_only=True)
class CertifiedClassifier(KernelClassifier):
    """Base of classifiers with all samples in one problem: of its exact solution they prove decisions and labels."""

    optimizer: str | None = "marginal_likelihood"
    subset_size: SubsetSize = 2000
    tol: Positive = DECISION_TOLERANCE
    max_passes: PositiveOrNone = None
    product_error: AllowedError = "auto"

    def _context(self, executor: BlockExecutor) -> RunContext:
        return RunContext(executor, product_error=ProductError.of(self.product_error))

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Tune the hyperparameters, unless they are set; train and certify.

        Parameters
        ----------
        X
            (n, d) array, DataFrame, dask array or xarray Dataset; or the path of a dataset store with labels.
        y
            Labels (n,), numbers or text; for a Dataset also the name of a variable.
        sample_weight : (n,) array_like, optional
            Relative weights of the losses. Samples of weight zero are left out. A dataset store may contain weights.

        Returns
        -------
        Self
            The fitted estimator itself.

        Raises
        ------
        InputError
            A `ValueError`: invalid data or settings, a single class, or a missing label.

        Warns
        -----
        ConvergenceWarning
            Training stopped before `tol` was reached. Proven bounds stay valid.
        """
        return self._fit(X, y, sample_weight)

    def _tuned(
        self, training_set: LabelledSet, seed: int, noise_variance: float | None, likelihood: LabelLikelihood | None
    ) -> Hyperparameters:
        """The given or tuned hyperparameters; labels of a likelihood have no noise."""

        def tune(kernel: Kernel | None, fixed: dict[str, float] | None) -> Hyperparameters:
            data = LabelledData(training_set.dataset, training_set.labels)
            if self.optimizer == "vif":
                choices, size = Choices(kernel, likelihood=likelihood), min(BASIS_SIZES["vif"], data.n)
                with executor_for(self.client, data.dataset) as executor:
                    return tune_labels_by_neighbours(data, executor, choices, SearchSettings(seed), basis_size=size)
            noise = fixed if likelihood is None else None
            settings = LabelTuning(self.subset_size, seed, kernel, fixed=noise, likelihood=likelihood)
            return tune_labels(data, settings)

        return hyperparameters_for(
            self.kernel,
            training_set.dataset,
            noise_variance=noise_variance,
            optimizer=self.optimizer,
            tune=tune,
        )

    def decision_function(self, X: Any, return_bounds: bool = False) -> Any:
        """Return decisions: for two classes one that is positive for the second, otherwise one for each class.

        Parameters
        ----------
        X
            As for `fit`. The result of a dask array or xarray Dataset is lazy.
        return_bounds : bool
            For a model of all samples: also return a proven bound on each decision's distance from the exact one.

        Returns
        -------
        decisions, or (decisions, bounds)
            (r,) or (r, C) each.
        """
        predictions = self._predicted(X, "decision", *(("bounds",) if return_bounds else ()))
        return predictions if return_bounds else predictions[0]

    def predict(self, X: Any, return_certified: bool = False) -> Any:
        """Return labels (r,), in the form of the training labels: the class with the largest decision, or probability.

        For a pandas DataFrame they are a Series with the same index.

        Parameters
        ----------
        return_certified : bool
            For a model of all samples: also return whether each label is proven to be the exact solution's.

        Returns
        -------
        labels, or (labels, certified)
            (r,) each.
        """
        predictions = self._predicted(X, "label", *(("certified",) if return_certified else ()))
        return predictions if return_certified else predictions[0]


# Floats below this that are whole numbers are labels to scikit-learn, too.
_WHOLE = 2.0**53
# Kinds of NumPy arrays whose values JSON has words for.
_JSON_KINDS = "biufU"


@dataclass(frozen=True)
class LabelledSet:
    """A training set.

    Attributes
    ----------
    dataset : Dataset
    labels : Labels
        Of its samples, under the classes' names.
    classes : (C,) ndarray
        The classes as they were given, in the order of their codes.
    sample_weight : (n,) ndarray or None
    """

    dataset: Dataset
    labels: Labels
    classes: NDArray[Any]
    sample_weight: NDArray[np.float64] | None


def labelled_set(estimator: Any, X: Any, y: Any, sample_weight: Any, workspace: Workspace) -> LabelledSet:
    """Make a training set, and set scikit-learn's attributes of the estimator.

    The estimator gets `n_features_in_` and, where there are names, `feature_names_in_`; a store goes to the workspace.
    Of inputs in memory, samples of weight zero are left out.

    Raises `InputError`: a `ValueError`: one class only, a label that is missing, weights that do not fit.
    """
    require_same_order(X, y=y, sample_weight=sample_weight)
    if is_plain(X):
        inputs, targets = _validated(estimator, X, y)
        names = feature_names_of(estimator)
        label_name = target_names_of(y, names or ())
    else:
        table = read_samples(X, y)
        note_features(estimator, len(table.names) if table.names else table.inputs.shape[1], table.names)
        if table.dataset is not None:
            labels = labels_of(table.dataset)
            # A store may bring weights of its own; those that are given take their place.
            weights = table.dataset.all_weights() if sample_weight is None else sample_weight
            weight = _weights(weights, labels.n_samples)
            return LabelledSet(table.dataset, labels, np.asarray(labels.classes), weight)
        inputs, names, label_name = table.inputs, table.names, table.target_names
        targets = _column(table.targets)
    weight = _weights(sample_weight, len(targets))
    if weight is not None and not weight.any():
        raise InputError("the weight of every sample is zero; expected a positive one for some samples of each class")
    if weight is not None and not is_dask(inputs) and not weight.all():
        kept = weight > 0.0
        inputs, targets, weight = np.asarray(inputs)[kept], targets[kept], weight[kept]
    classes, codes = encoded(targets)
    labels = Labels(check_classes([class_name(value) for value in classes.tolist()]), codes)
    about: dict[str, Any] = {
        "feature_names": names or tuple(f"x{column}" for column in range(inputs.shape[1])),
        "target_names": label_name or ("y",),
        "classes": labels.classes,
    }
    dataset = kept_samples(estimator, inputs, codes.astype(np.float64), workspace, about)
    return LabelledSet(dataset, labels, classes, weight)


def true_labels(X: Any, y: Any, classes: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """Labels to compare predictions with, (r,), in the form of `classes`; those of a store are matched by name.

    Raises `InputError`: there are no labels, or a label of the store is not among `names`.
    """
    require_same_order(X, y=y)
    if y is None or not is_plain(X):
        table = read_samples(X, y)
        if table.dataset is not None:
            store = table.dataset
            seen = store.as_seen_by(store.feature_names, store.target_names, store.standardisation, names)
            return np.asarray(classes[seen.all_labels()])
        return _column(table.targets)
    return _column(labelled_targets(y, None)[0] if is_labelled(y) else y)


def encoded(targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Distinct labels in order, (C,), and the code of each sample, (n,).

    Raises `InputError`: a label that is missing, labels that are continuous numbers or cannot be put in an order, one
    class only.
    """
    from sklearn.utils.multiclass import check_classification_targets

    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        row = int(np.argmin(np.isfinite(targets)))
        raise InputError(f"the label of sample {row} is {targets[row]}; leave such samples out")
    whole = targets.dtype.kind in "biu" or (
        targets.dtype.kind == "f" and bool(((np.abs(targets) < _WHOLE) & (targets == np.trunc(targets))).all())
    )
    if not whole:
        check_classification_targets(targets)
    classes, codes = np.unique(targets, return_inverse=True)
    if whole and 2 * len(classes) > len(targets):
        check_classification_targets(targets)  # warns of so many classes
    if len(classes) < 2:
        raise InputError(
            f"there is one class only, {classes.tolist()[0]!r}; expected two classes at least to tell apart"
        )
    return classes, np.asarray(codes, dtype=np.int64)


def classes_to_json(classes: NDArray[Any]) -> dict[str, Any] | None:
    """Return classes in JSON; None for values that JSON does not have, which are replaced by their names."""
    if classes.dtype.kind == "O" and all(isinstance(value, str) for value in classes):
        return {"dtype": "O", "values": classes.tolist()}
    return {"dtype": classes.dtype.str, "values": classes.tolist()} if classes.dtype.kind in _JSON_KINDS else None


def classes_from_json(document: dict[str, Any] | None, names: tuple[str, ...]) -> NDArray[Any]:
    """Return classes from `classes_to_json`, or the classes' names."""
    return np.asarray(names) if document is None else np.array(document["values"], dtype=document["dtype"])


def _validated(estimator: Any, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    values = label_values(labelled_targets(y, None)[0] if is_labelled(y) else y)
    inputs, targets = validate_data(estimator, X, values, dtype=np.float64, ensure_min_samples=2)
    return inputs, np.asarray(targets)


def _column(values: Any) -> NDArray[Any]:
    from sklearn.utils.validation import column_or_1d

    return np.asarray(column_or_1d(np.asarray(label_values(values)), warn=True))


def _weights(sample_weight: Any, n: int) -> NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    values = numbers_of(sample_weight, "sample_weight")
    if values.ndim == 0:
        values = np.full(n, float(values))
    if values.shape != (n,):
        raise InputError(f"sample_weight has shape {values.shape}; expected ({n},)")
    if not np.isfinite(values).all() or (values < 0.0).any():
        row = int(np.argmin(np.isfinite(values) & (values >= 0.0)))
        raise InputError(f"the weight of sample {row} is {values[row]}; expected a finite one that is not negative")
    return values


PROBABILITIES = ("probability", "probability_lower", "probability_upper")


def class_predictions(
    fitted: FittedClassifier, table: Table, names: tuple[str, ...], classes: NDArray[Any], client: Any = None
) -> dict[str, Any]:
    """Predict, lazily where the inputs are.

    Parameters
    ----------
    table : Table
        Inputs.
    names : tuple of str
        Any of "label", "decision", "bounds", "probability", "probability_lower", "probability_upper", "certified".
    classes : (C,) ndarray
        In the order of their codes.
    client : distributed.Client, optional
        To compute predictions that are not lazy.

    Returns
    -------
    dict
        By name: "label" (r,), "decision" and "bounds" (r,) of two classes, else (r, C), probabilities (r, C),
        "certified" (r,) of bool.
    """
    record = fitted.record
    t = record.n_outputs
    target, several = record.target_names[0], classes if t > 1 else None
    forms = {
        "label": Form(target, decode=partial(_taken, classes)),
        # Decisions stay an array, as scikit-learn's calibration needs them.
        "decision": Form(f"{target}_decision", several, "class_name", framed=False),
        "bounds": Form(f"{target}_decision_error_bound", several, "class_name", framed=False),
        "certified": Form(f"{target}_certified", decode=_is_one),
        **{name: Form(f"{target}_{name}", classes, "class_name") for name in PROBABILITIES},
    }
    widths = {name: 1 if (columns := forms[name].columns) is None else len(columns) for name in names}
    variance = VarianceSettings() if _averaged(record, names) else None
    known = quantities(fitted, table.rows, names, variance, client, widths)
    return {name: present(values, table, forms[name]) for name, values in known.items()}


def _averaged(record: ClassifierRecord, names: tuple[str, ...]) -> bool:
    """True where a Gaussian process' probabilities are averaged for these, which takes variances.

    Decisions take none, nor do classes, but those of several functions of all samples: the most likely on average.
    """
    without = {"decision", "bounds"} | ({"label"} if record.n_outputs == 1 or record.is_sparse else set())
    return record.form == "gp" and not without.issuperset(names)


def _taken(classes: NDArray[Any], codes: FloatArray) -> NDArray[Any]:
    return np.asarray(classes[codes.astype(np.int64)])


def _is_one(values: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(values > 0.5)
