"""`GaussianProcessClassifier`: scikit-learn's class, name for name, over dkgp's dense way."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dkgp.errors import InputError
from dkgp.estimators.drop_in.binary import BinaryGaussianProcessClassifier, LaplaceParameters
from dkgp.estimators.drop_in.likelihood import asked_for
from dkgp.estimators.drop_in.parameters import (
    GIBIBYTE,
    inputs_to_predict,
    require_dense,
    solve_bytes,
    training_samples,
)
from dkgp.estimators.drop_in.theirs import OneVsOneClassifier, OneVsRestClassifier
from dkgp.estimators.drop_in.theirs import kernels as sk
from dkgp.estimators.parameters import check_parameters
from dkgp.estimators.scikit_learn import check_is_fitted
from dkgp.estimators.values import label_values, require_same_order, weights_of_score
from dkgp.operators.base import FloatArray


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianProcessClassifier(LaplaceParameters):
    """Gaussian process classification with the parameters and meanings of scikit-learn's class of this name.

    By Laplace's approximation under the logistic likelihood, in memory. Samples whose kernel matrix does not fit
    `dense_bytes` are for `dkgp.GPClassifier`, which solves for the same mode without the matrix.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        1.0 * RBF(1.0), as it is, by default.
    optimizer, n_restarts_optimizer, copy_X_train, random_state
        As of `GaussianProcessRegressor`.
    max_iter_predict : int, default 100
        Steps of Newton's method at most.
    warm_start : bool, default False
        Start Newton's method where it ended last.
    multi_class : {"one_vs_rest", "one_vs_one"}, default "one_vs_rest"
        Of more than two classes. One against one has no probabilities.
    n_jobs : int, optional
        Processes for the classifiers of several classes, as joblib has it.

    Attributes
    ----------
    classes_, n_classes_, n_features_in_, feature_names_in_
    base_estimator_
        The classifier of two classes, or scikit-learn's `OneVsRestClassifier` or `OneVsOneClassifier` of such.
    kernel_ : sklearn.gaussian_process.kernels.Kernel
        With the numbers that were found; of several classes a `CompoundKernel` of theirs.
    log_marginal_likelihood_value_ : float
        Of `kernel_`; of several classes the mean of theirs.
    dense_bytes : int
        Of the class: the memory that dense algebra may take, 2 GiB, which is enough for 9,400 samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> model = GaussianProcessClassifier().fit(X, X[:, 0] * X[:, 1] > 0.0)
    >>> near, far = model.predict_proba([[1.0, 1.0], [40.0, 40.0]])[:, 1]
    >>> bool(near > 0.7), bool(abs(far - 0.5) < 0.01)
    (True, True)
    """

    multi_class: Literal["one_vs_rest", "one_vs_one"] = "one_vs_rest"
    n_jobs: int | None = None

    dense_bytes: ClassVar[int] = 2 * GIBIBYTE

    def fit(self, X: Any, y: Any) -> Self:
        """Search the kernel's numbers, and train.

        Parameters
        ----------
        X : (n, d) array_like, or a list of objects that the kernel takes
        y : (n,) array_like
            Labels of two classes or more.

        Returns
        -------
        GaussianProcessClassifier
            This one.

        Raises
        ------
        InputError
            A `ValueError`: parameters or data that cannot be worked with.
        MemoryBudgetError
            More samples than `dense_bytes` allows.
        """
        check_parameters(self)
        if isinstance(self.kernel, sk.CompoundKernel):
            raise InputError("kernel cannot be a CompoundKernel: give one kernel, which every class gets a copy of")
        X, y = training_samples(self, X, label_values(y), multi_output=False)
        instead = "Use dkgp.GPClassifier, which solves for the same mode without the matrix, or raise it"
        require_dense("the classifier", len(y), solve_bytes(len(y)), self.dense_bytes, instead)
        self.classes_ = np.unique(y)
        self.n_classes_ = self.classes_.size
        if self.n_classes_ == 1:
            raise InputError(
                "GaussianProcessClassifier requires 2 or more distinct classes; got 1 class (only class "
                f"{self.classes_[0]} is present)"
            )
        binary: Any = BinaryGaussianProcessClassifier(
            **{each.name: getattr(self, each.name) for each in fields(LaplaceParameters)}, dense_bytes=self.dense_bytes
        )
        if self.n_classes_ > 2:
            several = OneVsRestClassifier if self.multi_class == "one_vs_rest" else OneVsOneClassifier
            binary = several(binary, n_jobs=self.n_jobs)
        self.base_estimator_ = binary.fit(X, y)
        self.log_marginal_likelihood_value_ = np.mean([part.log_marginal_likelihood() for part in self._parts()])
        return self

    def _parts(self) -> list[Any]:
        """The classifiers of two classes."""
        return [self.base_estimator_] if self.n_classes_ == 2 else list(self.base_estimator_.estimators_)

    @property
    def kernel_(self) -> Any:
        """The kernel with the numbers that were found, or a `CompoundKernel` of those of all classes."""
        if not hasattr(self, "base_estimator_"):
            raise AttributeError("kernel_ is there once the estimator is fitted")
        kernels = [part.kernel_ for part in self._parts()]
        return kernels[0] if self.n_classes_ == 2 else sk.CompoundKernel(kernels)

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(self, X: Any) -> Any:
        """Predict labels, (r,), of (r, d) inputs or a list of objects that the kernel takes."""
        check_is_fitted(self)
        return self.base_estimator_.predict(inputs_to_predict(self, X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right labels.

        Parameters
        ----------
        sample_weight : (r,) array_like, optional
        """
        require_same_order(X, y=y)
        return float(super().score(X, label_values(y), weights_of_score(X, sample_weight)))

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the classes, (r, C), in the order of `classes_`.

        By scikit-learn's approximation of the average, within 5e-4 of it. `dkgp.GPClassifier` proves its own.

        Raises
        ------
        InputError
            Classes one against one, which have none.
        """
        check_is_fitted(self)
        if self.n_classes_ > 2 and self.multi_class == "one_vs_one":
            raise InputError(
                "one_vs_one multi-class mode does not support predicting probability estimates. Use one_vs_rest mode "
                "instead."
            )
        return np.asarray(self.base_estimator_.predict_proba(inputs_to_predict(self, X)))

    def latent_mean_and_variance(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the latent function of two classes, (r,) each.

        Raises
        ------
        InputError
            More than two classes.
        """
        check_is_fitted(self)
        if self.n_classes_ > 2:
            raise InputError(
                "Returning the mean and variance of the latent function f is only supported for binary classification, "
                f"received {self.n_classes_} classes."
            )
        mean, variance = self.base_estimator_.latent_mean_and_variance(inputs_to_predict(self, X))
        return mean, variance

    # ------------------------------------------------------------------------------------------------------ likelihood

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        """Approximate log marginal likelihood under other numbers of the kernel; of several classes, the mean.

        Parameters
        ----------
        theta : (q,) array_like, optional
            Logarithms, as `kernel_.theta`; of several classes q for all of them, or q for each. By default the value
            for `kernel_` is returned as it was found.
        eval_gradient : bool
            Also the gradient (q,); of two classes.
        clone_kernel : bool
            If False, the classifiers' kernels themselves take these numbers.
        """
        values, parts = asked_for(self, theta, eval_gradient), self._parts()
        if values is None:
            return self.log_marginal_likelihood_value_
        if self.n_classes_ == 2:
            return parts[0].log_marginal_likelihood(values, eval_gradient, clone_kernel=clone_kernel)
        if eval_gradient:
            raise NotImplementedError("Gradient of log-marginal-likelihood not implemented for multi-class GPC.")
        q = parts[0].kernel_.n_dims
        if len(values) not in (q, q * len(parts)):
            raise InputError(
                f"Shape of theta must be either {q} or {q * len(parts)}. Obtained theta with shape {len(values)}."
            )
        by_part = [values] * len(parts) if len(values) == q else np.split(values, len(parts))
        return np.mean(
            [
                part.log_marginal_likelihood(own, clone_kernel=clone_kernel)
                for part, own in zip(parts, by_part, strict=True)
            ]
        )
